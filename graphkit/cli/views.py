"""Views: what a command returns. `graphkit.cli.render` prints them, and with --json the `data` of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "text",
    "value",
    "whole",
    "status",
    "name",
    "id",
    "time",
    "age",
    "bytes",
    "seconds",
    "number",
    "list",
    "counts",
    "payload",
    "interrupts",
    "failure",
    "cause",
    "lines",
    "tree",
    "branches",
]
"""How the values of a column are displayed. "name" and "id" are shortened at a terminal; "value" is
abbreviated and "whole" is not; "tree" is JSON in a pipe; "age" is a time, relative at a terminal. A
"payload" is what a table is read for: at a terminal it is the last to be cut. "branches" is drawn."""


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


@dataclass(frozen=True)
class Table:
    """Rows of plain data. JSON has all fields of a row; people see the columns."""

    columns: Sequence[Column]
    data: Sequence[Mapping[str, Any]]
    """The rows."""
    empty: str
    """The message if there are no rows."""
    note: str = ""
    """A message below the rows."""
    summary: str = ""
    """A line above the rows, at a terminal."""


@dataclass(frozen=True)
class Card:
    """The properties of one thing, and optionally a value of any depth."""

    columns: Sequence[Column]
    data: Mapping[str, Any]
    tree: str = ""
    """The key of the value that is displayed as a tree, below the properties."""


@dataclass(frozen=True)
class Text:
    """A text for people, and the data that JSON has instead."""

    text: str
    data: Any


@dataclass(frozen=True)
class Message:
    """What the command did, as a sentence and as data, and its exit code."""

    sentence: str
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    hint: str = ""
    """The command that comes next, at a terminal."""


View = Table | Card | Text | Message
