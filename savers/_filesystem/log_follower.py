"""Follows one log: reads what other processes append to it, as changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, final

from graphkit.abc import Change, ChangeKind, iter_changes
from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from savers._filesystem.file_log_reader import FileLogReader
from savers._log import log, payloads

if TYPE_CHECKING:
    from graphkit import CheckpointInfo
    from savers._log.stored_checkpoint import StoredCheckpoint

Info = Callable[[FileLogReader, "StoredCheckpoint"], "CheckpointInfo"]
"""Makes the CheckpointInfo that a change reports."""


class Bookmark(NamedTuple):
    """Where in which file a follower stopped reading."""

    inode: int
    """The file; 0: it was replaced, or cut, since."""
    end: int
    last: str | None = None
    """The id of the last checkpoint that was read."""
    is_over: bool = False
    """Whether the end of this history was reported."""


@final
class LogFollower(FileLogReader):
    """An open log that is read again and again; it decodes no states and keeps no index."""

    def open_at(self, end: int | None) -> bool:
        """Open the file and read it as it was when it ended at an offset.

        Args:
            end: the offset; None: the present end.
        """
        try:
            self.fd = self.io.open(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            status = self.io.fstat(self.fd)
            self.inode = status.st_ino
            start = self.read_beginning(status.st_size)
            limit = status.st_size if end is None else min(end, status.st_size)
            if limit > start and not self._read_end(limit, start):
                self._read_all(limit)
        except log.IncompleteLog:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        self.table = None
        self.index = None
        return True

    def bookmark(self) -> Bookmark:
        """Return a bookmark for the position to which the log was read."""
        last = self.last_checkpoint
        return Bookmark(
            inode=self.inode,
            end=self.end,
            last=None if last is None else last.id,
            is_over=self.closed_by is not None,
        )

    # Changes

    def read_changes(self, info: Info) -> Iterator[Change]:
        """Yield the changes that were appended since the last call."""
        size = self.io.fstat(self.fd).st_size
        for frame in self.scan(self.end, size, self.seq):
            self._take_frame(frame, with_table=False)
            self.seq = frame.seq + 1
            self.end = frame.end
            yield from self._frame_changes(frame, info)

    def latest_changes(self, info: Info) -> Iterator[Change]:
        """Yield the latest checkpoint and its pending writes, as if they were new."""
        latest = self.find_latest()
        if latest is not None:
            yield from self._checkpoint_changes(latest, info)
        self.index = None

    def changes_after(self, id: str | None, info: Info) -> Iterator[Change]:
        """Yield what follows a checkpoint in a rewritten log: its pending writes, then checkpoints.

        Args:
            id: the checkpoint; if it is gone, all checkpoints are reported.
            info: makes the CheckpointInfo.
        """
        checkpoints = self.load_index().checkpoints
        known = -1
        for number, checkpoint in enumerate(checkpoints):
            if checkpoint.id == id:
                known = number
                break
        if known >= 0:
            yield from self._writes_changes(checkpoints[known], info)
        for checkpoint in checkpoints[known + 1 :]:
            yield from self._checkpoint_changes(checkpoint, info)
        self.index = None
        if self.closed_by is not None and not self._is_empty(self.closed_by):
            yield self._end_change(self.closed_by)

    def _frame_changes(self, frame: log.Frame, info: Info) -> Iterator[Change]:
        """Yield the changes that one record reports."""
        match frame.type:
            case log.CHECKPOINT:
                assert self.last_checkpoint is not None
                yield self._checkpoint_change(info(self, self.last_checkpoint))
                if frame.flags & log.EARLY:
                    yield from self._writes_changes(self.last_checkpoint, info)
            case log.WRITE if frame.flags & log.EARLY:
                # Reported when the checkpoint comes.
                pass
            case log.WRITE:
                owner, packed = payloads.decode_writes(self.path, frame)
                checkpoint = self._find_loaded(owner)
                about = None if checkpoint is None else info(self, checkpoint)
                yield from self._iter_writes(about, packed)
            case log.RELEASE | log.TOMBSTONE:
                if not self._is_empty(frame):
                    yield self._end_change(frame)

    def _checkpoint_changes(self, checkpoint: StoredCheckpoint, info: Info) -> Iterator[Change]:
        yield self._checkpoint_change(info(self, checkpoint))
        yield from self._writes_changes(checkpoint, info)

    def _checkpoint_change(self, about: CheckpointInfo) -> Change:
        return Change("checkpoint", self.thread_id, self.namespace, about, at=about.created_at)

    def _writes_changes(self, checkpoint: StoredCheckpoint, info: Info) -> Iterator[Change]:
        packed = self.read_packed_writes(checkpoint)
        yield from self._iter_writes(info(self, checkpoint), packed)

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

    def _read_write_time(self) -> datetime:
        """Return when the log was last written to."""
        return datetime.fromtimestamp(self.io.fstat(self.fd).st_mtime, UTC)

    def _unpack_write(self, key: str, packed: bytes) -> Any:
        try:
            return self.codec.unpack(packed, key)
        except CheckpointSerializationError as error:
            return error.raw  # A follower need not know the application's types.
        except MalformedDataError as error:
            reason = f"the pending write {key!r} is malformed: {error}"
            raise CheckpointCorruptionError(self.path, self.end, reason) from error
