"""A log file: header, frames, the tail, and what is torn or damaged. Knows nothing of graphs.

Theory of operation. A log only grows at its end, one whole frame per write, so everything before the last good frame
stays as it was. A frame proves itself: a checksum over its header, its place in the file and the file's id, one over
its payload, its length again behind it, and a number that counts without gaps. What does not prove itself is either
*not there yet* (a write that has not finished or never will: only at the very end) or *damage* (anything else), and
`judge` alone decides which.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

MAGIC: Final = b"\x89GKL\r\n\x1a\n"
MAJOR: Final = 1
MINOR: Final = 0
SYNC: Final = b"\xc1\xf5GK"
"""Cannot occur in msgpack's own bytes nor in valid UTF-8, so that a search for it finds frames."""

META: Final = 1
CHECKPOINT: Final = 2
TOMBSTONE: Final = 3
RELEASE: Final = 4
WRITE: Final = 5
MARK: Final = 6
ANCILLARY: Final = 0x80

KEY: Final = 1
REPLACE: Final = 2
COMPRESSED: Final = 4
"""Some of the values that the record sets or names are compressed."""
LOOSE: Final = 0x30
"""Two bits: of what stands before the record, up to so many bytes were not yet known to be on the disk when it was
written. So a power loss may have kept the record and lost something of those."""
_LOOSE_SHIFT: Final = 4
_LOOSE_LENGTHS: Final = (0, 1 << 10, 1 << 13, 1 << 16)
LOOSE_LIMIT: Final = _LOOSE_LENGTHS[-1]
_KNOWN_FLAGS: Final = KEY | REPLACE | COMPRESSED | LOOSE

_HEADER: Final = struct.Struct("<8sHHIIIQQ16sI")
HEADER_SIZE: Final = 64
_FRAME: Final = struct.Struct("<4sIIBBHIIIII")
_FRAME_HEAD: Final = struct.Struct("<4sIIBBHIIII")
FRAME_SIZE: Final = 36
OVERHEAD: Final = 40
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_unpack_frame: Final = _FRAME.unpack_from
_unpack_u32: Final = _U32.unpack_from

MAX_PAYLOAD: Final = 1 << 30
MAX_DISTANCE: Final = 0xF000_0000
_SECTOR: Final = 512
WINDOW: Final = 1 << 22
_SEARCH: Final = 1 << 20
TAIL_READ: Final = 1 << 16


class Header(NamedTuple):
    """The first 64 bytes of a log."""

    fid: int
    generation: int
    created_ns: int
    digest: bytes

    def pack(self) -> bytes:
        """Its bytes."""
        head = _HEADER.pack(MAGIC, MAJOR, MINOR, 0, self.fid, 0, self.generation, self.created_ns, self.digest, 0)
        return head + _U32.pack(crc32(head))


class Frame(NamedTuple):
    """One record that has proved itself."""

    offset: int
    type: int
    flags: int
    depth: int
    back: int
    key: int
    seq: int
    payload: bytes

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.offset + len(self.payload) + OVERHEAD

    @property
    def vouched(self) -> int:
        """Everything before this position was on the disk when the record was written."""
        if self.seq <= 1:
            return 0  # The file began with this write.
        return self.offset - _LOOSE_LENGTHS[(self.flags & LOOSE) >> _LOOSE_SHIFT]


class Unborn(Exception):  # noqa: N818 - not an error: a log whose creation was cut short is made anew
    """A file too short for a log's beginning, or all zero: its creation never finished."""


def read_header(path: str, data: bytes) -> Header:
    """Check the first bytes of a file.

    Raises:
        Unborn: the file's creation was cut short.
        CheckpointFormatError: a newer major version, or not a log at all.
        CheckpointCorruptionError: the header is damaged.
    """
    if len(data) < HEADER_SIZE or not data.strip(b"\0"):
        raise Unborn
    if is_headless(data):
        raise CheckpointCorruptionError(path, 0, "the file header is gone")
    magic, major, _, _, fid, _, generation, created_ns, digest, _ = _HEADER.unpack_from(data)
    if magic != MAGIC:
        if data.find(SYNC) >= 0:
            raise CheckpointCorruptionError(path, 0, "the file header is not a log's")
        raise CheckpointFormatError(path, "this is not a graphkit log")
    if _unpack_u32(data, HEADER_SIZE - 4)[0] != crc32(data[: HEADER_SIZE - 4]):
        raise CheckpointCorruptionError(path, 0, "the file header's checksum is wrong")
    if major > MAJOR:
        raise CheckpointFormatError(path, f"written in format {major}; this graphkit reads up to {MAJOR}: update it")
    return Header(fid, generation, created_ns, digest)


def is_headless(data: bytes) -> bool:
    """Whether the first sector of a file never reached the disk; what stands behind it tells if anything else did."""
    return not data[:_SECTOR].strip(b"\0")


def loose_flags(length: int) -> int:
    """The flags of a record before which so many bytes, at most LOOSE_LIMIT, are not known to be on the disk."""
    return sum(length > one for one in _LOOSE_LENGTHS) << _LOOSE_SHIFT


