"""Histories: what LangGraph's checkpointer needs of the saver below it.

LangGraph puts writes before their checkpoint, puts a checkpoint that depends on the one before it,
and lists checkpoints of a whole store. The contract of graphkit's savers has no methods for these.
There are two implementations: on logs (`log_histories.py`), and on the contract alone
(`contract_histories.py`). `select` chooses checkpoints for `list`, and merges those of several
histories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from graphkit import RunnableConfig
from graphkit.abc import BaseCheckpointSaver
from graphkit.errors import CheckpointErasedError, CheckpointerConfigurationError
from graphkit.saver_kit import EARLY_WRITES, LANGGRAPH, MADE_BY, FrozenDict, ThreadLike
from savers._delta import PackedState
from savers._log.catalogue import Head
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.encoding import Successor, TaskWrites
from savers.langgraph.metadata import matches

Result = TypeVar("Result")


class GrowingHistory(Protocol):
    """A history to which a checkpoint is put; no other writer can put to it meanwhile."""

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""

    def load_state(self, stored: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint of this history."""

    def walk_back(self) -> Iterator[StoredCheckpoint]:
        """Yield all checkpoints, newest first."""

    def pack(self, value: object, path: str) -> bytes:
        """Pack a value for the history, given its path in the state."""

    def put(self, new: StoredCheckpoint, successor: Successor, base: FrozenDict) -> None:
        """Put a checkpoint, which replaces one that has the same id.

        Args:
            new: all of it but its state.
            successor: its state, and how it differs from the last one.
            base: that state.
        """


class FoundCheckpoint(NamedTuple):
    """A checkpoint, and what is recorded with it."""

    stored: StoredCheckpoint
    state: PackedState | Mapping[str, Any]
    """The values by key: packed, or as they are."""
    writes: Mapping[str, Any]
    """The pending writes by key, likewise."""
    is_packed: bool
    path: str
    """Names the history in errors."""


Seen = tuple[int, int]
"""What a reader has seen of a history: which log, and how many bytes of it."""
Take = Callable[[FoundCheckpoint], Result]
"""Takes what the caller wants out of a checkpoint. Runs while the history is locked, so it calls no code
of the application."""


