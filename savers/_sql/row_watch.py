"""RowSource: the histories of a database that a watch reads.

The database signals which threads have changed, or that any may have. For these threads one
statement lists where each history ends. A number of a history never returns: a history whose row is
gone was deleted, or rewritten as another one that has its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final, final

from graphkit.saver_kit import Change, is_namespace_inside
from savers._log.log_watch import DAMAGE, MARKED, Bookmark, ChangeReader, FoundLog, LogSource, Place
from savers._sql.columns import decode_id, decode_row, encode_text

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._sql.database import Row
    from savers._sql.row_store import RowLog, RowStore

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@final
class RowSource(LogSource):
    """The histories of a database; their ids are their numbers."""

    def __init__(self, store: RowStore, config: RunnableConfig | None, interval: float) -> None:
        """Begin to listen.

        Args:
            store: the histories.
            config: what to follow; None: all threads.
            interval: seconds between two looks at the run locks of threads that run.
        """
        self._store = store
        self._namespace = "" if config is None else config.checkpoint_ns
        self._interval = interval
        ((newest,),) = store.database.read(store.statements.select_newest_history)
        self._newest: int = newest or 0
        """Released histories up to this number are no news."""
        self._reported: set[int] = set()
        """The histories above whose release was reported."""
        self._listed: dict[str, list[FoundLog]] = {}
        """What one statement has listed of all threads, until `list_logs` returns it."""
        self._changed: set[str] = set()
        """Threads with changes since the run locks were looked at."""
        self._running: dict[str, object] = {}
        """Threads whose run lock was held then, with the marks of their locks."""
        self._locks_due = 0.0
        thread_id = None if config is None else config.thread
        self._only = None if thread_id is None else encode_text(thread_id)
        """The encoded id of the only thread to follow; None: all threads."""
        self.signals = self._listener = store.database.changes.open_listener(self._only)

    def close(self) -> None:
        self._listener.close()

    # Listing

    def list_threads(self) -> Collection[str]:
        self._listed = {}
        for found in self._list(self._only):
            self._listed.setdefault(found.place.thread, []).append(found)
        return list(self._listed)

    def list_logs(self, thread: str) -> list[FoundLog]:
        if self._only not in {None, thread}:
            return []  # SQLite notifies each listener of all threads.
        listed = self._listed.pop(thread, None)
        if listed is None:
            listed = self._list(thread)
        inside = [found for found in listed if is_namespace_inside(found.place.namespace, self._namespace)]
        return [found for found in inside if found.mark.id not in self._reported]

    def _list(self, thread: str | None) -> list[FoundLog]:
        statements = self._store.statements
        if thread is None:
            rows = self._store.database.read(statements.list_ends, (self._newest,))
        else:
            rows = self._store.database.read(statements.list_ends_of_thread, (self._newest, thread))
        return [_read_row(row) for row in rows]

    def find_log(self, mark: Bookmark) -> FoundLog | None:
        # A release of a history that was there when the watch began is not listed.
        found = self._find(mark.id)
        if found is not None or not mark.last or mark.owner is None:
            return found
        # A rotation of the keys rewrites a released history under a number of its own, which is not listed: most of
        # these were released long ago. The last checkpoint shows it, unless that is in the live history, which was then
        # rewritten itself.
        for version in (0, *reversed(self._store.list_versions(mark.owner[0]))):
            log = self._store.new_log(*mark.owner, version)
            with suppress(*DAMAGE):
                if log.refresh() and log.history.find(mark.last) is not None:
                    return self._find(self.identify(log)) if version else None
        return None

    def _find(self, number: int) -> FoundLog | None:
        rows = self._store.database.read(self._store.statements.select_end, (number,))
        return _read_row(rows[0]) if rows else None

    def note_reported(self, found: FoundLog) -> None:
        self._reported.add(found.mark.id)

    # Reading

    def new_reader(self, found: FoundLog) -> ChangeReader | None:
        assert found.mark.owner is not None
        medium = self._store.new_medium(*found.mark.owner, number=found.mark.id)
        return ChangeReader(self._store.make_log(medium, *found.mark.owner), lambda: None)

    def identify(self, log: RowLog) -> int:
        return log.frames.bytes.history

    # Run locks

    def note_change(self, thread_id: str) -> None:
        self._changed.add(thread_id)

    def check_run_locks(self) -> Generator[Change, None, float]:
        """Report the threads whose run lock was held and is free now."""
        if monotonic() >= self._locks_due:
            locks = self._store.database.run_locks
            self._locks_due = monotonic() + self._interval
            for thread_id in sorted(self._changed.union(self._running)):
                # Read first: a holder that has let the lock go since then has changed it.
                mark = locks.read_mark(thread_id)
                if locks.is_held(thread_id):
                    self._running[thread_id] = mark
                elif thread_id in self._running:
                    has_died = locks.is_abandoned(thread_id, self._running.pop(thread_id))
                    yield Change("idle", thread_id, "", value=has_died)
                self._changed.discard(thread_id)
        return self._locks_due if self._changed or self._running else inf


def _read_row(row: Row) -> FoundLog:
    """Return a row of `Statements.list_ends` as a log."""
    number, thread, long_thread, namespace, long_namespace, version, released, end, last, status = row
    owner = (decode_row(thread, long_thread), decode_row(namespace, long_namespace))
    last_id = None if last is None else decode_id(bytes(last))
    if status == "incomplete":
        last_id = MARKED
    mark = Bookmark(number, end or 0, owner, last_id, reports_end=last is not None)
    released_at = None if released is None else _EPOCH + timedelta(microseconds=released)
    return FoundLog(Place(thread, owner[1]), mark, version, released_at)
