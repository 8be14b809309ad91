"""VersionedMemorySaver: a MemorySaver that keeps released histories. Ports the class of langgraph4j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit import RunnableConfig, Tag
from graphkit.abc import ConfigLike, HasVersions, ThreadLike
from graphkit.errors import CheckpointNotFoundError
from graphkit.saver_kit import resolve_thread_id
from savers._memory import MemorySaver, _History


class VersionedMemorySaver(MemorySaver, HasVersions):
    """Keeps every released history as version 1, 2, ... of its thread. Releasing an empty thread makes none."""

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors."""
        cls(*arguments, **options)

    def _end_history(self, thread: str) -> int:
        kept = self._threads[thread]
        versions = (*kept.versions, kept.live)
        self._threads[thread] = kept._replace(live={}, versions=versions)
        return len(versions)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        with self._lock:
            count = len(self._get_thread(resolve_thread_id(thread)).versions)
        return range(1, count + 1)

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        with self._lock:
            number = self._resolve_version(config.thread, version)
            histories = self._get_thread(config.thread).versions[number - 1]
            history = histories.get(config.checkpoint_ns, _History())
            return Tag(config.thread, history.newest_first(), number)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        with self._lock:
            number = self._resolve_version(thread_id, version)
            return tuple(self._get_thread(thread_id).versions[number - 1])

    def _resolve_version(self, thread_id: str, version: int | None) -> int:
        """Return the number of a version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        count = len(self._get_thread(thread_id).versions)
        number = count if version is None else version
        if not 1 <= number <= count:
            missing = "version" if version is None else f"version {version}"
            raise CheckpointNotFoundError(thread_id, missing)
        return number
