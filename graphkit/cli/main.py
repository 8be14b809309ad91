"""The entry point: answers --help and --version, and starts the commands."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from graphkit import __version__
from graphkit.cli.commands import format_help

_INTERRUPTED: Final = 130
_RECURSION_LIMIT: Final = 10_000
"""Stored values have up to 1,023 levels, and showing them takes several calls per level."""


def main() -> None:
    """Run the command line of this process, and exit with its code."""
    args = sys.argv[1:]
    missing = None
    absent = [package for package in ("click", "rich") if find_spec(package) is None]
    if absent:
        from graphkit.errors import MissingDependencyError

        missing = MissingDependencyError(absent[0], "cli")
    if args[:1] in (["--help"], ["-h"]) or (missing and not args):
        sys.stdout.write(format_help(str(missing or "")) + "\n")
        return
    if args[:1] == ["--version"]:
        sys.stdout.write(f"graphkit {__version__}\n")
        return
    if missing is not None:
        sys.stderr.write(f"graphkit: {missing}\n")
        sys.exit(missing.exit_code)
    try:
        from graphkit.cli.app import run
        from graphkit.cli.context import CliContext

        sys.setrecursionlimit(_RECURSION_LIMIT)
        code = run(args, CliContext.of_process())
    except KeyboardInterrupt:  # during the imports, too
        code = _INTERRUPTED
    sys.exit(code)
