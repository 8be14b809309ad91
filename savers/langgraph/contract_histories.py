"""Histories in any saver, through the contract of graphkit's savers alone.

MemorySaver, savers around another one, and those of third parties have no log that this package
knows. Whole states are put. Early writes wait in a namespace of their own: a checkpoint there with
the id of theirs holds them as its pending writes. They are recorded again with theirs when it is
put, so that it is complete wherever it is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from time import time_ns
from typing import Any, Final, final
from weakref import WeakValueDictionary

from graphkit import END, Checkpoint, CheckpointInfo, RunnableConfig
from graphkit.abc import BaseCheckpointSaver, HasVersions, SupportsRemove
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.saver_kit import (
    EARLY_WRITES,
    LANGGRAPH,
    MADE_BY,
    Codec,
    FrozenDict,
    freeze,
    make_checkpoint_info,
    remove_by_rewriting,
)
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.encoding import Successor, Write
from savers.langgraph.histories import FoundCheckpoint, GrowingHistory, Histories, Listed, LogExtent, Result, Take
from savers.langgraph.metadata import UNKNOWN

_MIN_READ: Final = 16
"""The fewest infos that are read at first."""
_GROWTH: Final = 4
"""Each time, this many times more are read."""
_UNKNOWN: Final = (0, 0)
"""What was seen of a history; savers do not tell."""

_LOCKS: Final[WeakValueDictionary[object, threading.RLock]] = WeakValueDictionary()
"""The locks of threads that are held or waited for, by the key of the run lock."""
_LOCKS_GUARD: Final = threading.Lock()


def _lock_thread(saver: BaseCheckpointSaver, history: RunnableConfig) -> AbstractContextManager[object]:
    """Return the lock under which this process reads a thread and then changes it."""
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(saver.run_lock_key(history), threading.RLock())


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


@final
class _GrowingHistory:
    """A history to which a checkpoint is put; see GrowingHistory."""

    def __init__(self, saver: BaseCheckpointSaver, history: RunnableConfig) -> None:
        self._saver = saver
        self._history = history
        self.pack = Codec().pack

    def find(self, id: str | None) -> StoredCheckpoint | None:
        checkpoint = self._saver.get(self._history.replace(checkpoint_id=id))
        return None if checkpoint is None else _ReadCheckpoint(checkpoint)

    def load_state(self, stored: StoredCheckpoint) -> FrozenDict:
        assert isinstance(stored, _ReadCheckpoint)
        return stored.state

    def walk_back(self) -> Iterator[StoredCheckpoint]:
        return map(_ReadCheckpoint, self._saver.list(self._history))

    def put(self, new: StoredCheckpoint, successor: Successor, base: FrozenDict) -> None:  # noqa: ARG002 - the whole state is put
        saver = self._saver
        named = self._history.replace(checkpoint_id=new.id)
        target = self._history
        if saver.get(named) is not None:
            # It is replaced, and with its metadata, in which a saver keeps its pending writes by
            # default. So they wait as early writes until the new one is there.
            target = named
            writes = saver.get_writes(named)
            if writes:
                saver.put_writes(_place_early(saver, self._history, new.id, new.metadata), writes)
        saver.put(target, new.make_checkpoint(successor.state))
        early = saver.get_writes(_make_early_config(named))
        if early:
            saver.put_writes(named, _merge(early, saver.get_writes(named)))


@final
class ContractHistories(Histories):
    """The histories in a saver that has no log, or hides it.

    The threads of execution of this process exclude each other; processes do not.
    """

    # The contract has no put that depends on what is stored. So each change reads and then puts under a
    # lock of this process: of two runs in one process, neither loses the writes of the other. If the
    # process dies in between, what it has put so far must be right by itself. Early writes are copied to
    # their checkpoint after it was put, and stay in their own namespace, so `read` merges both, whether
    # the copy was finished or not.

    def put_next(self, history: RunnableConfig, put_next: Callable[[GrowingHistory], None]) -> None:
        with _lock_thread(self.saver, history):
            put_next(_GrowingHistory(self.saver, history))

    def put_writes(
        self,
        history: RunnableConfig,
        checkpoint_id: str | None,
        writes: Sequence[Write],
        find_metadata: Callable[[], Mapping[str, Any]],
    ) -> None:
        saver = self.saver
        with _lock_thread(saver, history):
            target = history.replace(checkpoint_id=checkpoint_id)
            if saver.get(target) is None:
                if checkpoint_id is None:
                    raise CheckpointNotFoundError(history.thread, "checkpoint at all")
                target = _place_early(saver, history, checkpoint_id, find_metadata())
            known = saver.get_writes(target)
            new = {write.key: list(write) for write in writes if not (write.is_ordinary and write.key in known)}
            if new:
                saver.put_writes(target, new)

    def read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        saver = self.saver
        checkpoint = saver.get(config)
        if checkpoint is None:
            return None
        named = config.replace(checkpoint_id=checkpoint.id)
        own = saver.get_writes(named)
        # Without the pending writes and tags that a saver may keep among the metadata.
        metadata = make_checkpoint_info(config, checkpoint, own, ()).metadata
        stored = _ReadCheckpoint(checkpoint.with_metadata(freeze(metadata)))
        # They are still there if the process died after it had put the checkpoint.
        writes = _merge(saver.get_writes(_make_early_config(named)), own)
        return take(FoundCheckpoint(stored, stored.state, writes, is_packed=False, path=type(saver).__name__))

    def select(
        self,
        history: RunnableConfig,
        choose: Callable[[Iterator[Listed]], Result],
        expected: int | None,
    ) -> tuple[Result, LogExtent]:
        infos = self.saver.history(history) if expected is None else self._iter_recent(history, expected)
        return choose(iter(infos)), _UNKNOWN

    def _iter_recent(self, history: RunnableConfig, expected: int) -> Iterator[CheckpointInfo]:
        """Yield the infos of a history, newest first, and read no further back than the iteration goes."""
        wanted = max(expected, _MIN_READ)
        yielded: set[str] = set()
        while True:
            infos = self.saver.recent(history, limit=wanted)
            # Each read begins at the newest checkpoint, and others put and remove some between two reads. So it goes on
            # behind the last one that was yielded, wherever that is now.
            start = max((place for place, info in enumerate(infos, 1) if info.id in yielded), default=0)
            for info in infos[start:]:
                yielded.add(info.id)
                yield info
            if len(infos) < wanted:
                return
            wanted *= _GROWTH

    def read_selected(
        self,
        history: RunnableConfig,
        stored: Listed,
        extent: LogExtent,  # noqa: ARG002 - a checkpoint has no place but its id
        take: Take[Result],
    ) -> Result | None:
        return self.read(history.replace(checkpoint_id=stored.id), take)

    # Removing

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        """As in Histories.

        Raises:
            CheckpointerConfigurationError: the saver is no `SupportsRemove` and keeps versions, so that what
                is removed would stay in a version. Nothing was changed.
        """
        saver = self.saver
        removable = frozenset(ids)

        def select(infos: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
            return [info for info in infos if info.id in removable]

        for config in (history, _make_early_config(history)):
            if isinstance(saver, SupportsRemove):
                saver.remove(config, ids)
                continue
            if isinstance(saver, HasVersions) and select(saver.history(config)):
                raise CheckpointerConfigurationError(
                    f"{type(saver).__name__} cannot remove single checkpoints: it keeps them in a version; use the"
                    " saver that it wraps, or `prune` of the saver"
                )
            with _lock_thread(saver, config):
                remove_by_rewriting(saver, config, select)

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        """As in Histories. The times of the latest checkpoints decide: a saver does not say when it wrote."""
        with _lock_thread(self.saver, RunnableConfig(thread_id)):
            for namespace in self.saver.namespaces(thread_id):
                for info in self.saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1):
                    if info.created_at >= idle_since:
                        return False
            return dry_run or self.saver.delete(thread_id)


def _place_early(
    saver: BaseCheckpointSaver, history: RunnableConfig, checkpoint_id: str, metadata: Mapping[str, Any]
) -> RunnableConfig:
    """Return the config of the checkpoint that holds the early writes of another one; put it if it is missing.

    It has what is known of the metadata of that one: a sealed saver may choose the key by them.
    """
    place = _make_early_config(history.replace(checkpoint_id=checkpoint_id))
    if saver.get(place) is None:
        # Its state is not empty, because some savers refuse that.
        placeholder = Checkpoint.from_stored(
            id=checkpoint_id,
            node_id=UNKNOWN,
            next_node_id=END,
            parent_id=None,
            created_us=time_ns() // 1000,
            metadata=FrozenDict({**metadata, MADE_BY: LANGGRAPH}),
            state=FrozenDict({"early": "writes"}),
        )
        saver.put(_make_early_config(history), placeholder)
    return place


def _make_early_config(config: RunnableConfig) -> RunnableConfig:
    """Return the config for the early writes of a checkpoint, or of a history."""
    return config.replace(checkpoint_ns=EARLY_WRITES + config.checkpoint_ns)


def _merge(early: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the writes of a checkpoint by key. The first ordinary one stays; others replace earlier ones."""
    if not early:
        return own
    writes = dict(early)
    for key, record in own.items():
        if key not in writes or not Write(*record).is_ordinary:
            writes[key] = record
    return writes
