"""Damage: verify finds it, repair saves what can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, SupportsRepair, SupportsVerify
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeThread
from graphkit.cli.render import Column, Said, Table, human_bytes
from graphkit.cli.resolve import open_store, thread_of
from graphkit.cli.values import counted, shown
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointNotFoundError

_PROBLEMS: Final = (
    Column("path", "FILE"),
    Column("state", "STATE"),
    Column("offset", "AT BYTE", "number"),
    Column("checkpoints", "GOOD CHECKPOINTS", "number"),
    Column("reason", "REASON"),
)


def missing_capability(saver: BaseCheckpointSaver, verb: str) -> CheckpointerConfigurationError:
    """Return the error for a saver that does not support a command."""
    return CheckpointerConfigurationError(f"{type(saver).__name__} cannot {verb}; a checkpoint directory can")


def named_thread(saver: BaseCheckpointSaver, typed: str | None) -> str | None:
    """The thread that was typed; its directory alone proves one of which no log can be read."""
    if typed is None:
        return None
    try:
        return thread_of(saver, typed, released=True)
    except CheckpointNotFoundError:
        if has_files(saver, typed):
            return typed
        raise


def has_files(saver: BaseCheckpointSaver, thread_id: str) -> bool:
    """Whether a directory holds files of a thread: logs, readable or not, or what a repair has set aside."""
    if not isinstance(saver, SupportsVerify):
        return False
    report: Any = saver.verify(thread_id)
    return bool(report.threads)


def verify(context: CliContext, directory: Directory, thread: MaybeThread = None) -> Any:
    """Read every byte and tell what is wrong. Changes nothing, and nobody waits. Exits with 12 if there is damage.

    Example: graphkit verify runs
    """
    saver = open_store(directory)
    if not isinstance(saver, SupportsVerify):
        raise missing_capability(saver, "verify")
    with context.progress("verifying") as progress:
        report: Any = saver.verify(named_thread(saver, thread), progress=progress)
    rows = [_file_row(one, file) for one in report.threads for file in one.files if file.state != "ok"]
    rows += [
        {"thread": one.thread_id, "path": one.directory, "state": f"unfinished {one.unfinished}"}
        for one in report.threads
        if one.unfinished
    ]
    if report.marker is not None:
        rows.insert(0, {"thread": None, "path": report.marker.path, "state": "damaged", "reason": report.marker.reason})
    checkpoints = sum(file.checkpoints for one in report.threads for file in one.files)
    sums = {"threads": len(report.threads), "checkpoints": checkpoints, "size": report.size, "ok": report.ok}
    amount = (
        f"{counted(len(report.threads), 'thread')}, {counted(checkpoints, 'checkpoint')}, {human_bytes(report.size)}"
    )
    if report.ok:
        return Said(f"{amount}: all of it is well", {**sums, "problems": []})
    code = CheckpointCorruptionError.exit_code if any(row["state"] != "torn" for row in rows) else 0
    advice = "see `graphkit repair`" if code else "the next write, or `graphkit repair`, sets a torn end aside"
    said = Said(f"{amount}: {len(rows)} not well; {advice}", {**sums, "problems": rows}, code)
    return iter([said] if context.as_json else [Table(_PROBLEMS, rows, ""), said])


def _file_row(one: Any, file: Any) -> dict[str, Any]:
    return {
        "thread": one.thread_id, "path": file.path, "state": file.state, "offset": file.offset,
        "reason": file.reason, "size": file.size, "checkpoints": file.checkpoints,
    }  # fmt: skip


_DETAILS: Final = 10
"""So many losses of a log are listed for people; JSON has them all."""


def repair(context: CliContext, directory: Directory, thread: MaybeThread = None, dry_run: DryRun = False) -> Said:
    """Make damaged threads readable again, with every checkpoint that can still be rebuilt. Old bytes are set aside.

    Says of each thread what is kept, what is lost and where the copy of the old bytes is; with --dry-run before
    anything is changed. Exits with 12 if a damaged history could not be repaired, or nothing of it could be kept.

    Example: graphkit repair runs order-17 --dry-run
    """
    saver = open_store(directory)
    only = named_thread(saver, thread)
    if not isinstance(saver, SupportsRepair):
        raise missing_capability(saver, "repair")
    with context.progress("looking" if dry_run else "repairing") as progress:
        report: Any = saver.repair(only, dry_run=dry_run, progress=progress)
    threads = _by_thread(report.files)
    root = Path(saver.base_directory) if isinstance(saver, HasBaseDirectory) else Path()
    lines = [line for name, files in threads.items() for line in _thread_lines(name, files, root, dry_run=dry_run)]
    lines += _conclusion(report, threads)
    is_success = report.ok and not report.total_losses
    code = 0 if is_success else CheckpointCorruptionError.exit_code
    return Said("\n".join(lines), _repair_data(report, threads), code)


def _by_thread(files: Sequence[Any]) -> dict[str, list[Any]]:
    """The files by the directory of their thread, which each of them has, unlike a readable id."""
    threads: dict[str, list[Any]] = {}
    for file in files:
        threads.setdefault(Path(file.before.path).parts[0], []).append(file)
    return threads


def _thread_lines(directory: str, files: Sequence[Any], root: Path, *, dry_run: bool) -> Iterator[str]:
    """What is kept of a thread, what is lost, and where the copies are."""
    thread_id = files[0].thread_id
    name = directory if thread_id is None else shown(thread_id)
    tried = [file for file in files if not file.refused]
    if tried:
        yield f"{name}: {_balance(tried, dry_run=dry_run)}"
    else:
        yield f"{name}: {'would not be repaired' if dry_run else 'not repaired'}"
    for file in files:
        yield from _file_lines(file, root, dry_run=dry_run)


def _balance(files: Sequence[Any], *, dry_run: bool) -> str:
    kept = sum(file.kept for file in files)
    amount = counted(kept, "checkpoint") if kept else "nothing"
    keep, lose = ("would keep", "would lose") if dry_run else ("kept", "lost")
    return f"{keep} {amount}, {lose} {_lost_in_words(files)}"


def _lost_in_words(files: Sequence[Any]) -> str:
    lost = [one for file in files for one in file.lost]
    if not lost:
        return "nothing"
    count = counted(_lost_records(files), "record")
    return f"at least {count}" if any(one.records is None for one in lost) else count


def _lost_records(files: Sequence[Any]) -> int:
    """How many records are lost, at least."""
    return sum(1 if one.records is None else one.records for file in files for one in file.lost)


def _file_lines(file: Any, root: Path, *, dry_run: bool) -> Iterator[str]:
    before = file.before
    yield f"  {shown(before.path)}: {before.state} at byte {before.offset}: {before.reason}"
    if file.refused and file.refused != before.reason:
        yield f"    because {file.refused}"
    if file.corrected:
        bits = counted(len(file.corrected), "flipped bit")
        places = ", ".join(map(str, file.corrected[:_DETAILS]))
        yield f"    {'would correct' if dry_run else 'corrected'} {bits}, at byte {places}"
    for one in file.lost[:_DETAILS]:
        what = "" if one.checkpoint_id is None else f"checkpoint {shown(one.checkpoint_id)}, "
        yield f"    lost: {what}byte {one.offset}: {one.reason}"
    if len(file.lost) > _DETAILS:
        yield f"    lost: {len(file.lost) - _DETAILS} more places; --json lists them"
    if file.set_aside:
        yield f"    {'the copy would be' if dry_run else 'the old bytes are in'} {shown(str(root / file.set_aside))}"


def _conclusion(report: Any, threads: dict[str, list[Any]]) -> Iterator[str]:
    """What it all comes to, and what is left to do."""
    would = report.dry_run
    if report.finished:
        names = ", ".join(map(shown, report.finished))
        yield f"{'would finish' if would else 'finished'} the release or the delete of {names}"
    if report.marker is not None:
        yield f"{'would rewrite' if would else 'rewrote'} the store's marker: {report.marker.reason}"
    if report.removed:
        files = counted(len(report.removed), "leftover")
        yield f"{'would remove' if would else 'removed'} {files} of writers that died"
    if not threads:
        if not report.changed:
            yield "nothing is damaged" if would else "nothing was damaged"
        return
    good = [name for name, files in threads.items() if not any(one.refused or one.is_total_loss for one in files)]
    verb = "would repair" if would else "repaired"
    if len(good) == len(threads):
        yield f"{verb} {counted(len(good), 'thread')}"
    elif good:
        yield f"{verb} {len(good)} of {len(threads)} threads"
    else:
        yield f"{verb} nothing"
    if report.total_losses:
        yield "restore from a backup what could not be kept; `graphkit delete` removes a thread with its copies"


def _repair_data(report: Any, threads: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "threads": [
            {
                "thread": files[0].thread_id,
                "directory": directory,
                "kept": sum(file.kept for file in files),
                "lost": _lost_records(files),
                "files": [_file_data(file) for file in files],
            }
            for directory, files in threads.items()
        ],
        "finished": list(report.finished),
        "removed": list(report.removed),
        "marker": None if report.marker is None else report.marker.reason,
    }


def _file_data(file: Any) -> dict[str, Any]:
    lost = [
        {"checkpoint": one.checkpoint_id, "offset": one.offset, "reason": one.reason, "records": one.records}
        for one in file.lost
    ]
    return {
        "path": file.before.path, "state": file.before.state, "offset": file.before.offset,
        "reason": file.before.reason, "kept": file.kept, "lost": lost, "set_aside": file.set_aside,
        "refused": file.refused,
    }  # fmt: skip


COMMANDS: Final = (verify, repair)
