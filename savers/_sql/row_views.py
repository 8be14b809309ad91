"""Views of histories in rows, for callers that read some of their checkpoints later.

Rows never change, so a view need not ask whether its history is still as it was: it shows the
history as it was read. If the history was deleted or rewritten meanwhile, its rows are missing, and
`read` returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.errors import CheckpointerError
from savers._log.frame import IncompleteLog, digest_thread
from savers._log.history_view import ReadCheckpoint, SharedLogAncestors, SharedLogView, Visit, walk_back_in
from savers._log.scanned_log import BytesLog, LogBytes, ScannedLog
from savers._sql.encoded_text import UUID_BYTES, decode_id, decode_row
from savers._sql.row_log import RowLog

if TYPE_CHECKING:
    from savers._log.history_view import HistoryView
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Row
    from savers._sql.row_store import RowStore

LONGEST_SCAN: Final = 1 << 20
"""Histories of more bytes are not read as a whole: reading from the end costs less."""
_BATCH_BYTES: Final = 16 << 20
"""One statement reads histories of about so many bytes."""
_BATCH_HISTORIES: Final = 500
"""And at most so many of them."""


class LiveHistory(NamedTuple):
    """A live history that was not read yet."""

    history: int
    thread_id: str
    namespace: str
    keyframe: int
    """The position of the last keyframe."""
    last: int
    """The position of the last record: about the length of the history."""
    newest_id: str | None
    """The id of the newest checkpoint; None if the row does not have all of it, or the checkpoint that was
    written last replaces another one."""

    @property
    def owner(self) -> tuple[str, str]:
        """The thread and the namespace."""
        return self.thread_id, self.namespace


class NewestHistories(NamedTuple):
    """The live histories with the newest checkpoints."""

    histories: Sequence[LiveHistory]
    """In the order of threads and namespaces."""
    bound: str | None
    """The newest checkpoint of each other history has this id or a lesser one; None if there is no other."""
    threads_with_aside: frozenset[str]
    """Their threads that have a namespace which was left out."""


@final
class RowView(SharedLogView[RowLog]):
    """A view of a history whose log the saver keeps open."""

    def __init__(self, store: RowStore, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self._store = store

    def _open(self) -> RowLog:
        return self._store.shared_log(self.thread_id, self.namespace)

    def _refresh(self, reader: RowLog) -> bool:
        return reader.refresh()

    def _account(self, reader: RowLog) -> None:
        self._store.logs.account(reader)

    def _is_as_it_was(self, reader: RowLog) -> bool:
        # Asks for no new rows: a listing of a long history reads thousands of checkpoints.
        return reader.fd >= 0 and reader.fid == self._fid

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        reader = self._open()
        with reader.mutex:
            if not self._is_as_it_was(reader):
                return None
            found = _read_or_none(reader, stored)
            self._store.logs.account(reader)
            return found


@final
class RowAncestorReader(SharedLogAncestors[RowLog]):
    """Reads checkpoints of a history whose log the saver keeps open; an AncestorReader."""

    def __init__(self, store: RowStore, thread_id: str, namespace: str) -> None:
        super().__init__(thread_id, namespace)
        self._store = store
        self._is_current = False
        """Whether the rows that are new were taken in: once for a walk."""

    def _open(self) -> RowLog:
        return self._store.shared_log(self.thread_id, self.namespace)

    def _refresh(self, reader: RowLog) -> bool:
        if not self._is_current or reader.fd < 0:
            self._is_current = reader.refresh()
        return self._is_current

    def _account(self, reader: RowLog) -> None:
        self._store.logs.account(reader)


@final
class TailView:
    """A view of a history whose last records were read together with those of others; a HistoryView."""

    def __init__(self, log: RowLog, *, is_only: bool) -> None:
        self.is_only = is_only
        self.thread_id = log.thread_id
        self.namespace = log.namespace
        self._log = log

    def walk_back(self, visit: Visit, expected: int | None) -> None:
        """See HistoryView."""
        with self._log.mutex:
            walk_back_in(self._log, visit, expected or 0)

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        """See HistoryView."""
        with self._log.mutex:
            return _read_or_none(self._log, stored)

    def forget(self) -> None:
        """Drop the states that were read."""
        self._log.drop_caches()


def _read_or_none(log: RowLog, stored: StoredCheckpoint) -> ReadCheckpoint | None:
    """Return a checkpoint of a log; None if its history was deleted or rewritten."""
    history = log.fd
    try:
        return ReadCheckpoint(log.load_state(stored), log.read_writes(stored))
    except CheckpointerError:
        if log.refresh() and log.fd == history:
            raise
        return None


@final
class ScannedRows(ScannedLog):
    """A view of a short history whose rows were read together with those of others."""

    def __init__(self, store: RowStore, live: LiveHistory, *, is_only: bool) -> None:
        super().__init__(store.database.path, live.owner, store.codec, is_opaque=False)
        self.is_only = is_only
        self._store = store
        self.history = live.history
        """The number of the history."""

    def scan(self, data: bytes, *, keeps_contents: bool) -> bool:
        """Find the checkpoints in the rows; return False if they must be read in another way."""
        try:
            return self._scan(data, keeps_contents=keeps_contents)
        except (CheckpointerError, IncompleteLog):
            # The other way finds out what is wrong.
            return False

    def _new_reader(self) -> BytesLog:
        owner = (self.thread_id, self.namespace)
        return BytesLog(LogBytes(b""), self.path, owner, digest_thread(self.thread_id), self._codec, None)

    def _get_current_bytes(self) -> bytes | None:
        if self._data is None:
            rows = self._store.database.read(self._store.statements.select_frames, (self.history,))
            data = b"".join([frame for (frame,) in rows])[: self.end]
            if len(data) < self.end:
                return None
            self._keep_bytes(data)
        return self._data


class RowHistories:
    """The live histories in one database, for listings of all of them: a few statements read thousands."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def list_live(self, pairs: Sequence[tuple[int, int]] = ()) -> list[LiveHistory]:
        """Return the histories that have checkpoints, in the order of threads and namespaces.

        Args:
            pairs: return only those with a term of each of these pairs; see `list_search_terms`.
        """
        terms = [term for pair in pairs for term in pair]
        rows = self._store.database.read(self._store.statements.select_live(len(pairs)), terms)
        self._store.database.check_absence(None)
        return [_make_live(row) for row in rows]

    def list_newest(self, count: int, aside: str, pairs: Sequence[tuple[int, int]] = ()) -> NewestHistories | None:
        """Return the histories with the newest checkpoints, by their ids.

        The cost is one statement, which looks at the end of each live history.

        Args:
            count: about how many.
            aside: namespaces with this prefix, which is printable ASCII, are left out.
            pairs: as in `list_live`.

        Returns:
            None if so many histories have other ids than UUIDs: their order is not that of the index.
        """
        names = aside, aside[:-1] + chr(ord(aside[-1]) + 1)
        sql = self._store.statements.select_newest(len(pairs))
        terms = [term for pair in pairs for term in pair]
        rows = self._store.database.read(sql, (*terms, *names, count, *names))
        self._store.database.check_absence(None)
        found = [_make_live(row[:-1]) for row in rows]
        with_aside = frozenset(live.thread_id for live, row in zip(found, rows, strict=True) if row[-1])
        if len(rows) < count:
            return NewestHistories(found, None, with_aside)
        uuids = [newest for *_, newest, _ in rows if newest is not None and len(newest) == UUID_BYTES]
        if not uuids:
            return None
        bound = decode_id(min(uuids))
        # Others may have the same id as the last one.
        known = [live for live in found if live.newest_id != bound]
        return NewestHistories(known, bound, with_aside)

    def find_by_terms(self, terms: tuple[int, int]) -> set[int]:
        """Return the histories with a checkpoint whose metadata have one of two terms, also released ones."""
        rows = self._store.database.read(self._store.statements.select_by_terms, terms)
        return {history for (history,) in rows}

    def read_whole(
        self, histories: Sequence[LiveHistory], is_only: Callable[[str], bool], *, keeps_contents: bool = False
    ) -> Iterable[tuple[LiveHistory, HistoryView]]:
        """Yield views of histories, each read as a whole unless it is long.

        Args:
            histories: the histories.
            is_only: returns whether a thread has no namespace of early writes.
            keeps_contents: whether the caller calls `make_states` of each view that is scanned.
        """
        for batch in _split(histories, _measure_whole):
            data = self._read_batch(self._store.statements.select_frames_of, batch, _measure_whole)
            for live in batch:
                view = ScannedRows(self._store, live, is_only=is_only(live.thread_id))
                rows = data.get(live.history)
                if rows is not None and view.scan(b"".join([row[-1] for row in rows]), keeps_contents=keeps_contents):
                    yield live, view
                else:
                    # It is long, damaged, or was deleted or rewritten.
                    yield live, RowView(self._store, *live.owner)

    def read_tails(
        self, histories: Sequence[LiveHistory], is_only: Callable[[str], bool]
    ) -> Iterable[tuple[LiveHistory, HistoryView]]:
        """Yield views of histories, of which the records from the last keyframe on were read.

        The arguments are those of `read_whole`.
        """
        for batch in _split(histories, _measure_tail):
            data = self._read_batch(self._store.statements.select_tails_of, batch, _measure_tail)
            for live in batch:
                log = self._open_tail(live, data.get(live.history))
                if log is None:
                    yield live, RowView(self._store, *live.owner)
                else:
                    yield live, TailView(log, is_only=is_only(live.thread_id))

    def _open_tail(self, live: LiveHistory, rows: Sequence[Row] | None) -> RowLog | None:
        if not rows or rows[0][2] != 0:
            return None
        log = self._store.new_log(*live.owner)
        try:
            log.open_rows(live.history, rows)
        except CheckpointerError:
            return None
        return log

    def _read_batch(
        self, make_sql: Callable[[int], str], batch: Sequence[LiveHistory], measure: Callable[[LiveHistory], int]
    ) -> dict[int, list[Row]]:
        """Return the rows of histories, by the number of the history; none of those that are long."""
        numbers = [live.history for live in batch if measure(live) <= LONGEST_SCAN]
        found: dict[int, list[Row]] = {}
        if numbers:
            for row in self._store.database.read(make_sql(len(numbers)), numbers):
                found.setdefault(row[0], []).append(row)
        return found


def _make_live(row: Row) -> LiveHistory:
    history, thread, long_thread, namespace, long_namespace, keyframe, last, newest = row
    newest_id = None if newest is None else _decode_whole(newest)
    thread_id = decode_row(thread, long_thread)
    return LiveHistory(history, thread_id, decode_row(namespace, long_namespace), keyframe, last or 0, newest_id)


def _decode_whole(encoded: bytes) -> str | None:
    """Return the id of a checkpoint; None if the column does not have all of it."""
    try:
        return decode_id(encoded)
    except ValueError:
        return None


def _measure_whole(live: LiveHistory) -> int:
    return live.last


def _measure_tail(live: LiveHistory) -> int:
    return live.last - live.keyframe


def _split(histories: Sequence[LiveHistory], measure: Callable[[LiveHistory], int]) -> Iterable[list[LiveHistory]]:
    """Yield histories in batches, each read by one statement."""
    batch: list[LiveHistory] = []
    size = 0
    for live in histories:
        length = measure(live)
        if length > LONGEST_SCAN:
            length = 0
        if batch and (size + length > _BATCH_BYTES or len(batch) >= _BATCH_HISTORIES):
            yield batch
            batch = []
            size = 0
        batch.append(live)
        size += length
    if batch:
        yield batch
