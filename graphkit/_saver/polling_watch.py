"""PollingWatch: reads a store at an interval, for savers without change events."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, final

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.status import with_status_when_stored
from graphkit._saver.versions import HasVersions
from graphkit._saver.watch import Change, ChangeKind, Watch, is_namespace_inside
from graphkit._saver.writes import is_incomplete, iter_changes

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver

_HistoryKey = tuple[str, str]
"""A thread id and a namespace."""

_WriteKey = tuple[str, bool]
"""The key of a pending write, and whether its value is None, which withdraws the write."""


class _Bookmark(NamedTuple):
    """How far a history has been reported."""

    checkpoint_id: str
    """The latest checkpoint."""
    writes: frozenset[_WriteKey]
    """The pending writes of that checkpoint."""
    versions: object
    """The versions of the thread."""


@final
class PollingWatch(Watch):
    """Reads the histories that it follows every `interval` seconds. Each read costs O(threads)."""

    def __init__(
        self, saver: BaseCheckpointSaver, config: RunnableConfig | None, *, latest: bool, interval: float
    ) -> None:
        """Start to follow a saver.

        Args:
            saver: the saver.
            config: what to follow; None is all threads. See `BaseCheckpointSaver.watch`.
            latest: report the latest checkpoint of each history first.
            interval: the time between two reads, in seconds.
        """
        super().__init__(interval)
        self._saver = saver
        self._config = config
        self._bookmarks: dict[_HistoryKey, _Bookmark] = {}
        for key in self._list_histories():
            self._set_first_bookmark(key, latest=latest)

    def _list_histories(self) -> list[_HistoryKey]:
        saver = self._saver
        found: list[_HistoryKey] = []
        if self._config is None:
            for thread in saver.threads():
                found += [(thread, namespace) for namespace in saver.namespaces(thread)]
            return found
        thread = self._config.thread
        root = self._config.checkpoint_ns
        namespaces: set[str] = set()
        for name in saver.namespaces(thread):
            if name != root and is_namespace_inside(name, root):
                namespaces.add(name)
        # Read with `get`: a saver that cannot list its namespaces does not name one that the
        # application chose.
        if saver.get(self._config.with_check_point_id(None)) is not None:
            namespaces.add(root)
        return [(thread, namespace) for namespace in sorted(namespaces)]

    def _set_first_bookmark(self, key: _HistoryKey, *, latest: bool) -> None:
        thread, namespace = key
        start = self._find_start(namespace)
        if start is not None:
            versions = self._read_versions(thread)
            self._bookmarks[key] = _Bookmark(start, writes=frozenset(), versions=versions)
            return
        history = [info for info in self._saver.history(_make_config(key)) if not is_incomplete(info.metadata)]
        if latest:
            history = history[1:]
        if history:
            self._set_bookmark(key, history[0].id)

    def _find_start(self, namespace: str) -> str | None:
        """Return the checkpoint after which a history is reported; None if the caller named none."""
        if self._config is None or self._config.checkpoint_ns != namespace:
            return None
        return self._config.checkpoint_id

    def _set_bookmark(self, key: _HistoryKey, checkpoint_id: str) -> Mapping[str, Any]:
        """Remember a checkpoint as reported; return its pending writes, which count as reported too."""
        writes = self._saver.get_writes(_make_config(key, checkpoint_id))
        self._bookmarks[key] = _Bookmark(
            checkpoint_id, writes=_make_write_keys(writes), versions=self._read_versions(key[0])
        )
        return writes

    def _read_versions(self, thread: str) -> object:
        """Return the versions of a thread: if they change, its history was released, not deleted."""
        if not isinstance(self._saver, HasVersions):
            return None
        return self._saver.versions_by_thread_id(thread)

    def _read_changes(self) -> Generator[Change, None, None]:
        histories = self._list_histories()
        for key in [key for key in self._bookmarks if key not in histories]:
            yield self._end_history(key)
        for key in histories:
            yield from self._read_history(key)
        self._next_read = monotonic() + self._interval

    def _end_history(self, key: _HistoryKey) -> Change:
        thread, namespace = key
        bookmark = self._bookmarks.pop(key)
        is_deleted = self._read_versions(thread) == bookmark.versions
        kind: ChangeKind = "delete" if is_deleted else "release"
        return Change(kind, thread, namespace)

    def _read_history(self, key: _HistoryKey) -> Iterator[Change]:
        thread, namespace = key
        bookmark = self._bookmarks.get(key)
        if bookmark is not None and bookmark.versions != self._read_versions(thread):
            yield self._end_history(key)
            bookmark = None
        if bookmark is None:
            bookmark = _Bookmark(checkpoint_id="", writes=frozenset(), versions=None)
        reported = bookmark.writes
        for info in self._read_from(key, bookmark.checkpoint_id):
            if is_incomplete(info.metadata):
                return  # It will be replaced: by another checkpoint, or by itself without the mark.
            if info.id != bookmark.checkpoint_id:
                reported = frozenset()
                yield Change("checkpoint", thread, namespace, checkpoint=info, at=info.created_at)
            writes = self._set_bookmark(key, info.id)
            new = _make_write_keys(writes) - reported
            names = {name for name, _ in new}
            new_writes = {name: value for name, value in writes.items() if name in names}
            yield from iter_changes(key, info, new_writes)

    def _read_from(self, key: _HistoryKey, checkpoint_id: str) -> Sequence[CheckpointInfo]:
        """Return a checkpoint and those after it, oldest first; all of them if it is gone."""
        history = self._saver.history(_make_config(key))
        ids = [info.id for info in history]
        if checkpoint_id in ids:
            history = history[: ids.index(checkpoint_id) + 1]
        return [info if info.status else with_status_when_stored(info) for info in reversed(history)]


def _make_config(key: _HistoryKey, checkpoint_id: str | None = None) -> RunnableConfig:
    thread, namespace = key
    return RunnableConfig(thread, checkpoint_id, namespace)


def _make_write_keys(writes: Mapping[str, Any]) -> frozenset[_WriteKey]:
    return frozenset((name, value is None) for name, value in writes.items())
