"""A store: its root directory, the directories of threads and leftovers, the locks, the open logs."""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import closing, suppress
from functools import partial, wraps
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar, final

from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointStorageError,
)
from savers._filesystem import catalog, layout
from savers._filesystem.io import DirectoryGuard, FileIO, describe_file_type, preload_modules
from savers._filesystem.lock import RunLock, WriteLock
from savers._filesystem.log_bytes import FileId, FileLogBytes, ReleasedFileBytes
from savers._filesystem.marker import MarkerFile
from savers._log.catalogue import Head, LogCatalogue
from savers._log.history import read_newest_id
from savers._log.log import Log
from savers._threads import call_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from graphkit.abc import StateSerializer
    from graphkit.saver_kit import Codec
    from savers._cipher import KeyRing
    from savers._compression import Compression
    from savers._filesystem.layout import ThreadDirectory
    from savers._options import Fsync


_NOT_REMOVABLE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS})
"""Why a directory cannot be removed, other than by a failing disk: it is not empty, or it is a
mount point."""
_LOGGER: Final = getLogger("graphkit")
_LEAST_WRITE_WAIT: Final = 1.0
"""Seconds that a writer waits for another one, also if no run is to wait for another run. Several threads share a
write lock: with lock_timeout=0, a run would be refused because that of another thread writes at this moment. It
does so for some ten microseconds."""
_LOCK_OF_LOGS: Final = "lock"
LOG_LOCK_TIMEOUT: Final = 10.0
"""How many seconds a writer of a LogDirectory waits for another one."""


class Leftovers:
    """The leftovers in the root directory of a store."""

    def __init__(self, io: FileIO, root: str) -> None:
        self._io = io
        self._root = root
        self.is_swept = False
        """Whether this process has removed the leftovers of other processes."""

    def sweep_once(self) -> None:
        """Sweep, unless this process has done so."""
        if not self.is_swept:
            self.sweep()

    def sweep(self) -> list[str]:
        """Remove threads that a process left half deleted; return the names of those removed.

        Each process that makes or deletes a thread does this once, and so do verify and repair. It
        does not disturb a process that is deleting a thread at this moment.
        """
        self.is_swept = True
        names = self._io.listdir(self._root)
        if layout.MARKER in names:
            for name in filter(layout.is_marker_leftover, names):
                with suppress(FileNotFoundError):
                    self._io.unlink(layout.join(self._root, name))
        return [name for name in filter(layout.is_leftover, names) if self.remove(layout.join(self._root, name))]

    def remove(self, path: str) -> bool:
        """Remove a leftover, as far as possible; return whether it was there and is gone.

        It is not a thread any more. Therefore an error must not keep callers from writing to
        another thread.
        """
        try:
            return self._io.stat(path) is not None and not remove_tree(self._io, path)
        except (OSError, CheckpointFormatError) as error:
            _LOGGER.info("%s is left of a deleted thread and cannot be removed: %s", path, error)
            return False

    def choose_path(self, name: str) -> str:
        """Return a free path to which a thread's directory can be renamed before it is removed."""
        path = layout.join(self._root, layout.TEMPORARY + name)
        self.remove(path)
        if self._io.stat(path) is not None:
            path = layout.join(self._root, layout.TEMPORARY + layout.random_thread_name(name))
        return path


def remove_temporary_logs(io: FileIO, directory: str) -> None:
    """Remove logs that a process began to rewrite and did not finish.

    The caller holds the write lock.
    """
    for name in io.listdir(directory):
        if name.startswith(layout.TEMPORARY):
            path = layout.join(directory, name)
            # A directory is not the store's: a writer makes only files.
            if not io.is_dir(path):
                io.unlink(path)


