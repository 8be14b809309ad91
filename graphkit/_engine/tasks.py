"""Tasks beside each other: on threads, in other processes, in an event loop. The drivers' other half."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, final

from graphkit._engine.journal import ONCE
from graphkit._engine.remote import Errand, Outcome, RemoteJournal, perform
from graphkit._engine.requests import Ended, Next, RunNode, Task
from graphkit._visit import CURRENT
from graphkit.errors import GraphRunnerError

if TYPE_CHECKING:
    from asyncio import Task as AsyncTask

    from graphkit._engine.loop import Run

_THREADS: Final = 64
"""At most so many branches run on graphkit's own threads at once; more wait for their turn."""
_SETTLED: Final = frozenset({dict, type(None)})
"""What most nodes return; spares the question whether it is to be awaited."""

Done = tuple[int, Any, BaseException | None]
"""A ticket, and what became of its task: a result or an error."""


def run_here(task: Task) -> Any:
    """Run a task on the calling thread."""
    return run_node(task) if isinstance(task, RunNode) else advance(task)  # type: ignore[arg-type]


def run_node(task: RunNode) -> Any:
    """Run a node's action on the calling thread."""
    call = task.call
    token = CURRENT.set(task.visit)
    try:
        result = call.function(task.argument, task.config) if call.takes_config else call.function(task.argument)
    finally:
        CURRENT.reset(token)
    return result if result.__class__ in _SETTLED else refuse_awaitable(result, task.visit.node_id)


def advance(task: Next) -> Any:
    """The next chunk of a generator, on the calling thread."""
    token = CURRENT.set(task.visit)
    try:
        return next(task.generator)
    except StopIteration as end:
        return Ended(end.value)
    finally:
        CURRENT.reset(token)


def arguments_of(task: RunNode) -> tuple[Any, ...]:
    """What a node's action is called with."""
    return (task.argument, task.config) if task.call.takes_config else (task.argument,)


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


class Bench:
    """Where the tasks of one run go that run beside others: its own threads, or executors that were given."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.flush = flush
        """What is recorded from another process must find its checkpoint stored."""
        self.tickets = count()
        self.pool: ThreadPoolExecutor | None = None

    def submit(self, task: Task) -> tuple[Future[Any], bool]:
        """Hand a task to its executor; the future, and whether it gives an Outcome instead of a result."""
        executor = task.executor
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            assert isinstance(task, RunNode), "a generator is run to its end where it cannot be followed"
            return self._send(executor, task), True
        context = copy_context()
        return (executor or self._threads()).submit(context.run, _outcome_here, task), False

    def _threads(self) -> ThreadPoolExecutor:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="graphkit")
        return self.pool

    def _send(self, executor: Executor, task: RunNode) -> Future[Outcome]:
        run: Run = task.visit.journal.run  # type: ignore[union-attr]
        if task.call.is_async:
            raise GraphRunnerError(
                f"node {task.visit.node_id!r} is asynchronous: it cannot run on a {type(executor).__name__}",
                node_id=task.visit.node_id,
            )
        self.flush()
        return executor.submit(perform, errand_of(run, task))

    def close(self) -> None:
        """End the threads; each has done its task."""
        if self.pool is not None:
            self.pool.shutdown()


def errand_of(run: Run, task: RunNode) -> Errand:
    """What is sent to another process."""
    visit = task.visit
    prefix = f"{ONCE}{visit.key}:"
    results = {key.removeprefix(prefix): value for key, value in run.writes.items() if key.startswith(prefix)}
    saver, base = run.saver, run.base
    here = None if saver is None or base is None else run.config.replace(checkpoint_id=base.id, executor=None)
    opener = None if saver is None else saver.opener()
    journal = RemoteJournal(run.place(visit.key, visit.node_id), results, opener, here, prefix)
    config = task.config.replace(executor=None)
    return Errand(task.call, task.argument, config, visit.node_id, visit.key, visit.answers, journal)


def _outcome_here(task: Task) -> tuple[Any, BaseException | None]:
    # As a value: a future does not take StopIteration, and an executor may treat a BaseException in its own way.
    try:
        return run_here(task), None
    except BaseException as error:  # noqa: BLE001 - thrown again where it is waited for
        return None, error


def taken(task: Task, future: Future[Any], is_outcome: bool) -> tuple[Any, BaseException | None]:
    """What a future that is done says of its task."""
    try:
        result = future.result()
    except BaseException as error:  # noqa: BLE001 - the executor's own: a broken pool, a worker that is gone
        return None, error
    if not is_outcome:
        return result  # type: ignore[no-any-return]
    task.visit.attempt = result.attempt
    task.visit.outputs.extend(result.outputs)
    for type_, level, data in result.notes:
        task.visit.note(type_, level, data)
    return result.result, result.error


@final
class Threads(Bench):
    """The tasks of a synchronous run."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(flush)
        self.queue: SimpleQueue[Done] = SimpleQueue()
        self.done: dict[int, Done] = {}

    def start(self, task: Task) -> int:
        """Begin a task; its ticket."""
        ticket = next(self.tickets)
        future, is_outcome = self.submit(task)
        future.add_done_callback(lambda one: self.queue.put((ticket, *taken(task, one, is_outcome))))
        return ticket

    def wait(self, tickets: Collection[int]) -> list[Done]:
        """Those of some tickets that are done, at least one."""
        while True:
            while not self.queue.empty():
                self._take()
            found = [self.done.pop(ticket) for ticket in tickets if ticket in self.done]
            if found:
                return found
            self._take()

    def _take(self) -> None:
        done = self.queue.get()
        self.done[done[0]] = done

    def run(self, task: Task) -> Any:
        """Run one task on its executor, and wait for it."""
        ((_, result, error),) = self.wait((self.start(task),))
        if error is not None:
            raise error
        return result


