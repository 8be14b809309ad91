"""Prints views: as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from graphkit.cli.cells import format_cell, short_ids, short_names
from graphkit.cli.values import escape, format_value, to_json, to_plain
from graphkit.cli.views import Card, Column, Kind, Message, Table, Text, View

if TYPE_CHECKING:
    from graphkit.cli.context import CliContext

_COLOURS: Final = {
    "interrupted": 33,
    "failed": 31,
    "damaged": 31,
    "sealed": 33,
    "finished": 32,
    "running": 36,
    "added": 32,
    "removed": 31,
    "changed": 33,
    "ok": 32,
}
"""The words that have a colour at a terminal, and its number among the terminal's codes."""
_BOLD: Final = 1
_RIGHT_ALIGNED: Final = frozenset({"bytes", "number", "seconds"})
_FULL_KINDS: Final[Mapping[Kind, Kind]] = {
    "age": "time",
    "name": "text",
    "id": "text",
    "value": "whole",
}
"""The kinds that a card, which has a line for each value, displays more fully than a table."""
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, ())


def show(context: CliContext, view: View) -> None:
    """Write a view to the output."""
    if context.as_json:
        context.write_line(to_json(view.data))
    elif isinstance(view, Table):
        _show_table(context, view)
    elif isinstance(view, Card):
        _show_card(context, view)
    elif isinstance(view, Text):
        context.write_line(view.text.rstrip("\n"))
    else:
        _show_message(context, view)


def _show_message(context: CliContext, message: Message) -> None:
    for line in message.sentence.rstrip("\n").split("\n"):
        indent = len(line) - len(line.lstrip()) + len(GAP)
        for part in _wrap(line, context.line_width, indent, break_long_words=False):
            context.write_line(part)


def _show_table(context: CliContext, table: Table) -> None:
    if not table.data:
        context.warn(table.empty)
        return
    columns = table.columns
    cells = [_format_column(context, column, table.data) for column in columns]
    if context.is_pretty:
        columns, cells = fit_table(columns, cells, context.width)

    padded: list[list[str]] = []
    for column, texts in zip(columns, cells, strict=True):
        padded.append(_pad_column(context, column, texts))
    for parts in zip(*padded, strict=True):
        line = GAP.join(parts)
        context.write_line(line.rstrip())

    if table.note:
        context.warn(table.note)


