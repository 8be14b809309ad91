"""Brings a write-ahead log to the disk every few seconds."""

from __future__ import annotations

import os
from collections.abc import Callable

from savers._periodic_flush import PeriodicFlush


class PeriodicSync:
    """`fsync=seconds`: syncs after changes, in a thread that ends when there are none."""

    def __init__(self, seconds: float, sync: Callable[[], None]) -> None:
        """Prepare; the thread starts with the first change.

        Args:
            seconds: the time between a change and the sync.
            sync: brings everything to the disk.
        """
        self._sync = sync
        self._has_changes = False
        self._flushing = PeriodicFlush(seconds, self.flush, lambda: self._has_changes)

    def mark(self) -> None:
        """Remember that something was committed; called after each commit."""
        if self._has_changes and self._flushing.is_running:
            return
        self._has_changes = True
        self._flushing.start()

    def flush(self) -> None:
        """Sync now, if anything was committed since the last sync."""
        if not self._has_changes:
            return
        # A commit during the sync marks it again.
        self._has_changes = False
        try:
            self._sync()
        except BaseException:
            self._has_changes = True
            raise

    def stop(self) -> None:
        """Stop the thread."""
        self._flushing.stop()


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
