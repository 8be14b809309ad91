"""The async methods of LangGraph's checkpointer.

Each runs its sync method in a worker thread, unless that takes only some microseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig as LangGraphConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint as LangGraphCheckpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from graphkit.abc import BaseCheckpointSaver as SaverOfGraphkit
from graphkit.saver_kit import run_in_thread
from savers._threads import InUseError
from savers.langgraph.histories import Histories
from savers.langgraph.metadata import get_checkpoint_id, parse_config

_Result = TypeVar("_Result")
_MAX_WAIT: Final = 0.05
"""Seconds after which a short call goes to a worker thread itself."""


class ThreadCalls:
    """What one event loop has in worker threads. Only tasks of that loop use it.

    A short call that finds a lock in use by one of them waits here, and is then made in the event
    loop. In a worker thread, it would itself hold a lock that the next one finds in use: of 200 tasks
    at once, nearly all calls would end in threads.
    """

    def __init__(self) -> None:
        self._count = 0
        """How many calls are in threads, or wait for one."""
        self._waiting: deque[asyncio.Future[bool]] = deque()
        """The short calls that wait, in their order. While there are any, a call is in a thread, or one
        that has waited is about to go on."""

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Call a function in a worker thread."""
        self._count += 1
        try:
            return await run_in_thread(call)
        finally:
            self._count -= 1
            self._wake_next()

    async def call_when_free(self, call: Callable[[], tuple[_Result] | None]) -> tuple[_Result] | None:
        """Make a short call in the event loop when a lock is free that it has found in use.

        Args:
            call: raises InUseError while the lock is in use.

        Returns:
            What it returns; None if a worker thread should make the call, because no call of this event
            loop uses the lock, or the wait was long.
        """
        deadline = asyncio.get_running_loop().time() + _MAX_WAIT
        has_waited = False
        try:
            while self._count and await self._wait(deadline, is_first=has_waited):
                has_waited = True
                try:
                    return call()
                except InUseError:
                    pass
            return None
        finally:
            # Also if it was cancelled: it may have been woken before.
            self._wake_next()

    async def _wait(self, deadline: float, *, is_first: bool) -> bool:
        """Wait until a call has ended; return False if that takes until the deadline."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if is_first:
            self._waiting.appendleft(future)
        else:
            self._waiting.append(future)

        def give_up() -> None:
            if not future.done():
                future.set_result(False)

        timer = loop.call_at(deadline, give_up)
        try:
            return await future
        finally:
            timer.cancel()

    def _wake_next(self) -> None:
        """Let the first call that waits try again."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(True)
                return


class AsyncMethods(BaseCheckpointSaver[str]):
    """The async methods of CheckpointSaver.

    The event loop never waits for a disk or a lock.
    """

    store: SaverOfGraphkit
    _histories: Histories
    _calls: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadCalls]
    """Of each event loop, which only one OS thread runs."""

    async def aput(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> LangGraphConfig:
        """As `put`."""
        return await self._run(config, partial(self.put, config, checkpoint, metadata, new_versions), appends=True)

    async def aput_writes(
        self, config: LangGraphConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await self._run(config, partial(self.put_writes, config, writes, task_id, task_path), appends=True)

    async def aget_tuple(self, config: LangGraphConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._run(config, partial(self.get_tuple, config), appends=False)

    async def _run(self, config: LangGraphConfig, call: Callable[[], _Result], *, appends: bool) -> _Result:
        """Call a method of one checkpoint, in a worker thread unless it takes no time."""
        target = parse_config(config, get_checkpoint_id(config))
        call_now = partial(self._histories.call_without_waiting, target, call, appends=appends)
        try:
            returned = call_now()
        except InUseError:
            returned = await self._find_calls().call_when_free(call_now)
        if returned is None:
            return await self._find_calls().run(call)
        (result,) = returned
        return result

    def _find_calls(self) -> ThreadCalls:
        """Return the calls of the event loop in which the caller runs."""
        return self._calls.setdefault(asyncio.get_running_loop(), ThreadCalls())

    async def alist(
        self,
        config: LangGraphConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: LangGraphConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        tuples = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint_tuple := await run_in_thread(next, tuples, None)) is not None:
            yield checkpoint_tuple

    async def aget_delta_channel_history(
        self, *, config: LangGraphConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await run_in_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await run_in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await run_in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await run_in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await run_in_thread(self.prune, thread_ids, strategy=strategy)
