"""Waker: sleep that another thread or the handler of a signal may end."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import Final, final

_LONGEST_SLEEP: Final = 1.0
"""Seconds after which a thread that sleeps looks for signals again."""


@final
class Waker:
    """Wakes one thread that sleeps, or keeps it from its next sleep. May be used in signal handlers.

    An event or a condition is in Python, with a lock inside. Ctrl-C may leave that held for ever, and the
    handler of a second signal may wait for it in the middle of the first one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        """Locked while there is no reason to be awake: `sleep` acquires it, `wake` releases it."""
        self._lock.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep for some time or shorter, at most until `wake` is called; not if it was called since the last sleep."""
        # Python runs the handler of a signal when the main thread wakes up. A signal that arrives between the last
        # look for signals and the sleep does not end the sleep: SIGTERM would be noticed when something else does.
        self._lock.acquire(timeout=min(max(0.0, seconds), _LONGEST_SLEEP))

    def wake(self) -> None:
        """End the sleep of the thread, or its next one."""
        with suppress(RuntimeError):  # it is not locked
            self._lock.release()
