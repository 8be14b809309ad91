"""Codec: values to bytes and back; the fast way for plain values, and the choice of the other."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NoReturn, final

from msgpack import packb, unpackb

from graphkit._values.codec.reader import Reader, frozen_dict
from graphkit._values.codec.type_registry import TypeEntry, annotated_types, flavour_of, shown, type_name
from graphkit._values.codec.unstorable import Refused
from graphkit._values.codec.writer import KEYED, MAX_DEPTH, Writer
from graphkit._values.frozen import LEAVES, PLAIN, FrozenDict, FrozenList
from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError


class MalformedDataError(ValueError):
    """The bytes are not what the codec writes: cut short, too long, or damaged."""


class _NotPlain(Exception):  # noqa: N818 - never leaves this module
    """The data hold more than msgpack's own types."""


_FROZEN_HOOKS: Final[dict[str, Any]] = {
    "list_hook": FrozenList,
    "object_hook": FrozenDict,
    "strict_map_key": False,
    "timestamp": 3,
}
_WALK: Final = (OverflowError, ValueError, TypeError, RecursionError)
"""What msgpack says to big integers, lone surrogates and great depth; a walk in Python then finds the place."""


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
        self._by_name: dict[str, TypeEntry] = {}
        self._by_type: dict[type, TypeEntry] = {}
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
            self.register_as((names or {}).get(cls) or shown(cls), cls)

    def register_as(self, name: str, cls: type) -> None:
        """Make a type readable under a name, and storable under the first name that it was given.

        A class that was renamed registers its old name to read old data; one that gets a name of its own first may
        later be renamed freely.

        Raises:
            TypeError: the type is no Enum, dataclass, NamedTuple or pydantic model.
            CheckpointerConfigurationError: another class has the name, or that of a type that a field names. What was
                registered before that stays.
        """
        flavour = flavour_of(cls)
        if flavour is None:
            raise TypeError(
                f"{shown(cls)} cannot be registered: only Enums, dataclasses, NamedTuples and pydantic models can, "
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
            entry = self._by_name[name] = TypeEntry(name, cls, flavour)
            if not first:
                return
            self._by_type[cls] = entry
            for nested in annotated_types(cls):
                if nested not in self._by_type and flavour_of(nested) is not None:
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
            if cls in LEAVES or (cls in KEYED and value.kind == PLAIN):  # type: ignore[attr-defined]
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
                return _packed(Writer(self._by_type, careful=False).tree(value, MAX_DEPTH))
            except (OverflowError, UnicodeEncodeError, TypeError):
                # TypeError: a datetime among plain values, which msgpack's own timestamp was read as.
                return _packed(Writer(self._by_type, careful=True).tree(value, MAX_DEPTH))
        except Refused as refused:
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
            if type(value) in KEYED:
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
        reader = Reader(self._by_name)
        value = unpackb(
            data,
            ext_hook=reader.ext,
            list_hook=reader.array,
            object_hook=frozen_dict,
            strict_map_key=False,
            timestamp=3,
        )
        if reader.open_marks:
            raise ValueError("a mark that does not stand first in an array")
        return value


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


def _packed(tree: object) -> bytes:
    # One level more than the value has: msgpack packs one level more than it unpacks.
    packed: bytes = packb([tree])
    return packed[1:]


def _not_plain(_code: int, _data: bytes) -> NoReturn:
    raise _NotPlain


def _without_dot(path: str) -> str:
    return path.removeprefix(".")
