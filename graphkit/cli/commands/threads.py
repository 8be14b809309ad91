"""Looking over a store: threads, history, search, stats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, Final

import typer

from graphkit._engine.cursor import RESUMED_AT
from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import CheckpointInfo, HistorySummary
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import FAILURE, INTERRUPT, SUBGRAPH_INTERRUPT, time_or_none
from graphkit._wording import simplify_text
from graphkit.cli.commands.inspect import progress_told
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, Limit, Meta, Namespace, Thread
from graphkit.cli.placeholder_types import looks_without_types
from graphkit.cli.render import Column, Table
from graphkit.cli.resolve import open_store, thread_of
from graphkit.cli.values import UsageError, assignments
from graphkit.errors import CheckpointerConfigurationError, CheckpointerError, CheckpointSerializationError

_PAGE: Final = 100
"""Threads that a terminal shows unless told otherwise."""
_WITHOUT_NODE: Final = frozenset({"input", "update", "fork", "answer"})
"""Values of the metadata's `source` of checkpoints that no node led to."""
_WORTH_ASKING: Final = 1.0
"""Seconds. Only a longer step may be a wait in disguise, so that fast histories cost no look at pending writes."""


class Status(StrEnum):
    """What `threads --status` chooses among."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"
    DAMAGED = "damaged"


class Sort(StrEnum):
    """What `threads --sort` sorts by."""

    ID = "id"
    AGE = "age"
    SIZE = "size"
    CHECKPOINTS = "checkpoints"


_ORDER: Final[dict[Sort, Callable[[dict[str, Any]], Any]]] = {
    Sort.ID: lambda row: row["thread"],
    Sort.AGE: lambda row: -row["updated"].timestamp() if row["updated"] else 0.0,
    Sort.SIZE: lambda row: -(row["size"] or 0),
    Sort.CHECKPOINTS: lambda row: -(row["checkpoints"] or 0),
}
_THREADS: Final = (
    Column("thread", "THREAD", "name"),
    Column("status", "STATUS", "status"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("waiting", "WAITING FOR", "asks"),
    Column("checkpoints", "SAVED", "number"),
    Column("size", "SIZE", "bytes"),
    Column("updated", "UPDATED", "age"),
)
_HISTORY: Final = (
    Column("id", "CHECKPOINT", "id"),
    Column("node", "NODE"),
    Column("next", "NEXT"),
    Column("status", "STATUS", "status"),
    Column("source", "SOURCE"),
    Column("step", "STEP", "number"),
    Column("created", "CREATED", "age"),
    Column("seconds", "TOOK", "seconds"),
    Column("size", "SIZE", "bytes"),
    Column("tags", "TAGS", "list"),
)


@looks_without_types
def threads(
    context: CliContext,
    directory: Directory,
    status: Annotated[list[Status] | None, typer.Option("--status", help="Only those; repeatable.")] = None,
    meta: Meta = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only those with a checkpoint of this tag.")] = None,
    newer: Annotated[
        str | None, typer.Option("--newer", metavar="AGE", help="Only those changed within: 30min, 2d.")
    ] = None,
    older: Annotated[str | None, typer.Option("--older", metavar="AGE", help="Only those not changed within.")] = None,
    sort: Annotated[Sort, typer.Option("--sort", help="By what; the newest, largest or most first.")] = Sort.ID,
    limit: Limit = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Pass over so many first.")] = 0,
    everything: Annotated[bool, typer.Option("--all", help="At a terminal: all, and not only the first 100.")] = False,
) -> Table:
    """List the threads: where each stands, what it waits for, how large and how old it is.

    A damaged thread is listed as such. By id, only the threads that are shown are read; filters and another order
    read them all.

    Example: graphkit threads runs --status interrupted --sort age
    """
    is_wanted = _filter(context.now(), status, assignments(meta or (), "--meta"), tag, newer, older)
    saver = open_store(directory)
    wanted = filter(is_wanted, (_thread_row(saver, thread_id) for thread_id in saver.threads()))
    if limit is None and context.is_pretty and not everything:
        limit = _PAGE
    if sort is Sort.ID:
        page = _page(wanted, offset, limit)
    else:
        page = _page(iter(sorted(wanted, key=_ORDER[sort])), offset, limit)
    more = next(wanted, None) is not None if sort is Sort.ID else limit is not None and len(page) == limit
    note = f"the first {len(page)}; --all or --limit shows more" if more and limit == _PAGE else ""
    return Table(_THREADS, page, "no such threads" if status or meta or tag or newer or older else "no threads", note)


def _page(rows: Iterator[dict[str, Any]], offset: int, limit: int | None) -> list[dict[str, Any]]:
    page: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        if number >= offset:
            page.append(row)
        if limit is not None and len(page) == limit:
            break
    return page


def _thread_row(saver: BaseCheckpointSaver, thread_id: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((column.key for column in _THREADS), None)
    row["thread"] = thread_id
    try:
        _fill(row, saver, thread_id)
    except CheckpointSerializationError:
        raise
    except CheckpointerError as error:
        row.update(status="damaged", waiting=str(error))
    return row


def _fill(row: dict[str, Any], saver: BaseCheckpointSaver, thread_id: str) -> None:
    row["size"] = size_of(saver, thread_id)
    found = saver.summary(RunnableConfig(thread_id)) or _of_a_namespace(saver, thread_id)
    if found is None:
        return
    latest = found.latest
    row.update(status=latest.status, node=latest.node_id, next=latest.next_node_id, updated=_updated(found))
    row.update(checkpoints=found.checkpoints, metadata=latest.metadata, id=latest.id, tags=[*found.tags])
    if latest.status in {"interrupted", "failed"}:
        row["waiting"] = _waiting(found)
    elif latest.status == "running":
        at = RunnableConfig(thread_id, latest.id, latest.checkpoint_ns)
        row["waiting"] = progress_told(saver.get_writes(at))


def _of_a_namespace(saver: BaseCheckpointSaver, thread_id: str) -> HistorySummary | None:
    """What there is of a thread whose root has no checkpoints."""
    names = saver.namespaces(thread_id)
    return saver.summary(RunnableConfig(thread_id, checkpoint_ns=names[0])) if names else None


def size_of(saver: BaseCheckpointSaver, thread_id: str | None) -> int | None:
    """The bytes of a thread or a store; None where the saver cannot tell."""
    try:
        return saver.size(thread_id)
    except CheckpointerConfigurationError:
        return None


def _updated(found: HistorySummary) -> datetime:
    """When a history last changed: by its latest checkpoint, by a question asked since, or by a failure since."""
    times: list[Any] = [found.latest.created_at, *(stop.created_at for stop in found.waiting)]
    if found.failure is not None:
        times.append(found.failure.get("at"))
    return max(time for one in times if (time := time_or_none(one)) is not None)


def _waiting(found: HistorySummary) -> Any:
    """What a human is asked, or why it failed."""
    if found.failure is not None and not found.waiting:
        return f"{found.failure.get('type')}: {simplify_text(str(found.failure.get('message', '')))}"
    told = [f"{stop.when} {stop.node_id}" if stop.payload is None else stop.payload for stop in found.waiting]
    return told[0] if len(told) == 1 else told


def _filter(
    now: datetime,
    status: Sequence[Status] | None,
    meta: dict[str, Any],
    tag: str | None,
    newer: str | None,
    older: str | None,
) -> Callable[[dict[str, Any]], bool]:
    """Which rows are asked for."""
    since, before = (None if one is None else now - age(one) for one in (newer, older))

    def is_wanted(row: dict[str, Any]) -> bool:
        if status and row["status"] not in status:
            return False
        metadata = row.get("metadata") or {}
        if any(key not in metadata or metadata[key] != value for key, value in meta.items()):
            return False
        if tag is not None and tag not in row.get("tags", ()):
            return False
        if since is None and before is None:
            return True
        updated = row["updated"]
        if updated is None:
            return False
        return (since is None or updated >= since) and (before is None or updated < before)

    return is_wanted


_OLDEST: Final = 1000 * 365.25 * 86400
_AGE_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def age(text: str) -> timedelta:
    """An age as it is typed: `90s`, `30min`, `12h`, `7d`, `2w`.

    Raises:
        UsageError: it is none.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.removeprefix(number).strip()
    try:
        seconds = float(number) * _AGE_UNITS[unit]
    except (ValueError, KeyError) as error:
        raise UsageError(f"an age is a number and s, min, h, d or w, such as 30min, not {text!r}") from error
    if not 0 <= seconds <= _OLDEST:
        raise UsageError(f"an age is at most a thousand years and not below zero, not {text!r}")
    return timedelta(seconds=seconds)


