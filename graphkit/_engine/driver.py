"""Driver: answers the requests of a run, with calls (`drive`) or with awaits (`adrive`).

DriverLocks are the run locks that it holds meanwhile; before the first node, `check_access` asks for the
rights that the run needs. `select_items` shows the outputs in the modes of a stream. All I/O of a run
happens here or above. The loop is the same for both. What may block an event loop runs in a thread if
the saver or the node has no async form of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, closing
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import perf_counter, time_ns
from typing import Any, Final, final

from graphkit._engine.checkpoint_writer import CheckpointWriter
from graphkit._engine.history import RunHistory
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
from graphkit._engine.tasks import (
    HOW_TO_RUN_ASYNC,
    NEVER_AWAITABLE,
    AsyncPool,
    TaskFutures,
    ThreadPool,
    advance_generator,
    close_generator,
    executing,
    run_node,
)
from graphkit._plan.compile_config import find_nested, find_savers
from graphkit._plan.events import Outbox
from graphkit._plan.topology import require_result
from graphkit._records.checkpoint import make_id, to_microseconds
from graphkit._records.config import StreamMode
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext
from graphkit._records.output import NodeOutput, StreamingOutput
from graphkit._saver.capabilities import check_rights
from graphkit._saver.run_lock import find_held_lock, locks_held_by_runs
from graphkit._to_thread import HeldCancellation, JobThread, judge_cancellation, unwrap_outcome, wait_until_done
from graphkit.errors import GraphRunnerError

# The rights that a run needs: asked for before its first node, of savers that decide about them

_HISTORY: Final = ("get", "get_writes", "put", "put_writes")
"""What a run or an update does with each history."""


def check_access(history: RunHistory, *, is_run: bool) -> None:
    """Check that a run or an update may do all that it may have to do, so that it does not fail halfway.

    Raises:
        AccessDeniedError: it may not.
    """
    saver = history.saver
    if saver is None:
        return
    config = history.config
    check_rights(saver, config, "run_lock", *_HISTORY)
    if not is_run:
        return
    for namespace, nested_saver, outer_saver in find_nested(history.program, saver, config.checkpoint_ns):
        # The run holds the lock of its own saver anyway, and that of a nested graph inside it.
        lock = () if nested_saver is saver or nested_saver is outer_saver else ("run_lock",)
        check_rights(nested_saver, config.replace(checkpoint_ns=namespace), *lock, *_HISTORY)
    options = history.program.options
    if options.release_thread:
        ending = "release"
    elif not options.preserve:
        ending = "delete"
    else:
        return
    for each in find_savers(history.program, saver):
        check_rights(each, config, ending)


# The run locks

_DEFAULT_TIMEOUT: Final = 10.0
"""Seconds to wait for another run of the holder, if the saver has no `lock_timeout`."""

RunLock = AbstractContextManager[object]


@final
class DriverLocks:
    """The run locks of one run: that of its own saver, and those of the savers of nested graphs.

    Attributes:
        outside_context: the node context of what the run calls outside any node (edges, hooks and
            releases). Its `held_locks` has the keys of these locks, and of those that the outer runs hold.
    """

    def __init__(self, history: RunHistory, *, is_run: bool) -> None:
        """Prepare the lock of a thread; `acquire` takes it.

        Args:
            history: the history of the run or update.
            is_run: whether this is a run. An update may be made by a node of the same thread.

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        held_keys = locks_held_by_runs()
        self._acquired: list[RunLock] = []
        self._prepared: list[Callable[[], RunLock]] = []
        """What `acquire` takes, in this order."""
        saver = history.saver
        config = history.config
        self.outside_context = NodeContext("", (), held_keys, journal=history)
        if saver is None:
            return
        key = saver.run_lock_key(config)
        key_of_namespace = (key, config.checkpoint_ns)
        if is_run and key_of_namespace in held_keys:
            raise GraphRunnerError(
                f"thread {config.thread!r} is running this node: a node cannot run its own thread again; "
                f"use another thread_id",
                thread_id=config.thread,
            )
        # In this context, which has the run locks that the code holds which began the run. Not now: a saver
        # may read its store to answer.
        self._prepared.append(partial(copy_context().run, saver.run_lock, config))
        held = find_held_lock(key)
        if held is not None:  # the calling code holds it already: its runs take turns
            timeout = getattr(saver, "lock_timeout", None)
            if not isinstance(timeout, (int, float)):
                timeout = _DEFAULT_TIMEOUT
            self._prepared.append(partial(held.serialize_runs, config.thread, float(timeout)))
        self._hold_keys({key, key_of_namespace})

    def _hold_keys(self, keys: set[object]) -> None:
        # A new context, because threads of nodes may be reading the old one.
        old = self.outside_context
        self.outside_context = NodeContext("", (), old.held_locks | keys, journal=old.journal)

    @property
    def is_held(self) -> bool:
        """Whether `release` has something to do."""
        return bool(self._acquired)

    def acquire(self) -> None:
        """Take the lock of the thread.

        Raises:
            ThreadBusyError: another run held it for too long.
        """
        for prepare in self._prepared:
            self._enter(prepare())

    def acquire_another(self, request: Hold) -> None:
        """Take the lock of another saver too, unless it is held already."""
        key = request.saver.run_lock_key(request.config)
        if key not in self.outside_context.held_locks:
            self._enter(request.saver.run_lock(request.config))
            self._hold_keys({key})

    def release(self) -> None:
        """Release all locks, the last one first."""
        while self._acquired:
            self._acquired.pop().__exit__(None, None, None)

    def _enter(self, lock: RunLock) -> None:
        # In a context of its own: the run holds the lock, not the code that reads its stream.
        copy_context().run(lock.__enter__)
        self._acquired.append(lock)


