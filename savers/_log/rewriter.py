"""Writes checkpoints of one log to another, and finds out whether a log needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import CHECKPOINT, DATA, HEADER_SIZE, KEY, MARK, SEALED, WRITE, Frame
from savers._log.log_bytes import MemoryLogBytes
from savers._log.packed_history import TableReplay
from savers._log.records import Records
from savers._log.sealing import read_key_id
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from savers._cipher import KeyRing
    from savers._log.log import AnyLog


def replay_states(
    log: AnyLog,
    checkpoints: Sequence[StoredCheckpoint],
    lost_offset: int | None,
) -> Iterator[tuple[StoredCheckpoint, delta.Table]]:
    """Yield each checkpoint with its packed state, reading the log once.

    A checkpoint that replaces another one is not in the order of the log: it, or the checkpoints
    after it, are read by themselves.

    Args:
        log: the log, open.
        checkpoints: the checkpoints, in the order of the history.
        lost_offset: an offset inside the damaged region, if there is one; see TableReplay.
    """
    # A checkpoint can be read in one pass if no later one precedes it in the log.
    in_order: list[bool] = []
    next_offset = log.frames.end
    for stored in reversed(checkpoints):
        in_order.append(stored.offset < next_offset)
        next_offset = min(next_offset, stored.offset)
    replay = TableReplay(log.packed, lost_offset=lost_offset)
    records = log.frames.records
    frames = records.search(HEADER_SIZE, log.frames.end)
    for stored in checkpoints:
        if in_order.pop():
            yield stored, replay.advance_to(stored, frames)
        else:
            own_frames = records.search(stored.keyframe_offset, stored.end)
            yield stored, TableReplay(log.packed, lost_offset=lost_offset).advance_to(stored, own_frames)


class Rewriter:
    """Writes checkpoints of one log to another, each as what changed since the one before it."""

    def __init__(self, source: AnyLog, target: AnyLog) -> None:
        self._source = source
        self._target = target
        self._written: dict[str, delta.Value] = {}
        """The values as they were when they were written: copies, because those of the replay may grow."""

    def write(self, stored: StoredCheckpoint, table: delta.Table) -> None:
        """Write a checkpoint with its pending writes and tags; `table` is its packed state.

        Raises:
            CheckpointCorruptionError: its bytes are not the bytes that were stored.
        """
        source = self._source
        target = self._target
        values = table.values

        def pack(name: str) -> bytes:
            value = values[name]
            (body,) = source.packed.read_bodies([value], stored.offset)
            return delta.pack_header(value.kind, value.count) + body

        draft: delta.Draft = {name: delta.DELETE for name in self._written if name not in values}
        try:
            for name, value in values.items():
                op = self._compare(self._written.get(name), value, partial(pack, name))
                if op is not None:
                    draft[name] = op
        except delta.Mismatch:
            reason = "the state's checksum is wrong"
            raise CheckpointCorruptionError(source.path, stored.offset, reason) from None
        except delta.MALFORMED as error:
            reason = f"the state makes no sense: {error}"
            raise CheckpointCorruptionError(source.path, stored.offset, reason) from error
        new = StoredCheckpoint(
            id=stored.id,
            node=stored.node,
            next=stored.next,
            created=stored.created,
            parent=stored.parent,
            metadata=stored.metadata,
        )
        # `append` may complete the draft.
        changed = list(draft)
        target.writer.append(new, draft, list(values), pack)
        self._check_written(stored, changed, values)
        if stored.writes:
            target.writer.put_writes(new, source.history.chains.read_writes(stored))
        if stored.tags:
            target.writer.put_tags(new, stored.tags, ())
        for name in changed:
            self._written.pop(name, None)
            if name in values:
                self._written[name] = values[name].copy()

    def _compare(
        self, before: delta.Value | None, value: delta.Value, pack: Callable[[], bytes]
    ) -> delta.Operation | bytes | None:
        """Return the operation that makes a value of the one before; None if they are equal.

        The pieces show what both have in common, so that no byte of it is read.
        """
        read_pieces = self._source.packed.read_pieces
        if before is None or before.kind != value.kind:
            return pack()
        op = delta.DROP
        change = delta.find_moved_window(before.pieces, before.length, value)
        if change is None:
            op = delta.SPLICE
            change = delta.compare_pieces(before.pieces, before.length, value)
            added = value.length - (before.length - change.removed)
            if not added and not change.removed and value.count == before.count:
                return None
            if added + delta.SPLICE_COST >= value.length:
                return pack()
        data = read_pieces(value, change.pieces)
        is_at_end = not change.removed and change.prefix == before.length
        if value.kind == delta.LIST and is_at_end and value.count > before.count:
            return delta.Operation(delta.APPEND, (value.count - before.count,), data)
        return delta.replace(
            op,
            count=value.count,
            prefix=change.prefix,
            removed=change.removed,
            crc=value.crc,
            data=data,
        )

    def _check_written(
        self, stored: StoredCheckpoint, changed: Sequence[str], values: Mapping[str, delta.Value]
    ) -> None:
        """Check that the new log has the checksums and lengths of the old one.

        The bytes of pieces are read unchecked.
        """
        written = self._target.writer.load_table().values
        for name in changed:
            value = values.get(name)
            if value is None:
                continue
            if written[name].crc != value.crc or written[name].length != value.length:
                reason = "the state's checksum is wrong"
                raise CheckpointCorruptionError(self._source.path, stored.offset, reason)


def write_all(
    source: AnyLog,
    target: AnyLog,
    checkpoints: Sequence[StoredCheckpoint],
    early: Iterable[StoredCheckpoint],
    *,
    lost_offset: int | None = None,
) -> Iterator[None]:
    """Write checkpoints of one log to another, then early writes; yield after each checkpoint.

    Args:
        source: the log, open.
        target: the other one.
        checkpoints: the checkpoints, in the order of the history.
        early: what waits for its checkpoint.
        lost_offset: an offset inside the damaged region, if there is one; see TableReplay.

    Raises:
        CheckpointCorruptionError: a checkpoint cannot be read.
    """
    rewriter = Rewriter(source, target)
    for stored, table in replay_states(source, checkpoints, lost_offset):
        rewriter.write(stored, table)
        yield
    for waiting in early:
        target.writer.put_early(waiting.id, source.history.chains.read_writes(waiting))


def copy_to_memory(log: AnyLog, checkpoints: Sequence[StoredCheckpoint]) -> bytes:
    """Return the bytes of a log with some of the checkpoints of another one, and its recent early writes."""
    medium = MemoryLogBytes(log.path)
    for _ in write_all(log, log.make_copy(medium), checkpoints, log.history.select_early()):
        pass
    return bytes(medium.data)


def has_unreachable_records(log: AnyLog, checkpoints: Sequence[StoredCheckpoint]) -> bool:
    """Return whether a log has records that were replaced, or that belong to an unfinished put."""
    reachable: set[int] = set()
    # With more MARK records than tagged checkpoints, some of them were replaced.
    max_marks = 0
    for stored in checkpoints:
        reachable.add(stored.offset)
        reachable.update(stored.writes.values())
        max_marks += bool(stored.tags)
    marks = 0
    data_starts: list[int] = []
    for frame in log.frames.records.scan(HEADER_SIZE, log.frames.end, 0):
        if frame.type in {CHECKPOINT, WRITE} and frame.offset not in reachable:
            return True
        if frame.type == DATA:
            data_starts.append(frame.payload_end - len(frame.payload))
            continue
        if data_starts and not _names_all(log, frame, data_starts):
            return True
        data_starts.clear()
        marks += frame.type == MARK
        if marks > max_marks:
            return True
    return bool(data_starts)


def _names_all(log: AnyLog, frame: Frame, data_starts: Sequence[int]) -> bool:
    """Return whether a record is a keyframe that names bytes of each of the DATA records before it.

    `data_starts` are the positions of their first bytes.

    A DATA record that it does not name belongs to a put that did not finish.
    """
    if frame.type != CHECKPOINT or not frame.flags & KEY:
        return False
    table = log.packed.build(payloads.decode_checkpoint(log.path, frame, None, log.codec.unpack))
    named = {start for value in table.values.values() for start in value.pieces[::2]}
    return named.issuperset(data_starts)


def require_keys(key_ring: KeyRing | None) -> KeyRing:
    """Return the keys of a saver.

    Raises:
        CheckpointerConfigurationError: it has none.
    """
    if key_ring is None:
        raise CheckpointerConfigurationError("rotate needs the keys: open the store with `cipher`")
    return key_ring


def needs_rotation(log: AnyLog, key_ring: KeyRing) -> bool:
    """Return whether an open log is plain, or has a record that another key sealed than the one that it should have.

    That is the key that it has of its own, or is to have from now on, or else the current one.
    """
    frames = log.frames
    if frames.seal is None:
        return True
    wanted_id = frames.seal.own_key
    # Of most stores, no history has a key of its own, and a look at all checkpoints can be saved.
    if not wanted_id and (key_ring.has_key_for or log.namespace):
        checkpoints = log.history.load_index().checkpoints
        metadata = checkpoints[0].metadata if checkpoints else {}
        wanted_id = frames.identity.choose_key(log.path, metadata)
    if not wanted_id:
        wanted_id, _ = key_ring.get_current(log.path)
    return any(
        frame.flags & SEALED and read_key_id(frame.payload) != wanted_id
        for frame in Records(frames.bytes, frames.fid).scan(HEADER_SIZE, frames.end, 0)
    )
