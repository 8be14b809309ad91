"""Arguments and options that several commands have, the types of their values, and their shell completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

import click

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.cli.stores import open_store
from graphkit.errors import GraphKitError

# Types of values

ROWS: Final = click.IntRange(1, 10**9)
"""How many rows to show."""


class Seconds(click.FloatRange):
    """A number of seconds: not infinite, and not NaN, which no limit refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not isfinite(seconds):
            self.fail(f"{seconds} is not a number of seconds", param, ctx)
        return seconds


# Completion


def complete_thread(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the threads of the directory on the command line that begin with the text."""
    return _complete(ctx, incomplete, lambda saver, _: saver.threads())


def _complete_checkpoint(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the checkpoint ids of the thread on the command line that begin with the text."""
    return _complete(ctx, incomplete, lambda saver, thread: [info.id for info in saver.history(RunnableConfig(thread))])


def _complete(
    ctx: click.Context, incomplete: str, list_ids: Callable[[BaseCheckpointSaver, str], Sequence[str]]
) -> list[str]:
    """Return the ids that a store has for the directory and the thread typed so far; none if it cannot be read."""
    # While a line is completed, it may lack arguments that the parser requires, and have any number of options between
    # them. What the parser has assigned comes first, then what it has left over.
    parsed = [ctx.params.get("directory"), ctx.params.get("thread")]
    words = [word for word in parsed if word]
    words += ctx.args  # what the parser has not assigned to parameters
    directory, thread, *_ = (*words, "", "")
    try:
        ids = list_ids(open_store(directory), thread)
    except (GraphKitError, OSError):
        return []
    return [each for each in ids if each.startswith(incomplete)]


# Arguments and options, as decorators

directory = click.argument(
    "directory",
    metavar="DIR",
    help="The checkpoint directory, sqlite:FILE, postgres:DSN, or kind:argument for another saver. Can be omitted if "
    "GRAPHKIT_DIR is set, or if the graph of --app has a saver.",
)
thread = click.argument("thread", help="The thread's id, or a unique prefix of it.", shell_complete=complete_thread)
maybe_thread = click.argument("thread", required=False, help="Only this thread.", shell_complete=complete_thread)
checkpoint_id = click.option(
    "--checkpoint",
    "-c",
    metavar="ID",
    help="The checkpoint, shortened to a unique beginning or end. Default: the latest.",
    shell_complete=_complete_checkpoint,
)
namespace = click.option("--ns", metavar="NS", default="", help="The namespace of a nested graph.", show_default=False)
app = click.option("--app", metavar="MODULE:OBJECT", required=True, help="The graph, or a function that returns it.")
maybe_app = click.option("--app", metavar="MODULE:OBJECT", help="The graph, or a function that returns it.")
output = click.option(
    "--output", "-o", metavar="FILE", default="-", help="The file to write; - is standard output.", show_default=False
)
dry_run = click.option("--dry-run", is_flag=True, help="Only report what would be done.")
run_input = click.option(
    "--input",
    "-i",
    "given",
    metavar="JSON",
    default="{}",
    help="The input of the run: a JSON object; - reads it from standard input.",
)
assign = click.option(
    "--set",
    "-s",
    "assign",
    metavar="KEY=VALUE",
    multiple=True,
    help="A value to merge into the state: JSON, otherwise text; repeatable.",
)
interval = click.option(
    "--interval",
    type=Seconds(0.01),
    default=1.0,
    metavar="SECONDS",
    help="The polling interval where there are no file events.",
)
