"""Histories as they are at one moment, for callers that read some of their checkpoints later.

A view remembers which file it was made from, and how long that was. While the log stays as it is,
its checkpoints are read without looking for them again. After any change, `read` returns None, and
the caller finds the checkpoint by its id.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, final

from graphkit.errors import CheckpointerError
from savers import _delta as delta
from savers._filesystem import catalog, layout
from savers._filesystem.file_log_reader import FileLogReader
from savers._filesystem.io import FileIO
from savers._filesystem.live_logs import refresh_to_read
from savers._filesystem.os_errors import wrap_os_errors
from savers._log import log
from savers._log.index import Index
from savers._log.packed_states import PackedState, decode_state, replay_states
from savers._log.plain_records import PlainLog, read_plain_log

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._filesystem.file_log_writer import FileLogWriter
    from savers._filesystem.store import Store
    from savers._log.stored_checkpoint import StoredCheckpoint

_FEWEST_READ: Final = 16
"""The fewest checkpoints that are read from the end of a log at first."""
_GROWTH: Final = 4
"""Each time, this many times more are read."""
_LONGEST_SCAN: Final = 1 << 20
"""Logs of more bytes are not read as a whole: reading from the end costs less."""
_OWN_LINKS: Final = 2
"""How many links a directory without directories in it has: its name, and its entry for itself."""
_LOG: Final = os.sep + layout.LOG

_CLOCK_TICK: Final = 50_000_000
"""Nanoseconds within which two writes may get the same time."""

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
        """Drop what the view keeps in memory of the log's bytes."""


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
    def _reader(self) -> FileLogWriter:
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


class Ancestor(NamedTuple):
    """A checkpoint on the way from another one to the first of a history."""

    stored: StoredCheckpoint
    fid: int
    """The id of the file in which it was found."""


