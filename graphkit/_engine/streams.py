"""Streams of several modes, and of what nodes dispatch while they run.

A run is driven by whoever asks for its next output: while a node runs, nobody could yield what it
dispatches. With mode "custom" the run is therefore driven elsewhere, by a thread or an asyncio task,
and the stream takes from a queue what the run emits and what its nodes dispatch:

    run:     START --wait-- node dispatches 1, 2 .. node --wait-- END
    stream:  START .......... 1, 2 ................ node ........ END

The run waits after each output until the caller asks for more, as it does without "custom". So a
stream that the caller closes stops at the node boundary that it has seen; closed in the midst of a
node, it stops at the end of that node. A value that a failed attempt has dispatched stays dispatched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing, closing
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, final

from graphkit._engine.history import RunHistory
from graphkit._records.config import StreamMode
from graphkit._records.output import NodeOutput, StreamingOutput
from graphkit._to_thread import Outcome, capture_outcome, unwrap_outcome, wait_until_done

STEP_MODES: Final = frozenset({StreamMode.VALUES, StreamMode.UPDATES, StreamMode.SNAPSHOTS})
"""The modes whose streams are the outputs of the run as they are."""
_END: Final = object()


@final
class Dispatched:
    """A value that a node has dispatched while it runs."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


Item = NodeOutput[Any] | Dispatched


def drive_live(
    outputs: Generator[NodeOutput[Any], None, None],
    listen: Callable[[Callable[[Any], None]], None],
) -> Generator[Item, None, None]:
    """Drive a run on a thread; yield its outputs and, as they come, the values of its nodes.

    Args:
        outputs: drives the run.
        listen: registers the function to call with each value, from any thread.
    """
    news: SimpleQueue[Any] = SimpleQueue()
    answers: SimpleQueue[bool] = SimpleQueue()
    outcomes: list[Outcome] = []

    def drive() -> None:
        for output in outputs:
            news.put(output)
            goes_on = answers.get()
            if not goes_on:
                break
        outputs.close()

    def run() -> None:
        outcomes.append(capture_outcome(drive))
        news.put(_END)

    listen(lambda value: news.put(Dispatched(value)))
    thread = Thread(target=copy_context().run, args=(run,), name="graphkit stream")
    thread.start()
    try:
        while (item := news.get()) is not _END:
            yield item
            if not isinstance(item, Dispatched):
                answers.put(True)
    finally:
        answers.put(False)
        thread.join()
        unwrap_outcome(outcomes[0])


async def adrive_live(
    outputs: AsyncGenerator[NodeOutput[Any]], listen: Callable[[Callable[[Any], None]], None]
) -> AsyncGenerator[Item]:
    """Drive a run in an asyncio task, as `drive_live` does on a thread."""
    import asyncio

    loop = asyncio.get_running_loop()
    news: asyncio.Queue[Any] = asyncio.Queue()
    answers: asyncio.Queue[bool] = asyncio.Queue()

    def tell(item: Any) -> None:
        # The outputs take the same way as values of other threads, and so keep their places among them.
        loop.call_soon_threadsafe(news.put_nowait, item)

    async def drive() -> None:
        try:
            async for output in outputs:
                tell(output)
                goes_on = await answers.get()
                if not goes_on:
                    break
        finally:
            await outputs.aclose()
            tell(_END)

    listen(lambda value: tell(Dispatched(value)))
    task = asyncio.ensure_future(drive())
    try:
        while (item := await news.get()) is not _END:
            yield item
            if not isinstance(item, Dispatched):
                answers.put_nowait(True)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        answers.put_nowait(False)
        await wait_until_done((task,))
        if not task.cancelled():
            task.result()


def select_items(outputs: Generator[NodeOutput[Any], None, None], history: RunHistory) -> Iterator[Any]:
    """Yield what a stream of the modes of the run's config shows."""
    modes = history.config.stream_mode
    items: Generator[Item, None, None] = outputs
    if StreamMode.CUSTOM in history.config.stream_modes:
        items = drive_live(outputs, history.listen)
    with closing(items):
        for item in items:
            yield from _show(item, modes)


async def aselect_items(outputs: AsyncGenerator[NodeOutput[Any]], history: RunHistory) -> AsyncIterator[Any]:
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
