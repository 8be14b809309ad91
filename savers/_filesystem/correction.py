"""Corrects a single flipped bit of a record, which the record's CRC-32 locates.

CRC-32 (IEEE 802.3) is linear, and its polynomial is primitive. So each single flipped bit of a
record changes the checksum by a pattern of its own, and the difference between the stored checksum
and that of the bytes identifies the bit. `repair` uses this; readers report damage and correct
nothing.
"""

from __future__ import annotations

from itertools import chain, product
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from savers._log.frame import FRAME_SIZE, HEADER_SIZE, OVERHEAD, Frame, parse_extent, parse_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from savers._filesystem.io import FileIO
    from savers._log.records import Records

_LONGEST: Final = 1 << 16
"""The longest record that is corrected, in bytes.

Of all other damage, one case in 2^32 / bits looks like one flipped bit: in a record of this length,
one in 8,000.
"""
_PAYLOAD_CRC: Final = slice(8, 12)
"""Where the checksum of the payload stands in a record's header."""
_ONE_BIT: Final = tuple(1 << bit for bit in range(8))

_TABLE: Final = tuple(crc32(bytes([byte ^ 0xFF])) ^ 0xFF00_0000 for byte in range(256))
"""The usual table of CRC-32: the checksum of each byte, without the ones with which a checksum begins and ends."""
_BY_TOP_BYTE: Final = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}
_PATTERNS: Final = {_TABLE[bit]: bit for bit in _ONE_BIT}
"""What a flipped bit of the last byte changes in the checksum."""


def find_flipped_bit(data: bytes, crc: int) -> tuple[int, int] | None:
    """Find the bit whose flip gives some bytes a checksum.

    Args:
        data: the bytes.
        crc: the CRC-32 that they should have.

    Returns:
        The index of the byte with the bit, and the bit as a mask; None if no single bit does it.
        Costs about 0.3 us per byte.
    """
    pattern = crc32(data) ^ crc
    for index in range(len(data) - 1, -1, -1):
        bit = _PATTERNS.get(pattern)
        if bit is not None:
            return index, bit
        # The pattern as it was before the checksum took in the byte behind this one.
        byte = _BY_TOP_BYTE[pattern >> 24]
        pattern = (pattern ^ _TABLE[byte]) << 8 & 0xFFFF_FFFF | byte
    return None


def find_corrections(records: Records, size: int) -> dict[int, int]:
    """Find the records of a damaged log in which a single bit is wrong.

    Returns:
        The right byte by its position in the file.
    """
    corrections: dict[int, int] = {}
    offset = HEADER_SIZE
    frames: Iterator[Frame | None] = records.search(HEADER_SIZE, size)
    for frame in chain(frames, [None]):
        limit = size
        if frame is not None:
            limit = frame.offset
        while offset < limit:
            end = _correct_record(records, offset, limit, corrections)
            if end is None:
                break
            offset = end
        if frame is not None:
            offset = frame.end
    return corrections


def _correct_record(records: Records, offset: int, limit: int, corrections: dict[int, int]) -> int | None:
    """Correct the record at an offset, and return where it ends; None if more than one bit of it is wrong."""
    for index, data in _guess_records(records, offset, limit):
        frame = parse_frame(data, 0, offset, records.fid or 0)
        if isinstance(frame, Frame):
            corrections[offset + index] = data[index]
            return frame.end
    return None


def _guess_records(records: Records, offset: int, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield what the record at an offset may have been, each with the index of the byte that is changed."""
    read_at = records.bytes.read_at
    longest = min(limit - offset, _LONGEST)
    head = read_at(offset, min(FRAME_SIZE, limit - offset))
    extent = parse_extent(head, offset)
    if extent is not None and extent.fid == records.fid:
        # The header proves itself, so the bit is behind it.
        if extent.length > longest:
            return
        data = read_at(offset, extent.length)
        payload_end = len(data) - OVERHEAD + FRAME_SIZE
        flipped = find_flipped_bit(data[FRAME_SIZE:payload_end], int.from_bytes(data[_PAYLOAD_CRC], "little"))
        if flipped is not None:
            index, bit = flipped
            yield FRAME_SIZE + index, _flip(data, FRAME_SIZE + index, bit)
        # The trailer repeats the length, and has no checksum.
        for index, bit in product(range(payload_end, len(data)), _ONE_BIT):
            yield index, _flip(data, index, bit)
        return
    # The checksum of the header does not locate the bit: until it is right, not even the length of
    # the record is known. All 320 bits are tried, and nearly all of them leave the checksum wrong.
    for index, bit in product(range(len(head)), _ONE_BIT):
        changed = _flip(head, index, bit)
        extent = parse_extent(changed, offset)
        if extent is not None and extent.fid == records.fid and extent.length <= longest:
            yield index, changed + read_at(offset + len(head), extent.length - len(head))


def _flip(data: bytes, index: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[index] ^= bit
    return bytes(changed)


class CorrectedIO:
    """A file system that reads some bytes of a file with their right values."""

    def __init__(self, io: FileIO, corrections: dict[int, int]) -> None:
        self._io = io
        self._corrections = corrections

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`, corrected."""
        data = bytearray(self._io.read_at(fd, offset, length))
        for position, byte in self._corrections.items():
            index = position - offset
            if 0 <= index < len(data):
                data[index] = byte
        return bytes(data)
