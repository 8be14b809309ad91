"""Finding the newest checkpoint that still reads, where the end of a history is damaged."""

from __future__ import annotations

from logging import getLogger
from typing import Final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsRepair
from graphkit._saver.thread_id import ThreadLike, resolve_thread_id
from graphkit.errors import CheckpointCorruptionError, CheckpointNotFoundError

_LOGGER: Final = getLogger("graphkit.recovery")


def last_good(saver: BaseCheckpointSaver, thread: ThreadLike = None) -> Checkpoint:
    """The newest checkpoint of a thread that reads, with what is recorded beside it.

    That is the latest one, for the cost of a `get` per namespace, unless it is damaged. Then the thread is repaired if
    its saver can do that, and the history walked back until a checkpoint reads. What was found, and why the later
    ones were not taken, is logged to `graphkit.recovery` as a warning.

    Raises:
        CheckpointNotFoundError: the thread is empty.
        CheckpointCorruptionError: nothing of it reads.
        ThreadBusyError: it is damaged, and a run holds it.
        CheckpointStorageError: it is damaged, and may not be repaired by this process.
    """
    at = RunnableConfig(resolve_thread_id(thread))
    try:
        for namespace in saver.namespaces(at):
            _read(saver, at.replace(checkpoint_ns=namespace))
        checkpoint = _read(saver, at)
    except CheckpointCorruptionError as damage:
        checkpoint = _behind(saver, at, damage)
    if checkpoint is None:
        raise CheckpointNotFoundError(at.thread)
    return checkpoint


def _read(saver: BaseCheckpointSaver, at: RunnableConfig) -> Checkpoint | None:
    """All that a resume reads there."""
    checkpoint = saver.get(at)
    if checkpoint is not None:
        _ = checkpoint.state  # which some savers decode only now
        saver.get_writes(at.with_check_point_id(checkpoint.id))
    return checkpoint


def _behind(saver: BaseCheckpointSaver, at: RunnableConfig, damage: CheckpointCorruptionError) -> Checkpoint:
    _LOGGER.warning("thread %r: %s", at.thread, damage)
    if isinstance(saver, SupportsRepair):
        for lost in saver.repair(at.thread).lost:
            _LOGGER.warning("thread %r: checkpoint %s is lost: %s", at.thread, lost.checkpoint_id, lost.reason)
    for info in saver.history(at):
        try:
            good = _read(saver, at.with_check_point_id(info.id))
        except CheckpointCorruptionError as error:
            _LOGGER.warning("thread %r: checkpoint %s is passed over: %s", at.thread, info.id, error)
            continue
        if good is not None:
            place = at.thread, good.id, good.node_id
            _LOGGER.warning("thread %r: the newest checkpoint that reads is %s, after node %r", *place)
            return good
    raise damage
