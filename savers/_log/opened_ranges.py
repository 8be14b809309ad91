"""Reads ranges of a sealed log, with the payloads of its records opened.

Theory of operation. A value's pieces are ranges of the file, and a piece does not say in which
record it is. So the reader goes back from the beginning of a range to the header of the record
there, which proves itself, and from it forward over all records of the range. Each is opened, which
checks all of it, and its payload takes the place of its ciphertext. Bytes that belong to no
record that can be opened are zero in the result, because damage between the pieces of a value does
no harm to it. Every value has a checksum of its own, so a missing piece never goes unnoticed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointCorruptionError, CheckpointKeyError
from savers._log.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    MAX_PAYLOAD,
    OVERHEAD,
    SEALED,
    SYNC,
    TRAILER_SIZE,
    Frame,
    parse_extent,
    parse_frame,
)

if TYPE_CHECKING:
    from savers._log.log_bytes import LogBytes
    from savers._log.sealing import LogSeal

_RECORD: Final = Struct("<4sI4x17s10xB")
"""Of a record's header: sync marker, length, flags to fid, type."""
_unpack_record: Final = _RECORD.unpack_from
_pack_offset: Final = Struct("<BQ").pack
"""Packs the type and the offset of a record."""
_FIRST_STEP: Final = 1 << 12
"""Bytes that are searched at first for the header before a position."""
_STEP_GROWTH: Final = 16
_READ_AHEAD: Final = 1 << 12
"""Bytes read beyond a range, in which its last record usually ends."""
_LONGEST_KEPT: Final = 1 << 18
"""Longer ranges are not kept for the next call."""


@final
class OpenedRanges:
    """The opened bytes of one log. The records of an open file do not change."""

    def __init__(self, bytes: LogBytes, fid: int | None, seal: LogSeal) -> None:
        self._bytes = bytes
        self._fid = fid
        self._seal = seal
        self._start = 0
        """Where the bytes that were opened last begin in the file."""
        self._kept = bytearray()
        """Whole records, up to where the next one begins."""
        self._ends_with_record = True
        self._appended_start = 0
        self._appended = b""
        """The payload that was sealed last, which the next put is compared with."""

    @property
    def size(self) -> int:
        """How many bytes this keeps."""
        return len(self._kept) + len(self._appended)

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept = bytearray()
        self._appended = b""

    def read(self, start: int, length: int) -> bytes:
        """Return a range of the file as it would be if the log were not sealed.

        Only the bytes of payloads mean anything.

        Raises:
            CheckpointKeyError: a key is missing or wrong.
        """
        at = start - self._appended_start
        if at >= 0 and at + length <= len(self._appended):
            return self._appended[at : at + length]
        end = start + length
        kept_end = self._start + len(self._kept)
        if not self._start <= start <= kept_end:
            # Not in the bytes that are kept, nor behind them.
            self._kept = bytearray()
            self._start = kept_end = self._find_record(start)
        if end > kept_end:
            self._kept += self._open_records(kept_end, end)
        at = start - self._start
        opened = bytes(self._kept[at : at + length])
        if len(self._kept) > _LONGEST_KEPT or not self._ends_with_record:
            self._kept = bytearray()
        return opened

    def note_appended(self, end: int, payload: bytes) -> None:
        """Note the payload of the record that was just appended; `end` is where it ends."""
        self._appended_start = end - len(payload)
        self._appended = payload if len(payload) <= _LONGEST_KEPT else b""

    def _open_records(self, first: int, end: int) -> bytearray:
        """Return the bytes from a record on, opened, up to the end of the record at `end`."""
        data = self._bytes.read_at(first, end + _READ_AHEAD - first)
        opened = bytearray(len(data))
        size = end - first
        at = 0
        # A long list has thousands of records; each takes about 2 us here.
        while at < size and at + FRAME_SIZE <= len(data):
            sync, length, place, type_ = _unpack_record(data, at)
            record_end = at + length + OVERHEAD
            payload = None
            if sync == SYNC and length <= MAX_PAYLOAD and place[0] & SEALED:
                if record_end > len(data):
                    data += self._bytes.read_at(first + len(data), record_end - len(data))
                    opened += bytes(len(data) - len(opened))
                sealed = data[at + FRAME_SIZE : at + FRAME_SIZE + length]
                offset = first + at
                try:
                    payload = self._seal.open_payload(sealed, place + _pack_offset(type_, offset), offset)
                except (CheckpointKeyError, CheckpointCorruptionError):
                    # Of a damaged record, the id of the key may be damaged.
                    if isinstance(parse_frame(data, at, offset, self._fid or 0), Frame):
                        raise
            if payload is None:
                at = self._find_next_record(first, data, at)
                self._ends_with_record = False
                continue
            payload_end = record_end - TRAILER_SIZE
            opened[payload_end - len(payload) : payload_end] = payload
            at = record_end
            self._ends_with_record = True
        del opened[at:]
        return opened

    def _find_record(self, position: int) -> int:
        """Return the offset of the record with a position; the position itself if there is none."""
        step = _FIRST_STEP
        while True:
            start = max(HEADER_SIZE, position - step)
            data = self._bytes.read_at(start, position - start)
            at = data.rfind(SYNC)
            while at >= 0:
                if self._is_record(data, at, start + at):
                    return start + at
                at = data.rfind(SYNC, 0, at + len(SYNC) - 1)
            if start == HEADER_SIZE:
                return position
            step *= _STEP_GROWTH

    def _find_next_record(self, first: int, data: bytes, at: int) -> int:
        """Return the index of the next record in the data that can be one; their length if none is.

        Args:
            first: where the data begin in the file.
            data: a range of the file.
            at: the index of the record that could not be opened.
        """
        extent = parse_extent(data[at : at + FRAME_SIZE], first + at)
        if extent is not None and extent.fid == self._fid and extent.length <= len(data) - at:
            return at + extent.length
        while True:
            at = data.find(SYNC, at + 1)
            if at < 0:
                return len(data)
            if self._is_record(data, at, first + at):
                return at

    def _is_record(self, data: bytes, at: int, offset: int) -> bool:
        extent = parse_extent(data[at : at + FRAME_SIZE], offset)
        return extent is not None and extent.fid == self._fid
