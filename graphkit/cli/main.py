"""The entry point: looks at the world once, and hands it to the commands."""

from __future__ import annotations

import sys
from typing import Final

from graphkit.cli.world import World
from graphkit.errors import MissingDependencyError

_CALLS: Final = 10_000
"""So deep a stack shows whatever can be stored: values of up to 1,023 levels, with several calls a level."""


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    sys.setrecursionlimit(_CALLS)
    world = World.of_process()
    try:
        import rich as rich  # noqa: PLC0414 - only whether it is there
        import typer as typer  # noqa: PLC0414 - the same
    except ImportError as error:
        print(f"graphkit: {MissingDependencyError(error.name or 'typer', 'cli')}", file=sys.stderr)  # noqa: T201 - nothing else is there to say it
        sys.exit(MissingDependencyError.exit_code)
    from graphkit.cli.app import application

    application()(sys.argv[1:], prog_name="graphkit", obj=world)
