"""Histories: what LangGraph's checkpointer needs of the saver below it.

LangGraph puts writes before their checkpoint, puts a checkpoint that depends on the one before it,
and lists checkpoints of a whole store. The contract of graphkit's savers has no methods for these.
There are two implementations: on logs (`LogHistories`), and on the contract alone
(`contract_histories.py`). `select` chooses checkpoints for `list`, and merges those of several
histories. `start_sweeper` deletes threads that no process has written to for the option `ttl`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from logging import getLogger
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

from graphkit import CheckpointInfo, RunnableConfig
from graphkit.abc import BaseCheckpointSaver
from graphkit.errors import CheckpointErasedError, CheckpointerConfigurationError
from graphkit.saver_kit import (
    EARLY_WRITES,
    LANGGRAPH,
    MADE_BY,
    REMOVED,
    SET,
    Changes,
    FailedThreads,
    FrozenDict,
    ThreadLike,
)
from savers._delta import PackedState
from savers._log.catalogue import Head
from savers._log.log import AnyLog
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.encoding import Successor, Write, pack_writes
from savers.langgraph.metadata import matches
from savers.langgraph.opening import PeriodicSweep

_SWEEPS_PER_TTL: Final = 10
_MIN_INTERVAL: Final = timedelta(minutes=1)
_MAX_INTERVAL: Final = timedelta(hours=1)
_LOGGER: Final = getLogger("graphkit")

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
            successor: its state, which follows the last one.
            base: that one.
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


Listed = StoredCheckpoint | CheckpointInfo
"""What a saver knows of a checkpoint without its state."""
LogExtent = tuple[int, int]
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
        writes: Sequence[Write],
        find_metadata: Callable[[], Mapping[str, Any]],
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
        choose: Callable[[Iterator[Listed]], Result],
        expected: int | None,
    ) -> tuple[Result, LogExtent]:
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
        self, history: RunnableConfig, stored: Listed, extent: LogExtent, take: Take[Result]
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


# In logs: early writes wait in the log of their history

_NOTHING: Final = (0, 0)
"""What was seen of a history that does not exist."""


@final
class LogHistories(Histories):
    """The histories in a saver whose histories are logs."""

    saver: Any
    """A BaseCheckpointSaver that is a SupportsLogs, a SupportsRemove and a SupportsDeleteIdle."""

    def put_next(self, history: RunnableConfig, put_next: Callable[[GrowingHistory], None]) -> None:
        self.saver.append_to_log(history, lambda log: put_next(_GrowingLog(log)))

    def put_writes(
        self,
        history: RunnableConfig,
        checkpoint_id: str | None,
        writes: Sequence[Write],
        find_metadata: Callable[[], Mapping[str, Any]],
    ) -> None:
        packed = pack_writes(writes)
        keep = [write.key for write in writes if write.is_ordinary]
        self.saver.put_packed_writes(
            history, checkpoint_id, packed, keep, early=True, expects_put=True, find_metadata=find_metadata
        )

    def call_without_waiting(
        self, target: RunnableConfig, call: Callable[[], Result], *, appends: bool
    ) -> tuple[Result] | None:
        return self.saver.call_without_waiting(target, call, appends=appends)  # type: ignore[no-any-return]

    def read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        def read(log: AnyLog) -> Result | None:
            return _take(log, log.history.find(config.checkpoint_id), take)

        return self.saver.read_log(config, read, None)  # type: ignore[no-any-return]

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        heads = self.saver.list_heads(metadata, with_newest=with_newest)
        # A copy of another store, or a saver around this one, may have left such namespaces.
        return (head for head in heads if not head.namespace.startswith(EARLY_WRITES))

    def select(
        self,
        history: RunnableConfig,
        choose: Callable[[Iterator[Listed]], Result],
        expected: int | None,
    ) -> tuple[Result, LogExtent]:
        def read(log: AnyLog) -> tuple[Result, LogExtent]:
            if expected is None:
                log.history.load_index()
            return choose(log.history.walk_back()), _get_extent(log)

        found: tuple[Result, LogExtent] | None = self.saver.read_log(history, read, None, operation="list")
        if found is None:
            return choose(iter(())), _NOTHING
        return found

    def read_selected(
        self, history: RunnableConfig, stored: Listed, extent: LogExtent, take: Take[Result]
    ) -> Result | None:
        assert isinstance(stored, StoredCheckpoint)

        def read(log: AnyLog) -> Result | None:
            if _get_extent(log) == extent:
                return _take(log, stored, take)
            # What was appended since may replace it, or add writes to it.
            return _take(log, log.history.find(stored.id), take)

        return self.saver.read_log(history, read, None, operation="list")  # type: ignore[no-any-return]

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        self.saver.remove(history, ids)

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        return bool(self.saver.delete_idle(thread_id, idle_since=idle_since, dry_run=dry_run))


def _get_extent(log: AnyLog) -> LogExtent:
    return log.frames.fid, log.frames.end


def _take(log: AnyLog, stored: StoredCheckpoint | None, take: Take[Result]) -> Result | None:
    if stored is None:
        return None
    writes = {}
    if stored.writes:
        writes = log.history.chains.read_writes(stored)
    return take(FoundCheckpoint(stored, log.packed.read(stored), writes, is_packed=True, path=log.path))


@final
class _GrowingLog:
    """A log to which a checkpoint is put; see GrowingHistory."""

    def __init__(self, log: AnyLog) -> None:
        self._log = log
        self.find = log.history.find
        self.load_state = log.load_state
        self.walk_back = log.history.walk_back
        self.pack = log.codec.pack

    def put(self, new: StoredCheckpoint, successor: Successor, base: FrozenDict) -> None:
        log = self._log
        writer = log.writer
        is_new = log.history.lacks(new.id)
        if is_new and successor.is_usual and base is writer.state:
            writer.put_packed(new, successor.state, successor.packed)
            return
        ops = dict.fromkeys(successor.packed, SET)
        ops.update({key: REMOVED for key in base if key not in successor.state})
        # The constructor would freeze the state again, and would not know what changed.
        checkpoint = new.make_checkpoint(successor.state, Changes(base, ops))
        target = None if is_new else new.id
        writer.put(checkpoint, target)


# What `list` selects

_LAST_ID: Final = "\U0010ffff" * 8
"""Comes after every id that a checkpoint has in practice."""
Ranked = tuple[str, Listed]
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

    def choose(self, checkpoints: Iterator[Listed]) -> list[Ranked]:
        """Return the checkpoints of one history that are wanted, newest first.

        Histories are merged by the id of their next checkpoint, as LangGraph's SQL savers sort: its
        ids begin with the time. Then the query applies. Clocks go back, and not all ids are
        LangGraph's, so a checkpoint may have a greater id than one that was written after it, for
        which it then has to wait. Therefore its rank is the lowest id from the newest checkpoint of
        the log to it, whether the query accepts those in between or not.

        For example, a history has put 5, then 9, then 7: newest first, 7, 9, 5. The ranks are 7, 7, 5.
        Another history has 8. All of them are listed as 8, 7, 9, 5: by their own ids, 9 would come
        before 7, which was put after it.

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

    def _accepts(self, stored: Listed) -> bool:
        if self.checkpoint_id is not None and self.checkpoint_id != stored.id:
            return False
        return not self.filter or matches(stored.metadata, self.filter)


