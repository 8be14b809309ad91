"""HasVersions: the contract of savers that keep released histories. Ports the class of langgraph4j."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from graphkit._java_names import JavaNames
from graphkit._records.checkpoint import Tag
from graphkit._records.config import ConfigLike
from graphkit._saver.async_methods import AsyncVersionMethods
from graphkit._saver.default_methods import find_version_namespaces
from graphkit._saver.thread_id import ThreadLike, resolve_thread_id


class HasVersions(AsyncVersionMethods, JavaNames, abc.ABC):
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

    def last_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        """Return the newest version of a thread, or None."""
        versions = self.versions_by_thread_id(thread)
        return versions[-1] if versions else None

    def get_version(self, config: ConfigLike = None) -> str | None:
        """Return the newest version of a thread as text, or None."""
        version = self.last_version_by_thread_id(config)
        return None if version is None else str(version)

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
        return find_version_namespaces(self, resolve_thread_id(thread), version)

    # Java names
    versionsByThreadId = versions_by_thread_id
    lastVersionByThreadId = last_version_by_thread_id
    getVersion = get_version
    versionNamespaces = version_namespaces
