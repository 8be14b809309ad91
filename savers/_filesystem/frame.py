"""The bytes of a log's header and records, in both versions of the format. docs/format.md specifies them.

A record is a header, a payload and a trailer. `parse_frame` accepts it only if all of it proves right: a checksum over
the header, its place in the file and the file's id, a checksum over the payload, and the length again at the end. The
sync marker at the beginning names the version, so that one log may hold records of both.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError

MAGIC: Final = b"\x89GKL\r\n\x1a\n"
MAJOR: Final = 2
MINOR: Final = 0
SYNC: Final = b"\xc1\xf5G2"
"""Cannot occur in msgpack's own bytes nor in valid UTF-8, so that a search for it finds records."""
SYNC_V1: Final = b"\xc1\xf5GK"
_SYNC_PREFIX: Final = SYNC[:3]

META: Final = 1
CHECKPOINT: Final = 2
TOMBSTONE: Final = 3
RELEASE: Final = 4
WRITE: Final = 5
MARK: Final = 6
DATA: Final = 7
"""Bytes of values that did not fit into one record; the keyframe behind them names them."""
ANCILLARY: Final = 0x80

KEY: Final = 1
REPLACE: Final = 2
COMPRESSED: Final = 4
"""Some of the values that the record sets or names are compressed."""
SCATTERED: Final = 32
"""This record or an earlier one is about another checkpoint than that of the last CHECKPOINT record before it."""
_KNOWN_FLAGS: Final = KEY | REPLACE | COMPRESSED | SCATTERED
_LOOSE_V1: Final = 0x30
_LOOSE_SHIFT_V1: Final = 4
_LOOSE_LENGTHS_V1: Final = (0, 1 << 10, 1 << 13, 1 << 16)
_KNOWN_FLAGS_V1: Final = KEY | REPLACE | COMPRESSED

HEADER_SIZE: Final = 64
"""Bytes of the file header."""
FRAME_SIZE: Final = 40
"""Bytes of a record's header."""
TRAILER_SIZE: Final = 5
OVERHEAD: Final = FRAME_SIZE + TRAILER_SIZE
FRAME_SIZE_V1: Final = 36
TRAILER_SIZE_V1: Final = 4
OVERHEAD_V1: Final = FRAME_SIZE_V1 + TRAILER_SIZE_V1
MAX_PAYLOAD: Final = 1 << 30
_U16_MAX: Final = 0xFFFF
END: Final = 0x4B
"""The last byte of a record: not zero, so that a lost last sector shows."""
META_RECORDS: Final = {1: 1, 2: 2}
"""How many copies of its description begin a log, by its major version."""
SECTOR: Final = 512
"""What a disk keeps or loses as a whole."""
_ZERO_SECTOR: Final = bytes(SECTOR)

_FILE_HEADER: Final = struct.Struct("<8sHHIIIQQ16sI")
_HEAD: Final = struct.Struct("<4sIIBIIIIHHH")
_CHECK: Final = struct.Struct("<IB")
_FRAME: Final = struct.Struct("<4sIIBIIIIHHHIB")
_PLACE: Final = struct.Struct("<BQ")
_TRAILER: Final = struct.Struct("<IB")
_FRAME_V1: Final = struct.Struct("<4sIIBBHIIIII")
_HEAD_V1: Final = struct.Struct("<4sIIBBHIIII")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_unpack_frame: Final = _FRAME.unpack_from
_unpack_trailer: Final = _TRAILER.unpack_from
_CHECKED: Final = FRAME_SIZE - _CHECK.size
"""Bytes of a record's header in front of its own checksum."""
_CHECKED_V1: Final = FRAME_SIZE_V1 - _U32.size


class Header(NamedTuple):
    """The first 64 bytes of a log."""

    fid: int
    generation: int
    created_ns: int
    digest: bytes
    major: int = MAJOR

    def pack(self) -> bytes:
        """Return its bytes."""
        minor = MINOR if self.major == MAJOR else 0
        head = _FILE_HEADER.pack(
            MAGIC, self.major, minor, 0, self.fid, 0, self.generation, self.created_ns, self.digest, 0
        )
        return head + _U32.pack(crc32(head))


class IncompleteLog(Exception):  # noqa: N818 - not an error: a log whose creation was cut short is made anew
    """A file too short for a log's beginning, or all zero: its creation never finished."""