def good_frames(io: FileIO, fd: int, fid: int | None, start: int, end: int) -> Iterator[Frame]:
    """All records between two positions that prove themselves, whatever stands between them.

    `fid` None: of any file id. Reads a window at a time, and of what claims to be a record only what can be one.
    """
    base, data = start, b""
    at = 0
    while True:
        at = data.find(SYNC, at)
        if at < 0 or len(data) - at < FRAME_SIZE:
            # The last bytes may be the beginning of a record.
            keep = at if at >= 0 else max(0, len(data) - FRAME_SIZE)
            more = io.read_at(fd, base + len(data), min(_SEARCH, end - base - len(data)))
            if not more:
                return
            base, data, at = base + keep, data[keep:] + more, 0
            continue
        offset = base + at
        length = _trusted_length(data[at : at + FRAME_SIZE], offset, fid)
        frame: Frame | str = ""
        if length is not None and length <= min(MAX_PAYLOAD + OVERHEAD, end - offset):
            own = _unpack_u32(data, at + FRAME_SIZE - 8)[0]
            whole = data[at : at + length] if len(data) - at >= length else io.read_at(fd, offset, length)
            frame = parse_frame(whole, 0, offset, own)
        if isinstance(frame, Frame):
            yield frame
            base, data, at = (base, data, frame.end - base) if frame.end <= base + len(data) else (frame.end, b"", 0)
        else:
            at += 1


def vouched(io: FileIO, fd: int, fid: int | None, start: int, end: int) -> int:
    """Up to where the good records between two positions vouch that all was on the disk; else 0."""
    return max((frame.vouched for frame in good_frames(io, fd, fid, start, end)), default=0)


def pack_frame(
    offset: int,
    fid: int,
    seq: int,
    type: int,
    payload: bytes,
    flags: int = 0,
    depth: int = 0,
    back: int = 0,
    key: int = 0,
) -> bytes:
    """The bytes of a record that is to stand at an offset."""
    length = len(payload)
    head = _FRAME_HEAD.pack(SYNC, length, crc32(payload), type, flags, depth, back, key, seq, fid)
    check = crc32(_U64.pack(offset), crc32(head))
    return b"".join((head, _U32.pack(check), payload, _U32.pack(length + OVERHEAD)))


def parse_frame(data: bytes, at: int, offset: int, fid: int) -> Frame | str:  # noqa: PLR0911 - one check a line
    """The record at `data[at:]`, which stands at `offset` in the file; or why it is none ("" if it is incomplete)."""
    room = len(data) - at
    if room < FRAME_SIZE:
        return ""
    sync, length, payload_crc, type_, flags, depth, back, key, seq, frame_fid, check = _unpack_frame(data, at)
    if sync != SYNC:
        return "no record begins here"
    if check != crc32(_U64.pack(offset), crc32(data[at : at + FRAME_SIZE - 4])) or frame_fid != fid:
        return "the record header's checksum is wrong"
    if length > MAX_PAYLOAD:
        return "the record is impossibly long"
    if room < length + OVERHEAD:
        return ""
    end = at + FRAME_SIZE + length
    payload = data[at + FRAME_SIZE : end]
    if crc32(payload) != payload_crc:
        return "the record's checksum is wrong"
    if _unpack_u32(data, end)[0] != length + OVERHEAD:
        return "the record's trailer is wrong"
    return Frame(offset, type_, flags, depth, back, key, seq, payload)


def check_known(path: str, frame: Frame) -> None:
    """Refuse what a newer minor version wrote and must not be skipped.

    Raises:
        CheckpointFormatError: a critical record of an unknown type, or unknown flags.
    """
    if (not META <= frame.type <= MARK and not frame.type & ANCILLARY) or frame.flags & ~_KNOWN_FLAGS:
        raise CheckpointFormatError(
            path, f"the record at byte {frame.offset} (type {frame.type}, flags {frame.flags}) needs a newer graphkit"
        )


def scan(
    io: FileIO, fd: int, path: str, fid: int, start: int, end: int, seq: int, data: bytes = b""
) -> Iterator[Frame]:
    """The records from `start` on, in order; stops at what is not there yet. `seq` is the first one's number.

    `data` is the beginning of the file, as far as it has been read already.

    Raises:
        CheckpointCorruptionError: damage.
        CheckpointFormatError: a record that only a newer graphkit understands.
    """
    offset, base = start, 0
    want = WINDOW
    while offset < end:
        frame = parse_frame(data, offset - base, offset, fid)
        if frame == "" and base + len(data) < end:
            # A frame longer than the window is read whole the second time.
            data, base = io.read_at(fd, offset, min(want, end - offset)), offset
            want = _needed(data, want)
            if not data:
                return
            continue
        if isinstance(frame, str) or frame.seq != seq:
            judge(io, fd, path, fid, offset, end, frame if isinstance(frame, str) else "records are missing before it")
            return
        check_known(path, frame)
        yield frame
        offset, seq, want = offset + len(frame.payload) + OVERHEAD, seq + 1, WINDOW


