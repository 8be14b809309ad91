"""The commands of graphkit: where each one is, and its line in the help.

A command is the function of its name in its module, such as `audit_list`. Names and lines stand here so that
the help, and a command that does not exist, need no import of any command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command."""

    module: str
    """The module below this package that has it."""
    summary: str
    """Its line in the help."""


GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Look": {
        "threads": Entry("threads", "List the threads of a store"),
        "history": Entry("threads", "List the checkpoints of a thread"),
        "search": Entry("threads", "Find checkpoints by their metadata"),
        "stats": Entry("threads", "Sum up a store or a thread"),
        "show": Entry("inspect", "Show a checkpoint"),
        "diff": Entry("inspect", "Compare two checkpoints"),
        "graph": Entry("inspect", "Draw a graph"),
    },
    "Answer and change": {
        "interrupts": Entry("control", "List the pending interrupts"),
        "answer": Entry("control", "Answer a pending interrupt"),
        "update": Entry("control", "Correct the state of a thread"),
        "fork": Entry("control", "Branch a new thread off a checkpoint"),
        "rollback": Entry("control", "Go back to an older checkpoint"),
    },
    "Run": {
        "run": Entry("run", "Start a run"),
        "submit": Entry("run", "Store a run for a worker to begin"),
        "resume": Entry("run", "Resume a thread"),
        "pause": Entry("control", "Stop the run of a thread before its next node"),
        "cancel": Entry("control", "Cancel the run of a thread"),
        "worker": Entry("run", "Serve the runs of a directory"),
        "schedule-add": Entry("run", "Submit a run at each time of a cron expression"),
        "schedule-list": Entry("run", "List the schedules of a store"),
        "schedule-remove": Entry("run", "Remove a schedule"),
        "watch": Entry("watch", "Follow runs live"),
        "wait": Entry("watch", "Wait until a thread has finished"),
    },
    "Keep healthy": {
        "verify": Entry("damage", "Read every byte and report problems"),
        "repair": Entry("damage", "Make damaged threads readable again"),
        "compact": Entry("maintain", "Free the bytes of replaced data"),
        "rotate": Entry("maintain", "Seal everything with the current key"),
        "prune": Entry("maintain", "Remove old checkpoints"),
        "delete": Entry("maintain", "Remove a thread with all its versions"),
        "erase": Entry("maintain", "Delete threads, and leave no byte of them"),
        "release": Entry("maintain", "End the active history of a thread"),
    },
    "Audit": {
        "audit-list": Entry("audit", "List who did what, when, and how it ended"),
        "audit-verify": Entry("audit", "Find what was changed in a log or its store"),
        "audit-export": Entry("audit", "Write the entries of a log as JSON lines"),
    },
    "Move": {
        "copy": Entry("transfer", "Copy threads to another store"),
        "export": Entry("transfer", "Write threads to a single file"),
        "import": Entry("transfer", "Read threads from a file into a store"),
        "import-langgraph-sqlite": Entry("transfer", "Copy LangGraph's threads from a SQLite file"),
        "import-langgraph-postgres": Entry("transfer", "Copy LangGraph's threads from PostgreSQL"),
        "export-langgraph-sqlite": Entry("transfer", "Copy LangGraph's threads to a SQLite file"),
    },
    "Agents": {
        "agents-schema": Entry("agents", "Print the JSON schema of agent files"),
        "agents-check": Entry("agents", "Check an agent file"),
        "agents-run": Entry("agents", "Run a conversation with an agent"),
    },
}
"""All commands by name, in the groups and in the order of the help and of docs/cli.md."""
COMMANDS: Final[Mapping[str, Entry]] = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def format_help(advice: str = "") -> str:
    """Return what `graphkit --help` prints.

    Args:
        advice: how to install the extra `cli`, if it is missing.
    """
    lines = [
        "Usage: graphkit [OPTIONS] COMMAND [ARGS]...",
        "",
        "  Inspect and control the runs of a checkpoint directory.",
        "",
    ]
    if advice:
        lines += [f"  The commands need an extra: {advice}", ""]

    lines += [
        "Options:",
        "  --version             Print the version.",
        "  -h, --help            Show this message and exit.",
    ]
    width = max(map(len, COMMANDS))
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:{width}}  {entry.summary}" for name, entry in commands.items()]
    return "\n".join(lines)
