"""Lists the threads of a store: threads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final

import click

from graphkit._records.config import RunnableConfig
from graphkit._records.output import HistorySummary
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import STATUSES, find_next_time
from graphkit._saver.writes import Submission, is_schedule, time_or_none
from graphkit.cli.cells import Row, count_statuses, describe_progress, describe_sleep, describe_unreadable, size_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import ROWS, Directory, option
from graphkit.cli.render import Column, Table
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import parse_assignments, pluralize
from graphkit.errors import CheckpointerError

_ABSENT: Final = object()
_PAGE_SIZE: Final = 100
"""Threads that a terminal shows by default."""
_MAX_SORTED: Final = 1000
"""Threads of a store that a terminal sorts by age by default, which takes about a millisecond each."""
_STATUSES: Final = (*STATUSES, "damaged", "sealed", "erased")
_SORTS: Final = ("id", "age", "size", "checkpoints")
_COLUMNS: Final = (
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
_EMPTY_ROW: Final[Row] = dict.fromkeys(column.key for column in (*_COLUMNS, *_COLUMNS[-1].instead))
_FAILURE_KEYS: Final = ("node_id", "type", "message", "cause")


@with_placeholder_types()
def threads(
    context: CliContext,
    directory: Directory,
    statuses: Annotated[
        tuple[str, ...], option("Only threads with this status; repeatable.", "--status", type=click.Choice(_STATUSES))
    ],
    meta: Annotated[tuple[str, ...], option("Only threads with this metadata; repeatable.", "-m", "KEY=VALUE")],
    tag: Annotated[str | None, option("Only threads with a checkpoint that has this tag.")],
    newer: Annotated[str | None, option("Only threads changed within this time: 30min, 2d.", "AGE")],
    older: Annotated[str | None, option("Only threads not changed within this time.", "AGE")],
    sort: Annotated[
        str | None,
        option(
            "Sort key; the newest, largest or most come first. Default: age at a terminal, for up to 1,000 threads; "
            "otherwise id.",
            type=click.Choice(_SORTS),
        ),
    ],
    limit: Annotated[int | None, option("Show at most N threads.", "-n", "N", type=ROWS)],
    offset: Annotated[int, option("Skip this many threads first.", type=click.IntRange(0, 10**9), default=0)],
    everything: Annotated[bool, option("At a terminal, show all threads instead of the first 100.", "--all")],
) -> Table:
    """List the threads of a store: position, pending interrupts, size and age.

    Damaged threads are listed too. Sorted by id, the command reads only the threads that it shows;
    with filters or another order it reads all of them. A terminal shows the newest first.

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
    all_rows = (_thread_row(saver, thread_id) for thread_id in thread_ids)
    rows: Iterator[Row] = filter(is_wanted, all_rows)
    ordered: list[Row] | None = None
    if sort != "id":
        ordered = sorted(rows, key=lambda row: _sort_key(row, sort), reverse=True)
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
    return Table(_COLUMNS, page, empty=empty, note=note, summary=summary)


def _sort_key(row: Row, sort: str) -> float:
    """Return how new or large a thread is, or how many checkpoints it has; 0 if that is unknown."""
    if sort != "age":
        return row[sort] or 0
    updated: datetime | None = row["updated"]
    return 0.0 if updated is None else updated.timestamp()


def _thread_row(saver: BaseCheckpointSaver, thread_id: str) -> Row:
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
            row |= _explain_status(saver, summary)
    except CheckpointerError as error:
        row["status"], row["problem"] = describe_unreadable(error)

    return row


def _explain_status(saver: BaseCheckpointSaver, summary: HistorySummary) -> Row:
    """Return what the run asks a human, why it failed or was cancelled, how far it is, or when it goes on."""
    latest = summary.latest
    submission = Submission.find(latest.next_node_id, latest.metadata)
    if submission is not None and submission.at is not None and latest.status == "queued":
        return {"progress": f"not before {submission.at.isoformat()}"}
    if latest.status == "sleeping":
        return {"progress": describe_sleep(find_next_time(saver, RunnableConfig(latest.thread_id)))}
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
