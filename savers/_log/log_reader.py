"""Reads the checkpoints of one log: finds them, and reads their states and pending writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from graphkit.values import PRIVATE, FrozenDict, freeze, kind_of
from savers import _delta as delta
from savers._log import log, payloads
from savers._log.chain_scanner import ChainScanner
from savers._log.decoded_chain import MAX_LENGTH, DecodedChain, ReadValue
from savers._log.early_writes import EarlyWrites
from savers._log.index import Index
from savers._log.plain_records import read_plain_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from savers._log.kept_records import KeptRecords
    from savers._log.stored_checkpoint import StoredCheckpoint

_MIN_RUN: Final = 1 << 13
"""If fewer bytes than this remain of what was read, the log is read on."""
_INDEX_WINDOW: Final = 7 << 14
"""Bytes that are read at once for an index. Little enough that the memory of one window serves the
next one: in a new process, touching new memory takes longer than reading into it."""
_LONGEST_SEARCH: Final = 7 << 14
"""The most bytes that are searched for an id at once. More would take new memory each time, which
costs as much as reading into it."""
_SEARCHES: Final = 8
"""How many times the bytes of the log are searched for ids; then an index costs less."""
_MAX_FOUND: Final = 256
"""How many checkpoints that were found by their ids are remembered."""


class LogReader(ChainScanner):
    """An open log whose checkpoints can be found and read; the caller holds `mutex`."""

    # Finding checkpoints

    def load_index(self, kept: KeptRecords | None = None) -> Index:
        """Return the index; the first call builds it by a scan of the log.

        Args:
            kept: what the scan decodes besides checkpoints is added to it.
        """
        if self.fd < 0:
            return Index()
        if self.index is None:
            end = self.end
            table, state = self.table, self.state
            keyframe_length, keyframe_end = self.keyframe_length, self.keyframe_end
            try:
                self.table = None
                self.last_checkpoint = None
                self.index = Index()
                self.early = EarlyWrites()
                self.early_start = self.early_unread = 0
                self.seq = 1
                self.end = self.find_first_record()
                self._read_index(end, kept)
            except BaseException:
                self.close()
                raise
            self.table, self.state = table, state
            self.keyframe_length, self.keyframe_end = keyframe_length, keyframe_end
        return self.index

    def _read_index(self, end: int, kept: KeptRecords | None = None) -> None:
        """Add the records between `self.end` and an offset to the index, without their tables."""
        index = self.index
        assert index is not None
        data = b""
        base = 0
        window = _INDEX_WINDOW
        is_cut = False
        while self.end < end:
            if self.end - base + _MIN_RUN > len(data):
                base = self.end
                wanted = min(window, end - base)
                data = self.io.read_at(self.fd, base, wanted)
                is_cut = len(data) < wanted
                window = _INDEX_WINDOW
            last = self.last_checkpoint
            if last is not None and self.seal is None:
                changes, written = (None, None) if kept is None else (kept.last, kept.written)
                run = read_plain_run(
                    data, base, self.end, end, self.fid, self.seq, last, self.codec.unpack, changes, written
                )
                if run.end > self.end:
                    if run.checkpoints:
                        index.extend(run.checkpoints)
                        self.last_checkpoint = run.checkpoints[-1]
                        self.depth += len(run.checkpoints)
                    self.seq = run.seq
                    self.end = run.end
                    self.is_scattered = run.is_scattered
                    continue
            frame = log.parse_frame(data, self.end - base, self.end, self.fid)
            if frame == "" and len(data) < log.WINDOW and base + len(data) < end and not is_cut:
                # It is longer than what was read, and not missing.
                window = log.WINDOW
                data = b""
                continue
            if isinstance(frame, str) or frame.seq != self.seq:
                # It is longer still, torn or damaged.
                scanned = next(self.scan(self.end, end, self.seq), None)
                if scanned is None:
                    return
                frame = scanned
            log.check_known(self.path, frame)
            decoded = self._take_frame(self.open_frame(frame), with_table=False)
            if kept is not None and decoded is not None:
                kept.add(decoded)
            self.seq = frame.seq + 1
            self.end = frame.end
            self.is_scattered = frame.is_scattered

    def find_latest(self) -> StoredCheckpoint | None:
        """Return the latest checkpoint of the history; None if it is empty."""
        last = self.last_checkpoint
        if self.index is None and (last is None or not last.is_replacement):
            return last
        checkpoints = self.load_index().checkpoints
        return checkpoints[-1] if checkpoints else None

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, or the latest."""
        if id is None:
            return self.find_latest()
        last = self.last_checkpoint
        if last is not None and last.id == id and not last.is_replacement:
            return last
        if self.can_search():
            found = self._search(id)
            if found is not None:
                return found
        return self.load_index().find(id)

    @property
    def _last_offset(self) -> int:
        """The offset of the last CHECKPOINT record; -1 if there is none."""
        last = self.last_checkpoint
        return -1 if last is None else last.offset

    # Finding a checkpoint by its bytes

    def can_search(self) -> bool:
        """Return whether the bytes of the log show where a checkpoint is, and an index costs more."""
        if self.index is not None or self.is_scattered or self.seal is not None:
            return False
        return self.searched <= _SEARCHES * self.end

    def _search(self, id: str) -> StoredCheckpoint | None:
        """Return the newest checkpoint with an id without decoding what is around it.

        The log must be neither sealed nor SCATTERED: then no record replaces a checkpoint, and what
        belongs to one stands behind its record. A UUID stands in the log as 16 bytes, which are
        searched for from the end; the record in which they are found proves itself. Order and age
        of the ids do not matter. Searching 1 MB takes about 0.2 ms, where decoding its records
        takes 10 ms.

        None if it was not found. Only a scan tells whether the checkpoint does not exist, or a
        damaged record holds it.
        """
        found = self.found.get(id)
        if found is not None:
            return found
        for offset in self.search_offsets(id):
            try:
                found = self._read_found(offset)
            except CheckpointCorruptionError:
                return None
            if found is not None and found.id == id:
                if len(self.found) >= _MAX_FOUND:
                    self.found.clear()
                if offset != self._last_offset:
                    # Writers change what is known of the last one.
                    self.found[id] = found
                return found
        return None

    def search_offsets(self, id: str) -> Iterator[int]:
        """Yield where records of checkpoints with an id may begin, the last of them first."""
        raw = payloads.id_bytes(id)
        if raw.__class__ is not bytes:
            return
        # The payload of a checkpoint begins with an array whose first item is the id.
        needle = payloads.BEFORE_UUID + raw
        high = self.end
        length = log.END_READ
        while high > log.HEADER_SIZE:
            low = max(log.HEADER_SIZE, high - length)
            # The bytes may begin before `high` and end behind it.
            data = self.io.read_at(self.fd, low, min(high + len(needle) - 1, self.end) - low)
            self.searched += len(data)
            position = data.rfind(needle)
            while position >= 0:
                yield low + position - 1 - log.FRAME_SIZE
                position = data.rfind(needle, 0, position + len(needle) - 1)
            high = low
            length = min(2 * length, _LONGEST_SEARCH)

    def _read_found(self, offset: int) -> StoredCheckpoint | None:
        """Return the checkpoint whose record begins at an offset; None if none does.

        Raises:
            CheckpointCorruptionError: the record, or one that is needed to read it, is damaged.
        """
        if offset < log.HEADER_SIZE:
            return None
        head = self.io.read_at(self.fd, offset, log.FRAME_SIZE)
        if not head.startswith(log.SYNC) or head[-1] != log.CHECKPOINT:
            return None
        frame = log.read_frame(self.file, offset, self.end)
        keyframe_offset = offset - frame.key
        decoded = None
        if frame.end - keyframe_offset <= MAX_LENGTH:
            decoded = self._get_chain(keyframe_offset, frame.end).find(offset)
        else:
            decoded = self.read_chain(keyframe_offset, frame.end)[-1]
        if decoded is None or decoded.checkpoint.offset != offset:
            raise CheckpointCorruptionError(self.path, offset, "its keyframe does not lead to it")
        stored = decoded.checkpoint.copy_record()
        self.take_early(decoded._replace(checkpoint=stored), EarlyWrites(), offset)
        self._take_following(stored, frame)
        return stored

    def _take_following(self, stored: StoredCheckpoint, frame: log.Frame) -> None:
        """Take in the pending writes and tags that stand between a record and the next checkpoint."""

        def find(id: str) -> StoredCheckpoint | None:
            return stored if id == stored.id else None

        others = EarlyWrites()
        while frame.end < self.end:
            frame = log.read_frame(self.file, frame.end, self.end)
            if frame.type == log.CHECKPOINT:
                return
            self._apply_writes_and_tags(frame, find, others)

    def find_recent(self, limit: int, kept: KeptRecords | None = None) -> list[StoredCheckpoint]:
        """Return the last checkpoints, oldest first.

        Reads no further back than the keyframe of the first of them.

        Args:
            limit: how many checkpoints, at most.
            kept: what is decoded besides checkpoints may be added to it.
        """
        index = None
        if self.index is None:
            if self.recent_end == self.end and len(self.recent) >= limit:
                return list(self.recent[-limit:])
            index = self.index_last_chains(limit, kept) or self._index_end(limit)
            if index is not None:
                self.recent = index.checkpoints
                self.recent_end = self.end
        if index is None:
            index = self.load_index(kept)
        return index.checkpoints[-limit:]

    def recent_now(self) -> Sequence[StoredCheckpoint]:
        """Return the checkpoints that `find_recent` has read, oldest first, if they are still the last ones."""
        return self.recent if self.recent_end == self.end else ()

    def _index_end(self, limit: int) -> Index | None:
        """Return an index of the end of the log with at least `limit` checkpoints.

        None if the log must be read from its beginning.
        """
        backward = log.BackwardReader(self.file, self.end)
        oldest: log.Frame | None = None
        count = 0
        while count < limit and (frame := backward.step()) is not None:
            if frame.type == log.CHECKPOINT:
                oldest = frame
                count += 1
        if oldest is None or count < limit:
            return None
        index = Index()
        early = EarlyWrites()
        base: StoredCheckpoint | None = None
        start = oldest.offset - oldest.key
        chain: DecodedChain | None = None
        first = log.read_frame(self.file, start, self.end)
        for frame in self.scan(start, self.end, first.seq):
            if frame.type == log.CHECKPOINT:
                decoded = payloads.decode_checkpoint(self.path, frame, base, self.codec.unpack)
                base = decoded.checkpoint.copy_record()
                if frame.flags & log.KEY:
                    chain = DecodedChain(self, frame.offset)
                if chain is not None:
                    # The states of the last ones are read next.
                    chain.add(decoded)
                    self.chains.keep(chain)
                    if chain.size > MAX_LENGTH:
                        self.chains.drop(chain)
                        chain = None
                self.take_early(decoded._replace(checkpoint=base), early, start)
                # A replacement of an earlier checkpoint is not added.
                index.add(base, decoded.target)
            else:
                self._apply_writes_and_tags(frame, index.find, early)
        return index if len(index.checkpoints) >= limit else None

    # Reading what belongs to a checkpoint

    def load_state(self, checkpoint: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint of this log.

        Raises:
            CheckpointCorruptionError: its bytes are damaged.
            CheckpointSerializationError: it holds a type that is not registered.
        """
        is_last = checkpoint.offset == self._last_offset
        if is_last and self.state is not None and self.state.kind != PRIVATE:
            return self.state
        table = self.load_table(checkpoint)
        state = self._read_checked(table, checkpoint)
        if is_last:
            self.state = state
            if self.table is None:
                self.keyframe_length = table.length
        return state

    def load_values(self, checkpoint: StoredCheckpoint, is_wanted: Callable[[str], bool]) -> FrozenDict:
        """Return the values of some keys of a state; decode no others.

        Raises the same errors as `load_state`.
        """
        table = self.load_table(checkpoint)
        part = delta.Table(opaque=False)
        for name, value in table.values.items():
            if is_wanted(name):
                # The next record changes the values of the last table.
                part.values[name] = value.copy() if table is self.table else value
        return self._read_checked(part, checkpoint)

    def _read_checked(self, table: delta.Table, checkpoint: StoredCheckpoint) -> FrozenDict:
        try:
            return self._read_state(table, checkpoint)
        except CheckpointerError:
            raise
        except delta.MALFORMED as error:
            reason = f"the state is malformed: {error}"
            raise CheckpointCorruptionError(self.path, checkpoint.offset, reason) from error

    def _read_state(self, table: delta.Table, checkpoint: StoredCheckpoint) -> FrozenDict:
        if self.serializer is not None:
            bodies = self.read_bodies(table.values.values(), checkpoint)
            return FrozenDict(freeze(dict(self.serializer.loads(bodies[0]))))
        past = self.past_values
        known = {name: past.find(name, value) for name, value in table.values.items()}
        found = self._read_unknown(table, known, checkpoint)
        # The next record changes the values of the last table.
        is_changed_later = table is self.table
        state = FrozenDict()
        for name, value in table.values.items():
            read = known[name]
            if read is None:
                packed = found[name]
                if value.kind == delta.BIN and value.count == len(packed):
                    # Nothing is copied: LangGraph's states consist of bytes.
                    decoded: Any = packed
                else:
                    decoded = past.find_items(name, value, packed)
                    if decoded is None:
                        decoded = self.codec.unpack(packed, name)
                if kind_of(decoded) != PRIVATE:
                    kept = value.copy() if is_changed_later else value
                    past.keep(name, ReadValue(kept, packed, decoded))
            else:
                decoded = read.decoded
            dict.__setitem__(state, name, decoded)  # A FrozenDict refuses assignments.
        return state

    def _read_unknown(
        self,
        table: delta.Table,
        known: Mapping[str, ReadValue | None],
        checkpoint: StoredCheckpoint,
    ) -> dict[str, bytes]:
        """Return the bytes of the values of a packed state that are not known, with their headers.

        Those of bytes objects have none; see `delta.header_to_unpack`.
        """
        found: dict[str, bytes] = {}
        missing: dict[str, delta.Value] = {}
        chain = self.chains.find(checkpoint.keyframe_offset)
        record = None if chain is None else chain.find(checkpoint.offset)
        for name, value in table.values.items():
            if known[name] is not None:
                continue
            body = self.past_values.find_body(name, value)
            if body is None and record is not None:
                body = _cut_from_record(value, record)
            if body is None:
                missing[name] = value
            else:
                header = delta.header_to_unpack(value)
                found[name] = header + body if header else body
        if missing:
            found.update(zip(missing, self.read_packed(missing.values(), checkpoint), strict=True))
        return found

    def load_table(self, checkpoint: StoredCheckpoint) -> delta.Table:
        """Return the packed state of a checkpoint; the caller must not change it."""
        if self.table is not None and checkpoint.offset == self._last_offset:
            return self.table
        end = checkpoint.offset + checkpoint.size
        table: delta.Table | None = None
        if end - checkpoint.keyframe_offset <= MAX_LENGTH:
            table = self._get_chain(checkpoint.keyframe_offset, end).build_table(checkpoint.offset)
            if table is not None:
                return table
        for decoded in self.read_chain(checkpoint.keyframe_offset, end):
            if decoded.table is not None:
                table = self.build_table(decoded)
            elif table is not None:
                self.apply_change(table, decoded)
        if table is None:
            raise CheckpointCorruptionError(self.path, checkpoint.offset, "it has no keyframe")
        return table

    def read_writes(self, checkpoint: StoredCheckpoint) -> dict[str, Any]:
        """Return the pending writes of a checkpoint, in the order of their first recording.

        Raises:
            CheckpointCorruptionError: they are damaged.
            CheckpointSerializationError: they hold a type that is not registered.
        """
        packed = self.read_packed_writes(checkpoint)
        try:
            return {key: self.codec.unpack(value, key) for key, value in packed.items()}
        except MalformedDataError as error:
            reason = f"a pending write is malformed: {error}"
            raise CheckpointCorruptionError(self.path, checkpoint.offset, reason) from error

    def read_packed_writes(self, checkpoint: StoredCheckpoint) -> dict[str, bytes]:
        """Return the pending writes of a checkpoint, packed, in the order of `read_writes`."""
        frames: dict[int, Mapping[str, bytes]] = {}
        for offset in checkpoint.writes.values():
            if offset not in frames:
                frame = log.read_frame(self.file, offset, self.end)
                _, frames[offset] = payloads.decode_writes(self.path, frame)
        return {key: frames[offset][key] for key, offset in checkpoint.writes.items()}

    def read_closing_version(self) -> int:
        """Return the version that the RELEASE record at the end names."""
        assert self.closed_by is not None
        return payloads.decode_ending(self.path, self.closed_by)


def _cut_from_record(value: delta.Value, record: payloads.DecodedRecord) -> bytes | None:
    """Return the bytes of a value that a record sets, which need not be read again.

    None if they are elsewhere, or do not have the right checksum.
    """
    if value.count_pieces() != 1 or value.block is not None:
        return None
    pieces = value.pieces
    start = pieces[0] - record.start
    if start < 0:
        return None
    body = record.data[start : start + value.length]
    return body if len(body) == value.length == pieces[1] and crc32(body) == value.crc else None
