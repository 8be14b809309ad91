"""RetentionThread: a worker applies a retention policy in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import datetime
from itertools import islice
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Final, final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.retention_pass import apply_policy, find_store
from graphkit.errors import ThreadBusyError

if TYPE_CHECKING:
    from graphkit._saver.retention_policy import RetentionPolicy

_LOG: Final = getLogger("graphkit.worker")
_LOCK: Final = "graphkit:retention"
"""The thread whose run lock the worker holds that applies the policy. It has no checkpoints."""
_PAUSE: Final = 600.0
"""Seconds between two passes, and between two attempts."""
_BURST: Final = 1.0
"""Seconds of work after which a pass rests, so that runs in this process get the interpreter and the store.

Not shorter: on SQLite, a watch cannot tell which history was rewritten, and lists all of them at each look.
With a rest after every ten milliseconds, a worker on 10,000 threads did little else for as long as a pass took, and
three runs in ten began a second late."""
_REST_PER_WORK: Final = 9.0
"""How many times as long as the work a rest is: a pass takes at most a tenth of a core."""
_LOOK: Final = 0.05
"""Seconds after which a rest looks whether the worker has nothing else to do."""
_MAX_NAMES: Final = 20
"""How many threads a warning names."""


@final
class RetentionThread:
    """Applies a policy to a store again and again, in a daemon thread.

    Of the workers of a store, one does: that which holds the run lock of a thread without checkpoints,
    for as long as it lives. When it ends or dies, another one takes over at its next attempt.
    """

    def __init__(self, policy: RetentionPolicy, saver: BaseCheckpointSaver, now: Callable[[], datetime]) -> None:
        """Prepare; `start` starts the thread.

        Args:
            policy: the policy.
            saver: the store.
            now: the clock from which ages count.

        Raises:
            CheckpointerConfigurationError: the saver cannot do what the policy needs.
        """
        self._policy = policy
        self._store = find_store(policy, saver)
        self._now = now
        self._stopping = threading.Event()
        self._has_tried = threading.Event()
        self._rested_at = 0.0
        self._is_awaited = False
        # A daemon: a second Ctrl-C ends the process, which a history survives unchanged or pruned.
        self._thread = threading.Thread(
            target=copy_context().run,  # as the principal that runs the worker
            args=(self._run,),
            name="graphkit-retention",
            daemon=True,
        )

    def start(self) -> None:
        """Start the thread unless it runs; the first pass begins at once."""
        if self._thread.ident is None:
            self._thread.start()

    def wait(self) -> None:
        """Wait until the policy was applied once, or the attempt has failed, or another worker applies it."""
        self._is_awaited = True
        self._has_tried.wait()

    def request_stop(self) -> None:
        """Let the thread end after the history that it prunes now. May be called from a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """End the thread if it runs, and wait until it has ended."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        try:
            while not self._stopping.wait(pause):
                self._try()
                self._has_tried.set()
                pause = _PAUSE
        finally:
            # Also after SystemExit, which ends a thread silently: `wait` would never return.
            self._has_tried.set()

    def _try(self) -> None:
        """Apply the policy until the worker stops, unless another worker does, or an error comes."""
        try:
            with self._store.run_lock(_LOCK, 0.0):
                self._apply_repeatedly()
        except ThreadBusyError:
            _LOG.debug("another worker applies the retention policy")
        except Exception as error:  # noqa: BLE001 - a policy ends no worker
            _LOG.warning("the retention policy failed here; the next attempt is in %.3g s: %s", _PAUSE, error)

    def _apply_repeatedly(self) -> None:
        """Apply the policy until the worker stops; its lock is held."""
        pause = 0.0
        while not self._stopping.wait(pause):
            self._rested_at = monotonic()
            report = apply_policy(self._policy, self._store, now=self._now(), is_stopped=self._rest)
            if report.removed:
                _LOG.info("retention: removed %d checkpoints of %d threads", report.removed, len(report.pruned))
            if report.failed:
                _warn(report.failed)
            self._has_tried.set()
            pause = _PAUSE

    def _rest(self) -> bool:
        """Rest if the pass has worked for a while, unless the worker waits for it; return whether the worker stops."""
        worked = monotonic() - self._rested_at
        if worked >= _BURST:
            end = monotonic() + worked * _REST_PER_WORK
            while not self._is_awaited and monotonic() < end and not self._stopping.wait(_LOOK):
                pass
            self._rested_at = monotonic()
        return self._stopping.is_set()


def _warn(failed: Mapping[str, str]) -> None:
    names = ", ".join(f"{thread_id:.80}" for thread_id in islice(failed, _MAX_NAMES))
    unnamed = len(failed) - _MAX_NAMES
    if unnamed > 0:
        names = f"{names} and {unnamed} more"
    _LOG.warning("retention: cannot prune %s: %s", names, next(iter(failed.values())))
