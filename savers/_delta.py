"""A history as keyframes and changes: a state as packed values, and what turns one into the next. Knows no files.

Theory of operation. A state is an ordered table of keys, each with a packed value. A stored record carries *ops* that
turn the table of the record before it into its own, and the bytes these ops bring, its *data*. A value is never copied
when it grows: it is a list of *pieces*, ranges of positions where its bytes were first written. A keyframe carries the
table itself, so that nothing before it has to be replayed, but not the values: it names their pieces, and leaves out
those that an earlier keyframe (its *base*) has named already. So a list that grows costs what it grows by, in changes
and in keyframes alike, and reading it is a few reads and one join. docs/adr/0010 has the measurements.

The header of a list, map, str or bytes (how many elements or bytes) is not part of a value's bytes: it is kept as a
count, since growing by one would otherwise change the first bytes of every list and text.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add
from typing import Any, Final
from zlib import crc32

from savers._compression import expand

SET: Final = 0
"""[SET, key, length]: a new value, header included, in the next `length` bytes of the data."""
APPEND: Final = 1
"""[APPEND, key, count, length]: `count` more elements."""
SPLICE: Final = 2
"""[SPLICE, key, count, prefix, removed, crc, length]: new bytes in place of `removed` ones after `prefix`."""
DEL: Final = 3
"""[DEL, key]: the key is gone."""
PACKED: Final = 4
"""[PACKED, key, kind, count, bytes, crc, method, length]: a new value, its bytes compressed to `length`."""
DROP: Final = 5
"""[DROP, key, count, prefix, dropped, crc, length]: behind `prefix` bytes, `dropped` ones go; new ones at the end."""

OPAQUE: Final = 0
LIST: Final = 1
MAP: Final = 2
STR: Final = 3
BIN: Final = 4

SMALL: Final = 64
"""Values of up to so many bytes are repeated in every keyframe: naming their pieces would not be shorter."""
CRUMB: Final = 16
"""A value whose pieces are shorter than this on average is written whole again by the next keyframe."""
MAX_DEPTH: Final = 8
"""So many keyframes may have to be looked at to find a value's pieces; then they are listed in full again."""
SPLICE_COST: Final = 24
"""About the bytes that a splice takes beside its new ones."""
MAX_LENGTH: Final = (1 << 32) - 1
"""A msgpack array, map, str or bin has fewer elements or bytes than 2^32, and so has what a block expands to."""
_NEEDLE: Final = 64
"""So many bytes of a new value are looked for in the old one, to see whether it is a window that moved on."""
_TRIES: Final = 8
"""A needle that occurs more often than this in a value tells nothing about where the window begins."""

BLOCK: Final = 8
"""Added to the kind in the entry of a value that began compressed."""
_FAR: Final = 1 << 60
"""Compressed bytes have no positions of their own: byte n of what begins, compressed, at position p is at p + n - _FAR.
So they are cut into pieces like any others, and pieces below zero are found in the block when it is read."""

_PAIR: Final = 2
_FEW: Final = 4
_GAP: Final = 1 << 13

MALFORMED: Final = (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error)
"""What reading ops and entries that make no sense may raise."""

Draft = dict[str, tuple[Any, ...]]
"""What changed, per key: (op, its arguments but the key ..., its bytes), or (DEL,)."""


class Mismatch(Exception):  # noqa: N818 - for the caller to turn into an error that knows the file
    """The bytes found for a value are not those that were stored."""


class Value:
    """One packed value: where its bytes are, and what they must add up to."""

    __slots__ = ("base", "block", "count", "crc", "depth", "kind", "length", "pieces", "shared")

    def __init__(self, kind: int, count: int, length: int, crc: int, pieces: list[int]) -> None:
        self.kind = kind
        self.count = count
        self.length = length
        self.crc = crc
        self.pieces = pieces
        """start, length, start, length, ..."""
        self.block: tuple[int, int, int, int] | None = None
        """Where its compressed bytes are: position, length, the length they expand to, method."""
        self.base: int | None = None
        """The keyframe that names the first `shared` entries of `pieces`."""
        self.shared = 0
        self.depth = 0

    def set_base(self, keyframe: int, depth: int) -> None:
        """Note that a keyframe at this position has named all the pieces."""
        self.base, self.shared, self.depth = keyframe, len(self.pieces), depth


