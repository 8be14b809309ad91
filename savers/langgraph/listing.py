"""Selects the checkpoints of log files that `list` yields, without reading states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from savers._filesystem.history_views import (
    FileState,
    LiveLog,
    ScannedView,
    SharedView,
    ThreadScan,
    get_file_state,
    list_logs,
    scan_log,
)
from savers._filesystem.log_ends import LogEnd, read_log_end
from savers.langgraph.histories import EARLY
from savers.langgraph.selection import LAST_ID, NewestFirst, Query, Selected, Selection, merge

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.store import Store
    from savers._log.history_view import HistoryView

_MAX_ENDS: Final = 20_000
"""How many ends of logs are remembered."""
_MAX_CHECKPOINTS: Final = 20_000
"""The most checkpoints of logs that are remembered, at about 700 bytes each."""
_MAX_KEPT: Final = 32 << 20
"""The bytes of logs that a listing of the whole store keeps until their states are read."""
_MAX_KEPT_BETWEEN: Final = 4 << 20
"""The bytes of logs that are kept between two listings; their states take about twice as much."""


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
    return merge([Selection(view, query).run() for view in views], query)


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
        self,
        store: Store,
        logs: Sequence[LiveLog],
        *,
        are_just_listed: bool = False,
        keeps_contents: bool = False,
    ) -> Sequence[ScannedView] | None:
        """Return views of the histories of a thread; None if a log must be read in another way.

        Args:
            store: the store.
            logs: the logs.
            are_just_listed: whether `list_logs` has just returned them.
            keeps_contents: see `scan_log`.
        """
        views: list[ScannedView] = []
        for live_log in logs:
            view = self._views.get(live_log.path)
            if view is None or view.is_only != live_log.is_only or not _is_as_it_was(store, live_log, view.file_state):
                # `list_logs` has looked at the directory of the root namespace.
                is_checked = are_just_listed and not live_log.namespace
                view = scan_log(store, live_log, is_checked=is_checked, keeps_contents=keeps_contents)
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
        for view in _open_thread(store, scan, name, known, keeps_contents=kept <= _MAX_KEPT):
            selected = Selection(view, query).run()
            selections.append(selected)
            if isinstance(view, ScannedView):
                view.make_states([one.stored for one in selected])
                kept += view.end
                if kept > _MAX_KEPT:
                    view.forget()
                elif not selected:
                    known.release(view)
    return merge(selections, query)


def _open_thread(
    store: Store, scan: ThreadScan, name: str, known: KnownLogs, *, keeps_contents: bool = False
) -> Sequence[HistoryView]:
    """Return a view of each history of the thread of a directory."""
    only_log = scan.find_only_log(name)
    if only_log is not None:
        views = known.open_views(store, [only_log], are_just_listed=True, keeps_contents=keeps_contents)
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


class _NewestFirst(NewestFirst["str | LiveLog"]):
    """Selects checkpoints from as few logs as possible.

    A key is a log, or the name of the directory of a thread that has no other.
    """

    def __init__(self, saver: FileSystemSaver, query: Query, known: KnownLogs) -> None:
        super().__init__(query)
        self._store = get_store(saver)
        self._scan = ThreadScan(self._store)
        self._known = known

    def _find_histories(self) -> None:
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
                add((find_newest_id(store, log.path) or LAST_ID, number, log))

    def _open_views(self, key: str | LiveLog) -> Sequence[HistoryView]:
        if isinstance(key, str):
            # Normally one; the thread may have got other namespaces since.
            return _open_thread(self._store, self._scan, key, self._known)
        return _open_listed(self._store, [key], self._known)

    def _release(self, view: HistoryView) -> None:
        self._known.release(view)


def get_store(saver: FileSystemSaver) -> Store:
    """Return the directory of a saver, for reading it in other ways than the saver does."""
    return saver._store  # noqa: SLF001 - a part of the same package
