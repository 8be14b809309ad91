"""Maintains a store: compact, rotate, prune, delete, erase, release."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import click

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsCompact, SupportsDeleteIdle, SupportsRotate
from graphkit._saver.failed_threads import FailedThreads, name_threads
from graphkit._saver.incomplete import refuse_incomplete
from graphkit._saver.retention import RetentionOptions, prune_thread
from graphkit._saver.retention_policy import RetentionPolicy, apply_policy
from graphkit._saver.writes import is_schedule
from graphkit.cli.cells import Row, count_checkpoints, count_statuses, format_bytes, size_of, status_of
from graphkit.cli.commands.damage import find_thread_or_files, missing_capability
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, DryRun, MaybeThread, Thread, complete_thread, option
from graphkit.cli.render import Column, Message, Table
from graphkit.cli.resolve import find_only, find_thread, find_threads
from graphkit.cli.stores import KEY_FILE, call_for_entries, close_in_the_end, open_store, with_placeholder_types
from graphkit.cli.values import UsageError, escape, parse_age, parse_assignments, pluralize
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointNotFoundError,
)

if TYPE_CHECKING:
    from graphkit._erasure import ErasureLedger, ErasureReport

_IDLE_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    Column("status", "STATUS", "whole"),
    Column("size", "SIZE", "bytes"),
)
_Yes: TypeAlias = Annotated[bool, option("Do not ask for confirmation.", "-y")]


def compact(context: CliContext, directory: Directory, thread: MaybeThread, dry_run: DryRun) -> Message:
    """Free the bytes of replaced data, which can no longer be reached.

    Example: graphkit compact runs
    """
    saver = open_store(directory)
    only = find_only(saver, thread)
    if not isinstance(saver, SupportsCompact):
        raise missing_capability(saver, "compact")
    with context.progress("measuring" if dry_run else "compacting") as progress:
        freed = saver.compact(only, dry_run=dry_run, progress=progress)
    if dry_run:
        size = saver.size(only)
        return Message(f"would free {format_bytes(freed)} of {format_bytes(size)}", {"size": size, "freed": freed})
    return Message(f"freed {format_bytes(freed)}", {"freed": freed})


def rotate(context: CliContext, directory: Directory, thread: MaybeThread) -> Message:
    """Seal everything with the current key, the first of the key file.

    Rewrites what is plain or sealed with another key, released versions too. It can be interrupted
    and run again.

    Example: graphkit rotate runs --key-file keys
    """
    saver = open_store(directory)
    only = find_only(saver, thread, released=True)
    if not isinstance(saver, SupportsRotate):
        raise missing_capability(saver, "rotate")
    if KEY_FILE.get() is None:
        raise CheckpointerConfigurationError("rotate needs the keys: --key-file names them")
    with context.progress("rotating") as progress:
        report = saver.rotate(only, progress=progress)
    count = pluralize(len(report.rewritten), "log")
    text = f"sealed {count} with the current key"
    if report.erased:
        text += f"; {pluralize(len(report.erased), 'log')} stayed, because their keys were destroyed"
    if report.set_aside:
        names = ", ".join(map(escape, report.set_aside))
        text = f"{text}; these still hold bytes as they were, remove what you do not need: {names}"
    return Message(text, vars(report))


def prune(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread,
    keep_last: Annotated[int | None, option("Keep this many checkpoints of each history.", type=click.IntRange(1))],
    older_than: Annotated[str | None, option("Remove only checkpoints older than this: 12h, 30d.", "AGE")],
    keep_tags: Annotated[tuple[str, ...], option("Keep checkpoints with this tag; repeatable.", "--keep-tag")],
    interrupted: Annotated[bool, option("Also remove checkpoints, or threads, with pending interrupts.")],
    idle: Annotated[str | None, option("Delete threads that no process has written to for this long.", "AGE")],
    yes: Annotated[bool, option("With --idle: do not ask for confirmation.", "-y")],
    policy: Annotated[str | None, option("Apply the retention policy of this YAML or JSON file.", "FILE")],
    dry_run: DryRun,
) -> Message:
    """Remove old checkpoints, or delete idle threads.

    With --keep-last, --older-than or both, the command never removes the latest checkpoint of a
    history. With --idle, it deletes whole threads with all their versions. A thread with a run
    stays, also one that is queued, and so does one that waits for a human, unless --interrupted is
    given. A damaged thread stays for `graphkit repair`. The command asks for confirmation; in a
    script, pass --yes. With --policy, the rules of a file decide.

    Example: graphkit prune runs --keep-last 10 --older-than 30d --keep-tag golden
    """
    if policy is not None:
        if thread is not None or keep_last is not None or older_than is not None or keep_tags or interrupted or idle:
            raise UsageError("--policy decides alone: give it without a thread and without the other options")
        return _apply_policy(context, open_store(directory), policy, dry_run=dry_run)
    if idle is not None:
        if keep_last is not None or older_than is not None or keep_tags:
            raise UsageError("--idle deletes whole threads: give it without the options that select checkpoints")
        saver = open_store(directory)
        only = find_only(saver, thread, released=True)
        return _prune_idle(context, saver, only, age=idle, interrupted=interrupted, yes=yes, dry_run=dry_run)
    if keep_last is None and older_than is None:
        raise UsageError("say what to prune: --keep-last, --older-than or both; or --idle; or --policy")
    criteria: RetentionOptions = {
        "keep_last": keep_last,
        "older_than": context.time_ago(older_than),
        "keep_tags": keep_tags,
        "keep_interrupted": not interrupted,
    }
    saver = open_store(directory)
    threads = find_threads(saver, thread)
    # Nothing is left to prune of what was erased. Only of a thread that was named is that an error.
    passes_over = (CheckpointErasedError,) if thread is None else ()
    failed = FailedThreads("prune", saver, passes_over=passes_over)
    prune_one = partial(prune_thread, saver, options=criteria, dry_run=dry_run)
    with context.progress("pruning") as progress:
        count = sum(failed.change_each(threads, prune_one, progress))
    sentence = _describe_pruned(count, len(threads), dry_run=dry_run)
    return Message(sentence, {"removed": count, "threads": len(threads), "dry_run": dry_run})


def _describe_pruned(checkpoints: int, threads: int, *, dry_run: bool) -> str:
    verb = "would remove" if dry_run else "removed"
    return f"{verb} {pluralize(checkpoints, 'checkpoint')} of {pluralize(threads, 'thread')}"


def _apply_policy(context: CliContext, saver: BaseCheckpointSaver, file: str, *, dry_run: bool) -> Message:
    """Apply the policy of a file; the exit code is 1 if a thread failed."""
    # What is over its limit is printed below, in a dry run, too.
    policy = replace(RetentionPolicy.from_file(file), on_limit=lambda *_: None)
    report = apply_policy(policy, saver, now=context.now(), dry_run=dry_run)
    for thread_id, error in report.failed.items():
        context.warn(f"{escape(thread_id)}: {error}")
    for thread_id in report.busy:
        context.warn(f"{escape(thread_id)} has a run and was left alone")
    for found in report.over_limit:
        what = "the store" if found.thread_id is None else escape(found.thread_id)
        context.warn(f"{what} takes {format_bytes(found.size)}; its limit is {format_bytes(found.limit)}")
    sentence = _describe_pruned(report.removed, report.threads, dry_run=dry_run)
    return Message(sentence, asdict(report), 0 if report.ok else 1)


def _prune_idle(
    context: CliContext,
    saver: BaseCheckpointSaver,
    only: str | None,
    *,
    age: str,
    interrupted: bool,
    yes: bool,
    dry_run: bool,
) -> Message:
    """Delete the threads that no process has written to for as long as `age`, after a confirmation."""
    # The same moment before and after the question: the user confirms these threads, however long the answer takes.
    idle_since = context.now() - parse_age(age)
    if not isinstance(saver, SupportsDeleteIdle):
        raise missing_capability(saver, "prune --idle")
    delete_idle = partial(saver.delete_idle, idle_since=idle_since)
    assert isinstance(saver, BaseCheckpointSaver)
    failed = FailedThreads("delete", saver)
    idle = _list_idle(saver, only, partial(delete_idle, dry_run=True), failed)
    waiting = [row["thread"] for row in idle if row["status"] == "interrupted"]
    damaged = [row["thread"] for row in idle if row["status"] == "damaged"]
    # The run of a queued or sleeping thread is still to go on, perhaps at a later time; of a damaged thread, `repair`
    # may save most.
    kept = {"queued", "sleeping", "damaged"}
    if not interrupted:
        kept.add("interrupted")
    rows = [row for row in idle if row["status"] not in kept]
    if damaged:
        advice = "`graphkit verify` says what to do, and `graphkit delete` removes a thread"
        context.warn(f"graphkit: kept because of damage: {name_threads(damaged)}; {advice}")
    chosen = [row["thread"] for row in rows]
    size = sum(row["size"] for row in rows)
    data: Row = {"deleted": chosen, "waiting": waiting, "damaged": damaged, "threads": rows, "size": size}
    data["dry_run"] = dry_run
    left = 0 if interrupted else len(waiting)
    if dry_run or not chosen:
        failed.raise_if_any()
    if not chosen:
        which = "no other thread" if damaged else "no thread"
        return Message(f"{which} is {_describe_idle(age, rows, left)}", data)
    what = f"{pluralize(len(chosen), 'thread')} {_describe_idle(age, rows, left)}, {format_bytes(size)}"
    if dry_run:
        return Message(f"would delete {what}", data, table=Table(_IDLE_COLUMNS, rows))
    data["deleted"] = []
    if not yes and not confirm(context, f"delete {what}, for good?"):
        return Message("nothing was deleted", data, exit_code=1)

    # A thread that a process has written to since then stays.
    with context.progress("deleting") as progress:
        results = failed.change_each(chosen, delete_idle, progress)
    deleted = set(chain.from_iterable(results))
    data["deleted"] = sorted(deleted)
    gone = [row for row in rows if row["thread"] in deleted]
    text = f"deleted {pluralize(len(gone), 'thread')} {_describe_idle(age, gone, left)}"
    if len(gone) < len(chosen):
        text += f"; {pluralize(len(chosen) - len(gone), 'thread')} stayed: in use again"
    return Message(text, data)


@with_placeholder_types()
def _list_idle(
    saver: BaseCheckpointSaver, only: str | None, find_idle: Callable[[str], Sequence[str]], failed: FailedThreads
) -> list[Row]:
    """Return the threads that `find_idle` finds idle, as plain data."""
    found = saver.threads(released=True) if only is None else [only]
    rows: list[Row] = []
    for thread_id in sorted(found):
        if thread_id != only and is_schedule(thread_id):
            continue
        with failed.catch(thread_id):
            if find_idle(thread_id):
                status = _find_status(saver, thread_id)
                rows.append({"thread": thread_id, "status": status, "size": saver.size(thread_id)})
    return rows


def _describe_idle(age: str, rows: Sequence[Row], left: int) -> str:
    """Say for how long threads are idle, and in brackets their statuses, and how many others wait for a human."""
    notes: list[str] = []
    if rows:
        notes.append(count_statuses(rows))
    if left:
        notes.append(f"{left} more {'waits' if left == 1 else 'wait'} for a human; --interrupted deletes those, too")
    return f"idle for {age} ({'; '.join(notes)})" if notes else f"idle for {age}"


def _find_status(saver: BaseCheckpointSaver, thread_id: str) -> str:
    """Return the status of a thread; "released" if it only has versions."""
    try:
        return status_of(saver, thread_id) or "released"
    except CheckpointErasedError:
        return "erased"
    except (CheckpointCorruptionError, CheckpointFormatError):
        return "damaged"


def delete(context: CliContext, directory: Directory, thread: Thread, yes: _Yes, dry_run: DryRun) -> Message:
    """Remove a thread with all its versions, and the files that repair set aside.

    The command asks for confirmation; in a script, pass --yes. Type the whole id. A delete cannot
    be undone.

    Example: graphkit delete runs order-17 --yes
    """
    saver = open_store(directory)
    thread_id = require_whole_id(saver, thread)
    what = _describe(saver, [thread_id])
    data: dict[str, Any] = {"thread": thread_id, "size": size_of(saver, thread_id), "dry_run": dry_run}
    if dry_run:
        return Message(f"would delete {what}", data)
    is_confirmed = yes or confirm(context, f"delete {what}, for good?")
    data["deleted"] = is_confirmed
    if not is_confirmed:
        return Message("nothing was deleted", data, exit_code=1)
    saver.delete(thread_id)
    return Message(f"deleted {what}", data)


def require_whole_id(saver: BaseCheckpointSaver, typed: str) -> str:
    """Return the thread that the user typed, to delete it.

    Raises:
        CheckpointNotFoundError: there is no such thread, and no file of it.
        UsageError: the user typed only a prefix.
    """
    found = find_thread_or_files(saver, typed) or typed
    if typed not in {found, escape(found)}:
        raise UsageError(f"type the whole id of the thread to delete: {escape(found)}")
    return found


def confirm(context: CliContext, question: str) -> bool:
    """Return whether the user agrees to something that cannot be undone."""
    if not context.can_ask:
        raise UsageError("cannot ask for confirmation without a terminal: pass --yes")
    return context.ask(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def release(_context: CliContext, directory: Directory, thread: Thread, dry_run: DryRun) -> Message:
    """End the active history of a thread.

    A checkpoint directory keeps it as a version. The thread is then empty.

    Example: graphkit release runs order-17
    """
    saver = open_store(directory)
    thread_id = find_thread(saver, thread)
    refuse_incomplete(saver, thread_id)
    count = count_checkpoints(saver, thread_id)
    data = {"thread": thread_id, "checkpoints": count, "dry_run": dry_run}
    if dry_run:
        return Message(f"would release {pluralize(count, 'checkpoint')} of {escape(thread_id)}", data)
    tag = saver.release(RunnableConfig(thread_id))
    released = f"{pluralize(len(tag.checkpoints), 'checkpoint')} of {escape(thread_id)}"
    data["version"] = tag.version
    if tag.version is None:
        return Message(f"released {released} without keeping them: this saver has no versions", data)
    return Message(f"released {released} as version {tag.version}", data)


def erase(
    context: CliContext,
    directory: Directory,
    thread: Annotated[str | None, option("The thread; its whole id.", "THREAD", shell_complete=complete_thread)],
    where: Annotated[tuple[str, ...], option("The threads with this metadata; repeatable.", "KEY=VALUE")],
    ledger: Annotated[str | None, option("Record what is erased, or erase again what was recorded.", "FILE")],
    ledger_key: Annotated[str | None, option("The file with the key of the ledger: 16 random bytes or more.", "FILE")],
    full: Annotated[bool, option("Also do what makes other processes wait: VACUUM FULL on PostgreSQL.")],
    yes: _Yes,
    dry_run: DryRun,
) -> Message:
    """Delete threads, and leave no byte of them in the store, nor of their versions.

    With --where, these are the threads with a checkpoint that has the metadata; a value is JSON,
    otherwise text. In a directory, LangGraph's items of the same person are erased too, and its cache is
    emptied. With only --ledger, the command erases again what was recorded, which a restored backup has
    brought back. It asks for confirmation; in a script, pass --yes. It exits with 1 if something may be
    left, and says what.

    Example: graphkit erase runs --where user=ann --yes
    """
    from graphkit import _erasure as erasure

    if thread is not None and where:
        raise UsageError("give --thread or --where, not both")
    if thread is None and not where and ledger is None:
        raise UsageError("say what to erase: --thread, --where, or --ledger for what was erased before")
    recorded = None if ledger is None else _open_ledger(ledger, ledger_key)
    saver = open_store(directory)
    names: Sequence[str] = []
    stores: Mapping[str, Any] = {}  # LangGraph's, by what their entries are called
    if where:
        metadata = parse_assignments(where, "--where")
        stores = call_for_entries(saver, "open_logs")
        for store in stores.values():
            close_in_the_end(store.close_files)
        selection = erasure.select_threads(saver, metadata)
        names = selection.thread_ids
        what = _describe(saver, names, stores)
    elif thread is not None:
        # There may be others that begin with this. They are not meant: the user was told to type the whole id.
        with suppress(CheckpointNotFoundError, UsageError):
            names = [require_whole_id(saver, thread)]
        what = f"what earlier deletes have left (there is no thread {escape(thread)})"
        if names:
            what = _describe(saver, names, stores)
    else:
        what = f"what {escape(str(ledger))} has recorded"
    if dry_run:
        return Message(f"would erase {what}", {"threads": names, "stores": [*stores], "dry_run": True})
    if not yes and not confirm(context, f"erase {what}, for good?"):
        return Message("nothing was erased", {"reports": [], "ok": False}, exit_code=1)
    if thread is not None:
        # Also a thread that is gone: an erasure of it may have been cut short, and is completed.
        reports = [erasure.erase(saver, names[0] if names else thread, ledger=recorded, full=full)]
    elif where:
        # Not `erase_where`, which would select again: what was written since the question is not confirmed.
        opened = [*stores.values()]
        reports = erasure.erase_selection(saver, selection, metadata, stores=opened, ledger=recorded, full=full)
    else:
        assert recorded is not None
        reports = recorded.apply(saver, full=full)
    return _show(reports, [*stores], missing=None if names else thread)


def _open_ledger(path: str, key_path: str | None) -> ErasureLedger:
    from graphkit._erasure import ErasureLedger

    if key_path is None:
        raise UsageError("--ledger needs the file with its key: --ledger-key")
    try:
        key = Path(key_path).read_bytes()
    except OSError as error:
        raise CheckpointerConfigurationError(f"the key of the ledger cannot be read: {error}") from error
    return ErasureLedger(path, key=key)


def _describe(saver: BaseCheckpointSaver, names: Sequence[str], stores: Collection[str] = ()) -> str:
    """Return what is to be deleted, for a question.

    Args:
        saver: the store.
        names: the threads.
        stores: what the entries of LangGraph's stores are called.
    """
    parts = [escape(names[0]) if len(names) == 1 else pluralize(len(names), "thread")]
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