def parse_header(data: bytes, at: int) -> tuple[int, int, int]:
    """The kind of the packed value at a position, its count, and the length of its header."""
    first = data[at]
    if 0x80 <= first <= 0xBF:  # noqa: PLR2004 - msgpack's fixmap, fixarray and fixstr
        if first >= 0xA0:  # noqa: PLR2004
            return STR, first & 31, 1
        return (LIST if first >= 0x90 else MAP), first & 15, 1  # noqa: PLR2004
    found = _HEADERS.get(first)
    if found is None:
        return OPAQUE, 0, 0
    kind, layout = found
    return kind, layout.unpack_from(data, at)[1], layout.size


_HEADERS: Final = {
    first: (kind, struct.Struct(layout))
    for kind, first, layout in (
        (LIST, 0xDC, ">BH"), (LIST, 0xDD, ">BI"), (MAP, 0xDE, ">BH"), (MAP, 0xDF, ">BI"),
        (STR, 0xD9, ">BB"), (STR, 0xDA, ">BH"), (STR, 0xDB, ">BI"),
        (BIN, 0xC4, ">BB"), (BIN, 0xC5, ">BH"), (BIN, 0xC6, ">BI"),
    )
}  # fmt: skip
_SHORT: Final = {LIST: 0x90, MAP: 0x80, STR: 0xA0}
_FIRST: Final = {LIST: 0xDC - 1, MAP: 0xDE - 1, STR: 0xD9, BIN: 0xC4}


def pack_header(kind: int, count: int) -> bytes:
    """The header that a value's bytes leave out; the shortest form, which is what the packer writes."""
    if kind == OPAQUE:
        return b""
    if kind in _SHORT and count < (32 if kind == STR else 16):
        return bytes((_SHORT[kind] | count,))
    first = _FIRST[kind]
    if count < 1 << 8 and kind >= STR:
        return bytes((first, count))
    if count < 1 << 16:
        return struct.pack(">BH", first + 1, count)
    return struct.pack(">BI", first + 2, count)


def has_canonical_header(value: Value, body: bytes) -> bool:
    """Whether a value's kind and count make a header that tells the same of them; that of an opaque one has none."""
    head = pack_header(value.kind, value.count)
    return value.kind == OPAQUE or parse_header(head + body, 0) == (value.kind, value.count, len(head))


