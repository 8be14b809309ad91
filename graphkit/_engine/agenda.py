"""What a worker has to do, by time: the threads that it looks at next, and those that wait for a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, Generic, TypeVar, final

NEVER: Final = float("inf")

_Time = TypeVar("_Time", float, datetime)


@final
class DueQueue(Generic[_Time]):
    """Threads by the time at which they are due, one time for each.

    A heap has an entry for each time that was set. To move or remove a thread inside a heap, it would
    have to be searched; so the heap keeps such entries until they come to its top, where they are
    dropped because the thread has another time by then, or none.
    """

    def __init__(self) -> None:
        self._times: dict[str, _Time] = {}
        self._heap: list[tuple[_Time, int, str]] = []
        """(time, number, thread). Of those that are due at the same time, the first that was set comes first."""
        self._numbers = count()

    def set(self, thread: str, time: _Time) -> None:
        """Make a thread due at a time, in place of another one."""
        if self._times.get(thread) != time:
            self._times[thread] = time
            heappush(self._heap, (time, next(self._numbers), thread))

    def set_earlier(self, thread: str, time: _Time) -> None:
        """Make a thread due at a time, unless it is due before."""
        known = self._times.get(thread)
        if known is None or time < known:
            self.set(thread, time)

    def discard(self, thread: str) -> None:
        """Remove a thread, if it is there."""
        self._times.pop(thread, None)

    def next_due(self) -> _Time | None:
        """Return when the next thread is due; None if there is none."""
        heap = self._heap
        while heap:
            time, _, thread = heap[0]
            if self._times.get(thread) == time:
                return time
            heappop(heap)
        return None

    def take(self, now: _Time) -> tuple[str, _Time] | None:
        """Remove and return the thread that has been due for longest, and since when; None if none is due."""
        time = self.next_due()
        if time is None or time > now:
            return None
        _, _, thread = heappop(self._heap)
        del self._times[thread]
        return thread, time


@final
@dataclass(slots=True)
class Candidate:
    """A thread that may have something to run. Times are those of `monotonic`."""

    due: float
    """When to look at the thread; in the past: since when it could run."""
    busy_count: int = 0
    """How many times in a row another process was running it."""
    false_reports: int = 0
    """How many times the store reported it idle although another process was running it."""
    failed_at: str | None = None
    """The checkpoint at which its run failed; the worker does not resume it there before
    `retry_at`."""
    retry_at: float = 0.0
    failures: int = 0
    """How many times in a row the run failed at that checkpoint."""
    was_alarmed: bool = False
    """Whether its alarm has brought it here, so that reminders may be due."""


@final
class Agenda:
    """The candidates of a worker by the time at which they are due. The lock of the worker guards it."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._queue = DueQueue[float]()
        """The candidates that are not taken."""
        self._taken: set[str] = set()
        """The threads that the worker serves now. What happens to them is looked at when they are
        done."""

    @property
    def taken_count(self) -> int:
        """How many threads are taken."""
        return len(self._taken)

    def get(self, thread: str) -> Candidate | None:
        """Return a candidate."""
        return self._candidates.get(thread)

    def put(self, thread: str, candidate: Candidate) -> None:
        """Add a candidate, or one whose time has changed."""
        self._candidates[thread] = candidate
        if thread not in self._taken:
            self._queue.set(thread, candidate.due)

    def discard(self, thread: str) -> None:
        """Remove a candidate, if there is one."""
        self._candidates.pop(thread, None)
        self._queue.discard(thread)

    def take(self) -> tuple[str, Candidate] | None:
        """Remove and return the candidate that has been due for longest; None if none is due."""
        due = self._queue.take(monotonic())
        if due is None:
            return None
        thread, _ = due
        self._taken.add(thread)
        return thread, self._candidates.pop(thread)

    def next_due(self) -> float:
        """Return when the next candidate is due."""
        due = self._queue.next_due()
        return NEVER if due is None else due

    def finish(self, thread: str) -> None:
        """Note that the worker has served a thread that was taken."""
        self._taken.discard(thread)
        candidate = self._candidates.get(thread)
        if candidate is not None:
            self._queue.set(thread, candidate.due)
