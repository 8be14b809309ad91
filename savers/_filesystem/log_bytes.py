"""The bytes of a log in a file: opened, kept up to date with what other processes append, appended to, undone.

Every use of a log begins with `refresh`, which costs one fstat while no other process has written; if
zeros follow the last record, it also looks at the bytes where the next record would stand.

`FileLogBytes` belongs to a path. What concerns one opening of a file there is in `LogFile`, and what
the disk has of it in `FileDurability`.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final, NamedTuple

from graphkit.errors import CheckpointCorruptionError
from savers._filesystem.durability import FileDurability
from savers._filesystem.lock import WriteLockIfFree
from savers._filesystem.log_file import LogFile
from savers._log.log_bytes import Change, LogBytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from savers._filesystem.io import FileIO
    from savers._filesystem.lock import WriteLock
    from savers._log.stored_checkpoint import StoredCheckpoint

_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
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
        is_extended_ahead: bool = False,
        is_synced_at_once: bool = False,
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
            is_extended_ahead: whether the file is extended with zeros for the records to come: a sync of
                bytes within the file's size needs no journal of the file system (1.5 times faster on
                ext4).
            is_synced_at_once: whether a sync of each put follows as soon as the put has appended it.
            is_synced_before_use: whether the whole file is brought to the disk before it takes its place,
                so that each record vouches for it.
        """
        super().__init__(path)
        self.io = io
        self._make_directories = make_directories
        self.sync_names = sync_names
        self._is_extended_ahead = is_extended_ahead
        self._is_synced_at_once = is_synced_at_once
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

    @property
    def read_only_error(self) -> OSError | None:
        """Why the open file can only be read, if that is so."""
        return None if self.file is None else self.file.read_only_error

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
        if self.file is None:
            self._create(self._beginning + data)
        else:
            self.file.write(offset, data)

    def write_beginning(self) -> None:
        """Create the file of a log that has been begun and has no record yet."""
        if self._beginning:
            self._create(self._beginning)

    def _create(self, data: bytes) -> None:
        """Create the file, with the first bytes of a log; remove it if that fails."""
        try:
            file = self._take_file(self.io.open(self.path, write=True, create=True))
            file.make_empty()
            file.write(0, data)
            self._beginning = b""
        except BaseException:
            self.close()
            with suppress(OSError):
                self.io.unlink(self.path)
            raise

    def start_writing(self) -> None:
        """Let the disk begin with what was appended, while the put does what is left before the sync.

        It pays if more than 15 us of work follow; ADR 23 has the figures.
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

    def take_back(self, end: int) -> None:
        """Cut off the records that no put has acknowledged, if rewriting the log has failed, too.

        The disk may still hold them, so the bytes stay suspect, unless there are none now. The caller
        closes them.
        """
        durability = self.durability
        start = durability.find_acknowledged_end(end)
        if self.file is None or start == end:
            return
        try:
            is_empty = self.file.truncate_or_overwrite(start, end) and not start
        except OSError:
            _LOGGER.exception("%s: a put that failed could not be undone; the next writer will", self.path)
            return
        if is_empty:
            durability.note_replaced()
        else:
            durability.note_taken_back()

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
            with WriteLockIfFree(self.write_lock) as is_entered:
                if is_entered:
                    file.cut_zeros(end)

    def note_ended(self, end: int) -> None:
        assert self.file is not None
        self.file.cut_zeros(end)


class ReleasedFileBytes(FileLogBytes):
    """The bytes of a released log: it must be there if its file is."""

    is_ending = False
    """Whether the release is unfinished: the log may still have the path of the live one."""

    def __init__(self, io: FileIO, final_path: str, live_path: str) -> None:
        super().__init__(io, final_path)
        self._final_path = final_path
        self._live_path = live_path

    def open(self) -> bool:
        paths = [self._final_path]
        if self.is_ending:
            # Another process may finish the release at this moment. If the live log is gone, the log
            # has its final path by then.
            paths += [self._live_path, self._final_path]
        for path in paths:
            self.path = path
            if super().open():
                return True
        return False

    def check_release(self, end: int, *, is_found: bool, has_ended: bool) -> None:
        if self.is_ending:
            return
        if is_found and not has_ended:
            raise CheckpointCorruptionError(self._final_path, end, "the end of the released history is missing")
        if not is_found and self.io.stat(self._final_path) is not None:
            raise CheckpointCorruptionError(self._final_path, 0, "the released history is missing")
