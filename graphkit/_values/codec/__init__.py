"""Codec: values to bytes and back.

Only values that are not plain need a Writer, which
converts them to trees of msgpack types, and a Reader, whose hooks convert them back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import Enum, Flag
from types import NoneType
from typing import Any, Final, NoReturn, TypeAlias, final

from msgpack import ExtType, Packer, packb, unpackb

from graphkit._values.codec.scalars import MARK, READERS, encode_native, find_encoder, is_native
from graphkit._values.codec.type_registry import (
    ApplicationType,
    FieldsError,
    Flavour,
    TypeRegistry,
    UnstorableError,
    describe_type,
    explain_ambiguous,
    explain_refusal,
    explain_unknown,
    type_name,
)
from graphkit._values.frozen import NATIVE_SCALARS, PLAIN, PLAIN_CONTAINERS, FrozenDict, FrozenList, FrozenSet, kind_of
from graphkit.errors import CheckpointSerializationError

MAX_DEPTH: Final = 500
"""How deeply containers may be nested. msgpack reads 1024 levels; a record occupies several of
them."""

MAKE_PLACEHOLDER: Final[ContextVar[Callable[[Flavour, str, tuple[Any, ...]], type | None]]] = ContextVar(
    "MAKE_PLACEHOLDER", default=lambda *_: None
)
"""Makes the class of a value whose type is not registered; by default there is none.

