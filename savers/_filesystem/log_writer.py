"""The live history of a namespace: what can be appended to it, under its mutex and the thread's short lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from operator import is_
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.values import PRIVATE, FrozenDict, FrozenList, kind_of, private_copy
from savers import _delta as delta
from savers._filesystem import layout, log, payloads
from savers._filesystem.log_reader import LogReader
from savers._filesystem.salvaged_files import FileRange
from savers._filesystem.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from graphkit import Checkpoint
    from graphkit.codec import Codec
    from graphkit.values import Changes
    from savers._compression import Compression

FLOOR: Final = 16 << 10
"""No keyframe before so many bytes of changes."""
RECORD_COST: Final = 1 << 10
"""What reading one more record costs, as bytes decoded: about 3 us."""
_MAX_DEPTH: Final = 60_000
_OPAQUE_KEY: Final = ""
META_RECORDS: Final = log.META_RECORDS[log.MAJOR]
_LONGEST_CHARACTER: Final = 4
"""Bytes of one character in UTF-8."""
_SPILLED: Final = 1 << 12
"""Values longer than this go to DATA records if a keyframe would be too long."""
_TO_COMPARE: Final = 1 << 12
"""Of a value that a node has changed, it is looked up what has changed in it if it is longer than this."""
_PART: Final = 1 << 20
_LOGGER: Final = getLogger("graphkit")


class LogWriter(LogReader):
    """A log that grows."""

    make_directories: Callable[[], None]
    """Makes the directories of this log, where they are missing."""
    compression: Compression | None = None
    """How large values are compressed."""
    is_synced_before_use = False
    """Whether all of the file is brought to the disk before it takes its place, so that each record vouches for it."""
    unacknowledged: tuple[int, int] | None = None
    """After a sync failed: from where to where records stand that no put has acknowledged."""

    # Checkpoints

    def put(self, checkpoint: Checkpoint, target: str | None) -> None:
        """Append a checkpoint, or one that takes the place of another.

        Raises:
            CheckpointNotFoundError: there is no checkpoint to replace. Nothing was changed.
            CheckpointSerializationError: a value cannot be stored. Nothing was changed.
        """
        if target is not None and self.find(target) is None:
            raise CheckpointNotFoundError(self.thread_id, f"checkpoint {target}")
        if target is not None:
            self.load_index()
        state = checkpoint.state
        draft = self._draft(checkpoint, state)
        if self.serializer is None:
            self.store(self._entry(checkpoint, target), draft, list(state), self._packer(state), target)
        else:
            self.store(self._entry(checkpoint, target), draft, [_OPAQUE_KEY], self._packer(state), target)
        self.state = state

    def store(
        self,
        entry: StoredCheckpoint,
        draft: delta.Draft,
        order: list[str],
        packed: Callable[[str], bytes],
        target: str | None = None,
    ) -> None:
        """Append a checkpoint of which the changes are known; fills in the entry's place.

        Args:
            entry: what is to be stored beside the state.
            draft: what changed since the tail; may be completed here.
            order: the keys of the new state.
            packed: gives a value of the new state, packed.
            target: the checkpoint to replace.
        """
        _check_entry(entry)
        if not self._store_change(entry, draft, order, target):
            self._store_keyframe(entry, draft, order, packed, target)
        entry.size = self.end - entry.offset
        self.last_checkpoint, self.state = entry, None
        if self.index is not None:
            self._add_to_index(entry, target)

    def _store_change(self, entry: StoredCheckpoint, draft: delta.Draft, order: list[str], target: str | None) -> bool:
        """Append a checkpoint as what changed; False if a keyframe is needed, or better."""
        base, table = self.last_checkpoint, self.table
        if base is None or table is None or not self._fits(table, draft, order):
            return False
        ops, data, flags = self._emit(draft, table.names)
        if len(data) > _SPILLED and len(data) > _longest_data():
            return False
        if target is not None:
            flags |= log.REPLACE
        payload = payloads.pack_change(base, entry, ops, target, data, self.codec.pack)
        back, key = self.end - base.offset, self.end - base.keyframe_offset
        entry.offset = self._write(log.CHECKPOINT, payload, flags, back, key)
        entry.keyframe_offset = base.keyframe_offset
        table.apply(ops, data, self.end - log.TRAILER_SIZE - len(data))
        self.depth += 1
        return True

    def _store_keyframe(
        self,
        entry: StoredCheckpoint,
        draft: delta.Draft,
        order: list[str],
        packed: Callable[[str], bytes],
        target: str | None,
    ) -> None:
        """Append a checkpoint as a keyframe; bytes that do not fit into one record go before it."""
        start = self.end
        try:
            listed = self._keyframe(draft, order, packed, {})
            ops, data, flags = self._emit(draft, order)
            payload = b""
            is_too_long = len(data) > _longest_data()
            if not is_too_long:
                payload = payloads.pack_keyframe(entry, ops, listed, target, data, self.codec.pack)
                is_too_long = len(payload) > log.MAX_PAYLOAD
            if is_too_long:
                spilled = self._spill(draft, packed)
                listed = self._keyframe(draft, order, packed, spilled)
                ops, data, flags = self._emit(draft, order)
                payload = payloads.pack_keyframe(entry, ops, listed, target, data, self.codec.pack)
            if any(one is not None and delta.has_block(one) for one in listed[1::2]):
                flags |= log.COMPRESSED
            if target is not None:
                flags |= log.REPLACE
            entry.offset = entry.keyframe_offset = self._write(log.CHECKPOINT, payload, flags | log.KEY)
            record = payloads.DecodedRecord(
                checkpoint=entry,
                ops=ops,
                table=listed,
                target=target,
                data=data,
                start=self.end - log.TRAILER_SIZE - len(data),
            )
            table = self.build_table(record)
        except BaseException:
            # What it needed to read could not be read, or not all of it could be written: none of it may stand.
            if self.fd >= 0 and self.end > start:
                if start:
                    self._undo(start)
                    self.close()
                else:
                    self._abandon()
            raise
        self.table, self.depth = table, 0
        self.keyframe_length, self.keyframe_end = table.length, self.end

    def _spill(self, draft: delta.Draft, packed: Callable[[str], bytes]) -> dict[str, delta.Value]:
        """Append the bytes of large values of a draft as DATA records, and take these values out of it."""
        spilled: dict[str, delta.Value] = {}
        for name, op in list(draft.items()):
            if len(op.data) <= _SPILLED:
                continue
            whole = op.data if isinstance(op, delta.Set) else packed(name)
            value, body = delta.split_value(whole, opaque=self.serializer is not None)
            for at in range(0, len(body), _longest_data()):
                part = body[at : at + _longest_data()]
                offset = self._write(log.DATA, part)
                value.pieces += (offset + log.FRAME_SIZE, len(part))
            spilled[name] = value
            del draft[name]
        return spilled

    def _emit(self, draft: delta.Draft, names: list[str]) -> tuple[list[Any], bytes, int]:
        """The ops and the data of a draft, large values compressed, and the flag that says so."""
        ops, data = delta.encode_draft(draft, names)
        compression = self.compression
        if compression is None or len(data) < compression.threshold:
            return ops, data, 0
        flag, opaque = 0, self.serializer is not None
        for name, op in draft.items():
            if isinstance(op, delta.Set) and len(op.data) >= compression.threshold:
                draft[name] = delta.compress(op, compression.number, compression.compress, opaque=opaque)
                flag |= log.COMPRESSED if draft[name] is not op else 0
        return (*delta.encode_draft(draft, names), flag) if flag else (ops, data, 0)

    @staticmethod
    def _entry(checkpoint: Checkpoint, target: str | None) -> StoredCheckpoint:
        return StoredCheckpoint(
            id=checkpoint.id,
            node=checkpoint.node_id,
            next=checkpoint.next_node_id,
            created=checkpoint.created_us,
            parent=checkpoint.parent_id,
            metadata=private_copy(checkpoint.metadata),
            is_replacement=target is not None,
        )

    # What changed

    def _draft(self, checkpoint: Checkpoint, state: FrozenDict) -> delta.Draft:
        table = self._current_table()
        if self.serializer is not None:
            return self._opaque_draft(state, table)
        changes = checkpoint.changes
        if table is not None and changes is not None and changes.base is self.state:
            return self._told(changes, state, table)
        return self._found(state, table)

    def _current_table(self) -> delta.Table | None:
        if self.table is None and self.last_checkpoint is not None:
            self.table = self.load_table(self.last_checkpoint)
        return self.table

    def _told(self, changes: Changes, state: FrozenDict, table: delta.Table) -> delta.Draft:
        codec, draft = self.codec, delta.Draft()
        for name, op in changes.ops.items():
            if name not in state:
                if name in table.values:
                    draft[name] = delta.DELETE
            elif op > 0 and (old := table.values.get(name)) is not None and old.kind == delta.LIST and old.count == op:
                items = state[name][op:]
                if items:
                    draft[name] = delta.Append(len(items), codec.pack_items(items, name, op))
            else:
                packed = codec.pack(state[name], name)
                if len(packed) > _TO_COMPARE and name in table.values:
                    difference = self._compared(table.values[name], packed)
                    if difference is not None:
                        draft[name] = difference
                else:
                    draft[name] = delta.Set(packed)
        return draft

    def _found(self, state: FrozenDict, table: delta.Table | None) -> delta.Draft:
        """Compare key by key: identical values are unchanged, for they are immutable; others are packed."""
        codec, draft = self.codec, delta.Draft()
        if table is None:
            return {name: delta.Set(codec.pack(value, _checked(name))) for name, value in state.items()}
        old_state: Mapping[str, Any] = self.state if self.state is not None else {}
        for name, value in state.items():
            old = table.values.get(name)
            if old is None:
                draft[name] = delta.Set(codec.pack(value, _checked(name)))
                continue
            before = old_state.get(name, _ABSENT)
            if before is value and kind_of(value) != PRIVATE:
                continue
            if value.__class__ is FrozenList and _continues(before, value) and old.kind == delta.LIST:
                grown = value[len(before) :]
                if grown and old.count == len(before):
                    draft[name] = delta.Append(len(grown), codec.pack_items(grown, name, len(before)))
                    continue
            op = self._compared(old, codec.pack(value, name))
            if op is not None:
                draft[name] = op
        draft.update((name, delta.DELETE) for name in table.values if name not in state)
        return draft

    def _compared(self, old: delta.Value, packed: bytes) -> delta.Operation | None:
        assert self.last_checkpoint is not None
        opaque = self.serializer is not None
        if len(packed) <= delta.INLINE_LENGTH < old.length:
            return delta.Set(packed)
        return delta.compare_values(old, self.read_bodies([old], self.last_checkpoint)[0], packed, opaque=opaque)

    def _opaque_draft(self, state: FrozenDict, table: delta.Table | None) -> delta.Draft:
        assert self.serializer is not None
        packed = self.serializer.dumps(state)
        if not isinstance(packed, bytes):
            raise CheckpointSerializationError("", type(packed).__name__, "state_serializer.dumps must return bytes")
        if table is None:
            return {_OPAQUE_KEY: delta.Set(packed)}
        op = self._compared(table.values[_OPAQUE_KEY], packed)
        return {} if op is None else {_OPAQUE_KEY: op}

    # Keyframes

    def _fits(self, table: delta.Table, draft: delta.Draft, order: list[str]) -> bool:
        """Whether the draft can and should be stored as a change."""
        distance = self.end - self.keyframe_end
        if distance + self.depth * RECORD_COST > max(FLOOR, self.keyframe_length):
            return False
        if distance > log.MAX_DISTANCE or self.depth >= _MAX_DEPTH:
            return False
        values = table.values
        for name, op in draft.items():
            if op is delta.DELETE or name not in values:
                break
        else:
            return table.names == order
        gone = {name for name, op in draft.items() if op is delta.DELETE}
        new = [name for name in draft if name not in values]
        return [name for name in table.names if name not in gone] + new == order

    def _keyframe(
        self,
        draft: delta.Draft,
        order: list[str],
        packed: Callable[[str], bytes],
        spilled: Mapping[str, delta.Value],
    ) -> list[Any]:
        """Complete a draft so that a keyframe of the table before it and the draft make the state.

        Args:
            draft: what changed.
            order: the keys of the new state.
            packed: gives a value of the new state, packed.
            spilled: values whose bytes stand in DATA records.
        """
        for name in [name for name, op in draft.items() if op is delta.DELETE]:
            del draft[name]
        listed: list[Any] = []
        for name in order:
            if name in spilled:
                listed += (name, delta.encode_entry(spilled[name], self.end))
                continue
            old = self.table.values.get(name) if self.table is not None else None
            op = draft.get(name)
            if not isinstance(op, delta.Set | delta.SetCompressed):
                assert old is not None
                if not delta.is_inlined(old):
                    listed += (name, delta.encode_entry(old, self.end))
                    continue
                draft[name] = delta.Set(packed(name))
            listed += (name, None)
        return listed

    def _packer(self, state: FrozenDict) -> Callable[[str], bytes]:
        serializer = self.serializer
        if serializer is not None:
            return lambda _: serializer.dumps(state)
        return lambda name: self.codec.pack(state[name], name)

    # Other records

    def put_packed(self, entry: StoredCheckpoint, values: Mapping[str, bytes]) -> None:
        """Record values, packed by `pack_writes`, beside a checkpoint."""
        offset = self._write(log.WRITE, payloads.pack_writes(entry.id, values), self._flags_about(entry))
        entry.add_writes(values, offset)

    def put_tags(self, entry: StoredCheckpoint, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add tags to a checkpoint and take some off."""
        self._write(log.MARK, payloads.pack_tags(entry.id, add, remove), self._flags_about(entry))
        entry.tags = payloads.merge_tags(entry.tags, add, remove)

    def _flags_about(self, entry: StoredCheckpoint) -> int:
        """The flags of a record about a checkpoint: whether that is another one than the last."""
        is_last = self.last_checkpoint is not None and self.last_checkpoint.id == entry.id
        return 0 if is_last else log.SCATTERED

    def finish(self, type: int, version: int) -> None:
        """Append the record that ends this log."""
        self._write(type, payloads.packb([version, time_ns() // 1000]))

    # Writing

    def _write(self, type: int, payload: bytes, flags: int = 0, back: int = 0, key: int = 0) -> int:
        """Append a record in one write and return where it stands; on an error the file is as it was.

        Raises:
            CheckpointSerializationError: the record would be longer than a reader accepts. Nothing was changed.
            OSError: the file system refused.
        """
        if len(payload) > log.MAX_PAYLOAD:
            raise CheckpointSerializationError(
                "", "record", f"it takes {len(payload)} bytes, and a record has at most {log.MAX_PAYLOAD}"
            )
        birth = b""
        if self.fd < 0:
            try:
                birth = self._create()
            except BaseException:
                self.close()
                raise
        offset = self.end or len(birth)
        if self.version < log.MAJOR:
            # Only the record that ends a log is appended to one of version 1; all others come after the upgrade.
            frame = log.pack_frame_v1(offset, self.fid, self.seq, type, payload, flags, back, key)
        else:
            if self.is_scattered or flags & (log.SCATTERED | log.REPLACE):
                self.is_scattered = True
                flags |= log.SCATTERED
            unsynced = 0 if self.is_synced_before_use else offset - self.synced
            frame = log.pack_frame(offset, self.fid, self.seq, type, payload, flags, back, key, unsynced, self.boot)
        try:
            self._append(birth + frame if birth else frame)
        except BaseException:
            if birth:
                self._abandon()
            raise
        self.end = offset + len(frame)
        self.seq += 1
        return offset

    def _abandon(self) -> None:
        """Remove the file of a log whose first write failed; nothing in it was acknowledged."""
        self.close()
        with suppress(OSError):
            self.io.unlink(self.path)

    def _append(self, data: bytes) -> None:
        start = self.end
        try:
            done = self.io.append(self.fd, data)
            # A short write is how a full disk shows first: go on, and the next one says why.
            while done < len(data):
                done += self.io.append(self.fd, data[done:])
        except BaseException:
            self._undo(start)
            raise

    def _undo(self, start: int) -> None:
        """Cut off what was appended from `start` on."""
        try:
            self.io.truncate(self.fd, start)
        except OSError:
            # Whoever comes next finds a torn tail and sets it aside.
            _LOGGER.warning("%s: a write that failed could not be undone; the next writer will", self.path)
            self.close()
            return
        try:
            # Or else a power loss might mix sectors of it with those that come in its place.
            self.io.fdatasync(self.fd)
        except OSError:
            self.suspect = True

    def _create(self) -> bytes:
        """Make the file of a log that does not exist yet; returns what it begins with."""
        self.make_directories()
        self.fd = self.io.open(self.path, write=True, create=True, append=True)
        if size := self.io.fstat(self.fd).st_size:
            content = FileRange(io=self.io, fd=self.fd, start=0, end=size)
            if not content.is_zero():
                content.salvage(os.path.dirname(self.path), f"{layout.TORN}0-0")
            self.io.truncate(self.fd, 0)
        self.header = new_header(self._digest, 1)
        self.fid, self.seq, self.end = self.header.fid, META_RECORDS, 0
        return self.header.pack() + self.pack_meta_frames(self.fid)

    def pack_meta_frames(self, fid: int) -> bytes:
        """The first records: whose log this is, twice, so that one damaged copy costs nothing."""
        meta = {"thread": self.thread_id, "ns": self.namespace, "opaque": self.serializer is not None}
        frames, payload = b"", payloads.packb(meta)
        for seq in range(META_RECORDS):
            offset = log.HEADER_SIZE + len(frames)
            frames += log.pack_frame(offset, fid, seq, log.META, payload, unsynced=offset, boot=self.boot)
        return frames

    def begin(self, header: log.Header, meta_frames: bytes) -> None:
        """Create the file at this log's path, which does not exist yet."""
        beginning = header.pack() + meta_frames
        self.fd = self.io.open(self.path, write=True, create=True, append=True)
        self.header, self.fid, self.seq = header, header.fid, META_RECORDS
        self._append(beginning)
        self.end = len(beginning)

    # Recovery

    @property
    def acknowledged_end(self) -> int:
        """Where the log ends without the records at its end that no put has acknowledged."""
        if self.unacknowledged is not None and self.unacknowledged[1] == self.end:
            return self.unacknowledged[0]
        return self.end

    def cut_off_unacknowledged(self) -> None:
        """Cut off the records that no put has acknowledged, after rewriting the log has failed too.

        The disk may still hold them, so the log stays suspect; but not one that is empty now.
        """
        if self.unacknowledged is None or self.fd < 0 or self.unacknowledged[1] != self.end:
            return
        start, end = self.unacknowledged
        try:
            try:
                self.io.truncate(self.fd, start)
                self.suspect = start > 0
            except OSError:
                self._write_zeros(start, end)
        except OSError:
            _LOGGER.exception("%s: a put that failed could not be undone; the next writer will", self.path)
        else:
            self.unacknowledged = None
        self.close()

    def _write_zeros(self, start: int, end: int) -> None:
        """Write zeros over the last records, which mean "nothing yet" to every reader."""
        fd = self.io.open(self.path, write=True)
        try:
            while start < end:
                start += self.io.write_at(fd, start, bytes(min(_PART, end - start)))
        finally:
            self.io.close(fd)

    def refresh_to_write(self) -> bool:
        """As `refresh`, and cut off a torn tail; the caller holds the short lock."""
        if self.fd >= 0 and self.closed_by is None:
            found = self.io.fstat(self.fd)
            if found.st_size == self.end and found.st_nlink:
                return True
        live = self.refresh()
        if live and (size := self.io.fstat(self.fd).st_size) > self.end:
            if self.version == log.MAJOR and self.file.is_zero(self.end, size):
                self.io.truncate(self.fd, self.end)
            else:
                self.set_aside()
        return live

    def set_aside(self) -> None:
        """Keep what a write that never finished has left in a file of its own, and cut it off."""
        assert self.header is not None
        size = self.io.fstat(self.fd).st_size
        directory = os.path.dirname(self.path)
        name = f"{layout.TORN}{self.header.generation}-{self.end}"
        name = FileRange(io=self.io, fd=self.fd, start=self.end, end=size).salvage(directory, name)
        self.io.truncate(self.fd, self.end)
        try:
            self.io.fsync(self.fd)
        except OSError:
            self.suspect = True
            raise
        self.synced = self.end
        self.io.fsync_dir(directory)
        _LOGGER.warning(
            "%s: the last write never finished; its %d bytes are set aside in %s", self.path, size - self.end, name
        )


def pack_writes(codec: Codec, values: Mapping[str, Any]) -> dict[str, bytes]:
    """Pack values that are to be recorded beside a checkpoint.

    Raises:
        CheckpointSerializationError: a value cannot be stored, or they do not fit into one record.
    """
    packed = {key: codec.pack(value, key) for key, value in values.items()}
    length = sum(len(key) * _LONGEST_CHARACTER + len(value) for key, value in packed.items())
    if length > _longest_data():
        reason = f"they take {length} bytes, and one record has at most {_longest_data()}; record them in parts"
        raise CheckpointSerializationError("writes", "dict", reason)
    return packed


def _longest_data() -> int:
    """How many bytes of values a record may bring: the rest of its payload needs room, too."""
    return log.MAX_PAYLOAD - log.MAX_PAYLOAD // 16


def _check_entry(entry: StoredCheckpoint) -> None:
    """Refuse what a reader would refuse.

    Raises:
        CheckpointSerializationError: a field of the checkpoint cannot be stored.
    """
    # One expression for the usual case: this is part of every put.
    if not (
        entry.id.__class__ is entry.node.__class__ is str
        and (entry.next is None or entry.next.__class__ is str)
        and (entry.parent is None or entry.parent.__class__ is str)
    ):
        _check_texts(entry)
    if not payloads.FIRST_TIME <= entry.created <= payloads.LAST_TIME:
        raise CheckpointSerializationError("created_at", "datetime", "UTC has no year for it")


def _check_texts(entry: StoredCheckpoint) -> None:
    for name, value in (("id", entry.id), ("node_id", entry.node)):
        if not isinstance(value, str):
            raise CheckpointSerializationError(name, type(value).__name__, "it must be a string")
    for name, maybe in (("next_node_id", entry.next), ("parent_id", entry.parent)):
        if maybe is not None and not isinstance(maybe, str):
            raise CheckpointSerializationError(name, type(maybe).__name__, "it must be a string or None")


def new_header(digest: bytes, generation: int) -> log.Header:
    """The header of a new file."""
    fid = int.from_bytes(os.urandom(4), "little") or 1
    return log.Header(fid, generation, time_ns(), digest)


def _checked(name: Any) -> str:
    if name.__class__ is not str:
        raise CheckpointSerializationError(str(name), type(name).__name__, "the keys of a state are strings")
    return str(name)


def _continues(old: Any, new: FrozenList) -> bool:
    return old.__class__ is FrozenList and len(old) <= len(new) and all(map(is_, old, new)) and old.kind != PRIVATE


_ABSENT: Final = object()
