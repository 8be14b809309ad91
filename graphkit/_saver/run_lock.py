"""The run locks that the calling code holds: through the runs around it, or taken by hand."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, final

from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.errors import ThreadBusyError


@final
class HeldRunLock:
    """A run lock that the calling code took itself, with `saver.run_lock(...)`: what runs inside enters it again.

    It does so through the same saver, or a wrapper of it. Another saver object on the same store is another party.
    """

    __slots__ = ("_is_open", "_key", "_pid", "_running", "saver")

    def __init__(self, key: object, saver: object) -> None:
        self.saver = saver
        self._key = key
        self._is_open = True
        self._pid = os.getpid()
        self._running = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the lock is still held; not in the child of a fork, and not in a task that outlives the holder."""
        return self._is_open and self._pid == os.getpid()

    def register(self) -> None:
        """Let the calling code, and the tasks that it starts, enter the lock again."""
        _BY_HAND.set({**_BY_HAND.get(), self._key: self})

    def release(self) -> None:
        """The lock is no longer held."""
        self._is_open = False
        _BY_HAND.set({key: hold for key, hold in _BY_HAND.get().items() if hold is not self})

    @contextmanager
    def serialize_runs(self, thread_id: str, timeout: float) -> Iterator[None]:
        """Keep the runs apart that the holder starts: two of one thread must not run at the same time here either.

        Raises:
            ThreadBusyError: another one has not ended after that time.
        """
        if not self._running.acquire(timeout=timeout):
            raise ThreadBusyError(thread_id, "another run that the holder of the lock started", timeout)
        try:
            yield
        finally:
            self._running.release()


_BY_HAND: Final[ContextVar[Mapping[object, HeldRunLock]]] = ContextVar("graphkit_by_hand", default=MappingProxyType({}))
"""The run locks that the calling code took by hand, by key. A run takes its lock in a context of its own."""


def held_locks() -> frozenset[object]:
    """The keys of the run locks held by the runs that the calling code is a node of, and of those it took by hand."""
    by_hand = [key for key, hold in _BY_HAND.get().items() if hold.is_open]
    return locks_held_by_runs().union(by_hand)


def locks_held_by_runs() -> frozenset[object]:
    """The keys of the run locks held by the runs that the calling code is a node of."""
    visit = CURRENT_NODE_CONTEXT.get()
    return frozenset() if visit is None else visit.held_locks


def find_held_lock(key: object) -> HeldRunLock | None:
    """The hold of a run lock that the calling code took by hand, outside any run of that thread."""
    hold = _BY_HAND.get().get(key)
    if hold is None or not hold.is_open or key in locks_held_by_runs():
        return None
    return hold
