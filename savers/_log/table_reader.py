"""Reads packed states and the bytes of their values from one open log."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointStorageError
from savers import _delta as delta
from savers._log import log, payloads
from savers._log.plain_records import read_plain_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from savers._log.log_file import ByteSource
    from savers._log.opened_ranges import OpenedRanges
    from savers._log.sealing import LogSeal
    from savers._log.stored_checkpoint import StoredCheckpoint

_PAIR: Final = 2
"""A keyframe lists a name and an entry for each value."""


class TableReader:
    """An open log whose records before `end` are good.

    A table is the packed state of one checkpoint.
    """

    seal: LogSeal | None = None
    """What seals and opens the records of the log, if it is sealed."""
    opened_ranges: OpenedRanges | None = None
    """What reads ranges of the log, if it is sealed."""
    read_many: delta.ManyReader | None = None
    """What reads several ranges as `read_bytes` does, where that takes less than one after the other."""

    def __init__(self, io: ByteSource, path: str, codec: Codec, serializer: StateSerializer | None) -> None:
        self.io = io
        self.path = path
        self.codec = codec
        self.serializer = serializer
        self.fd = -1
        self.version = log.MAJOR
        """The major version of the file; the current one if there is no file."""
        self.fid = 0
        self.end = 0
        """Where the next record goes."""

    @property
    def file(self) -> log.LogFile:
        """The open file, for the functions that find and check records."""
        return log.LogFile(
            io=self.io,
            fd=self.fd,
            path=self.path,
            fid=self.fid,
            version=self.version,
            seal=self.seal,
        )

    def open_frame(self, frame: log.Frame) -> log.Frame:
        """Return a record of this log, opened if the log is sealed; see `LogFile.open_frame`."""
        return frame if self.seal is None else self.file.open_frame(frame)

    def scan(self, start: int, end: int, seq: int, data: bytes = b"") -> Iterator[log.Frame]:
        """Yield the records of this log between two offsets; see `log.scan`."""
        return log.scan(self.file, start, end, seq, data)

    # The bytes of values

    def read_bodies(self, values: Iterable[delta.Value], checkpoint: StoredCheckpoint) -> list[bytes]:
        """Return the bytes of some values of a packed state.

        Args:
            values: the values.
            checkpoint: the checkpoint to which they belong, for errors.

        Raises:
            CheckpointCorruptionError: the bytes do not have the checksum of the value, or name
                pieces that cannot be.
            CheckpointStorageError: the machine has too little memory for the values.
        """
        return self._read_values(delta.read_bodies, values, checkpoint)

    def read_packed(self, values: Iterable[delta.Value], checkpoint: StoredCheckpoint) -> list[bytes]:
        """Return the bytes of some values of a packed state, each with the header to unpack it.

        See `delta.read_packed`. Takes the arguments of `read_bodies`, and raises the same errors.
        """
        return self._read_values(delta.read_packed, values, checkpoint)

    def _read_values(
        self,
        read: Callable[[Iterable[delta.Value], delta.Read, delta.ManyReader | None], list[bytes]],
        values: Iterable[delta.Value],
        checkpoint: StoredCheckpoint,
    ) -> list[bytes]:
        try:
            return read(values, self.read_bytes, self.read_many)
        except MemoryError as error:
            # Forged compressed bytes may expand to 4 GiB; so may a state on a machine that is too
            # small for it.
            cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), self.path)
            raise CheckpointStorageError(self.path, "read a state of", cause) from error
        except delta.Mismatch:
            reason = "the state's checksum is wrong"
            raise CheckpointCorruptionError(self.path, checkpoint.offset, reason) from None
        except delta.MALFORMED as error:
            reason = f"the state is malformed: {error}"
            raise CheckpointCorruptionError(self.path, checkpoint.offset, reason) from error

    def read_bytes(self, start: int, length: int) -> bytes:
        """Return a range of the log's good records, opened if the log is sealed.

        Raises:
            delta.Mismatch: the range is not inside them.
        """
        if start < 0 or length < 0 or start + length > self.end:
            raise delta.Mismatch
        if self.opened_ranges is not None:
            return self.opened_ranges.read(self.file, start, length)
        return self.io.read_at(self.fd, start, length)

    # Tables

    def read_chain(self, keyframe: int, end: int, base: StoredCheckpoint | None = None) -> list[payloads.DecodedRecord]:
        """Return the CHECKPOINT records from a keyframe on.

        Args:
            keyframe: the offset of the keyframe.
            end: where the last of the records ends.
            base: the checkpoint of the record that ends at `keyframe`, if the records from the
                keyframe to there are known.

        Raises:
            CheckpointCorruptionError: the keyframe or a record is missing.
        """
        if not log.HEADER_SIZE <= keyframe < end:
            reason = "the record before it names no keyframe"
            raise CheckpointCorruptionError(self.path, end, reason)
        data = self.io.read_at(self.fd, keyframe, end - keyframe)
        records: list[payloads.DecodedRecord] = []
        offset = keyframe
        seq: int | None = None
        while offset < end:
            if base is not None and seq is not None and self.seal is None:
                run = read_plain_run(data, keyframe, offset, end, self.fid, seq, base, self.codec.unpack, records)
                if run.end > offset:
                    if run.checkpoints:
                        base = run.checkpoints[-1]
                    offset = run.end
                    seq = run.seq
                    continue
            frame = log.parse_frame(data, offset - keyframe, offset, self.fid)
            if isinstance(frame, str):
                reason = frame or "the record is cut short"
                raise CheckpointCorruptionError(self.path, offset, reason)
            offset = frame.end
            seq = frame.seq + 1
            if frame.type != log.CHECKPOINT:
                continue
            opened = self.open_frame(frame)
            if base is None and not opened.flags & log.KEY:
                reason = "it is not the keyframe that it should be"
                raise CheckpointCorruptionError(self.path, frame.offset, reason)
            decoded = payloads.decode_checkpoint(self.path, opened, base, self.codec.unpack)
            records.append(decoded)
            base = decoded.checkpoint
        return records

    def apply_change(self, table: delta.Table, decoded: payloads.DecodedRecord) -> None:
        """Apply the ops of a record to the table of the record before it.

        Raises:
            CheckpointCorruptionError: the ops are malformed.
        """
        try:
            table.apply(decoded.ops, decoded.data, decoded.start)
        except delta.MALFORMED as error:
            raise self._explain_malformed(decoded, error) from error

    def apply_changes(self, table: delta.Table, records: Iterable[payloads.DecodedRecord]) -> None:
        """Apply the ops of records that follow one another to the table of the record before them.

        Raises:
            CheckpointCorruptionError: the ops are malformed.
        """
        waiting: dict[str, delta.Waiting] = {}
        decoded: payloads.DecodedRecord | None = None
        try:
            for decoded in records:
                table.apply_later(decoded.ops, decoded.data, decoded.start, waiting)
            table.set_waiting(waiting)
        except delta.MALFORMED as error:
            assert decoded is not None
            raise self._explain_malformed(decoded, error) from error

    def _explain_malformed(self, decoded: payloads.DecodedRecord, error: Exception) -> CheckpointCorruptionError:
        reason = f"the change is malformed: {error}"
        return CheckpointCorruptionError(self.path, decoded.checkpoint.offset, reason)

    def apply_change_to_copy(self, table: delta.Table, decoded: payloads.DecodedRecord) -> delta.Table:
        """Return the table after a record; leave that of the record before it as it is.

        Raises:
            CheckpointCorruptionError: the ops are malformed.
        """
        try:
            return table.apply_to_copy(decoded.ops, decoded.data, decoded.start)
        except delta.MALFORMED as error:
            raise self._explain_malformed(decoded, error) from error

    def build_table(self, decoded: payloads.DecodedRecord) -> delta.Table:
        """Return the table that a keyframe carries, with the keyframe's own ops applied.

        Raises:
            CheckpointCorruptionError: the table is malformed, or an earlier keyframe that it names
                is damaged.
        """
        position = decoded.checkpoint.offset
        listed = decoded.table or ()
        table = delta.Table(opaque=self.serializer is not None)
        seen: dict[int, payloads.DecodedRecord] = {position: decoded}
        depths: dict[str, int] = {}
        try:
            table.names = list(listed[::_PAIR])
            for name, entry in zip(table.names, listed[1::_PAIR], strict=True):
                value = self.decode_entry(entry, name, position, seen)
                depths[name] = value.depth
                table.values[name] = value
        except (*delta.MALFORMED, RecursionError) as error:
            reason = f"the keyframe is malformed: {error}"
            raise CheckpointCorruptionError(self.path, position, reason) from error
        self.apply_change(table, decoded)
        for name, value in table.values.items():
            if value.base is None:
                value.set_base(position, depths.get(name, 0))
        return table

    def decode_entry(
        self, entry: Any, name: str, position: int, seen: dict[int, payloads.DecodedRecord]
    ) -> delta.Value:
        """Return the value that an entry of a keyframe's table describes.

        Args:
            entry: the entry; None if an op of the keyframe sets the key.
            name: the key.
            position: the offset of the keyframe.
            seen: keyframes that were decoded already, by their offset; earlier ones are added.
        """
        if entry is None:
            return delta.Value(delta.OPAQUE, 0, 0, 0, [])
        return delta.decode_entry(entry, position, lambda base: self._find_value_at(base, name, seen))

    def read_keyframe(self, position: int) -> log.Frame:
        """Return the record at an offset, which an entry of a later keyframe names."""
        return log.read_frame(self.file, position, self.end)

    def _find_value_at(self, position: int, name: str, seen: dict[int, payloads.DecodedRecord]) -> delta.Value:
        """Return a value as the keyframe at an offset left it."""
        if position not in seen:
            frame = self.read_keyframe(position)
            seen[position] = payloads.decode_checkpoint(self.path, frame, None, self.codec.unpack)
        decoded = seen[position]
        listed = decoded.table or ()
        table = delta.Table(opaque=self.serializer is not None)
        table.names = list(listed[::_PAIR])
        number = table.names.index(name)
        entry = listed[_PAIR * number + 1]
        value = self.decode_entry(entry, name, position, seen)
        depth = value.depth
        table.values[name] = value
        table.apply_to_key(name, decoded.ops, decoded.data, decoded.start)
        value = table.values[name]
        if value.base is None:
            value.set_base(position, depth)
        return value
