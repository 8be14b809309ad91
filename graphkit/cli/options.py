"""Arguments and options of commands, the types of their values, and their shell completion.

A command is a function, and the annotation of a parameter says how it is typed:

    limit: Annotated[int | None, option("Show at most N threads.", "-n", "N")]

The names below are such annotations, of what several commands have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin

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


# How a parameter is typed

MakeParameter: TypeAlias = Callable[[str, Any], click.Parameter]
"""Makes the argument or the option of a parameter: of its name, and of its type."""


def option(help: str, *words: str, **settings: Any) -> MakeParameter:
    """Say that a parameter is an option; a bool is a flag, and a tuple has the values of a repeated option.

    Args:
        help: its line in the help of the command.
        words: its names, if they are not that of the parameter alone, and what stands for its value in the help.
        settings: those of click.Option.
    """

    def make(name: str, kind: Any) -> click.Parameter:
        names = [word for word in words if word.startswith("-")]
        if not any(word.startswith("--") for word in names):
            names.insert(0, f"--{name.replace('_', '-')}")
        metavar = next((word for word in words if word not in names), None)
        is_flag = True if kind is bool else None  # False would let an option do without its value
        is_repeated = get_origin(kind) is tuple
        return click.Option(
            [name, *names], help=help, metavar=metavar, is_flag=is_flag, multiple=is_repeated, **settings
        )

    return make


def argument(help: str, metavar: str | None = None, **settings: Any) -> MakeParameter:
    """Say that a parameter is an argument; one that may be None may be omitted, and a tuple has all that are left.

    Args:
        help: its line in the help of the command.
        metavar: what stands for it in the help, if not the name of the parameter.
        settings: those of click.Argument.
    """

    def make(name: str, kind: Any) -> click.Parameter:
        shape: dict[str, Any] = {}
        if get_origin(kind) is tuple:
            shape["nargs"] = -1
        elif NoneType in get_args(kind):
            shape["required"] = False
        return click.Argument([name], help=help, metavar=metavar, **shape, **settings)

    return make


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


# What several commands have

Directory: TypeAlias = Annotated[
    str,
    argument(
        "A directory, sqlite:FILE, postgres:DSN or kind:argument. Default: GRAPHKIT_DIR, or the saver of --app.", "DIR"
    ),
]
Thread: TypeAlias = Annotated[str, argument("The thread's id, or a unique prefix.", shell_complete=complete_thread)]
MaybeThread: TypeAlias = Annotated[str | None, argument("Only this thread.", shell_complete=complete_thread)]
CheckpointId: TypeAlias = Annotated[
    str | None,
    option("The checkpoint; may be shortened. Default: the latest.", "-c", "ID", shell_complete=_complete_checkpoint),
]
Namespace: TypeAlias = Annotated[str, option("The namespace of a nested graph.", "NS", default="", show_default=False)]
App: TypeAlias = Annotated[str, option("The graph, or a function that returns it.", "MODULE:OBJECT", required=True)]
MaybeApp: TypeAlias = Annotated[str | None, option("The graph, or a function that returns it.", "MODULE:OBJECT")]
Output: TypeAlias = Annotated[str, option("The file to write; - is standard output.", "-o", "FILE", default="-")]
DryRun: TypeAlias = Annotated[bool, option("Only report what would be done.")]
RunInput: TypeAlias = Annotated[
    str, option("The input, a JSON object; - reads it from standard input.", "--input", "-i", "JSON", default="{}")
]
Answer: TypeAlias = Annotated[str | None, option("The answer as JSON; - reads it from standard input.", "-v", "JSON")]
Assign: TypeAlias = Annotated[
    tuple[str, ...], option("To merge into the state: JSON, otherwise text; repeatable.", "--set", "-s", "KEY=VALUE")
]
Interval: TypeAlias = Annotated[
    float, option("The polling interval where there are no file events.", "SECONDS", type=Seconds(0.01), default=1.0)
]
