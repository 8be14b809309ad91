"""Learns of changes of a SQLite file by looking: SQLite counts commits, and notifies of none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphkit.errors import CheckpointerError
from savers._sql.changes import ChangeSource, WakeUp
from savers._sql.sqlite_connection import SqliteConnection

_FIRST_WAIT: Final = 0.001
"""Seconds after a change, until the next look."""
_LONGEST_WAIT: Final = 0.025
"""Seconds between two looks, if nothing changes; one takes 5 us."""


class SqliteChanges(ChangeSource):
    """The commits of all connections to one file."""

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        """Prepare; the first listener connects.

        Args:
            connect: opens a connection.
        """
        super().__init__()
        self._connect = connect

    def _start_watching(self) -> Callable[[WakeUp], None]:
        counter = _CommitCounter(self._connect)
        counter.has_changed()
        return lambda stop: self._look(counter, stop)

    def _look(self, counter: _CommitCounter, stop: WakeUp) -> None:
        pause = _FIRST_WAIT
        while not stop.is_woken:
            stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT)
            if counter.has_changed():
                self.tell()
                pause = _FIRST_WAIT
        counter.close()


class _CommitCounter:
    """Sees whether another connection has committed; its own connection never does."""

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self._connect = connect
        self._connection = connect()
        self._seen: object = None

    def has_changed(self) -> bool:
        """Return whether anything was committed since the last call; true after an error, too."""
        before = self._seen
        try:
            if not self._connection.is_at_path():
                self._connection.close()
                self._connection = self._connect()
                before = None
            self._seen = self._connection.run("PRAGMA data_version", (), "read")[0]
        except CheckpointerError:
            # The watcher reads, and gets the error.
            self._seen = None
        return before is None or before != self._seen

    def close(self) -> None:
        self._connection.close()
