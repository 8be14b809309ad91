"""The two locks: the write lock around an append, and the run lock around a whole run.

Does not know graphs.

Both use filelock's native lock (flock, LockFileEx) on a descriptor of their own: 1 us where
`FileLock` takes 70, and no 50 ms polls. The system releases the lock of a dead process at once. A
lock belongs to an open file, not to a thread of execution, so a lock of `threading` in front of it
excludes the other threads of the process.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Final

from graphkit.errors import ThreadBusyError
from graphkit.saver_kit import hold_process_lock, is_process_lock_mine
from savers._filesystem.io import opened
from savers._threads import Backoff, hold_if_free, is_mine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from savers._filesystem.io import FileIO

_FIRST_WAIT: Final = 0.0002
_LONGEST_WAIT: Final = 0.005
_HOLDER_LENGTH: Final = 1024
"""Bytes of a run lock's file that may name its holder."""
_LONGEST_LOOKS: Final = 1.0
"""Seconds that other processes may keep a run from its lock by looking at it."""
_PROBE_FLAGS: Final = os.O_RDONLY | sum(getattr(os, f"O_{name}", 0) for name in ("CLOEXEC", "NOFOLLOW", "NONBLOCK"))


def is_locked(path: str) -> bool:
    """Return whether a process holds a lock on a file.

    Raises:
        OSError: the file is there, and cannot be opened.
    """
    try:
        # Closed even if an interrupt comes on the way to the end: a descriptor that stays open would keep the lock.
        with open(path, "rb", 0, opener=lambda path, _flags: os.open(path, _PROBE_FLAGS)) as opened:
            return _is_refused(opened.fileno())
    except FileNotFoundError:
        return False


def _is_refused(fd: int) -> bool:
    """Return whether a lock is refused. Closing the descriptor, the only one of an open file, releases it."""
    # /proc/locks would tell without touching the file, but shows no process of another container
    # that shares the directory. So the caller asks for a shared lock, which is refused while a run
    # has its exclusive one. If it is granted, it is there for some microseconds, in which no run can
    # take the lock: `RunLock` tries again after that. Two callers that look at the same time do not
    # take each other for the holder, because shared locks do not exclude each other.
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except ImportError:  # Windows has no shared lock for this.
        from filelock import lock_descriptor

        return not lock_descriptor(fd, blocking=False)
    except BlockingIOError:
        return True
    return False