def read_header(path: str, data: bytes) -> Header:
    """Check the first bytes of a file.

    Raises:
        IncompleteLog: the file's creation was cut short.
        CheckpointFormatError: a newer major version, or not a log at all.
        CheckpointCorruptionError: the header is damaged.
    """
    if len(data) < HEADER_SIZE or not data.strip(b"\0"):
        raise IncompleteLog
    if is_headless(data):
        raise CheckpointCorruptionError(path, 0, "the file header is gone")
    magic, major, _, _, fid, _, generation, created_ns, digest, _ = _FILE_HEADER.unpack_from(data)
    if magic != MAGIC:
        if data.find(_SYNC_PREFIX) >= 0:
            raise CheckpointCorruptionError(path, 0, "the file header is not a log's")
        raise CheckpointFormatError(path, "this is not a graphkit log")
    if _U32.unpack_from(data, HEADER_SIZE - _U32.size)[0] != crc32(data[: HEADER_SIZE - _U32.size]):
        raise CheckpointCorruptionError(path, 0, "the file header's checksum is wrong")
    if major > MAJOR:
        raise CheckpointFormatError(path, f"written in format {major}; this graphkit reads up to {MAJOR}: update it")
    return Header(fid, generation, created_ns, digest, major)


def is_headless(data: bytes) -> bool:
    """Whether the first sector of a file is all zero; what stands behind it tells if anything else is there."""
    return not data[:SECTOR].strip(b"\0")


