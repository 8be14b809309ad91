"""A store: its root directory and marker, the directories of threads, the locks, the open logs."""

from __future__ import annotations

import os
import stat
import weakref
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Final

from graphkit.abc import generate_id
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointKeyError,
)
from savers._filesystem import layout
from savers._filesystem.containment import DirectoryGuard
from savers._filesystem.io import describe_file_type
from savers._filesystem.leftovers import Leftovers, remove_temporary_logs
from savers._filesystem.lock import RunLock, WriteLock, is_run_locked
from savers._filesystem.log_bytes import FileId, FileLogBytes, ReleasedFileBytes
from savers._filesystem.marker import Marker, pack_marker, read_marker
from savers._filesystem.preload import preload_modules
from savers._filesystem.salvaged_files import write_file
from savers._log.frame_log import ThreadIdentity
from savers._log.log import Log
from savers._log.open_logs import OpenLogs

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from savers._cipher import KeyRing
    from savers._compression import Compression
    from savers._filesystem.io import FileIO

FileLog = Log[FileLogBytes]
"""A log in a file."""
KNOWN_IDS: Final = 20_000
"""How many ids are remembered, and of how many logs that their names are on the disk."""
WAS_REMOVED: Final = (
    "its directory was removed while it was in use, and its checkpoints with it; nothing was "
    "stored. Put the directory back and resume, or start the thread again from the beginning"
)
_MARKER_LENGTH: Final = 1 << 16
"""How many bytes of the marker file are read."""
_LOGGER: Final = getLogger("graphkit")


