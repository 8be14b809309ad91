"""Tells watchers that a database has changed, so that they read what is new."""

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from logging import getLogger
from time import monotonic
from typing import Final

_LOGGER: Final = getLogger("graphkit")
_MOST_THREADS: Final = 10_000
"""If more threads have changed between two looks, a listener must look at all."""


class ChangeListener:
    """Waits for changes, for one watcher. What happens between two calls is not missed."""

    def __init__(self, close: Callable[[ChangeListener], None], thread: str | None) -> None:
        self._close = close
        self.thread = thread
        """The encoded id of the thread that is watched; None: all threads."""
        self.condition = threading.Condition()
        """Held for a moment when there are changes, and released while `wait_for_change` waits."""
        self.hears_all = False
        """Whether every change is told. Otherwise the watcher must look for those that are not."""
        self._threads: set[str] | None = set()
        """The encoded ids of the threads that have changed; None: any may have."""
        self._has_changed = False
        self._is_awake = False

    def wait_for_change(self, deadline: float) -> bool:
        """Wait until something has changed since the last call that returned true.

        It may return true for a change that is none of the watcher's, or without one.

        Args:
            deadline: when to give up, by `time.monotonic()`.

        Returns:
            Whether something may have changed; False after `wake`, and at the deadline.
        """
        with self.condition:
            self.condition.wait_for(
                lambda: self._has_changed or self._is_awake, timeout=max(0.0, deadline - monotonic())
            )
            has_changed = self._has_changed and not self._is_awake
            if has_changed:
                self._has_changed = False
            self._is_awake = False
            return has_changed

    def wake(self) -> None:
        """Let a call that waits, or the next one, return at once."""
        with self.condition:
            self._is_awake = True
            self.condition.notify_all()

    def take_threads(self) -> set[str] | None:
        """Return the encoded ids of the threads that have changed since the last call; None: any may have."""
        with self.condition:
            threads = self._threads
            self._threads = set()
            return threads

    def tell(self, thread: str | None = None) -> None:
        """Record a change of a thread, by its encoded id; None: of any."""
        with self.condition:
            if thread is None or self._threads is None or len(self._threads) >= _MOST_THREADS:
                self._threads = None
            else:
                self._threads.add(thread)
            self._has_changed = True
            self.condition.notify_all()

    def close(self) -> None:
        """Stop listening."""
        self.wake()
        self._close(self)


class ChangeSource(ABC):
    """Watches one database in a thread of execution, while there are listeners."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._listeners: list[ChangeListener] = []
        self._stop: WakeUp | None = None
        """Stops the thread; None if there is none."""

    def open_listener(self, thread: str | None = None) -> ChangeListener:
        """Return a listener that hears of changes committed after this call.

        Args:
            thread: the encoded id of the thread to watch; None: all threads.

        Raises:
            CheckpointStorageError: the database cannot be watched.
        """
        listener = ChangeListener(self._remove, thread)
        with self._mutex:
            if self._stop is None:
                watch = self._start_watching()
                stop = self._stop = WakeUp()
                runner = threading.Thread(target=self._watch, args=(watch, stop), name="graphkit-changes", daemon=True)
                runner.start()
            self._listeners.append(listener)
        return listener

    def tell(self, thread: str | None = None) -> None:
        """Tell all listeners of a change of a thread, by its encoded id; None: of any."""
        for listener in list(self._listeners):
            listener.tell(thread)

    @abstractmethod
    def _start_watching(self) -> Callable[[WakeUp], None]:
        """Prepare what the thread needs, so that no later change is missed.

        Returns:
            Watches until it is woken up, calls `tell` for changes, and closes what was prepared.
        """

    def _watch(self, watch: Callable[[WakeUp], None], stop: WakeUp) -> None:
        try:
            watch(stop)
        except Exception:
            _LOGGER.exception("a database can no longer be watched")
        finally:
            stop.close()

    def _remove(self, listener: ChangeListener) -> None:
        with self._mutex:
            with suppress(ValueError):
                self._listeners.remove(listener)
            if not self._listeners and self._stop is not None:
                self._stop.wake()
                self._stop = None

    def reset_after_fork(self) -> None:
        """Forget the listeners of the parent, in the child; it has no thread that watches."""
        self._mutex = threading.Lock()
        self._listeners = []
        self._stop = None


class WakeUp:
    """Ends the wait of a thread that waits for descriptors."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._reader, self._writer = os.pipe()
        self.is_woken = False

    def wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait until a descriptor has something to read, `wake` was called, or the time is over."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        if fd is not None:
            poller.register(fd, select.POLLIN)
        poller.poll(seconds * 1000)

    def wake(self) -> None:
        """End the wait."""
        with self._mutex:
            self.is_woken = True
            if self._writer >= 0:
                os.write(self._writer, b"x")

    def close(self) -> None:
        """Close the descriptors; the waiting thread does it at its end."""
        with self._mutex:
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1
