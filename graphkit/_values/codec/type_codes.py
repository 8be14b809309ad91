"""The numbers in stored data; `Codec` documents them. They never change."""

from __future__ import annotations

from typing import Final

from msgpack import ExtType

# Ext types, then marks.
MARK, INT, STR, COMPLEX, DATETIME, DATE, TIME, TIMEDELTA, ZONE, UUID, DECIMAL, PATH = range(12)
MAP, TUPLE, SET, FROZENSET, ENUM, NAMEDTUPLE, DATACLASS, PYDANTIC = range(8)
MARKS: Final = tuple(ExtType(MARK, bytes([mark])) for mark in range(8))
"""The marks as the writer packs them."""
