"""The two drivers: they answer what the loop asks, with calls or with awaits. Everything that is I/O happens here."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from graphkit._abc import BaseCheckpointSaver
from graphkit._checkpoint import Checkpoint
from graphkit._config import END, RunnableConfig
from graphkit._engine.loop import Stop
from graphkit._engine.requests import Ask, Emit, Finish, Load, LoadWrites, Record, Request, RunNode, Save
from graphkit._output import NodeOutput
from graphkit._visit import CURRENT, Visit, held_locks
from graphkit.errors import GraphRunnerError

Steps = Generator[Request, Any, Any]
_BOUNDARIES: Final = frozenset({Emit, RunNode})
"""Where a cancelled run stops: everything before it is stored."""
_SETTLED: Final = frozenset({dict, type(None)})
"""What most nodes return; spares the question whether it is to be awaited."""


class Driver:
    """Answers the requests of one run, and holds its run lock.

    Attributes:
        result: what the loop returned, once it has ended.
    """

    def __init__(self, config: RunnableConfig, saver: BaseCheckpointSaver | None, *, runs_nodes: bool = True) -> None:
        """Prepare a run, or (`runs_nodes` false) an update, which a node may make of its own thread.

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        self.config = config
        self.saver = saver
        self.lock: AbstractContextManager[object] | None = None
        self.held = held_locks()
        self.result: Any = None
        self.cancelled: BaseException | None = None
        """A cancellation that came while something was to be waited for."""
        if saver is not None:
            key = saver.run_lock_key(config)
            place = (key, config.checkpoint_ns)
            if runs_nodes and place in self.held:
                raise GraphRunnerError(
                    f"thread {config.thread!r} is running this node: a node cannot run its own thread again; "
                    f"use another thread_id",
                    thread_id=config.thread,
                )
            self.lock = saver.run_lock(config)
            self.held |= {key, place}

    # Synchronous

    def drive(self, steps: Steps) -> Iterator[NodeOutput]:
        """Run to the end, handing out the outputs. Closing it stops at this node boundary, everything saved."""
        answer: Any = None
        error: BaseException | None = None
        self._enter()
        try:
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
            self._leave()

    def _ask(self, steps: Steps, answer: Any, error: BaseException | None) -> Request | None:
        """What the loop asks for next; None once it has ended."""
        try:
            return steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            self.result = end.value
        except Stop:
            pass
        return None

    def _answer(self, request: Request) -> Any:
        kind = request.__class__
        if kind is RunNode:
            return self._run_node(request)  # type: ignore[arg-type]
        if kind is Ask:
            return self._settled(request.call.function, self._arguments(request))  # type: ignore[attr-defined,arg-type]
        if kind is Finish:
            return self._finish(request.release)  # type: ignore[attr-defined]
        return self._store(request)

    def _run_node(self, request: RunNode) -> Any:
        call = request.node.action
        token = CURRENT.set(Visit(request.node.id, request.answers, self.held))
        try:
            result = call.function(request.state, self.config) if call.takes_config else call.function(request.state)
        finally:
            CURRENT.reset(token)
        return result if result.__class__ in _SETTLED else _refuse_awaitable(result, request.node.id)

    def _settled(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return _refuse_awaitable(function(*arguments), None)

    def _arguments(self, request: Ask) -> tuple[Any, ...]:
        arguments = request.arguments
        return arguments if request.call.takes_config else arguments[: len(arguments) - 1]

    def _store(self, request: Request) -> Any:
        saver = self.saver
        assert saver is not None, "the loop stores nothing without a saver"
        kind = request.__class__
        if kind is Save:
            checkpoint = _checkpoint(request)  # type: ignore[arg-type]
            saver.put(self.config, checkpoint)
            return checkpoint
        if kind is Load:
            return saver.get(request.config)  # type: ignore[attr-defined]
        if kind is LoadWrites:
            return saver.get_writes(request.config)  # type: ignore[attr-defined]
        assert kind is Record
        return saver.put_writes(request.config, request.writes)  # type: ignore[attr-defined]

    def _finish(self, release: bool) -> None:
        if release and self.saver is not None:
            token = CURRENT.set(self._as_holder())
            try:
                self.saver.release(self.config)
            finally:
                CURRENT.reset(token)
        self._leave()

    def _as_holder(self) -> Visit:
        """What lets a release through the lock that this run holds."""
        return Visit(END, (), self.held)

    def _enter(self) -> None:
        if self.lock is not None:
            try:
                self.lock.__enter__()
            except BaseException:
                self.lock = None  # it is not held, so nobody is to let it go
                raise

    def _leave(self) -> None:
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.__exit__(None, None, None)

    # Asynchronous: the same, with awaits. What may block runs in a thread.

    async def adrive(self, steps: Steps) -> AsyncIterator[NodeOutput]:
        """As `drive`. A cancelled task stops at a node boundary too.

        An asynchronous node is cancelled, and was then never run. What cannot be cancelled (a node in a thread, a put)
        is waited for, for it must not go on once the lock is free; the cancellation comes after its step.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            if self.lock is not None:
                await self._to_its_end(_in_thread(self._enter))
            error = self._cancellation()
            if error is not None:
                raise error
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
            await self._aleave()
            late = self._cancellation()
            if late is not None:
                raise late

    async def _aanswer(self, request: Request) -> Any:
        kind = request.__class__
        if kind is RunNode:
            return await self._arun_node(request)  # type: ignore[arg-type]
        if kind is Ask:
            result = request.call.function(*self._arguments(request))  # type: ignore[attr-defined,arg-type]
            return await result if inspect.isawaitable(result) else result
        if kind is Finish:
            if request.release and self.saver is not None:  # type: ignore[attr-defined]
                token = CURRENT.set(self._as_holder())
                try:
                    await self._to_its_end(self.saver.arelease(self.config))
                finally:
                    CURRENT.reset(token)
            return await self._aleave()
        return await self._astore(request)

    async def _arun_node(self, request: RunNode) -> Any:
        call = request.node.action
        arguments = (request.state, self.config) if call.takes_config else (request.state,)
        token = CURRENT.set(Visit(request.node.id, request.answers, self.held))
        try:
            if call.is_async:
                result = call.function(*arguments)
            else:
                result = await self._to_its_end(_in_thread(call.function, *arguments))
            return await result if inspect.isawaitable(result) else result
        finally:
            CURRENT.reset(token)

    async def _astore(self, request: Request) -> Any:
        saver = self.saver
        assert saver is not None, "the loop stores nothing without a saver"
        kind = request.__class__
        if kind is Save:
            checkpoint = _checkpoint(request)  # type: ignore[arg-type]
            await self._to_its_end(saver.aput(self.config, checkpoint))
            return checkpoint
        if kind is Load:
            return await saver.aget(request.config)  # type: ignore[attr-defined]
        if kind is LoadWrites:
            return await saver.aget_writes(request.config)  # type: ignore[attr-defined]
        assert kind is Record
        return await self._to_its_end(saver.aput_writes(request.config, request.writes))  # type: ignore[attr-defined]

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

    def _cancellation(self) -> BaseException | None:
        """The cancellation that waits, once."""
        cancelled, self.cancelled = self.cancelled, None
        return cancelled

    async def _aleave(self) -> None:
        if self.lock is not None:
            await self._to_its_end(_in_thread(self._leave))


def _checkpoint(save: Save) -> Checkpoint:
    return Checkpoint._next(  # noqa: SLF001 - made of parts that are known to be right
        save.node_id, save.next_node_id, save.parent_id, save.metadata, save.data, save.changes
    )


def _refuse_awaitable(result: Any, node_id: str | None) -> Any:
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    what = "an edge" if node_id is None else f"node {node_id!r}"
    raise GraphRunnerError(f"{what} is asynchronous: run the graph with astream or ainvoke", node_id=node_id)


async def _in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    import asyncio  # 25 ms to import, and only asynchronous runs need it

    result, error = await asyncio.to_thread(_outcome, call, *arguments)
    if error is not None:
        raise error
    return result


def _outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    # A future takes any exception but StopIteration, over which it would wait for ever.
    try:
        return call(*arguments), None
    except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
        return None, error
