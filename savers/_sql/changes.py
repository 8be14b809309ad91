"""Notifies watches that a database has changed, so that they read what is new."""

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from logging import getLogger
from typing import Final

from savers._log.log_watch import Signals

_LOGGER: Final = getLogger("graphkit")


class ChangeListener(Signals):
    """Collects the changes for one watcher; threads are named by their encoded ids."""

    def __init__(self, close: Callable[[ChangeListener], None], thread: str | None) -> None:
        super().__init__()
        self._close = close
        self.thread = thread
        """The encoded id of the thread that is watched; None: all threads."""

    def close(self) -> None:
        """Stop listening."""
        self._close(self)


class ChangeSource(ABC):
    """Watches one database in a thread of execution, while there are listeners; and how writers notify them."""

    notify_clause = ""
    """The end of a put's statement, which notifies the watchers of its thread, without a round trip. It takes
    `notify_parameters`. On SQLite it is empty: watchers see every commit."""

    def notify_parameters(self, thread: str) -> tuple[str, ...]:  # noqa: ARG002 - as the clause has parameters
        """Return the parameters of `notify_clause` for an encoded thread id."""
        return ()

    def make_notification(self, thread_id: str) -> tuple[str, tuple[str, ...]]:
        """Return an expression that notifies as `Transaction.notify` does, and its parameters.

        Only where the dialect `combines_writes`.
        """
        raise NotImplementedError

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
                threading.Thread(target=self._watch, args=(watch, stop), name="graphkit-changes", daemon=True).start()
            self._listeners.append(listener)
        return listener

    def notify(self, thread: str | None = None) -> None:
        """Notify all listeners of a change of a thread, by its encoded id; None: of any."""
        for listener in list(self._listeners):
            listener.notify(thread)

    @abstractmethod
    def _start_watching(self) -> Callable[[WakeUp], None]:
        """Prepare what the thread needs, so that no later change is missed.

        Returns:
            Watches until it is woken up, calls `notify` for changes, and closes what was prepared.
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
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and self._stop is not None:
                self._stop.wake()
                self._stop = None

    def reset_after_fork(self) -> None:
        """Forget the listeners of the parent, in the child; it has no thread that watches."""
        self._mutex = threading.Lock()
        self._listeners = []
        if self._stop is not None:
            self._stop.close_after_fork()
        self._stop = None


class WakeUp:
    """Ends the wait of a thread that waits for descriptors."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._reader, self._writer = os.pipe()
        self.is_woken = False
        self.is_closed = False

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
            if not self.is_closed:
                os.write(self._writer, b"x")

    def close(self) -> None:
        """Close the descriptors; the waiting thread does it at its end."""
        with self._mutex:
            if not self.is_closed:
                os.close(self._reader)
                os.close(self._writer)
            self.is_closed = True

    def close_after_fork(self) -> None:
        """Close the descriptors, in the child; the thread that may have used this one is not there."""
        self._mutex = threading.Lock()
        self.close()
