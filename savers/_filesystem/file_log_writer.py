"""Appends records to a log, undoes failed writes, and recovers the end of a log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from time import time_ns
from typing import TYPE_CHECKING, Final

from savers._filesystem import layout
from savers._filesystem.file_log_reader import FileLogReader
from savers._filesystem.lock import WriteLockIfFree
from savers._filesystem.salvaged_files import FileRange
from savers._log import log, payloads
from savers._log.beginning import META_RECORDS, new_header, pack_meta_frames
from savers._log.log_writer import LogWriter
from savers._log.sealing import MAX_OVERHEAD, pack_place

if TYPE_CHECKING:
    from savers._filesystem.lock import WriteLock

_SURELY_FITS: Final = log.MAX_PAYLOAD - MAX_OVERHEAD
"""A payload of so many bytes fits into a record, sealed or not."""
_SCATTERING: Final = log.SCATTERED | log.REPLACE
_PART_SIZE: Final = 1 << 20
_BLOCK_SIZE: Final = 1 << 12
_SHORT: Final = _BLOCK_SIZE
"""A log of fewer bytes is not extended: it will hardly get enough records for that to pay."""
_MOST_ZEROS: Final = 1 << 17
"""If more zeros than this follow the last record, the next writer cuts them off."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""How a system says that a file cannot grow."""
_LONGEST_EXTENDED: Final = 1 << 20
"""A longer record is written without zeros behind it, which would take a copy of it."""
_LOGGER: Final = getLogger("graphkit")


