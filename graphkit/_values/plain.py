"""Values as JSON for people and scripts, without their types. `export` keeps every type."""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
from collections.abc import Mapping
from datetime import date, time
from typing import Any, Final

_MAX_INT_BITS: Final = 10_000
"""Python refuses to convert longer integers to decimal digits."""


def to_plain(value: Any) -> Any:
    """Convert a value to what JSON can represent: other types become lists, objects or text."""
    # Before the numbers and texts, which members of IntEnum and StrEnum are, too.
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        is_long = value.bit_length() > _MAX_INT_BITS
        return hex(value) if is_long else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has neither nan nor infinity
    if isinstance(value, str):
        encoded = value.encode("utf-8", "backslashreplace")  # a lone surrogate is not UTF-8
        return encoded.decode()
    return _container_to_plain(_fields_of(value))


def _fields_of(value: Any) -> Any:
    """Return the fields of a record as a mapping; other values as they are."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return value


def _container_to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        items = [to_plain(item) for item in value]
        return sorted(items, key=repr)  # items of several types have no order
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        encoded = base64.b64encode(value)
        return encoded.decode()
    return str(value)
