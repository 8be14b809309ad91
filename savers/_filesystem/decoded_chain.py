"""The records of a log from a keyframe on, decoded once for all states that are read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from savers import _delta as delta

if TYPE_CHECKING:
    from savers._filesystem.payloads import DecodedRecord
    from savers._filesystem.table_reader import TableReader

MAX_LENGTH: Final = 8 << 20
"""Chains of more bytes are not kept."""
_SNAPSHOT_DISTANCE: Final = 16
"""Records between two tables that are kept. A copy of a table costs as much as about 16 changes."""
_RECORD_COST: Final = 1 << 10
"""About how many bytes a decoded record takes in addition to its own."""
_PIECE_COST: Final = 8
"""Bytes that an entry of a list of pieces takes."""
_MIN_PIECES: Final = 16
"""Entries of a list of pieces from which on its bytes are worth keeping."""


class DecodedChain:
    """The CHECKPOINT records from a keyframe on.

    The records of an open file do not change, so a chain stays right until the file is closed.
    """

    def __init__(self, reader: TableReader, keyframe_offset: int) -> None:
        self.keyframe_offset = keyframe_offset
        self._reader = reader
        self._records: list[DecodedRecord] = []
        self._positions: dict[int, int] = {}
        """The number of each record in the chain, by its offset."""
        self._snapshots: list[delta.Table] = []
        """The table of every 16th record."""
        self._end = keyframe_offset
        self.size = 0
        """About how many bytes this takes."""

    def read_to(self, end: int) -> None:
        """Decode the records up to an offset, unless this was done before.

        Raises:
            CheckpointCorruptionError: one of them is damaged.
        """
        if end <= self._end:
            return
        base = self._records[-1].checkpoint if self._records else None
        for decoded, record_end in self._reader.read_chain(self._end, end, base):
            self._positions[decoded.checkpoint.offset] = len(self._records)
            self._records.append(decoded)
            self.size += decoded.checkpoint.size + _RECORD_COST
            self._end = record_end

    def build_table(self, offset: int) -> delta.Table | None:
        """Return the table of the record at an offset, which is the caller's own.

        None if the chain has no such record, or none that has a table.

        Raises:
            CheckpointCorruptionError: the changes are malformed.
        """
        number = self._positions.get(offset)
        if number is None:
            return None
        nearest = min(number // _SNAPSHOT_DISTANCE, len(self._snapshots) - 1)
        table: delta.Table | None = None
        first = 0
        if nearest >= 0:
            table = self._snapshots[nearest].copy()
            first = nearest * _SNAPSHOT_DISTANCE + 1
        for position in range(first, number + 1):
            table = self._apply(table, self._records[position])
            if position == len(self._snapshots) * _SNAPSHOT_DISTANCE and table is not None:
                self._keep(table.copy())
        return table

    def _apply(self, table: delta.Table | None, decoded: DecodedRecord) -> delta.Table | None:
        if decoded.table is not None:
            return self._reader.build_table(decoded)
        if table is not None:
            self._reader.apply_change(table, decoded)
        return table

    def _keep(self, table: delta.Table) -> None:
        self._snapshots.append(table)
        self.size += _PIECE_COST * sum(len(value.pieces) for value in table.values.values())


class DecodedBodies:
    """The bytes of the long values of the state that was read last.

    Of a value that only grew, an older state has the first bytes. So they need not be read again,
    nor cut out of the thousands of pieces that such a value has.
    """

    def __init__(self) -> None:
        self._bodies: dict[str, tuple[list[int], bytes]] = {}
        self.size = 0
        """About how many bytes this takes."""

    def find(self, name: str, value: delta.Value) -> bytes | None:
        """Return the bytes of a value if they are known; the caller checks their checksum."""
        if name not in self._bodies or value.block is not None:
            return None
        pieces, body = self._bodies[name]
        if len(body) < value.length or pieces[: len(value.pieces)] != value.pieces:
            return None
        return body[: value.length]

    def keep(self, name: str, value: delta.Value, body: bytes) -> None:
        """Keep the bytes of a value, in place of those that were kept before."""
        if value.block is not None or len(value.pieces) < _MIN_PIECES:
            return
        known = self._bodies.get(name)
        if known is not None:
            self.size -= len(known[1]) + _PIECE_COST * len(known[0])
        self._bodies[name] = (value.pieces, body)
        self.size += len(body) + _PIECE_COST * len(value.pieces)
