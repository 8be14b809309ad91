"""Histories as they are at one moment, for callers that read some of their checkpoints later.

A view remembers which file it was made from, and how long that was. While the log stays as it is,
its checkpoints are read without looking for them again. After any change, `read` returns None, and
the caller finds the checkpoint by its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final
from zlib import crc32

from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers._filesystem import catalog, layout, log, payloads
from savers._filesystem.decoded_chain import DecodedChain
from savers._filesystem.index import Index
from savers._filesystem.io import FileIO
from savers._filesystem.live_logs import refresh_to_read
from savers._filesystem.log_reader import LogReader
from savers._filesystem.os_errors import wrap_os_errors

if TYPE_CHECKING:
    import os

    from graphkit.values import FrozenDict
    from savers import _delta as delta
    from savers._filesystem.log_writer import LogWriter
    from savers._filesystem.store import Store
    from savers._filesystem.stored_checkpoint import StoredCheckpoint

_FEWEST_READ: Final = 16
"""The fewest checkpoints that are read from the end of a log at first."""
_GROWTH: Final = 4
"""Each time, this many times more are read."""
_LONGEST_SCAN: Final = 1 << 20
"""Logs of more bytes are not read as a whole: reading from the end costs less."""

_FEW_PIECES: Final = 64
"""Entries of a list of pieces up to which the pieces are cut one by one."""

Visit = Callable[["StoredCheckpoint"], bool]
"""Takes a checkpoint; returns whether the next one is wanted too."""
FileState = tuple[int, int, int, int, int]
"""What distinguishes the content of a log from that of any other at its path."""


class ReadCheckpoint(NamedTuple):
    """What belongs to a checkpoint and was read later than its record."""

    state: FrozenDict
    writes: Mapping[str, Any]


class HistoryView(Protocol):
    """The checkpoints of one history at one moment."""

    thread_id: str
    namespace: str

    def walk_back(self, visit: Visit, expected: int | None) -> None:
        """Visit the checkpoints, newest first, until `visit` returns False.

        Args:
            visit: the function to call.
            expected: about how many visits there will be; None if all checkpoints are wanted.
        """

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """Return the state and the pending writes of a checkpoint; None if the log has changed."""

    def forget(self) -> None:
        """Drop what the view keeps in memory of the log; `read` may then return None."""


@final
class SharedView:
    """A view of a log that the saver keeps open."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        self.thread_id = thread_id
        self.namespace = namespace
        self._store = store
        self._fid = 0
        self._end = 0

    @property
    def _reader(self) -> LogWriter:
        return self._store.shared_writer(self.thread_id, self.namespace)

    @wrap_os_errors("read")
    def walk_back(self, visit: Visit, expected: int | None) -> None:
        """See HistoryView. Reads no further back than the visits go."""
        reader = self._reader
        with reader.mutex:
            if not refresh_to_read(self._store, reader):
                return
            self._fid = reader.fid
            self._end = reader.end
            if expected is None:
                reader.load_index()
            _walk_back_in(reader, visit, expected or 0)
            self._store.logs.account(reader)

    @wrap_os_errors("read")
    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        reader = self._reader
        with reader.mutex:
            if not refresh_to_read(self._store, reader):
                return None
            if reader.fid != self._fid or reader.end != self._end:
                return None
            found = ReadCheckpoint(reader.load_state(stored), reader.read_writes(stored))
            self._store.logs.account(reader)
            return found

    def forget(self) -> None:
        """Do nothing: the saver keeps the log."""


def _walk_back_in(reader: LogReader, visit: Visit, expected: int) -> None:
    visited = 0
    wanted = max(expected, _FEWEST_READ)
    while True:
        checkpoints = reader.find_recent(wanted)
        for stored in reversed(checkpoints[: len(checkpoints) - visited]):
            if not visit(stored):
                return
        visited = len(checkpoints)
        if visited < wanted:
            return
        wanted *= _GROWTH