CLOCK: Final = Clock(now=time_ns, measure=perf_counter, new_id=make_id)
"""The clock of every run whose graph has none of its own."""
_BOUNDARIES: Final = frozenset({Emit, RunNode})
"""The requests at which a cancelled run stops: everything before them is stored."""


@final
class Driver:
    """Answers the requests of one run, and holds its run locks.

    A driver is used once, with `drive` or with `adrive`. In an async run, the threads of sync nodes
    answer their own requests with calls, see `CheckpointWriter.perform`.

    Attributes:
        result: what the loop returned, once it has ended.
    """

    def __init__(self, history: RunHistory, active: set[RunHistory] | None = None) -> None:
        """Prepare to drive a run, or an update.

        Args:
            history: the history of the run or update.
            active: where a run is registered while it is under way; None: this is an update, which a node
                may make of its own thread.

        Raises:
            GraphRunnerError: the calling code is a node of a run on the same thread and namespace.
        """
        self.history = history
        self.active = active
        self.locks = DriverLocks(history, is_run=active is not None)
        self.result: Any = None
        self.was_closed = False
        """Whether the caller closed the stream."""
        self.cancellation = HeldCancellation()
        self.writer = CheckpointWriter(
            history.program.options, history.reporter, self.cancellation, is_update=active is None
        )
        self.outbox: Outbox | None = None
        clock = CLOCK
        time = history.program.options.clock
        if time is not None:
            # In nanoseconds, from a clock that `compile(clock=)` was given.
            clock = CLOCK._replace(now=lambda: to_microseconds(time()) * 1000)
        history.attach(self.locks.outside_context.held_locks, self.writer.perform, clock)

    def drive(self, steps: Generator[Request, Any, Any]) -> Generator[NodeOutput, None, None]:
        """Run to the end and yield the outputs.

        Closing the iterator stops the run at this node boundary, with everything stored.
        """
        pool = ThreadPool(self.writer)
        answer: Any = None
        error: BaseException | None = None
        try:
            self._open()
            answers = self._make_answers(pool)
            # In line here and in `adrive`: a call for each of the three or four requests of a step would be 3 % of it.
            # A try of its own: a StopIteration of the saver or of its policy, in `_open`, is no end of the run.
            try:
                while True:
                    request = steps.send(answer) if error is None else steps.throw(error)
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
                            answer = answers[request.__class__](request)
                        except BaseException as raised:  # noqa: BLE001 - the loop handles it
                            error = judge_cancellation(raised)
            except StopIteration as end:
                self.result = end.value
            except Stop:
                self.was_closed = True
        finally:
            del error  # its traceback refers to this frame
            self._close(pool.futures)

    async def adrive(self, steps: Generator[Request, Any, Any]) -> AsyncGenerator[NodeOutput]:
        """Run to the end and yield the outputs, as `drive` does.

        If the asyncio task is cancelled, the run stops at a node boundary too. An async node is
        cancelled as well, and counts as never run. What cannot be cancelled (a node in a thread, a
        put) is waited for, because it must not go on after the run lock is released. The cancellation
        then takes effect after its step.
        """
        pool = AsyncPool(self.writer, self.cancellation)
        answer: Any = None
        error: BaseException | None = None
        try:
            await self._aopen()
            answers = self._make_async_answers(pool)
            try:
                while True:
                    request = steps.send(answer) if error is None else steps.throw(error)
                    answer = None
                    error = None
                    if request.__class__ in _BOUNDARIES:
                        error = self.cancellation.take()
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
                            answer = await answers[request.__class__](request)
                        except BaseException as raised:  # noqa: BLE001 - the loop handles it
                            error = judge_cancellation(raised)
            except StopIteration as end:
                self.result = end.value
            except Stop:
                self.was_closed = True
        finally:
            del error  # its traceback refers to this frame
            await self._aclose(pool.futures)

    # The answers to each kind of request. By type: a chain of ifs would be evaluated at each step.

    def _make_answers(self, pool: ThreadPool) -> Mapping[type, Callable[[Any], Any]]:
        writer = self.writer
        return {
            RunNode: run_node,
            Next: advance_generator,
            Ask: self._ask,
            **writer.answers(),
            Start: pool.start,
            Wait: pool.wait,
            Withdraw: pool.futures.withdraw,
            Close: close_generator,
            Hold: self.locks.acquire_another,
            Finish: self._finish,
            Release: partial(self._call_outside, writer.release),
            Discard: partial(self._call_outside, writer.discard),
        }

    def _make_async_answers(self, pool: AsyncPool) -> Mapping[type, Callable[[Any], Coroutine[Any, Any, Any]]]:
        writer = self.writer
        in_thread: Callable[..., Coroutine[Any, Any, Any]] = self.cancellation.complete_in_thread
        return {
            RunNode: pool.run,
            Next: pool.run,
            Ask: self._aask,
            Save: writer.astore,
            Record: writer.astore,
            Load: writer.aload,
            LoadWrites: writer.aload_writes,
            Start: pool.start,
            Wait: pool.wait,
            Withdraw: pool.withdraw,
            Close: pool.close_generator,
            # These wait for a disk or a lock.
            Hold: partial(in_thread, self.locks.acquire_another),
            Finish: partial(in_thread, self._finish),
            Release: partial(in_thread, self._call_outside, writer.release),
            Discard: partial(in_thread, self._call_outside, writer.discard),
        }

    def _ask(self, request: Ask) -> Any:
        # `executing` in line, for the edges that a run evaluates.
        token = CURRENT_NODE_CONTEXT.set(self.locks.outside_context)
        try:
            result = request.function(*request.arguments)
        finally:
            CURRENT_NODE_CONTEXT.reset(token)
        if result.__class__ in NEVER_AWAITABLE:
            return result
        return require_result(result, "an edge", HOW_TO_RUN_ASYNC)

    async def _aask(self, request: Ask) -> Any:
        with executing(self.locks.outside_context):
            result = request.function(*request.arguments)
            return await result if inspect.isawaitable(result) else result

    def _call_outside(self, call: Callable[[Any], object], request: Request) -> None:
        """Call outside any node."""
        with executing(self.locks.outside_context):
            call(request)

    def _finish(self, _request: Finish) -> None:
        self.writer.flush()
        self.locks.release()

    # Start and end

    def _open(self) -> None:
        """Start the observers' threads, register the run, and take the run lock."""
        history = self.history
        observers: Any = history.program.options.observers
        if observers:
            # Now, and not when the run was made: the observers' threads live as long as the run does.
            self.outbox = Outbox(observers)
            history.reporter.post = self.outbox.post
        check_access(history, is_run=self.active is not None)
        if self.active is not None:
            self.active.add(history)  # before it waits for the lock: a pause must reach it then, too
        self.locks.acquire()

    def _close(self, futures: TaskFutures) -> None:
        """End all threads, store what waits, and release the run locks."""
        if self.active is not None:
            self.active.discard(self.history)
        try:
            futures.close()
            if self.was_closed:
                self.writer.flush()  # no later request would raise what could not be stored
        finally:
            self.writer.close()
            self.locks.release()
            if self.outbox is not None:
                self.outbox.close()

    async def _aopen(self) -> None:
        if self.history.saver is not None or self.history.program.options.observers:
            await self.cancellation.complete_in_thread(self._open)
            self.cancellation.release()
        else:
            self._open()

    async def _aclose(self, futures: TaskFutures) -> None:
        has_threads = self.outbox is not None or self.writer.is_shared or self.writer.queue is not None
        if self.locks.is_held or has_threads:
            await self.cancellation.complete_in_thread(self._close, futures)
        else:
            self._close(futures)
        self.cancellation.release()


