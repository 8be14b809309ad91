"""Log: the history of one namespace of a thread, in a log; and its checkpoints as a saver returns them.

A Log owns its parts: the frames over some bytes, the checkpoints, their chains and states, and the
writer. Every use begins with `refresh`, which takes in what other processes have appended. The
caller holds `mutex` throughout.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Generic

from graphkit import CheckpointInfo
from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import PLAIN, PRIVATE, Changes, MalformedDataError, derive_stop, has_status_mark, private_copy
from savers import _delta as delta
from savers._log import payloads
from savers._log.frame import REPLACED
from savers._log.frame_log import FrameLog, Medium, ThreadIdentity
from savers._log.history import History
from savers._log.log_bytes import Change
from savers._log.packed_history import PackedHistory, StateDecoder
from savers._log.stored_checkpoint import outline_writes
from savers._log.writer import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from graphkit import Checkpoint
    from graphkit.abc import StateSerializer
    from graphkit.saver_kit import Codec, FrozenDict
    from savers._compression import Compression
    from savers._log.stored_checkpoint import StoredCheckpoint

_ENTRY_COST: Final = 1 << 10
"""About how many bytes a checkpoint takes in an index."""
SMALL_STATE: Final = 64 << 10
"""A state of at most this many bytes is packed or decoded in about the time that a hop to a worker
thread takes."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_new_info: Final[Callable[..., CheckpointInfo]] = tuple.__new__


