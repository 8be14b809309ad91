"""Views and how they are shown: as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from graphkit._wording import simplify_text
from graphkit.cli.values import asking, brief, plain, shown, to_json

if TYPE_CHECKING:
    from graphkit.cli.context import CliContext

_GAP: Final = "  "
_MINUTE: Final = 60
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_STYLES: Final = {
    "interrupted": "yellow", "failed": "red", "damaged": "red", "finished": "green", "running": "cyan",
    "added": "green", "removed": "red", "changed": "yellow", "ok": "green",
}  # fmt: skip
_SOFT: Final = frozenset({"text", "value", "asks"})
"""Kinds that may be cut."""
_SPARE: Final = frozenset({"bytes", "seconds", "number", "list"})
"""Kinds that may be left out."""
_SHORTEST: Final = 7
_TEXT_LIMIT: Final = 200
_NOTHING: Final[tuple[object, ...]] = (None, "", [], {}, ())
_ID_LENGTH: Final = 8
_LONG_ID: Final = 20


@dataclass(frozen=True)
class Column:
    """A column: the key of its values in the rows, and how they are shown to people."""

    key: str
    title: str
    kind: str = "text"
    """"text", "status", "name" and "id" (shortened at a terminal), "time", "age", "bytes", "seconds", "number", "list",
    "asks", "stops", "failure", "value"."""


@dataclass(frozen=True)
class Table:
    """Rows of plain data. JSON has all of a row; people see the columns."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    empty: str
    """What to say when there are no rows."""
    note: str = ""
    """What to say below the rows."""


@dataclass(frozen=True)
class Card:
    """One thing: facts about it, and perhaps a value of any depth."""

    columns: Sequence[Column]
    row: Mapping[str, Any]
    tree: str = ""
    """The key of the row whose value is shown as a tree, below the facts."""


@dataclass(frozen=True)
class Text:
    """A document for people, and the data it was made of."""

    text: str
    data: Any


@dataclass(frozen=True)
class Said:
    """What was done, in a sentence, and as data."""

    sentence: str
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


View = Table | Card | Text | Said


def show(context: CliContext, view: View) -> None:
    """Write a view to the output."""
    if context.as_json:
        data = {Table: "rows", Card: "row", Text: "data", Said: "data"}[type(view)]
        context.say(to_json(getattr(view, data)))
    elif isinstance(view, Table):
        _show_table(context, view)
    elif isinstance(view, Card):
        _show_card(context, view)
    elif isinstance(view, Text):
        context.say(view.text.rstrip("\n"))
    else:
        for line in view.sentence.rstrip("\n").split("\n"):
            _say_sentence(context, line)


def _say_sentence(context: CliContext, line: str) -> None:
    """Write a line that says something, broken between words at a terminal; a path stays whole."""
    if not context.is_pretty or len(line) <= context.width:
        context.say(line)
        return
    from textwrap import wrap

    indent = " " * (len(line) - len(line.lstrip()) + len(_GAP))
    for part in wrap(
        line, context.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ):  # fmt: skip
        context.say(part)


def _show_table(context: CliContext, table: Table) -> None:
    if not table.rows:
        context.warn(table.empty)
        return
    cells = [_column_cells(context, column, table.rows) for column in table.columns]
    if context.is_pretty:
        _show_rich(context, *fitted(table.columns, cells, context.width))
    else:
        for line in _aligned([[column.title for column in table.columns], *zip(*cells, strict=True)]):
            context.say(line)
    if table.note:
        context.warn(table.note)


