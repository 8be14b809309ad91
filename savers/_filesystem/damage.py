"""What is damage, and what is a write that never finished. docs/format.md has the rules; `judge` alone applies them.

A log only grows at its end, one whole record per write, so everything before the last good record stays as it was.
Bytes that are no good record are either *torn* (a part of a write never reached the disk) or *damage* (anything else).
A disk keeps or loses whole sectors, and a lost sector is zero where nothing was written before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._filesystem.frame import (
    END,
    FRAME_SIZE,
    FRAME_SIZE_V1,
    MAJOR,
    MAX_PAYLOAD,
    OVERHEAD,
    OVERHEAD_V1,
    SECTOR,
    SYNC,
    Extent,
    Frame,
    extent_of,
    parse_frame,
    zero_sectors,
)

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

_SYNC_PREFIX: Final = SYNC[:3]
"""What the sync markers of both versions begin with."""
_SEARCH: Final = 1 << 20
_PART: Final = 1 << 20
_FILE_END: Final = 1 << 62
"""Reading stops where the file ends."""
_CUT: Final = 8
"""So many zero bytes at the end of a record show that its write was cut short; a single damaged byte does not."""


def good_frames(io: FileIO, fd: int, fid: int | None, start: int, end: int) -> Iterator[Frame]:
    """Find all records between two positions that prove themselves, whatever stands between them.

    Reads a window at a time, and of what claims to be a record only what can be one.

    Args:
        io: the file system.
        fd: the log.
        fid: the file's id; None takes records of any file.
        start: where to begin.
        end: where to stop.
    """
    base, data = start, b""
    at = 0
    while True:
        at = data.find(_SYNC_PREFIX, at)
        if at < 0 or len(data) - at < FRAME_SIZE:
            # The last bytes may be the beginning of a record.
            keep = at if at >= 0 else max(0, len(data) - FRAME_SIZE)
            more = io.read_at(fd, base + len(data), max(0, min(_SEARCH, end - base - len(data))))
            if not more:
                frame = _frame_at(io, fd, fid, data, keep, base, end)
                if frame is not None:
                    yield frame
                return
            base, data, at = base + keep, data[keep:] + more, 0
            continue
        frame = _frame_at(io, fd, fid, data, at, base, end)
        if frame is None:
            at += 1
            continue
        yield frame
        if frame.end <= base + len(data):
            at = frame.end - base
        else:
            base, data, at = frame.end, b"", 0


def _frame_at(io: FileIO, fd: int, fid: int | None, data: bytes, at: int, base: int, end: int) -> Frame | None:
    """Return the record at `data[at:]`, of which the rest may have to be read; None if it does not prove itself."""
    offset = base + at
    extent = extent_of(data[at : at + FRAME_SIZE], offset)
    if extent is None or fid not in {None, extent.fid}:
        return None
    if extent.length > min(MAX_PAYLOAD + OVERHEAD, end - offset):
        return None
    is_here = len(data) - at >= extent.length
    whole = data[at : at + extent.length] if is_here else io.read_at(fd, offset, extent.length)
    frame = parse_frame(whole, 0, offset, extent.fid)
    return frame if isinstance(frame, Frame) else None


def vouched(io: FileIO, fd: int, fid: int | None, start: int, end: int) -> int:
    """Return up to where the good records between two positions say that all was on the disk; else 0."""
    return max((frame.vouched for frame in good_frames(io, fd, fid, start, end)), default=0)


def is_zero(io: FileIO, fd: int, start: int, end: int) -> bool:
    """Whether all bytes between two positions are zero; there may be none."""
    while start < end:
        data = io.read_at(fd, start, min(_PART, end - start))
        if data.strip(b"\0"):
            return False
        if not data:
            return True
        start += len(data)
    return True


def judge(io: FileIO, fd: int, path: str, fid: int, offset: int, end: int, reason: str, version: int) -> None:
    """Decide about the bytes from `offset` to the end of the file, which do not begin with a good record.

    Returns if they are nothing yet (only zeros), or torn. Good records may follow torn bytes if none of them vouches
    for these: they were lost together.

    Args:
        io: the file system.
        fd: the log.
        path: its path, for the error.
        fid: its id.
        offset: where the good records end.
        end: the size of the file.
        reason: why there is no good record at the offset, for the error.
        version: the major version in the file's header.

    Raises:
        CheckpointCorruptionError: they are damage.
    """
    if version == MAJOR and is_zero(io, fd, offset, end):
        return
    found = next(good_frames(io, fd, fid, offset + 1, end), None)
    if found is None:
        if is_torn(io, fd, fid, offset, end, version):
            return
        raise CheckpointCorruptionError(path, offset, reason or "the record is cut short")
    is_vouched_for = vouched(io, fd, fid, found.offset, end) > offset
    if is_vouched_for or not is_torn(io, fd, fid, offset, found.offset, version, is_followed=True):
        raise CheckpointCorruptionError(
            path, offset, f"{reason or 'the record is cut short'}, and a good record follows at byte {found.offset}"
        )


def is_torn(io: FileIO, fd: int, fid: int, offset: int, end: int, version: int, *, is_followed: bool = False) -> bool:
    """Whether bytes between two positions, which are no good record, look like a write that never finished.

    Args:
        io: the file system.
        fd: the log.
        fid: its id.
        offset: where the record should begin.
        end: the size of the file, or where the next good record begins.
        version: the major version in the file's header.
        is_followed: whether a good record begins at the end.
    """
    room = end - offset
    head = io.read_at(fd, offset, min(FRAME_SIZE, room))
    if version < MAJOR:
        return _is_torn_v1(io, fd, fid, head, offset, end)
    extent = extent_of(head, offset)
    if extent is not None and extent.fid != fid:
        extent = None
    if is_followed and end % SECTOR and io.read_at(fd, end - 1, 1)[0] != END:
        return False  # The sector with the end of the record was not lost, for the good record begins in it.
    needed = FRAME_SIZE if extent is None else extent.length
    if room < needed:
        return not is_followed  # The file ends inside the record. A good record inside it cannot be.
    if extent is None:
        return _is_torn_in_header(io, fd, head, offset)
    if extent.version < MAJOR:
        return False  # An upgrade has moved it here, and brought it to the disk before the file was used.
    return _has_lost_sectors(io, fd, extent, offset)


def _is_torn_in_header(io: FileIO, fd: int, head: bytes, offset: int) -> bool:
    """Whether a sector that holds a part of a record's header was lost, or the write was cut inside the header."""
    boundary = offset + SECTOR - offset % SECTOR
    if is_zero(io, fd, offset, boundary):
        return True
    if boundary < offset + FRAME_SIZE and is_zero(io, fd, boundary, boundary + SECTOR):
        return True
    return head[-1] == 0 and is_zero(io, fd, offset + FRAME_SIZE, _FILE_END)


