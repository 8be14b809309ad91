"""Exports threads of LangGraph to LangGraph's own saver: export-langgraph-sqlite."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.cli.commands.import_langgraph import load_langgraph, view_report
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory
from graphkit.cli.resolve import KEY_FILE, find_thread, open_store
from graphkit.cli.store_names import SQLITE, strip_kind
from graphkit.cli.views import Message


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
    plaintext: Annotated[
        bool,
        typer.Option("--plaintext", help="Write to the database although the store is sealed."),
    ] = False,
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
    threads = None if thread is None else [find_thread(saver, typed) for typed in thread]
    langgraph = load_langgraph()
    with context.progress("exporting") as progress:
        report = langgraph.export_langgraph_sqlite(
            source,
            strip_kind(database, SQLITE),
            threads=threads,
            progress=progress,
            cipher=key_file,
            plaintext=plaintext,
        )
    return view_report(report, "exported", database, report.left_out)


COMMANDS: Final = (export_langgraph_sqlite,)
