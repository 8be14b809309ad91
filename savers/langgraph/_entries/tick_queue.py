"""Executes together what the tasks of an event loop ask for in the same tick."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from graphkit.abc import run_in_thread

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


class TickQueue(Generic[RequestT, ResultT]):
    """Collects requests until the event loop has run all tasks that are ready, and executes them in one thread.

    A hundred puts that wait together then need one append, one sync and one change of threads.
    """

    def __init__(self, execute_all: Callable[[list[RequestT]], Sequence[ResultT | Exception]]) -> None:
        """Make a queue.

        Args:
            execute_all: returns the result or the error of each request.
        """
        self._execute_all = execute_all
        self._waiting: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, list[tuple[RequestT, asyncio.Future[ResultT]]]
        ] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        """The loop itself keeps only weak references to its tasks."""

    async def execute(self, request: RequestT) -> ResultT:
        """Execute a request together with others; return its result or raise its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((request, future))
        if len(waiting) == 1:
            task = loop.create_task(self._execute_waiting(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _execute_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.pop(loop)
        outcomes: Sequence[ResultT | Exception]
        try:
            outcomes = await run_in_thread(self._execute_all, [request for request, _ in waiting])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            outcomes = [error] * len(waiting)
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            if future.done():
                continue  # Its caller was cancelled.
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
