"""The records of a log from a keyframe on, decoded once for all states that are read of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from graphkit.values import PLAIN, FrozenList
from savers import _delta as delta

if TYPE_CHECKING:
    from savers._log.payloads import DecodedRecord
    from savers._log.table_reader import TableReader

MAX_LENGTH: Final = 8 << 20
"""Chains of more bytes are not kept."""
_MAX_KEPT: Final = 4
"""How many chains of a log are kept, if they are short."""
_DISTANCE: Final = 16
"""Records between two tables that are kept as long as the chain."""
_RECORD_COST: Final = 1 << 10
"""About how many bytes a decoded record takes in addition to its own."""
_PIECE_COST: Final = 16
"""Bytes that a piece takes in a list of pieces."""
_MIN_ITEMS: Final = 8
"""Items from which on a list is worth comparing."""
_MIN_PIECES: Final = 8
"""Pieces from which on the bytes of a value are worth keeping."""


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
        self._tables: list[delta.Table] = []
        """The table of every 16th record."""
        self._recent: dict[int, delta.Table] = {}
        """By number, the tables that were built last. Histories are read from their end, so the
        next caller wants one of these."""
        self._last_number = -1
        """The number of the record whose table was wanted last."""
        self._end = keyframe_offset
        self.keyframe_end = keyframe_offset
        """Where the keyframe ends."""
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
        for decoded in self._reader.read_chain(self._end, end, base):
            self.add(decoded)

    def add(self, decoded: DecodedRecord) -> None:
        """Add the record that follows the last one."""
        checkpoint = decoded.checkpoint
        size = checkpoint.size
        self._end = checkpoint.offset + size
        if not self._records:
            self.keyframe_end = self._end
        self._positions[checkpoint.offset] = len(self._records)
        self._records.append(decoded)
        self.size += size + _RECORD_COST

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> DecodedRecord:
        """The first record that was read: the keyframe."""
        return self._records[0]

    @property
    def last(self) -> DecodedRecord:
        """The last record that was read."""
        return self._records[-1]

    def find(self, offset: int) -> DecodedRecord | None:
        """Return the record at an offset; None if there is none."""
        number = self._positions.get(offset)
        return None if number is None else self._records[number]

    def build_table(self, offset: int) -> delta.Table | None:
        """Return the table of the record at an offset; the caller must not change it.

        None if the chain has no such record, or none that has a table.

        Raises:
            CheckpointCorruptionError: the changes are malformed.
        """
        number = self._positions.get(offset)
        if number is None:
            return None
        if number in self._recent:
            return self._recent[number]
        # Copying the lists of pieces for each record costs more than applying it. It pays only if
        # the tables before this one are wanted next, as in a history.
        is_walk = 0 < self._last_number - number <= _DISTANCE
        self._last_number = number
        nearest = min(number // _DISTANCE, len(self._tables) - 1)
        table = self._tables[nearest] if nearest >= 0 else None
        self._recent = {}
        position = nearest * _DISTANCE + 1 if nearest >= 0 else 0
        if table is not None and not is_walk and position <= number:
            table = table.copy()
        while position <= number:
            decoded = self._records[position]
            if decoded.table is not None:
                table = self._reader.build_table(decoded)
            elif table is not None and is_walk:
                table = self._reader.apply_change_to_copy(table, decoded)
            elif table is not None:
                position = self._apply_run(table, position, number)
            if table is not None:
                self._keep(position, table, number, is_shared=is_walk)
            position += 1
        if table is not None:
            self._recent[number] = table
        return table

    def _apply_run(self, table: delta.Table, first: int, number: int) -> int:
        """Apply the changes from a record on to the table of the record before it.

        Returns:
            The number of the last of them: the record that is wanted, or the next one whose table
            is kept.
        """
        limit = min(number, first + -first % _DISTANCE)
        last = first
        while last < limit and self._records[last + 1].table is None:
            last += 1
        self._reader.apply_changes(table, self._records[first : last + 1])
        return last

    def _keep(self, position: int, table: delta.Table, number: int, *, is_shared: bool) -> None:
        """Keep a table if it is worth it.

        Args:
            position: the number of its record.
            table: the table.
            number: the number of the record whose table is wanted.
            is_shared: whether no later record changes this object.
        """
        if position == len(self._tables) * _DISTANCE:
            self._tables.append(table if is_shared else table.copy())
            self.size += _PIECE_COST * sum(value.count_pieces() for value in table.values.values())
        if is_shared and position > number - _DISTANCE:
            self._recent[position] = table


class KeptChains:
    """The chains of a log that were used last."""

    def __init__(self) -> None:
        self._chains: dict[int, DecodedChain] = {}
        """By the offset of the keyframe, the one used last at the end."""

    @property
    def size(self) -> int:
        """About how many bytes they take."""
        return sum([chain.size for chain in self._chains.values()])

    def __len__(self) -> int:
        return len(self._chains)

    def find(self, keyframe_offset: int) -> DecodedChain | None:
        """Return the chain from a keyframe on; None if it is not kept."""
        return self._chains.get(keyframe_offset)

    def keep(self, chain: DecodedChain) -> None:
        """Keep a chain that is used now, and drop those used longest ago if they are too much."""
        chains = self._chains
        if next(reversed(chains), None) == chain.keyframe_offset and chains[chain.keyframe_offset] is chain:
            return
        chains.pop(chain.keyframe_offset, None)
        chains[chain.keyframe_offset] = chain
        while len(chains) > 1 and (len(chains) > _MAX_KEPT or self.size > MAX_LENGTH):
            del chains[next(iter(chains))]

    def drop(self, chain: DecodedChain) -> None:
        """Do not keep a chain any more."""
        self._chains.pop(chain.keyframe_offset, None)


class ReadValue(NamedTuple):
    """A value of a state that was read."""

    value: delta.Value
    packed: bytes
    """Its bytes behind their header, as they were unpacked; their checksum is right."""
    decoded: Any


class ReadValues:
    """The values of the state that was read last.

    A value that did not change from one checkpoint to the next need not be read again. Of a value
    that only grew, an older state has the first bytes, which need not be cut out of thousands of
    pieces again.
    """

    def __init__(self) -> None:
        self._values: dict[str, ReadValue] = {}
        self.size = 0
        """About how many bytes this takes."""

    def find(self, name: str, value: delta.Value) -> ReadValue | None:
        """Return what was read of a value itself; None if it was another value."""
        known = self._values.get(name)
        if known is None or known.value is not value:
            return None
        return known

    def find_body(self, name: str, value: delta.Value) -> bytes | None:
        """Return the bytes of a value if another one that was read begins with them."""
        known = self._values.get(name)
        if known is None or value.block is not None or known.value.block is not None:
            return None
        if value.count_pieces() < _MIN_PIECES:
            return None
        if not delta.begins_with(known.value, value):
            return None
        end = len(known.packed) - known.value.length + value.length
        body = known.packed[end - value.length : end]
        if len(body) != value.length:
            return None
        rest = known.packed[end:]
        # The checksum of the longer value is right. That of the shorter one is right exactly if it
        # leads to it by way of the rest, which is short when a history is walked back.
        if len(rest) < len(body):
            return body if crc32(rest, value.crc) == known.value.crc else None
        return body if crc32(body) == value.crc else None

    def find_items(self, name: str, value: delta.Value, packed: bytes) -> FrozenList | None:
        """Return a list whose items another list that was read begins with; None if there is none.

        The lists share the items. Of 3,000 messages, comparing their bytes takes a tenth of the time
        of unpacking them.

        Args:
            name: the key.
            value: the value.
            packed: its bytes behind their header; their checksum is right.
        """
        known = self._values.get(name)
        if known is None or type(known.decoded) is not FrozenList:
            return None
        if value.kind != delta.LIST or known.value.kind != delta.LIST:
            return None
        if not _MIN_ITEMS <= value.count <= len(known.decoded):
            return None
        body = packed[len(packed) - value.length :]
        if not known.packed.startswith(body, len(known.packed) - known.value.length):
            return None
        items = FrozenList(known.decoded[: value.count])
        if known.decoded.kind == PLAIN:
            items.kind = PLAIN
        return items

    def keep(self, name: str, read: ReadValue) -> None:
        """Keep a value, in place of the one that was kept under its name before."""
        known = self._values.get(name)
        if known is not None:
            self.size -= _measure(known)
        self._values[name] = read
        self.size += _measure(read)


def _measure(read: ReadValue) -> int:
    # The bytes, what was decoded of them, and the pieces.
    return 2 * len(read.packed) + _PIECE_COST * read.value.count_pieces()
