"""Reads one log as changes, for a watch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from graphkit.abc import BaseCheckpointSaver, Change, ChangeKind
from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from graphkit.saver_kit import is_incomplete, iter_changes, with_status, with_status_when_stored
from savers._log import payloads
from savers._log.frame import CHECKPOINT, EARLY, META_RECORDS, RELEASE, TOMBSTONE, WRITE, Frame
from savers._log.listing import make_info

if TYPE_CHECKING:
    from graphkit import CheckpointInfo
    from savers._log.log import AnyLog
    from savers._log.stored_checkpoint import StoredCheckpoint


class ChangeReader:
    """Reports the records of one log as changes; it decodes no states, and keeps no index.

    Attributes:
        log: the log, used by no other caller.
        end: where the next record begins whose changes were not all yielded.
    """

    _reported: str | None = None
    """The id of the checkpoint that was reported last, except those that mark an incomplete thread."""

    def __init__(self, log: AnyLog, find_write_time: Callable[[], datetime | None]) -> None:
        """Read a log.

        Args:
            log: the log.
            find_write_time: returns when the log was last written to; None if the store does not
                record it.
        """
        self.log = log
        self.end = 0
        self._find_write_time = find_write_time

    @property
    def last_reported(self) -> str | None:
        """The id behind which a watch goes on in a rewritten log; None if nothing was reported.

        Not that of a checkpoint that marks its thread as incomplete: another one takes its place, or
        itself without the mark.
        """
        last = self.log.history.last
        if self._reported is None and last is not None and not is_incomplete(last.metadata):
            return last.id
        return self._reported

    def open_at(self, end: int | None) -> bool:
        """Open the log as it was when it ended at an offset; return False if there is none.

        The caller closes the log, also after an error.

        Args:
            end: the offset; None: the present end.
        """
        log = self.log
        if not log.frames.open():
            return False
        medium = log.frames.bytes
        if end is not None:
            medium.size = min(end, medium.size)
        if medium.size > log.frames.end:
            log.history.load_end()
        log.history.drop_index()
        self.end = log.frames.end
        return True

    def read_changes(self) -> Iterator[Change]:
        """Yield the changes that were appended since the last call."""
        log = self.log
        log.frames.bytes.refresh(log.frames.end)
        for frame in log.history.iter_on(log.frames.bytes.size):
            yield from self._frame_changes(frame)
            self.end = frame.end

    def latest_changes(self, saver: BaseCheckpointSaver) -> Iterator[Change]:
        """Yield the latest checkpoint and its pending writes, as if they were new.

        Args:
            saver: finds the status of the thread.
        """
        latest = self.log.history.find_latest()
        if latest is not None:
            yield from self._checkpoint_changes(latest, with_status(saver, make_info(self.log, latest)))
        self.log.history.drop_index()

    def changes_after(self, id: str | None) -> Iterator[Change]:
        """Yield what follows a checkpoint in a rewritten log: its pending writes, then checkpoints.

        Args:
            id: the checkpoint; if it is gone, all checkpoints are reported.
        """
        history = self.log.history
        checkpoints = history.load_index().checkpoints
        known = next((number for number, stored in enumerate(checkpoints) if stored.id == id), -1)
        if known >= 0:
            yield from self._writes_changes(checkpoints[known], self._make_info(checkpoints[known]))
        for checkpoint in checkpoints[known + 1 :]:
            yield from self._checkpoint_changes(checkpoint, self._make_info(checkpoint))
        history.drop_index()
        if history.closed_by is not None and not _is_empty(history.closed_by):
            yield self._end_change(history.closed_by)

    def _frame_changes(self, frame: Frame) -> Iterator[Change]:
        """Yield the changes that one record reports."""
        last = self.log.history.last
        if frame.type == CHECKPOINT:
            assert last is not None
            yield from self._checkpoint_changes(last, self._make_info(last))
        elif frame.type == WRITE and not frame.flags & EARLY:  # Early ones are reported when the checkpoint comes.
            owner, packed = payloads.decode_writes(self.log.path, frame)
            about = self._make_info(last) if last is not None and last.id == owner else None
            yield from self._iter_writes(about, packed)
        elif frame.type in {RELEASE, TOMBSTONE} and not _is_empty(frame):
            yield self._end_change(frame)

    def _make_info(self, checkpoint: StoredCheckpoint) -> CheckpointInfo:
        return with_status_when_stored(make_info(self.log, checkpoint))

    def _checkpoint_changes(self, checkpoint: StoredCheckpoint, about: CheckpointInfo) -> Iterator[Change]:
        if not is_incomplete(about.metadata):
            self._reported = about.id
        yield Change("checkpoint", self.log.thread_id, self.log.namespace, about, at=about.created_at)
        if checkpoint.writes:
            yield from self._writes_changes(checkpoint, about)

    def _writes_changes(self, checkpoint: StoredCheckpoint, about: CheckpointInfo) -> Iterator[Change]:
        packed = self.log.history.read_packed_writes(checkpoint)
        yield from self._iter_writes(about, packed)

    def _iter_writes(self, about: CheckpointInfo | None, packed: Mapping[str, bytes]) -> Iterator[Change]:
        writes = {key: self._unpack_write(key, value) for key, value in packed.items()}
        owner = (self.log.thread_id, self.log.namespace)
        yield from iter_changes(owner, about, writes, self._find_write_time())

    def _end_change(self, frame: Frame) -> Change:
        kind: ChangeKind = "release" if frame.type == RELEASE else "delete"
        return Change(kind, self.log.thread_id, self.log.namespace, at=self._find_write_time())

    def _unpack_write(self, key: str, packed: bytes) -> Any:
        try:
            return self.log.unpack(packed, key)
        except CheckpointSerializationError as error:
            return error.raw  # A follower need not know the application's types.
        except MalformedDataError as error:
            reason = f"the pending write {key!r} is malformed: {error}"
            raise CheckpointCorruptionError(self.log.path, self.log.frames.end, reason) from error


def _is_empty(end: Frame) -> bool:
    """Return whether only META records stand before the last record of a log.

    Such a log was created to end those of the other namespaces.
    """
    return end.seq == META_RECORDS
