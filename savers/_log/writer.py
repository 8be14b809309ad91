"""Appends checkpoints, pending writes and tags to one log.

`LogWriter` decides whether a checkpoint is written as a keyframe or as what changed, and makes its
record. There is one body for it, whatever the caller knows of the change: a run has recorded it,
LangGraph's checkpointer has packed it, or it is found by comparing two states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.saver_kit import PRIVATE, FrozenDict, FrozenList, kind_of, private_copy
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, COMPRESSED, DATA, EARLY, KEY, MARK, REPLACE, SCATTERED, TRAILER_SIZE, WRITE
from savers._log.payloads import DecodedRecord
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from graphkit import Checkpoint
    from graphkit.abc import StateSerializer
    from graphkit.saver_kit import Changes, Codec
    from savers._compression import Compression
    from savers._log.frame_log import AnyFrameLog
    from savers._log.history import History
    from savers._log.packed_history import PackedHistory

USUAL_DEPTH: Final = 16
"""After so many changes, a keyframe follows that costs little. A reader decodes no more of them, and
a damaged one costs no more checkpoints."""
SMALL_LOG: Final = 1 << 16
"""In a log of so many bytes, a keyframe costs little;"""
KEYFRAME_SHARE: Final = 8
"""in a longer one, if it has the whole state, and the changes since the last one have at least so many
times its bytes: then keyframes are at most a ninth of the log."""
MIN_KEYFRAME_DISTANCE: Final = 64 << 10
"""Otherwise, no keyframe is written before changes of this cost, which is in bytes."""
RECORD_COST: Final = 1 << 9
"""The cost of one more record in addition to that of its bytes."""
_MAX_DISTANCE: Final = 0xF000_0000
"""The most bytes between a keyframe and the end of a change: the header has 32 bits for it."""
_MAX_DEPTH: Final = 60_000
"""The most changes after a keyframe."""
COMPARE_LENGTH: Final = 1 << 12
"""A value that has changed is compared with the stored one if it is longer than this."""
_SPILL_LENGTH: Final = 1 << 12
"""If a keyframe would be too long, values longer than this go to DATA records."""
_OPAQUE_KEY: Final = ""
"""The only key of a state that is the bytes of a StateSerializer."""
_ABSENT: Final = object()

Pack = Callable[[str], bytes]
"""Returns a value of the new state, packed, given its key."""


class LogWriter:
    """Appends to one log; its caller holds the log's mutex, and excludes other writers or lets the medium refuse them.

    Attributes:
        state: the state of the last checkpoint, if it is in memory.
        state_length: about how many bytes it has, packed.
        compression: how large values are compressed.
    """

    def __init__(
        self,
        frames: AnyFrameLog,
        history: History,
        packed: PackedHistory,
        codec: Codec,
        serializer: StateSerializer | None,
        compression: Compression | None,
    ) -> None:
        self._frames = frames
        self._history = history
        self._packed = packed
        self._codec = codec
        self._serializer = serializer
        self.compression = compression
        self.reset()

    def reset(self) -> None:
        """Forget everything: the log was closed."""
        self._table: delta.Table | None = None
        self.state: FrozenDict | None = None
        self.state_length = 0

    # Checkpoints

    def put(self, checkpoint: Checkpoint, target: str | None) -> None:
        """Append a checkpoint, which replaces another one if there is a target.

        Raises:
            CheckpointNotFoundError: the history does not have the checkpoint to replace. Nothing
                was changed.
            CheckpointSerializationError: a value cannot be stored. Nothing was changed.
            OSError: the medium refused. Nothing was changed.
        """
        history = self._history
        if target is not None:
            if history.find(target) is None:
                raise CheckpointNotFoundError(self._frames.identity.owner[0], f"checkpoint {target}")
            history.load_index()
        state = checkpoint.state
        metadata = checkpoint.metadata
        base = history.scan.last
        step = None
        if base is not None and checkpoint.metadata_base is base.metadata:
            # The engine says that only the number of the step differs.
            step = metadata["step"]
        # By position, because this is part of every put.
        stored = StoredCheckpoint(
            checkpoint.id,
            checkpoint.node_id,
            checkpoint.next_node_id,
            checkpoint.created_us,
            checkpoint.parent_id,
            private_copy(metadata) if metadata.kind == PRIVATE else metadata,
            target,
        )
        pack = self._codec.pack
        if self._serializer is None:
            if base is None:
                draft: delta.Draft = {name: pack(value, _check_key(name)) for name, value in state.items()}
            elif checkpoint.changes is not None and checkpoint.changes.base is self.state:
                draft = self._draft_changes(checkpoint.changes, state)
            else:
                draft = self._draft_by_comparison(state)
            self.append(stored, draft, [*state], lambda name: pack(state[name], name), step)
        else:
            packed: object = self._serializer.dumps(state)
            if not isinstance(packed, bytes):
                reason = "state_serializer.dumps must return bytes"
                raise CheckpointSerializationError("", type(packed).__name__, reason)
            change = packed if base is None else self._compare(_OPAQUE_KEY, packed)
            draft = {} if change is None else {_OPAQUE_KEY: change}
            self.append(stored, draft, [_OPAQUE_KEY], lambda _: packed, step)
        self.state = state

    def put_packed(self, stored: StoredCheckpoint, state: FrozenDict, changes: Mapping[str, bytes | None]) -> None:
        """Append a checkpoint whose changed values the caller has packed.

        Args:
            stored: the checkpoint; its place in the log is set.
            state: its state, which follows `state`, in memory.
            changes: the changed keys, each with its new value, packed; None stands for a bytes
                object of the state.

        Raises:
            CheckpointSerializationError, OSError: as for `put`.
        """
        before = self.state
        assert before is not None
        draft: delta.Draft = {}
        for name, packed in changes.items():
            if packed is None:
                op = self._compare_bytes(name, before[name], state[name])
            elif len(packed) > COMPARE_LENGTH:
                op = self._compare(name, packed)
            else:
                op = packed
            if op is not None:
                draft[name] = op
        pack = self._codec.pack
        self.append(stored, draft, [*state], lambda name: pack(state[name], name))
        self.state = state

    def append(
        self,
        stored: StoredCheckpoint,
        draft: delta.Draft,
        order: list[str],
        pack: Pack,
        step: int | None = None,
    ) -> None:
        """Append a checkpoint whose changes are known.

        Args:
            stored: everything except the state; its place in the log is set.
            draft: what changed since the last record; a keyframe may complete it.
            order: the keys of the new state.
            pack: packs a value of the new state.
            step: see `payloads.pack_change`.

        Raises:
            CheckpointSerializationError: a field cannot be stored. Nothing was changed.
            OSError: the medium refused. Nothing was changed.
        """
        _check_fields(stored)
        # Before the first byte is written: early writes that cannot be read must not leave half a checkpoint.
        self._history.scan.load_early()
        frames = self._frames
        start = frames.end
        if frames.header is None:
            frames.begin_new(stored.metadata)
        if not self._append_change(stored, draft, order, step):
            try:
                self._append_keyframe(stored, draft, order, pack)
            except BaseException:
                # A value of the last state could not be read, or not all records could be written:
                # none of them may stay. The log stays in doubt, and is read again.
                frames.undo(start)
                raise
        self.state = None
        frames.in_doubt = False

    def _append_change(self, stored: StoredCheckpoint, draft: delta.Draft, order: list[str], step: int | None) -> bool:
        """Append a checkpoint as what changed; return False if a keyframe is needed, or better.

        This decides on keyframes: none may be too far away, and ops must be able to say what changed.
        """
        scan = self._history.scan
        base = scan.last
        if base is None or self._needs_keyframe(base):
            return False
        names = self._list_names()
        if names != order:
            # Ops drop keys and add others at the end. They cannot move a key: a reader would find the state in
            # another order.
            kept = [name for name in names if draft.get(name) is not delta.DELETE]
            known = set(names)
            if kept + [name for name in draft if name not in known] != order:
                return False
        ops, data, flags = self._encode(draft, names)
        frames = self._frames
        if len(data) > _SPILL_LENGTH and len(data) > frames.max_values:
            return False
        # All distances are from the beginning of the record, which is where the log ends now.
        start = frames.end
        early = scan.early.measure(stored.id, start)
        if early is not None:
            flags |= EARLY
        if stored.target is not None:
            flags |= REPLACE
        payload = payloads.pack_change(base, stored, ops, data, self._codec.pack, early, step)
        draft.clear()
        back = start - base.offset
        stored.offset = frames.append(CHECKPOINT, payload, flags, back, start - base.keyframe_offset, stored)
        # Bytes of a long value are not kept twice while the table looks at them.
        del payload
        frames.bytes.start_writing()
        stored.size = frames.end - stored.offset
        stored.keyframe_offset = base.keyframe_offset
        if self._table is not None:
            self._table.apply(ops, data, frames.end - TRAILER_SIZE - len(data))
        self.state_length += len(data)
        self._history.note_appended(stored, None)
        return True

    def _needs_keyframe(self, base: StoredCheckpoint) -> bool:
        """Return whether the last keyframe is too far away for one more change.

        Raising KEYFRAME_SHARE or SMALL_LOG costs bytes, lowering them costs readers time; docs/adr/0043 has
        the figures.
        """
        scan = self._history.scan
        end = self._frames.end
        distance = end - scan.keyframe_end
        length = scan.keyframe_end - base.keyframe_offset
        if scan.depth >= USUAL_DEPTH:
            if end <= SMALL_LOG:
                return True
            if scan.has_whole_keyframe and distance >= KEYFRAME_SHARE * length:
                return True
        cost = distance + scan.depth * RECORD_COST
        if cost > MIN_KEYFRAME_DISTANCE and cost > length:
            return True
        return distance > _MAX_DISTANCE or scan.depth >= _MAX_DEPTH

    def _list_names(self) -> list[str]:
        """Return the keys of the last state, in their order."""
        if self._serializer is None and self.state is not None:
            return [*self.state]
        return self.load_table().names

    # Keyframes

    def _append_keyframe(self, stored: StoredCheckpoint, draft: delta.Draft, order: list[str], pack: Pack) -> None:
        """Append a checkpoint as a keyframe; bytes that do not fit into one record go before it."""
        # A keyframe has a table, which names the bytes of long values where earlier records have them, and ops for the
        # values that changed or are short. If these do not fit into a record, the bytes of the long ones among them
        # are appended first, and the table names these, too.
        frames = self._frames
        listed = self._list_values(draft, order, pack, {})
        payload, ops, data, flags = self._pack_keyframe(stored, draft, order, listed)
        if len(data) > frames.max_part or len(payload) > frames.max_payload:
            # Each may take as much memory as the state, as does each record with a part of it.
            payload = data = b""
            spilled = self._spill(draft, pack)
            listed = self._list_values(draft, order, pack, spilled)
            payload, ops, data, flags = self._pack_keyframe(stored, draft, order, listed)
        # The payload has the bytes of the draft, which may take as much memory as the state.
        draft.clear()
        stored.offset = frames.append(CHECKPOINT, payload, flags, checkpoint=stored)
        del payload
        frames.bytes.start_writing()
        stored.size = frames.end - stored.offset
        stored.keyframe_offset = stored.offset
        record = DecodedRecord(stored, ops, listed, data, frames.end - TRAILER_SIZE - len(data))
        if self._table is not None:
            self._table = self._packed.build(record)
            self.state_length = self._table.length
        else:
            self.state_length = len(data)
        self._history.note_appended(stored, record)

    def _pack_keyframe(
        self, stored: StoredCheckpoint, draft: delta.Draft, order: list[str], listed: list[Any]
    ) -> tuple[bytes, list[Any], bytes, int]:
        """Return the payload of a keyframe, its ops and data, and its flags."""
        ops, data, flags = self._encode(draft, order)
        flags |= KEY
        early = self._history.scan.early.measure(stored.id, self._frames.end)
        if early is not None:
            flags |= EARLY
        if any(entry is not None and delta.has_block(entry) for entry in listed[1::2]):
            flags |= COMPRESSED
        if stored.target is not None:
            flags |= REPLACE
        payload = payloads.pack_keyframe(stored, ops, listed, data, self._codec.pack, early)
        return payload, ops, data, flags

    def _list_values(
        self, draft: delta.Draft, order: list[str], pack: Pack, spilled: Mapping[str, delta.Value]
    ) -> list[Any]:
        """Return a keyframe's table, and complete the draft: together they make the new state.

        Args:
            draft: what changed. DELETE operations are removed, and values are added that the
                keyframe repeats.
            order: the keys of the new state.
            pack: packs a value of it.
            spilled: values whose bytes are in DATA records.

        Returns:
            name, entry, name, entry, ... The entry is None if the draft sets the value.
        """
        end = self._frames.end
        for name in [name for name, op in draft.items() if op is delta.DELETE]:
            del draft[name]
        listed: list[Any] = []
        for name in order:
            entry = None
            if name in spilled:
                entry = delta.encode_entry(spilled[name], end)
            elif not delta.is_set(draft.get(name)):
                entry = self._list_value(draft, name, pack)
            listed += (name, entry)
        return listed

    def _list_value(self, draft: delta.Draft, name: str, pack: Pack) -> list[int] | None:
        """Return the entry of a value that the draft does not set; None if it is short, and is set again."""
        if self._table is None and name not in draft:
            # The usual keyframe of a short state needs no table.
            packed = pack(name)
            if len(packed) <= delta.INLINE_LENGTH:
                draft[name] = packed
                return None
        old = self.load_table().values[name]
        if delta.is_inlined(old):
            draft[name] = pack(name)
            return None
        return delta.encode_entry(old, self._frames.end)

    def _spill(self, draft: delta.Draft, pack: Pack) -> dict[str, delta.Value]:
        """Append the bytes of large values as DATA records; remove the values from the draft."""
        frames = self._frames
        longest = frames.max_part
        spilled: dict[str, delta.Value] = {}
        for name, op in list(draft.items()):
            if len(delta.get_data(op)) <= _SPILL_LENGTH:
                continue
            packed = op if isinstance(op, bytes) else pack(name)
            value, body = delta.split_value(packed, opaque=self._packed.is_opaque)
            for at in range(0, len(body), longest):
                part = bytes(body[at : at + longest])
                frames.append(DATA, part)
                value.pieces += (frames.end - TRAILER_SIZE - len(part), len(part))
            spilled[name] = value
            del draft[name]
        return spilled

    def _encode(self, draft: delta.Draft, names: list[str]) -> tuple[list[Any], bytes, int]:
        """Return the ops and the data of a draft, and the flag COMPRESSED if a value is compressed.

        Compresses large values in the draft.
        """
        compression = self.compression
        flags = 0
        if compression is not None:
            threshold = compression.threshold
            for name, op in draft.items():
                if op.__class__ is bytes and len(op) >= threshold:
                    draft[name] = delta.compress(op, compression, opaque=self._packed.is_opaque)
                    if draft[name] is not op:
                        flags = COMPRESSED
        ops, data = delta.encode_draft(draft, names)
        return ops, data, flags

    # What changed

    def load_table(self) -> delta.Table:
        """Return the table of the last state, from then on kept up to date.

        Most runs never need it: the engine says what changed, and a keyframe of a short state repeats all values. It is
        read when a long value is compared with the stored one, or when a keyframe names earlier bytes.
        """
        table = self._table
        if table is not None:
            return table
        last = self._history.scan.last
        if last is None:
            return delta.Table(opaque=self._packed.is_opaque)
        chain = self._history.chains.read(last.keyframe_offset, last.end)
        table = self._packed.build(chain.records[0])
        for record in chain.records[1:]:
            self._packed.apply(table, record)
        self._table = table
        self.state_length = table.length
        return table

    def _draft_changes(self, changes: Changes, state: FrozenDict) -> delta.Draft:
        """Draft what changed, as the engine recorded it: only the changed keys are packed, and nothing is read."""
        before = changes.base
        draft: delta.Draft = {}
        for name, op in changes.ops.items():
            old = before.get(name, _ABSENT)
            change: delta.Operation | bytes | None = None
            if name not in state:
                if old is not _ABSENT:
                    change = delta.DELETE
            elif old is _ABSENT:
                change = self._codec.pack(state[name], _check_key(name))
            else:
                # Of a list that grew, the engine says how many of its first elements are the old list.
                has_grown = op > 0 and type(old) is FrozenList and len(old) == op
                change = self._draft_value(name, old, state[name], op if has_grown else None, COMPARE_LENGTH)
            if change is not None:
                draft[name] = change
        return draft

    def _draft_by_comparison(self, state: FrozenDict) -> delta.Draft:
        """Draft what changed by comparing key by key.

        Identical objects are unchanged, because values are immutable; other values are packed.
        """
        values = self.load_table().values
        before: Mapping[str, Any] = {} if self.state is None else self.state
        draft: delta.Draft = {}
        for name, value in state.items():
            stored = values.get(name)
            if stored is None:
                draft[name] = self._codec.pack(value, _check_key(name))
                continue
            old = before.get(name, _ABSENT)
            if old is value and kind_of(value) != PRIVATE:
                continue
            has_grown = stored.kind == delta.LIST and _continues(old, value) and stored.count == len(old)
            change = self._draft_value(name, old, value, len(old) if has_grown else None, 0)
            if change is not None:
                draft[name] = change
        for name in values:
            if name not in state:
                draft[name] = delta.DELETE
        return draft

    def _draft_value(
        self, name: str, old: Any, value: Any, kept: int | None, threshold: int
    ) -> delta.Operation | bytes | None:
        """Return the operation that makes the new value of a key that the last state has; None if it is the old one.

        Args:
            name: the key.
            old: the value in the last state, if it is in memory.
            value: the new value.
            kept: of a list that grew, how many of its first elements are the old list; None: not known.
            threshold: a value with more bytes, packed, is compared with the stored one.
        """
        if kept is not None:
            items = value[kept:]
            if not items:
                return None
            return delta.Operation(delta.APPEND, (len(items),), self._codec.pack_items(items, name, kept))
        if value.__class__ is bytes and old.__class__ is bytes:
            return self._compare_bytes(name, old, value)
        packed = self._codec.pack(value, name)
        return self._compare(name, packed) if len(packed) > threshold else packed

    def _compare(self, name: str, packed: bytes) -> delta.Operation | bytes | None:
        """Return the operation that turns a value of the last state into a packed value; None if they are equal."""
        old = self.load_table().values[name]
        if len(packed) <= delta.INLINE_LENGTH < old.length:
            # Reading the old value costs more than a short new one.
            return packed
        last = self._history.scan.last
        assert last is not None
        (old_body,) = self._packed.read_bodies([old], last.offset)
        return delta.compare_values(old, old_body, packed, opaque=self._packed.is_opaque)

    def _compare_bytes(self, name: str, old: bytes, new: bytes) -> delta.Operation | bytes | None:
        """As `_compare`, for bytes objects that are in memory."""
        if len(old) <= COMPARE_LENGTH:
            return delta.compare_bytes(old, new)
        # The table has the checksum, so that the bytes of a long one are not read for it.
        return delta.compare_bytes(old, new, self.load_table().values[name].crc)

    # Pending writes and tags

    def put_writes(self, stored: StoredCheckpoint, values: Mapping[str, bytes]) -> None:
        """Record pending writes of a checkpoint, packed by the codec."""
        payload = self._pack_writes(stored.id, values)
        offset = self._frames.append(WRITE, payload, self._flags_about(stored))
        stored.add_writes(values, offset)
        self._frames.in_doubt = False

    def put_early(self, id: str, values: Mapping[str, bytes]) -> None:
        """Record pending writes, packed by the codec, of a checkpoint that is still to come."""
        early = self._history.scan.load_early()
        payload = self._pack_writes(id, values)
        offset = self._frames.append(WRITE, payload, EARLY)
        early.add(id, values, offset)
        self._frames.in_doubt = False

    def _pack_writes(self, id: str, values: Mapping[str, bytes]) -> bytes:
        """Return the payload of a WRITE record.

        Raises:
            CheckpointSerializationError: the writes do not fit into one record.
        """
        payload = payloads.pack_writes(id, values)
        limit = self._frames.max_payload
        if len(payload) > limit:
            reason = f"they take {len(payload)} bytes, and a record has at most {limit}; record them in parts"
            raise CheckpointSerializationError("writes", "dict", reason)
        return payload

    def put_tags(self, stored: StoredCheckpoint, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add tags to a checkpoint, and remove others."""
        payload = payloads.pack_tags(stored.id, add, remove)
        self._frames.append(MARK, payload, self._flags_about(stored))
        stored.change_tags(add, remove)
        self._frames.in_doubt = False

    def _flags_about(self, stored: StoredCheckpoint) -> int:
        """Return the flags of a record about a checkpoint: SCATTERED unless it is the last one."""
        last = self._history.scan.last
        if last is not None and last.id == stored.id:
            return 0
        return SCATTERED


