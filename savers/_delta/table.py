"""The packed state of one checkpoint, and how a record's ops change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from savers._delta.operations import APPEND, DEL, DROP, PACKED, SET, SPLICE, WIDTHS
from savers._delta.pieces import cut, cut_rest, is_in_block
from savers._delta.values import BLOCK_BASE, OPAQUE, Value, check_size, parse_header


class Table:
    """The packed state of one checkpoint: keys in order, each with its Value."""

    __slots__ = ("names", "opaque", "values")

    def __init__(self, *, opaque: bool) -> None:
        self.values: dict[str, Value] = {}
        self.names: list[str] = []
        """The keys in order: ops name a key by its position in this list."""
        self.opaque = opaque
        """Whether values are bytes of a StateSerializer, which have no msgpack header."""

    @property
    def length(self) -> int:
        """The bytes of all values."""
        return sum([value.length for value in self.values.values()])

    def copy(self) -> Table:
        """Return a copy that can be changed without changing this table."""
        new = Table(opaque=self.opaque)
        new.names = self.names
        new.values = {name: value.copy() for name, value in self.values.items()}
        return new

    def apply(self, ops: Sequence[Any], data: bytes, start: int) -> None:  # noqa: C901, PLR0912, PLR0915 - a branch for each op
        """Apply the ops of a record, so that this becomes the table after the record.

        This is part of each put and of each record that a reader replays. Therefore it reads the
        flat array by position; operations.py names the elements of each op.

        Args:
            ops: the ops.
            data: the bytes that they add.
            start: the position of the data's first byte.

        Raises:
            IndexError, KeyError, ValueError, TypeError, struct.error: the ops are malformed. The
                table may have been changed in part.
        """
        values = self.values
        names = self.names
        offset = 0
        i = 0
        keys_changed = False
        while i < len(ops):
            op = ops[i]
            key = ops[i + 1]
            name = names[key] if key.__class__ is int else key
            if op == APPEND:
                length = ops[i + 3]
                _append(values[name], ops[i + 2], data[offset : offset + length], start + offset)
                i += 4
            elif op == SET:
                length = ops[i + 2]
                if name not in values:
                    keys_changed = True
                # In line: nearly all ops are of this kind, and a call takes a quarter of the time.
                kind, count, skip = (OPAQUE, 0, 0) if self.opaque or not length else parse_header(data, offset)
                size = length - skip
                body = data[offset + skip : offset + length]
                pieces = [start + offset + skip, size] if size else []
                values[name] = Value(kind, count, size, crc32(body), pieces)
                i += 3
            elif op == SPLICE:
                length = ops[i + 6]
                if _adds_at_end(values[name], ops, i):
                    _extend(values[name], ops[i + 2], ops[i + 5], length, start + offset)
                else:
                    values[name] = _splice(values[name], ops[i + 2 : i + 7], start + offset)
                i += 7
            elif op == PACKED:
                length = ops[i + 7]
                keys_changed = keys_changed or name not in values
                values[name] = _set_compressed(ops[i + 2 : i + 8], start + offset)
                i += 8
            elif op == DEL:
                length = 0
                del values[name]
                keys_changed = True
                i += 2
            elif op == DROP:
                length = ops[i + 6]
                values[name] = _drop(values[name], ops[i + 2 : i + 7], start + offset)
                i += 7
            else:
                raise ValueError(f"unknown op {op!r}")
            offset += length
        if offset != len(data):
            raise ValueError("the data is longer or shorter than its ops say")
        if keys_changed:
            self.names = list(values)

    def apply_to_key(self, name: str, ops: Sequence[Any], data: bytes, start: int) -> None:
        """Apply only the ops of one key, the only key with a value in this table; see `apply`."""
        offset = 0
        i = 0
        while i < len(ops):
            op = ops[i]
            key = ops[i + 1]
            width = WIDTHS[op]
            length = ops[i + width - 1] if op != DEL else 0
            op_name = self.names[key] if key.__class__ is int else key
            if op_name == name:
                # A table of its own, because `apply` may replace the list of names.
                part = Table(opaque=self.opaque)
                part.values = self.values
                part.names = self.names
                part.apply(ops[i : i + width], data[offset : offset + length], start + offset)
            i += width
            offset += length


def _set_compressed(arguments: Sequence[int], start: int) -> Value:
    kind, count, size, crc, method, length = arguments
    check_size(size)
    value = Value(kind=kind, count=count, length=size, crc=crc, pieces=[start - BLOCK_BASE, size])
    value.block = start, length, size, method
    return value


def _append(value: Value, count: int, body: bytes, start: int) -> None:
    size = len(body)
    value.count += count
    value.length += size
    value.crc = crc32(body, value.crc)
    if size:
        value.add_piece(start, size)


def _adds_at_end(value: Value, ops: Sequence[Any], i: int) -> bool:
    """Return whether a SPLICE only adds bytes behind those of the value."""
    return ops[i + 3] == value.length and not ops[i + 4]


def _extend(value: Value, count: int, crc: int, length: int, start: int) -> None:
    """Add bytes at the end. The value keeps its base, so that keyframes do not list it again."""
    value.count = count
    value.length += length
    value.crc = crc
    if length:
        value.add_piece(start, length)


def _splice(old: Value, arguments: Sequence[int], start: int) -> Value:
    count, prefix, removed, crc, length = arguments
    new_length = old.length - removed + length
    pieces = cut(old.pieces, 0, prefix)
    if length:
        pieces += (start, length)
    pieces += cut_rest(old.pieces, prefix + removed)
    new = Value(
        kind=old.kind,
        count=count,
        length=new_length,
        crc=crc,
        pieces=pieces,
    )
    _keep_block(old, new)
    return new


def _drop(old: Value, arguments: Sequence[int], start: int) -> Value:
    count, prefix, dropped, crc, length = arguments
    new_length = old.length - dropped + length
    pieces = cut(old.pieces, 0, prefix)
    pieces += cut_rest(old.pieces, prefix + dropped)
    if length:
        pieces += (start, length)
    new = Value(
        kind=old.kind,
        count=count,
        length=new_length,
        crc=crc,
        pieces=pieces,
    )
    _keep_block(old, new)
    return new


def _keep_block(old: Value, new: Value) -> None:
    """Give a new value the block of the old one if some of its pieces are still in it."""
    if old.block is not None and is_in_block(new.pieces):
        new.block = old.block
