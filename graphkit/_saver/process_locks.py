"""Locks that hold within this process: the default run lock, and the lock of the default methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

from graphkit.errors import ThreadBusyError

_HELD: Final[dict[object, object]] = {}
"""The holders of the run locks of this process that are held, by the key of the lock."""

_HELD_CHANGED: Final = threading.Condition()
"""Guards the holders, and wakes those who wait for a lock."""

_REWRITE_LOCKS: Final[WeakValueDictionary[object, Any]] = WeakValueDictionary()
"""The locks of `lock_for_rewrite` that are held or waited for, by the key of the run lock."""

_REGISTRY_LOCK: Final = threading.Lock()
"""Guards the registry."""


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
    started = monotonic()
    holder = object()
    try:
        with _HELD_CHANGED:
            if not _HELD_CHANGED.wait_for(lambda: key not in _HELD, timeout=timeout):
                waited = monotonic() - started
                raise ThreadBusyError(thread_id, "another run in this process", waited)  # noqa: TRY301 - it is released below
            _HELD[key] = holder
        yield
        _release(key, holder)
    except BaseException:
        _release(key, holder)
        raise


def _release(key: object, holder: object) -> None:
    """Release a run lock, if a holder has it: an exception may have come before it was taken, or after its release."""
    with _HELD_CHANGED:
        if _HELD.get(key) is holder:
            del _HELD[key]
        _HELD_CHANGED.notify_all()


def is_process_lock_held(key: object) -> bool:
    """Return whether a run lock of this process is held."""
    return key in _HELD


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
