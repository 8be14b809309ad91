"""Finds and repairs damage: verify, repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, SupportsExists, SupportsRepair, SupportsVerify
from graphkit.cli.cells import Row, format_bytes
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeThread
from graphkit.cli.render import Column, Message, Table
from graphkit.cli.resolve import find_only
from graphkit.cli.stores import call_for_entries, open_store
from graphkit.cli.values import escape, pluralize
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
_PROBLEM: Final = ("path", "state", "offset", "reason")
"""The fields of a report on a log that say what is wrong with it."""
_ENTRY_KEYS: Final = {"item": "items", "cached value": "cached_values"}
"""What the entries of LangGraph's store and cache are called, and their keys in JSON."""
_ADVICE_FOR_DATABASES: Final = "restore a backup, or copy the other threads with graphkit copy --to"
"""What to do in place of a repair, which no saver of a database has."""
_ADVICE_FOR_REFUSED: Final = {
    "foreign": "where a file is foreign, put the right one back, or let this user read it",
    "newer": "update graphkit: a newer one wrote a file",
    "sealed": "give the keys to check what is sealed: --key-file names them",
}
"""What to do about files that `repair` refuses, by their state."""
_ADVICE_AFTER_LOSS: Final = (
    "restore the lost histories from a backup; `graphkit delete` removes a thread with its copies"
)
_MAX_DETAILS: Final = 10
"""The losses of a log that the report lists; JSON has all of them."""


def missing_capability(saver: BaseCheckpointSaver, verb: str) -> CheckpointerConfigurationError:
    """Return the error for a saver that does not support a command."""
    advice = "a checkpoint directory can"
    if verb == "repair" and isinstance(saver, SupportsExists):  # a database
        advice = _ADVICE_FOR_DATABASES
    return CheckpointerConfigurationError(f"{type(saver).__name__} cannot {verb}; {advice}")


def find_thread_or_files(saver: BaseCheckpointSaver, typed: str | None) -> str | None:
    """Return the thread that the user typed; None stands for all threads.

    If none of its logs can be read, or it has only files that a repair set aside, the name of its
    directory proves the id.

    Raises:
        CheckpointNotFoundError: there is no such thread, and no directory of it.
        UsageError: several threads have the prefix.
    """
    # A lookup that fails may mean that the thread is too damaged to be listed. The name of a directory is a hash of its
    # thread's id, so that a saver can tell whether a directory is that of the id that the user typed.
    try:
        return find_only(saver, typed, released=True)
    except CheckpointNotFoundError:
        if isinstance(saver, SupportsVerify):
            report: Any = saver.verify(typed)
            if report.threads:
                return typed
        raise


def verify(context: CliContext, directory: Directory, thread: MaybeThread) -> Message:
    """Read every byte and report problems.

    The command changes nothing and blocks no other process. Without a THREAD, it also reads
    LangGraph's items and cached values in the directory. It exits with 12 if it finds damage, and
    with 21 if the store is sealed and a key is missing.

    Example: graphkit verify runs
    """
    saver = open_store(directory)
    if not isinstance(saver, SupportsVerify):
        raise missing_capability(saver, "verify")
    only = find_thread_or_files(saver, thread)
    with context.progress("verifying") as progress:
        report: Any = saver.verify(only, progress=progress)
    entry_logs = call_for_entries(saver, "verify_entries") if thread is None else {}

    problems = list(_problem_rows(report, entry_logs))
    data: Row = {
        "threads": len(report.threads),
        "checkpoints": sum(file.checkpoints for thread in report.threads for file in thread.files),
        **dict.fromkeys(_ENTRY_KEYS.values(), 0),
        "size": report.size,
    }
    for noun, log in entry_logs.items():
        data[_ENTRY_KEYS[noun]] = log.entries
        data["size"] += log.size
    counts = [
        pluralize(data["threads"], "thread"),
        pluralize(data["checkpoints"], "checkpoint"),
        *(pluralize(log.entries, noun) for noun, log in entry_logs.items()),
        format_bytes(data["size"]),
    ]
    summary = ", ".join(counts)
    data["erased"] = len(report.erased)
    if report.erased:
        summary += f", {pluralize(len(report.erased), 'log')} erased"
    data["ok"] = not problems
    data["problems"] = problems
    if not problems:
        return Message(f"{summary}: no problems", data)

    code, advice = _judge(saver, {row["state"] for row in problems})
    found = pluralize(len(problems), "problem")
    return Message(f"{summary}: {found}; {advice}", data, code, table=Table(_COLUMNS, problems))


