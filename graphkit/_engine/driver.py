"""Driver: answers the requests of a run, with calls (`drive`) or with awaits (`adrive`).

All I/O of a run happens here or above. The loop is the same for both. What may block an event loop
runs in a thread if the saver or the node has no async form of its own.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from functools import partial
from time import perf_counter, time_ns
from types import AsyncGeneratorType
from typing import Any, Final, NamedTuple, final

from graphkit._engine.checkpoint_writer import CheckpointWriter, describe_write
from graphkit._engine.driver_locks import DriverLocks
from graphkit._engine.loop import Run
from graphkit._engine.requests import (
    Ask,
    Clock,
    Close,
    Discard,
    Emit,
    Ended,
    Finish,
    Hold,
    Load,
    LoadWrites,
    Next,
    Record,
    Release,
    Request,
    RunNode,
    Save,
    Start,
    Stop,
    Task,
    Wait,
    Withdraw,
)
from graphkit._engine.tasks import (
    NEVER_AWAITABLE,
    AsyncPool,
    TaskPool,
    ThreadPool,
    advance_generator,
    executing,
    refuse_awaitable,
    run_node,
)
from graphkit._engine.update import Update
from graphkit._plan.events import EVENTS, Level, Outbox
from graphkit._records.checkpoint import make_id
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import NodeOutput
from graphkit._to_thread import run_in_thread, wait_until_done
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError

Steps = Generator[Request, Any, Any]
CLOCK: Final = Clock(now=time_ns, measure=perf_counter, new_id=make_id)
"""The clock of every run."""
_BOUNDARIES: Final = frozenset({Emit, RunNode})
"""The requests at which a cancelled run stops: everything before them is stored."""
_LOG: Final = logging.getLogger("graphkit.engine")


@final
class Driver:
    """Answers the requests of one run, and holds its run locks.

    A driver is used once, with `drive` or with `adrive`. In an async run, the threads of sync nodes
    answer their own requests with calls, see `perform`.

    Attributes:
        result: what the loop returned, once it has ended.
    """

    def __init__(
        self,
        run: Run | Update,
        *,
        active_runs: dict[int, Any] | None = None,
    ) -> None:
        """Prepare to drive a run, or an update.

        Args:
            run: the run or update; a node may make an update of its own thread.
            active_runs: where the run is registered by its id() while it is under way.

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        history = run.history
        is_run = isinstance(run, Run)
        self.run = run
        self.active_runs = {} if active_runs is None else active_runs
        self.locks = DriverLocks(history.saver, history.config, is_run=is_run)
        self.result: Any = None
        self.was_closed = False
        """Whether the caller closed the stream."""
        self.writer = CheckpointWriter(history.program.options, self._post_event, is_update=not is_run)
        self.outbox: Outbox | None = None
        self.pool: TaskPool | None = None
        """The concurrent tasks; None as long as there were none."""
        self.cancelled: BaseException | None = None
        """A cancellation that arrived while a call had to be waited for."""
        self.store_lock = threading.RLock()
        """Held to store: the run and the threads of its nodes store one at a time."""
        self.last_save: Save | None = None
        """The last save that was made after a pool was."""
        self.outside_context = self._make_outside_context()
        """The context in which edges, hooks and releases run: outside any node."""
        history.attach(self.locks.held_keys, self.perform, CLOCK)

    def drive(self, steps: Steps) -> Iterator[NodeOutput]:
        """Run to the end and yield the outputs.

        Closing the iterator stops the run at this node boundary, with everything stored.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            self._open()
            self.active_runs[id(self.run)] = self.run
            # `_next_request` and `_answer` in line: two calls for each of the three or four requests
            # of a step would be 5 % of it.
            answers = _ANSWERS
            while True:
                try:
                    request = steps.send(answer) if error is None else steps.throw(error)
                except StopIteration as end:
                    self.result = end.value
                    break
                except Stop:
                    self.was_closed = True
                    break
                answer = None
                error = None
                if request.__class__ is Emit:
                    try:
                        yield request.output
                    except GeneratorExit:
                        error = Stop()
                    except BaseException as thrown:  # noqa: BLE001 - the caller's own, returned to it
                        error = thrown
                else:
                    try:
                        answer = answers[request.__class__](self, request)
                    except BaseException as raised:  # noqa: BLE001 - the loop handles it
                        error = raised
        finally:
            del error  # its traceback refers to this frame
            self.active_runs.pop(id(self.run), None)
            self._close()

    async def adrive(self, steps: Steps) -> AsyncIterator[NodeOutput]:
        """Run to the end and yield the outputs, as `drive` does.

        If the asyncio task is cancelled, the run stops at a node boundary too. An async node is
        cancelled as well, and counts as never run. What cannot be cancelled (a node in a thread, a
        put) is waited for, because it must not go on after the run lock is released. The cancellation
        then takes effect after its step.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            await self._aopen()
            self.active_runs[id(self.run)] = self.run
            while (request := self._next_request(steps, answer, error)) is not None:
                answer = None
                error = None
                if request.__class__ in _BOUNDARIES:
                    error = self._take_cancellation()
                    if error is not None:
                        continue
                if request.__class__ is Emit:
                    try:
                        yield request.output
                    except GeneratorExit:
                        error = Stop()
                    except BaseException as thrown:  # noqa: BLE001 - the caller's own, returned to it
                        error = thrown
                else:
                    try:
                        answer = await self._aanswer(request)
                    except BaseException as raised:  # noqa: BLE001 - the loop handles it
                        error = raised
        finally:
            del error  # its traceback refers to this frame
            self.active_runs.pop(id(self.run), None)
            await self._aclose()

    def _next_request(self, steps: Steps, answer: Any, error: BaseException | None) -> Request | None:
        """Return the next request of the loop; None once it has ended."""
        try:
            if error is None:
                return steps.send(answer)
            return steps.throw(error)
        except StopIteration as end:
            self.result = end.value
        except Stop:
            self.was_closed = True
        return None

    def _answer(self, request: Request) -> Any:
        return _ANSWERS[request.__class__](self, request)

    async def _aanswer(self, request: Request) -> Any:
        answer = _ASYNC_ANSWERS[request.__class__]
        if answer is not None:
            return await answer(self, request)
        # The others wait for a disk or a lock.
        return await self._complete(run_in_thread(self._answer, request))

    def perform(self, steps: Steps) -> None:
        """Answer the requests of a generator on the calling thread; `once` records results so."""
        answer = None
        with self.store_lock:
            try:
                while True:
                    answer = self._answer(steps.send(answer))
            except StopIteration:
                self.writer.flush()

    # Calls of user code

    def _run_node(self, task: RunNode) -> Any:
        if task.executor is None:
            return run_node(task)
        return self._thread_pool().run(task)

    async def _arun_task(self, task: Task) -> Any:
        if task.executor is None:
            return await self._arun(task)
        return await self._async_pool().run(task, self._arun)

    async def _arun(self, task: Task) -> Any:
        """Run a task in the event loop if it is async, else on a thread."""
        if isinstance(task, Next):
            if isinstance(task.generator, AsyncGeneratorType):
                return await _advance_async_generator(task)
            return await self._complete(run_in_thread(advance_generator, task))
        assert isinstance(task, RunNode)
        # `executing` in line: every step of an async run comes through here.
        token = CURRENT_NODE_CONTEXT.set(task.context)
        try:
            call = task.call.async_form or task.call
            if call.is_async:
                result = call.run(task.argument, task.config)
            else:
                result = await self._complete(run_in_thread(call.run, task.argument, task.config))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    def _ask(self, request: Ask) -> Any:
        call = request.call
        # `executing` and `arguments_of`, in line for the edges that a run evaluates.
        token = CURRENT_NODE_CONTEXT.set(self.outside_context)
        try:
            arguments = request.arguments if call.takes_config else request.arguments[:-1]
            result = call.function(*arguments)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)
        if result.__class__ in NEVER_AWAITABLE:
            return result
        return refuse_awaitable(result, None)

    def _call_outside(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call outside any node."""
        with executing(self.outside_context):
            return call(*arguments)

    def _make_outside_context(self) -> NodeContext:
        return NodeContext("", (), self.locks.held_keys, journal=self.run.history)

    async def _aask(self, request: Ask) -> Any:
        with executing(self.outside_context):
            result = request.call.function(*arguments_of(request))
            return await result if inspect.isawaitable(result) else result

    def _close_generator(self, request: Close) -> None:
        request.generator.close()

    async def _aclose_generator(self, request: Close) -> None:
        if isinstance(request.generator, AsyncGeneratorType):
            await request.generator.aclose()
        else:
            await run_in_thread(request.generator.close)

    # Concurrent tasks

    def _thread_pool(self) -> ThreadPool:
        if self.pool is None:
            self.pool = ThreadPool(self.writer.flush)
        assert isinstance(self.pool, ThreadPool)
        return self.pool

    def _async_pool(self) -> AsyncPool:
        if self.pool is None:
            self.pool = AsyncPool(self.writer.flush)
        assert isinstance(self.pool, AsyncPool)
        return self.pool

    def _start_task(self, request: Start) -> int:
        return self._thread_pool().start(request.task)

    def _wait(self, request: Wait) -> Any:
        return self._thread_pool().wait(request.tickets)

    def _withdraw(self, request: Withdraw) -> None:
        self._thread_pool().withdraw(request.tickets)

    async def _astart_task(self, request: Start) -> int:
        if self.cancelled is not None:
            raise self.cancelled  # raised again where the running tasks are waited for
        if request.task.executor is not None:
            await self._aflush()
        return self._async_pool().start(request.task, self._arun)

    async def _await_tasks(self, request: Wait) -> Any:
        cancelled = self._take_cancellation()
        if cancelled is not None:  # it arrived while something was being stored
            await self._async_pool().cancel()
            raise cancelled
        return await self._async_pool().wait(request.tickets)

    async def _awithdraw(self, request: Withdraw) -> None:
        self._async_pool().withdraw(request.tickets)

    # The saver

    def _save(self, request: Save) -> Any:
        if self.pool is None:
            return self.writer.save(request)
        # A node's thread stores the position when it records something, at the same time as the loop
        # may do so. Both have made a checkpoint of it; the second one gets that of the first.
        with self.store_lock:
            if self.last_save is not None and _is_same_save(self.last_save, request):
                return self.last_save.checkpoint  # another thread has stored it since
            checkpoint = self.writer.save(request)
            self.last_save = None if checkpoint is None else request
            return checkpoint

    def _record(self, request: Record) -> None:
        with self.store_lock:
            self.writer.record(request)

    def _load(self, request: Load) -> Any:
        self.writer.flush()
        return request.saver.get(request.config)

    def _load_writes(self, request: LoadWrites) -> Any:
        self.writer.flush()
        return request.saver.get_writes(request.config)

    def _hold(self, request: Hold) -> None:
        if self.locks.acquire_another(request.saver, request.config):
            self.outside_context = self._make_outside_context()

    def _release(self, request: Release) -> None:
        self.writer.flush()
        self._call_outside(request.saver.release, request.config)

    def _discard(self, request: Discard) -> None:
        self.writer.flush()
        try:
            self._call_outside(request.saver.delete, request.config)
        except (CheckpointerError, OSError) as error:
            # The run has succeeded; a thread that is left over must not cost its result.
            self._post_event("checkpoint.delete", {"error": describe_error(error)})
            _LOG.warning("thread %r could not be deleted after its run: %s", request.config.thread, error)
        else:
            self._post_event("checkpoint.delete", {})

    def _finish(self, _request: Finish) -> None:
        self.writer.flush()
        self.locks.release()

    async def _asave(self, request: Save) -> Any:
        # With a queue or with concurrent tasks, other threads store too: they share the lock and the
        # order of `_save`, which may block. Otherwise the saver's own async form is used.
        if self.writer.queue is not None or self.pool is not None:
            return await self._complete(run_in_thread(self._save, request))
        put = partial(request.saver.aput, request.config, request.checkpoint)
        return request.checkpoint if await self._awrite(put, request) else None

    async def _arecord(self, request: Record) -> None:
        if self.writer.queue is not None or self.pool is not None:
            await self._complete(run_in_thread(self._record, request))
            return
        await self._awrite(partial(request.saver.aput_writes, request.config, request.writes), request)

    async def _awrite(self, put: Callable[[], Coroutine[Any, Any, Any]], request: Save | Record) -> bool:
        """Await a put; return False if it failed and the run goes on."""
        try:
            await self._complete(put())
        except (CheckpointerError, OSError) as error:
            self.writer.handle_failure(error, describe_write(request))
            return False
        return True

    async def _aload(self, request: Load) -> Any:
        await self._aflush()
        return await request.saver.aget(request.config)

    async def _aload_writes(self, request: LoadWrites) -> Any:
        await self._aflush()
        return await request.saver.aget_writes(request.config)

    async def _aflush(self) -> None:
        if self.writer.queue is not None:
            await self._complete(run_in_thread(self.writer.flush))

    # Start and end

    def _open(self) -> None:
        """Start the observers' threads, and take the run lock."""
        observers: Any = self.run.history.program.options.observers
        if observers:
            # Now, and not when the run was made: the observers' threads live as long as the run does.
            self.outbox = Outbox(observers)
            self.run.history.reporter.post = self.outbox.post
        self.locks.acquire()

    def _close(self) -> None:
        """End all threads, store what waits, and release the run locks."""
        try:
            if self.pool is not None:
                self.pool.close()
            if self.was_closed:
                self.writer.flush()  # no later request would raise what could not be stored
        finally:
            self.writer.close()
            self.locks.release()
            if self.outbox is not None:
                self.outbox.close()

    async def _aopen(self) -> None:
        if self.locks.must_acquire or self.run.history.program.options.observers:
            await self._complete(run_in_thread(self._open))
            self._raise_cancellation()

    async def _aclose(self) -> None:
        has_threads = self.outbox is not None or self.pool is not None or self.writer.queue is not None
        if self.locks.is_held or has_threads:
            await self._complete(run_in_thread(self._close))
        self._raise_cancellation()

    def _post_event(self, type: str, data: Mapping[str, Any]) -> None:
        level = Level.WARNING if "error" in data else Level.INFO
        reporter = self.run.history.reporter
        reporter.post_event(type, None, data, level=max(EVENTS[type].level, level))

    # Cancellation

    async def _complete(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call that must not be left half done; keep a cancellation in `cancelled`."""
        import asyncio

        task = asyncio.ensure_future(call)
        self.cancelled = await wait_until_done((task,)) or self.cancelled
        return task.result()

    def _take_cancellation(self) -> BaseException | None:
        """Return the kept cancellation, and forget it."""
        cancelled = self.cancelled
        self.cancelled = None
        return cancelled

    def _raise_cancellation(self) -> None:
        cancelled = self._take_cancellation()
        if cancelled is not None:
            raise cancelled


class _Answers(NamedTuple):
    """The methods that answer one kind of request."""

    call: Callable[[Driver, Any], Any]
    wait: Callable[[Driver, Any], Coroutine[Any, Any, Any]] | None = None
    """For async runs; None: the call is made in a thread, because it waits for a disk or a lock."""


# By type: a chain of ifs would be evaluated at each step.
# ruff: noqa: SLF001 - its own table
_TABLE: Final[Mapping[type, _Answers]] = {
    RunNode: _Answers(Driver._run_node, Driver._arun_task),
    Next: _Answers(lambda _, task: advance_generator(task), Driver._arun_task),
    Ask: _Answers(Driver._ask, Driver._aask),
    Save: _Answers(Driver._save, Driver._asave),
    Record: _Answers(Driver._record, Driver._arecord),
    Load: _Answers(Driver._load, Driver._aload),
    LoadWrites: _Answers(Driver._load_writes, Driver._aload_writes),
    Start: _Answers(Driver._start_task, Driver._astart_task),
    Wait: _Answers(Driver._wait, Driver._await_tasks),
    Withdraw: _Answers(Driver._withdraw, Driver._awithdraw),
    Close: _Answers(Driver._close_generator, Driver._aclose_generator),
    Hold: _Answers(Driver._hold),
    Finish: _Answers(Driver._finish),
    Release: _Answers(Driver._release),
    Discard: _Answers(Driver._discard),
}
_ANSWERS: Final = {kind: answers.call for kind, answers in _TABLE.items()}
_ASYNC_ANSWERS: Final = {kind: answers.wait for kind, answers in _TABLE.items()}


def arguments_of(request: Ask) -> tuple[Any, ...]:
    """Return the arguments of a call; the config comes last, for those that take it."""
    if request.call.takes_config:
        return request.arguments
    return request.arguments[:-1]


def _is_same_save(one: Save, other: Save) -> bool:
    """Return whether two threads of one run have asked to store the same position.

    A position has one parent. The metadata distinguish executions of a nested graph, each of which
    begins without a parent.
    """
    return (one.saver, one.config, one.checkpoint.parent_id, one.checkpoint.metadata) == (
        other.saver,
        other.config,
        other.checkpoint.parent_id,
        other.checkpoint.metadata,
    )


async def _advance_async_generator(task: Next) -> Any:
    with executing(task.context):
        try:
            return await anext(task.generator)
        except StopAsyncIteration:
            return Ended(None)
