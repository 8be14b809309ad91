"""State and CheckpointStore: a saver viewed as one state per run.

    store = CheckpointStore("memory")
    state = State({"documents": []}).set_checkpoint_node("ingest")
    state.checkpoint(store)
    store.load(state.run_id).get("documents")  # ([], True)

A `State` is its own checkpoint: the data, and where they come from. A store keeps the last saved
State of each run id. It also finds the runs of graphs, by the run id in their metadata or by their
thread id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, final
from uuid import uuid4

from graphkit._options import parse_json
from graphkit._plan.events import LEVELS, Event, Observer, call_observer
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import START, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.frozen import FrozenDict, freeze, private_copy
from graphkit._wording import describe_error
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
)
from graphkit.registry import get_checkpoint_store

_SOURCE: Final = "store"
"""The `source` in the metadata of the checkpoints that a CheckpointStore saves."""
_EMPTY: Final = FrozenDict()
_STORED: Final = ("_data", "run_id", "checkpoint_node", "timestamp")
"""The fields of a State that make it equal to another, and that a pickle keeps."""


@final
class State:
    """The data of a run, with their provenance. Immutable: each change returns a new State.

    States share what did not change.

    Attributes:
        run_id: the run; a new UUID for each new State.
        checkpoint_node: the node that finished last; empty before the first.
        timestamp: when that node finished; aware, in UTC.
        observer: receives an event for each change (`state.create`, `state.set`, ...); never
            stored.

    Secrets pass from state to state, but never into a store, a JSON text, a pickle, a repr or an
    event. A program that loads a State sets its secrets again.
    """

    # Not a dataclass: the codec stores one by its fields, and others show them, the secrets among them.
    __slots__ = ("_data", "_secrets", "checkpoint_node", "observer", "run_id", "timestamp")

    _data: FrozenDict
    run_id: str
    checkpoint_node: str
    timestamp: datetime
    observer: Observer | None
    _secrets: Mapping[str, Any]

    def __init__(self, data: Mapping[str, Any] = _EMPTY, observer: Observer | None = None) -> None:
        """Start a run: a new run id, the current time, no node yet."""
        self._fill(
            _data=dict(data),
            run_id=str(uuid4()),
            checkpoint_node="",
            timestamp=datetime.now(UTC),
            observer=observer,
        )
        _emit(self, "state.create")

    def _fill(self, *, _data: Mapping[str, Any], **fields: Any) -> None:
        for name, value in {"observer": None, "_secrets": _EMPTY, "_data": freeze(_data), **fields}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _restore(cls, **fields: Any) -> State:
        """Make a State from its fields, which are known to be valid. Emits no event."""
        state = cls.__new__(cls)
        state._fill(**fields)  # noqa: SLF001 - its own class
        return state

    def _with(self, **changes: Any) -> State:
        """Return a State with some fields changed."""
        fields = {name: getattr(self, name) for name in State.__slots__}
        return State._restore(**{**fields, **changes})

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(f"a State is immutable; call set(), which returns a new one, instead of setting {name!r}")

    __delattr__ = __setattr__

    # Data

    @property
    def data(self) -> FrozenDict:
        """The keys and values, read-only at every depth; application objects are copies."""
        return private_copy(self._data)  # type: ignore[no-any-return]

    def get(self, key: str) -> tuple[Any, bool]:
        """Return the value of a key, and whether the key exists: (None, False) if not."""
        return private_copy(self._data.get(key)), key in self._data

    def set(self, key: str, value: Any) -> State:
        """Set a key to a value, which is frozen."""
        return _emit(self._with(_data={**self._data, key: value}), "state.set", key=key)

    def merge(self, other: State | Mapping[str, Any]) -> State:
        """Merge another state's data and secrets into this one; the other's values win.

        Run id, node, timestamp and observer remain those of this State.
        """
        data: Any = other
        secrets = dict(self._secrets)
        if isinstance(other, State):
            data = other._data  # noqa: SLF001 - its own class
            secrets.update(other._secrets)  # noqa: SLF001 - its own class
        return _emit(self._with(_data={**self._data, **data}, _secrets=secrets), "state.merge", keys=list(data))

    def clone(self) -> State:
        """Return an equal State, independent of this one: O(1)."""
        return _emit(self._with(), "state.clone")

    # Provenance

    def set_checkpoint_node(self, node_id: str) -> State:
        """Record that a node has finished: its id, and a timestamp later than the one before."""
        # Later also if the clock was set back: callers sort by it.
        now = max(datetime.now(UTC), self.timestamp + timedelta(microseconds=1))
        return self._with(checkpoint_node=node_id, timestamp=now)

    def with_observer(self, observer: Observer | None) -> State:
        """Return this State with another observer, or with none."""
        return self._with(observer=observer)

    def checkpoint(self, store: CheckpointStore) -> None:
        """Save this State: `store.save(state)`."""
        store.save(self)

    # Secrets

    def get_secret(self, key: str) -> tuple[Any, bool]:
        """Return the secret of a key, and whether there is one."""
        return self._secrets.get(key), key in self._secrets

    def set_secret(self, key: str, value: Any) -> State:
        """Set a secret. Emits no event."""
        return self._with(_secrets={**self._secrets, key: value})

    def delete_secret(self, key: str) -> State:
        """Remove a secret. Emits no event."""
        secrets = {name: value for name, value in self._secrets.items() if name != key}
        return self._with(_secrets=secrets)

    # JSON

    def to_json(self) -> str:
        """Return the State as JSON: `data`, `run_id`, `checkpoint_node`, `timestamp` (ISO 8601).

        Raises:
            CheckpointSerializationError: JSON would not preserve a value; the message names its
                key.
        """
        for key, value in self._data.items():
            try:
                is_preserved = isinstance(key, str) and json.loads(json.dumps(value, allow_nan=False)) == value
            except (TypeError, ValueError, RecursionError):
                is_preserved = False
            if not is_preserved:
                reason = "JSON has no form for it; a saver may"
                raise CheckpointSerializationError(str(key), type(value).__name__, reason)
        fields = {
            "data": self._data,
            "run_id": self.run_id,
            "checkpoint_node": self.checkpoint_node,
            "timestamp": self.timestamp.isoformat(),
        }
        return json.dumps(fields)

    @staticmethod
    def from_json(text: str | bytes, observer: Observer | None = None) -> State:
        """Read a State from JSON.

        Args:
            text: what `to_json` returned.
            observer: receives the events of the State.

        Raises:
            CheckpointSerializationError: the text is not the JSON of a State.
        """
        try:
            fields = parse_json(text)
            timestamp = datetime.fromisoformat(fields["timestamp"])
            if timestamp.tzinfo is None:
                timestamp = timestamp.replace(tzinfo=UTC)
            return State._restore(
                _data=dict.copy(fields["data"]),  # a TypeError unless it is a dict
                run_id=str.__str__(fields["run_id"]),
                checkpoint_node=str.__str__(fields["checkpoint_node"]),
                timestamp=timestamp,
                observer=observer,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"not a State: {describe_error(error)}"
            raise CheckpointSerializationError("", "JSON", reason, raw=text) from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _STORED)

    def __hash__(self) -> int:
        return hash((self.run_id, self.timestamp))

    def __repr__(self) -> str:
        return f"State({dict(self._data)!r}, run_id={self.run_id!r}, checkpoint_node={self.checkpoint_node!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the State without its observer and its secrets."""
        stored = {name: getattr(self, name) for name in _STORED}
        return partial(State._restore, **stored), ()


