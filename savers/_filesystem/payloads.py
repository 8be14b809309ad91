"""The payloads of a log's records: checkpoints, values beside them, tags. docs/format.md has the tables.

A checkpoint's node, parent, time and metadata are stored relative to the checkpoint record before it, exactly as its
state is; a keyframe has them in full.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from types import NoneType
from typing import Any, Final, NamedTuple

from msgpack import Packer, unpackb

from graphkit.errors import CheckpointCorruptionError
from graphkit.values import FrozenDict
from savers._filesystem.frame import KEY, Frame

Pack = Callable[[object, str], bytes]
Unpack = Callable[[bytes], Any]

_SAME_BASE_NODE: Final = True
"""Instead of a node: the node of the base record. nil: the base record's next node. False: none at all."""
_NONE: Final = False
_NIL: Final = b"\xc0"
_COMPARABLE: Final = frozenset({str, int, bool, bytes, NoneType})
_EMPTY: Final = FrozenDict()
_INT64: Final = 1 << 63
_PLAIN: Final = 6
_OPTIONAL: Final = 3
"""Elements of a CHECKPOINT record that may be left out: parent, metadata, target."""
FIRST_TIME: Final = (date.min.toordinal() - date(1970, 1, 1).toordinal()) * 86_400_000_000
LAST_TIME: Final = (date.max.toordinal() - date(1970, 1, 1).toordinal() + 1) * 86_400_000_000 - 1
"""The times that a `datetime` can tell."""
_UUID_LENGTH: Final = 36
_HEX_LENGTH: Final = 32


class _PerThread(threading.local):
    """A packer of each thread's own: making one takes longer than what it then does."""

    def __init__(self) -> None:
        self.packer = Packer(unicode_errors="surrogatepass", buf_size=1024)


_PER_THREAD: Final = _PerThread()


def packb(value: object) -> bytes:
    """Pack a record's own structure: plain msgpack, lone surrogates kept."""
    packed: bytes = _PER_THREAD.packer.pack(value)
    return packed


def unpack_payload(path: str, frame: Frame) -> Any:
    """The structure of a record's payload.

    Raises:
        CheckpointCorruptionError: it is no msgpack, although its checksum is right.
    """
    try:
        return unpackb(frame.payload, unicode_errors="surrogatepass", strict_map_key=False)
    except ValueError as error:
        raise malformed_error(path, frame, error) from error


def malformed_error(path: str, frame: Frame, error: object) -> CheckpointCorruptionError:
    """The error for a record whose checksums are right and whose content is not."""
    return CheckpointCorruptionError(path, frame.offset, f"the record makes no sense: {error}")


def id_bytes(id: str) -> bytes | str:
    """A UUID in its usual spelling as 16 bytes; any other id as it is."""
    compact = id.replace("-", "")
    if len(id) == _UUID_LENGTH and len(compact) == _HEX_LENGTH and id[8] == id[13] == id[18] == id[23] == "-":
        try:
            raw = bytes.fromhex(compact)
        except ValueError:
            return id
        if raw.hex() == compact:
            return raw
    return id


def id_text(id: Any) -> str:
    """Back again.

    Raises:
        TypeError: it is neither.
    """
    if id.__class__ is bytes:
        text = id.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if id.__class__ is not str:
        raise TypeError(f"{id!r} is no id")
    return id


class StoredCheckpoint:
    """What is known of a stored checkpoint without its state."""

    __slots__ = (
        "cleared", "created", "id", "is_replacement", "keyframe_offset", "metadata", "next", "node", "offset", "parent",
        "size", "tags", "writes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        id: str,
        node: str,
        next: str | None,
        created: int,
        parent: str | None,
        metadata: FrozenDict,
        is_replacement: bool = False,
        offset: int = 0,
        size: int = 0,
        keyframe_offset: int = 0,
    ) -> None:
        self.offset = offset
        self.size = size
        self.keyframe_offset = keyframe_offset
        """Where its keyframe is."""
        self.id = id
        self.node = node
        self.next = next
        self.created = created
        """Microseconds since 1970."""
        self.parent = parent
        self.metadata = metadata
        self.is_replacement = is_replacement
        """The record took the place of an earlier checkpoint."""
        self.writes: dict[str, int] = {}
        """Per key recorded beside it, the offset of the WRITE record with its value."""
        self.cleared: set[str] = set()
        """The keys whose value is None: what was recorded under them does not hold any more."""
        self.tags: tuple[str, ...] = ()

    def add_writes(self, values: Mapping[str, bytes], offset: int) -> None:
        """Note the packed values that the WRITE record at an offset adds to the pending writes."""
        self.writes.update(dict.fromkeys(values, offset))
        self.cleared.difference_update(values)
        self.cleared.update(key for key, packed in values.items() if packed == _NIL)

    def take_over_writes(self, replaced: StoredCheckpoint) -> None:
        """Take over the pending writes and tags of the checkpoint that this one replaces."""
        self.writes = replaced.writes
        self.cleared = replaced.cleared
        self.tags = replaced.tags

    def outline_writes(self) -> Mapping[str, object]:
        """Return the pending writes as far as they are known without reading values: None, or another object."""
        if self.cleared:
            return {**self.writes, **dict.fromkeys(self.cleared)}
        return self.writes