class Table:
    """The packed state of one checkpoint: keys in order, each with its Value."""

    __slots__ = ("names", "opaque", "values")

    def __init__(self, *, opaque: bool) -> None:
        self.values: dict[str, Value] = {}
        self.names: list[str] = []
        """The keys in order: ops name a key by its place in here."""
        self.opaque = opaque
        """Values are bytes that nobody looks into (a StateSerializer's)."""

    @property
    def length(self) -> int:
        """The bytes of all values."""
        return sum([value.length for value in self.values.values()])

    def apply(self, ops: Sequence[Any], data: bytes, start: int) -> None:
        """Become the table that the ops lead to; `start` is the position of the data's first byte.

        Raises:
            IndexError, KeyError, ValueError, TypeError, struct.error: the ops make no sense.
        """
        values, names = self.values, self.names
        at = i = 0
        keys_changed = False
        while i < len(ops):
            op, key = ops[i], ops[i + 1]
            name = names[key] if key.__class__ is int else key
            if op == APPEND:
                length = ops[i + 3]
                _append(values[name], ops[i + 2], data[at : at + length], start + at)
                i += 4
            elif op == SET:
                length = ops[i + 2]
                keys_changed = keys_changed or name not in values
                values[name] = self._new(data, at, length, start)
                i += 3
            elif op == SPLICE:
                length = ops[i + 6]
                values[name] = _spliced(values[name], ops[i + 2 : i + 7], start + at)
                i += 7
            elif op == PACKED:
                length = ops[i + 7]
                keys_changed = keys_changed or name not in values
                values[name] = _packed(ops[i + 2 : i + 8], start + at)
                i += 8
            elif op == DEL:
                length = 0
                del values[name]
                keys_changed = True
                i += 2
            elif op == DROP:
                length = ops[i + 6]
                values[name] = _dropped(values[name], ops[i + 2 : i + 7], start + at)
                i += 7
            else:
                raise ValueError(f"unknown op {op!r}")
            at += length
        if at != len(data):
            raise ValueError("the data is longer or shorter than its ops say")
        if keys_changed:
            self.names = list(values)

    def _new(self, data: bytes, at: int, length: int, start: int) -> Value:
        kind, count, skip = (OPAQUE, 0, 0) if self.opaque or not length else parse_header(data, at)
        body = data[at + skip : at + length]
        size = len(body)
        return Value(kind, count, size, crc32(body), [start + at + skip, size] if size else [])

    def apply_to_key(self, name: str, ops: Sequence[Any], data: bytes, start: int) -> None:
        """As `apply`, for the one key that this table holds; the others are passed over."""
        at = i = 0
        while i < len(ops):
            op, key = ops[i], ops[i + 1]
            width = _WIDTH[op]
            length = ops[i + width - 1] if op != DEL else 0
            if (self.names[key] if key.__class__ is int else key) == name:
                alone = Table(opaque=self.opaque)
                alone.values, alone.names = self.values, self.names
                alone.apply(ops[i : i + width], data[at : at + length], start + at)
            i, at = i + width, at + length


_WIDTH: Final = {SET: 3, APPEND: 4, SPLICE: 7, DEL: 2, PACKED: 8, DROP: 7}


def _packed(op: Sequence[int], start: int) -> Value:
    kind, count, size, crc, method, length = op
    _check_size(size)
    value = Value(kind, count, size, crc, [start - _FAR, size])
    value.block = start, length, size, method
    return value


def _append(value: Value, count: int, body: bytes, start: int) -> None:
    size = len(body)
    value.count += count
    value.length += size
    value.crc = crc32(body, value.crc)
    if size:
        value.pieces.append(start)
        value.pieces.append(size)


def _spliced(old: Value, op: Sequence[int], start: int) -> Value:
    count, prefix, removed, crc, length = op
    pieces = _cut(old.pieces, 0, prefix)
    if length:
        pieces += (start, length)
    pieces += _cut(old.pieces, prefix + removed, old.length)
    return _changed(old, Value(old.kind, count, old.length - removed + length, crc, pieces))


def _dropped(old: Value, op: Sequence[int], start: int) -> Value:
    count, prefix, dropped, crc, length = op
    pieces = _cut(old.pieces, 0, prefix) + _cut(old.pieces, prefix + dropped, old.length)
    if length:
        pieces += (start, length)
    return _changed(old, Value(old.kind, count, old.length - dropped + length, crc, pieces))


def _changed(old: Value, new: Value) -> Value:
    """Return the new value, with the old one's block if some of its pieces are still in that."""
    if old.block is not None and min(new.pieces[::_PAIR], default=0) < 0:
        new.block = old.block
    return new


def _check_size(size: int) -> None:
    if size > MAX_LENGTH:
        raise ValueError(f"a value of {size} bytes is longer than any value can be")


def split_value(packed: bytes, *, opaque: bool) -> tuple[Value, bytes]:
    """Return a packed value without pieces, and its bytes."""
    kind, count, skip = (OPAQUE, 0, 0) if opaque or not packed else parse_header(packed, 0)
    body = packed[skip:]
    return Value(kind, count, len(body), crc32(body), []), body


