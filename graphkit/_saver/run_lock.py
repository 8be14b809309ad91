"""The run locks that the calling code holds, through its runs or taken with `saver.run_lock`.

The last part has locks that hold within this process: the default run lock, and the lock of the
default methods.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, final
from weakref import WeakValueDictionary

from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.errors import ThreadBusyError


@final
class HeldRunLock:
    """A run lock that the calling code took itself, with `saver.run_lock(...)`.

    Runs inside the block enter it again, through the same saver or a wrapper of it. Another saver
    object on the same store does not hold it.
    """

    __slots__ = ("_key", "_pid", "_running", "saver")

    def __init__(self, key: object, saver: object) -> None:
        self.saver = saver
        self._key = key
        self._pid: int | None = None
        """The process that holds the lock."""
        self._running = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether the lock is held: not in a forked child or in a task that outlives the block."""
        return self._pid == os.getpid()

    @contextmanager
    def hold(self, lock: AbstractContextManager[object]) -> Iterator[None]:
        """Take the lock itself, and let the calling code, and the tasks that it starts, enter it again in the block."""
        with lock:
            try:
                self._pid = os.getpid()
                _LOCKS_BY_KEY.set({**_LOCKS_BY_KEY.get(), self._key: self})
                yield
            finally:
                self._pid = None
                others = {key: lock for key, lock in _LOCKS_BY_KEY.get().items() if lock is not self}
                _LOCKS_BY_KEY.set(others)

    @contextmanager
    def serialize_runs(self, thread_id: str, timeout: float) -> Iterator[None]:
        """Run one at a time what the holder starts: runs of a thread never overlap.

        Args:
            thread_id: the thread, for the error.
            timeout: seconds to wait for the other run.

        Raises:
            ThreadBusyError: the other run had not ended after that time.
        """
        if not self._running.acquire(timeout=timeout):
            raise ThreadBusyError(thread_id, "another run that the holder of the lock started", timeout)
        try:
            yield
        finally:
            self._running.release()


_LOCKS_BY_KEY: Final[ContextVar[Mapping[object, HeldRunLock]]] = ContextVar(
    "graphkit_held_run_locks", default=MappingProxyType({})
)
"""The run locks that the calling code took itself, by key. A run takes its lock in a context of its
own."""


def get_held_run_locks() -> frozenset[object]:
    """Return the keys of the run locks that the calling code holds, in either way."""
    taken = [key for key, lock in _LOCKS_BY_KEY.get().items() if lock.is_open]
    return locks_held_by_runs().union(taken)


def locks_held_by_runs() -> frozenset[object]:
    """Return the keys of the run locks held by the runs that the calling code is a node of."""
    context = CURRENT_NODE_CONTEXT.get()
    if context is None:
        return frozenset()
    return context.held_locks


def find_held_lock(key: object) -> HeldRunLock | None:
    """Find the run lock that the calling code took itself, outside any run of that thread.

    Returns:
        The lock; None if the calling code holds none, or holds it through a run.
    """
    lock = _LOCKS_BY_KEY.get().get(key)
    if lock is None or not lock.is_open or key in locks_held_by_runs():
        return None
    return lock


# Within this process


@final
class _HeldLocks:
    """The locks of this process that are held."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without holders: so does the child of a fork, where no thread may hold the mutex."""
        self.mutex = threading.RLock()
        """Guards what follows. Its own methods are in C, so that Ctrl-C cannot come between taking it and the block, as
        it can within those of a condition."""
        self.changed = threading.Condition(self.mutex)
        """Wakes those who wait for a lock."""
        self.holders: dict[object, tuple[int, str]] = {}
        """The thread of execution and the name of each holder, by the key of the lock."""
        self.rewrite_locks: WeakValueDictionary[object, Any] = WeakValueDictionary()
        """The locks of `lock_for_rewrite` that are held or waited for, by the key of the run lock."""


_HELD: Final = _HeldLocks()

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_HELD.reset)


@contextmanager
def hold_process_lock(key: object, thread_id: str, timeout: float) -> Iterator[str]:
    """Hold a run lock within this process. What excludes other processes is taken in the block.

    Args:
        key: identifies the lock.
        thread_id: the thread, for the error.
        timeout: seconds to wait for another holder.

    Yields:
        The name of the holder, for other processes.

    Raises:
        ThreadBusyError: another holder had the lock until the timeout.
    """
    import platform  # 2 ms, and only runs need it

    started = monotonic()
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}"
    holder = threading.get_ident(), f'process {os.getpid()} on host "{platform.node()}" since {now}'
    try:
        with _HELD.mutex:
            if not _HELD.changed.wait_for(lambda: key not in _HELD.holders, timeout=timeout):
                raise ThreadBusyError(thread_id, _HELD.holders[key][1], round(monotonic() - started, 1))
            _HELD.holders[key] = holder
        yield holder[1]
    finally:
        try:
            _release(key, holder)
        except BaseException:
            # Ctrl-C may have come within the first attempt.
            _release(key, holder)
            raise


def _release(key: object, holder: object) -> None:
    """Release a run lock, if a holder has it: an exception may have come before it was taken, or after its release."""
    with _HELD.mutex:
        if _HELD.holders.get(key) is holder:
            del _HELD.holders[key]
        _HELD.changed.notify_all()


def is_process_lock_held(key: object) -> bool:
    """Return whether a run lock of this process is held."""
    return key in _HELD.holders


def is_process_lock_mine(key: object) -> bool:
    """Return whether the calling thread of execution holds a run lock of this process."""
    holder = _HELD.holders.get(key)
    return holder is not None and holder[0] == threading.get_ident()


def lock_for_rewrite(key: object) -> AbstractContextManager[object]:
    """Return the lock under which a default method reads a thread and then changes it.

    It is not the run lock, because recording a pending write does not wait for a run. It is
    re-entrant, because the `put` of a saver may record something itself.

    Args:
        key: the key of the thread's run lock, so that saver objects on one store share the lock.
    """
    with _HELD.mutex:
        lock: AbstractContextManager[object] = _HELD.rewrite_locks.setdefault(key, threading.RLock())
    return lock
