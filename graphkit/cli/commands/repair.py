"""Repairs damage: repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

from graphkit._saver.capabilities import HasBaseDirectory, SupportsRepair
from graphkit.cli.commands.verify import ADVICE_FOR_REFUSED, find_thread_or_files, missing_capability
from graphkit.cli.context import CliContext
from graphkit.cli.entry_logs import has_total_loss, make_repair_lines, make_repair_rows, repair_entries
from graphkit.cli.options import Directory, DryRun, MaybeThread
from graphkit.cli.resolve import open_store
from graphkit.cli.values import escape, pluralize
from graphkit.cli.views import Message
from graphkit.errors import CheckpointCorruptionError

_ADVICE_AFTER_LOSS: Final = (
    "restore the lost histories from a backup; `graphkit delete` removes a thread with its copies"
)
_MAX_DETAILS: Final = 10
"""The losses of a log that the report lists; JSON has all of them."""


def repair(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread = None,
    dry_run: DryRun = False,
) -> Message:
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


COMMANDS: Final = (repair,)
