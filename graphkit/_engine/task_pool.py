"""Tasks beside each other: on threads, in other processes, in an event loop. The drivers' other half."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, final

from graphkit._engine.call_kinds import outcome_of
from graphkit._engine.journal import ONCE
from graphkit._engine.remote import Outcome, RemoteCall, RemoteJournal, perform
from graphkit._engine.requests import Ended, Next, RunNode, Stop, Task
from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit.errors import GraphRunnerError

if TYPE_CHECKING:
    from asyncio import Event, Task as AsyncTask

    from graphkit._engine.loop import Run

_THREADS: Final = 64
"""At most so many branches run on graphkit's own threads at once; more wait for their turn."""
_SETTLED: Final = frozenset({dict, type(None)})
"""What most nodes return; spares the question whether it is to be awaited."""

Done = tuple[int, Any, BaseException | None]
"""A ticket, and what became of its task: a result or an error."""


def run_node(task: RunNode) -> Any:
    """Run a node's action on the calling thread.

    Raises:
        GraphRunnerError: it gave something to be awaited.
    """
    result = begin(task)
    return result if result.__class__ in _SETTLED else refuse_awaitable(result, task.context.node_id)


def begin(task: RunNode) -> Any:
    """Run a node's action on the calling thread; what it gives may have to be awaited."""
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        return task.call.run(task.argument, task.config)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


def advance(task: Next) -> Any:
    """The next chunk of a generator, on the calling thread."""
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        return next(task.generator)
    except StopIteration as end:
        return Ended(end.value)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


def refuse_awaitable(result: Any, node_id: str | None) -> Any:
    """What a synchronous run got, unless it is to be awaited.

    Raises:
        GraphRunnerError: it is.
    """
    if not inspect.isawaitable(result) and not inspect.isasyncgen(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    what = "an edge" if node_id is None else f"node {node_id!r}"
    raise GraphRunnerError(f"{what} is asynchronous: run the graph with astream or ainvoke", node_id=node_id)


class TaskPool:
    """Where the tasks of one run go that run beside others: its own threads, or executors that were given."""

    def __init__(self, flush: Callable[[], None], run_node: Callable[[RunNode], Any]) -> None:
        self.flush = flush
        """What is recorded from another process must find its checkpoint stored."""
        self.run_node = run_node
        self.tickets = count()
        self.pool: ThreadPoolExecutor | None = None
        self.futures: dict[int, Future[Any]] = {}
        """By ticket, until they are done."""
        self.withdrawn: set[int] = set()

    def submit(self, ticket: int, task: Task) -> Future[Any]:
        """Hand a task to its executor; see `taken` for what the future gives."""
        executor = task.executor
        if executor is not None and is_async(task):
            raise GraphRunnerError(
                f"node {task.context.node_id!r} is asynchronous: it cannot run on a {type(executor).__name__}",
                node_id=task.context.node_id,
            )
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            future: Future[Any] = (executor or self._threads()).submit(copy_context().run, self._outcome_here, task)
        else:
            assert isinstance(task, RunNode), "a generator is run to its end where it cannot be followed"
            self.flush()
            run: Run = task.context.journal.run  # type: ignore[union-attr]
            future = executor.submit(perform, errand_of(run, task))
        self.futures[ticket] = future
        return future

    def _threads(self) -> ThreadPoolExecutor:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="graphkit")
        return self.pool

    def _outcome_here(self, task: Task) -> tuple[Any, BaseException | None]:
        # As a value: an executor may treat a BaseException in its own way.
        run: Callable[[Any], Any] = self.run_node if isinstance(task, RunNode) else advance
        return outcome_of(partial(run, task))

    def taken(self, ticket: int, task: Task) -> tuple[Any, BaseException | None]:
        """What became of a task whose future is done."""
        try:
            result = self.futures.pop(ticket).result()
        except CancelledError as error:
            return None, Stop() if ticket in self.withdrawn else error
        except BaseException as error:  # noqa: BLE001 - the executor's own: a broken pool, a worker that is gone
            return None, error
        if not isinstance(result, Outcome):
            return result  # type: ignore[no-any-return]
        task.context.attempt = result.attempt
        task.context.interrupt_calls = result.asked
        task.context.outputs.extend(result.outputs)
        for type_, level, data in result.notes:
            task.context.post_event(type_, level, data)
        return result.result, result.error

    def withdraw(self, tickets: Collection[int]) -> None:
        """Take back those of some tasks that have not begun; they end with a Stop."""
        for ticket in tickets:
            future = self.futures.get(ticket)
            if future is not None and not future.running() and ticket not in self.withdrawn:
                self.withdrawn.add(ticket)
                future.cancel()

    def close(self) -> None:
        """End the threads; each has done its task."""
        if self.pool is not None:
            self.pool.shutdown()


