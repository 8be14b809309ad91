"""Imports threads of LangGraph: import-langgraph-sqlite, import-langgraph-postgres."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from graphkit.cli.context import CliContext
from graphkit.cli.resolve import join_some, open_target
from graphkit.cli.store_names import POSTGRES, SQLITE, strip_kind
from graphkit.cli.values import escape, pluralize
from graphkit.cli.views import Message

_MAX_PROBLEMS: Final = 5
"""Problems that the message lists; JSON has all of them."""

Target = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="The checkpoint directory, created if it is missing, or another store, also in the same database.",
    ),
]


def import_langgraph_sqlite(
    context: CliContext,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The database of a SqliteSaver; the command only reads its tables.",
        ),
    ],
    directory: Target,
) -> Message:
    """Copy LangGraph's threads from a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. An interrupted import continues where it
    stopped when you run it again.

    DIR may name the same file: `sqlite:checkpoints.sqlite`. The tables have other names, and those
    of LangGraph stay.

    Example: graphkit import langgraph-sqlite checkpoints.sqlite runs
    """
    target, options = open_target(directory)
    with context.progress("importing") as progress:
        file = strip_kind(file, SQLITE)
        report = load_langgraph().import_langgraph_sqlite(file, target, progress=progress, **options)
    return view_report(report, "imported", directory)


def import_langgraph_postgres(
    context: CliContext,
    dsn: Annotated[
        str,
        typer.Argument(
            metavar="DSN",
            help="The database of a PostgresSaver; the command only reads its tables.",
        ),
    ],
    directory: Target,
) -> Message:
    """Copy LangGraph's threads from PostgreSQL, as they are at this moment.

    Otherwise the command works like import-langgraph-sqlite.

    Example: graphkit import langgraph-postgres postgresql://localhost/agents runs
    """
    target, options = open_target(directory)
    with context.progress("importing") as progress:
        dsn = strip_kind(dsn, POSTGRES)
        report = load_langgraph().import_langgraph_postgres(dsn, target, progress=progress, **options)
    return view_report(report, "imported", directory)


def load_langgraph() -> Any:
    """Return savers.langgraph."""
    # By name, since graphkit does not import savers, and the extra may not be installed.
    return importlib.import_module("savers.langgraph")


def view_report(report: Any, verb: str, place: str, left_out: Sequence[str] | None = None) -> Message:
    """Return the message about an import or an export.

    Args:
        report: what was done.
        verb: "imported" or "exported".
        place: where the threads are now.
        left_out: the threads that were not LangGraph's; None if the report does not tell.
    """
    sentence = f"{verb} {pluralize(report.checkpoints, 'checkpoint')} to {escape(place)}"
    if report.skipped:
        sentence += f", skipped {report.skipped} that were already there"
    sentence += f"; {pluralize(report.threads, 'thread')}"
    if left_out:
        own = pluralize(len(left_out), "thread")
        sentence += f", left out {own} with runs of graphkit: {join_some(left_out)}"
    if report.ok:
        sentence += ", verified"
    else:
        problems = "\n".join(report.problems[:_MAX_PROBLEMS])
        sentence += f". {pluralize(len(report.problems), 'problem')}:\n{problems}"

    data: dict[str, Any] = {
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "skipped": report.skipped,
    }
    if left_out is not None:
        data["left_out"] = list(left_out)
    data["problems"] = list(report.problems)
    return Message(sentence, data, 0 if report.ok else 1)


COMMANDS: Final = (import_langgraph_sqlite, import_langgraph_postgres)
