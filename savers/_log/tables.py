"""Reads the tables of keyframes and of the checkpoints behind them, and the bytes of the values that they name.

A table is the packed state of one checkpoint: where the bytes of each value lie in the log. A writer
needs the last one, to name pieces of it in the next keyframe. Prune, verify and repair need all of
them. A reader of states needs the table of a keyframe only if it names bytes of earlier records.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from msgpack import ExtType, unpackb

from graphkit.errors import CheckpointCorruptionError, CheckpointStorageError
from graphkit.values import FrozenDict
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from savers._log.frame import Frame
    from savers._log.frame_log import AnyFrameLog
    from savers._log.stored_checkpoint import StoredCheckpoint

_ODD_KEYS: Final = ExtType(0, b"\0")
"""The mark in front of a mapping with keys that a msgpack map cannot hold, such as a str with a
lone surrogate."""


class TableReader:
    """Reads tables of one log.

    Attributes:
        frames: the log.
        unpack: decodes packed metadata.
    """

    def __init__(self, frames: AnyFrameLog, unpack: payloads.Unpack) -> None:
        self.frames = frames
        self.unpack = unpack

    @property
    def is_opaque(self) -> bool:
        """Whether states are the bytes of a StateSerializer."""
        return bool(self.frames.identity.is_opaque)

    # The bytes of values

    def read_bodies(self, values: Iterable[delta.Value], offset: int) -> list[bytes]:
        """Return the bytes of some values of a packed state, without their headers.

        Args:
            values: the values.
            offset: the offset of the checkpoint to which they belong, for errors.

        Raises:
            CheckpointCorruptionError: the bytes do not have the checksum of the value, or name
                pieces that cannot be.
            CheckpointStorageError: the machine has too little memory for the values.
        """
        path = self.frames.path
        try:
            return delta.read_bodies(values, self._read_ranges, self.frames.bytes.read_window)
        except MemoryError as error:
            raise explain_no_memory(path) from error
        except delta.Mismatch:
            raise CheckpointCorruptionError(path, offset, "the state's checksum is wrong") from None
        except delta.MALFORMED as error:
            raise CheckpointCorruptionError(path, offset, f"the state is malformed: {error}") from error

    def read_pieces(self, value: delta.Value, pieces: list[int]) -> bytes:
        """Return the bytes of some pieces of a value, unchecked.

        Raises:
            delta.Mismatch: they name bytes that cannot be.
        """
        return delta.read_pieces(value, pieces, self._read_ranges)

    def _read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        end = self.frames.end
        if any(start < 0 or stop < start or stop > end for start, stop in ranges):
            raise delta.Mismatch
        return self.frames.records.read_ranges(ranges)

    # Tables

    def apply(self, table: delta.Interpreter[Any], record: payloads.DecodedRecord) -> None:
        """Apply the ops of a record to the table of the record before it.

        Raises:
            CheckpointCorruptionError: the ops are malformed, or a value does not have its checksum.
        """
        try:
            table.apply(record.ops, record.data, record.start)
        except delta.Mismatch:
            reason = "the state's checksum is wrong"
            raise CheckpointCorruptionError(self.frames.path, record.checkpoint.offset, reason) from None
        except delta.MALFORMED as error:
            reason = f"the change is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, record.checkpoint.offset, reason) from error

    def build(self, keyframe: payloads.DecodedRecord) -> delta.Table:
        """Return the table at a keyframe: that which it lists, with its own ops applied.

        Raises:
            CheckpointCorruptionError: the table is malformed, or an earlier keyframe that it names
                is damaged.
        """
        # This keyframe is the base of each value of which it lists pieces: all of them, or those that follow the pieces
        # of an earlier base, which a reader then needs, too. `depth` counts these. It is taken before the ops, because
        # an op may make a new value of the same pieces. A value of which it lists no piece keeps its base.
        position = keyframe.checkpoint.offset
        table = self.list_entries(keyframe, lambda entry, name, seen: self.decode_entry(entry, name, position, seen))
        depths = {name: value.depth for name, value in table.values.items()}
        self.apply(table, keyframe)
        for name, value in table.values.items():
            if value.base is None:
                value.set_base(position, depths.get(name, 0))
        return table

    def list_entries(
        self,
        keyframe: payloads.DecodedRecord,
        decode: Callable[[Any, str, dict[int, payloads.DecodedRecord]], delta.Value],
    ) -> delta.Table:
        """Return the table that a keyframe lists, before its own ops.

        Args:
            keyframe: the record.
            decode: returns the value of an entry, given its name and the keyframes that were read
                so far, by offset.

        Raises:
            CheckpointCorruptionError: as for `build`.
        """
        position = keyframe.checkpoint.offset
        table = delta.Table(opaque=self.is_opaque)
        seen: dict[int, payloads.DecodedRecord] = {position: keyframe}
        try:
            table.names = keyframe.names
            for name, entry in zip(table.names, keyframe.entries, strict=True):
                table.values[name] = decode(entry, name, seen)
        except (*delta.MALFORMED, RecursionError) as error:
            reason = f"the keyframe is malformed: {error}"
            raise CheckpointCorruptionError(self.frames.path, position, reason) from error
        return table

    def decode_entry(
        self, entry: Any, name: str, position: int, seen: dict[int, payloads.DecodedRecord]
    ) -> delta.Value:
        """Return the value that an entry of a keyframe's table describes.

        Args:
            entry: the entry; None if an op of the keyframe sets the key.
            name: the key.
            position: the offset of the keyframe.
            seen: keyframes that were decoded already, by their offsets; earlier ones are added.
        """
        if entry is None:
            return delta.Value(delta.OPAQUE, 0, 0, 0, [])
        return delta.decode_entry(entry, position, lambda base: self._find_value_at(base, name, seen))

    def _find_value_at(self, position: int, name: str, seen: dict[int, payloads.DecodedRecord]) -> delta.Value:
        """Return a value as the keyframe at an offset left it."""
        keyframe = seen.get(position)
        if keyframe is None:
            seen[position] = keyframe = self._read_keyframe(position)
        table = delta.Table(opaque=self.is_opaque)
        table.names = keyframe.names
        entry = keyframe.entries[table.names.index(name)]
        value = self.decode_entry(entry, name, position, seen)
        depth = value.depth
        table.values[name] = value
        table.apply(keyframe.ops, keyframe.data, keyframe.start, only=name)
        value = table.values[name]
        if value.base is None:
            value.set_base(position, depth)
        return value

    def _read_keyframe(self, position: int) -> payloads.DecodedRecord:
        self.frames.bytes.expect_keyframes(position)
        frame = self.frames.records.read(position, self.frames.end)
        if frame.type != CHECKPOINT:
            reason = "a keyframe names it, and it is no checkpoint"
            raise CheckpointCorruptionError(self.frames.path, position, reason)
        return payloads.decode_checkpoint(self.frames.path, frame, None, self.unpack)


class TableReplay:
    """The packed state at one checkpoint of a log after another: the cost of reading all is linear."""

    def __init__(self, tables: TableReader, *, lost_offset: int | None = None, skips_metadata: bool = False) -> None:
        """Begin before the first record.

        Args:
            tables: those of the log, which is open.
            lost_offset: an offset inside the damaged region of the log. A value whose pieces are
                lost is reported to have its bytes there. None: lost pieces are an error.
            skips_metadata: check metadata without decoding them, so that no application type needs
                to be registered.
        """
        self._path = tables.frames.path
        self._records = tables.frames.records
        self._tables = tables
        self._lost_offset = lost_offset
        self._unpack: Any = _check_metadata if skips_metadata else tables.unpack
        self.checkpoint: StoredCheckpoint | None = None
        """The checkpoint of the last CHECKPOINT record."""
        self.table: delta.Table | None = None
        """Its packed state. The next step changes it."""
        self.keyframe_offset = 0
        """Where the last keyframe is."""

    def step(self, frame: Frame) -> payloads.DecodedRecord:
        """Apply the next CHECKPOINT record, opened.

        Raises:
            CheckpointCorruptionError: the record does not follow from the one before it. The replay
                can continue with the next keyframe.
        """
        path = self._path
        base, table = self.checkpoint, self.table
        self.checkpoint = None
        self.table = None
        is_keyframe = bool(frame.flags & KEY)
        if not is_keyframe:
            base_offset = frame.offset - frame.back
            if base is None or table is None or base.offset != base_offset:
                reason = "the record that it is relative to is lost"
                raise CheckpointCorruptionError(path, frame.offset, reason)
        decoded = payloads.decode_checkpoint(path, frame, base, self._unpack)
        if is_keyframe:
            self.keyframe_offset = frame.offset
        decoded.checkpoint.keyframe_offset = self.keyframe_offset
        if decoded.table is not None:
            table = self._tables.list_entries(decoded, self._decode_entry)
        assert table is not None
        self._tables.apply(table, decoded)
        self.checkpoint = decoded.checkpoint
        self.table = table
        return decoded

    def _decode_entry(self, entry: Any, name: str, seen: dict[int, payloads.DecodedRecord]) -> delta.Value:
        try:
            return self._tables.decode_entry(entry, name, self.keyframe_offset, seen)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            if self._lost_offset is None:
                raise
            kind, count, length, crc = entry[0] & ~delta.BLOCK, entry[1], entry[2], entry[3]
            return delta.Value(kind, count, length, crc, [self._lost_offset, max(length, 1)])

    def advance_to(self, target: StoredCheckpoint, frames: Iterator[Frame]) -> delta.Table:
        """Apply records until a checkpoint is reached, and return its packed state.

        Args:
            target: the checkpoint.
            frames: the records that follow the last one applied, not opened.

        Raises:
            CheckpointCorruptionError: the checkpoint cannot be reached.
        """
        while self.checkpoint is None or self.checkpoint.offset < target.offset:
            frame = next(frames, None)
            if frame is None or frame.offset > target.offset:
                reason = "it cannot be rebuilt"
                raise CheckpointCorruptionError(self._path, target.offset, reason)
            if frame.type == CHECKPOINT:
                try:
                    self.step(self._records.open(frame))
                except CheckpointCorruptionError:
                    if self._lost_offset is None or frame.offset == target.offset:
                        raise
        assert self.table is not None
        return self.table


def _check_metadata(packed: bytes) -> FrozenDict:
    """Check that packed metadata are a mapping; return an empty mapping in their place.

    Raises:
        TypeError: they are not a mapping.
        ValueError: they are not msgpack.
    """
    metadata = unpackb(packed, strict_map_key=False, unicode_errors="surrogatepass")
    is_mapping = isinstance(metadata, dict)
    has_odd_keys = isinstance(metadata, list) and metadata[:1] == [_ODD_KEYS]
    if not is_mapping and not has_odd_keys:
        raise TypeError("metadata are not a mapping")
    return FrozenDict()


def explain_no_memory(path: str) -> CheckpointStorageError:
    """Return the error for a state that does not fit into memory.

    Forged compressed bytes may expand to 4 GiB; so may a state on a machine that is too small for it.
    """
    cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
    return CheckpointStorageError(path, "read a state of", cause)
