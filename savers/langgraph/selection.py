"""Selects checkpoints of histories for `list`, and merges those of several histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphkit import RunnableConfig
from graphkit.abc import LANGGRAPH, MADE_BY
from savers.langgraph.metadata import matches

if TYPE_CHECKING:
    from savers._log.catalogue import Head
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers.langgraph.histories import Histories, Seen

_LAST_ID: Final = "\U0010ffff" * 8
"""Comes after every id that a checkpoint has in practice."""
Ranked = tuple[str, "StoredCheckpoint"]
"""A checkpoint, and its place among the histories: the greatest comes first."""


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

    def choose(self, checkpoints: Iterator[StoredCheckpoint]) -> list[Ranked]:
        """Return the checkpoints of one history that are wanted, newest first.

        Histories are merged by the id of their next checkpoint, as LangGraph's SQL savers sort: its
        ids begin with the time. Then the query applies. Clocks go back, and not all ids are
        LangGraph's, so a checkpoint may have a greater id than one that was written after it, for
        which it then has to wait. Therefore its rank is the lowest id from the newest checkpoint of
        the log to it, whether the query accepts those in between or not.

        Args:
            checkpoints: all checkpoints of the history, newest first.
        """
        chosen: list[Ranked] = []
        newer: list[Ranked] = []
        """Those that were passed before `before` was found."""
        has_passed = self.before is None
        rank = _LAST_ID
        for stored in checkpoints:
            if stored.id < rank:  # noqa: PLR1730 - min() takes three times as long
                rank = stored.id
            if stored.metadata.get(MADE_BY) != LANGGRAPH:
                continue
            if not has_passed:
                has_passed = stored.id == self.before
                newer.append((rank, stored))
                continue
            if self._accepts(stored):
                chosen.append((rank, stored))
                if len(chosen) == self.limit:
                    break
        if not has_passed and self.before is not None:
            # The history does not contain that checkpoint. Its id decides: LangGraph's ids sort by time.
            before = self.before
            chosen = [pair for pair in newer if pair[1].id < before and self._accepts(pair[1])][: self.limit]
        return chosen

    def _accepts(self, stored: StoredCheckpoint) -> bool:
        if self.checkpoint_id is not None and self.checkpoint_id != stored.id:
            return False
        return not self.filter or matches(stored.metadata, self.filter)


class Selected(NamedTuple):
    """A checkpoint that `list` yields."""

    rank: str
    number: int
    """The place of its history; the order of checkpoints that have equal ranks."""
    history: RunnableConfig
    seen: Seen
    stored: StoredCheckpoint


def select(histories: Histories, heads: Iterable[Head], query: Query) -> list[Selected]:
    """Return the checkpoints that a query selects, from as few histories as possible if it has a limit."""
    numbered: Iterable[tuple[int, Head]] = enumerate(heads)
    if query.limit is not None:
        # The first checkpoint of a history has no greater rank than the id of its newest one.
        numbered = sorted(numbered, key=lambda pair: _get_bound(pair[1]), reverse=True)
    selected: list[Selected] = []
    for number, head in numbered:
        if query.limit is not None and len(selected) >= query.limit:
            selected = _merge(selected, query)
            if not selected or _get_bound(head) < selected[-1].rank:
                break
        history = RunnableConfig(head.thread_id, checkpoint_ns=head.namespace)
        chosen, seen = histories.select(history, query.choose, query.limit)
        selected += [Selected(rank, number, history, seen, stored) for rank, stored in chosen]
    return _merge(selected, query)


def _get_bound(head: Head) -> str:
    return head.newest_id or _LAST_ID


def _merge(selected: list[Selected], query: Query) -> list[Selected]:
    """Return the checkpoints of several histories in one order, at most as many as are wanted."""
    # The ranks of a history fall, so sorting merges, ten times as fast as `heapq.merge`. It is stable.
    selected.sort(key=attrgetter("number"))
    selected.sort(key=attrgetter("rank"), reverse=True)
    return selected[: query.limit]
