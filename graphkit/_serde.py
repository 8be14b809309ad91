"""Values to msgpack and back: exact, or refused; nothing in data is ever imported or called by name."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, Flag
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeAlias, final

from msgpack import ExtType, packb, unpackb

from graphkit._frozen import LEAVES, PLAIN, FrozenDict, FrozenList, FrozenSet, kind_of
from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError

MAX_DEPTH: Final = 500
"""How deeply containers may be nested; msgpack reads 1024 levels, the rest is for records, which are several."""

# Ext codes and marks are fixed for ever: stored data holds them.
_MARK, _INT, _STR, _COMPLEX, _DATETIME, _DATE, _TIME, _TIMEDELTA, _ZONE, _UUID, _DECIMAL, _PATH = range(12)
_MAP, _TUPLE, _SET, _FROZENSET, _ENUM, _NAMEDTUPLE, _DATACLASS, _PYDANTIC = range(8)
_MARKS: Final = tuple(ExtType(_MARK, bytes([mark])) for mark in range(8))

_HOW_TO_REGISTER: Final = (
    "its type is not registered: use it in the state's schema or register it with the codec, "
    "codec.register({name}), or leave the value out of the state"
)
_ADVICE: Final = {
    bytearray: "it is mutable; store bytes(x)",
    memoryview: "it is a view; store bytes(x)",
    ExtType: "it belongs to the storage format; leave it out of the state",
}


class MalformedDataError(ValueError):
    """The bytes are not what the codec writes: cut short, too long, or damaged."""


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A value that cannot be stored; the steps that lead to it are gathered on the way out, innermost first."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name(type(value))
        self.reason = reason
        self.steps: list[str] = []


class _NotPlain(Exception):  # noqa: N818 - never leaves this module
    """The data hold more than msgpack's own types."""


_Flavour: TypeAlias = Literal["enum", "namedtuple", "dataclass", "pydantic"]


@final
class _Entry:
    """A registered type, and what reading and writing need to know of it."""

    __slots__ = ("cls", "fields", "flavour", "name", "optional", "slots")

    def __init__(self, name: str, cls: type, flavour: _Flavour) -> None:
        self.name, self.cls, self.flavour = name, cls, flavour
        self.fields: tuple[str, ...] = ()
        self.optional: frozenset[str] = frozenset()
        if flavour == "namedtuple":
            self.fields = cls._fields  # type: ignore[attr-defined]
        elif flavour == "dataclass":
            import dataclasses

            fields = dataclasses.fields(cls)
            self.fields = tuple(field.name for field in fields)
            self.optional = frozenset(field.name for field in fields if not field.init)
        elif flavour == "pydantic":
            self.fields = tuple(cls.model_fields)  # type: ignore[attr-defined]
        self.slots = tuple(_slots_beside(cls, self.fields)) if flavour == "dataclass" else ()


