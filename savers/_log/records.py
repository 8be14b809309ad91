"""Reads the records of a log: forward, back from the end, or at a known offset. `frame.py` parses one.

Theory of operation. A log only grows at its end, one whole record per write, so everything before the
last good record stays as it was. A record proves itself (`frame.py`). Bytes that do not are either
*torn* (a write at the end of the log of which a part never reached the disk) or *damage* (anything
else): `judge` decides it, by the rules in docs/format.md. A disk keeps or loses whole sectors, and a
lost sector is zero where nothing was written before. A sealed record is opened as it is read
(`sealing.py`), so that no caller sees a sealed payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._log.frame import (
    END,
    FRAME_SIZE,
    HEADER_SIZE,
    MAX_PAYLOAD,
    OVERHEAD,
    SECTOR,
    SYNC,
    TRAILER_SIZE,
    Extent,
    Frame,
    check_known,
    count_zero_sectors,
    parse_extent,
    parse_frame,
    unpack_trailer,
)
from savers._log.sealing import OpenedRanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from savers._log.log_bytes import LogBytes
    from savers._log.sealing import LogSeal


_READ_SIZE: Final = 1 << 20
_FILE_END: Final = 1 << 62
"""Reading stops where the file ends."""
_CUT_SIZE: Final = 8
"""This many zero bytes at the end of a file show that the write of its last record was cut short;
one damaged byte does not. In a file that was extended with zeros, a write that is cut short may
leave a single zero byte in place of the record's end."""


def judge(records: Records, offset: int, end: int, reason: str) -> None:
    """Decide whether the bytes from an offset to the end of the file are damage.

    The caller has found no good record at the offset.

    Return if they are nothing yet (only zeros), or torn. Good records may follow torn bytes if none
    of them vouches for these bytes: they were lost together.

    Args:
        records: the records of the log.
        offset: where the good records end.
        end: the size of the file.
        reason: why no good record stands at the offset, for the error.

    Raises:
        CheckpointCorruptionError: the bytes are damage.
    """
    if records.is_zero(offset, end):
        return
    reason = reason or "the record is cut short"
    following = next(records.search(offset + 1, end), None)
    if following is None:
        if is_torn(records, offset, end):
            return
        raise CheckpointCorruptionError(records.path, offset, reason)
    is_vouched_for = records.find_vouched_end(following.offset, end) > offset
    if is_vouched_for or not is_torn(records, offset, following.offset, is_followed=True):
        reason = f"{reason}, and a good record follows at byte {following.offset}"
        raise CheckpointCorruptionError(records.path, offset, reason)


def is_torn(records: Records, offset: int, end: int, *, is_followed: bool = False) -> bool:
    """Return whether bytes that are not a good record look like a write that never finished.

    Args:
        records: the records of the log.
        offset: where the record should begin.
        end: the size of the file, or where the next good record begins.
        is_followed: whether a good record begins at `end`.
    """
    room = end - offset
    head = records.bytes.read_at(offset, min(FRAME_SIZE, room))
    extent = parse_extent(head, offset)
    if extent is not None and extent.fid != records.fid:
        extent = None
    if is_followed and end % SECTOR and records.bytes.read_at(end - 1, 1)[0] != END:
        # The sector with the end of the record was not lost: the good record begins in it.
        return False
    needed = FRAME_SIZE
    if extent is not None:
        needed = extent.length
    if room < needed:
        # The file ends inside the record. No good record can stand inside another one.
        return not is_followed
    if extent is not None:
        return _has_lost_sectors(records, extent, offset)
    # The write was cut inside the header, or a sector of the header was lost.
    boundary = offset + SECTOR - offset % SECTOR
    if records.is_zero(offset, boundary):
        return True
    if boundary < offset + FRAME_SIZE and records.is_zero(boundary, boundary + SECTOR):
        return True
    return head[-1] == 0 and records.is_zero(offset + FRAME_SIZE, _FILE_END)


def _has_lost_sectors(records: Records, extent: Extent, offset: int) -> bool:
    """Return whether the end of a record is zero, or more of its sectors than its header says."""
    end = offset + extent.length
    is_extended = bool(records.bytes.read_at(end, 1))
    cut_size = 1 if is_extended else _CUT_SIZE
    if records.is_zero(end - cut_size, _FILE_END):
        return True
    last_sector = (end - 1) // SECTOR * SECTOR
    if last_sector > offset and records.is_zero(last_sector, last_sector + SECTOR):
        return True
    if extent.zeros is None:
        return False
    zeros = 0
    while offset < end:
        # Each read ends where a sector does, so that no sector is counted twice or missed.
        data = records.bytes.read_at(offset, min(_READ_SIZE - offset % SECTOR, end - offset))
        if not data:
            return True
        zeros += count_zero_sectors(data, offset)
        offset += len(data)
    return zeros > extent.zeros


