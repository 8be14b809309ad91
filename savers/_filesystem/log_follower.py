"""A log that is read on and on: what was appended to it since the last look, as changes to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, final

from graphkit.abc import Change, ChangeKind, iter_changes
from graphkit.codec import MalformedDataError
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from savers._filesystem import log, payloads
from savers._filesystem.log_reader import LogReader

if TYPE_CHECKING:
    from graphkit import CheckpointInfo
    from savers._filesystem.payloads import StoredCheckpoint

Info = Callable[[LogReader, "StoredCheckpoint"], "CheckpointInfo"]
"""Makes what is told of a checkpoint."""


class Bookmark(NamedTuple):
    """Where in which file the last look ended."""

    inode: int
    end: int
    last: str | None = None
    """The last checkpoint known of it."""
    is_over: bool = False
    """The end of this history was told."""


@final
class LogFollower(LogReader):
    """An open log that is read on and on; states are not decoded, and no list of its checkpoints is kept."""

    inode = 0

    def open_at(self, end: int | None) -> bool:
        """Open the file as it was when it ended there (None: as it is); false if there is no log."""
        try:
            self.fd = self.io.open(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            found = self.io.fstat(self.fd)
            self.inode = found.st_ino
            start = self._read_beginning(found.st_size)
            limit = found.st_size if end is None else min(end, found.st_size)
            if limit > start and not self._read_end(limit, start):
                self._read_all(limit)
        except log.IncompleteLog:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        self.table = self.index = None
        return True

    def changes(self, info: Info) -> Iterator[Change]:
        """What was appended since."""
        size = self.io.fstat(self.fd).st_size
        for frame in self.scan(self.end, size, self.seq):
            self._take_frame(frame, tracked=False)
            self.seq, self.end = frame.seq + 1, frame.end
            yield from self._told(frame, info)

    def _told(self, frame: log.Frame, info: Info) -> Iterator[Change]:
        place = self.thread_id, self.namespace
        if frame.type == log.CHECKPOINT and self.last_checkpoint is not None:
            latest = info(self, self.last_checkpoint)
            yield Change("checkpoint", *place, latest, at=latest.created_at)
        elif frame.type == log.WRITE:
            beside, values = payloads.decode_writes(self.path, frame)
            entry = self._find_loaded(beside)
            about = None if entry is None else info(self, entry)
            writes = {key: self._value(key, packed) for key, packed in values.items()}
            yield from iter_changes(place, about, writes, self._written_at())
        elif frame.type in {log.RELEASE, log.TOMBSTONE} and not self._is_empty(frame):
            yield self._end_told(frame)

    def _is_empty(self, end: log.Frame) -> bool:
        """Whether a log held nothing but its description: it was made to end those of the namespaces."""
        return end.seq == log.META_RECORDS[self.version]

    def _end_told(self, frame: log.Frame) -> Change:
        kind: ChangeKind = "release" if frame.type == log.RELEASE else "delete"
        return Change(kind, self.thread_id, self.namespace, at=self._written_at())

    def _written_at(self) -> datetime:
        """When the log was last written to."""
        return datetime.fromtimestamp(self.io.fstat(self.fd).st_mtime, UTC)

    def _value(self, key: str, packed: bytes) -> Any:
        try:
            return self._codec.unpack(packed, key)
        except CheckpointSerializationError as error:
            return error.raw  # whoever follows need not know the application's types
        except MalformedDataError as error:
            reason = f"what is recorded under {key!r} makes no sense: {error}"
            raise CheckpointCorruptionError(self.path, self.end, reason) from error

    def latest_changes(self, info: Info) -> Iterator[Change]:
        """The latest checkpoint and what is recorded beside it, as if it were new."""
        entry = self.find_latest()
        if entry is not None:
            yield from self._entry_told(entry, info)
        self.index = None

    def changes_after(self, id: str | None, info: Info) -> Iterator[Change]:
        """The checkpoints after one, in a log that was written anew, and what is beside that one; all if it is gone."""
        entries = self.load_index().checkpoints
        known = next((number for number, entry in enumerate(entries) if entry.id == id), -1)
        if known >= 0:
            yield from self._beside(entries[known], info)
        for entry in entries[known + 1 :]:
            yield from self._entry_told(entry, info)
        self.index = None
        if self.closed_by is not None and not self._is_empty(self.closed_by):
            yield self._end_told(self.closed_by)

    def _entry_told(self, entry: StoredCheckpoint, info: Info) -> Iterator[Change]:
        found = info(self, entry)
        yield Change("checkpoint", self.thread_id, self.namespace, found, at=found.created_at)
        yield from self._beside(entry, info)

    def _beside(self, entry: StoredCheckpoint, info: Info) -> Iterator[Change]:
        values = {key: self._value(key, packed) for key, packed in self.read_packed_writes(entry).items()}
        place = self.thread_id, self.namespace
        yield from iter_changes(place, info(self, entry), values, self._written_at())

    def bookmark(self) -> Bookmark:
        """Where it was read to."""
        last = None if self.last_checkpoint is None else self.last_checkpoint.id
        return Bookmark(self.inode, self.end, last, self.closed_by is not None)
