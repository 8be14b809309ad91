"""A long value as a keyframe lists it, whose pieces are worked out only when a caller needs them."""

from __future__ import annotations

from itertools import accumulate
from operator import add, sub
from typing import final

from savers._delta.values import Value


def decode_steps(steps: list[int]) -> list[int]:
    """Return the pieces that are given by steps; see `ListedValue`."""
    pieces = steps[:]
    # The sums are the start of the first piece, its end, the start of the second one, and so on.
    pieces[::2] = [*accumulate(steps)][::2]
    return pieces


def get_steps(value: Value) -> tuple[list[int], int]:
    """Return the steps of a value, which the caller must not change, and where its last piece ends."""
    if isinstance(value, ListedValue):
        steps = value.steps
        if steps is not None:
            return steps, value.end
    pieces = value.pieces
    if not pieces:
        return [], 0
    steps = pieces[:]
    ends = [*map(add, pieces[::2], pieces[1::2])]
    steps[2::2] = map(sub, pieces[2::2], ends)
    return steps, ends[-1]


@final
class ListedValue(Value):
    """A value with thousands of pieces, which most readers only read from the first to the last.

    A keyframe lists pieces as *steps*: the start of the first one, its length, the gap behind it,
    the length of the next one, and so on. That is what a reader needs that goes through the file
    once. Working out the start of each piece takes 0.15 ms for 3000 pieces.
    """

    __slots__ = ("_end", "_pieces", "_steps")

    def __init__(self, kind: int, count: int, length: int, crc: int, steps: list[int], end: int) -> None:
        """Make a value of steps, which are numbers; `end` is their sum."""
        super().__init__(kind=kind, count=count, length=length, crc=crc, pieces=[])
        self._steps: list[int] | None = steps
        self._end = end

    @property
    def pieces(self) -> list[int]:
        """start, length, start, length, ..."""
        steps = self._steps
        if steps is not None:
            self._pieces = decode_steps(steps)
            self._steps = None
        return self._pieces

    @pieces.setter
    def pieces(self, pieces: list[int]) -> None:
        self._pieces = pieces
        self._steps = None

    @property
    def steps(self) -> list[int] | None:
        """The steps, which the caller must not change; None once the pieces were worked out."""
        return self._steps

    @property
    def end(self) -> int:
        """Where the last piece ends, while there are steps."""
        return self._end

    def count_pieces(self) -> int:
        """Return the number of pieces."""
        steps = self._steps
        return len(self._pieces if steps is None else steps) // 2

    def add_piece(self, start: int, length: int) -> None:
        """Add a piece at the end."""
        steps = self._steps
        if steps is None:
            super().add_piece(start, length)
            return
        steps.append(start - self._end)
        steps.append(length)
        self._end = start + length

    def copy(self) -> Value:
        """Return a copy that can be changed without changing this value."""
        if self._steps is None:
            return super().copy()
        new = ListedValue(self.kind, self.count, self.length, self.crc, self._steps[:], self._end)
        new.block = self.block
        new.base = self.base
        new.shared = self.shared
        new.depth = self.depth
        return new
