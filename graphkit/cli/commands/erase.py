"""Erases threads: erase."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from graphkit._erasure import (
    ErasureLedger,
    ErasureReport,
    Selection,
    erase as erase_thread,
    erase_selection,
    select_threads,
)
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.cli import options
from graphkit.cli.cells import format_bytes
from graphkit.cli.command import Command
from graphkit.cli.commands.maintain import confirm, require_whole_id
from graphkit.cli.context import CliContext
from graphkit.cli.stores import has_entries, open_store
from graphkit.cli.values import UsageError, escape, parse_assignments, pluralize
from graphkit.cli.views import Message
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError


@click.command("erase", cls=Command)
@options.directory
@click.option(
    "--thread",
    metavar="THREAD",
    help="Erase this thread. Type the whole id.",
    shell_complete=options.complete_thread,
)
@click.option(
    "--where",
    metavar="KEY=VALUE",
    multiple=True,
    help="Erase the threads with a checkpoint that has this metadata; a value is JSON, otherwise text; repeatable.",
)
@click.option(
    "--ledger",
    metavar="FILE",
    help="Record what is erased; without --thread and --where, erase again what was recorded before.",
)
@click.option("--ledger-key", metavar="FILE", help="The file with the key of the ledger: 16 random bytes or more.")
@click.option("--full", is_flag=True, help="Also do what makes other processes wait: VACUUM FULL on PostgreSQL.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@options.dry_run
def erase(
    context: CliContext,
    directory: str,
    thread: str | None,
    where: tuple[str, ...],
    ledger: str | None,
    ledger_key: str | None,
    full: bool,
    yes: bool,
    dry_run: bool,
) -> Message:
    """Delete threads, and leave no byte of them in the store, nor of their versions.

    With --where in a directory, LangGraph's items of the same person are erased too, and its cache is
    emptied. With only --ledger, the command erases what a restored backup has brought back. It asks for
    confirmation; in a script, pass --yes. It exits with 1 if something may be left, and says what.

    Example: graphkit erase runs --where user=ann --yes
    """
    if thread is not None and where:
        raise UsageError("give --thread or --where, not both")
    if thread is None and not where and ledger is None:
        raise UsageError("say what to erase: --thread, --where, or --ledger for what was erased before")
    recorded = None if ledger is None else _open_ledger(ledger, ledger_key)
    saver = open_store(directory)
    with _open_langgraph_stores(saver, is_wanted=bool(where)) as stores:
        metadata = parse_assignments(where, "erase")
        selection = _select(saver, thread, metadata)
        names = selection.thread_ids
        is_missing = thread is not None and not names
        if is_missing:
            what = f"what earlier deletes have left (there is no thread {escape(str(thread))})"
        elif thread is not None or where:
            what = _describe(saver, names, stores)
        else:
            what = f"what {escape(str(ledger))} has recorded"
        if dry_run:
            return Message(f"would erase {what}", {"threads": names, "stores": [*stores], "dry_run": True})
        if not yes and not confirm(context, f"erase {what}, for good?"):
            return Message("nothing was erased", {"reports": [], "ok": False}, exit_code=1)
        if thread is not None:
            # Also a thread that is gone: an erasure of it may have been cut short, and is completed.
            whole_id = thread if is_missing else names[0]
            reports = [erase_thread(saver, whole_id, ledger=recorded, full=full)]
        elif where:
            # Not `erase_where`, which would select again: what was written since the question is not confirmed.
            opened = [*stores.values()]
            reports = erase_selection(saver, selection, metadata, stores=opened, ledger=recorded, full=full)
        else:
            assert recorded is not None
            reports = recorded.apply(saver, full=full)
    return _show(reports, [*stores], missing=thread if is_missing else None)


def _open_ledger(path: str, key_path: str | None) -> ErasureLedger:
    if key_path is None:
        raise UsageError("--ledger needs the file with its key: --ledger-key")
    try:
        key = Path(key_path).read_bytes()
    except OSError as error:
        raise CheckpointerConfigurationError(f"the key of the ledger cannot be read: {error}") from error
    return ErasureLedger(path, key=key)


def _select(saver: BaseCheckpointSaver, typed: str | None, metadata: Mapping[str, Any]) -> Selection:
    """Return the threads that the user means; none if the typed one is gone, or if the ledger has to say."""
    if typed is None and not metadata:
        return Selection([], [])
    if typed is None:
        return select_threads(saver, metadata)
    try:
        return Selection([require_whole_id(saver, typed)], [])
    except (CheckpointNotFoundError, UsageError):
        # There may be others that begin with this. They are not meant: the user was told to type the whole id.
        return Selection([], [])


@contextmanager
def _open_langgraph_stores(saver: BaseCheckpointSaver, *, is_wanted: bool) -> Iterator[Mapping[str, Any]]:
    """Open LangGraph's store and cache in the directory of a saver; by what their entries are called."""
    if not is_wanted or not isinstance(saver, HasBaseDirectory) or not has_entries(Path(saver.base_directory)):
        yield {}
        return
    # By name, since graphkit does not import savers.
    opened = importlib.import_module("savers.langgraph._entries.log").open_logs(saver.base_directory)
    found = dict(opened)
    try:
        yield found
    finally:
        for entry_log in found.values():
            entry_log.close_files()


def _describe(saver: BaseCheckpointSaver, names: Sequence[str], stores: Mapping[str, Any]) -> str:
    """Return what is to be erased, for a question."""
    parts: list[str] = []
    if len(names) == 1:
        parts.append(escape(names[0]))
    else:
        parts.append(pluralize(len(names), "thread"))
    if saver.measures_size:
        parts[0] += f", {format_bytes(sum(map(saver.size, names)))}"
    if "item" in stores:
        parts.append("LangGraph's items of the same person")
    if "cached value" in stores:
        parts.append("all of LangGraph's cached values")
    return " and ".join(parts)


def _show(reports: Sequence[ErasureReport], nouns: Sequence[str], *, missing: str | None) -> Message:
    """Return what was erased, and what is left; the last reports are those of LangGraph's stores.

    There was no thread with the id `missing`, but maybe an earlier erasure of it.
    """
    names = [report.thread_id or "the store" for report in reports]
    if nouns:
        names[-len(nouns) :] = [f"LangGraph's {noun}s" for noun in nouns]
    of_threads = [report for report in reports if report.thread_id is not None]
    erased = sum(report.ok for report in of_threads)
    is_ok = all(report.ok for report in reports)
    if missing is not None and is_ok:
        lines = [f"there is no thread {escape(missing)}; removed what earlier deletes have left"]
    elif missing is not None:
        lines = [f"there is no thread {escape(missing)}, but something may be left of earlier deletes"]
    elif of_threads:
        lines = [f"erased {pluralize(erased, 'thread')} of {len(of_threads)}"]
    else:
        lines = ["no thread was found"]
    rows: list[dict[str, Any]] = []
    for name, report in zip(names, reports, strict=True):
        lines += [f"{escape(name)}: {escape(reason)}" for reason in report.remaining]
        if report.copies:
            copies = ", ".join(map(escape, report.copies))
            lines.append(f"{escape(name)}: these have checkpoints of it, and are not erased: {copies}")
        rows.append(
            {
                "thread": report.thread_id,
                "store": None if report.thread_id is not None else name,
                "ok": report.ok,
                "remaining": report.remaining,
                "copies": report.copies,
            }
        )
    return Message("\n".join(lines), {"reports": rows, "ok": is_ok}, exit_code=0 if is_ok else 1)
