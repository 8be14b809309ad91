"""RunControl: what other threads and processes ask of a run, to pause or to end as cancelled."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from math import inf
from typing import Any, Final, final

from graphkit._engine.requests import Clock, LoadWrites, Request, Steps
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import CANCEL_REQUEST, LOOK_INTERVAL, PAUSE_REQUEST
from graphkit.errors import CheckpointerError

_LOG: Final = logging.getLogger("graphkit.engine")
_REST: Final = 20
"""A look that takes long makes the next one later, so that looks take a twentieth of the run's time at most.
A map of 10,000 items records its results where requests are recorded, and a look reads them all."""


class Halt(BaseException):
    """Raised where a run waits for a human, or was asked to pause or to end; the reason is recorded."""


@final
class RunControl:
    """What other threads and processes ask of a run; shared with its nested runs.

    Requests of other processes are in the store, at the run's mailboxes (see
    `graphkit._saver.status`). The run looks for them at node boundaries, at most every
    `LOOK_INTERVAL` seconds.

    Attributes:
        saver: where the outermost run is stored; None if nothing is.
        config: names its history.
        must_check: whether a node boundary has to call `check`. False without a saver, until the run is
            asked to pause: so a run without a saver pays for one attribute at each step.
        next_look: when the run looks into the store again, in seconds of its clock; 0 before `begin`.
        pause_requested: stop at the next node boundary. Only ever set to True, from any thread or
            signal handler.
        granted: the pending writes that withdraw the requests that the run has found.
        cancellation: why the run is cancelled, {reason, at}; None if it is not.
        mailboxes: the checkpoints at which requests may have been recorded since the last look.
        noted_error: the error that has a note about the node where it was raised.
    """

    __slots__ = (
        "_settled_at", "cancellation", "config", "granted", "mailboxes", "must_check", "next_look",
        "noted_error", "pause_requested", "saver",
    )  # fmt: skip

    def __init__(self, saver: BaseCheckpointSaver | None, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config
        self.must_check = saver is not None
        self.next_look = 0.0
        self._settled_at = inf
        """When the first look is due. A run that ends before that looks for nothing: who asks it to stop
        waits for longer, and finds that it has ended."""
        self.pause_requested = False
        self.granted: dict[str, None] = {}
        self.cancellation: Mapping[str, Any] | None = None
        self.mailboxes: list[str] = []
        self.noted_error: BaseException | None = None

    def begin(self, clock: Clock) -> None:
        """Note when the first step begins; the steps of nested runs begin later, and change nothing."""
        if self.saver is not None and self.next_look == 0:
            self.next_look = clock.measure() + LOOK_INTERVAL
            self._settled_at = self.next_look

    def request_pause(self) -> None:
        """Ask the run to stop at its next node boundary."""
        self.pause_requested = True
        self.must_check = True

    def check(self, clock: Clock) -> Steps:
        """Stop the run if it was asked to.

        Raises:
            Halt: it was.
        """
        if not self.pause_requested and clock.measure() >= self.next_look:
            count = yield from self._read_mailboxes(clock)
            # Requests may still be recorded at the newest one.
            del self.mailboxes[: max(0, count - 1)]
        if self.pause_requested:
            raise Halt

    def look(self, clock: Clock) -> Steps:
        """Look for requests, if that is due; may be called by the thread of any node."""
        if clock.measure() >= self.next_look:
            yield from self._read_mailboxes(clock)

    def look_at_stop(self, clock: Clock) -> Steps:
        """Look for requests although the run stops anyway, so that a worker does not resume it."""
        if clock.measure() >= self._settled_at:
            yield from self._read_mailboxes(clock)

    def _read_mailboxes(self, clock: Clock) -> Generator[Request, Any, int]:
        """Read the mailboxes; return how many of them, from the oldest on."""
        now = clock.measure()
        # Before the first request, so that other threads do not read at the same time.
        self.next_look = now + LOOK_INTERVAL
        if self.cancellation is not None:
            return 0
        assert self.saver is not None
        checkpoint_ids = tuple(self.mailboxes)
        for checkpoint_id in checkpoint_ids:
            try:
                writes = yield LoadWrites(self.saver, self.config.with_check_point_id(checkpoint_id))
            except (CheckpointerError, OSError) as error:
                # The run goes on, and looks again. If the store is broken, its next save ends the run.
                _LOG.warning("the run of thread %r cannot see whether it was cancelled: %s", self.config.thread, error)
                return 0
            self._accept(writes)
        self.next_look = max(self.next_look, clock.measure() + _REST * (clock.measure() - now))
        return len(checkpoint_ids)

    def _accept(self, writes: Mapping[str, Any]) -> None:
        """Grant the requests among the pending writes of a mailbox."""
        request = writes.get(CANCEL_REQUEST)
        if isinstance(request, Mapping):
            self.cancellation = request
            self.granted[CANCEL_REQUEST] = None
        if writes.get(PAUSE_REQUEST) is not None:
            self.granted[PAUSE_REQUEST] = None
        if self.granted:
            self.request_pause()
