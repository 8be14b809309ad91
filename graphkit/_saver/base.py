"""The contracts: BaseCheckpointSaver, HasVersions, StateSerializer, InterruptableAction; langgraph4j's, ported."""

from __future__ import annotations

import abc
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from graphkit._java_names import JavaNames
from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import THREAD_ID_DEFAULT, ConfigLike, RunnableConfig
from graphkit._records.output import CheckpointInfo, HistorySummary, InterruptionMetadata, WaitingInterrupt
from graphkit._saver.retention import Retention
from graphkit._saver.run_lock import HeldRunLock, find_held_lock, locks_held_by_runs
from graphkit._saver.thread_id import ThreadLike, resolve_thread_id
from graphkit._saver.watch import Change, PollingWatch, Watch
from graphkit._saver.writes import (
    LatestCheckpoint,
    check_tags,
    check_writes,
    derive_status,
    find_failure,
    find_waiting_interrupts,
    is_fork,
    iter_changes,
    subgraph_interrupts,
    subgraph_namespace,
    unanswered_interrupts,
    waiting_interrupts,
    well_formed_writes,
)
from graphkit._values.frozen import FrozenDict, freeze
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    ThreadBusyError,
)

P = ParamSpec("P")
T = TypeVar("T")

_WRITES: Final = "graphkit:writes"
_TAGS: Final = "graphkit:tags"


