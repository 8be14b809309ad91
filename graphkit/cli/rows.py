"""What several commands show of a thread, an interrupt or a failure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from graphkit._records.config import RunnableConfig
from graphkit._records.output import WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import progress_of, time_or_none
from graphkit._wording import simplify_text
from graphkit.cli.context import CliContext
from graphkit.cli.stores import hide_passwords
from graphkit.cli.values import describe_payload, escape
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
        "deadline": interrupt.deadline,
    }


def describe_stop(when: str, node_id: str, payload: Any) -> str:
    """Return where a run waits, and what it asks there."""
    return f"{when} {escape(node_id)}: {describe_payload(payload)}"


def describe_progress(writes: Mapping[str, Any]) -> str | None:
    """Return how far each running map and fork is; None if none runs."""
    parts = []
    for progress in progress_of(writes):
        unit = "branches"
        if progress.node_id is not None:
            unit = f"items of {escape(progress.node_id)}"
        parts.append(f"{progress.done}/{progress.total} {unit} done")
    return ", ".join(parts) or None


def describe_sleep(until: datetime | None) -> str | None:
    """Return until when a thread sleeps."""
    return None if until is None else f"sleeps until {until.isoformat(timespec='seconds')}"


def describe_failure(failure: Mapping[str, Any], place: str = "") -> str:
    """Return the type and the message of a failure's cause, with the place between them.

    A record that was written by hand may lack any field.
    """
    cause = failure.get("cause")
    shown = cause if isinstance(cause, Mapping) else failure
    kind = escape(str(shown.get("type", "failed")))
    message = escape(simplify_text(str(shown.get("message", ""))))
    return f"{kind}{place}: {message}"


def describe_cancellation(cancellation: Any) -> str:
    """Return that a run was cancelled, and why. A record that was written by hand may be anything."""
    reason = cancellation.get("reason") if isinstance(cancellation, Mapping) else None
    if reason is None:
        return "cancelled"
    return f"cancelled: {escape(simplify_text(str(reason)))}"


def format_command(context: CliContext, command: str, directory: str, *words: str) -> str:
    """Return a command line to type next; DIR is omitted where it may be, and a password hidden."""
    places = [directory]
    if directory in {"", context.environment.get("GRAPHKIT_DIR")}:
        places = []
    line = shlex.join(["graphkit", command, *places, *words])
    return f"next: {hide_passwords(line, context.passwords)}"


def format_event(context: CliContext, when: datetime, thread: str, text: str) -> str:
    """Return what happened in a thread as a line."""
    return f"{context.to_local_time(when):%H:%M:%S}  {thread:24} {text}"


def status_of(saver: BaseCheckpointSaver, thread_id: str) -> str | None:
    """Return the status of a thread now; None if it is gone."""
    for latest in saver.recent(RunnableConfig(thread_id), limit=1):
        return latest.status
    return None


def size_of(saver: BaseCheckpointSaver, thread_id: str | None) -> int | None:
    """Return the bytes of a thread, or of the store (None); None if the saver does not know."""
    try:
        return saver.size(thread_id)
    except CheckpointerConfigurationError:
        return None


def count_checkpoints(saver: BaseCheckpointSaver, thread_id: str) -> int:
    """Return how many checkpoints the root of a thread has."""
    summary = saver.summary(RunnableConfig(thread_id))
    if summary is None:
        return 0
    return summary.checkpoints
