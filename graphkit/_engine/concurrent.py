"""Runs several generators of requests concurrently: branches of a fork, items of a map.

`Scheduler.steps` is a generator like the loop that it serves. A part starts its tasks, and while it
waits for them the other parts go on. Every other request is passed on and answered at once. So only
calls of user code are concurrent, and the engine is not. A part may itself run parts concurrently;
then it waits for tickets as this generator does, and the waits add up.

A part is never left in the middle of storing something: it receives the answer and goes on before
any other part does. So two parts that find nothing stored yet do not both store it.

The records of one round are combined: a hundred branches that finish at once cost one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, final

from graphkit._engine.requests import Emit, Record, Request, Start, Steps, Stop, Task, Wait, Withdraw
from graphkit._records.context import GraphInterrupt
from graphkit._to_thread import Outcome, unwrap_outcome

_BEGIN: Final[Outcome] = (None, None)
"""What a part is sent first."""


def run_elsewhere(task: Task) -> Generator[Request, Any, Any]:
    """Run a task on its executor, and wait for it; return its result."""
    ticket = yield Start(task)
    outcomes = yield Wait((ticket,))
    return unwrap_outcome(outcomes[ticket])


@final
class Scheduler:
    """The parts of one fork or map, and what each of them waits for."""

    def __init__(self, parts: Sequence[Steps], limit: int) -> None:
        """Prepare to run parts, `limit` at the same time; there are at least as many."""
        self.parts = parts
        self.ready: deque[tuple[int, Outcome]] = deque((index, _BEGIN) for index in range(limit))
        """The parts that can go on, with the answers to their requests."""
        self.next_index = limit
        """The first part that has not started; it starts when another one has ended."""
        self.waiters: dict[int, int] = {}
        """The part that waits for each ticket: of a task that it has started, or that one of its own parts has."""
        self.pending_records: dict[int, Record] = {}
        """The record that a part has requested in this round."""
        self.failures: dict[int, BaseException] = {}
        """The failure of each part that has failed."""
        self.stopped: BaseException | None = None
        """What was thrown in to end the run."""

    def steps(self) -> Steps:
        """Run the parts to their ends.

        Once a part has failed, or the run has to end, no part starts another task. Tasks that run
        already are waited for and keep their results.

        Raises:
            BaseException: what was thrown in to end the run; otherwise the failure of the first failed
                part, in their order.
        """
        # A round: all ready parts go on until each waits; their records become one request; then the
        # driver waits for a task. Records come before the wait, so what has finished is stored while
        # the other tasks run.
        while True:
            while self.ready:
                index, outcome = self.ready.popleft()
                yield from self._advance(index, outcome)
            if self.pending_records:
                yield from self._record()
            elif self.waiters:
                yield from self._wait()
            else:
                break
        if self.stopped is not None:
            raise self.stopped
        if self.failures:
            # The failure of the first failed part, with a note for each other one. A Stop among them is
            # only the consequence of another part's failure.
            failed = [index for index, failure in self.failures.items() if not isinstance(failure, Stop)]
            first, *others = [self.failures[index] for index in sorted(failed or self.failures)]
            for other in others:
                first.add_note(f"Another branch also failed: {type(other).__name__}: {other}")
            raise first

    @property
    def _is_ending(self) -> bool:
        return bool(self.failures) or self.stopped is not None

    def _advance(self, index: int, outcome: Outcome) -> Steps:
        """Let a part go on until it has to wait."""
        part = self.parts[index]
        while True:
            answer, error = outcome
            try:
                request = part.send(answer) if error is None else part.throw(error)
            except StopIteration:
                self._start_next()
                return
            except BaseException as raised:  # noqa: BLE001 - raised again when all parts have ended
                self.failures[index] = raised
                self._start_next()
                return
            # A part that records waits for the end of the round. Everything else but a wait is answered
            # at once, and the part goes on.
            if isinstance(request, Record):
                self.pending_records[index] = request
                return
            if isinstance(request, Wait):
                self.waiters.update(dict.fromkeys(request.tickets, index))
                return
            outcome = yield from self._pass_on(request)

    def _start_next(self) -> None:
        if self.next_index < len(self.parts):
            self.ready.append((self.next_index, _BEGIN))
            self.next_index += 1

    def _pass_on(self, request: Request) -> Generator[Request, Any, Outcome]:
        """Pass a request on to the driver, or to the scheduler whose part this one is."""
        is_start = isinstance(request, Start)
        if is_start and self._is_ending:
            return None, Stop()
        if self.stopped is not None and isinstance(request, Emit):
            return None, None  # the caller no longer reads the stream
        try:
            return (yield request), None
        except BaseException as raised:  # noqa: BLE001 - the part handles it
            is_refusal = is_start and isinstance(raised, Stop)  # by the outer scheduler, which is ending
            is_failure = isinstance(raised, (Exception, GraphInterrupt))  # of this request alone
            if not is_refusal and not is_failure:
                self.stopped = self.stopped or raised
            return None, raised

    def _record(self) -> Steps:
        """Combine the records for the first pending one's checkpoint into one request."""
        first = next(iter(self.pending_records.values()))
        combined: dict[str, Any] = {}
        indexes: list[int] = []
        for index, request in self.pending_records.items():
            # Parts that are nested graphs may record elsewhere.
            if (request.saver, request.config) == (first.saver, first.config):
                combined.update(request.writes)
                indexes.append(index)
        for index in indexes:
            del self.pending_records[index]
        outcome = yield from self._pass_on(Record(first.saver, first.config, combined))
        self.ready.extend((index, outcome) for index in indexes)

    def _wait(self) -> Steps:
        """Wait until tasks have ended, and make the parts ready that wait for them, or for one of their own parts."""
        tickets = tuple(self.waiters)
        if self._is_ending:
            yield from self._pass_on(Withdraw(tickets))
        try:
            done = yield Wait(tickets)
        except BaseException as raised:
            if self.stopped is not None:
                raise  # asked to end for the second time
            self.stopped = raised
            return
        answers: dict[int, dict[int, Outcome]] = {}
        for ticket, outcome in done.items():
            answers.setdefault(self.waiters.pop(ticket), {})[ticket] = outcome
        # A part with parts of its own waits again for those of its tickets that are not done.
        self.ready.extend((index, (outcomes, None)) for index, outcomes in answers.items())
