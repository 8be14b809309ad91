"""The packed states of a short log, from one pass over its bytes.

`decoded_chain.py` keeps where the bytes of values are, because the values of a long log would not
fit into memory once for each checkpoint. Those of a short log do. Here a value is its bytes, and
checkpoints share the values that did not change, so that each value is decoded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from msgpack import unpackb

from graphkit.values import PRIVATE, FrozenDict, kind_of
from savers import _delta as delta
from savers._log.frame import FRAME_SIZE, KEY, SCATTERED, SYNC, TRAILER_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkit.codec import Codec
    from savers._log.stored_checkpoint import StoredCheckpoint

_FLAGS_AT: Final = 12
"""Where the flags stand in a record's header."""
_MAX_BYTES: Final = 4 << 20
"""The most bytes of values of one log. A value that grows has all its bytes again each time."""
_UNKNOWN: Final = object()


class PackedValue:
    """A packed value with its bytes, and what it decodes to."""

    __slots__ = ("body", "count", "decoded", "kind")

    def __init__(self, kind: int, count: int, body: bytes) -> None:
        self.kind = kind
        self.count = count
        self.body = body
        """The bytes without the header."""
        self.decoded: Any = _UNKNOWN

    def decode(self, codec: Codec, name: str) -> Any:
        """Return the value; raise what the codec raises."""
        decoded = self.decoded
        if decoded is _UNKNOWN:
            if self.kind == delta.BIN:
                return self.body
            decoded = codec.unpack(delta.pack_header(self.kind, self.count) + self.body, name)
            if kind_of(decoded) != PRIVATE:
                self.decoded = decoded
        return decoded


PackedState = dict[str, PackedValue]


class _Unsuitable(Exception):  # noqa: N818 - the caller reads the log in the general way
    """The log has something that this module does not handle, or something is wrong with it."""


def replay_states(data: bytes, checkpoints: Sequence[StoredCheckpoint]) -> dict[int, PackedState]:
    """Return the packed state of each checkpoint of a log, by the offset of its record.

    Empty if the log must be read in the general way, which also finds out what is wrong with it.

    Args:
        data: the bytes of the log, whose records are good.
        checkpoints: all checkpoints, in the order of their records; none replaces another.
    """
    states: dict[int, PackedState] = {}
    replay = _StateReplay(data)
    try:
        for stored in checkpoints:
            states[stored.offset] = replay.step(stored)
    except (_Unsuitable, *delta.MALFORMED):
        return {}
    return states


def decode_state(values: PackedState, codec: Codec) -> FrozenDict:
    """Return the state; raise what the codec raises."""
    state = FrozenDict()
    for name, value in values.items():
        dict.__setitem__(state, name, value.decode(codec, name))  # A FrozenDict refuses assignments.
    return state


class _StateReplay:
    """The packed state at one checkpoint after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._names: list[str] = []
        self._values: PackedState = {}
        self._bytes = 0
        """The bytes of all values so far."""

    def step(self, stored: StoredCheckpoint) -> PackedState:
        """Apply the next record, and return its state, which no later step changes."""
        data = self._data
        offset = stored.offset
        flags = data[offset + _FLAGS_AT]
        if not data.startswith(SYNC, offset) or flags & ~(KEY | SCATTERED):
            raise _Unsuitable
        payload = data[offset + FRAME_SIZE : offset + stored.size - TRAILER_SIZE]
        parts = unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
        if flags & KEY:
            listed = parts[5]
            self._names = listed[::2]
            self._values = self._check_listed(listed[1::2])
        else:
            self._values = self._values.copy()
        self._apply(parts[4], parts[-1])
        if self._bytes > _MAX_BYTES:
            raise _Unsuitable
        return self._values

    def _check_listed(self, entries: Sequence[Any]) -> PackedState:
        """Return the values that a keyframe lists: those of the state before it, or none yet."""
        values: PackedState = {}
        for name, entry in zip(self._names, entries, strict=True):
            if entry is None:
                values[name] = PackedValue(delta.OPAQUE, 0, b"")
                continue
            old = self._values[name]
            body = old.body
            if [old.kind, old.count, len(body), crc32(body)] != entry[:4]:
                raise _Unsuitable
            values[name] = old
        return values

    def _apply(self, ops: Sequence[Any], added: bytes) -> None:
        """Apply ops, as `Table.apply` does."""
        values = self._values
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
                new = added[position : position + length]
                keys_changed = keys_changed or name not in values
                kind, count, skip = delta.parse_header(new, 0)
                body = new[skip:]
                i += 3
            elif op == delta.APPEND:
                length = ops[i + 3]
                old = values[name]
                kind = old.kind
                count = old.count + ops[i + 2]
                body = old.body + added[position : position + length]
                i += 4
            elif op in {delta.SPLICE, delta.DROP}:
                _, _, count, prefix, gone, crc, length = ops[i : i + 7]
                old = values[name]
                kind = old.kind
                new = added[position : position + length]
                rest = old.body[prefix + gone :]
                body = old.body[:prefix] + (new + rest if op == delta.SPLICE else rest + new)
                if crc32(body) != crc:
                    raise _Unsuitable
                i += 7
            elif op == delta.DEL:
                del values[name]
                keys_changed = True
                i += 2
                continue
            else:
                raise _Unsuitable
            values[name] = PackedValue(kind, count, body)
            self._bytes += len(body)
            position += length
        if position != len(added):
            raise _Unsuitable
        if keys_changed:
            self._names = list(values)
