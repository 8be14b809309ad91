"""Prints views: as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from graphkit.cli.cells import format_cell, short_ids, short_names
from graphkit.cli.values import escape, to_json, to_plain
from graphkit.cli.views import Card, Column, Kind, Message, Table, Text, View

if TYPE_CHECKING:
    from graphkit.cli.context import CliContext

_STYLES: Final = {
    "interrupted": "yellow",
    "failed": "red",
    "damaged": "red",
    "sealed": "yellow",
    "finished": "green",
    "running": "cyan",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "ok": "green",
}
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
        context.write_line(to_json(_json_data(view)))
    elif isinstance(view, Table):
        _show_table(context, view)
    elif isinstance(view, Card):
        _show_card(context, view)
    elif isinstance(view, Text):
        context.write_line(view.text.rstrip("\n"))
    else:
        _show_message(context, view)


def _json_data(view: View) -> Any:
    if isinstance(view, Table):
        return view.rows
    if isinstance(view, Card):
        return view.row
    return view.data


def _show_message(context: CliContext, message: Message) -> None:
    for line in message.sentence.rstrip("\n").split("\n"):
        indent = len(line) - len(line.lstrip()) + len(GAP)
        for part in _wrap(line, context.line_width, indent, break_long_words=False):
            context.write_line(part)


def _show_table(context: CliContext, table: Table) -> None:
    if not table.rows:
        context.warn(table.empty)
        return
    cells: list[list[str]] = []
    for column in table.columns:
        values = [row.get(column.key) for row in table.rows]
        cells.append(_format_column(context, column.kind, values))
    if context.is_pretty:
        columns, fitted_cells = fit_table(table.columns, cells, context.width)
        _show_rich(context, columns, fitted_cells)
    else:
        titles = [column.title for column in table.columns]
        rows = zip(*cells, strict=True)
        for line in _align([titles, *rows]):
            context.write_line(line)
    if table.note:
        context.warn(table.note)


def _format_column(context: CliContext, kind: Kind, values: Sequence[Any]) -> list[str]:
    """Return the texts of a column; at a terminal ids and names are short, but distinct."""
    if not context.is_pretty or kind not in {"name", "id"}:
        return [format_cell(context, kind, value) for value in values]
    names = [value for value in values if isinstance(value, str)]
    short = short_ids(names) if kind == "id" else short_names(names)
    return ["" if value is None else short.get(value, "") for value in values]


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield GAP.join(padded).rstrip()


def _show_rich(context: CliContext, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    grid = RichTable(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column in columns:
        justify: Any = "right" if column.kind in _RIGHT_ALIGNED else "left"
        grid.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis")

    for row in zip(*cells, strict=True):
        grid.add_row(*(RichText(text, style=_STYLES.get(text, "")) for text in row))
    console = Console(
        file=context.out,
        width=context.width,
        color_system="auto" if context.colour else None,
        force_terminal=context.colour,
        highlight=False,
    )
    console.print(grid)


def _show_card(context: CliContext, card: Card) -> None:
    present = [column for column in card.columns if card.row.get(column.key) not in _EMPTY]
    margin = max(len(column.title) for column in present) + len(GAP)

    for column in present:
        kind = _FULL_KINDS.get(column.kind, column.kind)
        value = card.row[column.key]
        line = column.title.ljust(margin) + format_cell(context, kind, value)
        for part in _wrap(line, context.line_width, margin):
            context.write_line(part)

    if card.tree:
        context.write_line("")
        _show_tree(context, card.row[card.tree])


def _show_tree(context: CliContext, value: Any) -> None:
    for line in format_tree(value, context.line_width):
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


# A value of any depth


def format_tree(value: Any, width: int | None) -> Iterator[str]:
    """Yield a value as lines, one per leaf; cut at the width, if there is one."""
    plain = to_plain(value)
    if _is_branch(plain):
        yield from _format_branch(plain, width, "")
    else:
        yield cut(_format_leaf(plain), width)


def cut(line: str, width: int | None) -> str:
    """Return a line of at most `width` characters; the last one is an ellipsis if it was longer."""
    if width is None or len(line) <= width:
        return line
    return line[: width - 1] + "…"


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
        text = _format_leaf(item)
        yield cut(start + text, width)
        return
    yield start + "|"
    depth = len(start) - len(start.lstrip())
    indent = " " * (depth + 2)
    for line in item.splitlines():
        text = escape(line) if line else ""
        yield cut(indent + text, width)


def _format_leaf(item: Any) -> str:
    return escape(item) if isinstance(item, str) else to_json(item)
