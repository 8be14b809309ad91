"""The entry point: answers --help and --version, and starts the commands."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from graphkit import __version__
from graphkit.cli.commands import format_help

if TYPE_CHECKING:
    from graphkit.errors import MissingDependencyError

_INTERRUPTED: Final = 130
_RECURSION_LIMIT: Final = 10_000
"""Stored values have up to 1,023 levels, and showing them takes several calls per level."""


def main() -> None:
    """Run the command line of this process, and exit with its code."""
    args = sys.argv[1:]
    missing = _find_missing_package()
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
        from graphkit.cli.command import run
        from graphkit.cli.context import CliContext

        sys.setrecursionlimit(_RECURSION_LIMIT)
        code = run(args, CliContext.of_process())
    except KeyboardInterrupt:  # during the imports, too
        code = _INTERRUPTED
    sys.exit(code)


def _find_missing_package() -> MissingDependencyError | None:
    """Return the error about a package of the extra that is not installed, without importing any."""
    for package in ("click", "rich"):
        if find_spec(package) is None:
            from graphkit.errors import MissingDependencyError

            return MissingDependencyError(package, "cli")
    return None
