"""ThreadCalls: the calls of the checkpointer's async methods in worker threads.

Short ones, which need only some microseconds, wait in the event loop for the end of a longer one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from graphkit.saver_kit import run_in_thread
from savers._threads import InUseError

_Result = TypeVar("_Result")
_MAX_WAIT: Final = 0.05
"""Seconds after which a short call goes to a worker thread itself."""


class ThreadCalls:
    """What one event loop has in worker threads. Only tasks of that loop use it.

    A short call that finds a lock in use by one of them waits here, and is then made in the event
    loop. In a worker thread, it would itself hold a lock that the next one finds in use: of 200 tasks
    at once, nearly all calls would end in threads.
    """

    def __init__(self) -> None:
        self._count = 0
        """How many calls are in threads, or wait for one."""
        self._waiting: deque[asyncio.Future[bool]] = deque()
        """The short calls that wait, in their order. While there are any, a call is in a thread, or one
        that has waited is about to go on."""

    async def run(self, call: Callable[[], _Result]) -> _Result:
        """Call a function in a worker thread."""
        self._count += 1
        try:
            return await run_in_thread(call)
        finally:
            self._count -= 1
            self._wake_next()

    async def call_when_free(self, call: Callable[[], tuple[_Result] | None]) -> tuple[_Result] | None:
        """Make a short call in the event loop when a lock is free that it has found in use.

        Args:
            call: raises InUseError while the lock is in use.

        Returns:
            What it returns; None if a worker thread should make the call, because no call of this event
            loop uses the lock, or the wait was long.
        """
        deadline = asyncio.get_running_loop().time() + _MAX_WAIT
        has_waited = False
        try:
            while self._count and await self._wait(deadline, is_first=has_waited):
                has_waited = True
                try:
                    return call()
                except InUseError:
                    pass
            return None
        finally:
            # Also if it was cancelled: it may have been woken before.
            self._wake_next()

    async def _wait(self, deadline: float, *, is_first: bool) -> bool:
        """Wait until a call has ended; return False if that takes until the deadline."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if is_first:
            self._waiting.appendleft(future)
        else:
            self._waiting.append(future)

        def give_up() -> None:
            if not future.done():
                future.set_result(False)

        timer = loop.call_at(deadline, give_up)
        try:
            return await future
        finally:
            timer.cancel()

    def _wake_next(self) -> None:
        """Let the first call that waits try again."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(True)
                return
