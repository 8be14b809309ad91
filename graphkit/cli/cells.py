"""Rows and cells: what commands show of threads, interrupts and failures, and how people read single values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.failed_threads import without_option
from graphkit._saver.writes import progress_of, time_or_none
from graphkit._wording import simplify_text
from graphkit.cli.context import CliContext
from graphkit.cli.stores import hide_passwords
from graphkit.cli.values import abbreviate, describe_payload, escape, format_value
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerError,
    CheckpointKeyError,
    ThreadBusyError,
)

Figure = Literal["bytes", "number", "seconds", "list"]
"""Kinds that may be dropped, but make no sense when cut."""
Prose = Literal["text", "whole", "lines", "payload", "interrupts", "failure", "cause", "tree"]
"""Kinds of text. "text" is abbreviated and "whole" is not; "tree" is JSON in a pipe. A "payload" is what a table is
read for: at a terminal it is the last to be cut."""
Kind = Literal[Figure, Prose, "name", "id", "time", "age", "counts"]
"""How the values of a column are displayed. "name" and "id" are shortened at a terminal; "age" is a time, relative at
a terminal."""

_TEXT_LIMIT: Final = 200
"""Characters of an abbreviated value."""
_MILLISECOND: Final = 0.001
_MINUTE: Final = 60
_AGE_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_BYTE_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")
_MIN_ID_LENGTH: Final = 8
_ID_TOLERANCE: Final = 4
"""An id that is longer than the short ids by no more than this stays whole."""
_MIN_NAME_LENGTH: Final = 20


def _format_timestamp(context: CliContext, when: datetime) -> str:
    if context.is_pretty:
        return format_age(context.now() - when)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def _format_time(context: CliContext, when: datetime) -> str:
    local = context.to_local_time(when).strftime("%Y-%m-%d %H:%M:%S")
    return f"{local} ({format_age(context.now() - when)})"


def _format_failure(_context: CliContext, failure: Mapping[str, Any]) -> str:
    """Say why a run failed, and in which node."""
    node_id = failure.get("node_id")
    return describe_failure(failure, f" in {escape(str(node_id))}" if node_id else "")


_WHOLE_KINDS: Final[tuple[Kind, ...]] = ("name", "id", "whole", "tree")
FORMATTERS: Final[Mapping[Kind, Callable[[Any, Any], str]]] = {
    "text": lambda _, value: "" if value == "" else abbreviate(value, _TEXT_LIMIT),
    "age": _format_timestamp,
    "time": _format_time,
    "bytes": lambda _, size: format_bytes(size),
    "seconds": lambda _, seconds: format_duration(seconds),
    "number": lambda _, number: str(number),
    **dict.fromkeys(_WHOLE_KINDS, lambda _, value: format_value(value)),
    "list": lambda _, items: " ".join(map(escape, items)),
    "counts": lambda _, counts: ", ".join(f"{count} {name}" for name, count in counts.items()),
    "failure": _format_failure,
    "cause": lambda _, failure: abbreviate(describe_failure(failure), _TEXT_LIMIT),
    "lines": lambda _, text: "\n".join(map(escape, str(text).splitlines())),
    "payload": lambda _, payload: describe_payload(payload, _TEXT_LIMIT),
    "interrupts": lambda _, rows: "; ".join(map(describe_interrupt, rows)),
}
"""What returns a value of a kind, which is not None, as people read it: of the context and the value."""


def format_age(age: timedelta) -> str:
    """Return how long ago something was, in its largest unit; a negative age is in the future."""
    seconds = age.total_seconds()
    for size, unit in _AGE_UNITS:
        if abs(seconds) >= size:
            amount = f"{int(abs(seconds) // size)} {unit}"
            return f"{amount} ago" if seconds > 0 else f"in {amount}"
    return "now"


def format_duration(seconds: float) -> str:
    """Return a duration in the units that suit it."""
    if seconds < _MILLISECOND:
        return "<1 ms"
    if seconds < 1:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), _MINUTE)
    if minutes < _MINUTE:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours} h {minutes} min"


def format_bytes(size: int) -> str:
    """Return a size in the unit that suits it; in powers of 1000, like `ls -h --si`."""
    if size < 1000:  # noqa: PLR2004
        return f"{size} B"
    number = size / 1000
    units = iter(_BYTE_UNITS)
    unit = next(units)
    while number >= 999.95:  # noqa: PLR2004 - what rounds to 1000.0
        number /= 1000
        unit = next(units)
    return f"{number:.1f} {unit}"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Shorten checkpoint ids to their last characters, enough to tell them apart.

    Many ids begin with the same time. An id of up to twelve characters stays whole. The commands
    accept a unique end or beginning as the id.
    """
    # Reversed, the endings are beginnings. Ids are UUIDs of version 7: the checkpoints of one minute share their first
    # eight digits, and the last twelve are random.
    reversed_ids = {full: full[::-1] for full in ids}
    length = _find_length(reversed_ids.values(), least=_MIN_ID_LENGTH, step=2)
    longest = length + _ID_TOLERANCE
    return {full: escape(full if len(full) <= longest else full[-length:]) for full in reversed_ids}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten long thread ids to their first characters, enough to tell them apart."""
    distinct = dict.fromkeys(names)
    length = _find_length(distinct, least=_MIN_NAME_LENGTH, step=4)
    return {name: escape(name) if len(name) <= length else escape(name[:length]) + "…" for name in distinct}


def _find_length(distinct: Collection[str], *, least: int, step: int) -> int:
    """Return how many of their first characters tell texts apart."""
    # The first length that tells all of them apart; the longest text needs no more than its own.
    longest = max(map(len, distinct), default=0)
    length = least
    while length < longest and len({text[:length] for text in distinct}) < len(distinct):
        length += step
    return length


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


def describe_interrupt(row: Row) -> str:
    """Return where a pending interrupt waits, and what it asks there."""
    node = row["node"]
    if row["ns"]:
        node += f" of {row['ns']}"
    return describe_stop(row["when"], node, row["payload"])


def describe_stop(when: str, node_id: str, payload: Any) -> str:
    """Return where a run waits, and what it asks there. A declared stop asks nothing."""
    place = f"{when} {escape(node_id)}"
    return place if payload is None else f"{place}: {describe_payload(payload)}"


def describe_progress(writes: Mapping[str, Any]) -> str | None:
    """Return how far each running map and fork is; None if none runs."""
    parts = []
    for progress in progress_of(writes):
        unit = "branches"
        if progress.node_id is not None:
            unit = f"items of {escape(progress.node_id)}"
        parts.append(f"{progress.done}/{progress.total} {unit} done")
    return ", ".join(parts) or None


def describe_sleep(context: CliContext, until: datetime | None) -> str | None:
    """Return until when a thread sleeps."""
    return None if until is None else f"sleeps until {context.describe_time(until)}"


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


def format_command(context: CliContext, command: str, *words: str) -> str:
    """Return a command line to type next; DIR is omitted where it may be, and a password hidden."""
    import shlex

    places = [context.directory]
    if context.directory in {"", context.environment.get("GRAPHKIT_DIR")}:
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


_SOURCES_WITHOUT_NODE: Final = ("submit", "update", "fork", "answer")
"""Values of the metadata's `source` of checkpoints to which no node led: they repeat the node of the one before."""


