"""Histories in the rows of a SqliteSaver or PostgresSaver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, final

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointConflictError
from savers._log.past_checkpoint import read_past
from savers._sql.row_log_reader import RowLogReader
from savers._sql.row_views import LiveHistory, RowAncestorReader, RowHistories, RowView, ScannedRows
from savers._sql.saver import SqlSaver
from savers._sql.terms import list_search_terms
from savers.langgraph.histories import (
    EARLY,
    CheckpointWithWrites,
    Histories,
    PutNext,
    Result,
    make_early_config,
)
from savers.langgraph.known_rows import KnownRows
from savers.langgraph.selection import LAST_ID, NewestFirst, Query, Selected, Selection, merge

if TYPE_CHECKING:
    from savers._log.history_view import AncestorReader, HistoryView
    from savers._log.past_checkpoint import PastCheckpoint
    from savers._sql.row_log import RowLog
    from savers._sql.row_store import RowStore
    from savers.langgraph.writes import TaskWrites

_MAX_KEPT: Final = 64 << 20
"""The bytes of histories that a listing of the whole store keeps until their states are read."""
_ALL: Final = 1 << 62
"""More than any database has, and a number that each of them takes."""
_MAX_THREADS: Final = 4096
"""Of how many threads is remembered whether they have a namespace of early writes."""
_FEWEST_OPENED: Final = 16
"""A listing with a limit reads the ends of at least so many histories with one statement."""
_FEWEST_LISTED: Final = 16
"""And looks at least at so many of them."""
_FILTERED: Final = 4
"""With a filter, it looks at so many times as many: not each of them contributes."""
_MOST_PAIRS: Final = 8
"""It has at most so many conditions on the index; each checkpoint is compared with the filter anyway."""


@final
class SqlHistories(Histories[SqlSaver]):
    """The histories in a saver on a database. Early writes wait in their history."""

    def __init__(self, saver: SqlSaver) -> None:
        super().__init__(saver)
        self._has_early: dict[str, bool] = {}
        """By thread: whether it had a namespace of early writes, which only a copy of a store of
        files has."""
        self._known = KnownRows()

    @property
    def _store(self) -> RowStore:
        return self.saver._store  # noqa: SLF001 - a part of the same package

    def put_next(self, history: RunnableConfig, put_next: PutNext) -> None:
        def append(log: RowLog) -> bool:
            try:
                checkpoint = put_next(log)
            except CheckpointConflictError:
                # As far as the log is known here; another process may have deleted the history.
                log.discard()
                log.refresh()
                checkpoint = put_next(log)
            if checkpoint is not None:
                _put(log, checkpoint)
            return checkpoint is None

        self.saver._append(history, append)  # noqa: SLF001 - a part of the same package

    def put_writes(self, history: RunnableConfig, checkpoint_id: str | None, writes: TaskWrites) -> None:
        packed, keep = writes
        self.saver._put_langgraph_writes(history, checkpoint_id, packed, keep)  # noqa: SLF001 - a part of the same package

    def call_without_waiting(
        self, target: RunnableConfig, call: Callable[[], Result], *, appends: bool
    ) -> tuple[Result] | None:
        return self.saver._call_without_waiting(target, call, appends=appends)  # noqa: SLF001 - a part of the same package

    def read(self, config: RunnableConfig) -> CheckpointWithWrites | None:
        """As in Histories, with one statement where two methods of the saver would take two."""

        def read_both(log: RowLog) -> CheckpointWithWrites | None:
            stored = log.find(config.checkpoint_id)
            if stored is None:
                return None
            return CheckpointWithWrites(stored.make_checkpoint(log.load_state(stored)), log.read_writes(stored))

        return self.saver._read(config, read_both, None)  # noqa: SLF001 - a part of the same package

    def read_past(self, config: RunnableConfig) -> PastCheckpoint | None:
        wanted = config.checkpoint_id
        if wanted is None:
            return None
        owner = (config.thread, config.checkpoint_ns)
        log = self._store.logs.find((*owner, 0))
        if log is None or log.fd < 0:
            past = self._store.new_past(*owner)
            found = past.read(wanted)
            if past.is_alone:
                self._remember_early(config.thread, has_early=False)
        else:
            found = self.saver._read(config, lambda log: read_past(log, log.locate(wanted), wanted), None)  # noqa: SLF001 - a part of the same package
        return None if self.has_early(config) else found

    def has_early(self, history: RunnableConfig) -> bool:
        """As in Histories. The statement that has opened the history usually knows."""
        known = self._has_early.get(history.thread)
        if known is None:
            known = not self._is_alone(history) and self._find_early(history.thread)
            self._remember_early(history.thread, has_early=known)
        return known

    def _is_alone(self, history: RunnableConfig) -> bool:
        """Return whether a history that is open was the only live one of its thread when it was opened."""
        log = self._store.logs.find((history.thread, history.checkpoint_ns, 0))
        return isinstance(log, RowLogReader) and log.is_alone

    def _find_early(self, thread: str) -> bool:
        return any(name.startswith(EARLY) for name in self.saver.namespaces(thread))

    def _remember_early(self, thread: str, *, has_early: bool) -> None:
        if len(self._has_early) >= _MAX_THREADS:
            self._has_early.clear()
        self._has_early[thread] = has_early

    def open_ancestors(self, history: RunnableConfig) -> AncestorReader:
        return RowAncestorReader(self._store, history.thread, history.checkpoint_ns)

    def find_histories(self, key: str, values: Iterable[object]) -> Iterator[RunnableConfig]:
        """As in Histories. An index finds them."""
        numbers: set[int] = set()
        rows = RowHistories(self._store)
        for value in values:
            pairs = list_search_terms({key: value})
            if not pairs:
                yield from super().find_histories(key, values)
                return
            numbers |= rows.find_by_terms(pairs[0])
        for live in rows.list_live() if numbers else []:
            if live.history in numbers and not live.namespace.startswith(EARLY):
                yield RunnableConfig(live.thread_id, checkpoint_ns=live.namespace)

    # Listing

    def select(self, thread: str, namespace: str | None, query: Query) -> Iterable[Selected]:
        names = [namespace] if namespace is not None else self.list_namespaces(thread)
        views = [RowView(self._store, thread, name) for name in names if not name.startswith(EARLY)]
        return merge([Selection(view, query).run() for view in views], query)

    def select_from_all(self, query: Query) -> Iterable[Selected]:
        """As in Histories. A few statements read thousands of histories."""
        rows = RowHistories(self._store)
        # A filter for None also accepts metadata without the key.
        known = {key: value for key, value in query.filter.items() if value is not None}
        pairs = list_search_terms(known)[:_MOST_PAIRS]
        if query.limit is not None and query.before is None and query.checkpoint_id is None:
            selected = _select_newest(rows, query, pairs)
            if selected is not None:
                return selected
        histories, early = _list_histories(rows, pairs)

        def is_only(thread_id: str) -> bool:
            return thread_id not in early

        if query.limit is not None:
            selected = _NewestFirst(rows, histories, is_only, query).run()
            if selected is not None:
                return selected
        return self._select_whole(rows, histories, is_only, query)

    def _select_whole(
        self, rows: RowHistories, histories: Sequence[LiveHistory], is_only: Callable[[str], bool], query: Query
    ) -> Iterable[Selected]:
        kept = 0
        selections: list[list[Selected]] = []
        known = [self._known.find(live, is_only=is_only(live.thread_id)) for live in histories]
        missing = [live for live, view in zip(histories, known, strict=True) if view is None]
        read = iter(rows.read_whole(missing, is_only, keeps_contents=True))
        for live, known_view in zip(histories, known, strict=True):
            view: HistoryView = next(read)[1] if known_view is None else known_view
            selected = Selection(view, query).run()
            selections.append(selected)
            kept += live.last
            if kept > _MAX_KEPT:
                # Its rows are read again when its states are.
                view.forget()
                continue
            if known_view is None and isinstance(view, ScannedRows):
                view.make_states([one.stored for one in selected])
                self._known.keep(live, view)
            if not selected:
                self.release(view)
        return merge(selections, query)

    def release(self, view: HistoryView) -> None:
        if not isinstance(view, ScannedRows) or not self._known.has(view):
            view.forget()

    # Removing

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        self.saver.remove(history, ids)
        if self.has_early(history):
            self.saver.remove(make_early_config(history), ids)

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        return bool(self.saver.delete_idle(thread_id, idle_since=idle_since, dry_run=dry_run))

    def describe(self) -> str:
        return self.saver._database.path  # noqa: SLF001 - a part of the same package


def _list_histories(
    rows: RowHistories, pairs: Sequence[tuple[int, int]]
) -> tuple[Sequence[LiveHistory], Collection[str]]:
    """Return the histories that the index finds, and those of their threads that have early writes."""
    if pairs:
        # Where few match, this takes a fraction of the time of a row for each history.
        found = rows.list_newest(_ALL, EARLY, pairs)
        assert found is not None
        return found.histories, found.threads_with_aside
    histories = rows.list_live()
    early = {live.thread_id for live in histories if live.namespace.startswith(EARLY)}
    return [live for live in histories if not live.namespace.startswith(EARLY)], early


def _select_newest(rows: RowHistories, query: Query, pairs: Sequence[tuple[int, int]]) -> Sequence[Selected] | None:
    """Return the newest checkpoints of the store; None if more histories must be looked at."""
    assert query.limit is not None
    count = max(query.limit, _FEWEST_LISTED) * (_FILTERED if query.filter else 1)
    newest = rows.list_newest(min(count + 1, _ALL), EARLY, pairs)
    if newest is None:
        return None

    def is_only(thread_id: str) -> bool:
        return thread_id not in newest.threads_with_aside

    return _NewestFirst(rows, newest.histories, is_only, query, newest.bound).run()


def _put(log: RowLog, checkpoint: Checkpoint) -> None:
    """Append a checkpoint, which replaces one of the same id."""
    is_present = log.fd >= 0 and not log.lacks(checkpoint.id)
    log.put(checkpoint, checkpoint.id if is_present else None)


class _NewestFirst(NewestFirst[LiveHistory]):
    """Selects checkpoints from as few histories as possible, read with as few statements."""

    def __init__(
        self,
        rows: RowHistories,
        histories: Sequence[LiveHistory],
        is_only: Callable[[str], bool],
        query: Query,
        bound: str | None = None,
    ) -> None:
        super().__init__(query, bound)
        self._is_only = is_only
        self._rows = rows
        self._histories = histories
        self._views: Iterator[tuple[LiveHistory, HistoryView]] = iter(())
        """The histories whose ends were read by the last statement, in the order in which they are opened."""
        self._count = 0
        """Of how many histories the ends were read so far."""

    def _find_histories(self) -> None:
        for number, live in enumerate(self._histories):
            self._closed.append((live.newest_id or LAST_ID, -number, live))

    def _open_views(self, key: LiveHistory) -> Sequence[HistoryView]:
        found = next(self._views, None)
        if found is None:
            wanted = max(_FEWEST_OPENED, self._query.limit or 0, self._count)
            self._count += wanted
            batch = [key, *(live for _, _, live in self._closed[: -wanted - 1 : -1])]
            self._views = iter(self._rows.read_tails(batch, self._is_only))
            found = next(self._views)
        live, view = found
        assert live is key
        return [view]

    def _release(self, view: HistoryView) -> None:
        view.forget()