class BaseCheckpointSaver(JavaNames, abc.ABC):
    """Keeps the histories of threads. Four methods are a saver; the rest stands on them, slow and right.

    A history belongs to a thread and a namespace (`config.checkpoint_ns`, "" at the root). All methods may be called
    from any thread, and for one store from several processes if the store lives outside this one. What is returned
    never changes afterwards.

    For implementers: subclass `graphkit.testing.SaverContract` to test yours.
    """

    THREAD_ID_DEFAULT: ClassVar[str] = THREAD_ID_DEFAULT

    # The four

    @abc.abstractmethod
    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        """The history, newest first by order of writing; empty for an unknown thread.

        States may be decoded on first use. The sequence is a snapshot: later puts do not show in it.
        """

    @abc.abstractmethod
    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        """The checkpoint that the config names, or the last one written; None if there is none."""

    @abc.abstractmethod
    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """Store a checkpoint.

        Without a checkpoint id in the config it becomes the newest; returns the config with its id. With one, it takes
        the place of that checkpoint (and may have another id); returns the config unchanged. An id that the history has
        already may be put again; `get` then finds the newest. Once this returns, the
        checkpoint survives whatever the saver promises to survive.

        Raises:
            CheckpointNotFoundError: the named checkpoint does not exist. Nothing was changed.
            CheckpointSerializationError: a value cannot be stored. Nothing was changed.
            CheckpointStorageError: the store refused. What was there before still is.
        """

    @abc.abstractmethod
    def release(self, config: ConfigLike = None) -> Tag:
        """End the thread's active history, all namespaces, and return the root's; the thread is empty afterwards."""

    # What stands on them

    @property
    def is_durable(self) -> bool:
        """Whether the checkpoints outlive this process. A run without a thread id on such a saver emits a warning."""
        return False

    # Capabilities, see `graphkit._saver.capabilities`. The contract suite tests what a saver declares.

    @property
    def lists_threads(self) -> bool:
        """Whether `threads` works, and with it what reads all threads. By default, whether it is overridden."""
        return type(self).threads is not BaseCheckpointSaver.threads

    @property
    def lists_namespaces(self) -> bool:
        """Whether `namespaces` finds every namespace. By default, whether it is overridden."""
        return type(self).namespaces is not BaseCheckpointSaver.namespaces

    @property
    def measures_size(self) -> bool:
        """Whether `size` works. By default, whether it is overridden."""
        return type(self).size is not BaseCheckpointSaver.size

    @property
    def refuses_unstorable_values(self) -> bool:
        """Whether `put` and `put_writes` refuse values that graphkit's codec cannot store, and change nothing.

        Such a saver raises a `CheckpointSerializationError` that names the path of the value, even if it could keep
        the value itself. Therefore a graph that works with it works with every saver. False unless declared.
        """
        return False

    @property
    def isolates_values(self) -> bool:
        """Whether the saver shares no mutable object of the application with its callers.

        Such a saver copies these objects when it stores them, and again when it returns them; a saver that stores
        bytes does so by nature. False unless declared.
        """
        return False

    @property
    def waits_for_runs(self) -> bool:
        """Whether `release`, `delete` and `copy` wait for the run that holds the thread. False unless declared."""
        return False

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        """The namespaces of a thread that hold checkpoints.

        On the four methods alone: the root, and the namespaces of embedded graphs that the histories name as nodes or
        as waiting. What only the store knows is not found: a namespace that the application chose, and a graph embedded
        in a branch of a fork that does not wait. A saver that can list its namespaces overrides this.
        """
        thread_id = resolve_thread_id(thread)
        found: list[str] = []
        possible = [""]
        for namespace in possible:  # grows while it is read: each namespace names those inside it
            history = self.list(RunnableConfig(thread_id, checkpoint_ns=namespace))
            if history:
                found.append(namespace)
                for name in self._named_inside(RunnableConfig(thread_id, checkpoint_ns=namespace), history):
                    if name not in possible:
                        possible.append(name)
        return found

    def _named_inside(self, config: RunnableConfig, history: Sequence[Checkpoint]) -> Iterator[str]:
        """Yield the namespaces directly inside one that its history may have, some of them more than once."""
        for checkpoint in history:
            for node_id in (checkpoint.node_id, checkpoint.next_node_id):
                if node_id is not None:
                    yield subgraph_namespace(config.checkpoint_ns, node_id)
        yield from subgraph_interrupts(well_formed_writes(self.get_writes(config), config.thread)).values()

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        """What is known of each checkpoint without decoding states, newest first."""
        config = RunnableConfig.of(config)
        return [self._info(config, checkpoint) for checkpoint in self.list(config)]

    def _info(self, config: RunnableConfig, checkpoint: Checkpoint) -> CheckpointInfo:
        at = config.replace(checkpoint_id=checkpoint.id)
        return make_checkpoint_info(config, checkpoint, self.get_writes(at), self.tags_of(at))

    def recent(self, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        """As `history`, only the newest `limit`. Costs `history` at most.

        Raises:
            ValueError: the limit is below one.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        return self._recent(RunnableConfig.of(config), limit)

    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        return self.history(config)[:limit]

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """What a history comes to, for lists of many; None if it is empty. Costs `history` at most."""
        config = RunnableConfig.of(config)
        infos = self.history(config)
        if not infos:
            return None
        tags = dict.fromkeys(tag for info in infos for tag in info.tags)
        return self._summed(infos[0], len(infos), tuple(tags), self.get_writes(config.with_check_point_id(infos[0].id)))

    def _summed(
        self, latest: CheckpointInfo, count: int, tags: tuple[str, ...], writes: Mapping[str, Any]
    ) -> HistorySummary:
        here = RunnableConfig(latest.thread_id, latest.id, latest.checkpoint_ns)
        waiting: Sequence[WaitingInterrupt] = ()
        if writes and subgraph_interrupts(writes):
            waiting = self.interrupts(latest.thread_id)
        elif writes:
            waiting = waiting_interrupts(here, writes)
        return HistorySummary(latest, count, tags, tuple(waiting), find_failure(here, writes))

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """Record values beside the checkpoint that the config names (or the latest), merged over those already there.

        Results of branches, waiting interrupts, answers. On the four methods alone they live in the checkpoint's
        metadata, by replacing it: safe against a crash if `put` is, and against other callers in this process. Two
        processes at once may lose one of the two; a saver for several processes overrides this.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a key is not a string, a value cannot be stored, or the value of a key that
                graphkit reads (`interrupt:<id>`, say) lacks what its readers need. Nothing was changed.
        """
        check_writes(writes)
        self._rewrite(config, _WRITES, lambda old: {**(old or {}), **writes})

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        """The values recorded beside a checkpoint, in the order of their first recording."""
        checkpoint = self.get(config)
        return {} if checkpoint is None else checkpoint.metadata.get(_WRITES, {})

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        """Tag the checkpoint that the config names, or the latest.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a tag is not a string. Nothing was changed.
        """
        check_tags(tags)
        self._rewrite(config, _TAGS, lambda old: list(dict.fromkeys((*(old or ()), *tags))))

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        """Take tags off a checkpoint; those it does not have are ignored.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a tag is not a string. Nothing was changed.
        """
        check_tags(tags)
        self._rewrite(config, _TAGS, lambda old: [tag for tag in old or () if tag not in tags])

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        """The tags of a checkpoint, in the order they were added."""
        checkpoint = self.get(config)
        return () if checkpoint is None else tuple(checkpoint.metadata.get(_TAGS, ()))

    def _rewrite(self, config: ConfigLike, key: str, change: Callable[[Any], Any]) -> None:
        config = RunnableConfig.of(config)
        with _rewrite_lock(self.run_lock_key(config)):
            checkpoint = self.get(config)
            if checkpoint is None:
                raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
            metadata = freeze({**checkpoint.metadata, key: change(checkpoint.metadata.get(key))})
            self.put(config.replace(checkpoint_id=checkpoint.id), checkpoint.with_metadata(metadata))

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """What waits for a human at the latest checkpoints: of one thread, or of all (None)."""
        threads = self.threads() if thread_id is None else [resolve_thread_id(thread_id)]
        found: list[WaitingInterrupt] = []
        for thread in threads:
            latest: dict[str, LatestCheckpoint] = {}
            for namespace in self.namespaces(thread):
                at = RunnableConfig(thread, checkpoint_ns=namespace)
                checkpoint = self.get(at)
                if checkpoint is not None:
                    at = at.replace(checkpoint_id=checkpoint.id)
                    latest[namespace] = LatestCheckpoint(at, checkpoint.metadata, self.get_writes(at))
            found += find_waiting_interrupts(latest)
        return found

    def threads(self, *, released: bool = False) -> Sequence[str]:  # noqa: ARG002 - for those that can
        """The ids of the threads that hold checkpoints; with `released`, of those too that hold versions only.

        Raises:
            CheckpointerConfigurationError: the saver keeps no list of its threads.
        """
        raise CheckpointerConfigurationError(f"{type(self).__name__} cannot list its threads")

    def delete(self, thread: ThreadLike = None) -> bool:
        """Remove a thread with all its namespaces and versions; whether there was anything.

        On the four methods alone: what `release` ends. A saver that keeps versions overrides this.
        """
        return bool(self.release(RunnableConfig(resolve_thread_id(thread))).checkpoints)

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        """Copy a thread's active history, ids and all, into an empty thread.

        Raises:
            CheckpointNotFoundError: the source is empty.
            CheckpointConflictError: the target is not empty. Nothing was changed.
        """
        goal = resolve_thread_id(target)
        with _rewrite_lock(self.run_lock_key(RunnableConfig(goal))):
            copy_thread(self, resolve_thread_id(source), self, goal)

    def search(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        """The checkpoints whose metadata has all these keys with these values; newest first within a thread."""
        found: list[CheckpointInfo] = []
        for thread in self.threads() if thread_id is None else [resolve_thread_id(thread_id)]:
            for namespace in self.namespaces(thread):
                for info in self.history(RunnableConfig(thread, checkpoint_ns=namespace)):
                    if limit is not None and len(found) >= limit:
                        return found
                    if all(key in info.metadata and info.metadata[key] == value for key, value in metadata.items()):
                        found.append(info)
        return found

    def prune(
        self,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """Remove old checkpoints of one thread, or of all (None); returns how many went.

        A checkpoint goes if it is beyond the last `keep_last` and, where given, older than `older_than`. The latest of
        a history never goes, nor what is tagged with one of `keep_tags`, nor (by default) what waits for a human.

        On the four methods alone: releases the thread and puts back what stays, in all namespaces that `namespaces`
        finds, under the run lock. A crash between the two loses the thread, and a saver that keeps versions gets one
        more; savers for anything of value override this.

        Raises:
            ValueError: neither keep_last nor older_than is given, or keep_last is below one.
            CheckpointerConfigurationError: on the four methods alone, a run stands before a fork, so the namespaces of
                graphs embedded in its branches may be unknown. The thread was not changed.
            ThreadBusyError: on the four methods alone, a run holds the thread. The thread was not changed.
        """
        retention = Retention(
            keep_last=keep_last,
            older_than=older_than,
            keep_tags=frozenset(keep_tags),
            keep_interrupted=keep_interrupted,
        )
        threads = self.threads() if thread is None else [resolve_thread_id(thread)]
        return sum(
            self._prune(RunnableConfig(one, checkpoint_ns=namespace), retention)
            for one in threads
            for namespace in self.namespaces(one)
        )

    def _prune(self, config: RunnableConfig, retention: Retention) -> int:
        # The run lock keeps out what a run would put between `list` and `release`, the other lock what is recorded
        # beside a checkpoint.
        with self.run_lock(config), _rewrite_lock(self.run_lock_key(config)):
            going = {info.id for info in retention.select_removable(self.history(config))}
            if not going:
                return 0
            histories = self._histories(config.thread)
            self.release(config)
            for namespace, history in histories.items():
                at = config.replace(checkpoint_ns=namespace)
                if self.get(at) is not None:
                    continue  # a saver whose release ends one namespace only
                for kept in history:
                    if namespace != config.checkpoint_ns or kept.checkpoint.id not in going:
                        kept.put(self, at)
            return len(going)

    def _histories(self, thread_id: str) -> dict[str, Sequence[_Whole]]:
        """Read all that `release` would end, by namespace, oldest first.

        Raises:
            CheckpointerConfigurationError: there may be more than this saver can name.
        """
        found: dict[str, Sequence[_Whole]] = {}
        for namespace in self.namespaces(thread_id):
            history = [*_whole_history(self, RunnableConfig(thread_id, checkpoint_ns=namespace))]
            if not self.lists_namespaces and is_fork(history[-1].checkpoint.next_node_id):
                raise CheckpointerConfigurationError(
                    f"{type(self).__name__} cannot prune a thread whose run stands before a fork: the branches may "
                    f"have histories that namespaces() does not find. Let the run go past the fork, or override "
                    f"namespaces() or prune()"
                )
            found[namespace] = history
        return found

    def size(self, thread: ThreadLike = None) -> int:  # noqa: ARG002 - for those that can
        """The bytes that a thread, or the whole store (None), takes.

        Raises:
            CheckpointerConfigurationError: the saver cannot tell.
        """
        raise CheckpointerConfigurationError(f"{type(self).__name__} cannot tell sizes")

    def register_types(self, *types: type) -> None:
        """Let values of these application types (Enum, dataclass, NamedTuple, pydantic model) come back from the store.

        A graph registers its schema's types with its saver. Nothing to do for savers that keep objects.
        """

    def opener(self) -> Callable[[], BaseCheckpointSaver] | None:
        """Something that can be pickled and opens the same store in another process; None if none can.

        What `config.once` uses where a node runs in another process than its run.
        """
        return None

    # Following

    def watch(self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0) -> Watch:
        """Follow one thread with all its namespaces, or all threads (None), from now on; nothing is missed after this.

        On the four methods alone, and with others that cannot do better, it looks again and again; close it.

        Args:
            thread: the thread. A config with a checkpoint id: from that checkpoint on, which is not told itself, but
                what was recorded beside it. With a namespace: that one and those below it.
            latest: begin with the latest checkpoint of each history, and what is recorded beside it.
            interval: seconds from one look to the next, where the saver can but look.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint.
            CheckpointerConfigurationError: all threads are to be followed, and the saver keeps no list of them; or the
                interval is not above 0.
        """
        config = self._followed(thread)
        return PollingWatch(self, config, iter_changes, partial(_versions_of, self), latest=latest, interval=interval)

    def _followed(self, thread: ThreadLike) -> RunnableConfig | None:
        """What a watch is to follow."""
        if thread is None or isinstance(thread, str):
            return None if thread is None else RunnableConfig(thread)
        config = RunnableConfig.of(thread)
        if config.checkpoint_id is not None and self.get(config) is None:
            raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id}")
        return config

    def wait_for_resume(
        self, thread: ThreadLike = None, timeout: float | None = None, *, interval: float = 1.0
    ) -> bool:
        """Wait until nothing of what waits for a human in a thread does so any more: answered, or moved on past.

        Then `app.resume(thread)` finds the answers, and goes on. A thread that waits for nobody, or is not there, is
        not waited for.

        Args:
            thread: the thread.
            timeout: seconds; None waits for ever.
            interval: seconds between looks, where the saver can but look; see `watch`.

        Returns:
            True; False if the time is up, and something still waits.
        """
        at = RunnableConfig(thread) if isinstance(thread, str) else RunnableConfig.of(thread).with_check_point_id(None)
        deadline = None if timeout is None else monotonic() + timeout
        with self.watch(at, interval=interval) as changes:
            waited = waiting_ids(self, at)
            while waited.intersection(waiting_ids(self, at)):
                if changes.get(None if deadline is None else max(0.0, deadline - monotonic())) is None:
                    return False
        return True

    # The run lock

    def run_lock(self, config: ConfigLike = None, timeout: float | None = None) -> AbstractContextManager[object]:
        """Hold a thread for a run, across processes where the saver can.

        Re-entrant for its holder: inside the `with` block, and in the tasks started there, the thread can be run,
        updated and locked again through this saver; one run at a time. The nodes of a run enter the lock of their run
        again. Other threads of the process wait.

        Args:
            config: names the thread; the lock covers all its namespaces.
            timeout: seconds to wait for another holder; None: the saver's own `lock_timeout`, 10 by default.

        Raises:
            ThreadBusyError: somebody else still holds it after that time.
        """
        config = RunnableConfig.of(config)
        key = self.run_lock_key(config)
        hold = find_held_lock(key)
        if key in locks_held_by_runs() or (hold is not None and hold.saver is self):
            return _nothing()
        return self._by_hand(key, self._run_lock(config, timeout))

    @contextmanager
    def _by_hand(self, key: object, lock: AbstractContextManager[object]) -> Iterator[None]:
        with lock:
            hold = HeldRunLock(key, self)
            hold.register()
            try:
                yield
            finally:
                hold.release()

    def run_lock_key(self, config: ConfigLike = None) -> object:
        """What tells two run locks apart; equal for two savers on one store."""
        return id(self), RunnableConfig.of(config).thread

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        """Take the lock itself; the default holds within this process only."""
        return _process_lock(self.run_lock_key(config), config.thread, 10.0 if timeout is None else timeout)

    # Async twins: each runs its sync method in a thread, so that the event loop never waits for a disk.

    async def alist(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        """As `list`."""
        return await run_in_thread(self.list, config)

    async def aget(self, config: ConfigLike = None) -> Checkpoint | None:
        """As `get`."""
        return await run_in_thread(self.get, config)

    async def aput(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """As `put`."""
        return await run_in_thread(self.put, config, checkpoint)

    async def arelease(self, config: ConfigLike = None) -> Tag:
        """As `release`."""
        return await run_in_thread(self.release, config)

    async def anamespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        """As `namespaces`."""
        return await run_in_thread(self.namespaces, thread)

    async def ahistory(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        """As `history`."""
        return await run_in_thread(self.history, config)

    async def arecent(self, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        """As `recent`."""
        return await run_in_thread(self.recent, config, limit=limit)

    async def asummary(self, config: ConfigLike = None) -> HistorySummary | None:
        """As `summary`."""
        return await run_in_thread(self.summary, config)

    async def aput_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """As `put_writes`."""
        await run_in_thread(self.put_writes, config, writes)

    async def aget_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        """As `get_writes`."""
        return await run_in_thread(self.get_writes, config)

    async def ainterrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As `interrupts`."""
        return await run_in_thread(self.interrupts, thread_id)

    async def athreads(self, *, released: bool = False) -> Sequence[str]:
        """As `threads`."""
        return await run_in_thread(self.threads, released=released)

    async def adelete(self, thread: ThreadLike = None) -> bool:
        """As `delete`."""
        return await run_in_thread(self.delete, thread)

    async def acopy(self, source: ThreadLike, target: ThreadLike) -> None:
        """As `copy`."""
        await run_in_thread(self.copy, source, target)

    async def asearch(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        """As `search`."""
        return await run_in_thread(self.search, metadata, thread_id=thread_id, limit=limit)

    async def aadd_tags(self, config: ConfigLike, *tags: str) -> None:
        """As `add_tags`."""
        await run_in_thread(self.add_tags, config, *tags)

    async def aremove_tags(self, config: ConfigLike, *tags: str) -> None:
        """As `remove_tags`."""
        await run_in_thread(self.remove_tags, config, *tags)

    async def atags_of(self, config: ConfigLike) -> tuple[str, ...]:
        """As `tags_of`."""
        return await run_in_thread(self.tags_of, config)

    async def aprune(
        self,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """As `prune`."""
        options: dict[str, Any] = {"keep_last": keep_last, "older_than": older_than}
        return await run_in_thread(
            self.prune, thread, **options, keep_tags=keep_tags, keep_interrupted=keep_interrupted
        )

    async def asize(self, thread: ThreadLike = None) -> int:
        """As `size`."""
        return await run_in_thread(self.size, thread)

    async def awatch(
        self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0
    ) -> AsyncIterator[Change]:
        """As `watch`; begins with the first item asked for, and ends when the iterator is closed."""
        with await run_in_thread(self.watch, thread, latest=latest, interval=interval) as changes:
            while (change := await run_in_thread(changes.get)) is not None:
                yield change

    async def await_for_resume(
        self,
        thread: ThreadLike = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the twin of a method that has it
        *,
        interval: float = 1.0,
    ) -> bool:
        """As `wait_for_resume`."""
        return await run_in_thread(self.wait_for_resume, thread, timeout, interval=interval)

    # Java names
    putWrites = put_writes
    waitForResume = wait_for_resume
    awaitForResume = await_for_resume
    getWrites = get_writes
    addTags = add_tags
    removeTags = remove_tags
    tagsOf = tags_of
    runLock = run_lock
    runLockKey = run_lock_key
    registerTypes = register_types
    aputWrites = aput_writes
    agetWrites = aget_writes
    aaddTags = aadd_tags
    aremoveTags = aremove_tags
    atagsOf = atags_of

    def threadId(self, config: ConfigLike = None) -> str:
        return resolve_thread_id(config)


class HasVersions(JavaNames, abc.ABC):
    """A saver that keeps every released history as a version: 1, 2, ... per thread."""

    @abc.abstractmethod
    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        """The versions of a thread, ascending; empty if there are none."""

    @abc.abstractmethod
    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        """A released history; None is the last one.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """

    def last_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        """The newest version of a thread, or None."""
        versions = self.versions_by_thread_id(thread)
        return versions[-1] if versions else None

    def get_version(self, config: ConfigLike = None) -> str | None:
        """The newest version of a thread as text, or None."""
        version = self.last_version_by_thread_id(config)
        return None if version is None else str(version)

    async def aversions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        """As `versions_by_thread_id`."""
        return await run_in_thread(self.versions_by_thread_id, thread)

    async def atag(self, config: ConfigLike, version: int | None = None) -> Tag:
        """As `tag`."""
        return await run_in_thread(self.tag, config, version)

    async def alast_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        """As `last_version_by_thread_id`."""
        return await run_in_thread(self.last_version_by_thread_id, thread)

    async def aget_version(self, config: ConfigLike = None) -> str | None:
        """As `get_version`."""
        return await run_in_thread(self.get_version, config)

    # Java names
    versionsByThreadId = versions_by_thread_id
    lastVersionByThreadId = last_version_by_thread_id
    getVersion = get_version
    aversionsByThreadId = aversions_by_thread_id
    alastVersionByThreadId = alast_version_by_thread_id
    agetVersion = aget_version


class StateSerializer(abc.ABC):
    """Turns a state into bytes and back, in place of graphkit's own codec."""

    @abc.abstractmethod
    def dumps(self, data: Mapping[str, Any]) -> bytes:
        """The state as bytes. Equal states should give equal bytes, or every checkpoint takes the state's full size."""

    @abc.abstractmethod
    def loads(self, data: bytes) -> Mapping[str, Any]:
        """The state back."""


class InterruptableAction(abc.ABC):
    """An action that is asked, each time before it runs, whether the run should stop for a human first."""

    @abc.abstractmethod
    def interrupt(
        self, node_id: str, state: Any, config: RunnableConfig
    ) -> InterruptionMetadata | Mapping[str, Any] | None:
        """Stop here (with metadata) or go on (None). Asked again after a resume, so look at the state for an answer."""

    @abc.abstractmethod
    def __call__(self, state: Any, config: RunnableConfig) -> Any:
        """The action itself."""


InterruptibleAction = InterruptableAction


def waiting_ids(saver: BaseCheckpointSaver, config: RunnableConfig) -> set[str]:
    """The ids of what waits for a human at the latest checkpoint of a history, and in the embedded graphs it waits for.

    What waits in an embedded graph whose own saver keeps its history does so as long as the graph around it says so.
    """
    writes = well_formed_writes(saver.get_writes(config), config.thread)
    found = set(unanswered_interrupts(writes))
    for key, namespace in subgraph_interrupts(writes).items():
        inside = config.replace(checkpoint_ns=namespace)
        if saver.get(inside) is None or key in waiting_ids(saver, inside):
            found.add(key)
    return found


def _versions_of(saver: BaseCheckpointSaver, thread: str) -> object:
    return saver.versions_by_thread_id(thread) if isinstance(saver, HasVersions) else None


def make_checkpoint_info(
    config: RunnableConfig, checkpoint: Checkpoint, writes: Mapping[str, Any], tags: tuple[str, ...]
) -> CheckpointInfo:
    """What is known of a checkpoint of a history, where the saver cannot tell its size."""
    return CheckpointInfo(
        thread_id=config.thread,
        checkpoint_ns=config.checkpoint_ns,
        id=checkpoint.id,
        parent_id=checkpoint.parent_id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        created_at=checkpoint.created_at,
        size=0,
        status=derive_status(checkpoint.next_node_id, writes),
        tags=tags,
        metadata=public_metadata(checkpoint.metadata),
    )


def public_metadata(metadata: FrozenDict) -> FrozenDict:
    """Metadata without what the default implementations keep in it."""
    if _WRITES in metadata or _TAGS in metadata:
        return FrozenDict({key: value for key, value in metadata.items() if key not in (_WRITES, _TAGS)})
    return metadata


def copy_thread(source: BaseCheckpointSaver, thread: str, target: BaseCheckpointSaver, new_thread: str) -> None:
    """Copy a thread's active history between savers, checkpoint by checkpoint; see `BaseCheckpointSaver.copy`."""
    namespaces = source.namespaces(thread)
    if not namespaces:
        raise CheckpointNotFoundError(thread)
    if target.namespaces(new_thread):
        raise CheckpointConflictError(new_thread, "not empty; release or delete it before copying into it")
    for namespace in namespaces:
        origin = RunnableConfig(thread, checkpoint_ns=namespace)
        goal = RunnableConfig(new_thread, checkpoint_ns=namespace)
        for whole in _whole_history(source, origin):
            whole.put(target, goal)


class _Whole(NamedTuple):
    """A checkpoint with all that is recorded beside it, wherever its saver keeps that."""

    checkpoint: Checkpoint
    writes: Mapping[str, Any]
    tags: tuple[str, ...]

    def put(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        """Append it to a history."""
        here = saver.put(config, self.checkpoint)
        # Without what `put_writes` would refuse: `prune` has released the thread and must put all of it back.
        writes = well_formed_writes(self.writes, config.thread)
        if writes:
            saver.put_writes(here, writes)
        if self.tags:
            saver.add_tags(here, *self.tags)


def _whole_history(saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[_Whole]:
    """Read a history with all that is recorded beside its checkpoints, oldest first."""
    for checkpoint in reversed(saver.list(config)):
        at = config.replace(checkpoint_id=checkpoint.id)
        plain = checkpoint.with_metadata(public_metadata(checkpoint.metadata))
        yield _Whole(plain, saver.get_writes(at), saver.tags_of(at))


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a worker thread and return its result, without blocking the event loop."""
    import asyncio  # takes 25 ms to import, and only async callers need it

    return await asyncio.to_thread(call, *args, **kwargs)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


_LOCKS: Final[WeakValueDictionary[object, threading.Lock]] = WeakValueDictionary()
"""The run locks of this process that somebody holds or waits for."""
_LOCKS_GUARD: Final = threading.Lock()


_REWRITE_LOCKS: Final[WeakValueDictionary[object, Any]] = WeakValueDictionary()
"""By the key of the run lock: who may look at a thread and then change it by what was seen, in this process.

A lock of its own, because what is recorded beside a checkpoint does not wait for a run. Re-entrant, because a saver's
`put` may record something itself.
"""


def _rewrite_lock(key: object) -> AbstractContextManager[object]:
    with _LOCKS_GUARD:
        lock: AbstractContextManager[object] = _REWRITE_LOCKS.setdefault(key, threading.RLock())
    return lock


@contextmanager
def _process_lock(key: object, thread_id: str, timeout: float) -> Iterator[None]:
    with _LOCKS_GUARD:
        lock = _LOCKS.setdefault(key, threading.Lock())
    started = monotonic()
    if not lock.acquire(timeout=timeout):
        raise ThreadBusyError(thread_id, "another run in this process", monotonic() - started)
    try:
        yield
    finally:
        lock.release()