class DecodedRecord(NamedTuple):
    """A checkpoint record, taken apart."""

    checkpoint: StoredCheckpoint
    ops: Sequence[Any]
    table: Sequence[Any] | None
    """Of a keyframe: name, entry, name, entry, ..."""
    target: str | None
    data: bytes
    start: int
    """The position of the data's first byte in the file."""


def pack_keyframe(
    new: StoredCheckpoint, ops: Sequence[Any], table: Sequence[Any], target: str | None, data: bytes, pack: Pack
) -> bytes:
    """The payload of a keyframe."""
    parts: list[Any] = [id_bytes(new.id), new.node, _NONE if new.next is None else new.next, new.created, ops, table]
    parent: Any = _NONE if new.parent is None else id_bytes(new.parent)
    metadata = pack(new.metadata, "metadata") if new.metadata else None
    return _pack_parts(parts, parent, metadata, target, data)


def pack_change(
    base: StoredCheckpoint, new: StoredCheckpoint, ops: Sequence[Any], target: str | None, data: bytes, pack: Pack
) -> bytes:
    """The payload of a change to the checkpoint record before it."""
    parts: list[Any] = [
        id_bytes(new.id),
        None if new.node == base.next else _SAME_BASE_NODE if new.node == base.node else new.node,
        None if new.next == base.next else _relative_next(base, new.next),
        new.created - base.created,
        ops,
    ]
    parent = None if new.parent == base.id else _NONE if new.parent is None else id_bytes(new.parent)
    metadata = None
    if new.metadata is not base.metadata and (new.metadata or base.metadata):
        metadata = _metadata_change(base.metadata, new.metadata, pack)
    return _pack_parts(parts, parent, metadata, target, data)


def _pack_parts(parts: list[Any], parent: Any, metadata: Any, target: str | None, data: bytes) -> bytes:
    if target is not None:
        parts += (parent, metadata, id_bytes(target))
    elif metadata is not None:
        parts += (parent, metadata)
    elif parent is not None:
        parts.append(parent)
    parts.append(data)
    return packb(parts)


def _relative_next(base: StoredCheckpoint, next: str | None) -> str | bool | None:
    if next is None:
        return _NONE
    return _SAME_BASE_NODE if next == base.node else next


def _metadata_change(old: FrozenDict, new: FrozenDict, pack: Pack) -> Any:
    """What turns one metadata into the other: nil, the new keys packed, or these and the keys to drop first."""
    changed = {
        key: value
        for key, value in new.items()
        if key not in old or (old[key] is not value and not _same(old[key], value, pack))
    }
    if list(new)[: len(old)] == list(old):
        return _packed(changed, pack) if changed else None
    return [pack(new, "metadata"), *old]


def _packed(changed: dict[str, Any], pack: Pack) -> bytes:
    # What a run notes at each step is a number: not worth the codec's look at what kind of values these are.
    # The codec writes a key with a lone surrogate in its own way, and reads only that.
    if all(value.__class__ is int and -_INT64 <= value < _INT64 and key.isascii() for key, value in changed.items()):
        return packb(changed)
    return pack(FrozenDict(changed), "metadata")


def _same(old: Any, new: Any, pack: Pack) -> bool:
    cls = old.__class__
    if cls is new.__class__ and cls in _COMPARABLE:
        return bool(old == new)
    return pack(old, "metadata") == pack(new, "metadata")


def decode_checkpoint(path: str, frame: Frame, base: StoredCheckpoint | None, unpack: Unpack) -> DecodedRecord:
    """Decode a CHECKPOINT record.

    Args:
        path: the path of the log, for errors.
        frame: the record.
        base: the checkpoint of the CHECKPOINT record before it. A keyframe needs none.
        unpack: decodes packed metadata.

    Raises:
        CheckpointCorruptionError: the content is malformed.
    """
    parts = unpack_payload(path, frame)
    try:
        return _decode_parts(parts, frame, base, unpack)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise malformed_error(path, frame, error) from error


