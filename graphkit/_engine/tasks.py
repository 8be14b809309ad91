"""Runs tasks concurrently for the drivers: on threads, in other processes, in the event loop.

Another process gets a `RunNode` with a `RemoteJournal`, and returns a `TaskOutcome`. It finds everything here by name,
so any `concurrent.futures.Executor` will do: a process pool, Dask's `client.get_executor(pure=False)`,
or one of the application.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from queue import SimpleQueue
from time import monotonic
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from graphkit._engine.checkpoint_writer import CheckpointWriter
from graphkit._engine.history import RunHistory, name_result
from graphkit._engine.requests import Close, Collected, Next, RunNode, Start, Stop, Task, Wait, Withdraw
from graphkit._plan.calls import Ended, next_chunk
from graphkit._plan.topology import require_result
from graphkit._records.config import RunnableConfig
from graphkit._records.context import CURRENT_NODE_CONTEXT, NO_JOURNAL, GraphInterrupt, Journal, NodeContext, setting
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.status import CANCEL_REQUEST, LOOK_INTERVAL
from graphkit._to_thread import HeldCancellation, Outcome, judge_cancellation, unwrap_outcome, wait_until_done
from graphkit._wording import describe_error
from graphkit.errors import GraphRunnerError

if TYPE_CHECKING:
    from asyncio import Task as AsyncTask

_MAX_THREADS: Final = 64
"""How many branches run on graphkit's own threads at once; more wait for a free thread."""
NEVER_AWAITABLE: Final = frozenset({dict, str, bool, type(None)})
"""The types that most nodes and edges return; spares the check whether the result is awaitable."""
HOW_TO_RUN_ASYNC: Final = "run the graph with astream or ainvoke"

OpenSaver = Callable[[], BaseCheckpointSaver]
"""Opens the run's saver in another process; see `BaseCheckpointSaver.opener`."""


def run_node(task: RunNode) -> Any:
    """Run a node's action on the calling thread.

    Raises:
        GraphRunnerError: the action returned an awaitable.
    """
    # `executing` and `Call.run` in line: every step of a run comes through here.
    call = task.call
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        result = call.function(task.argument, task.config) if call.takes_config else call.function(task.argument)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)
    if result.__class__ in NEVER_AWAITABLE:
        return result
    return require_result(result, "node", HOW_TO_RUN_ASYNC, task.context.node_id)


def executing(context: NodeContext) -> AbstractContextManager[None]:
    """Let the calling code be part of a node, as `interrupt` and `once` see it."""
    return setting(CURRENT_NODE_CONTEXT, context)


def call_action(task: RunNode) -> Any:
    """Call a node's action on the calling thread; the result may be an awaitable."""
    with executing(task.context):
        return task.call.run(task.argument, task.config)


def advance_generator(task: Next) -> Any:
    """Return the next chunk of a generator, or Ended; on the calling thread."""
    with executing(task.context):
        return next_chunk(task.generator)


def close_generator(request: Close) -> None:
    """Close a generator before its end."""
    request.generator.close()


class TaskOutcome(NamedTuple):
    """What the future of a task returns: the result or the error of its call."""

    result: Any
    error: BaseException | None
    context: NodeContext | None = None
    """Of a call in another process: as the call has left it, without its journal."""
    events: Sequence[tuple[str, dict[str, Any]]] = ()
    """The types and data of the events that it posted."""


def _run_on_thread(call: Callable[[Any], Any], task: Task) -> TaskOutcome:
    # An executor may handle a BaseException in its own way, so the error is a value.
    try:
        return TaskOutcome(call(task), None)
    except BaseException as error:  # noqa: BLE001 - raised again in the run
        return TaskOutcome(None, judge_cancellation(error))


