"""Refuses every operation that would leave the root of a store through a link.

`FileIO.open` refuses a link, a FIFO, a socket or a device in place of a file. This module refuses
them in place of a directory: it checks each directory between the root and a path before the path
is used. The root itself, and the directories above it, may be links. Operations on a descriptor
pass through at no cost, so a put to an open log pays nothing.

The check finds links that stand in the store: an administrator's, or those of a copied tree. It
does not stop a process that replaces a directory by a link between the check and the use; only the
owner of the store can write to it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, TypeVar, final

from graphkit.errors import CheckpointFormatError
from savers._filesystem.io import FileIO, describe_file_type

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

    def read_file_unchecked(self, path: str, longest: int) -> tuple[bytes, os.stat_result]:
        """Like `FileIO.read_file`, for a file whose directories the caller has just looked at."""
        return self._with_room(lambda: self._io.read_file(path, longest))

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

    def listdir_unchecked(self, path: str) -> list[str]:
        """Like `listdir`, for a directory that `entries` has just returned."""
        return self._with_room(lambda: self._io.listdir(path))

    def entries(self, path: str) -> list[tuple[str, bool]]:
        self._check_whole(path)
        return self._with_room(lambda: self._io.entries(path))

    def mkdir(self, path: str) -> bool:
        self._check_parents(path)
        try:
            return self._io.mkdir(path)
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
