"""One packed value: its kind, its count, its pieces, and the header that its bytes omit."""

from __future__ import annotations

import struct
from itertools import accumulate
from operator import add, sub
from typing import Final, final
from zlib import crc32

OPAQUE: Final = 0
LIST: Final = 1
MAP: Final = 2
STR: Final = 3
BIN: Final = 4

BLOCK: Final = 8
"""Added to the kind in a keyframe's entry for a value that has a block of compressed bytes."""
BLOCK_BASE: Final = 1 << 60
"""Offset for the positions of compressed bytes, which have no positions of their own.

Expanded byte n of a block at position p has the position p + n - BLOCK_BASE. Therefore pieces of a
block are cut and named like any others. Pieces below zero are found in the block when it is read.
"""
INLINE_LENGTH: Final = 128
"""A keyframe repeats a value of at most this many bytes. Naming its pieces would take 15 bytes, and
each reader another look into the log: what a node of LangGraph has seen of one channel has 66 bytes."""
MAX_LENGTH: Final = (1 << 32) - 1
"""The most elements or bytes of a msgpack array, map, str or bin, and of an expanded block."""

MALFORMED: Final = (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error)
"""The errors that malformed ops and entries may raise."""


class Mismatch(Exception):  # noqa: N818 - the caller turns it into an error that names the file
    """The bytes found for a value are not the bytes that were stored."""


class Value:
    """One packed value: where its bytes are, and their checksum."""

    __slots__ = ("base", "block", "count", "crc", "depth", "kind", "length", "pieces", "shared")

    def __init__(self, kind: int, count: int, length: int, crc: int, pieces: list[int]) -> None:
        self.kind = kind
        self.count = count
        """Elements of a list or map; bytes of a str or bytes object."""
        self.length = length
        """The bytes without the header."""
        self.crc = crc
        """The checksum of these bytes."""
        self.pieces = pieces
        """start, length, start, length, ..."""
        self.block: tuple[int, int, int, int] | None = None
        """Where the compressed bytes are: position, length, length when expanded, method."""
        self.base: int | None = None
        """The position of the keyframe that names the first `shared` entries of `pieces`."""
        self.shared = 0
        self.depth = 0
        """How many further bases a reader follows from that keyframe to find all pieces."""

    def copy(self) -> Value:
        """Return a copy that can be changed without changing this value."""
        return self._share_rest(Value(self.kind, self.count, self.length, self.crc, self.pieces[:]))

    def _share_rest(self, new: Value) -> Value:
        """Give a copy what does not change in place."""
        new.block = self.block
        new.base = self.base
        new.shared = self.shared
        new.depth = self.depth
        return new

    def set_base(self, keyframe: int, depth: int) -> None:
        """Record that the keyframe at this position has named all pieces."""
        self.base = keyframe
        self.shared = 2 * self.count_pieces()
        self.depth = depth

    def count_pieces(self) -> int:
        """Return the number of pieces."""
        return len(self.pieces) // 2

    def add_piece(self, start: int, length: int) -> None:
        """Add a piece at the end."""
        pieces = self.pieces
        pieces.append(start)
        pieces.append(length)


@final
class ListedValue(Value):
    """A value with thousands of pieces, which most readers only read from the first to the last.

    A keyframe lists pieces as *steps*: the start of the first one, its length, the gap behind it,
    the length of the next one, and so on. That is what a reader needs that goes through the file
    once. Working out the start of each piece takes 0.15 ms for 3000 pieces.
    """

    __slots__ = ("_pieces", "end", "steps")

    def __init__(self, kind: int, count: int, length: int, crc: int, steps: list[int], end: int) -> None:
        """Make a value of steps, which are numbers; `end` is their sum."""
        super().__init__(kind, count, length, crc, [])
        self.steps: list[int] | None = steps
        """The steps, which the caller must not change; None once the pieces were worked out."""
        self.end = end
        """Where the last piece ends, while there are steps."""

    @property
    def pieces(self) -> list[int]:
        """start, length, start, length, ..."""
        steps = self.steps
        if steps is not None:
            self._pieces = decode_steps(steps)
            self.steps = None
        return self._pieces

    @pieces.setter
    def pieces(self, pieces: list[int]) -> None:
        self._pieces = pieces
        self.steps = None

    def count_pieces(self) -> int:
        """Return the number of pieces."""
        if self.steps is None:
            return super().count_pieces()
        return len(self.steps) // 2

    def add_piece(self, start: int, length: int) -> None:
        """Add a piece at the end."""
        steps = self.steps
        if steps is None:
            super().add_piece(start, length)
            return
        steps.append(start - self.end)
        steps.append(length)
        self.end = start + length

    def copy(self) -> Value:
        """Return a copy that can be changed without changing this value."""
        if self.steps is None:
            return super().copy()
        return self._share_rest(ListedValue(self.kind, self.count, self.length, self.crc, self.steps[:], self.end))


