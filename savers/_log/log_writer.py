"""Appends checkpoints, pending writes and tags to the live log of one namespace.

`LogWriter` decides whether a checkpoint is written as a keyframe or as a delta.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.values import PRIVATE, FrozenDict, private_copy
from savers import _delta as delta
from savers._log import log, payloads
from savers._log.drafts import (
    COMPARE_LENGTH,
    are_bytes,
    draft_by_comparison,
    draft_first,
    draft_from_changes,
)
from savers._log.log_reader import LogReader
from savers._log.sealing import MAX_OVERHEAD
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from graphkit import Checkpoint
    from graphkit.codec import Codec
    from savers._compression import Compression

MIN_KEYFRAME_DISTANCE: Final = 64 << 10
"""No keyframe is written before changes of this cost, which is in bytes."""
RECORD_COST: Final = 1 << 9
"""The cost of one more record in addition to that of its bytes."""
USUAL_DEPTH: Final = 16
"""After so many changes, a keyframe that has the whole state and is short beside them is followed by
another one: a reader decodes no more of them."""
KEYFRAME_SHARE: Final = 8
"""The changes then have at least so many times its bytes, so that keyframes are at most a ninth of
such a log. Steps of LangGraph with a small state take 3 % more than without."""
_MAX_DEPTH: Final = 60_000
"""The most changes after a keyframe."""
_OPAQUE_KEY: Final = ""
"""The only key of a state that is the bytes of a StateSerializer."""
_LONGEST_CHARACTER: Final = 4
"""Bytes of one character in UTF-8."""
_SMALL_LENGTH: Final = 1 << 16
"""A change with more bytes than this is not small: what a put costs in Python does not matter."""
_STRINGS: Final = (str, str)
_SPILL_LENGTH: Final = 1 << 12
"""If a keyframe would be too long, values longer than this go to DATA records."""


@dataclass(slots=True, kw_only=True)
class NewCheckpoint:
    """A checkpoint to append, with what changed since the last one."""

    stored: StoredCheckpoint
    """Everything except the state; the writer sets its place in the log."""
    draft: delta.Draft
    """What changed since the last record; the writer may complete it."""
    order: list[str]
    """The keys of the new state."""
    pack: Callable[[str], bytes]
    """Returns a value of the new state, packed."""
    target: str | None = None
    """The id of the checkpoint to replace."""


class LogWriter(LogReader):
    """A log to which checkpoints are appended.

    Subclasses say how a record is appended to what keeps the bytes.
    """

    is_synced_at_once = False
    """Whether a sync of each put follows as soon as the put has appended it."""
    compression: Compression | None = None
    """How large values are compressed."""

    @property
    def _most_bytes(self) -> int:
        """How many bytes a payload may have."""
        return log.MAX_PAYLOAD

    @property
    def _most_keyframe_data(self) -> int:
        """How many bytes of values a keyframe has; more are stored in records before it, of this length each."""
        return longest_data(self._most_bytes)

    @property
    def max_payload(self) -> int:
        """How many bytes a payload may have before it is sealed."""
        return self._most_bytes if self.key_ring is None else self._most_bytes - MAX_OVERHEAD

    def _check_length(self, payload: bytes) -> None:
        """Refuse a payload that is too long for a record.

        Raises:
            CheckpointSerializationError: the record would be longer than a reader accepts.
        """
        if len(payload) > self.max_payload:
            reason = f"it takes {len(payload)} bytes, and a record has at most {self.max_payload}"
            raise CheckpointSerializationError("", "record", reason)

    @abstractmethod
    def _append_record(
        self,
        type: int,
        payload: bytes,
        flags: int = 0,
        back: int = 0,
        key: int = 0,
    ) -> int:
        """Append a record and return its offset. Begins the log if there is none.

        Leaves the log in doubt: the caller does its own bookkeeping, and then says that it is not.

        Raises:
            CheckpointSerializationError: the record would be longer than a reader accepts. Nothing
                was changed.
        """

    def _start_writing(self) -> None:
        """Let the disk begin with the record that was appended last, while the put still works."""

    @abstractmethod
    def _undo_records(self, start: int) -> None:
        """Take back the records from an offset on, because not all that belong together were appended."""

    def is_small(self, limit: int) -> bool:
        """Return whether the log is open, and its last state is in memory and at most this long."""
        if self.fd < 0 or self.state is None:
            return False
        return self.keyframe_length + self.end - self.keyframe_end <= limit

    # Checkpoints

    def lacks(self, id: str) -> bool:
        """Return whether the history has no checkpoint with an id, so that one may be appended."""
        return self.find(id) is None

    def put(self, checkpoint: Checkpoint, target: str | None) -> bool:
        """Append a checkpoint, which replaces another one if there is a target.

        Returns:
            Whether it was the usual one of a run: a small change, for which nothing was loaded.

        Raises:
            CheckpointNotFoundError: the history does not have the checkpoint to replace. Nothing
                was changed.
            CheckpointSerializationError: a value cannot be stored. Nothing was changed.
        """
        if target is None:
            if self._put_small_change(checkpoint):
                return True
        elif self.find(target) is None:
            raise CheckpointNotFoundError(self.thread_id, f"checkpoint {target}")
        else:
            self.load_index()
        state = checkpoint.state
        draft = self._draft_short_keyframe(checkpoint) if target is None else None
        if draft is None:
            draft = self._make_draft(checkpoint, state)
        stored = _describe(checkpoint, private_copy(checkpoint.metadata), is_replacement=target is not None)
        order = list(state) if self.serializer is None else [_OPAQUE_KEY]
        pack = self._make_packer(state)
        self.store(NewCheckpoint(stored=stored, draft=draft, order=order, pack=pack, target=target))
        self.state = state
        return False

    def _put_small_change(self, checkpoint: Checkpoint) -> bool:  # noqa: C901, PLR0911, PLR0912, PLR0915 - the hot path
        """Append the usual checkpoint of a run; return False for any other, with nothing changed.

        The usual one follows the last one, and the caller has recorded what changed: some keys are
        set to short values, or their lists or bytes are longer. `_make_draft` and `store` make the
        same bytes of it; in one body, a whole put takes 130,000 instructions instead of 152,000.
        """
        changes = checkpoint.changes
        if changes is None or changes.base is not self.state or self.serializer is not None:
            return False
        table = self.table
        base = self.last_checkpoint
        if table is None or base is None or not self._can_be_change():
            return False
        if self.early_unread < self.early_start:
            return False
        state = checkpoint.state
        metadata = checkpoint.metadata
        names = table.names
        if names != [*state] or metadata.kind == PRIVATE:
            return False
        pack = self.codec.pack
        values = table.values
        ops: list[Any] = []
        parts: list[bytes] = []
        keys: list[str] = []
        only_sets = True
        for name, op in changes.ops.items():
            old = values.get(name)
            if old is None:
                return False
            value = state[name]
            if op > 0 and old.kind == delta.LIST and old.count == op:
                items = value[op:]
                if not items:
                    continue
                packed = self.codec.pack_items(items, name, op)
                only_sets = False
                ops += (delta.APPEND, names.index(name), len(items), len(packed))
            elif old.kind == delta.BIN and are_bytes(old, changes.base.get(name), value):
                difference = delta.compare_bytes(old, changes.base[name], value)
                if difference is None:
                    continue
                difference.encode(ops, names.index(name))
                packed = difference.data
                only_sets = False
            else:
                packed = pack(value, name)
                if len(packed) > COMPARE_LENGTH:
                    return False
                ops += (delta.SET, names.index(name), len(packed))
            parts.append(packed)
            keys.append(name)
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) > _SMALL_LENGTH or (self.compression is not None and len(data) >= self.compression.threshold):
            return False
        # By position, and without a call, because this is part of every put.
        stored = StoredCheckpoint(
            checkpoint.id,
            checkpoint.node_id,
            checkpoint.next_node_id,
            checkpoint.created_us,
            checkpoint.parent_id,
            metadata,
        )
        _check_fields(stored)
        end = self.end
        early = self.early.measure(stored.id, end) if self.early.waiting else None
        step = metadata["step"] if checkpoint.metadata_base is base.metadata else None
        payload = payloads.pack_change(base, stored, ops, None, data, pack, early, step)
        flags = 0 if early is None else log.EARLY
        offset = self._append_record(log.CHECKPOINT, payload, flags, end - base.offset, end - base.keyframe_offset)
        if self.is_synced_at_once:
            self._start_writing()
        stored.offset = offset
        stored.size = self.end - offset
        stored.keyframe_offset = base.keyframe_offset
        position = self.end - log.TRAILER_SIZE - len(data)
        if only_sets:
            for name, packed in zip(keys, parts, strict=True):
                table.set_packed(name, packed, position)
                position += len(packed)
        else:
            table.apply(ops, data, position)
        self.depth += 1
        if early is not None:
            self.early.give_to(stored)
        self.last_checkpoint = stored
        self.state = state
        if self.index is not None:
            self._add_to_index(stored, None)
        self.in_doubt = False
        return True

    def store(self, new: NewCheckpoint) -> None:
        """Append a checkpoint whose changes are known.

        Raises:
            CheckpointSerializationError: a field cannot be stored. Nothing was changed.
        """
        stored = new.stored
        _check_fields(stored)
        self.load_early()
        if not self._store_change(new):
            self._store_keyframe(new)
        stored.size = self.end - stored.offset
        self.early.give_to(stored)
        self.last_checkpoint = stored
        self.state = None
        if self.index is not None:
            self._add_to_index(stored, new.target)
        self.in_doubt = False

    def _store_change(self, new: NewCheckpoint) -> bool:
        """Append a checkpoint as what changed; return False if a keyframe is needed, or better."""
        base = self.last_checkpoint
        table = self.table
        if base is None or table is None or not self._fits_as_change(table, new):
            return False
        ops, data, flags = self._encode_draft(new.draft, table.names)
        if len(data) > _SPILL_LENGTH and len(data) > longest_data(self._most_bytes):
            return False
        if new.target is not None:
            flags |= log.REPLACE
        stored = new.stored
        early = self.early.measure(stored.id, self.end)
        if early is not None:
            flags |= log.EARLY
        payload = payloads.pack_change(base, stored, ops, new.target, data, self.codec.pack, early)
        new.draft.clear()
        back = self.end - base.offset
        key = self.end - base.keyframe_offset
        stored.offset = self._append_record(log.CHECKPOINT, payload, flags, back, key)
        # Bytes of a long value are not kept twice while the table looks at them.
        del payload
        stored.keyframe_offset = base.keyframe_offset
        table.apply(ops, data, self.end - log.TRAILER_SIZE - len(data))
        self.depth += 1
        return True

    def _fits_as_change(self, table: delta.Table, new: NewCheckpoint) -> bool:
        """Return whether a draft can and should be stored as a change.

        It cannot if the order of the keys changed otherwise than by dropping some and adding others
        at the end.
        """
        if not self._can_be_change():
            return False
        draft = new.draft
        values = table.values
        for name, op in draft.items():
            if op is delta.DELETE or name not in values:
                break
        else:
            return table.names == new.order
        deleted = {name for name, op in draft.items() if op is delta.DELETE}
        kept = [name for name in table.names if name not in deleted]
        added = [name for name in draft if name not in values]
        return kept + added == new.order

    def _can_be_change(self) -> bool:
        """Return whether the last keyframe is near enough for one more change."""
        assert self.last_checkpoint is not None
        distance = self.end - self.keyframe_end
        length = self.keyframe_end - self.last_checkpoint.keyframe_offset
        if self.depth >= USUAL_DEPTH and not self.names_pieces and distance >= KEYFRAME_SHARE * length:
            return False
        cost = distance + self.depth * RECORD_COST
        if cost > MIN_KEYFRAME_DISTANCE and cost > length:
            return False
        return distance <= log.MAX_DISTANCE and self.depth < _MAX_DEPTH

    def _store_keyframe(self, new: NewCheckpoint) -> None:
        """Append a checkpoint as a keyframe; bytes that do not fit into one record go before it."""
        start = self.end
        try:
            self._append_keyframe(new)
        except BaseException:
            # A value of the last state could not be read, or not all records could be written:
            # none of them may stay.
            self._undo_records(start)
            raise

    def _append_keyframe(self, new: NewCheckpoint) -> None:
        stored = new.stored
        keyframe_table = self._make_keyframe_table(new, {})
        ops, data, flags = self._encode_draft(new.draft, new.order)
        payload = self._pack_keyframe(new, ops, keyframe_table, data)
        if payload is None:
            data = b""  # It may take as much memory as the state, as does each record with a part of it.
            spilled = self._spill(new)
            keyframe_table = self._make_keyframe_table(new, spilled)
            ops, data, flags = self._encode_draft(new.draft, new.order)
            payload = payloads.pack_keyframe(
                stored,
                ops,
                keyframe_table,
                new.target,
                data,
                self.codec.pack,
                self.early.measure(stored.id, self.end),
            )
        # The payload has the bytes of the draft, which may take as much memory as the state.
        new.draft.clear()
        if any(entry is not None and delta.has_block(entry) for entry in keyframe_table[1::2]):
            flags |= log.COMPRESSED
        if new.target is not None:
            flags |= log.REPLACE
        if self.early:
            flags |= log.EARLY
        stored.offset = self._append_record(log.CHECKPOINT, payload, flags | log.KEY)
        del payload
        stored.keyframe_offset = stored.offset
        record = payloads.DecodedRecord(
            checkpoint=stored,
            ops=ops,
            table=keyframe_table,
            target=new.target,
            data=data,
            start=self.end - log.TRAILER_SIZE - len(data),
        )
        self.table = self.build_table(record)
        self.depth = 0
        self.keyframe_length = self.table.length
        self._note_keyframe(keyframe_table, self.end)

    def _pack_keyframe(
        self,
        new: NewCheckpoint,
        ops: list[Any],
        keyframe_table: list[Any],
        data: bytes,
    ) -> bytes | None:
        """Return the payload of a keyframe; None if it would be too long."""
        if len(data) > self._most_keyframe_data:
            return None
        payload = payloads.pack_keyframe(
            new.stored,
            ops,
            keyframe_table,
            new.target,
            data,
            self.codec.pack,
            self.early.measure(new.stored.id, self.end),
        )
        return None if len(payload) > self.max_payload else payload

    def _make_keyframe_table(
        self,
        new: NewCheckpoint,
        spilled: Mapping[str, delta.Value],
    ) -> list[Any]:
        """Return a keyframe's table, and complete the draft: together they make the new state.

        Args:
            new: the checkpoint. DELETE operations are removed from its draft, and values are added
                that the keyframe repeats.
            spilled: values whose bytes are in DATA records.

        Returns:
            name, entry, name, entry, ... The entry is None if the draft sets the value.
        """
        draft = new.draft
        for name in [name for name, op in draft.items() if op is delta.DELETE]:
            del draft[name]
        keyframe_table: list[Any] = []
        for name in new.order:
            if name in spilled:
                keyframe_table += (name, delta.encode_entry(spilled[name], self.end))
                continue
            if isinstance(draft.get(name), delta.Set | delta.SetCompressed):
                keyframe_table += (name, None)
                continue
            assert self.table is not None
            old = self.table.values[name]
            if delta.is_inlined(old):
                draft[name] = delta.Set(new.pack(name))
                keyframe_table += (name, None)
            else:
                keyframe_table += (name, delta.encode_entry(old, self.end))
        return keyframe_table

    def _spill(self, new: NewCheckpoint) -> dict[str, delta.Value]:
        """Append the bytes of large values as DATA records; remove the values from the draft."""
        spilled: dict[str, delta.Value] = {}
        for name, op in list(new.draft.items()):
            if len(op.data) <= _SPILL_LENGTH:
                continue
            packed = op.data if isinstance(op, delta.Set) else new.pack(name)
            value, body = delta.split_value(packed, opaque=self.serializer is not None)
            for at in range(0, len(body), self._most_keyframe_data):
                part = bytes(body[at : at + self._most_keyframe_data])
                self._append_record(log.DATA, part)
                value.pieces += (self.end - log.TRAILER_SIZE - len(part), len(part))
            spilled[name] = value
            del new.draft[name]
        return spilled

    def _encode_draft(self, draft: delta.Draft, names: list[str]) -> tuple[list[Any], bytes, int]:
        """Return the ops and the data of a draft, and the flag COMPRESSED if a value is compressed.

        Compresses large values in the draft.
        """
        ops, data = delta.encode_draft(draft, names)
        compression = self.compression
        if compression is None or len(data) < compression.threshold:
            return ops, data, 0
        is_opaque = self.serializer is not None
        is_compressed = False
        for name, op in draft.items():
            if isinstance(op, delta.Set) and len(op.data) >= compression.threshold:
                compressed = delta.compress(
                    op,
                    compression.number,
                    compression.compress,
                    opaque=is_opaque,
                )
                if compressed is not op:
                    draft[name] = compressed
                    is_compressed = True
        if not is_compressed:
            return ops, data, 0
        ops, data = delta.encode_draft(draft, names)
        return ops, data, log.COMPRESSED

    # What changed

    def _draft_short_keyframe(self, checkpoint: Checkpoint) -> delta.Draft | None:
        """Return the operations that set every value, if a keyframe of short values is next; None otherwise.

        A keyframe repeats short values. So it needs nothing of the table before it, in which the
        records since the last keyframe may not be applied yet: a fifth of the time of such a put.
        """
        changes = checkpoint.changes
        if changes is None or changes.base is not self.state or self.serializer is not None:
            return None
        if self.last_checkpoint is None or self.names_pieces or self._can_be_change():
            return None
        if not self.is_small(_SMALL_LENGTH):
            return None
        draft: delta.Draft = {}
        for name, value in checkpoint.state.items():
            packed = self.codec.pack(value, name)
            if len(packed) > delta.INLINE_LENGTH:
                return None
            draft[name] = delta.Set(packed)
        return draft

    def _make_draft(self, checkpoint: Checkpoint, state: FrozenDict) -> delta.Draft:
        if self.table is None and self.last_checkpoint is not None:
            # A copy: the next record changes it.
            self.table = self.load_table(self.last_checkpoint).copy()
            self.keyframe_length = self.table.length
        table = self.table
        if self.serializer is not None:
            return self._make_opaque_draft(state, table)
        if table is None:
            return draft_first(state, self.codec)
        changes = checkpoint.changes
        if changes is not None and changes.base is self.state:
            return draft_from_changes(changes, state, table, self.codec, self._compare)
        before = {} if self.state is None else self.state
        return draft_by_comparison(before, state, table, self.codec, self._compare)

    def _make_opaque_draft(self, state: FrozenDict, table: delta.Table | None) -> delta.Draft:
        assert self.serializer is not None
        packed = self.serializer.dumps(state)
        if not isinstance(packed, bytes):
            raise CheckpointSerializationError(
                "",
                type(packed).__name__,
                "state_serializer.dumps must return bytes",
            )
        if table is None:
            return {_OPAQUE_KEY: delta.Set(packed)}
        op = self._compare(table.values[_OPAQUE_KEY], packed)
        return {} if op is None else {_OPAQUE_KEY: op}

    def _compare(self, old: delta.Value, packed: bytes) -> delta.Operation | None:
        """Return the operation that turns a value of the last state into a packed value."""
        if len(packed) <= delta.INLINE_LENGTH < old.length:
            return delta.Set(packed)
        assert self.last_checkpoint is not None
        (old_body,) = self.read_bodies([old], self.last_checkpoint)
        return delta.compare_values(old, old_body, packed, opaque=self.serializer is not None)

    def _make_packer(self, state: FrozenDict) -> Callable[[str], bytes]:
        serializer = self.serializer
        if serializer is not None:
            return lambda _: serializer.dumps(state)
        return lambda name: self.codec.pack(state[name], name)

    # Pending writes and tags

    def put_packed(self, stored: StoredCheckpoint, values: Mapping[str, bytes]) -> None:
        """Record pending writes of a checkpoint, packed by `pack_writes`."""
        payload = payloads.pack_writes(stored.id, values)
        offset = self._append_record(log.WRITE, payload, self._flags_about(stored))
        stored.add_writes(values, offset)
        self.in_doubt = False

    def put_early(self, id: str, values: Mapping[str, bytes]) -> None:
        """Record pending writes, packed by `pack_writes`, of a checkpoint that is still to come."""
        payload = payloads.pack_writes(id, values)
        offset = self._append_record(log.WRITE, payload, log.EARLY)
        self.early.add(id, values, offset)
        self.in_doubt = False

    def put_tags(self, stored: StoredCheckpoint, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add tags to a checkpoint, and remove others."""
        self._append_record(
            log.MARK,
            payloads.pack_tags(stored.id, add, remove),
            self._flags_about(stored),
        )
        stored.tags = payloads.merge_tags(stored.tags, add, remove)
        self.in_doubt = False

    def _flags_about(self, stored: StoredCheckpoint) -> int:
        """Return the flags of a record about a checkpoint: SCATTERED unless it is the last one."""
        is_last = self.last_checkpoint is not None and self.last_checkpoint.id == stored.id
        return 0 if is_last else log.SCATTERED


