"""Values on the way in and out: as JSON, as short text, one key of a state, what differs between two states."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from graphkit.errors import GraphKitError

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+|'[^']*'|\"[^\"]*\")\]")
_ABSENT: Final = object()
_INT_BITS: Final = 10_000
"""Longer ones Python refuses to turn into digits."""
LONGEST: Final = 500
"""Characters of a value that `diff` shows."""


class UsageError(GraphKitError):
    """What was typed makes no sense. Nothing was changed."""

    exit_code = 2


def plain(value: Any) -> Any:
    """A value as JSON has it: what it has no form for becomes a list, an object or text.

    For eyes and scripts; `export` keeps every type.
    """
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int)):
        return hex(value) if value and value.bit_length() > _INT_BITS else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return _plain_many(_taken_apart(value))


def _taken_apart(value: Any) -> Any:
    """What an object is made of; other values as they are."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
    return value.model_dump() if hasattr(value, "model_dump") else value


def _plain_many(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (date, time)):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def from_json(text: str, what: str) -> Any:
    """Read JSON that was typed.

    Raises:
        UsageError: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}; text wants quotes, as in '\"yes\"'") from error


def object_from_json(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object that was typed.

    Raises:
        UsageError: it is none.
    """
    value = from_json(text, what)
    if not isinstance(value, dict):
        raise UsageError(f'{what} must be a JSON object such as {{"key": 1}}, not {to_json(value)}')
    return value


def assignments(pairs: Sequence[str], what: str = "--set") -> dict[str, Any]:
    """Read `key=value` pairs; a value that is no JSON is text.

    Raises:
        UsageError: one has no `=`.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{what} wants key=value, not {pair!r}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
        except RecursionError as error:
            raise UsageError(f"{what}: the value of {shown(key)} is nested too deeply") from error
    return found


def shown(text: str) -> str:
    """Text that may come from anybody, with nothing in it that a terminal would obey."""
    if text.isprintable() and text:
        return text
    return repr(text) if not text else text.encode("unicode_escape").decode("ascii")


def brief(value: Any, limit: int = 60) -> str:
    """A value in at most so many characters of one line."""
    text = value if isinstance(value, str) and value else to_json(value)
    text = shown(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, thing: str) -> str:
    """How many there are of a thing, in words."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def asking(payload: Any, limit: int = 60) -> str:
    """What a human is asked, in one line: an object without its braces and quotes, of a single text only that."""
    value = plain(payload)
    if not isinstance(value, dict) or not value:
        return brief(payload, limit)
    if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
        return brief(text, limit)
    parts = [f"{key}: {item if isinstance(item, str) else to_json(item)}" for key, item in value.items()]
    return brief(", ".join(parts), limit)


def at_path(state: Any, path: str) -> Any:
    """The value at a path such as `messages[3].text` or `a['odd.key']`.

    Raises:
        UsageError: there is none, or the path is none.
    """
    if isinstance(state, Mapping) and path in state:
        return state[path]
    value, place = state, ""
    for step, name in _steps(path):
        try:
            value = _child(value, name)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise UsageError(f"there is no {place + step}{_known(value, place)}") from error
        place += step
    return value


def _steps(path: str) -> Iterator[tuple[str, str | int]]:
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise UsageError(f"cannot read the key {path!r} from {path[at:]!r} on; write a.b[3]")
        name, index = match.groups()
        quoted = index is not None and index[0] in "'\""
        yield match[0], name or (index[1:-1] if quoted else int(index))
        at = match.end()


def _child(value: Any, name: str | int) -> Any:
    if isinstance(value, (Mapping, Sequence)) and not (isinstance(value, tuple) and isinstance(name, str)):
        return value[name]  # type: ignore[index]
    return getattr(value, str(name))


def _known(value: Any, place: str) -> str:
    where = place.lstrip(".") or "the state"
    if isinstance(value, Mapping):
        return f"; {where} has {', '.join(map(shown, map(str, value))) or 'no keys'}"
    is_list = isinstance(value, Sequence)
    return f"; {where} has {counted(len(value), 'item')}" if is_list else f"; {where} is {brief(value)}"


class Difference(NamedTuple):
    """One place at which two states differ."""

    path: str
    change: str
    """"added", "removed" or "changed"."""
    old: Any
    new: Any


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """The places at which two values differ, types included, in the order of the first; O(both)."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            name = str(key) if _STEP.fullmatch(str(key)) else f"[{str(key)!r}]"
            inner = f"{path}.{name}" if path and name[0] != "[" else path + name
            yield from _at(old.get(key, _ABSENT), new.get(key, _ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list):
        for index, (first, second) in enumerate(zip_longest(old, new, fillvalue=_ABSENT)):
            yield from _at(first, second, f"{path}[{index}]")
    elif not _same(old, new):
        yield Difference(path, "changed", old, new)


def _at(old: Any, new: Any, path: str) -> Iterator[Difference]:
    if old is new:
        return
    if old is _ABSENT:
        yield Difference(path, "added", None, new)
    elif new is _ABSENT:
        yield Difference(path, "removed", old, None)
    else:
        yield from differences(old, new, path)


def _same(old: Any, new: Any) -> bool:
    """Equal, and of one type: True is not 1; nan is nan."""
    return type(old) is type(new) and (old == new or repr(old) == repr(new))
