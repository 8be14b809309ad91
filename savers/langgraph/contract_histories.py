"""Histories in any saver, through the contract of graphkit's savers alone.

MemorySaver, savers around another one, and those of third parties have no log that this package
knows. Whole states are put, and early writes are kept in a namespace of their own: a checkpoint
there with the id of theirs holds them as its pending writes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple, final
from weakref import WeakValueDictionary

from graphkit import END, Checkpoint, CheckpointInfo, RunnableConfig
from graphkit.abc import LANGGRAPH, MADE_BY, BaseCheckpointSaver, HasVersions, make_checkpoint_info
from graphkit.codec import Codec
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.values import FrozenDict, freeze
from savers._log.history_view import Ancestor, ReadCheckpoint, Visit
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.histories import (
    EARLY,
    CheckpointWithWrites,
    Histories,
    PutNext,
    is_made_before,
    make_early_config,
)
from savers.langgraph.selection import Query, Selected, Selection, merge
from savers.langgraph.steps import UNKNOWN

if TYPE_CHECKING:
    from savers._log.history_view import AncestorReader
    from savers.langgraph.writes import TaskWrites

_FEWEST_READ: Final = 16
"""The fewest infos that are read at first."""
_GROWTH: Final = 4
"""Each time, this many times more are read."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_LOCKS: Final[WeakValueDictionary[object, threading.RLock]] = WeakValueDictionary()
"""The locks of threads that are held or waited for, by the key of the run lock."""
_LOCKS_GUARD: Final = threading.Lock()


def _lock_thread(saver: BaseCheckpointSaver, history: RunnableConfig) -> AbstractContextManager[object]:
    """Return the lock under which this process reads a thread and then changes it."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(saver.run_lock_key(history), threading.RLock())


def _outline(info: CheckpointInfo) -> StoredCheckpoint:
    return StoredCheckpoint(
        info.id,
        info.node_id,
        info.next_node_id,
        (info.created_at - _EPOCH) // _MICROSECOND,
        info.parent_id,
        freeze(info.metadata),
    )


class _ReadCheckpoint(StoredCheckpoint):
    """A checkpoint of a saver, with its state."""

    __slots__ = ("state",)

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(
            checkpoint.id,
            checkpoint.node_id,
            checkpoint.next_node_id,
            checkpoint.created_us,
            checkpoint.parent_id,
            freeze(checkpoint.metadata),
        )
        self.state = freeze(checkpoint.state)


class _Index(NamedTuple):
    checkpoints: Sequence[StoredCheckpoint]


@final
class _GrowingHistory:
    """A history to which a checkpoint is put; see GrowingHistory."""

    state = None

    def __init__(self, saver: BaseCheckpointSaver, history: RunnableConfig) -> None:
        self._saver = saver
        self._history = history
        self.codec = Codec()

    def find_latest(self) -> StoredCheckpoint | None:
        return self.find(None)

    def find(self, id: str | None) -> StoredCheckpoint | None:
        checkpoint = self._saver.get(self._history.replace(checkpoint_id=id))
        return None if checkpoint is None else _ReadCheckpoint(checkpoint)

    def load_state(self, checkpoint: StoredCheckpoint) -> FrozenDict:
        assert isinstance(checkpoint, _ReadCheckpoint)
        return checkpoint.state

    def load_index(self) -> _Index:
        return _Index([_ReadCheckpoint(checkpoint) for checkpoint in reversed(self._saver.list(self._history))])


@final
class _View:
    """The checkpoints of one history; see HistoryView."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, namespace: str) -> None:
        self.thread_id = thread_id
        self.namespace = namespace
        self.is_only = False
        self._saver = saver
        self._history = RunnableConfig(thread_id, checkpoint_ns=namespace)

    def walk_back(self, visit: Visit, expected: int | None) -> None:
        wanted = max(expected or 0, _FEWEST_READ)
        visited = 0
        while True:
            infos = self._read_infos(None if expected is None else wanted)
            for info in infos[visited:]:
                if not visit(_outline(info)):
                    return
            if expected is None or len(infos) < wanted:
                return
            visited = len(infos)
            wanted *= _GROWTH

    def _read_infos(self, limit: int | None) -> Sequence[CheckpointInfo]:
        if limit is None:
            return self._saver.history(self._history)
        return self._saver.recent(self._history, limit=limit)

    def read(self, stored: StoredCheckpoint) -> ReadCheckpoint | None:
        named = self._history.replace(checkpoint_id=stored.id)
        checkpoint = self._saver.get(named)
        if checkpoint is None:
            return None
        return ReadCheckpoint(freeze(checkpoint.state), self._saver.get_writes(named))

    def forget(self) -> None:
        """Do nothing: nothing is kept."""