It gets the flavour and the name of the type, and the names of the value's fields, or what the Enum stores.
"""

# The marks in stored data, which never change; `Codec` documents them.
MAP, TUPLE, SET, FROZENSET, ENUM, NAMEDTUPLE, DATACLASS, PYDANTIC = range(8)
MARKS: Final = tuple(ExtType(MARK, bytes([mark])) for mark in range(8))
"""The marks as the writer packs them."""

_SETS: Final = frozenset({set, frozenset, FrozenSet})
_FLAVOURS: Final[Mapping[int, Flavour]] = {
    ENUM: "enum",
    NAMEDTUPLE: "namedtuple",
    DATACLASS: "dataclass",
    PYDANTIC: "pydantic",
}
_MARK_OF: Final = {flavour: mark for mark, flavour in _FLAVOURS.items()}
"""The marks of application types, by their flavour."""
_FindType: TypeAlias = Callable[[type], ApplicationType | None]
"""Returns the application type of a class; None if its objects may not be stored."""


@final
class Writer:
    """Converts a value to a tree of msgpack types and ext types. Plain parts stay as they are."""

    __slots__ = ("_checks_scalars", "_find_type", "_open_records")

    def __init__(self, find_type: _FindType, *, checks_scalars: bool) -> None:
        """Make a writer.

        Args:
            find_type: finds the application types of objects.
            checks_scalars: whether to check each int and str, after msgpack refused one of them.
        """
        self._find_type = find_type
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
            raise UnstorableError(cls, f"it is nested more than {MAX_DEPTH} levels deep")
        if cls is FrozenList or cls is list:
            return self._build_items(value, levels - 1)
        if cls is FrozenDict or cls is dict:
            return self._build_mapping(value, levels - 1)
        if cls is tuple:
            return [MARKS[TUPLE], *self._build_items(value, levels - 1)]
        entry = self._find_type(cls)
        if entry is not None:
            return self._build_record(entry, value, levels - 2)  # an array, and the dict of fields in it
        if cls in _SETS:
            return self._build_set(value, levels - 1)
        encode = find_encoder(cls)
        if encode is None:
            raise UnstorableError(cls, explain_refusal(cls))
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
        return self._build_values(mapping, levels)

    def _build_values(self, mapping: Mapping[Any, Any], levels: int) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, value in mapping.items():
                values[key] = self.build_tree(value, levels)
        except UnstorableError as refused:
            refused.steps.append(_key_step(key))
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
        head = [MARKS[_MARK_OF[entry.flavour]], entry.name]
        if entry.flavour == "enum":
            # By value for a Flag: a combination of flags has no member, and hence no name.
            member = value.value if isinstance(value, Flag) else value.name
            return [*head, self.build_tree(member, levels)]
        try:
            fields = entry.get_fields(value)
        except FieldsError as error:
            raise UnstorableError(entry.cls, str(error)) from None
        if entry.flavour == "namedtuple":
            return [*head, self._build_values(fields, levels)]
        self._open_records += 1
        tree = [*head, self._build_values(fields, levels)]
        if entry.flavour == "pydantic":
            tree.append(sorted(value.__pydantic_fields_set__))
            parts = value.__pydantic_extra__, value.__pydantic_private__
            tree += [None if part is None else self._build_values(part, levels) for part in parts]
        self._open_records -= 1
        return tree


def _key_step(key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    text = repr(key)
    if len(text) > 60:  # noqa: PLR2004 - enough to find it
        text = f"{text[:57]}..."
    return f"[{text}]"


@final
class _Mark:
    """A mark that has been read, until the array that begins with it is complete."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_READ_MARKS: Final = tuple(_Mark(number) for number in range(len(MARKS)))


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
        if number not in _MAKE_HASHED:
            return self._read_record(number, *rest)
        try:
            return _MAKE_HASHED[number](rest)
        except Exception as error:
            changed = next(self._find_unhashable(rest), None)
            if changed is None:
                raise
            reason = f"it cannot be in a set or be a key of a dict now: {error}"
            raise CheckpointSerializationError("", type_name(changed), reason, rest) from error

    def _find_unhashable(self, values: Iterable[Any]) -> Iterator[type]:
        """Yield the registered types of the objects that have no hash, among values and in tuples."""
        for value in values:
            if type(value) is tuple:
                yield from self._find_unhashable(value)
            elif type(value) in self._types.by_type:
                try:
                    hash(value)
                except Exception:  # noqa: BLE001 - a registered class may raise any
                    yield type(value)

    def _read_record(self, number: int, name: str, value: Any, *more: Any) -> Any:
        rest = 3 if number == PYDANTIC else 0
        if type(name) is not str or len(more) != rest:
            raise ValueError("a record without a name, or of the wrong length")
        raw = (name, value, *more)
        entry = self._find_type(number, raw)
        if _MARK_OF[entry.flavour] != number:
            raise CheckpointSerializationError("", name, "it is another kind of type now", raw)
        if number == ENUM:
            try:
                if type(value) is int and issubclass(entry.cls, Flag):
                    return entry.cls(value)
                return entry.cls.__members__[value]  # type: ignore[attr-defined]
            except (KeyError, ValueError) as error:
                raise CheckpointSerializationError("", name, f"it has no member {value!r} now", raw) from error
        if type(value) is not FrozenDict:
            raise ValueError("a record without fields")
        try:
            if number == NAMEDTUPLE:
                return entry.make(dict(value))
            return entry.make(thaw(value), *map(thaw, more))
        except FieldsError as error:
            raise CheckpointSerializationError("", name, str(error), raw) from error

    def _find_type(self, number: int, raw: tuple[Any, ...]) -> ApplicationType:
        """Return the registered type of a record, or else a placeholder."""
        name, value, *_ = raw
        found = self._types.find(name)
        if len(found) == 1:
            return found[0]
        parts = tuple(value) if type(value) is FrozenDict else (value,)
        flavour = _FLAVOURS[number]
        placeholder = MAKE_PLACEHOLDER.get()(flavour, name, parts)
        if placeholder is None:
            reason = explain_ambiguous(found) if found else explain_unknown(name)
            raise CheckpointSerializationError("", name, reason, raw)
        # Not by its name: the next value may have other fields, and so another class.
        entry = self._types.by_type.get(placeholder)
        if entry is None:
            entry = self._types.by_type[placeholder] = ApplicationType(name, placeholder, flavour)
        return entry


def read_dict(mapping: dict[Any, Any]) -> FrozenDict:
    """Return a dict as a FrozenDict."""
    new = FrozenDict(mapping)
    kind_of(new)  # as in read_array
    return new


