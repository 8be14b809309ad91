"""VersionedMemorySaver: a MemorySaver that keeps released histories. Ports the class of langgraph4j."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit import RunnableConfig, Tag
from graphkit.abc import ConfigLike, HasVersions, ThreadLike, resolve_thread_id
from graphkit.errors import CheckpointNotFoundError
from graphkit.values import FrozenDict
from savers._memory import MemorySaver, _History


class VersionedMemorySaver(MemorySaver, HasVersions):
    """Keeps every released history as version 1, 2, ... of its thread. Releasing an empty thread makes none."""

    def __init__(self, *, lock_timeout: float = 10.0) -> None:
        super().__init__(lock_timeout=lock_timeout)
        self._versions: dict[str, list[Mapping[str, _History]]] = {}
        """The released histories of each thread, by namespace; version 1 comes first."""

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors."""
        cls(*arguments, **options)

    def _keep_version(self, thread: str, released: Mapping[str, _History]) -> int:
        versions = self._versions.setdefault(thread, [])
        versions.append(released)
        return len(versions)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        with self._lock:
            count = len(self._versions.get(resolve_thread_id(thread), ()))
        return range(1, count + 1)

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        with self._lock:
            number = self._resolve_version(config.thread, version)
            histories = self._versions[config.thread][number - 1]
            history = histories.get(config.checkpoint_ns, _History())
            return Tag(config.thread, history.newest_first(), number)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        with self._lock:
            number = self._resolve_version(thread_id, version)
            return tuple(self._versions[thread_id][number - 1])

    def _resolve_version(self, thread_id: str, version: int | None) -> int:
        """Return the number of a version; None is the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        count = len(self._versions.get(thread_id, ()))
        number = count if version is None else version
        if not 1 <= number <= count:
            missing = "version" if version is None else f"version {version}"
            raise CheckpointNotFoundError(thread_id, missing)
        return number

    def threads(self, *, released: bool = False) -> Sequence[str]:
        with self._lock:
            if not released:
                return tuple(self._threads)
            return tuple(dict.fromkeys((*self._threads, *self._versions)))

    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        with self._exclude_runs(thread_id), self._lock:
            versions = self._versions.pop(thread_id, None)
            histories = self._threads.pop(thread_id, None)
        return versions is not None or histories is not None

    def _iter_values(self, thread: str) -> Iterator[FrozenDict]:
        yield from super()._iter_values(thread)
        for version in self._versions.get(thread, ()):
            for history in version.values():
                yield from history.iter_values()
