"""Reads runs of plain records in one loop, for scans of thousands of checkpoints.

Nearly all records of a log are *plain*: changes that replace no checkpoint, and pending writes of
the last one. `frame.py` and `payloads.py` read any record, in some 6 us; the loop below reads a
plain one in half the time, because it calls nothing and makes nothing except the checkpoint. It
makes the same checks. It stops before a record that is not plain or not good, so that the modules
above read that one, and say what is wrong with it.

`plain_log.py` reads whole logs of such records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from msgpack import unpackb

from graphkit.values import FrozenDict
from savers._log.frame import (
    CHECKPOINT,
    COMPRESSED,
    END,
    FRAME_SIZE,
    MAX_PAYLOAD,
    OVERHEAD,
    SCATTERED,
    SYNC,
    WRITE,
    unpack_trailer,
)
from savers._log.payloads import (
    FIRST_TIME,
    LAST_TIME,
    NO_DISTANCES,
    DecodedRecord,
)
from savers._log.stored_checkpoint import NO_KEYS, NO_WRITES, StoredCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLAIN_FLAGS: Final = COMPRESSED | SCATTERED
pack_type_and_offset: Final = struct.Struct("<BQ").pack
unpack_plain_head: Final = struct.Struct("<4sIIB4xIII6xIB").unpack_from
"""The fields of a record's header that are needed here: sync, length, crc, flags, key, seq, fid,
check, type. All of them would take 0.1 us longer."""
split_uuid: Final = struct.Struct("4s6s6s").unpack
_new_record: Final[Callable[..., DecodedRecord]] = tuple.__new__
_new_checkpoint: Final[Callable[[type[StoredCheckpoint]], StoredCheckpoint]] = object.__new__
CHECKED: Final = 35
"""Bytes of a record's header in front of its own checksum."""
SHORT: Final = 6
"""Elements of a change: id, node, next, created, ops, data."""
_WITH_PARENT: Final = 7
"""Elements of a change with a parent other than the checkpoint before it."""
WITH_METADATA: Final = 8
"""Elements of a change that sets metadata: in addition, parent and metadata."""
SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
STOPS: Final = (struct.error, ValueError, TypeError, AttributeError, LookupError)
"""What the content of a record that is not plain may raise."""


class PlainRun(NamedTuple):
    """A run of plain records."""

    checkpoints: list[StoredCheckpoint]
    end: int
    """Where the next record begins in the file."""
    seq: int
    """The number of the next record."""
    is_scattered: bool
    """Whether the last of them has SCATTERED; false if there are none."""


