"""Going through a log's records: forward by `scan`, back from the end by `BackwardReader`, or to one that is known.

Theory of operation. A log only grows at its end, one whole record per write. A record proves itself (`frame.py`). What
does not is either *not there yet*, which only the end of a log can be, or *damage* (`damage.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._filesystem.damage import good_frames, is_torn, is_zero, judge, vouched
from savers._filesystem.frame import (
    CHECKPOINT,
    COMPRESSED,
    DATA,
    END,
    FRAME_SIZE,
    HEADER_SIZE,
    KEY,
    MAGIC,
    MAJOR,
    MARK,
    MAX_PAYLOAD,
    META,
    META_RECORDS,
    OVERHEAD,
    OVERHEAD_V1,
    RELEASE,
    REPLACE,
    SCATTERED,
    SYNC,
    TOMBSTONE,
    TRAILER_SIZE,
    WRITE,
    Frame,
    Header,
    IncompleteLog,
    check_known,
    extent_of,
    is_headless,
    length_at_end,
    pack_frame,
    pack_frame_v1,
    parse_frame,
    read_header,
    repack_frame,
)

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

__all__ = [
    "CHECKPOINT",
    "COMPRESSED",
    "DATA",
    "END_READ",
    "FRAME_SIZE",
    "HEADER_SIZE",
    "KEY",
    "MAGIC",
    "MAJOR",
    "MARK",
    "MAX_DISTANCE",
    "MAX_PAYLOAD",
    "META",
    "META_RECORDS",
    "OVERHEAD",
    "RELEASE",
    "REPLACE",
    "SCATTERED",
    "SYNC",
    "TOMBSTONE",
    "TRAILER_SIZE",
    "WINDOW",
    "WRITE",
    "BackwardReader",
    "Frame",
    "Header",
    "IncompleteLog",
    "check_known",
    "extent_of",
    "good_frames",
    "is_headless",
    "is_torn",
    "is_zero",
    "judge",
    "pack_frame",
    "pack_frame_v1",
    "parse_frame",
    "read_frame",
    "read_header",
    "repack_frame",
    "scan",
    "vouched",
]

MAX_DISTANCE: Final = 0xF000_0000
WINDOW: Final = 1 << 22
END_READ: Final = 1 << 16


def scan(
    io: FileIO,
    fd: int,
    path: str,
    fid: int,
    start: int,
    end: int,
    seq: int,
    data: bytes = b"",
    *,
    version: int = MAJOR,
) -> Iterator[Frame]:
    """Yield the records from `start` on, in order; stop at what is not there yet.

    Args:
        io: the file system.
        fd: the log.
        path: its path, for errors.
        fid: its id.
        start: where the first record stands.
        end: the size of the file.
        seq: the first record's number.
        data: the beginning of the file, as far as it has been read already.
        version: the major version in the file's header.

    Raises:
        CheckpointCorruptionError: damage.
        CheckpointFormatError: a record that only a newer graphkit understands.
    """
    offset, base = start, 0
    want = WINDOW
    while offset < end:
        frame = parse_frame(data, offset - base, offset, fid)
        if frame == "" and base + len(data) < end:
            # A record longer than the window is read whole the second time.
            data, base = io.read_at(fd, offset, min(want, end - offset)), offset
            want = _needed(data, offset, want)
            if not data:
                return
            continue
        if isinstance(frame, str) or frame.seq != seq:
            reason = frame if isinstance(frame, str) else "records are missing before it"
            judge(io, fd, path, fid, offset, end, reason, version)
            return
        check_known(path, frame)
        yield frame
        offset, seq, want = frame.end, seq + 1, WINDOW


def _needed(data: bytes, offset: int, want: int) -> int:
    """Return how many bytes the record takes that begins with the data, if its header is right."""
    extent = extent_of(data[:FRAME_SIZE], offset)
    if extent is None or extent.length > MAX_PAYLOAD + OVERHEAD:
        return want
    return max(want, extent.length)


def read_frame(io: FileIO, fd: int, path: str, fid: int, offset: int, end: int) -> Frame:
    """Return the record at an offset that is known to be one.

    Raises:
        CheckpointCorruptionError: it no longer is.
    """
    data = io.read_at(fd, offset, min(4096, end - offset)) if HEADER_SIZE <= offset < end else b""
    frame = parse_frame(data, 0, offset, fid)
    if frame == "":
        extent = extent_of(data[:FRAME_SIZE], offset)
        if extent is not None:
            data = io.read_at(fd, offset, extent.length)
            frame = parse_frame(data, 0, offset, fid)
    if isinstance(frame, str):
        raise CheckpointCorruptionError(path, offset, frame or "the record is cut short")
    check_known(path, frame)
    return frame


class BackwardReader:
    """Steps back over a log's records from its end, reading 64 KiB at a time."""

    def __init__(self, io: FileIO, fd: int, fid: int, end: int) -> None:
        self._io, self._fd, self._fid = io, fd, fid
        self._at = end
        self._data, self._base = b"", end

    @property
    def end(self) -> int:
        """Where the last record that was stepped over begins; at first, the end of the log."""
        return self._at

    def skip_zeros(self) -> None:
        """Step back over the zeros at the end of a log, but not over those at the end of a record of version 1."""
        end = self._at
        while self._at > HEADER_SIZE:
            start = max(HEADER_SIZE, self._at - END_READ)
            data = self._read(start, self._at)[start - self._base : self._at - self._base]
            kept = data.rstrip(b"\0")
            self._at = start + len(kept)
            if kept:
                if kept[-1] != END:
                    self._at = end
                    self._base = end
                    self._data = b""
                return

    def step(self) -> Frame | None:
        """Return the record before the last one; None at the beginning, or where the way back is broken."""
        at = self._at
        if at < HEADER_SIZE + OVERHEAD_V1:
            return None
        trailer_at = at - TRAILER_SIZE
        data = self._read(trailer_at, at)
        length = length_at_end(data[trailer_at - self._base : at - self._base])
        start = at - length
        if length < OVERHEAD_V1 or start < HEADER_SIZE:
            return None
        data = self._read(start, at)
        frame = parse_frame(data, start - self._base, start, self._fid)
        if isinstance(frame, str) or frame.end != at:
            return None
        self._at = start
        return frame

    def _read(self, start: int, end: int) -> bytes:
        if start < self._base:
            first = max(0, min(start, end - END_READ))
            self._data, self._base = self._io.read_at(self._fd, first, end - first), first
        return self._data
