"""Selects the checkpoints that `list` yields, and in which order, without reading states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from savers._filesystem.history_views import (
    HistoryView,
    ScannedView,
    SharedView,
    scan_thread,
)
from savers.langgraph.metadata import LANGGRAPH, MADE_BY, matches
from savers.langgraph.writes import EARLY, get_store

if TYPE_CHECKING:
    from savers._filesystem import FileSystemSaver
    from savers._filesystem.stored_checkpoint import StoredCheckpoint

_MAX_KEPT: Final = 32 << 20
"""The bytes of logs that a listing of the whole store keeps until their states are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which checkpoints `list` yields."""

    filter: Mapping[str, Any]
    """Metadata keys and the values that they must have."""
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
        return self.selected

    def _visit(self, stored: StoredCheckpoint) -> bool:
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
        if query.checkpoint_id not in {None, stored.id}:
            return True
        if self._rank is None or stored.created < self._rank:
            self._rank = stored.created
        if matches(stored.metadata, query.filter):
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


def select_from_store(saver: FileSystemSaver, query: Query) -> Iterable[Selected]:
    """Return the checkpoints that a query selects from all threads."""
    kept = 0
    selections: list[list[Selected]] = []
    for thread in saver.threads():
        for view in _open_views(saver, thread):
            selections.append(_Selection(view, query).run())
            if isinstance(view, ScannedView):
                kept += view.end
                if kept > _MAX_KEPT:
                    view.forget()
    return _merge(selections, query)


def _open_views(saver: FileSystemSaver, thread: str) -> Iterable[HistoryView]:
    store = get_store(saver)
    scanned = scan_thread(store, thread, EARLY)
    if scanned is not None:
        return scanned
    return [SharedView(store, thread, name) for name in saver.namespaces(thread) if not name.startswith(EARLY)]


def _merge(selections: list[list[Selected]], query: Query) -> Iterator[Selected]:
    merged = merge(*selections, key=lambda selected: selected.rank, reverse=True)
    return islice(merged, query.limit)