def _decode_parts(parts: Any, frame: Frame, base: StoredCheckpoint | None, unpack: Unpack) -> DecodedRecord:
    is_keyframe = frame.flags & KEY
    if is_keyframe:
        base = None
    table = parent = metadata = target = None
    if len(parts) == _PLAIN and not is_keyframe:
        # Nearly all records: nothing stands between the ops and the data.
        own_id, node, next_node, created, ops, data = parts
    else:
        own_id, node, next_node, created, ops, *rest = parts
        data = rest.pop()
        if is_keyframe:
            table = rest.pop(0)
        if len(rest) > _OPTIONAL:
            raise ValueError("it has another number of parts")
        rest += [None] * (_OPTIONAL - len(rest))
        parent, metadata, target = rest
    if data.__class__ is not bytes or ops.__class__ is not list:
        raise ValueError("it has another number of parts")
    # Keywords cost 0.6 us here, of the 8 us that reading a record takes.
    checkpoint = StoredCheckpoint(
        offset=frame.offset,
        size=frame.end - frame.offset,
        keyframe_offset=frame.offset - frame.key,
        id=id_text(own_id),
        node=_resolve_node(base, node),
        next=_resolve_next(base, next_node),
        created=created if is_keyframe else base.created + created,  # type: ignore[union-attr]
        parent=_resolve_parent(base, parent),
        metadata=_merge_metadata(base, metadata, unpack),
        is_replacement=target is not None,
    )
    if not FIRST_TIME <= checkpoint.created <= LAST_TIME or checkpoint.node.__class__ is not str:
        raise ValueError("its node or its time is none")
    return DecodedRecord(
        checkpoint=checkpoint,
        ops=ops,
        table=table,
        target=None if target is None else id_text(target),
        data=data,
        start=frame.payload_end - len(data),
    )


def _resolve_node(base: StoredCheckpoint | None, node: Any) -> Any:
    """Return a checkpoint's node from its place in a record."""
    if base is None:
        return node
    if node is None:
        return base.next
    if node is _SAME_BASE_NODE:
        return base.node
    return node


def _resolve_next(base: StoredCheckpoint | None, next: Any) -> Any:
    """Return a checkpoint's next node from its place in a record."""
    if next is _NONE:
        return None
    if base is None:
        return next
    if next is None:
        return base.next
    if next is _SAME_BASE_NODE:
        return base.node
    return next


def _resolve_parent(base: StoredCheckpoint | None, parent: Any) -> str | None:
    """Return the id of a checkpoint's parent from its place in a record."""
    if parent is None and base is not None:
        return base.id
    if not parent:
        return None
    return id_text(parent)


def _merge_metadata(base: StoredCheckpoint | None, change: Any, unpack: Unpack) -> FrozenDict:
    old = _EMPTY if base is None else base.metadata
    if change is None:
        return old
    if change.__class__ is list:
        new = FrozenDict({key: value for key, value in old.items() if key not in change[1:]} | unpack(change[0]))
    else:
        added: FrozenDict = unpack(change)
        new = FrozenDict(old | added)
        new.kind = max(old.kind, added.kind)  # found out anew it would cost O(keys), at every record of a scan
    return new


# The other records


def pack_writes(id: str, values: Mapping[str, bytes]) -> bytes:
    """The payload of a WRITE record: [checkpoint id, {key: packed value}]."""
    return packb([id_bytes(id), dict(values)])


def decode_writes(path: str, frame: Frame) -> tuple[str, Mapping[str, bytes]]:
    """A WRITE record's checkpoint id and packed values.

    Raises:
        CheckpointCorruptionError: it makes no sense.
    """
    owner, values = _parts(path, frame, dict)
    if not all(key.__class__ is str and value.__class__ is bytes for key, value in values.items()):
        raise malformed_error(path, frame, "it has values of another kind")
    return owner, values


def decode_tags(path: str, frame: Frame) -> tuple[str, Sequence[str], Sequence[str]]:
    """A MARK record's checkpoint id, tags added and tags removed.

    Raises:
        CheckpointCorruptionError: it makes no sense.
    """
    owner, add, remove = _parts(path, frame, list, list)
    if not all(tag.__class__ is str for tag in (*add, *remove)):
        raise malformed_error(path, frame, "it has tags of another kind")
    return owner, add, remove


def decode_ending(path: str, frame: Frame) -> int:
    """The version that a RELEASE record names; 0 of a TOMBSTONE.

    Raises:
        CheckpointCorruptionError: it makes no sense.
    """
    parts = unpack_payload(path, frame)
    if parts.__class__ is not list or not parts or parts[0].__class__ is not int or parts[0] < 0:
        raise malformed_error(path, frame, "it names no version")
    return int(parts[0])


def _parts(path: str, frame: Frame, *kinds: type) -> Any:
    parts = unpack_payload(path, frame)
    if parts.__class__ is not list or tuple(part.__class__ for part in parts[1:]) != kinds:
        raise malformed_error(path, frame, "it has other parts")
    try:
        parts[0] = id_text(parts[0])
    except TypeError as error:
        raise malformed_error(path, frame, error) from error
    return parts


def pack_tags(id: str, add: Sequence[str], remove: Sequence[str]) -> bytes:
    """The payload of a MARK record: [checkpoint id, [tags added], [tags removed]]."""
    return packb([id_bytes(id), list(add), list(remove)])


def merge_tags(old: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """Tags in the order they were added, each once."""
    return tuple(tag for tag in dict.fromkeys((*old, *add)) if tag not in remove)