def _judge(saver: BaseCheckpointSaver, states: AbstractSet[str]) -> tuple[int, str]:
    """Return the exit code for logs in these states, and what to do about them."""
    # A torn end is what a crash leaves of a put that had not returned. Nothing that was acknowledged is lost.
    if states == {"torn"}:
        return 0, "the next write, or `graphkit repair`, sets a torn end aside"
    if states <= {"torn", "sealed"}:
        advice = "the checksums are right; give the keys to check the rest: --key-file names them"
        return CheckpointKeyError.exit_code, advice
    code = CheckpointCorruptionError.exit_code
    if not isinstance(saver, SupportsRepair):
        return code, _ADVICE_FOR_DATABASES
    advices = [text for state, text in _ADVICE_FOR_REFUSED.items() if state in states]
    if not states <= {"torn", *_ADVICE_FOR_REFUSED}:
        advices.insert(0, "see `graphkit repair`")
    return code, "; ".join(advices)


def _problem_rows(report: Any, entry_logs: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the problems as plain data: the marker, files, what a crash left unfinished, and LangGraph's logs."""
    if report.marker is not None:
        yield {"thread": None, "state": "damaged", **_pick(report.marker, "path", "reason")}
    for thread in report.threads:
        for file in thread.files:
            if file.state not in {"ok", "erased"}:
                yield {"thread": thread.thread_id, **_pick(file, *_PROBLEM, "size", "checkpoints")}

    for thread in report.threads:
        if thread.unfinished:
            yield {
                "thread": thread.thread_id,
                "path": thread.directory,
                "state": f"unfinished {thread.unfinished}",
            }

    for log in entry_logs.values():
        if not log.ok:
            yield {"thread": None, **_pick(log, *_PROBLEM, "size", "entries")}


def repair(context: CliContext, directory: Directory, thread: MaybeThread, dry_run: DryRun) -> Message:
    """Make damaged threads readable again, with every checkpoint that can still be rebuilt.

    The command sets the old bytes aside. For each thread it reports what it kept, what is lost and
    where the copy of the old bytes is; with --dry-run it reports this without changing anything. It
    exits with 12 if it could not repair a damaged history, or could keep nothing of it. Without a
    THREAD, it also repairs the logs of LangGraph's items and cached values in the directory.

    Example: graphkit repair runs order-17 --dry-run
    """
    saver = open_store(directory)
    if not isinstance(saver, SupportsRepair):
        raise missing_capability(saver, "repair")
    only = find_thread_or_files(saver, thread)
    with context.progress("checking" if dry_run else "repairing") as progress:
        report: Any = saver.repair(only, dry_run=dry_run, progress=progress)
    entry_logs = call_for_entries(saver, "repair_entries", dry_run=dry_run) if thread is None else {}

    root = Path(saver.base_directory) if isinstance(saver, HasBaseDirectory) else Path()
    text = _RepairText(root=root, dry_run=dry_run)
    lines: list[str] = []
    if report.files or report.changed or not entry_logs:
        lines += text.describe_store(report)
    lines += text.describe_entries(entry_logs)
    data = _report_data(report, entry_logs)
    # A log that could not be repaired, or of which nothing could be kept although it was damaged.
    has_lost_entries = any(
        log.refused or (log.before.state == "damaged" and not log.kept) for log in entry_logs.values()
    )
    is_ok = report.ok and not report.total_losses and not has_lost_entries
    return Message("\n".join(lines), data, 0 if is_ok else CheckpointCorruptionError.exit_code)


def _group_by_thread(files: Sequence[Any]) -> dict[str, list[Any]]:
    """Group files by the directory of their thread, since the id may not be readable."""
    threads: dict[str, list[Any]] = {}
    for file in files:
        directory = Path(file.before.path).parts[0]
        threads.setdefault(directory, []).append(file)
    return threads


def _count_lost_records(files: Sequence[Any]) -> int:
    """Return how many records are lost, at least; a loss of unknown size counts as one."""
    known = [loss.records for file in files for loss in file.lost]
    return sum(1 if records is None else records for records in known)


@final
@dataclass(frozen=True, kw_only=True)
class _RepairText:
    """Describes a repair: what it did, or what it would do."""

    root: Path
    dry_run: bool

    def _verb(self, conditional: str, past: str) -> str:
        return f"would {conditional}" if self.dry_run else past

    def describe_store(self, report: Any) -> Iterator[str]:
        """Yield what was done to each thread and to the store, and what is left to do."""
        threads = _group_by_thread(report.files)
        for directory, files in threads.items():
            yield from self._describe_thread(directory, files)

        if report.finished:
            names = ", ".join(map(escape, report.finished))
            yield f"{self._verb('finish', 'finished')} the release or delete of {names}"
        if report.marker is not None:
            yield f"{self._verb('rewrite', 'rewrote')} the store's marker: {report.marker.reason}"
        if report.removed:
            leftovers = pluralize(len(report.removed), "leftover")
            yield f"{self._verb('remove', 'removed')} {leftovers} of crashed processes"

        if threads:
            has_failed = [any(file.refused or file.is_total_loss for file in files) for files in threads.values()]
            repaired = has_failed.count(False)
            what = "nothing"
            if repaired == len(threads):
                what = pluralize(repaired, "thread")
            elif repaired:
                what = f"{repaired} of {len(threads)} threads"
            yield f"{self._verb('repair', 'repaired')} {what}"
        elif not report.changed:
            yield "nothing is damaged" if self.dry_run else "nothing was damaged"

        if report.total_losses:
            yield _ADVICE_AFTER_LOSS
        refused = {file.before.state for file in report.files if file.refused}
        for state, advice in sorted(_ADVICE_FOR_REFUSED.items()):
            if state in refused:
                yield advice

    def describe_entries(self, repairs: Mapping[str, Any]) -> Iterator[str]:
        """Yield what was done to the logs of LangGraph's store and cache."""
        for noun, log in repairs.items():
            lost = pluralize(log.before.lost, "byte") if log.before.lost else "nothing"
            directory = Path(log.before.path).parts[0]
            balance = self._balance(log.refused, pluralize(log.kept, noun), lost)
            yield f"{directory}: {balance}"
            yield _describe_problem(log.before)
            if log.set_aside:
                yield self._describe_copy(log.set_aside)
            elif self.dry_run and not log.refused:
                yield "    would copy the old bytes to a file beside it"

    def _describe_thread(self, directory: str, files: Sequence[Any]) -> Iterator[str]:
        name = directory if files[0].thread_id is None else escape(files[0].thread_id)
        # Of a file that was refused nothing was kept, and nothing lost.
        count = sum(file.kept for file in files)
        kept = pluralize(count, "checkpoint") if count else "nothing"
        losses = [loss for file in files for loss in file.lost]
        lost = pluralize(_count_lost_records(files), "record") if losses else "nothing"
        if any(loss.records is None for loss in losses):
            lost = f"at least {lost}"
        yield f"{name}: {self._balance(all(file.refused for file in files), kept, lost)}"

        for file in files:
            yield _describe_problem(file.before)
            if file.refused and file.refused != file.before.reason:
                yield f"    because {file.refused}"
            if file.corrected:
                verb = self._verb("correct", "corrected")
                bits = pluralize(len(file.corrected), "flipped bit")
                offsets = ", ".join(map(str, file.corrected[:_MAX_DETAILS]))
                yield f"    {verb} {bits}, at byte {offsets}"

            for loss in file.lost[:_MAX_DETAILS]:
                where = f"byte {loss.offset}"
                if loss.checkpoint_id is not None:
                    where = f"checkpoint {escape(loss.checkpoint_id)}, {where}"
                yield f"    lost: {where}: {loss.reason}"
            hidden = len(file.lost) - _MAX_DETAILS
            if hidden > 0:
                yield f"    lost: {hidden} more; --json lists all"

            if file.set_aside:
                yield self._describe_copy(file.set_aside)

    def _describe_copy(self, set_aside: str) -> str:
        verb = self._verb("copy the old bytes to", "the old bytes are in")
        return f"    {verb} {escape(str(self.root / set_aside))}"

    def _balance(self, is_refused: object, kept: str, lost: str) -> str:
        if is_refused:
            return self._verb("not be repaired", "not repaired")
        return f"{self._verb('keep', 'kept')} {kept}, {self._verb('lose', 'lost')} {lost}"


def _describe_problem(log: Any) -> str:
    return f"  {escape(log.path)}: {log.state} at byte {log.offset}: {log.reason}"


def _report_data(report: Any, entry_logs: Mapping[str, Any]) -> Row:
    """Return a repair as plain data."""
    threads: list[Row] = []
    for directory, files in _group_by_thread(report.files).items():
        thread: Row = {
            "thread": files[0].thread_id,
            "directory": directory,
            "kept": sum(file.kept for file in files),
            "lost": _count_lost_records(files),
            "files": [],
        }
        for file in files:
            lost = [
                {"checkpoint": loss.checkpoint_id, **_pick(loss, "offset", "reason", "records")} for loss in file.lost
            ]
            kept = _pick(file, "kept", "set_aside", "refused")
            thread["files"].append({**_pick(file.before, *_PROBLEM), "lost": lost, **kept})
        threads.append(thread)
    return {
        "dry_run": report.dry_run,
        "threads": threads,
        "finished": list(report.finished),
        "removed": list(report.removed),
        "marker": None if report.marker is None else report.marker.reason,
        "entry_logs": [
            {
                **_pick(log.before, *_PROBLEM),
                "lost_bytes": log.before.lost,
                **_pick(log, "kept", "set_aside", "refused"),
            }
            for log in entry_logs.values()
        ],
    }


def _pick(report: Any, *names: str) -> Row:
    """Return some fields of a report as plain data."""
    return {name: getattr(report, name) for name in names}
