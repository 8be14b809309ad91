"""Views, which commands return; printed as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_args

from graphkit._values.frozen import to_plain
from graphkit._wording import count_cells
from graphkit.cli.cells import FORMATTERS, Figure, Kind, short_ids, short_names
from graphkit.cli.values import escape, format_value, to_json, wrap_words

if TYPE_CHECKING:
    from graphkit.cli.context import CliContext


@dataclass(frozen=True)
class Column:
    """A column of a table or a card.

    It has the key of its values in the rows, a title, and the way in which values are displayed.
    """

    key: str
    title: str
    kind: Kind = "text"
    instead: Sequence[Column] = ()
    """Columns of which the first with a value is displayed where this one has none."""
    is_rare: bool = False
    """Whether a table of which no row has a value is without the column, in a pipe, too."""


NAMESPACE: Final = Column("ns", "NS", is_rare=True)
"""The namespace of a nested graph."""


@dataclass(eq=False)
class ShownColumn:
    """A column on its way to the output."""

    column: Column
    lines: list[str]
    """The title, and a text for each row."""
    width: int = 0
    """What the terminal has room for."""

    def __post_init__(self) -> None:
        self.natural_width = max(map(count_cells, self.lines))


@dataclass(frozen=True)
class Table:
    """Rows of plain data. JSON has all fields of a row; people see the columns."""

    columns: Sequence[Column]
    data: Sequence[Mapping[str, Any]]
    """The rows."""
    empty: str = ""
    """The message if there are no rows."""
    note: str = ""
    """A message below the rows."""
    summary: str = ""
    """A line above the rows, at a terminal."""

    def lines(self, context: CliContext) -> Iterator[str]:
        if self.summary and context.is_pretty:
            for part in wrap_words(self.summary, context.width, 0):
                yield _paint(context, part, _DIM)
        shown = [
            ShownColumn(column, [column.title, *_format_column(context, column, self.data)])
            for column in self.columns
            if not column.is_rare or any(row.get(column.key) for row in self.data)
        ]
        if context.is_pretty:
            shown = fit_table(shown, context.width)

        # The lines of a column become equally wide, and get the colours of a terminal.
        for each in shown:
            kind = each.column.kind
            plain = _DIM if kind in _SECONDARY_KINDS else None
            is_right_aligned = context.is_pretty and kind in _RIGHT_ALIGNED
            widths = [count_cells(line) for line in each.lines]
            widest = max(widths)
            for number, (line, width) in enumerate(zip(each.lines, widths, strict=True)):
                painted = _paint(context, line, _COLOURS.get(line, plain) if number else _BOLD)
                gap = " " * (widest - width)
                each.lines[number] = gap + painted if is_right_aligned else painted + gap

        for parts in zip(*(each.lines for each in shown), strict=True):
            yield GAP.join(parts).rstrip()


@dataclass(frozen=True)
class Card:
    """The properties of one thing, and optionally a value of any depth."""

    columns: Sequence[Column]
    data: Mapping[str, Any]
    tree: str = ""
    """The key of the value that is displayed as a tree, below the properties; None is not."""

    def lines(self, context: CliContext) -> Iterator[str]:
        present = [column for column in self.columns if self.data.get(column.key) not in _EMPTY]
        longest = max(len(column.title) for column in present)
        margin = longest + len(GAP)

        for column in present:
            title = column.title.lower().ljust(margin)
            if column.kind == "tree" and context.is_pretty:
                for line in format_tree(self.data[column.key], context.width - margin):
                    yield title + line
                    title = " " * margin
                continue
            text = FORMATTERS[column.kind](context, self.data[column.key])
            if column.kind == "lines":  # as they are: a wrapped traceback could not be read
                yield from (column.title, *text.split("\n"))
                continue
            yield from wrap_words(title + text, context.line_width, margin)

        if self.data.get(self.tree) is not None:
            yield ""
            yield from format_tree(self.data[self.tree], context.line_width)


@dataclass(frozen=True)
class Text:
    """A text for people, and the data that JSON has instead."""

    text: str
    data: Any

    def lines(self, _context: CliContext) -> Iterator[str]:
        yield from self.text.rstrip("\n").split("\n")


@dataclass(frozen=True)
class Message:
    """What the command did, as a sentence and as data, and its exit code."""

    sentence: str
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    hint: str = ""
    """The command that comes next, at a terminal."""
    table: Table | None = None
    """What people see above the sentence; its rows are part of the data."""

    def lines(self, context: CliContext) -> Iterator[str]:
        if self.table is not None:
            yield from self.table.lines(context)
        for line in self.sentence.rstrip("\n").split("\n"):
            indent = len(line) - len(line.lstrip()) + len(GAP)
            yield from wrap_words(line, context.line_width, indent)
        if self.hint and context.is_pretty:
            for part in wrap_words(self.hint, context.width, len(GAP)):
                yield _paint(context, part, _DIM)


View = Table | Card | Text | Message


_COLOURS: Final = {
    **dict.fromkeys(("failed", "damaged"), 31),
    **dict.fromkeys(("finished", "ok"), 32),
    **dict.fromkeys(("interrupted", "sealed"), 33),
    **dict.fromkeys(("running", "queued", "sleeping"), 36),
}
"""The words that have a colour at a terminal, and its number among the terminal's codes."""
_BOLD: Final = 1
_DIM: Final = 2
_FIGURE_KINDS: Final = frozenset(get_args(Figure))
_RIGHT_ALIGNED: Final = _FIGURE_KINDS - {"list"}
_SECONDARY_KINDS: Final = _FIGURE_KINDS | {"age"}
"""The kinds of columns that are dim at a terminal."""

