"""The entry point: reads the process's environment once, and passes it to the commands."""

from __future__ import annotations

import sys
from typing import Final

from graphkit.cli.context import CliContext
from graphkit.cli.startup import respond_without_extra
from graphkit.errors import MissingDependencyError

_RECURSION_LIMIT: Final = 10_000
"""Stored values have up to 1,023 levels, and showing them takes several calls per level."""


def main() -> None:
    """Run the command line of this process, and exit with its code."""
    sys.setrecursionlimit(_RECURSION_LIMIT)
    context = CliContext.of_process()
    try:
        import rich as rich  # noqa: PLC0414 - only to learn whether it is installed
        import typer as typer  # noqa: PLC0414 - the same
    except ImportError as error:
        missing = MissingDependencyError(error.name or "typer", "cli")
        sys.exit(_run_without_extra(context, missing))
    from graphkit.cli.app import application

    application()(sys.argv[1:], prog_name="graphkit", obj=context)


def _run_without_extra(context: CliContext, missing: MissingDependencyError) -> int:
    """Print the help or the version, or else the missing extra; return the exit code."""
    advice = str(missing)
    response = respond_without_extra(sys.argv[1:], advice)
    if response is None:
        context.warn(f"graphkit: {advice}")
        return missing.exit_code
    context.write_line(response)
    return 0
