"""The records that an open log has inserted or read last, so that they are not read again."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final

_MOST_BYTES: Final = 1 << 16
"""Earlier records are dropped above this. The records since a keyframe, which readers want together,
take 5 to 60 KB as a rule."""


@final
class RecentRows:
    """The last records of one history, which follow one another."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._frames: list[bytes] = []
        self._end = -1
        """Where the last one ends."""

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return self._end - self._positions[0] if self._positions else 0

    def clear(self) -> None:
        """Forget them."""
        self._positions.clear()
        self._frames.clear()
        self._end = -1

    def add(self, position: int, frame: bytes) -> None:
        """Add the record at a position; forget the others unless it stands behind them."""
        if position != self._end:
            self.clear()
        self._positions.append(position)
        self._frames.append(frame)
        self._end = position + len(frame)
        if self._end - self._positions[0] > _MOST_BYTES:
            # In large steps: each moves what remains.
            first = bisect_right(self._positions, self._end - _MOST_BYTES // 2)
            del self._positions[:first]
            del self._frames[:first]

    def read_at(self, offset: int, length: int) -> bytes | None:
        """Return `length` bytes from an offset; None if not all of them are here.

        Where these records end, the history may go on.
        """
        positions = self._positions
        if not positions or offset < positions[0] or offset + length > self._end:
            return None
        first = bisect_right(positions, offset) - 1
        start = offset - positions[first]
        frame = self._frames[first]
        if start + length <= len(frame):
            return frame[start : start + length]
        last = bisect_right(positions, offset + length - 1)
        return b"".join(self._frames[first:last])[start : start + length]
