"""State and CheckpointStore: go-agents-orchestration's, ported, as a view of any saver.

    store = CheckpointStore("memory")
    state = State({"documents": []}).set_checkpoint_node("ingest")
    state.checkpoint(store)
    store.load(state.run_id).get("documents")  # ([], True)

A `State` is its own checkpoint: data, and where it comes from. A store keeps one per run id, the last one saved. The
runs of a graph are found here too, by the run id in their metadata or by their thread id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, final
from uuid import uuid4

from graphkit._plan.events import EVENTS, Event, Observer, call_observer
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import START, RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver, run_in_thread
from graphkit._values.frozen import FrozenDict, freeze, private_copy
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
)
from graphkit.registry import get_checkpoint_store

__all__ = ["CheckpointStore", "State"]

_SOURCE: Final = "store"
"""The metadata's `source` of what a CheckpointStore saved."""
_NONE: Final = FrozenDict()


@final
class State:
    """The data of a run, with its provenance. Immutable: every change gives a new one, and shares what did not change.

    Attributes:
        run_id: the run; a UUID of its own for each new State.
        checkpoint_node: the node that was finished last; empty before the first.
        timestamp: when that was, aware, UTC.
        observer: told of each change (`state.create`, `state.set`, ...); never stored.

    Secrets go along from state to state, but never into a store, a JSON text, a pickle, a repr or an event: whoever
    loads a State gives them to it again.
    """

    __slots__ = ("_data", "_secrets", "checkpoint_node", "observer", "run_id", "timestamp")

    _data: FrozenDict
    run_id: str
    checkpoint_node: str
    timestamp: datetime
    observer: Observer | None
    _secrets: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any] = _NONE, observer: Observer | None = None) -> None:
        """Start a run: a new run id, now, no node yet."""
        self._fill(freeze(dict(data)), str(uuid4()), "", datetime.now(UTC), observer, {})
        _tell(self, "state.create")

    def _fill(
        self,
        data: FrozenDict,
        run_id: str,
        checkpoint_node: str,
        timestamp: datetime,
        observer: Observer | None,
        secrets: Mapping[str, Any],
    ) -> None:
        fields = (data, secrets, checkpoint_node, observer, run_id, timestamp)
        for name, value in zip(self.__slots__, fields, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _make(cls, *fields: Any) -> State:
        """Make one from parts that are known to be right, in the order of `_fill`, and tell nobody."""
        state = cls.__new__(cls)
        state._fill(*fields)  # noqa: SLF001 - it is one of ours
        return state

    def _with(self, **changes: Any) -> State:
        fields = {name: getattr(self, name) for name in ("_data", "run_id", "checkpoint_node", "timestamp", "observer")}
        secrets = changes.pop("secrets", self._secrets)
        return State._make(*(fields | changes).values(), secrets)

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(f"a State is immutable; set() makes another one instead of setting {name!r}")

    __delattr__ = __setattr__

    # Data

    @property
    def data(self) -> FrozenDict:
        """The keys and values, read-only all the way down; mutable objects of the application are copies."""
        return private_copy(self._data)  # type: ignore[no-any-return]

    def get(self, key: str) -> tuple[Any, bool]:
        """The value of a key, and whether there is one: (None, False) if not."""
        return private_copy(self._data.get(key)), key in self._data

    def set(self, key: str, value: Any) -> State:
        """With a key set to a value, which is frozen here."""
        changed = self._with(_data=freeze({**self._data, key: value}))
        _tell(changed, "state.set", key=key)
        return changed

    def merge(self, other: State | Mapping[str, Any]) -> State:
        """With the other's data, and its secrets, over these. Run id, node, timestamp and observer stay these."""
        data, secrets = (other._data, other._secrets) if isinstance(other, State) else (other, {})  # noqa: SLF001 - one of ours
        changed = self._with(_data=freeze({**self._data, **data}), secrets={**self._secrets, **secrets})
        _tell(changed, "state.merge", keys=list(data))
        return changed

    def clone(self) -> State:
        """An equal one. Nothing of it can be changed through this one: O(1)."""
        copy = self._with()
        _tell(copy, "state.clone")
        return copy

    # Provenance

    def set_checkpoint_node(self, node_id: str) -> State:
        """As it leaves a node: stamped with its id, and with a time that is later than before."""
        now = max(datetime.now(UTC), self.timestamp + timedelta(microseconds=1))
        return self._with(checkpoint_node=node_id, timestamp=now)

    def with_observer(self, observer: Observer | None) -> State:
        """The same, telling another observer, or nobody."""
        return self._with(observer=observer)

    def checkpoint(self, store: CheckpointStore) -> None:
        """Save it: `store.save(state)`."""
        store.save(self)

    # Secrets

    def get_secret(self, key: str) -> tuple[Any, bool]:
        """The secret of a key, and whether there is one."""
        return self._secrets.get(key), key in self._secrets

    def set_secret(self, key: str, value: Any) -> State:
        """With a secret; nobody is told."""
        return self._with(secrets={**self._secrets, key: value})

    def delete_secret(self, key: str) -> State:
        """Without a secret; nobody is told."""
        return self._with(secrets={name: value for name, value in self._secrets.items() if name != key})

    # JSON

    def to_json(self) -> str:
        """As JSON: `data`, `run_id`, `checkpoint_node`, `timestamp` (ISO 8601).

        Raises:
            CheckpointSerializationError: a value would not come back from JSON as it is; the message names its key.
        """
        for key, value in self._data.items():
            _check_json(key, value)
        fields = {"data": self._data, "run_id": self.run_id, "checkpoint_node": self.checkpoint_node}
        return json.dumps({**fields, "timestamp": self.timestamp.isoformat()})

    @staticmethod
    def from_json(text: str | bytes, observer: Observer | None = None) -> State:
        """A State back from JSON, telling this observer.

        Raises:
            CheckpointSerializationError: the text is not that of a State.
        """
        try:
            fields = json.loads(text)
            when = datetime.fromisoformat(fields["timestamp"])
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
            names = str.__str__(fields["run_id"]), str.__str__(fields["checkpoint_node"])
            return State._make(freeze(dict(fields["data"])), *names, when, observer, {})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"no State: {type(error).__name__}: {error}"
            raise CheckpointSerializationError("", "JSON", reason, raw=text) from error

    def _key(self) -> tuple[Any, ...]:
        return self._data, self.run_id, self.checkpoint_node, self.timestamp

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, State) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.run_id, self.timestamp))

    def __repr__(self) -> str:
        return f"State({dict(self._data)!r}, run_id={self.run_id!r}, checkpoint_node={self.checkpoint_node!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle has neither the observer nor the secrets."""
        return _rebuild, (dict(self._data), *self._key()[1:])


