"""Reads one log as changes, for a watch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from graphkit.abc import (
    BaseCheckpointSaver,
    Change,
    ChangeKind,
    is_incomplete,
    iter_changes,
    with_status,
    with_status_when_stored,
)
from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from savers._log import log, payloads
from savers._log.listed_checkpoints import make_info
from savers._log.log_reader import LogReader

if TYPE_CHECKING:
    from graphkit import CheckpointInfo
    from savers._log.stored_checkpoint import StoredCheckpoint


class ChangeReader(LogReader):
    """An open log whose records are reported as changes; it decodes no states."""

    _reported: str | None = None
    """The id of the checkpoint that was reported last, except those that mark an incomplete thread."""

    @property
    def last_reported(self) -> str | None:
        """The id behind which a watch goes on in a rewritten log; None if nothing was reported.

        Not that of a checkpoint that marks its thread as incomplete: another one takes its place, or
        itself without the mark.
        """
        last = self.last_checkpoint
        if self._reported is None and last is not None and not is_incomplete(last.metadata):
            return last.id
        return self._reported

    def read_changes_to(self, size: int) -> Iterator[Change]:
        """Yield the changes behind the known end.

        Args:
            size: where the log ends now.
        """
        for frame in self.scan(self.end, size, self.seq):
            self._take_frame(frame, with_table=False)
            self.seq = frame.seq + 1
            self.end = frame.end
            yield from self._frame_changes(frame)

    def latest_changes(self, saver: BaseCheckpointSaver) -> Iterator[Change]:
        """Yield the latest checkpoint and its pending writes, as if they were new.

        Args:
            saver: tells the status of the thread.
        """
        latest = self.find_latest()
        if latest is not None:
            yield from self._checkpoint_changes(latest, with_status(saver, make_info(self, latest)))
        self.index = None

    def changes_after(self, id: str | None) -> Iterator[Change]:
        """Yield what follows a checkpoint in a rewritten log: its pending writes, then checkpoints.

        Args:
            id: the checkpoint; if it is gone, all checkpoints are reported.
        """
        checkpoints = self.load_index().checkpoints
        known = -1
        for number, checkpoint in enumerate(checkpoints):
            if checkpoint.id == id:
                known = number
                break
        if known >= 0:
            yield from self._writes_changes(checkpoints[known], self._make_info(checkpoints[known]))
        for checkpoint in checkpoints[known + 1 :]:
            yield from self._checkpoint_changes(checkpoint, self._make_info(checkpoint))
        self.index = None
        if self.closed_by is not None and not self._is_empty(self.closed_by):
            yield self._end_change(self.closed_by)

    def _frame_changes(self, frame: log.Frame) -> Iterator[Change]:
        """Yield the changes that one record reports."""
        match frame.type:
            case log.CHECKPOINT:
                assert self.last_checkpoint is not None
                about = self._make_info(self.last_checkpoint)
                yield self._checkpoint_change(about)
                if frame.flags & log.EARLY:
                    yield from self._writes_changes(self.last_checkpoint, about)
            case log.WRITE if frame.flags & log.EARLY:
                # Reported when the checkpoint comes.
                pass
            case log.WRITE:
                owner, packed = payloads.decode_writes(self.path, frame)
                checkpoint = self._find_loaded(owner)
                yield from self._iter_writes(None if checkpoint is None else self._make_info(checkpoint), packed)
            case log.RELEASE | log.TOMBSTONE:
                if not self._is_empty(frame):
                    yield self._end_change(frame)

    def _make_info(self, checkpoint: StoredCheckpoint) -> CheckpointInfo:
        return with_status_when_stored(make_info(self, checkpoint))

    def _checkpoint_changes(self, checkpoint: StoredCheckpoint, about: CheckpointInfo) -> Iterator[Change]:
        yield self._checkpoint_change(about)
        yield from self._writes_changes(checkpoint, about)

    def _checkpoint_change(self, about: CheckpointInfo) -> Change:
        if not is_incomplete(about.metadata):
            self._reported = about.id
        return Change("checkpoint", self.thread_id, self.namespace, about, at=about.created_at)

    def _writes_changes(self, checkpoint: StoredCheckpoint, about: CheckpointInfo) -> Iterator[Change]:
        packed = self.read_packed_writes(checkpoint)
        yield from self._iter_writes(about, packed)

    def _iter_writes(self, about: CheckpointInfo | None, packed: Mapping[str, bytes]) -> Iterator[Change]:
        writes = {key: self._unpack_write(key, value) for key, value in packed.items()}
        owner = (self.thread_id, self.namespace)
        yield from iter_changes(owner, about, writes, self._read_write_time())

    def _end_change(self, frame: log.Frame) -> Change:
        kind: ChangeKind = "release" if frame.type == log.RELEASE else "delete"
        return Change(kind, self.thread_id, self.namespace, at=self._read_write_time())

    def _is_empty(self, end: log.Frame) -> bool:
        """Return whether only META records stand before the last record of a log.

        Such a log was created to end those of the other namespaces.
        """
        return end.seq == log.META_RECORDS[self.version]

    @abstractmethod
    def _read_write_time(self) -> datetime | None:
        """Return when the log was last written to; None if the store does not record it."""

    def _unpack_write(self, key: str, packed: bytes) -> Any:
        try:
            return self.codec.unpack(packed, key)
        except CheckpointSerializationError as error:
            return error.raw  # A follower need not know the application's types.
        except MalformedDataError as error:
            reason = f"the pending write {key!r} is malformed: {error}"
            raise CheckpointCorruptionError(self.path, self.end, reason) from error