class Selected(NamedTuple):
    """A checkpoint that `list` yields."""

    rank: str
    number: int
    """The place of its history; the order of checkpoints that have equal ranks."""
    history: RunnableConfig
    extent: LogExtent
    stored: Listed


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
            chosen, extent = histories.select(history, query.choose, limit)
        except CheckpointErasedError:
            if root.thread_id is not None:
                raise
            continue
        for rank, stored in chosen:
            selected.append(Selected(rank, number, history, extent, stored))
    return _merge(selected, limit)


def _get_bound(head: Head) -> str:
    return head.newest_id or _LAST_ID


def _merge(selected: list[Selected], limit: int | None) -> list[Selected]:
    """Return the checkpoints of several histories in one order, at most as many as are wanted."""
    # The ranks of a history fall, so sorting merges, ten times as fast as `heapq.merge`. It is stable.
    selected.sort(key=attrgetter("number"))
    selected.sort(key=attrgetter("rank"), reverse=True)
    return selected[:limit]


# The option `ttl`


def start_sweeper(histories: Histories, ttl: timedelta) -> PeriodicSweep[Histories]:
    """Sweep a store in a background thread: at once, and then at an interval that follows from the ttl."""

    def sweep_now(histories: Histories, stop: threading.Event) -> None:
        deleted = sweep(histories, datetime.now(UTC) - ttl, stop)
        if deleted:
            _LOGGER.info("%r: deleted %d threads whose ttl was over", histories.saver, deleted)

    sweeper = PeriodicSweep(histories, sweep_now, "graphkit-ttl")
    interval = min(max(ttl / _SWEEPS_PER_TTL, _MIN_INTERVAL), _MAX_INTERVAL)
    sweeper.start(interval.total_seconds(), begins_now=True)
    return sweeper


def sweep(histories: Histories, idle_since: datetime, stop: threading.Event) -> int:
    """Delete LangGraph's threads that no process has written to since a moment; return how many.

    Args:
        histories: the histories of the threads. Runs of graphkit's own stay.
        idle_since: threads that were written to at this time or later stay.
        stop: ends the sweep early.

    Raises:
        CheckpointerError: a thread could not be read or deleted. All others are done, and the error
            names those that failed.
    """
    # Whose an erased thread was, nobody knows any more: it stays.
    failed = FailedThreads("delete", passes_over=(CheckpointErasedError,))
    deleted = 0
    for thread_id in histories.saver.threads():
        if stop.is_set():
            break
        with failed.catch(thread_id):
            if not histories.delete_idle(thread_id, idle_since=idle_since, dry_run=True):
                continue
            newest: list[CheckpointInfo] = []
            for namespace in histories.list_namespaces(thread_id):
                newest += histories.saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1)
            if all(info.metadata.get(MADE_BY) == LANGGRAPH for info in newest):
                deleted += histories.delete_idle(thread_id, idle_since=idle_since)
    failed.raise_if_any()
    return deleted