def errand_of(run: Run, task: RunNode) -> RemoteCall:
    """What is sent to another process."""
    visit = task.context
    prefix = f"{ONCE}{visit.key}:"
    results = {key.removeprefix(prefix): value for key, value in run.writes.items() if key.startswith(prefix)}
    saver, base = run.saver, run.base
    here = None if saver is None or base is None else run.config.replace(checkpoint_id=base.id, executor=None)
    opener = None if saver is None else saver.opener()
    journal = RemoteJournal(run.idempotency_key(visit.key, visit.node_id), results, opener, here, prefix)
    config = task.config.replace(executor=None)
    return RemoteCall(task.call, task.argument, config, visit.node_id, visit.key, visit.answers, journal)


@final
class ThreadPool(TaskPool):
    """The tasks of a synchronous run."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(flush, run_node)
        self.done: dict[int, Done] = {}
        """What is done; kept until it is asked for no more, so that a Ctrl-C on the way to the asker loses nothing."""
        self.news: SimpleQueue[None] = SimpleQueue()

    def start(self, task: Task) -> int:
        """Begin a task; its ticket."""
        ticket = next(self.tickets)
        self.submit(ticket, task).add_done_callback(lambda _: self._tell(ticket, task))
        return ticket

    def _tell(self, ticket: int, task: Task) -> None:
        self.done[ticket] = ticket, *self.taken(ticket, task)
        self.news.put(None)

    def wait(self, tickets: Collection[int]) -> list[Done]:
        """Those of some tickets that are done, at least one. What is done and not asked for is forgotten."""
        for ticket in self.done.keys() - tickets:
            del self.done[ticket]
        while not (found := self.done.keys() & tickets):
            self.news.get()
        return [self.done[ticket] for ticket in sorted(found)]

    def run(self, task: Task) -> Any:
        """Run one task on its executor, and wait for it."""
        ((_, result, error),) = self.wait({self.start(task)})
        if error is not None:
            raise error
        return result


@final
class AsyncPool(TaskPool):
    """The tasks of an asynchronous run."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(flush, begin)
        self.running: dict[int, AsyncTask[tuple[Any, BaseException | None]]] = {}
        self.done: set[int] = set()
        """Tickets whose task has ended, and that nobody has asked for yet."""
        self.news: Event | None = None

    def start(self, task: Task, arun: Callable[[Task], Coroutine[Any, Any, Any]]) -> int:
        """Begin a task; `arun` runs it in this event loop, if it is asynchronous."""
        import asyncio

        if self.news is None:
            self.news = asyncio.Event()
        ticket = next(self.tickets)
        if task.executor is None and is_async(task):
            coroutine = _outcome_of(arun(task))
        else:
            coroutine = self._settled(ticket, task, self.submit(ticket, task))
        self.running[ticket] = running = asyncio.ensure_future(coroutine)
        running.add_done_callback(lambda _: self._tell(ticket))
        return ticket

    def _tell(self, ticket: int) -> None:
        assert self.news is not None
        self.done.add(ticket)
        self.news.set()

    async def wait(self, tickets: Collection[int]) -> list[Done]:
        """Those of some tickets that are done, at least one.

        Raises:
            CancelledError: the run was cancelled; what is asynchronous was too, the rest has come to its end.
        """
        import asyncio

        assert self.news is not None
        while not (found := self.done.intersection(tickets)):
            self.news.clear()
            try:
                await self.news.wait()
            except asyncio.CancelledError:
                await self.cancel()
                raise
        self.done -= found
        return [(ticket, *_result_of(self.running.pop(ticket))) for ticket in sorted(found)]

    async def cancel(self) -> None:
        """Cancel what is asynchronous, take back what has not begun, and wait for the rest."""
        import asyncio

        self.withdraw(self.running)
        for ticket in self.running.keys() - self.futures.keys():
            self.running[ticket].cancel()
        pending = [one for one in self.running.values() if not one.done()]
        while pending:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:  # again: the answer is the same
                continue
            pending = [one for one in pending if not one.done()]

    async def run(self, task: Task, arun: Callable[[Task], Coroutine[Any, Any, Any]]) -> Any:
        """Run one task on its executor, and wait for it."""
        ((_, result, error),) = await self.wait({self.start(task, arun)})
        if error is not None:
            raise error
        return result

    async def _settled(self, ticket: int, task: Task, future: Future[Any]) -> tuple[Any, BaseException | None]:
        import asyncio

        # Not the future's result: what failed would be told a second time, by a future that nobody asks.
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        while not done.is_set():
            with suppress(asyncio.CancelledError):  # of an event loop that ends: what runs must come to its end first
                await done.wait()
        result, error = self.taken(ticket, task)
        if error is None and inspect.isawaitable(result):  # a plain function that gives an awaitable
            return await _outcome_of(_awaited(task, result))
        return result, error


def is_async(task: Task) -> bool:
    """Whether a task runs in the event loop rather than on a thread."""
    if isinstance(task, RunNode):
        return task.call.is_async
    return isinstance(task, Next) and inspect.isasyncgen(task.generator)


async def _outcome_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    import asyncio

    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001
        return None, error


async def _awaited(task: Task, result: Any) -> Any:
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        return await result
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


def _result_of(task: AsyncTask[tuple[Any, BaseException | None]]) -> tuple[Any, BaseException | None]:
    import asyncio

    try:
        return task.result()
    except asyncio.CancelledError as cancelled:
        return None, cancelled
