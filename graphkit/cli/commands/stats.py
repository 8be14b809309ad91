"""Sums up a store: stats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit.cli.cells import format_duration
from graphkit.cli.commands.history import checkpoint_row, with_previous
from graphkit.cli.commands.threads import size_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, MaybeThread
from graphkit.cli.resolve import (
    find_threads,
    open_store,
)
from graphkit.cli.views import Card, Column
from graphkit.errors import CheckpointerError, CheckpointKeyError

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


def stats(context: CliContext, directory: Directory, thread: MaybeThread = None) -> Card:
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


def _sum_up(saver: BaseCheckpointSaver, threads: Sequence[_Thread]) -> dict[str, Any]:
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


def _sum_up_durations(saver: BaseCheckpointSaver, histories: Sequence[_History]) -> dict[str, Any]:
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
        for info, previous in with_previous(history):
            row = checkpoint_row(saver, info, previous)
            if row["seconds"] is not None:
                yield _Step(seconds=row["seconds"], node=row["node"])


def _sum_up_resumes(histories: Sequence[_History]) -> dict[str, Any]:
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


COMMANDS: Final = (stats,)
