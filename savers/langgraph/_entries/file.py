"""An open log of entries: its bytes, where it ends, and how much of it is on the disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import ormsgpack

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._filesystem.io import boot_number
from savers._log import log
from savers._log.frame import ANCILLARY
from savers.langgraph._entries.records import MalformedRecordError, unpack_changes
from savers.langgraph._entries.table import EntryTable

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

META_RECORDS: Final = log.META_RECORDS[log.MAJOR]
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_META_KEY: Final = "entries"


class EntryFile:
    """One open file that holds a log of entries.

    The caller holds the mutex of its log, except to sync.
    """

    def __init__(self, io: FileIO, path: str, kind: str, fd: int) -> None:
        self.io = io
        self.path = path
        self.fd = fd
        self.kind = kind
        self.end = 0
        """Where the last record that was read ends."""
        self.synced = 0
        """Up to here the file is known to be on the disk."""
        self.is_name_synced = False
        """Whether the names that lead to the file are known to be on the disk."""
        self.is_suspect = False
        """A sync failed: the bytes may not be on the disk, whatever a later sync returns."""
        self.read_only_error: OSError | None = None
        """Why the file is open for reading only, if it is."""
        self._sync_mutex = threading.Lock()
        self.generation = 0
        self._fid = 0
        self._seq = 0
        self._boot = boot_number()
        self._pins = 0
        self._is_closing = False

    # Opening and closing

    @classmethod
    def open(cls, io: FileIO, path: str, kind: str) -> EntryFile | None:
        """Open the file; return None if there is none. It is not read yet."""
        try:
            return cls(io, path, kind, io.open(path, write=True))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # A caller without the right to write can still read.
            if error.errno not in _READ_ONLY:
                raise
            file = cls(io, path, kind, io.open(path))
            file.read_only_error = error
            return file

    def pin(self) -> None:
        """Keep the descriptor open until `unpin`."""
        self._pins += 1

    def unpin(self) -> None:
        """Close the descriptor if the file was closed meanwhile."""
        self._pins -= 1
        if self._is_closing and not self._pins:
            self.close()

    def close(self) -> None:
        """Close the descriptor, now or when the last caller has synced it."""
        self._is_closing = True
        if self.fd >= 0 and not self._pins:
            # First out of reach: the system gives the number of a closed descriptor to other files.
            fd, self.fd = self.fd, -1
            self.io.close(fd)

    def close_after_fork(self) -> None:
        """Close the descriptor in the child of a fork, whose threads are gone."""
        self._pins = 0
        with suppress(OSError):
            self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close_after_fork()

    # Reading

    @property
    def log_file(self) -> log.LogFile:
        """The file as a log."""
        return log.LogFile(io=self.io, fd=self.fd, path=self.path, fid=self._fid)

    def size(self) -> int:
        """Return the size of the file."""
        return int(self.io.fstat(self.fd).st_size)

    def read_all(self, end: int | None = None) -> EntryTable:
        """Read the whole log.

        Args:
            end: where to stop; None reads to the end of the file.

        Raises:
            IncompleteLog: the creation of the file was cut short.
            CheckpointCorruptionError: the log is damaged.
            CheckpointFormatError: it needs a newer graphkit, or is not a log of this kind.
        """
        size = self.size()
        limit = size if end is None else end
        data = self.io.read_at(self.fd, 0, min(limit, log.WINDOW))
        any_file = self.log_file._replace(fid=None)
        if log.is_headless(data) and any_file.vouched_end(0, size) <= 0:
            # A power loss took the first sector of the first write. Nothing was acknowledged.
            raise log.IncompleteLog
        header = log.read_header(self.path, data)
        if header.major != log.MAJOR:
            raise CheckpointFormatError(self.path, f"it is not a log of {self.kind}")
        self._fid = header.fid
        self.generation = header.generation
        self._seq = 0
        self.end = 0
        table = EntryTable()
        self._apply(log.scan(self.log_file, log.HEADER_SIZE, limit, 0, data), table)
        if not self._seq:
            raise log.IncompleteLog
        return table

    def read_on(self, table: EntryTable, size: int) -> None:
        """Apply what was appended since the last read.

        Raises:
            CheckpointCorruptionError: the log is damaged. The table has a part of the changes.
            CheckpointFormatError: it needs a newer graphkit.
        """
        self._apply(log.scan(self.log_file, self.end, size, self._seq), table)

    def _apply(self, frames: Iterable[log.Frame], table: EntryTable) -> None:
        """Apply the changes of records that follow what was read before.

        One loop, without a call for each record: together with the other bodies that run for each
        entry, it saves a tenth of what the first use of a log takes.
        """
        apply = table.apply
        current_boot = self._boot
        for offset, end, type_, _, _, _, seq, payload, vouched, boot, _ in frames:
            if type_ == log.WRITE:
                try:
                    changes = unpack_changes(payload, offset + log.FRAME_SIZE)
                except MalformedRecordError as error:
                    raise CheckpointCorruptionError(self.path, offset, str(error)) from error
                for change in changes:
                    apply(change)
            elif type_ == log.META:
                self._check_meta(offset, payload)
            elif not type_ & ANCILLARY:
                raise CheckpointFormatError(self.path, f"the record at byte {offset} needs a newer graphkit")
            self._seq = seq + 1
            self.end = end
            self.synced = max(self.synced, vouched)
            if boot != current_boot and boot and current_boot:
                # This boot of the system can only have read the record from the disk.
                self.synced = max(self.synced, end)

    def _check_meta(self, offset: int, payload: bytes) -> None:
        try:
            meta = ormsgpack.unpackb(payload)
        except ValueError as error:
            raise CheckpointCorruptionError(self.path, offset, "its description is malformed") from error
        if not isinstance(meta, dict) or meta.get(_META_KEY) != self.kind:
            raise CheckpointFormatError(
                self.path, f"it is not a log of {self.kind}; put the file back where it came from"
            )

    # Writing

    def begin(self, header: log.Header) -> bytes:
        """Return the bytes with which a new log begins."""
        self._fid = header.fid
        self.generation = header.generation
        self._seq = META_RECORDS
        return header.pack() + self._pack_meta_frames()

    def _pack_meta_frames(self) -> bytes:
        payload = ormsgpack.packb({_META_KEY: self.kind})
        frames = b""
        for seq in range(META_RECORDS):
            offset = log.HEADER_SIZE + len(frames)
            frames += log.pack_frame(
                offset=offset,
                fid=self._fid,
                seq=seq,
                type=log.META,
                payload=payload,
                unsynced=offset,
                boot=self._boot,
            )
        return frames

    def pack_record(self, payload: bytes, offset: int, *, is_synced_before_use: bool = False) -> bytes:
        """Return the bytes of the next record at an offset."""
        return log.pack_frame(
            offset=offset,
            fid=self._fid,
            seq=self._seq,
            type=log.WRITE,
            payload=payload,
            unsynced=0 if is_synced_before_use else offset - self.synced,
            boot=self._boot,
        )

    def note_appended(self, end: int, records: int = 1) -> None:
        """Note that the log ends at an offset now."""
        self._seq += records
        self.end = end

    def write(self, data: bytes) -> None:
        """Append bytes in one write; go on where the file system takes only a part."""
        done = self.io.write_at(self.fd, self.end, data)
        while done < len(data):
            done += self.io.write_at(self.fd, self.end + done, data[done:])

    def sync(self, end: int, directories: Iterable[str]) -> None:
        """Bring the file to the disk up to an offset; the caller has pinned it and holds no lock.

        One sync covers what several threads have appended. After a failed one, no later one can be
        believed: on Linux the next sync of the same file succeeds.

        Args:
            end: where the caller's record ends.
            directories: the directories whose names lead to the file.

        Raises:
            OSError: the bytes may not be on the disk.
        """
        with self._sync_mutex:
            if self.is_suspect:
                raise OSError(errno.EIO, "an earlier sync of this file failed", self.path)
            if self.synced >= end and self.is_name_synced:
                return
            synced_end = self.end
            try:
                self.io.fdatasync(self.fd)
                if not self.is_name_synced:
                    for directory in directories:
                        self.io.fsync_dir(directory)
            except OSError:
                self.is_suspect = True
                raise
            self.synced = max(self.synced, synced_end)
            self.is_name_synced = True

    def good_frames(self) -> Iterator[log.Frame]:
        """Yield all records of the file that prove themselves, whatever is between them."""
        return self.log_file._replace(fid=None).good_frames(0, self.size())
