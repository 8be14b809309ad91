"""The chains of a log: a keyframe, the changes behind it, and what belongs to their checkpoints.

Everything about a checkpoint that is not relative to a keyframe further back stands in its chain. So
a chain is what a reader decodes: the last one to go on with a history, another one for a past state,
one after the other for a listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError
from savers._log import payloads
from savers._log.frame import (
    CHECKPOINT,
    EARLY,
    FRAME_SIZE,
    HEADER_SIZE,
    KEY,
    MARK,
    META,
    RELEASE,
    SYNC,
    TOMBSTONE,
    WRITE,
)
from savers._log.records import BackwardReader
from savers._log.stored_checkpoint import EarlyWrites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from savers._log.frame import Frame
    from savers._log.frame_log import AnyFrameLog
    from savers._log.packed_history import Replay
    from savers._log.payloads import DecodedRecord, Unpack
    from savers._log.stored_checkpoint import StoredCheckpoint

MAX_LENGTH: Final = 64 << 20
"""Longer chains are not kept in memory."""
_RECORD_COST: Final = 1 << 10
"""About how many bytes a decoded record takes in addition to its own."""


class NoChainsError(Exception):
    """A log cannot be read chain by chain."""


class Scan:
    """Takes in records in their order: checkpoints, and what later records add to them."""

    def __init__(self, frames: AnyFrameLog, unpack: Unpack, start: int) -> None:
        """Begin before the record at an offset.

        Args:
            frames: the log.
            unpack: decodes packed metadata.
            start: where the first record begins.
        """
        self._frames = frames
        self._unpack = unpack
        self.start = start
        self.last: StoredCheckpoint | None = None
        """The checkpoint of the last CHECKPOINT record: the base of the next one."""
        self.early = EarlyWrites()
        """The early writes that wait for their checkpoint."""
        self.written: dict[int, Mapping[str, bytes]] | None = None
        """The packed values of the WRITE records, by their offsets, if they are wanted."""
        self.closed_by: Frame | None = None
        """The RELEASE or TOMBSTONE record at the end, if any."""

    def take(self, frame: Frame, find: Callable[[str], StoredCheckpoint | None]) -> DecodedRecord | None:
        """Take in the next record.

        Args:
            frame: the record, opened.
            find: returns the checkpoint with an id, if its writes and tags are wanted.

        Returns:
            The content of a CHECKPOINT record.

        Raises:
            CheckpointCorruptionError: the record is malformed, or does not follow from the last one.
        """
        if frame.type == CHECKPOINT:
            return self._take_checkpoint(frame)
        path = self._frames.path
        if frame.type == WRITE:
            owner, values = payloads.decode_writes(path, frame)
            if self.written is not None:
                self.written[frame.offset] = values
            if frame.flags & EARLY:
                self.early.add(owner, values, frame.offset)
                return None
            checkpoint = find(owner)
            if checkpoint is not None:
                checkpoint.add_writes(values, frame.offset)
        elif frame.type == MARK:
            owner, add, remove = payloads.decode_tags(path, frame)
            checkpoint = find(owner)
            if checkpoint is not None:
                checkpoint.change_tags(add, remove)
        elif frame.type in {RELEASE, TOMBSTONE}:
            self.closed_by = frame
        return None

    def _take_checkpoint(self, frame: Frame) -> DecodedRecord:
        path = self._frames.path
        base = self.last
        decoded = payloads.decode_checkpoint(path, frame, base, self._unpack)
        checkpoint = decoded.checkpoint
        if base is not None and not frame.flags & KEY and checkpoint.keyframe_offset != base.keyframe_offset:
            raise CheckpointCorruptionError(path, frame.offset, "it names another record as its keyframe")
        # The record says how far before it its early writes begin. They may be in an earlier chain, which this scan
        # has not read: then that part of the log is read now.
        own_distance, _ = decoded.early
        if own_distance:
            early = self.early
            first = frame.offset - own_distance
            if first < self.start:
                early = scan_early(self._frames, first, frame.offset)
            early.give_to(checkpoint)
            self.early.drop(checkpoint.id)
        self.last = checkpoint
        return decoded


def scan_early(frames: AnyFrameLog, start: int, end: int) -> EarlyWrites:
    """Return the early writes in a range of good records whose checkpoint is not in it.

    Args:
        frames: the log.
        start: where the first of the records begins.
        end: where the last one ends.
    """
    early = EarlyWrites()
    records = frames.records
    first = records.read(start, end)
    for frame in records.scan(start, end, first.seq):
        if frame.type == WRITE and frame.flags & EARLY:
            owner, values = payloads.decode_writes(frames.path, frame)
            early.add(owner, values, frame.offset)
        elif frame.type == CHECKPOINT:
            early.drop(payloads.read_id(frames.path, frame))
    return early


class Chain:
    """The records from a keyframe on. Those of an open log do not change, so a chain stays right until it is closed."""

    def __init__(self, frames: AnyFrameLog, unpack: Unpack, start: int) -> None:
        self.path = frames.path
        self.start = start
        """Where the keyframe begins."""
        self.end = start
        """Where the last record ends that was taken in."""
        self.scan = Scan(frames, unpack, start)
        self.scan.written = {}
        self.records: list[DecodedRecord] = []
        """The CHECKPOINT records, the keyframe first."""
        self.replay: Replay | None = None
        """The packed states, as far as they were made."""
        self._numbers: dict[int, int] = {}

    @property
    def size(self) -> int:
        """About how many bytes this takes in memory."""
        size = self.end - self.start + _RECORD_COST * len(self.records)
        if self.replay is not None:
            size += self.replay.size
        return size

    def find_number(self, offset: int) -> int | None:
        """Return the number of the CHECKPOINT record at an offset; None if there is none."""
        return self._numbers.get(offset)

    def take(self, frame: Frame) -> None:
        """Take in the next record.

        Raises:
            CheckpointCorruptionError: it does not belong to the chain.
        """
        last = self.scan.last
        # A chain has one keyframe, its first record. Another one would be the beginning of the next chain.
        is_keyframe = frame.type == CHECKPOINT and bool(frame.flags & KEY)
        if is_keyframe is not (last is None):
            raise CheckpointCorruptionError(self.path, frame.offset, "it is not the keyframe that it should be")
        decoded = self.scan.take(frame, self._find)
        if decoded is not None:
            self._numbers[frame.offset] = len(self.records)
            self.records.append(decoded)
        self.end = frame.end

    def _find(self, id: str) -> StoredCheckpoint | None:
        # Of a log that is not SCATTERED, only the last checkpoint gets anything. Of one that is, the history is read
        # from an index, and what this chain says of writes and tags is not used.
        last = self.scan.last
        if last is None or last.id != id:
            return None
        return last


class Chains:
    """Reads the chains of one log, and keeps the one that was used last."""

    def __init__(self, frames: AnyFrameLog, unpack: Unpack) -> None:
        self._frames = frames
        self._unpack = unpack
        self._kept: Chain | None = None

    @property
    def size(self) -> int:
        """About how many bytes are kept in memory."""
        return 0 if self._kept is None else self._kept.size

    def forget(self) -> None:
        """Drop the chain that is kept."""
        self._kept = None

    def read(self, start: int, end: int) -> Chain:
        """Return the chain that begins with a keyframe, up to a record; perhaps more of it.

        Args:
            start: where the keyframe begins.
            end: where the last of the records ends.

        Raises:
            CheckpointCorruptionError: the keyframe or a record is missing.
        """
        chain = self._kept
        if chain is None or chain.start != start:
            return self.begin(self._frames.records.read_run(start, end))
        if chain.end < end:
            self._take(chain, self._frames.records.read_run(chain.end, end))
        return chain

    def begin(self, frames: Sequence[Frame]) -> Chain:
        """Return the chain of some records, of which the first is a keyframe. Raises the same error as `read`."""
        chain = Chain(self._frames, self._unpack, frames[0].offset)
        self._take(chain, frames)
        return chain

    def _take(self, chain: Chain, frames: Sequence[Frame]) -> None:
        # Not kept meanwhile: an exception may come at any line, and leaves a chain that is not right.
        self._kept = None
        for frame in frames:
            chain.take(frame)
        if chain.end - chain.start <= MAX_LENGTH:
            self._kept = chain

    def read_around(self, keyframe: int, end: int) -> Chain:
        """Return a chain as `read` does, and what stands behind its record at `end` up to the next CHECKPOINT."""
        # What belongs to the last checkpoint of a chain stands behind its record, and before the next CHECKPOINT.
        chain = self.read(keyframe, end)
        frames = self._frames
        while end <= chain.end < frames.end:
            frame = frames.records.read(chain.end, frames.end)
            if frame.type == CHECKPOINT:
                break
            self._take(chain, [frame])
        return chain

    def find_writes(self, offset: int) -> Mapping[str, bytes] | None:
        """Return the packed values of a WRITE record of the chain that is kept; None if it is not in it."""
        if self._kept is None or self._kept.scan.written is None:
            return None
        return self._kept.scan.written.get(offset)

    # Several chains

    def find_checkpoint(self, offset: int) -> StoredCheckpoint | None:
        """Return the checkpoint whose record begins at an offset; None if none does.

        Raises:
            CheckpointCorruptionError: the record, or one that is needed to read it, is damaged.
        """
        frames = self._frames
        if offset < HEADER_SIZE:
            return None
        head = frames.bytes.read_at(offset, FRAME_SIZE)
        if not head.startswith(SYNC) or head[-1] != CHECKPOINT:
            return None
        frame = frames.records.read(offset, frames.end)
        chain = self.read_around(offset - frame.key, frame.end)
        number = chain.find_number(offset)
        return None if number is None else chain.records[number].checkpoint

    def walk_back(self, last: StoredCheckpoint) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints from the last one of the log back, chain by chain.

        Raises:
            NoChainsError: the log must be scanned. What was yielded is right.
            CheckpointCorruptionError: the log is damaged.
        """
        frames = self._frames
        if frames.is_scattered:
            raise NoChainsError
        before = BackwardReader(frames.records, frames.end)
        end = frames.end
        start: int | None = last.keyframe_offset
        while start is not None:
            if end - start > MAX_LENGTH:
                # It would not be kept, and be read again for each of its checkpoints.
                raise NoChainsError
            for record in reversed(self.read(start, end).records):
                yield record.checkpoint
            end = start
            start = self._find_start_before(end, before)

    def _find_start_before(self, offset: int, reader: BackwardReader) -> int | None:
        """Return where the chain begins that ends at an offset; None if there is none."""
        if offset == self._frames.first:
            return None
        reader.skip_to(offset)
        for frame in reader:
            if frame.type == CHECKPOINT:
                return frame.offset - frame.key
            if frame.type == META:
                return None
        raise CheckpointCorruptionError(self._frames.path, offset, "records are missing before it")
