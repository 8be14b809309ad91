"""Packs and decodes the payloads of a log's records: checkpoints, pending writes, tags.

docs/format.md specifies them. A checkpoint's node, parent, time and metadata are stored relative to
the CHECKPOINT record before it, as its state is; a keyframe has them in full.
"""

from __future__ import annotations

import threading
from binascii import unhexlify
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import lru_cache
from itertools import compress
from operator import is_not
from types import NoneType
from typing import Any, Final, NamedTuple

from msgpack import Packer, unpackb

from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from graphkit.saver_kit import FrozenDict
from savers._log.frame import KEY, SEALED, TRAILER_SIZE, Frame
from savers._log.stored_checkpoint import EarlyDistances, StoredCheckpoint

Pack = Callable[[object, str], bytes]
Unpack = Callable[[bytes], Any]

_SAME_BASE_NODE: Final = True
"""In place of a node: the node of the base record. (nil stands for the base record's next node.)"""
_NONE: Final = False
"""In place of a node or a parent: none."""
_COMPARABLE: Final = frozenset({str, int, bool, bytes, NoneType})
_EMPTY: Final = FrozenDict()
_INT64: Final = 1 << 63
_OPTIONAL: Final = 4
"""Elements of a CHECKPOINT record that may be left out: parent, metadata, target, early."""
NO_DISTANCES: Final = (0, 0)
FIRST_TIME: Final = (date.min.toordinal() - date(1970, 1, 1).toordinal()) * 86_400_000_000
LAST_TIME: Final = (date.max.toordinal() - date(1970, 1, 1).toordinal() + 1) * 86_400_000_000 - 1
"""The first and the last time that a `datetime` can hold, in microseconds since 1970."""
_LONG_DATA: Final = 1 << 16
"""More bytes than this are not packed with the rest of their record, which would copy them twice."""
_LONG_BIN: Final = b"\xc6"
"""The first byte of more than 65,535 bytes in msgpack; four bytes for their number follow."""
_EMPTY_BIN: Final = b"\xc4\0"
_NO_PARTS: Final = (None,) * _OPTIONAL
_UUID_LENGTH: Final = 36
_HEX_LENGTH: Final = 32
_HYPHENS: Final = slice(8, 24, 5)
"""Where the hyphens of a UUID are."""
_MAX_IDS: Final = 256
"""How many stored forms of ids are remembered: a step needs that of its checkpoint for two records and a column."""
BEFORE_UUID: Final = b"\xc4\x10"
"""What precedes the 16 bytes of an id that is a UUID."""


def _make_packer() -> Packer:
    return Packer(unicode_errors="surrogatepass", buf_size=1024)


class _PerThread(threading.local):
    """A packer for each thread: creating one takes longer than packing a record."""

    def __init__(self) -> None:
        self.packer = _make_packer()


_PER_THREAD: Final = _PerThread()


def packb(value: object) -> bytes:
    """Return the msgpack of a record's structure; lone surrogates are kept."""
    packed: bytes = _PER_THREAD.packer.pack(value)
    if len(packed) > _LONG_DATA:
        # The packer would keep a buffer of that length.
        _PER_THREAD.packer = _make_packer()
    return packed


def unpack_payload(path: str, frame: Frame) -> Any:
    """Return the structure of a record's payload.

    Raises:
        CheckpointCorruptionError: the payload is not msgpack, although its checksum is right.
    """
    if frame.flags & SEALED:
        raise malformed_error(path, frame, "it is sealed, as its log is not")
    try:
        return unpackb(frame.payload, unicode_errors="surrogatepass", strict_map_key=False)
    except ValueError as error:
        raise malformed_error(path, frame, error) from error


def malformed_error(path: str, frame: Frame, error: object) -> CheckpointCorruptionError:
    """Return the error for a record whose checksums are right and whose content is not."""
    return CheckpointCorruptionError(path, frame.offset, f"the record is malformed: {error}")


