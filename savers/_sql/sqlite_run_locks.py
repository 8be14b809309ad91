"""Run locks beside a SQLite file: one byte of a lock file for each thread.

The system releases the byte of a process that has died, and a paused process keeps its own. So
there is no lease, and no token.

On Linux, a lock belongs to the open file (F_OFD_SETLK). The locks of POSIX, which other systems have,
belong to the process: closing any descriptor of the file releases them all, as a node does that copies
the directory of the database as a backup. A process opens the file once, but cannot keep the
application from opening it. On Linux, such a lock on another byte says which process holds the
first one, which the system does not tell of a lock of an open file; only that name can be lost.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from typing import Final

from graphkit.errors import CheckpointStorageError, ThreadBusyError
from graphkit.saver_kit import hold_process_lock, is_process_lock_held, is_process_lock_mine
from savers._sql.database import RunLocks
from savers._threads import Backoff

_FLOCK: Final = struct.Struct("hhqqi4x")
"""Linux's struct flock: type, whence, start, length, process."""
_NAMES: Final = 1 << 62
"""How far behind the byte of a thread the byte is that says who holds it."""
_MARKS: Final = 1 << 14
"""How many marks the lock file has, 4 bytes each: threads share them. A holder that lets its lock go writes
another mark there."""


class _LockFile:
    """An open lock file of this process."""

    def __init__(self, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        try:
            self.fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointStorageError(path, "lock", error) from error
        self._path = path
        self.users = 0
        """How many threads of execution hold or try a byte of it."""

    def is_at_path(self) -> bool:
        """Return whether this is still the file that other processes open."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self.fd))

    def lock(self, offset: int) -> bool:
        """Lock a byte; return False if another process has it."""
        import fcntl

        try:
            if sys.platform == "linux":
                fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _pack_lock(fcntl.F_WRLCK, offset))
                offset += _NAMES
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        except (BlockingIOError, PermissionError):
            # That the byte of the name is taken means nothing: another process may be asking for it.
            return offset >= _NAMES
        except OSError as error:
            raise CheckpointStorageError(self._path, "lock", error) from error
        return True

    def unlock(self, offset: int) -> None:
        import fcntl

        if sys.platform == "linux":
            # The name first: once the lock is free, the byte of the name belongs to the next holder.
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, offset + _NAMES)
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _pack_lock(fcntl.F_UNLCK, offset))
        else:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1, offset)

    def read_mark(self, offset: int) -> bytes:
        """Return the mark of a byte: what the last one wrote that let it go, or another one that has the same mark."""
        return os.pread(self.fd, 4, 4 * (offset % _MARKS))

    def write_mark(self, offset: int) -> None:
        # If the disk refuses, a watch believes that the holder has died.
        with suppress(OSError):
            os.pwrite(self.fd, os.urandom(4), 4 * (offset % _MARKS))

    def find_holder(self, offset: int) -> int | None:
        """Return the process that holds a byte, 0 for one that this system does not know; None if there is none.

        The locks of this process do not count.
        """
        import fcntl

        if sys.platform != "linux":
            if self.lock(offset):
                self.unlock(offset)
                return None
            return 0
        # The system answers with the lock that is in the way. That of an open file has no process (-1), so the byte of
        # the name is asked for in the way of POSIX. Nobody has it for a moment before the holder takes it.
        lock = fcntl.fcntl(self.fd, fcntl.F_OFD_GETLK, _pack_lock(fcntl.F_WRLCK, offset))
        if _FLOCK.unpack(lock)[0] == fcntl.F_UNLCK:
            return None
        name = fcntl.fcntl(self.fd, fcntl.F_GETLK, _pack_lock(fcntl.F_WRLCK, offset + _NAMES))
        kind, _, _, _, pid = _FLOCK.unpack(name)
        if kind == fcntl.F_UNLCK:
            return 0
        return max(int(pid), 0)


class _LockFiles:
    """The lock files that this process has open."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._files: dict[str, _LockFile] = {}

    @contextmanager
    def use(self, path: str) -> Iterator[_LockFile]:
        """Use the lock file at a path; it stays open during the block."""
        with self._mutex:
            file = self._files.get(path)
            if file is None or not file.is_at_path():
                # A file that was removed or replaced is closed when its last lock is released: closing any descriptor
                # would release POSIX locks.
                self._close_if_unused(file)
                file = self._files[path] = _LockFile(path)
            file.users += 1
        try:
            yield file
        finally:
            with self._mutex:
                file.users -= 1
                if self._files.get(path) is not file:
                    self._close_if_unused(file)

    def close(self, path: str) -> None:
        """Close a lock file, unless it is in use."""
        with self._mutex:
            file = self._files.get(path)
            if file is not None and not file.users:
                del self._files[path]
                os.close(file.fd)

    def _close_if_unused(self, file: _LockFile | None) -> None:
        if file is not None and not file.users:
            os.close(file.fd)

    def close_after_fork(self) -> None:
        """Close the files, in the child: it holds none of the locks of the parent."""
        for file in self._files.values():
            os.close(file.fd)


_OPEN: _LockFiles = _LockFiles()


def _after_fork() -> None:
    global _OPEN
    inherited, _OPEN = _OPEN, _LockFiles()
    inherited.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class SqliteRunLocks(RunLocks):
    """The run locks beside one SQLite file."""

    def __init__(self, path: str, make_directories: Callable[[], None]) -> None:
        """Prepare; the first use creates the lock file.

        Args:
            path: the lock file.
            make_directories: creates the directories of the lock file, where they are missing.
        """
        self._path = path
        self._make_directories = make_directories

    @contextmanager
    def hold(self, thread_id: str, timeout: float) -> Iterator[None]:
        backoff = Backoff(timeout)
        self._make_directories()
        with (
            hold_process_lock((self._path, thread_id), thread_id, timeout),
            self._hold_byte(_OPEN, thread_id, backoff),
        ):
            yield

    @contextmanager
    def _hold_byte(self, files: _LockFiles, thread_id: str, backoff: Backoff) -> Iterator[None]:
        offset = _find_offset(thread_id)
        while True:
            with files.use(self._path) as file:
                if file.lock(offset):
                    if file.is_at_path():
                        try:
                            yield
                        finally:
                            # The child of a fork leaves the lock to its parent: both have the same open file.
                            if files is _OPEN:
                                file.write_mark(offset)
                                file.unlock(offset)
                        return
                    # The file was removed meanwhile; the next round opens the new one.
                    file.unlock(offset)
                    continue
                if backoff.is_over:
                    pid = file.find_holder(offset)
                    holder = f"process {pid}" if pid else "another process"
                    raise ThreadBusyError(thread_id, holder, round(backoff.waited, 1))
            backoff.wait()

    def is_mine(self, thread_id: str) -> bool:
        return is_process_lock_mine((self._path, thread_id))

    def is_held(self, thread_id: str) -> bool:
        if is_process_lock_held((self._path, thread_id)):
            return True
        with self._look() as file:
            return file is not None and file.find_holder(_find_offset(thread_id)) is not None

    @contextmanager
    def _look(self) -> Iterator[_LockFile | None]:
        """Open the lock file to look at locks; None if there is none.

        This process may be allowed to read it only, and holds no lock then.
        """
        with ExitStack() as stack:
            try:
                file = stack.enter_context(_OPEN.use(self._path)) if os.path.exists(self._path) else None
            except CheckpointStorageError as error:
                if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                    raise
                file = _LockFile(self._path, os.O_RDONLY)
                stack.callback(os.close, file.fd)
            yield file

    def read_mark(self, thread_id: str) -> bytes:
        with self._look() as file:
            return b"" if file is None else file.read_mark(_find_offset(thread_id))

    def is_abandoned(self, thread_id: str, mark: object) -> bool:
        return self.read_mark(thread_id) == mark

    def close(self) -> None:
        _OPEN.close(self._path)


def _pack_lock(kind: int, offset: int) -> bytes:
    """Return a struct flock for one byte; the process must be 0 for a lock of an open file."""
    return _FLOCK.pack(kind, os.SEEK_SET, offset, 1, 0)


def _find_offset(thread_id: str) -> int:
    """Return the byte of a thread: one of 2**62, far behind the end of the file."""
    digest = blake2b(thread_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