# Streams of several modes, and of what nodes dispatch while they run
#
# The caller drives a run by asking for its next output. While a node runs, the caller waits, and could not
# receive what the node dispatches. With mode "custom" the run is therefore driven elsewhere, by a thread
# or an asyncio task, and the stream takes from a queue what the run emits and what its nodes dispatch:
#
#     run:     START --wait-- node dispatches 1, 2 .. node --wait-- END
#     stream:  START .......... 1, 2 ................ node ........ END
#
# The run waits after each output until the caller asks for more, as it does without "custom". So a
# stream that the caller closes stops at the node boundary that it has seen; closed in the midst of a
# node, it stops at the end of that node. A value that a failed attempt has dispatched stays dispatched.

STEP_MODES: Final = frozenset({StreamMode.VALUES, StreamMode.UPDATES, StreamMode.SNAPSHOTS})
"""The modes whose streams are the outputs of the run as they are."""
_END: Final = object()


@final
@dataclass(slots=True, eq=False, repr=False)
class Dispatched:
    """A value that a node has dispatched while it runs."""

    value: Any


Item = NodeOutput[Any] | Dispatched


def drive_live(
    outputs: Generator[NodeOutput[Any], None, None], listen: Callable[[Callable[[Any], None]], None]
) -> Generator[Item, None, None]:
    """Drive a run on a thread; yield its outputs and, as they come, the values of its nodes.

    Args:
        outputs: drives the run.
        listen: registers the function to call with each value, from any thread.
    """
    run = JobThread("graphkit stream", copy_context(), is_daemon=False)
    next_output = partial(next, outputs, _END)
    try:
        listen(lambda value: run.outcomes.put((Dispatched(value), None)))
        run.jobs.put(next_output)
        while (item := unwrap_outcome(run.outcomes.get())) is not _END:
            yield item
            if not isinstance(item, Dispatched):
                run.jobs.put(next_output)
    finally:
        run.jobs.put(outputs.close)
        run.jobs.put(None)
        run.thread.join()
        # If the stream was closed in the midst of a node, that node may have failed since.
        while not run.outcomes.empty():
            unwrap_outcome(run.outcomes.get())