@lru_cache(maxsize=_MAX_IDS)
def id_bytes(id: str) -> bytes | str:
    """Return the stored form of an id: 16 bytes for a UUID in canonical form, else the id."""
    if len(id) != _UUID_LENGTH or id[_HYPHENS] != "----":
        return id
    compact = id.replace("-", "")
    if len(compact) != _HEX_LENGTH:
        return id
    try:
        # Faster than `bytes.fromhex`, and strict: it skips no spaces.
        raw = unhexlify(compact)
    except ValueError:
        return id
    return raw if raw.hex() == compact else id


def id_text(id: Any) -> str:
    """Return the id for its stored form.

    Raises:
        TypeError: it is neither bytes nor a str.
    """
    if id.__class__ is bytes:
        text = id.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    if id.__class__ is not str:
        raise TypeError(f"{id!r} is not an id")
    return id


class DecodedRecord(NamedTuple):
    """The content of a CHECKPOINT record."""

    checkpoint: StoredCheckpoint
    ops: Sequence[Any]
    table: Sequence[Any] | None
    """In a keyframe: name, entry, name, entry, ...; None in a change."""
    data: bytes
    start: int
    """The position of the first byte of `data` in the file."""
    early: EarlyDistances = NO_DISTANCES
    """Where the early writes before the record begin."""

    @property
    def names(self) -> list[str]:
        """The keys that the table of a keyframe lists."""
        return list((self.table or ())[::2])

    @property
    def entries(self) -> Sequence[Any]:
        """The entries of the table, in the same order; None for a value that the ops set."""
        return (self.table or ())[1::2]


_new_record: Final = tuple.__new__
"""Makes a NamedTuple in half the time."""


def pack_keyframe(
    new: StoredCheckpoint,
    ops: Sequence[Any],
    table: Sequence[Any],
    data: bytes,
    pack: Pack,
    early: EarlyDistances | None,
) -> bytes:
    """Return the payload of a keyframe.

    Args:
        new: the checkpoint.
        ops: the ops, in the numbering of the table.
        table: the names of all keys, each with its entry.
        data: the bytes that the ops bring.
        pack: packs metadata with the codec.
        early: where early writes begin, if there are any.
    """
    next_node: Any = new.next
    if next_node is None:
        next_node = _NONE
    parent: Any = _NONE
    if new.parent is not None:
        parent = id_bytes(new.parent)
    metadata = None
    if new.metadata:
        metadata = pack(new.metadata, "metadata")
    parts: list[Any] = [id_bytes(new.id), new.node, next_node, new.created, ops, table]
    return _pack_parts(parts, parent, metadata, new.target, early, data)


def pack_change(
    base: StoredCheckpoint,
    new: StoredCheckpoint,
    ops: Sequence[Any],
    data: bytes,
    pack: Pack,
    early: EarlyDistances | None,
    step: int | None,
) -> bytes:
    """Return the payload of a change to the CHECKPOINT record before it.

    Args:
        base: the checkpoint of the record before it.
        new: the checkpoint.
        ops: the ops.
        data: the bytes that the ops bring.
        pack: packs metadata with the codec.
        early: where early writes begin, if there are any.
        step: the number `step` in the metadata, if nothing else in them differs from the base's and
            it does; None if that is not known.
    """
    node: Any = new.node
    if node == base.next:
        node = None
    elif node == base.node:
        node = _SAME_BASE_NODE

    next_node: Any = new.next
    if next_node == base.next:
        next_node = None
    elif next_node is None:
        next_node = _NONE
    elif next_node == base.node:
        next_node = _SAME_BASE_NODE

    parent: Any = None
    if new.parent is None:
        # A base has an id, so a missing parent always has to be stored.
        parent = _NONE
    elif new.parent != base.id:
        parent = id_bytes(new.parent)

    metadata = None
    if step is not None:
        # Not compared key by key, which takes 18,000 instructions.
        metadata = packb({"step": step})
    elif new.metadata is not base.metadata and (new.metadata or base.metadata):
        metadata = _pack_metadata_change(base.metadata, new.metadata, pack)
    created = new.created - base.created
    parts: list[Any] = [id_bytes(new.id), node, next_node, created, ops]
    return _pack_parts(parts, parent, metadata, new.target, early, data)


