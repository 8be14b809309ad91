"""The bytes of a log in a file: opened, kept up to date with what other processes append, appended to, undone.

Every use of a log begins with `refresh`, which costs one fstat while no other process has written; if
zeros follow the last record, it also looks at the bytes where the next record would stand.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple

from graphkit.errors import CheckpointCorruptionError
from savers._filesystem import layout
from savers._filesystem.io import boot_number, write_whole
from savers._filesystem.lock import WriteLockIfFree
from savers._filesystem.salvaged_files import FileRange
from savers._log.frame import META, Frame
from savers._log.log_bytes import Change, LogBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from savers._filesystem.io import FileIO
    from savers._filesystem.lock import WriteLock
    from savers._log.stored_checkpoint import StoredCheckpoint

_CHECKED_END: Final = 8 << 10
"""Bytes at the end of a log whose records are always checked when it is opened."""
_PEEK_SIZE: Final = 64
"""Bytes read behind the end of a log to find out whether another process has written there."""
_READ_SIZE: Final = 1 << 20
_PART_SIZE: Final = 1 << 20
_BLOCK_SIZE: Final = 1 << 12
_SHORT: Final = _BLOCK_SIZE
"""A log of fewer bytes is not extended: it will hardly get enough records for that to pay."""
_MOST_ZEROS: Final = 1 << 17
"""If more zeros than this follow the last record, the next writer cuts them off."""
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_LONGEST_EXTENDED: Final = 1 << 20
"""A longer record is written without zeros behind it, which would take a copy of it."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""How a system says that a file cannot grow."""
_LOGGER: Final = getLogger("graphkit")


class FileId(NamedTuple):
    """Identifies the file of a log. A new log that takes its place, or its inode, has another fid."""

    fid: int
    inode: int


def _do_nothing(*_: object) -> None:
    pass


