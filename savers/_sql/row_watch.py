"""Follows a database: which histories have grown, ended or been replaced.

Theory of operation. The database tells which threads have changed, or that any may have. For these
threads one statement lists where each history ends, and what is behind the bookmark of a history is
read from its records. So a superfluous notification does no harm, and a change that was committed
while the watch was being set up needs none. A number of a history never returns: a history whose
row is gone was deleted, or rewritten as another one that has its last checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit import RunnableConfig
from graphkit.abc import BaseCheckpointSaver, Change, Watch, is_namespace_inside
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointSerializationError,
)
from savers._log.change_reader import ChangeReader
from savers._sql.encoded_text import decode_row, encode_id, encode_text

if TYPE_CHECKING:
    from savers._sql.database import Row
    from savers._sql.row_store import RowStore

_MAX_OPEN_LOGS: Final = 64
_FULL_READ_INTERVAL: Final = 60.0
"""Seconds after which all histories are read if every change is told, because a connection may be
cut off without a sign."""
_PAUSE_PER_READ: Final = 10.0
"""The pause after a read of all histories is at least this many times as long as the read."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER: Final = getLogger("graphkit")


class _History(NamedTuple):
    """A history as the database lists it."""

    number: int
    thread_id: str
    namespace: str
    version: int
    """0: live; above: released."""
    released: int | None
    """When it was released, in microseconds since 1970."""
    end: int
    """Where its log ends."""
    last: bytes | None
    """The encoded id of its last checkpoint; None if it has none."""


class _Bookmark(NamedTuple):
    """How far a history has been reported."""

    thread_id: str
    namespace: str
    end: int
    last: bytes | None
    """The encoded id of the last checkpoint that was reported, or is not to be."""


