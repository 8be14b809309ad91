"""The packed states of a short log, from one pass over its bytes.

`decoded_chain.py` keeps where the bytes of values are, because the values of a long log would not
fit into memory once for each checkpoint. Those of a short log do. Here a value is its bytes, and
checkpoints share the values that did not change, so that each value is decoded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from msgpack import unpackb

from graphkit.values import PRIVATE, FrozenDict, kind_of
from savers import _delta as delta
from savers._delta import pack_header, parse_header
from savers._log.frame import FRAME_SIZE, KEY, SCATTERED, SYNC, TRAILER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphkit.codec import Codec
    from savers._log.stored_checkpoint import StoredCheckpoint

_FLAGS_AT: Final = 12
"""Where the flags stand in a record's header."""
_MAX_BYTES: Final = 4 << 20
"""The most bytes of values of one log. A value that grows has all its bytes again each time."""
_SET: Final = delta.SET
_APPEND: Final = delta.APPEND
_SPLICE: Final = delta.SPLICE
_DEL: Final = delta.DEL
_CUTS: Final = frozenset({delta.SPLICE, delta.DROP})
_NOTHING: Final = (delta.OPAQUE, 0, 0)
"""The kind, count and header's length of a value without bytes."""
_READABLE_FLAGS: Final = KEY | SCATTERED
_new_value: Final[Callable[..., ChangedValue]] = tuple.__new__


class ChangedValue(NamedTuple):
    """A value that a change made of an older one: its header and its bytes are not joined."""

    kind: int
    length: int
    """What its header says."""
    body: bytes
    """The bytes behind the header."""
    crc: int
    """The checksum of these bytes."""

    def pack(self) -> bytes:
        """Return the packed value."""
        return pack_header(self.kind, self.length) + self.body


PackedState = dict[str, bytes | ChangedValue]
"""The values of a state by key: packed, with their headers."""


class _Unsuitable(Exception):  # noqa: N818 - the caller reads the log in the general way
    """The log has something that this module does not handle, or something is wrong with it."""


class RecordContent(NamedTuple):
    """What a CHECKPOINT record says of the state."""

    flags: int
    ops: Sequence[Any]
    table: Sequence[Any] | None
    """In a keyframe: name, entry, name, entry, ...; None in a change."""
    added: bytes
    """The bytes that the ops add."""


def replay_states(data: bytes, checkpoints: Sequence[StoredCheckpoint]) -> dict[int, PackedState]:
    """Return the packed state of each checkpoint of a log, by the offset of its record.

    Empty if the log must be read in the general way, which also finds out what is wrong with it.

    Args:
        data: the bytes of the log, whose records are good.
        checkpoints: all checkpoints, in the order of their records; none replaces another.
    """
    try:
        contents = [_read_content(data, stored) for stored in checkpoints]
    except (_Unsuitable, *delta.MALFORMED):
        return {}
    return replay_contents(contents, checkpoints, checkpoints, _MAX_BYTES) or {}


def _read_content(data: bytes, stored: StoredCheckpoint) -> RecordContent:
    """Return what the record of a checkpoint says of its state."""
    offset = stored.offset
    if not data.startswith(SYNC, offset):
        raise _Unsuitable
    flags = data[offset + _FLAGS_AT]
    payload = data[offset + FRAME_SIZE : offset + stored.size - TRAILER_SIZE]
    parts = unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
    return RecordContent(flags, parts[4], parts[5] if flags & KEY else None, parts[-1])


def replay_contents(
    contents: Sequence[RecordContent],
    checkpoints: Sequence[StoredCheckpoint],
    wanted: Sequence[StoredCheckpoint],
    room: int,
) -> dict[int, PackedState] | None:
    """Return the packed states of some checkpoints, from what the records of a log say.

    Args:
        contents: the contents of the records.
        checkpoints: all checkpoints, in the same order.
        wanted: those whose states are made.
        room: the most bytes that the values may take which the records set or change.

    Returns:
        The states by the offsets of their records; empty if the log must be read in the general
        way, None if there was no room.
    """
    states: dict[int, PackedState] = {}
    names: list[str] = []
    values: PackedState = {}
    offsets = {stored.offset for stored in wanted}
    try:
        for stored, (flags, ops, table, added) in zip(checkpoints, contents, strict=True):
            if flags & ~_READABLE_FLAGS:
                return {}
            if table is not None:
                names = list(table[::2])
                values = _check_listed(names, table[1::2], values)
            names, size = _apply(ops, added, names, values)
            room -= size
            if room < 0:
                return None
            if stored.offset in offsets:
                states[stored.offset] = values.copy()
                if len(states) == len(offsets):
                    break
    except (_Unsuitable, *delta.MALFORMED):
        return {}
    return states


