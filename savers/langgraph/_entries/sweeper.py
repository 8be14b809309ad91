"""Deletes expired items of a store every few minutes, in a thread."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from logging import getLogger
from typing import Final, Protocol

_LOGGER: Final = getLogger("graphkit")


class _Store(Protocol):
    def sweep_ttl(self) -> int: ...


class Sweeper:
    """The daemon thread of a store. It ends when the store is gone."""

    def __init__(self, store: _Store) -> None:
        self._store = weakref.ref(store)
        self._thread: threading.Thread | None = None
        self._future: Future[None] = Future()
        self._stop_event = threading.Event()
        weakref.finalize(store, self._request_stop)

    def start(self, seconds: float) -> Future[None]:
        """Start the thread unless it runs; return its future, whose `cancel` stops it."""
        if self._thread is None or not self._thread.is_alive():
            self._stop_event = threading.Event()
            self._future = Future()
            self._future.add_done_callback(lambda _: self._request_stop())
            self._thread = threading.Thread(
                target=self._sweep_periodically,
                args=(self._stop_event, self._future, seconds),
                name="graphkit-ttl-sweeper",
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

    def _sweep_periodically(self, stop: threading.Event, future: Future[None], seconds: float) -> None:
        while not stop.wait(seconds):
            store = self._store()
            if store is None:
                break
            try:
                swept = store.sweep_ttl()
            except Exception:  # the next sweep may succeed; reads and puts raise the same error
                _LOGGER.exception("expired items could not be swept")
            else:
                if swept:
                    _LOGGER.info("%d expired items were swept", swept)
            del store
        if not future.done():
            future.set_result(None)
