"""What several commands show of a thread or an interrupt, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit._records.config import RunnableConfig
from graphkit._records.output import WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import progress_of, time_or_none
from graphkit.cli.values import escape
from graphkit.errors import CheckpointerConfigurationError

Row = dict[str, Any]
"""A thread, a checkpoint, an interrupt or a change as plain data."""


def interrupt_row(interrupt: WaitingInterrupt) -> Row:
    """Return a pending interrupt as plain data."""
    return {
        "thread": interrupt.thread_id,
        "ns": interrupt.checkpoint_ns,
        "checkpoint": interrupt.checkpoint_id,
        "id": interrupt.id,
        "node": interrupt.node_id,
        "when": interrupt.when,
        "payload": interrupt.payload,
        "since": time_or_none(interrupt.created_at),
    }


def describe_progress(writes: Mapping[str, Any]) -> str | None:
    """Return how far each running map and fork is; None if none runs."""
    parts = []
    for progress in progress_of(writes):
        unit = "branches"
        if progress.node_id is not None:
            unit = f"items of {escape(progress.node_id)}"
        parts.append(f"{progress.done} of {progress.total} {unit} done")
    return ", ".join(parts) or None


def size_of(saver: BaseCheckpointSaver, thread_id: str | None) -> int | None:
    """Return the bytes of a thread, or of the store (None); None if the saver does not know."""
    try:
        return saver.size(thread_id)
    except CheckpointerConfigurationError:
        return None


def count_checkpoints(saver: BaseCheckpointSaver, thread_id: str) -> int:
    """Return how many checkpoints the root of a thread has."""
    summary = saver.summary(RunnableConfig(thread_id))
    return 0 if summary is None else summary.checkpoints
