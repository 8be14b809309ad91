"""The entry point: reads the environment of the process once, and hands it to the commands."""

from __future__ import annotations

import sys
from typing import Final

from graphkit.cli.context import CliContext
from graphkit.cli.startup import answer_to
from graphkit.errors import MissingDependencyError

_CALLS: Final = 10_000
"""So deep a stack shows whatever can be stored: values of up to 1,023 levels, with several calls a level."""


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    sys.setrecursionlimit(_CALLS)
    context = CliContext.of_process()
    try:
        import rich as rich  # noqa: PLC0414 - only whether it is there
        import typer as typer  # noqa: PLC0414 - the same
    except ImportError as error:
        sys.exit(_without_the_extra(context, MissingDependencyError(error.name or "typer", "cli")))
    from graphkit.cli.app import application

    application()(sys.argv[1:], prog_name="graphkit", obj=context)


def _without_the_extra(context: CliContext, missing: MissingDependencyError) -> int:
    """Answer what needs no command; the exit code."""
    advice = str(missing)
    said = answer_to(sys.argv[1:], advice)
    if said is None:
        context.warn(f"graphkit: {advice}")
        return missing.exit_code
    context.say(said)
    return 0
