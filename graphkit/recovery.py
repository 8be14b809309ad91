"""Recovery after a failure, even if the end of a history is damaged.

    state = recover(app, "thread-1")

A graph needs nothing else: each checkpoint names the next node, so finished nodes do not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit._compiled import CompiledGraph
from graphkit._public_names import set_public_module
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import GraphResume
from graphkit._saver.arguments import ThreadLike, resolve_thread_id
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.last_readable import last_good
from graphkit._saver.writes import well_formed_writes
from graphkit._to_thread import run_in_thread
from graphkit._values.state import AgentState
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError

__all__ = ["arecover", "last_good", "recover"]


def recover(
    graph: CompiledGraph, thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> AgentState | None:
    """Resume a thread at its last good checkpoint; return the state at the end or at the next stop.

    After a failure or a crash, that is the latest checkpoint: the node that failed runs again, and
    the nodes before it do not. If the latest checkpoint is damaged, it is the newest one that can
    be read (see `last_good`), and the nodes after it run again.

    Args:
        graph: the graph, with the saver that has the thread.
        thread: the id of the thread, or a config that names it.
        modifications: merged into the state before the run resumes. The stored checkpoint does not
            change.

    Raises:
        CheckpointerConfigurationError: the graph has no saver.
        CheckpointConflictError: the thread is incomplete: a copy or fork that has not ended.
        CheckpointNotFoundError: the thread is empty.
        CheckpointCorruptionError: no checkpoint of the thread can be read.
    """
    _restore_last_good(_saver_of(graph), thread)
    return graph.invoke(_resume(modifications), RunnableConfig(resolve_thread_id(thread)))


async def arecover(
    graph: CompiledGraph, thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> AgentState | None:
    """As `recover`."""
    await run_in_thread(_restore_last_good, _saver_of(graph), thread)
    return await graph.ainvoke(_resume(modifications), RunnableConfig(resolve_thread_id(thread)))


def _saver_of(graph: CompiledGraph) -> BaseCheckpointSaver:
    saver = graph.compile_config.saver
    if saver is None:
        raise CheckpointerConfigurationError("no saver is configured: compile the graph with checkpoint_saver=...")
    return saver


def _resume(modifications: Mapping[str, Any] | None) -> GraphResume:
    if modifications is None:
        return GraphResume()
    return GraphResume(update=modifications)


def _restore_last_good(saver: BaseCheckpointSaver, thread: ThreadLike) -> None:
    """Make the last good checkpoint the latest one, so that a resume loads it."""
    config = RunnableConfig(resolve_thread_id(thread))
    checkpoint = last_good(saver, config)
    try:
        has_latest = saver.get(config) is not None
    except CheckpointCorruptionError:
        has_latest = False
    if not has_latest:
        _append_copy(saver, config, checkpoint)


def _append_copy(saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> None:
    """Append a copy of a checkpoint, with its pending writes, after the damage. Removes nothing."""
    address = config.with_check_point_id(checkpoint.id)
    writes = well_formed_writes(saver.get_writes(address), config.thread)
    copy = Checkpoint(
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        state=checkpoint.state,
        parent_id=checkpoint.id,
        metadata=public_metadata(checkpoint.metadata),
    )
    with saver.run_lock(config):
        stored = saver.put(config, copy)
        if writes:
            saver.put_writes(stored, writes)


set_public_module(globals(), __name__)
