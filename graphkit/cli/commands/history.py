"""Lists and sums up checkpoints: history, search, stats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, zip_longest
from typing import Any, Final, NamedTuple

import click

from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._saver.writes import FAILURE, INTERRUPT, SUBGRAPH_INTERRUPT
from graphkit.cli import options
from graphkit.cli.cells import format_duration
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.options import ROWS
from graphkit.cli.resolve import find_config, find_threads
from graphkit.cli.rows import Row, size_of
from graphkit.cli.stores import open_store
from graphkit.cli.values import parse_assignments
from graphkit.cli.views import Card, Column, Table
from graphkit.errors import CheckpointerError, CheckpointKeyError, CheckpointSerializationError

_SOURCES_WITHOUT_NODE: Final = frozenset({"input", "update", "fork", "answer"})
"""Values of the metadata's `source` of checkpoints to which no node led."""
_MIN_SECONDS_OF_WAIT: Final = 1.0
"""Only a step that took longer may contain a wait, so that a history of fast steps needs no look at
pending writes."""

_ID: Final = Column("id", "CHECKPOINT", "id")
_NODE: Final = Column("node", "NODE")
_NEXT: Final = Column("next", "NEXT")
_STATUS: Final = Column("status", "STATUS", "status")
_CREATED: Final = Column("created", "CREATED", "age")
_HISTORY_COLUMNS: Final = (
    _ID,
    _NODE,
    _NEXT,
    _STATUS,
    Column("source", "SOURCE"),
    Column("step", "STEP", "number"),
    _CREATED,
    Column("seconds", "TOOK", "seconds"),
    Column("size", "SIZE", "bytes"),
    Column("tags", "TAGS", "list"),
)
_SEARCH_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    _ID,
    _NODE,
    _NEXT,
    _STATUS,
    _CREATED,
)


@click.command("history", cls=Command)
@options.directory
@options.thread
@click.option("--limit", "-n", type=ROWS, metavar="N", help="Show at most N checkpoints.")
@options.namespace
@click.option("--source", help="Only checkpoints saved for this reason: input, loop, update, fork, ...")
@click.option("--clean", is_flag=True, help="Only checkpoints that were reached without a failure.")
@click.option("--node", help="Only checkpoints after this node.")
def history(
    _context: CliContext,
    directory: str,
    thread: str,
    limit: int | None,
    ns: str,
    source: str | None,
    clean: bool,
    node: str | None,
) -> Table:
    """List the checkpoints of a thread, newest first.

    A row has the node, the next node, the time, the duration of the step and the size.

    Example: graphkit history runs order-17 --limit 20
    """
    saver = open_store(directory)
    config = find_config(saver, thread, ns=ns)
    has_filter = source is not None or clean or node is not None
    infos = _load_history(saver, config, None if has_filter else limit)
    rows = (
        _checkpoint_row(saver, info, previous)
        for info, previous in _with_previous(infos)
        if _matches(info, source, clean=clean, node=node)
    )
    return Table(
        _HISTORY_COLUMNS,
        list(islice(rows, limit)),
        empty=f"thread {config.thread!r} has no matching checkpoints",
    )


def _load_history(saver: BaseCheckpointSaver, config: RunnableConfig, limit: int | None) -> Sequence[CheckpointInfo]:
    if limit is None:
        return saver.history(config)
    # One more than is shown, because the duration of the last one depends on the one before it.
    return saver.recent(config, limit=limit + 1)


def _matches(info: CheckpointInfo, source: str | None, *, clean: bool, node: str | None) -> bool:
    if source is not None and info.metadata.get("source") != source:
        return False
    if clean and (info.metadata.get("clean") is False or info.stopped == "failed"):
        return False
    return node is None or info.node_id == node


def _with_previous(
    history: Sequence[CheckpointInfo],
) -> Iterator[tuple[CheckpointInfo, CheckpointInfo | None]]:
    """Yield each checkpoint of a history, newest first, with the one that was stored before it."""
    yield from zip_longest(history, history[1:])


def _checkpoint_row(
    saver: BaseCheckpointSaver,
    info: CheckpointInfo,
    previous: CheckpointInfo | None = None,
) -> Row:
    """Return a checkpoint as plain data.

    Args:
        saver: the store.
        info: the checkpoint.
        previous: the one that was stored before it, from which the duration of the step follows.
    """
    return {
        "id": info.id,
        "parent": info.parent_id,
        "node": info.node_id,
        "next": info.next_node_id,
        "status": info.status or None,
        "created": info.created_at,
        "seconds": _step_seconds(saver, info, previous),
        "size": info.size,
        "tags": list(info.tags),
        "source": info.metadata.get("source"),
        "step": info.metadata.get("step"),
        "metadata": info.metadata,
    }


