"""Finds what can be rebuilt from a damaged log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from graphkit.abc import LostCheckpoint
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers import _delta as delta
from savers._filesystem.catalog import read_meta
from savers._log import payloads
from savers._log.frame import (
    CHECKPOINT,
    EARLY,
    FRAME_SIZE,
    HEADER_SIZE,
    MARK,
    RELEASE,
    SEALED,
    SEALED_TYPES,
    TOMBSTONE,
    WRITE,
    Frame,
    Header,
    IncompleteLog,
    check_known,
    parse_extent,
    read_header,
)
from savers._log.records import Records
from savers._log.sealing import read_key_id
from savers._log.stored_checkpoint import EarlyWrites, Index
from savers._log.tables import TableReplay

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store
    from savers._log.stored_checkpoint import StoredCheckpoint

HEAD_SIZE: Final = 1 << 14
"""How many bytes of a file are read for its header."""
NOWHERE: Final = 0
"""An offset that no bytes of a value have, because the header of the file is there."""


def identify_log(store: Store, damaged: FileLog, size: int) -> int:
    """Find out the file id, and whether states are opaque; return the generation.

    If the header cannot be read, the file id is the one that most records have, and the generation
    is 0.
    """
    frames = damaged.frames
    head = frames.bytes.read_at(0, min(size, HEAD_SIZE))
    header = None
    with suppress(IncompleteLog, CheckpointerError):
        header = read_header(damaged.path, head)
    if header is None:
        header = Header(_find_fid(damaged, size), 0, 0, frames.identity.digest)
    # Its records can be searched from here on, and the search may have to find the key.
    frames.adopt(header, None)
    meta = read_meta(store, damaged.path)
    if meta:
        frames.identity.is_opaque = bool(meta.get("opaque"))
        key_id = meta.get("sealed")
    else:
        key_id = _find_key_id(damaged, size)
    if key_id is not None:
        frames.adopt(header, str(key_id))
    return header.generation


def _find_key_id(damaged: FileLog, size: int) -> str | None:
    """Return the id of a key with which the records of a log are sealed; None if it is plain."""
    for frame in damaged.frames.records.search(HEADER_SIZE, size):
        # Of a log that is sealed, all records of these types are.
        if frame.type in SEALED_TYPES and not frame.flags & SEALED:
            return None
        if frame.type in SEALED_TYPES:
            return read_key_id(frame.payload)
    return None


def _find_fid(damaged: FileLog, size: int) -> int:
    """Return the file id that most good records have; 0 if there are none."""
    fids = Counter[int]()
    medium = damaged.frames.bytes
    for frame in Records(medium, None).search(0, size):
        extent = parse_extent(medium.read_at(frame.offset, FRAME_SIZE), frame.offset)
        assert extent is not None
        fids[extent.fid] += 1
    if not fids:
        return 0
    # Good records with another id are those of another log, whose bytes stand in a value.
    ((fid, _),) = fids.most_common(1)
    return fid


@dataclass(slots=True)
class _CheckedValue:
    """A value, and whether its pieces are in good records."""

    value: delta.Value
    checked: int
    """How many entries of its list of pieces were checked."""
    is_sound: bool


class Salvage:
    """What can be rebuilt from a damaged log."""

    def __init__(self, damaged: FileLog) -> None:
        self._log = damaged
        self._path = damaged.path
        self.index = Index()
        """The checkpoints that can be rebuilt."""
        self.early = EarlyWrites()
        """The early writes whose checkpoint is not there: it is still to come, or lost."""
        self.lost: list[LostCheckpoint] = []
        self.ending: tuple[int, int] | None = None
        """The type and the version of the record that ends the log, if it has one."""
        self._gaps = [(NOWHERE, HEADER_SIZE)]
        """The ranges of the file that are not in good records."""
        self._checked_values: dict[str, _CheckedValue] = {}

    def search(self, size: int) -> None:
        """Find the good records and interpret them as a reader would."""
        replay = TableReplay(self._log.tables, lost_offset=NOWHERE)
        records = self._log.frames.records
        end = HEADER_SIZE
        seq = -1
        for frame in records.search(0, size):
            # The numbers of the records rise by one. So a gap shows how many records it had, and two
            # good records with nothing between them show that none is missing.
            if frame.seq <= seq:
                continue
            missing = frame.seq - seq - 1
            if frame.offset > end or missing:
                self._add_gap(end, frame.offset, missing)
            check_known(self._path, frame)
            self._take_record(replay, frame)
            seq = frame.seq
            end = frame.end
        if end < size:
            self._add_gap(end, size, None)

    def _add_gap(self, start: int, end: int, count: int | None) -> None:
        """Record a gap between good records; `count` is None for a gap at the end of the log."""
        self._gaps.append((start, end))
        if count is None:
            reason = f"the last {end - start} bytes are damaged"
        else:
            noun = "record" if count == 1 else "records"
            reason = f"{end - start} bytes of {count} {noun} are damaged"
        self.lost.append(LostCheckpoint(offset=start, checkpoint_id=None, reason=reason, records=count))

    def _take_record(self, replay: TableReplay, frame: Frame) -> None:
        try:
            frame = self._log.frames.records.open(frame)
            if frame.type == CHECKPOINT:
                self._take_checkpoint(replay, frame)
            elif frame.type in {RELEASE, TOMBSTONE}:
                version = payloads.decode_ending(self._path, frame)
                self.ending = (frame.type, version)
            elif frame.type == WRITE:
                self._take_writes(frame)
            elif frame.type == MARK:
                checkpoint_id, added, removed = payloads.decode_tags(self._path, frame)
                checkpoint = self._find_kept(frame, checkpoint_id)
                if checkpoint is not None:
                    checkpoint.change_tags(added, removed)
        except CheckpointCorruptionError as error:
            # Its checksums are right, and its content is not: a faulty or hostile writer made it.
            self._add_lost(frame.offset, None, error.reason)

    def _take_writes(self, frame: Frame) -> None:
        checkpoint_id, values = payloads.decode_writes(self._path, frame)
        if frame.flags & EARLY:
            self.early.add(checkpoint_id, values, frame.offset)
            return
        checkpoint = self._find_kept(frame, checkpoint_id)
        if checkpoint is not None:
            checkpoint.add_writes(values, frame.offset)

    def _find_kept(self, frame: Frame, checkpoint_id: str) -> StoredCheckpoint | None:
        """Return the checkpoint of a pending write or a tag; record the loss if it is lost."""
        checkpoint = self.index.find(checkpoint_id)
        if checkpoint is None:
            self._add_lost(frame.offset, checkpoint_id, "its checkpoint is lost")
        return checkpoint

    def note_dropped(self, kept: Collection[StoredCheckpoint]) -> None:
        """Record the loss of the early writes that are not kept."""
        for waiting in self.early:
            if waiting not in kept:
                self._add_lost(waiting.offset, waiting.id, "its checkpoint did not come, or is lost")

    def _add_lost(self, offset: int, checkpoint_id: str | None, reason: str) -> None:
        self.lost.append(LostCheckpoint(offset=offset, checkpoint_id=checkpoint_id, reason=reason))

    def _take_checkpoint(self, replay: TableReplay, frame: Frame) -> None:
        try:
            record = replay.step(frame)
        except CheckpointCorruptionError as error:
            # A change needs the state before it, back to the keyframe. If one of the records between
            # them is damaged, all changes up to the next keyframe end here.
            self._note_lost_checkpoint(frame, error.reason)
            return
        checkpoint = record.checkpoint
        self.early.give_to(checkpoint)
        if not self._is_sound(replay):
            self._add_lost(frame.offset, checkpoint.id, "bytes of its values are damaged")
            return
        target = record.target
        if target is not None and self.index.find(target) is None:
            # The checkpoint that it replaced is lost, so it is added instead.
            target = None
        self.index.add(checkpoint, target)

    def _note_lost_checkpoint(self, frame: Frame, reason: str) -> None:
        """Record the loss of a checkpoint, and of the early writes that waited for it."""
        try:
            payload = payloads.unpack_payload(self._path, frame)
            checkpoint_id = payloads.id_text(payload[0])
        except (CheckpointCorruptionError, TypeError, IndexError, KeyError):
            self._add_lost(frame.offset, None, reason)
            return
        self._add_lost(frame.offset, checkpoint_id, reason)
        waiting = self.early.find(checkpoint_id)
        if waiting is not None:
            self.early.drop(waiting.id)
            self._add_lost(waiting.offset, waiting.id, "its checkpoint is lost")

    def _is_sound(self, replay: TableReplay) -> bool:
        """Return whether all bytes of the state are in good records and match their checksums."""
        assert replay.table is not None
        # Of a history with n checkpoints, a list that grows has up to n pieces in each of them. To check
        # every piece of every checkpoint would take n * n steps, so what was checked is remembered.
        is_sound = True
        for name, value in replay.table.values.items():
            checked = self._checked_values.get(name)
            if checked is None or checked.value is not value:
                checked = _CheckedValue(value, len(value.pieces), self._is_sound_value(replay, value))
                self._checked_values[name] = checked
            elif checked.is_sound:
                # The value has only grown: its first pieces are known, and so is its checksum.
                new_pieces = value.pieces[checked.checked :]
                checked.is_sound = self._are_in_records(new_pieces)
                checked.checked = len(value.pieces)
            is_sound = is_sound and checked.is_sound
        return is_sound

    def _is_sound_value(self, replay: TableReplay, value: delta.Value) -> bool:
        """Return whether the bytes of a value are in good records and match its checksum."""
        if value.block is not None:
            start, length, _, _ = value.block
            if not self._is_in_records(start, length):
                return False
        if not self._are_in_records(value.pieces):
            return False
        assert replay.checkpoint is not None
        try:
            (body,) = self._log.tables.read_bodies([value], replay.checkpoint.offset)
            return delta.has_canonical_header(value, body)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            return False

    def _are_in_records(self, pieces: list[int]) -> bool:
        """Return whether pieces are in good records; pieces of a block (below zero) are skipped."""
        for i in range(0, len(pieces), 2):
            start = pieces[i]
            if start >= 0 and not self._is_in_records(start, pieces[i + 1]):
                return False
        return True

    def _is_in_records(self, start: int, length: int) -> bool:
        """Return whether a range of the file is in good records."""
        # Only the gaps before the record at hand are known. The others do not matter: a record can name
        # only bytes before its end.
        end = start + length
        return all(start >= gap_end or end <= gap_start for gap_start, gap_end in self._gaps)
