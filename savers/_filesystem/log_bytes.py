"""The bytes of a log in a file: opened, kept up to date with what other processes append, appended to, undone.

Every use of a log begins with `refresh`, which costs one fstat while no other process has written; if
zeros follow the last record, it also looks at the bytes where the next record would stand.

`FileLogBytes` belongs to a path. What concerns one opening of a file there is in `LogFile`, and what
the disk has of it in `FileDurability`.
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
from savers._filesystem.io import FileRange, boot_number, write_whole
from savers._log.frame import META
from savers._log.log_bytes import Change, Durability, LogBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from savers._filesystem.io import FileIO
    from savers._filesystem.lock import WriteLock
    from savers._log.frame import Frame
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._options import Fsync


_CHECKED_END: Final = 8 << 10
"""Bytes at the end of a log whose records are always checked when it is opened."""


class FileDurability(Durability):
    """What of the file of a log is known to be on the disk.

    Closing the file forgets up to where it was synced. It does not forget that a sync failed, because no
    later sync of that file can be trusted: that holds until another file has taken its place.

    The caller holds the mutex of the log, except that `sync_bytes` looks without it, and notes a failed
    sync without it: a sync must not keep others from appending.

    Attributes:
        is_suspect: a sync failed: the bytes may not be on the disk, whatever a later sync returns.
        sync_mutex: held by the caller that syncs the file.
        is_name_synced: whether the names that lead to the file are known to be on the disk.
    """

    def __init__(self, *, is_synced_before_use: bool) -> None:
        """Begin with nothing known.

        Args:
            is_synced_before_use: whether the whole file is brought to the disk before it takes its place,
                so that each record vouches for it.
        """
        self.boot = boot_number()
        self._is_synced_before_use = is_synced_before_use
        self.sync_mutex = threading.Lock()
        self.is_suspect = False
        self._unacknowledged: tuple[int, int] | None = None
        """After a failed sync: where the records begin and end that no put has acknowledged."""
        self.forget_synced()

    # Up to where the file is on the disk

    def forget_synced(self) -> None:
        """Note that the file was closed: another one may be at its path by now."""
        self._synced = 0
        """Up to here the file is known to be on the disk."""
        self.is_name_synced = False

    def is_synced(self, end: int) -> bool:
        """Return whether the bytes before an offset are on the disk, and the names that lead to them."""
        return self._synced >= end and self.is_name_synced

    def note_synced(self, end: int, *, with_names: bool = False) -> None:
        """Note that the bytes before an offset are on the disk, and perhaps the names that lead to the file."""
        self._synced = max(self._synced, end)
        if with_names:
            self.is_name_synced = True

    def count_unsynced(self, offset: int) -> int:
        if self._is_synced_before_use:
            return 0
        return offset - self._synced

    def note_frame(self, frame: Frame) -> None:
        self.note_synced(frame.vouched)
        if self._is_of_another_boot(frame):
            self._synced = frame.end

    def _is_of_another_boot(self, frame: Frame) -> bool:
        """Return whether a record was written in another boot: this one can only have read it from the disk."""
        return 0 not in {frame.boot, self.boot} and frame.boot != self.boot

    def has_whole_end(self, frames: Iterator[Frame]) -> bool:
        last = frame = next(frames)
        # A power loss may take a record for which no later record vouches, and leave later ones. So
        # each record is looked at, back to the first offset that one of them vouches for.
        limit = 0
        if last.boot == self.boot != 0:
            # Nothing is lost within one boot. These are checked in case the file comes from another
            # machine whose boot has the same number.
            limit = last.end - _CHECKED_END
        self.note_synced(frame.vouched)
        while frame.offset > max(self._synced, limit) and frame.type != META:
            before = next(frames, None)
            if before is None:
                return False
            frame = before
            self.note_synced(frame.vouched)
        if self._is_of_another_boot(last):
            self._synced = last.end
        return True

    # After a failed sync

    def note_failed_sync(self) -> None:
        """Note that bytes of the file may not reach the disk: nothing is stored in it until it is rewritten."""
        self.is_suspect = True

    def note_unacknowledged(self, start: int, end: int) -> None:
        """Note where the records begin and end whose put fails with the sync."""
        self._unacknowledged = start, end

    def find_acknowledged_end(self, end: int) -> int:
        """Return where the log ends without the records at its end that no put has acknowledged."""
        if self._unacknowledged is None:
            return end
        start, unacknowledged_end = self._unacknowledged
        if unacknowledged_end != end:
            # Another writer has appended since: its records stand on those that failed.
            return end
        return start

    def note_taken_back(self) -> None:
        """Note that the unacknowledged records are cut off. The disk may hold them, so the rest stays suspect."""
        self._unacknowledged = None

    def note_replaced(self) -> None:
        """Note that another file takes the place of this one, in blocks of the disk that have not failed."""
        self.is_suspect = False
        self._unacknowledged = None


_PEEK_SIZE: Final = 64
"""Bytes read behind the end of a log to find out whether another process has written there."""
_PART_SIZE: Final = 1 << 20
_BLOCK_SIZE: Final = 1 << 12
SHORTEST_EXTENDED: Final = _BLOCK_SIZE
"""A log of fewer bytes is not extended by zeros: it will hardly get enough records for that to pay."""
_MOST_ZEROS: Final = 1 << 17
"""If more zeros than this follow the last record, the next writer cuts them off."""
_LONGEST_EXTENDED: Final = 1 << 20
"""A longer record is written without zeros behind it, which would take a copy of it."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""How a system says that a file cannot grow."""
_LOGGER: Final = getLogger("graphkit")


