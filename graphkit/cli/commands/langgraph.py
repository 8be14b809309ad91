"""Copies threads of LangGraph: import-langgraph-sqlite, import-langgraph-postgres, export-langgraph-sqlite."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.cli import options
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.resolve import find_chosen, join_some
from graphkit.cli.stores import KEY_FILE, POSTGRES, SQLITE, open_store, open_target, strip_kind
from graphkit.cli.values import escape, pluralize
from graphkit.cli.views import Message

_target = click.argument(
    "directory",
    metavar="DIR",
    help="The checkpoint directory, created if it is missing, or another store, also in the same database.",
)
_MAX_PROBLEMS: Final = 5
"""Problems that the message lists; JSON has all of them."""


@click.command("import-langgraph-sqlite", cls=Command)
@click.argument("file", metavar="FILE", help="The database of a SqliteSaver; the command only reads its tables.")
@_target
def import_langgraph_sqlite(context: CliContext, file: str, directory: str) -> Message:
    """Copy LangGraph's threads from a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. An interrupted import continues where it
    stopped when you run it again.

    DIR may name the same file: `sqlite:checkpoints.sqlite`. The tables have other names, and those
    of LangGraph stay.

    Example: graphkit import langgraph-sqlite checkpoints.sqlite runs
    """
    return _import(context, load_langgraph().import_langgraph_sqlite, strip_kind(file, SQLITE), directory)


@click.command("import-langgraph-postgres", cls=Command)
@click.argument("dsn", metavar="DSN", help="The database of a PostgresSaver; the command only reads its tables.")
@_target
def import_langgraph_postgres(context: CliContext, dsn: str, directory: str) -> Message:
    """Copy LangGraph's threads from PostgreSQL, as they are at this moment.

    Otherwise the command works like import-langgraph-sqlite.

    Example: graphkit import langgraph-postgres postgresql://localhost/agents runs
    """
    return _import(context, load_langgraph().import_langgraph_postgres, strip_kind(dsn, POSTGRES), directory)


def _import(context: CliContext, import_: Callable[..., Any], database: str, directory: str) -> Message:
    target, options = open_target(directory)
    with context.progress("importing") as progress:
        report = import_(database, target, progress=progress, **options)
    return _describe_report(report, "imported", directory)


def load_langgraph() -> Any:
    """Return savers.langgraph."""
    # By name, since graphkit does not import savers, and the extra may not be installed.
    return importlib.import_module("savers.langgraph")


def _describe_report(report: Any, verb: str, place: str) -> Message:
    """Return the message about an ImportReport or an ExportReport, whose fields are the keys of the JSON.

    Args:
        report: what was done.
        verb: "imported" or "exported".
        place: where the threads are now.
    """
    sentence = f"{verb} {pluralize(report.checkpoints, 'checkpoint')} to {escape(place)}"
    if report.skipped:
        sentence += f", skipped {report.skipped} that were already there"
    sentence += f"; {pluralize(report.threads, 'thread')}"
    left_out: Sequence[str] = getattr(report, "left_out", ())
    if left_out:
        own = pluralize(len(left_out), "thread")
        sentence += f", left out {own} with runs of graphkit: {join_some(left_out)}"
    if report.ok:
        sentence += ", verified"
    else:
        problems = "\n".join(report.problems[:_MAX_PROBLEMS])
        sentence += f". {pluralize(len(report.problems), 'problem')}:\n{problems}"
    return Message(sentence, vars(report), 0 if report.ok else 1)


@click.command("export-langgraph-sqlite", cls=Command)
@options.directory
@click.argument("database", metavar="DATABASE", help="The database of a SqliteSaver, created if it is missing.")
@click.option("--thread", "threads", multiple=True, help="Only this thread; repeatable.")
@click.option("--plaintext", is_flag=True, help="Write to the database although the store is sealed.")
def export_langgraph_sqlite(
    context: CliContext,
    directory: str,
    database: str,
    threads: tuple[str, ...],
    plaintext: bool,
) -> Message:
    """Copy LangGraph's threads to a SQLite file, with checkpoints, writes, metadata and ids.

    The command reads everything back and compares it. It never replaces a checkpoint of the
    database. An interrupted export continues where it stopped when you run it again. LangGraph's
    database cannot be sealed: an export of a sealed store requires --plaintext.

    Example: graphkit export-langgraph-sqlite runs checkpoints.sqlite --thread order-17
    """
    saver = open_store(directory)
    source: object = saver
    key_file = None
    if isinstance(saver, HasBaseDirectory):
        source = saver.base_directory
        key_file = KEY_FILE.get()
    chosen = find_chosen(saver, threads)
    langgraph = load_langgraph()
    with context.progress("exporting") as progress:
        report = langgraph.export_langgraph_sqlite(
            source,
            strip_kind(database, SQLITE),
            threads=chosen,
            progress=progress,
            cipher=key_file,
            plaintext=plaintext,
        )
    return _describe_report(report, "exported", database)
