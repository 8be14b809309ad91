"""Finds and repairs damage: verify, repair."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any, Final, final

import click

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, SupportsExists, SupportsRepair, SupportsVerify
from graphkit.cli import options
from graphkit.cli.cells import format_bytes
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.resolve import find_thread
from graphkit.cli.stores import ENTRY_DIRECTORIES, open_store
from graphkit.cli.values import escape, pluralize
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


@click.command("verify", cls=Command)
@options.directory
@options.maybe_thread
def verify(context: CliContext, directory: str, thread: str | None) -> Any:
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


# repair

_ADVICE_AFTER_LOSS: Final = (
    "restore the lost histories from a backup; `graphkit delete` removes a thread with its copies"
)
_MAX_DETAILS: Final = 10
"""The losses of a log that the report lists; JSON has all of them."""


@click.command("repair", cls=Command)
@options.directory
@options.maybe_thread
@options.dry_run
def repair(context: CliContext, directory: str, thread: str | None, dry_run: bool) -> Message:
    """Make damaged threads readable again, with every checkpoint that can still be rebuilt.

    The command sets the old bytes aside. For each thread it reports what it kept, what is lost and
    where the copy of the old bytes is; with --dry-run it reports this without changing anything. It
    exits with 12 if it could not repair a damaged history, or could keep nothing of it. Without a
    THREAD, it also repairs the logs of LangGraph's items and cached values in the directory.

    Example: graphkit repair runs order-17 --dry-run
    """
    saver = open_store(directory)
    only = find_thread_or_files(saver, thread)
    if not isinstance(saver, SupportsRepair):
        raise missing_capability(saver, "repair")
    title = "checking" if dry_run else "repairing"
    with context.progress(title) as progress:
        report: Any = saver.repair(only, dry_run=dry_run, progress=progress)
    root = Path(saver.base_directory) if isinstance(saver, HasBaseDirectory) else Path()
    entry_logs = repair_entries(saver, dry_run=dry_run) if thread is None else {}
    lines = list(make_repair_lines(entry_logs, root, dry_run=dry_run))
    if report.files or report.changed or not entry_logs:
        lines = [*_ReportText(report, root).lines(), *lines]
    data = _report_data(report)
    data["entry_logs"] = make_repair_rows(entry_logs)
    code = 0
    if not report.ok or report.total_losses or has_total_loss(entry_logs):
        code = CheckpointCorruptionError.exit_code
    return Message("\n".join(lines), data, code)


def _by_thread(files: Sequence[Any]) -> dict[str, list[Any]]:
    """Group files by the directory of their thread, since the id may not be readable."""
    threads: dict[str, list[Any]] = {}
    for file in files:
        directory = Path(file.before.path).parts[0]
        threads.setdefault(directory, []).append(file)
    return threads


def _loss_lines(file: Any) -> Iterator[str]:
    for loss in file.lost[:_MAX_DETAILS]:
        where = f"byte {loss.offset}"
        if loss.checkpoint_id is not None:
            checkpoint = escape(loss.checkpoint_id)
            where = f"checkpoint {checkpoint}, {where}"
        yield f"    lost: {where}: {loss.reason}"

    hidden = len(file.lost) - _MAX_DETAILS
    if hidden > 0:
        yield f"    lost: {hidden} more; --json lists all"


def _losses(files: Sequence[Any]) -> Iterator[Any]:
    for file in files:
        yield from file.lost


def _lost_records(files: Sequence[Any]) -> int:
    """Return how many records are lost, at least; a loss of unknown size counts as one."""
    count = 0
    for loss in _losses(files):
        count += 1 if loss.records is None else loss.records
    return count


def _describe_loss(files: Sequence[Any]) -> str:
    losses = list(_losses(files))
    if not losses:
        return "nothing"
    records = pluralize(_lost_records(files), "record")
    if any(loss.records is None for loss in losses):
        return f"at least {records}"
    return records


@final
class _ReportText:
    """The report of a repair as lines of text: what it did, or what it would do."""

    def __init__(self, report: Any, root: Path) -> None:
        self._report = report
        self._root = root
        self._threads = _by_thread(report.files)

    def _verb(self, conditional: str, past: str) -> str:
        return f"would {conditional}" if self._report.dry_run else past

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        for directory, files in self._threads.items():
            yield from self._thread_lines(directory, files)
        yield from self._store_lines()
        yield from self._summary_lines()

    def _thread_lines(self, directory: str, files: Sequence[Any]) -> Iterator[str]:
        thread_id = files[0].thread_id
        name = directory if thread_id is None else escape(thread_id)
        result = self._verb("not be repaired", "not repaired")
        attempted = [file for file in files if not file.refused]
        if attempted:
            result = self._balance(attempted)
        yield f"{name}: {result}"
        for file in files:
            yield from self._file_lines(file)

    def _balance(self, files: Sequence[Any]) -> str:
        """Return what is kept and what is lost, in numbers."""
        keep = self._verb("keep", "kept")
        lose = self._verb("lose", "lost")
        count = sum(file.kept for file in files)
        kept = pluralize(count, "checkpoint") if count else "nothing"
        return f"{keep} {kept}, {lose} {_describe_loss(files)}"

    def _file_lines(self, file: Any) -> Iterator[str]:
        before = file.before
        path = escape(before.path)
        yield f"  {path}: {before.state} at byte {before.offset}: {before.reason}"
        if file.refused and file.refused != before.reason:
            yield f"    because {file.refused}"
        if file.corrected:
            verb = self._verb("correct", "corrected")
            bits = pluralize(len(file.corrected), "flipped bit")
            offsets = ", ".join(map(str, file.corrected[:_MAX_DETAILS]))
            yield f"    {verb} {bits}, at byte {offsets}"

        yield from _loss_lines(file)
        if file.set_aside:
            verb = self._verb("copy the old bytes to", "the old bytes are in")
            copy = escape(str(self._root / file.set_aside))
            yield f"    {verb} {copy}"

    def _store_lines(self) -> Iterator[str]:
        """Yield what was done to the store besides its logs."""
        report = self._report
        if report.finished:
            verb = self._verb("finish", "finished")
            names = ", ".join(map(escape, report.finished))
            yield f"{verb} the release or delete of {names}"
        if report.marker is not None:
            verb = self._verb("rewrite", "rewrote")
            yield f"{verb} the store's marker: {report.marker.reason}"
        if report.removed:
            verb = self._verb("remove", "removed")
            leftovers = pluralize(len(report.removed), "leftover")
            yield f"{verb} {leftovers} of crashed processes"

    def _summary_lines(self) -> Iterator[str]:
        """Yield how many threads are readable again, and what is left to do."""
        if not self._threads:
            if not self._report.changed:
                state = "is" if self._report.dry_run else "was"
                yield f"nothing {state} damaged"
            return

        total = len(self._threads)
        repaired = 0
        for files in self._threads.values():
            has_failed = any(file.refused or file.is_total_loss for file in files)
            if not has_failed:
                repaired += 1

        verb = self._verb("repair", "repaired")
        if repaired == total:
            yield f"{verb} {pluralize(repaired, 'thread')}"
        elif repaired:
            yield f"{verb} {repaired} of {total} threads"
        else:
            yield f"{verb} nothing"

        if self._report.total_losses:
            yield _ADVICE_AFTER_LOSS
        refused = {file.before.state for file in self._report.files if file.refused}
        for state in sorted(refused.intersection(ADVICE_FOR_REFUSED)):
            yield ADVICE_FOR_REFUSED[state]


def _report_data(report: Any) -> dict[str, Any]:
    threads = []
    for directory, files in _by_thread(report.files).items():
        threads.append(
            {
                "thread": files[0].thread_id,
                "directory": directory,
                "kept": sum(file.kept for file in files),
                "lost": _lost_records(files),
                "files": [_file_data(file) for file in files],
            }
        )

    return {
        "dry_run": report.dry_run,
        "threads": threads,
        "finished": list(report.finished),
        "removed": list(report.removed),
        "marker": None if report.marker is None else report.marker.reason,
    }


def _file_data(file: Any) -> dict[str, Any]:
    lost = [
        {
            "checkpoint": loss.checkpoint_id,
            "offset": loss.offset,
            "reason": loss.reason,
            "records": loss.records,
        }
        for loss in file.lost
    ]
    return {
        "path": file.before.path,
        "state": file.before.state,
        "offset": file.before.offset,
        "reason": file.before.reason,
        "kept": file.kept,
        "lost": lost,
        "set_aside": file.set_aside,
        "refused": file.refused,
    }


# The logs of LangGraph's store and cache in a checkpoint directory

_JSON_KEYS: Final = {"item": "items", "cached value": "cached_values"}


def verify_entries(saver: BaseCheckpointSaver) -> Mapping[str, Any]:
    """Return the report of each of these logs in the directory of a saver, by what its entries are called."""
    directory = _find_directory(saver)
    if directory is None:
        return {}
    reports: Mapping[str, Any] = _load_maintenance().verify_entries(directory)
    return reports


def repair_entries(saver: BaseCheckpointSaver, *, dry_run: bool) -> Mapping[str, Any]:
    """Repair these logs; return what was done to each that has a problem, or would be done."""
    directory = _find_directory(saver)
    if directory is None:
        return {}
    repairs: Mapping[str, Any] = _load_maintenance().repair_entries(directory, dry_run=dry_run)
    return repairs


def _find_directory(saver: BaseCheckpointSaver) -> Path | None:
    """Return the directory of a saver if it has a store or a cache."""
    if not isinstance(saver, HasBaseDirectory):
        return None
    directory = Path(saver.base_directory)
    if any((directory / name).is_dir() for name in ENTRY_DIRECTORIES):
        return directory
    return None


def _load_maintenance() -> Any:
    # By name, since graphkit does not import savers.
    return importlib.import_module("savers.langgraph.maintenance")


def count_entries(reports: Mapping[str, Any]) -> dict[str, int]:
    """Return how many entries can be read, as in the JSON of verify."""
    counts = dict.fromkeys(_JSON_KEYS.values(), 0)
    for noun, report in reports.items():
        counts[_JSON_KEYS[noun]] = report.entries
    return counts


def make_problem_rows(reports: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the problems of the logs as rows of verify."""
    for report in reports.values():
        if not report.ok:
            yield {
                "thread": None,
                "path": report.path,
                "state": report.state,
                "offset": report.offset,
                "reason": report.reason,
                "size": report.size,
                "entries": report.entries,
            }


