"""Reads a log's records: forward, back from its end, or one at a known offset.

Theory of operation. A log only grows at its end, one whole record per write. A record proves itself
(`frame.py`). Bytes that do not are either a write that never finished, which only stands at the end
of a log, or damage (`damage.py`). This module also exports the names of the format that the modules
above it use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._log.damage import is_torn, judge
from savers._log.frame import (
    CHECKPOINT,
    COMPRESSED,
    DATA,
    EARLY,
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
    SEALED,
    SEALED_TYPES,
    SYNC,
    TOMBSTONE,
    TRAILER_SIZE,
    WRITE,
    Frame,
    Header,
    IncompleteLog,
    begins_checkpoint,
    check_known,
    is_headless,
    pack_frame,
    pack_frame_v1,
    parse_extent,
    parse_frame,
    parse_frames,
    read_header,
    read_trailer_length,
    repack_frame,
)
from savers._log.log_file import LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CHECKPOINT",
    "COMPRESSED",
    "DATA",
    "EARLY",
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
    "SEALED",
    "SEALED_TYPES",
    "SYNC",
    "TOMBSTONE",
    "TRAILER_SIZE",
    "WINDOW",
    "WRITE",
    "BackwardReader",
    "Frame",
    "Header",
    "IncompleteLog",
    "LogFile",
    "begins_checkpoint",
    "check_known",
    "is_headless",
    "is_torn",
    "judge",
    "pack_frame",
    "pack_frame_v1",
    "parse_extent",
    "parse_frame",
    "parse_frames",
    "read_frame",
    "read_header",
    "repack_frame",
    "scan",
]

MAX_DISTANCE: Final = 0xF000_0000
"""The greatest distance from a record back to its keyframe that a writer stores."""
WINDOW: Final = 1 << 22
"""Bytes that `scan` reads at once."""
END_READ: Final = 1 << 16
"""Bytes that a `BackwardReader` reads at once."""
_PROBE: Final = 1 << 12
"""Bytes read for a single record before its length is known."""


def scan(file: LogFile, start: int, end: int, seq: int, data: bytes = b"") -> Iterator[Frame]:
    """Yield the records from an offset on, opened; stop before bytes that are nothing yet or torn.

    Args:
        file: the log.
        start: where the first record begins.
        end: the size of the file.
        seq: the number of the first record.
        data: the beginning of the file, as far as the caller has read it already.

    Raises:
        CheckpointCorruptionError: the log is damaged. The records before the damage were yielded.
        CheckpointFormatError: a record needs a newer graphkit. Likewise.
        CheckpointKeyError: the log is sealed, and the key is missing or wrong.
    """
    assert file.fid is not None
    offset = start
    base = 0
    wanted = WINDOW
    while offset < end:
        frames: list[Frame] = []
        if file.seal is None:
            frames = parse_frames(data, offset - base, end - base, offset, file.fid, seq)
        if frames:
            yield from frames
            offset = frames[-1].end
            seq += len(frames)
            wanted = WINDOW
            continue
        frame = parse_frame(data, offset - base, offset, file.fid)
        if frame == "" and base + len(data) < end:
            # A record longer than the window is read whole the second time.
            known = max(0, base + len(data) - offset)
            length = min(wanted, end - offset)
            data = file.read_at(offset, length)
            base = offset
            wanted = _needed_size(data, offset, wanted)
            if len(data) < length and len(data) <= known:
                return  # Bytes that should follow are not there: a row is missing, or the file was cut.
            continue
        if isinstance(frame, str) or frame.seq != seq:
            reason = frame if isinstance(frame, str) else "records are missing before it"
            try:
                judge(file, offset, end, reason)
            except CheckpointCorruptionError:
                # A reader takes no lock. A record that was being written over zeros may have been
                # read in part, and be whole by now.
                again = file.read_at(offset, base + len(data) - offset)
                if again == data[offset - base :]:
                    raise
                data = again
                base = offset
                continue
            return
        check_known(file.path, frame)
        yield frame if file.seal is None else file.open_frame(frame)
        offset = frame.end
        seq += 1
        wanted = WINDOW


def _needed_size(data: bytes, offset: int, wanted: int) -> int:
    """Return how many bytes to read for the record that begins with the data; at least `wanted`."""
    extent = parse_extent(data[:FRAME_SIZE], offset)
    if extent is None or extent.length > MAX_PAYLOAD + OVERHEAD:
        return wanted
    return max(wanted, extent.length)


def read_frame(file: LogFile, offset: int, end: int) -> Frame:
    """Return the record at an offset where one was found before, opened.

    Raises:
        CheckpointCorruptionError: the bytes there are no longer a good record.
        CheckpointKeyError: the log is sealed, and the key is missing or wrong.
    """
    assert file.fid is not None
    data = b""
    if HEADER_SIZE <= offset < end:
        data = file.read_at(offset, min(_PROBE, end - offset))
    frame = parse_frame(data, 0, offset, file.fid)
    if frame == "":
        extent = parse_extent(data[:FRAME_SIZE], offset)
        if extent is not None:
            data = file.read_at(offset, extent.length)
            frame = parse_frame(data, 0, offset, file.fid)
    if isinstance(frame, str):
        raise CheckpointCorruptionError(file.path, offset, frame or "the record is cut short")
    check_known(file.path, frame)
    return file.open_frame(frame)


class BackwardReader:
    """Steps back over a log's records from its end, reading 64 KiB at a time.

    It does not open sealed records.
    """

    def __init__(self, file: LogFile, end: int) -> None:
        assert file.fid is not None
        self._file = file
        self._fid = file.fid
        self._offset = end
        self._data = b""
        self._base = end

    @property
    def offset(self) -> int:
        """Where the last record that was stepped over begins; at first, the end of the log."""
        return self._offset

    def skip_zeros(self) -> None:
        """Step back over the zeros behind the last record.

        A record of version 1 may end in zeros, which belong to it.
        """
        end = self._offset
        while self._offset > HEADER_SIZE:
            start = max(HEADER_SIZE, self._offset - END_READ)
            data = self._read(start, self._offset)
            rest = data.rstrip(b"\0")
            self._offset = start + len(rest)
            if rest:
                if rest[-1] != END:
                    self._offset = end
                    self._base = end
                    self._data = b""
                return

    def step(self) -> Frame | None:
        """Return the record before the last one; None if no good record ends there."""
        end = self._offset
        if end < HEADER_SIZE + OVERHEAD_V1:
            return None
        trailer = self._read(end - TRAILER_SIZE, end)
        if len(trailer) < TRAILER_SIZE:
            # Bytes before the end are missing, as a row may be.
            return None
        length = read_trailer_length(trailer)
        start = end - length
        if length < OVERHEAD_V1 or start < HEADER_SIZE:
            return None
        self._fill(start, end)
        frame = parse_frame(self._data, start - self._base, start, self._fid)
        if isinstance(frame, str) or frame.end != end:
            return None
        self._offset = start
        return frame

    def _read(self, start: int, end: int) -> bytes:
        self._fill(start, end)
        return self._data[start - self._base : end - self._base]

    def _fill(self, start: int, end: int) -> None:
        """Read the file around two offsets, unless the buffer begins early enough."""
        if start < self._base:
            self._base = max(0, min(start, end - END_READ))
            self._data = self._file.read_at(self._base, end - self._base)