def _describe(checkpoint: Checkpoint, metadata: FrozenDict, *, is_replacement: bool) -> StoredCheckpoint:
    """Return what the log keeps of a checkpoint except its state; its place is set when it has one."""
    # By position, because this is part of every put: it takes half the time.
    return StoredCheckpoint(
        checkpoint.id,
        checkpoint.node_id,
        checkpoint.next_node_id,
        checkpoint.created_us,
        checkpoint.parent_id,
        metadata,
        is_replacement,
    )


def pack_writes(codec: Codec, values: Mapping[str, Any], max_payload: int | None = None) -> dict[str, bytes]:
    """Pack pending writes.

    Args:
        codec: packs the values.
        values: the writes.
        max_payload: the most bytes of a record's payload; by default, those of the format.

    Raises:
        CheckpointSerializationError: a value cannot be stored, or the writes do not fit into one
            record.
    """
    packed = {key: codec.pack(value, key) for key, value in values.items()}
    check_fit(packed, max_payload)
    return packed


def check_fit(packed: Mapping[str, bytes], max_payload: int | None = None) -> None:
    """Refuse packed pending writes that do not fit into one record; see `pack_writes`.

    Raises:
        CheckpointSerializationError: they do not fit.
    """
    length = sum(map(len, packed)) * _LONGEST_CHARACTER + sum(map(len, packed.values()))
    limit = longest_data(log.MAX_PAYLOAD if max_payload is None else max_payload)
    if length > limit:
        reason = f"they take {length} bytes, and a record has at most {limit}; record them in parts"
        raise CheckpointSerializationError("writes", "dict", reason)


