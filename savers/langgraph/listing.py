"""Selects the checkpoints that `list` yields, and in which order, without reading states."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from savers._filesystem.history_views import (
    DirectoryState,
    FileState,
    HistoryView,
    LiveLog,
    ScannedView,
    SharedView,
    get_directory_state,
    get_file_state,
    list_logs,
    scan_log,
)
from savers.langgraph.metadata import LANGGRAPH, MADE_BY, matches
from savers.langgraph.writes import EARLY, get_store

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.store import Store
    from savers._log.stored_checkpoint import StoredCheckpoint

_MAX_TIMES: Final = 20_000
"""How many times of logs, and logs of threads, are remembered."""
_MAX_CHECKPOINTS: Final = 20_000
"""The most checkpoints of logs that are remembered, at about 700 bytes each."""
_FIRST: Final = -(1 << 63)
"""Comes before the negative of every time."""
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

    rank: int
    """Its place among the histories: the greatest comes first."""
    view: HistoryView
    stored: StoredCheckpoint
    is_last: bool = False
    """Whether nothing else of the view is needed."""


class _Selection:
    """The checkpoints of one history that a query selects, newest first.

    Histories are merged by the time of their next checkpoint, and the filter applies to the result.
    Clocks go back, so a checkpoint may be older than the one written before it, which then has to
    wait. Therefore its rank is the lowest time from the newest checkpoint to it, whether the filter
    accepts those in between or not.
    """

    def __init__(self, view: HistoryView, query: Query) -> None:
        self._view = view
        self._query = query
        self._has_passed = query.before is None
        """Whether the checkpoint was passed before which the others must have been written."""
        self._newer: list[StoredCheckpoint] = []
        """The checkpoints that were visited until then."""
        self._rank: int | None = None
        self.selected: list[Selected] = []

    def run(self) -> list[Selected]:
        self._view.walk_back(self._visit, self._query.limit)
        before = self._query.before
        if not self._has_passed and before is not None:
            # The history does not contain that checkpoint. Its id decides: LangGraph's ids sort by
            # time.
            for stored in self._newer:
                if stored.id < before and not self._take(stored):
                    break
        if self.selected:
            self.selected[-1] = self.selected[-1]._replace(is_last=True)
        return self.selected

    def _visit(self, stored: StoredCheckpoint) -> bool:
        # A listing of the whole store visits all its checkpoints.
        if stored.metadata.get(MADE_BY) != LANGGRAPH:
            return True
        if self._has_passed:
            return self._take(stored)
        if stored.id == self._query.before:
            self._has_passed = True
        else:
            self._newer.append(stored)
        return True

    def _take(self, stored: StoredCheckpoint) -> bool:
        """Select a checkpoint if it matches; return whether more are wanted."""
        query = self._query
        if query.checkpoint_id is not None and query.checkpoint_id != stored.id:
            return True
        if self._rank is None or stored.created < self._rank:
            self._rank = stored.created
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
    interested. With a limit, it need not even be looked at as long as others have enough newer
    checkpoints. The time at which the file was last written would not do for that: clocks go back,
    and the time of a checkpoint is its maker's.
    """

    def __init__(self) -> None:
        self._times: dict[str, tuple[FileState, int | None]] = {}
        """By path: the state of the file, and the time of its newest checkpoint."""
        self._views: dict[str, ScannedView] = {}
        """By path."""
        self._checkpoints = 0
        """How many checkpoints these have."""
        self._kept: dict[str, int] = {}
        """The logs whose bytes and states are kept in memory, by path, with their lengths."""
        self._kept_bytes = 0
        """The sum of these."""
        self._directories: dict[str, tuple[DirectoryState, Sequence[LiveLog]]] = {}
        """By thread: the state of its directory, and its logs."""

    def list_logs(self, store: Store, thread: str) -> Sequence[LiveLog]:
        """Return the live logs of a thread, without those of early writes."""
        status = store.io.stat_unchecked(store.directory(thread))
        state = None if status is None else get_directory_state(status)
        known = self._directories.get(thread)
        if state is not None and known is not None and known[0] == state:
            return known[1]
        # Nearly all threads are listed for the first time: each check that was made counts there.
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        logs = list_logs(store, thread, EARLY, is_checked=is_directory)
        # Namespaces may get logs without a change of the thread's directory.
        if state is not None and state.is_settled and len(logs) == 1 and not logs[0].namespace:
            if len(self._directories) >= _MAX_TIMES:
                self._directories.clear()
            self._directories[thread] = state, logs
        return logs

    def find_time(self, store: Store, live_log: LiveLog) -> tuple[bool, int | None]:
        """Return whether the newest time of a log is known, and the time; None: no checkpoints."""
        state, newest = self._times.get(live_log.path, (None, None))
        if state is None or not _is_as_it_was(store, live_log, state):
            return False, None
        return True, newest

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
            if view is None or view.file_state is None or not _is_as_it_was(store, live_log, view.file_state):
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
        if len(self._times) >= _MAX_TIMES:
            self._times.clear()
        if self._checkpoints + len(checkpoints) > _MAX_CHECKPOINTS:
            self._views.clear()
            self._kept.clear()
            self._kept_bytes = 0
            self._checkpoints = 0
        times = [stored.created for stored in checkpoints if stored.metadata.get(MADE_BY) == LANGGRAPH]
        self._times[view.path] = view.file_state, max(times, default=None)
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


