"""Selects checkpoints of histories for `list`, and merges those of several histories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from graphkit.abc import LANGGRAPH, MADE_BY
from savers._log.scanned_log import ScannedLog
from savers.langgraph.metadata import matches

if TYPE_CHECKING:
    from savers._log.history_view import HistoryView
    from savers._log.stored_checkpoint import StoredCheckpoint

LAST_ID: Final = "\U0010ffff" * 8
"""Comes after every id that a checkpoint has in practice."""
Key = TypeVar("Key")
"""Names a history that is not open yet."""


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


class Selection:
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
        if wants_all and isinstance(self._view, ScannedLog):
            self._take_all(self._view)
        else:
            self._take_wanted()
        if self.selected:
            rank, view, stored, _ = self.selected[-1]
            self.selected[-1] = Selected(rank, view, stored, is_last=True)
        return self.selected

    def _take_all(self, view: ScannedLog) -> None:
        """Select all checkpoints of LangGraph that match, as `_take_wanted` does.

        A listing of the whole store visits all its checkpoints; three calls for each took 1 us.
        """
        wanted = self._query.filter
        select = self.selected.append
        rank = LAST_ID
        for stored in reversed(view.checkpoints):
            if stored.id < rank:  # noqa: PLR1730 - min() takes three times as long
                rank = stored.id
            metadata = stored.metadata
            if (not wanted or matches(metadata, wanted)) and metadata.get(MADE_BY) == LANGGRAPH:
                select(Selected(rank, view, stored))

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


class NewestFirst(ABC, Generic[Key]):
    """Selects checkpoints from as few histories as possible, those with the newest checkpoints first."""

    def __init__(self, query: Query, bound: str | None = None) -> None:
        """Select nothing yet.

        Args:
            query: which checkpoints are wanted.
            bound: the newest checkpoint of each history that is not found has this id or a lesser
                one; None if all are found.
        """
        self._query = query
        self._bound = bound
        self._closed: list[tuple[str, int, Key]] = []
        """The histories that are not open: the id of the newest checkpoint, a number that falls, and
        what names the history, or the histories of one thread."""
        self._open: list[tuple[str, int, Iterator[Selected], Selected]] = []
        """The histories that are: the rank of the next checkpoint, the number, what follows that
        checkpoint, and the checkpoint; sorted, the greatest rank last."""

    @abstractmethod
    def _find_histories(self) -> None:
        """Fill the list of the histories that are not open."""

    @abstractmethod
    def _open_views(self, key: Key) -> Sequence[HistoryView]:
        """Return the views of the histories that a key names."""

    @abstractmethod
    def _release(self, view: HistoryView) -> None:
        """Take note that nothing of a view is wanted."""

    def run(self) -> list[Selected] | None:
        """Return the checkpoints.

        None if histories changed meanwhile so that all must be read, or histories are needed that are
        not found.
        """
        limit = self._query.limit
        assert limit is not None
        self._find_histories()
        closed = self._closed
        closed.sort(key=itemgetter(0, 1))
        selected: list[Selected] = []
        while len(selected) < limit:
            if not self._has_next():
                return selected if self._bound is None else None
            if closed and (not self._open or closed[-1][:2] >= self._open[-1][:2]):
                bound, number, key = closed.pop()
                if not self._open_history(key, number, bound):
                    return None
            else:
                _, number, following, newest = self._open.pop()
                selected.append(newest)
                self._push_next(number, following)
        return selected

    def _has_next(self) -> bool:
        """Return whether the next checkpoint is in one of the histories that are found, or there may be one."""
        ranks = [histories[-1][0] for histories in (self._closed, self._open) if histories]
        return bool(ranks) and (self._bound is None or max(ranks) > self._bound)

    def _open_history(self, key: Key, number: int, bound: str) -> bool:
        """Open a history; return False if its checkpoints should have come earlier."""
        for view in self._open_views(key):
            selected = Selection(view, self._query).run()
            if not selected:
                self._release(view)
                continue
            self._push_next(number, iter(selected))
            if selected[0].rank > bound:
                return False
        return True

    def _push_next(self, number: int, following: Iterator[Selected]) -> None:
        newest = next(following, None)
        if newest is not None:
            insort(self._open, (newest.rank, number, following, newest), key=itemgetter(0, 1))


def merge(selections: list[list[Selected]], query: Query) -> Iterator[Selected]:
    """Return the checkpoints of several histories in one order, at most as many as are wanted."""
    # The ranks of a selection fall, so sorting merges, ten times as fast as `heapq.merge`. The order
    # of equal ranks is that of the selections.
    merged = sorted(chain.from_iterable(selections), key=attrgetter("rank"), reverse=True)
    return islice(merged, query.limit)