def _step_seconds(
    saver: BaseCheckpointSaver,
    info: CheckpointInfo,
    previous: CheckpointInfo | None,
) -> float | None:
    """Return how long a node ran; None if no node ran, or its start is unknown."""
    from graphkit._engine.cursor import RESUMED_AT

    source = info.metadata.get("source")
    if info.node_id == START or source in _SOURCES_WITHOUT_NODE:
        return None
    resumed_at = _parse_time(info.metadata.get(RESUMED_AT))
    if resumed_at is not None:
        elapsed = info.created_at - resumed_at
        return max(0.0, elapsed.total_seconds())
    if previous is None or previous.id != info.parent_id:
        return None
    elapsed = info.created_at - previous.created_at
    seconds = elapsed.total_seconds()
    if seconds < 0:
        return None  # the clock was set back in between
    if seconds >= _MIN_SECONDS_OF_WAIT and _had_stopped(saver, previous):
        return None
    return seconds


def _parse_time(value: Any) -> datetime | None:
    """Parse a time with a time zone; None for any other metadata, which callers may store."""
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None


def _had_stopped(saver: BaseCheckpointSaver, info: CheckpointInfo) -> bool:
    """Return whether a run stopped at a checkpoint before it stored the next one.

    It may have stopped for a human or because of a failure.
    """
    config = RunnableConfig(info.thread_id, info.id, info.checkpoint_ns)
    try:
        writes = saver.get_writes(config)
    except CheckpointSerializationError:  # only a payload can have an application type, so there was an interrupt
        return True
    return any(key == FAILURE or key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in writes)


@click.command("search", cls=Command)
@options.directory
@click.argument(
    "metadata",
    metavar="KEY=VALUE...",
    nargs=-1,
    required=True,
    help="Metadata that a checkpoint must have; a value is JSON, otherwise text.",
)
@click.option("--thread", help="Only this thread.")
@click.option("--limit", "-n", type=ROWS, metavar="N", help="Show at most N checkpoints.")
def search(
    context: CliContext,
    directory: str,
    metadata: tuple[str, ...],
    thread: str | None,
    limit: int | None,
) -> Table:
    """Find checkpoints by their metadata, in all threads. The command does not read states.

    Example: graphkit search runs user=anna source=input
    """
    saver = open_store(directory)
    wanted = parse_assignments(metadata, "search")
    threads = find_threads(saver, thread)
    matches: list[CheckpointInfo] = []
    for thread_id in threads:
        left = None if limit is None else limit - len(matches)
        if left == 0:
            break
        try:
            matches += saver.search(wanted, thread_id=thread_id, limit=left)
        except CheckpointerError as error:
            context.warn(f"graphkit: {error}")

    rows = []
    for info in matches:
        row = {"thread": info.thread_id, "ns": info.checkpoint_ns}
        row.update(_checkpoint_row(saver, info))
        rows.append(row)

    return Table(_SEARCH_COLUMNS, rows, empty="no checkpoint has this metadata")


# stats

_COLUMNS: Final = (
    Column("threads", "threads", "number"),
    Column("statuses", "by status", "counts"),
    Column("waiting", "waiting for a human", "number"),
    Column("checkpoints", "checkpoints", "number"),
    Column("released", "of them released", "number"),
    Column("size", "size", "bytes"),
    Column("bytes_per_checkpoint", "size per checkpoint", "bytes"),
    Column("oldest", "oldest", "time"),
    Column("newest", "newest", "time"),
    Column("per_hour", "checkpoints per hour", "number"),
    Column("median_seconds", "median step", "seconds"),
    Column("slowest_node", "slowest node", "value"),
    Column("resumed_after_failure", "resumed after a failure", "number"),
    Column("resume_success_rate", "resume success rate", "value"),
)
_HOUR: Final = 3600
_MIN_SECONDS_FOR_RATE: Final = 60
"""If all checkpoints are from a shorter time, a rate per hour would be a guess."""

_History = Sequence[CheckpointInfo]


class _Thread(NamedTuple):
    """What is stored of a thread."""

    history: _History
    """That of the thread's own graph; the first one there is, if that has none."""
    nested: Sequence[_History]
    """Those of its nested graphs."""
    released: int
    """The number of checkpoints in its released histories."""


