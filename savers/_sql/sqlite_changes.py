"""Learns of changes of a SQLite file by looking: SQLite counts commits, and notifies of none.

Theory of operation. While there are listeners, a thread reads SQLite's number of commits. Once it
has changed, the thread reads which rows are new: a row that is inserted has a higher row id than
all others. Only if the last row of before is still there, no row was deleted at the end, and no row
id was given twice. A history that has ended or was rewritten leaves no new row; those are counted
in the table of the schema's version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from graphkit.errors import CheckpointerError
from savers._sql.database import ChangeSource, WakeUp
from savers._sql.sqlite_connection import SqliteConnection

if TYPE_CHECKING:
    from savers._sql.database import Row, TableNames

_FIRST_WAIT: Final = 0.001
"""Seconds after a change, until the next look."""
_LONGEST_WAIT: Final = 0.025
"""Seconds between two looks, if nothing changes; one takes 5 us."""


def count_rewrites(names: TableNames) -> str:
    """Return the statement that counts a history that has ended or was rewritten."""
    return (
        f"INSERT INTO {names.meta} (name, value) VALUES ('rewrites', 1)"
        " ON CONFLICT (name) DO UPDATE SET value = value + 1"
    )


class SqliteChanges(ChangeSource):
    """The commits of all connections to one file."""

    hears_all = True

    def __init__(self, connect: Callable[[], SqliteConnection], names: TableNames) -> None:
        """Prepare; the first listener connects.

        Args:
            connect: opens a connection.
            names: the names of the tables.
        """
        super().__init__()
        self._connect = connect
        self._names = names

    def _start_watching(self) -> Callable[[WakeUp], None]:
        commits = _Commits(self._connect, self._names)
        commits.find_threads()
        return lambda stop: self._look(commits, stop)

    def _look(self, commits: _Commits, stop: WakeUp) -> None:
        pause = _FIRST_WAIT
        while not stop.is_woken:
            stop.wait(pause)
            threads = commits.find_threads()
            for thread in threads:
                self.notify(thread)
            pause = _FIRST_WAIT if threads else min(pause * 1.5, _LONGEST_WAIT)
        commits.close()


class _Seen(NamedTuple):
    """What was there at the last look."""

    commits: int
    rewrites: int
    last_row: Row | None
    """The row id, the history and the position of the last record; None if there was none."""


class _Commits:
    """Sees what other connections have committed; its own connection never commits."""

    def __init__(self, connect: Callable[[], SqliteConnection], names: TableNames) -> None:
        self._connect = connect
        self._connection: SqliteConnection | None = connect()
        self._seen: _Seen | None = None
        self._count_rewrites = f"SELECT coalesce(max(value), 0) FROM {names.meta} WHERE name = 'rewrites'"
        self._select_last = f"SELECT rowid, history, position FROM {names.records} ORDER BY rowid DESC LIMIT 1"
        self._select_new = (
            f"SELECT r.rowid, r.history, r.position, h.thread FROM {names.records} AS r"
            f" JOIN {names.histories} AS h ON h.history = r.history WHERE r.rowid >= ? ORDER BY r.rowid"
        )

    def find_threads(self) -> set[str | None]:
        """Return the encoded ids of the threads with new rows since the last call; None among them: any may have."""
        try:
            if self._connection is None or not self._connection.is_at_path():
                self.close()
                self._connection = self._connect()
                self._seen = None
            # First, so that a later commit is seen by the next call.
            ((commits,),) = self._read("PRAGMA data_version")
            seen = self._seen
            if seen is not None and seen.commits == commits:
                return set()
            ((rewrites,),) = self._read(self._count_rewrites)
            if seen is not None and seen.last_row is not None and seen.rewrites == rewrites:
                rows = self._read(self._select_new, seen.last_row[0])
                if rows and rows[0][:3] == seen.last_row:
                    self._seen = _Seen(commits, rewrites, rows[-1][:3])
                    return {thread for _, _, _, thread in rows[1:]}
            last_rows = self._read(self._select_last)
            self._seen = _Seen(commits, rewrites, last_rows[0] if last_rows else None)
        except CheckpointerError:
            # The watcher reads, and gets the error.
            self._seen = None
        return {None}

    def _read(self, sql: str, *parameters: object) -> list[Row]:
        assert self._connection is not None
        return self._connection.run(sql, parameters, "read")[0]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            # Even if no other one can be opened, it is never used again.
            self._connection = None