@final
class Codec:
    """Packs values into msgpack bytes and back; exact, type included, or a `CheckpointSerializationError`.

    What msgpack has itself (None, bool, int of 64 bits, float, str, bytes, list, dict with keys of those types) is
    plain msgpack. The rest is an ext type, or an array whose first element is a mark: ext 0 with one byte.

    | ext | type | payload (integers are big-endian) |
    |---|---|---|
    | -1 | datetime, UTC | msgpack's own timestamp; read, never written |
    | 0 | mark | one byte; stands first in an array, see below |
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

    A type name is a key of the registry and nothing else. Objects are restored without their constructors: the fields
    are set on a new object. A field that the stored data lack gets its default; one that the class lacks is an error.

    Codecs may be shared among threads; registering is atomic.
    """  # noqa: E501 - tables

    __slots__ = ("_by_name", "_by_type", "_lock")

    def __init__(self, types: Iterable[type] = ()) -> None:
        """Make a codec that knows these application types, and those that their fields name."""
        self._by_name: dict[str, _Entry] = {}
        self._by_type: dict[type, _Entry] = {}
        self._lock = threading.RLock()
        self.register(*types)

    @property
    def types(self) -> Mapping[str, type]:
        """The registered types by the names that stored data may use; a snapshot."""
        return MappingProxyType({name: entry.cls for name, entry in self._by_name.copy().items()})

    def register(self, *types: type, names: Mapping[type, str] | None = None) -> None:
        """Make application types storable, and those that their field annotations name. Twice is harmless.

        Args:
            types: Enums, dataclasses, NamedTuples, pydantic models.
            names: the names to store them under; `module.qualname` otherwise.

        Raises:
            TypeError: a type is none of these; the types before it are registered.
            CheckpointerConfigurationError: another class has the name; the types before it are registered.
        """
        for cls in types:
            self.register_as((names or {}).get(cls) or _shown(cls), cls)

    def register_as(self, name: str, cls: type) -> None:
        """Make a type readable under a name, and storable under the first name that it was given.

        A class that was renamed registers its old name to read old data; one that gets a name of its own first may
        later be renamed freely.

        Raises:
            TypeError: the type is no Enum, dataclass, NamedTuple or pydantic model.
            CheckpointerConfigurationError: another class has the name, or that of a type that a field names. What was
                registered before that stays.
        """
        flavour = _flavour(cls)
        if flavour is None:
            raise TypeError(
                f"{_shown(cls)} cannot be registered: only Enums, dataclasses, NamedTuples and pydantic models can, "
                f"and not those that extend a builtin such as dict"
            )
        with self._lock:
            known = self._by_name.get(name)
            if known is not None:
                if known.cls is not cls:
                    raise CheckpointerConfigurationError(
                        f"two classes are called {name!r}, {known.cls!r} and {cls!r}; give one another name"
                    )
                return
            first = cls not in self._by_type
            entry = self._by_name[name] = _Entry(name, cls, flavour)
            if not first:
                return
            self._by_type[cls] = entry
            for nested in _annotated_types(cls):
                if nested not in self._by_type and _flavour(nested) is not None:
                    self.register_as(type_name(nested), nested)

    # --- packing ------------------------------------------------------------------------------------------------------

    def pack(self, value: object, path: str = "") -> bytes:
        """Pack a value. Plain values cost one call of msgpack; the others a walk in Python.

        Args:
            value: the value; it should be frozen, for only then is it known to be plain.
            path: where it stands, for errors.

        Raises:
            CheckpointSerializationError: something in it cannot be stored; `path` says where it stands.
        """
        cls = type(value)
        try:
            if cls in LEAVES or (cls in _KEYED and value.kind == PLAIN):  # type: ignore[attr-defined]
                return _packed(value)
        except _WALK:
            pass
        return self._pack_tree(value, path)

    def pack_items(self, items: Sequence[object], path: str = "", start: int = 0) -> bytes:
        """Pack the items of a list without its header, for appending.

        `array_header(n) + pack_items(items)` is exactly `pack` of the list of those n items.

        Raises:
            CheckpointSerializationError: as `pack`; the path of an item is `path[start + index]`.
        """
        header = len(array_header(len(items)))
        batch = items if type(items) is FrozenList else FrozenList(items)
        try:
            if batch.kind == PLAIN:
                return _packed(batch)[header:]
        except _WALK:
            pass
        return b"".join(self._pack_tree(item, f"{path}[{start + index}]") for index, item in enumerate(batch))

    def _pack_tree(self, value: object, path: str) -> bytes:
        try:
            try:
                return _packed(_Writer(self._by_type, careful=False).tree(value, MAX_DEPTH))
            except (OverflowError, UnicodeEncodeError, TypeError):
                # TypeError: a datetime among plain values, which msgpack's own timestamp was read as.
                return _packed(_Writer(self._by_type, careful=True).tree(value, MAX_DEPTH))
        except _Refused as refused:
            where = path + "".join(reversed(refused.steps))
            # A value that is too deep would otherwise have a path of hundreds of steps.
            where = where if len(where) <= 200 else where[:197] + "..."  # noqa: PLR2004 - fits a few lines
            raise CheckpointSerializationError(_without_dot(where), refused.type_name, refused.reason) from None
        except (RecursionError, ValueError) as error:
            reason = "it is nested too deeply" if "recursion" in str(error) else str(error)
            raise CheckpointSerializationError(_without_dot(path), type_name(type(value)), reason) from error

    # --- unpacking ----------------------------------------------------------------------------------------------------

    def unpack(self, data: bytes, path: str = "") -> Any:
        """Unpack a value, frozen. Plain data cost one call of msgpack.

        Args:
            data: exactly one packed value.
            path: where it stands, for errors.

        Raises:
            CheckpointSerializationError: it holds a type that is not registered, or whose fields have changed; `raw`
                holds the name and the decoded fields.
            MalformedDataError: the bytes are not what `pack` writes.
        """
        try:
            try:
                value = unpackb(data, ext_hook=_not_plain, **_FROZEN_HOOKS)
            except _NotPlain:
                return self._unpack_rich(data)
            if type(value) in _KEYED:
                value.kind = PLAIN
            return value
        except CheckpointSerializationError as error:
            raise CheckpointSerializationError(path, error.type_name, error.reason, error.raw) from error.__cause__
        except RecursionError as error:
            raise CheckpointSerializationError(path, "data", "it is nested too deeply to be read here") from error
        except MemoryError:
            raise
        except Exception as error:
            # msgpack raises half a dozen kinds of errors, and a registered class may raise any.
            raise MalformedDataError(f"not a packed value: {str(error) or type(error).__name__}") from error

    def _unpack_rich(self, data: bytes) -> Any:
        reader = _Reader(self._by_name)
        value = unpackb(
            data,
            ext_hook=reader.ext,
            list_hook=reader.array,
            object_hook=_frozen_dict,
            strict_map_key=False,
            timestamp=3,
        )
        if reader.open_marks:
            raise ValueError("a mark that does not stand first in an array")
        return value