@final
class _Bytes(FileIO):
    """The bytes of a file that was read as a whole."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def read_at(self, fd: int, offset: int, length: int) -> bytes:  # noqa: ARG002 - there is one file
        return self.data[offset : offset + length]

    def close(self, fd: int) -> None:
        """Do nothing: the file was closed when it had been read."""


@final
class ScannedView(LogReader):
    """A view of a short log that was read once, as a whole, and is not kept open."""

    def __init__(self, store: Store, live_log: LiveLog) -> None:
        thread_id, namespace, path = live_log
        super().__init__(*store._arguments(path, thread_id, namespace))  # noqa: SLF001 - as every log
        self._store = store
        self.file_state: FileState | None = None
        self._chains: dict[int, DecodedChain] = {}
        """The records of each keyframe, by its offset."""
        self._data = b""

    def scan_file(self) -> bool:
        """Read the log; return whether that was possible, and the log is a live history.

        False as well for a log that is long, damaged or torn.
        """
        try:
            self.fd = self.io.open(self.path)
            status = self.io.fstat(self.fd)
            size = status.st_size
            if size > _LONGEST_SCAN:
                return False
            data = self.io.read_at(self.fd, 0, size)
            self.index = Index()
            self.end = self.read_beginning(size, data)
            for frame in self.scan(self.end, size, self.seq, data):
                if frame.type == log.CHECKPOINT:
                    self._take_checkpoint(frame)
                else:
                    self._take_other(frame)
                self.end = frame.end
        except (OSError, CheckpointerError, log.IncompleteLog):
            return False
        finally:
            if self.fd >= 0:
                self.io.close(self.fd)
                self.fd = -1
        self._data = data
        self.io = _Bytes(data)
        self.fd = 0
        self.file_state = get_file_state(status)
        return self.end == size and self.closed_by is None

    def _take_checkpoint(self, frame: log.Frame) -> None:
        """Take in a checkpoint, and keep its record decoded: its state is read soon."""
        base = self.last_checkpoint
        decoded = payloads.decode_checkpoint(self.path, frame, base, self.codec.unpack)
        stored = decoded.checkpoint
        keyframe_offset = frame.offset
        if frame.flags & log.KEY:
            self._chains[frame.offset] = DecodedChain(self, frame.offset)
        elif base is not None:
            keyframe_offset = base.keyframe_offset
        chain = self._chains.get(keyframe_offset)
        if chain is None or stored.keyframe_offset != keyframe_offset:
            reason = "it names another record as its keyframe"
            raise CheckpointCorruptionError(self.path, frame.offset, reason)
        chain.add(decoded, frame.end)
        self.last_checkpoint = stored
        self._add_to_index(stored, decoded.target)

    def read_bodies(self, values: Iterable[delta.Value], checkpoint: StoredCheckpoint) -> list[bytes]:
        """Return the bytes of some values of a packed state; raise the same errors as every log."""
        values = list(values)
        bodies = None if self.seal is not None else _cut_bodies(values, self._data)
        return super().read_bodies(values, checkpoint) if bodies is None else bodies

    def load_table(self, checkpoint: StoredCheckpoint) -> delta.Table:
        """Return the packed state of a checkpoint; the caller must not change it."""
        chain = self._chains.get(checkpoint.keyframe_offset)
        table = None if chain is None else chain.build_table(checkpoint.offset)
        return super().load_table(checkpoint) if table is None else table

    def walk_back(self, visit: Visit, expected: int | None) -> None:  # noqa: ARG002 - all are known
        """See HistoryView."""
        assert self.index is not None
        for stored in reversed(self.index.checkpoints):
            if not visit(stored):
                return

    def forget(self) -> None:
        """See HistoryView."""
        self.fd = -1
        self.io = self._store.io
        self._chains = {}
        self._data = b""
        self._forget_past()

    @wrap_os_errors("read")
    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        if self.fd < 0:
            return None
        status = self._store.io.stat_unchecked(self.path)
        if status is None or get_file_state(status) != self.file_state:
            return None
        with self.mutex:
            return ReadCheckpoint(self.load_state(stored), self.read_writes(stored))


def get_file_state(status: os.stat_result) -> FileState:
    """Return what distinguishes a log from another one, or from itself after it has grown."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _cut_bodies(values: Iterable[delta.Value], data: bytes) -> list[bytes] | None:
    """Return the bytes of values from the bytes of their log.

    None if they are compressed, have many pieces, or do not have the right checksum. Values of a
    few pieces take a third of the time that they take when their ranges are computed first.
    """
    bodies: list[bytes] = []
    total = 0
    for value in values:
        pieces = value.pieces
        if value.block is not None or len(pieces) > _FEW_PIECES:
            return None
        parts: list[bytes] = []
        for i in range(0, len(pieces), 2):
            start = pieces[i]
            if start < 0:
                return None
            parts.append(data[start : start + pieces[i + 1]])
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(body) != value.length or crc32(body) != value.crc:
            return None
        total += len(body)
        bodies.append(body)
    # No bytes are named twice in one state.
    return bodies if total <= len(data) else None


class LiveLog(NamedTuple):
    """The log of one history, not yet opened."""

    thread_id: str
    namespace: str
    path: str


def list_logs(store: Store, thread_id: str, skip_prefix: str) -> list[LiveLog]:
    """Return the live logs of a thread, that of the root namespace first.

    Args:
        store: the store.
        thread_id: the thread.
        skip_prefix: the prefix of namespaces to leave out.
    """
    directory = store.directory(thread_id)
    names = store.io.listdir(directory)
    # Most threads have no other namespace, so that no directory needs to be looked into.
    if not any(map(layout.is_namespace, names)):
        return [LiveLog(thread_id, "", layout.join(directory, layout.LOG))] if layout.LOG in names else []
    return [
        LiveLog(thread_id, namespace, layout.join(store.directory(thread_id, namespace), layout.LOG))
        for namespace in catalog.list_namespaces(store, thread_id)
        if not namespace.startswith(skip_prefix)
    ]


def scan_logs(store: Store, logs: Iterable[LiveLog]) -> list[ScannedView] | None:
    """Return views of the histories of a thread; each log is read once.

    None if a log must be read in another way.
    """
    views: list[ScannedView] = []
    for live_log in logs:
        view = ScannedView(store, live_log)
        if not view.scan_file():
            return None
        views.append(view)
    return views