def remove_tree(io: FileIO, directory: str) -> list[str]:
    """Remove the directory of a thread or a namespace, with everything that is the store's.

    Follows no link. A directory in it that is not the store's is removed if it is empty, and stays
    otherwise. Other processes may remove the same files at the same time.

    Returns:
        The directories that stay.
    """
    if not io.is_dir(directory):
        with suppress(FileNotFoundError):
            io.unlink(directory)
        return []
    kept: list[str] = []
    for name in io.listdir(directory):
        path = layout.join(directory, name)
        # A link with the name of a namespace is not followed: the recursion removes it.
        if layout.is_namespace(name):
            kept += remove_tree(io, path)
        elif io.is_dir(path):
            kept += _remove_if_empty(io, path)
        else:
            with suppress(FileNotFoundError):
                io.unlink(path)
    if kept:
        return kept
    return _remove_if_empty(io, directory)


def _remove_if_empty(io: FileIO, directory: str) -> list[str]:
    """Remove a directory; return it if it cannot be removed."""
    try:
        io.rmdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in _NOT_REMOVABLE:
            raise
        return [directory]
    return []


P = ParamSpec("P")
T = TypeVar("T")
FileLog = Log[FileLogBytes]
"""A log in a file."""
KNOWN_IDS: Final = 20_000
"""How many ids are remembered, and of how many logs that their names are on the disk."""
WAS_REMOVED: Final = (
    "its directory was removed while it was in use, and its checkpoints with it; nothing was "
    "stored. Put the directory back and resume, or start the thread again from the beginning"
)


