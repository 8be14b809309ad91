"""The marker of a store: one line that names the format and the store, with a checksum.

Does not access files.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointFormatError
from savers._log.frame import MAJOR, explain_format

_CHECKSUM: Final = re.compile(rb', "crc32": "([0-9a-f]{8})"')
_LINE: Final = re.compile(rb'\{"format": (\d{1,9}), "store": "([^"\\]*)"[^\n]*\}\n\Z')
_SEALED: Final = re.compile(rb', "sealed": "((?:[0-9a-f]{2})+)"')
_FORMAT: Final = re.compile(rb'"format": *(\d{1,9})\b')
_FIRST_VERSION: Final = re.compile(rb'\{"format": 1, "store": "[^"\\]{36}"\}\n\Z')
"""The marker of version 1, which had no checksum."""


class Marker(NamedTuple):
    """The content of a marker."""

    store: str
    sealed: str | None = None
    """The id of a key if a saver with a cipher has written to the store: then no plain log is begun
    in it."""
    problem: str = ""
    """What is wrong with the marker; the other fields mean nothing then. Empty if nothing is."""


def pack_marker(store: str, sealed: str | None = None) -> bytes:
    """Return the line for a store of the current version; see `Marker` for the arguments."""
    seal = "" if sealed is None else f', "sealed": "{sealed.encode("utf-8", "surrogatepass").hex()}"'
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
    line = _CHECKSUM.sub(b"", data)
    if checksum is not None and int(checksum[1], 16) != crc32(line):
        return Marker("", problem="its checksum is wrong")
    format_match = _FORMAT.search(line)
    major = 0 if format_match is None else int(format_match[1])
    if major > MAJOR or _FIRST_VERSION.match(data):
        raise CheckpointFormatError(path, explain_format(major))
    line_match = _LINE.match(line)
    if line_match is None:
        return Marker("", problem="it is not a store's")
    if major != MAJOR or checksum is None:
        return Marker("", problem="its checksum is missing or its format is wrong")
    seal_match = _SEALED.search(line)
    sealed = None
    if seal_match is not None:
        sealed = bytes.fromhex(seal_match[1].decode()).decode("utf-8", "replace")
    return Marker(line_match[2].decode("utf-8", "replace"), sealed)
