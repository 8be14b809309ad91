"""Reads one past checkpoint from its bytes: the records from its keyframe on, in one pass.

`LogReader.find` and `load_state` serve any caller, and keep what they read for the next one. Most
past checkpoints are read once, in another place each time. Of a short state, this takes half the time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from graphkit.errors import CheckpointerError
from savers import _delta as delta
from savers._log import log
from savers._log.kept_records import KeptRecords
from savers._log.packed_chain import PackedCheckpoint, Unsuitable, replay_to_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from savers._log.log_reader import LogReader
    from savers._log.payloads import DecodedRecord
    from savers._log.stored_checkpoint import StoredCheckpoint

_BEHIND: Final = 1 << 13
"""Bytes that are read behind the beginning of the record: all of it, and what belongs to it, as a rule."""
_LONGEST_CHAIN: Final = 1 << 17
"""If more bytes stand between the keyframe and the record, what is decoded is worth keeping."""
_LONGEST_LISTED: Final = 1 << 16
"""If a keyframe names more bytes of values than this, reading them helps the next reader."""
_unpack_key: Final = struct.Struct("<17xI").unpack_from
"""The field of a record's header that leads to the keyframe."""
_LENGTH: Final = 2
"""The position of the length of a value in an entry of a keyframe's table."""


class Place(NamedTuple):
    """Where a checkpoint seems to be; nothing of it was checked."""

    offset: int
    """Where its record begins."""
    start: int
    """Where its keyframe begins."""
    data: bytes
    """The bytes of the log from there on: at least up to the checkpoint behind it, or all there are."""


class PastCheckpoint(NamedTuple):
    """A checkpoint that was read with all that belongs to it."""

    stored: StoredCheckpoint
    packed: PackedCheckpoint


def locate(reader: LogReader, id: str) -> Place | None:
    """Return where a checkpoint with an id seems to be; None if only `LogReader.find` can tell."""
    last = reader.last_checkpoint
    if reader.is_scattered or (last is not None and last.id == id):
        return None
    if reader.index is not None:
        return _read_known_place(reader, reader.index.find(id))
    if not reader.can_search():
        return None
    for offset in reader.search_offsets(id):
        if offset < log.HEADER_SIZE:
            return None
        head = reader.io.read_at(reader.fd, offset, min(_BEHIND, reader.end - offset))
        if log.begins_checkpoint(head, 0):
            return _read_place(reader, offset, head)
        # Pending writes begin with the id, too.
    return None


def _read_known_place(reader: LogReader, stored: StoredCheckpoint | None) -> Place | None:
    if stored is None or stored.offset - stored.keyframe_offset > _LONGEST_CHAIN:
        return None
    start = stored.keyframe_offset
    end = min(stored.offset + _BEHIND, reader.end)
    return Place(stored.offset, start, reader.io.read_at(reader.fd, start, end - start))


def _read_place(reader: LogReader, offset: int, head: bytes) -> Place | None:
    if not head.startswith(log.SYNC):
        return None
    (key,) = _unpack_key(head)
    start = offset - key
    if key > _LONGEST_CHAIN or start < log.HEADER_SIZE:
        return None
    return Place(offset, start, reader.io.read_at(reader.fd, start, key) + head)


def read_past(reader: LogReader, place: Place | None, id: str) -> PastCheckpoint | None:
    """Return a checkpoint with its packed state and writes.

    Args:
        reader: the log, up to date.
        place: where the checkpoint seems to be.
        id: its id.

    Returns:
        None if it must be read in the general way, which also finds out what is wrong with it.
    """
    if place is None or reader.serializer is not None or reader.seal is not None:
        return None
    kept = KeptRecords()
    try:
        stored = reader.scan_to(place.start, place.offset, place.data, kept, _is_short)
        if stored is None or stored.id != id:
            return None
        state = replay_to_end(reader, kept.last)
        writes = _find_writes(reader, stored, kept.written)
    except (Unsuitable, CheckpointerError, *delta.MALFORMED):
        return None
    return PastCheckpoint(stored, PackedCheckpoint(state, writes))


def _is_short(keyframe: DecodedRecord) -> bool:
    """Return whether a keyframe names few bytes of earlier records."""
    entries = (keyframe.table or ())[1::2]
    length: int = sum([entry[_LENGTH] for entry in entries if entry])
    return length <= _LONGEST_LISTED


def _find_writes(
    reader: LogReader, stored: StoredCheckpoint, written: Mapping[int, Mapping[str, bytes]]
) -> Mapping[str, bytes]:
    """Return the packed writes of a checkpoint, in the order of their first recording."""
    offsets = stored.writes
    if all(offset in written for offset in offsets.values()):
        return {key: written[offset][key] for key, offset in offsets.items()}
    return reader.read_packed_writes(stored)
