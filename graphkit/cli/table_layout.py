"""Fits the columns of a table into the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from graphkit.cli.tree import cut
from graphkit.cli.views import Column, Kind

GAP: Final = "  "
"""Between two columns."""
_MIN_TEXT_WIDTH: Final = 7
"""No text is cut below this."""
_TEXT_KINDS: Final[frozenset[Kind]] = frozenset({"text", "value", "payload"})
"""Kinds that may be cut, and dropped after all figures."""
_FIGURE_KINDS: Final[frozenset[Kind]] = frozenset({"bytes", "seconds", "number", "list"})
"""Kinds that may be dropped, but make no sense when cut."""


@dataclass(eq=False)
class _FittedColumn:
    """A column on its way to the terminal: its texts, and the width that it has so far."""

    column: Column
    texts: Sequence[str]
    natural_width: int = field(init=False)
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.natural_width = max(len(self.column.title), *map(len, self.texts))
        self.width = self.natural_width

    @property
    def can_shrink(self) -> bool:
        return self.column.kind in _TEXT_KINDS and self.width > _MIN_TEXT_WIDTH

    def cut_column(self) -> Column:
        return replace(self.column, title=cut(self.column.title, self.width))

    def cut_texts(self) -> list[str]:
        return [cut(text, self.width) for text in self.texts]


def fit_table(
    columns: Sequence[Column],
    cells: Sequence[Sequence[str]],
    width: int,
) -> tuple[list[Column], list[list[str]]]:
    """Return the columns for which a terminal has room, and their cells, cut where necessary.

    Empty columns are dropped first. Then texts are cut, the longest first. If that is not enough,
    columns are dropped until it is: figures, the last first, and then texts, the last first.
    Columns of other kinds stay.

    Args:
        columns: all columns.
        cells: the texts of each column.
        width: the columns of the terminal.
    """
    fitted: list[_FittedColumn] = []
    for column, texts in zip(columns, cells, strict=True):
        if any(texts):
            fitted.append(_FittedColumn(column, texts))
    while not _shrink_texts(fitted, width):
        dropped = _least_useful(fitted)
        if dropped is None:
            break
        fitted.remove(dropped)
    return [fit.cut_column() for fit in fitted], [fit.cut_texts() for fit in fitted]


def _shrink_texts(fitted: Sequence[_FittedColumn], width: int) -> bool:
    """Cut the widest text again and again; return whether the columns fit.

    Starts from the natural widths.
    """
    for fit in fitted:
        fit.width = fit.natural_width
    gaps = len(GAP) * (len(fitted) - 1)
    excess = gaps + sum(fit.width for fit in fitted) - width
    while excess > 0:
        shrinkable = [fit for fit in fitted if fit.can_shrink]
        if not shrinkable:
            return False
        widest = max(shrinkable, key=lambda fit: fit.width)
        widest.width -= 1
        excess -= 1
    return True


def _least_useful(fitted: Sequence[_FittedColumn]) -> _FittedColumn | None:
    """Return the column to drop next; None if only columns of other kinds are left.

    That is the last figure, or else the last text.

    That is the last figure, or else the last text.
    """
    for kinds in (_FIGURE_KINDS, _TEXT_KINDS):
        for fit in reversed(fitted):
            if fit.column.kind in kinds:
                return fit
    return None