WINDOW: Final = 1 << 22
"""The most bytes that a scan reads at once, unless a record is longer."""
FIRST_WINDOW: Final = 7 << 14
"""How many bytes a scan reads at first. Little enough that the memory of one window serves the next
one: in a new process, touching new memory takes longer than reading into it."""
_PROBE: Final = 1 << 12
"""Bytes read for a single record before its length is known."""
_SEARCH_SIZE: Final = 1 << 20


class Records:
    """The records in some bytes.

    Attributes:
        bytes: the bytes.
        path: names the log in errors.
        fid: the id of the log, which each record repeats; None accepts the records of any log.
        seal: opens sealed records; None if the log is plain.
    """

    def __init__(self, bytes: LogBytes, fid: int | None, seal: LogSeal | None = None) -> None:
        self.bytes = bytes
        self.path = bytes.path
        self.fid = fid
        self.seal = seal
        self._ranges = None if seal is None else OpenedRanges(bytes, fid, seal)

    @property
    def kept_size(self) -> int:
        """How many opened bytes are kept in memory."""
        return 0 if self._ranges is None else self._ranges.size

    def forget(self) -> None:
        """Drop what is kept in memory."""
        if self._ranges is not None:
            self._ranges.forget()

    # Forward

    def scan(self, start: int, end: int, seq: int, data: bytes = b"") -> Iterator[Frame]:
        """Yield the records from an offset on; stop before bytes that are nothing yet or torn.

        Args:
            start: where the first record begins.
            end: where the bytes end.
            seq: the number of the first record.
            data: the bytes from `start` on, as far as the caller has read them already.

        Raises:
            CheckpointCorruptionError: the log is damaged. The records before the damage were yielded.
            CheckpointFormatError: a record needs a newer graphkit. Likewise.
            CheckpointKeyError: the log is sealed, and the key is missing or wrong.
        """
        assert self.fid is not None
        offset = base = start
        window = FIRST_WINDOW
        while offset < end:
            frame = parse_frame(data, offset - base, offset, self.fid)
            if isinstance(frame, Frame):
                if frame.seq == seq:
                    check_known(self.path, frame)
                    yield self.open(frame)
                    offset = frame.end
                    seq += 1
                    continue
                reason = "records are missing before it"
            else:
                reason = frame
            known = data[offset - base :]
            if not reason and base + len(data) < end:
                # The data end inside the record. It is read whole the second time.
                wanted = _needed_size(known, offset, window)
                more = self.bytes.read_at(offset, min(wanted, end - offset))
                if not more:
                    return
                if len(more) > len(known):
                    data = more
                    base = offset
                    window = min(2 * window, WINDOW)
                    continue
                # The log was cut meanwhile.
            try:
                judge(self, offset, end, reason)
            except CheckpointCorruptionError:
                # A reader takes no lock. A record that was being written over zeros may have been read in part, and
                # be whole by now.
                data = self.bytes.read_at(offset, len(known))
                base = offset
                if data == known:
                    raise
            else:
                return

    def open(self, frame: Frame) -> Frame:
        """Return a record as it was before it was sealed; one of a plain log, or an open one, as it is.

        Raises:
            CheckpointKeyError: the key is missing or wrong.
            CheckpointCorruptionError: the record was changed or moved after it was sealed.
        """
        if self.seal is None:
            return frame
        assert self.fid is not None
        return self.seal.open(frame, self.fid)

    # One record

    def read(self, offset: int, end: int) -> Frame:
        """Return the record at an offset where one was found before.

        Args:
            offset: the offset.
            end: where the good records end.

        Raises:
            CheckpointCorruptionError: the bytes there are no longer a good record.
            CheckpointKeyError: the log is sealed, and the key is missing or wrong.
        """
        assert self.fid is not None
        data = b""
        if HEADER_SIZE <= offset < end:
            data = self.bytes.read_record(offset, min(_PROBE, end - offset))
        frame = parse_frame(data, 0, offset, self.fid)
        if frame == "":
            extent = parse_extent(data[:FRAME_SIZE], offset)
            if extent is not None and extent.length <= end - offset:
                data = self.bytes.read_at(offset, extent.length)
                frame = parse_frame(data, 0, offset, self.fid)
        if isinstance(frame, str):
            raise CheckpointCorruptionError(self.path, offset, frame or "the record is cut short")
        check_known(self.path, frame)
        return self.open(frame)

    def read_run(self, start: int, end: int) -> list[Frame]:
        """Return the records between two offsets, all of which were found before.

        Raises:
            CheckpointCorruptionError: they are no longer good records.
        """
        if not HEADER_SIZE <= start < end:
            raise CheckpointCorruptionError(self.path, end, "the record before it names no keyframe")
        data = self.bytes.read_at(start, end - start)
        first = parse_frame(data, 0, start, self.fid or 0)
        if isinstance(first, str):
            raise CheckpointCorruptionError(self.path, start, first or "the record is cut short")
        found = [*self.scan(start, end, first.seq, data)]
        if found[-1].end != end:
            raise CheckpointCorruptionError(self.path, found[-1].end, "the record is cut short")
        return found

    # Ranges of values

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """Return the bytes between several pairs of start and end, opened if the log is sealed."""
        if self._ranges is None:
            return self.bytes.read_many(ranges)
        return [self._ranges.read(start, end - start) for start, end in ranges]

    def note_appended(self, end: int, payload: bytes) -> None:
        """Keep the payload that was just sealed, with which the next one is compared."""
        if self._ranges is not None:
            self._ranges.note_appended(end, payload)

    # Searching

    def is_zero(self, start: int, end: int) -> bool:
        """Return whether all bytes between two offsets are zero, or beyond the end of the log."""
        while start < end:
            data = self.bytes.read_at(start, min(_READ_SIZE, end - start))
            if data.strip(b"\0"):
                return False
            if not data:
                return True
            start += len(data)
        return True

    def search(self, start: int, end: int) -> Iterator[Frame]:
        """Yield all records between two offsets that prove themselves, whatever is between them; none is opened.

        Reads a window at a time. Reads beyond the window only for a header that proves itself.
        """
        # The bytes between records may be anything: a torn write, a damaged record, or the data of a user who stores
        # the bytes of a log in a state. So each sync marker is only a candidate, and after one that fails the search
        # goes on at the next byte. After a record it goes on behind it: no record stands inside another one.
        base = start
        data = b""
        index = 0
        while True:
            index = data.find(SYNC, index)
            if index < 0 or len(data) - index < FRAME_SIZE:
                # The last bytes of the window may be the beginning of a record.
                kept = index
                if index < 0:
                    kept = max(0, len(data) - FRAME_SIZE)
                window_end = base + len(data)
                more = self.bytes.read_at(window_end, max(0, min(_SEARCH_SIZE, end - window_end)))
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
            data: a window of the log.
            index: where the record begins in the window.
            offset: where the record begins in the log.
            end: where the record must have ended.
        """
        head = data[index : index + FRAME_SIZE]
        extent = parse_extent(head, offset)
        if extent is None or self.fid not in {None, extent.fid}:
            return None
        length = extent.length
        if length > min(MAX_PAYLOAD + OVERHEAD, end - offset):
            return None
        whole = data[index : index + length]
        if len(whole) < length:
            whole = self.bytes.read_at(offset, length)
        frame = parse_frame(whole, 0, offset, extent.fid)
        if isinstance(frame, str):
            return None
        return frame

    def find_vouched_end(self, start: int, end: int) -> int:
        """Return up to where the good records between two offsets vouch for the log, else 0."""
        return max((frame.vouched for frame in self.search(start, end)), default=0)


class BackwardReader:
    """Steps back over the records of a log from its end. It does not open sealed records.

    A trailer repeats the length of its record, so the record before an offset is found without reading
    the log from its beginning. Opening a log costs its last records, however long it is.
    """

    def __init__(self, records: Records, end: int) -> None:
        assert records.fid is not None
        self._records = records
        self._fid = records.fid
        self._data = b""
        self._base = end
        self.offset = end
        """Where the last record that was stepped over begins; at first, the end of the log."""

    def skip_to(self, offset: int) -> None:
        """Go back to an offset at which a record ends."""
        self.offset = offset
        if offset < self._base:
            self._base = offset
            self._data = b""

    def skip_zeros(self) -> None:
        """Step back over the zeros behind the last record, if there is a record before them."""
        end = self.offset
        while self.offset > HEADER_SIZE:
            self._fill(self.offset - 1, self.offset)
            start = max(HEADER_SIZE, self._base)
            rest = self._data[start - self._base : self.offset - self._base].rstrip(b"\0")
            self.offset = start + len(rest)
            if rest:
                if rest[-1] != END:
                    self.offset = self._base = end
                    self._data = b""
                return

    def __iter__(self) -> Iterator[Frame]:
        """Yield the records before the last one, newest first."""
        while (frame := self._step()) is not None:
            yield frame

    def _step(self) -> Frame | None:
        """Return the record before the last one; None if no good record ends there."""
        end = self.offset
        if end < HEADER_SIZE + OVERHEAD:
            return None
        self._fill(end - TRAILER_SIZE, end)
        trailer = self._data[end - TRAILER_SIZE - self._base : end - self._base]
        if len(trailer) < TRAILER_SIZE:
            # Bytes before the end are missing, as a row may be.
            return None
        length, _ = unpack_trailer(trailer)
        start = end - length
        if length < OVERHEAD or start < HEADER_SIZE:
            return None
        self._fill(start, end)
        frame = parse_frame(self._data, start - self._base, start, self._fid)
        if isinstance(frame, str) or frame.end != end:
            return None
        self.offset = start
        return frame

    def _fill(self, start: int, end: int) -> None:
        """Read the log around two offsets, unless the buffer begins early enough."""
        if start < self._base:
            self._base, self._data = self._records.bytes.read_back(end, end - start)


def _needed_size(data: bytes, offset: int, window: int) -> int:
    """Return how many bytes to read for the record that begins with the data; at least a window."""
    if not data:
        return window
    extent = parse_extent(data[:FRAME_SIZE], offset)
    if extent is None or extent.length > MAX_PAYLOAD + OVERHEAD:
        return WINDOW
    return max(window, extent.length)
