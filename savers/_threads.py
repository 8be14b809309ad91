"""Threads of execution: locks that are taken only if they are free, how others are waited for, the flush thread.

Also what is called in the child of a fork, which has none of its parent's threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import getLogger
from time import monotonic, sleep
from typing import Any, Final, TypeVar, final

from graphkit.errors import CheckpointerError

T = TypeVar("T")
RLock = Any
"""What `threading.RLock` makes: until Python 3.13, that is a function."""


def call_after_fork(objects: Iterable[T], call: Callable[[T], object]) -> None:
    """Call a function with each object of a weak collection in the child of a fork, from now on."""

    def call_each() -> None:
        for each in list(objects):
            call(each)

    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=call_each)


def is_mine(mutex: RLock) -> bool:
    """Return whether the calling thread of execution holds a lock."""
    return bool(mutex._is_owned())  # noqa: SLF001 - as Condition does


@contextmanager
def hold_if_free(mutex: RLock) -> Iterator[bool]:
    """Hold a lock during the block, unless a thread of execution holds it, the calling one included.

    The lock knows its owner. So an exception at any line, as Ctrl-C raises it, leaves it free.

    Yields:
        Whether the lock is held.
    """
    if is_mine(mutex):
        yield False
        return
    try:
        yield mutex.acquire(blocking=False)
    finally:
        if is_mine(mutex):
            mutex.release()


class WouldWaitError(Exception):
    """A lock is in use, and the caller must not wait. Nothing was changed."""


class _State(threading.local):
    may_wait = True


_STATE = _State()


@contextmanager
def refuse_waiting() -> Iterator[None]:
    """Raise WouldWaitError in the block where this thread of execution would wait for a lock."""
    _STATE.may_wait = False
    try:
        yield
    finally:
        _STATE.may_wait = True


def check_may_wait() -> None:
    """Check that this thread of execution may wait.

    Raises:
        WouldWaitError: it must not.
    """
    if not _STATE.may_wait:
        raise WouldWaitError


class Backoff:
    """Waits for what another process will do, each time a little longer."""

    def __init__(self, timeout: float, *, first: float = 0.0005, longest: float = 0.02) -> None:
        """Begin to count the time.

        Args:
            timeout: seconds until waiting is over.
            first: seconds of the first wait.
            longest: seconds of the longest wait.
        """
        self._started = monotonic()
        self._timeout = timeout
        self._pause = self._least = first
        self._longest = longest

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """Whether the timeout has passed."""
        return self.waited >= self._timeout

    def wait(self) -> None:
        """Wait before the next attempt."""
        sleep(min(self._pause, max(self._least, self._timeout - self.waited)))
        self._pause = min(self._pause * 1.5, self._longest)


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
            try:
                self._thread = threading.Thread(
                    target=self._flush_periodically,
                    args=(self._stop_event,),
                    name="graphkit-flush",
                    daemon=True,
                )
                self._thread.start()
            except BaseException:
                # The next call starts another one.
                self._thread = None
                raise

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
