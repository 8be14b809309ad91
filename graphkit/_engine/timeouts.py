"""Timeouts: an attempt that exceeds its timeout fails, and what it does from then on is dropped.

An async attempt is cancelled. A sync one runs on a thread of its own and is abandoned, because a
thread cannot be stopped.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from contextvars import copy_context
from copy import copy
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final, Self, final

from graphkit._engine.call_kinds import (
    EXHAUSTED,
    Outcome,
    Thunk,
    capture_outcome,
    next_chunk,
    run_async_function,
    run_async_generator,
    run_generator,
    unwrap_outcome,
)
from graphkit._records.context import CURRENT_NODE_CONTEXT, Journal, NodeContext
from graphkit.errors import GraphRunnerError


@final
class TimeBudget:
    """The time that an attempt has left, in seconds."""

    __slots__ = ("kind", "left", "node_id", "timeout")

    def __init__(self, node_id: str, timeout: float, kind: str) -> None:
        self.kind = kind
        self.node_id = node_id
        self.timeout = timeout
        self.left = timeout

    def make_error(self) -> TimeoutError:
        return TimeoutError(f"{self.kind} {self.node_id!r} took longer than its timeout of {self.timeout:g} s")

    async def run(self, awaitable: Awaitable[Any]) -> Any:
        """Await something, and cancel it when the time is over."""
        import asyncio

        started = monotonic()
        try:
            async with asyncio.timeout(self.left) as limit:
                return await awaitable
        except TimeoutError:
            if limit.expired():
                raise self.make_error() from None
            raise
        finally:
            self.left -= monotonic() - started


def _run_function(thunk: Thunk, budget: TimeBudget) -> Any:
    with _Worker(budget) as worker:
        result = worker.run(thunk)
    # A function may return an awaitable although it is not known to be async.
    return budget.run(result) if inspect.isawaitable(result) else result


async def _run_async_function(thunk: Thunk, budget: TimeBudget) -> Any:
    return await budget.run(run_async_function(thunk))


def _run_generator(thunk: Thunk, budget: TimeBudget) -> Generator[Any, Any, Any]:
    with _Worker(budget) as worker:
        chunks = run_generator(thunk)
        try:
            while True:
                chunk, returned = worker.run(partial(next_chunk, chunks))
                if chunk is EXHAUSTED:
                    return returned
                yield chunk
        except GeneratorExit:
            worker.run(chunks.close)
            raise
        finally:
            worker.jobs.put(chunks.close)  # an abandoned attempt closes it as soon as it can


async def _run_async_generator(thunk: Thunk, budget: TimeBudget) -> AsyncGenerator[Any]:
    async with aclosing(run_async_generator(thunk)) as chunks:
        while (chunk := await budget.run(anext(chunks, EXHAUSTED))) is not EXHAUSTED:
            yield chunk


RUN_IN_TIME: Final[dict[tuple[bool, bool], Callable[[Thunk, TimeBudget], Any]]] = {
    (False, False): _run_function,
    (True, False): _run_async_function,
    (False, True): _run_generator,
    (True, True): _run_async_generator,
}
"""As `call_kinds.RUN`, with a timeout."""


@final
class _Worker:
    """A thread for one attempt, abandoned on a timeout. A daemon, so that no exit waits for it.

    The attempt has a copy of the node context. The real node context takes over what the attempt did
    as long as it is in time.
    """

    def __init__(self, budget: TimeBudget) -> None:
        self.budget = budget
        self.jobs: SimpleQueue[Thunk | None] = SimpleQueue()
        self.outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self.context = CURRENT_NODE_CONTEXT.get()
        self.own_context: NodeContext | None = None
        self.journal: _GuardedJournal | None = None
        variables = copy_context()
        if self.context is not None:
            self.own_context = copy(self.context)
            self.own_context.outputs = []
            if self.context.journal is not None:
                self.journal = _GuardedJournal(self.context.journal, budget)
                self.own_context.journal = self.journal
            variables.run(CURRENT_NODE_CONTEXT.set, self.own_context)
        name = f"graphkit-{budget.node_id}"
        thread = Thread(target=variables.run, args=(self._work,), name=name, daemon=True)
        thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.outcomes.put(capture_outcome(job))

    def run(self, job: Thunk) -> Any:
        """Run a job on the thread.

        Raises:
            TimeoutError: the job did not end in time. The thread may still be running it.
        """
        started = monotonic()
        self.jobs.put(job)
        try:
            outcome = self.outcomes.get(timeout=max(self.budget.left, 0))
        except Empty:
            raise self.budget.make_error() from None
        self.budget.left -= monotonic() - started
        self._update_context()
        return unwrap_outcome(outcome)

    def _update_context(self) -> None:
        """Copy what the attempt did into the real node context."""
        if self.context is not None and self.own_context is not None:
            self.context.interrupt_calls = self.own_context.interrupt_calls
            self.context.outputs.extend(self.own_context.outputs)
            self.own_context.outputs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.jobs.put(None)
        if self.journal is not None:
            self.journal.close()


@final
class _GuardedJournal:
    """A journal that refuses to record once the attempt is over."""

    __slots__ = ("budget", "is_open", "journal", "lock")

    def __init__(self, journal: Journal, budget: TimeBudget) -> None:
        self.journal = journal
        self.budget = budget
        self.lock = Lock()
        self.is_open = True

    def idempotency_key(self, context: NodeContext) -> str:
        return self.journal.idempotency_key(context)

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        with self.lock:
            self._require_open()
            return self.journal.find_result(context, key)

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        with self.lock:
            self._require_open()
            return self.journal.record_result(context, key, value)

    def post_event(self, context: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        with self.lock:
            if self.is_open:
                self.journal.post_event(context, type, level, data)

    def close(self) -> None:
        """Refuse further records; wait for one that is being made."""
        with self.lock:
            self.is_open = False

    def _require_open(self) -> None:
        if not self.is_open:
            node_id = self.budget.node_id
            reason = f"this attempt of {self.budget.kind} {node_id!r} is over: nothing more is recorded for it"
            raise GraphRunnerError(reason, node_id=node_id)
