"""One packed value: its kind, its count, its pieces, the header that its bytes omit, its entry in a keyframe.

Pieces are a flat list: start, length, start, length, ... docs/format.md has the fields of an entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add, sub
from typing import Final, NamedTuple, final
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


_FEW: Final = 16
"""Elements of a list of pieces that are looked at one by one."""


class Replacement(NamedTuple):
    """What turns a value into another one, as SPLICE or DROP has it."""

    pieces: list[int]
    """The new bytes: in place of those that are gone (SPLICE), or at the end (DROP)."""
    prefix: int
    """How many old bytes stay in front."""
    removed: int
    """How many old bytes after these are gone."""


def cut(pieces: Sequence[int], first: int, last: int) -> list[int]:
    """Return the pieces of the bytes from `first` to `last` of a value."""
    if first <= 0:
        # Most windows that move keep only some bytes in front: of 100 pieces, three hold them. To
        # look at these takes 0.5 us instead of 3.
        rest = last
        for i in range(1, min(len(pieces), _FEW), 2):
            if rest <= pieces[i]:
                return [*pieces[:i], rest] if rest > 0 else []
            rest -= pieces[i]
    # Without a loop: a long value has thousands of pieces, and each change of it is cut here.
    ends = list(accumulate(pieces[1::2]))
    first = max(first, 0)
    last = min(last, ends[-1] if ends else 0)
    if first >= last:
        return []
    low = bisect_right(ends, first)
    high = bisect_left(ends, last)
    result = list(pieces[2 * low : 2 * high + 2])
    skipped = first - (ends[low] - pieces[2 * low + 1])
    result[0] += skipped
    result[1] -= skipped
    result[-1] -= ends[high] - last
    return result


def cut_rest(pieces: Sequence[int], first: int) -> list[int]:
    """Return the pieces of the bytes from `first` to the end of a value.

    Looks only at the pieces before these: most values that lose bytes lose the first few.
    """
    offset = 0
    for i in range(0, len(pieces), 2):
        length = pieces[i + 1]
        if offset + length > first:
            skip = max(first - offset, 0)
            return [pieces[i] + skip, length - skip, *pieces[i + 2 :]]
        offset += length
    return []


def is_in_block(pieces: Sequence[int]) -> bool:
    """Return whether some of the pieces are in a block of compressed bytes."""
    return min(pieces[::2], default=0) < 0


def compare_pieces(before: list[int], length: int, new: Value) -> Replacement:
    """Return what turns a value into a new one, by their pieces.

    Args:
        before: the pieces of the old value.
        length: how many bytes they are.
        new: the new value.
    """
    after = new.pieces
    if after[: len(before)] == before:
        return Replacement(after[len(before) :], prefix=length, removed=0)
    prefix = _common_length(before, after)
    suffix = _common_length(_reverse(before), _reverse(after))
    suffix = min(suffix, min(length, new.length) - prefix)
    return Replacement(
        cut(after, prefix, new.length - suffix),
        prefix=prefix,
        removed=length - prefix - suffix,
    )


def find_moved_window(before: list[int], length: int, new: Value) -> Replacement | None:
    """Recognize a window that has moved on, by the pieces of the value before and after.

    Args:
        before: the pieces of the old value.
        length: how many bytes they are.
        new: the new value.

    Returns:
        None if the new value is not the old one without some bytes and with others at its end.
    """
    prefix = _common_length(before, new.pieces)
    rest_before = cut(before, prefix, length)
    rest_after = cut(new.pieces, prefix, new.length)
    if not rest_before or not rest_after:
        return None
    if is_in_block(rest_before) or is_in_block(rest_after):
        # Positions of expanded bytes distinguish pieces of one block, but not those of several.
        return None
    dropped = _find_position(rest_before, rest_after[0])
    kept = length - prefix - dropped
    if not dropped or not kept:
        return None
    if cut(rest_after, 0, kept) != cut(rest_before, dropped, length - prefix):
        return None
    return Replacement(cut(rest_after, kept, new.length - prefix), prefix, removed=dropped)


def _find_position(pieces: Sequence[int], start: int) -> int:
    """Return how many bytes of some pieces precede a position; 0 if the position is not in them."""
    skipped = 0
    for i in range(0, len(pieces), 2):
        first = pieces[i]
        size = pieces[i + 1]
        if first <= start < first + size:
            return skipped + start - first
        skipped += size
    return 0


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many bytes the pieces of two values have in common at the beginning."""
    length = 0
    for i in range(0, min(len(one), len(other)), 2):
        if one[i] != other[i]:
            break
        length += min(one[i + 1], other[i + 1])
        if one[i + 1] != other[i + 1]:
            break
    return length


