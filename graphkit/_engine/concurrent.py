"""Several strands of a run side by side: branches of a fork, items of a map. A generator like the loop it serves.

Each strand is a generator of requests. Its tasks are started instead of run, and while they run the others go on; all
else it asks for is passed on and answered at once, so that only the user's own calls are concurrent and the engine is
not. A strand that has strands of its own waits for tickets, as this does; the waits add up.

Between two waits a strand is never left in the middle of storing something: it goes on with the answer before any
other is looked at, so two that find nothing stored yet do not both store it.

Records of one round are put together in one: a hundred branches that finish at once cost one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, final

from graphkit._engine.requests import Emit, Record, Request, Start, Stop, Task, Wait, Withdraw
from graphkit._records.context import GraphInterrupt

Steps = Generator[Request, Any, Any]


class _Answer(NamedTuple):
    """What came of a request: an answer or an error."""

    value: Any = None
    error: BaseException | None = None


def run_concurrently(strands: Sequence[Steps], limit: int | None = None) -> Steps:
    """Run strands to their ends, at most `limit` at the same time.

    Once one has failed, or the run is to end, no other starts a task; what runs already is waited for, and keeps its
    result.

    Raises:
        BaseException: what was thrown in to end the run; else the failure of the first strand, in their order, that
            failed.
    """
    return (yield from _Round(strands, limit).steps())


@final
class _Round:
    def __init__(self, strands: Sequence[Steps], limit: int | None) -> None:
        self.strands = strands
        first = len(strands) if limit is None else min(limit, len(strands))
        self.ready: deque[tuple[int, _Answer]] = deque((n, _Answer()) for n in range(first))
        self.next = first
        """The first strand that has not begun; it begins when another has ended."""
        self.parked: dict[int, tuple[int, bool]] = {}
        """Who waits for a ticket: a strand, and whether it is for one of its own strands."""
        self.keeping: list[tuple[int, Record]] = []
        self.failures: dict[int, BaseException] = {}
        self.stopped: BaseException | None = None
        """What was thrown in to end the run."""

    def steps(self) -> Steps:
        while True:
            while self.ready:
                yield from self._advance(*self.ready.popleft())
            if self.keeping:
                yield from self._keep()
            elif self.parked:
                yield from self._wait()
            else:
                break
        if self.stopped is not None:
            raise self.stopped
        if self.failures:
            # A Stop among them is only what another's failure did.
            real = [n for n, failure in self.failures.items() if not isinstance(failure, Stop)]
            first, *others = [self.failures[n] for n in sorted(real or self.failures)]
            for other in others:
                first.add_note(f"Beside it: {type(other).__name__}: {other}")
            raise first

    def _advance(self, n: int, answer: _Answer) -> Steps:
        """Let a strand go on until it has to wait."""
        strand = self.strands[n]
        while True:
            try:
                request = strand.send(answer.value) if answer.error is None else strand.throw(answer.error)
            except StopIteration:
                self._begin_next()
                return
            except BaseException as raised:  # noqa: BLE001 - raised again when all have ended
                self.failures[n] = raised
                self._begin_next()
                return
            if isinstance(request, Record):
                self.keeping.append((n, request))
                return
            if isinstance(request, Wait):
                self.parked.update(dict.fromkeys(request.tickets, (n, True)))
                return
            if not isinstance(request, Task):
                answer = yield from self._ask(request)
                continue
            answer = yield from self._ask(Start(request))
            if answer.error is None:
                self.parked[answer.value] = n, False
                return

    def _begin_next(self) -> None:
        if self.next < len(self.strands):
            self.ready.append((self.next, _Answer()))
            self.next += 1

    def _ask(self, request: Request) -> Generator[Request, Any, _Answer]:
        """Pass a request on, if it still makes sense."""
        is_start = isinstance(request, Start)
        if is_start and (self.failures or self.stopped is not None):
            return _Answer(error=Stop())
        if self.stopped is not None and isinstance(request, Emit):
            return _Answer()  # nobody listens any more
        try:
            return _Answer((yield request))
        except BaseException as raised:  # noqa: BLE001 - the strand decides what becomes of it
            was_refused = is_start and isinstance(raised, Stop)  # by the round around this one
            if not was_refused and not isinstance(raised, (Exception, GraphInterrupt)):
                self.stopped = self.stopped or raised
            return _Answer(error=raised)

    def _keep(self) -> Steps:
        keeping, self.keeping = self.keeping, []
        first = keeping[0][1]
        # All of one run, except where strands are graphs of their own.
        same = [(n, one) for n, one in keeping if (one.saver, one.config) == (first.saver, first.config)]
        self.keeping = [(n, one) for n, one in keeping if (n, one) not in same]
        together = {key: value for _, one in same for key, value in one.writes.items()}
        answer = yield from self._ask(Record(first.saver, first.config, together))
        self.ready.extend((n, answer) for n, _ in same)

    def _wait(self) -> Steps:
        tickets = tuple(self.parked)
        if self.failures or self.stopped is not None:
            yield from self._ask(Withdraw(tickets))
        try:
            done = yield Wait(tickets)
        except BaseException as raised:
            if self.stopped is not None:
                raise  # asked twice
            self.stopped = raised
            return
        for_strands: dict[int, list[Any]] = {}
        for ticket, result, error in done:
            n, is_for_its_own = self.parked.pop(ticket)
            if is_for_its_own:
                for_strands.setdefault(n, []).append((ticket, result, error))
            else:
                self.ready.append((n, _Answer(result, error)))
        for n, outcomes in for_strands.items():
            self.parked = {ticket: owner for ticket, owner in self.parked.items() if owner[0] != n}
            self.ready.append((n, _Answer(outcomes)))
