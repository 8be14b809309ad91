"""Views and how they are shown: as JSON, as aligned lines in a pipe, as a table at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from graphkit.cli.values import brief, plain, shown, to_json

if TYPE_CHECKING:
    from graphkit.cli.world import World

_GAP: Final = "  "
_MINUTE: Final = 60
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_STYLES: Final = {
    "interrupted": "yellow", "failed": "red", "damaged": "red", "finished": "green", "running": "cyan",
    "added": "green", "removed": "red", "changed": "yellow", "ok": "green",
}  # fmt: skip
_TEXT_LIMIT: Final = 200
_ID_LENGTH: Final = 8
_LONG_ID: Final = 28


@dataclass(frozen=True)
class Column:
    """A column: the key of its values in the rows, and how they are shown to people."""

    key: str
    title: str
    kind: str = "text"
    """"text", "name" and "id" (shortened at a terminal), "time", "age", "bytes", "seconds", "number", "value"."""


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


def show(world: World, view: View) -> None:
    """Write a view to the output."""
    if world.as_json:
        data = {Table: "rows", Card: "row", Text: "data", Said: "data"}[type(view)]
        world.say(to_json(getattr(view, data)))
    elif isinstance(view, Table):
        _show_table(world, view)
    elif isinstance(view, Card):
        _show_card(world, view)
    else:
        text = view.text if isinstance(view, Text) else view.sentence
        world.say(text.rstrip("\n"))


def _show_table(world: World, table: Table) -> None:
    if not table.rows:
        world.warn(table.empty)
        return
    cells = [_column_cells(world, column, table.rows) for column in table.columns]
    rows = list(zip(*cells, strict=True))
    if world.is_pretty:
        _show_rich(world, table, rows)
    else:
        for line in _aligned([[column.title for column in table.columns], *rows]):
            world.say(line)
    if table.note:
        world.warn(table.note)


def _column_cells(world: World, column: Column, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    values = [row.get(column.key) for row in rows]
    if column.kind in {"name", "id"} and world.is_pretty:
        known = [value for value in values if isinstance(value, str)]
        short = short_ids(known) if column.kind == "id" else short_names(known)
        return [short.get(value, "") if value is not None else "" for value in values]
    return [cell(world, column.kind, value) for value in values]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield _GAP.join(padded).rstrip()


def _show_rich(world: World, table: Table, rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns:
        keeps = column.kind not in {"text", "value", "name"} or column.key == "status"
        right = column.kind in {"bytes", "number", "seconds"}
        grid.add_column(
            column.title,
            justify="right" if right else "left",
            no_wrap=True,
            min_width=max(len(cell) for cell in _cells_of(rows, table.columns, column)) if keeps else 6,
            overflow="ellipsis",
        )
    for row in rows:
        grid.add_row(*(RichText(text, style=_STYLES.get(text, "")) for text in row))
    _console(world).print(grid)


def _cells_of(rows: Sequence[Sequence[str]], columns: Sequence[Column], column: Column) -> list[str]:
    place = list(columns).index(column)
    return [column.title, *(row[place] for row in rows)]


def _console(world: World) -> Any:
    from rich.console import Console

    system = "auto" if world.colour else None
    return Console(
        file=world.out, width=world.width, color_system=system, force_terminal=world.colour, highlight=False  # type: ignore[arg-type]
    )  # fmt: skip


def _show_card(world: World, card: Card) -> None:
    facts = [(column.title, cell(world, _long(column.kind), card.row.get(column.key))) for column in card.columns]
    for line in _aligned([fact for fact in facts if fact[1]]):
        world.say(line)
    if card.tree:
        world.say("")
        for line in tree(card.row[card.tree], world.width if world.is_pretty else None):
            world.say(line)


def _long(kind: str) -> str:
    return {"age": "time", "name": "text", "id": "text", "value": "whole"}.get(kind, kind)


# Cells


def cell(world: World, kind: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    make = _CELLS.get(kind)
    return make(world, value) if make else brief(value, _TEXT_LIMIT)


def _age(world: World, when: datetime) -> str:
    if not world.is_pretty:
        return when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return relative(world.now() - when)


def _time(world: World, when: datetime) -> str:
    local = world.local(when).strftime("%Y-%m-%d %H:%M:%S")
    return f"{local} ({relative(world.now() - when)})"


def _bytes(_world: World, size: int) -> str:
    return human_bytes(size)


_CELLS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "age": _age,
    "time": _time,
    "bytes": _bytes,
    "seconds": lambda _, seconds: f"{seconds:.2f} s",
    "number": lambda _, number: str(number),
    "name": lambda _, text: shown(text),
    "id": lambda _, text: shown(text),
    "whole": lambda _, value: shown(value) if isinstance(value, str) else to_json(value),
    "list": lambda _, items: " ".join(map(shown, items)),
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


def tree(value: Any, width: int | None, indent: str = "") -> Iterable[str]:
    """A value of any depth, a line per leaf; cut at the width, if there is one."""
    value = plain(value) if not indent else value
    items = (
        value.items() if isinstance(value, dict) else ((f"[{index}]", item) for index, item in enumerate(value or ()))
    )
    if not isinstance(value, (dict, list)) or not value:
        yield _cut(indent + _leaf(value), width)
        return
    for key, item in items:
        if isinstance(item, (dict, list)) and item:
            yield _cut(f"{indent}{shown(key)}:", width)
            yield from tree(item, width, indent + "  ")
        else:
            yield from _leaf_lines(f"{indent}{shown(key)}: ", item, width)


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