def history(
    context: CliContext,  # noqa: ARG001 - as all commands
    directory: Directory,
    thread: Thread,
    limit: Limit = None,
    ns: Namespace = "",
    source: Annotated[
        str | None, typer.Option("--source", help="Only those saved for this: input, loop, update, fork, ...")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Only those reached without a failure.")] = False,
    node: Annotated[str | None, typer.Option("--node", help="Only those after this node.")] = None,
) -> Table:
    """List the checkpoints of a thread, newest first: node and next node, when, how long the step took, how large.

    Example: graphkit history runs order-17 --limit 20
    """
    saver = open_store(directory)
    at = RunnableConfig(thread_of(saver, thread), checkpoint_ns=ns)
    most = None if source or clean or node else limit
    # One more than is shown tells how long the last of them took.
    infos = saver.history(at) if most is None else saver.recent(at, limit=most + 1)
    found = (
        history_row(saver, info, before)
        for info, before in zip(infos, chain(infos[1:], (None,)), strict=False)
        if _is_kept(info, source, clean=clean, node=node)
    )
    return Table(_HISTORY, _page(found, 0, limit), f"thread {at.thread!r} has no such checkpoints")


def _is_kept(info: CheckpointInfo, source: str | None, *, clean: bool, node: str | None) -> bool:
    if source is not None and info.metadata.get("source") != source:
        return False
    if clean and (info.metadata.get("clean") is False or info.status == "failed"):
        return False
    return node is None or info.node_id == node


def _seconds_of_step(saver: BaseCheckpointSaver, info: CheckpointInfo, before: CheckpointInfo | None) -> float | None:
    """How long the node of a checkpoint ran; None where no node ran, or the store does not tell since when."""
    if info.node_id == START or info.metadata.get("source") in _WITHOUT_NODE:
        return None
    resumed_at = _time_in(info.metadata.get(RESUMED_AT))
    if resumed_at is not None:
        return max(0.0, (info.created_at - resumed_at).total_seconds())
    if before is None or before.id != info.parent_id:
        return None
    seconds = (info.created_at - before.created_at).total_seconds()
    if seconds < 0:
        return None  # the clock was set back in between
    if seconds >= _WORTH_ASKING and _had_stopped(saver, before):
        return None
    return seconds


def _time_in(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _had_stopped(saver: BaseCheckpointSaver, info: CheckpointInfo) -> bool:
    """Whether a run stopped at a checkpoint, for a human or by a failure, before the next one was stored."""
    at = RunnableConfig(info.thread_id, info.id, info.checkpoint_ns)
    try:
        writes = saver.get_writes(at)
    except CheckpointSerializationError:  # a payload of an application's own type; the keys are what matters
        return True
    return any(key == FAILURE or key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in writes)


def history_row(
    saver: BaseCheckpointSaver, info: CheckpointInfo, before: CheckpointInfo | None = None
) -> dict[str, Any]:
    """A checkpoint as plain data.

    Args:
        saver: the store that it is in.
        info: the checkpoint.
        before: the one stored just before it, which tells how long its node ran.
    """
    seconds = _seconds_of_step(saver, info, before)
    return {
        "id": info.id, "parent": info.parent_id, "node": info.node_id, "next": info.next_node_id,
        "status": info.status, "created": info.created_at, "seconds": seconds, "size": info.size,
        "tags": list(info.tags), "source": info.metadata.get("source"), "step": info.metadata.get("step"),
        "metadata": info.metadata,
    }  # fmt: skip


_FOUND: Final = (Column("thread", "THREAD", "name"), *_HISTORY[:4], _HISTORY[6])


def search(
    context: CliContext,
    directory: Directory,
    metadata: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="Metadata that must be so; a value is JSON, or else text."),
    ],
    thread: Annotated[str | None, typer.Option("--thread", help="Only in this thread.")] = None,
    limit: Limit = None,
) -> Table:
    """Find checkpoints by their metadata, in all threads. States are not read.

    Example: graphkit search runs user=anna source=input
    """
    saver = open_store(directory)
    wanted = assignments(metadata, "search")
    among = saver.threads() if thread is None else [thread_of(saver, thread)]
    found: list[CheckpointInfo] = []
    for thread_id in among:
        left = None if limit is None else limit - len(found)
        try:
            found += saver.search(wanted, thread_id=thread_id, limit=left)
        except CheckpointerError as error:
            context.warn(f"graphkit: {error}")
        if limit is not None and len(found) >= limit:
            break
    rows = [{"thread": info.thread_id, "ns": info.checkpoint_ns, **history_row(saver, info)} for info in found]
    return Table(_FOUND, rows, "nothing has such metadata")


COMMANDS: Final = (threads, history, search)
