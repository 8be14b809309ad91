"""Calls that must not wait: those of an event loop.

The check is where waiting would begin, so that it costs nothing where there is nothing to wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class WouldWaitError(Exception):
    """A lock is in use, and the caller must not wait. Nothing was changed."""


class InUseError(Exception):
    """Another thread of execution uses a log or the connection, for some microseconds as a rule. Nothing was done."""


class _State(threading.local):
    may_wait = True


_STATE = _State()


@contextmanager
def refuse_waiting() -> Iterator[None]:
    """Raise WouldWaitError in the block where this thread of execution would wait for a lock."""
    _STATE.may_wait = False
    try:
        yield
    finally:
        _STATE.may_wait = True


def check_may_wait() -> None:
    """Check that this thread of execution may wait.

    Raises:
        WouldWaitError: it must not.
    """
    if not _STATE.may_wait:
        raise WouldWaitError
