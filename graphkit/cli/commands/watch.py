"""Following runs and serving them: watch, worker."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import typer

from graphkit._records.config import RunnableConfig
from graphkit._records.output import InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.watch import Change, Watch
from graphkit._saver.writes import problem_with_interrupt
from graphkit._wording import simplify_text
from graphkit.cli.commands.inspect import progress_told
from graphkit.cli.context import CliContext
from graphkit.cli.options import App, CheckpointId, Directory, Limit, MaybeThread
from graphkit.cli.render import Column, Said, Table, Text, View, show
from graphkit.cli.resolve import checkpoint_of, load_app, open_store, thread_of
from graphkit.cli.values import UsageError, asking, brief, counted, shown
from graphkit.errors import CheckpointerError

_SHOWN: Final = 20
"""Threads in the table that a terminal shows."""
_FRESH: Final = 1.0
"""Seconds between two looks at the clock, for the ages in that table."""
_WIDTH: Final = 60
_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    Column("status", "STATUS", "status"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("step", "STEP", "number"),
    Column("told", "LAST", "text"),
    Column("time", "UPDATED", "age"),
)

Interval = Annotated[
    float,
    typer.Option("--interval", min=0.01, metavar="SECONDS", help="How often to look where there are no file events."),
]


def watch(
    context: CliContext,
    directory: Directory,
    thread: MaybeThread = None,
    checkpoint: CheckpointId = None,
    limit: Limit = None,
    interval: Interval = 1.0,
) -> Iterator[View]:
    """Follow runs live, whatever processes they are in: a line per step; at a terminal, a table that keeps up.

    Steps, questions to people, answers, failures, releases, deletions, and processes that died. ^C ends it. With
    --checkpoint it begins after that one; with a thread, at its latest; otherwise with what happens from now on.

    Example: graphkit watch runs order-17
    """
    saver = open_store(directory)
    latest = context.is_pretty or thread is not None
    with _watch(saver, thread, checkpoint, latest=latest, interval=interval) as changes:
        if context.is_pretty:
            _Screen(context, saver).follow(changes, limit)
        else:
            yield from _lines(context, saver, changes, limit)


def _watch(
    saver: BaseCheckpointSaver, thread: str | None, checkpoint: str | None, *, latest: bool, interval: float
) -> Watch:
    if thread is None:
        if checkpoint is not None:
            raise UsageError("--checkpoint is one of a thread's: name the thread too")
        return saver.watch(latest=latest, interval=interval)
    at = RunnableConfig(thread_of(saver, thread, released=True))
    if checkpoint is not None:
        at = at.with_check_point_id(checkpoint_of(saver, at, checkpoint).id)
    return saver.watch(at, latest=latest, interval=interval)


def _lines(context: CliContext, saver: BaseCheckpointSaver, changes: Watch, limit: int | None) -> Iterator[View]:
    statuses: dict[str, str] = {}
    told = 0
    for change in changes:
        row = _row(context, saver, change, statuses)
        if row is not None or context.as_json:
            yield Text("" if row is None else _line(context, row), row or _data(context, change, ""))
            told += 1
        if told == limit:
            return


def _row(
    context: CliContext, saver: BaseCheckpointSaver, change: Change, statuses: dict[str, str]
) -> dict[str, Any] | None:
    """What is told of a change; None if it says nothing to people: a run that ended well is idle, too."""
    if change.kind == "idle" and statuses.get(change.thread_id) != "running":
        return None
    if change.kind in {"release", "delete"}:
        statuses.pop(change.thread_id, None)
    elif change.checkpoint is not None and not change.checkpoint_ns:
        statuses[change.thread_id] = change.checkpoint.status
    told = _progress(saver, change) if change.kind == "progress" else _told(change)
    return _data(context, change, told)


def _data(context: CliContext, change: Change, told: str) -> dict[str, Any]:
    info = change.checkpoint
    return {
        "kind": change.kind,
        "thread": change.thread_id,
        "ns": change.checkpoint_ns,
        "checkpoint": None if info is None else info.id,
        "node": None if info is None else info.node_id,
        "next": None if info is None else info.next_node_id,
        "status": None if info is None else info.status,
        "step": None if info is None else info.metadata.get("step"),
        "time": _time_of(change) or context.now(),
        "id": change.id,
        "value": change.value,
        "told": told or None,
    }


def _progress(saver: BaseCheckpointSaver, change: Change) -> str:
    """How many items or branches are done, as far as that can be read here."""
    at = RunnableConfig(change.thread_id, checkpoint_ns=change.checkpoint_ns)
    if change.checkpoint is not None:
        at = at.with_check_point_id(change.checkpoint.id)
    try:
        told = progress_told(saver.get_writes(at))
    except CheckpointerError:  # a type that is not registered here
        told = None
    node_id = change.value["node_id"]
    return told or ("progress" if node_id is None else f"{shown(node_id)} done")


def _time_of(change: Change) -> datetime | None:
    """When a change was stored; a saver of a third party may leave that to its checkpoint."""
    if change.at is None and change.checkpoint is not None and change.kind == "checkpoint":
        return change.checkpoint.created_at
    return change.at


def _told(change: Change) -> str:
    """A change in a few words; a step says where it leads by itself."""
    value: Any = change.value
    if change.kind == "interrupt":
        return _question(change.id, value)
    if change.kind == "answer":
        return "goes on" if value is None else f"answered: {brief(value, _WIDTH)}"
    if change.kind == "failure":
        return _failure(value)
    if change.kind == "checkpoint":
        return ""
    return {"release": "released", "delete": "deleted", "idle": "its process has died"}[change.kind]


def _question(id: str | None, stop: Any) -> str:
    if problem_with_interrupt(stop) is not None:  # malformed, or its payload is of a type that is not known here
        return f"waits for the answer to {shown(str(id))}"
    return f"waits {stop['when']} {shown(stop['node_id'])}: {asking(_reason(stop), _WIDTH)}"


def _failure(failure: Any) -> str:
    if not isinstance(failure, Mapping):
        return "failed"
    message = brief(simplify_text(str(failure.get("message", ""))), _WIDTH)
    return f"failed in {shown(str(failure.get('node_id')))}: {failure.get('type')}: {message}"


def _reason(stop: Any) -> Any:
    return stop.get("metadata", {}).get("reason") if stop["payload"] is None else stop["payload"]


def _line(context: CliContext, row: dict[str, Any]) -> str:
    when: datetime = row["time"]
    place = shown(row["thread"]) + (f"[{shown(row['ns'])}]" if row["ns"] else "")
    told = row["told"] or f"{shown(row['node'])} -> {shown(row['next'] or '?')}"
    return f"{context.local(when):%H:%M:%S}  {place:24} {told}"


class _Screen:
    """A table of the threads in which something happened last."""

    def __init__(self, context: CliContext, saver: BaseCheckpointSaver) -> None:
        self._context = context
        self._saver = saver
        self._rows: dict[str, dict[str, Any]] = {}
        self._statuses: dict[str, str] = {}

    def follow(self, changes: Watch, limit: int | None) -> None:
        """Show changes as they come, up to so many."""
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._context.out, width=self._context.width)
        told = 0
        live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        with live, self._context.drawing(partial(self._write_above, live)):
            while told != limit:
                change = changes.get(_FRESH)
                while change is not None and told != limit:
                    self._take(change)
                    told += 1
                    change = changes.get(0) if told != limit else None
                live.update(self._drawn(), refresh=True)

    def _write_above(self, live: Any, text: str) -> None:
        """Write a line beside the output: take the table away, and draw it again below the line."""
        live.update("", refresh=True)
        self._context.err.write(text + "\n")
        self._context.err.flush()
        live.update(self._drawn(), refresh=True)

    def _take(self, change: Change) -> None:
        row = _row(self._context, self._saver, change, self._statuses)
        if row is None:
            return
        old = self._rows.pop(change.thread_id, {})
        if change.checkpoint_ns or change.checkpoint is None:  # the row is about the thread's own graph
            row = {**row, **{key: old.get(key) for key in ("node", "next", "status", "step")}}
        if change.kind != "delete":
            self._rows[change.thread_id] = row

    def _drawn(self) -> Any:
        from rich.text import Text as RichText

        page = io.StringIO()
        rows = [*reversed(self._rows.values())]
        note = "" if len(rows) <= _SHOWN else f"and {len(rows) - _SHOWN} more"
        nothing = "nothing has happened yet"
        context = dataclasses.replace(self._context, out=page, err=page, above=[])
        show(context, Table(_COLUMNS, rows[:_SHOWN], nothing, note))
        return RichText.from_ansi(page.getvalue())


def worker(
    context: CliContext,
    directory: Directory,
    app: App,
    failed: Annotated[bool, typer.Option("--failed", help="Take up failed runs too, with growing pauses.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when there is nothing to do at the moment.")] = False,
    interval: Interval = 1.0,
) -> Said:
    """Serve the runs of a directory: go on with those that were answered, and those whose process died.

    Start as many as there is work for: a thread is run by one of them at a time. Threads of other graphs are left
    alone. The directory may be missing or empty as yet. SIGTERM and ^C stop it before the next node, with everything
    stored; another worker goes on at once.

    Example: graphkit worker runs --app shop:app
    """
    from graphkit.worker import Worker

    def report(thread: str, output: NodeOutput) -> None:
        if not (output.is_start or isinstance(output, StreamingOutput)):
            show(context, _output(context, thread, output))

    serving = Worker(load_app(app, directory, create=True), failed=failed, on_output=report, interval=interval)
    with context.stopping(serving.stop):
        context.warn("serving; ^C or SIGTERM stops before the next node")
        count = serving.run(once=once)
    return Said(f"took up {counted(count, 'run')}", {"runs": count})


def _output(context: CliContext, thread: str, output: NodeOutput) -> Text:
    stops = output.interrupts if isinstance(output, InterruptionMetadata) else ()
    waits = [{"id": one.id, "node": one.node_id, "when": one.when, "reason": one.reason()} for one in stops]
    told = "finished" if output.is_end else shown(output.node)
    if stops:
        told = "waits " + "; ".join(f"{one.when} {shown(one.node_id)}: {asking(one.reason())}" for one in stops)
    when = context.now()
    data = {"time": when, "thread": thread, "node": output.node, "subgraph": output.is_subgraph, "interrupts": waits}
    return Text(f"{context.local(when):%H:%M:%S}  {shown(thread):24} {told}", data)


COMMANDS: Final = (watch, worker)