_WALK: Final = (OverflowError, ValueError, TypeError, RecursionError)
"""What msgpack says to big integers, lone surrogates and great depth; a walk in Python then finds the place."""


def _packed(tree: object) -> bytes:
    # One level more than the value has: msgpack packs one level more than it unpacks.
    packed: bytes = packb([tree])
    return packed[1:]


def array_header(n: int) -> bytes:
    """The msgpack header of an array of n items.

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


def type_name(cls: type) -> str:
    """The name a type is registered under: `module.qualname`, without the module for builtins."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _shown(cls: object) -> str:
    return type_name(cls) if isinstance(cls, type) else repr(cls)


_KEYED: Final = frozenset({FrozenList, FrozenDict})
_FROZEN_HOOKS: Final[dict[str, Any]] = {
    "list_hook": FrozenList,
    "object_hook": FrozenDict,
    "strict_map_key": False,
    "timestamp": 3,
}


def _not_plain(_code: int, _data: bytes) -> NoReturn:
    raise _NotPlain


def _without_dot(path: str) -> str:
    return path.removeprefix(".")


# --- the registry -----------------------------------------------------------------------------------------------------


def _flavour(cls: object) -> _Flavour | None:
    """What kind of registrable type a class is; None if it cannot be restored field by field."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, Enum):
        return "enum"
    if issubclass(cls, tuple):
        return "namedtuple" if isinstance(getattr(cls, "_fields", None), tuple) else None
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return "pydantic"
    builtin = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex, BaseException, type)
    return "dataclass" if hasattr(cls, "__dataclass_fields__") and not issubclass(cls, builtin) else None


def _annotated_types(cls: type) -> set[type]:
    """The classes that a class's field annotations name, at any depth of their arguments."""
    import typing

    try:
        todo = list(typing.get_type_hints(cls).values())
    except Exception:  # noqa: BLE001 - an annotation may be any expression; those that fail are registered by hand
        todo = [hint for hint in getattr(cls, "__annotations__", {}).values() if not isinstance(hint, str)]
    found: set[type] = set()
    while todo:
        hint = todo.pop()
        if isinstance(hint, type):
            found.add(hint)
        todo.extend(typing.get_args(hint))
        origin = typing.get_origin(hint)
        if isinstance(origin, type):
            found.add(origin)
    return found


def _slots_beside(cls: type, fields: tuple[str, ...]) -> Iterable[str]:
    """The attributes in slots that are not fields; names as getattr wants them."""
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if name not in fields and name not in {"__dict__", "__weakref__"}:
                yield name


# --- writing ----------------------------------------------------------------------------------------------------------