def _cut(pieces: Sequence[int], first: int, last: int) -> list[int]:
    """The pieces of the bytes from `first` to `last` of a value."""
    cut: list[int] = []
    at = 0
    for i in range(0, len(pieces), _PAIR):
        start, length = pieces[i], pieces[i + 1]
        skip, stop = max(first - at, 0), min(last - at, length)
        if skip < stop:
            cut += (start + skip, stop - skip)
        at += length
    return cut


# Writing


def encode_draft(draft: Mapping[str, tuple[Any, ...]], names: Sequence[str]) -> tuple[list[Any], bytes]:
    """A draft as the ops and the data of a record whose keys stand in this order before it."""
    ops: list[Any] = []
    data: list[bytes] = []
    # A state has few keys, and fewer change: looking for one is faster than a mapping of them all.
    places = {name: place for place, name in enumerate(names)} if len(draft) > _FEW else None
    for name, op in draft.items():
        if places is None:
            key: int | str = names.index(name) if name in names else name
        else:
            key = places.get(name, name)
        if op[0] == DEL:
            ops += (DEL, key)
            continue
        *front, new = op
        front.insert(1, key)
        front.append(len(new))
        ops += front
        data.append(new)
    return ops, data[0] if len(data) == 1 else b"".join(data)


def compress(op: tuple[Any, ...], method: int, shorter: Callable[[bytes], bytes | None], *, opaque: bool) -> Any:
    """A SET as PACKED, or as it is if its bytes do not become shorter."""
    data = op[1]
    kind, count, skip = (OPAQUE, 0, 0) if opaque else parse_header(data, 0)
    body = data[skip:]
    block = shorter(body)
    return op if block is None else (PACKED, kind, count, len(body), crc32(body), method, block)


def compare_values(old: Value, old_body: bytes, packed: bytes, *, opaque: bool) -> tuple[Any, ...] | None:
    """The op that turns one packed value into another; None if they are the same."""
    kind, count, skip = (OPAQUE, 0, 0) if opaque or not packed else parse_header(packed, 0)
    new = packed[skip:]
    if kind != old.kind:
        return SET, packed
    if new == old_body:
        return None if count == old.count else (SET, packed)
    if kind == LIST and count > old.count and new.startswith(old_body):
        return APPEND, count - old.count, new[len(old_body) :]
    prefix, suffix = _common(old_body, new)
    middle = new[prefix : len(new) - suffix]
    if len(middle) > _NEEDLE:
        dropped = _dropped_after(prefix, old_body, new)
        kept = len(old_body) - dropped
        if dropped and len(new) - kept < len(middle):
            return DROP, count, prefix, dropped, crc32(new), new[kept:]
    if len(middle) + SPLICE_COST >= len(packed):
        return SET, packed
    return SPLICE, count, prefix, len(old_body) - prefix - suffix, crc32(new), middle


def _dropped_after(prefix: int, old: bytes, new: bytes) -> int:
    """Return how many bytes a value has lost behind a prefix, if the new one goes on with the rest of the old; else 0.

    That is what a window does that moves on, with or without elements in front that stay.
    """
    rest = new[prefix:]
    needle = rest[:_NEEDLE]
    at = old.find(needle, prefix + 1)
    for _ in range(_TRIES):
        if at < 0:
            return 0
        if rest.startswith(old[at:]):
            return at - prefix
        at = old.find(needle, at + 1)
    return 0


def _common(old: bytes, new: bytes) -> tuple[int, int]:
    """How many bytes two different strings share at the beginning, and how many of the rest at the end."""
    limit = min(len(old), len(new))
    prefix = _search(limit, lambda n: old[:n] == new[:n])
    rest = limit - prefix
    return prefix, _search(rest, lambda n: old[len(old) - n :] == new[len(new) - n :])


def _search(limit: int, same: Callable[[int], bool]) -> int:
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if same(middle):
            low = middle
        else:
            high = middle - 1
    return low


def is_inlined(value: Value) -> bool:
    """Whether a keyframe had better write a value again than name its pieces."""
    return value.length <= SMALL or value.length * _PAIR < CRUMB * len(value.pieces)