class LogFile:
    """One open file of a log. A log that is opened again has another one.

    Attributes:
        fd: the descriptor; -1 when it is closed.
        inode: identifies the file.
        read_only_error: why the file is open for reading only, if it is.
        appended_end: where the last record ends that was appended through this object.
    """

    def __init__(
        self,
        io: FileIO,
        path: str,
        fd: int,
        durability: FileDurability,
        *,
        is_extended_ahead: bool,
        read_only_error: OSError | None = None,
    ) -> None:
        """Take over an open descriptor.

        Args:
            io: the file system.
            path: the path of the file.
            fd: the descriptor.
            durability: what is known to be on the disk.
            is_extended_ahead: whether zeros are written behind a record; see `fsync` of `FileLogBytes`.
            read_only_error: why the descriptor is for reading only, if it is.
        """
        self._io = io
        self._path = path
        self.fd = fd
        self._durability = durability
        self._is_extended_ahead = is_extended_ahead
        self.inode = 0
        self.read_only_error = read_only_error
        self.appended_end = 0
        self._clean_size = -1
        """The size of the file when only zeros were found behind the last record; -1 after other bytes."""
        self._pins = 0
        """How many callers sync the file without the mutex of the log."""
        self._is_closing = False
        """Whether the descriptor is closed after the last of these callers."""

    # The descriptor

    def pin(self) -> None:
        """Keep the descriptor open for a caller that syncs the file without the mutex of the log."""
        self._pins += 1

    def unpin(self) -> None:
        """Note that a caller has finished syncing."""
        self._pins -= 1
        if self._is_closing and not self._pins:
            self._close_now()

    def unpin_all(self) -> None:
        """Forget the callers that sync the file: in the child of a fork there are none."""
        self._pins = 0

    def close(self) -> None:
        """Close the descriptor, now or after the last sync."""
        self._is_closing = True
        if not self._pins:
            self._close_now()

    def _close_now(self) -> None:
        # First out of reach: the system gives the number of a closed descriptor to other files.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._io.close(fd)

    def __del__(self) -> None:
        # A saver that was dropped without being closed must not keep descriptors.
        with suppress(Exception):
            if self.fd >= 0:
                self._io.close(self.fd)

    # What other writers have done

    def read_status(self) -> os.stat_result:
        """Return the status of the file."""
        status = self._io.fstat(self.fd)
        self.inode = status.st_ino
        return status

    def is_unchanged(self, size: int, end: int) -> bool:
        """Return whether a file of this size has no bytes behind the last record that are new.

        A record that is written over zeros does not change the size. Its first bytes are not zero,
        and a write that is cut short leaves the first bytes.
        """
        if size != self._clean_size:
            return False
        return size == end or not self._io.read_at(self.fd, end, _PEEK_SIZE).strip(b"\0")

    def is_ready(self, end: int) -> bool:
        """Return whether a record can be appended at once: no other process has written.

        The usual case of a put, in one system call, or two if zeros follow the last record.
        """
        if self.read_only_error is not None:
            return False
        if self._is_extended_ahead:
            size, links = self._io.measure(self.fd)
        else:
            # Nothing is synced after it, and this takes half the time.
            status = self._io.fstat(self.fd)
            size, links = status.st_size, status.st_nlink
        return links > 0 and self.is_unchanged(size, end)

    def note_end(self, size: int, end: int) -> None:
        """Note where the last record ends in a file of a size, after the bytes before it were read."""
        self._clean_size = -1
        if size == end or self.get_range(end, size).is_zero():
            self._clean_size = size

    def get_range(self, start: int, end: int) -> FileRange:
        """Return the bytes between two offsets."""
        return FileRange(io=self._io, fd=self.fd, start=start, end=end)

    # Appending

    def make_empty(self) -> None:
        """Remove what an incomplete creation of a log has left; its bytes are salvaged unless they are zero."""
        size = self.read_status().st_size
        if size:
            content = self.get_range(0, size)
            if not content.is_zero():
                content.salvage(os.path.dirname(self._path), f"{layout.TORN}0-0")
            self._io.truncate(self.fd, 0)
        self._clean_size = 0

    def write(self, start: int, data: bytes) -> None:
        """Write the bytes of a record where the last one ends; if that fails, the file is as it was."""
        end = start + len(data)
        size = self._clean_size
        try:
            if end > size and self._is_extended_ahead and len(data) <= _LONGEST_EXTENDED:
                written = start + self._write_and_extend(start, data)
            else:
                written = start + self._io.write_at(self.fd, start, data)
            if written < end:
                write_whole(self._io, self.fd, written, data[written - start :])
                written = end
        except BaseException:
            self.cut_back(start)
            raise
        if written > size:
            self._clean_size = written
        self.appended_end = end

    def _write_and_extend(self, start: int, data: bytes) -> int:
        """Write once, with zeros behind the data; return how many bytes were written."""
        # In the same write: the zeros cost no call of their own, and a put that is cut short leaves
        # what any other torn write does. The next puts overwrite zeros, and the size stays as it is.
        end = start + len(data)
        zeros = bytes(_choose_size(end) - end)
        try:
            return self._io.write_at(self.fd, start, data + zeros)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return 0  # The data alone may fit.

    def cut_back(self, start: int) -> None:
        """Cut off what was appended from an offset on."""
        try:
            self._io.truncate(self.fd, start)
        except OSError:
            # The next writer finds a torn record and salvages it.
            _LOGGER.warning("%s: a write that failed could not be undone; the next writer will", self._path)
            self._clean_size = -1
            return
        self._clean_size = start
        try:
            # Otherwise power loss could mix sectors of the old bytes with those that replace them.
            self._io.fdatasync(self.fd)
        except OSError:
            self._durability.note_failed_sync()

    # The end of the file

    def prepare_end(self, end: int, generation: int) -> str:
        """Cut off what a dead writer left behind the last record; see LogBytes."""
        # Zeros stay, unless there are many; other bytes are salvaged.
        if self._clean_size < end:
            return self._salvage_tail(end, generation)
        if self._clean_size - end > _MOST_ZEROS:
            self._io.truncate(self.fd, end)
            self._clean_size = end
        return ""

    def _salvage_tail(self, end: int, generation: int) -> str:
        size = self._io.fstat(self.fd).st_size
        directory = os.path.dirname(self._path)
        tail = self.get_range(end, size)
        name = ""
        if not tail.is_zero():
            name = tail.salvage(directory, f"{layout.TORN}{generation}-{end}")
        # The copy is on the disk. The cut must be, too, before a record is written in place of these
        # bytes: a power loss could otherwise leave sectors of both.
        self._io.truncate(self.fd, end)
        self._clean_size = end
        try:
            self._io.fsync(self.fd)
        except OSError:
            self._durability.note_failed_sync()
            raise
        self._durability.note_synced(end)
        if name:
            self._io.fsync_dir(directory)
            _LOGGER.warning(
                "%s: the last write did not finish; its %d bytes are set aside in %s", self._path, size - end, name
            )
        return name

    def has_extension(self, end: int) -> bool:
        """Return whether zeros follow the last record with which this writer may have extended the file."""
        return self._is_extended_ahead and self._clean_size > end

    def cut_zeros(self, end: int) -> None:
        """Cut off the zeros after the last record; the caller holds the write lock."""
        try:
            size = self._io.fstat(self.fd).st_size
            if size > end and self.is_unchanged(size, end):
                self._io.truncate(self.fd, end)
                self._clean_size = end
        except OSError as error:
            # The zeros mean nothing to any reader.
            _LOGGER.info("%s: the zeros at its end could not be cut off: %s", self._path, error)

    def truncate_or_overwrite(self, start: int, end: int) -> bool:
        """Truncate the file, or else write zeros, which mean "nothing yet" to every reader.

        Returns:
            Whether it was truncated.

        Raises:
            OSError: the file system refused both.
        """
        try:
            self._io.truncate(self.fd, start)
        except OSError:
            while start < end:
                start += self._io.write_at(self.fd, start, bytes(min(_PART_SIZE, end - start)))
            return False
        return True


