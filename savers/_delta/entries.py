"""The entries of a keyframe's table, each of which describes one value.

docs/format.md has the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from savers._delta.values import (
    BLOCK,
    INLINE_LENGTH,
    ListedValue,
    Value,
    check_size,
    decode_steps,
    encode_steps,
    get_steps,
)

MIN_PIECE: Final = 16
"""The next keyframe repeats a value whose pieces are shorter than this on average."""
MAX_DEPTH: Final = 16
"""The most keyframes that a reader follows to find the pieces of a value; then a keyframe lists all
pieces again."""
_LONG: Final = 16
"""Steps from which on a value is a ListedValue."""

_KIND: Final = 0
_BASE: Final = 4
"""Positions in an entry: [kind, count, length, crc, base, ...]."""


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


def names_base(entry: Sequence[int]) -> bool:
    """Return whether an entry names a base, which has the first pieces of the value."""
    return bool(entry[_BASE])


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