class Frame(NamedTuple):
    """One record that has proved itself."""

    offset: int
    end: int
    """Where the next record begins."""
    type: int
    flags: int
    back: int
    key: int
    seq: int
    payload: bytes
    vouched: int
    """Everything before this position was on the disk when the record was written."""
    boot: int
    """The start of the system in which it was written; 0: unknown."""
    version: int

    @property
    def payload_end(self) -> int:
        """Where the trailer begins."""
        return self.end - (TRAILER_SIZE if self.version == MAJOR else TRAILER_SIZE_V1)

    @property
    def is_scattered(self) -> bool:
        """Whether what belongs to a checkpoint may stand anywhere behind it; version 1 does not say."""
        return self.version != MAJOR or bool(self.flags & SCATTERED)


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
    """Return the bytes of a record that is to stand at an offset.

    Args:
        offset: where it is to stand.
        fid: the id of the file.
        seq: its number.
        type: its type.
        payload: what it holds.
        flags: its flags.
        back: the distance to the base record.
        key: the distance to the keyframe.
        unsynced: how many bytes before the offset are not known to be on the disk.
        boot: the start of the system.
    """
    length = len(payload)
    trailer = _TRAILER.pack(length + OVERHEAD, END)
    zeros = 0
    if length >= SECTOR:
        zeros = min(count_zero_sectors(payload + trailer, offset + FRAME_SIZE), _U16_MAX)
    unsynced_sectors = min(-(-unsynced // SECTOR), _U16_MAX)
    head = _HEAD.pack(SYNC, length, crc32(payload), flags, back, key, seq, fid, unsynced_sectors, boot, zeros)
    check = crc32(_PLACE.pack(type, offset), crc32(head))
    return b"".join((head, _CHECK.pack(check, type), payload, trailer))


def repack_frame(frame: Frame, offset: int, fid: int) -> bytes:
    """Return the bytes of a record that moves to another file, of which all is on the disk before it is used."""
    if frame.version == MAJOR:
        return pack_frame(offset, fid, frame.seq, frame.type, frame.payload, frame.flags, frame.back, frame.key)
    return pack_frame_v1(offset, fid, frame.seq, frame.type, frame.payload, frame.flags, frame.back, frame.key)


def pack_frame_v1(
    offset: int, fid: int, seq: int, type: int, payload: bytes, flags: int = 0, back: int = 0, key: int = 0
) -> bytes:
    """Return the bytes of a record of version 1; its field `depth`, which no reader needs, is 0."""
    length = len(payload)
    head = _HEAD_V1.pack(SYNC_V1, length, crc32(payload), type, flags, 0, back, key, seq, fid)
    check = crc32(_U64.pack(offset), crc32(head))
    return b"".join((head, _U32.pack(check), payload, _U32.pack(length + OVERHEAD_V1)))


def count_zero_sectors(data: bytes, offset: int) -> int:
    """Count the sectors of the file that lie wholly inside some bytes of it and are all zero.

    Args:
        data: the bytes.
        offset: where they stand in the file.
    """
    count = 0
    at = data.find(_ZERO_SECTOR)
    while at >= 0:
        start = at + -(offset + at) % SECTOR
        if data[start : start + SECTOR] == _ZERO_SECTOR:
            count += 1
            at = data.find(_ZERO_SECTOR, start + SECTOR)
        else:
            # The zeros from `at` on end inside this sector, so the next run begins behind its first byte.
            at = data.find(_ZERO_SECTOR, start + 1)
    return count


class Extent(NamedTuple):
    """What a record's header says of its place, if the header proves right."""

    length: int
    """All bytes of the record."""
    fid: int
    zeros: int | None
    """How many whole sectors in it are all zero; None: unknown."""
    version: int


def parse_extent(head: bytes, offset: int) -> Extent | None:
    """Read a record's header alone; None if it does not prove right.

    Args:
        head: the bytes at the offset; more than the header does no harm.
        offset: where they stand in the file.
    """
    if head[:4] == SYNC_V1 and len(head) >= FRAME_SIZE_V1:
        _, length, _, _, _, _, _, _, _, fid, check = _FRAME_V1.unpack_from(head)
        if check == crc32(_U64.pack(offset), crc32(head[:_CHECKED_V1])):
            return Extent(length + OVERHEAD_V1, fid, None, 1)
    elif head[:4] == SYNC and len(head) >= FRAME_SIZE:
        _, length, _, _, _, _, _, fid, _, _, zeros, check, type_ = _unpack_frame(head)
        if check == crc32(_PLACE.pack(type_, offset), crc32(head[:_CHECKED])):
            return Extent(length + OVERHEAD, fid, zeros if zeros < _U16_MAX else None, MAJOR)
    return None


def parse_frame(data: bytes, at: int, offset: int, fid: int) -> Frame | str:  # noqa: PLR0911 - one check a line
    """Return the record at `data[at:]`, which stands at `offset` in the file; or why there is none.

    The reason is "" if the data end inside the record.
    """
    room = len(data) - at
    if room < FRAME_SIZE:
        return _parse_frame_v1(data, at, offset, fid) if data.startswith(SYNC_V1, at) else ""
    sync, length, crc, flags, back, key, seq, frame_fid, unsynced, boot, _, check, type_ = _unpack_frame(data, at)
    if sync != SYNC:
        return _parse_frame_v1(data, at, offset, fid) if sync == SYNC_V1 else "no record begins here"
    if check != crc32(_PLACE.pack(type_, offset), crc32(data[at : at + _CHECKED])) or frame_fid != fid:
        return "the record header's checksum is wrong"
    if length > MAX_PAYLOAD:
        return "the record is impossibly long"
    whole = length + OVERHEAD
    if room < whole:
        return ""
    end = at + FRAME_SIZE + length
    payload = data[at + FRAME_SIZE : end]
    if crc32(payload) != crc:
        return "the record's checksum is wrong"
    if _unpack_trailer(data, end) != (whole, END):
        return "the record's trailer is wrong"
    vouched = offset - unsynced * SECTOR if unsynced < _U16_MAX else 0
    return Frame(offset, offset + whole, type_, flags, back, key, seq, payload, vouched, boot, MAJOR)


def _parse_frame_v1(data: bytes, at: int, offset: int, fid: int) -> Frame | str:  # noqa: PLR0911 - one check a line
    room = len(data) - at
    if room < FRAME_SIZE_V1:
        return ""
    _, length, crc, type_, flags, _, back, key, seq, frame_fid, check = _FRAME_V1.unpack_from(data, at)
    if check != crc32(_U64.pack(offset), crc32(data[at : at + _CHECKED_V1])) or frame_fid != fid:
        return "the record header's checksum is wrong"
    if length > MAX_PAYLOAD:
        return "the record is impossibly long"
    if room < length + OVERHEAD_V1:
        return ""
    end = at + FRAME_SIZE_V1 + length
    payload = data[at + FRAME_SIZE_V1 : end]
    if crc32(payload) != crc:
        return "the record's checksum is wrong"
    if _U32.unpack_from(data, end)[0] != length + OVERHEAD_V1:
        return "the record's trailer is wrong"
    # The first two records of a file of version 1 were one write.
    loose = _LOOSE_LENGTHS_V1[(flags & _LOOSE_V1) >> _LOOSE_SHIFT_V1] if seq > 1 else offset
    whole = length + OVERHEAD_V1
    return Frame(offset, offset + whole, type_, flags & ~_LOOSE_V1, back, key, seq, payload, offset - loose, 0, 1)


def read_trailer_length(data: bytes) -> int:
    """Return the length of the record that ends where the data end, as its trailer has it; unproved."""
    if data[-1] == END and len(data) >= TRAILER_SIZE:
        length = int(_unpack_trailer(data, len(data) - TRAILER_SIZE)[0])
        if length >= OVERHEAD:
            return length
    return int(_U32.unpack_from(data, len(data) - TRAILER_SIZE_V1)[0])


def check_known(path: str, frame: Frame) -> None:
    """Refuse what a newer minor version wrote and must not be skipped.

    Raises:
        CheckpointFormatError: a critical record of an unknown type, or unknown flags.
    """
    known_flags = _KNOWN_FLAGS if frame.version == MAJOR else _KNOWN_FLAGS_V1
    is_known_type = META <= frame.type <= DATA or frame.type & ANCILLARY
    if not is_known_type or frame.flags & ~known_flags:
        raise CheckpointFormatError(
            path, f"the record at byte {frame.offset} (type {frame.type}, flags {frame.flags}) needs a newer graphkit"
        )
