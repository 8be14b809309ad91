"""What can be rebuilt from a damaged log."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers import _delta as delta
from savers._filesystem import layout, log, payloads
from savers._filesystem.index import Index
from savers._filesystem.log_checker import Examined, description
from savers._filesystem.replay import Replay
from savers._filesystem.reports import Lost

if TYPE_CHECKING:
    from savers._filesystem.store import Store
    from savers._filesystem.stored_checkpoint import StoredCheckpoint

_PAIR: Final = 2
HEAD: Final = 1 << 14
NOWHERE: Final = 0
"""A position that no value's bytes have: that of the file's header."""


def identify(store: Store, history: Examined, size: int) -> int:
    """Find the file's id, by its header or by its records, and whether its states are opaque; its generation."""
    header = None
    with suppress(log.IncompleteLog, CheckpointerError):
        header = log.read_header(history.path, history.io.read_at(history.fd, 0, min(size, HEAD)))
    if header is None:
        fids = Counter[int]()
        for frame in history.file._replace(fid=None).good_frames(0, size):
            extent = log.parse_extent(history.file.read_at(frame.offset, log.FRAME_SIZE), frame.offset)
            assert extent is not None
            fids[extent.fid] += 1
        fid = fids.most_common(1)[0][0] if fids else 0
        header = log.Header(fid, 0, 0, layout.locate_thread(history.thread_id).digest)
    history.header = header
    history.fid = header.fid
    history.version = header.major
    meta = description(store, history.path)
    if meta:
        history.take_meta(meta)
    return header.generation


class Salvage:
    """What can be rebuilt from a damaged log."""

    def __init__(self, history: Examined) -> None:
        self.history = history
        self.index = Index()
        self.lost: list[Lost] = []
        self.ending: tuple[int, int] | None = None
        self._gaps = [(NOWHERE, log.HEADER_SIZE)]
        self._sound: dict[str, tuple[object, int, bool]] = {}

    def search(self, size: int) -> None:
        """Find the good records, and follow them."""
        history = self.history
        walk = Replay(history, lost_offset=NOWHERE)
        end, seq = log.HEADER_SIZE, -1
        for frame in history.file.good_frames(0, size):
            if frame.seq <= seq:
                continue
            if frame.offset > end or frame.seq != seq + 1:
                self._missing(end, frame.offset, frame.seq - seq - 1)
            log.check_known(history.path, frame)
            self._take(walk, frame)
            end, seq = frame.end, frame.seq
        if end < size:
            self._missing(end, size, None)

    def _missing(self, start: int, end: int, count: int | None) -> None:
        """Note a gap between good records; `count` is None at the end of the log."""
        self._gaps.append((start, end))
        if count is None:
            reason = f"the last {end - start} bytes are damaged"
        else:
            records = "1 record" if count == 1 else f"{count} records"
            reason = f"{end - start} bytes of {records} are damaged"
        self.lost.append(Lost(offset=start, checkpoint_id=None, reason=reason, records=count))

    def _take(self, walk: Replay, frame: log.Frame) -> None:
        path = self.history.path
        try:
            if frame.type == log.CHECKPOINT:
                self._checkpoint(walk, frame)
            elif frame.type in {log.RELEASE, log.TOMBSTONE}:
                self.ending = (frame.type, payloads.decode_ending(path, frame))
            elif frame.type == log.WRITE:
                owner, values = payloads.decode_writes(path, frame)
                if (entry := self._kept(frame, owner)) is not None:
                    entry.add_writes(values, frame.offset)
            elif frame.type == log.MARK:
                owner, add, remove = payloads.decode_tags(path, frame)
                if (entry := self._kept(frame, owner)) is not None:
                    entry.tags = payloads.merge_tags(entry.tags, add, remove)
        except CheckpointCorruptionError as error:
            self._lose(frame.offset, None, error.reason)

    def _kept(self, frame: log.Frame, id: str) -> StoredCheckpoint | None:
        entry = self.index.find(id)
        if entry is None:
            self._lose(frame.offset, id, "what was recorded beside it is lost with it")
        return entry

    def _lose(self, offset: int, checkpoint_id: str | None, reason: str) -> None:
        self.lost.append(Lost(offset=offset, checkpoint_id=checkpoint_id, reason=reason))

    def _checkpoint(self, walk: Replay, frame: log.Frame) -> None:
        try:
            decoded = walk.step(frame)
        except CheckpointCorruptionError as error:
            self._lose(frame.offset, self._id_in(frame), error.reason)
            return
        target = decoded.target
        if not self._is_sound(walk):
            self._lose(frame.offset, decoded.checkpoint.id, "bytes of its values are damaged")
            return
        if target is not None and self.index.find(target) is None:
            target = None  # What it replaced is lost: it stands for itself.
        self.index.add(decoded.checkpoint, target)

    def _id_in(self, frame: log.Frame) -> str | None:
        try:
            return payloads.id_text(payloads.unpack_payload(self.history.path, frame)[0])
        except (CheckpointCorruptionError, TypeError, IndexError, KeyError):
            return None

    def _is_sound(self, walk: Replay) -> bool:
        """Whether all bytes of the state lie in good records, and are what those say."""
        assert walk.table is not None
        sound = True
        for name, value in walk.table.values.items():
            known, size, good = self._sound.get(name, (None, 0, True))
            if known is not value:
                size, good = 0, value.block is None or self._is_whole(*value.block[:2])
            # A value that has only grown has its first pieces from before.
            pieces = value.pieces[size:]
            good = good and all(
                pieces[i] < 0 or self._is_whole(pieces[i], pieces[i + 1]) for i in range(0, len(pieces), _PAIR)
            )
            good = good and (known is value or self._is_as_told(walk, value))
            self._sound[name] = value, len(value.pieces), good
            sound = sound and good
        return sound

    def _is_as_told(self, walk: Replay, value: delta.Value) -> bool:
        """Whether the bytes of a value are what the record says of them, whose own checksum is right."""
        assert walk.checkpoint is not None
        try:
            (body,) = self.history.read_bodies([value], walk.checkpoint)
            return delta.has_canonical_header(value, body)
        except (CheckpointCorruptionError, *delta.MALFORMED):
            return False

    def _is_whole(self, start: int, length: int) -> bool:
        return all(start >= end or start + length <= first for first, end in self._gaps)
