"""The file of a log: opened, kept up to date with what other processes append to it, and closed.

Every use begins with `refresh`, which costs one fstat while no other process has written; if zeros
follow the last record, it also looks at the bytes where the next record would stand. The caller
holds `mutex` throughout, and the thread's write lock to append.
"""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers._filesystem.io import boot_number
from savers._log import log
from savers._log.open_log import OpenLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from savers._cipher import KeyRing
    from savers._filesystem.io import FileIO

_CHECKED_END: Final = 8 << 10
"""Bytes at the end of a log whose records are always checked when it is opened."""
_PEEK_SIZE: Final = 64
"""Bytes read behind the end of a log to find out whether another process has written there."""
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class FileLog(OpenLog):
    """An open log in a file. One thread of execution may use it at a time, which holds `mutex`."""

    io: FileIO

    def __init__(
        self,
        io: FileIO,
        path: str,
        owner: tuple[str, str],
        digest: bytes,
        codec: Codec,
        serializer: StateSerializer | None,
        key_ring: KeyRing | None = None,
    ) -> None:
        self.sync_mutex = threading.Lock()
        self.put_arrived = threading.Event()
        """Set by a put that LangGraph's pending writes wait for, so that one sync covers both."""
        self.waits_to_skip = 0
        """How many of the next pending writes do not wait for a put."""
        self.vain_waits = 0
        """How many were to be skipped after the last wait, if it was in vain."""
        self.pins = 0
        """How many callers are syncing outside the mutex; the descriptor is closed after the
        last."""
        self.suspect = False
        """An fsync failed: the file's bytes may not be on the disk, whatever a later fsync
        returns."""
        self.was_removed = False
        """The last refresh found that the file was removed other than by a delete or a release."""
        self._fds_to_close: list[int] = []
        super().__init__(io, path, owner, digest, codec, serializer, key_ring)
        self.boot = boot_number()

    def _reset(self) -> None:
        super()._reset()
        self.inode = 0
        self.file_size = 0
        """The size of the file when only zeros were found from `end` on; -1 after other bytes."""
        self.synced = 0
        """Up to here the file is known to be on the disk."""
        self.creation_synced = False
        """Whether the names that lead to the file are known to be on the disk."""
        self.read_only_error: OSError | None = None
        """Why the file is open for reading only, if it is."""

    # Opening and closing

    def close(self) -> None:
        """Close the descriptor, now or after the last sync; the next use opens the file again."""
        self.in_doubt = True
        # First out of reach: the system gives the number of a closed descriptor to other files.
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if self.pins:
                self._fds_to_close.append(fd)
            else:
                self.io.close(fd)
        self._reset()
        self.in_doubt = False

    def close_after_fork(self) -> None:
        self.pins = 0
        self.close()

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

    def refresh(self) -> bool:
        """Read what other processes have written since; open the file if need be.

        Returns:
            Whether there is a log that has not ended (a released log: whether there is one).

        Raises:
            CheckpointCorruptionError: the log is damaged. It is closed.
            CheckpointFormatError: it needs a newer graphkit, or belongs to another thread. It is
                closed.
        """
        if self.in_doubt:
            self.close()
        if self.fd < 0:
            self.was_removed = False
            return self._open()
        try:
            status = self.io.fstat(self.fd)
            if status.st_nlink and self._is_current(status.st_size):
                return True
            was_removed = not status.st_nlink and not self._has_ended(status.st_size)
        except BaseException:
            # A part of what was appended may have been taken in.
            self.close()
            raise
        self.close()
        is_live = self._open()
        self.was_removed = was_removed and not is_live
        return is_live

    def _is_current(self, size: int) -> bool:
        """Read what was appended; return whether the open file is still the log to read."""
        if self.closed_by is not None:
            return self.expects_release and size == self.file_size
        if size > self.end > 0:
            if not self._is_unchanged(size):
                self._read_on(size)
                self._note_size(size)
            return self.closed_by is None
        self._note_size(size)
        return size == self.end

    def _is_unchanged(self, size: int) -> bool:
        """Return whether a file of this size has no bytes behind the last record that are new.

        A record that is written over zeros does not change the size. Its first bytes are not zero,
        and a write that is cut short leaves the first bytes.
        """
        if size != self.file_size:
            return False
        return size == self.end or not self.io.read_at(self.fd, self.end, _PEEK_SIZE).strip(b"\0")

    def _note_size(self, size: int) -> None:
        """Note the size of the file, if only zeros stand behind the last record."""
        is_clean = size == self.end or (self.version == log.MAJOR and self.file.is_zero(self.end, size))
        self.file_size = size if is_clean else -1

    def _has_ended(self, size: int) -> bool:
        """Return whether a file that has no name any more was released or deleted."""
        if self.closed_by is None and size > self.end > 0:
            with suppress(CheckpointerError):
                self._read_on(size)
        return self.closed_by is not None

    def _open(self) -> bool:
        try:
            self.fd = self.io.open(self.path, write=True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # A caller without the right to write can still read; so can any on a read-only file
            # system.
            if error.errno not in _READ_ONLY:
                raise
            self.fd = self.io.open(self.path)
            self.read_only_error = error
        try:
            status = self.io.fstat(self.fd)
            size = status.st_size
            self.inode = status.st_ino
            start = self.read_beginning(size)
            if self._read_end(size, start):
                self.file_size = size
            else:
                self._read_all(size)
                self._note_size(size)
        except log.IncompleteLog:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        return self.closed_by is None or self.expects_release

    # The end of the file

    def _read_end(self, size: int, start: int) -> bool:
        """Find the last checkpoint from the end of the file.

        Returns:
            Whether it was found; False if the log must be read from its beginning.
        """
        backward = log.BackwardReader(self.file, size)
        if self.version == log.MAJOR:
            backward.skip_zeros()
        end = backward.offset
        frames = self._read_back_to_checkpoint(backward)
        if not frames or not self._has_whole_end(backward, frames, end):
            return False
        self.seq = frames[0].seq + 1
        self.end = end
        self.is_scattered = frames[0].is_scattered
        last = frames.pop()
        if last.type == log.CHECKPOINT:
            try:
                self._load_last_checkpoint(last)
            except CheckpointCorruptionError:
                # Only reading from the beginning distinguishes damage from records that a power
                # loss took.
                return False
        for frame in reversed(frames):
            self._take_other(frame)
        return end >= start

    def _read_back_to_checkpoint(self, backward: log.BackwardReader) -> list[log.Frame]:
        """Return the last records, newest first, back to a CHECKPOINT or META record.

        Empty if there is none.
        """
        frames: list[log.Frame] = []
        while (frame := backward.step()) is not None:
            log.check_known(self.path, frame)
            frames.append(self.open_frame(frame))
            self.synced = max(self.synced, frame.vouched)
            if frame.type in {log.CHECKPOINT, log.META}:
                return frames
        return []

    def _has_whole_end(self, backward: log.BackwardReader, frames: Sequence[log.Frame], end: int) -> bool:
        """Return whether the records are there that a power loss may have taken.

        A power loss may take a record for which no later record vouches, and leave later ones.
        Nothing is lost within one boot. So of a log that was written in the current boot, only the
        last 8 KiB are checked, in case the file comes from another machine.

        Args:
            backward: stands before the last of the frames.
            frames: the last records, newest first.
            end: where the last record ends.
        """
        last = frames[0]
        frame = frames[-1]
        is_same_boot = last.boot == self.boot != 0
        limit = end - _CHECKED_END if is_same_boot else 0
        while frame.offset > max(self.synced, limit) and frame.type != log.META:
            before = backward.step()
            if before is None:
                return False
            frame = before
            self.synced = max(self.synced, frame.vouched)
        if last.boot and self.boot and not is_same_boot:
            # A record that can be read in a later boot than it was written in is on the disk.
            self.synced = end
        return True

    def _take_next(self, frame: log.Frame) -> None:
        super()._take_next(frame)
        self.synced = max(self.synced, frame.vouched)