_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, ())


def show(context: CliContext, view: View) -> None:
    """Write a view to the output."""
    if context.as_json:
        context.write_line(to_json(view.data, indent=2 if context.is_terminal else None))
    elif isinstance(view, Table) and not view.data:
        context.warn(view.empty)
    else:
        context.write_lines(list(view.lines(context)))
        if isinstance(view, Table) and view.note:
            context.warn(view.note)


def _paint(context: CliContext, text: str, style: int | None) -> str:
    """Return a text in a style of the terminal, if it has colours."""
    if style is None or not text or not context.colour:
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def _format_column(context: CliContext, column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of a column; at a terminal ids and names are short, but distinct."""
    if not context.is_pretty or column.kind not in {"name", "id"}:
        return [_format_first(context, (column, *column.instead), row) for row in rows]
    # All rows together: a short name must be distinct among those that the table shows.
    values = [row.get(column.key) for row in rows]
    shorten = short_ids if column.kind == "id" else short_names
    short: Mapping[Any, str] = shorten(value for value in values if isinstance(value, str))
    return [short.get(value, "") for value in values]


def _format_first(context: CliContext, columns: Iterable[Column], row: Mapping[str, Any]) -> str:
    """Return the text of the first column with a value."""
    for column in columns:
        value = row.get(column.key)
        if value is not None:
            return FORMATTERS[column.kind](context, value)
    return ""


# The columns for which a terminal has room

GAP: Final = "  "
"""Between two columns."""
_MIN_TEXT_WIDTH: Final = 7
"""No text is cut below this."""
_MIN_WIDTH_BESIDE_FIGURES: Final = 34
"""Below this a payload is cut only when no figures are left, below the next only when no other text is."""
_MIN_WIDTH_BESIDE_TEXTS: Final = 24
_DROPPED_KINDS: Final = (_FIGURE_KINDS, {"text"}, {"payload"})
"""Kinds that may be dropped, those first that are dropped before the others."""


def fit_table(columns: Iterable[ShownColumn], width: int) -> list[ShownColumn]:
    """Return the columns for which a terminal has room, their lines cut where necessary.

    Empty columns are dropped first. Then texts are cut, the longest first, and after them the payload,
    for which the table is read. If that is not enough, columns are dropped until it is: figures, the
    last first, and then texts, the last first. The payload is cut further as the others go, and takes
    what room they leave. Columns of other kinds stay.
    """
    fitted = [each for each in columns if any(each.lines[1:])]
    while (excess := _shrink_texts(fitted, width)) > 0:
        droppable = [each for kinds in _DROPPED_KINDS for each in reversed(fitted) if each.column.kind in kinds]
        if not droppable:
            break
        fitted.remove(droppable[0])
    for each in fitted:
        if excess < 0 and each.column.kind == "payload":
            each.width = min(each.natural_width, each.width - excess)
        each.lines = [cut(line, each.width) for line in each.lines]
    return fitted


def _shrink_texts(columns: Sequence[ShownColumn], width: int) -> int:
    """Cut the widest text again and again, from the natural widths on.

    Returns:
        By how much the columns are too wide nevertheless; a negative number is room that is left.
    """
    # From the natural widths again after each dropped column: the others may now need no cut.
    for each in columns:
        each.width = each.natural_width
        if each.column.kind == "payload":  # one long row leaves room for the others
            each.width = min(each.width, width // 2)
    gaps = len(GAP) * (len(columns) - 1)
    excess = gaps + sum(each.width for each in columns) - width
    kinds = {each.column.kind for each in columns}
    least = _MIN_TEXT_WIDTH
    if not kinds.isdisjoint(_FIGURE_KINDS):
        least = _MIN_WIDTH_BESIDE_FIGURES
    elif "text" in kinds:
        least = _MIN_WIDTH_BESIDE_TEXTS
    excess = _shrink(columns, "text", excess, _MIN_TEXT_WIDTH)
    return _shrink(columns, "payload", excess, least)


def _shrink(columns: Sequence[ShownColumn], kind: Kind, excess: int, least: int) -> int:
    """Cut the widest column of a kind until the excess is gone; return what is left of it."""
    while excess > 0:
        shrinkable = [each for each in columns if each.column.kind == kind and each.width > least]
        if not shrinkable:
            break
        widest = max(shrinkable, key=lambda each: each.width)
        widest.width -= 1
        excess -= 1
    return excess


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
    if width is None or count_cells(line) <= width:
        return line
    # Characters of two columns: the first cut may have kept too much.
    kept = line[: width - 1]
    while count_cells(kept) >= width:
        kept = kept[:-1]
    return f"{kept}…"


def _is_branch(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _format_branch(branch: Any, width: int | None, indent: str) -> Iterator[str]:
    children = branch
    if isinstance(branch, list):
        children = {f"[{number}]": item for number, item in enumerate(branch)}
    for name, item in children.items():
        start = f"{indent}{escape(name)}:"
        if _is_branch(item):
            yield cut(start, width)
            yield from _format_branch(item, width, indent + "  ")
            continue
        if not isinstance(item, str) or "\n" not in item:
            yield cut(f"{start} {format_value(item)}", width)
            continue
        yield f"{start} |"
        depth = len(start) - len(start.lstrip())
        line_indent = " " * (depth + 2)
        for line in item.splitlines():
            text = escape(line) if line else ""  # `escape` shows an empty text as two quotes
            yield cut(line_indent + text, width)
