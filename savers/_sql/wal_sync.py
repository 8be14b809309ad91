"""Brings a write-ahead log to the disk every few seconds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from logging import getLogger
from typing import Final

from graphkit.errors import CheckpointerError

_LOGGER: Final = getLogger("graphkit")


class PeriodicSync:
    """`fsync=seconds`: a daemon thread calls `sync` after changes, and ends when there are none."""

    def __init__(self, seconds: float, sync: Callable[[], None]) -> None:
        """Prepare; the thread starts with the first change.

        Args:
            seconds: the time between a change and the sync.
            sync: brings everything to the disk.
        """
        self._seconds = seconds
        self._sync = sync
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        self._has_changes = False

    def mark(self) -> None:
        """Remember that something was committed; called after each commit."""
        if self._has_changes and self._thread is not None:
            return
        with self._mutex:
            self._has_changes = True
            if self._thread is None:
                self._stop_event = threading.Event()
                self._thread = threading.Thread(
                    target=self._sync_periodically,
                    args=(self._stop_event,),
                    name="graphkit-sqlite-sync",
                    daemon=True,
                )
                self._thread.start()

    def flush(self) -> None:
        """Sync now, if anything was committed since the last sync."""
        with self._mutex:
            has_changes = self._has_changes
            # A commit during the sync marks it again.
            self._has_changes = False
        if not has_changes:
            return
        try:
            self._sync()
        except BaseException:
            self._has_changes = True
            raise

    def stop(self) -> None:
        """Stop the thread."""
        with self._mutex:
            thread = self._thread
            self._thread = None
            self._stop_event.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _sync_periodically(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            try:
                self.flush()
            except (OSError, CheckpointerError):
                _LOGGER.exception("checkpoints could not be brought to the disk")
            with self._mutex:
                if not self._has_changes:
                    if self._thread is threading.current_thread():
                        self._thread = None
                    return


def sync_file(path: str) -> None:
    """Bring the bytes of a file to the disk; a file that does not exist has none.

    Raises:
        OSError: the disk refused.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
