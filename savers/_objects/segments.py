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
to go on. The next writer creates the next log, with the same bytes and its own behind them, and the
rewrite begins again if it is alive.

A released version is one object, `v<version>.<offset 0>`, with all bytes of a log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, final

from graphkit.errors import CheckpointCorruptionError
from savers._log.log_bytes import BufferedLogBytes, Change, StaleLogError

if TYPE_CHECKING:
    from savers._objects.bucket import Bucket


Logs = dict[str, list[tuple[int, int]]]
"""The logs of a history by name, each with the offsets and lengths of its segments, in order."""


def list_logs(bucket: Bucket, directory: str) -> Logs:
    """Return the logs of a history."""
    logs: Logs = {}
    for name, length in bucket.scan(directory):
        log, _, offset = name.partition(".")
        logs.setdefault(log, []).append((int(offset), length))
    return logs


def find_last_log(logs: Logs) -> str:
    """Return the name of the log that counts; it may stand for a delete, and is not there if there was no log."""
    return max(filter(str.isdecimal, logs), default=f"{0:08d}")


def name_segment(directory: str, log: str, offset: int = 0) -> str:
    """Return the name of the object of a segment."""
    return f"{directory}/{log}.{offset:020d}"


def _name_next(log: str) -> str:
    return f"{int(log) + 1:08d}"


def remove_replaced(bucket: Bucket, directory: str) -> None:
    """Remove the segments of the logs of a history that do not count any more."""
    logs = list_logs(bucket, directory)
    logs.pop(find_last_log(logs), None)
    for log in filter(str.isdecimal, logs):
        # The first one last: as long as it has bytes, `ObjectCatalogue` finds that the others may be there.
        for start, length in reversed(logs[log]):
            if start:
                bucket.remove(name_segment(directory, log, start))
            elif length:
                bucket.empty(name_segment(directory, log))


def is_ended(bucket: Bucket, directory: str) -> bool:
    """Return whether a history has no bytes any more: only empty objects keep the names of its logs."""
    segments = [segment for log in list_logs(bucket, directory).values() for segment in log]
    return bool(segments) and not any(length for _, length in segments)


def remove_names(bucket: Bucket, directory: str) -> None:
    """Remove the empty objects of a history that has ended; no process may have it open."""
    # The last one last: until then, the history has ended.
    for name, _ in bucket.scan(directory):
        bucket.remove(f"{directory}/{name}")


@final
class SegmentBytes(BufferedLogBytes):
    """The bytes of the last log of a history, or of a released version."""

    def __init__(self, bucket: Bucket, directory: str, version: int = 0) -> None:
        """Prepare to open the last log of a history (version 0), or a released version."""
        super().__init__(f"{bucket.url}/{directory}")
        self._bucket = bucket
        self._directory = directory
        self._version = version
        self._log = ""
        """The name of the log that was open last, or would have been."""
        self._starts: list[int] = []
        """Where the segments begin."""
        self._kept: dict[int, bytes] = {}
        """The segments that are in memory, by their offsets."""
        self._is_sealed = False
        """Whether nothing can be appended to the log: the next one takes its place."""

    def open(self) -> bool:
        logs = list_logs(self._bucket, self._directory)
        self._log = f"v{self._version:08d}" if self._version else find_last_log(logs)
        self.size = 0
        self._is_sealed = False
        self._starts = []
        for start, length in logs.get(self._log, ()):
            if start != self.size:
                raise CheckpointCorruptionError(self.path, self.size, "a segment is missing")
            self._is_sealed = not length
            self.size += length
            if length:
                self._starts.append(start)
        return self.size > 0

    def refresh(self, end: int) -> Change:
        if self._version or not (self._exists(self._log, end) or self._exists(_name_next(self._log), 0)):
            return Change.NONE
        known = self._log
        self.open()
        if self._log != known:
            return Change.REPLACED
        return Change.GREW if self.size > end else Change.NONE

    def _exists(self, log: str, offset: int) -> bool:
        return self._bucket.exists(name_segment(self._directory, log, offset))

    def is_gone(self) -> bool:
        return not self._version and find_last_log(list_logs(self._bucket, self._directory)) != self._log

    def close(self) -> None:
        super().close()
        self._starts = []
        self._kept = {}

    # Reading

    def read_stored(self, offset: int, length: int) -> bytes:
        end = offset + length
        low = bisect_right(self._starts, offset) - 1
        high = bisect_left(self._starts, end)
        starts = self._starts[low:high]
        missing = [start for start in starts if start not in self._kept]
        if missing:
            names = [name_segment(self._directory, self._log, start) for start in missing]
            try:
                self._kept.update(zip(missing, self._bucket.read(names), strict=True))
            except FileNotFoundError as error:
                raise CheckpointCorruptionError(self.path, offset, "a segment is missing") from error
        whole = b"".join([self._kept[start] for start in starts])
        first = starts[0]
        data = whole[offset - first : end - first]
        if len(data) < length:
            raise CheckpointCorruptionError(self.path, offset, "a segment is shorter than it was")
        return data

    @property
    def kept_size(self) -> int:
        return sum(map(len, self._kept.values()))

    def drop_caches(self) -> None:
        self._kept.clear()

    # Appending

    def store(self, offset: int, data: bytes) -> None:
        log = self._log
        if self._is_sealed:
            # What is pending is a part of all bytes: the next log begins with what the sealed one has.
            data = self._read_all()
            offset = 0
        if not offset:
            log = _name_next(log)
            self._starts = []
            self._kept = {}
        self._create(log, offset, data)
        # The names of a log that was replaced are free again, except the first. So that the object could be created
        # proves nothing, until it is seen that no next log was there at that time. If one came later, its writer has
        # found this object in the way, or a release has taken it along.
        if self._exists(_name_next(log), 0) and not self._is_released(offset, data):
            self._bucket.remove(name_segment(self._directory, log, offset))
            raise StaleLogError
        self._log = log
        self._is_sealed = False
        self._starts.append(offset)
        self._kept[offset] = data

    def _create(self, log: str, start: int, data: bytes) -> None:
        """Create a segment; raise StaleLogError if another writer was faster."""
        name = name_segment(self._directory, log, start)
        try:
            self._bucket.create(name, data)
        except FileExistsError:
            # A client that repeats a request of which it got no answer meets its own object.
            if self._find(name) != data:
                raise StaleLogError from None

    def _find(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if another process has removed it meanwhile."""
        with suppress(FileNotFoundError):
            return self._bucket.read([name])[0]
        return None

    def _is_released(self, start: int, data: bytes) -> bool:
        """Return whether the log was released with a segment, right after it was created."""
        versions = [log for log in list_logs(self._bucket, self._directory) if not log.isdecimal()]
        if not versions:
            return False
        released = self._find(name_segment(self._directory, max(versions)))
        return released is not None and data == released[start : start + len(data)]

    # Replacing the log

    def replace(self, data: bytes, version: int = 0) -> None:
        if self._version:
            self._bucket.remove(name_segment(self._directory, self._log))
            return
        # Each step is refused to the slower of two writers, and the next one goes on where a dead one has stopped.
        if not self._is_sealed:
            self._create(self._log, self.size, b"")
        if version:
            self._create(f"v{version:08d}", 0, self._read_all())
        self._create(_name_next(self._log), 0, data)
        remove_replaced(self._bucket, self._directory)

    def _read_all(self) -> bytes:
        try:
            return self.read_at(0, self.size)
        except CheckpointCorruptionError:
            if self.is_gone():
                raise StaleLogError from None
            raise
