"""Converts values to trees of msgpack types; finds the path to a value that cannot be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Flag
from typing import Any, Final, final

from msgpack import packb

from graphkit._values.codec.scalars import (
    DATACLASS,
    ENUM,
    FROZENSET,
    MAP,
    MARKS,
    NAMEDTUPLE,
    PYDANTIC,
    SET,
    TUPLE,
    encode_native,
    find_encoder,
    is_native,
)
from graphkit._values.codec.type_registry import ApplicationType, FieldsError, UnstorableError, explain_refusal
from graphkit._values.frozen import NATIVE_SCALARS, PLAIN, FrozenDict, FrozenList, FrozenSet

MAX_DEPTH: Final = 500
"""How deeply containers may be nested. msgpack reads 1024 levels; a record occupies several of
them."""

PLAIN_CONTAINERS: Final = frozenset({FrozenList, FrozenDict})
"""Containers that msgpack has, too, if their `kind` is PLAIN."""

_SETS: Final = frozenset({set, frozenset, FrozenSet})


@final
class Writer:
    """Converts a value to a tree of msgpack types and ext types. Plain parts stay as they are."""

    __slots__ = ("_by_type", "_checks_scalars", "_open_records")

    def __init__(self, by_type: dict[type, ApplicationType], *, checks_scalars: bool) -> None:
        """Make a writer.

        Args:
            by_type: the registered types.
            checks_scalars: whether to check each int and str, after msgpack refused one of them.
        """
        self._by_type = by_type
        self._checks_scalars = checks_scalars
        # The reader thaws the content of a record by recursion, so its depth must be limited here:
        # inside a record the writer walks plain containers, too.
        self._open_records = 0

    def build_tree(self, value: Any, levels: int) -> Any:  # noqa: PLR0911 - a case per type
        """Return the tree of a value.

        Args:
            value: the value.
            levels: how deeply it may still be nested.

        Raises:
            UnstorableError: something in the value cannot be stored.
        """
        cls = type(value)
        if cls in NATIVE_SCALARS:
            return encode_native(value) if self._checks_scalars else value
        if cls in PLAIN_CONTAINERS and value.kind == PLAIN and not self._checks_scalars and not self._open_records:
            return value
        if levels <= 0:
            raise UnstorableError(value, f"it is nested more than {MAX_DEPTH} levels deep")
        if cls is FrozenList or cls is list:
            return self._build_items(value, levels - 1)
        if cls is FrozenDict or cls is dict:
            return self._build_mapping(value, levels - 1)
        if cls is tuple:
            return [MARKS[TUPLE], *self._build_items(value, levels - 1)]
        entry = self._by_type.get(cls)
        if entry is not None:
            return self._build_record(entry, value, levels - 2)  # an array, and the dict of fields in it
        if cls in _SETS:
            return self._build_set(value, levels - 1)
        encode = find_encoder(cls)
        if encode is None:
            raise UnstorableError(value, explain_refusal(cls))
        return encode(value)

    def _build_items(self, values: Iterable[Any], levels: int) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.build_tree(value, levels))  # noqa: PERF401 - its length is the index of the refused item
        except UnstorableError as refused:
            refused.steps.append(f"[{len(items)}]")
            raise
        return items

    def _build_mapping(self, mapping: dict[Any, Any], levels: int) -> Any:
        has_native_keys = NATIVE_SCALARS.issuperset(map(type, mapping))
        if has_native_keys and self._checks_scalars:
            has_native_keys = all(map(is_native, mapping))
        if not has_native_keys:
            pairs: list[Any] = [MARKS[MAP]]
            key: Any = None
            try:
                for key, value in mapping.items():
                    pairs += self.build_tree(key, levels), self.build_tree(value, levels)
            except UnstorableError as refused:
                refused.steps.append(_key_step(key))
                raise
            return pairs
        return self._build_values(mapping, levels, _key_step)

    def _build_values(self, mapping: Mapping[Any, Any], levels: int, step: Callable[[Any], str]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, value in mapping.items():
                values[key] = self.build_tree(value, levels)
        except UnstorableError as refused:
            refused.steps.append(step(key))
            raise
        return values

    def _build_set(self, members: Iterable[Any], levels: int) -> list[Any]:
        trees = [self.build_tree(member, levels) for member in members]
        # Sorted, because equal sets may iterate in different orders and must have equal bytes.
        if len(trees) > 1:
            trees.sort(key=packb)
        mark = SET
        if type(members) is frozenset:
            mark = FROZENSET
        return [MARKS[mark], *trees]

    def _build_record(self, entry: ApplicationType, value: Any, levels: int) -> list[Any]:
        if entry.flavour == "enum":
            # By value for a Flag: a combination of flags has no member, and hence no name.
            member = value.value if isinstance(value, Flag) else value.name
            return [MARKS[ENUM], entry.name, self.build_tree(member, levels)]
        try:
            fields = entry.get_fields(value)
        except FieldsError as error:
            raise UnstorableError(value, str(error)) from None
        if entry.flavour == "namedtuple":
            return [MARKS[NAMEDTUPLE], entry.name, self._build_values(fields, levels, _field_step)]
        self._open_records += 1
        tree = [MARKS[DATACLASS], entry.name, self._build_values(fields, levels, _field_step)]
        if entry.flavour == "pydantic":
            tree[0] = MARKS[PYDANTIC]
            tree.append(sorted(value.__pydantic_fields_set__))
            for part in (value.__pydantic_extra__, value.__pydantic_private__):
                if part is None:
                    tree.append(None)
                else:
                    tree.append(self._build_values(part, levels, _field_step))
        self._open_records -= 1
        return tree


def _key_step(key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    text = repr(key)
    if len(text) > 60:  # noqa: PLR2004 - enough to find it
        text = f"{text[:57]}..."
    return f"[{text}]"


def _field_step(name: str) -> str:
    return f".{name}"