@final
class CheckpointStore:
    """Keeps one State per run id in any saver. Ports go-agents-orchestration's interface.

    Any thread may call its methods.

    Attributes:
        saver: keeps the states. The thread of a run is its run id.
        observer: receives the events of the states that this store loads.
    """

    def __init__(self, saver: BaseCheckpointSaver | str, *, observer: Observer | None = None) -> None:
        """View a saver as a store of states.

        Args:
            saver: the saver, or the name of a store in `graphkit.registry`.
            observer: receives the events of the states that this store loads.

        Raises:
            CheckpointerConfigurationError: there is no store of this name, or this is not a saver.
        """
        resolved: object = saver
        if isinstance(saver, str):
            resolved = get_checkpoint_store(saver)
        if not isinstance(resolved, BaseCheckpointSaver):
            raise CheckpointerConfigurationError(f"a CheckpointStore needs a saver or its name, not {saver!r}")
        self.saver = resolved
        self.observer = observer

    def save(self, state: State) -> None:
        """Save a State in place of the one that was saved before under its run id. One put.

        If a graph has run under this id, the State is appended to the history of that run, and the
        history remains. A graph can resume from it, with the run id as `thread_id`: it takes the
        edge that leaves the State's `checkpoint_node`.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the message names its key. The
                store is unchanged.
            CheckpointStorageError: the store refused. It is unchanged.
            ThreadBusyError: a graph is running this thread.
        """
        config = RunnableConfig(state.run_id)
        checkpoint = Checkpoint(
            node_id=state.checkpoint_node or START,
            next_node_id=None,
            state=state.data,
            created_at=state.timestamp,
            metadata={"run_id": state.run_id, "source": _SOURCE},
        )
        # A store has one State for each run, so a State replaces the one before. A checkpoint of a graph is
        # not replaced: its history would lose the state that a fork or a rollback needs.
        with self.saver.run_lock(config):
            latest = self.saver.get(config)
            if latest is not None and latest.metadata.get("source") == _SOURCE:
                config = config.with_check_point_id(latest.id)  # a put to an id replaces that checkpoint
            self.saver.put(config, checkpoint)

    def load(self, run_id: str) -> State:
        """Load the State of a run as it was last saved, or the latest checkpoint of a graph's run.

        Looks for a thread of this name first; for other runs it reads the metadata of all threads.

        Raises:
            CheckpointNotFoundError: there is no such run; the message names it.
            CheckpointCorruptionError: its bytes are damaged.
        """
        config = self._find_run(run_id)
        checkpoint = None if config is None else self.saver.get(config)
        if checkpoint is None:
            raise CheckpointNotFoundError(run_id, "a checkpoint", "list() names the runs that have one")
        return State._restore(  # noqa: SLF001 - the other class of this module
            _data=checkpoint.state,
            run_id=checkpoint.metadata.get("run_id", run_id),
            checkpoint_node="" if checkpoint.node_id == START else checkpoint.node_id,
            timestamp=checkpoint.created_at,
            observer=self.observer,
        )

    def delete(self, run_id: str) -> None:
        """Delete a run with its thread. Deleting a run that does not exist is not an error.

        Raises:
            CheckpointConflictError: other runs share the thread. Nothing was changed.
            ThreadBusyError: the thread is running.
        """
        config = self._find_run(run_id)
        if config is None:
            return
        if config.thread != run_id:
            others = {*map(_run_of, self.saver.history(RunnableConfig(config.thread)))} - {run_id}
            if others:
                raise CheckpointConflictError(
                    config.thread, f"it holds {len(others)} other runs; saver.delete deletes them all"
                )
        self.saver.delete(config.thread)

    def list(self) -> list[str]:
        """Return the ids of all runs, in no particular order. Reads metadata, no states.

        Runs in a thread that is damaged are left out; the saver logs a warning.

        Raises:
            CheckpointerConfigurationError: the saver cannot list its threads.
        """
        infos = [info for info in self.saver.search({}) if not info.checkpoint_ns]
        return [*dict.fromkeys(map(_run_of, infos))]

    def _find_run(self, run_id: str) -> RunnableConfig | None:
        """Return the address of the latest checkpoint of a run, or None."""
        # States are stored in a thread of the run's name. A graph's run has an id of its own, and its
        # thread may hold many runs: those are found by their metadata.
        config = RunnableConfig(run_id)
        try:
            is_thread = self.saver.get(config) is not None
        except CheckpointCorruptionError:  # `load` raises it again; `delete` deletes a damaged thread
            is_thread = True
        if is_thread:
            return config
        with suppress(CheckpointerConfigurationError):  # the saver cannot list its threads
            for info in self.saver.search({"run_id": run_id}):
                if not info.checkpoint_ns:
                    return RunnableConfig(info.thread_id, info.id)
        return None


def _run_of(info: CheckpointInfo) -> str:
    return info.metadata.get("run_id", info.thread_id)  # type: ignore[no-any-return]


def _emit(state: State, type_: str, **data: Any) -> State:
    """Send an event about a State to its observer, if it has one; return the State."""
    if state.observer is None:
        return state
    event = Event(
        type=type_,
        level=LEVELS[type_],
        thread_id=state.run_id,
        node_id=state.checkpoint_node or None,
        checkpoint_id=None,
        timestamp=datetime.now(UTC),
        data=FrozenDict({"run_id": state.run_id, **data}),
    )
    call_observer(state.observer, event)
    return state
