"""Exports threads of LangGraph to LangGraph's own saver: export-langgraph-sqlite."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer

from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.cli.commands.verify import missing_capability
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory
from graphkit.cli.resolve import find_thread, join_some, open_store
from graphkit.cli.values import escape, pluralize
from graphkit.cli.views import Message

_MAX_PROBLEMS: Final = 5
"""Problems that the message lists; JSON has all of them."""


def export_langgraph_sqlite(
    context: CliContext,
    directory: Directory,
    database: Annotated[
        str,
        typer.Argument(metavar="DATABASE", help="The database of a SqliteSaver, created if it is missing."),
    ],
    thread: Annotated[
        list[str] | None,
        typer.Option("--thread", help="Only this thread; repeatable.", show_default=False),
    ] = None,
) -> Message:
    """Copy LangGraph's threads to a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. It never replaces a checkpoint of the
    database. An interrupted export continues where it stopped when you run it again.

    Example: graphkit export-langgraph-sqlite runs checkpoints.sqlite --thread order-17
    """
    saver = open_store(directory)
    if not isinstance(saver, HasBaseDirectory):
        raise missing_capability(saver, "export to LangGraph")
    threads = None if thread is None else [find_thread(saver, typed) for typed in thread]
    # By name, since graphkit does not import savers, and the extra may not be installed.
    langgraph = importlib.import_module("savers.langgraph")
    with context.progress("exporting") as progress:
        report = langgraph.export_langgraph_sqlite(saver.base_directory, database, threads=threads, progress=progress)
    return _report_view(report, database)


def _report_view(report: Any, database: str) -> Message:
    sentence = f"exported {pluralize(report.checkpoints, 'checkpoint')} to {escape(database)}"
    if report.skipped:
        sentence += f", skipped {report.skipped} that were already there"
    sentence += f"; {pluralize(report.threads, 'thread')}"
    if report.left_out:
        own = pluralize(len(report.left_out), "thread")
        sentence += f", left out {own} with runs of graphkit: {join_some(report.left_out)}"
    if report.ok:
        sentence += ", verified"
    else:
        problems = "\n".join(report.problems[:_MAX_PROBLEMS])
        sentence += f". {pluralize(len(report.problems), 'problem')}:\n{problems}"

    data = {
        "threads": report.threads,
        "checkpoints": report.checkpoints,
        "skipped": report.skipped,
        "left_out": list(report.left_out),
        "problems": list(report.problems),
    }
    return Message(sentence, data, 0 if report.ok else 1)


COMMANDS: Final = (export_langgraph_sqlite,)
