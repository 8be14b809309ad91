"""Several strands of a run side by side: branches of a fork, items of a map. A generator like the loop it serves.

Each strand is a generator of requests. Its tasks are started instead of run, and while they run the others go on; all
else it asks for is passed on and answered at once, so that only the user's own calls are concurrent and the engine is
not. A strand that has strands of its own waits for tickets, as this does; the waits add up.

Records of one round are put together in one: a hundred branches that finish at once cost one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, final

from graphkit._engine.requests import Record, Request, Start, Stop, Task, Wait

Steps = Generator[Request, Any, Any]


def side_by_side(strands: Sequence[Steps]) -> Steps:
    """Run strands to their ends.

    Once one has failed, no other starts a task; what runs already is waited for, and keeps its result.

    Raises:
        BaseException: the failure of the first strand, in their order, that failed.
    """
    return (yield from _Round(strands).steps())


@final
class _Round:
    def __init__(self, strands: Sequence[Steps]) -> None:
        self.strands = strands
        self.ready: deque[tuple[int, Any, BaseException | None]] = deque((n, None, None) for n in range(len(strands)))
        self.parked: dict[int, tuple[int, bool]] = {}
        """Who waits for a ticket: a strand, and whether it is for one of its own strands."""
        self.keeping: list[tuple[int, Record]] = []
        self.failures: dict[int, BaseException] = {}
        self.stopped: BaseException | None = None

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
            # A Stop among them is only what another's failure did to a strand with strands of its own.
            real = [n for n, failure in self.failures.items() if not isinstance(failure, Stop)]
            raise self.failures[min(real or self.failures)]

    def _advance(self, n: int, answer: Any, error: BaseException | None) -> Steps:
        strand = self.strands[n]
        try:
            request = strand.send(answer) if error is None else strand.throw(error)
        except StopIteration:
            return
        except BaseException as raised:  # noqa: BLE001 - raised again when all have ended
            self.failures[n] = raised
            return
        if isinstance(request, Record):
            self.keeping.append((n, request))
        elif isinstance(request, Wait):
            self.parked.update(dict.fromkeys(request.tickets, (n, True)))
        elif isinstance(request, Task):
            yield from self._start(n, request)
        else:
            yield from self._pass_on(n, request)

    def _start(self, n: int, task: Task) -> Steps:
        if self._is_ending():
            self.strands[n].close()
            return
        try:
            ticket = yield Start(task)
        except BaseException as raised:  # noqa: BLE001 - an executor that takes nothing, or a Stop from around
            self.strands[n].close()
            self.failures[n] = raised
            return
        self.parked[ticket] = n, False

    def _pass_on(self, n: int, request: Request) -> Steps:
        if isinstance(request, Start) and self._is_ending():
            self.ready.append((n, None, Stop()))
            return
        try:
            self.ready.append((n, (yield request), None))
        except BaseException as raised:  # noqa: BLE001 - the strand decides what becomes of it
            self.ready.append((n, None, raised))

    def _keep(self) -> Steps:
        keeping, self.keeping = self.keeping, []
        first = keeping[0][1]
        # All of one run, except where strands are graphs of their own.
        same = [(n, one) for n, one in keeping if (one.saver, one.config) == (first.saver, first.config)]
        self.keeping = [(n, one) for n, one in keeping if (n, one) not in same]
        together = {key: value for _, one in same for key, value in one.writes.items()}
        error = None
        try:
            yield Record(first.saver, first.config, together)
        except BaseException as raised:  # noqa: BLE001
            error = raised
        self.ready.extend((n, None, error) for n, _ in same)

    def _wait(self) -> Steps:
        try:
            done = yield Wait(tuple(self.parked))
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
                self.ready.append((n, result, error))
        for n, outcomes in for_strands.items():
            self.parked = {ticket: owner for ticket, owner in self.parked.items() if owner[0] != n}
            self.ready.append((n, outcomes, None))

    def _is_ending(self) -> bool:
        return self.stopped is not None or bool(self.failures)
