"""Parts of a state: reads the part at a path, and finds the parts in which two states differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from graphkit.cli.values import UsageError, abbreviate, escape, pluralize

_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+|'[^']*'|\"[^\"]*\")\]")
_ABSENT: Final = object()


def get_at_path(state: Any, path: str) -> Any:
    """Return the part of a state at a path such as `messages[3].text` or `a['odd.key']`.

    Raises:
        UsageError: the path is malformed, or there is nothing at it.
    """
    if isinstance(state, Mapping) and path in state:
        return state[path]
    value = state
    parent = ""
    for step, key in _parse_path(path):
        try:
            value = _get_child(value, key)
        except (KeyError, IndexError, AttributeError, TypeError) as error:
            raise UsageError(f"there is no {parent + step}{_describe_parent(value, parent)}") from error
        parent += step
    return value


def _parse_path(path: str) -> Iterator[tuple[str, str | int]]:
    """Yield each step of a path: its text, and the key or index that it stands for."""
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            rest = path[position:]
            raise UsageError(f"cannot parse the key {path!r} from {rest!r} on; write a.b[3]")
        yield match[0], _parse_step(match)
        position = match.end()


def _parse_step(step: re.Match[str]) -> str | int:
    name, index = step.groups()
    if name:
        return str(name)
    if index[0] in "'\"":
        return str(index[1:-1])
    return int(index)


def _get_child(value: Any, key: str | int) -> Any:
    is_record = isinstance(value, tuple) and isinstance(key, str)
    if isinstance(value, (Mapping, Sequence)) and not is_record:
        return value[key]  # type: ignore[index]
    return getattr(value, str(key))


def _describe_parent(value: Any, path: str) -> str:
    """Return the end of a message about a missing part: what there is instead."""
    name = path.lstrip(".") or "the state"
    if isinstance(value, Mapping):
        keys = ", ".join(escape(str(key)) for key in value)
        return f"; {name} has {keys or 'no keys'}"
    if isinstance(value, Sequence):
        return f"; {name} has {pluralize(len(value), 'item')}"
    return f"; {name} is {abbreviate(value)}"


class Difference(NamedTuple):
    """A part in which two states differ."""

    path: str
    change: str
    """"added", "removed" or "changed"."""
    old: Any
    new: Any


def differences(old: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """Yield the parts in which two values differ, types included; O(both).

    They come in the order of the old value.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _compare_mappings(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _compare_lists(old, new, path)
    elif not _is_same(old, new):
        yield Difference(path=path, change="changed", old=old, new=new)


def _compare_mappings(old: Mapping[Any, Any], new: Mapping[Any, Any], path: str) -> Iterator[Difference]:
    for key in dict.fromkeys((*old, *new)):
        first = old.get(key, _ABSENT)
        second = new.get(key, _ABSENT)
        yield from _compare(first, second, _child_path(path, str(key)))


def _compare_lists(old: list[Any], new: list[Any], path: str) -> Iterator[Difference]:
    pairs = zip_longest(old, new, fillvalue=_ABSENT)
    for index, (first, second) in enumerate(pairs):
        yield from _compare(first, second, f"{path}[{index}]")


def _child_path(path: str, key: str) -> str:
    if not _STEP.fullmatch(key):
        return f"{path}[{key!r}]"
    if not path or key.startswith("["):
        return path + key
    return f"{path}.{key}"


def _compare(old: Any, new: Any, path: str) -> Iterator[Difference]:
    if old is new:
        return
    if old is _ABSENT:
        yield Difference(path=path, change="added", old=None, new=new)
    elif new is _ABSENT:
        yield Difference(path=path, change="removed", old=old, new=None)
    else:
        yield from differences(old, new, path)


def _is_same(old: Any, new: Any) -> bool:
    """Return whether two values are equal and of one type: True is not 1, but nan is nan."""
    return type(old) is type(new) and (old == new or repr(old) == repr(new))
