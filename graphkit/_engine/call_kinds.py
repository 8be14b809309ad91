"""The four kinds of a function, and of what a hook returns: sync or async, and a generator or not.

The adapters in `RUN` turn what a call returns into the kind that the caller expects.
`call_on_thread` and `iterate_on_thread` make sync calls awaitable.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, Final, final

from graphkit._records.output import Command

EXHAUSTED: Final = object()
"""Stands for the end of a generator."""
Thunk = Callable[[], Any]
"""A function or a hook with its arguments; the result may be of another kind than expected."""
Outcome = tuple[Any, BaseException | None]
"""The result of a call, or the error that it raised."""


def run_function(thunk: Thunk) -> Any:
    return thunk()


async def run_async_function(thunk: Thunk) -> Any:
    result = thunk()
    return await result if inspect.isawaitable(result) else result


def run_generator(thunk: Thunk) -> Generator[Any, Any, Any]:
    result = thunk()
    return (yield from result) if isinstance(result, Iterator) else result


async def run_async_generator(thunk: Thunk) -> AsyncGenerator[Any]:
    result = thunk()
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Iterator):
        result = iterate_on_thread(result)
    if isinstance(result, AsyncIterable):
        async with _closing(aiter(result)) as chunks:
            async for chunk in chunks:
                yield chunk
    elif result is not None:
        yield _to_command(result)


RUN: Final[dict[tuple[bool, bool], Callable[[Thunk], Any]]] = {
    (False, False): run_function,
    (True, False): run_async_function,
    (False, True): run_generator,
    (True, True): run_async_generator,
}
"""The adapters by kind: (is_async, is_generator)."""


@final
class AwaitableChunks:
    """An async generator that a hook may also await, as it awaits any other `call()`."""

    __slots__ = ("generator",)

    def __init__(self, generator: AsyncGenerator[Any]) -> None:
        self.generator = generator

    def __aiter__(self) -> AsyncGenerator[Any]:
        return self.generator

    def __await__(self) -> Generator[Any, Any, AsyncGenerator[Any]]:
        yield from ()
        return self.generator


def _closing(chunks: Any) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return aclosing(chunks) if hasattr(chunks, "aclose") else nullcontext(chunks)


def _to_command(update: Any) -> Command:
    return update if isinstance(update, Command) else Command(update=update)


# Sync calls, made awaitable


async def call_on_thread(thunk: Thunk) -> Any:
    """Call on a thread.

    A cancellation waits for the call, which must not go on after the run has stopped.
    """
    import asyncio  # 25 ms to import, and only async runs need it

    cancelled = None
    task = asyncio.ensure_future(asyncio.to_thread(capture_outcome, thunk))
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return unwrap_outcome(task.result())


async def iterate_on_thread(chunks: Iterator[Any]) -> AsyncGenerator[Any]:
    """Iterate with each step on a thread; what a generator returns comes last, as a Command."""
    try:
        while True:
            chunk, returned = await call_on_thread(partial(next_chunk, chunks))
            if chunk is EXHAUSTED:
                break
            yield chunk
        if returned is not None:
            yield _to_command(returned)
    finally:
        if inspect.isgenerator(chunks):
            chunks.close()


def next_chunk(chunks: Iterator[Any]) -> tuple[Any, Any]:
    """Return the next chunk and None; at the end, EXHAUSTED and what the generator returned."""
    try:
        return next(chunks), None
    except StopIteration as end:
        return EXHAUSTED, end.value


def capture_outcome(thunk: Thunk) -> Outcome:
    """Call, and return the result or the error."""
    # A future can hold any exception but StopIteration: it would never be done.
    try:
        return thunk(), None
    except BaseException as error:  # noqa: BLE001 - `unwrap_outcome` raises it again
        return None, error


def unwrap_outcome(outcome: Outcome) -> Any:
    """Return the result, or raise the error."""
    result, error = outcome
    if error is not None:
        raise error
    return result