def _read_pairs(items: list[Any]) -> FrozenDict:
    """Return keys and values in turn as a FrozenDict."""
    return read_dict(dict(zip(items[::2], items[1::2], strict=True)))


_MAKE_HASHED: Final[Mapping[int, Callable[[list[Any]], Any]]] = {SET: FrozenSet, FROZENSET: frozenset, MAP: _read_pairs}
"""By their marks: the types that hash what they hold."""


def thaw(value: Any) -> Any:
    """Return a value with mutable lists, dicts and sets, as the application had it."""
    # One frame for each level, as in `freeze`: what could be frozen can be thawed.
    cls = type(value)
    if cls is FrozenList or cls is list:
        return [*map(thaw, value)]
    if cls is FrozenDict or cls is dict:
        return dict(zip(value, map(thaw, value.values()), strict=True))
    if cls is FrozenSet:
        return set(value)
    if isinstance(value, tuple) and not isinstance(value, Enum):
        return tuple.__new__(cls, map(thaw, value))
    return value


class MalformedDataError(ValueError):
    """The bytes were not written by the codec, or are cut short, too long or damaged."""


class _NotPlain(Exception):  # noqa: N818 - never leaves this module
    """The data have types that msgpack lacks."""


_FALLBACK_ERRORS: Final = (OverflowError, ValueError, TypeError, RecursionError)
"""The errors of msgpack for big integers, lone surrogates and deep nesting; the Writer then handles
the value."""


_FIXED_SIZE: Final = frozenset({int, float, bool, NoneType})
_SIZED: Final = frozenset({str, bytes})
_SHORT: Final = 1 << 12
"""A shorter str or bytes object is packed by the packer of the thread, which keeps its buffer."""


class _PerThread(threading.local):
    """A packer for each thread, for scalars: creating one takes longer than packing them.

    Not for other containers: packing them allocates objects, so the garbage collector might run a
    finalizer that packs something else in between.
    """

    def __init__(self) -> None:
        self.packer = Packer(buf_size=2 * _SHORT)


_PER_THREAD: Final = _PerThread()