@final
class Loops(Bench):
    """The tasks of an asynchronous run."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(flush)
        self.running: dict[int, AsyncTask[tuple[Any, BaseException | None]]] = {}
        self.cancellable: set[int] = set()

    def start(self, task: Task, arun: Callable[[Task], Coroutine[Any, Any, Any]]) -> int:
        """Begin a task; `arun` runs it in this event loop, if it is asynchronous."""
        import asyncio

        ticket = next(self.tickets)
        if task.executor is None and is_async(task):
            self.cancellable.add(ticket)
            coroutine = _outcome_of(arun(task))
        else:
            future, is_outcome = self.submit(task)
            coroutine = _settled(task, future, is_outcome)
        self.running[ticket] = asyncio.ensure_future(coroutine)
        return ticket

    async def wait(self, tickets: Collection[int]) -> list[Done]:
        """Those of some tickets that are done, at least one.

        Raises:
            CancelledError: the run was cancelled; what is asynchronous was too, the rest has come to its end.
        """
        import asyncio

        waited = {ticket: self.running[ticket] for ticket in tickets}
        try:
            await asyncio.wait(waited.values(), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        done = [ticket for ticket, one in waited.items() if one.done()]
        return [(ticket, *_result_of(self.running.pop(ticket))) for ticket in done]

    async def _cancel(self) -> None:
        import asyncio

        for ticket in self.cancellable & self.running.keys():
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
        ((_, result, error),) = await self.wait((self.start(task, arun),))
        if error is not None:
            raise error
        return result


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


async def _settled(task: Task, future: Future[Any], is_outcome: bool) -> tuple[Any, BaseException | None]:
    import asyncio

    await asyncio.wait((asyncio.wrap_future(future),))
    result, error = taken(task, future, is_outcome)
    if error is None and inspect.isawaitable(result):  # a plain function that gives an awaitable
        return await _outcome_of(_awaited(result))
    return result, error


async def _awaited(result: Any) -> Any:
    return await result


def _result_of(task: AsyncTask[tuple[Any, BaseException | None]]) -> tuple[Any, BaseException | None]:
    import asyncio

    try:
        return task.result()
    except asyncio.CancelledError as cancelled:
        return None, cancelled
