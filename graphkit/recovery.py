"""Recovery after a failure, even if the end of a history is damaged.

    state = recover(app, "thread-1")

A graph needs nothing else: each checkpoint names the next node, so finished nodes do not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from logging import getLogger
from typing import Any, Final

from graphkit._compiled import CompiledGraph
from graphkit._public_names import set_public_module
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig, ThreadLike
from graphkit._records.output import GraphResume
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsRepair
from graphkit._saver.incomplete import StoredCheckpoint
from graphkit._saver.status import public_metadata
from graphkit._to_thread import run_in_thread
from graphkit._values.state import StateT
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointNotFoundError

__all__ = ["arecover", "last_good", "recover"]

_LOGGER: Final = getLogger("graphkit.recovery")


def last_good(saver: BaseCheckpointSaver, thread: ThreadLike = None) -> Checkpoint:
    """Return the newest checkpoint of a thread that can be read with its pending writes.

    That is the latest checkpoint, for the cost of a `get` per namespace, unless it is damaged. If
    it is damaged, this repairs the thread, if the saver can, and searches the history from the
    newest checkpoint to the oldest. It logs a warning to `graphkit.recovery` for each checkpoint
    that cannot be read, with the reason, and for the one that it returns.

    Raises:
        CheckpointNotFoundError: the thread is empty.
        CheckpointCorruptionError: no checkpoint of the thread can be read.
        ThreadBusyError: the thread is damaged, and a run holds it.
        CheckpointStorageError: the thread is damaged, and this process may not repair it.
    """
    config = _name_thread(thread)
    try:
        for namespace in saver.namespaces(config):
            _read(saver, config.replace(checkpoint_ns=namespace))
        checkpoint = _read(saver, config)
    except CheckpointCorruptionError as damage:
        _LOGGER.warning("thread %r: %s", config.thread, damage)
        if isinstance(saver, SupportsRepair):
            for lost in saver.repair(config.thread).lost:
                where = f"byte {lost.offset}"
                if lost.checkpoint_id is not None:
                    where = f"checkpoint {lost.checkpoint_id}, {where}"
                _LOGGER.warning("thread %r: lost: %s: %s", config.thread, where, lost.reason)
        for info in saver.history(config):
            try:
                checkpoint = _read(saver, config.with_check_point_id(info.id))
            except CheckpointCorruptionError as error:
                _LOGGER.warning("thread %r: checkpoint %s cannot be read: %s", config.thread, info.id, error)
                continue
            if checkpoint is not None:
                message = "thread %r: the newest checkpoint that can be read is %s, after node %r"
                _LOGGER.warning(message, config.thread, checkpoint.id, checkpoint.node_id)
                return checkpoint
        raise
    if checkpoint is None:
        raise CheckpointNotFoundError(config.thread)
    return checkpoint


def recover(
    graph: CompiledGraph[StateT], thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> StateT:
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
    _restore_last_good(graph, thread)
    return graph.invoke(GraphResume(update=modifications), _name_thread(thread))


async def arecover(
    graph: CompiledGraph[StateT], thread: ThreadLike = None, *, modifications: Mapping[str, Any] | None = None
) -> StateT:
    """As `recover`."""
    await run_in_thread(_restore_last_good, graph, thread)
    return await graph.ainvoke(GraphResume(update=modifications), _name_thread(thread))


def _name_thread(thread: ThreadLike) -> RunnableConfig:
    config = RunnableConfig.of(thread)
    return RunnableConfig(config.thread, principal=config.principal)


def _restore_last_good(graph: CompiledGraph[Any], thread: ThreadLike) -> None:
    """Make the last good checkpoint the latest one, so that a resume loads it."""
    saver = graph.compile_config.saver
    if saver is None:
        raise CheckpointerConfigurationError("no saver is configured: compile the graph with checkpoint_saver=...")
    config = _name_thread(thread)
    checkpoint = last_good(saver, config)
    with suppress(CheckpointCorruptionError):
        if saver.get(config) is not None:
            return
    # A copy with the pending writes, appended after the damage. Nothing is removed.
    copy = Checkpoint(
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        state=checkpoint.state,
        parent_id=checkpoint.id,
        metadata=public_metadata(checkpoint.metadata),
    )
    writes = saver.get_writes(config.with_check_point_id(checkpoint.id))
    with saver.run_lock(config):
        StoredCheckpoint(copy, writes=writes).put(saver, config)


def _read(saver: BaseCheckpointSaver, config: RunnableConfig) -> Checkpoint | None:
    """Read everything that a resume reads of a checkpoint."""
    checkpoint = saver.get(config)
    if checkpoint is not None:
        _ = checkpoint.state  # some savers decode the state only on first use
        saver.get_writes(config.with_check_point_id(checkpoint.id))
    return checkpoint


set_public_module(globals(), __name__)