def _has_lost_sectors(io: FileIO, fd: int, extent: Extent, offset: int) -> bool:
    """Whether the end of a record or more of its sectors are zero than its header says."""
    end = offset + extent.length
    if is_zero(io, fd, end - _CUT, _FILE_END):
        return True
    last_sector = (end - 1) // SECTOR * SECTOR
    if last_sector > offset and is_zero(io, fd, last_sector, last_sector + SECTOR):
        return True
    if extent.zeros is None:
        return False
    zeros = 0
    at = offset
    while at < end:
        # Parts end where sectors do, so that none is counted twice or missed.
        data = io.read_at(fd, at, min(_PART - at % SECTOR, end - at))
        if not data:
            return True
        zeros += zero_sectors(data, at)
        at += len(data)
    return zeros > extent.zeros


# Version 1


def _is_torn_v1(io: FileIO, fd: int, fid: int, head: bytes, offset: int, end: int) -> bool:
    room = end - offset
    if room < FRAME_SIZE_V1:
        return True
    extent = extent_of(head, offset)
    length = extent.length if extent is not None and extent.fid == fid else None
    if length is not None and room < length:
        return True
    if length is None and room >= OVERHEAD_V1:
        claimed = int.from_bytes(io.read_at(fd, end - 4, 4), "little")
        length = room if claimed == room else None
    return _has_zero_sector_v1(io, fd, offset, end, length)


def _has_zero_sector_v1(io: FileIO, fd: int, offset: int, end: int, length: int | None) -> bool:
    # The last bytes of a trailer are zero in a good record too, so a sector that holds only those proves nothing.
    trailer = b"\1\1\1\1" if length is None else length.to_bytes(4, "little")
    trailer_at = end - 4 if length is None else offset + length - 4
    while offset < end:
        data = io.read_at(fd, offset, min(_PART - offset % SECTOR, end - offset))
        if not data:
            return True
        at = 0
        while at < len(data):
            to = min(len(data), at + SECTOR - (offset + at) % SECTOR)
            inside = offset + at - trailer_at
            if not data[at:to].strip(b"\0") and (inside < 0 or trailer[inside : inside + to - at].strip(b"\0")):
                return True
            at = to
        offset += len(data)
    return False