@click.command("stats", cls=Command)
@options.directory
@options.maybe_thread
def stats(context: CliContext, directory: str, thread: str | None) -> Card:
    """Sum up a store or a thread.

    The summary has statuses, checkpoints, bytes, the rate and duration of saves, and the outcome of
    resumes.

    The time of a node excludes downtime and waiting for people. A rate per hour requires at least
    one minute of history.

    Example: graphkit stats runs
    """
    saver = open_store(directory)
    threads = find_threads(saver, thread)
    size = size_of(saver, None if thread is None else threads[0])
    read: list[_Thread] = []
    statuses: Counter[str] = Counter()
    live = frozenset(threads)
    listed = saver.threads(released=True) if thread is None else threads
    with context.progress("reading") as progress:
        for done, thread_id in enumerate(listed, 1):
            status = ""
            try:
                found = _read_thread(saver, thread_id)
            except CheckpointKeyError:
                status = "sealed"
            except CheckpointerError:
                status = "damaged"
            else:
                read.append(found)
                if found.history:
                    status = found.history[0].status
            if status and thread_id in live:
                statuses[status] += 1
            progress(done, len(listed), thread_id)

    row = {
        "threads": len(threads),
        "statuses": dict(statuses),
        "waiting": statuses["interrupted"],
        "size": size,
        **_sum_up(saver, read),
    }
    return Card(_COLUMNS, row)


def _read_thread(saver: BaseCheckpointSaver, thread_id: str) -> _Thread:
    histories = [saver.history(RunnableConfig(thread_id, checkpoint_ns=name)) for name in saver.namespaces(thread_id)]
    histories.sort(key=lambda history: history[0].checkpoint_ns if history else "")
    released = 0
    if isinstance(saver, HasVersions):
        for version in saver.versions_by_thread_id(thread_id):
            for name in saver.version_namespaces(thread_id, version):
                released += len(saver.tag(RunnableConfig(thread_id, checkpoint_ns=name), version).checkpoints)
    history, *nested = [history for history in histories if history] or [()]
    return _Thread(history, nested, released)


def _sum_up(saver: BaseCheckpointSaver, threads: Sequence[_Thread]) -> Row:
    histories = [thread.history for thread in threads if thread.history]
    nested = [history for thread in threads for history in thread.nested]
    infos = [info for history in (*histories, *nested) for info in history]
    released = sum(thread.released for thread in threads)
    counts = {"checkpoints": len(infos) + released, "released": released or None}
    if not infos:
        return counts
    times = sorted(info.created_at for info in infos)
    seconds = (times[-1] - times[0]).total_seconds()
    per_hour = None
    if seconds >= _MIN_SECONDS_FOR_RATE:
        per_hour = round(len(infos) * _HOUR / seconds, 1)
    return {
        **counts,
        "bytes_per_checkpoint": sum(info.size for info in infos) // len(infos),
        "oldest": times[0],
        "newest": times[-1],
        "per_hour": per_hour,
        **_sum_up_durations(saver, histories),
        **_sum_up_resumes(histories),
    }


def _sum_up_durations(saver: BaseCheckpointSaver, histories: Sequence[_History]) -> Row:
    steps = sorted(_steps(saver, histories))
    if not steps:
        return {"median_seconds": None, "slowest_node": None}
    median = steps[len(steps) // 2]
    slowest = steps[-1]
    duration = format_duration(slowest.seconds)
    return {
        "median_seconds": median.seconds,
        "slowest_node": f"{slowest.node} ({duration})",
    }


class _Step(NamedTuple):
    seconds: float
    node: str


def _steps(saver: BaseCheckpointSaver, histories: Sequence[_History]) -> Iterator[_Step]:
    """Yield the steps whose duration is known."""
    for history in histories:
        for info, previous in _with_previous(history):
            row = _checkpoint_row(saver, info, previous)
            if row["seconds"] is not None:
                yield _Step(seconds=row["seconds"], node=row["node"])


def _sum_up_resumes(histories: Sequence[_History]) -> Row:
    """Count the threads that continued after a failure, and rate how they ended.

    The rate is the share of finished threads among those that have ended.
    """
    resumed = 0
    ended = 0
    finished = 0
    for history in histories:
        if not any(info.metadata.get("clean") is False for info in history):
            continue
        resumed += 1
        status = history[0].status
        ended += status in {"finished", "failed"}
        finished += status == "finished"
    rate = round(finished / ended, 3) if ended else None
    return {"resumed_after_failure": resumed, "resume_success_rate": rate}
