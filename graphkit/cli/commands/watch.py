"""Follows runs live: watch, wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Annotated, Any, Final

import click

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import ENDED, STATUSES
from graphkit._saver.watch import Change, Watch
from graphkit._saver.writes import problem_with_interrupt, time_or_none
from graphkit.cli.cells import (
    Row,
    describe_cancellation,
    describe_failure,
    describe_progress,
    describe_sleep,
    describe_stop,
    format_event,
    status_of,
)
from graphkit.cli.context import CliContext
from graphkit.cli.options import ROWS, CheckpointId, Directory, Interval, MaybeThread, Seconds, Thread, option
from graphkit.cli.render import Column, Message, Table, Text, View
from graphkit.cli.resolve import find_checkpoint, find_thread
from graphkit.cli.stores import open_store
from graphkit.cli.values import UsageError, abbreviate, escape
from graphkit.errors import CheckpointerError, CheckpointNotFoundError

_MAX_ROWS: Final = 20
"""Threads in the table that a terminal shows."""
_REFRESH_SECONDS: Final = 1.0
"""The time between two refreshes of the ages in that table."""
_FAILURE_LIMIT: Final = 80
_EXIT_CODES: Final[Mapping[str, int]] = {"failed": 4, "interrupted": 5, "cancelled": 6}
"""How `wait` says in which way a run stopped; 0 if it has finished, and for the other statuses that --until names."""
_TIMED_OUT: Final = 124
"""The exit code of timeout(1)."""
_DESCRIPTIONS: Final = {
    "answer": "continues",
    "idle": "no process runs it now",
    "release": "released",
    "delete": "deleted",
}
_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    Column("status", "STATUS", "whole"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("step", "STEP", "number"),
    Column("time", "UPDATED", "age"),
    Column("told", "LAST", "payload"),
)


def watch(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread,
    checkpoint: CheckpointId,
    limit: Annotated[int | None, option("Stop after N changes.", "-n", "N", type=ROWS)],
    interval: Interval,
) -> Iterator[View]:
    """Follow runs live, whichever processes execute them.

    The command reports steps, interrupts, answers, failures, cancels, releases, deletions, and runs
    whose process died: one line per change, or at a terminal a table that updates itself. Ctrl-C ends it.
    With --checkpoint it starts after that checkpoint, with a thread at the thread's latest
    checkpoint, otherwise with the changes from now on.

    Example: graphkit watch runs order-17
    """
    if thread is None and checkpoint is not None:
        raise UsageError("--checkpoint requires a thread: name the thread too")
    saver = open_store(directory)
    config = None
    if thread is not None:
        config = RunnableConfig(find_thread(saver, thread, released=True))
        if checkpoint is not None:
            config = config.with_check_point_id(find_checkpoint(saver, config, checkpoint).id)
    latest = context.is_pretty or thread is not None
    with saver.watch(config, latest=latest, interval=interval) as changes:
        if context.is_pretty:
            _Screen(context, saver).follow(changes, limit)
            return
        count = 0
        for change in changes:
            row = _make_row(context, saver, change)
            if not _is_news(row) and not context.as_json:
                continue
            name = escape(row["thread"])
            if row["ns"]:
                name += f"[{escape(row['ns'])}]"
            text = row["told"] or f"{escape(str(row['node']))} -> {escape(row['next'] or '?')}"
            yield Text(format_event(context, row["time"], name, text), row)
            count += 1
            if count == limit:
                return


def wait(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    until: Annotated[str, option("The status to wait for.", "STATUS", type=click.Choice(STATUSES), default="finished")],
    timeout: Annotated[float | None, option("Give up after this time. Default: never.", "SECONDS", type=Seconds(0))],
) -> Message:
    """Wait until a thread has finished, or its run is over, whichever processes run it.

    It is over, too, when it has failed or was cancelled. With --until, the command also ends when the
    thread has that status: --until interrupted ends when the run asks a human. The exit code says how it
    ended: 4 failed, 5 interrupted, 6 cancelled, 124 for the timeout, 0 for any other status.

    Example: graphkit wait runs order-17 --until interrupted --timeout 60
    """
    saver = open_store(directory)
    config = RunnableConfig(find_thread(saver, thread))
    start = monotonic()
    with saver.watch(config, until=until) as changes, context.progress(f"waiting for {escape(config.thread)}"):
        seconds = timeout
        while changes.get(seconds) is not None:
            if timeout is not None:
                seconds = max(0.0, start + timeout - monotonic())
    # After a timeout, a watch that polls may not have read the last change.
    status = changes.reached or status_of(saver, config.thread)
    if status is None:
        raise CheckpointNotFoundError(config.thread, hint="it was deleted while `wait` waited for it")
    has_timed_out = status != until and status not in ENDED
    data = {"thread": config.thread, "status": status, "timed_out": has_timed_out}
    if has_timed_out:
        return Message(f"{escape(config.thread)} is still {status}", data, _TIMED_OUT)
    return Message(f"{escape(config.thread)} is {status}", data, _EXIT_CODES.get(status, 0))


def _make_row(context: CliContext, saver: BaseCheckpointSaver, change: Change) -> Row:
    """Return a change as plain data."""
    row: Row = {**change.to_dict(), "told": None}  # the key of version 0.1
    row["time"] = change.time or context.now()
    if change.kind in {"answer", "idle"}:  # of a nested graph, too, which the thread's status depends on
        row["status"] = None
        with suppress(CheckpointerError):  # reading its changes says why
            row["status"] = status_of(saver, change.thread_id)
    if change.kind == "progress":
        row["told"] = _describe_progress(saver, change)
    # A thread becomes idle after each run and each `graphkit answer`. It is worth a line only if the run has not ended.
    elif change.kind != "idle" or row["status"] == "stalled":
        row["told"] = _describe_change(context, change)
    return row


def _is_news(row: Row) -> bool:
    """Return whether a change means anything to people."""
    return row["kind"] != "idle" or row["told"] is not None


def _describe_progress(saver: BaseCheckpointSaver, change: Change) -> str:
    """Return how far each running map and fork is."""
    checkpoint_id = None if change.checkpoint is None else change.checkpoint.id
    config = RunnableConfig(change.thread_id, checkpoint_id, change.checkpoint_ns)
    text = None
    with suppress(CheckpointerError):  # a type that is not registered here
        text = describe_progress(saver.get_writes(config))
    node_id = change.value["node_id"]
    if text is None and node_id is not None:
        text = f"{escape(node_id)} done"
    return text or "progress"


def _describe_change(context: CliContext, change: Change) -> str | None:  # noqa: PLR0911 - a case per kind
    """Return a change in a few words; None for a step."""
    value: Any = change.value
    if change.kind in {"interrupt", "timer"}:
        if problem_with_interrupt(value) is not None:  # malformed, or its payload is of an unregistered type
            return f"waits for the answer to {escape(str(change.id))}"
        if "due" in value:
            return describe_sleep(context, time_or_none(value["due"])) or "sleeps"
        reason = value["payload"]
        if reason is None:
            reason = value.get("metadata", {}).get("reason")
        return f"waits {describe_stop(value['when'], value['node_id'], reason)}"
    if change.kind == "failure":
        if not isinstance(value, Mapping):
            return "failed"
        failure = abbreviate(describe_failure(value), _FAILURE_LIMIT)
        return f"failed in {escape(str(value.get('node_id')))}: {failure}"
    if change.kind == "cancel":
        return describe_cancellation(value)
    if change.kind == "answer" and value is not None:
        return f"answered: {abbreviate(value)}"
    if change.kind == "idle" and value:
        return "its process has died"
    if change.checkpoint is not None and change.checkpoint.status == "queued":
        return "queued"
    return _DESCRIPTIONS.get(change.kind)


class _Screen:
    """The table at a terminal: the threads that changed last, the latest on top."""

    def __init__(self, context: CliContext, saver: BaseCheckpointSaver) -> None:
        self._context = context
        self._saver = saver
        self._rows: dict[str, Row] = {}

    def follow(self, changes: Watch, limit: int | None) -> None:
        """Show changes as they come, up to the limit."""
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._context.out, width=self._context.width)
        # Without a refresh by a thread of rich, which would draw a table while this one changes its rows.
        live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

        def write_above(text: str) -> None:
            """Write a line to standard error: remove the table, and draw it again below the line."""
            live.update("", refresh=True)
            self._context.err.write(text + "\n")
            self._context.err.flush()
            live.update(self._render(), refresh=True)

        count = 0
        with live, self._context.redraw(write_above):
            while count != limit:
                # Take all changes that are there, then redraw once. Without changes redraw, too: the ages grow.
                change = changes.get(_REFRESH_SECONDS)
                while change is not None:
                    self._add(change)
                    count += 1
                    if count == limit:
                        break
                    change = changes.get(0)
                live.update(self._render(), refresh=True)

    def _add(self, change: Change) -> None:
        row = _make_row(self._context, self._saver, change)
        if not _is_news(row):
            return

        # Put again at the end, which the table shows first.
        old = self._rows.pop(change.thread_id, {})
        if change.kind == "delete":
            return
        if change.checkpoint_ns or change.checkpoint is None:
            # The position in the table is that of the thread's own graph, which a change in a nested graph, an
            # interrupt or an answer does not move.
            for key in ("node", "next", "step"):
                row[key] = old.get(key)
            if change.kind not in {"answer", "idle"}:
                row["status"] = old.get("status")
        self._rows[change.thread_id] = row

    def _render(self) -> Any:
        from rich.text import Text as RichText

        # The table is laid out as that of `threads` is; rich only replaces the lines on the screen.
        newest_first = list(reversed(self._rows.values()))
        lines = ["nothing has happened yet"]
        if newest_first:
            lines = list(Table(_COLUMNS, newest_first[:_MAX_ROWS]).lines(self._context))
        if len(newest_first) > _MAX_ROWS:
            lines.append(f"and {len(newest_first) - _MAX_ROWS} more")
        return RichText.from_ansi("\n".join(lines))
