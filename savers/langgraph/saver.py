"""CheckpointSaver: LangGraph's checkpointer on any saver of graphkit."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from time import time_ns
from typing import Any, Final, get_args

from langchain_core.runnables import RunnableConfig as LangGraphConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint as LangGraphCheckpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit import CheckpointInfo, RunnableConfig
from graphkit.abc import BaseCheckpointSaver as SaverOfGraphkit, HasVersions
from graphkit.errors import CheckpointConflictError, CheckpointErasedError, CheckpointerConfigurationError
from graphkit.saver_kit import LANGGRAPH, MADE_BY, FrozenDict, check_complete, check_limit, run_in_thread
from savers._log.catalogue import Head
from savers._log.stored_checkpoint import StoredCheckpoint
from savers._wrappers.base import SupportsLogs
from savers.langgraph.contract_histories import ContractHistories
from savers.langgraph.decoding import Ancestor, Parts, decode, take_ancestor, take_apart
from savers.langgraph.encoding import (
    Write,
    encode_successor,
    encode_writes,
    find_missing,
    serialize_checkpoint,
    share_with_last,
)
from savers.langgraph.histories import (
    FoundCheckpoint,
    GrowingHistory,
    LogHistories,
    Query,
    Result,
    Take,
    select,
    start_sweeper,
    sweep,
)
from savers.langgraph.metadata import (
    copy_as_lists,
    derive_next_node,
    derive_node,
    get_checkpoint_id,
    make_langgraph_config,
    pack_metadata,
    parse_config,
    unpack_metadata,
)
from savers.langgraph.opening import ContextMethods, SetupMethod
from savers.langgraph.serializer import Deserializer, OnBlockedType, make_serializer

_EMPTY: Final = FrozenDict()
_DELTA_CHANNELS: Final = "counters_since_delta_snapshot"
"""The metadata key that names the channels whose values depend on the writes of ancestors."""
_DELETE: Final = frozenset({"delete", "delete_all"})
"""LangGraph's word for the strategy that removes everything, and that of its Agent Server."""
_TASK_SEPARATOR: Final = ":"
"""What separates a node and the id of its task in the namespace of a subgraph call."""