def _column_cells(context: CliContext, column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    values = [row.get(column.key) for row in rows]
    if column.kind in {"name", "id"} and context.is_pretty:
        known = [value for value in values if isinstance(value, str)]
        short = short_ids(known) if column.kind == "id" else short_names(known)
        return [short.get(value, "") if value is not None else "" for value in values]
    return [cell(context, column.kind, value) for value in values]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield _GAP.join(padded).rstrip()


def _show_rich(context: CliContext, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    grid = RichTable(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for column in columns:
        right = column.kind in {"bytes", "number", "seconds"}
        grid.add_column(column.title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for row in zip(*cells, strict=True):
        grid.add_row(*(RichText(text, style=_STYLES.get(text, "")) for text in row))
    _console(context).print(grid)


def fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[Column], list[Sequence[str]]]:
    """The columns that a terminal has room for, and their cells, cut where they must be.

    Empty columns go first; then what is text is cut, the longest first; then figures go, the last first; then text.
    """
    kept = [(column, texts) for column, texts in zip(columns, cells, strict=True) if any(texts)]
    while True:
        widths = [max(len(column.title), *map(len, texts)) for column, texts in kept]
        excess = sum(widths) + len(_GAP) * (len(kept) - 1) - width
        soft = {at: widths[at] for at, (column, _) in enumerate(kept) if column.kind in _SOFT}
        while excess > 0 and soft and max(soft.values()) > _SHORTEST:
            soft[max(soft, key=lambda at: soft[at])] -= 1
            excess -= 1
        spare = [at for kinds in (_SOFT, _SPARE) for at, (column, _) in enumerate(kept) if column.kind in kinds]
        if excess <= 0 or not spare:
            break
        del kept[spare[-1]]
    limits = [soft.get(at, widths[at]) for at in range(len(kept))]
    cut = [[_cut(text, limit) for text in texts] for (_, texts), limit in zip(kept, limits, strict=True)]
    titled = [replace(column, title=_cut(column.title, limit)) for (column, _), limit in zip(kept, limits, strict=True)]
    return titled, [*cut]


def _console(context: CliContext) -> Any:
    from rich.console import Console

    system = "auto" if context.colour else None
    return Console(
        file=context.out, width=context.width, color_system=system, force_terminal=context.colour, highlight=False  # type: ignore[arg-type]
    )  # fmt: skip


def _show_card(context: CliContext, card: Card) -> None:
    known = [column for column in card.columns if card.row.get(column.key) not in _NOTHING]
    margin = max(len(column.title) for column in known) + len(_GAP)
    for column in known:
        text = cell(context, _long(column.kind), card.row[column.key])
        for line in _wrapped(f"{column.title:{margin}}{text}", context.width if context.is_pretty else None, margin):
            context.say(line)
    if card.tree:
        context.say("")
        for line in tree(card.row[card.tree], context.width if context.is_pretty else None):
            context.say(line)


def _wrapped(text: str, width: int | None, margin: int) -> Sequence[str]:
    if width is None:
        return [text]
    from textwrap import wrap

    return wrap(text, width, subsequent_indent=" " * margin, break_on_hyphens=False)


def _long(kind: str) -> str:
    return {"age": "time", "name": "text", "id": "text", "value": "whole"}.get(kind, kind)


# Cells


def cell(context: CliContext, kind: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    make = _CELLS.get(kind)
    return make(context, value) if make else brief(value, _TEXT_LIMIT)


def _age(context: CliContext, when: datetime) -> str:
    if not context.is_pretty:
        return when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return relative(context.now() - when)


def _time(context: CliContext, when: datetime) -> str:
    local = context.local(when).strftime("%Y-%m-%d %H:%M:%S")
    return f"{local} ({relative(context.now() - when)})"


def _failed(failure: Mapping[str, Any]) -> str:
    """Why a run ended, and in which node; a record that was written by hand may lack anything."""
    node = f" in {shown(str(failure['node_id']))}" if failure.get("node_id") else ""
    message = shown(simplify_text(str(failure.get("message", ""))))
    return f"{shown(str(failure.get('type', 'failed')))}{node}: {message}"


def _bytes(_context: CliContext, size: int) -> str:
    return human_bytes(size)


_CELLS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "age": _age,
    "time": _time,
    "bytes": _bytes,
    "seconds": lambda _, seconds: duration(seconds),
    "number": lambda _, number: str(number),
    "name": lambda _, text: shown(text),
    "status": lambda _, text: shown(text),
    "id": lambda _, text: shown(text),
    "whole": lambda _, value: shown(value) if isinstance(value, str) else to_json(value),
    "list": lambda _, items: " ".join(map(shown, items)),
    "failure": lambda _, failure: _failed(failure),
    "asks": lambda _, payload: asking(payload, _TEXT_LIMIT),
    "stops": lambda _, stops: "; ".join(
        f"{one['when']} {shown(one['node'])}: {asking(one['payload'])}" for one in stops
    ),
}


def relative(ago: timedelta) -> str:
    """How long ago, in its largest unit."""
    seconds = ago.total_seconds()
    if abs(seconds) < 1:
        return "now"
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            count = f"{int(abs(seconds) // size)} {unit}"
            return f"{count} ago" if seconds > 0 else f"in {count}"
    return "now"


def duration(seconds: float) -> str:
    """How long something took, in units that suit it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(int(seconds), _MINUTE)
    return f"{minutes} min {rest} s" if minutes < _MINUTE else f"{minutes // _MINUTE} h {minutes % _MINUTE} min"


def human_bytes(size: int) -> str:
    """Bytes in the unit that suits them; powers of 1000, as disks are sold and `ls -h --si` counts."""
    if size < 1000:  # noqa: PLR2004
        return f"{size} B"
    number, units = size / 1000, iter(("kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while number >= 999.95:  # noqa: PLR2004 - what rounds to 1000.0
        number, unit = number / 1000, next(units)
    return f"{number:.1f} {unit}"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Checkpoint ids by their last characters, as many as tell them apart: they begin with the time, which many share.

    An id of up to twelve characters stays whole. A unique end, or beginning, is taken for the id.
    """
    distinct = list(dict.fromkeys(ids))
    length = _ID_LENGTH
    longest = max(map(len, distinct), default=0)
    while length < longest and len({one[-length:] for one in distinct}) < len(distinct):
        length += 2
    return {one: shown(one if len(one) <= length + 4 else one[-length:]) for one in distinct}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Thread ids, the long ones by as many first characters as tell them apart, and an ellipsis."""
    distinct = list(dict.fromkeys(names))
    length = _LONG_ID
    longest = max(map(len, distinct), default=0)
    while length < longest and len({one[:length] for one in distinct}) < len(distinct):
        length += 4
    return {one: shown(one) if len(one) <= length else shown(one[:length]) + "…" for one in distinct}


# Trees


def tree(value: Any, width: int | None) -> Iterable[str]:
    """A value of any depth, a line per leaf; cut at the width, if there is one."""
    value = plain(value)
    return _branches(value, width, "") if _is_branch(value) else [_cut(_leaf(value), width)]


def _is_branch(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _branches(value: Any, width: int | None, indent: str) -> Iterable[str]:
    named = value.items() if isinstance(value, dict) else ((f"[{number}]", item) for number, item in enumerate(value))
    for name, item in named:
        if _is_branch(item):
            yield _cut(f"{indent}{shown(name)}:", width)
            yield from _branches(item, width, indent + "  ")
        else:
            yield from _leaf_lines(f"{indent}{shown(name)}: ", item, width)


def _leaf_lines(start: str, item: Any, width: int | None) -> Iterable[str]:
    if not isinstance(item, str) or "\n" not in item:
        yield _cut(start + _leaf(item), width)
        return
    yield start + "|"
    indent = " " * (len(start) - len(start.lstrip()) + 2)
    for line in item.splitlines():
        yield _cut(indent + (shown(line) if line else ""), width)


def _leaf(item: Any) -> str:
    return shown(item) if isinstance(item, str) else to_json(item)


def _cut(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 1] + "…"
