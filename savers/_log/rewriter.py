"""Writes checkpoints of one log to another, and finds what of a log no reader can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from graphkit.errors import CheckpointCorruptionError
from savers import _delta as delta
from savers._log import log, payloads
from savers._log.log_writer import NewCheckpoint
from savers._log.replay import Replay
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from savers._log.log_reader import LogReader
    from savers._log.log_writer import LogWriter


def replay_states(
    reader: LogReader,
    checkpoints: Sequence[StoredCheckpoint],
    lost_offset: int | None,
) -> Iterator[tuple[StoredCheckpoint, delta.Table]]:
    """Yield each checkpoint with its packed state, reading the log once.

    A checkpoint that replaces another one is not in the order of the log: it, or the checkpoints
    after it, are read by themselves.

    Args:
        reader: the log, open.
        checkpoints: the checkpoints, in the order of the history.
        lost_offset: an offset inside the damaged region, if there is one; see Replay.
    """
    # A checkpoint can be read in one pass if no later one precedes it in the log.
    in_order: list[bool] = []
    next_offset = reader.end
    for stored in reversed(checkpoints):
        in_order.append(stored.offset < next_offset)
        next_offset = min(next_offset, stored.offset)
    replay = Replay(reader, lost_offset=lost_offset)
    frames = reader.file.good_frames(log.HEADER_SIZE, reader.end)
    for stored in checkpoints:
        if in_order.pop():
            yield stored, replay.advance_to(stored, frames)
        else:
            own_frames = reader.file.good_frames(
                stored.keyframe_offset,
                stored.offset + stored.size,
            )
            yield stored, Replay(reader, lost_offset=lost_offset).advance_to(stored, own_frames)


@dataclass(slots=True, kw_only=True)
class _WrittenValue:
    """A value as it was when it was written: the Value itself may have grown since."""

    kind: int
    count: int
    length: int
    pieces: list[int]


class Rewriter:
    """Writes checkpoints of one log to another, each as what changed since the one before it."""

    def __init__(self, source: LogReader, target: LogWriter) -> None:
        self._source = source
        self._target = target
        self._written: dict[str, _WrittenValue] = {}

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
            (body,) = source.read_bodies([value], stored)
            return delta.pack_header(value.kind, value.count) + body

        try:
            draft = self._make_draft(values, pack)
        except delta.Mismatch:
            raise CheckpointCorruptionError(
                source.path,
                stored.offset,
                "the state's checksum is wrong",
            ) from None
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
        # `store` may complete the draft.
        changed = list(draft)
        target.store(NewCheckpoint(stored=new, draft=draft, order=list(values), pack=pack))
        self._check_written(stored, changed, values)
        if stored.writes:
            target.put_packed(new, source.read_packed_writes(stored))
        if stored.tags:
            target.put_tags(new, stored.tags, ())
        self._remember(changed, values)

    def _make_draft(
        self,
        values: Mapping[str, delta.Value],
        pack: Callable[[str], bytes],
    ) -> delta.Draft:
        draft: delta.Draft = {}
        for name in self._written:
            if name not in values:
                draft[name] = delta.DELETE
        for name, value in values.items():
            op = self._compare(self._written.get(name), value, partial(pack, name))
            if op is not None:
                draft[name] = op
        return draft

    def _compare(
        self,
        before: _WrittenValue | None,
        value: delta.Value,
        pack: Callable[[], bytes],
    ) -> delta.Operation | None:
        """Return the operation that makes a value of the one before; None if they are equal."""
        if before is None or before.kind != value.kind:
            return delta.Set(pack())
        window = delta.find_moved_window(before.pieces, before.length, value)
        if window is not None:
            return delta.Drop(
                count=value.count,
                prefix=window.prefix,
                dropped=window.dropped,
                crc=value.crc,
                data=self._read_pieces(value, window.pieces),
            )
        change = delta.compare_pieces(before.pieces, before.length, value)
        added = value.length - (before.length - change.removed)
        if not added and not change.removed and value.count == before.count:
            return None
        if added + delta.SPLICE_COST >= value.length:
            return delta.Set(pack())
        data = self._read_pieces(value, change.pieces)
        is_at_end = not change.removed and change.prefix == before.length
        if value.kind == delta.LIST and is_at_end and value.count > before.count:
            return delta.Append(value.count - before.count, data)
        return delta.Splice(
            count=value.count,
            prefix=change.prefix,
            removed=change.removed,
            crc=value.crc,
            data=data,
        )

    def _read_pieces(self, value: delta.Value, pieces: list[int]) -> bytes:
        if not pieces:
            return b""
        return delta.read_pieces(value, pieces, self._source.read_bytes)

    def _check_written(
        self,
        stored: StoredCheckpoint,
        changed: Sequence[str],
        values: Mapping[str, delta.Value],
    ) -> None:
        """Check that the new log has the checksums and lengths of the old one.

        `_read_pieces` does not check the bytes that it reads.
        """
        written = self._target.table.values if self._target.table is not None else {}
        for name in changed:
            value = values.get(name)
            if value is None:
                continue
            if written[name].crc != value.crc or written[name].length != value.length:
                reason = "the state's checksum is wrong"
                raise CheckpointCorruptionError(self._source.path, stored.offset, reason)

    def _remember(self, changed: Sequence[str], values: Mapping[str, delta.Value]) -> None:
        for name in changed:
            self._written.pop(name, None)
            value = values.get(name)
            if value is not None:
                self._written[name] = _WrittenValue(
                    kind=value.kind,
                    count=value.count,
                    length=value.length,
                    pieces=value.pieces.copy(),
                )


def has_unreachable_records(reader: LogReader, checkpoints: Sequence[StoredCheckpoint]) -> bool:
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
    for frame in reader.scan(log.HEADER_SIZE, reader.end, 0):
        if frame.type in {log.CHECKPOINT, log.WRITE} and frame.offset not in reachable:
            return True
        if frame.type == log.DATA:
            data_starts.append(frame.payload_end - len(frame.payload))
            continue
        if data_starts and not _names_all(reader, frame, data_starts):
            return True
        data_starts.clear()
        marks += frame.type == log.MARK
        if marks > max_marks:
            return True
    return bool(data_starts)


def _names_all(reader: LogReader, frame: log.Frame, data_starts: Sequence[int]) -> bool:
    """Return whether a record is a keyframe that names bytes of each of the DATA records before it.

    `data_starts` are the positions of their first bytes.

    A DATA record that it does not name belongs to a put that did not finish.
    """
    if frame.type != log.CHECKPOINT or not frame.flags & log.KEY:
        return False
    unpack = reader.codec.unpack
    record = payloads.decode_checkpoint(reader.path, frame, None, unpack)
    starts: set[int] = set()
    entries = (record.table or ())[1::2]
    for entry in entries:
        if entry is None or delta.names_base(entry):
            continue
        value = delta.decode_entry(entry, frame.offset, _refuse_base)
        starts.update(value.pieces[::2])
    return all(start in starts for start in data_starts)


def _refuse_base(position: int) -> delta.Value:
    raise ValueError(f"the value has no base, and none at byte {position}")
