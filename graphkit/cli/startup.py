"""What works without the extra `cli`: --help and --version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphkit import __version__

SUMMARY: Final = "Inspect and control the runs of a checkpoint directory."
COMMANDS: Final = (
    ("threads", "List the threads of a store"),
    ("history", "List the checkpoints of a thread"),
    ("search", "Find checkpoints by their metadata"),
    ("stats", "Sum up a store or a thread"),
    ("show", "Show a checkpoint"),
    ("diff", "Compare two checkpoints"),
    ("graph", "Draw a graph"),
    ("interrupts", "List the pending interrupts"),
    ("answer", "Answer a pending interrupt"),
    ("update", "Correct the state of a thread"),
    ("fork", "Branch a new thread off a checkpoint"),
    ("rollback", "Go back to an older checkpoint"),
    ("run", "Start a run"),
    ("resume", "Resume a thread"),
    ("watch", "Follow runs live"),
    ("worker", "Serve the runs of a directory"),
    ("verify", "Read every byte and report problems"),
    ("repair", "Make damaged threads readable again"),
    ("compact", "Free the bytes of replaced data"),
    ("rotate", "Seal everything with the current key"),
    ("prune", "Remove old checkpoints"),
    ("delete", "Remove a thread with all its versions"),
    ("release", "End the active history of a thread"),
    ("copy", "Copy threads to another store"),
    ("export", "Write threads to a single file"),
    ("import", "Read threads from a file into a store"),
    ("import-langgraph-sqlite", "Copy LangGraph's threads from a SQLite file"),
    (
        "import-langgraph-postgres",
        "Copy LangGraph's threads from PostgreSQL",
    ),
    ("export-langgraph-sqlite", "Copy LangGraph's threads to a SQLite file"),
    ("agents-schema", "Print the JSON schema of agent files"),
    ("agents-check", "Check an agent file"),
    ("agents-run", "Run a conversation with an agent"),
)
"""The commands with their short help, in the order of the help. A test compares them with those of
the application."""


def version_line() -> str:
    """Return what `graphkit --version` prints."""
    return f"graphkit {__version__}"


def respond_without_extra(args: Sequence[str], advice: str) -> str | None:
    """Return the answer to a command line that needs no extra; None if it names a command.

    Args:
        args: the words after the program's name.
        advice: how to install the extra.
    """
    first = args[0] if args else "--help"
    if first == "--version":
        return version_line()
    if first in {"--help", "-h"}:
        return _help(advice)
    return None


def _help(advice: str) -> str:
    width = max(len(name) for name, _ in COMMANDS)
    commands = [f"  {name:{width}}  {short_help}" for name, short_help in COMMANDS]
    return "\n".join(
        [
            "Usage: graphkit [OPTIONS] COMMAND [ARGS]...",
            "",
            f"  {SUMMARY}",
            "",
            f"  The commands need an extra: {advice}",
            "",
            "Options:",
            "  --version   Print the version.",
            "  -h, --help  Show this message and exit.",
            "",
            "Commands:",
            *commands,
        ]
    )