async def adrive_live(
    outputs: AsyncGenerator[NodeOutput[Any]], listen: Callable[[Callable[[Any], None]], None]
) -> AsyncGenerator[Item]:
    """Drive a run in an asyncio task, as `drive_live` does on a thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Any] = asyncio.Queue()
    requests: asyncio.Queue[bool] = asyncio.Queue()

    def tell(item: Any) -> None:
        # The outputs take the same way as values of other threads, and so keep their places among them.
        loop.call_soon_threadsafe(news.put_nowait, item)

    async def drive() -> None:
        try:
            while await requests.get():
                tell(await anext(outputs, _END))
        finally:
            await outputs.aclose()
            tell(_END)

    listen(lambda value: tell(Dispatched(value)))
    requests.put_nowait(True)
    task = asyncio.ensure_future(drive())
    try:
        while (item := await news.get()) is not _END:
            yield item
            if not isinstance(item, Dispatched):
                requests.put_nowait(True)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        requests.put_nowait(False)
        await wait_until_done(task)
        if not task.cancelled():
            task.result()


def select_items(outputs: Generator[NodeOutput[Any], None, None], history: RunHistory) -> Generator[Any, None, None]:
    """Yield what a stream of the modes of the run's config shows."""
    modes = history.config.stream_mode
    items: Generator[Item, None, None] = outputs
    if StreamMode.CUSTOM in history.config.stream_modes:
        items = drive_live(outputs, history.listen)
    with closing(items):
        for item in items:
            yield from _show(item, modes)


async def aselect_items(outputs: AsyncGenerator[NodeOutput[Any]], history: RunHistory) -> AsyncGenerator[Any]:
    """As `select_items`."""
    modes = history.config.stream_mode
    items: AsyncGenerator[Item] = outputs
    if StreamMode.CUSTOM in history.config.stream_modes:
        items = adrive_live(outputs, history.listen)
    async with aclosing(items):
        async for item in items:
            for shown in _show(item, modes):
                yield shown


def _show(item: Item, modes: StreamMode | tuple[StreamMode, ...]) -> Iterator[Any]:
    """Yield an item as each mode shows it: with one mode the item itself, with several in a pair."""
    several = modes if isinstance(modes, tuple) else (modes,)
    value: Any = item
    is_custom = isinstance(item, Dispatched)
    if isinstance(item, Dispatched):
        value = item.value
    elif isinstance(item, StreamingOutput) and StreamMode.CUSTOM in several:
        value = item.chunk
        is_custom = True
    for mode in several:
        if is_custom == (mode is StreamMode.CUSTOM):
            yield value if mode is modes else (mode, value)
