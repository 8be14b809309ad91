"""Compares the bytes of a value with those of its successor."""

from __future__ import annotations

from typing import Final
from zlib import crc32

from savers._delta.operations import SPLICE_COST, Append, Drop, Operation, Splice
from savers._delta.values import BIN, LIST, Value, find_header, pack_header

_NEEDLE_LENGTH: Final = 64
"""The fewest bytes of the new value that are searched for in the old one, to find a window that
moved."""
_LONG_NEEDLE: Final = 1 << 10
"""As many bytes are searched for first: the elements of a list, such as messages of a chat, often
begin with the same hundred bytes."""
_LARGE_PART: Final = 4
"""A window that brings less than this part of the value is taken without looking for less."""
_BLOCK: Final = 64
"""How many bytes are compared first."""
_BLOCK_FACTOR: Final = 8
"""How much longer the next block is, or shorter."""
_MAX_TRIES: Final = 16
"""If the needle occurs more often than this, it does not show where the window begins."""


def compare_values(old: Value, old_body: bytes, packed: bytes, *, opaque: bool) -> Operation | bytes | None:
    """Return the operation that turns one packed value into another; None if they are equal.

    Args:
        old: the old value.
        old_body: its bytes, without the header.
        packed: the new value, with its header.
        opaque: whether the values are bytes of a StateSerializer.
    """
    kind, count, skip = find_header(packed, opaque=opaque)
    new = packed[skip:]
    if kind != old.kind:
        return packed
    if new == old_body:
        # The counts are equal too, unless the old value comes from a forged record.
        return packed if count != old.count else None
    if kind == LIST and count > old.count and new.startswith(old_body):
        # The elements of a list are packed one after the other, so new ones are simply the bytes that follow.
        return Append(count - old.count, new[len(old_body) :])
    return _find_change(old_body, new, count) or packed


def compare_bytes(old: bytes, new: bytes, old_crc: int | None = None) -> Operation | bytes | None:
    """Return the operation that turns one bytes object into another; None if they are equal.

    Bytes that were appended cost what was appended, apart from one comparison, if the checksum of
    the old ones is known.

    Args:
        old: the old bytes object.
        new: the new one.
        old_crc: the checksum of the old one; None if it is not known.
    """
    if new.startswith(old):
        added = new[len(old) :]
        if not added:
            return None
        if len(added) + SPLICE_COST < len(new):
            if old_crc is None:
                old_crc = crc32(old)
            crc = crc32(added, old_crc)
            return Splice(count=len(new), prefix=len(old), removed=0, crc=crc, data=added)
    else:
        change = _find_change(old, new, len(new))
        if change is not None:
            return change
    return pack_header(BIN, len(new)) + new


def _find_change(old_body: bytes, new: bytes, count: int) -> Operation | None:
    """Return a Drop or a Splice that turns the bytes of a value into others.

    None if it would not be shorter than the new value.
    """
    # A SPLICE replaces what is between a common prefix and a common suffix. A window that has moved (a chat that
    # drops its oldest messages) has hardly any of both, but most of its bytes: a DROP names those that are gone.
    # Where a DROP brings little, no suffix is looked for, because that reads both values to their ends.
    limit = min(len(old_body), len(new))
    prefix = _find_prefix(old_body, new, limit)
    drop = None
    dropped = 0
    if len(new) - prefix > _NEEDLE_LENGTH:
        dropped = _find_dropped(prefix, old_body, new)
    if dropped:
        added = new[len(old_body) - dropped :]
        drop = Drop(count=count, prefix=prefix, dropped=dropped, crc=crc32(new), data=added)
        if len(added) < len(new) // _LARGE_PART:
            return drop
    suffix = _find_suffix(old_body, new, limit - prefix)
    middle = new[prefix : len(new) - suffix]
    if drop is not None and len(drop.data) < len(middle):
        return drop
    if len(middle) + SPLICE_COST >= len(new):
        return None
    removed = len(old_body) - prefix - suffix
    return Splice(count=count, prefix=prefix, removed=removed, crc=crc32(new), data=middle)


def _find_dropped(prefix: int, old: bytes, new: bytes) -> int:
    """Return how many bytes after a common prefix are gone, if the rest of the old value follows.

    This is what a moving window does, with or without elements in front that stay. Returns 0 for
    any other change.
    """
    # The window begins where the bytes after the prefix occur in the old value. If they occur more than once, the
    # right place is the one from which the old value continues to its end.
    rest = new[prefix:]
    long = rest[:_LONG_NEEDLE]
    dropped = _find_window(old, rest, long, prefix + 1, prefix)
    if dropped or len(long) < _LONG_NEEDLE:
        return dropped
    # Less of the old value may be left than the needle is long.
    start = max(prefix + 1, len(old) - _LONG_NEEDLE)
    return _find_window(old, rest, rest[:_NEEDLE_LENGTH], start, prefix)


def _find_window(old: bytes, rest: bytes, needle: bytes, start: int, prefix: int) -> int:
    """Return how many bytes precede the window in the old value; 0 if it is not found.

    Args:
        old: the old value.
        rest: the new value after the common prefix.
        needle: the first bytes of the rest.
        start: where in the old value to begin.
        prefix: the length of the common prefix.
    """
    offset = old.find(needle, start)
    for _ in range(_MAX_TRIES):
        if offset < 0:
            return 0
        if rest.startswith(old[offset:]):
            return offset - prefix
        offset = old.find(needle, offset + 1)
    return 0


def _find_prefix(old: bytes, new: bytes, limit: int) -> int:
    """Return the length of the longest common prefix, up to a limit.

    Compares blocks that grow while they are equal, and shrink when they are not.
    """
    start = 0
    size = _BLOCK
    while start < limit:
        end = min(start + size, limit)
        one = old[start:end]
        other = new[start:end]
        if one == other:
            start = end
            size *= _BLOCK_FACTOR
        elif size > _BLOCK:
            size //= _BLOCK_FACTOR
        else:
            # The highest bit that differs is in the first byte that differs.
            difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
            return end - (difference.bit_length() + 7) // 8
    return start


def _find_suffix(old: bytes, new: bytes, limit: int) -> int:
    """Return the length of the longest common suffix, up to a limit; see `_find_prefix`."""
    old_end = len(old)
    new_end = len(new)
    length = 0
    size = _BLOCK
    while length < limit:
        longer = min(length + size, limit)
        one = old[old_end - longer : old_end - length]
        other = new[new_end - longer : new_end - length]
        if one == other:
            length = longer
            size *= _BLOCK_FACTOR
        elif size > _BLOCK:
            size //= _BLOCK_FACTOR
        else:
            # The lowest bit that differs is in the last byte that differs.
            difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
            lowest = difference & -difference
            return length + (lowest.bit_length() - 1) // 8
    return length
