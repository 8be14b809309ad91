"""The rows of one history that are in memory: the last ones, and those that were read last."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from savers._sql.database import Row

_MAX_LAST: Final = 1 << 16
"""How many bytes of the last rows are kept. The records since a keyframe, which readers want together,
take 5 to 60 KB as a rule."""
_MAX_READ: Final = 5 << 20
"""How many bytes of the rows that were read are kept: those of a history of usual length. A keyframe has up to 4 MB."""


@final
class Rows:
    """Rows of one history in the order of their positions; some may be missing between them."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._frames: dict[int, bytes] = {}
        self.size = 0
        """How many bytes the rows have."""

    @property
    def start(self) -> int:
        """Where the first row begins."""
        return self._positions[0] if self._positions else 0

    def append(self, position: int, frame: bytes) -> None:
        """Add a row behind the last one."""
        self._positions.append(position)
        self._frames[position] = frame
        self.size += len(frame)

    def add(self, rows: Iterable[Row]) -> None:
        """Add the position and the bytes of some rows, which may be there already."""
        frames = self._frames
        for position, frame in rows:
            if position not in frames:
                self.append(position, frame)
        # They come in a few runs that are in order, which takes a sort little time.
        self._positions.sort()

    def drop_before(self, offset: int) -> None:
        """Drop the rows that begin before an offset."""
        positions = self._positions
        first = bisect_left(positions, offset)
        for position in positions[:first]:
            self.size -= len(self._frames.pop(position))
        del positions[:first]

    def find(self, position: int) -> bytes | None:
        """Return the row at a position; None if it is not here."""
        return self._frames.get(position)

    def read_at(self, offset: int, length: int) -> bytes | None:
        """Return the bytes from an offset; None if not all of them are here."""
        positions = self._positions
        first = bisect_right(positions, offset) - 1
        if first < 0:
            return None
        skip = offset - positions[first]
        frame = self._frames[positions[first]]
        if skip + length <= len(frame):
            return frame[skip : skip + length]
        wanted = positions[first : bisect_left(positions, offset + length)]
        joined = b"".join([self._frames[position] for position in wanted])
        has_gap = wanted[-1] + len(self._frames[wanted[-1]]) != wanted[0] + len(joined)
        if has_gap or skip + length > len(joined):
            return None
        return joined[skip : skip + length]

    def find_missing(self, offset: int) -> int:
        """Return where the first byte is missing from an offset on."""
        first = max(0, bisect_right(self._positions, offset) - 1)
        for position in self._positions[first:]:
            if position > offset:
                break
            offset = max(offset, position + len(self._frames[position]))
        return offset


@final
class KnownRows:
    """Rows of one history. They never change, so they stay right as long as the history is open."""

    def __init__(self) -> None:
        self._last = Rows()
        """The last rows, without a gap."""
        self._end = 0
        """Where these end."""
        self._read = Rows()
        """Rows that were read."""

    @property
    def start(self) -> int:
        """Where the last rows begin."""
        return self._last.start

    @property
    def size(self) -> int:
        """How many bytes are in memory."""
        return self._last.size + self._read.size

    def append(self, position: int, frame: bytes) -> None:
        """Add a row behind the last one; forget the others if it does not follow it."""
        if position != self._end:
            self._last = Rows()
        self._last.append(position, frame)
        self._end = position + len(frame)

    def trim(self) -> None:
        """Forget earlier ones of the last rows, if there are many."""
        if self._last.size > _MAX_LAST:
            # In large steps: each moves what remains.
            self._last.drop_before(self._end - _MAX_LAST // 2)

    def keep(self, rows: Iterable[Row]) -> Rows:
        """Keep rows that were read; if that are too many, forget those that were read before.

        Returns:
            Rows among which they are.
        """
        self._read.add(rows)
        kept = self._read
        if kept.size > _MAX_READ:
            self._read = Rows()
            # The caller still has them.
        return kept

    def find(self, position: int) -> bytes | None:
        """Return the row at a position; None if it is not in memory."""
        frame = self._last.find(position)
        return self._read.find(position) if frame is None else frame

    def read_at(self, offset: int, length: int) -> bytes | None:
        """Return the bytes from an offset; None if not all of them are in memory."""
        if not length:
            return b""
        data = self._last.read_at(offset, length)
        return self._read.read_at(offset, length) if data is None else data