@final
class AncestorReader:
    """Reads checkpoints of a log that the saver keeps open, without decoding whole states."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        self._store = store
        self._reader = store.shared_writer(thread_id, namespace)

    @wrap_os_errors("read")
    def find(self, id: str | None) -> Ancestor | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""
        reader = self._reader
        with reader.mutex:
            if not refresh_to_read(self._store, reader):
                return None
            stored = reader.find(id)
            return None if stored is None else Ancestor(stored, reader.fid)

    @wrap_os_errors("read")
    def read(self, ancestor: Ancestor, is_wanted: Callable[[str], bool]) -> ReadCheckpoint | None:
        """Return the values of some keys of its state, and its pending writes.

        None if the log was rewritten since it was found.
        """
        reader = self._reader
        stored = ancestor.stored
        with reader.mutex:
            if not refresh_to_read(self._store, reader) or reader.fid != ancestor.fid:
                return None
            writes = reader.read_writes(stored) if stored.writes else {}
            found = ReadCheckpoint(reader.load_values(stored, is_wanted), writes)
            self._store.logs.account(reader)
            return found


def _walk_back_in(reader: FileLogReader, visit: Visit, expected: int) -> None:
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
class _ReadLog(FileLogReader):
    """A log whose bytes were read as a whole."""

    def __init__(self, store: Store, live_log: LiveLog) -> None:
        thread_id, namespace, path, _ = live_log
        super().__init__(*store._arguments(path, thread_id, namespace))  # noqa: SLF001 - as every log

    def take_bytes(self, data: bytes) -> None:
        """Read from these bytes from now on."""
        self.io = _Bytes(data)
        self.fd = 0

    def forget_bytes(self, io: FileIO) -> None:
        """Drop the bytes, and what was made of them except the index."""
        self.fd = -1
        self.io = io
        self._forget_past()

    def find_all(self, data: bytes) -> PlainLog | None:
        """Find the checkpoints in the bytes; None if the log is torn, or has ended.

        Raises:
            CheckpointerError: the log is damaged, or cannot be read.
            IncompleteLog: its creation was cut short.
        """
        self.take_bytes(data)
        self.index = Index()
        self.end = self.read_beginning(len(data), data)
        # A record of version 2 does not end in zeros. Those behind the last one are nothing yet.
        end = len(data.rstrip(b"\0")) if self.version == log.MAJOR else len(data)
        self._read_index(end)
        if self.end != end or self.closed_by is not None:
            return None
        return PlainLog(self.index.checkpoints, self.fid, end)

    def adopt(self, fid: int, end: int) -> None:
        """Take over what is known of a plain log."""
        self.fid = fid
        self.end = end

    @property
    def has_packed_states(self) -> bool:
        """Whether `replay_states` may know its states."""
        return self.serializer is None and self.seal is None and not self.is_scattered


@final
class ScannedView:
    """A view of a short log that was read once, as a whole, and is not kept open."""

    # A plain log is read without a FileLogReader, which would take a quarter of the time of a listing.

    def __init__(self, store: Store, live_log: LiveLog) -> None:
        self.thread_id, self.namespace, self.path, self.is_only = live_log
        self._store = store
        self._mutex = Lock()
        self.file_state: FileState | None = None
        self.may_change_unseen = False
        """Whether the log may grow without another size or time: it ends in zeros, over which
        records are written, and was written to just now."""
        self.checkpoints: Sequence[StoredCheckpoint] = ()
        self.end = 0
        """Where the last record ends."""
        self._fid = 0
        self._reader: _ReadLog | None = None
        """Reads what needs the general way. That of a plain log is made when it is needed."""
        self._is_plain = False
        """Whether the log was read without it."""
        self._states: dict[int, PackedState] | None = None
        """The packed states, by the offsets of their records; made when the first one is read."""
        self._data: bytes | None = None
        """The bytes of the log, while they are kept."""

    def scan_file(self, *, is_checked: bool) -> bool:
        """Read the log; return whether that was possible, and the log is a live history.

        False as well for a log that is long, damaged or torn.

        Args:
            is_checked: see `scan_log`.
        """
        try:
            found = self._read_file(is_checked=is_checked)
            if found is None:
                return False
            data, self.file_state = found
            scanned = self._scan(data)
        except (OSError, CheckpointerError, log.IncompleteLog):
            return False
        if scanned is None:
            return False
        self.checkpoints, self._fid, self.end = scanned
        self._data = data
        if self.end < len(data):
            self.may_change_unseen = time_ns() - self.file_state[3] < _CLOCK_TICK
        return True

    def _scan(self, data: bytes) -> PlainLog | None:
        if not self._store.is_opaque:
            owner = (self.thread_id, self.namespace)
            scanned = read_plain_log(self.path, data, owner, self._store.codec.unpack)
            if scanned is not None:
                self._is_plain = True
                return scanned
        self._reader = self._new_reader()
        return self._reader.find_all(data)

    def _new_reader(self) -> _ReadLog:
        return _ReadLog(self._store, LiveLog(self.thread_id, self.namespace, self.path))

    def _get_reader(self, data: bytes) -> _ReadLog:
        """Return what reads the bytes in the general way."""
        if self._reader is None:
            self._reader = self._new_reader()
            self._reader.take_bytes(data)
            self._reader.adopt(self._fid, self.end)
        return self._reader

    def _read_file(self, *, is_checked: bool = False) -> tuple[bytes, FileState] | None:
        """Return the bytes of the file, and its state; None if it is long, or empty."""
        io = self._store.io
        if is_checked:
            data, status = io.read_file_unchecked(self.path, _LONGEST_SCAN)
            return (data, get_file_state(status)) if data else None
        fd = io.open(self.path)
        try:
            status = io.fstat(fd)
            if status.st_size > _LONGEST_SCAN:
                return None
            return io.read_at(fd, 0, status.st_size), get_file_state(status)
        finally:
            io.close(fd)

    def _find_packed(self, data: bytes, stored: StoredCheckpoint) -> PackedState | None:
        """Return the packed state of a checkpoint; None if it must be read in the general way."""
        if self._states is None:
            has_packed_states = self._is_plain or self._get_reader(data).has_packed_states
            self._states = replay_states(data, self.checkpoints) if has_packed_states else {}
        return self._states.get(stored.offset)

    def _load_state(self, data: bytes, stored: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint; raise the same errors as every log."""
        values = self._find_packed(data, stored)
        if values is not None:
            try:
                return decode_state(values, self._store.codec)
            except (CheckpointerError, *delta.MALFORMED):
                # The general way finds out what is wrong.
                self._states = {}
        return self._get_reader(data).load_state(stored)

    def walk_back(self, visit: Visit, expected: int | None) -> None:  # noqa: ARG002 - all are known
        """See HistoryView."""
        for stored in reversed(self.checkpoints):
            if not visit(stored):
                return

    def forget(self) -> None:
        """See HistoryView. A later `read` loads the log again."""
        with self._mutex:
            self._data = None
            self._states = None
            if self._is_plain:
                self._reader = None
            elif self._reader is not None:
                self._reader.forget_bytes(self._store.io)

    @wrap_os_errors("read")
    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        with self._mutex:
            data = self._get_current_bytes()
            if data is None:
                return None
            writes = self._get_reader(data).read_writes(stored) if stored.writes else {}
            return ReadCheckpoint(self._load_state(data, stored), writes)

    @wrap_os_errors("read")
    def read_packed(self, stored: StoredCheckpoint) -> PackedState | None:
        """Return the packed state of a checkpoint without pending writes.

        None if `read` has to find out: the checkpoint may have pending writes, the state another
        form, or the log may have changed.
        """
        if stored.writes:
            return None
        with self._mutex:
            data = self._get_current_bytes()
            return None if data is None else self._find_packed(data, stored)

    def _get_current_bytes(self) -> bytes | None:
        """Return the bytes of the log; None if it has changed since it was read."""
        status = self._store.io.stat_unchecked(self.path)
        if status is None or get_file_state(status) != self.file_state:
            return None
        if self.may_change_unseen and self._has_grown():
            return None
        data = self._data
        return self._load_again() if data is None else data

    def _load_again(self) -> bytes | None:
        """Load the bytes of the log again, and return them; None if it has changed."""
        try:
            found = self._read_file()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if found is None or found[1] != self.file_state:
            return None
        self._data = found[0]
        if self._reader is not None:
            self._reader.take_bytes(found[0])
        return found[0]

    def _has_grown(self) -> bool:
        """Return whether a record was written over the zeros; that need not change the file's state."""
        io = self._store.io
        fd = io.open(self.path)
        try:
            return bool(io.read_at(fd, self.end, log.FRAME_SIZE).strip(b"\0"))
        finally:
            io.close(fd)


