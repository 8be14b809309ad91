"""FileSystemCheckpointSaver: LangGraph's checkpointer over graphkit's files."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit import Checkpoint, CheckpointInfo, RunnableConfig
from graphkit.errors import CheckpointConflictError
from graphkit.values import freeze
from savers._filesystem import FileSystemSaver
from savers.langgraph.async_methods import AsyncTwins
from savers.langgraph.channels import (
    CHANNEL,
    WRITES,
    Encoder,
    base_of,
    decoded,
    relative,
    value_of,
)
from savers.langgraph.steps import next_of, node_of
from savers.langgraph.writes import EARLY, PendingWrites, Write, packed

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint as LangGraphCheckpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from savers._compression import Compression

MADE_BY: Final = "graphkit:made_by"
"""The metadata key that tells LangGraph's checkpoints from graphkit's own."""
LANGGRAPH: Final = "langgraph"

_DELTA_CHANNELS: Final = "counters_since_delta_snapshot"
"""The metadata key under which LangGraph names the channels whose values are spread over their ancestors' writes."""


class FileSystemCheckpointSaver(AsyncTwins):
    """Keeps LangGraph's threads in a directory that any process, and the `graphkit` command, can read.

    One object serves synchronous and asynchronous graphs, any number of threads and processes; there is nothing to set
    up and nothing to close. What a put takes on the disk is what changed, and once it returns the checkpoint survives
    power loss (`fsync="always"`). Values are what LangGraph's serializer makes of them, and no code runs when they are
    read but what it allows.

    Every method of LangGraph's BaseCheckpointSaver is here, and each means what it means there. The latest checkpoint
    is the one written last, whatever the clock said. A thread that holds a run of graphkit's own is refused.

    Attributes:
        store: the FileSystemSaver below: for verify, repair, size, prune by age, and whatever else it can do.
    """

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: Literal["always", "never"] | float = "always",
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
    ) -> None:
        """Open a store; the directory is made if it is missing.

        Args:
            base_directory: where the store is.
            serde: LangGraph's serializer; by default its own in its strict mode, which restores the types of LangGraph,
                LangChain and the standard library, and of others the plain data. `with_allowlist` adds types.
            fsync: when to wait for the disk: at each put, never, or every so many seconds.
            compression: how values of 100,000 bytes and more are stored.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option makes no sense.
            CheckpointStorageError: the file system refused.
        """
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self.store = FileSystemSaver(base_directory, fsync=fsync, compression=compression)
        self._writes = PendingWrites(self.store)

    # Writing

    def put(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> LangGraphConfig:
        """Store a checkpoint; one that has the id already is replaced.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the error names its channel. Nothing was changed.
            CheckpointConflictError: the thread holds a run of graphkit's own. Nothing was changed.
            CheckpointStorageError: the file system refused. What was there before still is.
        """
        here = _place(config, checkpoint["id"])
        early = self._writes.to_take(here)
        own_metadata = get_serializable_checkpoint_metadata(config, metadata)
        self.restore(config, checkpoint, own_metadata, new_versions, early)
        if early:
            self._writes.taken(here)
        return _config(config["configurable"]["thread_id"], here.checkpoint_ns, checkpoint["id"])

    def restore(
        self,
        config: LangGraphConfig,
        checkpoint: LangGraphCheckpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        writes: Mapping[str, Any],
    ) -> None:
        """Store a checkpoint and its writes in one: what `put` does, and an import from another saver.

        Args:
            config: names the thread, the namespace and the parent.
            checkpoint: LangGraph's.
            metadata: as it is to be stored.
            new_versions: the channels that the parent does not have in these versions.
            writes: those of the checkpoint, by key.

        Raises:
            CheckpointSerializationError: as `put`; and so the others.
        """
        at, parent_id = _place(config), config["configurable"].get("checkpoint_id")
        latest = _own(at, self.store.get(at))
        parent = latest if latest is not None and latest.id == parent_id else self._named(at, parent_id)

        def earlier() -> Iterator[Mapping[str, Any]]:
            yield base_of(parent)
            yield from (one.state for one in self.store.list(at))

        state = Encoder(self.serde).state(checkpoint, new_versions, base_of(latest), earlier)
        if writes:
            state[WRITES] = dict(writes)
        frozen, changes = relative(base_of(latest), state)
        # The constructor would freeze the state again, and would not know what changed.
        new = Checkpoint.from_stored(
            id=checkpoint["id"],
            node_id=node_of(checkpoint, metadata, base_of(parent)),
            next_node_id=next_of(checkpoint),
            parent_id=parent_id,
            created_us=_microseconds(checkpoint),
            metadata=freeze({**metadata, MADE_BY: LANGGRAPH}),
            state=frozen,
            changes=changes,
        )
        self.store.put(at, new, unique=True)

    def put_writes(
        self, config: LangGraphConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote beside its checkpoint, which may be still to come.

        Of an ordinary write the first one stays; those of errors, interrupts, answers and schedules are replaced.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the error names its channel. Nothing was changed.
            CheckpointStorageError: the file system refused. What was there before still is.
        """
        at = _place(config, config["configurable"]["checkpoint_id"])
        self._writes.put(at, packed(Encoder(self.serde), writes, task_id, task_path))

    def get_next_version(self, current: str | float | None, channel: None = None) -> str:
        """The version after this one, in the form that LangGraph's own savers use.

        Its tail is random: the versions of two branches of a history are never taken for the same.
        """
        del channel
        number = int(current.split(".")[0]) if isinstance(current, str) else int(current or 0)
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - no secret

    # Reading

    def get_tuple(self, config: LangGraphConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the one written last; None if there is none."""
        at = _place(config)
        found = self._named(at, config["configurable"].get("checkpoint_id"), latest=True)
        return None if found is None else self._tuple(at, found, config["configurable"]["thread_id"])

    def list(
        self,
        config: LangGraphConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: LangGraphConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first: of a thread and namespace, of all its namespaces, or of the whole store (None).

        States are read as the iterator goes on; while it waits, nobody waits for it. A checkpoint that is removed
        meanwhile is passed over.

        Args:
            config: names the thread; without `checkpoint_ns`, all of its namespaces; with `checkpoint_id`, that one.
            filter: metadata keys and the values that they must have.
            before: only what was written before this checkpoint.
            limit: at most so many.
        """
        chosen = (info for info in self._infos(config, _id_in(before)) if _matches(info, filter or {}))
        for info in islice(chosen, None if limit is None else max(limit, 0)):
            at = RunnableConfig(info.thread_id, checkpoint_ns=info.checkpoint_ns)
            if (found := self.store.get(at.replace(checkpoint_id=info.id))) is not None:
                yield self._tuple(at, found, info.thread_id)

    def _infos(self, config: LangGraphConfig | None, before: str | None) -> Iterable[CheckpointInfo]:
        names = config["configurable"] if config else {}
        threads = [str(names["thread_id"])] if config else self.store.threads()
        namespace, named = names.get("checkpoint_ns"), _id_in(config)
        histories = [
            [info for info in _before(self._history(place), before) if named in {None, info.id}]
            for thread in threads
            for place in self._places(thread)
            if namespace in {None, place.checkpoint_ns}
        ]
        return merge(*histories, key=lambda info: info.created_at, reverse=True)

    def _places(self, thread: str) -> Iterator[RunnableConfig]:
        for namespace in self.store.namespaces(thread):
            if not namespace.startswith(EARLY):
                yield RunnableConfig(thread, checkpoint_ns=namespace)

    def _history(self, at: RunnableConfig) -> Sequence[CheckpointInfo]:
        """A namespace's checkpoints, newest first, that are LangGraph's."""
        return [info for info in self.store.history(at) if info.metadata.get(MADE_BY) == LANGGRAPH]

    def _named(self, at: RunnableConfig, id: str | None, *, latest: bool = False) -> Checkpoint | None:
        return _own(at, self.store.get(at.replace(checkpoint_id=id or None))) if id or latest else None

    def _tuple(self, at: RunnableConfig, found: Checkpoint, thread_id: Any) -> CheckpointTuple:
        here, parent = at.replace(checkpoint_id=found.id), found.parent_id
        metadata: Any = deepcopy(found.metadata)
        del metadata[MADE_BY]
        checkpoint: Any = decoded(self.serde, found.state)
        return CheckpointTuple(
            _config(thread_id, at.checkpoint_ns, found.id),
            checkpoint,
            metadata,
            _config(thread_id, at.checkpoint_ns, parent) if parent else None,
            [self._pending(write) for write in self._writes.of(here, found.state)],
        )

    def writes_of(self, config: LangGraphConfig) -> Sequence[Write]:
        """The pending writes of a checkpoint as they are stored, in LangGraph's order."""
        at, found = _place(config, _id_in(config)), self._named(_place(config), _id_in(config), latest=True)
        return [] if found is None else self._writes.of(at.replace(checkpoint_id=found.id), found.state)

    def _pending(self, write: Write) -> PendingWrite:
        return write.task_id, write.channel, self.serde.loads_typed((write.type, write.data))

    def get_delta_channel_history(
        self, *, config: LangGraphConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint wrote to channels, oldest first, back to where each was last stored whole.

        No value is decoded but these.
        """
        collected: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        missing = set(channels)
        at = _place(config)
        for ancestor in self._ancestors(at, _id_in(config)):
            if not missing:
                break
            writes = self._writes.of(at.replace(checkpoint_id=ancestor.id), ancestor.state)
            for write in reversed(writes):
                if write.channel in missing:
                    collected[write.channel]["writes"].append(self._pending(write))
            for name in missing & _stored(ancestor):
                collected[name]["seed"] = value_of(self.serde, ancestor.state, name)
                missing.discard(name)
        for found in collected.values():
            found["writes"].reverse()
        return collected

    def _ancestors(self, at: RunnableConfig, id: str | None) -> Iterator[Checkpoint]:
        """The parent of a checkpoint, and its parent, and so on; none twice, whatever was imported."""
        seen: set[str] = set()
        found = self._named(at, id, latest=True)
        while found is not None and found.parent_id and found.parent_id not in seen:
            seen.add(found.parent_id)
            found = self._named(at, found.parent_id)
            if found is not None:
                yield found

    # Whole threads

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread, all its namespaces and writes, from the disk; one that there is not is no error."""
        self.store.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in every thread. Costs a look at all metadata of the store.

        Those that stay keep their values. A channel of LangGraph's DeltaChannel that needs a removed ancestor's writes
        is cut off from them, as with every saver.
        """
        runs = set(run_ids)
        for thread in self.store.threads() if runs else ():
            for at in self._places(thread):
                self._remove(at, [one.id for one in self._history(at) if one.metadata.get("run_id") in runs])
            self._drop_if_empty(thread)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, ids, parents and writes, to one that is empty; of one that there is not, nothing.

        Raises:
            CheckpointConflictError: the target is not empty. Nothing was changed.
        """
        source = str(source_thread_id)
        if self.store.namespaces(source):
            self.store.copy(source, str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all of some threads but the latest checkpoint of each namespace, or all (`delete`).

        Where the latest needs ancestors for a DeltaChannel, these stay, back to the one that holds its value.

        Raises:
            ValueError: there is no such strategy.
        """
        if strategy not in {"keep_latest", "delete"}:
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for at in self._places(thread):
                needed = self._needed(at)
                self._remove(at, [info.id for info in self._history(at) if info.id not in needed])

    def _needed(self, at: RunnableConfig) -> set[str]:
        """The ids of the latest checkpoint and of those that its DeltaChannels are read from."""
        latest = self._named(at, None, latest=True)
        if latest is None:
            return set()
        needed = {latest.id}
        missing = set(latest.metadata.get(_DELTA_CHANNELS, ())) - _stored(latest)
        for ancestor in self._ancestors(at, latest.id):
            if not missing:
                break
            needed.add(ancestor.id)
            missing -= _stored(ancestor)
        return needed

    def _remove(self, at: RunnableConfig, ids: Sequence[str]) -> None:
        self.store.remove(at, ids)
        self._writes.remove(at, ids)

    def _drop_if_empty(self, thread: str) -> None:
        if not self.store.namespaces(thread):
            self.store.delete(thread)


def _place(config: LangGraphConfig, id: str | None = None) -> RunnableConfig:
    names = config["configurable"]
    return RunnableConfig(str(names["thread_id"]), checkpoint_ns=names.get("checkpoint_ns") or "", checkpoint_id=id)


def _config(thread_id: Any, namespace: str, id: str) -> LangGraphConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _id_in(config: LangGraphConfig | None) -> str | None:
    return (config or {}).get("configurable", {}).get("checkpoint_id") or None


def _own(at: RunnableConfig, checkpoint: Checkpoint | None) -> Checkpoint | None:
    if checkpoint is not None and checkpoint.metadata.get(MADE_BY) != LANGGRAPH:
        raise CheckpointConflictError(at.thread, "it holds a run of graphkit's own; give LangGraph another thread id")
    return checkpoint


def _before(history: Sequence[CheckpointInfo], id: str | None) -> Sequence[CheckpointInfo]:
    """What was written before a checkpoint; in a history that does not have it, by the ids, which tell the time."""
    ids = [info.id for info in history]
    if id is None or id in ids:
        return history if id is None else history[ids.index(id) + 1 :]
    return [info for info in history if info.id < id]


def _matches(info: CheckpointInfo, filter: Mapping[str, Any]) -> bool:
    return all(info.metadata.get(key) == value for key, value in filter.items())


def _stored(checkpoint: Checkpoint) -> set[str]:
    """The channels whose values a checkpoint holds."""
    entries = checkpoint.state.items()
    return {key.removeprefix(CHANNEL) for key, entry in entries if key.startswith(CHANNEL) and len(entry) > 1}


def _microseconds(checkpoint: Mapping[str, Any]) -> int:
    """When LangGraph made a checkpoint, since 1970."""
    return round(datetime.fromisoformat(checkpoint["ts"]).timestamp() * 1_000_000)
