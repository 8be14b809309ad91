"""Run locks: one run per thread, across the processes that share a database."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from time import monotonic, sleep

from graphkit.errors import ThreadBusyError


class RunLocks(ABC):
    """The run locks of one database, as one database object sees them."""

    @abstractmethod
    def hold(self, thread_id: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the run lock of a thread during the block.

        Args:
            thread_id: the thread.
            timeout: seconds to wait for another run.

        Raises:
            ThreadBusyError: another run held the lock until the timeout.
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def token_of(self, thread_id: str) -> int | None:
        """Return the token with which this object holds a run lock.

        A put of the holder checks in its statement that the row of the lock still has this token.
        None if this object does not hold the lock, or if a paused holder cannot lose it.
        """

    @abstractmethod
    def is_mine(self, thread_id: str) -> bool:
        """Return whether the calling thread of execution holds the run lock of a thread."""

    @abstractmethod
    def is_held(self, thread_id: str) -> bool:
        """Return whether any run holds the run lock of a thread now.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def read_mark(self, thread_id: str) -> object:
        """Return a mark of the run lock, which changes when its holder lets it go, but not when the holder dies.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def is_abandoned(self, thread_id: str, mark: object) -> bool:
        """Return whether the holder of a run lock that nobody holds any more has died, as far as that is known.

        Args:
            thread_id: the thread.
            mark: the mark that was read before the lock was seen to be held.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def describe_holder(self, thread_id: str) -> str:
        """Return the process that holds the run lock of a thread, for a message."""

    @abstractmethod
    def close(self) -> None:
        """Release what is open while no lock is held; locks that are held stay."""


class HeldLocks:
    """Excludes the threads of execution of this process from each other, and knows the holders."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders: dict[Hashable, tuple[int, str]] = {}
        """The thread of execution and the name of each holder."""

    @contextmanager
    def hold(self, key: Hashable, thread_id: str, timeout: float) -> Iterator[str]:
        """Hold a lock within this process.

        Args:
            key: identifies the lock.
            thread_id: the thread, for the error.
            timeout: seconds to wait for another holder.

        Yields:
            The name of the holder, for other processes.

        Raises:
            ThreadBusyError: another holder had the lock until the timeout.
        """
        started = monotonic()
        holder = threading.get_ident(), _describe_process()
        try:
            with self._changed:
                is_free = self._changed.wait_for(lambda: key not in self._holders, timeout=timeout)
                if not is_free:
                    waited = round(monotonic() - started, 1)
                    raise ThreadBusyError(thread_id, self._holders[key][1], waited)  # noqa: TRY301 - it is released below
                self._holders[key] = holder
            yield holder[1]
            self._release(key, holder)
        except BaseException:
            # Ctrl-C may have come before the lock was taken, or within the release; so this one looks who has it.
            self._release(key, holder)
            raise

    def _release(self, key: Hashable, holder: tuple[int, str]) -> None:
        """Release a lock, if a holder has it."""
        with self._changed:
            if self._holders.get(key) is holder:
                del self._holders[key]
            self._changed.notify_all()

    def is_mine(self, key: Hashable) -> bool:
        """Return whether the calling thread of execution holds a lock."""
        holder = self._holders.get(key)
        return holder is not None and holder[0] == threading.get_ident()

    def find_holder(self, key: Hashable) -> str | None:
        """Return the name of the holder in this process; None if there is none."""
        holder = self._holders.get(key)
        return None if holder is None else holder[1]


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
        self._pause = first
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
        sleep(min(self._pause, max(0.0, self._timeout - self.waited)))
        self._pause = min(self._pause * 1.5, self._longest)


def _describe_process() -> str:
    import platform  # 2 ms, and only runs need it

    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}"
    return f'process {os.getpid()} on host "{platform.node()}" since {now}'
