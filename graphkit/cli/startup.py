"""What the command line can do without its extra: say what it is, and which version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphkit import __version__

SUMMARY: Final = "See and steer the runs of a checkpoint directory."
COMMANDS: Final = (
    ("threads", "List the threads"),
    ("history", "List the checkpoints of a thread"),
    ("search", "Find checkpoints by their metadata"),
    ("stats", "Sum up a store or a thread"),
    ("show", "Show a checkpoint"),
    ("diff", "Tell what differs between two checkpoints"),
    ("graph", "Draw a graph"),
    ("interrupts", "List what waits for a human"),
    ("answer", "Answer a waiting run"),
    ("update", "Correct the state of a thread"),
    ("fork", "Branch a new thread off a checkpoint of another"),
    ("rollback", "Go back to an older checkpoint"),
    ("run", "Start a run"),
    ("resume", "Go on with a thread where it stands"),
    ("watch", "Follow runs live"),
    ("worker", "Serve the runs of a directory"),
    ("verify", "Read every byte and tell what is wrong"),
    ("repair", "Make damaged threads readable again"),
    ("compact", "Free the bytes of what nobody can reach any more"),
    ("prune", "Remove old checkpoints"),
    ("copy", "Copy a thread's active history into a new one"),
    ("delete", "Remove a thread with all its versions"),
    ("release", "End the active history of a thread"),
    ("export", "Write threads to a single file"),
    ("import", "Read threads from a file into a store"),
    ("import-langgraph-sqlite", "Copy LangGraph's threads from a SQLite file"),
    ("import-langgraph-postgres", "Copy LangGraph's threads from a PostgreSQL database"),
)
"""The commands and what they do, in the order of the help. A test holds them to the commands that there are."""


def version_line() -> str:
    """What `graphkit --version` prints."""
    return f"graphkit {__version__}"


def answer_to(args: Sequence[str], advice: str) -> str | None:
    """What can be said to a command line without the extra; None if a command was asked for.

    Args:
        args: what was typed after the program's name.
        advice: how to install the extra.
    """
    first = args[0] if args else "--help"
    if first == "--version":
        return version_line()
    return _help(advice) if first in {"--help", "-h"} else None


def _help(advice: str) -> str:
    width = max(len(name) for name, _ in COMMANDS)
    lines = [f"  {name:{width}}  {short}" for name, short in COMMANDS]
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
            *lines,
        ]
    )
