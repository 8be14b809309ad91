"""The bytes of one history in objects.

Theory of operation. A history is a directory. It has logs, numbered from 1; the last one counts. A log
has segments, an object for each commit: `<number of the log>.<offset of the first byte>`. To append is
to create the object whose name is the end of the log. If another writer was faster, it is there, and
the storage refuses: this is a compare-and-swap, and needs no lock.

An empty segment seals a log: nothing can follow it. A rewrite seals the log and creates the first
segment of the next one, which holds all its bytes; if that is empty, the history is deleted. Only then
are the segments of the old log removed, except that the name of its first one stays taken, by an empty
object. A writer that still knows the old log could create an object there, so each one looks for the
next log after it has created a segment. If it is there, the segment counts for nothing.

A log that is sealed and is still the last one belongs to a rewrite whose process has died, or is about
to go on. The next writer copies it as the next log, and the rewrite begins again if it is alive.

A released version is one object, `v<version>.<offset 0>`, with all bytes of a log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, final

from graphkit.errors import CheckpointCorruptionError
from savers._log.log_bytes import Change, LogBytes, StaleLogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._objects.bucket import Bucket


Logs = dict[str, list[tuple[int, int]]]
"""The logs of a history by name, each with the offsets and lengths of its segments, in order."""


def find_last_log(logs: Logs) -> str:
    """Return the name of the log that counts; it may stand for a delete, and is not there if there was no log."""
    return max(filter(str.isdecimal, logs), default=f"{0:08d}")


def is_live(logs: Logs) -> bool:
    """Return whether the log that counts has bytes."""
    return any(length for _, length in logs.get(find_last_log(logs), ()))


def name_version(version: int) -> str:
    """Return the name of the log of a released version."""
    return f"v{version:08d}"


def _name_next(log: str) -> str:
    """Return the name of the log that takes the place of a log."""
    return f"{int(log) + 1:08d}"


@final
class HistoryObjects:
    """The objects of one history, each a segment of one of its logs."""

    def __init__(self, bucket: Bucket, directory: str) -> None:
        self._bucket = bucket
        self._directory = directory

    def _name(self, log: str, offset: int) -> str:
        return f"{self._directory}/{log}.{offset:020d}"

    def list_logs(self) -> Logs:
        """Return the logs."""
        logs: Logs = {}
        for name, length in self._bucket.list(self._directory):
            log, _, offset = name.partition(".")
            logs.setdefault(log, []).append((int(offset), length))
        return logs

    def exists(self, log: str, offset: int) -> bool:
        """Return whether there is a segment that begins at an offset."""
        return self._bucket.exists(self._name(log, offset))

    def has_next(self, log: str) -> bool:
        """Return whether another log has taken the place of a log."""
        return self.exists(_name_next(log), 0)

    def read(self, log: str, offsets: Sequence[int]) -> list[bytes]:
        """Return the segments that begin at offsets.

        Raises:
            FileNotFoundError: one is missing.
        """
        return [*self._bucket.read([self._name(log, offset) for offset in offsets])]

    def create(self, log: str, offset: int, data: bytes) -> None:
        """Create a segment.

        Raises:
            StaleLogError: another writer was faster.
        """
        try:
            self._bucket.create(self._name(log, offset), data)
        except FileExistsError:
            # A client that repeats a request of which it got no answer meets its own object.
            if self.read(log, [offset]) != [data]:
                raise StaleLogError from None

    def append(self, log: str, offset: int, data: bytes) -> None:
        """Create the segment that follows the last one of a log, if the log still counts.

        Raises:
            StaleLogError: another writer was faster, or has replaced the log. Nothing was changed.
        """
        self.create(log, offset, data)
        if self.has_next(log) and not self._is_released(offset, data):
            self._bucket.remove(self._name(log, offset))
            raise StaleLogError

    def _is_released(self, start: int, data: bytes) -> bool:
        """Return whether a log was released with a segment, right after it was created."""
        versions = [log for log in self.list_logs() if not log.isdecimal()]
        if not versions:
            return False
        (released,) = self.read(max(versions), [0])
        return released[start : start + len(data)] == data

    def remove_others(self, *, versions: bool = False) -> None:
        """Remove the segments of the logs that do not count any more, and perhaps the versions."""
        logs = self.list_logs()
        last = find_last_log(logs)
        for log, segments in logs.items():
            is_version = not log.isdecimal()
            if log == last or (is_version and not versions):
                continue
            for start, length in segments:
                if start or is_version:
                    self._bucket.remove(self._name(log, start))
                elif length:
                    self._bucket.empty(self._name(log, start))


@final
class SegmentBytes(LogBytes):
    """The bytes of one log of a history.

    Attributes:
        objects: the segments.
        is_sealed: whether nothing can be appended: the log is to be replaced.
    """

    def __init__(self, bucket: Bucket, directory: str, version: int = 0) -> None:
        """Prepare to open the last log of a history, or a released version."""
        super().__init__(f"{bucket.url}/{directory}")
        self.objects = HistoryObjects(bucket, directory)
        self._version = version
        self._log = ""
        """The name of the log that was open last, or would have been."""
        self._reset()

    def _reset(self) -> None:
        self.size = 0
        self.is_sealed = False
        self.has_pending = False
        self._starts: list[int] = []
        """Where the segments begin, the one included that waits for `commit`."""
        self._kept: dict[int, bytes] = {}
        """The segments that are in memory, by their offsets."""

    @property
    def is_open(self) -> bool:
        return self.size > 0

    def open(self) -> bool:
        logs = self.objects.list_logs()
        self._log = name_version(self._version) if self._version else find_last_log(logs)
        self.size = 0
        self.is_sealed = False
        self._starts = []
        for start, length in logs.get(self._log, ()):
            if start != self.size:
                raise CheckpointCorruptionError(self.path, self.size, "a segment is missing")
            self.is_sealed = not length
            self.size += length
            if length:
                self._starts.append(start)
        return self.size > 0

    def refresh(self, end: int) -> Change:
        if self._version or not (self.objects.exists(self._log, end) or self.objects.has_next(self._log)):
            return Change.NONE
        known = self._log
        self.open()
        if self._log != known:
            return Change.REPLACED
        return Change.GREW if self.size > end else Change.NONE

    def is_gone(self) -> bool:
        return not self._version and find_last_log(self.objects.list_logs()) != self._log

    def close(self) -> None:
        self._reset()

    # Reading

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        low = bisect_right(self._starts, offset) - 1
        high = bisect_left(self._starts, end)
        starts = self._starts[low:high]
        missing = [start for start in starts if start not in self._kept]
        if missing:
            try:
                found = self.objects.read(self._log, missing)
            except FileNotFoundError as error:
                raise CheckpointCorruptionError(self.path, offset, "a segment is missing") from error
            self._kept.update(zip(missing, found, strict=True))
        whole = b"".join([self._kept[start] for start in starts])
        first = starts[0]
        data = whole[offset - first : end - first]
        if len(data) < end - offset:
            raise CheckpointCorruptionError(self.path, offset, "a segment is shorter than it was")
        return data

    @property
    def kept_size(self) -> int:
        return sum(map(len, self._kept.values()))

    def drop_caches(self) -> None:
        if not self.has_pending:
            self._kept.clear()

    # Appending

    def begin(self, beginning: bytes) -> None:
        if not self._log:
            self.open()
        self._log = _name_next(self._log)
        self.append(0, beginning, 0, None)

    def append(self, offset: int, data: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:  # noqa: ARG002 - an object keeps bytes
        if not self.has_pending:
            self.has_pending = True
            self._starts.append(offset)
            self._kept[offset] = b""
        self._kept[self._starts[-1]] += data
        self.size = offset + len(data)

    def undo(self, start: int) -> None:  # noqa: ARG002 - what is pending belongs together
        self._reset()  # The caller opens the log again: no object was created.

    def commit(self, latest: StoredCheckpoint | None = None) -> None:  # noqa: ARG002 - an object keeps bytes
        if self.has_pending:
            self.has_pending = False
            start = self._starts[-1]
            self.objects.append(self._log, start, self._kept[start])

    # Replacing the log

    def replace(self, data: bytes | None, version: int = 0) -> None:
        """Replace the open log. The caller closes this object.

        Args:
            data: the bytes of the next log; empty: the history is deleted; None: those of this one.
            version: if it is not 0, the bytes of this log are kept as this released version.

        Raises:
            StaleLogError: another writer was faster. The history is as it was.
        """
        if not self.is_sealed:
            self.objects.create(self._log, self.size, b"")
        if version:
            self.objects.create(name_version(version), 0, self._read_all())
        if data is None:
            data = self._read_all()
        self.objects.create(_name_next(self._log), 0, data)
        self.objects.remove_others()

    def _read_all(self) -> bytes:
        try:
            return self.read_at(0, self.size)
        except CheckpointCorruptionError:
            if self.is_gone():
                raise StaleLogError from None
            raise
