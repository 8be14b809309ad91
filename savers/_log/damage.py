"""Decides whether bytes are torn or damaged. docs/format.md has the rules.

A log only grows at its end, one whole record per write, so everything before the last good record
stays as it was. Bytes that are not a good record are either *torn* (a write at the end of the log
of which a part never reached the disk) or *damage* (anything else). A disk keeps or loses whole
sectors, and a lost sector is zero where nothing was written before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._log.frame import (
    END,
    FRAME_SIZE,
    FRAME_SIZE_V1,
    MAJOR,
    OVERHEAD_V1,
    SECTOR,
    TRAILER_SIZE_V1,
    Extent,
    count_zero_sectors,
    parse_extent,
)

if TYPE_CHECKING:
    from savers._log.log_file import LogFile

_READ_SIZE: Final = 1 << 20
_FILE_END: Final = 1 << 62
"""Reading stops where the file ends."""
_CUT_SIZE: Final = 8
"""This many zero bytes at the end of a file show that the write of its last record was cut short;
one damaged byte does not. In a file that was extended with zeros, a write that is cut short may
leave a single zero byte in place of the record's end."""


def judge(file: LogFile, offset: int, end: int, reason: str) -> None:
    """Decide whether the bytes from an offset to the end of the file are damage.

    The caller has found no good record at the offset.

    Return if they are nothing yet (only zeros), or torn. Good records may follow torn bytes if none
    of them vouches for these bytes: they were lost together.

    Args:
        file: the log.
        offset: where the good records end.
        end: the size of the file.
        reason: why no good record stands at the offset, for the error.

    Raises:
        CheckpointCorruptionError: the bytes are damage.
    """
    if file.version == MAJOR and file.is_zero(offset, end):
        return
    reason = reason or "the record is cut short"
    following = next(file.good_frames(offset + 1, end), None)
    if following is None:
        if is_torn(file, offset, end):
            return
        raise CheckpointCorruptionError(file.path, offset, reason)
    is_vouched_for = file.vouched_end(following.offset, end) > offset
    if is_vouched_for or not is_torn(file, offset, following.offset, is_followed=True):
        reason = f"{reason}, and a good record follows at byte {following.offset}"
        raise CheckpointCorruptionError(file.path, offset, reason)


def is_torn(file: LogFile, offset: int, end: int, *, is_followed: bool = False) -> bool:
    """Return whether bytes that are not a good record look like a write that never finished.

    Args:
        file: the log.
        offset: where the record should begin.
        end: the size of the file, or where the next good record begins.
        is_followed: whether a good record begins at `end`.
    """
    room = end - offset
    head = file.read_at(offset, min(FRAME_SIZE, room))
    if file.version < MAJOR:
        return _is_torn_v1(file, head, offset, end)
    extent = parse_extent(head, offset)
    if extent is not None and extent.fid != file.fid:
        extent = None
    if is_followed and end % SECTOR and file.read_at(end - 1, 1)[0] != END:
        # The sector with the end of the record was not lost: the good record begins in it.
        return False
    needed = FRAME_SIZE if extent is None else extent.length
    if room < needed:
        # The file ends inside the record. No good record can stand inside another one.
        return not is_followed
    if extent is None:
        return _is_torn_in_header(file, head, offset)
    if extent.version < MAJOR:
        # An upgrade moved the record here, and brought it to the disk before the file was used.
        return False
    return _has_lost_sectors(file, extent, offset)


def _is_torn_in_header(file: LogFile, head: bytes, offset: int) -> bool:
    """Return whether the write was cut inside a record's header, or a sector of it was lost."""
    boundary = offset + SECTOR - offset % SECTOR
    if file.is_zero(offset, boundary):
        return True
    if boundary < offset + FRAME_SIZE and file.is_zero(boundary, boundary + SECTOR):
        return True
    return head[-1] == 0 and file.is_zero(offset + FRAME_SIZE, _FILE_END)


def _has_lost_sectors(file: LogFile, extent: Extent, offset: int) -> bool:
    """Return whether the end of a record is zero, or more of its sectors than its header says."""
    end = offset + extent.length
    is_extended = bool(file.read_at(end, 1))
    if file.is_zero(end - 1 if is_extended else end - _CUT_SIZE, _FILE_END):
        return True
    last_sector = (end - 1) // SECTOR * SECTOR
    if last_sector > offset and file.is_zero(last_sector, last_sector + SECTOR):
        return True
    if extent.zeros is None:
        return False
    zeros = 0
    while offset < end:
        # Each read ends where a sector does, so that no sector is counted twice or missed.
        data = file.read_at(offset, min(_READ_SIZE - offset % SECTOR, end - offset))
        if not data:
            return True
        zeros += count_zero_sectors(data, offset)
        offset += len(data)
    return zeros > extent.zeros


# Version 1


def _is_torn_v1(file: LogFile, head: bytes, offset: int, end: int) -> bool:
    room = end - offset
    if room < FRAME_SIZE_V1:
        return True
    extent = parse_extent(head, offset)
    length = None
    if extent is not None and extent.fid == file.fid:
        length = extent.length
        if room < length:
            return True
    elif room >= OVERHEAD_V1:
        trailer = file.read_at(end - TRAILER_SIZE_V1, TRAILER_SIZE_V1)
        if int.from_bytes(trailer, "little") == room:
            length = room
    return _has_zero_sector_v1(file, offset, end, length)


def _has_zero_sector_v1(file: LogFile, offset: int, end: int, length: int | None) -> bool:
    """Return whether a sector, or the part of one that the record fills, is zero and was lost.

    The last bytes of a trailer are zero in a good record too, so a sector that holds only those
    proves nothing.

    Args:
        file: the log.
        offset: where the record should begin.
        end: where the bytes end.
        length: the length of the record; None if it is not known.
    """
    if length is None:
        trailer = b"\1\1\1\1"
        trailer_start = end - TRAILER_SIZE_V1
    else:
        trailer = length.to_bytes(TRAILER_SIZE_V1, "little")
        trailer_start = offset + length - TRAILER_SIZE_V1
    while offset < end:
        data = file.read_at(offset, min(_READ_SIZE - offset % SECTOR, end - offset))
        if not data:
            return True
        start = 0
        while start < len(data):
            stop = min(len(data), start + SECTOR - (offset + start) % SECTOR)
            if not data[start:stop].strip(b"\0"):
                inside = offset + start - trailer_start
                if inside < 0 or trailer[inside : inside + stop - start].strip(b"\0"):
                    return True
            start = stop
        offset += len(data)
    return False