def decode_steps(steps: list[int]) -> list[int]:
    """Return the pieces that are given by steps; see `ListedValue`."""
    pieces = steps[:]
    # The sums are the start of the first piece, its end, the start of the second one, and so on.
    pieces[::2] = [*accumulate(steps)][::2]
    return pieces


def get_steps(value: Value) -> tuple[list[int], int]:
    """Return the steps of a value, which the caller must not change, and where its last piece ends."""
    if isinstance(value, ListedValue) and value.steps is not None:
        return value.steps, value.end
    return encode_steps(value.pieces)


def encode_steps(pieces: list[int]) -> tuple[list[int], int]:
    """Return pieces as steps, and where the last one ends; see `ListedValue`."""
    if not pieces:
        return [], 0
    steps = pieces[:]
    ends = [*map(add, pieces[::2], pieces[1::2])]
    steps[2::2] = map(sub, pieces[2::2], ends)
    return steps, ends[-1]


_FIXED_FIRST: Final = 0x80
_FIXED_LIST: Final = 0x90
_FIXED_STR: Final = 0xA0
_FIXED_LAST: Final = 0xBF


def parse_header(data: bytes, offset: int) -> tuple[int, int, int]:
    """Return the kind of the packed value at a position, its count, and its header's length."""
    first = data[offset]
    if _FIXED_FIRST <= first <= _FIXED_LAST:
        if first >= _FIXED_STR:
            return STR, first & 31, 1
        if first >= _FIXED_LIST:
            return LIST, first & 15, 1
        return MAP, first & 15, 1
    known = _HEADERS.get(first)
    if known is None:
        return OPAQUE, 0, 0
    kind, layout = known
    return kind, layout.unpack_from(data, offset)[1], layout.size


_HEADERS: Final = {
    first: (kind, struct.Struct(layout))
    for kind, first, layout in (
        (LIST, 0xDC, ">BH"), (LIST, 0xDD, ">BI"), (MAP, 0xDE, ">BH"), (MAP, 0xDF, ">BI"),
        (STR, 0xD9, ">BB"), (STR, 0xDA, ">BH"), (STR, 0xDB, ">BI"),
        (BIN, 0xC4, ">BB"), (BIN, 0xC5, ">BH"), (BIN, 0xC6, ">BI"),
    )
}  # fmt: skip
_FIXED: Final = {LIST: _FIXED_LIST, MAP: _FIXED_FIRST, STR: _FIXED_STR}
"""The first byte of msgpack's fixarray, fixmap and fixstr, to which the count is added."""
_FIXED_COUNTS: Final = {LIST: 16, MAP: 16, STR: 32}
"""The first count that these forms cannot hold."""
_ONE_BYTE_COUNT: Final = {LIST: 0xDC - 1, MAP: 0xDE - 1, STR: 0xD9, BIN: 0xC4}
"""The first byte of the form with a count of 8 bits; the next two have 16 and 32 bits.
Arrays and maps have no such form."""


def pack_header(kind: int, count: int) -> bytes:
    """Return the header that the bytes of a value omit.

    It has the shortest form, which is what the packer writes.
    """
    if kind == OPAQUE:
        return b""
    if kind in _FIXED and count < _FIXED_COUNTS[kind]:
        return bytes((_FIXED[kind] | count,))
    first = _ONE_BYTE_COUNT[kind]
    if count < 1 << 8 and kind >= STR:
        return bytes((first, count))
    if count < 1 << 16:
        return struct.pack(">BH", first + 1, count)
    return struct.pack(">BI", first + 2, count)


def has_canonical_header(value: Value, body: bytes) -> bool:
    """Return whether the header made of a value's kind and count parses to the same kind and count.

    An opaque value has no header.
    """
    if value.kind == OPAQUE:
        return True
    head = pack_header(value.kind, value.count)
    return parse_header(head + body, 0) == (value.kind, value.count, len(head))


def find_header(packed: bytes, *, opaque: bool) -> tuple[int, int, int]:
    """Return the kind, the count and the header's length of a packed value; an opaque or empty one has no header."""
    if opaque or not packed:
        return OPAQUE, 0, 0
    return parse_header(packed, 0)


def split_value(packed: bytes, *, opaque: bool) -> tuple[Value, memoryview]:
    """Return a packed value without pieces, and its bytes, which may be too many to be copied."""
    kind, count, skip = find_header(packed, opaque=opaque)
    body = memoryview(packed)[skip:]
    return Value(kind=kind, count=count, length=len(body), crc=crc32(body), pieces=[]), body


def check_size(size: int) -> None:
    """Check the expanded length of a block.

    Raises:
        ValueError: no value can be this long.
    """
    if size > MAX_LENGTH:
        raise ValueError(f"a value of {size} bytes is longer than any value can be")