class WriteLock:
    """Excludes other writers during an append; shared by all threads with the same stripe.

    The thread of execution that holds it may enter it again.
    """

    def __init__(self, io: FileIO, path: str, make_directories: Callable[[], None], timeout: float) -> None:
        """Prepare the lock.

        Args:
            io: the file system.
            path: the lock file.
            make_directories: creates the directories of the lock file, where they are missing.
            timeout: seconds to wait for another writer.
        """
        self._io = io
        self._path = path
        self._make_directories = make_directories
        self._timeout = timeout
        self._mutex = threading.RLock()
        """Knows itself which thread of execution has acquired it, whatever interrupted the caller."""
        self._holder = 0
        """The thread of execution that holds the lock; 0 if none does."""
        self._depth = 0
        """How often it has entered it again."""
        self._lock = io.lock
        self._unlock = io.unlock
        self._fd = -1

    def __enter__(self) -> None:
        holder = get_ident()
        if self._holder == holder:
            self._depth += 1
            return
        # The mutex first: of the threads of this process, one at a time asks the system for the lock
        # of the file. All of them share one descriptor, so the system would grant it to each.
        try:
            if not self._mutex.acquire(timeout=self._timeout):
                raise self._make_timeout_error("another thread of this process")  # noqa: TRY301 - what follows frees the lock
            if self._fd < 0 or not self._lock(self._fd):
                self._wait()
            # Last, so that it is set only while the file is locked.
            self._holder = holder
        except BaseException:
            self.free()
            raise

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread of execution has entered the lock."""
        return self._holder == get_ident()

    @contextmanager
    def enter_if_free(self) -> Iterator[bool]:
        """Enter the lock for a block if that needs no waiting, unless the calling thread has entered it already.

        Yields:
            Whether the lock was entered.
        """
        if self.is_mine:
            yield False  # an outer block has the lock, which this one must not free
            return
        try:
            if self._mutex.acquire(blocking=False) and self._fd >= 0 and self._lock(self._fd):
                self._holder = get_ident()
            yield self.is_mine
            self.free()
        except BaseException:
            self.free()
            raise

    def __exit__(self, error_type: object, *_: object) -> None:
        # The first line is the `try`: an exception before it would leave the lock taken.
        try:
            if error_type is not None and not self.is_mine:
                return  # it was freed on the way out, and another thread of execution may have it by now
            if self._depth:
                self._depth -= 1
            else:
                # In the reverse order. If an exception comes between two of these lines, `free` finds
                # the mutex still owned, and does the rest.
                self._holder = 0
                self._unlock(self._fd)
                self._mutex.release()
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        """Free what the calling thread of execution has of the lock, wherever it was interrupted.

        If it was interrupted where it left an inner block, the outer ones are left at once, too.
        """
        if not is_mine(self._mutex):
            return
        self._holder = self._depth = 0
        try:
            if self._fd >= 0:
                self._unlock(self._fd)
        finally:
            self._mutex.release()

    def _make_timeout_error(self, holder: str) -> TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"{holder} kept it for {self._timeout:g} s", self._path)

    def _wait(self) -> None:
        backoff = Backoff(self._timeout, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
        # The system can wait for a lock, but not for a limited time. An append takes some ten
        # microseconds and a sync is outside of the lock, so the lock is free soon: the first pauses
        # are short.
        while True:
            if self._fd < 0:
                self._make_directories()
                self._fd = self._io.open(self._path, write=True, create=True)
            if self._io.lock(self._fd):
                return
            if backoff.is_over:
                raise self._make_timeout_error("another writer")
            backoff.wait()

    def __del__(self) -> None:
        with suppress(Exception):
            if self._fd >= 0:
                self._io.close(self._fd)

    def reopen(self) -> None:
        """Create and lock the file again if it was removed; the caller holds the lock."""
        if not self._io.fstat(self._fd).st_nlink:
            self._io.close(self._fd)
            self._fd = -1
            self._wait()

    def close_after_fork(self) -> None:
        """Close the descriptor in the child of a fork, without unlocking it.

        It shares the lock of the parent.
        """
        self._close()

    def close(self) -> None:
        """Close the descriptor; the next use opens it again."""
        with self._mutex:
            self._close()

    def close_if_idle(self) -> bool:
        """Close the descriptor unless a writer uses it; return whether it was closed."""
        with hold_if_free(self._mutex) as is_held:
            return is_held and self._close()

    def _close(self) -> bool:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return False
        self._io.close(fd)
        return True


_FILES: Final[dict[str, RunLock]] = {}
"""What has the file of a run lock open in this process, or is about to open it, by the real path of the file."""


def _after_fork() -> None:
    # The parent's locks are not the child's. The child closes its copies of the descriptors without
    # unlocking them: an unlock would take the lock from the parent, too.
    for lock in _FILES.values():
        lock.close_after_fork()
    _FILES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_run_locked(io: FileIO, path: str) -> bool:
    """Return whether a run holds a run lock now, in any process."""
    # To find out the real path takes longer than the rest.
    if _FILES and io.real_path(path) in _FILES:
        return True
    return is_locked(path)


class RunLock:
    """Allows one run per thread at a time, across processes; the file names its holder."""

    def __init__(self, io: FileIO, path: str, thread_id: str, make: Callable[[], int], timeout: float) -> None:
        """Prepare the lock.

        Args:
            io: the file system.
            path: the lock file.
            thread_id: the thread, for errors.
            make: creates the file with its directory, and returns its descriptor.
            timeout: seconds to wait for another run.
        """
        self._io = io
        self._path = path
        self._thread_id = thread_id
        self._make = make
        self._timeout = timeout
        self._key = io.real_path(path)
        self._fd = -1
        self._inode: int | None = None
        """The number of the locked file, while the lock is held."""

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread of execution holds this lock already."""
        return is_process_lock_mine(self._key)

    def is_held(self) -> bool:
        """Return whether a run holds the lock now, in any process."""
        return is_run_locked(self._io, self._path)

    def is_abandoned(self) -> bool:
        """Return whether the process that held the lock last has died; False also while it is held.

        A holder that lets the lock go leaves an empty file.
        """
        holder = self._read_file()
        # Between both looks at the file, another run may have begun and ended.
        return bool(holder) and not self.is_held() and self._read_file() == holder

    def _read_file(self) -> str:
        try:
            with opened(self._io, self._path) as fd:
                return self._read_holder(fd)
        except FileNotFoundError:
            return ""

    def _read_holder(self, fd: int) -> str:
        return self._io.read_at(fd, 0, _HOLDER_LENGTH).decode("utf-8", "replace").strip()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock during the block.

        Raises:
            ThreadBusyError: another run held it until the timeout.
        """
        backoff = Backoff(self._timeout, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
        with hold_process_lock(self._key, self._thread_id, self._timeout) as holder_name:
            try:
                try:
                    _FILES[self._key] = self
                    self._lock(backoff)
                    # The lock holds without the name of its holder; a full disk must not prevent a delete.
                    with suppress(OSError):
                        self._io.truncate(self._fd, 0)
                        self._io.write_at(self._fd, 0, holder_name.encode())
                    yield
                finally:
                    self._close()
            except BaseException:
                # Ctrl-C may have come within the first attempt.
                self._close()
                raise

    @property
    def is_lost(self) -> bool:
        """Whether this process holds the lock on a file whose directory was removed."""
        owner = _FILES.get(self._key)
        return owner is not None and owner.is_detached()

    def is_detached(self) -> bool:
        """Return whether the file that this object has locked is no longer at its path.

        Any thread of execution may ask, also while the holder frees the lock and closes its descriptor.
        """
        inode = self._inode
        return inode is not None and not self._is_at_path(inode) and self._inode == inode

    def _is_at_path(self, inode: int) -> bool:
        at_path = self._io.stat(self._path)
        return at_path is not None and at_path.st_ino == inode

    def _lock(self, backoff: Backoff) -> None:
        io = self._io
        while True:
            if self._fd < 0:
                try:
                    self._fd = io.open(self._path, write=True)
                except FileNotFoundError:
                    self._fd = self._make()
            if io.lock(self._fd):
                # A delete removes the file of a lock, or moves it with its directory. A lock on a
                # file that is not at the path excludes no other run, which makes a new file.
                inode = io.fstat(self._fd).st_ino
                if self._is_at_path(inode):
                    self._inode = inode
                    return
                io.close(self._fd)
                self._fd = -1
                continue
            if backoff.is_over:
                # It may have been refused because processes look at the lock; see `is_locked`.
                waited = backoff.waited
                is_taken = is_locked(self._path) or waited >= self._timeout + _LONGEST_LOOKS
                if is_taken:
                    holder = self._read_holder(self._fd) or "another process"
                    raise ThreadBusyError(self._thread_id, holder, round(waited, 1))
            backoff.wait()

    def close_after_fork(self) -> None:
        """Close the descriptor in the child of a fork, without unlocking it.

        It shares the lock of the parent.
        """
        if self._fd >= 0:
            self._io.close(self._fd)
            self._fd = -1
            self._inode = None

    def _close(self) -> None:
        try:
            self._free()
        finally:
            if _FILES.get(self._key) is self:
                del _FILES[self._key]

    def _free(self) -> None:
        if self._fd < 0:
            return
        if self._inode is not None:
            # An empty file says that the holder did not die. If the disk refuses, a watch believes
            # that it did.
            with suppress(OSError):
                self._io.truncate(self._fd, 0)
            self._inode = None
        # Closing alone is not enough: the child of a fork may have a copy of the descriptor.
        self._io.unlock(self._fd)
        fd, self._fd = self._fd, -1
        self._io.close(fd)