def _choose_size(end: int) -> int:
    """Return to which size a log is extended whose records end at an offset: whole blocks."""
    if end < SHORTEST_EXTENDED:
        return end
    blocks = (end + _BLOCK_SIZE - 1) // _BLOCK_SIZE
    return blocks * _BLOCK_SIZE


_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileId(NamedTuple):
    """Identifies the file of a log. A new log that takes its place, or its inode, has another fid."""

    fid: int
    inode: int


def _do_nothing(*_: object) -> None:
    pass


class FileLogBytes(LogBytes):
    """The bytes of a log in a file. A caller that appends also holds the write lock.

    Attributes:
        file: the open file; None if there is none, or it is not created yet.
        durability: what of it is known to be on the disk.
    """

    def __init__(
        self,
        io: FileIO,
        path: str,
        write_lock: WriteLock | None = None,
        *,
        make_directories: Callable[[], None] = _do_nothing,
        sync_names: Callable[[FileId | None], None] = _do_nothing,
        fsync: Fsync = "never",
        is_synced_before_use: bool = False,
    ) -> None:
        """Prepare to open a file.

        Args:
            io: the file system.
            path: where the log is, or will be.
            write_lock: excludes other writers; None if nothing is appended.
            make_directories: makes the directories of the log, where they are missing.
            sync_names: brings the names that lead to the log to the disk. Given a file, it may do
                nothing if it has done so for that file before.
            fsync: when what is appended is synced. Unless that is never, the file is extended with zeros for
                the records to come: a sync of bytes within the file's size needs no journal of the file
                system (1.5 times faster on ext4).
            is_synced_before_use: whether the whole file is brought to the disk before it takes its place,
                so that each record vouches for it.
        """
        super().__init__(path)
        self.io = io
        self._make_directories = make_directories
        self.sync_names = sync_names
        self._is_extended_ahead = fsync != "never"
        self._is_synced_at_once = fsync == "always"
        self.write_lock = write_lock
        self.file: LogFile | None = None
        self.durability: FileDurability = FileDurability(is_synced_before_use=is_synced_before_use)
        self._beginning = b""
        """What is written before the first record, with it."""

    # Opening and closing

    @property
    def is_open(self) -> bool:
        return self.file is not None or bool(self._beginning)

    def open(self) -> bool:
        read_only_error = None
        try:
            fd = self.io.open(self.path, write=self.write_lock is not None)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # A caller without the right to write can still read; so can any on a read-only file
            # system.
            if error.errno not in _READ_ONLY or self.write_lock is None:
                raise
            fd = self.io.open(self.path)
            read_only_error = error
        file = self._take_file(fd, read_only_error)
        self.size = file.read_status().st_size
        return True

    def _take_file(self, fd: int, read_only_error: OSError | None = None) -> LogFile:
        self.file = LogFile(
            self.io,
            self.path,
            fd,
            self.durability,
            is_extended_ahead=self._is_extended_ahead,
            read_only_error=read_only_error,
        )
        return self.file

    @property
    def fd(self) -> int:
        """The descriptor of the open file."""
        assert self.file is not None
        return self.file.fd

    def close(self) -> None:
        """Close the file, now or after the last sync."""
        file, self.file = self.file, None
        if file is not None:
            file.close()
        self._beginning = b""
        self.durability.forget_synced()

    def close_after_fork(self) -> None:
        if self.file is not None:
            self.file.unpin_all()

    # Reading, and what other writers have done

    def refresh(self, end: int) -> Change:
        file = self.file
        assert file is not None
        status = file.read_status()
        self.size = size = status.st_size
        if not status.st_nlink:
            return Change.REMOVED
        if size < end:
            return Change.REPLACED
        if size == end:
            file.note_end(size, end)
            return Change.NONE
        if file.is_unchanged(size, end):
            return Change.NONE
        return Change.GREW

    def note_end(self, end: int, last: StoredCheckpoint | None = None) -> None:  # noqa: ARG002 - for bytes with an index
        assert self.file is not None
        self.file.note_end(self.size, end)

    def read_at(self, offset: int, length: int) -> bytes:
        assert self.file is not None
        return self.io.read_at(self.file.fd, offset, length)

    # Appending

    def begin(self, beginning: bytes) -> None:
        self._make_directories()
        self._beginning = beginning

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:  # noqa: ARG002 - a file keeps bytes
        if self.file is not None:
            self.file.write(offset, data)
            return
        try:
            file = self._take_file(self.io.open(self.path, write=True, create=True))
            file.make_empty()
            file.write(0, self._beginning + data)
            self._beginning = b""
        except BaseException:
            self.close()
            with suppress(OSError):
                self.io.unlink(self.path)
            raise

    def start_writing(self) -> None:
        """Let the disk begin with what was appended, while the put does what is left before the sync.

        It pays if more than 15 us of work follow; docs/adr/0023 has the figures.
        """
        if not self._is_synced_at_once:
            return
        assert self.file is not None
        try:
            self.io.start_writing(self.file.fd)
        except OSError:
            # The sync need not report it again, so this counts as a failed sync: the log is
            # rewritten without the record, and the put fails.
            self.durability.note_failed_sync()
            _LOGGER.warning("%s: what was appended may not have reached the disk", self.path, exc_info=True)

    def undo(self, start: int) -> None:
        if self.file is None:
            return
        if start:
            self.file.cut_back(start)
            return
        self.close()
        with suppress(OSError):
            self.io.unlink(self.path)

    # The end of the file

    def prepare_end(self, end: int, generation: int) -> str:
        file = self.file
        assert file is not None
        if file.read_only_error is not None:
            raise file.read_only_error
        return file.prepare_end(end, generation)

    def retire(self, end: int) -> None:
        """Cut off the zeros of a log that this writer has extended, if no other writer is at work.

        Otherwise they stay, and the next writer uses them.
        """
        file = self.file
        if file is not None and self.write_lock is not None and file.has_extension(end):
            with self.write_lock.enter_if_free() as is_entered:
                if is_entered:
                    file.cut_zeros(end)

    def note_ended(self, end: int) -> None:
        assert self.file is not None
        self.file.cut_zeros(end)


