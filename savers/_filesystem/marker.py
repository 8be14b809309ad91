"""The marker of a store: one line that names the format and the store, with a checksum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointFormatError, CheckpointKeyError
from graphkit.saver_kit import generate_id
from savers._filesystem import layout
from savers._filesystem.io import opened, write_file
from savers._log.frame import MAJOR, explain_format

if TYPE_CHECKING:
    from savers._cipher import KeyRing
    from savers._filesystem.io import DirectoryGuard

_CHECKSUM: Final = re.compile(rb', "crc32": "([0-9a-f]{8})"')
_LINE: Final = re.compile(rb'\{"format": (\d{1,9}), "store": "([^"\\]*)"[^\n]*\}\n\Z')
_SEALED: Final = re.compile(rb', "sealed": "((?:[0-9a-f]{2})+)"')
_FORMAT: Final = re.compile(rb'"format": *(\d{1,9})\b')
_FIRST_VERSION: Final = re.compile(rb'\{"format": 1, "store": "[^"\\]{36}"\}\n\Z')
"""The marker of version 1, which had no checksum."""
_MAX_LENGTH: Final = 1 << 16
"""How many bytes of the file are read."""


class Marker(NamedTuple):
    """The content of a marker."""

    store: str
    sealed: str | None = None
    """The id of a key if a saver with a cipher has written to the store: then no plain log is begun
    in it."""
    problem: str = ""
    """What is wrong with the marker; the other fields mean nothing then. Empty if nothing is."""


def pack_marker(store: str, sealed: str | None) -> bytes:
    """Return the line for a store of the current version; see `Marker` for the arguments."""
    seal = ""
    if sealed is not None:
        key_id = sealed.encode("utf-8", "surrogatepass")
        seal = f', "sealed": "{key_id.hex()}"'
    line = f'{{"format": {MAJOR}, "store": "{store}"{seal}}}\n'.encode()
    return line.replace(b"}", b', "crc32": "%08x"}' % crc32(line))


def read_marker(path: str, data: bytes) -> Marker:
    """Read a marker; a damaged one has a `problem`.

    Args:
        path: the path of the marker, for the error.
        data: the content of the file.

    Raises:
        CheckpointFormatError: another version of graphkit made the store.
    """
    checksum = _CHECKSUM.search(data)
    # The checksum is that of the line without it.
    line = _CHECKSUM.sub(b"", data)
    if checksum is not None and int(checksum[1], 16) != crc32(line):
        return Marker("", problem="its checksum is wrong")
    major = 0
    format_match = _FORMAT.search(line)
    if format_match is not None:
        major = int(format_match[1])
    if major > MAJOR or _FIRST_VERSION.match(data):
        raise CheckpointFormatError(path, explain_format(major))
    line_match = _LINE.match(line)
    if line_match is None:
        return Marker("", problem="it is not a store's")
    if major != MAJOR or checksum is None:
        return Marker("", problem="its checksum is missing or its format is wrong")
    store = line_match[2].decode("utf-8", "replace")
    seal_match = _SEALED.search(line)
    if seal_match is None:
        return Marker(store)
    key_id = bytes.fromhex(seal_match[1].decode())
    return Marker(store, key_id.decode("utf-8", "replace"))


class MarkerFile:
    """The file with the marker of a store, and what this process knows of it."""

    def __init__(self, io: DirectoryGuard, root: str, key_ring: KeyRing | None) -> None:
        self._io = io
        self._root = root
        self._key_ring = key_ring
        self.path = layout.join(root, layout.MARKER)
        self._is_updated = False
        """Whether the marker is known to say that the store is sealed."""
        self._seen: tuple[int, int] | None = None
        """What identifies the file that was read last to find out whether the store is sealed."""
        self._sealed_with: str | None = None
        """The key id in that file."""

    def read(self) -> Marker | None:
        """Read the marker; return None if there is none.

        Raises:
            CheckpointFormatError: another version of graphkit made the store, or the directory is not a store.
        """
        io = self._io
        if io.stat(self.path) is None:
            return None
        with opened(io, self.path) as fd:
            text = io.read_at(fd, 0, _MAX_LENGTH)
        marker = read_marker(self.path, text)
        if marker.problem:
            # A store may have lost its marker to damage. The names of its directories show it.
            names = io.listdir(self._root)
            if layout.LOCKS not in names and not any(map(layout.is_thread, names)):
                raise CheckpointFormatError(self.path, "this is not a graphkit store")
        return marker

    def write(self, store_id: str, sealed: str | None) -> None:
        """Write a marker of the current version, replacing an earlier one; see `Marker` for the arguments."""
        temporary = layout.join(self._root, layout.TEMPORARY + generate_id())
        write_file(self._io, temporary, [pack_marker(store_id, sealed)])
        try:
            self._io.rename(temporary, self.path)
        except FileNotFoundError:
            if self.read() is None:
                raise
            # Another process has written the marker meanwhile, and removed the temporary file as a
            # leftover.
            return
        self._io.fsync_dir(self._root)

    def make(self) -> None:
        """Write the marker of a new store, unless there is one."""
        if self.read() is None:
            self.write(generate_id(), self._get_key_id())

    def update(self) -> None:
        """Mark the store as sealed if the saver has a cipher, before a sealed log takes its place."""
        if self._is_updated or self._key_ring is None:
            return
        marker = self.read()
        if marker is not None and not marker.problem and marker.sealed is None:
            self.write(marker.store, self._get_key_id())
        self._is_updated = True

    def _get_key_id(self) -> str | None:
        """Return the id of the saver's current key; None if it has no cipher."""
        if self._key_ring is None:
            return None
        key_id, _ = self._key_ring.get_current(self.path)
        return key_id

    def check_may_begin(self) -> None:
        """Refuse to begin a plain log in a sealed store.

        Raises:
            CheckpointKeyError: the store is sealed, and the saver has no cipher.
        """
        if self._key_ring is not None:
            return
        status = self._io.stat_unchecked(self.path)
        if status is None:
            return
        # Another process may seal the store at any time. Reading the marker for each new log would
        # take 30 us.
        seen = (status.st_ino, status.st_size)
        if seen != self._seen:
            self._sealed_with = None
            marker = self.read()
            if marker is not None:
                self._sealed_with = marker.sealed
            self._seen = seen
        if self._sealed_with is not None:
            reason = "open the store with `cipher`"
            raise CheckpointKeyError(self._root, self._sealed_with, reason, has_keys=False)
