"""Summing up a store: stats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.cli.commands.threads import history_row, size_of
from graphkit.cli.context import CliContext
from graphkit.cli.options import Directory, MaybeThread
from graphkit.cli.render import Card, Column, duration
from graphkit.cli.resolve import open_store, thread_of
from graphkit.errors import CheckpointerError

_STATS: Final = (
    Column("threads", "threads", "number"),
    Column("statuses", "of these", "value"),
    Column("waiting", "wait for a human", "number"),
    Column("checkpoints", "checkpoints", "number"),
    Column("size", "size", "bytes"),
    Column("bytes_per_checkpoint", "per checkpoint", "bytes"),
    Column("oldest", "oldest", "time"),
    Column("newest", "newest", "time"),
    Column("per_hour", "checkpoints per hour", "number"),
    Column("median_seconds", "median step", "seconds"),
    Column("slowest_node", "slowest node", "value"),
    Column("resumed_after_failure", "went on after a failure", "number"),
    Column("resume_success_rate", "of these finished", "value"),
)
_AN_HOUR: Final = 3600
_SHORTEST_FOR_RATE: Final = 60
"""Seconds from the oldest checkpoint to the newest, below which a rate per hour would be a guess."""


def stats(context: CliContext, directory: Directory, thread: MaybeThread = None) -> Card:
    """Sum up a store or a thread: statuses, checkpoints, bytes, how often and how fast it saves, how resumes end.

    The time of a node counts neither waiting for people nor downtime. A rate per hour wants a minute of history.

    Example: graphkit stats runs
    """
    saver = open_store(directory)
    only = None if thread is None else thread_of(saver, thread)
    histories: list[Sequence[CheckpointInfo]] = []
    statuses: Counter[str] = Counter()
    among = saver.threads() if only is None else [only]
    with context.progress("reading") as progress:
        for done, thread_id in enumerate(among, 1):
            try:
                histories.append(saver.history(RunnableConfig(thread_id)))
                statuses[histories[-1][0].status if histories[-1] else "empty"] += 1
            except CheckpointerError:
                statuses["damaged"] += 1
            progress(done, len(among), thread_id)
    sums = {"threads": len(among), "statuses": dict(statuses), "waiting": statuses["interrupted"]}
    return Card(_STATS, {**sums, "size": size_of(saver, only), **_summed(saver, [one for one in histories if one])})


def _summed(saver: BaseCheckpointSaver, histories: Sequence[Sequence[CheckpointInfo]]) -> dict[str, Any]:
    infos = [info for one in histories for info in one]
    if not infos:
        return {"checkpoints": 0}
    created = sorted(info.created_at for info in infos)
    seconds = (created[-1] - created[0]).total_seconds()
    return {
        "checkpoints": len(infos),
        "bytes_per_checkpoint": sum(info.size for info in infos) // len(infos),
        "oldest": created[0],
        "newest": created[-1],
        "per_hour": round(len(infos) * _AN_HOUR / seconds, 1) if seconds >= _SHORTEST_FOR_RATE else None,
        **_timing(saver, histories),
        **_resumes(histories),
    }


def _timing(saver: BaseCheckpointSaver, histories: Sequence[Sequence[CheckpointInfo]]) -> dict[str, Any]:
    pairs = [pair for one in histories for pair in zip(one, (*one[1:], None), strict=True)]
    rows = [history_row(saver, info, before) for info, before in pairs]
    took = sorted((row["seconds"], row["node"]) for row in rows if row["seconds"] is not None)
    if not took:
        return {"median_seconds": None, "slowest_node": None}
    seconds, node = took[-1]
    return {"median_seconds": took[len(took) // 2][0], "slowest_node": f"{node} ({duration(seconds)})"}


def _resumes(histories: Sequence[Sequence[CheckpointInfo]]) -> dict[str, Any]:
    """Threads that went on after a failure, and how many of those that have ended have finished."""
    latest = [one[0] for one in histories if any(info.metadata.get("clean") is False for info in one)]
    ended = [info.status == "finished" for info in latest if info.status in {"finished", "failed"}]
    rate = round(sum(ended) / len(ended), 3) if ended else None
    return {"resumed_after_failure": len(latest), "resume_success_rate": rate}


COMMANDS: Final = (stats,)