class ReleasedFileBytes(FileLogBytes):
    """The bytes of a released log: it must be there if its file is."""

    def __init__(self, io: FileIO, final_path: str, live_path: str, is_ending: Callable[[], bool]) -> None:
        """Prepare to open a file.

        Args:
            io: the file system.
            final_path: where the log is when its release is finished.
            live_path: where it may be until then.
            is_ending: returns whether the release is unfinished.
        """
        super().__init__(io, final_path)
        self._final_path = final_path
        self._live_path = live_path
        self._is_ending = is_ending

    def open(self) -> bool:
        self.path = self._final_path
        if super().open():
            return True
        if self._is_ending():
            self.path = self._live_path
            if super().open():
                return True
            self.path = self._final_path
        # Another process may have finished the release meanwhile: the log has its final path by then.
        return super().open()

    def check_release(self, end: int, *, is_found: bool, has_ended: bool) -> None:
        """Check a released log, after it was read.

        Args:
            end: where its last record ends.
            is_found: whether there is one.
            has_ended: whether it ends in RELEASE.

        Raises:
            CheckpointCorruptionError: a part of it is missing.
        """
        if self.path == self._live_path:
            return
        if is_found and not has_ended:
            raise CheckpointCorruptionError(self._final_path, end, "the end of the released history is missing")
        if not is_found and self.io.stat(self._final_path) is not None:
            raise CheckpointCorruptionError(self._final_path, 0, "the released history is missing")
