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
    SECTOR,
    Extent,
    count_zero_sectors,
    parse_extent,
)

if TYPE_CHECKING:
    from savers._log.records import Records

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
    if extent is None:
        return _is_torn_in_header(records, head, offset)
    return _has_lost_sectors(records, extent, offset)


def _is_torn_in_header(records: Records, head: bytes, offset: int) -> bool:
    """Return whether the write was cut inside a record's header, or a sector of it was lost."""
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