@final
class TaskFutures:
    """The futures of the tasks that run on threads or on the user's executors.

    Attributes:
        by_ticket: the future of each task that is not done.
    """

    def __init__(self, writer: CheckpointWriter, call: Callable[[RunNode], Any]) -> None:
        """Prepare for tasks; threads are started when they are needed.

        Args:
            writer: stores for the run.
            call: runs a node's action on a thread.
        """
        self.writer = writer
        self.call = call
        self.threads: ThreadPoolExecutor | None = None
        self.by_ticket: dict[int, Future[Any]] = {}
        self.withdrawn: set[int] = set()

    def submit(self, ticket: int, task: Task) -> Future[Any]:
        """Submit a task to its executor; `collect_outcome` interprets what the future returns."""
        executor = task.executor
        node_id = task.context.node_id
        if executor is not None and is_async(task):
            raise GraphRunnerError(
                f"node {node_id!r} is asynchronous: it cannot run on a {type(executor).__name__}",
                node_id=node_id,
            )
        if executor is None:
            if self.threads is None:
                self.threads = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="graphkit")
            executor = self.threads
        if isinstance(executor, ThreadPoolExecutor):
            # A copy for each task: two threads cannot enter the same context.
            run: Callable[[Any], Any] = self.call if isinstance(task, RunNode) else advance_generator
            future: Future[Any] = executor.submit(copy_context().run, _run_on_thread, run, task)
        else:
            assert isinstance(task, RunNode), "another process runs a generator to its end in one task"
            self.writer.flush()  # the other process records at the base, which must be stored by then
            history = task.context.journal
            assert isinstance(history, RunHistory)
            future = executor.submit(perform, make_remote_task(history, task))
        self.by_ticket[ticket] = future
        return future

    def collect_outcome(self, ticket: int, task: Task) -> Outcome:
        """Return the result or error of a task whose future is done."""
        try:
            outcome = self.by_ticket.pop(ticket).result()
        except CancelledError as error:
            return None, Stop() if ticket in self.withdrawn else error
        except BaseException as error:  # noqa: BLE001 - of the executor: a broken pool, a dead worker
            return None, judge_cancellation(error)
        context = task.context
        if not isinstance(outcome, TaskOutcome):
            executor = type(task.executor).__name__
            reason = f"its executor, a {executor}, returned {outcome!r} in place of what the submitted call returned"
            return None, GraphRunnerError(reason, node_id=context.node_id)
        if outcome.context is not None:
            context.adopt(outcome.context)
            for event in outcome.events:
                context.journal.post_event(context, *event)
        return outcome.result, outcome.error

    def withdraw(self, request: Withdraw) -> None:
        """Cancel those of several tasks that have not started; they end with a Stop."""
        for ticket in request.tickets:
            future = self.by_ticket.get(ticket)
            # Marked first: a callback of the cancelled future may ask why it was cancelled. A future
            # that starts in between is not cancelled, and the mark has no effect.
            if future is not None and not future.running():
                self.withdrawn.add(ticket)
                future.cancel()

    def close(self) -> None:
        """End the threads, once each has finished its task."""
        if self.threads is not None:
            self.threads.shutdown()


@final
class ThreadPool:
    """Runs the tasks of a sync run."""

    def __init__(self, writer: CheckpointWriter) -> None:
        """Prepare a pool; `writer` stores for the run."""
        self.writer = writer
        self.futures = TaskFutures(writer, run_node)
        self.tickets = count()
        self.done: dict[int, Outcome] = {}
        """The outcomes of done tasks, by ticket; kept until a later `wait` leaves them out: a Ctrl-C that
        interrupts the return from `wait` loses nothing."""
        self.news: SimpleQueue[None] = SimpleQueue()

    def start(self, request: Start) -> int:
        """Start a task; return its ticket."""
        self.writer.share()
        ticket = next(self.tickets)
        future = self.futures.submit(ticket, request.task)
        future.add_done_callback(lambda _: self._mark_done(ticket, request.task))
        return ticket

    def _mark_done(self, ticket: int, task: Task) -> None:
        self.done[ticket] = self.futures.collect_outcome(ticket, task)
        self.news.put(None)

    def wait(self, request: Wait) -> dict[int, Outcome]:
        """Wait until at least one of several tasks is done; return the outcomes of all of them that are.

        Done tasks that are not among them are forgotten.
        """
        # The loop asks again for every ticket that it has not seen the outcome of. What it leaves out
        # has arrived. Three items run with the tickets 0, 1 and 2: the loop waits for (0, 1, 2) and gets
        # 1, records it, and waits for (0, 2). Only then is the outcome of 1 dropped: had a Ctrl-C hit the
        # return of the first wait, the second would have asked for (0, 1, 2) again and got it.
        tickets = request.tickets
        for ticket in self.done.keys() - tickets:
            del self.done[ticket]
        while not (done := self.done.keys() & tickets):
            self.news.get()
        return {ticket: self.done[ticket] for ticket in sorted(done)}


