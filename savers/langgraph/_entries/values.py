"""The values of items, as bytes and back."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import ormsgpack

from graphkit.errors import CheckpointSerializationError

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""Otherwise the packer would store other types as text, and a reader would get text."""
_PLAIN_TYPES: Final = (dict, list, str, int, float, bool, bytes, type(None))
_HINT: Final = "an item holds dicts with str keys, lists, str, int, float, bool, None and bytes; convert it first"


def pack_value(value: Mapping[str, Any]) -> bytes:
    """Return the bytes of an item's value. Tuples become lists, and other mappings dicts.

    Raises:
        CheckpointSerializationError: the value has something else in it. The error names its path.
    """
    if not isinstance(value, Mapping):
        raise CheckpointSerializationError("", type(value).__name__, "the value of an item must be a mapping")
    try:
        return ormsgpack.packb(value, _convert, _OPTIONS)
    except TypeError as error:
        raise _find_error(value, "", str(error)) from error


def _convert(value: Any) -> Any:
    """Convert a value that is not of a plain type to one that is.

    Raises:
        TypeError: the value cannot be converted without loss.
    """
    if isinstance(value, Enum):
        raise TypeError(_HINT)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list):
        return list(value)
    # The type's own methods return an exact str, int or float, whatever the subclass overrides.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(_HINT)


def _find_error(value: Any, path: str, reason: str) -> CheckpointSerializationError:
    """Return the error for the innermost value that cannot be packed."""
    converted = value
    if type(value) not in _PLAIN_TYPES:
        try:
            converted = _convert(value)
        except TypeError:
            return CheckpointSerializationError(path, type(value).__name__, _HINT)
    if isinstance(converted, dict):
        parts = [(f"{path}.{key}" if path else f"{key}", key, part) for key, part in converted.items()]
    elif isinstance(converted, list):
        parts = [(f"{path}[{number}]", "", part) for number, part in enumerate(converted)]
    else:
        return CheckpointSerializationError(path, type(value).__name__, reason)
    for part_path, key, part in parts:
        for wrong in ({key: None}, [part]):
            try:
                ormsgpack.packb(wrong, _convert, _OPTIONS)
            except TypeError as error:
                if wrong == [part]:
                    return _find_error(part, part_path, str(error))
                return CheckpointSerializationError(part_path, f"key of type {type(key).__name__}", str(error))
    return CheckpointSerializationError(path, type(value).__name__, reason)


def unpack_value(data: bytes) -> dict[str, Any]:
    """Return the value of an item from its bytes."""
    value: dict[str, Any] = ormsgpack.unpackb(data)
    return value
