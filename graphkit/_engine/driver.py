"""The two drivers: they answer what the loop asks, with calls or with awaits. Everything that is I/O happens here."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from time import perf_counter
from types import AsyncGeneratorType
from typing import Any, Final

from graphkit._engine.call_kinds import outcome_of, settled
from graphkit._engine.checkpoint_writer import CheckpointWriter, checkpoint_of, what
from graphkit._engine.cursor import GraphCursor
from graphkit._engine.requests import (
    Ask,
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
from graphkit._engine.task_pool import AsyncPool, ThreadPool, advance, refuse_awaitable, run_node
from graphkit._plan.events import EVENTS, Level, Outbox
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import NodeOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.run_lock import find_held_lock, locks_held_by_runs
from graphkit.errors import CheckpointerError, GraphRunnerError

Steps = Generator[Request, Any, Any]
_BOUNDARIES: Final = frozenset({Emit, RunNode})
"""Where a cancelled run stops: everything before it is stored."""
_LOG: Final = logging.getLogger("graphkit.engine")


class Driver:
    """Answers the requests of one run, and holds its run locks.

    Attributes:
        result: what the loop returned, once it has ended.
    """

    def __init__(
        self, walk: GraphCursor, *, runs_nodes: bool = True, active_runs: dict[int, Any] | None = None
    ) -> None:
        """Prepare a run, or (`runs_nodes` false) an update, which a node may make of its own thread.

        Args:
            walk: what is driven.
            runs_nodes: whether it is a run.
            active_runs: where it is to be found while it is under way, by its id().

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        self.walk = walk
        self.active_runs = {} if active_runs is None else active_runs
        self.config = walk.config
        self.locks: list[AbstractContextManager[object]] = []
        self.first: AbstractContextManager[object] | None = None
        self.held = locks_held_by_runs()
        """The run locks that this run holds, and those of the runs around it."""
        self.result: Any = None
        self.was_closed = False
        self.cancelled: BaseException | None = None
        """A cancellation that came while something was to be waited for."""
        self.storing = CheckpointWriter(walk.options, self._tell, is_update=not runs_nodes)
        self.outbox: Outbox | None = None
        self.threads: ThreadPool | None = None
        self.loops: AsyncPool | None = None
        self.guard = threading.RLock()
        """One at a time stores: the run, or one of the threads of its nodes."""
        self.saved: tuple[Save, Checkpoint] | None = None
        """The last that was stored while nodes ran beside each other."""
        saver = walk.saver
        if saver is not None:
            key = saver.run_lock_key(self.config)
            place = (key, self.config.checkpoint_ns)
            if runs_nodes and place in self.held:
                raise GraphRunnerError(
                    f"thread {self.config.thread!r} is running this node: a node cannot run its own thread again; "
                    f"use another thread_id",
                    thread_id=self.config.thread,
                )
            self.first = saver.run_lock(self.config)
            hold = find_held_lock(key)
            if hold is not None:
                self.first = _one_after_the_other(
                    self.first, hold.serialize_runs(self.config.thread, _timeout_of(saver))
                )
            self.held |= {key, place}
        self.nobody = NodeContext("", (), self.held, journal=walk.journal)
        """As whom edges and hooks are asked, and releases done: as no node, least of all one that runs this graph."""
        walk.attach(self.held, self.perform, perf_counter)

    # Synchronous

    def drive(self, steps: Steps) -> Iterator[NodeOutput]:
        """Run to the end, handing out the outputs. Closing it stops at this node boundary, everything saved."""
        answer: Any = None
        error: BaseException | None = None
        try:
            self._enter()
            self.active_runs[id(self.walk)] = self.walk
            while (request := self._ask(steps, answer, error)) is not None:
                answer = error = None
                if request.__class__ is Emit:
                    try:
                        yield request.output
                    except GeneratorExit:
                        error = Stop()
                    except BaseException as thrown:  # noqa: BLE001 - the caller's own, which comes back to it
                        error = thrown
                else:
                    try:
                        answer = self._answer(request)
                    except BaseException as raised:  # noqa: BLE001 - the loop decides what becomes of it
                        error = raised
        finally:
            del error  # its traceback refers to this frame
            self.active_runs.pop(id(self.walk), None)
            self._leave()

    def _ask(self, steps: Steps, answer: Any, error: BaseException | None) -> Request | None:
        """What the loop asks for next; None once it has ended."""
        try:
            return steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            self.result = end.value
        except Stop:
            self.was_closed = True
        return None

    def _answer(self, request: Request) -> Any:
        return _ANSWERS[request.__class__](self, request)

    def _run_node(self, task: RunNode) -> Any:
        return run_node(task) if task.executor is None else self._threads().run(task)

    def _ask_user(self, request: Ask) -> Any:
        return refuse_awaitable(self._as_nobody(request.call.function, *_arguments(request)), None)

    def _as_nobody(self, call: Callable[..., Any], *arguments: Any) -> Any:
        token = CURRENT_NODE_CONTEXT.set(self.nobody)
        try:
            return call(*arguments)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    def _save(self, request: Save) -> Any:
        if self.threads is None and self.loops is None:
            return self.storing.save(request)
        with self.guard:
            if self.saved is not None and _is_same(self.saved[0], request):
                return self.saved[1]  # another thread came first, after this was asked for
            checkpoint = self.storing.save(request)
            self.saved = None if checkpoint is None else (request, checkpoint)
            return checkpoint

    def _record(self, request: Record) -> None:
        with self.guard:
            self.storing.record(request)

    def _load(self, request: Load) -> Any:
        self.storing.flush()
        return request.saver.get(request.config)

    def _load_writes(self, request: LoadWrites) -> Any:
        self.storing.flush()
        return request.saver.get_writes(request.config)

    def _finish(self, _request: Finish) -> None:
        self.storing.flush()
        self._let_go()

    def _release(self, request: Release) -> None:
        self.storing.flush()
        self._as_nobody(request.saver.release, request.config)

    def _discard(self, request: Discard) -> None:
        self.storing.flush()
        try:
            self._as_nobody(request.saver.delete, request.config)
        except (CheckpointerError, OSError) as error:
            # The run has ended well, and its result is not to be lost over what it leaves behind.
            self._tell("checkpoint.delete", {"error": f"{type(error).__name__}: {error}"})
            _LOG.warning("thread %r could not be deleted after its run: %s", request.config.thread, error)
        else:
            self._tell("checkpoint.delete", {})

    def perform(self, steps: Steps) -> None:
        """Answer what a node asks for itself, on its thread: `once` records a result so."""
        answer = None
        with self.guard:
            try:
                while True:
                    answer = self._answer(steps.send(answer))
            except StopIteration:
                self.storing.flush()

    def _threads(self) -> ThreadPool:
        if self.threads is None:
            self.threads = ThreadPool(self.storing.flush)
        return self.threads

    # Locks and ends

    def _enter(self) -> None:
        observers: Any = self.walk.options.observers
        if observers:
            self.outbox = Outbox(observers)
            self.walk.post = self.outbox.post
        if self.first is not None:
            self._lock(self.first)

    def _hold(self, request: Hold) -> None:
        key = request.saver.run_lock_key(request.config)
        if key in self.held:
            return
        self._lock(request.saver.run_lock(request.config))
        self.held |= {key}
        self.nobody = NodeContext("", (), self.held, journal=self.walk.journal)

    def _lock(self, lock: AbstractContextManager[object]) -> None:
        # In a context of its own: the run holds the lock, not the code that goes through its stream.
        copy_context().run(lock.__enter__)
        self.locks.append(lock)

    def _let_go(self) -> None:
        while self.locks:
            self.locks.pop().__exit__(None, None, None)

    def _leave(self) -> None:
        try:
            for bench in (self.threads, self.loops):
                if bench is not None:
                    bench.close()
            if self.was_closed:
                self.storing.flush()  # nobody else would hear of what is not stored
        finally:
            self.storing.close()
            self._let_go()
            if self.outbox is not None:
                self.outbox.close()

    def _tell(self, type: str, data: Mapping[str, Any]) -> None:
        level = max(EVENTS[type].level, Level.WARNING if "error" in data else Level.INFO)
        self.walk.post_event(type, level, None, **data)

    # Asynchronous: the same, with awaits. What may block runs in a thread.

    async def adrive(self, steps: Steps) -> AsyncIterator[NodeOutput]:
        """As `drive`. A cancelled task stops at a node boundary too.

        An asynchronous node is cancelled, and was then never run. What cannot be cancelled (a node in a thread, a put)
        is waited for, for it must not go on once the lock is free; the cancellation comes after its step.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            await self._aenter()
            self.active_runs[id(self.walk)] = self.walk
            while (request := self._ask(steps, answer, error)) is not None:
                answer, error = None, self._cancellation() if request.__class__ in _BOUNDARIES else None
                if error is not None:
                    continue
                if request.__class__ is Emit:
                    try:
                        yield request.output
                    except GeneratorExit:
                        error = Stop()
                    except BaseException as thrown:  # noqa: BLE001
                        error = thrown
                else:
                    try:
                        answer = await self._aanswer(request)
                    except BaseException as raised:  # noqa: BLE001 - the loop decides what becomes of it
                        error = raised
        finally:
            del error
            self.active_runs.pop(id(self.walk), None)
            await self._aleave()

    async def _aenter(self) -> None:
        if self.first is not None or self.walk.options.observers:
            await self._to_its_end(_in_thread(self._enter))
            self._raise_cancellation()

    async def _aleave(self) -> None:
        if self.locks or self.outbox or self.threads or self.loops or self.storing.line:
            await self._to_its_end(_in_thread(self._leave))
        self._raise_cancellation()

    async def _aanswer(self, request: Request) -> Any:
        answer = _AANSWERS.get(request.__class__)
        if answer is not None:
            return await answer(self, request)
        # What waits for a disk or a lock.
        return await self._to_its_end(_in_thread(self._answer, request))

    async def _arun_where(self, task: Task) -> Any:
        return await (self._arun(task) if task.executor is None else self._loops().run(task, self._arun))

    async def _aask_user(self, request: Ask) -> Any:
        token = CURRENT_NODE_CONTEXT.set(self.nobody)
        try:
            result = request.call.function(*_arguments(request))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    async def _astart(self, request: Start) -> int:
        if self.cancelled is not None:
            raise self.cancelled  # again where what runs is waited for
        if request.task.executor is not None:
            await self._aflush()
        return self._loops().start(request.task, self._arun)

    async def _await(self, request: Wait) -> Any:
        late = self._cancellation()
        if late is not None:  # it came while something was stored
            await self._loops().cancel()
            raise late
        return await self._loops().wait(request.tickets)

    async def _awithdraw(self, request: Withdraw) -> None:
        self._loops().withdraw(request.tickets)

    async def _arun(self, task: Task) -> Any:
        if task.__class__ is Next:
            if isinstance(task.generator, AsyncGeneratorType):
                return await _aadvanced(task)
            return await self._to_its_end(_in_thread(advance, task))
        assert isinstance(task, RunNode)
        token = CURRENT_NODE_CONTEXT.set(task.context)
        try:
            if task.call.is_async:
                result = task.call.run(task.argument, task.config)
            else:
                result = await self._to_its_end(_in_thread(task.call.run, task.argument, task.config))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    async def _aload(self, request: Load) -> Any:
        await self._aflush()
        return await request.saver.aget(request.config)

    async def _aload_writes(self, request: LoadWrites) -> Any:
        await self._aflush()
        return await request.saver.aget_writes(request.config)

    async def _aflush(self) -> None:
        if self.storing.line is not None:
            await self._to_its_end(_in_thread(self.storing.flush))

    async def _asave(self, request: Save) -> Any:
        if self.storing.line is not None or self.loops is not None:
            return await self._to_its_end(_in_thread(self._save, request))
        checkpoint = checkpoint_of(request)
        try:
            await self._to_its_end(request.saver.aput(request.config, checkpoint))
        except (CheckpointerError, OSError) as error:
            self.storing.failed(error, what(request))
            return None
        return checkpoint

    async def _arecord(self, request: Record) -> None:
        if self.storing.line is not None or self.loops is not None:
            await self._to_its_end(_in_thread(self._record, request))
            return
        try:
            await self._to_its_end(request.saver.aput_writes(request.config, request.writes))
        except (CheckpointerError, OSError) as error:
            self.storing.failed(error, what(request))

    def _loops(self) -> AsyncPool:
        if self.loops is None:
            self.loops = AsyncPool(self.storing.flush)
        return self.loops

    async def _to_its_end(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """Await what must not be left half done; a cancellation waits in `cancelled`."""
        import asyncio

        task = asyncio.ensure_future(doing)
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
        return task.result()

    def _raise_cancellation(self) -> None:
        late = self._cancellation()
        if late is not None:
            raise late

    def _cancellation(self) -> BaseException | None:
        """The cancellation that waits, once."""
        cancelled, self.cancelled = self.cancelled, None
        return cancelled


# By type, for a chain of ifs would be asked at every step.
_ANSWERS: Final[Mapping[type, Callable[[Driver, Any], Any]]] = {
    RunNode: Driver._run_node,  # noqa: SLF001 - its own table
    Next: lambda _, task: advance(task),
    Ask: Driver._ask_user,  # noqa: SLF001
    Save: Driver._save,  # noqa: SLF001
    Record: Driver._record,  # noqa: SLF001
    Load: Driver._load,  # noqa: SLF001
    LoadWrites: Driver._load_writes,  # noqa: SLF001
    Start: lambda driver, request: driver._threads().start(request.task),  # noqa: SLF001
    Wait: lambda driver, request: driver._threads().wait(request.tickets),  # noqa: SLF001
    Withdraw: lambda driver, request: driver._threads().withdraw(request.tickets),  # noqa: SLF001
    Close: lambda _, request: request.generator.close(),
    Hold: Driver._hold,  # noqa: SLF001
    Finish: Driver._finish,  # noqa: SLF001
    Release: Driver._release,  # noqa: SLF001
    Discard: Driver._discard,  # noqa: SLF001
}
_AANSWERS: Final[Mapping[type, Callable[[Driver, Any], Coroutine[Any, Any, Any]]]] = {
    RunNode: Driver._arun_where,  # noqa: SLF001
    Next: Driver._arun_where,  # noqa: SLF001
    Ask: Driver._aask_user,  # noqa: SLF001
    Save: Driver._asave,  # noqa: SLF001
    Record: Driver._arecord,  # noqa: SLF001
    Load: Driver._aload,  # noqa: SLF001
    LoadWrites: Driver._aload_writes,  # noqa: SLF001
    Start: Driver._astart,  # noqa: SLF001
    Wait: Driver._await,  # noqa: SLF001
    Withdraw: Driver._awithdraw,  # noqa: SLF001
    Close: lambda _, request: _aclosed(request.generator),
}


@contextmanager
def _one_after_the_other(*locks: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def _timeout_of(saver: BaseCheckpointSaver) -> float:
    timeout = getattr(saver, "lock_timeout", None)
    return float(timeout) if isinstance(timeout, (int, float)) else 10.0


def _is_same(one: Save, other: Save) -> bool:
    return (one.saver, one.config, one.parent_id, one.node_id, one.metadata, one.data) == (
        other.saver,
        other.config,
        other.parent_id,
        other.node_id,
        other.metadata,
        other.data,
    )


def _arguments(request: Ask) -> tuple[Any, ...]:
    arguments = request.arguments
    return arguments if request.call.takes_config else arguments[: len(arguments) - 1]


async def _aadvanced(task: Next) -> Any:
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        return await anext(task.generator)
    except StopAsyncIteration:
        return Ended(None)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


async def _aclosed(generator: Any) -> None:
    if isinstance(generator, AsyncGeneratorType):
        await generator.aclose()
    else:
        await _in_thread(generator.close)


async def _in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    import asyncio  # 25 ms to import, and only asynchronous runs need it

    return settled(await asyncio.to_thread(outcome_of, partial(call, *arguments)))
