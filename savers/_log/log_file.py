"""An open log file: reads its bytes, and searches them for records that prove themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from savers._log.frame import (
    FRAME_SIZE,
    MAJOR,
    MAX_PAYLOAD,
    OVERHEAD,
    SYNC,
    Frame,
    parse_extent,
    parse_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._log.sealing import LogSeal

_SYNC_PREFIX: Final = SYNC[:3]
"""What the sync markers of both versions begin with."""
_SEARCH_SIZE: Final = 1 << 20
_READ_SIZE: Final = 1 << 20


class ByteSource(Protocol):
    """Where the bytes of open logs are: a file system, or the rows of a table."""

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Return `length` bytes of an open log from an offset; fewer only at its end."""


class LogFile(NamedTuple):
    """An open log, with what proves that a record belongs to it."""

    io: ByteSource
    """Where the bytes of the log are."""
    fd: int
    """What the source knows the log by: a file descriptor, or the number of a history."""
    path: str
    """The path of the file, for errors."""
    fid: int | None
    """The id that stands in the file's header and in each of its records; None accepts the records
    of any file."""
    version: int = MAJOR
    """The major version in the file's header."""
    seal: LogSeal | None = None
    """What opens its records, if the log is sealed."""

    def open_frame(self, frame: Frame) -> Frame:
        """Return a record as it was before it was sealed, if the log is sealed.

        A record that is open already stays as it is.

        Raises:
            CheckpointKeyError: the key is missing or wrong.
            CheckpointCorruptionError: the record was changed or moved after it was sealed.
        """
        if self.seal is None:
            return frame
        assert self.fid is not None
        return self.seal.open(frame, self.fid)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from an offset; fewer only at the end of the file."""
        return self.io.read_at(self.fd, offset, length)

    def is_zero(self, start: int, end: int) -> bool:
        """Return whether all bytes between two offsets are zero, or beyond the file."""
        while start < end:
            data = self.read_at(start, min(_READ_SIZE, end - start))
            if data.strip(b"\0"):
                return False
            if not data:
                return True
            start += len(data)
        return True

    def good_frames(self, start: int, end: int) -> Iterator[Frame]:
        """Yield all records between two offsets that prove themselves, whatever is between them.

        Reads a window at a time. Reads beyond the window only for a header that proves itself.
        """
        base = start
        data = b""
        index = 0
        while True:
            index = data.find(_SYNC_PREFIX, index)
            if index < 0 or len(data) - index < FRAME_SIZE:
                # The last bytes of the window may be the beginning of a record.
                kept = index if index >= 0 else max(0, len(data) - FRAME_SIZE)
                window_end = base + len(data)
                more = self.read_at(window_end, max(0, min(_SEARCH_SIZE, end - window_end)))
                if not more:
                    frame = self._parse_at(data, kept, base + kept, end)
                    if frame is not None:
                        yield frame
                    return
                base += kept
                data = data[kept:] + more
                index = 0
                continue
            frame = self._parse_at(data, index, base + index, end)
            if frame is None:
                index += 1
                continue
            yield frame
            if frame.end <= base + len(data):
                index = frame.end - base
            else:
                base = frame.end
                data = b""
                index = 0

    def _parse_at(self, data: bytes, index: int, offset: int, end: int) -> Frame | None:
        """Return the record at `data[index:]`; None if it does not prove itself.

        Reads the rest of the record if the window ends inside it.

        Args:
            data: a window of the file.
            index: where the record begins in the window.
            offset: where the record begins in the file.
            end: where the record must have ended.
        """
        extent = parse_extent(data[index : index + FRAME_SIZE], offset)
        if extent is None or self.fid not in {None, extent.fid}:
            return None
        if extent.length > min(MAX_PAYLOAD + OVERHEAD, end - offset):
            return None
        whole = data[index : index + extent.length]
        if len(whole) < extent.length:
            whole = self.read_at(offset, extent.length)
        frame = parse_frame(whole, 0, offset, extent.fid)
        return frame if isinstance(frame, Frame) else None

    def vouched_end(self, start: int, end: int) -> int:
        """Return up to where the good records between two offsets vouch for the file, else 0."""
        return max((frame.vouched for frame in self.good_frames(start, end)), default=0)
