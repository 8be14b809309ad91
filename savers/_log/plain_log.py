"""Reads a short log as a whole, in one loop, for listings that read thousands of logs.

Nearly all logs of a store are short and *plain*: their records are keyframes, changes and pending
writes of the last checkpoint. Such a log needs no open log to be read, and no second pass over its
records for the states: for five checkpoints, one pass takes 0.8 of the time of two. The loop makes
the same checks as the general way. What it does not know, or does not find right, is left to the general way,
which also says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from msgpack import unpackb

from graphkit.errors import CheckpointerError
from graphkit.values import FrozenDict
from savers._log.frame import (
    CHECKPOINT,
    COMPRESSED,
    END,
    FRAME_SIZE,
    HEADER_SIZE,
    KEY,
    MAJOR,
    MAX_PAYLOAD,
    META,
    META_RECORDS,
    OVERHEAD,
    SYNC,
    WRITE,
    IncompleteLog,
    parse_frame,
    read_header,
    unpack_trailer,
)
from savers._log.packed_states import RecordContent
from savers._log.payloads import FIRST_TIME, LAST_TIME, NO_DISTANCES, decode_checkpoint, id_text
from savers._log.plain_records import (
    CHECKED,
    SCALARS,
    SHORT,
    STOPS,
    WITH_METADATA,
    pack_type_and_offset,
    split_uuid,
    unpack_plain_head,
)
from savers._log.stored_checkpoint import NO_KEYS, NO_WRITES, StoredCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from savers._log.payloads import DecodedRecord

_KEYFRAME_FLAGS: Final = KEY | COMPRESSED
_METAS: Final = META_RECORDS[MAJOR]
_new_checkpoint: Final[Callable[[type[StoredCheckpoint]], StoredCheckpoint]] = object.__new__
_new_content: Final[Callable[..., RecordContent]] = tuple.__new__
_EMPTY: Final = FrozenDict()
_KEYFRAME: Final = 9
"""Elements of a keyframe with metadata: id, node, next, created, ops, table, parent, metadata, data."""


class PlainLog(NamedTuple):
    """A live log of plain records, keyframes and META records."""

    checkpoints: list[StoredCheckpoint]
    fid: int
    """The id of the file."""
    end: int
    """Where the next record would begin."""


class _NotPlain(Exception):  # noqa: N818 - the caller reads the log in the general way
    """The log has something that this module does not handle, or something is wrong with it."""


def read_plain_log(
    path: str,
    data: bytes,
    owner: tuple[str, str],
    unpack: Callable[[bytes], FrozenDict],
    contents: list[RecordContent] | None = None,
) -> PlainLog | None:
    """Read a log of plain records; None if it must be read in the general way.

    That is so for a log that is sealed, opaque, SCATTERED, ended, torn, damaged, of version 1 or of
    another thread; and for one that is no log.

    Args:
        path: the path of the log.
        data: the bytes of the file.
        owner: the thread and the namespace.
        unpack: decodes packed metadata.
        contents: what the record of each checkpoint says of its state is added to it, if it is given.
    """
    try:
        header = read_header(path, data)
        if header.major != MAJOR:
            return None
        return _read_records(path, data, header.fid, owner, unpack, contents)
    except (CheckpointerError, IncompleteLog, _NotPlain, *STOPS):
        return None


def _is_plain_meta(payload: bytes, owner: tuple[str, str]) -> bool:
    """Return whether the payload of the META records describes a plain log of this owner."""
    meta = unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
    if not isinstance(meta, dict) or (meta.get("thread"), meta.get("ns")) != owner:
        return False
    return not meta.get("opaque") and meta.get("sealed") is None


def _read_records(  # noqa: C901, PLR0912, PLR0915 - one loop, see the top
    path: str,
    data: bytes,
    fid: int,
    owner: tuple[str, str],
    unpack: Callable[[bytes], FrozenDict],
    contents: list[RecordContent] | None,
) -> PlainLog:
    """Read the records of a log."""
    checkpoints: list[StoredCheckpoint] = []
    last: StoredCheckpoint | None = None
    last_id: str | None = None
    node: Any = None
    next_node: Any = None
    created = 0
    metadata = _EMPTY
    keyframe_offset = -1
    offset = HEADER_SIZE
    seq = 0
    meta = b""
    # A record does not end in zeros. Those behind the last one are nothing yet.
    end = len(data) if data[-1] else len(data.rstrip(b"\0"))
    new_checkpoint = _new_checkpoint
    # 3 us for a change: the loop calls little, and makes only the checkpoint and its content.
    while offset < end:
        sync, length, crc, flags, key, own_seq, own_fid, check, type_ = unpack_plain_head(data, offset)
        payload_start = offset + FRAME_SIZE
        payload_end = payload_start + length
        payload = data[payload_start:payload_end]
        whole = length + OVERHEAD
        if (
            sync != SYNC
            or check != crc32(pack_type_and_offset(type_, offset), crc32(data[offset : offset + CHECKED]))
            or own_fid != fid
            or own_seq != seq
            or crc32(payload) != crc
            or unpack_trailer(data, payload_end) != (whole, END)
            or length > MAX_PAYLOAD
        ):
            raise _NotPlain
        if seq < _METAS:
            # Both have the same content.
            if type_ != META or flags or (seq and payload != meta):
                raise _NotPlain
            meta = payload
            offset += whole
            seq += 1
            continue
        parts = unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
        if type_ == WRITE and not flags and last is not None:
            _add_writes(last, parts, offset)
            offset += whole
            seq += 1
            continue
        if type_ != CHECKPOINT:
            raise _NotPlain
        count = len(parts)
        table = parent = change = None
        if flags == KEY and count == _KEYFRAME:
            own_id, node, next_node, created, ops, table, parent, change, body = parts
            last_id = None
            metadata = _EMPTY
            keyframe_offset = offset
            is_plain = next_node is not True
        else:
            is_plain = True
            if flags or last is None:
                is_plain = False
            elif count == SHORT:
                own_id, own_node, own_next, own_created, ops, body = parts
            elif count == WITH_METADATA:
                own_id, own_node, own_next, own_created, ops, parent, change, body = parts
            else:
                is_plain = False
            if is_plain:
                before = node
                if own_node is None:
                    node = next_node
                elif own_node is not True:
                    node = own_node
                if own_next is True:
                    next_node = before
                elif own_next is not None:
                    next_node = own_next
                created += own_created
                is_plain = offset - key == keyframe_offset
        if is_plain and change is not None:
            if change.__class__ is bytes:
                added = unpackb(change)
                for name, value in added.items():
                    if value.__class__ in SCALARS:
                        continue
                    if value.__class__ is dict and not value:
                        added[name] = _EMPTY
                    else:
                        added = unpack(change)
                        break
                kind = metadata.kind
                metadata = FrozenDict({**metadata, **added})
                # A dict without a kind has scalars and empty dicts only.
                metadata.kind = max(kind, added.kind) if added.__class__ is FrozenDict else kind
            else:
                is_plain = False
        if not is_plain:
            decoded = _read_other(path, data, offset, fid, last, unpack)
            last = decoded.checkpoint
            if contents is not None:
                contents.append(RecordContent(flags, decoded.ops, decoded.table, decoded.data))
            node = last.node
            next_node = last.next
            created = last.created
            metadata = last.metadata
            keyframe_offset = last.keyframe_offset
        else:
            if (
                body.__class__ is not bytes
                or ops.__class__ is not list
                or node.__class__ is not str
                or not FIRST_TIME <= created <= LAST_TIME
            ):
                raise _NotPlain
            if own_id.__class__ is bytes:
                # As `id_text`. Anything but 16 bytes is an error.
                first, middle, rest = split_uuid(own_id)
                own_id = f"{first.hex()}-{middle.hex('-', 2)}-{rest.hex()}"
            elif own_id.__class__ is not str:
                raise _NotPlain
            if next_node is False:
                next_node = None
            if parent is None:
                parent = last_id
            elif parent is False:
                parent = None
            else:
                parent = id_text(parent)
            # Without the constructor, which would take 0.3 us more.
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
            if contents is not None:
                contents.append(_new_content(RecordContent, (flags, ops, table, body)))
        last_id = last.id
        checkpoints.append(last)
        offset += whole
        seq += 1
    if seq < _METAS or not _is_plain_meta(meta, owner):
        raise _NotPlain
    return PlainLog(checkpoints, fid, end)


def _add_writes(last: StoredCheckpoint, parts: Any, offset: int) -> None:
    """Add the pending writes of a WRITE record to their checkpoint."""
    owner, values = parts
    if id_text(owner) != last.id:
        raise _NotPlain
    for name, value in values.items():
        if name.__class__ is not str or value.__class__ is not bytes:
            raise _NotPlain
    last.add_writes(values, offset)


def _read_other(
    path: str,
    data: bytes,
    offset: int,
    fid: int,
    base: StoredCheckpoint | None,
    unpack: Callable[[bytes], FrozenDict],
) -> DecodedRecord:
    """Return the content of a CHECKPOINT record of a rare shape that needs only the checkpoint before it."""
    frame = parse_frame(data, offset, offset, fid)
    if isinstance(frame, str) or frame.flags & ~_KEYFRAME_FLAGS:
        raise _NotPlain
    decoded = decode_checkpoint(path, frame, base, unpack)
    stored = decoded.checkpoint
    keyframe_offset = offset if frame.flags & KEY or base is None else base.keyframe_offset
    if stored.keyframe_offset != keyframe_offset or stored.is_replacement or decoded.early != NO_DISTANCES:
        raise _NotPlain
    return decoded