def longest_data(max_payload: int) -> int:
    """Return how many bytes of values a record may hold: the rest of its payload needs room too."""
    return max_payload - max_payload // 16


def _check_fields(stored: StoredCheckpoint) -> None:
    """Refuse what a reader would refuse.

    Raises:
        CheckpointSerializationError: a field of the checkpoint cannot be stored.
    """
    # For the usual case, two look-ups: this is part of every put.
    if (stored.id.__class__, stored.node.__class__) != _STRINGS or (
        (stored.next.__class__, stored.parent.__class__) != _STRINGS
    ):
        _check_strings(stored)
    if not payloads.FIRST_TIME <= stored.created <= payloads.LAST_TIME:
        raise CheckpointSerializationError("created_at", "datetime", "UTC has no year for it")


def _check_strings(stored: StoredCheckpoint) -> None:
    """Refuse fields that are not strings; subclasses of str are accepted."""
    for name, value in (("id", stored.id), ("node_id", stored.node)):
        if not isinstance(value, str):
            raise CheckpointSerializationError(name, type(value).__name__, "it must be a string")
    for name, optional in (("next_node_id", stored.next), ("parent_id", stored.parent)):
        if optional is not None and not isinstance(optional, str):
            raise CheckpointSerializationError(
                name,
                type(optional).__name__,
                "it must be a string or None",
            )
