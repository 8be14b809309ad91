"""The entry point: answers --help and --version, and starts the commands."""

from __future__ import annotations

import os
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
    _open_closed_streams()
    code = 0
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:  # during the imports, too
        code = _INTERRUPTED
    except OSError as error:  # commands handle theirs; this is one of the help, or of the completion
        from graphkit.errors import CheckpointStorageError

        # The interpreter flushes again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        failure = CheckpointStorageError(error.filename or "the output", "write", error)
        is_reported = code == failure.exit_code  # by the command, which has failed to write the same
        if not is_reported and not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"graphkit: {failure}\n")
            code = failure.exit_code
    sys.exit(code)


def _run(args: list[str]) -> int:
    missing = None
    absent = [package for package in ("click", "rich") if find_spec(package) is None]
    if absent:
        from graphkit.errors import MissingDependencyError

        missing = MissingDependencyError(absent[0], "cli")
    if args[:1] in (["--help"], ["-h"]) or (missing and not args):
        sys.stdout.write(format_help(str(missing or "")) + "\n")
        return 0
    if args[:1] == ["--version"]:
        sys.stdout.write(f"graphkit {__version__}\n")
        return 0
    if missing is not None:
        sys.stderr.write(f"graphkit: {missing}\n")
        return missing.exit_code
    from graphkit.cli.app import run
    from graphkit.cli.context import CliContext

    sys.setrecursionlimit(_RECURSION_LIMIT)
    return run(args, CliContext.of_process())


def _open_closed_streams() -> None:
    """Open the null device in place of the standard streams that the caller has closed."""
    # As daemons do. Otherwise the next files that are opened get the numbers of the streams, and what signal handlers
    # and libraries write to standard error lands in a log of the store.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))
