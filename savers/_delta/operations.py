"""The operations of a record: how a writer drafts and encodes them, and what they do to a state.

docs/format.md has the table of ops. A record has one flat array for all its ops: op, key,
arguments, op, key, ... The bytes that an op adds are not in the array but in the data of the
record; the last argument is their length. The compare functions find the op that turns a value into
its successor, and an `Interpreter` applies the ops of a record: to a `Table`, which says where the
bytes of each value lie, or to a `PackedTable`, which has the bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from zlib import crc32

from savers._compression import expand
from savers._delta.values import (
    BIN,
    BLOCK_BASE,
    INLINE_LENGTH,
    LIST,
    OPAQUE,
    Mismatch,
    Value,
    check_size,
    cut,
    cut_rest,
    find_header,
    is_in_block,
    pack_header,
    parse_header,
    split_value,
)

if TYPE_CHECKING:
    from savers._compression import Compression

SET: Final = 0
"""[SET, key, length]: a new value, including its header, in the next `length` bytes of the data."""
APPEND: Final = 1
"""[APPEND, key, count, length]: `count` more elements."""
SPLICE: Final = 2
"""[SPLICE, key, count, prefix, removed, crc, length]: after `prefix` bytes, new bytes replace
`removed` bytes."""
DEL: Final = 3
"""[DEL, key]: the key is gone."""
PACKED: Final = 4
"""[PACKED, key, kind, count, size, crc, method, length]: a new value of `size` bytes, compressed
to `length` bytes."""
DROP: Final = 5
"""[DROP, key, count, prefix, dropped, crc, length]: after `prefix` bytes, `dropped` bytes are gone;
the new bytes follow at the end."""

WIDTHS: Final = {SET: 3, APPEND: 4, SPLICE: 7, DEL: 2, PACKED: 8, DROP: 7}
"""How many elements of the array an op takes."""
SPLICE_COST: Final = 24
"""About how many bytes a splice takes in addition to its new bytes."""
_FEW_CHANGES: Final = 4


@dataclass(slots=True)  # not frozen: a put makes several, in 160 ns each; frozen ones take 300 ns
class Operation:
    """What changes the value of one key in another way than by SET."""

    op: int
    arguments: tuple[int, ...]
    """What stands between the key and the length."""
    data: bytes
    """The bytes that the op adds to the data of the record."""


DELETE: Final = Operation(DEL, (), b"")
Draft = dict[str, Operation | bytes]
"""What changes, by key. Bytes are a new value, packed, with its header: op SET, which is the usual one."""


def replace(op: int, *, count: int, prefix: int, removed: int, crc: int, data: bytes) -> Operation:
    """Return the operation that takes bytes out of a value, and puts others in their place or at the end.

    Args:
        op: SPLICE or DROP.
        count: the count of the new value.
        prefix: how many bytes stay in front.
        removed: how many bytes after these are gone.
        crc: the checksum of the new value.
        data: the new bytes.
    """
    return Operation(op, (count, prefix, removed, crc), data)


def is_set(op: Operation | bytes | None) -> bool:
    """Return whether an operation sets a new value, whatever the old one is."""
    return isinstance(op, bytes) or (op is not None and op.op == PACKED)


def get_data(op: Operation | bytes) -> bytes:
    """Return the bytes that an operation adds to the data of the record."""
    return op if isinstance(op, bytes) else op.data


def encode_draft(draft: Mapping[str, Operation | bytes], names: Sequence[str]) -> tuple[list[Any], bytes]:
    """Return a draft as the ops and the data of a record.

    Args:
        draft: what changes.
        names: the keys of the state before the record, in their order.
    """
    ops: list[Any] = []
    data: list[bytes] = []
    # A state has few keys, and fewer of them change: searching for one is faster than building a
    # dict of all keys.
    positions: dict[str, int] | None = None
    if len(draft) > _FEW_CHANGES:
        positions = {name: position for position, name in enumerate(names)}
    for name, op in draft.items():
        key: int | str = name
        if positions is not None:
            key = positions.get(name, name)
        elif name in names:
            key = names.index(name)
        if isinstance(op, bytes):
            ops += (SET, key, len(op))
            data.append(op)
        elif op is DELETE:
            ops += (DEL, key)
        else:
            ops += (op.op, key, *op.arguments, len(op.data))
            data.append(op.data)
    return ops, b"".join(data)


def compress(packed: bytes, compression: Compression, *, opaque: bool) -> Operation | bytes:
    """Return what sets a packed value compressed, or the value as it is if that does not save enough.

    Args:
        packed: the value, with its header.
        compression: compresses it.
        opaque: whether the value is the bytes of a StateSerializer.
    """
    value, body = split_value(packed, opaque=opaque)
    block = compression.compress(body)
    if block is None:
        return packed
    return Operation(PACKED, (value.kind, value.count, value.length, value.crc, compression.number), block)


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
        return Operation(APPEND, (count - old.count,), new[len(old_body) :])
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
            return replace(SPLICE, count=len(new), prefix=len(old), removed=0, crc=crc, data=added)
    else:
        change = _find_change(old, new, len(new))
        if change is not None:
            return change
    return pack_header(BIN, len(new)) + new


def _find_change(old_body: bytes, new: bytes, count: int) -> Operation | None:
    """Return a DROP or a SPLICE that turns the bytes of a value into others.

    None if it would not be shorter than the new value.
    """
    # A SPLICE replaces what is between a common prefix and a common suffix. A window that has moved (a chat that
    # drops its oldest messages) has hardly any of both, but most of its bytes: a DROP names those that are gone.
    # Where a DROP brings little, no suffix is looked for, because that reads both values to their ends.
    limit = min(len(old_body), len(new))
    prefix = _count_common(old_body, new, limit, from_end=False)
    drop = None
    dropped = 0
    if len(new) - prefix > _NEEDLE_LENGTH:
        dropped = _find_dropped(prefix, old_body, new)
    if dropped:
        added = new[len(old_body) - dropped :]
        drop = replace(DROP, count=count, prefix=prefix, removed=dropped, crc=crc32(new), data=added)
        if len(added) < len(new) // _LARGE_PART:
            return drop
    suffix = _count_common(old_body, new, limit - prefix, from_end=True)
    middle = new[prefix : len(new) - suffix]
    if drop is not None and len(drop.data) < len(middle):
        return drop
    if len(middle) + SPLICE_COST >= len(new):
        return None
    removed = len(old_body) - prefix - suffix
    return replace(SPLICE, count=count, prefix=prefix, removed=removed, crc=crc32(new), data=middle)


def _find_dropped(prefix: int, old: bytes, new: bytes) -> int:
    """Return how many bytes after a common prefix are gone, if the rest of the old value follows.

    This is what a moving window does, with or without elements in front that stay. Returns 0 for
    any other change.
    """
    # The window begins where the bytes after the prefix occur in the old value. If they occur more than once, the
    # right place is the one from which the old value continues to its end.
    rest = new[prefix:]
    searches = [(_LONG_NEEDLE, prefix + 1)]
    if len(rest) >= _LONG_NEEDLE:
        # Less of the old value may be left than the long needle has.
        searches.append((_NEEDLE_LENGTH, max(prefix + 1, len(old) - _LONG_NEEDLE)))
    for length, start in searches:
        needle = rest[:length]
        offset = start - 1
        for _ in range(_MAX_TRIES):
            offset = old.find(needle, offset + 1)
            if offset < 0:
                break
            if rest.startswith(old[offset:]):
                return offset - prefix
    return 0


def _count_common(old: bytes, new: bytes, limit: int, *, from_end: bool) -> int:
    """Return how many bytes two values have in common at the beginning, or at the end; at most `limit`.

    Compares blocks that grow while they are equal, and shrink when they are not.
    """
    old_end = len(old)
    new_end = len(new)
    length = 0
    size = _BLOCK
    while length < limit:
        longer = min(length + size, limit)
        if from_end:
            one = old[old_end - longer : old_end - length]
            other = new[new_end - longer : new_end - length]
        else:
            one = old[length:longer]
            other = new[length:longer]
        if one == other:
            length = longer
            size *= _BLOCK_FACTOR
        elif size > _BLOCK:
            size //= _BLOCK_FACTOR
        else:
            difference = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
            if from_end:
                # The lowest bit that differs is in the last byte that differs.
                lowest = difference & -difference
                return length + (lowest.bit_length() - 1) // 8
            # The highest bit that differs is in the first byte that differs.
            return longer - (difference.bit_length() + 7) // 8
    return length


AnyValue = TypeVar("AnyValue")


class Interpreter(ABC, Generic[AnyValue]):
    """A state, and the one interpreter of ops, whatever its values are.

    A writer wants to know where the bytes of each value lie, and a reader wants the bytes. So there
    are two kinds of values, and a subclass for each says what an op makes of one.
    """

    __slots__ = ("names", "opaque", "values")

    def __init__(self, *, opaque: bool) -> None:
        self.values: dict[str, AnyValue] = {}
        self.names: list[str] = []
        """The keys in order: ops name a key by its position in this list."""
        self.opaque = opaque
        """Whether values are bytes of a StateSerializer, which have no msgpack header."""

    def apply(self, ops: Sequence[Any], data: bytes, start: int, only: str | None = None) -> None:
        """Apply the ops of a record, so that this becomes the state after the record.

        This is part of most puts and of each record that a reader replays. Therefore it reads the
        flat array by position; operations.py names the elements of each op.

        Args:
            ops: the ops.
            data: the bytes that they add.
            start: the position of the data's first byte.
            only: the key whose ops are applied, if it is the only one with a value here.

        Raises:
            Mismatch: a value does not have its checksum.
            IndexError, KeyError, ValueError, TypeError, struct.error: the ops are malformed. The
                state may have been changed in part.
        """
        values = self.values
        names = self.names
        set_value = self._set  # Nearly all ops are of this kind.
        begin = 0
        i = 0
        keys_changed = False
        while i < len(ops):
            op = ops[i]
            key = ops[i + 1]
            name = names[key] if key.__class__ is int else key
            # The last argument of each op but DEL is how many bytes of the data belong to it.
            if only is not None and name != only:
                width = WIDTHS[op]
                end = begin if op == DEL else begin + ops[i + width - 1]
                i += width
            elif op == SET:
                end = begin + ops[i + 2]
                if name not in values:
                    keys_changed = True
                values[name] = set_value(data, begin, end, start + begin)
                i += 3
            elif op == APPEND:
                end = begin + ops[i + 3]
                values[name] = self._append(values[name], ops[i + 2], data[begin:end], start + begin)
                i += 4
            elif op in {SPLICE, DROP}:
                end = begin + ops[i + 6]
                change = ops[i + 2 : i + 6]
                values[name] = self._replace(op, values[name], change, data[begin:end], start + begin)
                i += 7
            elif op == PACKED:
                end = begin + ops[i + 7]
                keys_changed = keys_changed or name not in values
                values[name] = self._expand(ops[i + 2 : i + 7], data[begin:end], start + begin)
                i += 8
            elif op == DEL:
                end = begin
                del values[name]
                keys_changed = True
                i += 2
            else:
                raise ValueError(f"unknown op {op!r}")
            begin = end
        if begin != len(data):
            raise ValueError("the data is longer or shorter than its ops say")
        if keys_changed:
            self.names = list(values)

    @abstractmethod
    def _set(self, data: bytes, begin: int, end: int, position: int) -> AnyValue:
        """Return the value that stands in a part of the data with its header; `position` is where that lies."""

    @abstractmethod
    def _append(self, old: AnyValue, count: int, added: bytes, position: int) -> AnyValue:
        """Return a list with `count` more elements."""

    @abstractmethod
    def _replace(self, op: int, old: AnyValue, arguments: Sequence[int], added: bytes, position: int) -> AnyValue:
        """Return a value with bytes taken out, and others in their place (SPLICE) or at the end (DROP).

        Args:
            op: SPLICE or DROP.
            old: the value.
            arguments: the new count, the bytes in front that stay, those that are gone, the checksum.
            added: the new bytes.
            position: where they lie.
        """

    @abstractmethod
    def _expand(self, arguments: Sequence[int], packed: bytes, position: int) -> AnyValue:
        """Return a value that was stored compressed, given its kind, count, size, checksum and method."""


class Table(Interpreter[Value]):
    """The packed state of one checkpoint as the pieces of its values: keys in order, each with its Value."""

    __slots__ = ()

    @property
    def length(self) -> int:
        """The bytes of all values."""
        return sum([value.length for value in self.values.values()])

    def _set(self, data: bytes, begin: int, end: int, position: int) -> Value:
        kind = OPAQUE
        count = skip = 0
        if begin != end and not self.opaque:
            kind, count, skip = parse_header(data, begin)
        size = end - begin - skip
        pieces: list[int] = []
        if size:
            pieces = [position + skip, size]
        return Value(kind, count, size, crc32(data[begin + skip : end]), pieces)

    def _append(self, old: Value, count: int, added: bytes, position: int) -> Value:
        length = len(added)
        old.count += count
        old.length += length
        old.crc = crc32(added, old.crc)
        if length:
            old.add_piece(position, length)
        return old

    def _replace(self, op: int, old: Value, arguments: Sequence[int], added: bytes, position: int) -> Value:
        count, prefix, gone, crc = arguments
        length = len(added)
        if op == SPLICE and prefix == old.length and not gone:
            # Bytes at the end. The value keeps its base, so that keyframes do not list its pieces again.
            old.count = count
            old.length += length
            old.crc = crc
            if length:
                old.add_piece(position, length)
            return old
        pieces = cut(old.pieces, 0, prefix)
        new: list[int] = []
        if length:
            new = [position, length]
        if op == SPLICE:
            pieces += new
        pieces += cut_rest(old.pieces, prefix + gone)
        if op == DROP:
            pieces += new
        value = Value(old.kind, count, old.length - gone + length, crc, pieces)
        if old.block is not None and is_in_block(pieces):
            value.block = old.block
        return value

    def _expand(self, arguments: Sequence[int], packed: bytes, position: int) -> Value:
        kind, count, size, crc, method = arguments
        check_size(size)
        value = Value(kind, count, size, crc, [position - BLOCK_BASE, size])
        value.block = position, len(packed), size, method
        return value


class GrowingValue:
    """A packed value whose bytes are the first ones of a longer value.

    A list that grows at each step has its bytes once for all states of a chain: the values share one
    list of parts, and each knows how many bytes of them are its own. Only the longest of them may grow.
    """

    __slots__ = ("_parts", "count", "crc", "kind", "length")

    def __init__(self, kind: int, count: int, length: int, crc: int, parts: list[bytes]) -> None:
        self.kind = kind
        self.count = count
        self.length = length
        """The bytes without the header."""
        self.crc = crc
        """The checksum of these bytes."""
        self._parts = parts
        """The bytes of all values that share them, joined when they are first wanted."""

    def grow(self, count: int, added: bytes, crc: int) -> GrowingValue:
        """Return the value with bytes added at the end. No other value may have grown from this one."""
        self._parts.append(added)
        return GrowingValue(self.kind, count, self.length + len(added), crc, self._parts)

    def join_behind(self, header: bytes) -> bytes:
        """Return the bytes of the value behind a header."""
        parts = self._parts
        if len(parts) > 1:
            parts[:] = [b"".join(parts)]
        (joined,) = parts
        if not header and self.length == len(joined):
            return joined
        return b"".join((header, memoryview(joined)[: self.length]))


PackedState = dict[str, "bytes | GrowingValue"]
"""The values of a state by key: packed, with their headers."""


def read_body(value: bytes | GrowingValue) -> tuple[int, int, bytes]:
    """Return the kind, the count and the bytes of a packed value, without its header.

    Raises:
        IndexError, struct.error: its header is malformed.
    """
    if isinstance(value, GrowingValue):
        return value.kind, value.count, value.join_behind(b"")
    kind, count, skip = find_header(value, opaque=False)
    return kind, count, value[skip:]


class PackedTable(Interpreter["bytes | GrowingValue"]):
    """The packed state of one checkpoint as the bytes of its values."""

    __slots__ = ("size",)

    def __init__(self, *, opaque: bool) -> None:
        super().__init__(opaque=opaque)
        self.size = 0
        """About how many bytes of memory the values have taken in addition to those of the records."""

    def set_body(self, name: str, value: Value, body: bytes) -> None:
        """Set a key to a value whose bytes were read from its pieces."""
        # A short value gets the form that a SET gives it, which takes less memory. An opaque one has no header to be
        # put before it.
        if value.kind != OPAQUE and value.length <= INLINE_LENGTH:
            self.values[name] = pack_header(value.kind, value.count) + body
            return
        self.values[name] = GrowingValue(value.kind, value.count, value.length, value.crc, [body])
        self.size += value.length

    def _set(self, data: bytes, begin: int, end: int, position: int) -> bytes | GrowingValue:  # noqa: ARG002 - for tables of pieces
        if self.opaque:
            return _start_growing(OPAQUE, 0, data[begin:end])
        return data[begin:end]

    def _append(self, old: bytes | GrowingValue, count: int, added: bytes, position: int) -> GrowingValue:  # noqa: ARG002
        growing = _as_growing(old)
        return growing.grow(growing.count + count, added, crc32(added, growing.crc))

    def _replace(
        self,
        op: int,
        old: bytes | GrowingValue,
        arguments: Sequence[int],
        added: bytes,
        position: int,  # noqa: ARG002
    ) -> GrowingValue:
        count, prefix, gone, crc = arguments
        if op == SPLICE and not gone:
            growing = _as_growing(old)
            if growing.length == prefix:
                if crc32(added, growing.crc) != crc:
                    raise Mismatch
                return growing.grow(count, added, crc)
        kind, _, body = read_body(old)
        rest = body[prefix + gone :]
        parts = (body[:prefix], added, rest) if op == SPLICE else (body[:prefix], rest, added)
        return self._check(kind, count, crc, b"".join(parts))

    def _expand(self, arguments: Sequence[int], packed: bytes, position: int) -> GrowingValue:  # noqa: ARG002
        kind, count, size, crc, method = arguments
        check_size(size)
        return self._check(kind, count, crc, expand(method, packed, size))

    def _check(self, kind: int, count: int, crc: int, body: bytes) -> GrowingValue:
        if crc32(body) != crc:
            raise Mismatch
        self.size += len(body)
        return GrowingValue(kind, count, len(body), crc, [body])


def _start_growing(kind: int, count: int, body: bytes) -> GrowingValue:
    return GrowingValue(kind, count, len(body), crc32(body), [body])


def _as_growing(value: bytes | GrowingValue) -> GrowingValue:
    if isinstance(value, GrowingValue):
        return value
    return _start_growing(*read_body(value))