def _check_listed(names: Sequence[str], entries: Sequence[Any], old: PackedState) -> PackedState:
    """Return the values that a keyframe lists: those of the state before it, or none yet."""
    values: PackedState = {}
    for name, entry in zip(names, entries, strict=True):
        if entry is None:
            values[name] = b""
            continue
        kind, count, body, crc = _split(old[name])
        if [kind, count, len(body), crc] != entry[:4]:
            raise _Unsuitable
        values[name] = old[name]
    return values


def _split(value: bytes | ChangedValue) -> ChangedValue:
    """Return a value with its header and its bytes apart."""
    if isinstance(value, ChangedValue):
        return value
    kind, count, skip = parse_header(value, 0) if value else _NOTHING
    body = value[skip:]
    return ChangedValue(kind, count, body, crc32(body))


def _apply(  # noqa: PLR0915 - one loop
    ops: Sequence[Any], added: bytes, names: list[str], values: PackedState
) -> tuple[list[str], int]:
    """Apply ops to the values of a state, as `Table.apply` does.

    Returns:
        The names of the new state, and how many bytes its new values take.
    """
    keys_before = len(values)
    is_deleted = False
    changed = 0
    position = 0
    i = 0
    end = len(ops)
    # 1.6 us for two values that are set and one that grows.
    while i < end:
        op = ops[i]
        key = ops[i + 1]
        name = names[key] if key.__class__ is int else key
        if op == _SET:
            stop = position + ops[i + 2]
            values[name] = added[position:stop]
            position = stop
            i += 3
            continue
        if op == _DEL:
            del values[name]
            is_deleted = True
            i += 2
            continue
        old = values[name]
        kind, count, body, crc = old if isinstance(old, ChangedValue) else _split(old)
        if op == _APPEND:
            stop = position + ops[i + 3]
            count += ops[i + 2]
            new = added[position:stop]
            body += new
            crc = crc32(new, crc)
            i += 4
        elif op in _CUTS:
            _, _, count, prefix, gone, right_crc, length = ops[i : i + 7]
            stop = position + length
            new = added[position:stop]
            if not gone and prefix == len(body) and op == _SPLICE:
                body += new
                crc = crc32(new, crc)
            else:
                rest = body[prefix + gone :]
                body = body[:prefix] + (new + rest if op == _SPLICE else rest + new)
                crc = crc32(body)
            if crc != right_crc:
                raise _Unsuitable
            i += 7
        else:
            raise _Unsuitable
        values[name] = _new_value(ChangedValue, (kind, count, body, crc))
        changed += len(body)
        position = stop
    if position != len(added):
        raise _Unsuitable
    if is_deleted or len(values) != keys_before:
        names = list(values)
    return names, position + changed


class StateDecoder:
    """Decodes packed states of one log. Each value is decoded once for all states that have it."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._decoded: dict[str, tuple[bytes | ChangedValue, Any]] = {}
        """By key, the packed value of the last state and what it decodes to."""

    def decode(self, values: PackedState) -> FrozenDict:
        """Return the state; raise what the codec raises."""
        state = FrozenDict()
        for name, packed in values.items():
            known = self._decoded.get(name)
            if known is None or known[0] is not packed:
                known = self._decode_value(name, packed)
            _, decoded = known
            dict.__setitem__(state, name, decoded)  # A FrozenDict refuses assignments.
        return state

    def _decode_value(self, name: str, packed: bytes | ChangedValue) -> tuple[bytes | ChangedValue, Any]:
        """Return the packed value with what it decodes to, and remember them."""
        kind, count, body, _ = _split(packed)
        if kind == delta.BIN:
            return packed, body
        known = packed, self._codec.unpack(pack_header(kind, count) + body, name)
        if kind_of(known[1]) != PRIVATE:
            self._decoded[name] = known
        return known