def _needed(data: bytes, want: int) -> int:
    if len(data) < FRAME_SIZE:
        return want
    length = _unpack_u32(data, 4)[0]
    return max(want, length + OVERHEAD) if length <= MAX_PAYLOAD else want


def judge(io: FileIO, fd: int, path: str, fid: int, offset: int, end: int, reason: str) -> None:
    """Decide about bytes from `offset` to the end of the file that are no good record.

    Returns if they are a tail that was cut short: its write has not finished, or never will. Such a tail is short
    inside its last frame, or one of its 512-byte sectors is all zero (its size reached the disk, its data did not).
    Good records may follow if none of them was written after these bytes were on the disk: they were lost with them.

    Raises:
        CheckpointCorruptionError: they are damage.
    """
    found = next(good_frames(io, fd, fid, offset + 1, end), None)
    if found is not None and (
        vouched(io, fd, fid, found.offset, end) > offset or not is_torn(io, fd, fid, offset, found.offset)
    ):
        raise CheckpointCorruptionError(
            path, offset, f"{reason or 'the record is cut short'}, and a good record follows at byte {found.offset}"
        )
    if found is not None or is_torn(io, fd, fid, offset, end):
        return
    raise CheckpointCorruptionError(path, offset, reason or "the record is cut short")


def is_torn(io: FileIO, fd: int, fid: int, offset: int, end: int) -> bool:
    """Whether the bad bytes between two positions look like a write that never finished."""
    room = end - offset
    if room < FRAME_SIZE:
        return True
    length = _trusted_length(io.read_at(fd, offset, FRAME_SIZE), offset, fid)
    if length is not None and room < length:
        return True
    if length is None and room >= OVERHEAD and _unpack_u32(io.read_at(fd, end - 4, 4).ljust(4))[0] == room:
        length = room
    return _zero_sector(io, fd, offset, end, length)


def _trusted_length(data: bytes, offset: int, fid: int | None) -> int | None:
    if len(data) < FRAME_SIZE:
        return None
    sync, length, _, _, _, _, _, _, _, frame_fid, check = _unpack_frame(data)
    good = sync == SYNC and fid in {None, frame_fid}
    good = good and check == crc32(_U64.pack(offset), crc32(data[: FRAME_SIZE - 4]))
    return length + OVERHEAD if good else None


def _zero_sector(io: FileIO, fd: int, offset: int, end: int, length: int | None) -> bool:
    # The last bytes of a trailer are zero in a good record too, so a sector that holds only those proves nothing.
    trailer = _U32.pack(length) if length is not None else b"\1\1\1\1"
    trailer_at = offset + length - 4 if length is not None else end - 4
    while offset < end:
        data = io.read_at(fd, offset, min(_SEARCH - offset % _SECTOR, end - offset))
        if not data:
            return True
        at = 0
        while at < len(data):
            to = min(len(data), at + _SECTOR - (offset + at) % _SECTOR)
            inside = offset + at - trailer_at
            if not data[at:to].strip(b"\0") and (inside < 0 or trailer[inside : inside + to - at].strip(b"\0")):
                return True
            at = to
        offset += len(data)
    return False


def read_frame(io: FileIO, fd: int, path: str, fid: int, offset: int, end: int) -> Frame:
    """The record at an offset that is known to be one.

    Raises:
        CheckpointCorruptionError: it no longer is.
    """
    data = io.read_at(fd, offset, min(4096, end - offset)) if HEADER_SIZE <= offset < end else b""
    frame = parse_frame(data, 0, offset, fid)
    if frame == "" and len(data) >= FRAME_SIZE:
        data = io.read_at(fd, offset, _unpack_u32(data, 4)[0] + OVERHEAD)
        frame = parse_frame(data, 0, offset, fid)
    if isinstance(frame, str):
        raise CheckpointCorruptionError(path, offset, frame or "the record is cut short")
    check_known(path, frame)
    return frame


class Tail:
    """Steps back over a log's records from its end, reading 64 KiB at a time."""

    def __init__(self, io: FileIO, fd: int, fid: int, end: int) -> None:
        self._io, self._fd, self._fid = io, fd, fid
        self._at = end
        self._data, self._base = b"", end

    def step(self) -> Frame | None:
        """The record before the last one handed out; None at the beginning, or where the way back is broken."""
        at = self._at
        if at < HEADER_SIZE + OVERHEAD:
            return None
        length = _unpack_u32(self._read(at - 4, at), at - 4 - self._base)[0]
        start = at - length
        if length < OVERHEAD or start < HEADER_SIZE:
            return None
        data = self._read(start, at)
        frame = parse_frame(data, start - self._base, start, self._fid)
        if isinstance(frame, str) or frame.end != at:
            return None
        self._at = start
        return frame

    def _read(self, start: int, end: int) -> bytes:
        if start < self._base:
            first = max(0, min(start, end - TAIL_READ))
            self._data, self._base = self._io.read_at(self._fd, first, end - first), first
        return self._data
