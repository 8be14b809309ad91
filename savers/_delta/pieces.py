"""The pieces of values: cutting them, and finding what two versions of a value have in common.

Pieces are a flat list: start, length, start, length, ...
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from savers._delta.values import Value

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
