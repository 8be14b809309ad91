"""Reentrant locks that are taken only if they are free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RLock = Any
"""What `threading.RLock` makes: until Python 3.13, that is a function."""


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