@final
class CheckpointStore:
    """One State per run id, kept by any saver; go-agents-orchestration's interface. From any thread.

    Attributes:
        saver: where they are kept. The thread of a run is its run id.
        observer: what the states that are loaded tell of their changes.
    """

    def __init__(self, saver: BaseCheckpointSaver | str, *, observer: Observer | None = None) -> None:
        """Look at a saver this way, or at the store of a name.

        Raises:
            CheckpointerConfigurationError: there is no such store, or this is no saver.
        """
        found: object = get_checkpoint_store(saver) if isinstance(saver, str) else saver
        if not isinstance(found, BaseCheckpointSaver):
            raise CheckpointerConfigurationError(f"a CheckpointStore looks at a saver or its name, not {saver!r}")
        self.saver = found
        self.observer = observer

    def save(self, state: State) -> None:
        """Keep a State, in place of the one with its run id that was saved before. One put.

        After a run of a graph it is appended to that run's history, which stays. A graph can resume from it, with the
        run id as `thread_id`: by the edge that leads out of its `checkpoint_node`.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the message names its key. What was there stays.
            CheckpointStorageError: the store refused. What was there stays.
            ThreadBusyError: a graph is running this thread.
        """
        at = RunnableConfig(state.run_id)
        checkpoint = Checkpoint(
            node_id=state.checkpoint_node or START,
            next_node_id=None,
            state=state.data,
            created_at=state.timestamp,
            metadata={"run_id": state.run_id, "source": _SOURCE},
        )
        with self.saver.run_lock(at):
            old = self.saver.get(at)
            is_ours = old is not None and old.metadata.get("source") == _SOURCE
            self.saver.put(at.with_check_point_id(old.id) if old is not None and is_ours else at, checkpoint)

    def load(self, run_id: str) -> State:
        """The State of a run as it was last saved, or the latest checkpoint of a graph's run, telling this observer.

        A thread of this name is looked for first. For other runs the metadata of all threads is read.

        Raises:
            CheckpointNotFoundError: there is no such run; the message names it.
            CheckpointCorruptionError: its bytes are damaged.
        """
        at = self._place_of(run_id)
        checkpoint = None if at is None else self.saver.get(at)
        if checkpoint is None:
            raise CheckpointNotFoundError(run_id, "a checkpoint", "list() names the runs that have one")
        node = "" if checkpoint.node_id == START else checkpoint.node_id
        run = checkpoint.metadata.get("run_id", run_id)
        return State._make(checkpoint.state, run, node, checkpoint.created_at, self.observer, {})

    def delete(self, run_id: str) -> None:
        """Remove a run, with its thread. One that does not exist is no error.

        Raises:
            CheckpointConflictError: other runs share the thread. Nothing was changed.
            ThreadBusyError: the thread is running.
        """
        at = self._place_of(run_id)
        if at is None:
            return
        others = set() if at.thread == run_id else {*self._runs_of(at.thread)} - {run_id}
        if others:
            raise CheckpointConflictError(
                at.thread, f"it holds {len(others)} other runs; saver.delete removes them all"
            )
        self.saver.delete(at.thread)

    def list(self) -> list[str]:
        """The ids of all runs, in no particular order. Reads metadata, no states.

        Raises:
            CheckpointerConfigurationError: the saver keeps no list of its threads.
        """
        runs = {run_id: None for thread in self.saver.threads() for run_id in self._runs_of(thread)}
        return [*runs]

    def _runs_of(self, thread: str) -> Sequence[str]:
        return [info.metadata.get("run_id", thread) for info in self.saver.history(RunnableConfig(thread))]

    def _place_of(self, run_id: str) -> RunnableConfig | None:
        """Where the latest checkpoint of a run is."""
        at = RunnableConfig(run_id)
        if self.saver.get(at) is not None:
            return at
        try:
            found = self.saver.search({"run_id": run_id})
        except CheckpointerConfigurationError:  # the saver keeps no list of its threads
            return None
        places = [RunnableConfig(info.thread_id, info.id) for info in found if not info.checkpoint_ns]
        return places[0] if places else None

    async def asave(self, state: State) -> None:
        """As `save`."""
        await run_in_thread(self.save, state)

    async def aload(self, run_id: str) -> State:
        """As `load`."""
        return await run_in_thread(self.load, run_id)

    async def adelete(self, run_id: str) -> None:
        """As `delete`."""
        await run_in_thread(self.delete, run_id)

    async def alist(self) -> list[str]:  # type: ignore[valid-type]
        """As `list`."""
        return await run_in_thread(self.list)


def _tell(state: State, type_: str, **data: Any) -> None:
    if state.observer is not None:
        level, now = EVENTS[type_].level, datetime.now(UTC)
        said = FrozenDict({"run_id": state.run_id, **data})
        call_observer(state.observer, Event(type_, level, state.run_id, state.checkpoint_node or None, None, now, said))


def _rebuild(data: dict[str, Any], run_id: str, node: str, timestamp: datetime) -> State:
    return State._make(freeze(data), run_id, node, timestamp, None, {})


def _check_json(key: Any, value: Any) -> None:
    try:
        is_same = isinstance(key, str) and json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        is_same = False
    if not is_same:
        raise CheckpointSerializationError(str(key), type(value).__name__, "JSON has no form for it; a saver may")
