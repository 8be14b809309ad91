"""FileSystemCheckpointSaver: LangGraph's checkpointer on graphkit's files."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_metadata,
)

from graphkit import Checkpoint, CheckpointInfo, RunnableConfig
from graphkit.abc import run_in_thread
from graphkit.errors import CheckpointConflictError
from savers._filesystem import FileSystemSaver
from savers.langgraph.async_methods import AsyncMethods
from savers.langgraph.channels import (
    WRITES,
    Encoder,
    decode_checkpoint,
    decode_value,
    freeze_with_changes,
    get_state,
    get_stored_channels,
)
from savers.langgraph.configs import get_checkpoint_id, make_langgraph_config, parse_config
from savers.langgraph.listing import NewestTimes, Query, select_from_store, select_from_thread
from savers.langgraph.metadata import LANGGRAPH, MADE_BY, copy_as_lists, pack_metadata, unpack_metadata
from savers.langgraph.serializer import Deserializer, OnBlockedType, check_on_blocked_type, make_serializer
from savers.langgraph.steps import derive_next_node, derive_node
from savers.langgraph.writes import EARLY, PendingWrites, Write, pack_writes

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint as LangGraphCheckpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from savers._cipher import Cipher
    from savers._compression import Compression

_DELTA_CHANNELS: Final = "counters_since_delta_snapshot"
"""The metadata key that names the channels whose values depend on the writes of ancestors."""
_TASK_SEPARATOR: Final = ":"
"""What separates a node and the id of its task in the namespace of a subgraph call."""


class _Completed:
    """An awaitable that is done; unlike a coroutine, the caller need not await it."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class FileSystemCheckpointSaver(AsyncMethods):
    """Stores LangGraph's threads in a directory, which any process and the CLI can read.

    One object serves synchronous and asynchronous graphs, and any number of threads and processes.
    It needs no setup and need not be closed; `with`, `async with` and `setup()` work as with
    LangGraph's own savers. A put writes only what changed. Once it returns, the checkpoint survives
    power loss (`fsync="always"`). LangGraph's serializer encodes the values; reading them runs no
    code except what that serializer allows.

    Every method of LangGraph's BaseCheckpointSaver is implemented with LangGraph's meaning. The
    latest checkpoint is the one written last, whatever the clock says. A thread that holds a run of
    graphkit is refused.

    Attributes:
        store: the underlying FileSystemSaver: for verify, repair, size, prune by age, and the other
            methods that LangGraph does not have.
    """

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: Literal["always", "never"] | float = "always",
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        types: Iterable[type] = (),
        on_blocked_type: OnBlockedType = "raise",
        cipher: Cipher | None = None,
    ) -> None:
        """Open a store, and create its directory if it is missing.

        Args:
            base_directory: the directory of the store.
            serde: LangGraph's serializer. The default is LangGraph's own in its strict mode, which
                restores the types of LangGraph, LangChain and the standard library, and those in
                `types`.
            fsync: when a put waits for the disk: always, never, or after this many seconds.
            compression: how values of 100,000 bytes and more are stored.
            types: classes of the application that the serializer may create. The types of their
                fields must be listed, too.
            on_blocked_type: what reading does with a type that the serializer may not create:
                raise a CheckpointSerializationError, or return its plain data, such as a dict.
            cipher: the keys that seal all values, writes and metadata: 32 bytes by key id, the
                current key first; or a function from a key id to the key, which returns the id and
                the key of the current one for None; or the path of a key file. Unlike with
                LangGraph's EncryptedSerializer, a put still writes only what changed.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            CheckpointStorageError: the file system refused.
            MissingDependencyError: `cipher` without the package of the extra `encryption`.
        """
        check_on_blocked_type(on_blocked_type)
        super().__init__(serde=make_serializer(serde, types))
        self._on_blocked_type: OnBlockedType = on_blocked_type
        self.store = FileSystemSaver(base_directory, fsync=fsync, compression=compression, cipher=cipher)
        self._writes = PendingWrites(self.store)
        self._times = NewestTimes()

    # Opening and closing, as with LangGraph's own savers

    def setup(self) -> Awaitable[None]:
        """Do nothing; the store needs no setup.

        Returns:
            An awaitable without effect: the `setup` of LangGraph's asynchronous savers is awaited.
        """
        return _Completed()

    def __enter__(self) -> Self:
        """Return the saver."""
        return self

    def __exit__(self, *_: object) -> None:
        """Sync the store and close its files. A later use opens them again."""
        self.store.close()

    async def __aenter__(self) -> Self:
        """Return the saver."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """As `__exit__`, in a worker thread."""
        await run_in_thread(self.store.close)

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
            CheckpointConflictError: the thread holds a run of graphkit. Nothing was changed.
            CheckpointStorageError: the file system refused. The earlier content is unchanged.
        """
        target = parse_config(config, checkpoint["id"])
        early = self._writes.get_own_early(target)
        full_metadata = get_checkpoint_metadata(config, metadata)
        self.restore(config, checkpoint, full_metadata, new_versions=new_versions, writes=early)
        if early:
            self._writes.mark_stored(target)
        return make_langgraph_config(config["configurable"]["thread_id"], target.checkpoint_ns, checkpoint["id"])

    def restore(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        writes: Mapping[str, Any],
    ) -> None:
        """Store a checkpoint and its writes in one record; used by `put` and by imports.

        Args:
            config: names the thread, the namespace and the parent.
            checkpoint: LangGraph's checkpoint.
            metadata: the metadata, stored as they are, except that tuples become lists.
            new_versions: the channels whose versions differ from those of the parent.
            writes: the writes of the checkpoint by key.

        Raises:
            CheckpointSerializationError: as for `put`, which raises the same errors.
        """
        history = parse_config(config)
        parent_id = config["configurable"].get("checkpoint_id")
        latest = self._get_checkpoint(history)
        parent = None
        if latest is not None and latest.id == parent_id:
            parent = latest
        elif parent_id:
            parent = self._get_checkpoint(history, parent_id)

        def iter_earlier_states() -> Iterator[Mapping[str, Any]]:
            yield get_state(parent)
            for earlier in self.store.list(history):
                yield earlier.state

        base = get_state(latest)
        state = Encoder(self.serde).encode(checkpoint, new_versions, base, iter_earlier_states)
        if writes:
            state[WRITES] = dict(writes)
        frozen, changes = freeze_with_changes(base, state)
        # The constructor would freeze the state again, and would not know what changed.
        new = Checkpoint.from_stored(
            id=checkpoint["id"],
            node_id=derive_node(checkpoint, metadata, get_state(parent)),
            next_node_id=derive_next_node(checkpoint),
            parent_id=parent_id,
            created_us=_parse_created_us(checkpoint),
            metadata=pack_metadata(metadata),
            state=frozen,
            changes=changes,
        )
        self.store.put(history, new, unique=True)

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
        target = parse_config(config, config["configurable"]["checkpoint_id"])
        self._writes.put(target, pack_writes(Encoder(self.serde), writes, task_id, task_path))

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
            CheckpointConflictError: the thread holds a run of graphkit.
        """
        history = parse_config(config)
        checkpoint = self._get_checkpoint(history, config["configurable"].get("checkpoint_id"))
        if checkpoint is None:
            return None
        return self._make_tuple(history, checkpoint, config["configurable"]["thread_id"])

    def list(
        self,
        config: LangGraphConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: LangGraphConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a history, of a thread, or of the whole store (None).

        The iterator reads each state when it is needed and holds no lock in between. It skips a
        checkpoint that is removed meanwhile. With `limit`, it reads logs only as far as it needs;
        it does not find damage elsewhere.

        Args:
            config: names the thread. Without `checkpoint_ns`, all namespaces of the thread are
                listed; with `checkpoint_id`, only that checkpoint.
            filter: metadata keys and the values that they must have. A tuple equals a list.
            before: yield only what was written before this checkpoint.
            limit: the most checkpoints to yield.

        Raises:
            CheckpointSerializationError: as for `get_tuple`.
        """
        query = Query(
            filter=copy_as_lists(filter or {}),
            before=get_checkpoint_id(before),
            checkpoint_id=get_checkpoint_id(config),
            limit=None if limit is None else max(limit, 0),
        )
        if config:
            names = config["configurable"]
            selected = select_from_thread(self.store, str(names["thread_id"]), names.get("checkpoint_ns"), query)
        else:
            selected = select_from_store(self.store, query, self._times)
        for _, view, stored, is_last in selected:
            history = RunnableConfig(view.thread_id, checkpoint_ns=view.namespace)
            found = view.read(stored)
            if is_last:
                view.forget()
            if found is not None:
                checkpoint = stored.make_checkpoint(found.state)
                yield self._make_tuple(history, checkpoint, view.thread_id, found.writes)
                continue
            # The log has changed since: the checkpoint may have been replaced or removed.
            latest = self.store.get(history.replace(checkpoint_id=stored.id))
            if latest is not None:
                yield self._make_tuple(history, latest, view.thread_id)

    def _iter_histories(self, thread: str) -> Iterator[RunnableConfig]:
        """Yield a config for each namespace of a thread, except those of early writes."""
        for namespace in self.store.namespaces(thread):
            if not namespace.startswith(EARLY):
                yield RunnableConfig(thread, checkpoint_ns=namespace)

    def _list_history(self, history: RunnableConfig) -> Sequence[CheckpointInfo]:
        """Return the infos of LangGraph's checkpoints of a history, newest first."""
        return [info for info in self.store.history(history) if info.metadata.get(MADE_BY) == LANGGRAPH]

    def _get_checkpoint(self, history: RunnableConfig, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint of a history, the latest without an id; None if there is none.

        Raises:
            CheckpointConflictError: the checkpoint is one of graphkit.
        """
        checkpoint = self.store.get(history.replace(checkpoint_id=checkpoint_id or None))
        if checkpoint is not None and checkpoint.metadata.get(MADE_BY) != LANGGRAPH:
            raise CheckpointConflictError(
                history.thread, "it holds a run of graphkit's own; give LangGraph another thread id"
            )
        return checkpoint

    def _make_tuple(
        self,
        history: RunnableConfig,
        checkpoint: Checkpoint,
        thread_id: Any,
        writes: Mapping[str, Any] | None = None,
    ) -> CheckpointTuple:
        metadata: Any = unpack_metadata(checkpoint.metadata)
        decoded: Any = decode_checkpoint(self._deserializer, checkpoint.state)
        parent_config = None
        if checkpoint.parent_id:
            parent_config = make_langgraph_config(thread_id, history.checkpoint_ns, checkpoint.parent_id)
        return CheckpointTuple(
            config=make_langgraph_config(thread_id, history.checkpoint_ns, checkpoint.id),
            checkpoint=decoded,
            metadata=metadata,
            parent_config=parent_config,
            pending_writes=[self._decode_write(write) for write in self._read_writes(history, checkpoint, writes)],
        )

    def writes_of(self, config: LangGraphConfig) -> Sequence[Write]:
        """Return the pending writes of a checkpoint as they are stored, in LangGraph's order."""
        checkpoint_id = get_checkpoint_id(config)
        history = parse_config(config, checkpoint_id)
        checkpoint = self._get_checkpoint(history, checkpoint_id)
        if checkpoint is None:
            return []
        return self._read_writes(history, checkpoint)

    def _read_writes(
        self, history: RunnableConfig, checkpoint: Checkpoint, own: Mapping[str, Any] | None = None
    ) -> Sequence[Write]:
        return self._writes.read(history, checkpoint.id, checkpoint.state, own)

    def _decode_write(self, write: Write) -> PendingWrite:
        value = self._deserializer.deserialize(write.type, write.data, write.channel)
        return write.task_id, write.channel, value

    @property
    def _deserializer(self) -> Deserializer:
        # Made anew: `with_allowlist` sets another serializer in a copy of this object.
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
        history = parse_config(config)
        for ancestor in self._iter_ancestors(history, get_checkpoint_id(config)):
            if not missing:
                break
            for write in reversed(self._read_writes(history, ancestor)):
                if write.channel in missing:
                    histories[write.channel]["writes"].append(self._decode_write(write))
            for name in missing & get_stored_channels(ancestor.state):
                histories[name]["seed"] = decode_value(self._deserializer, ancestor.state, name)
                missing.discard(name)
        for channel_history in histories.values():
            channel_history["writes"].reverse()
        return histories

    def _iter_ancestors(self, history: RunnableConfig, checkpoint_id: str | None) -> Iterator[Checkpoint]:
        """Yield the parent of a checkpoint, its parent, and so on.

        No checkpoint is yielded twice: parents in an imported history may form a cycle.
        """
        seen: set[str] = set()
        checkpoint = self._get_checkpoint(history, checkpoint_id)
        while checkpoint is not None and checkpoint.parent_id and checkpoint.parent_id not in seen:
            seen.add(checkpoint.parent_id)
            checkpoint = self._get_checkpoint(history, checkpoint.parent_id)
            if checkpoint is not None:
                yield checkpoint

    # Whole threads

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with its namespaces and writes; an unknown thread is not an error."""
        self.store.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in every thread.

        Reads all metadata of the store. The other checkpoints keep their values. A DeltaChannel of
        LangGraph that needs the writes of a removed ancestor loses them, as with every saver.

        Raises:
            TypeError: `run_ids` is one id. Nothing was changed.
        """
        _check_ids("run_ids", run_ids)
        runs = set(run_ids)
        if not runs:
            return
        for thread in self.store.threads():
            for history in self._iter_histories(thread):
                infos = self._list_history(history)
                self._remove(history, [info.id for info in infos if info.metadata.get("run_id") in runs])
            if not self.store.namespaces(thread):
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
        _check_ids("thread_ids", thread_ids)
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
            else:
                self._keep_latest(thread)

    def _keep_latest(self, thread: str) -> None:
        root = RunnableConfig(thread)
        removable = self._list_removable(root)
        removed_roots = frozenset(removable)
        for history in self._iter_histories(thread):
            if history == root:
                continue
            infos = self._list_history(history)
            if _is_call(history) and _get_root_id(infos) in removed_roots:
                self._remove(history, [info.id for info in infos])
            else:
                self._remove(history, self._list_removable(history))
        # Last: after a crash, the next prune finds the calls of the checkpoints that still exist.
        self._remove(root, removable)

    def _list_removable(self, history: RunnableConfig) -> Sequence[str]:
        """Return the ids of a history that are not needed for its latest checkpoint."""
        # Listed before the latest is determined: what a run puts meanwhile is in neither.
        ids = [info.id for info in self._list_history(history)]
        needed = self._find_needed(history)
        return [id_ for id_ in ids if id_ not in needed]

    def _find_needed(self, history: RunnableConfig) -> set[str]:
        """Return the id of the latest checkpoint and those of the ancestors that it needs."""
        latest = self._get_checkpoint(history)
        if latest is None:
            return set()
        needed = {latest.id}
        missing = set(latest.metadata.get(_DELTA_CHANNELS, ())) - get_stored_channels(latest.state)
        for ancestor in self._iter_ancestors(history, latest.id):
            if not missing:
                break
            needed.add(ancestor.id)
            missing -= get_stored_channels(ancestor.state)
        return needed

    def _remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        self.store.remove(history, ids)
        self._writes.remove(history, ids)


def _check_ids(name: str, ids: object) -> None:
    """Raise a TypeError for one id, whose characters would otherwise be taken as ids."""
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"{name} must be a list of ids, not one id; pass [{ids!r}]")


def _is_call(history: RunnableConfig) -> bool:
    """Return whether a namespace belongs to one call of a subgraph: it contains the id of a task."""
    return _TASK_SEPARATOR in history.checkpoint_ns


def _get_root_id(infos: Sequence[CheckpointInfo]) -> str | None:
    """Return the checkpoint of the root graph from which a subgraph was called last."""
    parents = infos[0].metadata.get("parents") if infos else None
    return parents.get("") if isinstance(parents, dict) else None


def _parse_created_us(checkpoint: Mapping[str, Any]) -> int:
    """Return when LangGraph made a checkpoint, in microseconds since 1970; now if `ts` is no time.

    LangGraph's savers store `ts` and never read it, so callers may leave it empty.
    """
    try:
        created_at = datetime.fromisoformat(checkpoint["ts"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        # OverflowError and OSError: a year that the platform cannot convert to UTC.
        return time_ns() // 1000
    return round(created_at.timestamp() * 1_000_000)
