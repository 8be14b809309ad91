"""Finds the application types of live values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from graphkit._values.codec.type_registry import flavour_of
from graphkit._values.codec.writer import PLAIN_CONTAINERS
from graphkit._values.frozen import PLAIN


def find_value_types(value: object) -> set[type]:
    """Return the Enums, dataclasses, NamedTuples and pydantic models in a value, at any depth."""
    found: set[type] = set()
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if type(current) in PLAIN_CONTAINERS and current.kind == PLAIN:  # type: ignore[attr-defined]
            continue
        members = [*_members_of(current)]
        if flavour_of(type(current)) is not None:
            found.add(type(current))
        elif not members:
            continue
        if id(current) not in seen:  # an object may contain itself
            seen.add(id(current))
            waiting += members
    return found


def _members_of(value: Any) -> Iterable[object]:
    """Yield what a container or an object of an application type holds."""
    if isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif flavour_of(type(value)) in {"dataclass", "pydantic"}:
        yield from getattr(value, "__dict__", {}).values()
        for name in getattr(value, "__dataclass_fields__", ()):  # a class with slots has no __dict__
            yield getattr(value, name, None)
        for name in ("__pydantic_extra__", "__pydantic_private__"):
            yield from (getattr(value, name, None) or {}).values()
