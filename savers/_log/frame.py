"""The bytes of a log's header and records. docs/format.md specifies them.

A record is a header, a payload and a trailer. `parse_frame` accepts a record only if all of it is
right: a checksum of the header, the record's offset and the file's id, a checksum of the payload,
and the length again at the end.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError

MAGIC: Final = b"\x89GKL\r\n\x1a\n"
MAJOR: Final = 2
MINOR: Final = 1
SYNC: Final = b"\xc1\xf5G2"
"""Cannot occur in msgpack's own bytes nor in valid UTF-8, so that a search for it finds records."""

META: Final = 1
CHECKPOINT: Final = 2
TOMBSTONE: Final = 3
RELEASE: Final = 4
WRITE: Final = 5
MARK: Final = 6
DATA: Final = 7
"""Bytes of values that did not fit into one record; the next keyframe names them."""
ANCILLARY: Final = 0x80
"""This bit of a type lets a reader skip the record if it does not know the type."""
REPLACED: Final = ANCILLARY | 1
"""The last record of a file whose place another one has taken; no file that has a name holds it."""

SEALED_TYPES: Final = frozenset({CHECKPOINT, WRITE, MARK, DATA})
"""The types of records that a sealed log only has with the flag SEALED."""

KEY: Final = 1
REPLACE: Final = 2
COMPRESSED: Final = 4
"""Some values that the record sets or names are compressed."""
SEALED: Final = 8
"""The payload is sealed; see `sealing.py`."""
EARLY: Final = 16
"""A WRITE record precedes its checkpoint; or such records precede this CHECKPOINT record, and their
checkpoint is this one, or still to come."""
SCATTERED: Final = 32
"""This record or an earlier one is about a checkpoint other than that of the last CHECKPOINT record
before it."""
_KNOWN_FLAGS: Final = KEY | REPLACE | COMPRESSED | SEALED | EARLY | SCATTERED

_DIGEST_SIZE: Final = 16
HEADER_SIZE: Final = 64
"""Bytes of the file header."""
FRAME_SIZE: Final = 40
"""Bytes of a record's header."""
TRAILER_SIZE: Final = 5
OVERHEAD: Final = FRAME_SIZE + TRAILER_SIZE
MAX_PAYLOAD: Final = 1 << 30
_U16_MAX: Final = 0xFFFF
END: Final = 0x4B
"""The last byte of a record: not zero, so that a lost last sector shows."""
META_RECORDS: Final = 2
"""How many META records begin a log."""
SECTOR: Final = 512
"""What a disk keeps or loses as a whole."""
_ZERO_SECTOR: Final = bytes(SECTOR)

# The checksum of a record's header covers the offset and the id of the file, which are not stored with the record (the
# offset) or must be those of this file. So bytes that were copied from elsewhere prove nothing: a state may hold the
# bytes of a log, and a block of an older file may turn up in a newer one after a power loss.
_FILE_HEADER: Final = struct.Struct("<8sHHIIIQQ16sI")
_HEAD_TYPE_AND_OFFSET: Final = struct.Struct("<4sIIBIIIIHHHBQ")
"""What the checksum of a record's header covers: its fields, the type, and the record's offset."""
_CHECK: Final = struct.Struct("<IB")
_FRAME: Final = struct.Struct("<4sIIBIIIIHHHIB")
_EXTENT: Final = struct.Struct("<4xI17xI4xHIB")
"""Of a record's header only: length, fid, zeros, check, type."""
_TYPE_AND_OFFSET: Final = struct.Struct("<BQ")
_TRAILER: Final = struct.Struct("<IB")
_U32: Final = struct.Struct("<I")
_pack_checked: Final = _HEAD_TYPE_AND_OFFSET.pack
_pack_check: Final = _CHECK.pack
_pack_trailer: Final = _TRAILER.pack
unpack_head: Final = _FRAME.unpack_from
unpack_trailer: Final = _TRAILER.unpack_from
_CHECKED: Final = FRAME_SIZE - _CHECK.size
"""Bytes of a record's header in front of its own checksum."""


class Header(NamedTuple):
    """The first 64 bytes of a log."""

    fid: int
    """The id of the file."""
    generation: int
    created_ns: int
    digest: bytes

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        head = _FILE_HEADER.pack(MAGIC, MAJOR, MINOR, 0, self.fid, 0, self.generation, self.created_ns, self.digest, 0)
        return head + _U32.pack(crc32(head))


class IncompleteLog(Exception):  # noqa: N818 - not an error: the next writer creates the log again
    """A file too short for the beginning of a log, or all zero: its creation never finished."""


