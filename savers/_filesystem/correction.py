"""Correcting a single flipped bit of a record, which its CRC-32 points at.

CRC-32 (IEEE 802.3) is linear, and its polynomial is primitive. So each single flipped bit of a record changes the
checksum by a pattern of its own, and the difference between the checksum that stands there and the one that the bytes
have tells which bit it was. `repair` uses that; readers report damage and correct nothing.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from savers._filesystem.damage import good_frames
from savers._filesystem.frame import (
    FRAME_SIZE,
    FRAME_SIZE_V1,
    HEADER_SIZE,
    OVERHEAD,
    OVERHEAD_V1,
    Extent,
    Frame,
    extent_of,
    parse_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.io import FileIO

_POLYNOMIAL: Final = 0xEDB8_8320
_BITS: Final = 8
_LONGEST: Final = 1 << 16
"""Bytes of a record. Of all other damage, one case in 2^32 / bits looks like one flipped bit: here, one in 8,000."""
_ONE_BIT: Final = tuple(1 << bit for bit in range(_BITS))


def _make_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(_BITS):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE: Final = _make_table()
_BY_TOP_BYTE: Final = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}
_PATTERNS: Final = {_TABLE[bit]: bit for bit in _ONE_BIT}
"""What a flipped bit of the last byte does to the checksum."""


def find_flipped_bit(data: bytes, crc: int) -> tuple[int, int] | None:
    """Find the bit whose flip gives some bytes a checksum.

    Args:
        data: the bytes.
        crc: the CRC-32 that they should have.

    Returns:
        Which byte it is in, and the bit as a mask; None if no single bit does it. Costs about 0.3 us per byte.
    """
    pattern = crc32(data) ^ crc
    for position in range(len(data) - 1, -1, -1):
        bit = _PATTERNS.get(pattern)
        if bit is not None:
            return position, bit
        # What the pattern was before the checksum took in the byte behind this one.
        byte = _BY_TOP_BYTE[pattern >> 24]
        pattern = (pattern ^ _TABLE[byte]) << 8 & 0xFFFF_FFFF | byte
    return None


def find_corrections(io: FileIO, fd: int, fid: int, size: int) -> dict[int, int]:
    """Find the records of a damaged log in which a single bit is wrong.

    Returns:
        The right byte by its position in the file.
    """
    corrections: dict[int, int] = {}
    offset = HEADER_SIZE
    frames: Iterator[Frame | None] = good_frames(io, fd, fid, HEADER_SIZE, size)
    for frame in chain(frames, [None]):
        limit = size if frame is None else frame.offset
        while offset < limit:
            found = _correct_record(io, fd, fid, offset, limit)
            if found is None:
                break
            position, byte, offset = found
            corrections[position] = byte
        if frame is not None:
            offset = frame.end
    return corrections


def _correct_record(io: FileIO, fd: int, fid: int, offset: int, limit: int) -> tuple[int, int, int] | None:
    """Correct the record at an offset: its position, the right byte, the record's end; None if it is not one bit."""
    head = io.read_at(fd, offset, min(FRAME_SIZE, limit - offset))
    extent = extent_of(head, offset)
    if extent is not None and extent.fid == fid:
        return _correct_payload(io, fd, fid, extent, offset, limit)
    for place in range(len(head)):
        for bit in _ONE_BIT:
            byte = head[place] ^ bit
            changed = head[:place] + bytes((byte,)) + head[place + 1 :]
            extent = extent_of(changed, offset)
            if extent is None or extent.fid != fid or extent.length > min(limit - offset, _LONGEST):
                continue
            whole = changed + io.read_at(fd, offset + len(head), extent.length - len(head))
            if isinstance(parse_frame(whole, 0, offset, fid), Frame):
                return offset + place, byte, offset + extent.length
    return None


def _correct_payload(
    io: FileIO, fd: int, fid: int, extent: Extent, offset: int, limit: int
) -> tuple[int, int, int] | None:
    """Correct a record whose header is right."""
    if extent.length > min(limit - offset, _LONGEST):
        return None
    whole = bytearray(io.read_at(fd, offset, extent.length))
    is_first_version = extent.version == 1
    head_size, overhead = (FRAME_SIZE_V1, OVERHEAD_V1) if is_first_version else (FRAME_SIZE, OVERHEAD)
    payload_end = extent.length - overhead + head_size
    candidates = [(place, bit) for place in range(payload_end, extent.length) for bit in _ONE_BIT]
    found = find_flipped_bit(bytes(whole[head_size:payload_end]), int.from_bytes(whole[8:12], "little"))
    if found is not None:
        candidates.insert(0, (head_size + found[0], found[1]))
    for place, bit in candidates:
        whole[place] ^= bit
        if isinstance(parse_frame(bytes(whole), 0, offset, fid), Frame):
            return offset + place, whole[place], offset + extent.length
        whole[place] ^= bit
    return None


class CorrectedIO:
    """The file system, with some bytes of the files read as they should be."""

    def __init__(self, io: FileIO, corrections: dict[int, int]) -> None:
        self._io = io
        self._corrections = corrections

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """As the file system's."""
        data = self._io.read_at(fd, offset, length)
        changed: bytearray | None = None
        for position, byte in self._corrections.items():
            if offset <= position < offset + len(data):
                changed = changed or bytearray(data)
                changed[position - offset] = byte
        return data if changed is None else bytes(changed)