@final
class Store(LogCatalogue[FileLogBytes]):
    """One directory of threads. Several threads of execution and processes may use it at once."""

    def __init__(
        self,
        root: str,
        io: FileIO,
        codec: Codec,
        serializer: StateSerializer | None,
        *,
        fsync: Fsync,
        lock_timeout: float,
        compression: Compression | None,
        key_ring: KeyRing | None,
    ) -> None:
        super().__init__(codec, compression)
        self.serializer = serializer
        self.key_ring = key_ring
        self.root = root
        self.io = DirectoryGuard(io, root, make_room)
        self.marker = MarkerFile(self.io, root, key_ring)
        self._fsync = fsync
        self.leftovers = Leftovers(self.io, root)
        self.begun_releases: dict[str, int] = {}
        """The versions of releases that failed, by thread. A second `release` returns the version
        that the first one has made."""
        self.ids: dict[str, str] = {}
        """The ids behind names of directories that do not show them; they never change."""
        self._synced_names: dict[str, tuple[object, ...]] = {}
        """The file and the directories of each log whose names this process has brought to the
        disk, by the directory of the log. It outlives the descriptors: a log that is opened again
        needs no further sync."""
        self._lock_timeout = lock_timeout
        self._write_locks: dict[int, WriteLock] = {}
        """The write locks that were needed until now, by stripe."""
        _STORES.add(self)

    # The root and its marker

    def check(self) -> None:
        """Make the root directory if it is missing, and check that it can be used.

        Raises:
            CheckpointerConfigurationError: there is something else at that path.
            CheckpointFormatError: another version of graphkit made it.
        """
        make_root(self.io, self.root)
        marker = self.marker.read()
        if marker is not None and marker.problem:
            _LOGGER.warning("%s is damaged: %s; `repair` rewrites it", self.marker.path, marker.problem)

    def _make_root_files(self) -> None:
        """Make the root, the directory of the locks, and the marker, where they are missing."""
        preload_modules()
        make_root(self.io, self.root)
        self.io.mkdir(layout.join(self.root, layout.LOCKS))
        self.marker.make()

    # Directories

    def locate(self, thread_id: str, namespace: str = "") -> ThreadDirectory:
        """Return where a history lies, whether it exists or not."""
        return layout.locate_thread(thread_id, namespace, self.root)

    def make_directories(self, directory: ThreadDirectory) -> None:
        """Make the directories of a log, where they are missing; the caller holds the write lock.

        Raises:
            CheckpointConflictError: this process holds the run lock of the thread, and the lock was
                removed with the directory.
            CheckpointKeyError: the store is sealed, and the saver has no cipher.
        """
        run_lock = self.run_lock(directory.thread_id, None)
        if run_lock.is_lost:
            raise CheckpointConflictError(directory.thread_id, WAS_REMOVED)
        io = self.io
        self.marker.check_may_begin()
        # The locks may have been removed with the store. A lock on a file without a name excludes no
        # writer that opens the file again.
        self.write_lock(directory).reopen()
        self.leftovers.sweep_once()
        self.leftovers.remove(directory.leftover)
        self.marker.update()
        io.mkdir(directory.thread_path)
        if directory.namespace:
            io.mkdir(directory.path)
        remove_temporary_logs(io, directory.path)

    def sync_names(self, directory: ThreadDirectory, file: FileId | None) -> None:
        """Bring the names that lead to a log to the disk, unless this process has done so for this file."""
        # A backup that was copied back has the fid of the log, and may have its inode. The time of
        # a directory's last change shows it: nothing can set it.
        known: tuple[object, ...] = (file,)
        for path in directory.parents[:-1]:
            status = self.io.stat(path)
            if status is not None:
                known += (status.st_ino, status.st_ctime_ns)
        synced_names = self._synced_names
        if file is not None and synced_names.get(directory.path) == known:
            return
        self.sync_directories(directory)
        if len(synced_names) >= KNOWN_IDS:
            synced_names.clear()
        synced_names[directory.path] = known

    def sync_directories(self, directory: ThreadDirectory) -> None:
        """Bring the names that lead to a log to the disk."""
        for path in directory.parents:
            self.io.fsync_dir(path)

    def directories_in(self, directory: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Return the names of directories in a directory that a predicate accepts, sorted.

        Logs a warning about anything else with such a name.
        """
        names: list[str] = []
        for name, is_directory in sorted(self.io.entries(directory)):
            if not is_wanted(name):
                continue
            if is_directory:
                names.append(name)
                continue
            path = layout.join(directory, name)
            status = self.io.stat(path)
            if status is not None:
                kind = describe_file_type(status.st_mode)
                _LOGGER.warning("%s is passed over, for it is %s where a directory should be", path, kind)
        return names

    def remember_id(self, name: str, id: str) -> None:
        """Remember the id behind the name of a directory.

        Otherwise, listing 10,000 threads would open as many files each time.
        """
        if len(self.ids) >= KNOWN_IDS:
            self.ids.clear()
        self.ids[name] = id

    # Locks

    def write_lock(self, thread: ThreadDirectory) -> WriteLock:
        """Return the write lock of a thread."""
        return self._write_lock_of(thread.stripe)

    def all_write_locks(self) -> list[WriteLock]:
        """Return all write locks, in the order in which a caller takes several of them."""
        return [self._write_lock_of(stripe) for stripe in range(layout.STRIPES)]

    def _write_lock_of(self, stripe: int) -> WriteLock:
        lock = self._write_locks.get(stripe)
        if lock is None:
            # Made only now: to make all of them took 90 of the 100 us of opening a store.
            path = layout.join(self.root, layout.LOCKS, f"{stripe:02x}")
            timeout = max(self._lock_timeout, _LEAST_WRITE_WAIT)
            made = WriteLock(self.io, path, self._make_root_files, timeout)
            # Two threads of execution that make it at the same time get the same one.
            lock = self._write_locks.setdefault(stripe, made)
        return lock

    def free_write_locks(self) -> None:
        """Free what the calling thread of execution has of the write locks, wherever it was interrupted."""
        for lock in list(self._write_locks.values()):
            lock.free()

    def run_lock(self, thread_id: str, timeout: float | None) -> RunLock:
        """Return the run lock of a thread, not yet taken."""
        preload_modules()
        thread = self.locate(thread_id)

        def make_file() -> int:
            # Under the write lock: a delete removes the directory and moves the lock file of its
            # own run back.
            with self.write_lock(thread):
                self.io.mkdir(thread.path)
                return self.io.open(thread.run_lock, write=True, create=True)

        if timeout is None:
            timeout = self._lock_timeout
        return RunLock(self.io, thread.run_lock, thread_id, make_file, timeout)

    # Logs

    def new_medium(self, thread_id: str, namespace: str, version: int = 0) -> FileLogBytes:
        directory = self.locate(thread_id, namespace)
        if not version:
            return self._new_bytes(directory, directory.live_log)

        def is_ending() -> bool:
            return catalog.find_begun_end(self, thread_id) == version

        return ReleasedFileBytes(self.io, directory.released_log(version), directory.live_log, is_ending)

    def new_log_at(self, path: str, directory: ThreadDirectory, *, expects_release: bool = False) -> FileLog:
        """Return the log at a path, for one caller, who may append to it, and closes it."""
        medium = self._new_bytes(directory, path)
        return self.make_log(medium, directory.thread_id, directory.namespace, expects_release=expects_release)

    def _new_bytes(self, directory: ThreadDirectory, path: str) -> FileLogBytes:
        return FileLogBytes(
            self.io,
            path,
            self.write_lock(directory),
            make_directories=partial(self.make_directories, directory),
            sync_names=partial(self.sync_names, directory),
            fsync=self._fsync,
        )

    def new_reader(self, thread_id: str, namespace: str, path: str) -> FileLog:
        """Return the log at a path, for one caller, who only reads it and closes it."""
        return self.make_log(FileLogBytes(self.io, path), thread_id, namespace)

    def new_copy(self, log: FileLog, path: str) -> FileLog:
        """Return a log at a path that is written to take the place of another one; closed by the caller."""
        write_lock = self.write_lock(self.locate(log.thread_id))
        medium = FileLogBytes(self.io, path, write_lock, is_synced_before_use=True)
        return log.make_copy(medium)

    # What there is

    def list_threads(self, *, released: bool) -> Sequence[str]:
        with StorageErrors("read", self.root):
            return sorted(thread_id for _, thread_id in catalog.iter_threads(self, released=released))

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterator[Head]:  # noqa: ARG002 - files have no index
        with StorageErrors("read", self.root):
            for name, thread_id in catalog.iter_threads(self, released=False):
                path = layout.join(self.root, name)
                namespaces = [""]
                # Nearly all threads have no namespace but the root.
                if any(map(layout.is_namespace, self.io.listdir(path))):
                    namespaces = catalog.list_namespaces(self, self.locate(thread_id))
                for namespace in namespaces:
                    newest_id = None
                    if with_newest:
                        log = layout.join(path, layout.namespace_name(namespace), layout.LOG)
                        newest_id = self._read_newest_id(log)
                    yield Head(thread_id, namespace, newest_id)

    def _read_newest_id(self, path: str) -> str | None:
        with closing(FileLogBytes(self.io, path)) as medium:
            return read_newest_id(medium) if medium.open() else None

    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        with StorageErrors("read", self.root):
            return catalog.list_namespaces(self, self.locate(thread_id))

    def list_versions(self, thread_id: str) -> Sequence[int]:
        with StorageErrors("read", self.root):
            # In this order: if the release is finished in between, its version is found as a file.
            ending = catalog.find_begun_end(self, thread_id)
            if ending == catalog.DELETED:
                return []
            versions = catalog.find_finished_versions(self, self.locate(thread_id))
            if ending is not None:
                versions.add(ending)
            return sorted(versions)

    def list_version_namespaces(self, thread_id: str, version: int) -> Sequence[str]:
        with StorageErrors("read", self.root):
            log_names = [layout.version_name(version)]
            if version == catalog.find_begun_end(self, thread_id):
                # Some have their new name already. In this order: one may be renamed in between.
                log_names.insert(0, layout.LOG)
            return catalog.list_namespaces(self, self.locate(thread_id), log_names)

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
        """Close, in the child, the locks of the parent; make locks that no thread holds."""
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


@final
class LogDirectory:
    """A directory with logs that are not those of threads, all under one write lock.

    Attributes:
        root: the directory that is made with those above it.
        path: the directory of the logs: the root, or one in it.
        io: the file system.
        write_lock: held by the process that appends.
    """

    def __init__(self, root: str | os.PathLike[str], name: str, io: FileIO | None) -> None:
        """Name a directory. What needs it first makes it.

        Args:
            root: the path of the root, which stays the same whatever the working directory becomes.
            name: that of the directory in it; "" for the root itself.
            io: the file system; None for the real one.
        """
        self.root = str(Path(root).absolute())
        self.path = layout.join(self.root, name) if name else self.root
        self.io = DirectoryGuard(FileIO() if io is None else io, self.root, make_room)
        self.lock_path = layout.join(self.path, _LOCK_OF_LOGS)
        self._make_lock()

    def _make_lock(self) -> None:
        # With a method of this object, the lock and this would hold each other: a log that nobody closes would keep
        # its files open until the garbage collector finds them.
        make = partial(_make_directory_of_logs, self.io, self.root, self.path)
        self.write_lock = WriteLock(self.io, self.lock_path, make, LOG_LOCK_TIMEOUT)

    def close_after_fork(self) -> None:
        """Let go of the lock of the parent, in the child of a fork."""
        self.write_lock.close_after_fork()
        self._make_lock()

    def make_medium(self, path: str) -> FileLogBytes:
        """Return the bytes of a log, to append to it."""
        return FileLogBytes(
            self.io,
            path,
            self.write_lock,
            make_directories=self._prepare_to_create,
            sync_names=self.sync_names,
        )

    def _prepare_to_create(self) -> None:
        _make_directory_of_logs(self.io, self.root, self.path)
        self.write_lock.reopen()

    def sync_names(self, _file: FileId | None = None) -> None:
        """Bring the names of files to the disk."""
        self.io.fsync_dir(self.path)
        if self.path != self.root:
            self.io.fsync_dir(self.root)


def _make_directory_of_logs(io: FileIO, root: str, path: str) -> None:
    """Make a directory of logs, and its root and those above it, where they are missing."""
    make_root(io, root)
    if path != root:
        io.mkdir(path)


_STORES: Final[weakref.WeakSet[Store]] = weakref.WeakSet()
call_after_fork(_STORES, Store.close_after_fork)


def make_room() -> bool:
    """Close what no caller of any saver of this process uses; return whether there was anything."""
    return sum([store.close_idle() for store in list(_STORES)]) > 0


# Errors of the file system, as callers of the saver see them


def wrap_os_errors(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a method so that an OSError becomes a CheckpointStorageError, and Ctrl-C leaves no write lock taken.

    The object of the method has a `_store`.

    Args:
        operation: what the method does with the path in the error, as a verb.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call_method(*args: P.args, **kwargs: P.kwargs) -> T:
            store: Store = args[0]._store  # type: ignore[attr-defined]  # noqa: SLF001
            try:
                with StorageErrors(operation, store.root):
                    return method(*args, **kwargs)
            except (KeyboardInterrupt, SystemExit):
                # It may have come on the way into the `__exit__` of a lock, before its first line.
                store.free_write_locks()
                raise

        return call_method

    return decorate


class StorageErrors:
    """A block in which an OSError becomes a CheckpointStorageError.

    It is part of every put and get. As a generator function, it would take three times as long.
    """

    __slots__ = ("_operation", "_root")

    def __init__(self, operation: str, root: str) -> None:
        """Prepare the block.

        Args:
            operation: what the block does with the path in the error, as a verb.
            root: the path that the error names if the OSError has none.
        """
        self._operation = operation
        self._root = root

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        # A CheckpointStorageError is an OSError, too.
        if isinstance(error, OSError) and not isinstance(error, CheckpointerError):
            path = os.fsdecode(error.filename or self._root)
            raise CheckpointStorageError(path, self._operation, error) from error
