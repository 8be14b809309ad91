"""Converts values: JSON, one-line text, text that is safe for a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from graphkit import _options as options
from graphkit._values.frozen import to_plain
from graphkit.errors import GraphKitError

_TERMINAL_CODES: Final = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""The control characters that JSON lets stand: those of terminals, ends of lines, and changes of the direction."""


class UsageError(GraphKitError):
    """The command line is invalid. Nothing was changed."""

    exit_code = 2


# JSON


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON; one line, unless it is indented. A terminal interprets none of its characters."""
    text = json.dumps(to_plain(value), ensure_ascii=False, indent=indent)
    return _TERMINAL_CODES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def parse_json(text: str, name: str) -> Any:
    """Parse the JSON value of an option.

    Args:
        text: what the user typed.
        name: the option, for the message.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return options.parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}; text needs quotes, as in '\"yes\"'") from error


def parse_assignments(pairs: Sequence[str], name: str = "--set") -> dict[str, Any]:
    """Parse `key=value` pairs; a value that is not JSON is text.

    Args:
        pairs: what the user typed.
        name: the option, for the message.

    Raises:
        UsageError: a pair has no key or no `=`, or a value is nested too deeply.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{name} must be key=value, not {pair!r}")

        values[key] = parse_json_or_text(text, f"{name}: the value of {escape(key)}")
    return values


def parse_json_or_text(text: str, name: str) -> Any:
    """Parse a value that is text if it is no JSON: `city=Bern` needs no quotes that the shell would take away.

    Raises:
        UsageError: it is nested too deeply.
    """
    try:
        return options.parse_json(text)
    except ValueError:
        return text
    except RecursionError as error:
        raise UsageError(f"{name} is nested too deeply") from error


def parse_age(text: str) -> timedelta:
    """Parse an age: `90s`, `30min`, `12h`, `7d`, `2w`.

    Raises:
        UsageError: it is not an age, or not between 0 and a thousand years.
    """
    try:
        return options.parse_age(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


# Text


def escape(text: str) -> str:
    """Return text without characters that a terminal would interpret; "" as two quotes."""
    if not text:
        return repr(text)
    if text.isprintable():
        return text
    return text.encode("unicode_escape").decode("ascii")


def escape_lines(text: str) -> str:
    """Return a text without the characters that a terminal would interpret; lines stay lines."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else escape(letter) for letter in text)


def wrap_words(line: str, width: int | None, indent: int) -> Iterable[str]:
    """Break a line between words, and indent the parts after the first; None leaves it whole."""
    if width is None or len(line) <= width:
        return [line]
    from textwrap import wrap

    return wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_value(value: Any) -> str:
    """Return a value whole: text as it is, anything else as JSON."""
    return escape(value) if isinstance(value, str) else to_json(value)


def abbreviate(value: Any, limit: int = 60) -> str:
    """Return a value as at most `limit` characters of one line."""
    text = escape(value if isinstance(value, str) and value else to_json(value))
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun, such as `1 thread` or `2 threads`; the plural may be irregular."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def describe_payload(payload: Any, limit: int = 60) -> str:
    """Return the payload of an interrupt as one line.

    An object is written without braces and quotes, an object of a single text as that text.
    """
    value = to_plain(payload)
    if not isinstance(value, dict) or not value:
        return abbreviate(payload, limit)
    only = next(iter(value.values()))
    if len(value) == 1 and isinstance(only, str):
        return abbreviate(only, limit)
    parts: list[str] = []
    for key, item in value.items():
        shown = item if isinstance(item, str) else to_json(item)
        parts.append(f"{key}: {shown}")
    return abbreviate(", ".join(parts), limit)