def _is_as_it_was(store: Store, live_log: LiveLog, state: FileState) -> bool:
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
    kept = 0
    selections: list[list[Selected]] = []
    for thread in saver.threads():
        for view in _open_views(saver, thread, known):
            selected = _Selection(view, query).run()
            selections.append(selected)
            if isinstance(view, ScannedView):
                kept += view.end
                if kept > _MAX_KEPT:
                    view.forget()
                elif not selected:
                    known.release(view)
    return _merge(selections, query)


def _open_views(saver: FileSystemSaver, thread: str, known: KnownLogs) -> Sequence[HistoryView]:
    store = get_store(saver)
    scanned = known.open_views(store, known.list_logs(store, thread), are_just_listed=True)
    return _open_shared(saver, thread) if scanned is None else scanned


def _open_shared(saver: FileSystemSaver, thread: str) -> Sequence[HistoryView]:
    store = get_store(saver)
    return [SharedView(store, thread, name) for name in saver.namespaces(thread) if not name.startswith(EARLY)]


class _NewestFirst:
    """Selects checkpoints from as few logs as possible, those with the newest checkpoints first."""

    def __init__(self, saver: FileSystemSaver, query: Query, known: KnownLogs) -> None:
        self._saver = saver
        self._store = get_store(saver)
        self._query = query
        self._known = known
        self._heap: list[tuple[int, bool, int]] = []
        """For each history: the time before which its next checkpoint was made, negative; whether
        it is open, so that this is the checkpoint's rank; and its number."""
        self._logs: dict[int, LiveLog] = {}
        """The logs that are not open, by the number of their history."""
        self._open: dict[int, Iterator[Selected]] = {}
        self._next: dict[int, Selected] = {}

    def run(self) -> list[Selected] | None:
        """Return the checkpoints; None if logs changed meanwhile so that all must be read."""
        assert self._query.limit is not None
        for thread in self._saver.threads():
            self._add_thread(thread)
        selected: list[Selected] = []
        while self._heap and len(selected) < self._query.limit:
            negative, is_open, number = heappop(self._heap)
            if is_open:
                selected.append(self._next[number])
                self._push_next(number)
            elif not self._open_log(number, -negative):
                return None
        return selected

    def _add_thread(self, thread: str) -> None:
        logs = self._known.list_logs(self._store, thread)
        bounds = [self._known.find_time(self._store, live_log) for live_log in logs]
        if not all(is_known for is_known, _ in bounds):
            scanned = self._known.open_views(self._store, logs, are_just_listed=True)
            if scanned is None:
                for shared in _open_shared(self._saver, thread):
                    self._add_view(self._count(), shared)
                return
            # Most of the logs are not needed again.
            for view in scanned:
                self._known.release(view)
            bounds = [self._known.find_time(self._store, live_log) for live_log in logs]
        for live_log, (is_known, newest) in zip(logs, bounds, strict=True):
            number = self._count()
            self._logs[number] = live_log
            if not is_known:
                # It has changed since: open it first.
                heappush(self._heap, (_FIRST, False, number))
            elif newest is not None:
                heappush(self._heap, (-newest, False, number))

    def _count(self) -> int:
        return len(self._logs) + len(self._open)

    def _open_log(self, number: int, bound: int) -> bool:
        """Open a log; return False if its checkpoints should have come earlier."""
        live_log = self._logs[number]
        scanned = self._known.open_views(self._store, [live_log])
        if scanned is None:
            return False
        self._add_view(number, scanned[0])
        return number not in self._next or self._next[number].rank <= bound

    def _add_view(self, number: int, view: HistoryView) -> None:
        self._open[number] = iter(_Selection(view, self._query).run())
        self._push_next(number)

    def _push_next(self, number: int) -> None:
        following = next(self._open[number], None)
        if following is not None:
            self._next[number] = following
            heappush(self._heap, (-following.rank, True, number))


def _merge(selections: list[list[Selected]], query: Query) -> Iterator[Selected]:
    # The ranks of a selection fall, so sorting merges, ten times as fast as `heapq.merge`. The order
    # of equal ranks is that of the selections.
    merged = sorted(chain.from_iterable(selections), key=attrgetter("rank"), reverse=True)
    return islice(merged, query.limit)
