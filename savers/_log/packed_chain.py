"""The packed states of the checkpoints from a keyframe on, from one pass over their records.

`decoded_chain.py` keeps where the bytes of values are. That suits a caller who wants one state. A
history wants the states of all checkpoints. Here a value is its bytes: those in the record that
sets it, without a Value, a checksum and pieces for each. Checkpoints share the values that did not
change, and a value that only grows has its bytes once for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointerError
from savers import _delta as delta
from savers._compression import expand
from savers._log.kept_records import KeptRecords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from savers._log.log_reader import LogReader
    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint

_MAX_BYTES: Final = 8 << 20
"""The most bytes that the changes of one chain may add."""

_BEHIND: Final = 1 << 16
"""Bytes that are read behind the checkpoint that is wanted first, for what belongs to it."""


class GrowingValue:
    """A packed value whose bytes are the first ones of a longer value."""

    __slots__ = ("_bytes", "count", "crc", "kind", "length")

    def __init__(self, kind: int, count: int, length: int, crc: int, all_bytes: _GrowingBytes) -> None:
        self.kind = kind
        self.count = count
        self.length = length
        """The bytes without the header."""
        self.crc = crc
        """The checksum of these bytes."""
        self._bytes = all_bytes

    def grow(self, count: int, added: bytes, crc: int) -> GrowingValue:
        """Return the value with bytes added at the end. No other value may have grown from this one."""
        self._bytes.add(added)
        return GrowingValue(self.kind, count, self.length + len(added), crc, self._bytes)

    def join_behind(self, header: bytes) -> bytes:
        """Return the bytes of the value behind a header."""
        joined = self._bytes.join()
        return b"".join((header, memoryview(joined)[: self.length]))


class _GrowingBytes:
    """Bytes to which others are added, joined when they are first wanted."""

    __slots__ = ("_parts",)

    def __init__(self, first: bytes) -> None:
        self._parts = [first]

    def add(self, part: bytes) -> None:
        self._parts.append(part)

    def join(self) -> bytes:
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]


PackedState = dict[str, "bytes | GrowingValue"]
"""The values of a state by key: packed, with their headers."""


class PackedCheckpoint(NamedTuple):
    """What belongs to a checkpoint and is not in its record, packed."""

    state: PackedState
    writes: Mapping[str, bytes]


def read_body(value: bytes | GrowingValue) -> tuple[int, int, bytes]:
    """Return the kind, the count and the bytes of a packed value.

    Raises:
        IndexError, struct.error: its header is malformed.
    """
    if isinstance(value, GrowingValue):
        return value.kind, value.count, value.join_behind(b"")
    kind, count, skip = delta.parse_header(value, 0) if value else (delta.OPAQUE, 0, 0)
    return kind, count, value[skip:]


class Unsuitable(Exception):  # noqa: N818 - the caller reads the log in the general way
    """The chain has something that this module does not handle, or something is wrong with it."""


class PackedChains:
    """The packed states of a log whose checkpoints are read from its end to its beginning, or nearly so.

    It keeps the states of one chain at a time.
    """

    def __init__(self, kept: KeptRecords, end: int) -> None:
        """Read no state yet.

        Args:
            kept: records that a scan of the log has decoded. They are used up.
            end: where the log ends.
        """
        self._kept = kept
        self._end = end
        self._chain_end = end
        """Where the chain before the one that was read last ends."""
        self._keyframe = -1
        """The keyframe of the chain whose states are kept."""
        self._states: dict[int, PackedState] = {}
        """The states by the offsets of their records; empty if they must be read in the general way."""

    def read(self, reader: LogReader, stored: StoredCheckpoint) -> PackedCheckpoint | None:
        """Return the packed state and writes of a checkpoint; None if they must be read in the general way.

        The general way also finds out what is wrong with a damaged log.
        """
        if reader.serializer is not None or reader.seal is not None or reader.is_scattered:
            return None
        if stored.keyframe_offset != self._keyframe:
            self._load(reader, stored)
        state = self._states.get(stored.offset)
        if state is None:
            return None
        return PackedCheckpoint(state, self._find_writes(reader, stored) if stored.writes else {})

    def _load(self, reader: LogReader, stored: StoredCheckpoint) -> None:
        keyframe = stored.keyframe_offset
        self._states = {}
        try:
            records = self._kept.chains.pop(keyframe, None)
            if records is None or records[-1].checkpoint.offset < stored.offset:
                self._kept = KeptRecords()
                last = self._chain_end if self._chain_end > stored.offset else self._end
                reader.scan_chain(keyframe, min(last, _find_end(stored)), self._kept)
                records = self._kept.chains.pop(keyframe, None)
            if records is not None:
                self._states = _replay(reader, records)
        except (Unsuitable, CheckpointerError, *delta.MALFORMED):
            self._states = {}
        self._keyframe = keyframe
        self._chain_end = keyframe

    def _find_writes(self, reader: LogReader, stored: StoredCheckpoint) -> Mapping[str, bytes]:
        """Return the packed writes of a checkpoint, in the order of their first recording."""
        written = self._kept.written
        offsets = stored.writes
        try:
            return {key: written[offset][key] for key, offset in offsets.items()}
        except KeyError:
            return reader.read_packed_writes(stored)


def _find_end(stored: StoredCheckpoint) -> int:
    """Return where to stop reading the records up to a checkpoint and what belongs to it."""
    last = max(stored.offset + stored.size, *stored.writes.values(), 0)
    return last + _BEHIND


def _replay(reader: LogReader, records: Sequence[DecodedRecord]) -> dict[int, PackedState]:
    """Return the packed state at each record of a chain, by its offset."""
    keyframe = records[0]
    replay = _begin_replay(reader, keyframe)
    states = {keyframe.checkpoint.offset: replay.values}
    for record in records[1:]:
        states[record.checkpoint.offset] = replay.apply(record.ops, record.data)
    return states


def replay_to_end(reader: LogReader, records: Sequence[DecodedRecord]) -> PackedState:
    """Return the packed state at the last record of a chain.

    Raises:
        Unsuitable: the state must be read in the general way.
        IndexError, KeyError, ValueError, TypeError, struct.error: the records are malformed.
        CheckpointCorruptionError: the keyframe names bytes that are damaged.
    """
    replay = _begin_replay(reader, records[0])
    for record in records[1:]:
        replay.apply(record.ops, record.data)
    return replay.values


def _begin_replay(reader: LogReader, keyframe: DecodedRecord) -> _Replay:
    """Return the state at a keyframe."""
    listed = keyframe.table or ()
    if not any(listed[1::2]):
        # Its own ops set all values.
        names = list(listed[::2])
        replay = _Replay(names, dict.fromkeys(names, b""))
        replay.apply(keyframe.ops, keyframe.data)
        return replay
    table = reader.build_table(keyframe)
    bodies = reader.read_bodies(table.values.values(), keyframe.checkpoint)
    values: PackedState = {}
    for (name, value), body in zip(table.values.items(), bodies, strict=True):
        if value.length <= delta.INLINE_LENGTH:
            values[name] = delta.pack_header(value.kind, value.count) + body
        else:
            values[name] = GrowingValue(value.kind, value.count, value.length, value.crc, _GrowingBytes(body))
    return _Replay(table.names, values)


class _Replay:
    """The packed state at one record after another."""

    def __init__(self, names: list[str], values: PackedState) -> None:
        self._names = names
        self.values = values
        """The state, which no later step changes."""
        self._room = _MAX_BYTES

    def apply(self, ops: Sequence[Any], added: bytes) -> PackedState:
        """Apply the ops of the next record as `Table.apply` does; return the state, which no later step changes.

        Raises:
            Unsuitable: the state must be read in the general way.
            IndexError, KeyError, ValueError, TypeError, struct.error: the ops are malformed.
        """
        # Nearly all ops set a value. 1.5 us for six of them.
        values = self.values.copy()
        names = self._names
        keys_changed = False
        position = 0
        i = 0
        while i < len(ops):
            op = ops[i]
            key = ops[i + 1]
            name = names[key] if key.__class__ is int else key
            if op == delta.SET:
                length = ops[i + 2]
                keys_changed = keys_changed or name not in values
                values[name] = added[position : position + length]
                i += 3
            elif op == delta.APPEND:
                length = ops[i + 3]
                values[name] = _append(values[name], ops[i + 2], added[position : position + length])
                i += 4
            elif op in {delta.SPLICE, delta.DROP}:
                length = ops[i + 6]
                values[name] = self._cut(op, values[name], ops[i + 2 : i + 6], added[position : position + length])
                i += 7
            elif op == delta.PACKED:
                length = ops[i + 7]
                keys_changed = keys_changed or name not in values
                values[name] = self._expand(ops[i + 2 : i + 7], added[position : position + length])
                i += 8
            elif op == delta.DEL:
                length = 0
                del values[name]
                keys_changed = True
                i += 2
            else:
                raise Unsuitable
            position += length
        if position != len(added):
            raise Unsuitable
        self._use(position)
        if keys_changed:
            self._names = list(values)
        self.values = values
        return values

    def _use(self, size: int) -> None:
        """Take note that a value takes so many bytes."""
        self._room -= size
        if self._room < 0:
            raise Unsuitable

    def _cut(self, op: int, old: bytes | GrowingValue, arguments: Sequence[int], new: bytes) -> GrowingValue:
        """Return a value with a part replaced (SPLICE), or a part taken out and bytes added (DROP)."""
        count, prefix, gone, crc = arguments
        if not gone and op == delta.SPLICE:
            growing = _make_growing(old)
            if growing.length == prefix:
                if crc32(new, growing.crc) != crc:
                    raise Unsuitable
                return growing.grow(count, new, crc)
        kind, _, body = read_body(old)
        rest = body[prefix + gone :]
        body = body[:prefix] + (new + rest if op == delta.SPLICE else rest + new)
        if crc32(body) != crc:
            raise Unsuitable
        self._use(len(body))
        return GrowingValue(kind, count, len(body), crc, _GrowingBytes(body))

    def _expand(self, arguments: Sequence[int], packed: bytes) -> GrowingValue:
        """Return a value that was stored compressed."""
        kind, count, size, crc, method = arguments
        self._use(size)
        body = expand(method, packed, size)
        if len(body) != size or crc32(body) != crc:
            raise Unsuitable
        return GrowingValue(kind, count, size, crc, _GrowingBytes(body))


def _append(old: bytes | GrowingValue, count: int, new: bytes) -> GrowingValue:
    growing = _make_growing(old)
    return growing.grow(growing.count + count, new, crc32(new, growing.crc))


def _make_growing(value: bytes | GrowingValue) -> GrowingValue:
    if isinstance(value, GrowingValue):
        return value
    kind, count, body = read_body(value)
    return GrowingValue(kind, count, len(body), crc32(body), _GrowingBytes(body))