def get_file_state(status: os.stat_result) -> FileState:
    """Return what distinguishes a log from another one, or from itself after it has grown."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class LiveLog(NamedTuple):
    """The log of one history, not yet opened."""

    thread_id: str
    namespace: str
    path: str
    is_only: bool = False
    """Whether the thread certainly has no other namespace."""


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


@final
class ThreadScan:
    """The threads of a store, for a listing that looks at thousands of logs once.

    Nearly all threads have a plain id and no namespace but the root. The names of their directories
    say what their ids are, and the number of their links that there is no directory in them, which
    is 4 us less than to ask for each.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._prefix = store.root + os.sep
        self._directories = catalog.find_directories(store)
        self.names: Sequence[str] = self._directories.names
        """The names of the directories that may be those of threads, sorted."""
        # The root itself may be a link.
        root = store.io.stat(layout.join(store.root, os.curdir))
        self._counting_device: int | None = None
        """The file system on which the links of a directory count the directories in it."""
        # Some file systems return a constant. The root shows that this one does not.
        if root is not None and root.st_nlink == _OWN_LINKS + len(self.names) + self._directories.others:
            self._counting_device = root.st_dev

    def find_only_path(self, name: str) -> str | None:
        """Return the path of the log of a directory, if a thread there has no other namespace.

        Nothing was read of the log; it may be missing. None if `find_thread` has to look.
        """
        io = self._store.io
        directory = self._prefix + name
        status = io.stat_unchecked(directory)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return None
        if status.st_nlink != _OWN_LINKS or status.st_dev != self._counting_device:
            names = io.listdir_unchecked(directory)
            if any(map(layout.is_namespace, names)):
                return None
        return directory + _LOG

    def find_only_log(self, name: str) -> LiveLog | None:
        """Return the log of a thread if it is the only one, and the directory's name says its id."""
        path = self.find_only_path(name)
        thread_id = self._store.ids.get(name) or layout.plain_id(name)
        if path is None or thread_id is None:
            return None
        return LiveLog(thread_id, "", path, is_only=True)

    def find_thread(self, name: str) -> str | None:
        """Return the thread of a directory; None if it has none, or only a released one."""
        return catalog.find_thread(self._store, self._directories, name, released=False)


def scan_log(store: Store, live_log: LiveLog, *, is_checked: bool = False) -> ScannedView | None:
    """Return a view of a history whose log is read once; None if it must be read in another way.

    Args:
        store: the store.
        live_log: the log.
        is_checked: whether the caller has just seen that the log's directories are some.
    """
    view = ScannedView(store, live_log)
    return view if view.scan_file(is_checked=is_checked) else None
