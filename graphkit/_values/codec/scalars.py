"""Scalars that msgpack does not have: how each is written, and next to that how it is read."""

from __future__ import annotations

import pathlib
import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from operator import attrgetter
from typing import Any, Final

from msgpack import ExtType

from graphkit._values.codec.type_registry import UnstorableError
from graphkit.errors import CheckpointSerializationError

# The ext types in stored data, which never change; `Codec` documents them.
MARK, INT, STR, COMPLEX, DATETIME, DATE, TIME, TIMEDELTA, ZONE, UUID, DECIMAL, PATH = range(12)


# --- numbers and text -------------------------------------------------------------------------------------------------


_LEAST_INT: Final = -(1 << 63)
_GREATEST_INT: Final = (1 << 64) - 1


def encode_native(value: Any) -> Any:
    """Return a scalar; an ext type if it is an int or a str that msgpack cannot hold."""
    if type(value) is int and not _LEAST_INT <= value <= _GREATEST_INT:
        size = value.bit_length() // 8 + 1
        data = value.to_bytes(size, "big", signed=True)
        return ExtType(INT, data)
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return ExtType(STR, _encode_text(value))
    return value


def is_native(key: object) -> bool:
    """Return whether msgpack can hold a scalar of one of its own types."""
    return type(encode_native(key)) is not ExtType


def _encode_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _decode_text(data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


def _read_decimal(data: bytes) -> Any:
    from decimal import Decimal

    return Decimal(str(data, "ascii"))


# --- zones ------------------------------------------------------------------------------------------------------------


def _write_zone(value: Any) -> ExtType:
    return ExtType(ZONE, _encode_zone(value))


def _read_zone(data: bytes) -> Any:
    if not data:
        raise ValueError("a zone without data")
    return _decode_zone(data)


def _encode_zone(value: Any) -> bytes:
    """Return the bytes of a tzinfo or of None."""
    if value is None:
        return b""
    if value is UTC:
        return b"\0"
    if type(value) is timezone:
        offset, *names = value.__getinitargs__()  # type: ignore[attr-defined]
        microseconds = offset // timedelta(microseconds=1)
        if names:
            return struct.pack(">Bq", 2, microseconds) + _encode_text(names[0])
        return struct.pack(">Bq", 1, microseconds)
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and type(value) is zoneinfo.ZoneInfo and _is_zone_key(value.key):
        return b"\3" + _encode_text(value.key)
    raise UnstorableError(type(value), "a zone must be a datetime.timezone or a ZoneInfo with a key")


def _decode_zone(data: bytes) -> Any:
    """Return the tzinfo or None from the bytes of `_encode_zone`."""
    if not data:
        return None
    if data == b"\0":
        return UTC
    if data[0] == 3:  # noqa: PLR2004 - the table in Codec
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        key = str(data[1:], "ascii")
        # ZoneInfo opens a file of that name, so only the name of a zone may be passed to it.
        if not _is_zone_key(key):
            raise ValueError(f"not a time zone: {key!r}")
        try:
            return ZoneInfo(key)
        except ZoneInfoNotFoundError as error:
            reason = f"this machine does not know the time zone {key!r}; install tzdata"
            raise CheckpointSerializationError("", "zoneinfo.ZoneInfo", reason, (ZONE, data)) from error
    (microseconds,) = struct.unpack(">q", data[1:9])
    offset = timedelta(microseconds=microseconds)
    if data[0] == 2:  # noqa: PLR2004 - as above
        return timezone(offset, _decode_text(data[9:]))
    return timezone(offset)


def _is_zone_key(key: str | None) -> bool:
    if key is None or not key.isascii():
        return False
    parts = key.replace("-", "_").replace("+", "_").split("/")
    return all(map(str.isidentifier, parts))


# --- UUIDs and paths --------------------------------------------------------------------------------------------------


def _read_uuid(data: bytes) -> Any:
    from uuid import UUID

    return UUID(bytes=data)


_PATH_FLAVOURS: Final = ("PurePosixPath", "PureWindowsPath", "PosixPath", "WindowsPath")


def _path_writer(flavour: int) -> Callable[[Any], ExtType]:
    return lambda value: ExtType(PATH, bytes([flavour]) + _encode_text(str(value)))


def _read_path(data: bytes) -> Any:
    name = _PATH_FLAVOURS[data[0]]
    try:
        return getattr(pathlib, name)(_decode_text(data[1:]))
    except NotImplementedError as error:
        reason = "this system has no such paths; store a pure path"
        raise CheckpointSerializationError("", f"pathlib.{name}", reason, _decode_text(data[1:])) from error


# --- all of them ------------------------------------------------------------------------------------------------------


READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    INT: lambda data: int.from_bytes(data, "big", signed=True),
    STR: _decode_text,
    ZONE: _read_zone,
    UUID: _read_uuid,
    DECIMAL: _read_decimal,
    PATH: _read_path,
}
"""The functions that read ext types, by code."""