class Histories(ABC):
    """The histories in one saver, as LangGraph's checkpointer uses them.

    Attributes:
        saver: the saver.
    """

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        self.saver = saver

    # Writing

    @abstractmethod
    def put_next(self, history: RunnableConfig, put_next: Callable[[GrowingHistory], None]) -> None:
        """Put a checkpoint that is made from the history as it is at that moment.

        Args:
            history: the history.
            put_next: puts it; may be called again, with the history as another writer has changed it.

        Raises:
            Exception: what `put_next` and the saver's `put` raise. Nothing was changed.
        """

    @abstractmethod
    def put_writes(
        self,
        history: RunnableConfig,
        checkpoint_id: str | None,
        writes: TaskWrites,
        find_metadata: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Store writes for a checkpoint, whether it exists or not.

        Args:
            history: names the history of the checkpoint.
            checkpoint_id: its id; None for the latest.
            writes: the writes.
            find_metadata: returns what is known of the metadata of the checkpoint, if the history
                begins with these writes.
        """

    def call_without_waiting(
        self,
        target: RunnableConfig,  # noqa: ARG002 - for savers that can
        call: Callable[[], Result],  # noqa: ARG002
        *,
        appends: bool,  # noqa: ARG002
    ) -> tuple[Result] | None:
        """Call a function now if it takes only some microseconds; see `LogSaver.call_without_waiting`."""
        return None

    # Reading

    @abstractmethod
    def read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        """Take something out of the checkpoint that a config names, or the latest; None if there is none."""

    def list_namespaces(self, thread: ThreadLike) -> Sequence[str]:
        """Return the namespaces of a thread that are LangGraph's.

        Raises:
            CheckpointerConfigurationError: the saver cannot list them.
        """
        if not self.saver.lists_namespaces:
            raise CheckpointerConfigurationError(
                f"{type(self.saver).__name__} cannot list the namespaces of a thread, and LangGraph's subgraphs have"
                " namespaces; give `namespaces` to the saver"
            )
        return [name for name in self.saver.namespaces(thread) if not name.startswith(EARLY_WRITES)]

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:  # noqa: ARG002 - for savers with an index
        """Return the histories that may have a checkpoint whose metadata have these keys with these values."""
        for thread_id in self.saver.threads():
            for namespace in self.list_namespaces(thread_id):
                yield Head(thread_id, namespace, None)

    @abstractmethod
    def select(
        self,
        history: RunnableConfig,
        choose: Callable[[Iterator[StoredCheckpoint]], Result],
        expected: int | None,
    ) -> tuple[Result, Seen]:
        """Choose checkpoints of a history.

        Args:
            history: the history.
            choose: gets all checkpoints, newest first, and takes as many as it needs; may be called
                again.
            expected: about how many it will take; None for all.

        Returns:
            What was chosen, and what was seen of the history then.
        """

    @abstractmethod
    def read_selected(
        self, history: RunnableConfig, stored: StoredCheckpoint, seen: Seen, take: Take[Result]
    ) -> Result | None:
        """As `read`, for a checkpoint that `select` has chosen; None if it was removed meanwhile."""

    # Removing

    @abstractmethod
    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        """Remove checkpoints of a history, and their early writes; ids that it does not have are ignored."""

    @abstractmethod
    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        """Delete a thread if no process has written to it since a moment.

        Args:
            thread_id: the thread.
            idle_since: the moment. A thread that was written to at this time or later stays.
            dry_run: change nothing.

        Returns:
            Whether it was deleted, or would be.
        """

    def describe(self) -> str:
        """Return the name of the store, for log messages."""
        return type(self.saver).__name__


_LAST_ID: Final = "\U0010ffff" * 8
"""Comes after every id that a checkpoint has in practice."""
Ranked = tuple[str, StoredCheckpoint]
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


def select(histories: Histories, heads: Iterable[Head], query: Query, root: RunnableConfig) -> list[Selected]:
    """Return the checkpoints that a query selects, from as few histories as possible if it has a limit.

    Args:
        histories: read them.
        heads: the histories.
        query: says what is wanted.
        root: has the principal for whom they are read, and the thread if they are all of one. Of all
            threads, what was erased is passed over.
    """
    limit = query.limit
    numbered: Iterable[tuple[int, Head]] = enumerate(heads)
    if limit is not None:
        # The first checkpoint of a history has no greater rank than the id of its newest one. So histories
        # are visited in the order of these ids, until the next one cannot have a checkpoint among the
        # first `limit`.
        numbered = sorted(numbered, key=lambda pair: _get_bound(pair[1]), reverse=True)
    selected: list[Selected] = []
    for number, head in numbered:
        if limit is not None and len(selected) >= limit:
            selected = _merge(selected, limit)
            if not selected:
                break
            last = selected[-1]
            if _get_bound(head) < last.rank:
                break
        history = root.replace(thread_id=head.thread_id, checkpoint_ns=head.namespace)
        try:
            chosen, seen = histories.select(history, query.choose, limit)
        except CheckpointErasedError:
            if root.thread_id is not None:
                raise
            continue
        for rank, stored in chosen:
            selected.append(Selected(rank, number, history, seen, stored))
    return _merge(selected, limit)


def _get_bound(head: Head) -> str:
    return head.newest_id or _LAST_ID


def _merge(selected: list[Selected], limit: int | None) -> list[Selected]:
    """Return the checkpoints of several histories in one order, at most as many as are wanted."""
    # The ranks of a history fall, so sorting merges, ten times as fast as `heapq.merge`. It is stable.
    selected.sort(key=attrgetter("number"))
    selected.sort(key=attrgetter("rank"), reverse=True)
    return selected[:limit]
