"""The async methods of LangGraph's checkpointer.

Each runs its sync method in a worker thread, unless that takes only some microseconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory

from graphkit.abc import BaseCheckpointSaver as SaverOfGraphkit, run_in_thread
from savers._waiting import InUseError
from savers.langgraph.configs import get_checkpoint_id, parse_config
from savers.langgraph.histories import Histories
from savers.langgraph.thread_calls import CallsOfLoops

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint as LangGraphCheckpoint, CheckpointMetadata

_Result = TypeVar("_Result")


class AsyncMethods(BaseCheckpointSaver[str]):
    """The async methods of CheckpointSaver.

    The event loop never waits for a disk or a lock.
    """

    store: SaverOfGraphkit
    _histories: Histories
    _calls: CallsOfLoops

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
            returned = await self._calls.of_running_loop().call_when_free(call_now)
        if returned is None:
            return await self._calls.of_running_loop().run(call)
        (result,) = returned
        return result

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