@final
class AsyncPool:
    """Runs the tasks of an async run: in the event loop if they are async, else on threads."""

    def __init__(self, writer: CheckpointWriter, cancellation: HeldCancellation) -> None:
        """Prepare a pool.

        Args:
            writer: stores for the run.
            cancellation: holds back a cancellation while a thread executes a node.
        """
        import asyncio  # 25 ms to import, and only async runs need it

        self.writer = writer
        self.cancellation = cancellation
        self.futures = TaskFutures(writer, call_action)
        self.tickets = count()
        self.running: dict[int, AsyncTask[Outcome]] = {}
        self.done: dict[int, Outcome] = {}
        """The outcomes of done tasks, by ticket, that `wait` has not returned yet."""
        self.news = asyncio.Event()

    async def run(self, task: Task) -> Any:
        """Run a task in this event loop if it is async, else on a thread."""
        if isinstance(task, Next):
            if isinstance(task.generator, AsyncGeneratorType):
                with executing(task.context):
                    return await anext(task.generator, Ended(None))
            return await self.cancellation.complete_in_thread(advance_generator, task)
        assert isinstance(task, RunNode)
        # `executing` in line: every step of an async run comes through here.
        token = CURRENT_NODE_CONTEXT.set(task.context)
        try:
            call = task.call.async_form or task.call
            if call.is_async:
                result = call.run(task.argument, task.config)
            else:
                result = await self.cancellation.complete_in_thread(call.run, task.argument, task.config)
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    async def start(self, request: Start) -> int:
        """Start a task; return its ticket."""
        import asyncio

        task = request.task
        if self.cancellation.error is not None:
            raise self.cancellation.error  # raised again where the running tasks are waited for
        if task.executor is not None:
            await self.writer.aflush()
        self.writer.share()
        ticket = next(self.tickets)
        has_async_form = isinstance(task, RunNode) and task.call.async_form is not None
        if task.executor is None and (is_async(task) or has_async_form):
            coroutine = self.run(task)
        else:
            coroutine = self._await_future(ticket, task, self.futures.submit(ticket, task))
        running = asyncio.ensure_future(_capture_outcome(coroutine))
        self.running[ticket] = running
        running.add_done_callback(partial(self._mark_done, ticket))
        return ticket

    def _mark_done(self, ticket: int, running: AsyncTask[Outcome]) -> None:
        from asyncio import CancelledError

        del self.running[ticket]
        # A task that was cancelled before it began has no outcome.
        self.done[ticket] = (None, CancelledError()) if running.cancelled() else running.result()
        self.news.set()

    async def wait(self, request: Wait) -> dict[int, Outcome]:
        """Wait until at least one of several tasks is done; return the outcomes of all of them that are.

        Raises:
            CancelledError: the run was cancelled. Its async tasks were cancelled too; the others
                have ended.
        """
        import asyncio

        cancelled = self.cancellation.take()
        if cancelled is not None:  # it arrived while something was being stored
            await self._cancel()
            raise cancelled
        while not (done := self.done.keys() & request.tickets):
            self.news.clear()
            try:
                await self.news.wait()
            except asyncio.CancelledError:
                await self._cancel()
                raise
        return {ticket: self.done.pop(ticket) for ticket in sorted(done)}

    async def _cancel(self) -> None:
        """Cancel async tasks and tasks that have not started, and wait for the others."""
        # Tasks with a future run on a thread or in another process. They cannot be cancelled once they
        # have started, and must not go on after the run has released its lock. The others are async
        # nodes, which stop at their next await.
        self.futures.withdraw(Withdraw(self.running))
        for ticket in self.running.keys() - self.futures.by_ticket.keys():
            self.running[ticket].cancel()
        await wait_until_done(*self.running.values())  # to be cancelled again changes nothing

    async def withdraw(self, request: Withdraw) -> None:
        """Cancel those of several tasks that have not started."""
        self.futures.withdraw(request)

    async def close_generator(self, request: Close) -> None:
        """Close a generator before its end."""
        if isinstance(request.generator, AsyncGeneratorType):
            await request.generator.aclose()
        else:
            await self.cancellation.complete_in_thread(close_generator, request)

    async def _await_future(self, ticket: int, task: Task, future: Future[Any]) -> Any:
        import asyncio

        # Not asyncio.wrap_future: it would log an error a second time, as never retrieved.
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
        while not done.is_set():
            # A closing event loop cancels this task, but the call must end first.
            with suppress(asyncio.CancelledError):
                await done.wait()
        result = unwrap_outcome(self.futures.collect_outcome(ticket, task))
        if not inspect.isawaitable(result):
            return result
        with executing(task.context):  # a sync function may return an awaitable
            return await result


def is_async(task: Task) -> bool:
    """Return whether a task runs in the event loop rather than on a thread."""
    if isinstance(task, RunNode):
        return task.call.is_async
    return isinstance(task, Next) and inspect.isasyncgen(task.generator)


async def _capture_outcome(awaitable: Awaitable[Any]) -> Outcome:
    try:
        return await awaitable, None
    except BaseException as error:  # noqa: BLE001 - raised again in the run
        return None, judge_cancellation(error)


# Other processes


