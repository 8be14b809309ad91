"""Reads the checkpoints of a log forward, each with what changed since the one before it.

A state is decoded as far as it changed. So a history of growing states takes linear time, where
reading each state by itself takes quadratic time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from graphkit import Checkpoint
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from graphkit.values import REMOVED, SET, Changes, FrozenDict, FrozenList, private_copy
from savers import _delta as delta
from savers._log.rewriter import replay_states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._log.log_reader import LogReader
    from savers._log.stored_checkpoint import StoredCheckpoint

_ENTRIES_PER_PIECE: Final = 2
"""Where it starts, and how long it is."""


def read_forward(reader: LogReader) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a log, oldest first; see `SupportsReplay`.

    Args:
        reader: the log, open, and used by no other caller.

    Raises:
        CheckpointCorruptionError: the log is damaged.
        CheckpointSerializationError: a state holds a type that is not registered.
    """
    states = _StateDecoder(reader)
    for stored, table in replay_states(reader, reader.load_index().checkpoints, None):
        before = states.last
        ops = states.advance(stored, table)
        yield Checkpoint.from_stored(
            id=stored.id,
            node_id=stored.node,
            next_node_id=stored.next,
            parent_id=stored.parent,
            created_us=stored.created,
            metadata=private_copy(stored.metadata),
            state=states.last,
            changes=None if before is None or ops is None else Changes(before, ops),
        )


class _DecodedValue(NamedTuple):
    """A value of the last state, as it was then: the Value itself may have grown since."""

    value: delta.Value
    size: int
    """Elements of a list or map; bytes of a str or bytes object."""
    length: int
    crc: int
    entries: int
    """The length of its list of pieces."""
    decoded: Any


class _StateDecoder:
    """Decodes the states of a log one after another."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._values: dict[str, _DecodedValue] = {}
        self.last: FrozenDict | None = None
        """The state of the last checkpoint; None before the first."""

    def advance(self, stored: StoredCheckpoint, table: delta.Table) -> dict[str, int] | None:
        """Decode the next state; return what changed, as in `Changes.ops`. None if that is not known."""
        try:
            if self._reader.serializer is not None:
                self.last = self._reader.load_state(stored)
                return None
            return self._decode_changes(stored, table)
        except CheckpointerError:
            raise
        except delta.MALFORMED as error:
            reason = f"the state is malformed: {error}"
            raise CheckpointCorruptionError(self._reader.path, stored.offset, reason) from error

    def _decode_changes(self, stored: StoredCheckpoint, table: delta.Table) -> dict[str, int]:
        ops: dict[str, int] = {}
        values: dict[str, _DecodedValue] = {}
        state = FrozenDict()
        for name, value in table.values.items():
            known = self._values.get(name)
            if known is not None and _is_unchanged(known, value):
                decoded = known.decoded
            else:
                decoded = None if known is None else self._decode_grown(known, value, name)
                ops[name] = SET
                if decoded is None:
                    decoded = self._decode_whole(value, name, stored)
                elif known is not None:
                    ops[name] = known.size
            values[name] = _DecodedValue(
                value=value,
                size=value.count,
                length=value.length,
                crc=value.crc,
                entries=len(value.pieces),
                decoded=decoded,
            )
            dict.__setitem__(state, name, decoded)  # A FrozenDict refuses assignments.
        for name in self._values:
            if name not in values:
                ops[name] = REMOVED
        self._values = values
        self.last = state
        return ops

    def _decode_whole(self, value: delta.Value, name: str, stored: StoredCheckpoint) -> Any:
        body = self._reader.read_bodies([value], stored)[0]
        return self._reader.codec.unpack(delta.pack_header(value.kind, value.count) + body, name)

    def _decode_grown(self, known: _DecodedValue, value: delta.Value, name: str) -> FrozenList | None:
        """Return a list to which elements were appended; None if something else happened to it."""
        # A tuple, a set and others are packed as lists, too, with a mark in front.
        if type(known.decoded) is not FrozenList:
            return None
        if value.kind != delta.LIST or value.count <= known.size or not _begins_with(value, known):
            return None
        body = b""
        for start, length in _pieces_after(value, known.entries):
            if start < 0:  # compressed
                return None
            body += self._reader.read_bytes(start, length)
        if len(body) != value.length - known.length or crc32(body, known.crc) != value.crc:
            return None  # reading it whole finds out what is wrong
        count = value.count - known.size
        items = self._reader.codec.unpack(delta.pack_header(delta.LIST, count) + body, name)
        if type(items) is not FrozenList:
            return None  # the list was empty, so that the mark is the first item
        grown: FrozenList = known.decoded + items
        grown.base = None  # it enters a state, and must not keep the list before it alive
        return grown


def _is_unchanged(known: _DecodedValue, value: delta.Value) -> bool:
    if (value.count, value.length, value.crc) != (known.size, known.length, known.crc):
        return False
    return value.kind == known.value.kind and len(value.pieces) == known.entries and _begins_with(value, known)


def _begins_with(value: delta.Value, known: _DecodedValue) -> bool:
    """Return whether a value begins with the bytes that a known one had."""
    old = known.value
    # A Value changes in place only by growing.
    if value is old:
        return True
    if value.kind != old.kind or value.block != old.block:
        return False
    return value.pieces[: known.entries] == old.pieces[: known.entries]


def _pieces_after(value: delta.Value, entries: int) -> Iterator[tuple[int, int]]:
    """Yield the pieces of a value from an entry on, each with its start and its length."""
    pieces = value.pieces
    for index in range(entries, len(pieces), _ENTRIES_PER_PIECE):
        yield pieces[index], pieces[index + 1]
