"""Threads of LangGraph's own savers into a store of graphkit's."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer

from graphkit.cli.context import CliContext
from graphkit.cli.render import Said
from graphkit.cli.values import counted, shown

_SOME: Final = 5
"""So many problems are told one by one."""

Target = Annotated[str, typer.Argument(metavar="DIR", help="The checkpoint directory; made if it is missing.")]


def import_langgraph_sqlite(
    context: CliContext,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The database of a SqliteSaver; it is only read.")],
    directory: Target,
) -> Said:
    """Copy LangGraph's threads from a SQLite file: checkpoints, writes, metadata and ids; read back and compared.

    Cut short, it goes on where it was when it is done again.

    Example: graphkit import langgraph-sqlite checkpoints.sqlite runs
    """
    with context.progress("importing") as progress:
        return _told(_savers().import_langgraph_sqlite(file, directory, progress=progress), directory)


def import_langgraph_postgres(
    context: CliContext,
    dsn: Annotated[str, typer.Argument(metavar="DSN", help="The database of a PostgresSaver; it is only read.")],
    directory: Target,
) -> Said:
    """Copy LangGraph's threads from a PostgreSQL database, as they are at this moment; else as langgraph-sqlite.

    Example: graphkit import langgraph-postgres postgresql://localhost/agents runs
    """
    with context.progress("importing") as progress:
        return _told(_savers().import_langgraph_postgres(dsn, directory, progress=progress), directory)


def _savers() -> Any:
    # By name, as graphkit finds all savers; and it may not be installed.
    return importlib.import_module("savers.langgraph")


def _told(report: Any, directory: str) -> Said:
    there = f", {report.skipped} were there already" if report.skipped else ""
    sentence = f"imported {counted(report.checkpoints, 'checkpoint')} to {shown(directory)}{there}; "
    sentence += counted(report.threads, "thread")
    if report.ok:
        sentence += ", read back and the same"
    else:
        problems = "\n".join(report.problems[:_SOME])
        sentence += f". {counted(len(report.problems), 'problem')}:\n{problems}"
    counts = {name: getattr(report, name) for name in ("threads", "checkpoints", "skipped")}
    return Said(sentence, {**counts, "problems": list(report.problems)}, 0 if report.ok else 1)


COMMANDS: Final = (import_langgraph_sqlite, import_langgraph_postgres)
