"""VersionedMemorySaver: a MemorySaver that keeps each released history as a version. Ports langgraph4j's class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from graphkit import RunnableConfig, Tag
from graphkit.abc import ConfigLike, HasVersions, ThreadLike, resolve_thread_id
from graphkit.errors import CheckpointNotFoundError
from graphkit.values import FrozenDict
from savers._memory import MemorySaver, _History


class VersionedMemorySaver(MemorySaver, HasVersions):
    """Keeps every released history as version 1, 2, ... of its thread; releasing an empty thread makes none."""

    def __init__(self, *, lock_timeout: float = 10.0) -> None:
        super().__init__(lock_timeout=lock_timeout)
        self._versions: dict[str, list[Mapping[str, _History]]] = {}

    def _keep(self, thread: str, released: Mapping[str, _History]) -> int:
        versions = self._versions.setdefault(thread, [])
        versions.append(released)
        return len(versions)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        with self._lock:
            return range(1, len(self._versions.get(resolve_thread_id(thread), ())) + 1)

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        with self._lock:
            versions = self._versions.get(config.thread, ())
            number = len(versions) if version is None else version
            if not 1 <= number <= len(versions):
                raise CheckpointNotFoundError(config.thread, "version" if version is None else f"version {version}")
            history = versions[number - 1].get(config.checkpoint_ns, _History())
            return Tag(config.thread, history.newest_first(), number)

    def threads(self, *, released: bool = False) -> Sequence[str]:
        with self._lock:
            return tuple(dict.fromkeys((*self._threads, *self._versions))) if released else tuple(self._threads)

    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        with self._exclusive(thread_id), self._lock:
            versions = self._versions.pop(thread_id, None)
            return self._threads.pop(thread_id, None) is not None or versions is not None

    def _parts(self, thread: str) -> Iterator[FrozenDict]:
        yield from super()._parts(thread)
        for version in self._versions.get(thread, ()):
            for history in version.values():
                yield from history.parts()
