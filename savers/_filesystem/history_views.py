"""Histories as they are at one moment, for callers that read some of their checkpoints later.

A view remembers which file it was made from, and how long that was. While the log stays as it is,
its checkpoints are read without looking for them again. After any change, `read` returns None, and
the caller finds the checkpoint by its id.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.errors import CheckpointerError
from savers._filesystem import catalog, layout
from savers._filesystem.live_logs import refresh_to_read
from savers._filesystem.os_errors import wrap_os_errors
from savers._log import log
from savers._log.history_view import SharedLogAncestors, SharedLogView
from savers._log.scanned_log import BytesLog, ScannedLog

if TYPE_CHECKING:
    from savers._filesystem.file_log_writer import FileLogWriter
    from savers._filesystem.store import Store

_LONGEST_SCAN: Final = 1 << 20
"""Logs of more bytes are not read as a whole: reading from the end costs less."""
_OWN_LINKS: Final = 2
"""How many links a directory without directories in it has: its name, and its entry for itself."""
_LOG: Final = os.sep + layout.LOG

_CLOCK_TICK: Final = 50_000_000
"""Nanoseconds within which two writes may get the same time."""

FileState = tuple[int, int, int, int, int]
"""What distinguishes the content of a log from that of any other at its path."""


@final
class SharedView(SharedLogView["FileLogWriter"]):
    """A view of a log file that the saver keeps open."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self._store = store

    def _open(self) -> FileLogWriter:
        return self._store.shared_writer(self.thread_id, self.namespace)

    def _refresh(self, reader: FileLogWriter) -> bool:
        return refresh_to_read(self._store, reader)

    def _account(self, reader: FileLogWriter) -> None:
        self._store.logs.account(reader)

    walk_back = wrap_os_errors("read")(SharedLogView.walk_back)
    read = wrap_os_errors("read")(SharedLogView.read)
    read_packed = wrap_os_errors("read")(SharedLogView.read_packed)


@final
class FileAncestorReader(SharedLogAncestors["FileLogWriter"]):
    """Reads checkpoints of a log file that the saver keeps open; an AncestorReader."""

    def __init__(self, store: Store, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self._store = store
        self._writer = store.shared_writer(thread_id, namespace)
        self._is_current = False
        """Whether what is new was read: once for a walk, which reads the same history all along."""

    def _open(self) -> FileLogWriter:
        return self._writer

    def _refresh(self, reader: FileLogWriter) -> bool:
        if not self._is_current or reader.fd < 0:
            self._is_current = refresh_to_read(self._store, reader)
        return self._is_current

    def _account(self, reader: FileLogWriter) -> None:
        self._store.logs.account(reader)

    find = wrap_os_errors("read")(SharedLogAncestors.find)
    read = wrap_os_errors("read")(SharedLogAncestors.read)


@final
class ScannedView(ScannedLog):
    """A view of a short log file that was read once, as a whole, and is not kept open."""

    def __init__(self, store: Store, live_log: LiveLog) -> None:
        thread_id, namespace, path, is_only = live_log
        super().__init__(path, (thread_id, namespace), store.codec, is_opaque=store.is_opaque)
        self.is_only = is_only
        self._store = store
        self.file_state: FileState | None = None
        self.may_change_unseen = False
        """Whether the log may grow without another size or time: it ends in zeros, over which
        records are written, and was written to just now."""

    def scan_file(self, *, is_checked: bool, keeps_contents: bool = False) -> bool:
        """Read the log; return whether that was possible, and the log is a live history.

        False as well for a log that is long, damaged or torn.

        Args:
            is_checked: see `scan_log`.
            keeps_contents: see `scan_log`.
        """
        try:
            found = self._read_file(is_checked=is_checked)
            if found is None:
                return False
            data, self.file_state = found
            if not self._scan(data, keeps_contents=keeps_contents):
                return False
        except (OSError, CheckpointerError, log.IncompleteLog):
            return False
        if self.end < len(data):
            self.may_change_unseen = time_ns() - self.file_state[3] < _CLOCK_TICK
        return True

    def _new_reader(self) -> BytesLog:
        return BytesLog(*self._store._arguments(self.path, self.thread_id, self.namespace))  # noqa: SLF001 - as every log

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

    read = wrap_os_errors("read")(ScannedLog.read)
    read_packed = wrap_os_errors("read")(ScannedLog.read_packed)

    def _get_current_bytes(self) -> bytes | None:
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
        self._keep_bytes(found[0])
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


def scan_log(
    store: Store, live_log: LiveLog, *, is_checked: bool = False, keeps_contents: bool = False
) -> ScannedView | None:
    """Return a view of a history whose log is read once; None if it must be read in another way.

    Args:
        store: the store.
        live_log: the log.
        is_checked: whether the caller has just seen that the log's directories are some.
        keeps_contents: whether the caller calls `make_states` next.
    """
    view = ScannedView(store, live_log)
    return view if view.scan_file(is_checked=is_checked, keeps_contents=keeps_contents) else None
