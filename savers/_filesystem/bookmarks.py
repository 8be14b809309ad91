"""The logs that a watch follows: their names, their ids, and where reading each of them ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphkit.abc import is_namespace_inside
from savers._filesystem import catalog, layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphkit import RunnableConfig
    from savers._filesystem.store import Store


class Bookmark(NamedTuple):
    """Where in which file a follower stopped reading."""

    inode: int
    """The file; 0: it was replaced, or cut, since."""
    end: int
    last: str | None = None
    """The id of the last checkpoint that was reported."""
    is_over: bool = False
    """Whether the end of this history was reported."""


class LogName(NamedTuple):
    """The directory of a live log and its versions."""

    thread: str
    """The name of the thread's directory."""
    namespace: str
    """The name of the namespace's directory inside it; "" for the root namespace."""


class Bookmarks:
    """The bookmark of each log, by the directories of its thread and its namespace."""

    def __init__(self) -> None:
        self._marks: dict[str, dict[str, Bookmark]] = {}

    def __len__(self) -> int:
        """Return how many threads have bookmarks."""
        return len(self._marks)

    def threads(self) -> Iterable[str]:
        """Return the directories of the threads that have bookmarks."""
        return self._marks.keys()

    def namespaces(self, thread: str) -> Iterable[str]:
        """Return the directories of the namespaces of a thread that have bookmarks."""
        return self._marks.get(thread, {}).keys()

    def find(self, name: LogName) -> Bookmark | None:
        """Return the bookmark of a log, if it has one."""
        return self._marks.get(name.thread, {}).get(name.namespace)

    def set(self, name: LogName, mark: Bookmark) -> None:
        """Set the bookmark of a log."""
        self._marks.setdefault(name.thread, {})[name.namespace] = mark

    def remove(self, name: LogName) -> None:
        """Remove the bookmark of a log, if it has one."""
        marks = self._marks.get(name.thread, {})
        marks.pop(name.namespace, None)
        if not marks:
            self._marks.pop(name.thread, None)


class LogIds:
    """Finds the thread and the namespace of a log that a watch follows."""

    def __init__(self, store: Store, config: RunnableConfig | None) -> None:
        self._store = store
        self._config = config

    def find(self, name: LogName) -> tuple[str, str] | None:
        """Return the thread and the namespace of a log; None while no file contains them."""
        thread_id = self.find_thread(name.thread)
        if thread_id is None:
            return None
        if not name.namespace:
            return thread_id, ""
        directory = layout.join(self._store.root, *name)
        namespace = catalog.find_id(self._store, directory, [layout.LOG], "ns")
        return None if namespace is None else (thread_id, namespace)

    def find_thread(self, thread: str) -> str | None:
        """Return the id of the thread with a directory; None while no file contains it."""
        if self._config is not None:
            return self._config.thread
        known = layout.plain_id(thread) or self._store.ids.get(thread)
        if known is not None:
            return known
        directory = layout.join(self._store.root, thread)
        logs = catalog.list_logs(self._store, directory, released=True)
        return catalog.find_id(self._store, directory, logs, "thread")

    def is_followed(self, name: LogName) -> bool:
        """Return whether a log is in the namespace to follow, or below it."""
        if self._config is None or not self._config.checkpoint_ns:
            return True
        ids = self.find(name)
        if ids is None:
            return False
        _, namespace = ids
        return is_namespace_inside(namespace, self._config.checkpoint_ns)
