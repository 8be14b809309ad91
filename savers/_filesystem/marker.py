"""The marker file of a store: one line that names the format and the store, with a checksum. Knows no files."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from zlib import crc32

from graphkit.errors import CheckpointFormatError
from savers._filesystem.frame import MAJOR

_CHECKSUM: Final = re.compile(rb', "crc32": "([0-9a-f]{8})"')
_LINE: Final = re.compile(rb'\{"format": (\d{1,9}), "store": "([^"\\]*)"[^\n]*\}\n\Z')
_FORMAT: Final = re.compile(rb'"format": *(\d{1,9})\b')
_FIRST_VERSION: Final = re.compile(rb'\{"format": [359], "store": "[^"\\]{36}"\}\n\Z')
"""A marker of version 1, of which one bit of the format was flipped: version 1 wrote no checksum, and only 1."""


class Marker(NamedTuple):
    """What a marker says."""

    format: int
    store: str
    problem: str = ""
    """What is wrong with it; then the other fields mean nothing."""


def pack_marker(store: str) -> bytes:
    """Return the line for a store of the current version."""
    line = f'{{"format": {MAJOR}, "store": "{store}"}}\n'.encode()
    return line.replace(b"}", b', "crc32": "%08x"}' % crc32(line))


def read_marker(path: str, data: bytes) -> Marker:
    """Read a marker; a damaged one has a `problem`.

    Raises:
        CheckpointFormatError: a newer graphkit made the store.
    """
    checksum = _CHECKSUM.search(data)
    line = _CHECKSUM.sub(b"", data)
    if checksum is not None and int(checksum[1], 16) != crc32(line):
        return Marker(0, "", "its checksum is wrong")
    named = _FORMAT.search(line)
    major = int(named[1]) if named is not None else 0
    is_flipped = checksum is None and _FIRST_VERSION.match(line) is not None
    if major > MAJOR and not is_flipped:
        raise CheckpointFormatError(path, f"written in format {major}; this graphkit reads up to {MAJOR}: update it")
    found = _LINE.match(line)
    if found is None:
        return Marker(0, "", "it is not a store's")
    has_checksum = checksum is not None
    if major not in range(1, MAJOR + 1) or has_checksum is (major == 1):
        return Marker(0, "", "its checksum is missing or its format is wrong")
    return Marker(major, found[2].decode("utf-8", "replace"))