def read_header(path: str, data: bytes) -> Header:
    """Read and check the header of a log.

    Args:
        path: the path of the file, for errors.
        data: the first bytes of the file.

    Raises:
        IncompleteLog: the creation of the file was cut short.
        CheckpointFormatError: the file has another major version, or is not a log.
        CheckpointCorruptionError: the header is damaged.
    """
    if len(data) < HEADER_SIZE or not data.strip(b"\0"):
        raise IncompleteLog
    if is_headless(data):
        raise CheckpointCorruptionError(path, 0, "the file header is gone")
    fields = _FILE_HEADER.unpack_from(data)
    magic, major, _, _, fid, _, generation, created_ns, digest, _ = fields
    if magic != MAGIC:
        if data.find(SYNC) >= 0:
            raise CheckpointCorruptionError(path, 0, "the file header is not a log's")
        raise CheckpointFormatError(path, "this is not a graphkit log")
    if not _has_right_checksum(data):
        raise CheckpointCorruptionError(path, 0, "the file header's checksum is wrong")
    if major != MAJOR:
        raise CheckpointFormatError(path, explain_format(major))
    return Header(fid=fid, generation=generation, created_ns=created_ns, digest=digest)


def is_newer(data: bytes) -> bool:
    """Return whether the first bytes of a log are the header of a newer major version."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        return False
    major: int = _FILE_HEADER.unpack_from(data)[1]
    return major > MAJOR and _has_right_checksum(data)


def _has_right_checksum(data: bytes) -> bool:
    """Return whether a file header, of whatever version, has the checksum of its bytes."""
    checked_size = HEADER_SIZE - _U32.size
    (check,) = _U32.unpack_from(data, checked_size)
    return bool(check == crc32(data[:checked_size]))


def explain_format(major: int) -> str:
    """Return why a file of another major version is refused."""
    if major > MAJOR:
        return f"written in format {major}; this graphkit reads format {MAJOR}: update it"
    return f"written in format {major}, by a development version; no release of graphkit reads it"


def is_headless(data: bytes) -> bool:
    """Return whether the first sector of a file is all zero.

    Only later bytes show then whether the file is a log.
    """
    return not data[:SECTOR].strip(b"\0")


class Frame(NamedTuple):
    """One record that has proved itself."""

    offset: int
    """Where the record begins in the file."""
    end: int
    """Where the next record begins."""
    type: int
    flags: int
    back: int
    """The distance to the CHECKPOINT record before this one; 0 for a keyframe."""
    key: int
    """The distance to the keyframe; 0 for a keyframe."""
    seq: int
    """The number of the record in the file."""
    payload: bytes
    vouched: int
    """All bytes before this offset were on the disk when the record was written."""
    boot: int
    """The number of the boot in which the record was written; 0: unknown."""

    @property
    def payload_end(self) -> int:
        """The offset of the trailer."""
        return self.end - TRAILER_SIZE


def digest_thread(thread_id: str) -> bytes:
    """Return the thread digest, which stands in the header of each log of a thread."""
    return blake2b(thread_id.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_SIZE]


def pack_frame(
    offset: int,
    fid: int,
    seq: int,
    type: int,
    payload: bytes,
    flags: int = 0,
    back: int = 0,
    key: int = 0,
    unsynced: int = 0,
    boot: int = 0,
) -> bytes:
    """Return the bytes of a record for an offset in a file.

    Args:
        offset: where the record will begin.
        fid: the id of the file.
        seq: the number of the record.
        type: the type of the record.
        payload: the content.
        flags: the flags of the record.
        back: the distance to the base record.
        key: the distance to the keyframe.
        unsynced: how many bytes before the offset are not known to be on the disk.
        boot: the number of the current boot.
    """
    length = len(payload)
    trailer = _pack_trailer(length + OVERHEAD, END)
    # A disk that loses power keeps some sectors of a write and loses others, which are zero then. The number of
    # sectors that are zero anyway distinguishes a lost sector from one of the payload. A shorter payload fills none.
    zeros = 0
    if length >= SECTOR:
        start = offset + FRAME_SIZE
        # The last sector may reach into the trailer. A copy of the whole payload with it could take 1 GB.
        last = length - min((start + length) % SECTOR, length)
        zeros = count_zero_sectors(payload, start) + count_zero_sectors(payload[last:] + trailer, start + last)
        zeros = min(zeros, _U16_MAX)
    # Rounded up, so that the record never vouches for bytes that were not on the disk.
    unsynced_sectors = (unsynced + SECTOR - 1) // SECTOR
    if unsynced_sectors > _U16_MAX:  # noqa: PLR1730 - min() takes 1,300 instructions of 10,000
        unsynced_sectors = _U16_MAX
    crc = crc32(payload)
    # What `parse_extent` checks, in one piece: this is part of every put.
    checked = _pack_checked(SYNC, length, crc, flags, back, key, seq, fid, unsynced_sectors, boot, zeros, type, offset)
    check = _pack_check(crc32(checked), type)
    return b"".join((checked[:_CHECKED], check, payload, trailer))


def count_zero_sectors(data: bytes, offset: int) -> int:
    """Count the sectors of a file that lie wholly inside a range of its bytes and are all zero.

    Args:
        data: the bytes.
        offset: where they begin in the file.
    """
    # Sectors are those of the file, not of the data: a run of zeros counts only from the next boundary on.
    count = 0
    run = data.find(_ZERO_SECTOR)
    while run >= 0:
        sector = run + -(offset + run) % SECTOR
        if data[sector : sector + SECTOR] == _ZERO_SECTOR:
            count += 1
            run = data.find(_ZERO_SECTOR, sector + SECTOR)
        else:
            # This run of zeros ends inside the sector, so the next one begins behind the sector's
            # first byte.
            run = data.find(_ZERO_SECTOR, sector + 1)
    return count


class Extent(NamedTuple):
    """The extent of a record whose header proves right; the rest of the record may be missing."""

    length: int
    """The length of the record, with header and trailer."""
    fid: int
    """The id of the file."""
    zeros: int | None
    """How many whole sectors in the record are all zero; None: unknown."""


def parse_extent(head: bytes, offset: int) -> Extent | None:
    """Read a record's header alone; return None if it does not prove right.

    Args:
        head: the bytes at the offset; bytes behind the header are ignored.
        offset: where they begin in the file.
    """
    if not head.startswith(SYNC) or len(head) < FRAME_SIZE:
        return None
    length, fid, zeros, check, type_ = _EXTENT.unpack_from(head)
    # The checksum of a record's header proves the record's offset, too.
    if check != crc32(_TYPE_AND_OFFSET.pack(type_, offset), crc32(head[:_CHECKED])):
        return None
    return Extent(
        length=length + OVERHEAD,
        fid=fid,
        zeros=zeros if zeros < _U16_MAX else None,
    )


def parse_frame(data: bytes, start: int, offset: int, fid: int) -> Frame | str:  # noqa: PLR0911 - one check a line
    """Return the record at `data[start:]`, or the reason why there is none.

    Args:
        data: a range of the file.
        start: where the record begins in the data.
        offset: where it begins in the file.
        fid: the id of the file.

    Returns:
        The record, or the reason; "" if the data end inside the record.
    """
    room = len(data) - start
    if room < FRAME_SIZE:
        return ""
    # In this order: the length is not believed before the header is proved, and the payload not before it is there.
    fields = unpack_head(data, start)
    sync, length, crc, flags, back, key, seq, frame_fid, unsynced, boot, _, check, type_ = fields
    if sync != SYNC:
        return "no record begins here"
    proof = crc32(_TYPE_AND_OFFSET.pack(type_, offset), crc32(data[start : start + _CHECKED]))
    if frame_fid != fid or check != proof:
        return "the record header's checksum is wrong"
    if length > MAX_PAYLOAD:
        return "the record is impossibly long"
    whole = length + OVERHEAD
    if room < whole:
        return ""
    trailer = start + FRAME_SIZE + length
    payload = data[start + FRAME_SIZE : trailer]
    if crc32(payload) != crc:
        return "the record's checksum is wrong"
    if unpack_trailer(data, trailer) != (whole, END):
        return "the record's trailer is wrong"
    vouched = offset - unsynced * SECTOR if unsynced < _U16_MAX else 0
    # By position: keywords would take 0.4 us more, of 1.1 us, for each record that is read.
    end = offset + whole
    return Frame(offset, end, type_, flags, back, key, seq, payload, vouched, boot)


def check_known(path: str, frame: Frame) -> None:
    """Refuse a record of a newer minor version that a reader must not skip.

    Raises:
        CheckpointFormatError: the type of the record is unknown and must not be skipped, or a flag
            is unknown.
    """
    is_known_type = META <= frame.type <= DATA or frame.type & ANCILLARY
    if not is_known_type or frame.flags & ~_KNOWN_FLAGS:
        record = f"the record at byte {frame.offset} (type {frame.type}, flags {frame.flags})"
        raise CheckpointFormatError(path, f"{record} needs a newer graphkit")
