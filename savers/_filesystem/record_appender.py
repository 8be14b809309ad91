"""Appends records to a log, undoes failed writes, and recovers the end of a log."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from time import time_ns
from typing import Final

from graphkit.errors import CheckpointSerializationError
from savers._filesystem import layout, log, payloads
from savers._filesystem.log_reader import LogReader
from savers._filesystem.salvaged_files import FileRange
from savers._filesystem.sealing import MAX_OVERHEAD, pack_place

META_RECORDS: Final = log.META_RECORDS[log.MAJOR]
_PART_SIZE: Final = 1 << 20
_LOGGER: Final = getLogger("graphkit")


class RecordAppender(LogReader):
    """A log to which records are appended, whatever they hold.

    The caller holds `mutex`, and the write lock of the thread.
    """

    make_directories: Callable[[], None]
    """Makes the directories of this log, where they are missing."""
    is_synced_before_use = False
    """Whether the whole file is brought to the disk before it takes its place, so that each record
    vouches for it."""
    unacknowledged: tuple[int, int] | None = None
    """After a failed sync: where the records begin and end that no put has acknowledged."""

    # Sealing

    @property
    def max_payload(self) -> int:
        """How many bytes a payload may have before it is sealed."""
        return log.MAX_PAYLOAD if self.key_ring is None else log.MAX_PAYLOAD - MAX_OVERHEAD

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
        """Append the record that ends this log."""
        self._append_record(type, payloads.packb([version, time_ns() // 1000]))

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
        if len(payload) > self.max_payload:
            reason = f"it takes {len(payload)} bytes, and a record has at most {self.max_payload}"
            raise CheckpointSerializationError("", "record", reason)
        beginning = b""
        if self.fd < 0:
            try:
                beginning = self._create()
            except BaseException:
                self.close()
                raise
        offset = self.end or len(beginning)
        if self.version < log.MAJOR:
            # Only the record that ends a log is appended to a log of version 1; all others come
            # after the upgrade.
            frame = log.pack_frame_v1(offset, self.fid, self.seq, type, payload, flags, back, key)
        else:
            if self.is_scattered or flags & (log.SCATTERED | log.REPLACE):
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
            frame = log.pack_frame(
                offset,
                self.fid,
                self.seq,
                type,
                payload,
                flags,
                back,
                key,
                unsynced,
                self.boot,
            )
        try:
            self._append(beginning + frame if beginning else frame)
        except BaseException:
            if beginning:
                self._remove_file()
            raise
        self.end = offset + len(frame)
        self.seq += 1
        return offset

    def _append(self, data: bytes) -> None:
        start = self.end
        try:
            done = self.io.append(self.fd, data)
            # A full disk first causes a short write. The next write raises the error.
            while done < len(data):
                done += self.io.append(self.fd, data[done:])
        except BaseException:
            self._undo(start)
            raise

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
        try:
            # Otherwise power loss could mix sectors of the old bytes with those that replace them.
            self.io.fdatasync(self.fd)
        except OSError:
            self.suspect = True

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
        self.begin_seal()
        self.make_directories()
        self.fd = self.io.open(self.path, write=True, create=True, append=True)
        size = self.io.fstat(self.fd).st_size
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
        payload = payloads.packb(meta)
        frames = b""
        for seq in range(META_RECORDS):
            offset = log.HEADER_SIZE + len(frames)
            frames += log.pack_frame(
                offset,
                fid,
                seq,
                log.META,
                payload,
                unsynced=offset,
                boot=self.boot,
            )
        return frames

    def begin(self, header: log.Header) -> None:
        """Create the file at this log's path, which does not exist yet."""
        self.fd = self.io.open(self.path, write=True, create=True, append=True)
        self.header = header
        self.fid = header.fid
        self.seq = META_RECORDS
        self.begin_seal()
        beginning = header.pack() + self.pack_meta_frames(header.fid)
        self._append(beginning)
        self.end = len(beginning)

    # Recovery

    def refresh_to_write(self) -> bool:
        """Refresh, and cut off what a dead writer left at the end; see `refresh`.

        Zeros after the last record are cut off; other bytes are salvaged first.
        """
        if self.fd >= 0 and self.closed_by is None:
            # The usual case, in one system call: no other process has written.
            status = self.io.fstat(self.fd)
            if status.st_size == self.end and status.st_nlink:
                return True
        is_live = self.refresh()
        if not is_live:
            return False
        size = self.io.fstat(self.fd).st_size
        if size > self.end:
            if self.version == log.MAJOR and self.file.is_zero(self.end, size):
                self.io.truncate(self.fd, self.end)
            else:
                self.salvage_tail()
        return True

    def salvage_tail(self) -> None:
        """Copy what an unfinished write left at the end to a salvaged file, and cut it off."""
        assert self.header is not None
        size = self.io.fstat(self.fd).st_size
        directory = os.path.dirname(self.path)
        tail = FileRange(io=self.io, fd=self.fd, start=self.end, end=size)
        name = tail.salvage(directory, f"{layout.TORN}{self.header.generation}-{self.end}")
        self.io.truncate(self.fd, self.end)
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
            fd = self.io.open(self.path, write=True)
            try:
                while start < end:
                    start += self.io.write_at(fd, start, bytes(min(_PART_SIZE, end - start)))
            finally:
                self.io.close(fd)


def new_header(digest: bytes, generation: int) -> log.Header:
    """Return the header of a new file.

    Args:
        digest: the thread digest.
        generation: 1, or one more than that of the log that is rewritten.
    """
    fid = int.from_bytes(os.urandom(4), "little") or 1
    return log.Header(fid, generation, time_ns(), digest)
