"""Driver: answers the requests of a run, with calls (`drive`) or with awaits (`adrive`)."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from types import AsyncGeneratorType
from typing import Any, Final, final

from graphkit._engine.call_kinds import capture_outcome, unwrap_outcome
from graphkit._engine.checkpoint_writer import describe_write
from graphkit._engine.loop import Run
from graphkit._engine.requests import (
    Ask,
    Close,
    Emit,
    Ended,
    Load,
    LoadWrites,
    Next,
    Record,
    Request,
    RunNode,
    Save,
    Start,
    Stop,
    Task,
    Wait,
    Withdraw,
)
from graphkit._engine.sync_driver import Steps, SyncDriver, arguments_of
from graphkit._engine.task_pool import AsyncPool, advance_generator
from graphkit._engine.update import Update
from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit._records.output import NodeOutput
from graphkit.errors import CheckpointerError

_BOUNDARIES: Final = frozenset({Emit, RunNode})
"""The requests at which a cancelled run stops: everything before them is stored."""


@final
class Driver(SyncDriver):
    """Answers requests with calls, or with awaits; then what may block runs in a thread."""

    def __init__(
        self,
        run: Run | Update,
        *,
        active_runs: dict[int, Any] | None = None,
    ) -> None:
        """Prepare to drive a run or an update; see `SyncDriver`."""
        super().__init__(run, active_runs=active_runs)
        self.async_pool: AsyncPool | None = None
        self.cancelled: BaseException | None = None
        """A cancellation that arrived while a call had to be waited for."""

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

    async def _aanswer(self, request: Request) -> Any:
        answer = _ASYNC_ANSWERS.get(request.__class__)
        if answer is not None:
            return await answer(self, request)
        # The others wait for a disk or a lock.
        return await self._complete(_in_thread(self._answer, request))

    # Calls of user code

    async def _arun_task(self, task: Task) -> Any:
        if task.executor is None:
            return await self._arun(task)
        return await self._async_tasks().run(task, self._arun)

    async def _arun(self, task: Task) -> Any:
        """Run a task in the event loop if it is async, else on a thread."""
        if isinstance(task, Next):
            if isinstance(task.generator, AsyncGeneratorType):
                return await _advance_async_generator(task)
            return await self._complete(_in_thread(advance_generator, task))
        assert isinstance(task, RunNode)
        token = CURRENT_NODE_CONTEXT.set(task.context)
        try:
            call = task.call.async_form or task.call
            if call.is_async:
                result = call.run(task.argument, task.config)
            else:
                result = await self._complete(_in_thread(call.run, task.argument, task.config))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    async def _aask(self, request: Ask) -> Any:
        token = CURRENT_NODE_CONTEXT.set(self.outside_context)
        try:
            result = request.call.function(*arguments_of(request))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT_NODE_CONTEXT.reset(token)

    def _async_tasks(self) -> AsyncPool:
        if self.async_pool is None:
            self.async_pool = AsyncPool(self.writer.flush)
            self.pools.append(self.async_pool)
        return self.async_pool

    async def _astart_task(self, request: Start) -> int:
        if self.cancelled is not None:
            raise self.cancelled  # raised again where the running tasks are waited for
        if request.task.executor is not None:
            await self._aflush()
        return self._async_tasks().start(request.task, self._arun)

    async def _await_tasks(self, request: Wait) -> Any:
        cancelled = self._take_cancellation()
        if cancelled is not None:  # it arrived while something was being stored
            await self._async_tasks().cancel()
            raise cancelled
        return await self._async_tasks().wait(request.tickets)

    async def _awithdraw(self, request: Withdraw) -> None:
        self._async_tasks().withdraw(request.tickets)

    # The saver

    async def _asave(self, request: Save) -> Any:
        if self.writer.queue is not None or self.async_pool is not None:
            return await self._complete(_in_thread(self._save, request))
        checkpoint = request.checkpoint
        try:
            await self._complete(request.saver.aput(request.config, checkpoint))
        except (CheckpointerError, OSError) as error:
            self.writer.handle_failure(error, describe_write(request))
            return None
        return checkpoint

    async def _arecord(self, request: Record) -> None:
        if self.writer.queue is not None or self.async_pool is not None:
            await self._complete(_in_thread(self._record, request))
            return
        try:
            await self._complete(request.saver.aput_writes(request.config, request.writes))
        except (CheckpointerError, OSError) as error:
            self.writer.handle_failure(error, describe_write(request))

    async def _aload(self, request: Load) -> Any:
        await self._aflush()
        return await request.saver.aget(request.config)

    async def _aload_writes(self, request: LoadWrites) -> Any:
        await self._aflush()
        return await request.saver.aget_writes(request.config)

    async def _aflush(self) -> None:
        if self.writer.queue is not None:
            await self._complete(_in_thread(self.writer.flush))

    # Start and end

    async def _aopen(self) -> None:
        if self.locks.must_acquire or self.run.history.program.options.observers:
            await self._complete(_in_thread(self._open))
            self._raise_cancellation()

    async def _aclose(self) -> None:
        has_threads = self.outbox is not None or self.pools or self.writer.queue is not None
        if self.locks.is_held or has_threads:
            await self._complete(_in_thread(self._close))
        self._raise_cancellation()

    # Cancellation

    async def _complete(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call that must not be left half done; keep a cancellation in `cancelled`."""
        import asyncio

        task = asyncio.ensure_future(call)
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as cancelled:
                self.cancelled = cancelled
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


_ASYNC_ANSWERS: Final[Mapping[type, Callable[[Driver, Any], Coroutine[Any, Any, Any]]]] = {
    RunNode: Driver._arun_task,  # noqa: SLF001 - its own table
    Next: Driver._arun_task,  # noqa: SLF001
    Ask: Driver._aask,  # noqa: SLF001
    Save: Driver._asave,  # noqa: SLF001
    Record: Driver._arecord,  # noqa: SLF001
    Load: Driver._aload,  # noqa: SLF001
    LoadWrites: Driver._aload_writes,  # noqa: SLF001
    Start: Driver._astart_task,  # noqa: SLF001
    Wait: Driver._await_tasks,  # noqa: SLF001
    Withdraw: Driver._awithdraw,  # noqa: SLF001
    Close: lambda _, request: _close_generator(request.generator),
}
"""The requests that are answered with awaits; the others are answered by calls in a thread."""


async def _advance_async_generator(task: Next) -> Any:
    token = CURRENT_NODE_CONTEXT.set(task.context)
    try:
        return await anext(task.generator)
    except StopAsyncIteration:
        return Ended(None)
    finally:
        CURRENT_NODE_CONTEXT.reset(token)


async def _close_generator(generator: Any) -> None:
    if isinstance(generator, AsyncGeneratorType):
        await generator.aclose()
    else:
        await _in_thread(generator.close)


async def _in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    import asyncio  # 25 ms to import, and only async runs need it

    outcome = await asyncio.to_thread(capture_outcome, partial(call, *arguments))
    return unwrap_outcome(outcome)