def _reverse(pieces: Sequence[int]) -> list[int]:
    """Return the pieces from last to first, each by its end instead of its start."""
    reverse: list[int] = []
    for i in range(len(pieces) - 2, -1, -2):
        reverse += (pieces[i] + pieces[i + 1], pieces[i + 1])
    return reverse


MIN_PIECE: Final = 16
"""The next keyframe repeats a value whose pieces are shorter than this on average."""
MAX_DEPTH: Final = 16
"""The most keyframes that a reader follows to find the pieces of a value; then a keyframe lists all
pieces again."""
_LONG: Final = 16
"""Steps from which on a value is a ListedValue."""

_KIND: Final = 0
"""A position in an entry: [kind, count, length, crc, base, ...]."""


def is_inlined(value: Value) -> bool:
    """Return whether a keyframe repeats a value because naming its pieces would not be shorter."""
    if value.length <= INLINE_LENGTH:
        return True
    return value.length < MIN_PIECE * value.count_pieces()


def has_block(entry: Sequence[int]) -> bool:
    """Return whether an entry describes a value that has a block of compressed bytes."""
    return bool(entry[_KIND] & BLOCK)


def kind_in_entry(entry: Sequence[int]) -> int:
    """Return the kind of the value that an entry describes."""
    return entry[_KIND] & ~BLOCK


def encode_entry(value: Value, position: int) -> list[int]:
    """Return the entry for a value in a keyframe at a position.

    It is [kind, count, length, crc, distance to the base or 0, block, pieces ...]. The first piece
    is given by its distance back from the keyframe and its length; each other piece by the gap
    after the piece before it, and its length.
    """
    base = value.base
    if len(value.pieces) != value.shared and value.depth >= MAX_DEPTH:
        # One more base would be too many for a reader: all pieces are listed again.
        base = None
    distance = shared = 0
    if base is not None:
        distance = position - base
        shared = value.shared
    entry = [value.kind, value.count, value.length, value.crc, distance]
    if value.block is not None:
        entry[_KIND] += BLOCK
        if base is None:
            block_at, length, size, method = value.block
            entry += (position - block_at, length, size, method)
    steps, _ = encode_steps(value.pieces[shared:])
    if steps:
        steps[0] = position - steps[0]
    return entry + steps


def decode_entry(entry: Sequence[int], position: int, base: Callable[[int], Value]) -> Value:
    """Return the value that an entry describes.

    Args:
        entry: the entry.
        position: the position of the keyframe.
        base: returns the value as the earlier keyframe at a position left it.

    Raises:
        IndexError, ValueError, TypeError: the entry is malformed.
    """
    kind, count, length, crc, distance, *rest = entry
    has_own_block = bool(kind & BLOCK)
    kind &= ~BLOCK
    if not distance:
        block = None
        if has_own_block:
            block_distance, stored, size, method, *rest = rest
            check_size(size)
            block = position - block_distance, stored, size, method
        if rest:
            rest[0] = position - rest[0]
        value = _make_value(kind, count, length, crc, rest, _add_up(rest))
        value.block = block
        return value
    earlier = base(position - distance)
    if not rest:
        # The earlier keyframe has named all pieces: it remains the base.
        value = earlier.copy()
        value.kind = kind
        value.count = count
        value.length = length
        value.crc = crc
        return value
    steps, end = get_steps(earlier)
    rest[0] = position - rest[0] - end
    # One allocation for thousands of pieces, at each of up to 16 bases.
    value = _make_value(kind, count, length, crc, steps + rest, end + _add_up(rest))
    value.block = earlier.block
    value.shared = earlier.shared
    value.depth = earlier.depth + 1
    return value


def _add_up(steps: list[int]) -> int:
    """Return the sum of steps: where the last piece ends.

    Raises:
        TypeError, ValueError: they are no steps; see `ListedValue`.
    """
    if len(steps) % 2:
        raise ValueError("a piece has no length")
    end = sum(steps)
    if end.__class__ is not int:
        raise TypeError("the pieces are not given by numbers")
    return end


def _make_value(kind: int, count: int, length: int, crc: int, steps: list[int], end: int) -> Value:
    """Return a value whose pieces are given as steps, the last of which leads to `end`."""
    if len(steps) >= _LONG:
        return ListedValue(kind, count, length, crc, steps, end)
    return Value(kind=kind, count=count, length=length, crc=crc, pieces=decode_steps(steps))