class Log(Generic[Medium]):
    """The log of one history. One OS thread may use it at a time, the one that holds `mutex`.

    Attributes:
        thread_id: the thread.
        namespace: its namespace.
        mutex: held by its user.
        frames: the records, and the bytes below them.
        history: the checkpoints.
        packed: their states.
        decoder: unpacks the states; it knows the values of the last one.
        codec: packs and unpacks values.
        writer: what appends; it knows the newest state.
        expects_release: whether it is a released log, which ends in RELEASE.
        was_removed: whether the last refresh found that the open log was removed, and that its bytes
            do not end as a delete, a release or a rewrite ends them.
    """

    def __init__(
        self,
        bytes: Medium,
        identity: ThreadIdentity,
        codec: Codec,
        serializer: StateSerializer | None = None,
        compression: Compression | None = None,
        *,
        expects_release: bool = False,
    ) -> None:
        """Prepare a log; nothing is opened.

        Args:
            bytes: where its bytes lie.
            identity: whose log it is.
            codec: packs and unpacks values.
            serializer: converts whole states to bytes; None: the codec does.
            compression: how large values are compressed.
            expects_release: whether the caller looks for a released log.
        """
        self.thread_id, self.namespace = identity.owner
        self.mutex = threading.RLock()
        self.frames: FrameLog[Medium, ThreadIdentity] = FrameLog(bytes, identity)
        self.codec = codec
        # One object for all parts: a listing keeps thousands of logs, and the garbage collector visits each object.
        unpack = codec.unpack
        self.history = History(self.frames, unpack)
        self.packed = PackedHistory(self.history.chains, self.frames, unpack)
        self.decoder = StateDecoder(self.path, codec, serializer)
        self.writer = LogWriter(self.frames, self.history, self.packed, codec, serializer, compression)
        self.expects_release = expects_release
        self.was_removed = False
        self.is_known_absent = False
        """Whether the last refresh has found no log, and nothing was appended since."""
        self.accounted_end = 0
        """Where the log ended when `OpenLogs` measured what it caches."""

    def make_copy(self, bytes: Medium) -> Log[Medium]:
        """Return a log of the same history over other bytes, to which this one is rewritten."""
        copy = Log(bytes, self.frames.identity, self.codec, self.decoder.serializer, self.writer.compression)
        copy.frames.keep_key_of(self.frames)
        return copy

    @property
    def path(self) -> str:
        """Names the log in errors."""
        return self.frames.path

    @property
    def is_open(self) -> bool:
        """Whether there is a log, as far as this object knows."""
        return self.frames.bytes.is_open

    # Opening and closing

    def refresh(self) -> bool:
        """Take in what other writers have appended since; open the log if need be.

        Returns:
            Whether there is a log that has not ended (a released log: whether there is one).

        Raises:
            CheckpointCorruptionError: the log is damaged. It is closed.
            CheckpointFormatError: another version of graphkit wrote it, or it belongs to another
                thread. It is closed.
        """
        self.was_removed = False
        try:
            change = self.frames.find_change()
            if self._take_in(change):
                return True
            was_removed = change is Change.REMOVED and self._has_no_end()
            self.close()  # also if it is closed: an exception may have stopped `close` in the middle
            is_live = False
            if self.frames.open():
                self.history.load_end()
                self.frames.bytes.note_end(self.frames.end, self.history.last)
                is_live = self.expects_release or self.history.closed_by is None
            self.is_known_absent = not self.is_open
        except BaseException as error:
            # A part of what was appended may have been taken in.
            self.close()
            if isinstance(error, CheckpointCorruptionError) and self.frames.bytes.is_gone():
                # It was replaced while it was read, and only seems damaged.
                return self.refresh()
            raise
        self.was_removed = was_removed and not is_live
        return is_live

    def refresh_to_write(self) -> bool:
        """Refresh, and cut off what a dead writer left at the end; the caller excludes other writers. See `refresh`."""
        if not self.refresh():
            return False
        self.frames.prepare_end()
        return True

    def _take_in(self, change: Change) -> bool:
        """Read what was appended; return whether the open log is still the one to read."""
        if change in {Change.REPLACED, Change.REMOVED}:
            return False
        frames = self.frames
        if self.history.closed_by is not None:
            # A live log that has ended is read no more: another one may have taken its place.
            return self.expects_release and change is Change.NONE
        if change is Change.GREW:
            frames.in_doubt = True
            if self.history.read_on(frames.bytes.size):
                self.writer.reset()
            frames.bytes.note_end(frames.end, self.history.last)
            frames.in_doubt = False
        return self.history.closed_by is None

    def _has_no_end(self) -> bool:
        """Return whether bytes that lost their name did so otherwise than by a delete, a release or a rewrite."""
        try:
            frames = self.history.iter_on(self.frames.bytes.size)
            was_replaced = any(frame.type == REPLACED for frame in frames)
        except CheckpointCorruptionError:
            return True
        return not was_replaced and self.history.closed_by is None

    def commit(self) -> None:
        """Let the medium store what was appended; see `LogBytes.commit`. If that fails, the log is closed."""
        try:
            self.frames.bytes.commit(self.history.find_latest())
        except BaseException:
            self.close()
            raise

    def discard(self) -> None:
        """Forget what was appended and not committed."""
        if self.frames.in_doubt or self.frames.bytes.has_pending:
            self.close()

    def close(self) -> None:
        """Forget what was read; the next use opens the log again."""
        self.is_known_absent = False
        self.frames.close()
        self.history.reset()
        self.writer.reset()
        self.decoder.forget()

    def end(self, type: int, version: int) -> None:
        """Append the record that ends this log: RELEASE or TOMBSTONE. The caller closes it."""
        frames = self.frames
        frames.append(type, payloads.packb([version, time_ns() // 1000]))
        frames.bytes.note_ended(frames.end)

    def retire(self) -> None:
        """Close a log that its saver does not keep open any more."""
        if not self.frames.in_doubt:
            self.frames.bytes.retire(self.frames.end)
        self.close()

    def close_after_fork(self) -> None:
        """Close, in the child of a fork, what the log has from the parent."""
        self.frames.bytes.close_after_fork()
        self.close()

    # Caches

    @property
    def cached_size(self) -> int:
        """About how many bytes of memory are kept to save work."""
        index = self.history.index
        size = 0 if index is None else _ENTRY_COST * len(index.checkpoints)
        if self.writer.state is not None:
            size += self.writer.state_length
        size += self.history.chains.size + self.decoder.size
        return size + self.frames.records.kept_size + self.frames.bytes.kept_size

    def drop_caches(self) -> None:
        """Drop what is only kept to save work; it is read again when a caller needs it."""
        self.history.drop_index()
        self.history.chains.forget()
        self.writer.reset()
        self.decoder.forget()
        self.frames.records.forget()
        self.frames.bytes.drop_caches()

    def is_small(self) -> bool:
        """Return whether the last state is in memory, and not longer than `SMALL_STATE`."""
        return self.writer.state is not None and self.writer.state_length <= SMALL_STATE

    # Reading

    def load_state(self, stored: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint of this log.

        Raises:
            CheckpointCorruptionError: its bytes are damaged.
            CheckpointSerializationError: it holds a type that is not registered.
        """
        writer = self.writer
        last = self.history.last
        is_last = last is not None and stored.offset == last.offset
        if is_last and writer.state is not None and writer.state.kind != PRIVATE:
            return writer.state
        packed = self.packed.read(stored)
        state = self.decoder.decode(packed, stored.offset)
        if is_last:
            writer.state = state
            sizes = [value.length if isinstance(value, delta.GrowingValue) else len(value) for value in packed.values()]
            writer.state_length = sum(sizes)
        return state

    def read_writes(self, stored: StoredCheckpoint) -> dict[str, Any]:
        """Return the pending writes of a checkpoint, in the order of their first recording.

        Raises:
            CheckpointCorruptionError: they are damaged.
            CheckpointSerializationError: they hold a type that is not registered.
        """
        packed = self.history.chains.read_writes(stored)
        try:
            return {key: self.codec.unpack(value, key) for key, value in packed.items()}
        except MalformedDataError as error:
            reason = f"a pending write is malformed: {error}"
            raise CheckpointCorruptionError(self.path, stored.offset, reason) from error


AnyLog = Log[Any]


def make_info(log: AnyLog, stored: StoredCheckpoint) -> CheckpointInfo:
    """Return what is known of a stored checkpoint without decoding its state; it has no status."""
    # A history has one of these per checkpoint. By position, without the calls that most need not
    # make, and without the constructor: 0.7 us instead of 2 us.
    metadata = stored.metadata
    stopped = ""
    if stored.writes or has_status_mark(metadata):
        stopped = derive_stop(stored.next, outline_writes(stored.writes, stored.cleared), metadata)
    return _new_info(
        CheckpointInfo,
        (
            log.thread_id,
            log.namespace,
            stored.id,
            stored.parent,
            stored.node,
            stored.next,
            _EPOCH + timedelta(0, 0, stored.created),
            stored.size,
            "",
            stored.tags,
            metadata if metadata.kind == PLAIN else private_copy(metadata),
            stopped,
        ),
    )


def read_forward(log: AnyLog) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a log, oldest first, with what changed; see `SupportsReplay`.

    A state is decoded as far as it changed, so a history of growing states takes linear time.

    Args:
        log: the log, open, and used by no other caller.

    Raises:
        CheckpointCorruptionError: the log is damaged.
        CheckpointSerializationError: a state holds a type that is not registered.
    """
    decoder = log.decoder.make_empty()
    for stored in log.history.load_index().checkpoints:
        before = decoder.last
        ops = decoder.decode_next(log.packed.read(stored), stored.offset)
        changes = None if before is None or ops is None else Changes(before, ops)
        yield stored.make_checkpoint(decoder.last, changes)
