"""The arguments and options that several commands have, and what completes them in a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from graphkit._records.config import RunnableConfig
from graphkit.cli.resolve import open_store
from graphkit.errors import GraphKitError


def _threads(ctx: typer.Context, incomplete: str) -> list[str]:
    """The threads of the directory that was typed before."""
    try:
        threads = open_store(_typed(ctx)[0]).threads()
    except (GraphKitError, OSError):
        return []
    return [one for one in threads if one.startswith(incomplete)]


def _checkpoints(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ids of the thread that was typed before."""
    directory, thread = _typed(ctx)
    try:
        history = open_store(directory).history(RunnableConfig(thread))
    except (GraphKitError, OSError):
        return []
    return [info.id for info in history if info.id.startswith(incomplete)]


def _typed(ctx: typer.Context) -> tuple[str, str]:
    """The directory and the thread of an unfinished command line, of which not all may have been understood."""
    understood = [ctx.params.get("directory"), ctx.params.get("thread")]
    words = [*(one for one in understood if one), *ctx.args, "", ""]
    return words[0], words[1]


Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="The checkpoint directory, or kind:argument of another saver. May be left out if GRAPHKIT_DIR names it, "
        "or if the graph of --app has a saver.",
        show_default=False,
    ),
]
Thread = Annotated[
    str,
    typer.Argument(metavar="THREAD", help="A thread's id, or a unique beginning of it.", autocompletion=_threads),
]
MaybeThread = Annotated[
    str | None,
    typer.Argument(metavar="THREAD", help="Only this thread.", autocompletion=_threads, show_default=False),
]
CheckpointId = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        "-c",
        metavar="ID",
        help="A checkpoint, shortened to a unique beginning or end. The latest otherwise.",
        autocompletion=_checkpoints,
        show_default=False,
    ),
]
Namespace = Annotated[
    str, typer.Option("--ns", metavar="NS", help="The namespace of an embedded graph.", show_default=False)
]
App = Annotated[str, typer.Option("--app", metavar="MODULE:OBJECT", help="The graph, or a function that makes it.")]
MaybeApp = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:OBJECT", help="The graph, or a function that makes it.", show_default=False),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Meta = Annotated[
    list[str] | None,
    typer.Option("--meta", "-m", metavar="KEY=VALUE", help="Metadata that must be so; repeatable.", show_default=False),
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="A value to merge into the state: JSON, or else text; repeatable.",
        show_default=False,
    ),
]
