"""The checkpoints of one log, as far as a caller has needed them.

Theory of operation. A writer needs only the end of a log to continue it: the last CHECKPOINT record,
and its chain. So a log is read from its end when it is opened. Further checkpoints are found by
their ids, or chain by chain from the end. The index of all checkpoints is built when a caller needs
it, from the chains or by a scan of the whole log, and is kept up to date afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers._log import payloads
from savers._log.chains import Chain, Chains, NoChainsError, Scan, scan_early
from savers._log.frame import (
    CHECKPOINT,
    FRAME_SIZE,
    HEADER_SIZE,
    KEY,
    MAX_PAYLOAD,
    META,
    REPLACE,
    SEALED,
    WRITE,
    IncompleteLog,
    check_known,
    read_header,
)
from savers._log.log_bytes import search_back
from savers._log.records import BackwardReader, Records
from savers._log.stored_checkpoint import EarlyWrites, Index, StoredCheckpoint

if TYPE_CHECKING:
    from savers._log.frame import Frame
    from savers._log.frame_log import AnyFrameLog
    from savers._log.log_bytes import LogBytes
    from savers._log.payloads import DecodedRecord, Unpack

_SEARCHES: Final = 8
"""How many times the bytes of the log are searched for ids; then an index costs less."""


def read_newest_id(medium: LogBytes) -> str | None:
    """Return the id of the newest checkpoint of a log, of which only the end is read.

    None if only the whole log tells, or opening it tells what is wrong.

    Args:
        medium: the bytes of the log, open.
    """
    try:
        header = read_header(medium.path, medium.read_at(0, HEADER_SIZE))
        reader = BackwardReader(Records(medium, header.fid), medium.size)
        reader.skip_zeros()
        for frame in reader:
            if frame.type == CHECKPOINT:
                return None if frame.flags & (REPLACE | SEALED) else payloads.read_id(medium.path, frame)
            if frame.type != WRITE:
                return None
    except (CheckpointerError, IncompleteLog):
        return None
    return None


class History:
    """The checkpoints of one log; its caller holds the log's mutex."""

    def __init__(self, frames: AnyFrameLog, chains: Chains, unpack: Unpack) -> None:
        self._frames = frames
        self._chains = chains
        self._unpack = unpack
        self.reset()

    def reset(self) -> None:
        """Forget everything: the log was closed."""
        self._scan = Scan(self._frames, self._unpack, 0)
        self.index: Index | None = None
        """All checkpoints, if a caller has needed them."""
        self.depth = 0
        """How many changes stand between the last keyframe and the last checkpoint."""
        self.keyframe_end = 0
        """Where the last keyframe ends."""
        self.has_whole_keyframe = False
        """Whether that keyframe has the whole state; else it names bytes in earlier records."""
        self._early_start = 0
        """Where the early writes begin that were not read yet; `_scan.start` or later if there are none."""
        self._searched = 0
        """How many bytes were searched for ids."""

    def drop_index(self) -> None:
        """Drop the index; it is built again when a caller needs it."""
        self.index = None

    @property
    def last(self) -> StoredCheckpoint | None:
        """The checkpoint of the last CHECKPOINT record: the base of the next one."""
        return self._scan.last

    @property
    def closed_by(self) -> Frame | None:
        """The RELEASE or TOMBSTONE record at the end, if any."""
        return self._scan.closed_by

    def read_closing_version(self) -> int:
        """Return the version that the RELEASE record at the end names; 0 for a TOMBSTONE."""
        assert self.closed_by is not None
        return payloads.decode_ending(self._frames.path, self.closed_by)

    # Reading the log

    def load_end(self) -> None:
        """Read the end of the log, which was just opened; all of it if that does not lead to the last checkpoint.

        Raises:
            CheckpointCorruptionError: the log is damaged.
        """
        size = self._frames.bytes.size
        if not self._load_end(size):
            self.load_all(size)

    def _load_end(self, size: int) -> bool:
        # From the end back: zeros, if writers extend the log ahead; records about the last checkpoint; its own record,
        # which says where its keyframe is; from there on forward, the last chain. Each step may find no good record.
        # Whether that is a write that never finished, or damage, only reading from the beginning tells.
        frames = self._frames
        back = BackwardReader(frames.records, size)
        back.skip_zeros()
        end = back.offset
        tail = self._read_tail(back)
        if not tail or end < frames.end:
            return False
        if tail[-1].type == META:
            return self._load_tail(tail, back)
        last = tail[-1]
        try:
            # Forward, each record takes a third of the time.
            run = frames.records.read_run(last.offset - last.key, end)
        except CheckpointCorruptionError:
            return False
        back.skip_to(run[0].offset)
        if not frames.bytes.durability.has_whole_end(chain(reversed(run), back)):
            return False
        frames.note_read(tail[0])
        return self._load_last_chain(run, last)

    def _read_tail(self, back: BackwardReader) -> list[Frame]:
        """Return the last records back to the last CHECKPOINT or META, newest first; none if neither is there."""
        tail: list[Frame] = []
        for frame in back:
            check_known(self._frames.path, frame)
            tail.append(frame)
            if frame.type in {CHECKPOINT, META}:
                return tail
        return []

    def _load_tail(self, tail: list[Frame], back: BackwardReader) -> bool:
        """Read a log without checkpoints."""
        frames = self._frames
        if not frames.bytes.durability.has_whole_end(chain(tail, back)):
            return False
        frames.note_read(tail[0])
        self._early_start = tail[-1].end
        self._scan = Scan(frames, self._unpack, self._early_start)
        for frame in reversed(tail[:-1]):
            self._take(frames.records.open(frame))
        return True

    def _load_last_chain(self, run: list[Frame], last: Frame) -> bool:
        """Read the records from the last keyframe on; return False if one of them is malformed."""
        try:
            last_chain = self._chains.begin(run)
        except CheckpointCorruptionError:
            return False
        stored = last_chain.scan.last
        if stored is None or stored.offset != last.offset:
            reason = "its keyframe does not lead to it"
            raise CheckpointCorruptionError(self._frames.path, last.offset, reason)
        self._adopt(last_chain)
        return True

    def _adopt(self, chain: Chain) -> None:
        """Go on behind the last chain of the log.

        The chain has all of its checkpoints, but nothing of the log before it: neither an index, nor the early
        writes that wait since earlier. Its keyframe says how far back these begin; `load_early` reads them.
        """
        scan = chain.scan
        self._scan = Scan(self._frames, self._unpack, chain.start)
        # Copies: the chain takes in later records by itself, when a reader needs them.
        self._scan.last = copy(scan.last)
        self._scan.closed_by = scan.closed_by
        self._scan.early = scan.early.copy()
        keyframe = chain.records[0]
        self._early_start = chain.start - keyframe.early[1]
        self.depth = len(chain.records) - 1
        self._note_keyframe(keyframe)

    def load_all(self, size: int) -> Index:
        """Read the log forward from its beginning, as far as it is good; return its checkpoints."""
        frames = self._frames
        frames.seq = 1
        first = frames.records.read(HEADER_SIZE, HEADER_SIZE + 2 * MAX_PAYLOAD)
        frames.end = first.end
        self._scan = Scan(frames, self._unpack, first.end)
        self._early_start = first.end
        self.index = index = Index()
        self.read_on(size)
        return index

    def read_on(self, size: int) -> bool:
        """Take in the records behind the known end; return whether a CHECKPOINT is among them."""
        before = self._scan.last
        for _ in self.iter_on(size):
            pass
        return self._scan.last is not before

    def iter_on(self, size: int) -> Iterator[Frame]:
        """Take in the records behind the known end, and yield each afterwards."""
        frames = self._frames
        for run in frames.records.scan_runs(frames.end, size, frames.seq):
            frames.bytes.durability.note_frames(run)
            for frame in run:
                self._take(frame)
                frames.note_read(frame)
                yield frame

    def _take(self, frame: Frame) -> None:
        """Take in the record behind the known end."""
        decoded = self._scan.take(frame, self._find_loaded)
        if decoded is None:
            return
        if frame.flags & KEY:
            self.depth = 0
            self._note_keyframe(decoded)
        else:
            self.depth += 1
        self._add_to_index(decoded.checkpoint, decoded.target)

    def _note_keyframe(self, keyframe: DecodedRecord) -> None:
        self.keyframe_end = keyframe.checkpoint.end
        self.has_whole_keyframe = not any(keyframe.entries)

    def _add_to_index(self, checkpoint: StoredCheckpoint, target: str | None) -> None:
        if self.index is not None and not self.index.add(checkpoint, target):
            reason = "it replaces a checkpoint that is not there"
            raise CheckpointCorruptionError(self._frames.path, checkpoint.offset, reason)

    def _find_loaded(self, id: str) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, if it is in the index or the last one."""
        if self.index is not None:
            return self.index.find(id)
        last = self._scan.last
        if last is None or last.id != id:
            return None
        return last

    def note_appended(self, stored: StoredCheckpoint, target: str | None, keyframe: DecodedRecord | None) -> None:
        """Note that a checkpoint was appended; `keyframe` is its record, if that is a keyframe."""
        self._scan.early.give_to(stored)
        self._scan.last = stored
        if keyframe is None:
            self.depth += 1
        else:
            self.depth = 0
            self._note_keyframe(keyframe)
        self._add_to_index(stored, target)

    # Early writes

    def load_early(self) -> EarlyWrites:
        """Return the early writes that wait for their checkpoint.

        Reads the part of the log in which they stand, if it was not read yet.
        """
        if self._early_start < self._scan.start:
            self._scan.early = scan_early(self._frames, self._early_start, self._frames.end)
            self._scan.start = self._early_start
        return self._scan.early

    # Finding checkpoints

    def find_latest(self) -> StoredCheckpoint | None:
        """Return the latest checkpoint of the history; None if it is empty."""
        last = self._scan.last
        if self.index is None and (last is None or not last.is_replacement):
            return last
        checkpoints = self.load_index().checkpoints
        return checkpoints[-1] if checkpoints else None

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""
        if id is None:
            return self.find_latest()
        last = self._scan.last
        if last is not None and last.id == id and not last.is_replacement:
            return last
        if self.can_search():
            # A search reads the log once, from its end, and decodes one chain. An index decodes all records, and takes
            # memory for each, but answers the next question at once.
            located = self._frames.bytes.locate(id)
            if located is not None and not located:
                return None
            offsets = self._search(id) if located is None else located
            found = self._find_at(offsets, id)
            if found is not None:
                return found
        return self.load_index().find(id)

    def lacks(self, id: str) -> bool:
        """Return whether a checkpoint with an id may be appended, because the history has none.

        If the bytes can refuse it at the commit, they are not searched for it.
        """
        frames = self._frames
        last = self._scan.last
        if not frames.bytes.is_open or last is None:
            return True
        if last.id == id:
            return False
        if self.index is None and frames.bytes.expect_absent(id):
            return True
        return self.find(id) is None

    def can_search(self) -> bool:
        """Return whether the bytes of the log show where a checkpoint is, and an index costs more.

        The log must be neither sealed nor SCATTERED: then no record replaces a checkpoint, and what
        belongs to one stands behind its record.
        """
        frames = self._frames
        if self.index is not None or frames.is_scattered or not frames.bytes.is_open:
            return False
        return frames.seal is None and self._searched <= _SEARCHES * frames.end

    def _find_at(self, offsets: Iterable[int], id: str) -> StoredCheckpoint | None:
        """Return the newest checkpoint with an id without decoding what is around it.

        None if it was not found. Only a scan tells whether the checkpoint does not exist, or a
        damaged record holds it.

        Args:
            offsets: where its records may begin, the last of them first.
            id: the id.
        """
        try:
            for offset in offsets:
                stored = self._chains.find_checkpoint(offset)
                if stored is not None and stored.id == id:
                    return stored
        except CheckpointCorruptionError:
            return None
        return None

    def _search(self, id: str) -> Iterator[int]:
        """Yield where records of checkpoints with an id may begin, the last of them first.

        A UUID stands in the log as 16 bytes, which are searched for from the end; the record in
        which they are found proves itself. Order and age of the ids do not matter. Searching 1 MB
        takes about 0.2 ms, where decoding its records takes 10 ms.
        """
        frames = self._frames
        raw = payloads.id_bytes(id)
        if raw.__class__ is not bytes:
            return
        # The payload of a checkpoint begins with an array whose first item is the id.
        end = frames.end
        for position in search_back(frames.bytes, payloads.BEFORE_UUID + raw, end):
            self._searched += end - position
            end = position
            yield position - 1 - FRAME_SIZE

    def walk_back(self) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints, newest first; the caller holds the mutex until it ends.

        Reads no further back than the iteration goes, chain by chain.
        """
        # A chain may turn out to be too long to be read as a whole: then the iteration goes on in the index, before the
        # last checkpoint that was yielded.
        yielded = self._frames.end
        if self.index is None:
            try:
                for stored in self._walk_chains():
                    yield stored
                    yielded = stored.offset
            except NoChainsError:
                pass
            else:
                return
        for stored in reversed(self.load_index().checkpoints):
            if stored.offset < yielded:
                yield stored

    def _walk_chains(self) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints, newest first, as `Chains.walk_back` does. Raises the same errors."""
        last = self._scan.last
        if last is None:
            return
        for stored in self._chains.walk_back(last):
            # The one object of it that later writes and tags change.
            yield last if stored.offset == last.offset else stored

    def find_recent(self, limit: int) -> list[StoredCheckpoint]:
        """Return at most the last `limit` checkpoints, oldest first."""
        if self.index is not None:
            return self.index.checkpoints[-limit:]
        return list(islice(self.walk_back(), limit))[::-1]

    def load_index(self) -> Index:
        """Return the index; the first call builds it, from the chains or by a scan of the log.

        Raises:
            CheckpointCorruptionError: the log is damaged.
        """
        frames = self._frames
        if self.index is not None:
            return self.index
        if not frames.bytes.is_open:
            return Index()
        # The chain that was decoded to open the log is not decoded again. It is all of a short log, of which a listing
        # opens thousands.
        try:
            checkpoints = list(self._walk_chains())
        except (NoChainsError, CheckpointCorruptionError):
            # Of a damaged log, the scan finds out where the damage begins.
            return self._scan_index()
        index = Index()
        for stored in reversed(checkpoints):
            index.add(stored, None)
        self.index = index
        return index

    def _scan_index(self) -> Index:
        frames = self._frames
        frames.in_doubt = True
        end = frames.end
        index = self.load_all(end)
        if frames.end != end:
            # The scan has stopped early, as at the end of a log.
            raise CheckpointCorruptionError(frames.path, frames.end, "a record is missing")
        frames.in_doubt = False
        return index

    # What belongs to a checkpoint

    def read_packed_writes(self, stored: StoredCheckpoint) -> dict[str, bytes]:
        """Return the pending writes of a checkpoint, packed, in the order of their first recording.

        Raises:
            CheckpointCorruptionError: they are damaged.
        """
        frames = self._frames
        read: dict[int, Mapping[str, bytes]] = {}
        packed: dict[str, bytes] = {}
        for key, offset in stored.writes.items():
            values = read.get(offset)
            if values is None:
                values = self._chains.find_writes(offset)
            if values is None:
                frame = frames.records.read(offset, frames.end)
                _, values = payloads.decode_writes(frames.path, frame)
            read[offset] = values
            packed[key] = values[key]
        return packed
