"""The only door to the file system. Everything above it can run on a simulated one that has the same methods."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final
from zlib import crc32

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_FLAGS: Final = _CLOEXEC | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""O_NONBLOCK: opening a FIFO in place of a file must not wait for its other end. Regular files ignore it."""
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link, which a store does not follow,",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}

# os.pread and os.pwrite would save a system call, but pyfakefs passes them to the real kernel with a fake descriptor.


def describe_file_type(mode: int) -> str:
    """What a file with this mode is, for messages."""
    return _KINDS.get(stat.S_IFMT(mode), "a special file")


class FileIO:
    """The real file system. Raises OSError with the path filled in; knows nothing of formats."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._lock: Callable[..., bool] | None = None
        self._unlock: Callable[[int], None] | None = None

    def open(self, path: str, *, write: bool = False, create: bool = False, append: bool = False) -> int:
        """Open a regular file and nothing else; `create` makes it with mode 0600, whatever the umask.

        Raises:
            OSError: also for a link, a directory, a FIFO, a socket or a device. The call never waits for any of them.
        """
        flags = _FLAGS | (os.O_RDWR if write else os.O_RDONLY) | (os.O_APPEND if append else 0)
        if create:
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
            except FileExistsError:
                fd = self._open_regular(path, flags)
            else:
                self._set_mode(fd, path, FILE_MODE)
        else:
            fd = self._open_regular(path, flags)
        self._names[fd] = path
        return fd

    @staticmethod
    def _open_regular(path: str, flags: int) -> int:
        try:
            fd = os.open(path, flags)
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                raise
            number = error.errno
        else:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                return fd
            os.close(fd)
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"it is {describe_file_type(mode)} where a file should be; move it away", path)

    @staticmethod
    def _set_mode(fd: int, path: str, mode: int) -> None:
        if stat.S_IMODE(os.fstat(fd).st_mode) != mode and os.name == "posix":
            os.chmod(path, mode)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        self._names.pop(fd, None)
        os.close(fd)

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file. Moves the descriptor's position."""
        try:
            os.lseek(fd, offset, os.SEEK_SET)
            data = os.read(fd, length)
            while len(data) < length and (more := os.read(fd, length - len(data))):
                data += more
        except OSError as error:
            raise self._named(error, fd) from None
        return data

    def append(self, fd: int, data: bytes) -> int:
        """One write at the end of the file; returns how many bytes it took, which may be fewer than given."""
        try:
            return os.write(fd, data)
        except OSError as error:
            raise self._named(error, fd) from None

    def write_at(self, fd: int, offset: int, data: bytes) -> int:
        """One write at an offset of a file that was not opened to append."""
        try:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)
        except OSError as error:
            raise self._named(error, fd) from None

    def fstat(self, fd: int) -> os.stat_result:
        """The file behind a descriptor."""
        try:
            return os.fstat(fd)
        except OSError as error:
            raise self._named(error, fd) from None

    def stat(self, path: str) -> os.stat_result | None:
        """The file at a path, itself and not what a link points to; None if there is none."""
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_dir(self, path: str) -> bool:
        """Whether there is a directory at a path, or a link to one."""
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        """Whether there is a symbolic link at a path."""
        found = self.stat(path)
        return found is not None and stat.S_ISLNK(found.st_mode)

    def real_path(self, path: str) -> str:
        """The path without symbolic links: what tells two places apart."""
        return os.path.realpath(path)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to a size."""
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise self._named(error, fd) from None

    def fsync(self, fd: int) -> None:
        """Bring a file and all its attributes to the disk."""
        try:
            os.fsync(fd)
        except OSError as error:
            raise self._named(error, fd) from None

    def fdatasync(self, fd: int) -> None:
        """Bring a file's bytes and its size to the disk."""
        try:
            _DATASYNC(fd)
        except OSError as error:
            raise self._named(error, fd) from None

    def fsync_dir(self, path: str) -> None:
        """Bring the names in a directory to the disk, where the platform and the file system can."""
        if os.name != "posix":
            return
        fd = os.open(path, os.O_RDONLY | _DIRECTORY | _CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            # Network file systems answer so for what they do not offer; anything else is a failure.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                error.filename = path
                raise
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing what stands at the target."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, unordered; none if it does not exist."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """The names in a directory, each with whether it is a directory, which a link is not; none if it is missing."""
        try:
            with os.scandir(path) as found:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> bool:
        """Make one directory with mode 0700, whatever the umask; whether it was missing."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
            return False
        if os.name == "posix" and stat.S_IMODE(os.lstat(path).st_mode) != DIRECTORY_MODE:
            os.chmod(path, DIRECTORY_MODE)
        return True

    def lock(self, fd: int) -> bool:
        """Try to lock a descriptor against every other open file, of this process or another; whether it worked."""
        if self._lock is None:
            from filelock import lock_descriptor, unlock_descriptor  # 20 ms to import

            self._lock, self._unlock = lock_descriptor, unlock_descriptor
        return self._lock(fd, blocking=False)

    def unlock(self, fd: int) -> None:
        """Let the lock go."""
        if self._unlock is not None:
            self._unlock(fd)

    def _named(self, error: OSError, fd: int) -> OSError:
        error.filename = self._names.get(fd, error.filename)
        return error


_DATASYNC: Final = getattr(os, "fdatasync", os.fsync)
_REFUSED: Final = frozenset({errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""How a system refuses to open a link (with O_NOFOLLOW), a directory, a socket or a device."""


def boot_number() -> int:
    """Return a number of 16 bits that changes each time the system starts; 0 where the system does not tell."""
    try:
        return _read_boot_number()
    except OSError:
        return 0


@cache
def _read_boot_number() -> int:
    return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()) & 0xFFFF or 1
