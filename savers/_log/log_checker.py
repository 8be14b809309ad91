"""Checks every byte of one log.

Theory of operation. The checker reads the log once, a window at a time. Each record proves itself
by its checksums, its place and its number. The checker then interprets the content as a reader
would: states change as the records say, a keyframe must name the values that the records before it
led to, and a checkpoint that a record replaces must exist. Therefore it reports every flipped byte,
and a log that it reports as ok can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
)
from graphkit.saver_kit import FileReport, FileState
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, DATA, EARLY, MARK, RELEASE, TOMBSTONE, WRITE, Frame
from savers._log.packed_history import TableReplay
from savers._log.records import Records
from savers._log.stored_checkpoint import EarlyWrites

if TYPE_CHECKING:
    from savers._log.log import AnyLog


FINDINGS: Final = (CheckpointCorruptionError, CheckpointFormatError, CheckpointKeyError)
"""What a check raises because of what the log holds."""


class LogChecker:
    """Checks the records of one log in order."""

    def __init__(self, checked_log: AnyLog) -> None:
        self._log = checked_log
        self.records = 0
        self.good_end = 0
        """Where the good records end."""
        self.checkpoint_ids: set[str] = set()
        self.closed_by: Frame | None = None
        """The RELEASE or TOMBSTONE record at the end, if any."""
        self._replay = TableReplay(checked_log.packed, skips_metadata=True)
        self._early = EarlyWrites()
        """The early writes that wait for their checkpoint. It may never come."""
        self._data_start: int | None = None
        """Where the DATA records after the last checkpoint begin, if there are any."""

    def check(self, size: int) -> None:
        """Read the whole log.

        Raises:
            IncompleteLog: its creation did not finish.
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it needs a newer graphkit, or belongs to another thread.
            CheckpointKeyError: it is sealed, and a key is missing or wrong. All checksums of its
                records are right.
        """
        checked = self._log.frames
        checked.read_beginning(size)
        start = checked.end
        checked.end = size
        self.records = 1
        self.good_end = start
        try:
            for frame in checked.records.scan(start, size, 1):
                self._check_record(frame)
                self.records += 1
                self.good_end = frame.end
        except CheckpointKeyError:
            # The checksums of a sealed log can be checked without opening its records.
            self.records = 1
            self.good_end = start
            self.checkpoint_ids.clear()
            for frame in Records(checked.bytes, checked.fid).scan(start, size, 1):
                self.records += 1
                self.good_end = frame.end
                if frame.type in {RELEASE, TOMBSTONE}:
                    self.closed_by = frame
            raise
        # The next record depends on all values of the last state, so they are read.
        table = self._replay.table
        checkpoint = self._replay.checkpoint
        if table is None or checkpoint is None:
            return
        try:
            delta.check_pieces(table.values.values())
        except delta.Mismatch as error:
            reason = "its values name the same bytes twice"
            raise CheckpointCorruptionError(self._log.path, checkpoint.offset, reason) from error
        for value in table.values.values():
            self._log.packed.read_bodies([value], checkpoint.offset)

    def explain(self, error: CheckpointerError) -> tuple[FileState, int, str]:
        """Return the state of a log whose check has raised one of `FINDINGS`, the offset, and the reason."""
        if isinstance(error, CheckpointCorruptionError):
            return "damaged", error.offset, error.reason
        if isinstance(error, CheckpointErasedError):
            return "erased", 0, f"the key {error.key_id!r} was destroyed"
        if isinstance(error, CheckpointKeyError):
            problem = error.reason if error.has_keys else "no keys were given"
            return "sealed", self.good_end, f"key {error.key_id!r}: {problem}"
        assert isinstance(error, CheckpointFormatError)
        # A record of unknown type is of a newer format, too.
        return "newer" if self.records else "foreign", self.good_end, error.reason

    def make_report(self, path: str, size: int, state: FileState, offset: int, reason: str) -> FileReport:
        """Return the report on a log, with what was counted."""
        return FileReport(
            path=path,
            state=state,
            offset=offset,
            reason=reason,
            size=size,
            records=self.records,
            checkpoints=len(self.checkpoint_ids),
        )

    def _check_record(self, frame: Frame) -> None:
        path = self._log.path
        if frame.type == CHECKPOINT:
            self._check_checkpoint(frame)
            self._data_start = None
        elif frame.type == DATA:
            if self._data_start is None:
                self._data_start = frame.offset
        elif frame.type in {RELEASE, TOMBSTONE}:
            payloads.decode_ending(path, frame)
            self.closed_by = frame
        elif frame.type == WRITE:
            owner, values = payloads.decode_writes(path, frame)
            if frame.flags & EARLY:
                if owner in self.checkpoint_ids:
                    reason = "the checkpoint of its early writes precedes it"
                    raise CheckpointCorruptionError(path, frame.offset, reason)
                self._early.add(owner, values, frame.offset)
        elif frame.type == MARK:
            payloads.decode_tags(path, frame)

    def _check_checkpoint(self, frame: Frame) -> None:
        path = self._log.path
        before = self._replay.table
        record = self._replay.step(frame)
        if frame.offset - frame.key != self._replay.keyframe_offset:
            reason = "it names another record as its keyframe"
            raise CheckpointCorruptionError(path, frame.offset, reason)
        if record.table is not None and before is not None:
            self._check_keyframe(before, record)
        target = record.checkpoint.target
        if target is not None:
            if target not in self.checkpoint_ids:
                reason = "it replaces a checkpoint that does not exist"
                raise CheckpointCorruptionError(path, frame.offset, reason)
            self.checkpoint_ids.remove(target)
        expected = self._early.measure(record.checkpoint.id, frame.offset) or (0, 0)
        if record.early != expected:
            reason = "it does not name the early writes before it"
            raise CheckpointCorruptionError(path, frame.offset, reason)
        self._early.drop(record.checkpoint.id)
        self.checkpoint_ids.add(record.checkpoint.id)

    def _check_keyframe(self, before: delta.Table, record: payloads.DecodedRecord) -> None:
        """Check the values that a keyframe's table names.

        They are those that the records before it led to, or new ones with bytes in the DATA records before it.
        """
        table = self._replay.table
        assert table is not None
        offset = record.checkpoint.offset
        for name, entry in zip(record.names, record.entries, strict=True):
            if entry is None:
                continue
            old = before.values.get(name)
            named = [delta.kind_in_entry(entry), *entry[1:4]]
            if old is not None and named == [old.kind, old.count, old.length, old.crc]:
                continue
            new = table.values[name]
            if self._data_start is None or min(new.pieces[::2], default=0) < self._data_start:
                reason = "the keyframe contradicts the records before it"
                raise CheckpointCorruptionError(self._log.path, offset, reason)
            self._log.packed.read_bodies([new], offset)
