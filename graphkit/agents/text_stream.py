"""Runs a request to a model and yields the pieces of its text while it is under way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from copy import copy
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, final

from graphkit._records.context import CURRENT_NODE_CONTEXT
from graphkit._to_thread import Outcome, capture_outcome, unwrap_outcome
from graphkit.agents.messages import Message, TextHandler

if TYPE_CHECKING:
    import asyncio

IS_TEXT_READ: Final[ContextVar[bool]] = ContextVar("graphkit_is_text_read", default=True)
"""Whether the caller of the run reads its stream. `Agent.run` does not, and saves the streaming."""
GRACE: Final = 1.0
"""Seconds for which a stream that is closed waits for its request to end."""
_OVER: Final = object()
"""Comes after the last piece."""


@contextmanager
def text_unread() -> Iterator[None]:
    """Run code whose caller does not read the text of models while it arrives."""
    token = IS_TEXT_READ.set(False)
    try:
        yield
    finally:
        IS_TEXT_READ.reset(token)


class _ClosedError(Exception):
    """Raised in a request whose stream the caller has closed."""


@final
class TextStream:
    """One request on a thread of its own; its pieces arrive through a queue.

    The thread has a copy of the context, so that the model finds the node context.
    """

    def __init__(self, request: Callable[[TextHandler], Message]) -> None:
        self.request = request
        self.pieces: SimpleQueue[Any] = SimpleQueue()
        self.outcome: Outcome = (None, None)
        self.is_closed = False
        self.context = CURRENT_NODE_CONTEXT.get()
        if self.context is not None:
            self.context = copy(self.context)

    def run(self) -> Generator[str, None, Message]:
        """Yield the pieces; return the reply. The text of a model that does not stream is one piece.

        A caller that closes the generator ends the request at its next piece. If none arrives
        within GRACE seconds, the thread is abandoned, and records nothing more.
        """
        # A context can be entered by one thread at a time, so the request gets a copy, and a node context of its
        # own, which `_close` can cut off from the run without touching that of the node.
        is_streamed = False
        variables = copy_context()
        variables.run(CURRENT_NODE_CONTEXT.set, self.context)
        thread = Thread(target=variables.run, args=(self._work,), name="graphkit-model", daemon=True)
        thread.start()
        try:
            while (piece := self.pieces.get()) is not _OVER:
                is_streamed = True
                yield piece
        finally:
            self._close()
            thread.join(GRACE)
        reply: Message = unwrap_outcome(self.outcome)
        if not is_streamed:
            yield from _whole_text(reply)
        return reply

    def _work(self) -> None:
        self.outcome = capture_outcome(lambda: self.request(self._on_text))
        self.pieces.put(_OVER)

    def _on_text(self, text: str) -> None:
        if self.is_closed:
            raise _ClosedError
        if text:
            self.pieces.put(text)

    def _close(self) -> None:
        self.is_closed = True
        if self.context is not None:
            self.context.journal = None  # the run may be over, and its lock free


@final
class AsyncTextStream:
    """One asynchronous request as a task.

    Attributes:
        reply: the reply, once the pieces have ended.
    """

    def __init__(self, request: Callable[[TextHandler], Awaitable[Message]]) -> None:
        self.request = request
        self.reply: Message = {}

    async def run(self) -> AsyncIterator[str]:
        """Yield the pieces, as TextStream does. Closing the iterator cancels the request."""
        import asyncio  # 25 ms to import, and only asynchronous runs need it

        is_streamed = False
        queue: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.ensure_future(self._work(queue))
        try:
            while (piece := await queue.get()) is not _OVER:
                is_streamed = True
                yield piece
            self.reply = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if not is_streamed:
            for text in _whole_text(self.reply):
                yield text

    async def _work(self, queue: asyncio.Queue[Any]) -> Message:
        try:
            return await self.request(lambda text: queue.put_nowait(text) if text else None)
        finally:
            queue.put_nowait(_OVER)


def _whole_text(reply: Any) -> list[str]:
    content = reply.get("content") if isinstance(reply, Mapping) else None
    return [content] if isinstance(content, str) and content else []
