"""SyncDriver: answers the requests of a run with calls. All I/O of a run happens here or above."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from time import perf_counter, time_ns
from typing import Any, Final

from graphkit._engine.checkpoint_writer import CheckpointWriter
from graphkit._engine.driver_locks import DriverLocks
from graphkit._engine.loop import Run
from graphkit._engine.requests import (
    Ask,
    Clock,
    Close,
    Discard,
    Emit,
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
    Wait,
    Withdraw,
)
from graphkit._engine.task_pool import (
    NEVER_AWAITABLE,
    TaskPool,
    ThreadPool,
    advance_generator,
    refuse_awaitable,
    run_node,
)
from graphkit._engine.update import Update
from graphkit._plan.events import EVENTS, Level, Outbox
from graphkit._records.checkpoint import make_id
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import NodeOutput
from graphkit._wording import describe_error
from graphkit.errors import CheckpointerError

Steps = Generator[Request, Any, Any]
_CLOCK: Final = Clock(now=time_ns, measure=perf_counter, new_id=make_id)
_LOG: Final = logging.getLogger("graphkit.engine")


class SyncDriver:
    """Answers the requests of one run with calls, and holds its run locks.

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
        self.thread_pool: ThreadPool | None = None
        self.pools: list[TaskPool] = []
        """The pools that were made; without one, no tasks run concurrently."""
        self.store_lock = threading.RLock()
        """Held to store: the run and the threads of its nodes store one at a time."""
        self.last_save: Save | None = None
        """The last save that was made after a pool was."""
        self.outside_context = self._make_outside_context()
        """The context in which edges, hooks and releases run: outside any node."""
        history.attach(self.locks.held_keys, self.perform, _CLOCK)

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
        return self._threads().run(task)

    def _ask(self, request: Ask) -> Any:
        call = request.call
        # `_call_outside` and `arguments_of`, in line for the edges that a run evaluates.
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
        token = CURRENT_NODE_CONTEXT.set(self.outside_context)
        try:
            return call(*arguments)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    def _make_outside_context(self) -> NodeContext:
        return NodeContext("", (), self.locks.held_keys, journal=self.run.history)

    def _threads(self) -> ThreadPool:
        if self.thread_pool is None:
            self.thread_pool = ThreadPool(self.writer.flush)
            self.pools.append(self.thread_pool)
        return self.thread_pool

    def _start_task(self, request: Start) -> int:
        return self._threads().start(request.task)

    def _wait(self, request: Wait) -> Any:
        return self._threads().wait(request.tickets)

    def _withdraw(self, request: Withdraw) -> None:
        self._threads().withdraw(request.tickets)

    # The saver

    def _save(self, request: Save) -> Any:
        if not self.pools:
            return self.writer.save(request)
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

    # Start and end

    def _open(self) -> None:
        """Start the observers' threads, and take the run lock."""
        observers: Any = self.run.history.program.options.observers
        if observers:
            self.outbox = Outbox(observers)
            self.run.history.reporter.post = self.outbox.post
        self.locks.acquire()

    def _close(self) -> None:
        """End all threads, store what waits, and release the run locks."""
        try:
            for pool in self.pools:
                pool.close()
            if self.was_closed:
                self.writer.flush()  # no later request would raise what could not be stored
        finally:
            self.writer.close()
            self.locks.release()
            if self.outbox is not None:
                self.outbox.close()

    def _post_event(self, type: str, data: Mapping[str, Any]) -> None:
        level = Level.WARNING if "error" in data else Level.INFO
        reporter = self.run.history.reporter
        reporter.post_event(type, None, data, level=max(EVENTS[type].level, level))


# A table by type: a chain of ifs would be evaluated at each step.
_ANSWERS: Final[Mapping[type, Callable[[SyncDriver, Any], Any]]] = {
    RunNode: SyncDriver._run_node,  # noqa: SLF001 - its own table
    Next: lambda _, task: advance_generator(task),
    Ask: SyncDriver._ask,  # noqa: SLF001
    Save: SyncDriver._save,  # noqa: SLF001
    Record: SyncDriver._record,  # noqa: SLF001
    Load: SyncDriver._load,  # noqa: SLF001
    LoadWrites: SyncDriver._load_writes,  # noqa: SLF001
    Start: SyncDriver._start_task,  # noqa: SLF001
    Wait: SyncDriver._wait,  # noqa: SLF001
    Withdraw: SyncDriver._withdraw,  # noqa: SLF001
    Close: lambda _, request: request.generator.close(),
    Hold: SyncDriver._hold,  # noqa: SLF001
    Finish: SyncDriver._finish,  # noqa: SLF001
    Release: SyncDriver._release,  # noqa: SLF001
    Discard: SyncDriver._discard,  # noqa: SLF001
}


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