class FileLogWriter(FileLogReader, LogWriter):
    """A log to which records are appended, whatever they hold.

    The caller holds `mutex`, and the write lock of the thread.
    """

    make_directories: Callable[[], None]
    """Makes the directories of this log, where they are missing."""
    write_lock: WriteLock
    """The write lock of the thread."""
    is_extended_ahead = False
    """Whether the file is extended with zeros for the records to come: a sync of bytes within the
    file's size needs no journal of the file system (1.5 times faster on ext4)."""
    is_synced_before_use = False
    """Whether the whole file is brought to the disk before it takes its place, so that each record
    vouches for it."""
    unacknowledged: tuple[int, int] | None = None
    """After a failed sync: where the records begin and end that no put has acknowledged."""

    # Sealing

    @property
    def must_be_sealed(self) -> bool:
        """Whether the saver has a cipher and the open log is plain."""
        return self.key_ring is not None and self.seal is None and self.fd >= 0

    def begin_seal(self) -> None:
        """Seal the records of a new log if the saver has a cipher."""
        if self.key_ring is not None:
            self.adopt_seal("")
            assert self.seal is not None
            self.seal.begin()

    # Appending

    def finish(self, type: int, version: int) -> None:
        """Append the record that ends this log, and cut off the zeros behind it."""
        self.is_extended_ahead = False
        self._append_record(type, payloads.packb([version, time_ns() // 1000]))
        self._cut_zeros()

    def _append_record(
        self,
        type: int,
        payload: bytes,
        flags: int = 0,
        back: int = 0,
        key: int = 0,
    ) -> int:
        """Append a record in one write and return its offset. Creates the file if there is none.

        Raises:
            CheckpointSerializationError: the record would be longer than a reader accepts. Nothing
                was changed.
            OSError: the file system refused. The file is as it was.
        """
        if len(payload) > _SURELY_FITS:
            self._check_length(payload)
        self.in_doubt = True
        if self.fd < 0:
            return self._append_first(type, payload, flags, back, key)
        offset = self.end
        frame = self._pack_record(offset, type, payload, flags, back, key)
        self._append(frame)
        self.end = offset + len(frame)
        self.seq += 1
        return offset

    def _append_first(self, type: int, payload: bytes, flags: int, back: int, key: int) -> int:
        """Create the file with its first record; remove it if that fails."""
        self.begin_seal()
        self.make_directories()
        try:
            beginning = self._create()
            offset = len(beginning)
            frame = self._pack_record(offset, type, payload, flags, back, key)
            self._append(beginning + frame)
        except BaseException:
            self._remove_file()
            raise
        self.end = offset + len(frame)
        self.seq += 1
        return offset

    def _pack_record(self, offset: int, type: int, payload: bytes, flags: int, back: int, key: int) -> bytes:
        """Return the bytes of the next record, sealed if the log is."""
        if self.version < log.MAJOR:
            # Only the record that ends a log is appended to a log of version 1; all others come
            # after the upgrade.
            return log.pack_frame_v1(offset, self.fid, self.seq, type, payload, flags, back, key)
        if self.is_scattered or flags & _SCATTERING:
            self.is_scattered = True
            flags |= log.SCATTERED
        if self.seal is not None and type in log.SEALED_TYPES:
            flags |= log.SEALED
            place = pack_place(flags, back, key, self.seq, self.fid, type, offset)
            sealed = self.seal.seal(payload, place)
            if self.opened_ranges is not None:
                end = offset + log.FRAME_SIZE + len(sealed)
                self.opened_ranges.note_appended(end, payload)
            payload = sealed
        unsynced = 0 if self.is_synced_before_use else offset - self.synced
        # By position, because this is part of every put.
        return log.pack_frame(offset, self.fid, self.seq, type, payload, flags, back, key, unsynced, self.boot)

    def _append(self, data: bytes) -> None:
        start = self.end
        end = start + len(data)
        try:
            if end > self.file_size and self.is_extended_ahead and len(data) <= _LONGEST_EXTENDED:
                written = start + self._write_and_extend(start, data)
            else:
                written = start + self.io.write_at(self.fd, start, data)
            # A full disk first causes a short write. The next write raises the error.
            while written < end:
                written += self.io.write_at(self.fd, written, data[written - start :])
        except BaseException:
            self._undo(start)
            raise
        if written > self.file_size:  # noqa: PLR1730 - as in `pack_frame`
            self.file_size = written

    def _write_and_extend(self, start: int, data: bytes) -> int:
        """Write once, with zeros behind the data; return how many bytes were written."""
        end = start + len(data)
        zeros = bytes(_choose_size(end) - end)
        try:
            return self.io.write_at(self.fd, start, data + zeros)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return 0  # The data alone may fit.

    def _start_writing(self) -> None:
        """Let the disk begin with what was appended, while the put does what is left before the sync.

        It pays if more than 15 us of work follow; ADR 23 has the figures.
        """
        try:
            self.io.start_writing(self.fd)
        except OSError:
            # The sync need not report it again, so this counts as a failed sync: the log is
            # rewritten without the record, and the put fails.
            self.suspect = True
            _LOGGER.warning("%s: what was appended may not have reached the disk", self.path, exc_info=True)

    def _undo(self, start: int) -> None:
        """Cut off what was appended from `start` on."""
        try:
            self.io.truncate(self.fd, start)
        except OSError:
            # The next writer finds a torn record and salvages it.
            _LOGGER.warning(
                "%s: a write that failed could not be undone; the next writer will",
                self.path,
            )
            self.close()
            return
        self.file_size = start
        try:
            # Otherwise power loss could mix sectors of the old bytes with those that replace them.
            self.io.fdatasync(self.fd)
        except OSError:
            self.suspect = True

    def _undo_records(self, start: int) -> None:
        if self.fd < 0 or self.end <= start:
            return
        if start:
            self._undo(start)
            self.close()
        else:
            self._remove_file()

    def _remove_file(self) -> None:
        """Remove the file of a log whose first write failed; nothing in it was acknowledged."""
        self.close()
        with suppress(OSError):
            self.io.unlink(self.path)

    # Creating the file

    def _create(self) -> bytes:
        """Create the file of a log that does not exist yet; return the bytes with which it begins.

        An incomplete log is emptied; its bytes are salvaged unless they are zero.
        """
        self.fd = self.io.open(self.path, write=True, create=True)
        status = self.io.fstat(self.fd)
        size = status.st_size
        self.inode = status.st_ino
        if size:
            content = FileRange(io=self.io, fd=self.fd, start=0, end=size)
            if not content.is_zero():
                content.salvage(os.path.dirname(self.path), f"{layout.TORN}0-0")
            self.io.truncate(self.fd, 0)
        self.header = new_header(self._digest, 1)
        self.fid = self.header.fid
        self.seq = META_RECORDS
        self.end = 0
        return self.header.pack() + self.pack_meta_frames(self.fid)

    def pack_meta_frames(self, fid: int) -> bytes:
        """Return the first records, which say whose log this is.

        There are two copies, so that one damaged copy costs nothing.
        """
        meta: dict[str, object] = {
            "thread": self.thread_id,
            "ns": self.namespace,
            "opaque": self.serializer is not None,
        }
        if self.seal is not None:
            meta["sealed"] = self.seal.key_id
        return pack_meta_frames(fid, meta, self.boot)

    def begin(self, header: log.Header) -> None:
        """Create the file at this log's path, which does not exist yet."""
        self.fd = self.io.open(self.path, write=True, create=True)
        self.header = header
        self.fid = header.fid
        self.seq = META_RECORDS
        self.begin_seal()
        beginning = header.pack() + self.pack_meta_frames(header.fid)
        self._append(beginning)
        self.end = len(beginning)

    # Recovery

    def is_ready(self) -> bool:
        """Return whether a record can be appended at once: no other process has written.

        The usual case of a put, in one system call, or two if zeros follow the last record.
        """
        if self.fd < 0 or self.closed_by is not None or self.version < log.MAJOR:
            return False
        if self.in_doubt or self.suspect or self.read_only_error is not None:
            return False
        if self.key_ring is not None and self.must_be_sealed:
            return False
        if self.is_extended_ahead:
            size, links = self.io.measure(self.fd)
        else:
            # Nothing is synced after it, and this takes half the time.
            status = self.io.fstat(self.fd)
            size, links = status.st_size, status.st_nlink
        return links > 0 and self._is_unchanged(size)

    def refresh_to_write(self) -> bool:
        """Refresh, and cut off what a dead writer left at the end; see `refresh`.

        Zeros after the last record stay, unless there are many; other bytes are salvaged and cut
        off.
        """
        is_live = self.refresh()
        if not is_live:
            return False
        if self.file_size < self.end:
            self.salvage_tail()
        elif self.file_size - self.end > _MOST_ZEROS:
            self.io.truncate(self.fd, self.end)
            self.file_size = self.end
        return True

    def retire(self) -> None:
        """Cut off the zeros of a log that this writer has extended, if no other writer is at work.

        Otherwise they stay, and the next writer uses them.
        """
        has_zeros = self.is_extended_ahead and self.fd >= 0 and self.file_size > self.end
        if has_zeros:
            with WriteLockIfFree(self.write_lock) as is_entered:
                if is_entered:
                    self._cut_zeros()
        self.close()

    def _cut_zeros(self) -> None:
        """Cut off the zeros after the last record; the caller holds the write lock."""
        try:
            size = self.io.fstat(self.fd).st_size
            if size > self.end and self._is_unchanged(size):
                self.io.truncate(self.fd, self.end)
                self.file_size = self.end
        except OSError as error:
            # The zeros mean nothing to any reader.
            _LOGGER.info("%s: the zeros at its end could not be cut off: %s", self.path, error)

    def salvage_tail(self) -> None:
        """Copy what an unfinished write left at the end to a salvaged file, and cut it off."""
        assert self.header is not None
        size = self.io.fstat(self.fd).st_size
        directory = os.path.dirname(self.path)
        tail = FileRange(io=self.io, fd=self.fd, start=self.end, end=size)
        name = tail.salvage(directory, f"{layout.TORN}{self.header.generation}-{self.end}")
        self.io.truncate(self.fd, self.end)
        self.file_size = self.end
        try:
            self.io.fsync(self.fd)
        except OSError:
            self.suspect = True
            raise
        self.synced = self.end
        self.io.fsync_dir(directory)
        _LOGGER.warning(
            "%s: the last write did not finish; its %d bytes are set aside in %s",
            self.path,
            size - self.end,
            name,
        )

    @property
    def acknowledged_end(self) -> int:
        """Where the log ends without the records at its end that no put has acknowledged."""
        if self.unacknowledged is None:
            return self.end
        start, end = self.unacknowledged
        return start if end == self.end else self.end

    def cut_off_unacknowledged(self) -> None:
        """Cut off the records that no put has acknowledged, if rewriting the log has failed too.

        The disk may still hold them, so the log stays suspect, unless it is empty now. The log is
        closed.
        """
        if self.unacknowledged is None or self.fd < 0:
            return
        start, end = self.unacknowledged
        if end != self.end:
            return
        try:
            self._truncate_or_overwrite(start, end)
        except OSError:
            _LOGGER.exception(
                "%s: a put that failed could not be undone; the next writer will",
                self.path,
            )
        else:
            self.unacknowledged = None
        self.close()

    def _truncate_or_overwrite(self, start: int, end: int) -> None:
        """Truncate the file, or else write zeros, which mean "nothing yet" to every reader."""
        try:
            self.io.truncate(self.fd, start)
            self.suspect = start > 0
        except OSError:
            while start < end:
                start += self.io.write_at(self.fd, start, bytes(min(_PART_SIZE, end - start)))


def _choose_size(end: int) -> int:
    """Return to which size a log is extended whose records end at an offset: whole blocks."""
    if end < _SHORT:
        return end
    return -(-end // _BLOCK_SIZE) * _BLOCK_SIZE
