"""How the checkpointer, the store and the cache are opened, closed and swept: as LangGraph's own classes are."""

from __future__ import annotations

import threading
import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextvars import copy_context
from logging import getLogger
from typing import Final, Generic, Self, TypeVar

from graphkit.saver_kit import run_in_thread

_Owner = TypeVar("_Owner")
_LOGGER: Final = getLogger("graphkit")


class _Completed:
    """An awaitable that is done; unlike a coroutine, the caller need not await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class ContextMethods:
    """`with` and `async with`, which close the files at the end. A later use opens them again."""

    @abstractmethod
    def _close(self) -> None:
        """Close the files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await run_in_thread(self._close)


class SetupMethod:
    """`setup`, which LangGraph's users call after opening."""

    def setup(self) -> Awaitable[None]:
        """Do nothing; the store needs no setup.

        Returns:
            An awaitable without effect: the `setup` of LangGraph's asynchronous classes is awaited.
        """
        return _Completed()


class PeriodicSweep(Generic[_Owner]):
    """Deletes what has expired in the store of an object, again and again, in a daemon thread.

    The thread ends when it is stopped, or when the object is gone: it holds a strong reference only
    while it sweeps. It does not survive a fork.
    """

    def __init__(self, owner: _Owner, sweep: Callable[[_Owner, threading.Event], object], name: str) -> None:
        """Prepare; `start` starts the thread.

        Args:
            owner: the object.
            sweep: sweeps once. An event that is set asks it to end early. What it raises is logged,
                and the next sweep tries again.
            name: the name of the thread.
        """
        self._owner = weakref.ref(owner)
        self._sweep = sweep
        self._name = name
        self._thread: threading.Thread | None = None
        self._future: Future[None] = Future()
        self._stop_event = threading.Event()
        weakref.finalize(owner, self._request_stop)

    def start(self, seconds: float, *, begins_now: bool = False) -> Future[None]:
        """Start the thread unless it runs.

        Args:
            seconds: the time between two sweeps.
            begins_now: whether the first sweep does not wait.

        Returns:
            The future of the thread, which is done when it ends, and whose `cancel` stops it.
        """
        if self._thread is None or not self._thread.is_alive():
            self._stop_event = threading.Event()
            self._future = Future()
            self._future.add_done_callback(lambda _: self._request_stop())
            self._thread = threading.Thread(
                target=copy_context().run,  # it sweeps as the principal that starts it
                args=(self._sweep_periodically, self._stop_event, self._future, seconds, begins_now),
                name=self._name,
                daemon=True,
            )
            self._thread.start()
        return self._future

    def stop(self, timeout: float | None = None) -> bool:
        """Stop the thread; return whether it has ended within `timeout` seconds."""
        self._request_stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def _request_stop(self) -> None:
        self._stop_event.set()

    def _sweep_periodically(
        self, stop: threading.Event, future: Future[None], seconds: float, begins_now: bool
    ) -> None:
        delay = 0.0 if begins_now else seconds
        while not stop.wait(delay):
            owner = self._owner()
            if owner is None:
                break
            try:
                self._sweep(owner, stop)
            except Exception:
                _LOGGER.exception("what has expired could not be deleted")
            del owner
            delay = seconds
        if not future.done():
            future.set_result(None)
