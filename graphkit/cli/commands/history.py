"""Lists checkpoints: history, search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, zip_longest
from typing import Annotated, Any, Final

import typer

from graphkit._engine.history import RESUMED_AT
from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import FAILURE, INTERRUPT, SUBGRAPH_INTERRUPT
from graphkit.cli.context import CliContext
from graphkit.cli.options import MOST_ROWS, Directory, Namespace, Thread
from graphkit.cli.resolve import (
    find_config,
    find_threads,
    open_store,
)
from graphkit.cli.values import parse_assignments
from graphkit.cli.views import Column, Table
from graphkit.errors import CheckpointerError, CheckpointSerializationError

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

_Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        max=MOST_ROWS,
        metavar="N",
        help="Show at most N checkpoints.",
        show_default=False,
    ),
]


def history(
    context: CliContext,  # noqa: ARG001 - every command takes it
    directory: Directory,
    thread: Thread,
    limit: _Limit = None,
    ns: Namespace = "",
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="Only checkpoints saved for this reason: input, loop, update, fork, ...",
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Only checkpoints that were reached without a failure."),
    ] = False,
    node: Annotated[str | None, typer.Option("--node", help="Only checkpoints after this node.")] = None,
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
        checkpoint_row(saver, info, previous)
        for info, previous in with_previous(infos)
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


def with_previous(
    history: Sequence[CheckpointInfo],
) -> Iterator[tuple[CheckpointInfo, CheckpointInfo | None]]:
    """Yield each checkpoint of a history, newest first, with the one that was stored before it."""
    yield from zip_longest(history, history[1:])


def checkpoint_row(
    saver: BaseCheckpointSaver,
    info: CheckpointInfo,
    previous: CheckpointInfo | None = None,
) -> dict[str, Any]:
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


def search(
    context: CliContext,
    directory: Directory,
    metadata: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="Metadata that a checkpoint must have; a value is JSON, otherwise text.",
        ),
    ],
    thread: Annotated[str | None, typer.Option("--thread", help="Only this thread.")] = None,
    limit: _Limit = None,
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
        row.update(checkpoint_row(saver, info))
        rows.append(row)

    return Table(_SEARCH_COLUMNS, rows, empty="no checkpoint has this metadata")


COMMANDS: Final = (history, search)
