"""One open file of a log: written to, extended with zeros, cut."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Final

from savers._filesystem import layout
from savers._filesystem.io import write_whole
from savers._filesystem.salvaged_files import FileRange

if TYPE_CHECKING:
    from savers._filesystem.durability import FileDurability
    from savers._filesystem.io import FileIO

_PEEK_SIZE: Final = 64
"""Bytes read behind the end of a log to find out whether another process has written there."""
_PART_SIZE: Final = 1 << 20
_BLOCK_SIZE: Final = 1 << 12
_SHORT: Final = _BLOCK_SIZE
"""A log of fewer bytes is not extended: it will hardly get enough records for that to pay."""
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
            is_extended_ahead: see `FileLogBytes`.
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
    if end < _SHORT:
        return end
    blocks = (end + _BLOCK_SIZE - 1) // _BLOCK_SIZE
    return blocks * _BLOCK_SIZE
