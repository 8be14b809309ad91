"""Flushes every few seconds, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from logging import getLogger
from typing import Final, final

from graphkit.errors import CheckpointerError

_LOGGER: Final = getLogger("graphkit")


@final
class PeriodicFlush:
    """`fsync=seconds`: a daemon thread flushes what was put, and ends when nothing is left.

    It does not survive a fork: the child makes another one.
    """

    def __init__(self, seconds: float, flush: Callable[[], None], has_work: Callable[[], bool]) -> None:
        """Prepare; `start` starts the thread.

        Args:
            seconds: the time between two flushes.
            flush: brings everything to the disk. What it raises is logged, and the next flush tries again.
            has_work: returns whether there is something to flush.
        """
        self._seconds = seconds
        self._flush = flush
        self._has_work = has_work
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread unless it runs. Called when there is something to flush, so that none is forgotten."""
        with self._mutex:
            if self._thread is not None:
                return
            self._stop_event = threading.Event()
            self._thread = threading.Thread(
                target=self._flush_periodically,
                args=(self._stop_event,),
                name="graphkit-flush",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after the flush that it may be in."""
        with self._mutex:
            thread = self._thread
            self._thread = None
            self._stop_event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _flush_periodically(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            try:
                self._flush()
            except (OSError, CheckpointerError):
                _LOGGER.exception("checkpoints could not be brought to the disk")
            with self._mutex:
                # A caller notes its work before it calls `start`, which waits for the mutex. So either the work is
                # seen here, or the caller starts another thread.
                if not self._has_work():
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return
