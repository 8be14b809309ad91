"""A checkpoint directory: its place, its locks and its open logs. What every operation of the saver starts from."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from graphkit.abc import generate_id
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
)
from savers._filesystem import layout, log
from savers._filesystem.containment import DirectoryGuard
from savers._filesystem.io import describe_file_type
from savers._filesystem.lock import RunLock, WriteLock
from savers._filesystem.log_reader import LogReader
from savers._filesystem.log_summary import LogSummary
from savers._filesystem.log_writer import LogWriter
from savers._filesystem.marker import Marker, pack_marker, read_marker
from savers._filesystem.salvaged_files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphkit.abc import StateSerializer
    from graphkit.codec import Codec
    from savers._compression import Compression
    from savers._filesystem.io import FileIO

KNOWN_IDS: Final = 20_000
"""So many ids are remembered."""
OPEN_LOGS: Final = 256
"""The savers of a process keep at most this many logs open, and at most a quarter of the descriptors it may have."""
FEWEST_OPEN_LOGS: Final = 16
"""Each saver may keep this many, however many savers there are."""
CACHED_BYTES: Final = 64 << 20
"""A saver keeps at most this many bytes of states and indexes; the log in use may go beyond."""
ENTRY_COST: Final = 1 << 10
"""What a checkpoint takes in an index, about, in bytes."""
_UNACCOUNTED: Final = 4 << 10
"""Changes by fewer bytes are not worth a lock at each put."""
WAS_REMOVED: Final = (
    "its directory was removed while it was in use, and its checkpoints with it; nothing was stored. "
    "Put the directory back and resume, or start the thread anew"
)
_STAYS: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EACCES, errno.EPERM, errno.EROFS})
"""Why a directory cannot be removed, other than by a failing disk: it is not empty, or something is mounted there."""
_LOGGER: Final = getLogger("graphkit")


class Version(LogReader):
    """A released log. It ends as such, or something of it is missing."""

    expects_release = True
    final_path = ""
    """Where the log is when its release is finished."""
    live_path = ""
    """The live log. While a release is unfinished, the version is still there."""
    is_ending = False
    """Whether the release is unfinished: the end of the root's log names this version, and decides for this log too."""

    def _open(self) -> bool:
        if self.is_ending:
            # The release may be finished at this moment: then the log is at its final place when the live one is gone.
            for path in (self.final_path, self.live_path, self.final_path):
                self.path = path
                if super()._open():
                    return True
            return False
        self.path = self.final_path
        found = super()._open()
        if found and self.closed_by is None:
            end = self.end
            self.close()
            raise CheckpointCorruptionError(self.path, end, "the end of a released history is missing")
        if not found and self.io.stat(self.path) is not None:
            raise CheckpointCorruptionError(self.path, 0, "a released history is missing")
        return found


