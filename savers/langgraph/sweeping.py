"""The option `ttl`: a background thread deletes LangGraph's threads that no process has written to for that long."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from logging import getLogger
from typing import Final

from graphkit import RunnableConfig
from graphkit.errors import CheckpointErasedError
from graphkit.saver_kit import LANGGRAPH, MADE_BY, FailedThreads
from savers.langgraph.histories import Histories
from savers.langgraph.opening import PeriodicSweep

_SWEEPS_PER_TTL: Final = 10
_MIN_INTERVAL: Final = timedelta(minutes=1)
_MAX_INTERVAL: Final = timedelta(hours=1)
_LOGGER: Final = getLogger("graphkit")


def start_sweeper(histories: Histories, ttl: timedelta) -> PeriodicSweep[Histories]:
    """Sweep a store in a background thread: at once, and then at an interval that follows from the ttl."""

    def sweep_now(histories: Histories, stop: threading.Event) -> None:
        deleted = sweep(histories, datetime.now(UTC) - ttl, stop)
        if deleted:
            _LOGGER.info("%s: deleted %d threads whose ttl was over", histories.describe(), deleted)

    sweeper = PeriodicSweep(histories, sweep_now, "graphkit-ttl")
    interval = min(max(ttl / _SWEEPS_PER_TTL, _MIN_INTERVAL), _MAX_INTERVAL)
    sweeper.start(interval.total_seconds(), begins_now=True)
    return sweeper


def sweep(histories: Histories, idle_since: datetime, stop: threading.Event) -> int:
    """Delete LangGraph's threads that no process has written to since a moment; return how many.

    Args:
        histories: the histories of the threads. Runs of graphkit's own stay.
        idle_since: threads that were written to at this time or later stay.
        stop: ends the sweep early.

    Raises:
        CheckpointerError: a thread could not be read or deleted. All others are done, and the error
            names those that failed.
    """
    failed = FailedThreads("delete")
    deleted = 0
    for thread_id in histories.saver.threads():
        if stop.is_set():
            break
        # Whose an erased thread was, nobody knows any more: it stays.
        with failed.catch(thread_id), suppress(CheckpointErasedError):
            is_idle = histories.delete_idle(thread_id, idle_since=idle_since, dry_run=True)
            if is_idle and _is_of_langgraph(histories, thread_id):
                deleted += histories.delete_idle(thread_id, idle_since=idle_since)
    failed.raise_if_any()
    return deleted


def _is_of_langgraph(histories: Histories, thread_id: str) -> bool:
    """Return whether a thread holds no run of graphkit's own."""
    return all(
        info.metadata.get(MADE_BY) == LANGGRAPH
        for namespace in histories.list_namespaces(thread_id)
        for info in histories.saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1)
    )
