"""The async methods of a saver: each runs its sync method in a worker thread.

The event loop therefore never waits for a disk. A saver whose sync method does not block, or that
has an asynchronous store, overrides the async method.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from graphkit._java_names import JavaNames
from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import ConfigLike, RunnableConfig
from graphkit._records.output import CheckpointInfo, HistorySummary, WaitingInterrupt
from graphkit._saver.methods import SaverMethods, VersionMethods
from graphkit._saver.thread_id import ThreadLike
from graphkit._saver.watch import Change

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread and return its result, without blocking the event loop."""
    import asyncio  # takes 25 ms to import, and only async callers need it

    return await asyncio.to_thread(call, *args, **kwargs)


class AsyncSaverMethods(JavaNames):
    """The async methods of `BaseCheckpointSaver`, which inherits them."""

    async def alist(self: SaverMethods, config: ConfigLike = None) -> Sequence[Checkpoint]:
        """As `list`."""
        return await run_in_thread(self.list, config)

    async def aget(self: SaverMethods, config: ConfigLike = None) -> Checkpoint | None:
        """As `get`."""
        return await run_in_thread(self.get, config)

    async def aput(self: SaverMethods, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """As `put`."""
        return await run_in_thread(self.put, config, checkpoint)

    async def arelease(self: SaverMethods, config: ConfigLike = None) -> Tag:
        """As `release`."""
        return await run_in_thread(self.release, config)

    async def anamespaces(self: SaverMethods, thread: ThreadLike = None) -> Sequence[str]:
        """As `namespaces`."""
        return await run_in_thread(self.namespaces, thread)

    async def ahistory(self: SaverMethods, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        """As `history`."""
        return await run_in_thread(self.history, config)

    async def arecent(self: SaverMethods, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        """As `recent`."""
        return await run_in_thread(self.recent, config, limit=limit)

    async def asummary(self: SaverMethods, config: ConfigLike = None) -> HistorySummary | None:
        """As `summary`."""
        return await run_in_thread(self.summary, config)

    async def aput_writes(self: SaverMethods, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """As `put_writes`."""
        await run_in_thread(self.put_writes, config, writes)

    async def aget_writes(self: SaverMethods, config: ConfigLike) -> Mapping[str, Any]:
        """As `get_writes`."""
        return await run_in_thread(self.get_writes, config)

    async def ainterrupts(self: SaverMethods, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As `interrupts`."""
        return await run_in_thread(self.interrupts, thread_id)

    async def athreads(self: SaverMethods, *, released: bool = False) -> Sequence[str]:
        """As `threads`."""
        return await run_in_thread(self.threads, released=released)

    async def adelete(self: SaverMethods, thread: ThreadLike = None) -> bool:
        """As `delete`."""
        return await run_in_thread(self.delete, thread)

    async def acopy(self: SaverMethods, source: ThreadLike, target: ThreadLike) -> None:
        """As `copy`."""
        await run_in_thread(self.copy, source, target)

    async def asearch(
        self: SaverMethods, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        """As `search`."""
        return await run_in_thread(self.search, metadata, thread_id=thread_id, limit=limit)

    async def aadd_tags(self: SaverMethods, config: ConfigLike, *tags: str) -> None:
        """As `add_tags`."""
        await run_in_thread(self.add_tags, config, *tags)

    async def aremove_tags(self: SaverMethods, config: ConfigLike, *tags: str) -> None:
        """As `remove_tags`."""
        await run_in_thread(self.remove_tags, config, *tags)

    async def atags_of(self: SaverMethods, config: ConfigLike) -> tuple[str, ...]:
        """As `tags_of`."""
        return await run_in_thread(self.tags_of, config)

    async def aprune(
        self: SaverMethods,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """As `prune`."""
        return await run_in_thread(
            self.prune,
            thread,
            keep_last=keep_last,
            older_than=older_than,
            keep_tags=keep_tags,
            keep_interrupted=keep_interrupted,
        )

    async def asize(self: SaverMethods, thread: ThreadLike = None) -> int:
        """As `size`."""
        return await run_in_thread(self.size, thread)

    async def awatch(
        self: SaverMethods, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0
    ) -> AsyncIterator[Change]:
        """As `watch`. Starts when the first change is requested, and ends when the iterator is closed."""
        with await run_in_thread(self.watch, thread, latest=latest, interval=interval) as changes:
            while (change := await run_in_thread(changes.get)) is not None:
                yield change

    async def await_for_resume(
        self: SaverMethods,
        thread: ThreadLike = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the sync method has it
        *,
        interval: float = 1.0,
    ) -> bool:
        """As `wait_for_resume`."""
        return await run_in_thread(self.wait_for_resume, thread, timeout, interval=interval)

    # Java names
    aputWrites = aput_writes
    agetWrites = aget_writes
    aaddTags = aadd_tags
    aremoveTags = aremove_tags
    atagsOf = atags_of
    awaitForResume = await_for_resume


class AsyncVersionMethods(JavaNames):
    """The async methods of `HasVersions`, which inherits them."""

    async def aversions_by_thread_id(self: VersionMethods, thread: ThreadLike = None) -> Sequence[int]:
        """As `versions_by_thread_id`."""
        return await run_in_thread(self.versions_by_thread_id, thread)

    async def atag(self: VersionMethods, config: ConfigLike, version: int | None = None) -> Tag:
        """As `tag`."""
        return await run_in_thread(self.tag, config, version)

    async def alast_version_by_thread_id(self: VersionMethods, thread: ThreadLike = None) -> int | None:
        """As `last_version_by_thread_id`."""
        return await run_in_thread(self.last_version_by_thread_id, thread)

    async def aget_version(self: VersionMethods, config: ConfigLike = None) -> str | None:
        """As `get_version`."""
        return await run_in_thread(self.get_version, config)

    async def aversion_namespaces(
        self: VersionMethods, thread: ThreadLike = None, version: int | None = None
    ) -> Sequence[str]:
        """As `version_namespaces`."""
        return await run_in_thread(self.version_namespaces, thread, version)

    # Java names
    aversionsByThreadId = aversions_by_thread_id
    alastVersionByThreadId = alast_version_by_thread_id
    agetVersion = aget_version
    aversionNamespaces = aversion_namespaces