def _pack_parts(
    parts: list[Any],
    parent: Any,
    metadata: Any,
    target: str | None,
    early: EarlyDistances | None,
    data: bytes,
) -> bytes:
    """Return the payload of a record from its elements.

    Optional elements are left out from the end while they are nil; the data is always last.
    """
    if early is not None:
        parts += (parent, metadata, None if target is None else id_bytes(target), early)
    elif target is not None:
        parts += (parent, metadata, id_bytes(target))
    elif metadata is not None:
        parts += (parent, metadata)
    elif parent is not None:
        parts.append(parent)
    if len(data) <= _LONG_DATA:
        parts.append(data)
        return packb(parts)
    parts.append(b"")
    beginning = packb(parts).removesuffix(_EMPTY_BIN)
    return b"".join((beginning, _LONG_BIN, len(data).to_bytes(4, "big"), data))


def _pack_metadata_change(old: FrozenDict, new: FrozenDict, pack: Pack) -> Any:
    """Return what turns one metadata into another.

    Returns:
        nil; the keys to set, packed; or all keys, packed, with the old keys to drop.
    """
    keys = [*old]
    new_keys = [*new]
    if new_keys[: len(keys)] != keys:
        return [pack(new, "metadata"), *old]
    # What is the same object is found without a step of the interpreter for each key: all of it but
    # the number of the step, in a usual run.
    replaced = [*compress(keys, map(is_not, old.values(), new.values()))]
    changed: dict[str, Any] = {}
    for key in replaced:
        before = old[key]
        value = new[key]
        if before.__class__ is value.__class__ and value.__class__ in _COMPARABLE:
            is_equal = before == value
        else:
            is_equal = pack(before, "metadata") == pack(value, "metadata")
        if not is_equal:
            changed[key] = value
    for key in new_keys[len(keys) :]:
        changed[key] = new[key]
    if not changed:
        return None
    # What a run records at each step is a number, which does not need the codec to find out the
    # kinds of the values. The codec writes a key with a lone surrogate in its own way, and reads
    # only that.
    for key, value in changed.items():
        is_plain = value.__class__ is int and -_INT64 <= value < _INT64 and key.isascii()
        if not is_plain:
            return pack(FrozenDict(changed), "metadata")
    return packb(changed)


def decode_checkpoint(path: str, frame: Frame, base: StoredCheckpoint | None, unpack: Unpack) -> DecodedRecord:
    """Decode a CHECKPOINT record.

    Args:
        path: the path of the log, for errors.
        frame: the record.
        base: the checkpoint of the CHECKPOINT record before it. A keyframe needs none.
        unpack: decodes packed metadata.

    Raises:
        CheckpointCorruptionError: the content is malformed.
        CheckpointSerializationError: the metadata hold a type that is not registered.
    """
    parts = unpack_payload(path, frame)
    try:
        return _decode_parts(parts, frame, base, unpack)
    except CheckpointSerializationError:
        # The record is whole. Its metadata hold a type that is not registered.
        raise
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise malformed_error(path, frame, error) from error


def _decode_parts(  # noqa: C901, PLR0912, PLR0915 - the hot path of every read, see below
    parts: Any, frame: Frame, base: StoredCheckpoint | None, unpack: Unpack
) -> DecodedRecord:
    # Every scan runs this once for a record, in 2.4 us. Calls and keywords would cost as much again.
    offset, end, _, flags, _, key, _, _, _, _ = frame
    table = None
    if flags & KEY:
        own_id, node, next_node, created, ops, table, *rest = parts
        base = None
        if table.__class__ is not list:
            raise ValueError("its table is not a list")
    elif base is None:
        raise ValueError("it has no base")
    else:
        own_id, node, next_node, created, ops, *rest = parts
        if node is None:
            node = base.next
        elif node is _SAME_BASE_NODE:
            node = base.node
        if next_node is None:
            next_node = base.next
        elif next_node is _SAME_BASE_NODE:
            next_node = base.node
        created += base.created
    data = rest.pop()
    if len(rest) > _OPTIONAL:
        raise ValueError("it has a wrong number of parts")
    parent, metadata, target, early = (*rest, *_NO_PARTS)[:_OPTIONAL]
    if data.__class__ is not bytes or ops.__class__ is not list:
        raise ValueError("it has a wrong number of parts")
    if not FIRST_TIME <= created <= LAST_TIME or node.__class__ is not str:
        raise ValueError("its node or its time is invalid")

    own_id = id_text(own_id)
    if next_node is _NONE:
        next_node = None
    if parent is None:
        parent = None if base is None else base.id
    elif not parent:
        parent = None
    else:
        parent = id_text(parent)
    merged = _EMPTY if base is None else base.metadata
    if metadata is not None:
        merged = _merge_metadata(merged, metadata, unpack)
    if target is not None:
        target = id_text(target)
    distances = NO_DISTANCES
    if early is not None:
        own, others = early
        if own.__class__ is not int or others.__class__ is not int or own < 0 or others < 0:
            raise ValueError("its early writes have no place")
        distances = own, others
    size = end - offset
    checkpoint = StoredCheckpoint(own_id, node, next_node, created, parent, merged, target, offset, size, offset - key)
    start = end - TRAILER_SIZE - len(data)
    return _new_record(DecodedRecord, (checkpoint, ops, table, data, start, distances))


