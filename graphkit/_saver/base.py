"""BaseCheckpointSaver: the contract of a saver. Ports the class of langgraph4j."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from time import monotonic
from typing import Any, ClassVar, Self, Unpack

from graphkit._options import parse_timeout
from graphkit._public_names import JavaNames
from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import (
    THREAD_ID_DEFAULT,
    ConfigLike,
    RunnableConfig,
    ThreadLike,
    check_limit,
    resolve_thread_id,
)
from graphkit._records.output import CheckpointInfo, HistorySummary, WaitingInterrupt
from graphkit._saver.incomplete import copy_thread, remove_by_rewriting
from graphkit._saver.retention import Retention, RetentionOptions, is_of_early_writes, iter_prunable
from graphkit._saver.run_lock import (
    HeldRunLock,
    find_held_lock,
    get_held_run_locks,
    hold_process_lock,
    is_process_lock_held,
    lock_for_rewrite,
    locks_held_by_runs,
)
from graphkit._saver.status import TAGS_KEY, WRITES_KEY, find_interrupt_ids, make_checkpoint_info, with_status
from graphkit._saver.watch import Change, PollingWatch, Watch, WatchEnd
from graphkit._saver.writes import (
    check_tags,
    check_writes,
    find_cancellation,
    find_failure,
    find_waiting_interrupts,
    follow_namespaces,
    subgraph_interrupts,
    waiting_interrupts,
)
from graphkit._to_thread import HeldCancellation, finish_in_thread, run_in_thread
from graphkit._values.frozen import freeze
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError, ThreadBusyError


class BaseCheckpointSaver(JavaNames, abc.ABC):
    """Stores the checkpoint history of each thread.

    Implementers must provide four methods: `list`, `get`, `put` and `release`. The others have
    default implementations, correct but slow. Subclass `graphkit.testing.SaverContract` to test a
    saver; docs/writing-a-saver.md is the guide.

    A history belongs to a thread and a namespace (`config.checkpoint_ns`, "" at the root). All
    methods may be called from any thread. If the store lives outside this process, they may be
    called from several processes at once. What a method returns never changes afterwards.

    The methods that an application awaits have async methods with the prefix `a`, which run the sync
    method in a worker thread. Others can be awaited as `await asyncio.to_thread(saver.history, ...)`.
    """

    THREAD_ID_DEFAULT: ClassVar[str] = THREAD_ID_DEFAULT

    def __repr__(self) -> str:
        """Return the class, the place of the store if it has one, and how many threads it has."""
        place = self._describe_place()
        try:
            count = self._count_threads()
            found = f"{count} thread" if count == 1 else f"{count} threads"
        except Exception as error:  # noqa: BLE001 - a repr shows what is wrong, and raises nothing
            found = f"threads unknown: {type(error).__name__}"
        return f"{type(self).__name__}({place}{found})"

    def _describe_place(self) -> str:
        """Return where the data is, without secrets, and a comma; "" if only this object has it."""
        return ""

    def _count_threads(self) -> int:
        return len(self.threads())

    # The four required methods

    @abc.abstractmethod
    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        """Return the history, newest first by order of writing; empty for an unknown thread.

        The sequence is a snapshot: later puts do not change it. States may be decoded on first use.
        That raises CheckpointNotFoundError if the store no longer has the state: its checkpoint was
        deleted, or it was replaced and the history was then rewritten, as `compact` and `prune` do.
        After such a rewrite, a replacement that has the same creation time, parent and nodes, as
        `with_state` makes it, cannot be told from what it replaced: its state is returned.
        """

    @abc.abstractmethod
    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        """Return the checkpoint that the config names, or the one written last; None if there is none."""

    @abc.abstractmethod
    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """Store a checkpoint.

        Without a checkpoint id in the config, the checkpoint becomes the newest of its history. With
        one, it replaces the checkpoint with that id, in place, and may have another id itself.

        A history may contain an id more than once; `get` then returns the newest checkpoint with it, and
        `put` replaces that one.
        Once `put` has returned, the checkpoint survives whatever the saver promises to survive.

        Returns:
            The config with the id of the new checkpoint; unchanged if it named a checkpoint.

        Raises:
            CheckpointNotFoundError: the named checkpoint does not exist. Nothing was changed.
            CheckpointSerializationError: a value cannot be stored. Nothing was changed.
            CheckpointStorageError: the store failed. The earlier checkpoints are intact.
        """

    @abc.abstractmethod
    def release(self, config: ConfigLike = None) -> Tag:
        """End the active history of a thread in all namespaces, and return that of the root.

        The thread is empty afterwards.
        """

    # Capabilities: `graphkit.abc` has the protocols for methods that only some savers have. A subclass declares one by
    # a line (`isolates_values = True`) or by a property. pyright accepts the line only if the base class has no `def`
    # of that name; therefore each name is assigned here.

    @property
    def _undeclared(self) -> bool:
        """Whether the saver declares this quality; False by default. docs/api.md says what each of them means."""
        return False

    is_durable = _undeclared
    """Whether the checkpoints outlive this process. A run without a thread id on such a saver warns."""

    refuses_unstorable_values = _undeclared
    """Whether `put` and `put_writes` refuse values that graphkit's codec cannot store, and change nothing.

    Such a saver raises a `CheckpointSerializationError` that names the path of the value, even if
    it could keep the value itself. A graph that works with it therefore works with every saver.
    """

    isolates_values = _undeclared
    """Whether the saver shares no mutable object of the application with its callers.

    Such a saver copies these objects when it stores them, and again when it returns them. A
    saver that stores bytes does so by nature.
    """

    seals_records = _undeclared
    """Whether the saver encrypts states, pending writes, metadata and tags.

    An export in plain must then be asked for.
    """

    waits_for_runs = _undeclared
    """Whether `release`, `delete` and `copy` wait for the run that holds the thread."""

    @property
    def _lists_threads(self) -> bool:
        """Whether `threads` works, and so does what reads all threads. By default, whether it is overridden."""
        return type(self).threads is not BaseCheckpointSaver.threads

    lists_threads = _lists_threads

    @property
    def _lists_namespaces(self) -> bool:
        """Whether `namespaces` finds every namespace. By default, whether it is overridden."""
        return type(self).namespaces is not BaseCheckpointSaver.namespaces

    lists_namespaces = _lists_namespaces

    @property
    def _measures_size(self) -> bool:
        """Whether `size` works. By default, whether it is overridden."""
        return type(self).size is not BaseCheckpointSaver.size

    measures_size = _measures_size

    # Reading

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        """Return the namespaces of a thread that hold checkpoints.

        The default implementation finds the root, and the namespaces of nested graphs that the
        histories name, as nodes or in pending interrupts. It does not find a namespace that the
        application chose, nor a nested graph in a branch of a fork without a pending interrupt.
        Savers that can list their namespaces override it.
        """
        thread_id = resolve_thread_id(thread)

        def read_history(namespace: str) -> tuple[Sequence[Checkpoint], Mapping[str, Any]]:
            config = RunnableConfig(thread_id, checkpoint_ns=namespace)
            history = self.list(config)
            return history, self.get_writes(config) if history else {}

        return follow_namespaces([""], read_history)

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        """Return what is known of each checkpoint without decoding states, newest first.

        The first has the status of the thread.
        """
        config = RunnableConfig.of(config)
        infos: list[CheckpointInfo] = []
        for checkpoint in self.list(config):
            named = config.replace(checkpoint_id=checkpoint.id)
            infos.append(make_checkpoint_info(config, checkpoint, self.get_writes(named), self.tags_of(named)))
        if infos:
            infos[0] = with_status(self, infos[0])
        return infos

    def recent(self, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        """Return the newest `limit` items of `history`. Costs at most as much as `history`.

        Raises:
            ValueError: the limit is not a whole number, or below one.
        """
        return self._recent(RunnableConfig.of(config), check_limit(limit, least=1))

    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        """Return the newest items of `history`. For implementers: the limit is valid."""
        return self.history(config)[:limit]

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """Return a one-line summary of a history, for listings; None if the history is empty.

        Costs at most as much as `history`.
        """
        config = RunnableConfig.of(config)
        infos = self.history(config)
        if not infos:
            return None
        latest = infos[0]
        tags = dict.fromkeys(tag for info in infos for tag in info.tags)  # a set that keeps its order
        writes = self.get_writes(config.with_check_point_id(latest.id))
        return self._make_summary(latest, len(infos), tuple(tags), writes)

    def _make_summary(
        self, latest: CheckpointInfo, count: int, tags: tuple[str, ...], writes: Mapping[str, Any]
    ) -> HistorySummary:
        """Return a summary. For implementers.

        Args:
            latest: the latest checkpoint; its status may be missing.
            count: the number of checkpoints.
            tags: all tags of the history, without duplicates, those of newer checkpoints first.
            writes: the pending writes of the latest checkpoint.
        """
        config = RunnableConfig(latest.thread_id, latest.id, latest.checkpoint_ns)
        waiting: Sequence[WaitingInterrupt] = waiting_interrupts(config, writes, latest.created_at)
        if subgraph_interrupts(writes):
            waiting = self.interrupts(latest.thread_id)
        if not latest.status:
            latest = with_status(self, latest, writes)
        return HistorySummary(latest, count, tags, tuple(waiting), find_failure(writes), find_cancellation(writes))

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """Return the pending interrupts at the latest checkpoints of one thread, or of all (None).

        Raises:
            CheckpointerConfigurationError: all threads are meant, and the saver cannot list them.
        """
        found: list[WaitingInterrupt] = []
        for thread in self._select_threads(thread_id):
            latest: dict[str, tuple[CheckpointInfo, Mapping[str, Any]]] = {}
            for namespace in self.namespaces(thread):
                config = RunnableConfig(thread, checkpoint_ns=namespace)
                checkpoint = self.get(config)
                if checkpoint is None:
                    continue
                writes = self.get_writes(config.replace(checkpoint_id=checkpoint.id))
                latest[namespace] = make_checkpoint_info(config, checkpoint, writes, ()), writes
            found += find_waiting_interrupts(latest)
        return found

    def threads(self, *, released: bool = False) -> Sequence[str]:  # noqa: ARG002 - for savers with versions
        """Return the ids of the threads that hold checkpoints.

        Args:
            released: include threads that hold only versions, or only pending writes for a checkpoint
                that is still to come.

        Raises:
            CheckpointerConfigurationError: the saver cannot list its threads; see `lists_threads`.
        """
        raise CheckpointerConfigurationError(f"{type(self).__name__} cannot list its threads")

    def search(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        """Return the checkpoints whose metadata has all these keys with these values.

        Args:
            metadata: the keys and values. Values are compared with `==`.
            thread_id: the thread; None searches all threads.
            limit: the maximum number of results.

        Returns:
            The checkpoints, newest first within each history.

        Raises:
            CheckpointerConfigurationError: all threads are meant, and the saver cannot list them.
            ValueError: the limit is not a whole number, or negative.
        """
        return self._search(metadata, thread_id, None if limit is None else check_limit(limit))

    def _search(
        self, metadata: Mapping[str, Any], thread_id: ThreadLike, limit: int | None
    ) -> Sequence[CheckpointInfo]:
        """Return the results of `search`. For implementers: the limit is valid."""
        matching = (
            info
            for thread in self._select_threads(thread_id)
            for namespace in self.namespaces(thread)
            for info in self.history(RunnableConfig(thread, checkpoint_ns=namespace))
            if metadata.items() <= info.metadata.items()
        )
        return [*islice(matching, limit)]

    def size(self, thread: ThreadLike = None) -> int:  # noqa: ARG002 - for savers that can
        """Return the number of bytes that a thread, or the whole store (None), takes.

        Raises:
            CheckpointerConfigurationError: the saver cannot measure sizes; see `measures_size`.
        """
        raise CheckpointerConfigurationError(f"{type(self).__name__} cannot measure sizes")

    def _select_threads(self, thread: ThreadLike) -> Sequence[str]:
        """Return the id of one thread, or those of all threads (None)."""
        if thread is None:
            return self.threads()
        return [resolve_thread_id(thread)]

    # Pending writes and tags

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """Record pending writes with the checkpoint that the config names, or with the latest.

        They are merged over those that the checkpoint has already: results of branches, interrupts,
        answers, failures.

        The default implementation stores them in the metadata of the checkpoint, by replacing the
        checkpoint. It is as safe against a crash as `put` is, and safe against other callers in this
        process. If two processes record at once, one of the two writes may be lost. Savers for
        several processes override it.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a key is not a string, a value cannot be stored, or the
                value of a key that graphkit reads (such as `interrupt:<id>`) lacks what its readers
                need. Nothing was changed.
        """
        check_writes(writes)
        self._rewrite(config, WRITES_KEY, lambda old: {**(old or {}), **writes})

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        """Return the pending writes of a checkpoint, in the order in which they were first recorded."""
        return self._read_recorded(config, WRITES_KEY) or {}

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        """Tag the checkpoint that the config names, or the latest.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a tag is not a string. Nothing was changed.
        """
        check_tags(tags)
        self._change_tags(RunnableConfig.of(config), tags, ())

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        """Remove tags from a checkpoint. Tags that it does not have are ignored.

        Raises:
            CheckpointNotFoundError: there is no such checkpoint. Nothing was changed.
            CheckpointSerializationError: a tag is not a string. Nothing was changed.
        """
        check_tags(tags)
        self._change_tags(RunnableConfig.of(config), (), tags)

    def _change_tags(self, config: RunnableConfig, add: Sequence[str], remove: Sequence[str]) -> None:
        """Add tags to a checkpoint, and remove others; a saver with a place for tags overrides this."""
        self._rewrite(
            config, TAGS_KEY, lambda old: [tag for tag in dict.fromkeys((*(old or ()), *add)) if tag not in remove]
        )

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        """Return the tags of a checkpoint, in the order in which they were added."""
        return tuple(self._read_recorded(config, TAGS_KEY) or ())

    def _read_recorded(self, config: ConfigLike, key: str) -> Any:
        """Return what a default method has recorded in the metadata of a checkpoint; None if it has not."""
        checkpoint = self.get(config)
        return None if checkpoint is None else checkpoint.metadata.get(key)

    def _rewrite(self, config: ConfigLike, key: str, change: Callable[[Any], Any]) -> None:
        """Replace one value in the metadata of a checkpoint, under a lock of this process."""
        config = RunnableConfig.of(config)
        with lock_for_rewrite(self.run_lock_key(config)):
            checkpoint = self.get(config)
            if checkpoint is None:
                raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
            metadata = freeze({**checkpoint.metadata, key: change(checkpoint.metadata.get(key))})
            self.put(config.replace(checkpoint_id=checkpoint.id), checkpoint.with_metadata(metadata))

    # Maintenance

    def delete(self, thread: ThreadLike = None) -> bool:
        """Remove a thread with all its namespaces and versions.

        The default implementation releases the thread. Savers that keep versions override it.

        Returns:
            Whether there was anything to remove.
        """
        thread_id = resolve_thread_id(thread)
        # `release` returns the root only, and a thread may have no checkpoints there.
        has_namespaces = self.lists_namespaces and bool(self.namespaces(thread_id))
        released = self.release(RunnableConfig(thread_id))
        return has_namespaces or bool(released.checkpoints)

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        """Copy the active history of a thread, with its ids, into an empty thread.

        Raises:
            CheckpointNotFoundError: the source is empty.
            CheckpointConflictError: the target is not empty. Nothing was changed.
            CheckpointerConfigurationError: by default, as `prune`. Nothing was changed.
        """
        new_thread = resolve_thread_id(target)
        with lock_for_rewrite(self.run_lock_key(RunnableConfig(new_thread))):
            copy_thread(self, resolve_thread_id(source), self, new_thread)

    def prune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        """Remove old checkpoints of one thread, or of all (None).

        A checkpoint is removed if it is not among the newest `keep_last` of its history and, where
        `older_than` is given, was created before that time. The latest checkpoint of a history
        always stays.

        The default implementation releases the thread and puts back what stays, in all namespaces
        that `namespaces` finds, under the run lock. A crash in between loses what was not put back, and
        leaves the thread incomplete. A saver that keeps versions gets one more. Savers for valuable
        data override it.

        Args:
            thread: the thread.
            retention: `keep_last`, `older_than`, `keep_tags`, `keep_interrupted`; see `Retention`.

        Returns:
            The number of checkpoints that were removed.

        Raises:
            ValueError: neither keep_last nor older_than is given, or an option has a value that it cannot have.
            CheckpointerConfigurationError: by default, if a run stands before a fork and the saver
                cannot list its namespaces: graphs nested in the branches may have histories that the
                saver cannot find. The thread was not changed.
            ThreadBusyError: by default, if a run holds the thread. The thread was not changed.
        """
        chosen = Retention(**retention)
        return sum(self._prune_thread(thread_id, chosen) for thread_id in self._select_threads(thread))

    def _prune_thread(self, thread_id: str, retention: Retention) -> int:
        """Prune the histories of a thread, each with its early writes; return how many checkpoints were removed."""
        removed = 0
        for config, select in iter_prunable(self, thread_id, retention):
            count = self._prune(config, select)
            if not is_of_early_writes(config.checkpoint_ns):
                removed += count
        return removed

    def _prune(
        self, config: RunnableConfig, select: Callable[[Sequence[CheckpointInfo]], Sequence[CheckpointInfo]]
    ) -> int:
        """Prune one history and return the number of checkpoints removed. For implementers.

        An incomplete thread is left alone.

        Args:
            config: names the history.
            select: returns those to remove, from all of the history, newest first.
        """
        return remove_by_rewriting(self, config, select)

    def register_types(self, *types: type) -> None:
        """Allow values of these application types to be restored from the store.

        A graph registers the types of its schema with its saver: Enums, dataclasses, NamedTuples and
        pydantic models. Savers that keep objects have nothing to do.
        """

    def opener(self) -> Callable[[], BaseCheckpointSaver] | None:
        """Return a picklable function that opens the same store in another process; None if there is none.

        `config.once` uses it where a node runs in another process than its run. If the run locks of
        the store can be lost, what is written to a thread whose run lock the calling code holds (see
        `get_held_run_locks`) is refused with ThreadBusyError after it has lost that lock.
        """
        return None

    # Closing

    def close(self) -> None:
        """Bring everything that was put to the disk, and close files and connections. A later use opens them again.

        The default implementation does nothing.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Watching

    def watch(
        self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0, until: str | None = None
    ) -> Watch:
        """Report the changes of one thread with all its namespaces, or of all threads (None), from now on.

        No change after the call is missed. Savers without change events poll. Close the watch when
        done; with `until`, it closes itself when it ends.

        Args:
            thread: the thread. If a config names a checkpoint, report changes made after it, and the
                pending writes of that checkpoint. If a config names a namespace, report changes in
                it and in those below it.
            latest: start with the latest checkpoint of each history and its pending writes.
            interval: the polling interval in seconds, for savers without change events.
            until: end when the thread has this status, such as "finished", or had it at a change; of
                all threads, when each has it. A thread whose run is over (finished, failed or
                cancelled) and one that is gone count too: they do not reach another status by
                themselves. What was stored by then is reported first; `Watch.reached` is the status. A
                thread that does not exist yet is waited for.

        Raises:
            CheckpointNotFoundError: the named checkpoint does not exist.
            CheckpointerConfigurationError: all threads are meant, and the saver cannot list them; or
                the interval is not above 0; or there is no such status.
        """
        config = None if thread is None else RunnableConfig.of(thread)
        if config is not None and config.checkpoint_id is not None and self.get(config) is None:
            raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id}")
        end = None if until is None else WatchEnd(self, config, until)
        watch = self._watch(config, latest=latest, interval=interval)
        if end is not None:
            watch.end_at(end)
        return watch

    def _watch(self, config: RunnableConfig | None, *, latest: bool, interval: float) -> Watch:
        """Return what `watch` returns, without an end. For implementers: the config is resolved."""
        return PollingWatch(self, config, latest=latest, interval=interval)

    def wait_for_resume(
        self, thread: ThreadLike = None, timeout: float | None = None, *, interval: float = 1.0
    ) -> bool:
        """Block until the thread has no pending interrupts, because they were answered or the run moved past them.

        Afterwards `app.resume(thread)` finds the answers and continues the run. Returns at once if
        the thread has no pending interrupt, or does not exist.

        Args:
            thread: the thread.
            timeout: the maximum time to wait, in seconds; None waits forever.
            interval: the polling interval in seconds; see `watch`.

        Returns:
            True; False if interrupts are still pending after the timeout.
        """
        config = RunnableConfig.of(thread).with_check_point_id(None)
        deadline = None if timeout is None else monotonic() + parse_timeout(timeout)
        has_timed_out = False
        with self.watch(config, interval=interval) as changes:
            pending = find_interrupt_ids(self, config)
            while not pending.isdisjoint(find_interrupt_ids(self, config)):
                if has_timed_out:
                    return False
                remaining = None if deadline is None else max(0.0, deadline - monotonic())
                # A watch that polls may not have read since an answer came.
                has_timed_out = changes.get(remaining) is None
        return True

    # The run lock

    def run_lock(self, config: ConfigLike = None, timeout: float | None = None) -> AbstractContextManager[object]:
        """Hold a thread for a run, across processes where the saver can.

        The lock is re-entrant for its holder: inside the `with` block, and in the tasks started
        there, the thread can be run, updated and locked again through this saver, with one run at a
        time. The nodes of a run can enter the lock of their run again. Other threads of the process
        wait.

        Args:
            config: names the thread. The lock covers all its namespaces.
            timeout: the maximum time to wait for another holder, in seconds. None is the saver's own
                `lock_timeout`, 10 by default.

        Raises:
            ThreadBusyError: another run held the thread until the timeout.
            ValueError: the timeout is not a number.
        """
        config = RunnableConfig.of(config)
        if timeout is not None:
            timeout = parse_timeout(timeout)
        key = self.run_lock_key(config)
        held = find_held_lock(key)
        is_held_here = held is not None and held.saver is self
        if is_held_here or key in locks_held_by_runs():
            return nullcontext()
        return HeldRunLock(key, self).hold(self._run_lock(config, timeout))

    def run_lock_key(self, config: ConfigLike = None) -> object:
        """Return what identifies a run lock; equal for saver objects that share a store."""
        return id(self), RunnableConfig.of(config).thread

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        """Take the lock itself. For implementers; the default holds within this process only."""
        return hold_process_lock(self.run_lock_key(config), config.thread, 10.0 if timeout is None else timeout)

    def is_run_locked(self, config: ConfigLike = None) -> bool:
        """Return whether a run, or another holder in any process, holds the run lock of a thread now.

        The lock is only looked at: no run waits for it, and none is refused. It need not be the
        lock of another one; the caller's own counts.

        Raises:
            CheckpointStorageError: the store cannot be read.
        """
        return self._is_run_locked(RunnableConfig.of(config))

    def _is_run_locked(self, config: RunnableConfig) -> bool:
        """Look at the run lock. For implementers of `_run_lock`.

        The default knows the locks of this process. If the lock is overridden and this is not, it takes
        the lock for a moment.
        """
        key = self.run_lock_key(config)
        if is_process_lock_held(key) or key in get_held_run_locks():
            return True
        methods = [getattr(type(self), name) for name in ("run_lock", "_run_lock")]
        if methods == [BaseCheckpointSaver.run_lock, BaseCheckpointSaver._run_lock]:
            return False
        try:
            with self.run_lock(config, 0.0):
                return False
        except ThreadBusyError:
            return True

    # What an application awaits. The event loop never waits for a disk.

    async def alist(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        """As `list`."""
        return await run_in_thread(self.list, config)

    async def aget(self, config: ConfigLike = None) -> Checkpoint | None:
        """As `get`."""
        return await run_in_thread(self.get, config)

    async def aput(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """As `put`."""
        return await run_in_thread(self.put, config, checkpoint)

    async def aput_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        """As `put_writes`."""
        await run_in_thread(self.put_writes, config, writes)

    async def aget_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        """As `get_writes`."""
        return await run_in_thread(self.get_writes, config)

    async def arelease(self, config: ConfigLike = None) -> Tag:
        """As `release`."""
        return await run_in_thread(self.release, config)

    async def adelete(self, thread: ThreadLike = None) -> bool:
        """As `delete`."""
        return await run_in_thread(self.delete, thread)

    async def acopy(self, source: ThreadLike, target: ThreadLike) -> None:
        """As `copy`."""
        await run_in_thread(self.copy, source, target)

    async def aprune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        """As `prune`."""
        return await run_in_thread(self.prune, thread, **retention)

    async def awatch(
        self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0, until: str | None = None
    ) -> AsyncGenerator[Change, None]:
        """Yield the changes that `watch` reports.

        A loop that ends early leaves the watch open until the generator is closed:
        `async with contextlib.aclosing(saver.awatch(...)) as changes` closes it at once.
        """
        from asyncio import get_running_loop
        from concurrent.futures import ThreadPoolExecutor

        held = HeldCancellation()
        watch = await held.complete_in_thread(self.watch, thread, latest=latest, interval=interval, until=until)
        # A thread of its own: with those of the event loop's pool, a few dozen watches that wait would leave
        # none for the puts.
        pool = ThreadPoolExecutor(1, "graphkit-watch")
        try:
            held.release()
            while (change := await get_running_loop().run_in_executor(pool, watch.get)) is not None:
                yield change
        finally:
            await finish_in_thread(watch.close)
            pool.shutdown(wait=False)

    # Java names
    aputWrites = aput_writes
    agetWrites = aget_writes
    putWrites = put_writes
    waitForResume = wait_for_resume
    getWrites = get_writes
    addTags = add_tags
    removeTags = remove_tags
    tagsOf = tags_of
    runLock = run_lock
    runLockKey = run_lock_key
    isRunLocked = is_run_locked
    registerTypes = register_types

    def threadId(self, config: ConfigLike = None) -> str:
        return resolve_thread_id(config)
