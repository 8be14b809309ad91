"""MemorySaver: stores histories in the memory of this process. Ports the class of langgraph4j.

Values in a state are immutable, so checkpoints are stored as they are and share everything that did
not change. Only mutable objects of the application (`PRIVATE`, see `graphkit.saver_kit`) are copied:
when a caller passes them in, and when they are returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from graphkit import Checkpoint, CheckpointInfo, RunnableConfig, Tag
from graphkit.abc import BaseCheckpointSaver, HasVersions
from graphkit.errors import CheckpointNotFoundError
from graphkit.saver_kit import (
    PLAIN,
    PRIVATE,
    REMOVED,
    SET,
    Codec,
    ConfigLike,
    FrozenDict,
    ThreadLike,
    check_copy,
    check_writes,
    freeze,
    is_process_lock_held,
    is_process_lock_mine,
    kind_of,
    make_checkpoint_info,
    private_copy,
    resolve_thread_id,
    with_status,
)
from savers._options import parse_lock_timeout
from savers._threads import call_after_fork

_EMPTY = FrozenDict()


class MemorySaver(BaseCheckpointSaver):
    """Stores checkpoints in memory, until the process ends. `release` returns a history and keeps nothing.

    The saver refuses what a persistent saver could not store, so a graph that works with it works
    with the others. One lock guards everything: no operation under it is slow enough for a second.
    """

    refuses_unstorable_values = True
    isolates_values = True
    waits_for_runs = True

    def __init__(self, *, lock_timeout: float = 10.0) -> None:
        """Make an empty store.

        Args:
            lock_timeout: how long a run, `release`, `delete` or `copy` waits for another run of the
                thread, in seconds.

        Raises:
            CheckpointerConfigurationError: the time is no number, or negative.
        """
        self.lock_timeout = parse_lock_timeout(lock_timeout)
        self._renew_lock()
        _SAVERS.add(self)
        self._codec = Codec()
        self._threads: dict[str, _Thread] = {}
        """The threads that have a history or a version. Each operation changes one of them by one
        assignment, so that an exception at any line leaves it as it was or as it shall be."""

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors."""
        cls(*arguments, **options)

    # The four required methods

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        config = RunnableConfig.of(config)
        with self._lock:
            return self._get_history(config).newest_first()

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)
        with self._lock:
            stored = self._get_history(config).find(config.checkpoint_id)
        return None if stored is None else _copy_for_caller(stored.checkpoint)

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        config = RunnableConfig.of(config)
        # Outside the lock: if the checkpoint comes from another store, this may read a file.
        state = checkpoint.state
        with self._lock:
            history = self._get_history(config)
            replaced = None if config.checkpoint_id is None else self._require(config)
            parent = history.find(checkpoint.parent_id) if checkpoint.parent_id else None
            self._refuse_unstorable(checkpoint, parent)
            kept = checkpoint
            if checkpoint.changes is not None:
                # Without the changes: they refer to the state of the parent, which may be pruned.
                kept = checkpoint.with_state(state)
            elif not _is_shareable(checkpoint):
                kept = checkpoint.with_state(private_copy(state)).with_metadata(private_copy(checkpoint.metadata))
            if replaced is not None:
                history.replace(replaced, kept)
                return config
            is_new = not history.checkpoints
            history.append(_StoredCheckpoint(kept))
            if is_new:
                thread = self._get_thread(config.thread)
                self._threads[config.thread] = thread._replace(live={**thread.live, config.checkpoint_ns: history})
        return config.with_check_point_id(checkpoint.id)

    def release(self, config: ConfigLike = None) -> Tag:
        """End the active history of a thread in all namespaces, and return that of the root.

        Raises:
            ThreadBusyError: a run holds the thread. Nothing was changed.
        """
        thread = RunnableConfig.of(config).thread
        with self._exclude_runs(thread), self._lock:
            released = self._get_thread(thread).live
            if not released:
                return Tag(thread, ())
            root = released.get("", _History())
            return Tag(thread, root.newest_first(), self._end_history(thread))

    def _end_history(self, thread: str) -> int | None:
        """End the live histories of a thread; return the number of their version, if they are kept."""
        del self._threads[thread]
        return None

    # Methods that are faster here than the defaults

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        with self._lock:
            return tuple(self._get_thread(resolve_thread_id(thread)).live)

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        return self._recent(RunnableConfig.of(config), None)

    def _recent(self, config: RunnableConfig, limit: int | None) -> Sequence[CheckpointInfo]:
        with self._lock:
            infos = self._list_infos(config, limit)
            if not infos:
                return []
            return [with_status(self, infos[0]), *infos[1:]]

    def _list_infos(self, config: RunnableConfig, limit: int | None = None) -> Sequence[CheckpointInfo]:
        newest_first = reversed(self._get_history(config).checkpoints)
        return [_make_info(config, stored) for stored in islice(newest_first, limit)]

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """Record pending writes with the checkpoint that the config names, or with the latest.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a key or a value cannot be stored. Nothing was changed.
        """
        check_writes(writes)
        frozen = FrozenDict({key: private_copy(freeze(value)) for key, value in writes.items()})
        for key, value in frozen.items():
            self._refuse_value(key, value, SET)
        with self._lock:
            stored = self._require(RunnableConfig.of(config))
            stored.writes = FrozenDict({**stored.writes, **frozen})

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        with self._lock:
            stored = self._find(config)
            return _EMPTY if stored is None else private_copy(stored.writes)

    def _change_tags(self, config: RunnableConfig, add: Sequence[str], remove: Sequence[str]) -> None:
        with self._lock:
            stored = self._require(config)
            stored.tags = tuple(tag for tag in dict.fromkeys((*stored.tags, *add)) if tag not in remove)

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        with self._lock:
            stored = self._find(config)
            return () if stored is None else stored.tags

    def threads(self, *, released: bool = False) -> Sequence[str]:
        with self._lock:
            return tuple(name for name, thread in self._threads.items() if released or thread.live)

    def delete(self, thread: ThreadLike = None) -> bool:
        """Remove a thread with all its namespaces and versions.

        Returns:
            Whether there was anything to remove.

        Raises:
            ThreadBusyError: a run holds the thread. Nothing was changed.
        """
        thread_id = resolve_thread_id(thread)
        with self._exclude_runs(thread_id), self._lock:
            return self._threads.pop(thread_id, None) is not None

    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:  # noqa: ARG002 - as in every saver
        """Report that nothing is left: what was deleted is no longer referenced."""
        return ()

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        """Copy the active history of a thread, with its ids, into an empty thread. Checkpoints are shared.

        Raises:
            CheckpointNotFoundError: the source is empty.
            CheckpointConflictError: the target is not empty, or the source is incomplete. Nothing was
                changed.
            ThreadBusyError: a run holds one of the threads. Nothing was changed.
        """
        old_thread = resolve_thread_id(source)
        new_thread = resolve_thread_id(target)
        with ExitStack() as locks:
            # In a fixed order, so that two copies in opposite directions do not deadlock.
            for thread in sorted({old_thread, new_thread}):
                locks.enter_context(self._exclude_runs(thread))
            locks.enter_context(self._lock)
            check_copy(self, old_thread, new_thread)
            histories = self._get_thread(old_thread).live
            copied = {namespace: history.copy() for namespace, history in histories.items()}
            self._threads[new_thread] = self._get_thread(new_thread)._replace(live=copied)

    def _prune(
        self, config: RunnableConfig, select: Callable[[Sequence[CheckpointInfo]], Sequence[CheckpointInfo]]
    ) -> int:
        with self._lock:
            removable = {info.id for info in select(self._list_infos(config))}
            if removable:
                self._get_history(config).remove(removable)
            return len(removable)

    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove checkpoints of a history, with their pending writes and tags.

        Returns:
            How many of the checkpoints the history had.
        """
        config = RunnableConfig.of(config)
        with self._lock:
            removable = {info.id for info in self._list_infos(config)}.intersection(ids)
            if removable:
                thread = self._threads[config.thread]
                thread.live[config.checkpoint_ns].remove(removable)
                # An empty history is forgotten; the thread too, if it was the last one.
                live = {namespace: history for namespace, history in thread.live.items() if history.checkpoints}
                if live or thread.versions:
                    self._threads[config.thread] = thread._replace(live=live)
                else:
                    del self._threads[config.thread]
            return len(removable)

    def size(self, thread: ThreadLike = None) -> int:
        """Return the number of bytes that a thread, or all threads (None), would take if stored in full.

        Each checkpoint counts in full, although checkpoints share values. The cost is proportional
        to the result.
        """
        with self._lock:
            threads = self._threads.values() if thread is None else [self._get_thread(resolve_thread_id(thread))]
            values = [
                value
                for kept in threads
                for histories in (kept.live, *kept.versions)
                for history in histories.values()
                for value in history.iter_values()
            ]
            return sum(len(self._codec.pack(value)) for value in values if value)

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        return super()._run_lock(config, self.lock_timeout if timeout is None else timeout)

    def _is_run_locked(self, config: RunnableConfig) -> bool:
        return is_process_lock_held(self.run_lock_key(config))

    def _exclude_runs(self, thread: str) -> AbstractContextManager[object]:
        """Hold the run lock, unless the caller holds it, or is a node of the run that holds it."""
        config = RunnableConfig(thread)
        return nullcontext() if is_process_lock_mine(self.run_lock_key(config)) else self.run_lock(config)

    # Refusing what could not be stored

    def _refuse_unstorable(self, checkpoint: Checkpoint, parent: _StoredCheckpoint | None) -> None:
        """Check the parts of a checkpoint that are new.

        These are its changes, if they apply to the state of the stored parent; otherwise all of it.
        """
        state = checkpoint.state
        changes = checkpoint.changes
        self._refuse_value("metadata", checkpoint.metadata, SET)
        if state.kind == PLAIN:
            return
        if changes is None or parent is None or changes.base is not parent.checkpoint.state:
            for key, value in state.items():
                self._refuse_value(key, value, SET)
            return
        for key, op in changes.ops.items():
            if op != REMOVED:
                self._refuse_value(key, state[key], op)

    def _refuse_value(self, path: str, value: Any, op: int) -> None:
        if kind_of(value) == PLAIN:
            return
        if op == SET:
            self._codec.pack(value, path)
        else:
            self._codec.pack_items(value[op:], path, op)

    # Finding

    def _get_thread(self, thread: str) -> _Thread:
        return self._threads.get(thread, _NO_THREAD)

    def _get_history(self, config: RunnableConfig) -> _History:
        """Return the history that a config names; a new one, not stored yet, if there is none."""
        return self._get_thread(config.thread).live.get(config.checkpoint_ns) or _History()

    def _find(self, config: ConfigLike) -> _StoredCheckpoint | None:
        config = RunnableConfig.of(config)
        return self._get_history(config).find(config.checkpoint_id)

    def _require(self, config: RunnableConfig) -> _StoredCheckpoint:
        stored = self._find(config)
        if stored is None:
            raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
        return stored

    # Async methods without a worker thread, because nothing here waits. The methods that take the
    # run lock may wait, and keep theirs.

    async def alist(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self.list(config)

    async def aget(self, config: ConfigLike = None) -> Checkpoint | None:
        return self.get(config)

    async def aput(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        return self.put(config, checkpoint)

    async def aput_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        self.put_writes(config, writes)

    async def aget_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        return self.get_writes(config)

    checkOptions = check_options
    eraseDeleted = erase_deleted


_SAVERS: Final[WeakSet[MemorySaver]] = WeakSet()
# Another thread of the parent may hold the lock for ever.
call_after_fork(_SAVERS, MemorySaver._renew_lock)  # noqa: SLF001


class _StoredCheckpoint:
    """A checkpoint with its pending writes and tags."""

    __slots__ = ("checkpoint", "tags", "writes")

    def __init__(self, checkpoint: Checkpoint, writes: FrozenDict = _EMPTY, tags: tuple[str, ...] = ()) -> None:
        self.checkpoint = checkpoint
        self.writes = writes
        self.tags = tags


class _History:
    """The checkpoints of one namespace, oldest first, and an index of their ids."""

    __slots__ = ("_by_id", "checkpoints")

    def __init__(self, checkpoints: Iterable[_StoredCheckpoint] = ()) -> None:
        self.checkpoints = list(checkpoints)
        self._by_id: dict[str, _StoredCheckpoint] | None = None
        """None while the checkpoints change, too: an exception may come between the changes of both."""

    def find(self, id: str | None) -> _StoredCheckpoint | None:
        """Return the checkpoint with this id, or the newest (None)."""
        if id is None:
            return self.checkpoints[-1] if self.checkpoints else None
        if self._by_id is None:
            self._by_id = {stored.checkpoint.id: stored for stored in self.checkpoints}
        return self._by_id.get(id)

    def append(self, stored: _StoredCheckpoint) -> None:
        by_id, self._by_id = self._by_id, None
        self.checkpoints.append(stored)
        if by_id is not None:
            by_id[stored.checkpoint.id] = stored
            self._by_id = by_id

    def replace(self, stored: _StoredCheckpoint, checkpoint: Checkpoint) -> None:
        """Replace a checkpoint in place; its pending writes and tags stay."""
        old_id = stored.checkpoint.id
        new_id = checkpoint.id
        if old_id == new_id:
            stored.checkpoint = checkpoint
            return
        by_id, self._by_id = self._by_id, None
        stored.checkpoint = checkpoint
        # With an id more than once, the index does not tell which is the newest with the old one now.
        if by_id is not None and len(by_id) == len(self.checkpoints) and new_id not in by_id:
            by_id[new_id] = by_id.pop(old_id)
            self._by_id = by_id

    def remove(self, ids: set[str]) -> None:
        self._by_id = None
        self.checkpoints = [stored for stored in self.checkpoints if stored.checkpoint.id not in ids]

    def copy(self) -> _History:
        return _History(_StoredCheckpoint(stored.checkpoint, stored.writes, stored.tags) for stored in self.checkpoints)

    def iter_values(self) -> Iterator[FrozenDict]:
        """Yield the state, the metadata and the pending writes of each checkpoint."""
        for stored in self.checkpoints:
            yield stored.checkpoint.state
            yield stored.checkpoint.metadata
            yield stored.writes

    def newest_first(self) -> tuple[Checkpoint, ...]:
        """Return the checkpoints for a caller."""
        return tuple(_copy_for_caller(stored.checkpoint) for stored in reversed(self.checkpoints))


class _Thread(NamedTuple):
    """What is stored of a thread."""

    live: Mapping[str, _History] = {}
    """The histories that have not ended, by namespace. None of them is empty."""
    versions: tuple[Mapping[str, _History], ...] = ()
    """The released histories, by namespace; version 1 comes first. For savers with versions."""


_NO_THREAD: Final = _Thread()


def _make_info(config: RunnableConfig, stored: _StoredCheckpoint) -> CheckpointInfo:
    info = make_checkpoint_info(config, stored.checkpoint, stored.writes, stored.tags)
    return info._replace(metadata=private_copy(info.metadata))


def _copy_for_caller(checkpoint: Checkpoint) -> Checkpoint:
    """Return a stored checkpoint for a caller; the application's objects are copied when the state is read."""
    if _is_shareable(checkpoint):
        return checkpoint
    return Checkpoint.from_stored(
        id=checkpoint.id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        parent_id=checkpoint.parent_id,
        created_us=checkpoint.created_us,
        metadata=private_copy(checkpoint.metadata),
        state=None,
        load=lambda: private_copy(checkpoint.state),
    )


def _is_shareable(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint contains no mutable objects of the application."""
    return PRIVATE not in (checkpoint.state.kind, checkpoint.metadata.kind)


class VersionedMemorySaver(MemorySaver, HasVersions):
    """Keeps every released history as version 1, 2, ... of its thread. Releasing an empty thread makes none."""

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors."""
        cls(*arguments, **options)

    def _end_history(self, thread: str) -> int:
        kept = self._threads[thread]
        versions = (*kept.versions, kept.live)
        self._threads[thread] = kept._replace(live={}, versions=versions)
        return len(versions)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        with self._lock:
            count = len(self._get_thread(resolve_thread_id(thread)).versions)
        return range(1, count + 1)

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        with self._lock:
            number = self._find_version(config.thread, version)
            histories = self._get_thread(config.thread).versions[number - 1]
            history = histories.get(config.checkpoint_ns, _History())
            return Tag(config.thread, history.newest_first(), number)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        with self._lock:
            number = self._find_version(thread_id, version)
            return tuple(self._get_thread(thread_id).versions[number - 1])
