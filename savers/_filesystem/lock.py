"""The two locks: the short one around an append, and the run lock around a whole run. Knows nothing of graphs.

Both are filelock's native lock (flock, LockFileEx) on a descriptor of our own: 1 us where `FileLock` takes 70, and no
50 ms polls. The system lets a dead holder's lock go at once. A lock belongs to an open file, not to a thread, so that
threads of one process are kept apart by locks of `threading` in front of it.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from graphkit.errors import ThreadBusyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from savers._filesystem.io import FileIO

_FIRST_WAIT: Final = 0.0002
_LONGEST_WAIT: Final = 0.005


class WriteLock:
    """Keeps writers apart while one of them appends; shared by all threads of a store with the same stripe."""

    def __init__(self, io: FileIO, path: str, make_directories: Callable[[], None], timeout: float) -> None:
        self._io, self._path, self._make_directories, self._timeout = io, path, make_directories, timeout
        self._mutex = threading.Lock()
        self._fd = -1

    def __enter__(self) -> None:
        self._mutex.acquire()
        try:
            if self._fd < 0 or not self._io.lock(self._fd):
                self._wait()
        except BaseException:
            self._mutex.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._io.unlock(self._fd)
        finally:
            self._mutex.release()

    def _wait(self) -> None:
        started, pause = monotonic(), _FIRST_WAIT
        while True:
            if self._fd < 0:
                self._make_directories()
                self._fd = self._io.open(self._path, write=True, create=True)
            if self._io.lock(self._fd):
                return
            if monotonic() - started > self._timeout:
                raise TimeoutError(errno.ETIMEDOUT, f"another writer kept it for {self._timeout:g} s", self._path)
            sleep(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT)

    def __del__(self) -> None:
        with suppress(Exception):
            if self._fd >= 0:
                self._io.close(self._fd)

    def reopen(self) -> None:
        """Lock the file anew if somebody has removed it; the caller holds the lock."""
        if not self._io.fstat(self._fd).st_nlink:
            self._io.close(self._fd)
            self._fd = -1
            self._wait()

    def close_after_fork(self) -> None:
        """In the child of a fork: close the descriptor, which shares the parent's lock, without unlocking it."""
        if self._fd >= 0:
            self._io.close(self._fd)

    def close(self) -> None:
        """Close the descriptor; the next use opens it again."""
        with self._mutex:
            self._close()

    def close_if_idle(self) -> bool:
        """Close the descriptor unless a writer uses it; whether it was closed."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            return self._close()
        finally:
            self._mutex.release()

    def _close(self) -> bool:
        if self._fd < 0:
            return False
        self._io.close(self._fd)
        self._fd = -1
        return True


class _HeldLocks:
    """The run locks that this process holds, by the real path of their files."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.owners: dict[str, RunLock] = {}


_HELD: _HeldLocks = _HeldLocks()


def _after_fork() -> None:
    global _HELD  # The parent's locks are not the child's.
    inherited, _HELD = _HELD, _HeldLocks()
    for lock in inherited.owners.values():
        lock.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RunLock:
    """One run at a time per thread, across processes; the file names its holder."""

    def __init__(self, io: FileIO, path: str, thread_id: str, make: Callable[[], int], timeout: float) -> None:
        """Prepare the lock at a path; `make` makes the file with its directory, and opens it."""
        self._io, self._path, self._thread_id = io, path, thread_id
        self._make, self._timeout = make, timeout
        self._key = io.real_path(path)
        self._fd = -1
        self.owner_ident = 0
        self.holder_name = ""

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread of execution holds this lock already."""
        owner = _HELD.owners.get(self._key)
        return owner is not None and owner.owner_ident == threading.get_ident()

    def __enter__(self) -> None:
        import platform  # 2 ms, and only runs need it

        started = monotonic()
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}"
        self.holder_name = f'process {os.getpid()} on host "{platform.node()}" since {since}'
        held = _HELD
        with held.changed:
            free = held.changed.wait_for(lambda: self._key not in held.owners, timeout=self._timeout)
            if not free:
                raise ThreadBusyError(
                    self._thread_id, held.owners[self._key].holder_name, round(monotonic() - started, 1)
                )
            self.owner_ident = threading.get_ident()
            held.owners[self._key] = self
        try:
            self._lock(started)
            self._write_holder()
        except BaseException:
            self._release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    @property
    def is_lost(self) -> bool:
        """Whether this process holds the lock on a file that is no longer there: its directory was removed."""
        owner = _HELD.owners.get(self._key)
        return owner is not None and owner.is_detached()

    def is_detached(self) -> bool:
        """Whether the file that this object has locked is no longer at its path."""
        if self._fd < 0:
            return False
        there = self._io.stat(self._path)
        return there is None or there.st_ino != self._io.fstat(self._fd).st_ino

    def _lock(self, started: float) -> None:
        pause = _FIRST_WAIT
        while True:
            if self._fd < 0:
                self._fd = self._open_file()
            if self._io.lock(self._fd):
                here, there = self._io.fstat(self._fd), self._io.stat(self._path)
                if there is not None and there.st_ino == here.st_ino:
                    return
                # Somebody has deleted the thread: what we have locked guards no name.
                self._io.close(self._fd)
                self._fd = -1
                continue
            waited = monotonic() - started
            if waited >= self._timeout:
                raise ThreadBusyError(self._thread_id, self._read_holder(), round(waited, 1))
            sleep(min(pause, self._timeout - waited))
            pause = min(pause * 1.5, _LONGEST_WAIT)

    def _open_file(self) -> int:
        try:
            return self._io.open(self._path, write=True)
        except FileNotFoundError:
            return self._make()

    def _read_holder(self) -> str:
        text = self._io.read_at(self._fd, 0, 1024).decode("utf-8", "replace").strip()
        return text or "another process"

    def _write_holder(self) -> None:
        # The lock holds without the name of its holder; a full disk must not keep anybody from deleting.
        with suppress(OSError):
            self._io.truncate(self._fd, 0)
            self._io.write_at(self._fd, 0, self.holder_name.encode())

    def close_after_fork(self) -> None:
        """In the child of a fork: close the descriptor, which shares the parent's lock, without unlocking it."""
        if self._fd >= 0:
            self._io.close(self._fd)
            self._fd = -1

    def _release(self) -> None:
        try:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                # Not by closing alone: the child of a fork may have a copy of the descriptor.
                self._io.unlock(fd)
                self._io.close(fd)
        finally:
            held = _HELD
            with held.changed:
                if held.owners.get(self._key) is self:
                    del held.owners[self._key]
                held.changed.notify_all()
