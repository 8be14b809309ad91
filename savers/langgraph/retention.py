"""Deletes LangGraph's threads that no process has written to for longer than their time to live."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from logging import getLogger
from typing import Final

from graphkit import RunnableConfig
from graphkit.abc import LANGGRAPH, MADE_BY
from graphkit.errors import CheckpointerConfigurationError, CheckpointerError
from savers._log.failed_threads import FailedThreads
from savers.langgraph.histories import Histories

SWEEPS_PER_TTL: Final = 10
MIN_INTERVAL: Final = timedelta(minutes=1)
MAX_INTERVAL: Final = timedelta(hours=1)

_LOGGER: Final = getLogger("graphkit")


def parse_ttl(ttl: object) -> timedelta:
    """Return the option `ttl`, checked.

    Raises:
        CheckpointerConfigurationError: it is not a timedelta above zero.
    """
    if not isinstance(ttl, timedelta) or ttl <= timedelta(0):
        raise CheckpointerConfigurationError(
            f"ttl must be a timedelta above zero, such as timedelta(days=30), not {ttl!r}"
        )
    return ttl


class TtlSweeper:
    """Sweeps a store in a background thread: at once, and then at an interval that follows from the ttl.

    The thread ends when `stop` is called, or when the saver is no longer used.
    """

    def __init__(self, histories: Histories, ttl: timedelta) -> None:
        """Start the background thread.

        Args:
            histories: the histories of the threads.
            ttl: how long a thread stays after the last write to it.
        """
        self._histories = histories
        self._ttl = ttl
        self._stop = threading.Event()
        weakref.finalize(histories, self._stop.set)
        self._thread = threading.Thread(
            target=sweep_periodically,
            args=(weakref.ref(histories), ttl, self._stop),
            name="graphkit-ttl",
            daemon=True,
        )
        self._thread.start()

    def sweep(self) -> int:
        """Delete the threads whose time is over, now; return how many. Errors are as in `sweep`."""
        return sweep(self._histories, datetime.now(UTC) - self._ttl, threading.Event())

    def stop(self) -> None:
        """End the background thread, after the thread of LangGraph that it is deleting."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def sweep_periodically(
    get_histories: Callable[[], Histories | None],
    ttl: timedelta,
    stop: threading.Event,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Sweep a store until `stop` is set, or until the store no longer exists.

    What goes wrong is logged, and tried again the next time.
    """
    interval = min(max(ttl / SWEEPS_PER_TTL, MIN_INTERVAL), MAX_INTERVAL)
    while True:
        histories = get_histories()
        if histories is None:
            return
        try:
            deleted = sweep(histories, now() - ttl, stop)
            if deleted:
                _LOGGER.info("%s: deleted %d threads whose ttl was over", histories.describe(), deleted)
        except (CheckpointerError, OSError):
            _LOGGER.exception("%s: threads whose ttl is over could not be deleted", histories.describe())
        del histories  # while it waits, the thread must not keep the saver alive
        if stop.wait(interval.total_seconds()):
            return


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
        with failed.catch(thread_id):
            if histories.delete_idle(thread_id, idle_since=idle_since, dry_run=True) and _is_of_langgraph(
                histories, thread_id
            ):
                deleted += histories.delete_idle(thread_id, idle_since=idle_since)
    failed.raise_if_any()
    return deleted


def _is_of_langgraph(histories: Histories, thread_id: str) -> bool:
    """Return whether a thread holds no run of graphkit's own."""
    for namespace in histories.list_namespaces(thread_id):
        for info in histories.saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1):
            if info.metadata.get(MADE_BY) != LANGGRAPH:
                return False
    return True