@final
class _AncestorReader:
    """Reads the checkpoints of one history; see AncestorReader."""

    def __init__(self, saver: BaseCheckpointSaver, history: RunnableConfig) -> None:
        self._saver = saver
        self._history = history

    def find(self, id: str | None) -> Ancestor | None:
        checkpoint = self._saver.get(self._history.replace(checkpoint_id=id))
        return None if checkpoint is None else Ancestor(_ReadCheckpoint(checkpoint), fid=0)

    def read(self, ancestor: Ancestor, is_wanted: Callable[[str], bool]) -> ReadCheckpoint | None:
        stored = ancestor.stored
        assert isinstance(stored, _ReadCheckpoint)
        part = FrozenDict({key: value for key, value in stored.state.items() if is_wanted(key)})
        return ReadCheckpoint(part, self._saver.get_writes(self._history.replace(checkpoint_id=stored.id)))


@final
class ContractHistories(Histories[BaseCheckpointSaver]):
    """The histories in a saver that has no log, or hides it.

    The threads of execution of this process exclude each other; processes do not.
    """

    def put_next(self, history: RunnableConfig, put_next: PutNext) -> None:
        saver = self.saver
        with _lock_thread(saver, history):
            checkpoint = put_next(_GrowingHistory(saver, history))
            assert checkpoint is not None
            named = history.replace(checkpoint_id=checkpoint.id)
            if saver.get(named) is None:
                saver.put(history, checkpoint)
                return
            writes = saver.get_writes(named)
            if writes:
                # By default, a saver keeps them in the metadata that are replaced.
                saver.put_writes(self._make_early(history, checkpoint.id), writes)
            saver.put(named, checkpoint)

    def put_writes(self, history: RunnableConfig, checkpoint_id: str | None, writes: TaskWrites) -> None:
        saver = self.saver
        with _lock_thread(saver, history):
            target = history.replace(checkpoint_id=checkpoint_id)
            if saver.get(target) is None:
                if checkpoint_id is None:
                    raise CheckpointNotFoundError(history.thread, "checkpoint at all")
                target = self._make_early(history, checkpoint_id)
            known = saver.get_writes(target)
            kept = set(writes.keep).intersection(known)
            new = {key: record for key, record in writes.unpack().items() if key not in kept}
            if new:
                saver.put_writes(target, new)

    def _make_early(self, history: RunnableConfig, checkpoint_id: str) -> RunnableConfig:
        """Return the config of the checkpoint that holds early writes; put it if it is missing."""
        named = make_early_config(history.replace(checkpoint_id=checkpoint_id))
        if self.saver.get(named) is None:
            # Its state is not empty, because some savers refuse that.
            placeholder = Checkpoint.from_stored(
                id=checkpoint_id,
                node_id=UNKNOWN,
                next_node_id=END,
                parent_id=None,
                created_us=time_ns() // 1000,
                metadata=FrozenDict({MADE_BY: LANGGRAPH}),
                state=FrozenDict({"early": "writes"}),
            )
            self.saver.put(make_early_config(history), placeholder)
        return named

    def read(self, config: RunnableConfig) -> CheckpointWithWrites | None:
        found = super().read(config)
        if found is None:
            return None
        # Without the pending writes and tags that a saver may keep among the metadata.
        info = make_checkpoint_info(config, found.checkpoint, found.writes, ())
        return found._replace(checkpoint=found.checkpoint.with_metadata(freeze(info.metadata)))

    def has_early(self, history: RunnableConfig) -> bool:  # noqa: ARG002 - finding out costs as much as reading
        return True

    def open_ancestors(self, history: RunnableConfig) -> AncestorReader:
        return _AncestorReader(self.saver, history)

    def select(self, thread: str, namespace: str | None, query: Query) -> Iterable[Selected]:
        names = self.list_namespaces(thread) if namespace is None else [namespace]
        return self._select([(thread, name) for name in names if not name.startswith(EARLY)], query)

    def select_from_all(self, query: Query) -> Iterable[Selected]:
        owners = [(thread, name) for thread in self.saver.threads() for name in self.list_namespaces(thread)]
        return self._select(owners, query)

    def _select(self, owners: Iterable[tuple[str, str]], query: Query) -> Iterable[Selected]:
        return merge([Selection(_View(self.saver, *owner), query).run() for owner in owners], query)

    # Removing

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        """As in Histories.

        Raises:
            CheckpointerConfigurationError: the saver has no `remove` and keeps versions, so that what
                is removed would stay in a version. Nothing was changed.
        """
        remove = getattr(self.saver, "remove", None)
        for config in (history, make_early_config(history)):
            if remove is not None:
                remove(config, ids)
            else:
                self._remove_by_rewriting(config, frozenset(ids))

    def _remove_by_rewriting(self, history: RunnableConfig, ids: frozenset[str]) -> None:
        """Release the thread, and put back what stays, as `prune` does by default."""
        saver = self.saver
        if not any(info.id in ids for info in saver.history(history)):
            return
        if isinstance(saver, HasVersions):
            raise CheckpointerConfigurationError(
                f"{type(saver).__name__} cannot remove single checkpoints: it keeps them in a version; use the saver"
                " that it wraps, or `prune` of the saver"
            )
        with _lock_thread(saver, history), saver.run_lock(history):
            kept = [
                stored
                for namespace in saver.namespaces(history.thread)
                for stored in self._read_history(RunnableConfig(history.thread, checkpoint_ns=namespace))
                if stored.config.checkpoint_ns != history.checkpoint_ns or stored.checkpoint.id not in ids
            ]
            saver.release(RunnableConfig(history.thread))
            for stored in kept:
                stored.put(saver)

    def _read_history(self, history: RunnableConfig) -> list[_Kept]:
        """Return the checkpoints of a history, oldest first."""
        kept: list[_Kept] = []
        for info in reversed(self.saver.history(history)):
            found = self.read(history.replace(checkpoint_id=info.id))
            if found is not None:
                # The state is read now: it is gone after the release.
                checkpoint = found.checkpoint.with_state(found.checkpoint.state)
                kept.append(_Kept(history, found._replace(checkpoint=checkpoint), info.tags))
        return kept

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        """As in Histories. The times of the latest checkpoints decide: a saver does not say when it wrote."""
        with _lock_thread(self.saver, RunnableConfig(thread_id)):
            if not is_made_before(self.saver, thread_id, idle_since):
                return False
            return dry_run or self.saver.delete(thread_id)


class _Kept(NamedTuple):
    """A checkpoint that is put back."""

    config: RunnableConfig
    found: CheckpointWithWrites
    tags: Sequence[str]

    @property
    def checkpoint(self) -> Checkpoint:
        return self.found.checkpoint

    def put(self, saver: BaseCheckpointSaver) -> None:
        """Put it with its pending writes and tags."""
        stored = saver.put(self.config, self.checkpoint)
        if self.found.writes:
            saver.put_writes(stored, self.found.writes)
        if self.tags:
            saver.add_tags(stored, *self.tags)
