"""Reads ranges of a log's bytes from the rows in which its records are."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from savers._sql.around_checkpoint import PROBED, find_around
from savers._sql.recent_rows import RecentRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from savers._sql.database import Database, Row

MOST_KEPT: Final = 2 << 20
"""The ranges that are kept for later reads have at most so many bytes together."""
_MOST_KEPT_RANGES: Final = 4
"""A listing reads the records of a few keyframes in turn, and older values besides."""
_READ_AHEAD: Final = 1 << 20
"""Bytes that are read at once if a range begins in the last one and ends behind it, as those of a scan do."""
_MOST_RANGES: Final = 64
"""Ranges that one statement reads. A database prepares each number of them separately, so numbers
between powers of two are not used."""
_LONG_READ: Final = 1 << 16
"""A scan reads more than this at once."""
_JOINED_READ: Final = 1 << 14
"""From so many bytes on, a database that can joins the rows of a range. Of 3,000 rows of 330 bytes,
SQLite makes one in 1.0 ms, and Python in 2.2."""
_LONGEST_JOINED: Final = 1 << 26
"""Longer ranges are not joined: SQLite makes texts of at most 1,000,000,000 bytes, and a record may
have 838,860,800."""
_PAIR: Final = 2
"""The joined records and the last one."""
_MOST_KEYFRAMES: Final = 16
_LONGEST_KEYFRAME: Final = 1 << 15
"""The keyframes that are kept, as a keyframe names up to sixteen earlier ones, each by the next one.
The first of these lists all pieces of a value: 11 KB for a list of 1,000 messages."""


class _Range(NamedTuple):
    """Whole records that follow one another."""

    generation: int
    """Of the database."""
    history: int
    start: int
    data: bytes

    def cut(self, generation: int, history: int, offset: int, length: int) -> bytes | None:
        """Return bytes of a history; None if not all of them are here."""
        start = offset - self.start
        if (generation, history) != self[:2] or start < 0 or start + length > len(self.data):
            return None
        return self.data[start : start + length]


class FoundRow(NamedTuple):
    """The row of a checkpoint."""

    position: int
    start: int
    """The position of the keyframe before it."""
    data: bytes
    """The records from there to the next checkpoint, that one included."""


class RowSource:
    """The bytes of histories, known by their numbers.

    Readers look at the header of a record, then at all of it, then at the next one. Therefore the
    ranges that were read last are kept: a history never changes what it has.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        records = database.names.records
        # The record in which a range begins, and those that begin before it ends.
        from_first = (
            f"SELECT r.position, r.frame FROM {records} AS r WHERE r.history = ? AND r.position >= "
            f"(SELECT max(b.position) FROM {records} AS b WHERE b.history = ? AND b.position <= ?)"
        )
        self._select_range = f"{from_first} AND r.position < ?"
        self._select = f"{self._select_range} ORDER BY r.position"
        # All records of a range but the last one as one, and the last one, which may be long: with the
        # first one, it could have more bytes than SQLite puts into one text.
        last = f"FROM {records} AS e WHERE e.history = ? AND e.position < ?"
        self._select_joined = (
            f"SELECT min(f.position), {database.join_bytes('f.frame')} FROM ({from_first}"
            f" AND r.position < (SELECT max(e.position) {last}) ORDER BY r.position) AS f"
            f" UNION ALL SELECT * FROM (SELECT e.position, e.frame {last} ORDER BY e.position DESC LIMIT 1) AS g"
        )
        around = find_around(records, "?", PROBED)
        self._select_around = f"WITH {around} SELECT position, frame, found FROM around ORDER BY 1"
        self._select_keyframes = (
            f"SELECT k.position, k.frame FROM {records} AS k WHERE k.history = ? AND k.is_keyframe"
            f" AND k.position <= ? AND (k.position = ? OR length(k.frame) <= {_LONGEST_KEYFRAME})"
            f" ORDER BY k.position DESC LIMIT {_MOST_KEYFRAMES}"
        )
        self._kept: tuple[_Range, ...] = ()
        """The ranges that were read last, the last one first. Callers that read at once replace it as
        a whole."""

    def read_at(self, history: int, offset: int, length: int) -> bytes:
        """Return `length` bytes of a history from an offset; fewer at its end, or before a missing record."""
        generation = self._database.generation
        data = self._cut(generation, history, offset, length)
        if data is not None:
            return data
        wanted = length
        if length > _LONG_READ and self._goes_on(history, offset):
            wanted = max(length, min(_READ_AHEAD, self._database.read_size))
        parameters = (history, history, offset, offset + wanted)
        found = None
        if _JOINED_READ <= wanted <= _LONGEST_JOINED and self._database.joins_bytes():
            found = self._read_joined(generation, parameters, offset + length)
        if found is None:
            found = self._keep(generation, history, offset, self._database.read(self._select, parameters))
        start = offset - found.start
        return found.data[start : start + length]

    def _read_joined(self, generation: int, parameters: tuple[int, int, int, int], end: int) -> _Range | None:
        """Return a range whose rows the database joins; None if there is a gap, or the range ends too early."""
        history, _, offset, stop = parameters
        rows = self._database.read(self._select_joined, (history, history, offset, history, stop, history, stop))
        if len(rows) != _PAIR or rows[0][1] is None:
            return None
        (first, data), (last, frame) = rows
        if not first <= offset or first + len(data) != last or last + len(frame) < end:
            return None
        found = _Range(generation, history, first, data + frame)
        self._remember(found)
        return found

    def _cut(self, generation: int, history: int, offset: int, length: int) -> bytes | None:
        """Return bytes out of the kept ranges; None if they are not in one of them."""
        for kept in self._kept:
            data = kept.cut(generation, history, offset, length)
            if data is not None:
                return data
        return None

    def _goes_on(self, history: int, offset: int) -> bool:
        """Return whether a read from an offset goes on where the last one ended."""
        if not self._kept:
            return False
        last = self._kept[0]
        return history == last.history and last.start < offset <= last.start + len(last.data)

    def read_ranges(self, history: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes between starts and ends, as `read_at` does, in few statements."""
        generation = self._database.generation
        found = [self._cut(generation, history, start, end - start) for start, end in ranges]
        missing = [pair for pair, data in zip(ranges, found, strict=True) if data is None]
        read = iter(self._read_missing(history, missing))
        return [next(read) if data is None else data for data in found]

    def _read_missing(self, history: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found: list[bytes] = []
        for first in range(0, len(ranges), _MOST_RANGES):
            part = ranges[first : first + _MOST_RANGES]
            if len(part) == 1:
                start, end = part[0]
                found.append(self.read_at(history, start, end - start))
            else:
                found += self._read_part(history, part)
        return found

    def _read_part(self, history: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        count = 1 << (len(ranges) - 1).bit_length()
        parameters: list[int] = []
        for start, end in ranges:
            parameters += (history, history, start, end)
        parameters += [history, history, 0, 0] * (count - len(ranges))
        rows = self._database.read(" UNION ALL ".join([self._select_range] * count), parameters)
        frames: dict[int, bytes] = dict(rows)
        positions = sorted(frames)
        return [_join(frames, positions, start, end) for start, end in ranges]

    def read_keyframes(self, history: int, position: int) -> dict[int, bytes]:
        """Return the keyframe at a position, and the last short ones before it, by their positions."""
        return dict(self._database.read(self._select_keyframes, (history, position, position)))

    def find(self, history: int, checkpoint: bytes) -> FoundRow | None:
        """Return where the last record with an encoded id is, and keep what is around it."""
        # Before the statement: if that finds another database, the range is not used again.
        generation = self._database.generation
        rows = self._database.read(self._select_around, (history, checkpoint))
        if not rows:
            return None
        return self._keep_around(generation, history, rows)

    def keep_around(self, history: int, rows: Sequence[Row]) -> FoundRow | None:
        """Keep the records around a checkpoint that a caller has selected.

        Args:
            history: the history.
            rows: the position and the frame of each, and the position of the checkpoint.
        """
        return self._keep_around(self._database.generation, history, rows) if rows else None

    def _keep_around(self, generation: int, history: int, rows: Sequence[Row]) -> FoundRow:
        around = self._keep(generation, history, rows[0][0], rows)
        return FoundRow(rows[0][2], around.start, around.data)

    def keep(self, history: int, rows: Sequence[Row]) -> bytes:
        """Return the bytes of rows that a caller has selected, and keep them.

        Args:
            history: the history.
            rows: the position and the frame of each; what is behind a missing record is left out.
        """
        return self._keep(self._database.generation, history, rows[0][0], rows).data

    def _keep(self, generation: int, history: int, offset: int, rows: Sequence[Row]) -> _Range:
        """Return the bytes of rows up to the first missing record; keep them if they are few."""
        if not rows:
            return _Range(generation, history, offset, b"")
        positions, frames, *_ = zip(*rows, strict=True)
        # Of 3,000 rows this takes 0.2 ms, a loop over them 0.9 ms.
        ends = list(accumulate(map(len, frames), initial=positions[0]))
        count = len(frames)
        if positions != tuple(ends[:-1]):
            count = next(i for i, (position, end) in enumerate(zip(positions, ends, strict=False)) if position != end)
        found = _Range(generation, history, positions[0], b"".join(frames[:count]))
        self._remember(found)
        return found

    def _remember(self, found: _Range) -> None:
        """Keep a range before the others, unless it is long; drop those that are in it or too much."""
        size = len(found.data)
        if size > MOST_KEPT:
            return
        kept = [found]
        for other in self._kept[: _MOST_KEPT_RANGES - 1]:
            size += len(other.data)
            is_covered = found.cut(*other[:3], len(other.data)) is not None
            if size > MOST_KEPT:
                break
            if not is_covered:
                kept.append(other)
        self._kept = tuple(kept)


class LogSource:
    """The bytes of one open log: its last records are in memory, the others in rows."""

    def __init__(self, source: RowSource) -> None:
        self.rows = source
        self._recent = RecentRows()
        self._keyframes: dict[int, bytes] = {}
        """Short keyframes, by their positions."""

    @property
    def size(self) -> int:
        """How many bytes are in memory."""
        return self._recent.size + sum(map(len, self._keyframes.values()))

    def add(self, position: int, frame: bytes, *, is_keyframe: bool) -> None:
        """Keep a record that was inserted or read behind the others."""
        self._recent.add(position, frame)
        if is_keyframe and len(frame) <= _LONGEST_KEYFRAME:
            self._keyframes[position] = frame
            if len(self._keyframes) > _MOST_KEYFRAMES:
                del self._keyframes[min(self._keyframes)]

    def read_keyframe(self, fd: int, position: int) -> bytes | None:
        """Return the keyframe at a position, None if there is none; keep those before it that it may name."""
        frame = self._keyframes.get(position)
        if frame is None:
            self._keyframes = self.rows.read_keyframes(fd, position)
            frame = self._keyframes.get(position)
        return frame

    def clear(self) -> None:
        """Forget what is in memory."""
        self._recent.clear()
        self._keyframes = {}

    def read_at(self, fd: int, offset: int, length: int) -> bytes:
        """Return bytes of the history with the number `fd`; see `RowSource.read_at`."""
        data = self._recent.read_at(offset, length)
        return self.rows.read_at(fd, offset, length) if data is None else data

    def read_ranges(self, fd: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes between starts and ends; see `RowSource.read_ranges`."""
        found = [self._recent.read_at(start, end - start) for start, end in ranges]
        missing = [pair for pair, data in zip(ranges, found, strict=True) if data is None]
        read = iter(self.rows.read_ranges(fd, missing)) if missing else iter(())
        return [next(read) if data is None else data for data in found]


def _join(frames: dict[int, bytes], positions: Sequence[int], start: int, end: int) -> bytes:
    """Return the bytes between two offsets, as far as the records there follow one another."""
    number = bisect_right(positions, start) - 1
    if number < 0:
        return b""
    first = position = positions[number]
    parts: list[bytes] = []
    while position < end and (frame := frames.get(position)) is not None:
        parts.append(frame)
        position += len(frame)
    return b"".join(parts)[start - first : end - first]