def read_plain_run(  # noqa: C901, PLR0912, PLR0915 - one loop, see the top
    data: bytes,
    base: int,
    offset: int,
    stop: int,
    fid: int,
    seq: int,
    last: StoredCheckpoint,
    unpack: Callable[[bytes], FrozenDict],
    changes: list[DecodedRecord] | None = None,
    written: dict[int, Mapping[str, bytes]] | None = None,
) -> PlainRun:
    """Read plain records from an offset on.

    Args:
        data: a range of the file.
        base: where the data begin in the file.
        offset: where the first record begins in the file.
        stop: no record begins here or later.
        fid: the id of the file.
        seq: the number of the first record.
        last: the checkpoint of the CHECKPOINT record before; pending writes are added to it.
        unpack: decodes packed metadata.
        changes: the content of the CHECKPOINT records is added to it, if it is given.
        written: the packed values of the WRITE records are added to it, by their offsets. If only
            `changes` are given, all records but CHECKPOINT are skipped.
    """
    checkpoints: list[StoredCheckpoint] = []
    is_scattered = False
    add = checkpoints.append
    new_checkpoint = _new_checkpoint
    last_id = last.id
    node: Any = last.node
    next_node: Any = last.next
    created = last.created
    metadata = last.metadata
    keyframe_offset = last.keyframe_offset
    try:
        while offset < stop:
            start = offset - base
            sync, length, crc, flags, key, own_seq, own_fid, check, type_ = unpack_plain_head(data, start)
            payload_start = start + FRAME_SIZE
            payload_end = payload_start + length
            payload = data[payload_start:payload_end]
            whole = length + OVERHEAD
            if (
                sync != SYNC
                or check != crc32(pack_type_and_offset(type_, offset), crc32(data[start : start + CHECKED]))
                or own_fid != fid
                or own_seq != seq
                or crc32(payload) != crc
                or unpack_trailer(data, payload_end) != (whole, END)
                or length > MAX_PAYLOAD
                or flags & ~_PLAIN_FLAGS
            ):
                break
            if type_ != CHECKPOINT and changes is not None and written is None:
                offset += whole
                seq += 1
                continue
            parts = unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
            if type_ != CHECKPOINT:
                if type_ != WRITE or flags & SCATTERED:
                    break
                owner, values = parts
                if f"{owner[:4].hex()}-{owner[4:10].hex('-', 2)}-{owner[10:].hex()}" != last_id:
                    break
                for name, value in values.items():
                    if name.__class__ is not str or value.__class__ is not bytes:
                        raise TypeError
                last.add_writes(values, offset)
                if written is not None:
                    written[offset] = values
                offset += whole
                is_scattered = False
                seq += 1
                continue
            count = len(parts)
            parent = change = None
            if count == SHORT:
                own_id, own_node, own_next, own_created, ops, body = parts
            elif count == WITH_METADATA:
                own_id, own_node, own_next, own_created, ops, parent, change, body = parts
            elif count == _WITH_PARENT:
                own_id, own_node, own_next, own_created, ops, parent, body = parts
            else:
                break
            if parent is None:
                parent = last_id
            elif parent is False:
                parent = None
            else:
                break
            if change is not None:
                if change.__class__ is not bytes:
                    break
                added = unpackb(change)
                for value in added.values():
                    if value.__class__ not in SCALARS:
                        added = unpack(change)
                        break
                kind = metadata.kind
                metadata = FrozenDict({**metadata, **added})
                # As `_merge_metadata`: a dict without a kind has scalars only.
                metadata.kind = max(kind, added.kind) if added.__class__ is FrozenDict else kind
            if own_node is None:
                node, next_node = next_node, (next_node if own_next is None else node if own_next is True else own_next)
            elif own_node is True:
                if own_next is not None:
                    next_node = node if own_next is True else own_next
            else:
                if own_next is not None:
                    next_node = node if own_next is True else own_next
                node = own_node
            if next_node is False:
                next_node = None
            created += own_created
            own_key = offset - key
            if (
                body.__class__ is not bytes
                or ops.__class__ is not list
                or node.__class__ is not str
                or own_key != keyframe_offset
                or not FIRST_TIME <= created <= LAST_TIME
            ):
                break
            # As `id_text`. Anything but 16 bytes is an error, and ends the run.
            first, middle, rest = split_uuid(own_id)
            own_id = f"{first.hex()}-{middle.hex('-', 2)}-{rest.hex()}"
            # Without the constructor, which would take 0.1 us more.
            last = new_checkpoint(StoredCheckpoint)
            last.id = own_id
            last.node = node
            last.next = next_node
            last.created = created
            last.parent = parent
            last.metadata = metadata
            last.is_replacement = False
            last.offset = offset
            last.size = whole
            last.keyframe_offset = keyframe_offset
            last.writes = NO_WRITES
            last.cleared = NO_KEYS
            last.tags = ()
            add(last)
            if changes is not None:
                position = payload_end + base - len(body)
                changes.append(_new_record(DecodedRecord, (last, ops, None, None, body, position, NO_DISTANCES)))
            last_id = own_id
            is_scattered = flags & SCATTERED != 0
            offset += whole
            seq += 1
    except STOPS:
        pass
    return PlainRun(checkpoints, offset, seq, is_scattered)
