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


@dataclass
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


def fit_table(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
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
    fitted = [_FittedColumn(column, texts) for column, texts in zip(columns, cells, strict=True) if any(texts)]
    while not _shrink_texts(fitted, width):
        dropped = _least_useful(fitted)
        if dropped is None:
            break
        fitted.remove(dropped)
    kept_columns: list[Column] = []
    kept_cells: list[list[str]] = []
    for fit in fitted:
        kept_columns.append(replace(fit.column, title=cut(fit.column.title, fit.width)))
        kept_cells.append([cut(text, fit.width) for text in fit.texts])
    return kept_columns, kept_cells


def _shrink_texts(fitted: Sequence[_FittedColumn], width: int) -> bool:
    """Cut the widest text again and again; return whether the columns fit.

    Starts from the natural widths.

    Starts from the natural widths.
    """
    for fit in fitted:
        fit.width = fit.natural_width
    excess = sum(fit.width for fit in fitted) + len(GAP) * (len(fitted) - 1) - width
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
