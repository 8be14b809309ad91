"""Prints views: as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphkit.cli.cells import format_cell, short_ids, short_names
from graphkit.cli.table_layout import GAP, fit_table
from graphkit.cli.tree import format_tree
from graphkit.cli.values import to_json
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