def read_id(path: str, frame: Frame) -> str:
    """Return the id in a CHECKPOINT record, and decode nothing else.

    Raises:
        CheckpointCorruptionError: it has none.
    """
    try:
        return id_text(unpack_payload(path, frame)[0])
    except (TypeError, LookupError) as error:
        raise malformed_error(path, frame, error) from error


def _merge_metadata(old: FrozenDict, change: Any, unpack: Unpack) -> FrozenDict:
    """Return a checkpoint's metadata from the base's and the element of its record."""
    if change.__class__ is list:
        packed, *dropped = change
        kept = {key: value for key, value in old.items() if key not in dropped}
        return FrozenDict(kept | unpack(packed))
    added: FrozenDict = unpack(change)
    new = FrozenDict(old | added)
    # Finding the kind out again would cost O(keys) at every record of a scan.
    new.kind = max(old.kind, added.kind)
    return new


# The other records


def pack_writes(id: str, values: Mapping[str, bytes]) -> bytes:
    """Return the payload of a WRITE record: [checkpoint id, {key: packed value}]."""
    return packb([id_bytes(id), dict(values)])


def decode_writes(path: str, frame: Frame) -> tuple[str, Mapping[str, bytes]]:
    """Return the checkpoint id and the packed values of a WRITE record.

    Raises:
        CheckpointCorruptionError: the content is malformed.
    """
    owner, values = _decode_about(path, frame, dict)
    if not all(key.__class__ is str and value.__class__ is bytes for key, value in values.items()):
        raise malformed_error(path, frame, "it has values of another kind")
    return owner, values


def pack_tags(id: str, add: Sequence[str], remove: Sequence[str]) -> bytes:
    """Return the payload of a MARK record: [checkpoint id, [tags added], [tags removed]]."""
    return packb([id_bytes(id), list(add), list(remove)])


def decode_tags(path: str, frame: Frame) -> tuple[str, Sequence[str], Sequence[str]]:
    """Return the checkpoint id, the added and the removed tags of a MARK record.

    Raises:
        CheckpointCorruptionError: the content is malformed.
    """
    owner, add, remove = _decode_about(path, frame, list, list)
    if not all(tag.__class__ is str for tag in (*add, *remove)):
        raise malformed_error(path, frame, "it has tags of another kind")
    return owner, add, remove


def _decode_about(path: str, frame: Frame, *kinds: type) -> Any:
    """Return the elements of a record about a checkpoint: its id, and elements of these classes."""
    parts = unpack_payload(path, frame)
    if parts.__class__ is not list or tuple(part.__class__ for part in parts[1:]) != kinds:
        raise malformed_error(path, frame, "it has other parts")
    try:
        parts[0] = id_text(parts[0])
    except TypeError as error:
        raise malformed_error(path, frame, error) from error
    return parts


def decode_ending(path: str, frame: Frame) -> int:
    """Return the version that a RELEASE record names; 0 for a TOMBSTONE.

    Raises:
        CheckpointCorruptionError: the content is malformed.
    """
    parts = unpack_payload(path, frame)
    has_version = parts.__class__ is list and parts and parts[0].__class__ is int and parts[0] >= 0
    if not has_version:
        raise malformed_error(path, frame, "it names no version")
    return int(parts[0])
