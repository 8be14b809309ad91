"""CheckpointSaver: LangGraph's checkpointer on any saver of graphkit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import (
    LANGGRAPH,
    MADE_BY,
    BaseCheckpointSaver as SaverOfGraphkit,
    check_complete,
    check_limit,
    derive_stop,
)
from graphkit.errors import CheckpointConflictError, CheckpointerConfigurationError
from graphkit.values import FrozenDict
from savers._log.history_view import SharedLogView
from savers._log.log_writer import LogWriter
from savers._log.packed_changes import append_packed
from savers._log.scanned_log import ScannedLog
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.ancestors import AncestorWalk, KnownAncestors
from savers.langgraph.channels import (
    WRITES,
    Encoder,
    SerializedCheckpoint,
    Successor,
    compare_with_last,
    decode_checkpoint,
    decode_value,
    encode_successor,
)
from savers.langgraph.configs import get_checkpoint_id, make_langgraph_config, parse_config
from savers.langgraph.histories import CheckpointWithWrites, GrowingHistory
from savers.langgraph.history_decoder import HistoryDecoder
from savers.langgraph.metadata import copy_as_lists, merge_metadata, pack_metadata, unpack_metadata
from savers.langgraph.open_histories import open_histories
from savers.langgraph.opening import ContextMethods, SetupMethod
from savers.langgraph.packed_checkpoints import PackedDecoder
from savers.langgraph.pruning import PruningMethods
from savers.langgraph.retention import TtlSweeper, parse_ttl
from savers.langgraph.selection import Query, Selected
from savers.langgraph.serializer import Deserializer, OnBlockedType, check_on_blocked_type, make_serializer
from savers.langgraph.steps import derive_next_node, derive_node, list_changed_nodes
from savers.langgraph.thread_calls import CallsOfLoops
from savers.langgraph.writes import Write, encode_writes, pack_writes

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig as LangGraphConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint as LangGraphCheckpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from savers._log.history_view import HistoryView


_EMPTY: Final = FrozenDict()
_Stored = TypeVar("_Stored", "Checkpoint", "StoredCheckpoint")


class CheckpointSaver(ContextMethods, SetupMethod, PruningMethods):
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
        self._histories = open_histories(saver)
        self._calls = CallsOfLoops()
        self._ancestors = KnownAncestors()
        self._sweeper = None if ttl is None else TtlSweeper(self._histories, ttl)

    def _close(self) -> None:
        """Stop the sweeper, and close the saver, if it can be closed. A later use no longer applies `ttl`."""
        if self._sweeper is not None:
            self._sweeper.stop()
        close = getattr(self.store, "close", None)
        if close is not None:
            close()

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
        self.restore(config, checkpoint, merge_metadata(config, metadata), new_versions, {})
        return make_langgraph_config(names["thread_id"], names.get("checkpoint_ns") or "", checkpoint["id"])

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
        # Before the log is locked, because it runs code of the application.
        serialized = Encoder(self.serde).serialize_checkpoint(checkpoint, new_versions)
        checkpoint_id = checkpoint["id"]
        next_node = derive_next_node(checkpoint)
        created_us = _parse_created_us(checkpoint)
        packed_metadata = pack_metadata(metadata)

        def put_next(log: GrowingHistory) -> Checkpoint | None:
            latest = _check_made_by(history, log.find_latest())
            successor = None
            base = _EMPTY if latest is None else log.load_state(latest)
            is_next = parent_id == latest.id if latest is not None else not parent_id
            if is_next and not writes:
                successor = encode_successor(base, checkpoint, new_versions, serialized, log.codec.pack)
            if successor is None:
                parent = latest
                if not is_next:
                    parent = _check_made_by(history, log.find(parent_id) if parent_id else None)
                successor = self._encode_other(log, parent, base, checkpoint, new_versions, serialized, writes)
            node = derive_node(metadata, successor.changed_nodes)
            if (
                successor.packed is not None
                and base is log.state
                and isinstance(log, LogWriter)
                and log.lacks(checkpoint_id)
            ):
                # By position, because this is part of every put.
                new = StoredCheckpoint(checkpoint_id, node, next_node, created_us, parent_id, packed_metadata)
                if append_packed(log, new, successor.state, successor.packed):
                    return None
            # The constructor would freeze the state again, and would not know what changed.
            return Checkpoint.from_stored(
                id=checkpoint_id,
                node_id=node,
                next_node_id=next_node,
                parent_id=parent_id,
                created_us=created_us,
                metadata=packed_metadata,
                state=successor.state,
                changes=successor.list_changes(base),
            )

        self._histories.put_next(history, put_next)

    def _encode_other(
        self,
        log: GrowingHistory,
        parent: StoredCheckpoint | None,
        base: FrozenDict,
        checkpoint: LangGraphCheckpoint,
        new_versions: ChannelVersions,
        serialized: SerializedCheckpoint,
        writes: Mapping[str, Any],
    ) -> Successor:
        """Return the state of a checkpoint with any parent, and how it differs from the last state."""
        parent_state = _EMPTY if parent is None else log.load_state(parent)

        def iter_earlier_states() -> Iterator[Mapping[str, Any]]:
            yield parent_state
            for earlier in reversed(log.load_index().checkpoints):
                yield log.load_state(earlier)

        state = Encoder(self.serde).encode(checkpoint, new_versions, serialized, iter_earlier_states)
        if writes:
            state[WRITES] = dict(writes)
        return compare_with_last(base, state, list_changed_nodes(checkpoint, parent_state))

    def record_stop(self, history: RunnableConfig, checkpoint_id: str, writes: Sequence[Write]) -> None:
        """Record what says that a restored checkpoint waits or failed, as `put_writes` would have; for imports.

        A listing shows it without a look at the state, in which `restore` has stored the writes.
        """
        packed = pack_writes(writes)
        recorded = self.store.get_writes(history.replace(checkpoint_id=checkpoint_id))
        if derive_stop(None, packed.packed) and not packed.packed.keys() <= recorded.keys():
            self._histories.put_writes(history, checkpoint_id, packed)

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
        encoded = encode_writes(Encoder(self.serde), writes, task_id, task_path)
        self._histories.put_writes(parse_config(config), checkpoint_id, encoded)

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
        history = parse_config(config)
        names = config["configurable"]
        checkpoint_id = names.get("checkpoint_id")
        if checkpoint_id:
            made = self._read_past(history.replace(checkpoint_id=checkpoint_id), names["thread_id"])
            if made is not None:
                return made
        found = self._read_checkpoint(history, checkpoint_id)
        if found is None:
            return None
        return self._make_tuple(history, found, names["thread_id"])

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
        if config:
            names = config["configurable"]
            selected = self._histories.select(str(names["thread_id"]), names.get("checkpoint_ns"), query)
        else:
            selected = self._histories.select_from_all(query)
        try:
            yield from self._read_selected(selected)
        finally:
            if not config:
                self._histories.end_listing()

    def _read_selected(self, selected: Iterable[Selected]) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a listing, each read when it is wanted."""
        # By view: a listing of the whole store goes from one to the other and back. Checkpoints that
        # are in the log get no early writes any more, so one look for them is enough.
        histories: dict[HistoryView, _ListedHistory] = {}
        decoder = PackedDecoder(self._deserializer)
        last_view: HistoryView | None = None
        scanned: ScannedLog | None = None
        for _, view, stored, is_last in selected:
            if view is not last_view:
                last_view = view
                # Early writes have a namespace of their own.
                scanned = view if isinstance(view, ScannedLog) and view.is_only else None
            if scanned is not None:
                decoded = decoder.read(scanned, stored)
                if decoded is not None:
                    if is_last:
                        self._histories.release(view)
                    owner = (scanned.thread_id, scanned.namespace)
                    yield _make_tuple(owner, stored.id, stored.parent, stored.metadata, decoded, [])
                    continue
            known = histories.get(view)
            if known is None:
                histories[view] = known = self._begin_listing(view)
            made = _read_packed(view, stored, known)
            if made is None:
                made = self._read_listed(view, stored, known)
            if is_last:
                self._histories.release(view)
            if made is not None:
                yield made

    def _begin_listing(self, view: HistoryView) -> _ListedHistory:
        history = RunnableConfig(view.thread_id, checkpoint_ns=view.namespace)
        has_early = not view.is_only and self._histories.has_early(history)
        return _ListedHistory(history, has_early, HistoryDecoder(self._deserializer))

    def _read_listed(
        self, view: HistoryView, stored: StoredCheckpoint, known: _ListedHistory
    ) -> CheckpointTuple | None:
        """Return a checkpoint of a listing; None if it was removed meanwhile."""
        history = known.history
        found = view.read(stored)
        if found is None:
            # The log has changed since: the checkpoint may have been replaced or removed.
            latest = self._histories.read(history.replace(checkpoint_id=stored.id))
            return None if latest is None else self._make_tuple(history, latest, view.thread_id)
        writes: Sequence[Write] = ()
        if known.has_early or found.writes or WRITES in found.state:
            writes = self._histories.read_writes(history, stored.id, found.state, found.writes)
        owner = (view.thread_id, view.namespace)
        return self._build_tuple(owner, stored.id, stored.parent, stored.metadata, found.state, writes)

    def _get_checkpoint(self, history: RunnableConfig, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint of a history, the latest without an id; None if there is none.

        Raises:
            CheckpointConflictError: the checkpoint is one of graphkit.
        """
        return _check_made_by(history, self.store.get(history.replace(checkpoint_id=checkpoint_id or None)))

    def _read_checkpoint(self, history: RunnableConfig, checkpoint_id: str | None) -> CheckpointWithWrites | None:
        """As `_get_checkpoint`, with what is recorded with the checkpoint."""
        found = self._histories.read(history.replace(checkpoint_id=checkpoint_id or None))
        if found is not None:
            _check_made_by(history, found.checkpoint)
        return found

    def _read_past(self, config: RunnableConfig, thread_id: Any) -> CheckpointTuple | None:
        """Return a past checkpoint, decoded from its packed bytes; None if it must be read in the general way."""
        found = self._histories.read_past(config)
        if found is None:
            return None
        decoded = HistoryDecoder(self._deserializer).decode(found.packed)
        if decoded is None:
            return None
        stored = found.stored
        _check_made_by(config, stored)
        checkpoint, writes = decoded
        owner = (thread_id, config.checkpoint_ns)
        return _make_tuple(owner, stored.id, stored.parent, stored.metadata, checkpoint, writes)

    def _make_tuple(self, history: RunnableConfig, found: CheckpointWithWrites, thread_id: Any) -> CheckpointTuple:
        checkpoint = found.checkpoint
        return self._build_tuple(
            (thread_id, history.checkpoint_ns),
            checkpoint.id,
            checkpoint.parent_id,
            checkpoint.metadata,
            checkpoint.state,
            self._list_writes(history, found),
        )

    def _build_tuple(
        self,
        owner: tuple[Any, str],
        checkpoint_id: str,
        parent_id: str | None,
        stored_metadata: Mapping[str, Any],
        state: Mapping[str, Any],
        writes: Sequence[Write],
    ) -> CheckpointTuple:
        decoded = decode_checkpoint(self._deserializer, state)
        return _make_tuple(
            owner, checkpoint_id, parent_id, stored_metadata, decoded, [self._decode_write(write) for write in writes]
        )

    def writes_of(self, config: LangGraphConfig) -> Sequence[Write]:
        """Return the pending writes of a checkpoint as they are stored, in LangGraph's order."""
        checkpoint_id = get_checkpoint_id(config)
        history = parse_config(config, checkpoint_id)
        found = self._read_checkpoint(history, checkpoint_id)
        return [] if found is None else self._list_writes(history, found)

    def _list_writes(self, history: RunnableConfig, found: CheckpointWithWrites) -> Sequence[Write]:
        checkpoint = found.checkpoint
        return self._histories.read_writes(history, checkpoint.id, checkpoint.state, found.writes)

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
        walk = AncestorWalk(self._histories, history, self._ancestors)
        for ancestor in walk.iter_ancestors(get_checkpoint_id(config)):
            if not missing:
                break
            for write in reversed(ancestor.writes):
                if write.channel in missing:
                    histories[write.channel]["writes"].append(self._decode_write(write))
            for name in missing & ancestor.channels:
                state = walk.read_channel(ancestor, name)
                histories[name]["seed"] = decode_value(self._deserializer, state, name)
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


class _ListedHistory(NamedTuple):
    """A history in a listing."""

    history: RunnableConfig
    has_early: bool
    """Whether there may be a namespace of early writes beside its own."""
    decoder: HistoryDecoder


def _read_packed(view: HistoryView, stored: StoredCheckpoint, known: _ListedHistory) -> CheckpointTuple | None:
    """Return a checkpoint that is decoded from its packed bytes; None if it must be read in the general way."""
    if known.has_early or not isinstance(view, SharedLogView):
        return None
    packed = view.read_packed(stored)
    decoded = None if packed is None else known.decoder.decode(packed)
    if decoded is None:
        return None
    checkpoint, writes = decoded
    owner = (view.thread_id, view.namespace)
    return _make_tuple(owner, stored.id, stored.parent, stored.metadata, checkpoint, writes)


def check_options(
    serde: SerializerProtocol | None, types: Iterable[type], on_blocked_type: object, ttl: object
) -> SerializerProtocol:
    """Check the options of a checkpointer, before its store is opened, and return its serializer.

    Raises:
        CheckpointerConfigurationError: an option is invalid.
    """
    check_on_blocked_type(on_blocked_type)
    if ttl is not None:
        parse_ttl(ttl)
    return make_serializer(serde, types, is_plain=on_blocked_type == "plain")


def _make_tuple(
    owner: tuple[Any, str],
    checkpoint_id: str,
    parent_id: str | None,
    stored_metadata: Mapping[str, Any],
    decoded: Any,
    writes: list[PendingWrite],
) -> CheckpointTuple:
    thread_id, namespace = owner
    # The configs are those of `make_langgraph_config`: a listing makes two for each checkpoint.
    names = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    parent_config: Any = None
    if parent_id:
        parent_names = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": parent_id}
        parent_config = {"configurable": parent_names}
    metadata: Any = unpack_metadata(stored_metadata)
    return CheckpointTuple({"configurable": names}, decoded, metadata, parent_config, writes)


def _check_made_by(history: RunnableConfig, checkpoint: _Stored | None) -> _Stored | None:
    """Return a checkpoint of LangGraph.

    Raises:
        CheckpointConflictError: the checkpoint is one of graphkit, or marks its thread as incomplete.
    """
    if checkpoint is None:
        return None
    check_complete(history.thread, checkpoint.metadata)
    if checkpoint.metadata.get(MADE_BY) != LANGGRAPH:
        raise CheckpointConflictError(
            history.thread, "it holds a run of graphkit's own; give LangGraph another thread id"
        )
    return checkpoint


def _parse_created_us(checkpoint: Mapping[str, Any]) -> int:
    """Return when LangGraph made a checkpoint, in microseconds since 1970; now if `ts` is no time.

    LangGraph's savers store `ts` and never read it, so callers may leave it empty.
    """
    try:
        return round(datetime.fromisoformat(checkpoint["ts"]).astimezone(UTC).timestamp() * 1_000_000)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        # OverflowError and OSError: a year that the platform cannot convert to UTC.
        return time_ns() // 1000
