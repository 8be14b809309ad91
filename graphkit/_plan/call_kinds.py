"""The four kinds of call: sync or async, and with chunks or without.

The chunks and the result of a call are passed on in one way for each kind, whatever is around the
call: a hook, retries or a timeout. The result of a sync generator is its return value. An async
generator cannot return one; its result comes last, as a Command.

A call that may be repeated is made inside `with attempts:`, which swallows an error that another
attempt follows. A generator starts over then, so chunks that it yielded before come again.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial
from time import sleep
from typing import Any, Final

from graphkit._records.output import Command
from graphkit._to_thread import Thunk, finish_in_thread

EXHAUSTED: Final = object()
"""Stands for the end of a generator."""


class Attempts:
    """The attempts of one call: a context manager that is entered for each of them.

    There is only one, unless a subclass decides otherwise.
    """

    delay = 0.0
    """Seconds to wait before the next attempt."""

    def start_another(self, _error: BaseException) -> bool:
        """Return whether another attempt follows one that has failed."""
        return False

    def __enter__(self) -> None:
        """Start an attempt."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        """End an attempt, and swallow its error if another follows."""
        return error is not None and self.start_another(error)


ONCE: Final = Attempts()


def run_again(thunk: Thunk, attempts: Attempts) -> Any:
    """Call until an attempt succeeds; the kind is that of the first result."""
    while True:
        with attempts:
            result = thunk()
            is_generator = isinstance(result, (AsyncIterable, Iterator))
            is_async = isinstance(result, AsyncIterable) or inspect.isawaitable(result)
            if not is_generator and not is_async:
                return result
            break
        sleep(attempts.delay)
    # This attempt has only begun. It fails, and others are made, where its chunks are passed on.
    begun = [result]
    return RUN[is_async, is_generator](lambda: begun.pop() if begun else thunk(), attempts)


def _run_function(thunk: Thunk, _attempts: Attempts = ONCE) -> Any:
    return thunk()


async def _run_async_function(thunk: Thunk, attempts: Attempts = ONCE) -> Any:
    from asyncio import sleep  # 25 ms to import, and only async runs need it

    while True:
        with attempts:
            result = thunk()
            return await result if inspect.isawaitable(result) else result
        await sleep(attempts.delay)


def _run_generator(thunk: Thunk, attempts: Attempts = ONCE) -> Generator[Any, Any, Any]:
    while True:
        with attempts:
            result = thunk()
            return (yield from result) if isinstance(result, Iterator) else result
        sleep(attempts.delay)


async def _run_async_generator(thunk: Thunk, attempts: Attempts = ONCE) -> AsyncGenerator[Any]:
    from asyncio import sleep

    while True:
        with attempts:
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
            return
        await sleep(attempts.delay)


RUN: Final[Mapping[tuple[bool, bool], Callable[..., Any]]] = {
    (False, False): _run_function,
    (True, False): _run_async_function,
    (False, True): _run_generator,
    (True, True): _run_async_generator,
}
"""By kind, (is_async, is_generator): makes a call whose result may be of another kind, and converts it."""


async def iterate_on_thread(chunks: Iterator[Any]) -> AsyncGenerator[Any]:
    """Iterate with each step on a thread; what a generator returns comes last, as a Command."""
    try:
        while True:
            chunk, returned = await finish_in_thread(partial(next_chunk, chunks))
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


def _closing(chunks: Any) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
    return aclosing(chunks) if hasattr(chunks, "aclose") else nullcontext(chunks)


def _to_command(update: Any) -> Command:
    return update if isinstance(update, Command) else Command(update=update)