class Store:
    """One directory of threads. Several threads of execution and processes may use it at once."""

    def __init__(
        self,
        root: str,
        io: FileIO,
        codec: Codec,
        serializer: StateSerializer | None,
        lock_timeout: float,
        key_ring: KeyRing | None = None,
    ) -> None:
        self.root = root
        self.io = DirectoryGuard(io, root, make_room)
        self.compression: Compression | None = None
        """How writers compress large values."""
        self.extends_logs = False
        """Whether writers extend logs with zeros ahead of the records."""
        self.syncs_puts = False
        """Whether each put waits for a sync."""
        self.leftovers = Leftovers(self.io, root)
        self.begun_releases: dict[str, int] = {}
        """The versions of releases that failed, by thread. A second `release` returns the version
        that the first one has made."""
        self.ids: dict[str, str] = {}
        """The ids behind names of directories that do not show them; they never change."""
        self._synced_names: dict[tuple[str, str], tuple[object, ...]] = {}
        """The file and the directories of each log whose names this process has brought to the
        disk, by thread and namespace. It outlives the descriptors: a log that is opened again needs
        no further sync."""
        self.codec = codec
        self._serializer = serializer
        self.key_ring = key_ring
        """The keys that seal new records; None stores them in plain."""
        self._lock_timeout = lock_timeout
        self.logs: OpenLogs[FileLog] = OpenLogs()
        self._write_locks: dict[int, WriteLock] = {}
        """The write locks that were needed until now, by stripe."""
        self._is_marked = False
        """Whether the marker is known to say that the store is sealed."""
        self._marker_state: tuple[int, int] | None = None
        """What identifies the marker that was read last to find out whether the store is sealed."""
        self._sealed_with: str | None = None
        """The key id in that marker."""
        _STORES.add(self)

    # The root and its marker

    def check(self) -> None:
        """Make the root directory if it is missing, and check that it can be used.

        Raises:
            CheckpointerConfigurationError: there is something else at that path.
            CheckpointFormatError: another version of graphkit made it.
        """
        if not self.io.is_dir(self.root):
            # Check twice: another process may be making the directory at this moment.
            if self.io.stat(self.root) is not None and not self.io.is_dir(self.root):
                raise CheckpointerConfigurationError(
                    f"{self.root} is a file; name a directory for the checkpoints",
                )
            make_root(self.io, self.root)
        marker = self.read_marker()
        if marker is not None and marker.problem:
            path = layout.join(self.root, layout.MARKER)
            _LOGGER.warning("%s is damaged: %s; `repair` rewrites it", path, marker.problem)

    def _make_root_files(self) -> None:
        """Make the root, the directory of the locks, and the marker, where they are missing."""
        preload_modules()
        if not self.io.is_dir(self.root):
            make_root(self.io, self.root)
        self.io.mkdir(layout.join(self.root, layout.LOCKS))
        if self.read_marker() is None:
            self.write_marker(generate_id(), self._choose_seal(None))

    def read_marker(self) -> Marker | None:
        """Read the marker file; return None if there is none.

        Raises:
            CheckpointFormatError: another version of graphkit made the store, or the directory is not a store.
        """
        path = layout.join(self.root, layout.MARKER)
        if self.io.stat(path) is None:
            return None
        fd = self.io.open(path)
        try:
            text = self.io.read_at(fd, 0, _MARKER_LENGTH)
        finally:
            self.io.close(fd)
        marker = read_marker(path, text)
        if marker.problem and not self._has_store_files():
            raise CheckpointFormatError(path, "this is not a graphkit store")
        return marker

    def _has_store_files(self) -> bool:
        """Return whether the names in the root show that it is a store."""
        names = self.io.listdir(self.root)
        return layout.LOCKS in names or any(map(layout.is_thread, names))

    def write_marker(self, store_id: str, sealed: str | None) -> None:
        """Write the marker file of the current version, replacing an earlier one.

        Args:
            store_id: the id of the store.
            sealed: the id of a key, if the store is sealed.
        """
        temporary = layout.join(self.root, layout.temporary_marker_name(generate_id()))
        write_file(self.io, temporary, [pack_marker(store_id, sealed)])
        try:
            self.io.rename(temporary, layout.join(self.root, layout.MARKER))
        except FileNotFoundError:
            if self.read_marker() is None:
                raise
            # Another process has written the marker meanwhile, and removed the temporary file as a
            # leftover.
            return
        self.io.fsync_dir(self.root)

    def update_marker(self) -> None:
        """Mark the store as sealed if the saver has a cipher, before a sealed log takes its place."""
        if self._is_marked or self.key_ring is None:
            return
        marker = self.read_marker()
        if marker is not None and not marker.problem:
            sealed = self._choose_seal(marker.sealed)
            if sealed != marker.sealed:
                self.write_marker(marker.store, sealed)
        self._is_marked = True

    def _choose_seal(self, sealed: str | None) -> str | None:
        """Return the key id for a marker: the one that it has, or the current one of the saver."""
        if sealed is None and self.key_ring is not None:
            sealed, _ = self.key_ring.get_current(layout.join(self.root, layout.MARKER))
        return sealed

    def _check_may_begin(self) -> None:
        """Refuse to begin a plain log in a sealed store.

        Raises:
            CheckpointKeyError: the store is sealed, and the saver has no cipher.
        """
        if self.key_ring is not None:
            return
        status = self.io.stat_unchecked(layout.join(self.root, layout.MARKER))
        if status is None:
            return
        # Another process may seal the store at any time. Reading the marker for each new log would
        # take 30 us.
        state = (status.st_ino, status.st_size)
        if state != self._marker_state:
            marker = self.read_marker()
            self._sealed_with = None if marker is None else marker.sealed
            self._marker_state = state
        if self._sealed_with is not None:
            reason = "open the store with `cipher`"
            raise CheckpointKeyError(self.root, self._sealed_with, reason, has_keys=False)

    @property
    def is_opaque(self) -> bool:
        """Whether the states are written by a serializer of the application."""
        return self._serializer is not None

    # Directories

    def directory(self, thread_id: str, namespace: str = "") -> str:
        """Return the path of a thread's directory, or of one of its namespaces."""
        return layout.join(
            self.root,
            layout.locate_thread(thread_id).name,
            layout.namespace_name(namespace),
        )

    def make_directories(self, thread_id: str, namespace: str) -> None:
        """Make the directories of a log, where they are missing; the caller holds the write lock.

        Raises:
            CheckpointConflictError: this process holds the run lock of the thread, and the lock was
                removed with the directory.
            CheckpointKeyError: the store is sealed, and the saver has no cipher.
        """
        if self.run_lock(thread_id, None).is_lost:
            raise CheckpointConflictError(thread_id, WAS_REMOVED)
        self._check_may_begin()
        self.write_lock(thread_id).reopen()
        self.leftovers.sweep_once()
        self.leftovers.remove_thread(thread_id)
        self.update_marker()
        self.io.mkdir(self.directory(thread_id))
        if namespace:
            self.io.mkdir(self.directory(thread_id, namespace))
        remove_temporary_logs(self.io, self.directory(thread_id, namespace))

    def sync_names(self, thread_id: str, namespace: str, file: FileId | None) -> None:
        """Bring the names that lead to a log to the disk, unless this process has done so for this file."""
        key = (thread_id, namespace)
        directories = [self.directory(thread_id)]
        if namespace:
            directories.append(self.directory(thread_id, namespace))
        # A backup that was copied back has the fid of the log, and may have its inode. The time of
        # a directory's last change shows it: nothing can set it.
        states = [(status.st_ino, status.st_ctime_ns) for status in map(self.io.stat, directories) if status]
        known = (file, *states)
        if file is not None and self._synced_names.get(key) == known:
            return
        self.sync_directories(thread_id, namespace)
        if len(self._synced_names) >= KNOWN_IDS:
            self._synced_names.clear()
        self._synced_names[key] = known

    def sync_directories(self, thread_id: str, namespace: str) -> None:
        """Bring the names that lead to a log to the disk."""
        if namespace:
            self.io.fsync_dir(self.directory(thread_id, namespace))
        self.io.fsync_dir(self.directory(thread_id))
        self.io.fsync_dir(self.root)

    def directories_in(self, directory: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Return the names of directories in a directory that a predicate accepts, sorted.

        Logs a warning about anything else with such a name.
        """
        names: list[str] = []
        for name in sorted(filter(is_wanted, self.io.listdir(directory))):
            path = layout.join(directory, name)
            status = self.io.stat(path)
            if status is None:
                continue
            if stat.S_ISDIR(status.st_mode):
                names.append(name)
            else:
                file_type = describe_file_type(status.st_mode)
                _LOGGER.warning(
                    "%s is passed over, for it is %s where a directory should be",
                    path,
                    file_type,
                )
        return names

    def remember_id(self, name: str, id: str) -> None:
        """Remember the id behind the name of a directory.

        Otherwise, listing 10,000 threads would open as many files each time.
        """
        if len(self.ids) >= KNOWN_IDS:
            self.ids.clear()
        self.ids[name] = id

    # Locks

    def write_lock(self, thread_id: str) -> WriteLock:
        """Return the write lock of a thread."""
        return self._write_lock_of(layout.locate_thread(thread_id).stripe)

    def all_write_locks(self) -> list[WriteLock]:
        """Return all write locks, in the order in which a caller takes several of them."""
        return [self._write_lock_of(stripe) for stripe in range(layout.STRIPES)]

    def _write_lock_of(self, stripe: int) -> WriteLock:
        lock = self._write_locks.get(stripe)
        if lock is None:
            # Made only now: to make all of them took 90 of the 100 us of opening a store.
            path = layout.join(self.root, layout.LOCKS, f"{stripe:02x}")
            made = WriteLock(self.io, path, self._make_root_files, self._lock_timeout)
            # Two threads of execution that make it at the same time get the same one.
            lock = self._write_locks.setdefault(stripe, made)
        return lock

    def is_run_locked(self, thread_id: str) -> bool:
        """Return whether a run holds the run lock of a thread now, in any process."""
        return is_run_locked(self.io, layout.join(self.directory(thread_id), layout.RUN_LOCK))

    def run_lock(self, thread_id: str, timeout: float | None) -> RunLock:
        """Return the run lock of a thread, not yet taken."""
        preload_modules()
        path = layout.join(self.directory(thread_id), layout.RUN_LOCK)

        def make_file() -> int:
            # Under the write lock: a delete removes the directory and moves the lock file of its
            # own run back.
            with self.write_lock(thread_id):
                self.io.mkdir(self.directory(thread_id))
                return self.io.open(path, write=True, create=True)

        if timeout is None:
            timeout = self._lock_timeout
        return RunLock(self.io, path, thread_id, make_file, timeout)

    # Logs

    def shared_log(self, thread_id: str, namespace: str) -> FileLog:
        """Return the live log of a namespace, whether it exists or not.

        Other callers may use it too: hold its mutex.
        """
        key = (thread_id, namespace, 0)
        return self.logs.find(key) or self.logs.add(key, self.new_log(thread_id, namespace))

    def shared_version(self, thread_id: str, namespace: str, version: int, *, is_ending: bool = False) -> FileLog:
        """Return a released log, or one whose release is unfinished (`is_ending`).

        Other callers may use it too: hold its mutex.
        """
        key = (thread_id, namespace, version)
        found = self.logs.find(key) or self.logs.add(key, self.new_version(thread_id, namespace, version))
        medium = found.frames.bytes
        assert isinstance(medium, ReleasedFileBytes)
        medium.is_ending = is_ending
        return found

    def new_log(
        self, thread_id: str, namespace: str, path: str | None = None, *, expects_release: bool = False
    ) -> FileLog:
        """Return the live log of a namespace, or the log at a path, for one caller, who closes it."""
        if path is None:
            path = layout.join(self.directory(thread_id, namespace), layout.LOG)
        medium = FileLogBytes(self.io, [path], self.write_lock(thread_id))
        medium.is_extended_ahead = self.extends_logs
        medium.is_synced_at_once = self.syncs_puts
        medium.make_directories = partial(self.make_directories, thread_id, namespace)
        medium.sync_names = partial(self.sync_names, thread_id, namespace)
        return self._make_log(medium, thread_id, namespace, expects_release=expects_release)

    def new_version(self, thread_id: str, namespace: str, version: int, *, is_ending: bool = False) -> FileLog:
        """Return a released log for one caller, who closes it."""
        directory = self.directory(thread_id, namespace)
        final_path = layout.join(directory, layout.version_name(version))
        medium = ReleasedFileBytes(self.io, final_path, layout.join(directory, layout.LOG))
        medium.is_ending = is_ending
        return self._make_log(medium, thread_id, namespace, expects_release=True)

    def new_reader(self, thread_id: str, namespace: str, path: str) -> FileLog:
        """Return the log at a path, for one caller, who only reads it and closes it."""
        return self._make_log(FileLogBytes(self.io, [path]), thread_id, namespace)

    def new_copy(self, log: FileLog, path: str) -> FileLog:
        """Return a log at a path that is written to take the place of another one; closed by the caller."""
        medium = FileLogBytes(self.io, [path], self.write_lock(log.thread_id))
        medium.is_synced_before_use = True
        return log.make_copy(medium)

    def _make_log(
        self, medium: FileLogBytes, thread_id: str, namespace: str, *, expects_release: bool = False
    ) -> FileLog:
        digest = layout.locate_thread(thread_id).digest
        identity = ThreadIdentity((thread_id, namespace), digest, self.key_ring, is_opaque=self.is_opaque)
        return Log(medium, identity, self.codec, self._serializer, self.compression, expects_release=expects_release)

    # Closing

    def close_idle(self) -> int:
        """Close the logs and locks that no caller uses now; return how many there were."""
        closed = self.logs.close_idle()
        return closed + sum(lock.close_if_idle() for lock in list(self._write_locks.values()))

    def close(self) -> None:
        """Close every descriptor; the next use opens those that it needs."""
        self.logs.close()
        for lock in list(self._write_locks.values()):
            lock.close()

    def close_after_fork(self) -> None:
        """Close, in the child, what the parent has open; make locks that no thread holds."""
        self.logs.close_after_fork()
        for lock in self._write_locks.values():
            lock.close_after_fork()
        self._write_locks = {}


def make_root(io: FileIO, root: str) -> None:
    """Make the root directory and those above it, where they are missing.

    Raises:
        CheckpointerConfigurationError: there is a file at one of these paths.
    """
    missing: list[str] = []
    path = os.path.abspath(root)
    while not io.is_dir(path):
        missing.append(path)
        path = os.path.dirname(path)
    try:
        for directory in reversed(missing):
            io.mkdir(directory)
    except (FileExistsError, NotADirectoryError) as error:
        raise CheckpointerConfigurationError(f"{error.filename} is a file; name a directory") from error
    for directory in missing:
        io.fsync_dir(os.path.dirname(directory))


_STORES: Final[weakref.WeakSet[Store]] = weakref.WeakSet()


def make_room() -> bool:
    """Close what no caller of any saver of this process uses; return whether there was anything."""
    return sum([store.close_idle() for store in list(_STORES)]) > 0


def _after_fork() -> None:
    for store in list(_STORES):
        store.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
