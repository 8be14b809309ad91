"""The only access to the file system, and what is done with whole files.

Everything above this module can run on a simulated file system that has the same methods as `FileIO`.

`DirectoryGuard` refuses every operation that would leave the root of a store through a link. `FileIO.open`
refuses a link, a FIFO, a socket or a device in place of a file; the guard refuses them in place of a
directory: it checks each directory between the root and a path before the path is used. The root itself,
and the directories above it, may be links. Operations on a descriptor pass through at no cost, so a put
to an open log pays nothing. The check finds links that stand in the store: an administrator's, or those
of a copied tree. It does not stop a process that replaces a directory by a link between the check and
the use; only the owner of the store can write to it.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import BuiltinFunctionType
from typing import Final, NamedTuple, TypeVar, final
from zlib import crc32

from graphkit.errors import CheckpointFormatError
from savers._filesystem import layout

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_BINARY: Final = getattr(os, "O_BINARY", 0)
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: Final = getattr(os, "O_NONBLOCK", 0)
_FLAGS: Final = _CLOEXEC | _BINARY | _NOFOLLOW | _NONBLOCK
"""O_NONBLOCK: opening a FIFO in place of a file must not wait for the other end. Regular files
ignore it."""
_DIRECTORY: Final = getattr(os, "O_DIRECTORY", 0)
Measure = Callable[[int], "tuple[int, int] | None"]
"""Returns the size of an open file and how many names it has; None if the call does not work."""
StartWriting = Callable[[int], None]
"""Starts to write the changed bytes of an open file to the disk, and does not wait for it."""
_FILE_TYPES: Final = {
    stat.S_IFLNK: "a symbolic link, which a store does not follow,",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


def describe_file_type(mode: int) -> str:
    """Return what a file with this mode is, for messages."""
    return _FILE_TYPES.get(stat.S_IFMT(mode), "a special file")


class FileIO:
    """The real file system. Raises OSError with the path filled in; does not know formats."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        """The path of each open descriptor, for errors."""
        self._lock: Callable[..., bool] | None = None
        self._unlock: Callable[[int], None] | None = None
        self._statx: Measure | None = None
        self._start_writing: StartWriting | None = None
        if isinstance(os.open, BuiltinFunctionType) and hasattr(os, "pwrite"):
            # One call: a signal handler that reads the same file cannot move the position.
            self._pread: Callable[[int, int, int], bytes] = os.pread
            self._pwrite: Callable[[int, bytes, int], int] = os.pwrite
        else:
            # Windows has no such calls. pyfakefs replaces `os`, but passes pread and pwrite to the
            # real kernel with a fake descriptor.
            self._pread = _seek_and_read
            self._pwrite = _seek_and_write
            self._statx = _no_call
            self._start_writing = _no_call

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Open a regular file; `create` creates it with mode 0600, whatever the umask.

        Raises:
            OSError: also for a link, a directory, a FIFO, a socket or a device. The call does not
                wait for them.
        """
        flags = _FLAGS | os.O_RDONLY
        if write:
            flags = _FLAGS | os.O_RDWR
        fd = -1
        if create:
            with suppress(FileExistsError):
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
                # By the descriptor: another process may have removed the name, as that of a leftover.
                _set_mode(path, os.fstat(fd), FILE_MODE)
        if fd < 0:
            fd = self._open_regular(path, flags)
        self._paths[fd] = path
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
            number = errno.EINVAL
            if stat.S_ISDIR(mode):
                number = errno.EISDIR
        reason = f"it is {describe_file_type(mode)} where a file should be; move it away"
        raise OSError(number, reason, path)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        self._paths.pop(fd, None)
        os.close(fd)

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the file."""
        try:
            data = self._pread(fd, length, offset)
            # Linux returns at most 2 GiB at once, and a network file system may return less.
            while len(data) < length:
                missing = length - len(data)
                more = self._pread(fd, missing, offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._with_path(error, fd) from None
        return data

    def write_at(self, fd: int, offset: int, data: bytes) -> int:
        """Write once at an offset.

        Returns:
            How many bytes were written, which may be fewer than given.
        """
        try:
            return self._pwrite(fd, data, offset)
        except OSError as error:
            raise self._with_path(error, fd) from None

    def fstat(self, fd: int) -> os.stat_result:
        """Return the status of an open file."""
        try:
            return os.fstat(fd)
        except OSError as error:
            raise self._with_path(error, fd) from None

    def measure(self, fd: int) -> tuple[int, int]:
        """Return the size of an open file, and how many names it has.

        Does not ask for the file's times, where the system allows that. Linux gives the next write
        after such a question a time of its own, and fdatasync then writes the inode, too: on ext4
        it takes as long as after an append, half as long again as without.
        """
        if self._statx is None:
            self._statx = find_statx()
        found = self._statx(fd)
        if found is not None:
            return found
        status = self.fstat(fd)
        return status.st_size, status.st_nlink

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of the file at a path; None if there is none. Follows no link."""
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_dir(self, path: str) -> bool:
        """Return whether there is a directory at a path, or a link to one."""
        return os.path.isdir(path)

    def real_path(self, path: str) -> str:
        """Return the path without symbolic links, which is the same for two paths to one file."""
        return os.path.realpath(path)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to a size."""
        self._call(os.ftruncate, fd, size)

    def fsync(self, fd: int) -> None:
        """Make the bytes and all attributes of a file durable."""
        self._call(os.fsync, fd)

    def fdatasync(self, fd: int) -> None:
        """Make the bytes and the size of a file durable."""
        self._call(_DATASYNC, fd)

    def start_writing(self, fd: int) -> None:
        """Start to write the changed bytes of a file to the disk, where the system can; do not wait.

        A sync that follows then has less to wait for. This promises nothing by itself.

        Raises:
            OSError: the bytes may be lost. A sync need not report that again.
        """
        if self._start_writing is None:
            self._start_writing = find_start_writing()
        self._call(self._start_writing, fd)

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable, where the platform and file system support it."""
        if os.name != "posix":
            return
        fd = os.open(path, os.O_RDONLY | _DIRECTORY | _CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            # Network file systems return these for an operation that they do not support; any other
            # error is a failure.
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                error.filename = path
                raise
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a directory; replace the file at the target."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, unordered; none if it does not exist."""
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Return each name in a directory, and whether it is a directory, which a link is not.

        Empty if the directory does not exist.
        """
        try:
            with os.scandir(path) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:
            return []

    def mkdir(self, path: str) -> None:
        """Create a directory with mode 0700, whatever the umask, if it is missing."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise
        else:
            _set_mode(path, os.lstat(path), DIRECTORY_MODE)

    def lock(self, fd: int) -> bool:
        """Try to lock an open file against all others, also of this process.

        Returns:
            Whether the file is locked now.
        """
        if self._lock is None:
            from filelock import lock_descriptor, unlock_descriptor  # 20 ms to import

            self._lock, self._unlock = lock_descriptor, unlock_descriptor
        return self._lock(fd, blocking=False)

    def unlock(self, fd: int) -> None:
        """Release the lock."""
        if self._unlock is not None:
            self._unlock(fd)

    def _call(self, call: Callable[..., object], fd: int, *arguments: int) -> None:
        try:
            call(fd, *arguments)
        except OSError as error:
            raise self._with_path(error, fd) from None

    def _with_path(self, error: OSError, fd: int) -> OSError:
        error.filename = self._paths.get(fd, error.filename)
        return error


def _set_mode(path: str, status: os.stat_result, mode: int) -> None:
    """Give a new file or directory its mode, of which the umask may have taken something away."""
    if os.name == "posix" and stat.S_IMODE(status.st_mode) != mode:
        os.chmod(path, mode)


def _seek_and_read(fd: int, length: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


def _seek_and_write(fd: int, data: bytes, offset: int) -> int:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.write(fd, data)


_DATASYNC: Final = getattr(os, "fdatasync", os.fsync)
_REFUSED: Final = frozenset({errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""How a system refuses to open a link (with O_NOFOLLOW), a directory, a socket or a device."""


@contextmanager
def opened(io: FileIO, path: str, *, write: bool = False, create: bool = False) -> Iterator[int]:
    """Open a regular file for the block, which gets the descriptor; see `FileIO.open`."""
    fd = io.open(path, write=write, create=create)
    try:
        yield fd
    finally:
        io.close(fd)


def write_whole(io: FileIO, fd: int, offset: int, data: bytes) -> None:
    """Write all of the data at an offset.

    A full disk first causes a short write. The next write raises the error.
    """
    done = 0
    while done < len(data):
        done += io.write_at(fd, offset + done, data[done:])


def boot_number() -> int:
    """Return a 16-bit number that changes at each start of the system; 0 if the system has none."""
    try:
        return _read_boot_number()
    except OSError:
        return 0


@cache
def _read_boot_number() -> int:
    return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes()) & 0xFFFF or 1


# System calls of Linux that Python does not have

_EMPTY_PATH: Final = 0x1000
"""AT_EMPTY_PATH: the descriptor itself is the file."""
_WANTED: Final = 0x204
"""STATX_NLINK and STATX_SIZE."""
_STATX: Final = struct.Struct("<I12xI20xQ")
"""Of the result: which fields are there, the number of names, the size."""
_RESULT_SIZE: Final = 256
_WRITE: Final = 2
"""SYNC_FILE_RANGE_WRITE: start to write; wait neither before nor after it."""
_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.EPERM})
"""How a system, a file system or a sandbox says that it does not have the call."""


def find_statx() -> Measure:
    """Return a function that calls statx; it returns None where the system does not have it."""
    if sys.platform != "linux" or sys.byteorder != "little":
        return _no_call
    import ctypes  # 10 ms to import

    try:
        call = ctypes.PyDLL(None).statx  # Holds the GIL: the call takes 0.3 us and does not wait.
    except (OSError, AttributeError):
        return _no_call
    # Without argtypes, which would cost 0.4 us of the 1.1 us that a call takes: the pointer is one of
    # ctypes, and all other numbers fit into a C int.

    class PerThread(threading.local):
        """A buffer for each thread, and the pointer to it."""

        def __init__(self) -> None:
            buffer = bytearray(_RESULT_SIZE)
            content = (ctypes.c_char * _RESULT_SIZE).from_buffer(buffer)
            self.result = buffer, ctypes.cast(content, ctypes.c_void_p)

    per_thread = PerThread()

    def measure(fd: int) -> tuple[int, int] | None:
        buffer, pointer = per_thread.result
        if call(fd, b"", _EMPTY_PATH, _WANTED, pointer):
            return None
        mask, links, size = _STATX.unpack_from(buffer)
        if mask & _WANTED != _WANTED:
            return None
        return size, links

    return measure


def _no_call(_fd: int) -> None:
    """Stand for a call that the system does not have: the caller does without it."""


def find_start_writing() -> StartWriting:
    """Return a function that calls sync_file_range; it does nothing where there is no such call.

    It raises OSError if the system could not start: a later sync need not report that again.
    """
    if sys.platform != "linux":
        return _no_call
    import ctypes  # 10 ms to import

    try:
        call = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (OSError, AttributeError):
        return _no_call
    # Without argtypes, which would cost a microsecond: from offset 0 to the end of the file, both as
    # the 64-bit numbers that the call takes.
    zero = ctypes.c_int64(0)
    get_errno = ctypes.get_errno

    def start_writing(fd: int) -> None:
        if call(fd, zero, zero, _WRITE):
            number = get_errno()
            if number not in _UNSUPPORTED:
                raise OSError(number, os.strerror(number))

    return start_writing


# Imports that a fork must not interrupt

_IMPORT_LOCK: Final = threading.Lock()
"""Held while modules are imported, and during a fork. Otherwise, if another thread were importing a
module at the fork, the import lock of that module would stay locked in the child for ever."""


@cache
def preload_modules() -> None:
    """Import what a put, a run lock and a fork need; called before the first of them.

    Takes 25 ms, once per process. A process that only reads needs none of it.
    """
    with _IMPORT_LOCK:
        with suppress(ImportError):  # Windows has no such module, and does not need it.
            import_module("resource")
        import_module("ctypes")
        import_module("filelock")
        import_module("platform").node()


if hasattr(os, "register_at_fork"):
    # In the child, the thread of execution that took the lock continues, so it may release it.
    os.register_at_fork(
        before=_IMPORT_LOCK.acquire, after_in_parent=_IMPORT_LOCK.release, after_in_child=_IMPORT_LOCK.release
    )


T = TypeVar("T")

_ON_DESCRIPTORS: Final = (
    "close", "read_at", "write_at", "fstat", "measure", "truncate", "fsync", "fdatasync",
    "start_writing", "lock", "unlock", "real_path",
)  # fmt: skip
"""Methods that the guard takes from the file system as they are."""
_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


@final
class DirectoryGuard(FileIO):
    """A file system that follows no symbolic link below a root."""

    def __init__(self, io: FileIO, root: str, make_room: Callable[[], bool]) -> None:
        """Wrap a file system.

        Args:
            io: the file system.
            root: the directory of the store.
            make_room: closes idle descriptors of this process when too many are open; returns
                whether it closed any.
        """
        super().__init__()
        self._io = io
        self._make_room = make_room
        self._prefix = root + os.sep
        vars(self).update({name: getattr(io, name) for name in _ON_DESCRIPTORS})
        self.stat_unchecked: Callable[[str], os.stat_result | None] = io.stat
        """Like `stat`, for a path whose directory `entries` has just returned: half the system calls."""

    # The check

    def _check_parents(self, path: str) -> None:
        """Refuse a path that leads through something other than directories."""
        if not path.startswith(self._prefix):
            return
        separator = path.find(os.sep, len(self._prefix))
        while separator >= 0:
            self._check_directory(path[:separator])
            separator = path.find(os.sep, separator + 1)

    def _check_whole(self, path: str) -> None:
        """Refuse a path like `_check_parents`, and one that is not a directory itself.

        If the path does not exist, the caller gets the error of its operation.
        """
        if path.startswith(self._prefix):
            self._check_parents(path)
            self._check_directory(path)

    def _check_directory(self, path: str) -> None:
        status = self._io.stat(path)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            reason = f"it is {describe_file_type(status.st_mode)} where a directory should be"
            raise CheckpointFormatError(path, reason)

    # Methods that take a path

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self._check_parents(path)
        io = self._io
        return self._with_room(lambda: io.open(path, write=write, create=create))

    def stat(self, path: str) -> os.stat_result | None:
        self._check_parents(path)
        return self._io.stat(path)

    def is_dir(self, path: str) -> bool:
        if not path.startswith(self._prefix):
            return self._io.is_dir(path)
        status = self.stat(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def fsync_dir(self, path: str) -> None:
        self._check_whole(path)
        self._with_room(lambda: self._io.fsync_dir(path))

    def rename(self, source: str, target: str) -> None:
        self._check_parents(source)
        self._check_parents(target)
        self._io.rename(source, target)

    def unlink(self, path: str) -> None:
        self._check_parents(path)
        self._io.unlink(path)

    def rmdir(self, path: str) -> None:
        self._check_parents(path)
        self._io.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        self._check_whole(path)
        return self._with_room(lambda: self._io.listdir(path))

    def entries(self, path: str) -> list[tuple[str, bool]]:
        self._check_whole(path)
        return self._with_room(lambda: self._io.entries(path))

    def mkdir(self, path: str) -> None:
        self._check_parents(path)
        try:
            self._io.mkdir(path)
        except FileExistsError:
            self._check_whole(path)
            raise

    def _with_room(self, call: Callable[[], T]) -> T:
        """Call; if the process has too many descriptors open, close idle ones and call again."""
        try:
            return call()
        except OSError as error:
            if error.errno not in _TOO_MANY_FILES or not self._make_room():
                raise
        return call()


_PART_SIZE: Final = 1 << 20


class FileRange(NamedTuple):
    """The bytes of an open file between two offsets."""

    io: FileIO
    fd: int
    start: int
    end: int

    def read_parts(self) -> Iterator[bytes]:
        """Yield the bytes, 1 MiB at a time, as far as the file has them."""
        offset = self.start
        while offset < self.end:
            data = self.io.read_at(self.fd, offset, min(_PART_SIZE, self.end - offset))
            if not data:
                return
            yield data
            offset += len(data)

    def is_zero(self) -> bool:
        """Return whether all of the bytes are zero."""
        return not any(part.strip(b"\0") for part in self.read_parts())

    def salvage(self, directory: str, name: str) -> str:
        """Copy the bytes to a file of their own, which is on the disk when this returns.

        Args:
            directory: where to put the file.
            name: its name without the suffix.

        Returns:
            The name of the file; see `choose_name`.
        """
        full_name = self.choose_name(directory, name)
        write_file(self.io, layout.join(directory, full_name), self.read_parts())
        return full_name

    def choose_name(self, directory: str, name: str) -> str:
        """Return the name of the file to which `salvage` copies the bytes.

        An earlier file of that name stays, unless an interrupted attempt to copy the same bytes has
        made it.
        """
        number = 1
        full_name = f"{name}.bin"
        while not self._is_available(layout.join(directory, full_name)):
            number += 1
            full_name = f"{name}-{number}.bin"
        return full_name

    def _is_available(self, path: str) -> bool:
        """Return whether a path has no file, or one that holds the beginning of these bytes."""
        status = self.io.stat(path)
        if status is None:
            return True
        if not stat.S_ISREG(status.st_mode):
            return False  # The store does not make links, directories or FIFOs of that name.
        if status.st_size > self.end - self.start:
            return False
        with opened(self.io, path) as other_fd:
            beginning = self._replace(end=self.start + status.st_size)
            other = FileRange(io=self.io, fd=other_fd, start=0, end=status.st_size)
            pairs = zip(beginning.read_parts(), other.read_parts(), strict=True)
            return all(one == two for one, two in pairs)


def write_file(io: FileIO, path: str, parts: Iterable[bytes]) -> None:
    """Write a whole file, replacing what it holds, and bring it to the disk."""
    with opened(io, path, write=True, create=True) as fd:
        io.truncate(fd, 0)
        offset = 0
        for data in parts:
            write_whole(io, fd, offset, data)
            offset += len(data)
        io.fsync(fd)
