"""Lists threads and checkpoints, and sums them up: threads, history, search, stats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, zip_longest
from typing import Annotated, Any, Final

import click

from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import CheckpointInfo, HistorySummary
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._saver.status import RESUMED_AT, STATUSES, find_next_time
from graphkit._saver.writes import FAILURE, INTERRUPT, SUBGRAPH_INTERRUPT, Submission, is_schedule, time_or_none
from graphkit.cli.cells import (
    Row,
    count_statuses,
    describe_progress,
    describe_sleep,
    describe_unreadable,
    format_duration,
    is_after_node,
    size_of,
)
from graphkit.cli.context import CliContext
from graphkit.cli.options import ROWS, Directory, MaybeThread, Namespace, Thread, argument, option
from graphkit.cli.render import NAMESPACE, Card, Column, Table
from graphkit.cli.resolve import find_config, find_threads, read_threads
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import escape, parse_assignments, pluralize
from graphkit.errors import CheckpointerError, CheckpointSerializationError

_ABSENT: Final = object()
_PAGE_SIZE: Final = 100
"""Threads that a terminal shows by default."""
_MAX_SORTED: Final = 1000
"""Threads of a store that a terminal sorts by age by default, which takes about a millisecond each."""
_STATUSES: Final = click.Choice((*STATUSES, "damaged", "sealed", "erased"))
_SORTS: Final = click.Choice(("id", "age", "size", "checkpoints"))
_THREAD_COLUMNS: Final = (
    Column("thread", "THREAD", "name"),
    Column("status", "STATUS", "whole"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("checkpoints", "SAVED", "number"),
    Column("size", "SIZE", "bytes"),
    Column("updated", "UPDATED", "age"),
    # Last, so that one long text does not pad the other rows.
    Column(
        "waiting",
        "WAITING FOR",
        "payload",
        instead=(Column("failure", "", "cause"), Column("progress", ""), Column("reason", ""), Column("problem", "")),
    ),
)
_EMPTY_ROW: Final[Row] = dict.fromkeys(column.key for column in (*_THREAD_COLUMNS, *_THREAD_COLUMNS[-1].instead))
_FAILURE_KEYS: Final = ("node_id", "type", "message", "cause")


@with_placeholder_types()
def threads(
    context: CliContext,
    directory: Directory,
    statuses: Annotated[tuple[str, ...], option("Only with this status; repeatable.", "--status", type=_STATUSES)],
    meta: Annotated[tuple[str, ...], option("Only threads with this metadata; repeatable.", "-m", "KEY=VALUE")],
    tag: Annotated[str | None, option("Only threads with a checkpoint that has this tag.")],
    newer: Annotated[str | None, option("Only threads changed within this time: 30min, 2d.", "AGE")],
    older: Annotated[str | None, option("Only threads not changed within this time.", "AGE")],
    sort: Annotated[str | None, option("Sort key. Default: age at a terminal, otherwise id.", type=_SORTS)],
    limit: Annotated[int | None, option("Show at most N threads.", "-n", "N", type=ROWS)],
    offset: Annotated[int, option("Skip this many threads first.", type=click.IntRange(0, 10**9), default=0)],
    everything: Annotated[bool, option("At a terminal, show all threads instead of the first 100.", "--all")],
) -> Table:
    """List the threads of a store: position, pending interrupts, size and age.

    Damaged threads are listed too. Sorted by id, the command reads only the threads that it shows;
    with filters or another order it reads all of them: the newest, largest or most come first. A
    terminal shows the newest first, if there are at most 1,000 threads.

    Example: graphkit threads runs --status interrupted --sort age
    """
    metadata = parse_assignments(meta, "--meta")
    since = context.time_ago(newer)
    before = context.time_ago(older)

    def is_wanted(row: Row) -> bool:
        stored = row.get("metadata") or {}
        updated = row["updated"]
        if statuses and row["status"] not in statuses:
            return False
        if tag is not None and tag not in row.get("tags", ()):
            return False
        if any(stored.get(key, _ABSENT) != value for key, value in metadata.items()):
            return False
        if since is not None and (updated is None or updated < since):
            return False
        return before is None or (updated is not None and updated < before)

    saver = open_store(directory)
    is_page = limit is None and context.is_pretty and not everything
    if is_page:
        limit = _PAGE_SIZE
    thread_ids = [thread_id for thread_id in saver.threads() if not is_schedule(thread_id)]
    if sort is None:
        sort = "age" if context.is_pretty and len(thread_ids) <= _MAX_SORTED else "id"

    # Iterators as far as possible: a row costs the reading of a thread, and a terminal shows 100 of perhaps 100,000.
    # The ids are sorted, so that only another order needs all rows.
    all_rows = (_thread_row(context, saver, thread_id) for thread_id in thread_ids)
    rows: Iterator[Row] = filter(is_wanted, all_rows)
    ordered: list[Row] | None = None
    if sort != "id":
        key = "updated" if sort == "age" else sort
        ordered = sorted(rows, key=lambda row: (row[key] is not None, row[key]), reverse=True)
        rows = iter(ordered)
    rows = islice(rows, offset, None)
    page = list(islice(rows, limit))

    note = ""
    if is_page and next(rows, None) is not None:
        note = f"only the first {len(page)} threads; --all or --limit shows more"
    has_filter = any((statuses, metadata, tag is not None, since, before))
    empty = "no matching threads" if has_filter else "no threads"
    counted = page if ordered is None else ordered
    summary = f"{pluralize(len(counted), 'thread')}: {count_statuses(counted)}"
    return Table(_THREAD_COLUMNS, page, empty=empty, note=note, summary=summary)


def _thread_row(context: CliContext, saver: BaseCheckpointSaver, thread_id: str) -> Row:
    """Return a thread as plain data; one that cannot be read with the reason as its problem."""
    row: Row = {**_EMPTY_ROW, "thread": thread_id}
    try:
        row["size"] = size_of(saver, thread_id)
        summary = saver.summary(RunnableConfig(thread_id))
        namespaces = saver.namespaces(thread_id) if summary is None else ()
        if namespaces:  # it has checkpoints of nested graphs only
            summary = saver.summary(RunnableConfig(thread_id, checkpoint_ns=namespaces[0]))
        if summary is not None:
            latest = summary.latest
            ends = [record for record in (summary.failure, summary.cancellation) if record is not None]
            recorded: list[Any] = [interrupt.created_at for interrupt in summary.waiting]
            recorded += [record.get("at") for record in ends]
            # A record that was written by hand may have anything in place of its time.
            changes = [time for time in map(time_or_none, recorded) if time is not None]
            row |= {
                "status": latest.status,
                "node": latest.node_id,
                "next": latest.next_node_id,
                "updated": max([latest.created_at, *changes]),
                "checkpoints": summary.checkpoints,
                "metadata": latest.metadata,
                "id": latest.id,
                "tags": list(summary.tags),
            }
            row |= _explain_status(context, saver, summary)
    except CheckpointerError as error:
        row["status"], row["problem"] = describe_unreadable(error)

    return row


def _explain_status(context: CliContext, saver: BaseCheckpointSaver, summary: HistorySummary) -> Row:
    """Return what the run asks a human, why it failed or was cancelled, how far it is, or when it goes on."""
    latest = summary.latest
    submission = Submission.find(latest.next_node_id, latest.metadata)
    if submission is not None and submission.at is not None and latest.status == "queued":
        return {"progress": f"not before {context.describe_time(submission.at)}"}
    if latest.status == "sleeping":
        return {"progress": describe_sleep(context, find_next_time(saver, RunnableConfig(latest.thread_id)))}
    if latest.status in {"running", "stalled"}:
        config = RunnableConfig(latest.thread_id, latest.id, latest.checkpoint_ns)
        return {"progress": describe_progress(saver.get_writes(config))}
    if latest.status == "cancelled" and summary.cancellation is not None:
        return {"reason": summary.cancellation.get("reason")}
    if latest.status not in {"interrupted", "failed"}:
        return {}
    row: Row = {}
    if summary.failure is not None:
        row["failure"] = {key: summary.failure.get(key) for key in _FAILURE_KEYS}
    # A declared stop has no payload, but a place.
    payloads = [f"{stop.when} {stop.node_id}" if stop.payload is None else stop.payload for stop in summary.waiting]
    if payloads:
        row["waiting"] = payloads[0] if len(payloads) == 1 else payloads
    return row


# history and search

_MIN_SECONDS_OF_WAIT: Final = 1.0
"""Only a step that took longer may contain a wait, so that a history of fast steps needs no look at
pending writes."""

_POSITION: Final = (
    Column("id", "CHECKPOINT", "id"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("status", "STATUS", "whole"),
)
_CREATED: Final = Column("created", "CREATED", "age")
_HISTORY_COLUMNS: Final = (
    Column("branches", "", "whole", is_rare=True),
    *_POSITION,
    Column("source", "SOURCE"),
    Column("step", "STEP", "number"),
    _CREATED,
    Column("seconds", "TOOK", "seconds"),
    Column("size", "SIZE", "bytes"),
    Column("tags", "TAGS", "list"),
)
_SEARCH_COLUMNS: Final = (Column("thread", "THREAD", "name"), *_POSITION, _CREATED, NAMESPACE)


def history(
    context: CliContext,
    directory: Directory,
    thread: Thread,
    limit: Annotated[int | None, option("Show at most N checkpoints.", "-n", "N", type=ROWS)],
    ns: Namespace,
    source: Annotated[str | None, option("Only checkpoints saved for this reason: input, loop, update, fork, ...")],
    clean: Annotated[bool, option("Only checkpoints that were reached without a failure.")],
    node: Annotated[str | None, option("Only checkpoints after this node.")],
) -> Table:
    """List the checkpoints of a thread, newest first.

    A row has the node, the next node, the time, the duration of the step and the size. At a terminal
    a history that has branched is drawn as a tree; a circle is the first checkpoint of its branch.

    Example: graphkit history runs order-17 --limit 20
    """

    def is_wanted(info: CheckpointInfo) -> bool:
        if source is not None and info.metadata.get("source") != source:
            return False
        if clean and (info.metadata.get("clean") is False or info.stopped == "failed"):
            return False
        return node is None or info.node_id == node

    saver = open_store(directory)
    config = find_config(saver, thread, ns=ns)
    # All of them, since the number of a step depends on all its ancestors.
    infos = saver.history(config)
    steps: dict[str, int] = {}
    for info in reversed(infos):
        steps[info.id] = steps.get(info.parent_id or "", -1) + 1
    pairs = [(info, previous) for info, previous in zip_longest(infos, infos[1:]) if is_wanted(info)]
    rows = [_checkpoint_row(saver, info, previous) | {"step": steps[info.id]} for info, previous in pairs[:limit]]

    if context.is_pretty:
        drawings = _draw_branches(infos, [info for info, _ in pairs])
        for row, drawing in zip(rows, drawings, strict=False):  # all rows, or none
            row["branches"] = drawing
    empty = f"thread {config.thread!r} has no matching checkpoints"
    summary = f"{escape(config.thread)}: {pluralize(len(pairs), 'checkpoint')}"
    return Table(_HISTORY_COLUMNS, rows, empty=empty, summary=summary)


def _draw_branches(infos: Sequence[CheckpointInfo], shown: Sequence[CheckpointInfo]) -> list[str]:
    """Draw the branches of a history, one text for each checkpoint that is shown; none if it has one branch.

    As `git log --graph` does, but a branch joins its origin in the line of the origin:

        ●      ship      after a rollback
        │ ●    ship
        │ ●    approve
        ●─╯    reserve
        ○      __START__
    """
    origins = _find_origins(infos, {info.id for info in shown})
    lanes: list[str | None] = []
    """For each column of the drawing the checkpoint down to which a line leads."""
    drawings: list[str] = []
    for info in shown:
        if info.id not in lanes:  # no line leads here yet: one begins, in the first free column
            if None not in lanes:
                lanes.append(None)
            lanes[lanes.index(None)] = info.id
        origin = origins[info.id]
        drawings.append(_draw_lanes(lanes, info.id, is_root=origin is None))
        # Of the lines that lead here, the first goes on, and the others have joined it.
        first = lanes.index(info.id)
        lanes = [None if lane == info.id else lane for lane in lanes]
        lanes[first] = origin
    has_branches = any(len(drawing) > 1 for drawing in drawings)
    return drawings if has_branches else []


def _find_origins(infos: Sequence[CheckpointInfo], shown: Collection[str]) -> Mapping[str, str | None]:
    """Return for each checkpoint of a history the nearest of its ancestors that is shown, if any."""
    origins: dict[str, str | None] = {}
    for info in reversed(infos):
        parent = info.parent_id or ""
        is_origin = parent in shown and parent in origins
        origins[info.id] = parent if is_origin else origins.get(parent)
    return origins


def _draw_lanes(lanes: Sequence[str | None], here: str, *, is_root: bool) -> str:
    first = lanes.index(here)
    last = len(lanes) - 1 - lanes[::-1].index(here)
    drawing = ""
    for number, lane in enumerate(lanes):
        is_joined = first < number <= last
        drawing += "─" if is_joined else " "
        if number == first:
            drawing += "○" if is_root else "●"
        elif lane == here:
            drawing += "╯" if number == last else "┴"
        elif lane is not None:
            drawing += "┼" if is_joined else "│"
        else:
            drawing += "─" if is_joined else " "
    return drawing[1:].rstrip()


def _checkpoint_row(saver: BaseCheckpointSaver, info: CheckpointInfo, previous: CheckpointInfo | None = None) -> Row:
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


def _step_seconds(saver: BaseCheckpointSaver, info: CheckpointInfo, previous: CheckpointInfo | None) -> float | None:
    """Return how long a node ran; None if no node ran, or its start is unknown."""
    if info.node_id == START or not is_after_node(info):
        return None

    # The step began when the run resumed, or else when the checkpoint before was stored. That one must be the parent,
    # since a resume may have gone back to an older checkpoint, and the run must not have stopped in between: the time
    # until a human answers is no time of the node.
    resumed_at = _parse_time(info.metadata.get(RESUMED_AT))
    if resumed_at is not None:
        return max(0.0, (info.created_at - resumed_at).total_seconds())
    if previous is None or previous.id != info.parent_id:
        return None
    seconds = (info.created_at - previous.created_at).total_seconds()
    if seconds < _MIN_SECONDS_OF_WAIT:
        return seconds if seconds >= 0 else None  # less than 0: the clock was set back in between

    # It stopped if it left an interrupt or a failure at the checkpoint before.
    try:
        writes = saver.get_writes(RunnableConfig(previous.thread_id, previous.id, previous.checkpoint_ns))
    except CheckpointSerializationError:  # only a payload can have an application type, so there was an interrupt
        return None
    has_stopped = any(key == FAILURE or key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in writes)
    return None if has_stopped else seconds


def _parse_time(value: Any) -> datetime | None:
    """Parse a time with a time zone; None for any other metadata, which callers may store."""
    if not isinstance(value, str):
        return None
    try:
        return time_or_none(datetime.fromisoformat(value))
    except ValueError:
        return None


def search(
    context: CliContext,
    directory: Directory,
    metadata: Annotated[tuple[str, ...], argument("The metadata to find.", "KEY=VALUE...", required=True)],
    thread: Annotated[str | None, option("Only this thread.")],
    limit: Annotated[int | None, option("Show at most N checkpoints.", "-n", "N", type=ROWS)],
) -> Table:
    """Find checkpoints by their metadata, in all threads, newest first.

    A value is JSON, otherwise text. The command does not read states.

    Example: graphkit search runs user=anna source=input
    """
    saver = open_store(directory)
    wanted = parse_assignments(metadata, "search")
    found = read_threads(context, saver, thread, lambda each: saver.search(wanted, thread_id=each, limit=limit))
    rows: list[Row] = []
    for info in found:
        place = {"thread": info.thread_id, "ns": info.checkpoint_ns}
        rows.append(place | _checkpoint_row(saver, info))
    rows.sort(key=lambda row: row["created"], reverse=True)
    rows = rows[:limit]
    count = len({row["thread"] for row in rows})
    summary = f"{pluralize(len(rows), 'checkpoint')} of {pluralize(count, 'thread')}"
    return Table(_SEARCH_COLUMNS, rows, empty="no checkpoint has this metadata", summary=summary)


# stats

_STATS_COLUMNS: Final = (
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
    Column("slowest_node", "slowest node", "whole"),
    Column("resumed_after_failure", "resumed after a failure", "number"),
    Column("resume_success_rate", "resume success rate", "number"),
)
_HOUR: Final = 3600
_MIN_SECONDS_FOR_RATE: Final = 60
"""If all checkpoints are from a shorter time, a rate per hour would be a guess."""

_History = Sequence[CheckpointInfo]
"""The checkpoints of a thread in one namespace, newest first."""


def stats(context: CliContext, directory: Directory, thread: MaybeThread) -> Card:
    """Sum up a store or a thread.

    The summary has statuses, checkpoints, bytes, the rate and duration of saves, and the outcome of
    resumes.

    The time of a node excludes downtime and waiting for people. A rate per hour requires at least
    one minute of history.

    Example: graphkit stats runs
    """
    saver = open_store(directory)
    threads = find_threads(saver, thread)
    listed = saver.threads(released=True) if thread is None else threads
    if thread is None:
        threads, listed = ([each for each in ids if not is_schedule(each)] for ids in (threads, listed))
    size = size_of(saver, None if thread is None else threads[0])
    histories: list[_History] = []
    nested: list[_History] = []
    statuses: Counter[str] = Counter()
    released = 0
    live = frozenset(threads)
    with context.progress("reading") as progress:
        for done, thread_id in enumerate(listed, 1):
            try:
                root, *others = _read_histories(saver, thread_id)
                released += _count_released(saver, thread_id)
                histories.append(root)
                nested += others
                status = root[0].status if root else ""
            except CheckpointerError as error:
                status, _ = describe_unreadable(error)
            if status and thread_id in live:
                statuses[status] += 1
            progress(done, len(listed), thread_id)

    infos = [info for history in (*histories, *nested) for info in history]
    row = {
        "threads": len(threads),
        "statuses": dict(statuses),
        "waiting": statuses["interrupted"],
        "size": size,
        "checkpoints": len(infos) + released,
        "released": released or None,
    }
    if infos:
        row |= _sum_up(saver, histories, infos)
    return Card(_STATS_COLUMNS, row)


def _read_histories(saver: BaseCheckpointSaver, thread_id: str) -> Sequence[_History]:
    """Return the histories of a thread that are not empty: that of its own graph first, if there is one."""
    namespaces = sorted(saver.namespaces(thread_id))
    histories = [saver.history(RunnableConfig(thread_id, checkpoint_ns=namespace)) for namespace in namespaces]
    return [history for history in histories if history] or [()]


def _count_released(saver: BaseCheckpointSaver, thread_id: str) -> int:
    """Return the number of checkpoints in the released histories of a thread."""
    if not isinstance(saver, HasVersions):
        return 0
    return sum(
        len(saver.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints)
        for version in saver.versions_by_thread_id(thread_id)
        for namespace in saver.version_namespaces(thread_id, version)
    )


def _sum_up(saver: BaseCheckpointSaver, histories: Sequence[_History], infos: Sequence[CheckpointInfo]) -> Row:
    """Sum up the saves, the steps and the resumes.

    Args:
        saver: the store.
        histories: those of the threads' own graphs.
        infos: all checkpoints, also those of nested graphs; at least one.
    """
    oldest = min(info.created_at for info in infos)
    newest = max(info.created_at for info in infos)
    elapsed = (newest - oldest).total_seconds()
    per_hour = round(len(infos) * _HOUR / elapsed, 1) if elapsed >= _MIN_SECONDS_FOR_RATE else None

    # The steps whose duration is known.
    steps: list[tuple[float, str]] = []
    for history in histories:
        for info, previous in zip_longest(history, history[1:]):
            seconds = _step_seconds(saver, info, previous)
            if seconds is not None:
                steps.append((seconds, info.node_id))
    steps.sort()
    median = slowest = None
    if steps:
        median, _ = steps[len(steps) // 2]
        seconds, node_id = steps[-1]
        slowest = f"{node_id} ({format_duration(seconds)})"

    # The threads that continued after a failure. The rate is the share of the finished ones among those that ended.
    statuses: Counter[str] = Counter()
    for history in histories:
        has_failed = any(info.metadata.get("clean") is False for info in history)
        if has_failed:
            statuses[history[0].status] += 1
    ended = statuses["finished"] + statuses["failed"]
    rate = round(statuses["finished"] / ended, 3) if ended else None
    return {
        "bytes_per_checkpoint": sum(info.size for info in infos) // len(infos),
        "oldest": oldest,
        "newest": newest,
        "per_hour": per_hour,
        "median_seconds": median,
        "slowest_node": slowest,
        "resumed_after_failure": statuses.total(),
        "resume_success_rate": rate,
    }
