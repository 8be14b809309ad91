"""Calls on threads: of blocking functions from async code, and of whatever has to go on beside its caller.

A thread cannot be cancelled. When the asyncio task that waits for one is cancelled, `run_in_thread`
leaves the thread behind, which is right for a read. `finish_in_thread` waits for it first: code of a
node, or a write, must not go on after the run has released its lock. A HeldCancellation does the same
for calls whose result is still needed.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from functools import partial, wraps
from threading import Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final

if TYPE_CHECKING:
    from asyncio import CancelledError, Future, Runner
    from contextvars import Context
    from queue import SimpleQueue

P = ParamSpec("P")
T = TypeVar("T")
Thunk = Callable[[], Any]
"""A function with its arguments."""
Outcome = tuple[Any, BaseException | None]
"""The result of a call, or the error that it raised."""


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread and return its result, without blocking the event loop."""
    import asyncio  # takes 25 ms to import, and only async callers need it

    outcome = await asyncio.to_thread(capture_outcome, partial(call, *args, **kwargs))
    result: T = unwrap_outcome(outcome)
    return result


async def finish_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `run_in_thread`, but a cancellation is raised only when the function has ended."""
    held = HeldCancellation()
    try:
        return await held.complete_in_thread(call, *args, **kwargs)
    finally:
        held.release()


def make_async(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async twin of a function, `afork` of `fork`: the same call in a thread, with the same parameters.

    A cancelled caller does not leave the thread behind: what it began is done.
    """

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await finish_in_thread(function, *args, **kwargs)

    call.__name__ = f"a{function.__name__}"
    call.__qualname__ = function.__qualname__.removesuffix(function.__name__) + call.__name__
    call.__doc__ = f"As `{function.__name__}`."
    return call


async def wait_until_done(*tasks: Future[Any]) -> CancelledError | None:
    """Wait until all tasks are done; return the last cancellation of the caller in the meantime."""
    import asyncio

    # `shield` would not do: it leaves the task behind, and the caller goes on without it. `wait` is
    # cancelled without cancelling the tasks, so it can be repeated until they end.
    cancelled = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


@final
class HeldCancellation:
    """A cancellation of the calling task, held back while what must not be left half done goes on.

    Attributes:
        error: the cancellation; None if there was none.
    """

    def __init__(self) -> None:
        self.error: CancelledError | None = None

    async def complete(self, call: Awaitable[T]) -> T:
        """Await a call to its end, and return its result."""
        import asyncio

        task = asyncio.ensure_future(call)
        self.error = await wait_until_done(task) or self.error
        return task.result()

    async def complete_in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, and wait for its end."""
        import asyncio

        # The error is raised here: an event loop ends at once if a task of its own raises a KeyboardInterrupt.
        outcome = await self.complete(asyncio.to_thread(capture_outcome, partial(call, *args, **kwargs)))
        result: T = unwrap_outcome(outcome)
        return result

    def take(self) -> CancelledError | None:
        """Return the cancellation, and forget it."""
        error = self.error
        self.error = None
        return error

    def release(self) -> None:
        """Raise the cancellation, if there was one."""
        error = self.take()
        if error is not None:
            raise error


async def run_beside(call: Callable[[Callable[[Any], None]], Awaitable[Any]]) -> AsyncGenerator[Any, None]:
    """Run an async function as a task; yield what it passes to its argument, as soon as it does, and last its result.

    Closing the iterator cancels the task, and waits for its end.
    """
    import asyncio

    items: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(call(items.put_nowait))
    task.add_done_callback(items.put_nowait)
    try:
        while (item := await items.get()) is not task:
            yield item
        yield task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


def step_through(stream: AsyncIterator[T], runner: Runner) -> Generator[T, None, None]:
    """Yield the items of a stream, none of which is None, each as soon as there is one.

    The event loop stands still between two items: nothing else runs in it. Closing the iterator closes the stream.
    """

    async def read_next() -> T | None:
        return await anext(stream, None)

    async def close() -> None:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()

    try:
        while (item := runner.run(read_next())) is not None:
            yield item
    except GeneratorExit:  # and not after a KeyboardInterrupt: a task reads the stream then, which the runner cancels
        # The stream closes those that it reads. The runner would close them all at once, each in the way of the others.
        runner.run(close())
        raise


def iterate(stream: Iterator[T] | AsyncIterator[T]) -> Generator[T, None, None]:
    """Yield the items of a stream from sync code; of an async one, in an event loop of its own."""
    if not isinstance(stream, AsyncIterator):
        yield from stream
        return
    import asyncio

    with asyncio.Runner() as runner:
        yield from step_through(stream, runner)


def capture_outcome(thunk: Thunk) -> Outcome:
    """Call, and return the result or the error."""
    # A future can hold any exception but StopIteration: it would never be done.
    try:
        return thunk(), None
    except BaseException as error:  # noqa: BLE001 - `unwrap_outcome` raises it again
        return None, judge_cancellation(error)


def judge_cancellation(error: BaseException) -> BaseException:
    """Return the error of a call; a failure for a CancelledError, unless the task that makes the call is cancelled.

    User code awaited something that was cancelled. Passed on, the error would look like a cancellation of the
    run: the run would record no failure, and what awaits it would end as cancelled.
    """
    asyncio = sys.modules.get("asyncio")  # takes 25 ms to import; without it there is no CancelledError
    was_cancelled = asyncio is not None and isinstance(error, asyncio.CancelledError)
    if asyncio is None or not was_cancelled:
        return error
    task = None
    with suppress(RuntimeError):  # no event loop runs on this thread
        task = asyncio.current_task()
    if task is not None and task.cancelling():
        return error
    failure = RuntimeError("it awaited a task that was cancelled")
    failure.__cause__ = error
    return failure


def unwrap_outcome(outcome: Outcome) -> Any:
    """Return the result, or raise the error."""
    result, error = outcome
    if error is not None:
        raise error
    return result


@final
class JobThread:
    """A thread that does jobs one after the other, for a caller that waits for their outcomes.

    The queue of a run's writes and those of observers are something else. They have no outcomes: the one is
    bounded and waited for as a whole, the others drop what is too much and may be abandoned.

    Attributes:
        jobs: what it does; None ends it.
        outcomes: the outcome of each job, in the same order. Others may add what they have for the same reader.
        thread: the thread.
    """

    def __init__(self, name: str, context: Context, *, is_daemon: bool) -> None:
        """Start the thread; the jobs run in a context."""
        from queue import SimpleQueue

        self.jobs: SimpleQueue[Thunk | None] = SimpleQueue()
        self.outcomes: SimpleQueue[Any] = SimpleQueue()
        self.thread = Thread(target=context.run, args=(self._work,), name=name, daemon=is_daemon)
        self.thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.outcomes.put(capture_outcome(job))
