"""The four kinds of a function, and of what a hook makes of it: plain or asynchronous, and a generator or not.

What is started is made what its kind promises, and what is not asynchronous can be awaited.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from typing import Any, Final, final

from graphkit._records.output import Command

END: Final = object()
"""Comes after the last chunk."""
Start = Callable[[], Any]
"""Starts a function or a hook, its arguments given; what comes of it may be of another kind than was foreseen."""
Outcome = tuple[Any, BaseException | None]
"""What a call returned, or raised."""


def value(start: Start) -> Any:
    return start()


async def awaited(start: Start) -> Any:
    result = start()
    return await result if inspect.isawaitable(result) else result


def chunks_of(start: Start) -> Generator[Any, Any, Any]:
    result = start()
    return (yield from result) if isinstance(result, Iterator) else result


async def later_chunks(start: Start) -> AsyncGenerator[Any]:
    result = start()
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Iterator):
        result = on_threads(result)
    if isinstance(result, AsyncIterable):
        async with _closing(aiter(result)) as chunks:
            async for chunk in chunks:
                yield chunk
    elif result is not None:
        yield _command(result)


RUN: Final[dict[tuple[bool, bool], Callable[[Start], Any]]] = {
    (False, False): value,
    (True, False): awaited,
    (False, True): chunks_of,
    (True, True): later_chunks,
}
"""By kind: asynchronous, and a generator."""


@final
class Chunks:
    """An asynchronous generator that a hook may await too, as it awaits any other `call()`."""

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


def _command(update: Any) -> Command:
    return update if isinstance(update, Command) else Command(update=update)


# What is not asynchronous, for those who await it


async def on_thread(call: Start) -> Any:
    """Call on a thread. A cancellation waits for the call, which must not go on when the run stands still."""
    import asyncio  # 25 ms to import, and only asynchronous runs need it

    cancelled = None
    doing = asyncio.ensure_future(asyncio.to_thread(outcome_of, call))
    while not doing.done():
        try:
            await asyncio.wait((doing,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return settled(doing.result())


async def on_threads(chunks: Iterator[Any]) -> AsyncGenerator[Any]:
    """A generator, each chunk of it on a thread; what it returns comes last, as a Command."""
    try:
        while True:
            chunk, returned = await on_thread(partial(next_of, chunks))
            if chunk is END:
                break
            yield chunk
        if returned is not None:
            yield _command(returned)
    finally:
        if inspect.isgenerator(chunks):
            chunks.close()


def next_of(chunks: Iterator[Any]) -> tuple[Any, Any]:
    """The next chunk; or END, and what the generator returned."""
    try:
        return next(chunks), None
    except StopIteration as end:
        return END, end.value


def outcome_of(call: Start) -> Outcome:
    # Futures take any exception but StopIteration, over which they would wait for ever.
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        return None, error


def settled(outcome: Outcome) -> Any:
    result, error = outcome
    if error is not None:
        raise error
    return result