class FileLogBytes(LogBytes):
    """The bytes of a log in a file. A caller that appends also holds the write lock.

    Attributes:
        inode: identifies the open file.
        pins: how many callers sync the file without the mutex; its descriptor is closed after the last.
        is_suspect: a sync failed: the bytes may not be on the disk, whatever a later sync returns.
        read_only_error: why the file is open for reading only, if it is.
    """

    def __init__(
        self,
        io: FileIO,
        paths: Sequence[str],
        write_lock: WriteLock | None = None,
        *,
        make_directories: Callable[[], None] = _do_nothing,
        sync_names: Callable[[FileId | None], None] = _do_nothing,
        is_extended_ahead: bool = False,
        is_synced_at_once: bool = False,
        is_synced_before_use: bool = False,
    ) -> None:
        """Prepare to open a file.

        Args:
            io: the file system.
            paths: where the log may be; the first file that is found is opened.
            write_lock: excludes other writers; None if nothing is appended.
            make_directories: makes the directories of the log, where they are missing.
            sync_names: brings the names that lead to the log to the disk. Given a file, it may do
                nothing if it has done so for that file before.
            is_extended_ahead: whether the file is extended with zeros for the records to come: a sync of
                bytes within the file's size needs no journal of the file system (1.5 times faster on
                ext4).
            is_synced_at_once: whether a sync of each put follows as soon as the put has appended it.
            is_synced_before_use: whether the whole file is brought to the disk before it takes its place,
                so that each record vouches for it.
        """
        super().__init__(paths[0])
        self.io = io
        self.paths = paths
        self.boot = boot_number()
        self._make_directories = make_directories
        self.sync_names = sync_names
        self._is_extended_ahead = is_extended_ahead
        self._is_synced_at_once = is_synced_at_once
        self._is_synced_before_use = is_synced_before_use
        self.write_lock = write_lock
        self.sync_mutex = threading.Lock()
        self.pins = 0
        self._fds_to_close: list[int] = []
        self.is_suspect = False
        self.unacknowledged: tuple[int, int] | None = None
        """After a failed sync: where the records begin and end that no put has acknowledged."""
        self.fd = -1
        self._reset()

    def _reset(self) -> None:
        self.inode = 0
        self._clean_size = -1
        """The size of the file when only zeros were found behind the last record; -1 after other bytes."""
        self.synced = 0
        """Up to here the file is known to be on the disk."""
        self.appended_end = 0
        """Where the last record ends that this object has appended."""
        self.is_name_synced = False
        """Whether the names that lead to the file are known to be on the disk."""
        self.read_only_error: OSError | None = None
        self.has_vanished = False
        self._beginning = b""
        """What is written before the first record, with it."""

    # Opening and closing

    @property
    def is_open(self) -> bool:
        return self.fd >= 0 or bool(self._beginning)

    def open(self) -> bool:
        for path in self.paths:
            self.path = path
            if self._open_at(path):
                return True
        return False

    def _open_at(self, path: str) -> bool:
        try:
            self.fd = self.io.open(path, write=self.write_lock is not None)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # A caller without the right to write can still read; so can any on a read-only file
            # system.
            if error.errno not in _READ_ONLY or self.write_lock is None:
                raise
            self.fd = self.io.open(path)
            self.read_only_error = error
        status = self.io.fstat(self.fd)
        self.size = status.st_size
        self.inode = status.st_ino
        return True

    def close(self) -> None:
        """Close the descriptor, now or after the last sync."""
        # First out of reach: the system gives the number of a closed descriptor to other files.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if self.pins:
                self._fds_to_close.append(fd)
            else:
                self.io.close(fd)
        self._reset()

    def close_after_fork(self) -> None:
        self.pins = 0

    def __del__(self) -> None:
        # A saver that was dropped without being closed must not keep descriptors.
        with suppress(Exception):
            for fd in (self.fd, *self._fds_to_close):
                if fd >= 0:
                    self.io.close(fd)

    def unpin(self) -> None:
        """Note that a caller has finished syncing."""
        self.pins -= 1
        if not self.pins:
            while self._fds_to_close:
                self.io.close(self._fds_to_close.pop())

    # What other writers have done

    def refresh(self, end: int) -> Change:
        status = self.io.fstat(self.fd)
        self.size = size = status.st_size
        if not status.st_nlink:
            self.has_vanished = True
            return Change.REPLACED
        if size < end:
            return Change.REPLACED
        if size == end:
            self._clean_size = size
            return Change.NONE
        if self._is_unchanged(size, end):
            return Change.NONE
        return Change.GREW

    def _is_unchanged(self, size: int, end: int) -> bool:
        """Return whether a file of this size has no bytes behind the last record that are new.

        A record that is written over zeros does not change the size. Its first bytes are not zero,
        and a write that is cut short leaves the first bytes.
        """
        if size != self._clean_size:
            return False
        return size == end or not self.io.read_at(self.fd, end, _PEEK_SIZE).strip(b"\0")

    def note_end(self, end: int, last: StoredCheckpoint | None = None) -> None:  # noqa: ARG002 - for bytes with an index
        self._clean_size = -1
        if self.size == end or self.get_range(end, self.size).is_zero():
            self._clean_size = self.size

    def is_ready(self, end: int) -> bool:
        """Return whether a record can be appended at once: no other process has written.

        The usual case of a put, in one system call, or two if zeros follow the last record.
        """
        if self.fd < 0 or self.is_suspect or self.read_only_error is not None:
            return False
        if self._is_extended_ahead:
            size, links = self.io.measure(self.fd)
        else:
            # Nothing is synced after it, and this takes half the time.
            status = self.io.fstat(self.fd)
            size, links = status.st_size, status.st_nlink
        return links > 0 and self._is_unchanged(size, end)

    # Reading

    def get_range(self, start: int, end: int) -> FileRange:
        """Return the bytes of the open file between two offsets."""
        return FileRange(io=self.io, fd=self.fd, start=start, end=end)

    def read_at(self, offset: int, length: int) -> bytes:
        return self.io.read_at(self.fd, offset, length)

    def note_frames(self, frames: Sequence[Frame]) -> None:
        synced = self.synced
        for frame in frames:
            synced = max(synced, frame.vouched)
        self.synced = synced
        last = frames[-1]
        if self._is_of_another_boot(last):
            self.synced = last.end

    def _is_of_another_boot(self, frame: Frame) -> bool:
        """Return whether a record was written in another boot: this one can only have read it from the disk."""
        return 0 not in {frame.boot, self.boot} and frame.boot != self.boot

    def has_whole_end(self, frames: Iterator[Frame]) -> bool:
        """Return whether the records are there that a power loss may have taken."""
        last = frame = next(frames)
        # A power loss may take a record for which no later record vouches, and leave later ones. So
        # each record is looked at, back to the first offset that one of them vouches for.
        limit = 0
        if last.boot == self.boot != 0:
            # Nothing is lost within one boot. These are checked in case the file comes from another
            # machine whose boot has the same number.
            limit = last.end - _CHECKED_END
        self.synced = max(self.synced, frame.vouched)
        while frame.offset > max(self.synced, limit) and frame.type != META:
            before = next(frames, None)
            if before is None:
                return False
            frame = before
            self.synced = max(self.synced, frame.vouched)
        if self._is_of_another_boot(last):
            self.synced = last.end
        return True

    # Appending

    def count_unsynced(self, offset: int) -> int:
        if self._is_synced_before_use:
            return 0
        return offset - self.synced

    def begin(self, beginning: bytes) -> None:
        self._make_directories()
        self._beginning = beginning

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:  # noqa: ARG002 - a file keeps bytes
        if self._beginning:
            self._create(self._beginning + data)
        else:
            self._write(offset, data)
        self.appended_end = offset + len(data)

    def write_beginning(self) -> None:
        """Create the file of a log that has been begun and has no record yet."""
        if self._beginning:
            self._create(self._beginning)

    def _create(self, data: bytes) -> None:
        """Create the file, with the first bytes of a log; remove it if that fails.

        An incomplete log is emptied; its bytes are salvaged unless they are zero.
        """
        try:
            self.fd = self.io.open(self.path, write=True, create=True)
            status = self.io.fstat(self.fd)
            self.inode = status.st_ino
            if status.st_size:
                content = self.get_range(0, status.st_size)
                if not content.is_zero():
                    content.salvage(os.path.dirname(self.path), f"{layout.TORN}0-0")
                self.io.truncate(self.fd, 0)
            self._clean_size = 0
            self._write(0, data)
            self._beginning = b""
        except BaseException:
            self.close()
            with suppress(OSError):
                self.io.unlink(self.path)
            raise

    def _write(self, start: int, data: bytes) -> None:
        end = start + len(data)
        size = self._clean_size
        try:
            if end > size and self._is_extended_ahead and len(data) <= _LONGEST_EXTENDED:
                written = start + self._write_and_extend(start, data)
            else:
                written = start + self.io.write_at(self.fd, start, data)
            if written < end:
                write_whole(self.io, self.fd, written, data[written - start :])
                written = end
        except BaseException:
            self._cut_back(start)
            raise
        if written > size:
            self._clean_size = written

    def _write_and_extend(self, start: int, data: bytes) -> int:
        """Write once, with zeros behind the data; return how many bytes were written."""
        # In the same write: the zeros cost no call of their own, and a put that is cut short leaves
        # what any other torn write does. The next puts overwrite zeros, and the size stays as it is.
        end = start + len(data)
        zeros = bytes(_choose_size(end) - end)
        try:
            return self.io.write_at(self.fd, start, data + zeros)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return 0  # The data alone may fit.

    def start_writing(self) -> None:
        """Let the disk begin with what was appended, while the put does what is left before the sync.

        It pays if more than 15 us of work follow; ADR 23 has the figures.
        """
        if not self._is_synced_at_once:
            return
        try:
            self.io.start_writing(self.fd)
        except OSError:
            # The sync need not report it again, so this counts as a failed sync: the log is
            # rewritten without the record, and the put fails.
            self.is_suspect = True
            _LOGGER.warning("%s: what was appended may not have reached the disk", self.path, exc_info=True)

    def undo(self, start: int) -> None:
        if self.fd < 0:
            return
        if start:
            self._cut_back(start)
            return
        self.close()
        with suppress(OSError):
            self.io.unlink(self.path)

    def _cut_back(self, start: int) -> None:
        """Cut off what was appended from an offset on."""
        try:
            self.io.truncate(self.fd, start)
        except OSError:
            # The next writer finds a torn record and salvages it.
            _LOGGER.warning("%s: a write that failed could not be undone; the next writer will", self.path)
            self._clean_size = -1
            return
        self._clean_size = start
        try:
            # Otherwise power loss could mix sectors of the old bytes with those that replace them.
            self.io.fdatasync(self.fd)
        except OSError:
            self.is_suspect = True

    # The end of the file

    def prepare_end(self, end: int, generation: int) -> str:
        if self.read_only_error is not None:
            raise self.read_only_error
        # Zeros stay, unless there are many; other bytes are salvaged.
        if self._clean_size < end:
            return self._salvage_tail(end, generation)
        if self._clean_size - end > _MOST_ZEROS:
            self.io.truncate(self.fd, end)
            self._clean_size = end
        return ""

    def _salvage_tail(self, end: int, generation: int) -> str:
        size = self.io.fstat(self.fd).st_size
        directory = os.path.dirname(self.path)
        tail = self.get_range(end, size)
        name = ""
        if not tail.is_zero():
            name = tail.salvage(directory, f"{layout.TORN}{generation}-{end}")
        # The copy is on the disk. The cut must be, too, before a record is written in place of these
        # bytes: a power loss could otherwise leave sectors of both.
        self.io.truncate(self.fd, end)
        self._clean_size = end
        try:
            self.io.fsync(self.fd)
        except OSError:
            self.is_suspect = True
            raise
        self.synced = end
        if name:
            self.io.fsync_dir(directory)
            _LOGGER.warning(
                "%s: the last write did not finish; its %d bytes are set aside in %s", self.path, size - end, name
            )
        return name

    def retire(self, end: int) -> None:
        """Cut off the zeros of a log that this writer has extended, if no other writer is at work.

        Otherwise they stay, and the next writer uses them.
        """
        if self._is_extended_ahead and self.fd >= 0 and self._clean_size > end and self.write_lock is not None:
            with WriteLockIfFree(self.write_lock) as is_entered:
                if is_entered:
                    self._cut_zeros(end)

    def note_ended(self, end: int) -> None:
        self._cut_zeros(end)

    def _cut_zeros(self, end: int) -> None:
        """Cut off the zeros after the last record; the caller holds the write lock."""
        try:
            size = self.io.fstat(self.fd).st_size
            if size > end and self._is_unchanged(size, end):
                self.io.truncate(self.fd, end)
                self._clean_size = end
        except OSError as error:
            # The zeros mean nothing to any reader.
            _LOGGER.info("%s: the zeros at its end could not be cut off: %s", self.path, error)

    def find_acknowledged_end(self, end: int) -> int:
        """Return where the log ends without the records at its end that no put has acknowledged."""
        if self.unacknowledged is None:
            return end
        start, unacknowledged_end = self.unacknowledged
        if unacknowledged_end != end:
            # Another writer has appended since: its records stand on those that failed.
            return end
        return start

    def take_back(self, end: int) -> None:
        """Cut off the records that no put has acknowledged, if rewriting the log has failed, too.

        The disk may still hold them, so the bytes stay suspect, unless there are none now. The caller
        closes them.
        """
        start = self.find_acknowledged_end(end)
        if self.fd < 0 or start == end:
            return
        try:
            self._truncate_or_overwrite(start, end)
        except OSError:
            _LOGGER.exception("%s: a put that failed could not be undone; the next writer will", self.path)
        else:
            self.unacknowledged = None

    def _truncate_or_overwrite(self, start: int, end: int) -> None:
        """Truncate the file, or else write zeros, which mean "nothing yet" to every reader."""
        try:
            self.io.truncate(self.fd, start)
            self.is_suspect = start > 0
        except OSError:
            while start < end:
                start += self.io.write_at(self.fd, start, bytes(min(_PART_SIZE, end - start)))


