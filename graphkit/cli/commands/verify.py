"""Finds damage: verify."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsExists, SupportsRepair, SupportsVerify
from graphkit.cli.cells import format_bytes
from graphkit.cli.context import CliContext
from graphkit.cli.entry_logs import count_entries, make_problem_rows, verify_entries
from graphkit.cli.options import Directory, MaybeThread
from graphkit.cli.resolve import find_thread, open_store
from graphkit.cli.values import pluralize
from graphkit.cli.views import Column, Message, Table
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointKeyError,
    CheckpointNotFoundError,
)

_COLUMNS: Final = (
    Column("path", "FILE"),
    Column("state", "STATE"),
    Column("offset", "AT BYTE", "number"),
    Column("checkpoints", "READABLE", "number"),
    Column("reason", "REASON"),
)

_ADVICE_FOR_DATABASES: Final = {
    "repair": "restore a backup, or copy the other threads with graphkit copy --to",
}
"""What to do in place of a command that no saver of a database has."""
ADVICE_FOR_REFUSED: Final = {
    "foreign": "where a file is foreign, put the right one back, or let this user read it",
    "newer": "update graphkit: a newer one wrote a file",
    "sealed": "give the keys to check what is sealed: --key-file names them",
}
"""What to do about files that `repair` refuses, by their state."""


def missing_capability(saver: BaseCheckpointSaver, verb: str) -> CheckpointerConfigurationError:
    """Return the error for a saver that does not support a command."""
    name = type(saver).__name__
    is_database = isinstance(saver, SupportsExists)
    advice = _ADVICE_FOR_DATABASES.get(verb) if is_database else None
    return CheckpointerConfigurationError(f"{name} cannot {verb}; {advice or 'a checkpoint directory can'}")


def find_thread_or_files(saver: BaseCheckpointSaver, typed: str | None) -> str | None:
    """Return the thread that the user typed.

    If none of its logs can be read, the name of its directory proves the id.

    Raises:
        CheckpointNotFoundError: there is no such thread, and no directory of it.
        UsageError: several threads have the prefix.
    """
    if typed is None:
        return None
    try:
        return find_thread(saver, typed, released=True)
    except CheckpointNotFoundError:
        if has_files(saver, typed):
            return typed
        raise


def has_files(saver: BaseCheckpointSaver, thread_id: str) -> bool:
    """Return whether a store has files of a thread.

    These may be logs, readable or not, or files that a repair set aside.
    """
    if not isinstance(saver, SupportsVerify):
        return False
    report: Any = saver.verify(thread_id)
    return bool(report.threads)


def verify(context: CliContext, directory: Directory, thread: MaybeThread = None) -> Any:
    """Read every byte and report problems.

    The command changes nothing and blocks no other process. Without a THREAD, it also reads
    LangGraph's items and cached values in the directory. It exits with 12 if it finds damage, and
    with 21 if the store is sealed and a key is missing.

    Example: graphkit verify runs
    """
    saver = open_store(directory)
    if not isinstance(saver, SupportsVerify):
        raise missing_capability(saver, "verify")
    with context.progress("verifying") as progress:
        report: Any = saver.verify(find_thread_or_files(saver, thread), progress=progress)
    entry_logs = verify_entries(saver) if thread is None else {}
    problems = [*_problem_rows(report), *make_problem_rows(entry_logs)]
    is_ok = not problems
    size = report.size + sum(one.size for one in entry_logs.values())
    checkpoints = sum(file.checkpoints for one in report.threads for file in one.files)
    data = {
        "threads": len(report.threads),
        "checkpoints": checkpoints,
        **count_entries(entry_logs),
        "size": size,
        "ok": is_ok,
        "problems": problems,
    }
    summary = ", ".join(
        [
            pluralize(len(report.threads), "thread"),
            pluralize(checkpoints, "checkpoint"),
            *(pluralize(one.entries, noun) for noun, one in entry_logs.items()),
            format_bytes(size),
        ]
    )
    if is_ok:
        return Message(f"{summary}: no problems", data)
    code = 0
    advice = "the next write, or `graphkit repair`, sets a torn end aside"
    states = {row["state"] for row in problems}
    if states <= {"torn", "sealed"} and "sealed" in states:
        code = CheckpointKeyError.exit_code
        advice = "the checksums are right; give the keys to check the rest: --key-file names them"
    elif states != {"torn"}:
        code = CheckpointCorruptionError.exit_code
        advice = _advise(states)
        if not isinstance(saver, SupportsRepair):
            advice = _ADVICE_FOR_DATABASES["repair"]
    message = Message(f"{summary}: {pluralize(len(problems), 'problem')}; {advice}", data, code)
    views = [message] if context.as_json else [Table(_COLUMNS, problems, empty=""), message]
    return iter(views)


def _advise(states: AbstractSet[str]) -> str:
    """Return what to do about files in these states."""
    advice = [text for state, text in ADVICE_FOR_REFUSED.items() if state in states]
    if not states <= {"torn", *ADVICE_FOR_REFUSED}:
        advice.insert(0, "see `graphkit repair`")
    return "; ".join(advice)


def _problem_rows(report: Any) -> list[dict[str, Any]]:
    """Return the problems as plain data: the marker, files, and what a crash left unfinished."""
    rows: list[dict[str, Any]] = []
    if report.marker is not None:
        rows.append(
            {
                "thread": None,
                "path": report.marker.path,
                "state": "damaged",
                "reason": report.marker.reason,
            }
        )

    for thread in report.threads:
        rows += [_file_row(thread.thread_id, file) for file in thread.files if file.state != "ok"]
    for thread in report.threads:
        if thread.unfinished:
            state = f"unfinished {thread.unfinished}"
            rows.append({"thread": thread.thread_id, "path": thread.directory, "state": state})

    return rows


def _file_row(thread_id: str | None, file: Any) -> dict[str, Any]:
    return {
        "thread": thread_id,
        "path": file.path,
        "state": file.state,
        "offset": file.offset,
        "reason": file.reason,
        "size": file.size,
        "checkpoints": file.checkpoints,
    }


COMMANDS: Final = (verify,)
