"""What the ops of a record do to a state, and the state as the pieces of its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar
from zlib import crc32

from savers._delta.operations import APPEND, DEL, DROP, PACKED, SET, SPLICE, WIDTHS
from savers._delta.pieces import cut, cut_rest, is_in_block
from savers._delta.values import BLOCK_BASE, OPAQUE, Value, check_size, parse_header

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

    def apply(self, ops: Sequence[Any], data: bytes, start: int, only: str | None = None) -> None:  # noqa: C901 - a branch for each op
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
