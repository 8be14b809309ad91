"""Going on with a run after a failure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from graphkit._compiled import CompiledGraph
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import GraphResume
from graphkit._saver.async_methods import run_in_thread
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.last_readable import last_good
from graphkit._saver.thread_id import ThreadLike, resolve_thread_id
from graphkit._saver.writes import well_formed_writes
from graphkit._values.state import AgentState
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError


def recover(
    graph: CompiledGraph, thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> AgentState | None:
    """Go on with a thread at its last good checkpoint; returns the state at the end or the next stop.

    After a failure or a crash that is the latest: the node that failed runs again, those before it do not. Where the
    latest is damaged it is the newest that still reads (see `last_good`); nodes after that one run again.

    Args:
        graph: the graph, with the saver that has the thread.
        thread: the thread's id, or a config that names it.
        modifications: merged into the state before the run goes on. The stored checkpoint stays as it is.

    Raises:
        CheckpointerConfigurationError: the graph has no saver.
        CheckpointNotFoundError: the thread is empty.
        CheckpointCorruptionError: nothing of it reads.
    """
    _settle(_saver_of(graph), thread)
    return graph.invoke(_resume(modifications), RunnableConfig(resolve_thread_id(thread)))


async def arecover(
    graph: CompiledGraph, thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> AgentState | None:
    """As `recover`."""
    await run_in_thread(_settle, _saver_of(graph), thread)
    return await graph.ainvoke(_resume(modifications), RunnableConfig(resolve_thread_id(thread)))


def _saver_of(graph: CompiledGraph) -> BaseCheckpointSaver:
    saver = graph.compile_config.saver
    if saver is None:
        raise CheckpointerConfigurationError("no saver is configured: compile the graph with checkpoint_saver=...")
    return saver


def _resume(modifications: Mapping[str, Any] | None) -> GraphResume:
    return GraphResume() if modifications is None else GraphResume(update=modifications)


def _settle(saver: BaseCheckpointSaver, thread: ThreadLike) -> None:
    """Make the last good checkpoint the one that a resume finds."""
    at = RunnableConfig(resolve_thread_id(thread))
    good = last_good(saver, at)
    try:
        is_latest = saver.get(at) is not None
    except CheckpointCorruptionError:
        is_latest = False
    if not is_latest:
        _append_again(saver, at, good)


def _append_again(saver: BaseCheckpointSaver, at: RunnableConfig, good: Checkpoint) -> None:
    """Put a copy, with what is recorded beside it, after what is damaged, of which nothing is taken away."""
    writes = well_formed_writes(saver.get_writes(at.with_check_point_id(good.id)), at.thread)
    plain = Checkpoint.builder(Checkpoint.copy_of(good)).metadata(public_metadata(good.metadata))
    with saver.run_lock(at):
        here = saver.put(at, plain.parentId(good.id).createdAt(datetime.now(UTC)).build())
        if writes:
            saver.put_writes(here, writes)