def encode_entry(value: Value, position: int) -> list[int]:
    """A keyframe's entry for a value: [kind, count, length, crc, distance to the base or 0, block, pieces ...].

    Of the first piece the distance back from the keyframe and the length are given, of the others the gap to the one
    before and the length.
    """
    based = value.base is not None and (len(value.pieces) == value.shared or value.depth < MAX_DEPTH)
    entry = [value.kind, value.count, value.length, value.crc]
    entry.append(position - value.base if based and value.base is not None else 0)
    if value.block is not None:
        entry[0] += BLOCK
        if not based:
            entry += (position - value.block[0], *value.block[1:])
    pieces = value.pieces
    end = position
    for i in range(value.shared if based else 0, len(pieces), _PAIR):
        start, length = pieces[i], pieces[i + 1]
        entry.append(position - start if end == position else start - end)
        entry.append(length)
        end = start + length
    return entry


def decode_entry(entry: Sequence[int], position: int, base: Callable[[int], Value]) -> Value:
    """The value of a keyframe's entry; `base` finds the value as an earlier keyframe left it.

    Raises:
        IndexError, ValueError, TypeError: the entry makes no sense.
    """
    kind, count, length, crc, distance, *rest = entry
    value = Value(kind & ~BLOCK, count, length, crc, [])
    if kind & BLOCK and not distance:
        away, stored, size, method, *rest = rest
        _check_size(size)
        value.block = position - away, stored, size, method
    if distance:
        earlier = base(position - distance)
        value.block = earlier.block
        value.pieces = earlier.pieces.copy()
        value.base, value.shared, value.depth = earlier.base, earlier.shared, earlier.depth
        if not rest:
            return value
    end = position
    for i in range(0, len(rest), _PAIR):
        start = position - rest[i] if i == 0 else end + rest[i]
        end = start + rest[i + 1]
        value.pieces += (start, rest[i + 1])
    value.depth = value.depth + 1 if distance else 0
    value.base = None
    return value


def compare_pieces(before: list[int], length: int, new: Value) -> tuple[list[int], int, int]:
    """What of a value is not in the pieces, `length` bytes long, that it had before: the pieces, and what they replace.

    That is prefix and removed, as in SPLICE.
    """
    after = new.pieces
    if after[: len(before)] == before:
        return after[len(before) :], length, 0
    prefix = _shared(before, after)
    suffix = min(_shared(_mirrored(before), _mirrored(after)), min(length, new.length) - prefix)
    return _cut(after, prefix, new.length - suffix), prefix, length - prefix - suffix


