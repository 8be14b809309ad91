"""Copies of bytes that cannot be interpreted, in files of their own; and writing whole files."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from savers._filesystem import layout
from savers._filesystem.io import write_whole

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

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
        if not status.st_size:
            return True
        if status.st_size > self.end - self.start:
            return False
        other_fd = self.io.open(path)
        try:
            beginning = self._replace(end=self.start + status.st_size)
            other = FileRange(io=self.io, fd=other_fd, start=0, end=status.st_size)
            pairs = zip(beginning.read_parts(), other.read_parts(), strict=True)
            return all(one == two for one, two in pairs)
        finally:
            self.io.close(other_fd)


def write_file(io: FileIO, path: str, parts: Iterable[bytes]) -> None:
    """Write a whole file, replacing what it holds, and bring it to the disk."""
    fd = io.open(path, write=True, create=True)
    try:
        io.truncate(fd, 0)
        offset = 0
        for data in parts:
            write_whole(io, fd, offset, data)
            offset += len(data)
        io.fsync(fd)
    finally:
        io.close(fd)