@final
class RowWatch(Watch):
    """Reports the changes of a database, whichever process makes them."""

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        store: RowStore,
        config: RunnableConfig | None,
        *,
        latest: bool,
        interval: float,
    ) -> None:
        """Begin to follow a database; see `BaseCheckpointSaver.watch`.

        Args:
            saver: the saver of the database, which tells the status of a thread.
            store: the histories.
            config: what to follow.
            latest: begin with the latest checkpoint of each history.
            interval: seconds between two reads of all histories, if the database does not tell every
                change; and between two looks at the run locks of threads that run.
        """
        super().__init__(interval)
        self._saver = saver
        self._store = store
        self._config = config
        self._only = None if config is None else encode_text(config.thread)
        """The encoded id of the only thread to follow; None: all threads."""
        self._bookmarks: dict[str, dict[int, _Bookmark]] = {}
        """The bookmarks of live histories, by the encoded id of the thread and the number."""
        self._ended: set[int] = set()
        """The histories whose release was reported."""
        self._latest_first: set[int] = set()
        """The histories whose latest checkpoint must be reported first."""
        self._followers: OrderedDict[int, ChangeReader] = OrderedDict()
        """The open logs, the least recently used first."""
        self._changed: set[str] = set()
        """Threads with changes since the run locks were looked at."""
        self._running: dict[str, object] = {}
        """Threads whose run lock was held then, with the marks of their locks."""
        self._locks_due = 0.0
        self._listener = store.database.open_listener(None if config is None else config.thread)
        self._condition = self._listener.condition
        try:
            self._newest = 0
            self._set_start(latest=latest)
        except BaseException:
            self._listener.close()
            raise

    def _set_start(self, *, latest: bool) -> None:
        """Decide where reading each history begins."""
        self._full_read_at = monotonic()
        self._newest = self._store.find_newest_history()
        """Released histories up to this number are no news."""
        for row in self._list(self._only):
            thread, history = row
            if self._is_followed(history):
                self._set_bookmark(thread, history)
                if latest:
                    self._latest_first.add(history.number)
        config = self._config
        if config is not None and config.checkpoint_id is not None:
            self._begin_behind(config)
        elif not latest:
            self._full_read_at = self._next_full_read(0.0)

    def _begin_behind(self, config: RunnableConfig) -> None:
        """Set the bookmark of a history behind the record of a checkpoint."""
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex:
            checkpoint = log.find(config.checkpoint_id) if log.refresh() else None
            if checkpoint is None:
                return
            number = log.frames.bytes.history
            last = encode_id(checkpoint.id)
            bookmark = _Bookmark(config.thread, config.checkpoint_ns, checkpoint.end, last)
            self._bookmarks.setdefault(encode_text(config.thread), {})[number] = bookmark
            self._latest_first.discard(number)

    def _is_followed(self, history: _History) -> bool:
        return self._config is None or is_namespace_inside(history.namespace, self._config.checkpoint_ns)

    # Waiting

    def _wait(self, deadline: float | None) -> bool:
        while not self._is_interrupted:
            due = self._full_read_at
            if self._changed or self._running:
                due = min(due, self._locks_due)
            if monotonic() >= due:
                break
            if self._listener.wait_for_change(due if deadline is None else min(deadline, due)):
                break
            if deadline is not None and monotonic() >= deadline:
                return False
        return True

    def _notify(self) -> None:
        self._listener.wake()

    def close(self) -> None:
        self._is_closed = True
        self._listener.wake()
        super().close()

    def _close_resources(self) -> None:
        self._listener.close()
        self._followers.clear()

    def _next_full_read(self, duration: float) -> float:
        """Return when all histories must be read again, after a read of some seconds."""
        interval = _FULL_READ_INTERVAL if self._listener.hears_all else self._interval
        return monotonic() + max(interval, _PAUSE_PER_READ * duration)

    # Listing

    def _list(self, thread: str | None) -> list[tuple[str, _History]]:
        """Return the histories of a thread (None: of all) that are live, or newer than the watch.

        Returns:
            The encoded id of the thread and the history, ordered by these and by number.
        """
        return [(row[1], _make_history(row)) for row in self._store.list_ends(thread, self._newest)]

    def _find(self, number: int) -> _History | None:
        rows = self._store.find_end(number)
        return _make_history(rows[0]) if rows else None

    # Reading

    def _read_changes(self) -> Generator[Change, None, None]:
        threads = self._listener.take_threads()
        try:
            if threads is None or monotonic() >= self._full_read_at:
                yield from self._read_all_threads()
            else:
                yield from self._read_threads(sorted(threads))
            if monotonic() >= self._locks_due:
                yield from self._check_run_locks()
        except Exception:
            # The next call reads what was not read yet.
            self._full_read_at = monotonic()
            raise

    def _read_all_threads(self) -> Iterator[Change]:
        started = monotonic()
        listed = self._list(self._only)
        self._full_read_at = self._next_full_read(monotonic() - started)
        missing = set(self._bookmarks)
        for thread, group in groupby(listed, key=lambda row: row[0]):
            missing.discard(thread)
            yield from self._read_thread(thread, [history for _, history in group])
        for thread in sorted(missing):
            yield from self._read_thread(thread, [])

    def _read_threads(self, threads: Iterable[str]) -> Iterator[Change]:
        for thread in threads:
            if self._only is None or thread == self._only:
                yield from self._read_thread(thread, [history for _, history in self._list(thread)])

    def _read_thread(self, thread: str, listed: list[_History]) -> Iterator[Change]:
        """Yield the changes of the histories of a thread, older ones first."""
        found = {history.number: history for history in listed if self._is_followed(history)}
        bookmarks = dict(self._bookmarks.get(thread, {}))
        gone: dict[str, _Bookmark] = {}
        for number in sorted({*found, *bookmarks}):
            # One that is not listed was released, or its row is gone.
            history = found.get(number) or self._find(number)
            if history is None:
                mark = bookmarks[number]
                gone[mark.namespace] = mark
                self._forget(thread, number)
            elif number not in self._ended:
                replaced = gone.pop(history.namespace, None)
                yield from self._read_history(thread, history, bookmarks.get(number), replaced)
        for mark in gone.values():
            yield from _end(mark)

    def _read_history(
        self,
        thread: str,
        history: _History,
        mark: _Bookmark | None,
        replaced: _Bookmark | None,
    ) -> Iterator[Change]:
        """Yield what is new in a history, and its end.

        Args:
            thread: the encoded id of the thread.
            history: the history.
            mark: its bookmark, if there is one.
            replaced: the bookmark of the history that was there before, and whose row is gone.
        """
        try:
            if mark is None or mark.end < history.end or history.number in self._latest_first:
                for change in self._read_log(history, mark, replaced):
                    self._changed.add(history.thread_id)
                    yield change
        except (CheckpointCorruptionError, CheckpointFormatError, CheckpointSerializationError) as error:
            self._followers.pop(history.number, None)
            if self._find(history.number) is None:
                # It was deleted meanwhile; the next read reports that.
                self._full_read_at = monotonic()
                return
            _LOGGER.warning("changes are not reported here: %s", error)
        except CheckpointerError:
            self._followers.pop(history.number, None)
            raise
        self._latest_first.discard(history.number)
        # It may have grown since it was listed.
        self._set_bookmark(thread, self._describe_end(history))
        if history.version:
            self._forget(thread, history.number)
            self._ended.add(history.number)
            if history.last is not None:
                at = None if history.released is None else _EPOCH + timedelta(microseconds=history.released)
                yield Change("release", history.thread_id, history.namespace, at=at)

    def _read_log(
        self,
        history: _History,
        mark: _Bookmark | None,
        replaced: _Bookmark | None,
    ) -> Iterator[Change]:
        if replaced is not None:
            follower = self._open(history, history.end)
            last = _find_id(follower, replaced.last)
            if last is not None:
                yield from follower.changes_after(last)
                return
            self._followers.pop(history.number)
            yield from _end(replaced)
        follower = self._open(history, 0 if mark is None else mark.end)
        if history.number in self._latest_first:
            yield from follower.latest_changes(self._saver)
        yield from follower.read_changes()

    def _open(self, history: _History, end: int) -> ChangeReader:
        """Return the log of a history, read up to an offset."""
        follower = self._followers.get(history.number)
        if follower is None or follower.log.frames.end != end:
            log = self._store.new_log_of(history.number, history.thread_id, history.namespace)
            follower = ChangeReader(log, lambda: None)
            if not follower.open_at(end):
                raise CheckpointCorruptionError(log.path, 0, "its first record is missing")
            self._followers[history.number] = follower
            if len(self._followers) > _MAX_OPEN_LOGS:
                self._followers.popitem(last=False)
        self._followers.move_to_end(history.number)
        return follower

    def _describe_end(self, history: _History) -> _History:
        """Return a history with its end as it was read."""
        follower = self._followers.get(history.number)
        if follower is None:
            return history
        last = follower.log.history.last
        return history._replace(end=follower.log.frames.end, last=history.last if last is None else encode_id(last.id))

    def _set_bookmark(self, thread: str, history: _History) -> None:
        last = history.last
        follower = self._followers.get(history.number)
        if follower is not None and follower.log.frames.end == history.end:
            reported = follower.last_reported
            last = None if reported is None else encode_id(reported)
        bookmark = _Bookmark(history.thread_id, history.namespace, history.end, last)
        self._bookmarks.setdefault(thread, {})[history.number] = bookmark

    def _forget(self, thread: str, number: int) -> None:
        bookmarks = self._bookmarks[thread]
        bookmarks.pop(number, None)
        if not bookmarks:
            del self._bookmarks[thread]
        self._followers.pop(number, None)
        self._latest_first.discard(number)

    # Run locks

    def _check_run_locks(self) -> Iterator[Change]:
        """Report the threads whose run lock was held and is free now."""
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


def _make_history(row: Row) -> _History:
    number, thread, long_thread, namespace, long_namespace, version, released, end, last = row
    return _History(
        number=number,
        thread_id=decode_row(thread, long_thread),
        namespace=decode_row(namespace, long_namespace),
        version=version,
        released=released,
        end=end or 0,
        last=None if last is None else bytes(last),
    )


def _find_id(follower: ChangeReader, encoded: bytes | None) -> str | None:
    """Return the id of a checkpoint of a history by its encoded form; None if it has none such."""
    for checkpoint in follower.log.history.load_index().checkpoints:
        if encode_id(checkpoint.id) == encoded:
            return checkpoint.id
    return None


def _end(mark: _Bookmark) -> Iterator[Change]:
    """Report the end of a history that was not released; one without checkpoints was never seen."""
    if mark.last is not None:
        yield Change("delete", mark.thread_id, mark.namespace)