def _format_column(context: CliContext, column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of a column; at a terminal ids and names are short, but distinct."""
    values = [row.get(column.key) for row in rows]
    if not context.is_pretty or column.kind not in {"name", "id"}:
        return [format_cell(context, column.kind, value) for value in values]
    # Of all rows together: a short name must be distinct among those that the table shows.
    names = [value for value in values if isinstance(value, str)]
    shorten = short_ids if column.kind == "id" else short_names
    short: Mapping[Any, str] = shorten(names)
    return [short.get(value, "") for value in values]


def _pad_column(context: CliContext, column: Column, texts: Sequence[str]) -> list[str]:
    """Return the title and the texts of a column, all of one width, with the colours of a terminal."""
    lines = (column.title, *texts)
    styles = (_BOLD, *map(_COLOURS.get, texts))
    width = max(map(_count_cells, lines))
    is_right_aligned = context.is_pretty and column.kind in _RIGHT_ALIGNED

    padded: list[str] = []
    for text, style in zip(lines, styles, strict=True):
        shown = text
        if context.colour and style is not None:
            shown = f"\x1b[{style}m{text}\x1b[0m"
        gap = " " * (width - _count_cells(text))
        if is_right_aligned:
            padded.append(gap + shown)
        else:
            padded.append(shown + gap)
    return padded


def _count_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters take two, accents none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    wide = sum(east_asian_width(letter) in {"F", "W"} for letter in text)
    accents = sum(combining(letter) != 0 for letter in text)
    return len(text) + wide - accents


def _show_card(context: CliContext, card: Card) -> None:
    present = [column for column in card.columns if card.data.get(column.key) not in _EMPTY]
    longest = max(len(column.title) for column in present)
    margin = longest + len(GAP)

    for column in present:
        kind = _FULL_KINDS.get(column.kind, column.kind)
        text = format_cell(context, kind, card.data[column.key])
        title = column.title.ljust(margin)
        if kind == "lines":  # as they are: a wrapped traceback could not be read
            context.write_line(f"{column.title}\n{text}")
            continue
        for part in _wrap(title + text, context.line_width, margin):
            context.write_line(part)

    if card.tree:
        context.write_line("")
        for line in format_tree(card.data[card.tree], context.line_width):
            context.write_line(line)


def _wrap(line: str, width: int | None, indent: int, *, break_long_words: bool = True) -> Iterable[str]:
    """Break a line between words, and indent the parts after the first; None leaves it whole."""
    if width is None or len(line) <= width:
        return [line]
    from textwrap import wrap

    return wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_long_words=break_long_words,
        break_on_hyphens=False,
    )


# The columns for which a terminal has room

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
    width: int = 0

    def widen(self) -> None:
        self.width = max(map(_count_cells, (self.column.title, *self.texts)))

    @property
    def can_shrink(self) -> bool:
        return self.column.kind in _TEXT_KINDS and self.width > _MIN_TEXT_WIDTH


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

    fitted_columns: list[Column] = []
    fitted_cells: list[list[str]] = []
    for fit in fitted:
        title = cut(fit.column.title, fit.width)
        fitted_columns.append(replace(fit.column, title=title))
        fitted_cells.append([cut(text, fit.width) for text in fit.texts])
    return fitted_columns, fitted_cells


def _shrink_texts(fitted: Sequence[_FittedColumn], width: int) -> bool:
    """Cut the widest text again and again, from the natural widths on; return whether the columns fit."""
    # From the natural widths again after each dropped column: the others may now need no cut.
    for fit in fitted:
        fit.widen()
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
    """Return the column to drop next, the last figure or else the last text; None if all others have to stay."""
    for kinds in (_FIGURE_KINDS, _TEXT_KINDS):
        for fit in reversed(fitted):
            if fit.column.kind in kinds:
                return fit
    return None


# A value of any depth


def format_tree(value: Any, width: int | None) -> Iterator[str]:
    """Yield a value as lines, one per leaf; cut at the width, if there is one."""
    plain = to_plain(value)
    if _is_branch(plain):
        yield from _format_branch(plain, width, "")
    else:
        yield cut(format_value(plain), width)


def cut(line: str, width: int | None) -> str:
    """Return a line that takes at most `width` columns; its end is an ellipsis if it was longer."""
    if width is None or _count_cells(line) <= width:
        return line
    # Characters of two columns: the first cut may have kept too much.
    kept = line[: width - 1]
    while _count_cells(kept) >= width:
        kept = kept[:-1]
    return f"{kept}…"


def _is_branch(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _format_branch(branch: Any, width: int | None, indent: str) -> Iterator[str]:
    for name, item in _children(branch):
        if _is_branch(item):
            yield cut(f"{indent}{escape(name)}:", width)
            yield from _format_branch(item, width, indent + "  ")
        else:
            yield from _format_leaf_lines(f"{indent}{escape(name)}: ", item, width)


def _children(branch: dict[str, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(branch, dict):
        return branch.items()
    return ((f"[{number}]", item) for number, item in enumerate(branch))


def _format_leaf_lines(start: str, item: Any, width: int | None) -> Iterator[str]:
    if not isinstance(item, str) or "\n" not in item:
        yield cut(start + format_value(item), width)
        return
    yield start + "|"
    depth = len(start) - len(start.lstrip())
    indent = " " * (depth + 2)
    for line in item.splitlines():
        text = ""
        if line:  # `escape` shows an empty text as two quotes
            text = escape(line)
        yield cut(indent + text, width)
