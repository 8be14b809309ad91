"""Formats single values for people: times, durations, sizes, short ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from graphkit.cli.rows import describe_failure, describe_stop
from graphkit.cli.values import abbreviate, describe_payload, escape, format_value
from graphkit.cli.views import Kind

if TYPE_CHECKING:
    from graphkit.cli.context import CliContext

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


def format_cell(context: CliContext, kind: Kind, value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return ""
    formatter = _FORMATTERS.get(kind)
    if formatter is None:
        return abbreviate(value, _TEXT_LIMIT)
    return formatter(context, value)


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


def _format_interrupts(_context: CliContext, rows: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(describe_stop(row["when"], row["node"], row["payload"]) for row in rows)


_FORMATTERS: Final[Mapping[Kind, Callable[[Any, Any], str]]] = {
    "age": _format_timestamp,
    "time": _format_time,
    "bytes": lambda _, size: format_bytes(size),
    "seconds": lambda _, seconds: format_duration(seconds),
    "number": lambda _, number: str(number),
    "name": lambda _, text: escape(text),
    "status": lambda _, text: escape(text),
    "id": lambda _, text: escape(text),
    "whole": lambda _, value: format_value(value),
    "tree": lambda _, value: format_value(value),
    "branches": lambda _, text: text,
    "list": lambda _, items: " ".join(map(escape, items)),
    "counts": lambda _, counts: ", ".join(f"{count} {name}" for name, count in counts.items()),
    "failure": _format_failure,
    "cause": lambda _, failure: abbreviate(describe_failure(failure), _TEXT_LIMIT),
    "lines": lambda _, text: "\n".join(map(escape, str(text).splitlines())),
    "payload": lambda _, payload: describe_payload(payload, _TEXT_LIMIT),
    "interrupts": _format_interrupts,
}


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
    while length < longest:
        beginnings = {text[:length] for text in distinct}
        if len(beginnings) == len(distinct):
            break
        length += step
    return length
