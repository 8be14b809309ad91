"""From values to trees of what msgpack has, with the path to whatever cannot be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Flag
from typing import Any, Final, final

from msgpack import packb

from graphkit._values.codec.scalars import encoder, is_native, leaf
from graphkit._values.codec.type_codes import DATACLASS, ENUM, FROZENSET, MAP, MARKS, NAMEDTUPLE, PYDANTIC, SET, TUPLE
from graphkit._values.codec.type_registry import TypeEntry
from graphkit._values.codec.unstorable import Refused, advice
from graphkit._values.frozen import LEAVES, PLAIN, FrozenDict, FrozenList, FrozenSet

MAX_DEPTH: Final = 500
"""How deeply containers may be nested; msgpack reads 1024 levels, the rest is for records, which are several."""

KEYED: Final = frozenset({FrozenList, FrozenDict})
"""Types that msgpack has too if their `kind` is PLAIN."""

_SETS: Final = frozenset({set, frozenset, FrozenSet})


@final
class Writer:
    """Turns a value into a tree of what msgpack has and ext types; plain parts are handed through as they are."""

    __slots__ = ("_by_type", "_careful", "_records")

    def __init__(self, by_type: dict[type, TypeEntry], *, careful: bool) -> None:
        # Careful: looks at each int and str, for msgpack met one that it does not have.
        self._by_type, self._careful = by_type, careful
        # How many records are open. What is inside one is walked even if plain: the reader thaws it by recursion, so
        # its depth must be bounded here.
        self._records = 0

    def tree(self, value: Any, room: int) -> Any:  # noqa: PLR0911 - a case per type
        """The tree; `room` is how many levels there may still be."""
        cls = type(value)
        if cls in LEAVES:
            return leaf(value) if self._careful else value
        if cls in KEYED and value.kind == PLAIN and not self._careful and not self._records:
            return value
        if room <= 0:
            raise Refused(value, f"it is nested more than {MAX_DEPTH} levels deep")
        if cls is FrozenList or cls is list:
            return self._items(value, room - 1)
        if cls is FrozenDict or cls is dict:
            return self._mapping(value, room - 1)
        if cls is tuple:
            return [MARKS[TUPLE], *self._items(value, room - 1)]
        entry = self._by_type.get(cls)
        if entry is not None:
            return self._record(entry, value, room - 2)
        if cls in _SETS:
            return self._members(value, room - 1)
        encode = encoder(cls)
        if encode is None:
            raise Refused(value, advice(cls))
        return encode(value)

    def _items(self, values: Iterable[Any], room: int) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.tree(value, room))  # noqa: PERF401 - its length is the index of the refused item
        except Refused as refused:
            refused.steps.append(f"[{len(items)}]")
            raise
        return items

    def _mapping(self, mapping: dict[Any, Any], room: int) -> Any:
        if not LEAVES.issuperset(map(type, mapping)) or (self._careful and not all(map(is_native, mapping))):
            return self._pairs(mapping, room)
        return self._values(mapping, room, _key_step)

    def _values(self, mapping: Mapping[Any, Any], room: int, step: Callable[[Any], str]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, value in mapping.items():
                values[key] = self.tree(value, room)
        except Refused as refused:
            refused.steps.append(step(key))
            raise
        return values

    def _pairs(self, mapping: dict[Any, Any], room: int) -> list[Any]:
        pairs: list[Any] = [MARKS[MAP]]
        key: Any = None
        try:
            for key, value in mapping.items():
                pairs += self.tree(key, room), self.tree(value, room)
        except Refused as refused:
            refused.steps.append(_key_step(key))
            raise
        return pairs

    def _members(self, members: Iterable[Any], room: int) -> list[Any]:
        trees = [self.tree(member, room) for member in members]
        # Equal sets give equal bytes, whatever order they happen to iterate in.
        if len(trees) > 1:
            trees.sort(key=packb)
        return [MARKS[FROZENSET if type(members) is frozenset else SET], *trees]

    def _record(self, entry: TypeEntry, value: Any, room: int) -> list[Any]:
        if entry.flavour == "enum":
            # A combination of flags has no member of its own.
            return [MARKS[ENUM], entry.name, self.tree(value.value if isinstance(value, Flag) else value.name, room)]
        if entry.flavour == "namedtuple":
            if getattr(value, "__dict__", None):
                raise Refused(value, "it has attributes beside its fields, which would be lost")
            fields = dict(zip(entry.fields, tuple.__iter__(value), strict=True))
            return [MARKS[NAMEDTUPLE], entry.name, self._values(fields, room, _field_step)]
        self._records += 1
        if entry.flavour == "dataclass":
            tree = [MARKS[DATACLASS], entry.name, self._values(_fields_of(entry, value), room, _field_step)]
        else:
            extra, private = value.__pydantic_extra__, value.__pydantic_private__
            tree = [
                MARKS[PYDANTIC],
                entry.name,
                self._values(_fields_of(entry, value), room, _field_step),
                sorted(value.__pydantic_fields_set__),
                None if extra is None else self._values(extra, room, _field_step),
                None if private is None else self._values(private, room, _field_step),
            ]
        self._records -= 1
        return tree


def _key_step(key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    shown = repr(key)
    return f"[{shown}]" if len(shown) <= 60 else f"[{shown[:57]}...]"  # noqa: PLR2004 - enough to find it


def _field_step(name: str) -> str:
    return f".{name}"


def _fields_of(entry: TypeEntry, value: Any) -> dict[str, Any]:
    """The fields of a dataclass or model; refuses an object that holds more, or less, than its fields."""
    fields: dict[str, Any] = {}
    for name in entry.fields:
        try:
            fields[name] = getattr(value, name)
        except AttributeError:
            if name not in entry.optional:
                raise Refused(value, f"its field {name!r} has no value") from None
    attributes = getattr(value, "__dict__", {})
    beside = [name for name in attributes if name not in fields and not _is_cache(type(value), name)]
    beside += [name for name in entry.slots if hasattr(value, name)]
    if beside:
        raise Refused(value, f"its attribute {beside[0]!r} is no field, and would be lost; make it a field")
    return fields


def _is_cache(cls: type, name: str) -> bool:
    """Whether an attribute is a remembered cached_property, which the restored object works out again."""
    from functools import cached_property

    return any(isinstance(base.__dict__.get(name), cached_property) for base in cls.__mro__)
