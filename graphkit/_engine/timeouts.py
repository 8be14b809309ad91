"""Timeouts: an attempt that is late fails, and what it does from then on is dropped.

An asynchronous attempt is cancelled. A plain one runs on a thread of its own and is left alone, for a thread cannot be
stopped.
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
    END,
    Outcome,
    Start,
    awaited,
    chunks_of,
    later_chunks,
    next_of,
    outcome_of,
    settled,
)
from graphkit._records.context import CURRENT_NODE_CONTEXT, Journal, NodeContext
from graphkit.errors import GraphRunnerError


@final
class Time:
    """The time that an attempt has left, in seconds."""

    __slots__ = ("left", "node_id", "seconds")

    def __init__(self, node_id: str, seconds: float) -> None:
        self.node_id = node_id
        self.seconds = self.left = seconds

    def late(self) -> TimeoutError:
        return TimeoutError(f"node {self.node_id!r} took longer than its timeout of {self.seconds:g} s")

    async def of(self, result: Awaitable[Any]) -> Any:
        """Await something; it is cancelled when it is late."""
        import asyncio

        started = monotonic()
        try:
            async with asyncio.timeout(self.left) as limit:
                return await result
        except TimeoutError:
            if limit.expired():
                raise self.late() from None
            raise
        finally:
            self.left -= monotonic() - started


def _value_in_time(start: Start, time: Time) -> Any:
    with _Bench(time) as bench:
        result = bench.do(start)
    # Of a function that is not known to be asynchronous.
    return time.of(result) if inspect.isawaitable(result) else result


async def _awaited_in_time(start: Start, time: Time) -> Any:
    return await time.of(awaited(start))


def _chunks_in_time(start: Start, time: Time) -> Generator[Any, Any, Any]:
    with _Bench(time) as bench:
        chunks = chunks_of(start)
        try:
            while True:
                chunk, returned = bench.do(partial(next_of, chunks))
                if chunk is END:
                    return returned
                yield chunk
        except GeneratorExit:
            bench.do(chunks.close)
            raise
        finally:
            bench.jobs.put(chunks.close)  # if it is late, as soon as it can be


async def _later_chunks_in_time(start: Start, time: Time) -> AsyncGenerator[Any]:
    async with aclosing(later_chunks(start)) as chunks:
        while (chunk := await time.of(anext(chunks, END))) is not END:
            yield chunk


RUN_IN_TIME: Final[dict[tuple[bool, bool], Callable[[Start, Time], Any]]] = {
    (False, False): _value_in_time,
    (True, False): _awaited_in_time,
    (False, True): _chunks_in_time,
    (True, True): _later_chunks_in_time,
}


@final
class _Bench:
    """A thread for one attempt, which is left alone when it is late. A daemon: nobody waits for it at exit either.

    What it does there belongs to a visit of its own. The real one hears of it as long as it is in time.
    """

    def __init__(self, time: Time) -> None:
        self.time = time
        self.jobs: SimpleQueue[Start | None] = SimpleQueue()
        self.outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self.visit = CURRENT_NODE_CONTEXT.get()
        self.own = None if self.visit is None else copy(self.visit)
        self.gate: _Gate | None = None
        context = copy_context()
        if self.own is not None:
            self.own.outputs = []
            if self.own.journal is not None:
                self.own.journal = self.gate = _Gate(self.own.journal, time)
            context.run(CURRENT_NODE_CONTEXT.set, self.own)
        Thread(target=context.run, args=(self._work,), name=f"graphkit-{time.node_id}", daemon=True).start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.outcomes.put(outcome_of(job))

    def do(self, job: Start) -> Any:
        """Do one thing there.

        Raises:
            TimeoutError: it did not end in time. The thread may be still at it.
        """
        started = monotonic()
        self.jobs.put(job)
        try:
            outcome = self.outcomes.get(timeout=max(self.time.left, 0))
        except Empty:
            raise self.time.late() from None
        self.time.left -= monotonic() - started
        self._tell()
        return settled(outcome)

    def _tell(self) -> None:
        if self.visit is not None and self.own is not None:
            self.visit.interrupt_calls = self.own.interrupt_calls
            self.visit.outputs.extend(self.own.outputs)
            self.own.outputs.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.jobs.put(None)
        if self.gate is not None:
            self.gate.close()


@final
class _Gate:
    """A journal until it is closed."""

    __slots__ = ("is_open", "journal", "lock", "time")

    def __init__(self, journal: Journal, time: Time) -> None:
        self.journal = journal
        self.time = time
        self.lock = Lock()
        self.is_open = True

    def idempotency_key(self, visit: NodeContext) -> str:
        return self.journal.idempotency_key(visit)

    def find_result(self, visit: NodeContext, key: str) -> tuple[bool, Any]:
        with self.lock:
            self._refuse()
            return self.journal.find_result(visit, key)

    def record_result(self, visit: NodeContext, key: str, value: Any) -> Any:
        with self.lock:
            self._refuse()
            return self.journal.record_result(visit, key, value)

    def post_event(self, visit: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        with self.lock:
            if self.is_open:
                self.journal.post_event(visit, type, level, data)

    def close(self) -> None:
        """Returns when what is being recorded is."""
        with self.lock:
            self.is_open = False

    def _refuse(self) -> None:
        if not self.is_open:
            reason = f"this attempt of node {self.time.node_id!r} is over: nothing more is recorded for it"
            raise GraphRunnerError(reason, node_id=self.time.node_id)
