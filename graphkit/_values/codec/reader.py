"""Converts what msgpack reads to values: the hooks for marks, records and ext types."""

from __future__ import annotations

from enum import Flag
from typing import Any, Final, final

from graphkit._values.codec.scalars import (
    DATACLASS,
    ENUM,
    FROZENSET,
    MAP,
    MARK,
    MARKS,
    NAMEDTUPLE,
    PYDANTIC,
    READERS,
    SET,
    TUPLE,
)
from graphkit._values.codec.type_registry import (
    ApplicationType,
    FieldsError,
    TypeRegistry,
    explain_ambiguous,
    explain_unknown,
)
from graphkit._values.frozen import FrozenDict, FrozenList, FrozenSet, kind_of
from graphkit.errors import CheckpointSerializationError


@final
class _Mark:
    """A mark that has been read, until the array that begins with it is complete."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_READ_MARKS: Final = tuple(_Mark(number) for number in range(len(MARKS)))
_FLAVOUR_OF: Final = {ENUM: "enum", NAMEDTUPLE: "namedtuple", DATACLASS: "dataclass", PYDANTIC: "pydantic"}


@final
class Reader:
    """The hooks of one call of unpackb."""

    # msgpack calls the hooks from the inside out. The tuple ([1], 2) is stored as [mark 1, [1], 2], and
    # is read as: read_ext(mark 1), read_array([1]), read_array([mark 1, FrozenList([1]), 2]). So a hook
    # gets values that are complete, and what a mark means is known when its array is. A mark anywhere
    # but at the head of an array is not of the writer: no hook would replace it, and the caller would
    # get the _Mark itself. `open_marks` finds that out at the end.

    __slots__ = ("_types", "open_marks")

    def __init__(self, types: TypeRegistry) -> None:
        self._types = types
        # The marks that were read, minus the arrays that began with one. If it is not 0 at the end,
        # a mark was not the first element of an array.
        self.open_marks = 0

    def read_ext(self, code: int, data: bytes) -> Any:
        """Return a scalar, or the mark of the array that begins here."""
        is_mark = code == MARK and len(data) == 1 and data[0] < len(_READ_MARKS)
        if is_mark:
            self.open_marks += 1
            return _READ_MARKS[data[0]]
        read = READERS.get(code)
        if read is None:
            reason = "an unknown ext type; a newer version wrote it, or another program"
            raise CheckpointSerializationError("", f"ext {code}", reason, (code, data))
        return read(data)

    def read_array(self, items: list[Any]) -> Any:
        """Return a list, or the value that the mark at its head stands for."""
        if not items or type(items[0]) is not _Mark:
            new = FrozenList(items)
            kind_of(new)  # computed now, when the kinds of the items are known: no recursion
            return new
        self.open_marks -= 1
        mark, *rest = items
        number = mark.number
        if number == TUPLE:
            return tuple(rest)
        if number == SET:
            return FrozenSet(rest)
        if number == FROZENSET:
            return frozenset(rest)
        if number == MAP:
            return read_dict(dict(zip(rest[::2], rest[1::2], strict=True)))
        return self._read_record(number, *rest)

    def _read_record(self, number: int, name: str, value: Any, *more: Any) -> Any:
        rest = 0
        if number == PYDANTIC:
            rest = 3
        if type(name) is not str or len(more) != rest:
            raise ValueError("a record without a name, or of the wrong length")
        raw = (name, value, *more)
        entry = self._types.get(name) or self._find_renamed(name, raw)
        if entry.flavour != _FLAVOUR_OF[number]:
            raise CheckpointSerializationError("", name, "it is another kind of type now", raw)
        if number == ENUM:
            return _read_enum(entry, value, raw)
        if type(value) is not FrozenDict:
            raise ValueError("a record without fields")
        try:
            if number == NAMEDTUPLE:
                return entry.make(dict(value))
            fields = {field: _thaw(item) for field, item in value.items()}
            if number == DATACLASS:
                return entry.make(fields)
            fields_set, extra, private = more
            return entry.make_model(
                fields,
                fields_set,
                extra=_thaw(extra),
                private=_thaw(private),
            )
        except FieldsError as error:
            raise CheckpointSerializationError("", name, str(error), raw) from error

    def _find_renamed(self, name: str, raw: object) -> ApplicationType:
        found = self._types.find_renamed(name)
        if not found:
            raise CheckpointSerializationError("", name, explain_unknown(name), raw)
        if len(found) > 1:
            raise CheckpointSerializationError("", name, explain_ambiguous(found), raw)
        return found[0]


def read_dict(mapping: dict[Any, Any]) -> FrozenDict:
    """Return a dict as a FrozenDict."""
    new = FrozenDict(mapping)
    kind_of(new)  # as in read_array
    return new


def _thaw(value: Any) -> Any:
    """Return a value with mutable lists, dicts and sets, as the application object had it."""
    cls = type(value)
    if cls is FrozenList:
        return [_thaw(item) for item in value]
    if cls is FrozenDict:
        return {key: _thaw(item) for key, item in value.items()}
    if cls is FrozenSet:
        return set(value)
    if isinstance(value, tuple):
        return tuple.__new__(cls, [_thaw(item) for item in value])
    return value


def _read_enum(entry: ApplicationType, value: Any, raw: tuple[str, object]) -> Any:
    try:
        if type(value) is int and issubclass(entry.cls, Flag):
            return entry.cls(value)
        return entry.cls.__members__[value]  # type: ignore[attr-defined]
    except (KeyError, ValueError) as error:
        raise CheckpointSerializationError("", raw[0], f"it has no member {value!r} now", raw) from error
