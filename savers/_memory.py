"""MemorySaver: histories in the memory of this process, as fast as a saver can be. Ports langgraph4j's class.

Values in a state are immutable, so checkpoints are kept as they are and share all that did not change. Only application
objects that are mutable themselves (`PRIVATE`, see `graphkit.values`) are copied: as they come from a caller's
hand, and as they are handed out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, Tag, WaitingInterrupt
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    Retention,
    ThreadLike,
    check_tags,
    check_writes,
    make_checkpoint_info,
    resolve_thread_id,
)
from graphkit.codec import Codec
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.values import PLAIN, PRIVATE, REMOVED, SET, FrozenDict, freeze, kind_of, private_copy

_EMPTY = FrozenDict()


class MemorySaver(BaseCheckpointSaver):
    """Keeps checkpoints in memory; they are gone with the process. Release gives the history away and keeps nothing.

    It refuses what a persistent saver could not store, so that a graph that works with this one works with the others.
    One lock guards it all; nothing is slow enough under it to be worth a second one.
    """

    refuses_unstorable_values = True
    isolates_values = True
    waits_for_runs = True

    def __init__(self, *, lock_timeout: float = 10.0) -> None:
        """Make an empty store.

        Args:
            lock_timeout: seconds that a run, a release, a delete or a copy waits for another run of the thread.
        """
        self.lock_timeout = lock_timeout
        self._lock = threading.RLock()
        self._codec = Codec()
        self._holders: dict[str, int] = {}
        """Per thread whose run lock is held, the operating system's thread that holds it."""
        self._threads: dict[str, dict[str, _History]] = {}
        """Per thread its namespaces; a thread or namespace that is there has a checkpoint."""

    # The four

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        config = RunnableConfig.of(config)
        with self._lock:
            return self._history(config).newest_first()

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)
        with self._lock:
            entry = self._history(config).find(config.checkpoint_id)
        return None if entry is None else _lent(entry.checkpoint)

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        config = RunnableConfig.of(config)
        state = checkpoint.state  # read from another store here, if that is where it comes from, and not under the lock
        with self._lock:
            history = self._history(config)
            entry = None if config.checkpoint_id is None else self._entry(config)
            self._refuse_unstorable(checkpoint, history.find(checkpoint.parent_id) if checkpoint.parent_id else None)
            # Without its changes: they hold the parent's state, which may be pruned.
            kept = checkpoint.with_state(state) if checkpoint.changes is not None else _own(checkpoint)
            if entry is not None:
                history.replace(entry, kept)
                return config
            if not history.entries:
                self._threads.setdefault(config.thread, {})[config.checkpoint_ns] = history
            history.append(_Entry(kept))
        return config.with_check_point_id(checkpoint.id)

    def release(self, config: ConfigLike = None) -> Tag:
        """End the thread's history, all namespaces, and return the root's.

        Raises:
            ThreadBusyError: a run holds the thread. Nothing was changed.
        """
        thread = RunnableConfig.of(config).thread
        with self._exclusive(thread), self._lock:
            released = self._threads.pop(thread, None)
            if not released:
                return Tag(thread, ())
            return Tag(thread, released.get("", _History()).newest_first(), self._keep(thread, released))

    def _keep(self, thread: str, released: Mapping[str, _History]) -> int | None:  # noqa: ARG002
        """Keep what was released, and say as which version; for savers with versions."""
        return None

    # What is faster here than on the four

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        with self._lock:
            return tuple(self._threads.get(resolve_thread_id(thread), ()))

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        config = RunnableConfig.of(config)
        with self._lock:
            return [_info(config, entry) for entry in reversed(self._history(config).entries)]

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """Record values beside the checkpoint that the config names (or the latest), merged over those already there.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a key or a value cannot be stored. Nothing was changed.
        """
        check_writes(writes)
        frozen = FrozenDict({key: private_copy(freeze(value)) for key, value in writes.items()})
        for key, value in frozen.items():
            self._refuse_value(key, value, SET)
        with self._lock:
            entry = self._entry(RunnableConfig.of(config))
            entry.writes = FrozenDict({**entry.writes, **frozen})

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        with self._lock:
            entry = self._find(config)
            return _EMPTY if entry is None else private_copy(entry.writes)

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        with self._lock:
            entry = self._entry(RunnableConfig.of(config))
            entry.tags = tuple(dict.fromkeys(entry.tags + tags))

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        with self._lock:
            entry = self._entry(RunnableConfig.of(config))
            entry.tags = tuple(tag for tag in entry.tags if tag not in tags)

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        with self._lock:
            entry = self._find(config)
            return () if entry is None else entry.tags

    def threads(self, *, released: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing released is kept here
        with self._lock:
            return tuple(self._threads)

    def delete(self, thread: ThreadLike = None) -> bool:
        """Remove a thread with all its namespaces and versions; whether there was anything.

        Raises:
            ThreadBusyError: a run holds the thread. Nothing was changed.
        """
        thread_id = resolve_thread_id(thread)
        with self._exclusive(thread_id), self._lock:
            return self._threads.pop(thread_id, None) is not None

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        """Copy a thread's active history, ids and all, into an empty thread; the checkpoints are shared.

        Raises:
            CheckpointNotFoundError: the source is empty.
            CheckpointConflictError: the target is not empty. Nothing was changed.
            ThreadBusyError: a run holds one of them. Nothing was changed.
        """
        origin, goal = resolve_thread_id(source), resolve_thread_id(target)
        with ExitStack() as held:
            # In one order, so that two copies in opposite directions do not wait for each other.
            for thread in sorted({origin, goal}):
                held.enter_context(self._exclusive(thread))
            held.enter_context(self._lock)
            if origin not in self._threads:
                raise CheckpointNotFoundError(origin)
            if goal in self._threads:
                raise CheckpointConflictError(goal, "not empty; release or delete it before copying into it")
            copies = {namespace: history.copy() for namespace, history in self._threads[origin].items()}
            self._threads[goal] = copies

    def _prune(self, config: RunnableConfig, retention: Retention) -> int:
        with self._lock:
            going = {info.id for info in retention.select_removable(self.history(config))}
            if going:
                self._history(config).remove(going)
            return len(going)

    def size(self, thread: ThreadLike = None) -> int:
        """The bytes that a thread, or all (None), would take if each checkpoint were stored in full; O(that)."""
        with self._lock:
            threads = self.threads(released=True) if thread is None else [resolve_thread_id(thread)]
            return sum(self._size(part) for one in threads for part in self._parts(one))

    def _parts(self, thread: str) -> Iterator[FrozenDict]:
        for history in self._threads.get(thread, {}).values():
            yield from history.parts()

    def _size(self, part: FrozenDict) -> int:
        return len(self._codec.pack(part)) if part else 0

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    @contextmanager
    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> Iterator[None]:
        with super()._run_lock(config, self.lock_timeout if timeout is None else timeout):
            self._holders[config.thread] = threading.get_ident()
            try:
                yield
            finally:
                del self._holders[config.thread]

    def _exclusive(self, thread: str) -> AbstractContextManager[object]:
        """The run lock, unless the caller has taken it itself, or is a node of the run that holds it."""
        is_mine = self._holders.get(thread) == threading.get_ident()
        return nullcontext() if is_mine else self.run_lock(RunnableConfig(thread))

    # Refusing what could not be stored

    def _refuse_unstorable(self, checkpoint: Checkpoint, parent: _Entry | None) -> None:
        """Look at what a checkpoint brings that is new: its changes, if the parent they apply to is the stored one."""
        state, changes = checkpoint.state, checkpoint.changes
        self._refuse_value("metadata", checkpoint.metadata, SET)
        if state.kind == PLAIN:
            return
        if changes is not None and parent is not None and changes.base is parent.checkpoint.state:
            for key, op in changes.ops.items():
                if op != REMOVED:
                    self._refuse_value(key, state[key], op)
        else:
            for key, value in state.items():
                self._refuse_value(key, value, SET)

    def _refuse_value(self, path: str, value: Any, op: int) -> None:
        if kind_of(value) == PLAIN:
            return
        if op == SET:
            self._codec.pack(value, path)
        else:
            self._codec.pack_items(value[op:], path, op)

    # Finding

    def _history(self, config: RunnableConfig) -> _History:
        """The history that a config names; a new one, belonging to nothing yet, if there is none."""
        return self._threads.get(config.thread, {}).get(config.checkpoint_ns) or _History()

    def _find(self, config: ConfigLike) -> _Entry | None:
        config = RunnableConfig.of(config)
        return self._history(config).find(config.checkpoint_id)

    def _entry(self, config: RunnableConfig) -> _Entry:
        entry = self._find(config)
        if entry is None:
            raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
        return entry

    # Async twins without a thread in between: nothing here waits. What takes the run lock may, and keeps its thread.

    async def alist(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self.list(config)

    async def aget(self, config: ConfigLike = None) -> Checkpoint | None:
        return self.get(config)

    async def aput(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        return self.put(config, checkpoint)

    async def anamespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        return self.namespaces(thread)

    async def ahistory(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        return self.history(config)

    async def arecent(self, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        return self.recent(config, limit=limit)

    async def asummary(self, config: ConfigLike = None) -> HistorySummary | None:
        return self.summary(config)

    async def aput_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        self.put_writes(config, writes)

    async def aget_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        return self.get_writes(config)

    async def ainterrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        return self.interrupts(thread_id)

    async def athreads(self, *, released: bool = False) -> Sequence[str]:
        return self.threads(released=released)

    async def aadd_tags(self, config: ConfigLike, *tags: str) -> None:
        self.add_tags(config, *tags)

    async def aremove_tags(self, config: ConfigLike, *tags: str) -> None:
        self.remove_tags(config, *tags)

    async def atags_of(self, config: ConfigLike) -> tuple[str, ...]:
        return self.tags_of(config)


class _Entry:
    """A checkpoint and what is recorded beside it."""

    __slots__ = ("checkpoint", "tags", "writes")

    def __init__(self, checkpoint: Checkpoint, writes: FrozenDict = _EMPTY, tags: tuple[str, ...] = ()) -> None:
        self.checkpoint = checkpoint
        self.writes = writes
        self.tags = tags


class _History:
    """The checkpoints of one namespace, oldest first, and where each id stands."""

    __slots__ = ("entries", "index")

    def __init__(self, entries: Iterable[_Entry] = ()) -> None:
        self.entries = list(entries)
        self.index = {entry.checkpoint.id: entry for entry in self.entries}

    def find(self, id: str | None) -> _Entry | None:
        """The checkpoint with this id, or the newest (None)."""
        if id is None:
            return self.entries[-1] if self.entries else None
        return self.index.get(id)

    def append(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self.index[entry.checkpoint.id] = entry

    def replace(self, entry: _Entry, checkpoint: Checkpoint) -> None:
        """Put another checkpoint in this one's place; what is recorded beside it stays."""
        del self.index[entry.checkpoint.id]
        entry.checkpoint = checkpoint
        self.index[checkpoint.id] = entry

    def remove(self, ids: set[str]) -> None:
        self.entries = [entry for entry in self.entries if entry.checkpoint.id not in ids]
        self.index = {entry.checkpoint.id: entry for entry in self.entries}

    def copy(self) -> _History:
        return _History(_Entry(entry.checkpoint, entry.writes, entry.tags) for entry in self.entries)

    def parts(self) -> Iterator[FrozenDict]:
        for entry in self.entries:
            yield from (entry.checkpoint.state, entry.checkpoint.metadata, entry.writes)

    def newest_first(self) -> tuple[Checkpoint, ...]:
        return tuple(_lent(entry.checkpoint) for entry in reversed(self.entries))


def _info(config: RunnableConfig, entry: _Entry) -> CheckpointInfo:
    info = make_checkpoint_info(config, entry.checkpoint, entry.writes, entry.tags)
    return info._replace(metadata=private_copy(info.metadata))


def _own(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint that came from a caller's hand, with application objects of its own."""
    return checkpoint if _is_shareable(checkpoint) else _with(checkpoint, private_copy(checkpoint.state), None)


def _lent(checkpoint: Checkpoint) -> Checkpoint:
    """A stored checkpoint to hand out; its application objects are copied when somebody looks at the state."""
    if _is_shareable(checkpoint):
        return checkpoint
    return _with(checkpoint, None, lambda: private_copy(checkpoint.state))


def _is_shareable(checkpoint: Checkpoint) -> bool:
    return PRIVATE not in (checkpoint.state.kind, checkpoint.metadata.kind)


def _with(checkpoint: Checkpoint, state: FrozenDict | None, load: Any) -> Checkpoint:
    return Checkpoint.from_stored(
        id=checkpoint.id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        parent_id=checkpoint.parent_id,
        created_us=checkpoint.created_us,
        metadata=private_copy(checkpoint.metadata),
        state=state,
        load=load,
    )
