"""HasVersions: the contract of savers that keep released histories. Ports the class of langgraph4j."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from graphkit._java_names import JavaNames
from graphkit._records.checkpoint import Tag
from graphkit._records.config import ConfigLike, RunnableConfig
from graphkit._saver.arguments import ThreadLike, resolve_thread_id
from graphkit._saver.writes import follow_namespaces, nested_namespaces


class HasVersions(JavaNames, abc.ABC):
    """A saver that keeps every released history as a version. Versions count from 1 in each thread."""

    @abc.abstractmethod
    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        """Return the versions of a thread, ascending; empty if there are none."""

    @abc.abstractmethod
    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        """Return a released history.

        Args:
            config: names the thread and the namespace.
            version: the version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """

    def last_tag(self, config: ConfigLike = None) -> Tag | None:
        """Return the history that was released last; None if there is none."""
        if self.last_version_by_thread_id(config) is None:
            return None
        return self.tag(config)

    def last_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        """Return the newest version of a thread, or None."""
        versions = self.versions_by_thread_id(thread)
        if versions:
            return versions[-1]
        return None

    def get_version(self, config: ConfigLike = None) -> str | None:
        """Return the newest version of a thread as text, or None."""
        version = self.last_version_by_thread_id(config)
        if version is None:
            return None
        return str(version)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        """Return the namespaces of a released history that hold checkpoints.

        The default implementation finds the root, the namespaces that the thread has now, and those
        of nested graphs that the released histories name. Savers that can list them override it.

        Args:
            thread: the thread.
            version: the version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        thread_id = resolve_thread_id(thread)
        first = [""]
        list_namespaces: Callable[[str], Sequence[str]] | None = getattr(self, "namespaces", None)
        if list_namespaces is not None:  # nearly always: the class is a saver, too
            first += list_namespaces(thread_id)

        def find_nested(namespace: str) -> Sequence[str] | None:
            released = self.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints
            return nested_namespaces(namespace, released) if released else None

        return follow_namespaces(first, find_nested)

    # Java names
    versionsByThreadId = versions_by_thread_id
    lastVersionByThreadId = last_version_by_thread_id
    getVersion = get_version
    versionNamespaces = version_namespaces
    lastTag = last_tag