def _continues(old: Any, new: Any) -> bool:
    """Return whether a list begins with all elements of an old one, which are the same objects."""
    if new.__class__ is not FrozenList or old.__class__ is not FrozenList or old.kind == PRIVATE:
        return False
    return len(old) <= len(new) and all(map(is_, old, new))


def _check_key(name: Any) -> str:
    """Return a key of a state.

    Raises:
        CheckpointSerializationError: it is not a string.
    """
    if name.__class__ is not str:
        raise CheckpointSerializationError(str(name), type(name).__name__, "the keys of a state are strings")
    return str(name)


def _check_fields(stored: StoredCheckpoint) -> None:
    """Refuse what a reader would refuse.

    Raises:
        CheckpointSerializationError: a field of the checkpoint cannot be stored.
    """
    # Nearly all checkpoints have four strings: this is part of every put. Subclasses of str are accepted, too.
    if not (stored.id.__class__ is stored.node.__class__ is stored.next.__class__ is stored.parent.__class__ is str):
        _check_field("id", stored.id, str, "a string")
        _check_field("node_id", stored.node, str, "a string")
        _check_field("next_node_id", stored.next, (str, NoneType), "a string or None")
        _check_field("parent_id", stored.parent, (str, NoneType), "a string or None")
    if not payloads.FIRST_TIME <= stored.created <= payloads.LAST_TIME:
        raise CheckpointSerializationError("created_at", "datetime", "UTC has no year for it")


def _check_field(name: str, value: object, kind: type | tuple[type, ...], described: str) -> None:
    if not isinstance(value, kind):
        raise CheckpointSerializationError(name, type(value).__name__, f"it must be {described}")