@final
class Codec:
    """Packs values into msgpack bytes and back, exactly and with their types.

    A value that it cannot pack exactly raises a `CheckpointSerializationError`.

    Types that msgpack has (None, bool, int of 64 bits, float, str, bytes, list, dict with keys of
    those types) are plain msgpack. Other values are an ext type, or an array whose first element is
    a mark: ext 0 with one byte.

    | ext | type | payload (integers are big-endian) |
    |---|---|---|
    | -1 | datetime, UTC | msgpack's own timestamp; read, never written |
    | 0 | mark | one byte; the first element of an array, see below |
    | 1 | int beyond 64 bits | two's complement, signed |
    | 2 | str with lone surrogates | UTF-8, surrogates encoded like other code points |
    | 3 | complex | two float64 |
    | 4 | datetime | u16 year, u8 month, day, hour, minute, second, u32 microsecond, u8 fold; then a zone |
    | 5 | date | u16 year, u8 month, u8 day |
    | 6 | time | u8 hour, minute, second, u32 microsecond, u8 fold; then a zone |
    | 7 | timedelta | i32 days, i32 seconds, i32 microseconds |
    | 8 | timezone or ZoneInfo | a zone: nothing = naive (not here), 00 = timezone.utc, 01 i64 = offset in microseconds, 02 i64 UTF-8 = the same with a name, 03 ASCII = key of a ZoneInfo |
    | 9 | UUID | 16 bytes |
    | 10 | Decimal | ASCII, as str() gives it |
    | 11 | path | u8 flavour (0 PurePosixPath, 1 PureWindowsPath, 2 PosixPath, 3 WindowsPath), then UTF-8 as in 2 |

    | mark | type | rest of the array |
    |---|---|---|
    | 0 | dict with other keys | key, value, key, value, ... |
    | 1 | tuple | the items |
    | 2 | set | the items, in the order of their bytes |
    | 3 | frozenset | the same |
    | 4 | Enum | type name, member name; for a Flag its integer value |
    | 5 | NamedTuple | type name, {field: value} |
    | 6 | dataclass | type name, {field: value} |
    | 7 | pydantic model | type name, {field: value}, names of the fields that were set, {extra: value} or nil, {private: value} or nil |

    A type name is only a key of the registry. Objects are restored without their constructors: the
    reader sets the fields of a new object. A field that the stored data lack gets its default; a
    field that the class lacks is an error.

    Threads may share a codec; registering is atomic.
    """  # noqa: E501 - tables

    __slots__ = ("_find_type", "_registry")

    def __init__(self, types: Iterable[type] = ()) -> None:
        """Make a codec for these application types, and those that their fields name."""
        self._registry = TypeRegistry()
        self._find_type: _FindType = self._registry.by_type.get
        self.register(*types)

    @property
    def types(self) -> Mapping[str, type]:
        """The registered types, by the names in stored data; a snapshot."""
        return self._registry.list_types()

    def register(self, *types: type) -> None:
        """Make application types storable, and those that their fields name. May be repeated.

        Args:
            types: Enums, dataclasses, NamedTuples, pydantic models; stored as `module.qualname`.

        Raises:
            TypeError: a type is none of these; the types before it are registered.
            CheckpointerConfigurationError: another class has the name; the types before it are
                registered.
        """
        for cls in types:
            self.register_as(describe_type(cls), cls)

    def register_as(self, name: str, cls: type) -> None:
        """Make a type readable under a name. It is stored under its first name.

        After a class was renamed, register its old name too, to read old data. A class that is
        first registered under a name of its own can be renamed freely.

        Raises:
            TypeError: the type is not an Enum, dataclass, NamedTuple or pydantic model.
            CheckpointerConfigurationError: another class has the name, or the name of a type in the
                annotations of a field. Types that were registered before that remain registered.
        """
        self._registry.register_as(name, cls)

    # --- packing ------------------------------------------------------------------------------------------------------

    def pack(self, value: object, path: str = "") -> bytes:
        """Pack a value. A plain value costs one call of msgpack; others also a walk in Python.

        Args:
            value: the value; it should be frozen, because only a frozen value is known to be plain.
            path: where in the state it is, for errors.

        Raises:
            CheckpointSerializationError: something in it cannot be stored; the error's `path` says
                where.
        """
        cls = type(value)
        try:
            if cls in _FIXED_SIZE or (cls in _SIZED and len(value) < _SHORT):  # type: ignore[arg-type]
                packed: bytes = _PER_THREAD.packer.pack(value)
                return packed
            if cls in NATIVE_SCALARS or (cls in PLAIN_CONTAINERS and value.kind == PLAIN):  # type: ignore[attr-defined]
                return _packed(value)
        except _FALLBACK_ERRORS:
            pass
        return self._pack_tree(value, path)

    def pack_flat(self, values: tuple[object, ...], path: str = "") -> bytes:
        """Pack a few short values as a list. If all are scalars, this takes a third of the time of `pack`.

        `pack_flat(values)` is exactly `pack` of the frozen list of these values.

        Args:
            values: frozen values; together up to some kilobytes, because the packer keeps its buffer.
            path: where in the state they are, for errors.

        Raises:
            CheckpointSerializationError: as `pack`.
        """
        if NATIVE_SCALARS.issuperset(map(type, values)):
            try:
                # A tuple of scalars: packing it allocates nothing that the garbage collector counts.
                packed: bytes = _PER_THREAD.packer.pack(values)
                return packed
            except _FALLBACK_ERRORS:
                pass
        return self.pack(FrozenList(values), path)

    def pack_items(self, items: Sequence[object], path: str = "", start: int = 0) -> bytes:
        """Pack the items of a list without its header, for appending.

        After msgpack's header of an array of n items, they are exactly what `pack` makes of the list.

        Raises:
            CheckpointSerializationError: as `pack`; the path of an item is `path[start + index]`.
        """
        batch = items if type(items) is FrozenList else FrozenList(items)
        try:
            if batch.kind == PLAIN:
                header = _PER_THREAD.packer.pack_array_header(len(batch))
                return _packed(batch)[len(header) :]
        except _FALLBACK_ERRORS:
            pass
        packed = [self._pack_tree(item, f"{path}[{index}]") for index, item in enumerate(batch, start)]
        return b"".join(packed)

    def _pack_tree(self, value: object, path: str) -> bytes:
        # Twice: msgpack refuses ints beyond 64 bits and strs with lone surrogates, which are rare.
        # The first Writer leaves scalars and plain containers to msgpack unseen. Only if msgpack then
        # refuses something does the second one look at each of them, and packs those as ext types.
        # Both give the same bytes for everything that msgpack has.
        try:
            try:
                writer = Writer(self._find_type, checks_scalars=False)
                return _packed(writer.build_tree(value, MAX_DEPTH))
            except (OverflowError, UnicodeEncodeError, TypeError):
                # TypeError: a datetime among plain values, from msgpack's own timestamp.
                writer = Writer(self._find_type, checks_scalars=True)
                return _packed(writer.build_tree(value, MAX_DEPTH))
        except UnstorableError as error:
            location = path + "".join(reversed(error.steps))
            # The path of a value that is too deep has hundreds of steps.
            if len(location) > 200:  # noqa: PLR2004 - fits a few lines
                location = location[:197] + "..."
            raise CheckpointSerializationError(location.removeprefix("."), error.type_name, error.reason) from None
        except (RecursionError, ValueError) as error:
            reason = str(error)
            if "recursion" in reason:
                reason = "it is nested too deeply"
            raise CheckpointSerializationError(path.removeprefix("."), type_name(type(value)), reason) from error

    # --- unpacking ----------------------------------------------------------------------------------------------------

    def unpack(self, data: bytes, path: str = "") -> Any:
        """Unpack a value, frozen. Plain data cost one call of msgpack.

        Args:
            data: exactly one packed value.
            path: where in the state it is, for errors.

        Raises:
            CheckpointSerializationError: it has a type that is not registered, or whose fields have
                changed; the error's `raw` has the name and the decoded fields.
            MalformedDataError: `pack` did not write these bytes.
        """
        try:
            try:
                # The first ext type means that the data are not plain: then all is read again, with the
                # hooks of a Reader, which take about as long as msgpack for every container.
                value = _unpack(data, _not_plain, FrozenList, FrozenDict)
            except _NotPlain:
                reader = Reader(self._registry)
                value = _unpack(data, reader.read_ext, reader.read_array, read_dict)
                if reader.open_marks:
                    raise ValueError("a mark that is not the first element of an array") from None
                return value
            if type(value) in PLAIN_CONTAINERS:
                value.kind = PLAIN
            return value
        except CheckpointSerializationError as error:
            raise CheckpointSerializationError(path, error.type_name, error.reason, error.raw) from error.__cause__
        except RecursionError as error:
            raise CheckpointSerializationError(path, "data", "it is nested too deeply to be read here") from error
        except MemoryError:
            raise
        except Exception as error:
            # msgpack raises many kinds of errors, and a registered class may raise any.
            raise MalformedDataError(f"not a packed value: {str(error) or type(error).__name__}") from error


def make_learning_codec() -> Codec:
    """Make a codec that registers each type when it packs an object of it. A reader must be given all the types."""
    codec = Codec()
    codec._find_type = codec._registry.learn  # noqa: SLF001 - of this module
    return codec


def _packed(tree: object) -> bytes:
    # In a list: msgpack packs one level more than it unpacks, and must refuse what it could not
    # read back.
    packed: bytes = packb([tree])
    return packed[1:]


def _unpack(data: bytes, ext: Callable[..., Any], array: Callable[..., Any], map_: Callable[..., Any]) -> Any:
    # Each keyword written out: msgpack takes a third longer for a short value if a mapping has them.
    return unpackb(data, ext_hook=ext, list_hook=array, object_hook=map_, strict_map_key=False, timestamp=3)


def _not_plain(_code: int, _data: bytes) -> NoReturn:
    raise _NotPlain
