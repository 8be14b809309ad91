"""Arguments and options that several commands have, and their shell completion."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from graphkit._records.config import RunnableConfig
from graphkit.cli.resolve import open_store
from graphkit.errors import GraphKitError

MOST_ROWS: Final = 10**9
"""The greatest number that an option may name of rows to show or to skip."""


def complete_thread(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the threads of the directory on the command line that begin with the text."""
    directory, _ = _typed_so_far(ctx)
    try:
        threads = open_store(directory).threads()
    except (GraphKitError, OSError):
        return []
    return [thread for thread in threads if thread.startswith(incomplete)]


def _complete_checkpoint(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the checkpoint ids of the thread on the command line that begin with the text."""
    directory, thread = _typed_so_far(ctx)
    try:
        history = open_store(directory).history(RunnableConfig(thread))
    except (GraphKitError, OSError):
        return []
    return [info.id for info in history if info.id.startswith(incomplete)]


def _typed_so_far(ctx: typer.Context) -> tuple[str, str]:
    """Return the directory and the thread typed so far, "" for what is missing."""
    parsed = [ctx.params.get("directory"), ctx.params.get("thread")]
    words = [word for word in parsed if word]
    words += ctx.args  # what the parser has not assigned to parameters
    words += ["", ""]
    return words[0], words[1]


Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="The checkpoint directory, sqlite:FILE, postgres:DSN, or kind:argument for another saver. Can be omitted "
        "if GRAPHKIT_DIR is set, or if the graph of --app has a saver.",
        show_default=False,
    ),
]
Thread = Annotated[
    str,
    typer.Argument(
        metavar="THREAD",
        help="The thread's id, or a unique prefix of it.",
        autocompletion=complete_thread,
    ),
]
MaybeThread = Annotated[
    str | None,
    typer.Argument(
        metavar="THREAD",
        help="Only this thread.",
        autocompletion=complete_thread,
        show_default=False,
    ),
]
CheckpointId = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="ID",
        help="The checkpoint, shortened to a unique beginning or end. Default: the latest.",
        autocompletion=_complete_checkpoint,
        show_default=False,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--ns",
        metavar="NS",
        help="The namespace of a nested graph.",
        show_default=False,
    ),
]
App = Annotated[
    str,
    typer.Option(
        "--app",
        metavar="MODULE:OBJECT",
        help="The graph, or a function that returns it.",
    ),
]
MaybeApp = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:OBJECT",
        help="The graph, or a function that returns it.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="A value to merge into the state: JSON, otherwise text; repeatable.",
        show_default=False,
    ),
]

Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        min=0.01,
        metavar="SECONDS",
        help="The polling interval where there are no file events.",
    ),
]