class Store:
    """One directory of threads. May be used by several threads and processes at once."""

    def __init__(
        self,
        root: str,
        io: FileIO,
        codec: Codec,
        serializer: StateSerializer | None,
        lock_timeout: float,
    ) -> None:
        prepare_imports()
        self.root, self.io = root, DirectoryGuard(io, root, make_room)
        self.compression: Compression | None = None
        """How large values are compressed by those who write."""
        self._codec, self._serializer, self._lock_timeout = codec, serializer, lock_timeout
        self._open: OrderedDict[tuple[str, str, int], LogReader] = OrderedDict()
        self._sizes: dict[LogReader, int] = {}
        """The bytes that each open log caches, where it caches any."""
        self._cached = 0
        self._guard = Lock()
        self._write_locks = self._new_locks()
        self._is_marked = False
        """Whether the marker is known not to be one of an earlier version."""
        self.swept = False
        """Whether this process has looked for what others left half removed."""
        self.begun_releases: dict[str, int] = {}
        """The versions of releases that failed: done again, a release returns what the failed one has made."""
        self.ids: dict[str, str] = {}
        """The ids behind names of directories that do not tell them; they never change."""
        _STORES.add(self)

    def _new_locks(self) -> list[WriteLock]:
        directory = layout.join(self.root, layout.LOCKS)
        return [
            WriteLock(self.io, layout.join(directory, f"{stripe:02x}"), self._make_locks, self._lock_timeout)
            for stripe in range(layout.STRIPES)
        ]

    # The place

    def check(self) -> None:
        """Make the root directory if it is missing, and see that it can be used.

        Raises:
            CheckpointerConfigurationError: there is something else at that path.
            CheckpointFormatError: a newer graphkit made it.
        """
        if not self.io.is_dir(self.root):
            # Looked at twice: another process may be making it at this moment.
            if self.io.stat(self.root) is not None and not self.io.is_dir(self.root):
                raise CheckpointerConfigurationError(f"{self.root} is a file; name a directory for the checkpoints")
            self._make_root()
        marker = self.read_marker()
        if marker is not None and marker.problem:
            path = layout.join(self.root, layout.MARKER)
            _LOGGER.warning("%s is damaged: %s; `repair` rewrites it", path, marker.problem)

    def _make_root(self) -> None:
        missing = []
        path = os.path.abspath(self.root)
        while not self.io.is_dir(path):
            missing.append(path)
            path = os.path.dirname(path)
        try:
            for directory in reversed(missing):
                self.io.mkdir(directory)
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointerConfigurationError(
                f"{error.filename} is a file; name a directory for the checkpoints"
            ) from error
        for directory in missing:
            self.io.fsync_dir(os.path.dirname(directory))

    def read_marker(self) -> Marker | None:
        """Read the marker file; None if there is none.

        Raises:
            CheckpointFormatError: a newer graphkit made the store, or the directory is not a store's.
        """
        path = layout.join(self.root, layout.MARKER)
        if self.io.stat(path) is None:
            return None
        fd = self.io.open(path)
        try:
            text = self.io.read_at(fd, 0, 1 << 16)
        finally:
            self.io.close(fd)
        found = read_marker(path, text)
        if found.problem and not any(map(self._is_own, self.io.listdir(self.root))):
            raise CheckpointFormatError(path, "this is not a graphkit store")
        return found

    @staticmethod
    def _is_own(name: str) -> bool:
        """Whether a name in the root shows that the directory is a store, whatever its marker says."""
        return name == layout.LOCKS or layout.is_thread(name)

    def write_marker(self, store_id: str) -> None:
        """Write the marker file of the current version; what stood there is replaced."""
        temporary = layout.join(self.root, layout.temporary_marker_name(generate_id()))
        write_file(self.io, temporary, [pack_marker(store_id)])
        try:
            self.io.rename(temporary, layout.join(self.root, layout.MARKER))
        except FileNotFoundError:
            if self.read_marker() is None:
                raise
            return  # Another process has written the marker meanwhile, and removed what looked like a leftover.
        self.io.fsync_dir(self.root)

    def _make_locks(self) -> None:
        """Make what a store has beside its threads."""
        if not self.io.is_dir(self.root):
            self._make_root()
        self.io.mkdir(layout.join(self.root, layout.LOCKS))
        if self.read_marker() is None:
            self.write_marker(generate_id())

    def update_marker(self) -> None:
        """Let the marker say the current version, before a log of it takes its place."""
        if self._is_marked:
            return
        marker = self.read_marker()
        if marker is not None and not marker.problem and marker.format < log.MAJOR:
            self.write_marker(marker.store)
        self._is_marked = True

    def directory(self, thread_id: str, namespace: str = "") -> str:
        """The directory of a thread, or of one of its namespaces."""
        return layout.join(self.root, layout.locate_thread(thread_id).name, layout.namespace_name(namespace))

    def _make_directories(self, thread_id: str, namespace: str) -> None:
        if self.run_lock(thread_id, None).is_lost:
            # The lock of the run that puts this went with the directory, and so did its checkpoints.
            raise CheckpointConflictError(thread_id, WAS_REMOVED)
        self.write_lock(thread_id).reopen()
        directory = self.directory(thread_id)
        if not self.swept:
            self.sweep()
        self._remove_leftover(layout.TEMPORARY + layout.locate_thread(thread_id).name)
        self.update_marker()
        self.io.mkdir(directory)
        if namespace:
            self.io.mkdir(self.directory(thread_id, namespace))
        self.remove_leftovers(self.directory(thread_id, namespace))

    def remember_id(self, name: str, id: str) -> None:
        """Note the id behind a directory's name: listing 10,000 threads would open as many files each time."""
        if len(self.ids) >= KNOWN_IDS:
            self.ids.clear()
        self.ids[name] = id

    def remove_leftovers(self, directory: str) -> None:
        """Remove logs that somebody began to write anew and did not live to finish; under the short lock."""
        for name in self.io.listdir(directory):
            if name.startswith(layout.TEMPORARY):
                path = layout.join(directory, name)
                if not self.io.is_dir(path):  # a directory is not the writer's: it makes files only
                    self.io.unlink(path)

    def sweep(self) -> list[str]:
        """Remove the threads whose removal somebody began and did not live to finish; their names.

        Done once by every process that makes or deletes a thread, and by verify and repair; somebody who is removing
        one just now is not disturbed.
        """
        self.swept = True
        in_root = self.io.listdir(self.root)
        if layout.MARKER in in_root:
            for name in filter(layout.is_marker_leftover, in_root):
                with suppress(FileNotFoundError):
                    self.io.unlink(layout.join(self.root, name))
        names = [name for name in in_root if layout.is_leftover(name)]
        return [name for name in names if self._remove_leftover(name)]

    def _remove_leftover(self, name: str) -> bool:
        """Remove a thread whose removal was cut short; whether it is gone.

        It is no thread any more. So nobody is kept from writing to another one because it cannot be removed.
        """
        path = layout.join(self.root, name)
        try:
            return self.io.stat(path) is not None and not self.remove_tree(path)
        except (OSError, CheckpointFormatError) as error:
            _LOGGER.info("%s is left of a deleted thread and cannot be removed: %s", path, error)
            return False

    def choose_leftover_path(self, thread_id: str) -> str:
        """A path to which the directory of a thread can be renamed before it is removed."""
        name = layout.TEMPORARY + layout.locate_thread(thread_id).name
        self._remove_leftover(name)
        if self.io.stat(layout.join(self.root, name)) is not None:
            name = layout.TEMPORARY + layout.random_thread_name(layout.locate_thread(thread_id).name)
        return layout.join(self.root, name)

    def sync_directories(self, thread_id: str, namespace: str) -> None:
        """Bring the names that lead to a log to the disk."""
        if namespace:
            self.io.fsync_dir(self.directory(thread_id, namespace))
        self.io.fsync_dir(self.directory(thread_id))
        self.io.fsync_dir(self.root)

    def remove_tree(self, directory: str) -> list[str]:
        """Remove a directory with all that is a store's; what is removed meanwhile by others is no error.

        Follows no link. A directory in it that is not a store's is removed if it is empty, and stays otherwise.

        Returns:
            The directories that stay.
        """
        stays: list[str] = []
        if not self.io.is_dir(directory):
            with suppress(FileNotFoundError):
                self.io.unlink(directory)
            return stays
        for name in self.io.listdir(directory):
            path = layout.join(directory, name)
            if layout.is_namespace(name):
                stays += self.remove_tree(path)
            elif self.io.is_dir(path):
                stays += self._remove_empty(path)
            else:
                with suppress(FileNotFoundError):
                    self.io.unlink(path)
        return stays or self._remove_empty(directory)

    def _remove_empty(self, directory: str) -> list[str]:
        try:
            self.io.rmdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno not in _STAYS:
                raise
            return [directory]
        return []

    def directories_in(self, directory: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """The directories in a directory whose names are wanted; anything else of such a name is told in the log."""
        found = []
        for name in sorted(filter(is_wanted, self.io.listdir(directory))):
            path = layout.join(directory, name)
            status = self.io.stat(path)
            if status is not None and stat.S_ISDIR(status.st_mode):
                found.append(name)
            elif status is not None:
                kind = describe_file_type(status.st_mode)
                _LOGGER.warning("%s is passed over, for it is %s where a directory should be", path, kind)
        return found

    # Locks

    def write_lock(self, thread_id: str) -> WriteLock:
        """The short lock of a thread."""
        return self._write_locks[layout.locate_thread(thread_id).stripe]

    def all_write_locks(self) -> list[WriteLock]:
        """All short locks, in the order in which those who need several take them."""
        return self._write_locks

    def run_lock(self, thread_id: str, timeout: float | None) -> RunLock:
        """The run lock of a thread, not yet taken."""
        path = layout.join(self.directory(thread_id), layout.RUN_LOCK)

        def make() -> int:
            # Not beside a delete, which takes the directory away and brings the lock file of its own run back.
            with self.write_lock(thread_id):
                self.io.mkdir(self.directory(thread_id))
                return self.io.open(path, write=True, create=True)

        return RunLock(self.io, path, thread_id, make, self._lock_timeout if timeout is None else timeout)

    # Open logs

    def shared_writer(self, thread_id: str, namespace: str) -> LogWriter:
        """The live log of a namespace, whether it exists or not; shared, so hold its mutex."""
        key = (thread_id, namespace, 0)
        with self._guard:
            history = self._open.get(key)
            if history is not None:
                self._open.move_to_end(key)
                return history  # type: ignore[return-value]
            return self._keep(key, self.new_writer(thread_id, namespace))  # type: ignore[return-value]

    def shared_version(self, thread_id: str, namespace: str, version: int, *, is_ending: bool = False) -> LogReader:
        """A released log, or one whose release is unfinished (`is_ending`); shared, so hold its mutex."""
        key = (thread_id, namespace, version)
        with self._guard:
            history = self._open.get(key)
            if history is not None:
                self._open.move_to_end(key)
            else:
                directory = self.directory(thread_id, namespace)
                path = layout.join(directory, layout.version_name(version))
                history = Version(*self._arguments(path, thread_id, namespace))
                history.final_path, history.live_path = path, layout.join(directory, layout.LOG)
                self._keep(key, history)
            assert isinstance(history, Version)
            history.is_ending = is_ending
            return history

    def new_summary(self, thread_id: str, namespace: str) -> LogSummary:
        """The live log of a namespace, to be looked at once and closed."""
        directory = self.directory(thread_id, namespace)
        return LogSummary(*self._arguments(layout.join(directory, layout.LOG), thread_id, namespace))

    def new_writer(self, thread_id: str, namespace: str, path: str | None = None) -> LogWriter:
        """The live log of a namespace, opened for one caller alone, who closes it."""
        directory = self.directory(thread_id, namespace)
        history = LogWriter(*self._arguments(path or layout.join(directory, layout.LOG), thread_id, namespace))
        history.compression = self.compression
        history.make_directories = lambda: self._make_directories(thread_id, namespace)
        return history

    def _arguments(
        self, path: str, thread_id: str, namespace: str
    ) -> tuple[FileIO, str, tuple[str, str], bytes, Codec, StateSerializer | None]:
        digest = layout.locate_thread(thread_id).digest
        return self.io, path, (thread_id, namespace), digest, self._codec, self._serializer

    def _keep(self, key: tuple[str, str, int], history: LogReader) -> LogReader:
        self._open[key] = history
        limit = _open_logs()
        if len(self._open) > limit:
            for old in list(islice(self._open, len(self._open) - limit)):
                # One that is in use, or has to be written anew first, stays until there is another chance.
                self._close_idle(self._open[old], lambda old=old: self._drop(old))  # type: ignore[misc]
        return history

    @staticmethod
    def _close_idle(history: LogReader, then: Callable[[], object]) -> bool:
        """Close a log that no caller uses; whether it was one."""
        mutex: Any = history.mutex
        # A mutex lets its own thread in again, so it must not be the caller's.
        if history.suspect or mutex._is_owned() or not mutex.acquire(blocking=False):  # noqa: SLF001 - as Condition does
            return False
        try:
            history.close()
            then()
        finally:
            mutex.release()
        return True

    def _drop(self, key: tuple[str, str, int]) -> LogReader:
        history = self._open.pop(key)
        self._cached -= self._sizes.pop(history, 0)
        return history

    def close_idle(self) -> int:
        """Close the logs and locks that no caller uses just now; how many there were."""
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            logs = [history for history in self._open.values() if history.fd >= 0]
            closed = sum(self._close_idle(history, lambda: None) for history in logs)
        finally:
            self._guard.release()
        return closed + sum(lock.close_if_idle() for lock in self._write_locks)

    def account(self, history: LogReader) -> None:
        """Note what a log caches after it was used, and drop what was used longest ago if that is too much."""
        size = 0 if history.state is None else history.keyframe_length + max(0, history.end - history.keyframe_end)
        if history.index is not None:
            size += ENTRY_COST * len(history.index.checkpoints)
        if -_UNACCOUNTED < size - self._sizes.get(history, 0) < _UNACCOUNTED:
            return
        with self._guard:
            self._cached += size - self._sizes.get(history, 0)
            self._sizes[history] = size
            if self._cached > CACHED_BYTES:
                self._shrink(history)

    def _shrink(self, used: LogReader) -> None:
        for history in self._open.values():
            if self._cached <= CACHED_BYTES:
                return
            mutex: Any = history.mutex
            if history is used or not self._sizes.get(history) or mutex._is_owned():  # noqa: SLF001 - as above
                continue
            if mutex.acquire(blocking=False):
                history.drop_caches()
                mutex.release()
                self._cached -= self._sizes.pop(history)

    def close_thread(self, thread_id: str) -> None:
        """Close the logs of a thread."""
        with self._guard:
            histories = [self._drop(key) for key in list(self._open) if key[0] == thread_id]
        for history in histories:
            with history.mutex:
                history.close()

    def close(self) -> None:
        """Close every descriptor; the next use opens what it needs."""
        with self._guard:
            histories = list(self._open.values())
            self._open.clear()
            self._sizes.clear()
            self._cached = 0
        for history in histories:
            with history.mutex:
                history.close()
        for lock in self._write_locks:
            lock.close()

    def after_fork(self) -> None:
        """In the child: close what belongs to the parent, and make locks that nobody holds."""
        for history in self._open.values():
            history.pins = 0
            history.close()
        for lock in self._write_locks:
            lock.close_after_fork()
        self._open.clear()
        self._sizes.clear()
        self._cached = 0
        self._guard = Lock()
        self._write_locks = self._new_locks()


_STORES: Final[weakref.WeakSet[Store]] = weakref.WeakSet()
_IMPORTS: Final = Lock()
"""Held while modules are loaded. A fork waits for it: in the child, a module that another thread was loading would
stay locked for ever."""


def prepare_imports() -> None:
    """Load what the first put, the first run lock and the first fork would load: 25 ms, once per process."""
    with _IMPORTS:
        import json
        import platform

        import filelock

        # What is not there is not needed: only Windows has no limit of descriptors.
        with suppress(ImportError):
            import resource

            _LOADED["resource"] = resource
        platform.node()
        _LOADED.update(json=json, platform=platform, filelock=filelock)


_LOADED: Final[dict[str, object]] = {}


def make_room() -> bool:
    """Close what no caller of any saver of this process uses just now; whether there was anything."""
    return sum([store.close_idle() for store in list(_STORES)]) > 0


def _open_logs() -> int:
    """How many logs a store may keep open: its share of what a process may have."""
    return max(FEWEST_OPEN_LOGS, min(OPEN_LOGS, _descriptors() // 4) // max(1, len(_STORES)))


def _descriptors() -> int:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return OPEN_LOGS * 4
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_LOGS * 4 if soft == resource.RLIM_INFINITY else soft


def _after_fork() -> None:
    _IMPORTS.release()  # Taken before the fork, by the thread of execution that goes on here.
    for store in list(_STORES):
        store.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_IMPORTS.acquire, after_in_parent=_IMPORTS.release, after_in_child=_after_fork)
