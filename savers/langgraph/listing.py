"""Selects the checkpoints that `list` yields, and in which order, without reading states."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from savers._filesystem.history_views import (
    FileState,
    HistoryView,
    LiveLog,
    ScannedView,
    SharedView,
    ThreadScan,
    get_file_state,
    list_logs,
    scan_log,
)
from savers._filesystem.log_ends import LogEnd, read_log_end
from savers.langgraph.metadata import LANGGRAPH, MADE_BY, matches
from savers.langgraph.writes import EARLY, get_store

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.store import Store
    from savers._log.stored_checkpoint import StoredCheckpoint

_MAX_ENDS: Final = 20_000
"""How many ends of logs are remembered."""
_MAX_CHECKPOINTS: Final = 20_000
"""The most checkpoints of logs that are remembered, at about 700 bytes each."""
_LAST_ID: Final = "\U0010ffff" * 8
"""Comes after every id that a checkpoint has in practice."""
_MAX_KEPT: Final = 32 << 20
"""The bytes of logs that a listing of the whole store keeps until their states are read."""
_MAX_KEPT_BETWEEN: Final = 4 << 20
"""The bytes of logs that are kept between two listings; their states take about twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which checkpoints `list` yields."""

    filter: Mapping[str, Any]
    """Metadata keys and the values that they must have, with lists instead of tuples."""
    before: str | None
    """Only checkpoints that were written before the one with this id."""
    checkpoint_id: str | None
    """Only the checkpoint with this id."""
    limit: int | None
    """The most checkpoints to yield."""


class Selected(NamedTuple):
    """A checkpoint that `list` yields."""

    rank: str
    """Its place among the histories: the greatest comes first."""
    view: HistoryView
    stored: StoredCheckpoint
    is_last: bool = False
    """Whether nothing else of the view is needed."""


class _Selection:
    """The checkpoints of one history that a query selects, newest first.

    Histories are merged by the id of their next checkpoint, as LangGraph's SQL savers sort: its ids
    begin with the time. Then the query applies. Clocks go back, and not all ids are LangGraph's, so
    a checkpoint may have a greater id than one that was written after it, for which it then has to
    wait. Therefore its rank is the lowest id from the newest checkpoint of the log to it, whether
    the query accepts those in between or not.
    """

    def __init__(self, view: HistoryView, query: Query) -> None:
        self._view = view
        self._query = query
        self._has_passed = query.before is None
        """Whether the checkpoint was passed before which the others must have been written."""
        self._newer: list[StoredCheckpoint] = []
        """The checkpoints that were visited until then."""
        self._rank: str | None = None
        """The lowest id so far."""
        self._newer_ranks: list[str] = []
        """The ranks of `_newer`."""
        self.selected: list[Selected] = []

    def run(self) -> list[Selected]:
        """Return the checkpoints."""
        query = self._query
        wants_all = query.before is None and query.checkpoint_id is None and query.limit is None
        if wants_all and isinstance(self._view, ScannedView):
            self._take_all(self._view)
        else:
            self._take_wanted()
        if self.selected:
            rank, view, stored, _ = self.selected[-1]
            self.selected[-1] = Selected(rank, view, stored, is_last=True)
        return self.selected

    def _take_all(self, view: ScannedView) -> None:
        """Select all checkpoints of LangGraph that match, as `_take_wanted` does.

        A listing of the whole store visits all its checkpoints; three calls for each took 1 us.
        """
        wanted = self._query.filter
        rank = _LAST_ID
        for stored in reversed(view.checkpoints):
            rank = min(rank, stored.id)
            metadata = stored.metadata
            if metadata.get(MADE_BY) == LANGGRAPH and (not wanted or matches(metadata, wanted)):
                self.selected.append(Selected(rank, view, stored))

    def _take_wanted(self) -> None:
        self._view.walk_back(self._visit, self._query.limit)
        before = self._query.before
        if not self._has_passed and before is not None:
            # The history does not contain that checkpoint. Its id decides: LangGraph's ids sort by
            # time.
            for stored, rank in zip(self._newer, self._newer_ranks, strict=True):
                self._rank = rank
                if stored.id < before and not self._take(stored):
                    break

    def _visit(self, stored: StoredCheckpoint) -> bool:
        if self._rank is None or stored.id < self._rank:
            self._rank = stored.id
        if stored.metadata.get(MADE_BY) != LANGGRAPH:
            return True
        if self._has_passed:
            return self._take(stored)
        if stored.id == self._query.before:
            self._has_passed = True
        else:
            self._newer.append(stored)
            self._newer_ranks.append(self._rank)
        return True

    def _take(self, stored: StoredCheckpoint) -> bool:
        """Select a checkpoint if it matches; return whether more are wanted."""
        query = self._query
        if query.checkpoint_id is not None and query.checkpoint_id != stored.id:
            return True
        assert self._rank is not None
        if not query.filter or matches(stored.metadata, query.filter):
            self.selected.append(Selected(self._rank, self._view, stored))
        return query.limit is None or len(self.selected) < query.limit


def select_from_thread(saver: FileSystemSaver, thread: str, namespace: Any, query: Query) -> Iterable[Selected]:
    """Return the checkpoints that a query selects from a thread, or from one of its histories.

    Args:
        saver: the saver that holds them.
        thread: the thread.
        namespace: the namespace; None for all of them.
        query: which checkpoints are wanted.
    """
    # The namespaces of a thread are listed by opening their logs. The root needs no list.
    names = [""] if namespace == "" else saver.namespaces(thread)
    views = [
        SharedView(get_store(saver), thread, name)
        for name in names
        if namespace in {None, name} and not name.startswith(EARLY)
    ]
    return _merge([_Selection(view, query).run() for view in views], query)


class KnownLogs:
    """What was read of logs, as long as they stay as they are.

    A log need not be read again to know which checkpoints it has, and in which of them a filter is
    interested. With a limit, only the end of a log is read as long as others have enough newer
    checkpoints. The time at which the file was last written would not do for that: clocks go back,
    and files are copied.
    """

    def __init__(self) -> None:
        self._ends: dict[str, LogEnd] = {}
        """By path."""
        self._views: dict[str, ScannedView] = {}
        """By path."""
        self._checkpoints = 0
        """How many checkpoints these have."""
        self._kept: dict[str, int] = {}
        """The logs whose bytes and states are kept in memory, by path, with their lengths."""
        self._kept_bytes = 0
        """The sum of these."""

    def find_newest_id(self, store: Store, path: str) -> str | None:
        """Return the id of the newest checkpoint of a log; None if its end alone does not say it."""
        known = self._ends.get(path)
        if known is not None:
            status = store.io.stat_unchecked(path)
            if status is not None and get_file_state(status) == get_file_state(known.status):
                return known.newest_id
        end = read_log_end(store.io, path)
        if end is None:
            return None
        if not end.is_followed_by_zeros:
            if len(self._ends) >= _MAX_ENDS:
                self._ends.clear()
            self._ends[path] = end
        return end.newest_id

    def open_views(
        self, store: Store, logs: Sequence[LiveLog], *, are_just_listed: bool = False
    ) -> Sequence[ScannedView] | None:
        """Return views of the histories of a thread; None if a log must be read in another way.

        Args:
            store: the store.
            logs: the logs.
            are_just_listed: whether `list_logs` has just returned them.
        """
        views: list[ScannedView] = []
        for live_log in logs:
            view = self._views.get(live_log.path)
            if view is None or view.is_only != live_log.is_only or not _is_as_it_was(store, live_log, view.file_state):
                # `list_logs` has looked at the directory of the root namespace.
                view = scan_log(store, live_log, is_checked=are_just_listed and not live_log.namespace)
                if view is None:
                    return None
                self._remember(view)
            views.append(view)
        return views

    def _remember(self, view: ScannedView) -> None:
        """Remember a log that was read."""
        assert view.file_state is not None
        if view.may_change_unseen:
            return
        checkpoints = view.checkpoints
        if self._checkpoints + len(checkpoints) > _MAX_CHECKPOINTS:
            self._views.clear()
            self._kept.clear()
            self._kept_bytes = 0
            self._checkpoints = 0
        before = self._views.get(view.path)
        if before is not None:
            self._checkpoints -= len(before.checkpoints)
            self._kept_bytes -= self._kept.pop(view.path, 0)
        self._views[view.path] = view
        self._checkpoints += len(checkpoints)

    def release(self, view: HistoryView) -> None:
        """Drop the bytes of a log that was read, unless they are few: the next listing needs them."""
        if not isinstance(view, ScannedView) or self._views.get(view.path) is not view:
            view.forget()
        elif view.path not in self._kept:
            if self._kept_bytes + view.end > _MAX_KEPT_BETWEEN:
                view.forget()
            else:
                self._kept[view.path] = view.end
                self._kept_bytes += view.end

    def forget_bytes(self) -> None:
        """Drop the bytes of the other logs; what is known of their checkpoints stays."""
        for path, view in list(self._views.items()):
            if path not in self._kept:
                view.forget()


def _is_as_it_was(store: Store, live_log: LiveLog, state: FileState | None) -> bool:
    status = store.io.stat_unchecked(live_log.path)
    return status is not None and get_file_state(status) == state


def select_from_store(saver: FileSystemSaver, query: Query, known: KnownLogs) -> Iterable[Selected]:
    """Return the checkpoints that a query selects from all threads."""
    if query.limit is not None:
        selected = _NewestFirst(saver, query, known).run()
        if selected is not None:
            return selected
    return _select_from_all(saver, query, known)


def _select_from_all(saver: FileSystemSaver, query: Query, known: KnownLogs) -> Iterable[Selected]:
    store = get_store(saver)
    scan = ThreadScan(store)
    kept = 0
    selections: list[list[Selected]] = []
    for name in scan.names:
        for view in _open_thread(store, scan, name, known):
            selected = _Selection(view, query).run()
            selections.append(selected)
            if isinstance(view, ScannedView):
                kept += view.end
                if kept > _MAX_KEPT:
                    view.forget()
                elif not selected:
                    known.release(view)
    return _merge(selections, query)


def _open_thread(store: Store, scan: ThreadScan, name: str, known: KnownLogs) -> Sequence[HistoryView]:
    """Return a view of each history of the thread of a directory."""
    only_log = scan.find_only_log(name)
    if only_log is not None:
        views = known.open_views(store, [only_log], are_just_listed=True)
        if views is not None:
            return views
    thread_id = scan.find_thread(name)
    if thread_id is None:
        return []
    logs = list_logs(store, thread_id, EARLY)
    return _open_listed(store, logs, known) if only_log is None or len(logs) > 1 else _share(store, logs)


def _open_listed(store: Store, logs: Sequence[LiveLog], known: KnownLogs) -> Sequence[HistoryView]:
    """Return a view of each history of a thread."""
    views = known.open_views(store, logs)
    return _share(store, logs) if views is None else views


def _share(store: Store, logs: Sequence[LiveLog]) -> Sequence[HistoryView]:
    """Return views of logs that cannot be read as a whole."""
    return [SharedView(store, log.thread_id, log.namespace) for log in logs]


class _NewestFirst:
    """Selects checkpoints from as few logs as possible, those with the newest checkpoints first."""

    def __init__(self, saver: FileSystemSaver, query: Query, known: KnownLogs) -> None:
        self._store = get_store(saver)
        self._scan = ThreadScan(self._store)
        self._query = query
        self._known = known
        self._closed: list[tuple[str, int, str | LiveLog]] = []
        """The logs that are not open: the id of the newest checkpoint, a number that falls, and
        the log; the name of the directory of a thread that has no other."""
        self._open: list[tuple[str, int, Iterator[Selected], Selected]] = []
        """The histories that are: the rank of the next checkpoint, the number, what follows that
        checkpoint, and the checkpoint; sorted, the greatest rank last."""

    def run(self) -> list[Selected] | None:
        """Return the checkpoints; None if logs changed meanwhile so that all must be read."""
        limit = self._query.limit
        assert limit is not None
        self._find_logs()
        closed = self._closed
        closed.sort(key=itemgetter(0, 1))
        selected: list[Selected] = []
        while len(selected) < limit and (closed or self._open):
            if closed and (not self._open or closed[-1][:2] >= self._open[-1][:2]):
                bound, number, log = closed.pop()
                if not self._open_log(log, number, bound):
                    return None
            else:
                _, number, following, newest = self._open.pop()
                selected.append(newest)
                self._push_next(number, following)
        return selected

    def _find_logs(self) -> None:
        store = self._store
        scan = self._scan
        find_only_path = scan.find_only_path
        find_newest_id = self._known.find_newest_id
        add = self._closed.append
        number = 0
        # 9 us a thread, half of it in system calls: this decides how long such a listing takes.
        for name in scan.names:
            path = find_only_path(name)
            newest_id = None if path is None else find_newest_id(store, path)
            if newest_id is not None:
                number -= 1
                add((newest_id, number, name))
                continue
            thread_id = scan.find_thread(name)
            for log in [] if thread_id is None else list_logs(store, thread_id, EARLY):
                number -= 1
                # Without such an id, the log is opened first.
                add((find_newest_id(store, log.path) or _LAST_ID, number, log))

    def _open_log(self, log: str | LiveLog, number: int, bound: str) -> bool:
        """Open a log; return False if its checkpoints should have come earlier."""
        for view in self._open_views(log):
            selected = _Selection(view, self._query).run()
            if not selected:
                self._known.release(view)
                continue
            self._push_next(number, iter(selected))
            if selected[0].rank > bound:
                return False
        return True

    def _open_views(self, log: str | LiveLog) -> Sequence[HistoryView]:
        if isinstance(log, str):
            # Normally one; the thread may have got other namespaces since.
            return _open_thread(self._store, self._scan, log, self._known)
        return _open_listed(self._store, [log], self._known)

    def _push_next(self, number: int, following: Iterator[Selected]) -> None:
        newest = next(following, None)
        if newest is not None:
            insort(self._open, (newest.rank, number, following, newest), key=itemgetter(0, 1))


def _merge(selections: list[list[Selected]], query: Query) -> Iterator[Selected]:
    # The ranks of a selection fall, so sorting merges, ten times as fast as `heapq.merge`. The order
    # of equal ranks is that of the selections.
    merged = sorted(chain.from_iterable(selections), key=attrgetter("rank"), reverse=True)
    return islice(merged, query.limit)