def make_remote_task(history: RunHistory, task: RunNode) -> RunNode:
    """Return a task as it is sent to another process."""
    context = task.context
    config = history.config.replace(executor=None)
    opener = None
    checkpoint_config = None
    if history.saver is not None:
        # As code of the node would get it: so the saver knows which run locks its writes depend on.
        with executing(context):
            opener = history.saver.opener()
        if history.base is not None:
            checkpoint_config = config.with_check_point_id(history.base.id)
    writes = history.writes.copy()  # other branches record, from other threads too
    prefix = name_result(context, "")
    # Requests to the run are where the outermost run is stored.
    control = history.control
    control_opener = None if control.saver is None else control.saver.opener()
    control_config = control.config.replace(executor=None)
    mailboxes = [control_config.with_check_point_id(mailbox) for mailbox in control.mailboxes]
    journal = RemoteJournal(
        key=history.name_execution(context),
        results={name: value for name, value in writes.items() if name.startswith(prefix)},
        config=config,
        opener=opener,
        checkpoint_config=checkpoint_config,
        control_opener=control_opener,
        mailboxes=mailboxes,
    )
    remote_context = NodeContext(context.node_id, context.answers, frozenset(), context.key, journal)
    return RunNode(remote_context, None, task.call, task.argument, config)


@final
@dataclass(slots=True, kw_only=True)
class RemoteJournal(Journal):
    """The journal of a node execution in another process: it writes to the thread's log itself.

    The time is that of this process, for a clock of the run is in the run's process. The run passes outputs on when the
    node has finished.
    """

    key: str
    """The idempotency key of the node execution."""
    results: dict[str, Any]
    """The results of `once` that the run knows, by the names of their pending writes; and all pending writes that were
    found since."""
    config: RunnableConfig
    """The config of the run."""
    opener: OpenSaver | None
    """Opens the run's saver; None if that cannot be done in another process."""
    checkpoint_config: RunnableConfig | None
    """Names the checkpoint at which results are recorded; None if there is no saver."""
    control_opener: OpenSaver | None
    """The same as `opener`, for the saver of the outermost run."""
    mailboxes: Sequence[RunnableConfig]
    """Where requests to the run are. The run is at its position until the node is done, so that they stay."""
    next_look: float = 0.0
    was_cancelled: bool = False
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The types and data of the events that it has posted."""

    def idempotency_key(self, _context: NodeContext) -> str:
        """Return the name that the run has given to the node execution."""
        return self.key

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        """Return whether a result is recorded under a key, and the result.

        The thread's log may have results that the run did not know: a cluster whose worker has died
        sends the same call to another worker.
        """
        name = name_result(context, key)
        if name not in self.results and self.checkpoint_config is not None:
            if self.opener is None:  # raised before the side effect, not after it
                raise GraphRunnerError(
                    f"once({key!r}) runs in another process, which cannot open the run's saver: "
                    f"use a FileSystemSaver, or run the node on threads"
                )
            self.results.update(self.opener().get_writes(self.checkpoint_config))
        return name in self.results, self.results.get(name)

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        """Record a result in the thread's log from this process."""
        name = name_result(context, key)
        if self.checkpoint_config is not None and self.opener is not None:
            self.opener().put_writes(self.checkpoint_config, {name: value})
        self.results[name] = value
        return value

    def is_cancelled(self) -> bool:
        """Return whether the run was asked to end as cancelled; looks at most every `LOOK_INTERVAL` seconds."""
        if self.control_opener is not None and not self.was_cancelled and monotonic() >= self.next_look:
            self.next_look = monotonic() + LOOK_INTERVAL
            saver = self.control_opener()
            self.was_cancelled = any(saver.get_writes(config).get(CANCEL_REQUEST) for config in self.mailboxes)
        return self.was_cancelled

    def post_event(self, _context: NodeContext, type: str, data: dict[str, Any]) -> None:
        """Keep an event; the run posts it when the node has finished."""
        self.events.append((type, data))


def perform(task: RunNode) -> TaskOutcome:
    """Run a node's action in the worker process; never raises."""
    context = task.context
    journal = context.journal
    assert isinstance(journal, RemoteJournal)
    result: Any = None
    error: BaseException | None = None
    try:
        with executing(context):
            returned = task.call.run(task.argument, task.config)
            if returned.__class__ is GeneratorType:
                chunks = [next_chunk(returned)]
                while not isinstance(chunks[-1], Ended):
                    chunks.append(next_chunk(returned))
                returned = Collected(chunks)
            result = returned  # not before: a generator that failed cannot be sent back
    except (Exception, GraphInterrupt) as raised:  # noqa: BLE001 - raised again in the run
        raised.add_note(f"In process {os.getpid()}:\n{''.join(traceback.format_exception(raised))}")
        error = raised
        # An error that cannot be pickled is replaced with one of the same text.
        import pickle  # 2 ms, and only a worker needs it

        try:
            pickle.loads(pickle.dumps(raised))  # noqa: S301 - its own bytes
        except Exception:  # noqa: BLE001 - pickling may raise anything
            error = RuntimeError(describe_error(raised))
            error.__notes__ = raised.__notes__
    left = copy(context)  # threads that the node has left behind keep the journal
    left.journal = NO_JOURNAL
    return TaskOutcome(result=result, error=error, context=left, events=journal.events)
