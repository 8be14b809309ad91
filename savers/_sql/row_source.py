"""Reads ranges of a log's bytes from the rows in which its records are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from savers._sql.database import Database

_MOST_KEPT: Final = 1 << 20
"""Ranges of more bytes are not kept for the next read."""


class _Range(NamedTuple):
    """Whole records that follow one another, as they were read last."""

    history: int
    start: int
    data: bytes


class RowSource:
    """The bytes of open logs; a log is known by the number of its history.

    Readers look at the header of a record, then at all of it, then at the next one. Therefore the
    records that were read last are kept: a history never changes what it has.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        names = database.names
        # The record in which the range begins, and those that begin before it ends.
        self._select = (
            f"SELECT position, frame FROM {names.records} WHERE history = ? AND position >= "
            f"(SELECT max(position) FROM {names.records} WHERE history = ? AND position <= ?) "
            "AND position < ? ORDER BY position"
        )
        self._last = _Range(0, 0, b"")

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Return `length` bytes of a history from an offset; fewer at its end, or before a missing record."""
        last = self._last
        if last.history != fd or offset < last.start or offset + length > last.start + len(last.data):
            last = self._read(fd, offset, length)
            if len(last.data) <= _MOST_KEPT:
                self._last = last
        start = offset - last.start
        return last.data[start : start + length]

    def _read(self, history: int, offset: int, length: int) -> _Range:
        rows = self._database.read(self._select, (history, history, offset, offset + length))
        if not rows:
            return _Range(history, offset, b"")
        start = rows[0][0]
        frames: list[bytes] = []
        end = start
        for position, frame in rows:
            if position != end:
                break
            frames.append(frame)
            end += len(frame)
        return _Range(history, start, b"".join(frames))