def is_after_node(info: CheckpointInfo) -> bool:
    """Return whether the node of a checkpoint, or START, led to it."""
    return info.metadata.get("source") not in _SOURCES_WITHOUT_NODE


def describe_known_error(error: Exception) -> str:
    """Return the text of an error, with advice that a command can follow: none has the options of a saver."""
    text = str(without_option(error))
    if isinstance(error, ThreadBusyError) and error.option:
        text += ", or stop it with `graphkit pause` or `graphkit cancel`"
    return simplify_text(text)


def count_statuses(rows: Iterable[Row]) -> str:
    """Return how many threads have each status, the most frequent first, such as `3 finished, 1 failed`."""
    counts = Counter(row["status"] for row in rows if row["status"])
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def describe_unreadable(error: CheckpointerError) -> tuple[str, str]:
    """Return what the status of a thread that cannot be read is called, and why it cannot."""
    if isinstance(error, CheckpointErasedError):
        return "erased", f"its key {error.key_id!r} was destroyed"
    if isinstance(error, CheckpointKeyError):
        return "sealed", f"its state needs the key {error.key_id!r}; --key-file names the keys"
    if isinstance(error, CheckpointCorruptionError):  # the path not first: a table has no room for more
        return "damaged", f"it is {error.problem}, in {error.path}; {error.advice}"
    return "damaged", describe_known_error(error)


def size_of(saver: BaseCheckpointSaver, thread_id: str | None) -> int | None:
    """Return the bytes of a thread, or of the store (None); None if the saver does not know."""
    return saver.size(thread_id) if saver.measures_size else None


def count_checkpoints(saver: BaseCheckpointSaver, thread_id: str) -> int:
    """Return how many checkpoints the root of a thread has."""
    summary = saver.summary(RunnableConfig(thread_id))
    return 0 if summary is None else summary.checkpoints