@final
class _Writer:
    """Turns a value into a tree of what msgpack has and ext types; plain parts are handed through as they are."""

    __slots__ = ("_by_type", "_careful", "_records")

    def __init__(self, by_type: dict[type, _Entry], *, careful: bool) -> None:
        # Careful: looks at each int and str, for msgpack met one that it does not have.
        self._by_type, self._careful = by_type, careful
        # How many records are open. What is inside one is walked even if plain: the reader thaws it by recursion, so
        # its depth must be bounded here.
        self._records = 0

    def tree(self, value: Any, room: int) -> Any:  # noqa: PLR0911 - a case per type
        """The tree; `room` is how many levels there may still be."""
        cls = type(value)
        if cls in LEAVES:
            return _leaf(value) if self._careful else value
        if cls in _KEYED and value.kind == PLAIN and not self._careful and not self._records:
            return value
        if room <= 0:
            raise _Refused(value, f"it is nested more than {MAX_DEPTH} levels deep")
        if cls is FrozenList or cls is list:
            return self._items(value, room - 1)
        if cls is FrozenDict or cls is dict:
            return self._mapping(value, room - 1)
        if cls is tuple:
            return [_MARKS[_TUPLE], *self._items(value, room - 1)]
        entry = self._by_type.get(cls)
        if entry is not None:
            return self._record(entry, value, room - 2)
        if cls in _SETS:
            return self._members(value, room - 1)
        encode = _encoder(cls)
        if encode is None:
            raise _Refused(value, _advice(cls))
        return encode(value)

    def _items(self, values: Iterable[Any], room: int) -> list[Any]:
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.tree(value, room))  # noqa: PERF401 - its length is the index of the refused item
        except _Refused as refused:
            refused.steps.append(f"[{len(items)}]")
            raise
        return items

    def _mapping(self, mapping: dict[Any, Any], room: int) -> Any:
        if not LEAVES.issuperset(map(type, mapping)) or (self._careful and not all(map(_is_native, mapping))):
            return self._pairs(mapping, room)
        return self._values(mapping, room, _key_step)

    def _values(self, mapping: Mapping[Any, Any], room: int, step: Callable[[Any], str]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, value in mapping.items():
                values[key] = self.tree(value, room)
        except _Refused as refused:
            refused.steps.append(step(key))
            raise
        return values

    def _pairs(self, mapping: dict[Any, Any], room: int) -> list[Any]:
        pairs: list[Any] = [_MARKS[_MAP]]
        key: Any = None
        try:
            for key, value in mapping.items():
                pairs += self.tree(key, room), self.tree(value, room)
        except _Refused as refused:
            refused.steps.append(_key_step(key))
            raise
        return pairs

    def _members(self, members: Iterable[Any], room: int) -> list[Any]:
        trees = [self.tree(member, room) for member in members]
        # Equal sets give equal bytes, whatever order they happen to iterate in.
        if len(trees) > 1:
            trees.sort(key=packb)
        return [_MARKS[_FROZENSET if type(members) is frozenset else _SET], *trees]

    def _record(self, entry: _Entry, value: Any, room: int) -> list[Any]:
        if entry.flavour == "enum":
            # A combination of flags has no member of its own.
            return [_MARKS[_ENUM], entry.name, self.tree(value.value if isinstance(value, Flag) else value.name, room)]
        if entry.flavour == "namedtuple":
            if getattr(value, "__dict__", None):
                raise _Refused(value, "it has attributes beside its fields, which would be lost")
            fields = dict(zip(entry.fields, tuple.__iter__(value), strict=True))
            return [_MARKS[_NAMEDTUPLE], entry.name, self._values(fields, room, _field_step)]
        self._records += 1
        if entry.flavour == "dataclass":
            tree = [_MARKS[_DATACLASS], entry.name, self._values(_fields_of(entry, value), room, _field_step)]
        else:
            extra, private = value.__pydantic_extra__, value.__pydantic_private__
            tree = [
                _MARKS[_PYDANTIC],
                entry.name,
                self._values(_fields_of(entry, value), room, _field_step),
                sorted(value.__pydantic_fields_set__),
                None if extra is None else self._values(extra, room, _field_step),
                None if private is None else self._values(private, room, _field_step),
            ]
        self._records -= 1
        return tree


_SETS: Final = frozenset({set, frozenset, FrozenSet})


def _leaf(value: Any) -> Any:
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return ExtType(_STR, _text(value))
    return value


def _is_native(key: object) -> bool:
    return type(_leaf(key)) is not ExtType


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _key_step(key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    shown = repr(key)
    return f"[{shown}]" if len(shown) <= 60 else f"[{shown[:57]}...]"  # noqa: PLR2004 - enough to find it


def _field_step(name: str) -> str:
    return f".{name}"


def _fields_of(entry: _Entry, value: Any) -> dict[str, Any]:
    """The fields of a dataclass or model; refuses an object that holds more, or less, than its fields."""
    fields: dict[str, Any] = {}
    for name in entry.fields:
        try:
            fields[name] = getattr(value, name)
        except AttributeError:
            if name not in entry.optional:
                raise _Refused(value, f"its field {name!r} has no value") from None
    attributes = getattr(value, "__dict__", {})
    beside = [name for name in attributes if name not in fields and not _is_cache(type(value), name)]
    beside += [name for name in entry.slots if hasattr(value, name)]
    if beside:
        raise _Refused(value, f"its attribute {beside[0]!r} is no field, and would be lost; make it a field")
    return fields


def _is_cache(cls: type, name: str) -> bool:
    """Whether an attribute is a remembered cached_property, which the restored object works out again."""
    from functools import cached_property

    return any(isinstance(base.__dict__.get(name), cached_property) for base in cls.__mro__)


def _advice(cls: type) -> str:
    if cls in _ADVICE:
        return _ADVICE[cls]
    if _flavour(cls) is not None:
        return _HOW_TO_REGISTER.format(name=cls.__name__)
    for base in (dict, list, set, frozenset, tuple, str, bytes, int, float):
        if issubclass(cls, base):
            return f"a subclass of {base.__name__} would lose its type; store {base.__name__}(x)"
    if cls.__name__ in {"generator", "deque", "range", "map", "filter", "zip", "dict_keys", "dict_values"}:
        return "it cannot be stored; store list(x)"
    return "it cannot be stored; leave it out of the state, or store what it takes to make it again"


def _zone(value: Any) -> bytes:
    """The bytes of a tzinfo, which may be None."""
    from datetime import UTC, timedelta, timezone

    if value is None:
        return b""
    if value is UTC:
        return b"\0"
    if type(value) is timezone:
        offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
        head = struct.pack(">Bq", 2 if name else 1, offset // timedelta(microseconds=1))
        return head + (_text(name[0]) if name else b"")
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and type(value) is zoneinfo.ZoneInfo and _is_zone_key(value.key):
        return b"\3" + _text(value.key)
    raise _Refused(value, "a zone must be a datetime.timezone or a ZoneInfo with a key")


def _write_datetime(value: Any) -> ExtType:
    date = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold)
    return ExtType(_DATETIME, _DATETIME_FORM.pack(*date) + _zone(value.tzinfo))


def _write_time(value: Any) -> ExtType:
    time = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return ExtType(_TIME, _TIME_FORM.pack(*time) + _zone(value.tzinfo))


def _path_writer(flavour: int) -> Callable[[Any], ExtType]:
    return lambda value: ExtType(_PATH, bytes([flavour]) + _text(str(value)))


_DATETIME_FORM: Final = struct.Struct(">HBBBBBIB")
_DATE_FORM: Final = struct.Struct(">HBB")
_TIME_FORM: Final = struct.Struct(">BBBIB")
_TIMEDELTA_FORM: Final = struct.Struct(">iii")
_COMPLEX_FORM: Final = struct.Struct(">dd")

_FLAVOURS: Final = ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath")
_WRITERS: Final[dict[str, dict[str, Callable[[Any], ExtType]]]] = {
    "builtins": {"complex": lambda value: ExtType(_COMPLEX, _COMPLEX_FORM.pack(value.real, value.imag))},
    "datetime": {
        "datetime": _write_datetime,
        "date": lambda value: ExtType(_DATE, _DATE_FORM.pack(value.year, value.month, value.day)),
        "time": _write_time,
        "timedelta": lambda value: ExtType(
            _TIMEDELTA, _TIMEDELTA_FORM.pack(value.days, value.seconds, value.microseconds)
        ),
        "timezone": lambda value: ExtType(_ZONE, _zone(value)),
    },
    "zoneinfo": {"ZoneInfo": lambda value: ExtType(_ZONE, _zone(value))},
    "uuid": {"UUID": lambda value: ExtType(_UUID, value.bytes)},
    "decimal": {"Decimal": lambda value: ExtType(_DECIMAL, str(value).encode("ascii"))},
    "pathlib": {name: _path_writer(flavour) for flavour, name in enumerate(_FLAVOURS)},
}
"""Writers by module and class. A module that nobody has imported has no instances, so it is never imported here."""

_encoders: dict[type, Callable[[Any], ExtType]] = {}


def _encoder(cls: type) -> Callable[[Any], ExtType] | None:
    known = _encoders.get(cls)
    if known is not None:
        return known
    for module, writers in _WRITERS.items():
        writer = writers.get(cls.__name__)
        if writer is not None and getattr(sys.modules.get(module), cls.__name__, None) is cls:
            return _encoders.setdefault(cls, writer)
    return None


# --- reading ----------------------------------------------------------------------------------------------------------


@final
class _Mark:
    """What the mark at the head of an array reads as, until the array is complete."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_READ_MARKS: Final = tuple(_Mark(number) for number in range(len(_MARKS)))


@final
class _Reader:
    """The hooks of one call of unpackb, which reads inner arrays first."""

    __slots__ = ("_by_name", "open_marks")

    def __init__(self, by_name: dict[str, _Entry]) -> None:
        self._by_name = by_name
        # Marks that were read, less arrays that began with one: if any is left, a mark stood elsewhere.
        self.open_marks = 0

    def ext(self, code: int, data: bytes) -> Any:
        if code == _MARK and len(data) == 1 and data[0] < len(_READ_MARKS):
            self.open_marks += 1
            return _READ_MARKS[data[0]]
        read = _READERS.get(code)
        if read is None:
            reason = "an unknown ext type; it was written by a newer version, or by something else"
            raise CheckpointSerializationError("", f"ext {code}", reason, (code, data))
        return read(data)

    def array(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Mark:
            new = FrozenList(items)
            kind_of(new)  # works it out while those of its items are known
            return new
        self.open_marks -= 1
        number, *rest = items[0].number, *items[1:]
        if number == _TUPLE:
            return tuple(rest)
        if number == _SET:
            return FrozenSet(rest)
        if number == _FROZENSET:
            return frozenset(rest)
        if number == _MAP:
            return _frozen_dict(dict(zip(rest[::2], rest[1::2], strict=True)))
        return self._record(number, *rest)

    def _record(self, number: int, name: str, value: Any, *more: Any) -> Any:
        if type(name) is not str or len(more) != (3 if number == _PYDANTIC else 0):
            raise ValueError("a record without a name, or of the wrong length")
        entry = self._by_name.get(name)
        raw = (name, value, *more)
        if entry is None or entry.flavour != _FLAVOUR_OF[number]:
            reason = _HOW_TO_REGISTER.format(name="...") if entry is None else "it is another kind of type now"
            raise CheckpointSerializationError("", name, reason, raw)
        if number == _ENUM:
            return _read_enum(entry, value, raw)
        if type(value) is not FrozenDict:
            raise ValueError("a record without fields")
        fields = {field: value[field] if number == _NAMEDTUPLE else _thawed(value[field]) for field in value}
        _complete(entry, fields, raw)
        if number == _NAMEDTUPLE:
            return tuple.__new__(entry.cls, [fields[field] for field in entry.fields])
        new: Any = object.__new__(entry.cls)
        if number == _DATACLASS:
            for field, item in fields.items():
                object.__setattr__(new, field, item)
            return new
        fields_set, extra, private = more
        object.__setattr__(new, "__dict__", fields)
        object.__setattr__(new, "__pydantic_fields_set__", set(fields_set))
        object.__setattr__(new, "__pydantic_extra__", _thawed(extra))
        object.__setattr__(new, "__pydantic_private__", _thawed(private))
        return new


_FLAVOUR_OF: Final = {_ENUM: "enum", _NAMEDTUPLE: "namedtuple", _DATACLASS: "dataclass", _PYDANTIC: "pydantic"}


def _frozen_dict(mapping: dict[Any, Any]) -> FrozenDict:
    new = FrozenDict(mapping)
    kind_of(new)  # as for a list
    return new


def _thawed(value: Any) -> Any:
    """The same with mutable lists, dicts and sets, which is what an application object held."""
    cls = type(value)
    if cls is FrozenList:
        return [_thawed(item) for item in value]
    if cls is FrozenDict:
        return {key: _thawed(item) for key, item in value.items()}
    if cls is FrozenSet:
        return set(value)
    if isinstance(value, tuple):
        return tuple.__new__(cls, [_thawed(item) for item in value])
    return value


def _read_enum(entry: _Entry, value: Any, raw: object) -> Any:
    try:
        if type(value) is int and issubclass(entry.cls, Flag):
            return entry.cls(value)
        return entry.cls.__members__[value]  # type: ignore[attr-defined]
    except (KeyError, ValueError) as error:
        raise CheckpointSerializationError("", entry.name, f"it has no member {value!r} now", raw) from error


def _complete(entry: _Entry, fields: dict[str, Any], raw: object) -> None:
    """Give fields that the data lack their defaults, and refuse fields that the class lacks."""
    unknown = [name for name in fields if name not in entry.fields]
    if unknown:
        raise CheckpointSerializationError("", entry.name, f"it has no field {unknown[0]!r} now", raw)
    for name in entry.fields:
        if name not in fields:
            try:
                fields[name] = _default(entry, name)
            except LookupError as error:
                if name in entry.optional:
                    continue
                reason = f"the stored data lack its field {name!r}, which has no default"
                raise CheckpointSerializationError("", entry.name, reason, raw) from error


def _default(entry: _Entry, name: str) -> Any:
    """A field's default; LookupError if it has none."""
    cls: Any = entry.cls
    if entry.flavour == "namedtuple":
        return cls._field_defaults[name]
    if entry.flavour == "pydantic":
        field = cls.model_fields[name]
        if field.is_required():
            raise LookupError(name)
        return field.get_default(call_default_factory=True)
    from dataclasses import MISSING

    field = cls.__dataclass_fields__[name]
    if field.default_factory is not MISSING:
        return field.default_factory()
    if field.default is not MISSING:
        return field.default
    raise LookupError(name)


def _read_zone(data: bytes) -> Any:
    from datetime import UTC, timedelta, timezone

    if not data:
        return None
    if data == b"\0":
        return UTC
    if data[0] == 3:  # noqa: PLR2004 - the table in Codec
        return _zone_info(str(data[1:], "ascii"), data)
    offset = timedelta(microseconds=struct.unpack(">q", data[1:9])[0])
    return timezone(offset, _str(data[9:])) if data[0] == 2 else timezone(offset)  # noqa: PLR2004 - as above


def _zone_info(key: str, data: bytes) -> Any:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    # ZoneInfo looks for a file of that name; nothing but a name of a zone gets there.
    if not _is_zone_key(key):
        raise ValueError(f"not a time zone: {key!r}")
    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError as error:
        reason = f"this machine does not know the time zone {key!r}; install tzdata"
        raise CheckpointSerializationError("", "zoneinfo.ZoneInfo", reason, (_ZONE, data)) from error


def _is_zone_key(key: str | None) -> bool:
    return key is not None and all(
        part.replace("-", "_").replace("+", "_").isidentifier() and part.isascii() for part in key.split("/")
    )


def _required_zone(data: bytes) -> Any:
    if not data:
        raise ValueError("a zone without data")
    return _read_zone(data)


def _read_datetime(data: bytes) -> Any:
    from datetime import datetime

    year, month, day, hour, minute, second, micros, fold = _DATETIME_FORM.unpack_from(data)
    zone = _read_zone(data[_DATETIME_FORM.size :])
    return datetime(year, month, day, hour, minute, second, micros, zone, fold=fold)


def _read_time(data: bytes) -> Any:
    from datetime import time

    hour, minute, second, micros, fold = _TIME_FORM.unpack_from(data)
    return time(hour, minute, second, micros, _read_zone(data[_TIME_FORM.size :]), fold=fold)


def _read_date(data: bytes) -> Any:
    from datetime import date

    return date(*_DATE_FORM.unpack(data))


def _read_timedelta(data: bytes) -> Any:
    from datetime import timedelta

    return timedelta(*_TIMEDELTA_FORM.unpack(data))


def _read_uuid(data: bytes) -> Any:
    from uuid import UUID

    return UUID(bytes=data)


def _read_decimal(data: bytes) -> Any:
    from decimal import Decimal

    return Decimal(str(data, "ascii"))


def _read_path(data: bytes) -> Any:
    import pathlib

    name = _FLAVOURS[data[0]]
    try:
        return getattr(pathlib, name)(_str(data[1:]))
    except NotImplementedError as error:
        reason = "this system has no such paths; store a pure path"
        raise CheckpointSerializationError("", f"pathlib.{name}", reason, _str(data[1:])) from error


def _str(data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    _INT: lambda data: int.from_bytes(data, "big", signed=True),
    _STR: _str,
    _COMPLEX: lambda data: complex(*_COMPLEX_FORM.unpack(data)),
    _DATETIME: _read_datetime,
    _DATE: _read_date,
    _TIME: _read_time,
    _TIMEDELTA: _read_timedelta,
    _ZONE: _required_zone,
    _UUID: _read_uuid,
    _DECIMAL: _read_decimal,
    _PATH: _read_path,
}
