"""Codec: values to bytes and back. Only values that are not plain need Writer and Reader."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, Final, NoReturn, final

from msgpack import Packer, packb, unpackb

from graphkit._values.codec.reader import Reader, read_dict
from graphkit._values.codec.type_registry import TypeRegistry, UnstorableError, describe_type, flavour_of, type_name
from graphkit._values.codec.writer import MAX_DEPTH, PLAIN_CONTAINERS, Writer
from graphkit._values.frozen import NATIVE_SCALARS, PLAIN, FrozenDict, FrozenList
from graphkit.errors import CheckpointSerializationError


class MalformedDataError(ValueError):
    """The bytes were not written by the codec, or are cut short, too long or damaged."""


class _NotPlain(Exception):  # noqa: N818 - never leaves this module
    """The data have types that msgpack lacks."""


_FROZEN_HOOKS: Final[dict[str, Any]] = {
    "list_hook": FrozenList,
    "object_hook": FrozenDict,
    "strict_map_key": False,
    "timestamp": 3,
}
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

    __slots__ = ("_registry",)

    def __init__(self, types: Iterable[type] = ()) -> None:
        """Make a codec for these application types, and those that their fields name."""
        self._registry = TypeRegistry()
        self.register(*types)

    @property
    def types(self) -> Mapping[str, type]:
        """The registered types, by the names in stored data; a snapshot."""
        return MappingProxyType(self._registry.list_types())

    def register(self, *types: type, names: Mapping[type, str] | None = None) -> None:
        """Make application types storable, and those that their fields name. May be repeated.

        Args:
            types: Enums, dataclasses, NamedTuples, pydantic models.
            names: the names under which to store them; `module.qualname` otherwise.

        Raises:
            TypeError: a type is none of these; the types before it are registered.
            CheckpointerConfigurationError: another class has the name; the types before it are
                registered.
        """
        chosen_names = names or {}
        for cls in types:
            self.register_as(chosen_names.get(cls) or describe_type(cls), cls)

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

        `array_header(n) + pack_items(items)` is exactly `pack` of the list of those n items.

        Raises:
            CheckpointSerializationError: as `pack`; the path of an item is `path[start + index]`.
        """
        header = len(array_header(len(items)))
        batch = items
        if type(batch) is not FrozenList:
            batch = FrozenList(items)
        try:
            if batch.kind == PLAIN:
                return _packed(batch)[header:]
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
                writer = Writer(self._registry.by_type, checks_scalars=False)
                return _packed(writer.build_tree(value, MAX_DEPTH))
            except (OverflowError, UnicodeEncodeError, TypeError):
                # TypeError: a datetime among plain values, from msgpack's own timestamp.
                writer = Writer(self._registry.by_type, checks_scalars=True)
                return _packed(writer.build_tree(value, MAX_DEPTH))
        except UnstorableError as error:
            location = path + "".join(reversed(error.steps))
            # The path of a value that is too deep has hundreds of steps.
            if len(location) > 200:  # noqa: PLR2004 - fits a few lines
                location = location[:197] + "..."
            raise CheckpointSerializationError(_without_dot(location), error.type_name, error.reason) from None
        except (RecursionError, ValueError) as error:
            reason = str(error)
            if "recursion" in reason:
                reason = "it is nested too deeply"
            raise CheckpointSerializationError(_without_dot(path), type_name(type(value)), reason) from error

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
                value = unpackb(data, ext_hook=_not_plain, **_FROZEN_HOOKS)
            except _NotPlain:
                return self._unpack_rich(data)
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

    def _unpack_rich(self, data: bytes) -> Any:
        reader = Reader(self._registry)
        value = unpackb(
            data,
            ext_hook=reader.read_ext,
            list_hook=reader.read_array,
            object_hook=read_dict,
            strict_map_key=False,
            timestamp=3,
        )
        if reader.open_marks:
            raise ValueError("a mark that is not the first element of an array")
        return value


def array_header(n: int) -> bytes:
    """Return the msgpack header of an array of n items.

    Raises:
        ValueError: n is negative, or more than msgpack can hold.
    """
    if 0 <= n < 16:  # noqa: PLR2004 - the sizes are msgpack's
        return bytes([0x90 | n])
    if 0 <= n < 1 << 16:
        return struct.pack(">BH", 0xDC, n)
    if 0 <= n < 1 << 32:
        return struct.pack(">BI", 0xDD, n)
    raise ValueError(f"an array cannot have {n} items")


def _packed(tree: object) -> bytes:
    # In a list: msgpack packs one level more than it unpacks, and must refuse what it could not
    # read back.
    packed: bytes = packb([tree])
    return packed[1:]


def _not_plain(_code: int, _data: bytes) -> NoReturn:
    raise _NotPlain


def _without_dot(path: str) -> str:
    return path.removeprefix(".")


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