_encoders: Final[dict[type, Callable[[Any], ExtType]]] = {
    timezone: _write_zone,
    **{getattr(pathlib, name): _path_writer(flavour) for flavour, name in enumerate(_PATH_FLAVOURS)},
}
"""The functions that write the objects of a class; those of `_LATE` once they are known."""
_LATE: Final[dict[str, tuple[str, Callable[[Any], ExtType]]]] = {
    "Decimal": ("decimal", lambda value: ExtType(DECIMAL, str(value).encode("ascii"))),
    "UUID": ("uuid", lambda value: ExtType(UUID, value.bytes)),
    "ZoneInfo": ("zoneinfo", _write_zone),
}
"""The same by the names of classes, with their modules. Never imports these: one that is not imported has no
objects."""


# A test may have put subclasses of its own in the place of these two, as freezegun does, while this module is imported.
_DATE: Final = next(cls for cls in date.__mro__ if cls.__module__ == "datetime")
_DATETIME: Final = next(cls for cls in datetime.__mro__ if cls.__module__ == "datetime")


def _add_fixed(code: int, cls: type[Any], form: str, *attributes: str) -> None:
    """Store objects of a class as some of their attributes, of which its constructor makes them again."""
    layout = struct.Struct(form)
    get_attributes = attrgetter(*attributes)
    _encoders[cls] = lambda value: ExtType(code, layout.pack(*get_attributes(value)))
    READERS[code] = lambda data: cls(*layout.unpack(data))


_add_fixed(COMPLEX, complex, ">dd", "real", "imag")
_add_fixed(DATE, _DATE, ">HBB", "year", "month", "day")
_add_fixed(TIMEDELTA, timedelta, ">iii", "days", "seconds", "microseconds")


def _add_zoned(code: int, cls: type[Any], form: str, *attributes: str) -> None:
    """As `_add_fixed`, for a class with a fold and a zone, which come last."""
    layout = struct.Struct(form)
    get_attributes = attrgetter(*attributes, "fold")

    def read(data: bytes) -> Any:
        *values, fold = layout.unpack_from(data)
        return cls(*values, _decode_zone(data[layout.size :]), fold=fold)

    _encoders[cls] = lambda value: ExtType(code, layout.pack(*get_attributes(value)) + _encode_zone(value.tzinfo))
    READERS[code] = read


_add_zoned(DATETIME, _DATETIME, ">HBBBBBIB", "year", "month", "day", "hour", "minute", "second", "microsecond")
_add_zoned(TIME, time, ">BBBIB", "hour", "minute", "second", "microsecond")


def find_encoder(cls: type) -> Callable[[Any], ExtType] | None:
    """Return the function that writes objects of a class; None if it is not one of these."""
    if cls not in _encoders and cls.__name__ in _LATE:
        module, write = _LATE[cls.__name__]
        # Another class may have the same name.
        if getattr(sys.modules.get(module), cls.__name__, None) is cls:
            _encoders[cls] = write
    return _encoders.get(cls)