class CheckpointSaver(ContextMethods, SetupMethod, BaseCheckpointSaver[str]):
    """Stores LangGraph's threads in a saver of graphkit.

    One object serves synchronous and asynchronous graphs, and any number of threads. It needs no
    setup and need not be closed; `with`, `async with` and `setup()` work as with LangGraph's own
    savers. What survives a crash, and whether several processes may use a store at once, is as the
    saver says. Values have the format of LangGraph's serializer. What is stored can be read by a
    process that has imported its classes; reading imports nothing that a store names, and calls the
    constructors of LangGraph's, LangChain's and the standard library's types and of `types` only.

    FileSystemSaver, SqliteSaver and PostgresSaver write only what changed, and keep early writes
    with the history. Any other saver is used through its contract: whole states are put, early
    writes have a namespace of their own, and two processes must not put to one thread at once.

    Every method of LangGraph's BaseCheckpointSaver is implemented with LangGraph's meaning. The
    latest checkpoint is the one written last, whatever the clock says. A thread that holds a run of
    graphkit is refused.

    Attributes:
        store: the saver of graphkit: for verify, repair, size, prune by age, and the other methods
            that LangGraph does not have.
    """

    def __init__(
        self,
        saver: SaverOfGraphkit,
        *,
        serde: SerializerProtocol | None = None,
        types: Iterable[type] = (),
        on_blocked_type: OnBlockedType = "raise",
        ttl: timedelta | None = None,
    ) -> None:
        """Put LangGraph's checkpointer on a saver.

        Args:
            saver: the saver. Its own options say how it stores bytes; its registered types play no
                part, because LangGraph's serializer encodes the values.
            serde: a serializer of LangGraph, which then decides what can be stored and read. The
                default writes LangGraph's format and refuses what a fresh process could not read;
                see docs/langgraph.md.
            types: the only classes of the application that may be stored and read, made by their
                constructors; list the types of their fields, too. Without it, these are all Enums,
                dataclasses, NamedTuples and pydantic models, made from their fields; a reader must
                have imported them.
            on_blocked_type: what reading does with a type that the serializer may not create:
                raise a CheckpointSerializationError, or return its plain data, such as a dict; "plain"
                makes only the classes in `types`, and stores what LangGraph's own serializer stores.
            ttl: how long a thread stays after the last write to it, also one that waits at an
                interrupt. A background thread deletes older threads of LangGraph: when the saver is
                opened, and then ten times in each `ttl`, but not more often than every minute and
                not less often than every hour. Choose a time longer than any step of a graph.

        Raises:
            CheckpointerConfigurationError: an option is invalid, or this is not a saver.
        """
        if not isinstance(saver, SaverOfGraphkit):
            raise CheckpointerConfigurationError(
                f"CheckpointSaver takes a saver of graphkit, such as savers.MemorySaver(), not {saver!r}"
            )
        super().__init__(serde=check_options(serde, types, on_blocked_type, ttl))
        self._on_blocked_type: OnBlockedType = on_blocked_type
        self.store = saver
        self._histories = LogHistories(saver) if isinstance(saver, SupportsLogs) else ContractHistories(saver)
        self._ttl = ttl
        self._sweeper = None if ttl is None else start_sweeper(self._histories, ttl)

    def _close(self) -> None:
        """Stop the sweeper, and close the saver. A later use no longer applies `ttl`."""
        if self._sweeper is not None:
            self._sweeper.stop()
        self.store.close()

    # Writing

    def put(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> LangGraphConfig:
        """Store a checkpoint, and replace one that has the same id.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the error names its channel.
                Nothing was changed.
            CheckpointConflictError: the thread holds a run of graphkit, or is a copy that has not ended.
                Nothing was changed.
            CheckpointStorageError: the file system refused. The earlier content is unchanged.
        """
        names = config["configurable"]
        stored_metadata = _make_metadata(config, metadata)
        self.restore(config, checkpoint, stored_metadata, new_versions)
        return _make_config(config, names["thread_id"], names.get("checkpoint_ns") or "", checkpoint["id"])

    def restore(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> None:
        """Store a checkpoint; used by `put` and by imports.

        Args:
            config: names the thread, the namespace and the parent.
            checkpoint: LangGraph's checkpoint.
            metadata: the metadata, stored as they are, except that tuples become lists.
            new_versions: the channels whose versions differ from those of the parent.

        Raises:
            CheckpointSerializationError: as for `put`, which raises the same errors.
        """
        history = parse_config(config)
        parent_id = config["configurable"].get("checkpoint_id")
        # Before the log is locked, because it runs code of the application.
        serialized = serialize_checkpoint(self.serde, checkpoint, new_versions)
        checkpoint_id = checkpoint["id"]
        next_node = derive_next_node(checkpoint)
        created_us = _parse_created_us(checkpoint)
        packed_metadata = pack_metadata(metadata)

        def put_next(log: GrowingHistory) -> None:
            latest = log.find(None)
            base = parent = _load_state(log, history, latest)
            is_next = (parent_id or None) == (None if latest is None else latest.id)
            if not is_next:
                stored_parent = log.find(parent_id) if parent_id else None
                parent = _load_state(log, history, stored_parent)
            successor = encode_successor(parent, checkpoint, new_versions, serialized, log.pack)
            if successor is None:
                earlier = map(log.load_state, log.walk_back())
                found = find_missing(self.serde, checkpoint, new_versions, serialized, parent, earlier)
                successor = encode_successor(parent, checkpoint, *found, log.pack)
                assert successor is not None
            if not is_next:
                successor = share_with_last(base, successor)
            node = derive_node(metadata, successor.changed_nodes)
            # By position, because this is part of every put.
            new = StoredCheckpoint(checkpoint_id, node, next_node, created_us, parent_id, packed_metadata)
            log.put(new, successor, base)

        self._histories.put_next(history, put_next)

    def restore_writes(
        self,
        config: LangGraphConfig,
        checkpoint_id: str,
        writes: Sequence[Write],
        metadata: CheckpointMetadata | None = None,
    ) -> None:
        """Store the writes of a checkpoint that is restored next; used by imports.

        Args:
            config: names the thread and the namespace.
            checkpoint_id: the id of the checkpoint.
            writes: the writes.
            metadata: the metadata of the checkpoint: they may decide about the key of the history.
        """
        self._histories.put_writes(parse_config(config), checkpoint_id, writes, lambda: pack_metadata(metadata or {}))

    def put_writes(
        self, config: LangGraphConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task with its checkpoint, even if the checkpoint is put only later.

        The first ordinary write under a key stays. Errors, interrupts, answers and schedules replace
        earlier ones.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the error names its channel.
                Nothing was changed.
            CheckpointStorageError: the file system refused. The earlier content is unchanged.
        """
        checkpoint_id = config["configurable"]["checkpoint_id"]
        if checkpoint_id.__class__ is not str:
            # Refuses what is neither a str nor None.
            checkpoint_id = parse_config(config, checkpoint_id).checkpoint_id
        encoded = encode_writes(self.serde, writes, task_id, task_path)

        def find_metadata() -> Mapping[str, Any]:
            return pack_metadata(_make_metadata(config, {}))

        self._histories.put_writes(parse_config(config), checkpoint_id, encoded, find_metadata)

    def get_next_version(self, current: str | float | None, channel: None = None) -> str:
        """Return the version after this one, in the form that LangGraph's own savers use.

        The part after the point is random, so that the versions of two branches of a history differ.
        """
        del channel
        number = current or 0
        if isinstance(current, str):
            number = current.split(".")[0]
        return f"{int(number) + 1:032}.{random.random():016}"  # noqa: S311 - not a secret

    # Reading

    def get_tuple(self, config: LangGraphConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the latest; None if it does not exist.

        Raises:
            CheckpointSerializationError: the serializer may not create a type of a value; the error
                names the channel and the type.
            CheckpointConflictError: the thread holds a run of graphkit, or is a copy that has not ended.
        """
        names = config["configurable"]
        checkpoint_id = names.get("checkpoint_id")
        parts = self._read(parse_config(config, checkpoint_id or None), take_apart)
        if parts is None:
            return None
        return self._make_tuple(config, names["thread_id"], names.get("checkpoint_ns") or "", parts)

    def _read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        """Take something out of a checkpoint of LangGraph; None if there is none.

        Raises:
            CheckpointConflictError: the checkpoint is one of graphkit.
        """

        def check_and_take(found: FoundCheckpoint) -> Result:
            _check_made_by(config, found.stored)
            return take(found)

        return self._histories.read(config, check_and_take)

    def list(
        self,
        config: LangGraphConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: LangGraphConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a history, of a thread, or of the whole store (None).

        A history is in the order of writing. Several histories are merged by checkpoint id, as in
        LangGraph's SQL savers. The iterator reads each state when it is needed and holds no lock in
        between. It skips a checkpoint that is removed meanwhile. With `limit`, it reads logs only as far as it needs;
        it does not find damage elsewhere.

        Args:
            config: names the thread. Without `checkpoint_ns`, all namespaces of the thread are
                listed; with `checkpoint_id`, only that checkpoint.
            filter: metadata keys and the values that they must have. A tuple equals a list.
            before: yield only what was written before this checkpoint.
            limit: the most checkpoints to yield.

        Raises:
            CheckpointSerializationError: as for `get_tuple`.
            ValueError: the limit is not a whole number, or negative.
        """
        query = Query(
            filter=copy_as_lists(filter or {}),
            before=get_checkpoint_id(before),
            checkpoint_id=get_checkpoint_id(config),
            limit=None if limit is None else check_limit(limit),
        )
        histories = self._histories
        if config:
            root = parse_config(config).replace(checkpoint_ns="")
            namespace = config["configurable"].get("checkpoint_ns")
            # The namespaces of a thread are listed by opening their logs. A named one needs no list.
            names = [namespace] if namespace is not None else histories.list_namespaces(root)
            heads: Iterable[Head] = [Head(root.thread, name, None) for name in names]
        else:
            root = RunnableConfig()
            # Metadata without a key match None, and no index knows what is not there.
            required = {key: value for key, value in query.filter.items() if value is not None}
            heads = histories.list_heads(required, with_newest=limit is not None)
        for selected in select(histories, heads, query, root):
            history = selected.history
            parts = histories.read_selected(history, selected.stored, selected.extent, take_apart)
            if parts is not None:
                yield self._make_tuple(config, history.thread, history.checkpoint_ns, parts)

    def writes_of(self, config: LangGraphConfig) -> Sequence[Write]:
        """Return the pending writes of a checkpoint as they are stored, in LangGraph's order."""
        named = parse_config(config, get_checkpoint_id(config))
        parts = self._read(named, take_apart)
        return [] if parts is None else parts.writes

    def _make_tuple(
        self, given: LangGraphConfig | None, thread_id: Any, namespace: str, parts: Parts
    ) -> CheckpointTuple:
        """Return a checkpoint as LangGraph wants it, on behalf of the principal of a config."""
        checkpoint: Any
        checkpoint, writes = decode(parts, self._deserializer)
        stored = parts.stored
        config = _make_config(given, thread_id, namespace, stored.id)
        parent_config = None
        if stored.parent:
            parent_config = _make_config(given, thread_id, namespace, stored.parent)
        metadata: Any = unpack_metadata(stored.metadata)
        return CheckpointTuple(config, checkpoint, metadata, parent_config, writes)

    @property
    def _deserializer(self) -> Deserializer:
        # Made again: `with_allowlist` sets another serializer in a copy of this object.
        return Deserializer(self.serde, self._on_blocked_type)

    def get_delta_channel_history(
        self, *, config: LangGraphConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what the ancestors of a checkpoint wrote to channels, oldest first.

        The writes of a channel go back to the ancestor that stores its whole value. Only these
        writes and values are decoded.
        """
        histories: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        missing = set(channels)
        deserializer = self._deserializer
        for ancestor in self._iter_ancestors(parse_config(config), get_checkpoint_id(config), missing):
            for write in reversed(ancestor.writes):
                if write.channel in missing:
                    value = deserializer.deserialize(write.type, write.data, write.channel)
                    histories[write.channel]["writes"].append((write.task_id, write.channel, value))
            for name, typed in ancestor.values.items():
                histories[name]["seed"] = deserializer.deserialize(*typed, name)
        for channel_history in histories.values():
            channel_history["writes"].reverse()
        return histories

    def _iter_ancestors(
        self, history: RunnableConfig, checkpoint_id: str | None, missing: set[str]
    ) -> Iterator[Ancestor]:
        """Yield the parent of a checkpoint, its parent, and so on, until each missing channel has had a value.

        No checkpoint is yielded twice: parents in an imported history may form a cycle.

        Args:
            history: names the history.
            checkpoint_id: the id of the checkpoint; None for the latest.
            missing: the channels. Those of which an ancestor has the value are taken out before the next one.
        """
        seen: set[str] = set()
        parent_id = self._read(history.replace(checkpoint_id=checkpoint_id), lambda found: found.stored.parent)
        while missing and parent_id and parent_id not in seen:
            seen.add(parent_id)
            named = history.replace(checkpoint_id=parent_id)
            ancestor = self._read(named, lambda found: take_ancestor(found, missing))
            if ancestor is None:
                return
            yield ancestor
            missing.difference_update(ancestor.values)
            parent_id = ancestor.stored.parent

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with its namespaces and writes; an unknown thread is not an error."""
        self.store.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in every thread.

        A thread that has no other checkpoint is deleted, unless it has released versions: these stay.
        Reads all metadata of the store, except on a database, which has an index. The other
        checkpoints keep their values. A DeltaChannel of LangGraph that needs the writes of a removed
        ancestor loses them, as with every saver.

        Raises:
            TypeError: `run_ids` is one id. Nothing was changed.
        """
        check_ids("run_ids", run_ids)
        runs = set(run_ids)
        if not runs:
            return
        threads: dict[str, None] = {}  # a set that keeps its order
        metadata = {}
        if len(runs) == 1:
            # An index finds the histories of one run.
            metadata["run_id"] = run_ids[0]
        for head in self._histories.list_heads(metadata):
            history = RunnableConfig(head.thread_id, checkpoint_ns=head.namespace)
            try:
                infos = self._list_history(history)
            except CheckpointErasedError:
                continue
            removable = [info.id for info in infos if info.metadata.get("run_id") in runs]
            if removable:
                threads[history.thread] = None
                self._histories.remove(history, removable)
        # Only threads that lost a checkpoint here: another one without any may hold writes that wait for its first.
        for thread in threads:
            has_versions = isinstance(self.store, HasVersions) and self.store.versions_by_thread_id(thread)
            if not has_versions and not self._histories.list_namespaces(thread):
                self.store.delete(thread)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its ids, parents and writes to an empty thread.

        An unknown source is not an error; the target stays empty.

        Raises:
            CheckpointConflictError: the target is not empty. Nothing was changed.
        """
        source = str(source_thread_id)
        if self.store.namespaces(source):
            self.store.copy(source, str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads except the latest of each namespace, or all (`delete`).

        The namespace of a subgraph call goes with the checkpoint of the root graph from which the
        call started; that of a subgraph with a memory of its own (`checkpointer=True`) stays. If the
        latest checkpoint needs ancestors for a DeltaChannel, these stay, back to the one that stores
        its value.

        Raises:
            TypeError: `thread_ids` is one id. Nothing was changed.
            ValueError: the strategy is unknown. Nothing was changed.
        """
        check_ids("thread_ids", thread_ids)
        if strategy not in {"keep_latest", *_DELETE}:
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(str, thread_ids):
            if strategy in _DELETE:
                self.delete_thread(thread)
            else:
                self._keep_latest(thread)

    def sweep_ttl(self) -> int:
        """Delete the threads whose `ttl` is over now, instead of waiting for the background thread.

        Returns:
            How many; 0 without a `ttl`.

        Raises:
            CheckpointerError: a thread could not be read or deleted. All others are done, and the
                error names those that failed.
        """
        if self._ttl is None:
            return 0
        return sweep(self._histories, datetime.now(UTC) - self._ttl, threading.Event())

    async def asweep_ttl(self) -> int:
        """As `sweep_ttl`, in a worker thread."""
        return await run_in_thread(self.sweep_ttl)

    def _keep_latest(self, thread: str) -> None:
        root = RunnableConfig(thread)
        removable = self._list_removable(root)
        removed_roots = frozenset(removable)
        for namespace in self._histories.list_namespaces(thread):
            if not namespace:
                continue
            history = RunnableConfig(thread, checkpoint_ns=namespace)
            infos = self._list_history(history)
            if infos and _TASK_SEPARATOR in namespace:
                # A subgraph was called; by which checkpoint of the root graph, say the newest metadata.
                parents = infos[0].metadata.get("parents")
                if isinstance(parents, dict) and parents.get("") in removed_roots:
                    self._histories.remove(history, [info.id for info in infos])
                    continue
            self._histories.remove(history, self._list_removable(history))
        # Last: after a crash, the next prune finds the calls of the checkpoints that still exist.
        self._histories.remove(root, removable)

    def _list_removable(self, history: RunnableConfig) -> Sequence[str]:
        """Return the ids of a history that are not needed for its latest checkpoint.

        It needs itself. If it has DeltaChannels, it needs the ancestors back to the one that stores
        their values.
        """
        # Listed before the latest is determined: what a run puts meanwhile is in neither.
        ids = [info.id for info in self._list_history(history)]
        delta_channels: set[str] = set()

        def take(found: FoundCheckpoint) -> Ancestor:
            delta_channels.update(found.stored.metadata.get(_DELTA_CHANNELS, ()))
            return take_ancestor(found, delta_channels)

        latest = self._read(history, take)
        if latest is None:
            return ids
        needed = {latest.stored.id}
        missing = delta_channels.difference(latest.values)
        needed.update(ancestor.stored.id for ancestor in self._iter_ancestors(history, latest.stored.id, missing))
        return [id_ for id_ in ids if id_ not in needed]

    def _list_history(self, history: RunnableConfig) -> Sequence[CheckpointInfo]:
        """Return the infos of LangGraph's checkpoints of a history, newest first."""
        return [info for info in self.store.history(history) if info.metadata.get(MADE_BY) == LANGGRAPH]

    # Async: each runs its sync method in a worker thread, unless that takes only some microseconds

    async def aput(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> LangGraphConfig:
        """As `put`."""
        return await self._run(config, partial(self.put, config, checkpoint, metadata, new_versions), appends=True)

    async def aput_writes(
        self, config: LangGraphConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await self._run(config, partial(self.put_writes, config, writes, task_id, task_path), appends=True)

    async def aget_tuple(self, config: LangGraphConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await self._run(config, partial(self.get_tuple, config), appends=False)

    async def _run(self, config: LangGraphConfig, call: Callable[[], Result], *, appends: bool) -> Result:
        """Call a method of one checkpoint, in a worker thread unless it takes no time."""
        target = parse_config(config, get_checkpoint_id(config))
        returned = self._histories.call_without_waiting(target, call, appends=appends)
        if returned is None:
            return await run_in_thread(call)
        (result,) = returned
        return result

    async def alist(
        self,
        config: LangGraphConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: LangGraphConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        tuples = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint_tuple := await run_in_thread(next, tuples, None)) is not None:
            yield checkpoint_tuple

    async def aget_delta_channel_history(
        self, *, config: LangGraphConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await run_in_thread(self.get_delta_channel_history, config=config, channels=channels)

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await run_in_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await run_in_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await run_in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await run_in_thread(self.prune, thread_ids, strategy=strategy)


def check_options(
    serde: SerializerProtocol | None, types: Iterable[type], on_blocked_type: object, ttl: object
) -> SerializerProtocol:
    """Check the options of a checkpointer, before its store is opened, and return its serializer.

    Raises:
        CheckpointerConfigurationError: an option is invalid.
    """
    if on_blocked_type not in get_args(OnBlockedType):
        raise CheckpointerConfigurationError(f'on_blocked_type must be "raise" or "plain", not {on_blocked_type!r}')
    if ttl is not None and (not isinstance(ttl, timedelta) or ttl <= timedelta(0)):
        raise CheckpointerConfigurationError(
            f"ttl must be a timedelta above zero, such as timedelta(days=30), not {ttl!r}"
        )
    return make_serializer(serde, types, is_plain=on_blocked_type == "plain")


def _make_config(given: LangGraphConfig | None, thread_id: Any, namespace: str, checkpoint_id: str) -> LangGraphConfig:
    """Return the config of a checkpoint, on behalf of the principal of the one that the caller gave."""
    config = make_langgraph_config(thread_id, namespace, checkpoint_id)
    if given and "principal" in given["configurable"]:
        config["configurable"]["principal"] = given["configurable"]["principal"]
    return config


def _load_state(log: GrowingHistory, history: RunnableConfig, stored: StoredCheckpoint | None) -> FrozenDict:
    """Return the state of a checkpoint; an empty one if there is none.

    Raises:
        CheckpointConflictError: as for `_check_made_by`.
    """
    if stored is None:
        return _EMPTY
    _check_made_by(history, stored)
    return log.load_state(stored)


def _check_made_by(history: RunnableConfig, checkpoint: StoredCheckpoint) -> None:
    """Check that a checkpoint is one of LangGraph.

    Raises:
        CheckpointConflictError: it is one of graphkit, or marks its thread as incomplete.
    """
    check_complete(history.thread, checkpoint.metadata)
    if checkpoint.metadata.get(MADE_BY) != LANGGRAPH:
        raise CheckpointConflictError(
            history.thread, "it holds a run of graphkit's own; give LangGraph another thread id"
        )


def _make_metadata(config: LangGraphConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Return the metadata of a checkpoint with those that the config of its run adds."""
    stored_metadata = get_checkpoint_metadata(config, metadata)
    if "principal" in config["configurable"]:
        # It has come there as every key of a config does, and is never stored.
        stored_metadata.pop("principal", None)  # type: ignore[typeddict-item]
    return stored_metadata


def _parse_created_us(checkpoint: Mapping[str, Any]) -> int:
    """Return when LangGraph made a checkpoint, in microseconds since 1970; now if `ts` is no time.

    LangGraph's savers store `ts` and never read it, so callers may leave it empty.
    """
    try:
        return round(datetime.fromisoformat(checkpoint["ts"]).astimezone(UTC).timestamp() * 1_000_000)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        # OverflowError and OSError: a year that the platform cannot convert to UTC.
        return time_ns() // 1000


def check_ids(name: str, ids: object) -> None:
    """Raise a TypeError for one id, whose characters would otherwise be taken as ids."""
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"{name} must be a list of ids, not one id; pass [{ids!r}]")
