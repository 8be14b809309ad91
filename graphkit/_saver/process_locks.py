"""Locks that hold within this process: the default run lock, and the lock of the default methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

from graphkit.errors import ThreadBusyError

_RUN_LOCKS: Final[WeakValueDictionary[object, threading.Lock]] = WeakValueDictionary()
"""The run locks of this process that are held or waited for, by key."""

_REWRITE_LOCKS: Final[WeakValueDictionary[object, Any]] = WeakValueDictionary()
"""The locks of `lock_for_rewrite` that are held or waited for, by the key of the run lock."""

_REGISTRY_LOCK: Final = threading.Lock()
"""Guards both registries."""


@contextmanager
def hold_process_lock(key: object, thread_id: str, timeout: float) -> Iterator[None]:
    """Hold a run lock within this process.

    Args:
        key: identifies the lock.
        thread_id: the thread, for the error.
        timeout: seconds to wait for another holder.

    Raises:
        ThreadBusyError: another run held the lock until the timeout.
    """
    with _REGISTRY_LOCK:
        lock = _RUN_LOCKS.setdefault(key, threading.Lock())
    started = monotonic()
    if not lock.acquire(timeout=timeout):
        raise ThreadBusyError(thread_id, "another run in this process", monotonic() - started)
    try:
        yield
    finally:
        lock.release()


def lock_for_rewrite(key: object) -> AbstractContextManager[object]:
    """Return the lock under which a default method reads a thread and then changes it.

    It is not the run lock, because recording a pending write does not wait for a run. It is
    re-entrant, because the `put` of a saver may record something itself.

    Args:
        key: the key of the thread's run lock, so that saver objects on one store share the lock.
    """
    with _REGISTRY_LOCK:
        lock: AbstractContextManager[object] = _REWRITE_LOCKS.setdefault(key, threading.RLock())
    return lock
