"""Finds the newest checkpoint that can be read, if the end of a history is damaged."""

from __future__ import annotations

from logging import getLogger
from typing import Final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.arguments import ThreadLike, resolve_thread_id
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsRepair
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError

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
    config = RunnableConfig(resolve_thread_id(thread))
    try:
        for namespace in saver.namespaces(config):
            _read(saver, config.replace(checkpoint_ns=namespace))
        checkpoint = _read(saver, config)
    except CheckpointCorruptionError as damage:
        checkpoint = _find_before_damage(saver, config, damage)
    if checkpoint is None:
        raise CheckpointNotFoundError(config.thread)
    return checkpoint


def _read(saver: BaseCheckpointSaver, config: RunnableConfig) -> Checkpoint | None:
    """Read everything that a resume reads of a checkpoint."""
    checkpoint = saver.get(config)
    if checkpoint is not None:
        _ = checkpoint.state  # some savers decode the state only on first use
        saver.get_writes(config.with_check_point_id(checkpoint.id))
    return checkpoint


def _find_before_damage(
    saver: BaseCheckpointSaver, config: RunnableConfig, damage: CheckpointCorruptionError
) -> Checkpoint:
    _LOGGER.warning("thread %r: %s", config.thread, damage)
    if isinstance(saver, SupportsRepair):
        for lost in saver.repair(config.thread).lost:
            _LOGGER.warning("thread %r: checkpoint %s is lost: %s", config.thread, lost.checkpoint_id, lost.reason)
    for info in saver.history(config):
        try:
            checkpoint = _read(saver, config.with_check_point_id(info.id))
        except CheckpointCorruptionError as error:
            _LOGGER.warning("thread %r: checkpoint %s cannot be read: %s", config.thread, info.id, error)
            continue
        if checkpoint is not None:
            _LOGGER.warning(
                "thread %r: the newest checkpoint that can be read is %s, after node %r",
                config.thread,
                checkpoint.id,
                checkpoint.node_id,
            )
            return checkpoint
    raise damage