class ReleasedFileBytes(FileLogBytes):
    """The bytes of a released log: it must be there if its file is."""

    is_ending = False
    """Whether the release is unfinished: the log may still have the path of the live one."""

    def __init__(self, io: FileIO, final_path: str, live_path: str) -> None:
        super().__init__(io, [final_path])
        self._final_path = final_path
        self._live_path = live_path

    def open(self) -> bool:
        # Another process may finish the release at this moment. If the live log is gone, the log
        # has its final path by then.
        self.paths = [self._final_path]
        if self.is_ending:
            self.paths += [self._live_path, self._final_path]
        return super().open()

    def check_release(self, end: int, *, is_found: bool, has_ended: bool) -> None:
        if self.is_ending:
            return
        if is_found and not has_ended:
            raise CheckpointCorruptionError(self._final_path, end, "the end of the released history is missing")
        if not is_found and self.io.stat(self._final_path) is not None:
            raise CheckpointCorruptionError(self._final_path, 0, "the released history is missing")


def _choose_size(end: int) -> int:
    """Return to which size a log is extended whose records end at an offset: whole blocks."""
    if end < _SHORT:
        return end
    blocks = (end + _BLOCK_SIZE - 1) // _BLOCK_SIZE
    return blocks * _BLOCK_SIZE
