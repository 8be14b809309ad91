"""One open log of one namespace: its tail, its index when somebody needs it, reading a state, appending a record.

Theory of operation. Only the end of a log is needed to go on with it: the last checkpoint record, and back to its
keyframe. So a log is opened from its tail, and the index over all of it is built by one scan when a checkpoint is asked
for by id or the whole history is, and is kept up to date from then on. Every use begins with `refresh`, which costs one
fstat while nobody else has written. The caller holds `mutex` throughout, and the thread's short lock for appending.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from graphkit import Checkpoint
from graphkit.abc import StateSerializer
from graphkit.codec import MalformedDataError
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointStorageError,
)
from graphkit.values import PRIVATE, FrozenDict, freeze, private_copy
from savers import _delta as delta
from savers._filesystem import log, payloads
from savers._filesystem.io import boot_number
from savers._filesystem.payloads import StoredCheckpoint

_LOOKED_AT: Final = 8 << 10

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from savers._filesystem.io import FileIO


_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class Index:
    """All checkpoints of a log in the order of the history, oldest first."""

    def __init__(self) -> None:
        self.checkpoints: list[StoredCheckpoint] = []
        self._places: dict[str, int] = {}

    def find(self, id: str) -> StoredCheckpoint | None:
        """The checkpoint with this id; the newest of several."""
        place = self._places.get(id)
        return None if place is None else self.checkpoints[place]

    def add(self, entry: StoredCheckpoint, target: str | None) -> bool:
        """Take in a record that follows; False if it replaces a checkpoint that there is not."""
        if target is None:
            self._places[entry.id] = len(self.checkpoints)
            self.checkpoints.append(entry)
            return True
        place = self._places.get(target)
        if place is None:
            return False
        old = self.checkpoints[place]
        entry.writes, entry.cleared, entry.tags = old.writes, old.cleared, old.tags
        self.checkpoints[place] = entry
        if target != entry.id:
            self._places = {one.id: number for number, one in enumerate(self.checkpoints)}
        return True


class LogReader:
    """An open log. Not for several threads at once: hold `mutex`."""

    expects_release = False
    """Whether a log that ends in RELEASE is what we are looking for."""

    def __init__(
        self,
        io: FileIO,
        path: str,
        owner: tuple[str, str],
        digest: bytes,
        codec: Codec,
        serializer: StateSerializer | None,
    ) -> None:
        self.io, self.path = io, path
        self.thread_id, self.namespace = owner
        self.mutex = threading.RLock()
        self.sync_mutex = threading.Lock()
        self.pins = 0
        """How many callers are syncing outside the mutex; the descriptor is closed after the last."""
        self.suspect = False
        """An fsync failed: what the file holds may not be on the disk, whatever a later fsync says."""
        self._digest, self._codec, self._serializer = digest, codec, serializer
        self.was_removed = False
        """The last refresh found that the file was removed, and not by a delete or a release."""
        self._fds_to_close: list[int] = []
        self.boot = boot_number()
        self.fd = -1
        self._reset()

    def _reset(self) -> None:
        self.header: log.Header | None = None
        self.version = log.MAJOR
        """The major version of the file; that of new files if there is none."""
        self.fid = 0
        self.end = 0
        """Where the next record goes."""
        self.synced = 0
        """Up to here the file is known to be on the disk."""
        self.creation_synced = False
        self.read_only_error: OSError | None = None
        """Why the file is open for reading only, if it is."""
        self.seq = 0
        self.is_scattered = False
        """Whether what belongs to a checkpoint may stand anywhere behind it; see SCATTERED."""
        self.closed_by: log.Frame | None = None
        """The RELEASE or TOMBSTONE record at the end, if any."""
        self.last_checkpoint: StoredCheckpoint | None = None
        """The last checkpoint record, which the next one is relative to."""
        self.depth = 0
        self.table: delta.Table | None = None
        self.state: FrozenDict | None = None
        """The tail's state, if it is at hand."""
        self.keyframe_length = 0
        self.keyframe_end = 0
        self.index: Index | None = None

    @property
    def file(self) -> log.LogFile:
        """The open file, for the functions that find and check records."""
        return log.LogFile(io=self.io, fd=self.fd, path=self.path, fid=self.fid, version=self.version)

    # Opening and closing

    def close(self) -> None:
        """Close the descriptor, now or when the last sync is over; the next use opens the file again."""
        if self.fd >= 0:
            if self.pins:
                self._fds_to_close.append(self.fd)
            else:
                self.io.close(self.fd)
            self.fd = -1
        self._reset()

    def drop_caches(self) -> None:
        """Forget the state and the index; they are read again when they are needed."""
        self.state = self.index = None

    def __del__(self) -> None:
        # A saver that was dropped without being closed must not keep descriptors.
        with suppress(Exception):
            for fd in (self.fd, *self._fds_to_close):
                if fd >= 0:
                    self.io.close(fd)

    def unpin(self) -> None:
        """A caller has finished syncing."""
        self.pins -= 1
        if not self.pins:
            while self._fds_to_close:
                self.io.close(self._fds_to_close.pop())

    def refresh(self) -> bool:
        """See what others have done since; whether there is a live history. Opens the file if need be.

        Raises:
            CheckpointCorruptionError: the log is damaged.
            CheckpointFormatError: it needs a newer graphkit.
        """
        if self.fd >= 0:
            try:
                found = self.io.fstat(self.fd)
                if found.st_size == self.end and found.st_nlink and (self.closed_by is None or self.expects_release):
                    return True
                if found.st_nlink and found.st_size > self.end > 0 and self.closed_by is None:
                    self._read_on(found.st_size)
                    if self.closed_by is None:
                        return True
                was_removed = not found.st_nlink and not self._has_ended(found.st_size)
            except BaseException:
                # Half of it may have been taken in.
                self.close()
                raise
            self.close()
            is_live = self._open()
            self.was_removed = was_removed and not is_live
            return is_live
        self.was_removed = False
        return self._open()

    def _has_ended(self, size: int) -> bool:
        """Whether a file that has no name any more was released or deleted, rather than removed behind our back."""
        if self.closed_by is None and size > self.end > 0:
            with suppress(CheckpointerError):
                self._read_on(size)
        return self.closed_by is not None

    def _open(self) -> bool:
        try:
            self.fd = self.io.open(self.path, write=True, append=True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # Who may only read, does: on a read-only file system, too.
            if error.errno not in _READ_ONLY:
                raise
            self.fd = self.io.open(self.path)
            self.read_only_error = error
        try:
            size = self.io.fstat(self.fd).st_size
            start = self._read_beginning(size)
            if not self._read_end(size, start):
                self._read_all(size)
        except log.IncompleteLog:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        return self.closed_by is None or self.expects_release

    def _read_beginning(self, size: int, data: bytes | None = None) -> int:
        """Check the header and the META record; returns where the records begin. `data`: the file's beginning."""
        if data is None:
            data = self.io.read_at(self.fd, 0, min(size, 1 << 14))
        if (
            len(data) >= log.HEADER_SIZE
            and log.is_headless(data)
            and self.file._replace(fid=None).vouched_end(0, size) <= 0
        ):
            raise log.IncompleteLog
        self.header = log.read_header(self.path, data)
        self.fid, self.version = self.header.fid, self.header.major
        meta = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, self.fid)
        if meta == "" and len(data) < size:
            data = self.io.read_at(self.fd, 0, min(size, 1 << 20))
            meta = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, self.fid)
        if isinstance(meta, str) or meta.type != log.META or meta.seq:
            reason = "the first record is not the log's description"
            if isinstance(meta, str):
                reason = meta or "the record is cut short"
            # Of what the same write held, and those that did not wait for it, later sectors may be there alone.
            file = self.file
            if not file.vouched_end(log.HEADER_SIZE, size) and log.is_torn(file, log.HEADER_SIZE, size):
                raise log.IncompleteLog
            raise CheckpointCorruptionError(self.path, log.HEADER_SIZE, reason)
        self._check_owner(payloads.unpack_payload(self.path, meta))
        self.seq, self.end = 1, meta.end
        return meta.end

    def _check_owner(self, meta: Any) -> None:
        if not isinstance(meta, dict) or meta.get("thread") != self.thread_id or meta.get("ns") != self.namespace:
            raise CheckpointFormatError(self.path, "it belongs to another thread; put the file back where it came from")
        opaque = bool(meta.get("opaque"))
        if opaque is not (self._serializer is not None):
            how = "with a state_serializer" if opaque else "without a state_serializer"
            raise CheckpointFormatError(self.path, f"it was written {how}; open the store in the same way")

    def _read_end(self, size: int, start: int) -> bool:
        """Find the last checkpoint from the end of the file; False if the log must be read from its beginning."""
        tail = log.BackwardReader(self.file, size)
        if self.version == log.MAJOR:
            tail.skip_zeros()
        end = tail.offset
        after: list[log.Frame] = []
        while (frame := tail.step()) is not None:
            log.check_known(self.path, frame)
            after.append(frame)
            self.synced = max(self.synced, frame.vouched)
            if frame.type in {log.CHECKPOINT, log.META}:
                break
        else:
            return False
        if not self._has_unlost_end(tail, after, end):
            return False
        self.seq, self.end = after[0].seq + 1, end
        self.is_scattered = after[0].is_scattered
        last = after.pop()
        if last.type == log.CHECKPOINT:
            try:
                self._load_last_checkpoint(last)
            except CheckpointCorruptionError:
                return False  # Reading from the beginning tells damage from records that a power loss took.
        for frame in reversed(after):
            self._take_other(frame)
        return end >= start

    def _has_unlost_end(self, tail: log.BackwardReader, seen: Sequence[log.Frame], end: int) -> bool:
        """Whether the records are there that a power loss may have taken while it left later ones.

        Those are the records that no later one vouches for. Nothing is lost within one boot, so of a log that was
        written in this one only the last 8 KiB are looked at, in case the file comes from elsewhere.
        """
        last, frame = seen[0], seen[-1]
        is_same_boot = last.boot == self.boot != 0
        limit = end - _LOOKED_AT if is_same_boot else 0
        while frame.offset > max(self.synced, limit) and frame.type != log.META:
            before = tail.step()
            if before is None:
                return False
            frame = before
            self.synced = max(self.synced, frame.vouched)
        if last.boot and self.boot and not is_same_boot:
            self.synced = end  # What could be read in a later boot than it was written in is on the disk.
        return True

    def _load_last_checkpoint(self, last: log.Frame) -> None:
        key = last.offset - last.key
        for depth, (decoded, end) in enumerate(self._chain(key, last.end)):
            self._advance(decoded, depth, end)
        assert self.last_checkpoint is not None
        if self.last_checkpoint.offset != last.offset:
            raise CheckpointCorruptionError(self.path, last.offset, "its keyframe does not lead to it")

    def _advance(self, decoded: payloads.DecodedRecord, depth: int, end: int) -> None:
        if decoded.table is not None:
            self.table = self._build_table(decoded)
            self.keyframe_length, self.keyframe_end = self.table.length, end
        elif self.table is not None:
            self._apply_change(self.table, decoded)
        self.last_checkpoint, self.depth, self.state = decoded.checkpoint, depth, None

    def _read_all(self, size: int) -> None:
        """Read the log forward from its beginning, as far as it is good."""
        self.index = Index()
        self.table = self.last_checkpoint = self.state = None
        self.seq, self.end = 1, self._first_record()
        self._read_on(size)

    def _first_record(self) -> int:
        return log.read_frame(self.file, log.HEADER_SIZE, log.MAX_PAYLOAD).end

    def _read_on(self, size: int) -> None:
        """Take in what stands behind the known end."""
        for frame in self.scan(self.end, size, self.seq):
            self._take_frame(frame)
            self.seq, self.end, self.synced = frame.seq + 1, frame.end, max(self.synced, frame.vouched)
            self.is_scattered = frame.is_scattered

    def scan(self, start: int, end: int, seq: int, data: bytes = b"") -> Iterator[log.Frame]:
        """Yield the records of this log between two positions; see `log.scan`."""
        return log.scan(self.file, start, end, seq, data)

    def _take_frame(self, frame: log.Frame, *, tracked: bool = True) -> None:
        if frame.type != log.CHECKPOINT:
            self._take_other(frame)
            return
        base = self.last_checkpoint
        decoded = payloads.decode_checkpoint(self.path, frame, base, self._codec.unpack)
        is_key = frame.flags & log.KEY
        if decoded.checkpoint.keyframe_offset != (frame.offset if is_key or base is None else base.keyframe_offset):
            raise CheckpointCorruptionError(self.path, frame.offset, "it names another record as its keyframe")
        depth = 0 if is_key else self.depth + 1
        if tracked:
            self._advance(decoded, depth, frame.end)
        else:
            self.last_checkpoint, self.depth = decoded.checkpoint, depth
        self._add_to_index(decoded.checkpoint, decoded.target)

    def _add_to_index(self, entry: StoredCheckpoint, target: str | None) -> None:
        if self.index is not None and not self.index.add(entry, target):
            raise CheckpointCorruptionError(self.path, entry.offset, "it replaces a checkpoint that is not there")

    def _take_other(self, frame: log.Frame) -> None:
        if frame.type in {log.RELEASE, log.TOMBSTONE}:
            self.closed_by = frame
        else:
            self._apply_writes_and_tags(frame, self._find_loaded)

    def _apply_writes_and_tags(self, frame: log.Frame, known: Callable[[str], StoredCheckpoint | None]) -> None:
        if frame.type == log.WRITE:
            owner, values = payloads.decode_writes(self.path, frame)
            if (entry := known(owner)) is not None:
                entry.add_writes(values, frame.offset)
        elif frame.type == log.MARK:
            owner, add, remove = payloads.decode_tags(self.path, frame)
            if (entry := known(owner)) is not None:
                entry.tags = payloads.merge_tags(entry.tags, add, remove)

    def _find_loaded(self, id: str) -> StoredCheckpoint | None:
        if self.index is not None:
            return self.index.find(id)
        return self.last_checkpoint if self.last_checkpoint is not None and self.last_checkpoint.id == id else None

    def read_writes(self, entry: StoredCheckpoint) -> dict[str, Any]:
        """What was recorded beside a checkpoint, in the order of its first recording."""
        packed = self.read_packed_writes(entry)
        try:
            return {key: self._codec.unpack(value, key) for key, value in packed.items()}
        except MalformedDataError as error:
            reason = f"what is recorded beside it makes no sense: {error}"
            raise CheckpointCorruptionError(self.path, entry.offset, reason) from error

    def read_packed_writes(self, entry: StoredCheckpoint) -> dict[str, bytes]:
        """What was recorded beside a checkpoint, packed, in the order of its first recording."""
        frames: dict[int, Mapping[str, bytes]] = {}
        for offset in entry.writes.values():
            if offset not in frames:
                frame = log.read_frame(self.file, offset, self.end)
                frames[offset] = payloads.decode_writes(self.path, frame)[1]
        return {key: frames[offset][key] for key, offset in entry.writes.items()}

    def read_closing_version(self) -> int:
        """The version that the RELEASE record at the end names."""
        assert self.closed_by is not None
        return payloads.decode_ending(self.path, self.closed_by)

    def make_checkpoint(
        self, entry: StoredCheckpoint, state: FrozenDict | None, load: Callable[[], FrozenDict] | None
    ) -> Checkpoint:
        """An entry as a Checkpoint, with its state or the way to load it."""
        return Checkpoint.from_stored(
            id=entry.id,
            node_id=entry.node,
            next_node_id=entry.next,
            parent_id=entry.parent,
            created_us=entry.created,
            metadata=private_copy(entry.metadata),
            state=state,
            load=load,
        )

    # Looking things up

    def load_index(self) -> Index:
        """The index, built by a scan of the log if this is the first time."""
        if self.fd < 0:
            return Index()
        if self.index is None:
            end, kept = self.end, (self.table, self.state, self.keyframe_length, self.keyframe_end)
            try:
                self.table, self.last_checkpoint, self.index = None, None, Index()
                self.seq, self.end = 1, self._first_record()
                for frame in self.scan(self.end, end, 1):
                    self._take_frame(frame, tracked=False)
                    self.seq, self.end = frame.seq + 1, frame.end
            except BaseException:
                self.close()
                raise
            self.table, self.state, self.keyframe_length, self.keyframe_end = kept
        return self.index

    def find_latest(self) -> StoredCheckpoint | None:
        """The last checkpoint of the history."""
        if self.index is None and (self.last_checkpoint is None or not self.last_checkpoint.is_replacement):
            return self.last_checkpoint
        entries = self.load_index().checkpoints
        return entries[-1] if entries else None

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """The checkpoint with an id, or the latest."""
        if id is None:
            return self.find_latest()
        if (
            self.last_checkpoint is not None
            and self.last_checkpoint.id == id
            and not self.last_checkpoint.is_replacement
        ):
            return self.last_checkpoint
        return self.load_index().find(id)

    # Reading a state

    def load_state(self, entry: StoredCheckpoint) -> FrozenDict:
        """The state of a checkpoint of this log.

        Raises:
            CheckpointCorruptionError: its bytes are damaged.
            CheckpointSerializationError: they hold a type that is not registered.
        """
        is_tail = self.last_checkpoint is not None and entry.offset == self.last_checkpoint.offset
        if is_tail and self.state is not None and self.state.kind != PRIVATE:
            return self.state
        table = self.load_table(entry)
        bodies = self.bodies(table, entry)
        try:
            state = self._decode(table, bodies)
        except CheckpointerError:
            raise
        except delta.MALFORMED as error:
            raise CheckpointCorruptionError(self.path, entry.offset, f"the state makes no sense: {error}") from error
        if is_tail:
            self.state = state
        return state

    def _decode(self, table: delta.Table, bodies: Sequence[bytes]) -> FrozenDict:
        if self._serializer is not None:
            return FrozenDict(freeze(dict(self._serializer.loads(bodies[0]))))
        unpack, state = self._codec.unpack, FrozenDict()
        for (name, value), body in zip(table.values.items(), bodies, strict=True):
            dict.__setitem__(state, name, unpack(delta.pack_header(value.kind, value.count) + body, name))
        return state

    def load_table(self, entry: StoredCheckpoint) -> delta.Table:
        """The packed state of a checkpoint; not to be changed."""
        if self.table is not None and self.last_checkpoint is not None and entry.offset == self.last_checkpoint.offset:
            return self.table
        table: delta.Table | None = None
        for decoded, _ in self._chain(entry.keyframe_offset, entry.offset + entry.size):
            if decoded.table is not None:
                table = self._build_table(decoded)
            elif table is not None:
                self._apply_change(table, decoded)
        if table is None:
            raise CheckpointCorruptionError(self.path, entry.offset, "it has no keyframe")
        return table

    def bodies(self, table: delta.Table, entry: StoredCheckpoint) -> list[bytes]:
        """The bytes of all values of a packed state."""
        return self.read_bodies(table.values.values(), entry)

    def read_bodies(self, values: Iterable[delta.Value], entry: StoredCheckpoint) -> list[bytes]:
        """The bytes of some values of a packed state."""
        try:
            return delta.read_bodies(values, self._read)
        except MemoryError as error:
            # Compressed bytes that were forged may expand to 4 GiB; so may a state on a machine that is too small.
            cause = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), self.path)
            raise CheckpointStorageError(self.path, "read a state of", cause) from error
        except delta.Mismatch:
            raise CheckpointCorruptionError(self.path, entry.offset, "the state's checksum is wrong") from None
        except delta.MALFORMED as error:
            raise CheckpointCorruptionError(self.path, entry.offset, f"the state makes no sense: {error}") from error

    def _read(self, start: int, length: int) -> bytes:
        if start < 0 or length < 0 or start + length > self.end:
            raise delta.Mismatch
        return self.io.read_at(self.fd, start, length)

    def find_recent(self, limit: int) -> list[StoredCheckpoint]:
        """The last entries, oldest first; reads no further back than to the keyframe of the first of them."""
        found = None if self.index is not None else self._from_the_end(limit)
        return (self.load_index() if found is None else found).checkpoints[-limit:]

    def _from_the_end(self, limit: int) -> Index | None:
        """An index of the end of the log with at least so many entries; None if it is to be read whole."""
        tail, oldest, count = log.BackwardReader(self.file, self.end), None, 0
        while count < limit and (frame := tail.step()) is not None:
            if frame.type == log.CHECKPOINT:
                oldest, count = frame, count + 1
        if oldest is None or count < limit:
            return None
        index, base = Index(), None
        start = oldest.offset - oldest.key
        first = log.read_frame(self.file, start, self.end)
        for frame in self.scan(start, self.end, first.seq):
            if frame.type == log.CHECKPOINT:
                decoded = payloads.decode_checkpoint(self.path, frame, base, self._codec.unpack)
                base = decoded.checkpoint
                index.add(base, decoded.target)  # what takes the place of one further back is not of these
            else:
                self._apply_writes_and_tags(frame, index.find)
        return index if len(index.checkpoints) >= limit else None

    def _chain(self, key: int, end: int) -> list[tuple[payloads.DecodedRecord, int]]:
        """The checkpoint records from a keyframe on, each with its end."""
        if not log.HEADER_SIZE <= key < end:
            raise CheckpointCorruptionError(self.path, end, "the record before it names no keyframe")
        data = self.io.read_at(self.fd, key, end - key)
        chain: list[tuple[payloads.DecodedRecord, int]] = []
        offset = key
        base: StoredCheckpoint | None = None
        while offset < end:
            frame = log.parse_frame(data, offset - key, offset, self.fid)
            if isinstance(frame, str):
                raise CheckpointCorruptionError(self.path, offset, frame or "the record is cut short")
            if frame.type == log.CHECKPOINT:
                if base is None and not frame.flags & log.KEY:
                    raise CheckpointCorruptionError(self.path, offset, "it is not the keyframe that it should be")
                decoded = payloads.decode_checkpoint(self.path, frame, base, self._codec.unpack)
                chain.append((decoded, frame.end))
                base = decoded.checkpoint
            offset = frame.end
        return chain

    def _apply_change(self, table: delta.Table, decoded: payloads.DecodedRecord) -> None:
        try:
            table.apply(decoded.ops, decoded.data, decoded.start)
        except delta.MALFORMED as error:
            reason = f"the change makes no sense: {error}"
            raise CheckpointCorruptionError(self.path, decoded.checkpoint.offset, reason) from error

    def _build_table(self, decoded: payloads.DecodedRecord) -> delta.Table:
        """The table that a keyframe carries, with the keyframe's own changes."""
        position, listed = decoded.checkpoint.offset, decoded.table or ()
        table = delta.Table(opaque=self._serializer is not None)
        seen: dict[int, payloads.DecodedRecord] = {position: decoded}
        depths: dict[str, int] = {}
        try:
            table.names = list(listed[::2])
            for name, entry in zip(table.names, listed[1::2], strict=True):
                value = delta.Value(delta.OPAQUE, 0, 0, 0, [])
                if entry is not None:
                    value = delta.decode_entry(
                        entry,
                        position,
                        lambda at, name=name: self._find_value_at(at, name, seen),  # type: ignore[misc]
                    )
                depths[name] = value.depth
                table.values[name] = value
        except (*delta.MALFORMED, RecursionError) as error:
            raise CheckpointCorruptionError(self.path, position, f"the keyframe makes no sense: {error}") from error
        self._apply_change(table, decoded)
        for name, value in table.values.items():
            if value.base is None:
                value.set_base(position, depths.get(name, 0))
        return table

    def _find_value_at(self, position: int, name: str, seen: dict[int, payloads.DecodedRecord]) -> delta.Value:
        """A value as the keyframe at a position left it."""
        if position not in seen:
            frame = log.read_frame(self.file, position, self.end)
            seen[position] = payloads.decode_checkpoint(self.path, frame, None, self._codec.unpack)
        decoded = seen[position]
        listed = decoded.table or ()
        table = delta.Table(opaque=self._serializer is not None)
        table.names = list(listed[::2])
        entry = listed[table.names.index(name) * 2 + 1]
        value = delta.Value(delta.OPAQUE, 0, 0, 0, [])
        if entry is not None:
            value = delta.decode_entry(entry, position, lambda at: self._find_value_at(at, name, seen))
        depth = value.depth
        table.values[name] = value
        table.apply_to_key(name, decoded.ops, decoded.data, decoded.start)
        value = table.values[name]
        if value.base is None:
            value.set_base(position, depth)
        return value