def find_moved_window(before: list[int], length: int, new: Value) -> tuple[list[int], int, int] | None:
    """Tell a window that moved on by its pieces, `length` bytes long before: what DROP needs; None if it is none.

    Returns:
        The pieces that follow at the end, how many bytes in front stay, and how many behind these are gone.
    """
    after = new.pieces
    prefix = _shared(before, after)
    rest_before, rest_after = _cut(before, prefix, length), _cut(after, prefix, new.length)
    if not rest_before or not rest_after:
        return None
    if min(rest_before[::_PAIR]) < 0 or min(rest_after[::_PAIR]) < 0:
        return None  # Positions of expanded bytes tell pieces of one block from each other, not those of several.
    start = rest_after[0]
    skipped = 0
    for i in range(0, len(rest_before), _PAIR):
        first, size = rest_before[i], rest_before[i + 1]
        if first <= start < first + size:
            dropped = skipped + start - first
            kept = length - prefix - dropped
            stays = _cut(rest_before, dropped, length - prefix)
            if dropped and kept and _cut(rest_after, 0, kept) == stays:
                return _cut(rest_after, kept, new.length - prefix), prefix, dropped
            return None
        skipped += size
    return None


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many bytes the pieces of two values have in common at the beginning."""
    shared = 0
    for i in range(0, min(len(one), len(other)), _PAIR):
        if one[i] != other[i]:
            break
        shared += min(one[i + 1], other[i + 1])
        if one[i + 1] != other[i + 1]:
            break
    return shared


def _mirrored(pieces: Sequence[int]) -> list[int]:
    """Pieces back to front, each by its end instead of its start."""
    return [
        number for i in range(len(pieces) - _PAIR, -1, -_PAIR) for number in (pieces[i] + pieces[i + 1], pieces[i + 1])
    ]


# Reading


def read_bodies(values: Iterable[Value], read: Callable[[int, int], bytes]) -> list[bytes]:
    """The bytes of values, without their headers.

    Raises:
        Mismatch: they are not those that were stored.
    """
    values = list(values)
    found = _bytes_of(values, read)
    for value, body in zip(values, found, strict=True):
        if len(body) != value.length or crc32(body) != value.crc:
            raise Mismatch
    return found


def read_pieces(value: Value, pieces: list[int], read: Callable[[int, int], bytes]) -> bytes:
    """The bytes of some pieces of a value, unchecked.

    Raises:
        Mismatch: they are not those that were stored.
    """
    some = Value(value.kind, 0, 0, 0, pieces)
    some.block = value.block if min(pieces[::_PAIR], default=0) < 0 else None
    return _bytes_of([some], read)[0]


def _bytes_of(values: list[Value], read: Callable[[int, int], bytes]) -> list[bytes]:
    _check_blocks(values)
    chunks = [(start, read(start, end - start)) for start, end in _spans(values)]
    return [
        _join(value.pieces, chunks if value.block is None else [_expanded(value.block, read), *chunks])
        for value in values
    ]


def check_pieces(values: Iterable[Value]) -> None:
    """See that the values of one state are no longer than the bytes that their pieces lie in.

    No bytes belong to a state twice. A forged table of some KB could else name a few bytes a million times.

    Raises:
        Mismatch: they are longer.
    """
    values = list(values)
    _check_blocks(values)
    _spans(values)


def _check_blocks(values: Iterable[Value]) -> None:
    for value in values:
        if value.block is not None:
            _, _, size, _ = value.block
            pieces = value.pieces
            if sum(pieces[i + 1] for i in range(0, len(pieces), _PAIR) if pieces[i] < 0) > size:
                raise Mismatch


def _expanded(block: tuple[int, int, int, int], read: Callable[[int, int], bytes]) -> tuple[int, bytes]:
    start, stored, size, method = block
    try:
        return start - _FAR, expand(method, read(start, stored), size)
    except ValueError as error:
        raise Mismatch from error


def _join(pieces: Sequence[int], chunks: Sequence[tuple[int, bytes]]) -> bytes:
    starts, lengths = pieces[::_PAIR], pieces[1::_PAIR]
    if len(chunks) == 1:
        first, data = chunks[0]
        return b"".join([data[start - first : start - first + n] for start, n in zip(starts, lengths, strict=True)])
    firsts = [first for first, _ in chunks]
    parts: list[bytes] = []
    for start, n in zip(starts, lengths, strict=True):
        first, data = chunks[bisect_right(firsts, start) - 1]
        parts.append(data[start - first : start - first + n])
    return b"".join(parts)


def _spans(values: Sequence[Value]) -> list[tuple[int, int]]:
    """The ranges to read: all pieces, those near to each other together."""
    starts = [start for value in values for start in value.pieces[::_PAIR]]
    lengths = [length for value in values for length in value.pieces[1::_PAIR]]
    if any(value.block is not None for value in values):
        near = [(start, length) for start, length in zip(starts, lengths, strict=True) if start >= 0]
        starts, lengths = [start for start, _ in near], [length for _, length in near]
    if not starts:
        return []
    first, last = min(starts), max(map(add, starts, lengths))
    if sum(lengths) > last - first:
        raise Mismatch  # See check_pieces.
    if last - first <= _PAIR * sum(lengths) + _GAP:
        return [(first, last)]
    spans: list[tuple[int, int]] = []
    for start, length in sorted(zip(starts, lengths, strict=True)):
        if spans and start - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], max(spans[-1][1], start + length))
        else:
            spans.append((start, start + length))
    return spans
