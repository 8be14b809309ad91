"""An open log of one namespace, and what was read of it.

Theory of operation. A writer needs only the end of a log to continue it: the last CHECKPOINT
record, and back to its keyframe. So a log is read from its end when it is opened. The index of all
checkpoints is built by one scan when a caller needs it (a checkpoint by id, or the whole history),
and is kept up to date afterwards. Every use begins with `refresh`, which takes in what other
processes have appended. The caller holds `mutex` throughout.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._log import log, payloads
from savers._log.decoded_chain import MAX_LENGTH, DecodedChain, KeptChains, ReadValues
from savers._log.early_writes import EarlyWrites
from savers._log.index import Index
from savers._log.opened_ranges import OpenedRanges
from savers._log.sealing import LogSeal
from savers._log.table_reader import TableReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from graphkit.values import FrozenDict
    from savers import _delta as delta
    from savers._cipher import KeyRing
    from savers._log.log_file import ByteSource
    from savers._log.stored_checkpoint import StoredCheckpoint

_BEGINNING: Final = 1 << 14
_LONG_BEGINNING: Final = 1 << 20
"""Where the first record ends at the latest; nearly all end within `_BEGINNING`."""


class OpenLog(TableReader, ABC):
    """An open log. One thread of execution may use it at a time, which holds `mutex`."""

    suspect = False
    """Whether what was appended may be lost if the log is closed now."""
    in_doubt = False
    """Whether a change of what this object knows has begun and not ended.

    An exception may come at any line: Ctrl-C, a signal handler that raises, a lack of memory. If it
    comes between a write and the bookkeeping, what is known is no longer what the bytes say, and the
    next record would be relative to a state that the log does not have. So the first line of each
    change sets this, and its last line resets it; the next use of a log in doubt closes it and reads
    it again. Two assignments are all that this costs a put, and no line needs a guard of its own.
    """
    expects_release = False
    """Whether the caller looks for a released log, which ends in RELEASE."""

    def __init__(
        self,
        io: ByteSource,
        path: str,
        owner: tuple[str, str],
        digest: bytes,
        codec: Codec,
        serializer: StateSerializer | None,
        key_ring: KeyRing | None = None,
    ) -> None:
        super().__init__(io, path, codec, serializer)
        self.key_ring = key_ring
        self.thread_id, self.namespace = owner
        self.mutex = threading.RLock()
        self._digest = digest
        self._reset()

    def _reset(self) -> None:
        self.header: log.Header | None = None
        self.version = log.MAJOR
        self.fid = 0
        self.adopt_seal(None)
        self.end = 0
        self.seq = 0
        """The number of the next record."""
        self.is_scattered = False
        """Whether the records about a checkpoint may stand anywhere behind it; see SCATTERED."""
        self.table: delta.Table | None = None
        """The packed state of the last checkpoint, if it was read."""
        self.state: FrozenDict | None = None
        """The state of the last checkpoint, if it was decoded."""
        self.keyframe_length = 0
        """About the length of the packed state at the last keyframe, if it was read."""
        self.closed_by: log.Frame | None = None
        """The RELEASE or TOMBSTONE record at the end, if any."""
        self.last_checkpoint: StoredCheckpoint | None = None
        """The checkpoint of the last CHECKPOINT record: the base of the next one."""
        self.early = EarlyWrites()
        """The early writes from `early_start` on that wait for their checkpoint."""
        self.early_start = 0
        """All records from here on have been read."""
        self.early_unread = 0
        """Where the first early writes begin that still wait; before `early_start`, they are
        unread."""
        self.depth = 0
        """How many changes stand between the last keyframe and that record."""
        self.keyframe_end = 0
        """Where the last keyframe ends."""
        self.names_pieces = False
        """Whether that keyframe names bytes in earlier records; else it has the whole state."""
        self.index: Index | None = None
        """All checkpoints, if a caller has needed them."""
        self._forget_past()

    # Opening and closing

    @abstractmethod
    def refresh(self) -> bool:
        """Take in what other processes have appended since; open the log if need be.

        Returns:
            Whether there is a log that has not ended.

        Raises:
            CheckpointCorruptionError: the log is damaged. It is closed.
            CheckpointFormatError: it needs a newer graphkit, or belongs to another thread. It is
                closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Forget what was read; the next use opens the log again."""

    def retire(self) -> None:
        """Close a log that its saver does not keep open any more."""
        self.close()

    def close_after_fork(self) -> None:
        """Close, in the child, what the log has from the parent."""
        self.close()

    @property
    def kept_size(self) -> int:
        """How many bytes of records are kept as they are; `drop_caches` drops them."""
        return 0 if self.opened_ranges is None else self.opened_ranges.size

    def drop_caches(self) -> None:
        """Drop the state and the index; they are read again when a caller needs them."""
        if self.opened_ranges is not None:
            self.opened_ranges.forget()
        self.state = None
        self.index = None
        self._forget_past()

    def _forget_past(self) -> None:
        self.chains = KeptChains()
        """The records of the keyframes of which states were read last."""
        self.recent: Sequence[StoredCheckpoint] = ()
        """The last checkpoints, if they were read without the index."""
        self.recent_end = -1
        """Where the log ended then."""
        self.past_values = ReadValues()
        """The values of that state."""
        self.found: dict[str, StoredCheckpoint] = {}
        """Checkpoints that were found by their ids without the index, while the log is not
        SCATTERED."""
        self.searched = 0
        """How many bytes were searched for ids."""
        self.accounted_end = 0
        """Where the log ended when `OpenLogs` measured what it caches."""

    # The beginning of the file

    def read_beginning(self, size: int, data: bytes | None = None) -> int:
        """Check the header and the first META record.

        Args:
            size: the size of the file.
            data: the beginning of the file, if the caller has read it already.

        Returns:
            Where the next record begins.

        Raises:
            IncompleteLog: the creation of the file was cut short.
            CheckpointCorruptionError: the header or the record is damaged.
            CheckpointFormatError: the log needs a newer graphkit, or belongs to another thread.
        """
        if data is None:
            data = self.io.read_at(self.fd, 0, min(size, _BEGINNING))
        is_headless = len(data) >= log.HEADER_SIZE and log.is_headless(data)
        if is_headless and self.file._replace(fid=None).vouched_end(0, size) <= 0:
            raise log.IncompleteLog
        self.header = log.read_header(self.path, data)
        self.fid = self.header.fid
        self.version = self.header.major
        meta = self._parse_meta(size, data)
        self._check_owner(payloads.unpack_payload(self.path, meta))
        self.seq = 1
        self.end = meta.end
        return meta.end

    def _parse_meta(self, size: int, data: bytes) -> log.Frame:
        meta = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, self.fid)
        if meta == "" and len(data) < size:
            data = self.io.read_at(self.fd, 0, min(size, _LONG_BEGINNING))
            meta = log.parse_frame(data, log.HEADER_SIZE, log.HEADER_SIZE, self.fid)
        if isinstance(meta, str):
            raise self._explain_no_meta(size, meta or "the record is cut short")
        if meta.type != log.META or meta.seq:
            reason = "the first record is not the log's description"
            raise self._explain_no_meta(size, reason)
        return meta

    def _explain_no_meta(self, size: int, reason: str) -> Exception:
        """Return the error for a log that does not begin with a META record."""
        # After a power loss, later sectors of the first write may be there without earlier ones,
        # and so may records behind it that did not wait for it.
        file = self.file
        if not file.vouched_end(log.HEADER_SIZE, size) and log.is_torn(file, log.HEADER_SIZE, size):
            return log.IncompleteLog()
        return CheckpointCorruptionError(self.path, log.HEADER_SIZE, reason)

    def _check_owner(self, meta: Any) -> None:
        owner = (self.thread_id, self.namespace)
        if not isinstance(meta, dict) or (meta.get("thread"), meta.get("ns")) != owner:
            reason = "it belongs to another thread; put the file back where it came from"
            raise CheckpointFormatError(self.path, reason)
        is_opaque = bool(meta.get("opaque"))
        if is_opaque is not (self.serializer is not None):
            how = "with a state_serializer" if is_opaque else "without a state_serializer"
            reason = f"it was written {how}; open the store in the same way"
            raise CheckpointFormatError(self.path, reason)
        self.adopt_seal(meta.get("sealed"))

    def adopt_seal(self, key_id: str | None) -> None:
        """Note whether the log is sealed; `key_id` is the id of the key with which it was begun."""
        owner = (self.thread_id, self.namespace)
        self.seal = None if key_id is None else LogSeal(self.key_ring, self.path, owner, str(key_id))
        self.opened_ranges = None if self.seal is None else OpenedRanges(self.seal)

    def new_seal(self) -> LogSeal | None:
        """Return a seal for a rewritten file of this log; None if the log is plain."""
        if self.seal is None:
            return None
        return LogSeal(self.key_ring, self.path, (self.thread_id, self.namespace), self.seal.key_id)

    def find_first_record(self) -> int:
        """Return where the record after the first META record begins."""
        return log.read_frame(self.file, log.HEADER_SIZE, log.MAX_PAYLOAD).end

    # The end of the file

    def load_early(self) -> EarlyWrites:
        """Return the early writes that wait for their checkpoint.

        Reads the part of the log in which they stand, if it was not read yet.
        """
        if self.early_unread < self.early_start:
            self.early = self._scan_early(self.early_unread, self.end)
            self.early_start = self.early_unread
        return self.early

    def _scan_early(self, start: int, end: int) -> EarlyWrites:
        """Return the early writes in a range of good records whose checkpoint is not in it."""
        early = EarlyWrites()
        first = log.read_frame(self.file, start, end)
        for frame in self.scan(start, end, first.seq):
            if frame.type == log.WRITE and frame.flags & log.EARLY:
                owner, values = payloads.decode_writes(self.path, frame)
                early.add(owner, values, frame.offset)
            elif frame.type == log.CHECKPOINT:
                early.drop(payloads.read_id(self.path, frame))
        return early

    def take_early(self, decoded: payloads.DecodedRecord, early: EarlyWrites, start: int) -> None:
        """Give the checkpoint of a record the writes that stand before it.

        Args:
            decoded: the record.
            early: the early writes in the records from `start` on.
            start: where the first of these records begins.
        """
        own_distance, _ = decoded.early
        if not own_distance:
            return
        checkpoint = decoded.checkpoint
        first = checkpoint.offset - own_distance
        if first < start:
            # They begin before the records that were read. `load_early` reads all again.
            early = self._scan_early(first, checkpoint.offset)
        early.give_to(checkpoint)

    def _load_last_checkpoint(self, last: log.Frame) -> None:
        """Read the last checkpoint, but not the table of its state: most callers want another one."""
        keyframe = last.offset - last.key
        if last.end - keyframe > MAX_LENGTH:
            for depth, decoded in enumerate(self.read_chain(keyframe, last.end)):
                checkpoint = decoded.checkpoint.copy_record()
                self._advance(decoded._replace(checkpoint=checkpoint), depth, checkpoint.offset + checkpoint.size)
        else:
            chain = self._get_chain(keyframe, last.end)
            decoded = chain.last
            self.last_checkpoint = decoded.checkpoint.copy_record()
            self.depth = len(chain) - 1
            self._note_keyframe(chain.first.table, chain.keyframe_end)
        assert self.last_checkpoint is not None
        if self.last_checkpoint.offset != last.offset:
            reason = "its keyframe does not lead to it"
            raise CheckpointCorruptionError(self.path, last.offset, reason)
        self.early_start = last.offset
        self.early_unread = last.offset - decoded.early[1]
        self.take_early(decoded._replace(checkpoint=self.last_checkpoint), self.early, self.early_start)

    def _get_chain(self, keyframe_offset: int, end: int) -> DecodedChain:
        """Return the records from a keyframe to an offset, decoded; perhaps more of them."""
        chain = self.chains.find(keyframe_offset)
        if chain is None:
            chain = DecodedChain(self, keyframe_offset)
        chain.read_to(end)
        self.chains.keep(chain)
        return chain

    # Taking in records

    def _read_all(self, size: int) -> None:
        """Read the log forward from its beginning, as far as it is good."""
        self.index = Index()
        self.early = EarlyWrites()
        self.early_start = self.early_unread = 0
        self.table = None
        self.last_checkpoint = None
        self.state = None
        self.seq = 1
        self.end = self.find_first_record()
        self._read_on(size)

    def _read_on(self, size: int) -> None:
        """Take in the records behind the known end."""
        for frame in self.scan(self.end, size, self.seq):
            self._take_next(frame)

    def _take_next(self, frame: log.Frame) -> None:
        """Take in the record behind the known end."""
        self._take_frame(frame)
        self.seq = frame.seq + 1
        self.end = frame.end
        self.is_scattered = frame.is_scattered

    def _take_frame(self, frame: log.Frame, *, with_table: bool = True) -> payloads.DecodedRecord | None:
        """Take in the next record; `with_table` also keeps the table of its state up to date.

        Returns:
            The content of a CHECKPOINT record.
        """
        if frame.type != log.CHECKPOINT:
            self._take_other(frame)
            return None
        base = self.last_checkpoint
        decoded = payloads.decode_checkpoint(self.path, frame, base, self.codec.unpack)
        is_keyframe = bool(frame.flags & log.KEY)
        keyframe_offset = frame.offset if is_keyframe or base is None else base.keyframe_offset
        if decoded.checkpoint.keyframe_offset != keyframe_offset:
            reason = "it names another record as its keyframe"
            raise CheckpointCorruptionError(self.path, frame.offset, reason)
        depth = 0 if is_keyframe else self.depth + 1
        if with_table:
            self._advance(decoded, depth, frame.end)
        else:
            self.last_checkpoint = decoded.checkpoint
            self.depth = depth
        self.take_early(decoded, self.early, self.early_start)
        self._add_to_index(decoded.checkpoint, decoded.target)
        return decoded

    def _advance(self, decoded: payloads.DecodedRecord, depth: int, end: int) -> None:
        """Make a decoded record the last checkpoint, with its table."""
        if decoded.table is not None:
            self.table = self.build_table(decoded)
            self.keyframe_length = self.table.length
            self._note_keyframe(decoded.table, end)
        elif self.table is not None:
            self.apply_change(self.table, decoded)
        self.last_checkpoint = decoded.checkpoint
        self.depth = depth
        self.state = None

    def _note_keyframe(self, listed: Sequence[Any] | None, end: int) -> None:
        """Take note of the last keyframe: what its table lists, and where it ends."""
        self.keyframe_end = end
        self.names_pieces = listed is None or any(listed[1::2])

    def _add_to_index(self, checkpoint: StoredCheckpoint, target: str | None) -> None:
        if self.index is not None and not self.index.add(checkpoint, target):
            reason = "it replaces a checkpoint that is not there"
            raise CheckpointCorruptionError(self.path, checkpoint.offset, reason)

    def _take_other(self, frame: log.Frame) -> None:
        """Take in a record that is not a checkpoint."""
        if frame.type in {log.RELEASE, log.TOMBSTONE}:
            self.closed_by = frame
        else:
            self._apply_writes_and_tags(frame, self._find_loaded, self.early)

    def _apply_writes_and_tags(
        self,
        frame: log.Frame,
        find: Callable[[str], StoredCheckpoint | None],
        early: EarlyWrites,
    ) -> None:
        """Add the pending writes or tags of a record to their checkpoint, if `find` returns it.

        Writes whose checkpoint is still to come are added to `early`.
        """
        if frame.type == log.WRITE:
            owner, values = payloads.decode_writes(self.path, frame)
            if frame.flags & log.EARLY:
                early.add(owner, values, frame.offset)
                return
            checkpoint = find(owner)
            if checkpoint is not None:
                checkpoint.add_writes(values, frame.offset)
        elif frame.type == log.MARK:
            owner, add, remove = payloads.decode_tags(self.path, frame)
            checkpoint = find(owner)
            if checkpoint is not None:
                checkpoint.tags = payloads.merge_tags(checkpoint.tags, add, remove)

    def _find_loaded(self, id: str) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, if it is in the index or the last one."""
        if self.index is not None:
            return self.index.find(id)
        last = self.last_checkpoint
        return last if last is not None and last.id == id else None