def make_repair_lines(repairs: Mapping[str, Any], root: Path, *, dry_run: bool) -> Iterator[str]:
    """Yield lines that tell what a repair did, or would do."""
    for noun, repair in repairs.items():
        before = repair.before
        directory = Path(before.path).parts[0]
        if repair.refused:
            result = "would not be repaired" if dry_run else "not repaired"
        else:
            keep, lose = ("would keep", "would lose") if dry_run else ("kept", "lost")
            kept = pluralize(repair.kept, noun)
            lost = pluralize(before.lost, "byte") if before.lost else "nothing"
            result = f"{keep} {kept}, {lose} {lost}"
        yield f"{directory}: {result}"
        yield f"  {escape(before.path)}: {before.state} at byte {before.offset}: {before.reason}"
        if repair.set_aside:
            yield f"    the old bytes are in {escape(str(root / repair.set_aside))}"
        elif dry_run and not repair.refused:
            yield "    would copy the old bytes to a file beside it"


def make_repair_rows(repairs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a repair did as plain data."""
    return [
        {
            "path": repair.before.path,
            "state": repair.before.state,
            "offset": repair.before.offset,
            "reason": repair.before.reason,
            "kept": repair.kept,
            "lost_bytes": repair.before.lost,
            "set_aside": repair.set_aside,
            "refused": repair.refused,
        }
        for repair in repairs.values()
    ]


def has_total_loss(repairs: Mapping[str, Any]) -> bool:
    """Return whether a log could not be repaired, or nothing of a damaged one could be kept."""
    for repair in repairs.values():
        if repair.refused:
            return True
        if repair.before.state == "damaged" and not repair.kept:
            return True
    return False
