"""Watching a store: Change, one change of it, and Watch, which reports changes as they happen."""

from __future__ import annotations

import abc
import threading
from _thread import start_new_thread
from collections.abc import Generator
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, final

from graphkit._option_checks import check_seconds
from graphkit._records.output import CheckpointInfo
from graphkit.errors import CheckpointerConfigurationError

ChangeKind = Literal["checkpoint", "interrupt", "answer", "failure", "progress", "release", "delete", "idle"]
"""The kind of a `Change`."""


@final
class Change(NamedTuple):
    """One change of a store.

    The kinds:

    * checkpoint: a checkpoint was stored.
    * interrupt: a run waits for a human.
    * answer: an interrupt was answered, or the run moved past it. For an interrupt in a nested graph,
      the outer graph reports it too, once it continues.
    * failure: a run failed.
    * progress: nodes of branches, or items of a map, have finished.
    * release: a history has ended and is kept as a version.
    * delete: a history is gone.
    * idle: no run holds the thread any more, because it has ended or its process has died; nor does an
      operation such as `answer`. Only some savers report it.
    """

    kind: ChangeKind
    thread_id: str
    checkpoint_ns: str
    checkpoint: CheckpointInfo | None = None
    """The checkpoint of the change, with its status at that time. None for release, delete and idle,
    and for pending writes of a checkpoint that is not the latest."""
    id: str | None = None
    """For interrupt and answer: the id of the interrupt."""
    value: Any = None
    """For interrupt: {node_id, when, payload, metadata, created_at}. For answer: the answer; None if
    the run moved past the interrupt. For failure: {node_id, type, message, at}. For progress:
    {node_id}, the node that finished last. For idle: True if the process that held the thread has
    died."""
    at: datetime | None = None
    """When the change was stored; None if the store does not record it, and the change was noticed
    just now. Answers, releases and deletes have no time of their own: the file saver reports the
    time of the last write to their log."""


def _no_changes() -> Generator[Change, None, None]:
    yield from ()


class Watch(abc.ABC):
    """Reports the changes of a store from its creation on, each at least once. Iterate it, and close it.

    Changes of one history (a namespace of a thread) are reported in the order of writing, those of
    different histories in the order in which they are seen. Changes that were not requested yet wait
    in the store, not in memory. One thread at a time may read a watch; `wake` and `close` may be
    called from any other.

    Implementers provide `_read_changes`, which yields the changes and sets `_next_read`. A store with
    change events also provides `_has_signal`.
    """

    def __init__(self, interval: float) -> None:
        check_seconds("interval", interval, CheckpointerConfigurationError)
        self._interval = interval
        """The polling interval in seconds, for stores without change events."""
        self._read_lock = threading.RLock()
        """Held while changes are read."""
        self._condition = threading.Condition()
        """Notified when there may be a change. Never held for long, nor while waiting for
        `_read_lock`, because a signal handler may want it."""
        self._next_read = monotonic()
        """When changes are read even without a signal, by the monotonic clock."""
        self._is_closed = False
        self._is_woken = False
        self._unread = _no_changes()

    def _has_signal(self) -> bool:
        """Return whether the store has reported that there may be a change. The caller holds `_condition`."""
        return False

    @abc.abstractmethod
    def _read_changes(self) -> Generator[Change, None, None]:
        """Yield what has changed since the last call."""

    def _close_resources(self) -> None:  # noqa: B027 - a watch that polls has none
        """Close files and observers. Nothing is read afterwards."""

    def get(self, timeout: float | None = None) -> Change | None:
        """Return the next change; None after the timeout, after `wake`, or if the watch is closed.

        Args:
            timeout: the maximum time to wait, in seconds; None waits forever.

        Raises:
            CheckpointStorageError: the store cannot be read.
        """
        deadline = None if timeout is None else monotonic() + timeout
        has_read = False
        with self._read_lock:
            while not self._is_closed:
                change = next(self._unread, None)
                if change is not None:
                    return change
                # Even if the next read is due: one read may take longer than the interval, and the
                # caller would never get control back.
                if has_read and deadline is not None and monotonic() >= deadline:
                    return None
                with self._condition:
                    if self._is_woken or not self._wait(deadline):
                        self._is_woken = False
                        return None
                self._unread = self._read_changes()
                has_read = True
        return None

    def _wait(self, deadline: float | None) -> bool:
        """Wait with `_condition`, which the caller holds, until there may be a change.

        Returns:
            False once the deadline (of the monotonic clock) has passed.
        """
        while not (self._is_closed or self._is_woken or self._has_signal()):
            now = monotonic()
            if now >= self._next_read:
                break
            if deadline is not None and now >= deadline:
                return False
            wake_at = self._next_read
            if deadline is not None:
                wake_at = min(deadline, wake_at)
            self._sleep_until(wake_at)
        return True

    def _sleep_until(self, time: float) -> None:
        """Sleep until a notification or a time of the monotonic clock. The caller holds `_condition`."""
        seconds = max(0.0, time - monotonic())
        self._condition.wait(min(seconds, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Make the `get` that waits, or the next one, return None. May be called from a signal handler."""
        self._is_woken = True
        # From another thread: a signal handler interrupts its own thread, perhaps just before it
        # starts to sleep, and a notification would get lost.
        start_new_thread(self._notify, ())

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        """Close the watch. A `get` that waits returns None."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        with self._read_lock:
            self._unread.close()
            self._close_resources()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._is_closed:
            change = self.get()
            if change is not None:
                return change
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_namespace_inside(namespace: str, outer: str) -> bool:
    """Return whether a namespace is `outer` or below it. Every namespace is below the root, ""."""
    return not outer or namespace == outer or namespace.startswith(f"{outer}/")
