"""Checkpoint, one saved step, and Tag, a released history. Ports langgraph4j's classes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from os import urandom
from time import time_ns
from typing import Any, Final, Self, final

from graphkit._public_names import JavaBuilder, JavaNames
from graphkit._values.channels import Channel
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import AgentState, Changes, merge
from graphkit.errors import CheckpointSerializationError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EMPTY: Final = FrozenDict()


def to_datetime(microseconds: int) -> datetime:
    """Return the time that is so many microseconds after 1970, UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(time: datetime) -> int:
    """Return how many microseconds after 1970 an aware time is."""
    return (time - _EPOCH) // _MICROSECOND


@final
class Checkpoint(JavaNames):
    """The state after a node, and the node that runs next. Immutable.

    Attributes:
        id: unique within the thread.
        node_id: the node that has just finished (START for the input).
        next_node_id: the node that will run next (END when the run is over; None when a human's
            answer decides it).
        parent_id: the checkpoint from which this one was made; None for the first.
        metadata: plain data that is stored with the state: the engine's keys (`run_id`, `step`,
            `source`, `resumed_at`) and the caller's.
        created_us: when it was created, in microseconds since 1970, UTC; for savers. `created_at` is a datetime.
        changes: what changed since the state of the parent; None if that is not known. For savers: the engine sets it,
            a stored checkpoint does not have it.
        metadata_base: metadata from which these differ only in the number `step`, as those of the step before; None if
            that is not known. For savers, which compare it by identity; set as `changes` is.
    """

    id: str
    node_id: str
    next_node_id: str | None
    parent_id: str | None
    metadata: FrozenDict
    created_us: int
    changes: Changes | None
    metadata_base: FrozenDict | None = None
    _state: FrozenDict | None
    _load: Callable[[], FrozenDict] | None

    def __init__(
        self,
        *,
        node_id: str,
        next_node_id: str | None,
        state: Mapping[str, Any],
        id: str | None = None,
        parent_id: str | None = None,
        created_at: datetime | None = None,
        metadata: Mapping[str, Any] = _EMPTY,
    ) -> None:
        """Make a checkpoint and freeze its state: O(state) unless it is frozen already.

        Raises:
            TypeError: a field is missing.
            CheckpointSerializationError: a field has the wrong type, or a value in the state or the
                metadata contains itself or is nested too deeply; `path` names it. This error is a
                TypeError, too.
        """
        _require(node_id, str, "node_id")
        _require(next_node_id, (str, type(None)), "next_node_id")
        _require(state, Mapping, "state")
        _require(id, (str, type(None)), "id")
        _require(parent_id, (str, type(None)), "parent_id")
        _require(created_at, (datetime, type(None)), "created_at")
        _require(metadata, Mapping, "metadata")
        for key in metadata:
            _require(key, str, "metadata key")
        frozen_metadata = _freeze_mapping(metadata, "metadata.")
        if created_at is None:
            created_us = time_ns() // 1000
        else:
            try:
                created_us = to_microseconds(created_at.astimezone(UTC))
            except (OverflowError, ValueError) as error:
                reason = "its year in UTC is out of range"
                raise CheckpointSerializationError("created_at", "datetime", reason) from error
        if isinstance(state, FrozenDict):
            frozen_state = state
        elif isinstance(state, AgentState):
            frozen_state = state._data  # noqa: SLF001 - state.data would copy private values
        else:
            frozen_state = _freeze_mapping(state, "")
        # One update of __dict__: setting each field through object.__setattr__ takes three times as
        # long, and a run makes a checkpoint at every step.
        self.__dict__.update(
            id=id or generate_id(),
            node_id=node_id,
            next_node_id=next_node_id,
            parent_id=parent_id or None,
            metadata=frozen_metadata,
            created_us=created_us,
            _state=frozen_state,
            changes=None,
            _load=None,
        )

    @classmethod
    def from_stored(
        cls,
        *,
        id: str,
        node_id: str,
        next_node_id: str | None,
        parent_id: str | None,
        created_us: int,
        metadata: FrozenDict,
        state: FrozenDict | None,
        changes: Changes | None = None,
        metadata_base: FrozenDict | None = None,
        load: Callable[[], FrozenDict] | None = None,
    ) -> Checkpoint:
        """Make a checkpoint from fields that are known to be valid and frozen. Checks nothing.

        For savers, which call this for each checkpoint that they read.

        Args:
            id: the id of the checkpoint.
            node_id: the node that has finished.
            next_node_id: the node that will run next.
            parent_id: the id of the parent; None for the first checkpoint.
            created_us: when it was created, in microseconds since 1970, UTC.
            metadata: the metadata, frozen.
            state: the state, frozen; None if `load` returns it on first use.
            changes: what changed since the state of the parent, if known.
            metadata_base: metadata from which these differ only in `step`, if known.
            load: returns the state; called at most once, and only if `state` is None.
        """
        # One by one: an update of `__dict__` makes a dict of its arguments first, which doubles the
        # time and the memory.
        checkpoint = object.__new__(cls)
        fields = checkpoint.__dict__
        fields["id"] = id
        fields["node_id"] = node_id
        fields["next_node_id"] = next_node_id
        fields["parent_id"] = parent_id
        fields["metadata"] = metadata
        fields["created_us"] = created_us
        fields["_state"] = state
        fields["changes"] = changes
        fields["metadata_base"] = metadata_base
        fields["_load"] = load
        return checkpoint

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Checkpoint is immutable; make a new one instead of setting {name!r}")

    __delattr__ = __setattr__  # type: ignore[assignment]

    @property
    def state(self) -> FrozenDict:
        """The state, read-only. Decoded on first use if the checkpoint came from a listing."""
        if self._state is None:
            assert self._load is not None
            self.__dict__.update(_state=self._load(), _load=None)
        return self._state  # type: ignore[return-value]

    @property
    def created_at(self) -> datetime:
        """When the checkpoint was made, in UTC, to the microsecond.

        Informative: a history is in the order in which it was written.
        """
        return to_datetime(self.created_us)

    def update_state(self, values: Mapping[str, Any], channels: Mapping[str, Channel]) -> Checkpoint:
        """Merge values into the state through the channels; keep the id, as in Java."""
        state, _ = merge(self.state, values, channels)
        return self.with_state(state)

    def with_state(self, state: FrozenDict) -> Checkpoint:
        """Return the same checkpoint with another state, which must be frozen. The copy has no `changes`."""
        return replace_fields(self, _state=state, changes=None, _load=None)

    def with_metadata(self, metadata: FrozenDict) -> Checkpoint:
        """Return the same checkpoint with other metadata, which must be frozen."""
        return replace_fields(self, metadata=metadata)

    @staticmethod
    def copy_of(checkpoint: Checkpoint) -> Checkpoint:
        """Return a copy with a new id."""
        return Checkpoint.builder(checkpoint).id(generate_id()).build()

    @staticmethod
    def builder(checkpoint: Checkpoint | None = None) -> CheckpointBuilder:
        """Return a builder, as in Java; it starts from `checkpoint` if there is one."""
        fields: dict[str, Any] = {}
        if checkpoint is not None:
            fields = dict(zip(_FIELDS, _get_fields(checkpoint), strict=True))
            del fields["created_us"]
            fields["created_at"] = checkpoint.created_at
        return CheckpointBuilder(Checkpoint, fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Checkpoint):
            return NotImplemented
        return _get_fields(self) == _get_fields(other)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Checkpoint({self.node_id} -> {self.next_node_id}, id={self.id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the state itself, not the function that loads it."""
        return Checkpoint._unpickle, (dict(zip(_FIELDS, _get_fields(self), strict=True)),)

    @classmethod
    def _unpickle(cls, fields: dict[str, Any]) -> Checkpoint:
        frozen = {"metadata": freeze(fields["metadata"]), "state": freeze(fields["state"])}
        return cls.from_stored(**{**fields, **frozen})

    # Java names
    updateState = update_state
    copyOf = copy_of
    fromStored = from_stored
    withState = with_state
    withMetadata = with_metadata

    def getId(self) -> str:
        return self.id

    def getNodeId(self) -> str:
        return self.node_id

    def getNextNodeId(self) -> str | None:
        return self.next_node_id

    def getState(self) -> FrozenDict:
        return self.state


_FIELDS: Final = ("id", "node_id", "next_node_id", "parent_id", "created_us", "metadata", "state")
"""What a checkpoint is: what is compared, pickled and copied by a builder."""
_get_fields: Final[Callable[[Checkpoint], tuple[Any, ...]]] = attrgetter(*_FIELDS)


def replace_fields(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """Return a copy with other values of some attributes, which must be valid and frozen.

    The copy has no `metadata_base`: that belongs to the checkpoint which a run has just made.
    """
    copy = object.__new__(Checkpoint)
    fields = copy.__dict__
    fields.update(checkpoint.__dict__)
    fields.update(changes)
    fields["metadata_base"] = None
    return copy


@final
class CheckpointBuilder(JavaBuilder[Checkpoint]):
    """Java's builder for a Checkpoint; Python callers pass keywords instead."""

    def id(self, id: str) -> Self:
        return self._with(id=id)

    def nodeId(self, node_id: str) -> Self:
        return self._with(node_id=node_id)

    def nextNodeId(self, next_node_id: str | None) -> Self:
        return self._with(next_node_id=next_node_id)

    def parentId(self, parent_id: str | None) -> Self:
        return self._with(parent_id=parent_id)

    def createdAt(self, created_at: datetime) -> Self:
        return self._with(created_at=created_at)

    def metadata(self, metadata: Mapping[str, Any]) -> Self:
        return self._with(metadata=metadata)

    def state(self, state: AgentState | Mapping[str, Any]) -> Self:
        return self._with(state=state)


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Tag(JavaNames):
    """A released history: the checkpoints of the thread, newest first."""

    thread_id: str
    checkpoints: Sequence[Checkpoint]
    version: int | None = None
    """The number of the version, from savers that keep versions."""

    def last_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint; None if the history was empty."""
        return self.checkpoints[0] if self.checkpoints else None

    # Java names
    lastCheckpoint = last_checkpoint

    def threadId(self) -> str:
        return self.thread_id


def _freeze_mapping(values: Mapping[str, Any], path: str) -> FrozenDict:
    try:
        frozen: FrozenDict = freeze(dict(values))
    except ValueError:
        for key, value in values.items():
            try:
                freeze(value)
            except ValueError as error:
                raise CheckpointSerializationError(f"{path}{key}", type(value).__name__, str(error)) from error
        raise
    return frozen


def _require(value: object, kind: type | tuple[type, ...], name: str) -> None:
    if isinstance(value, kind):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join("None" if cls is type(None) else cls.__name__ for cls in kinds)
    raise CheckpointSerializationError(name, type(value).__name__, f"a checkpoint's {name} must be a {expected}")


# Ids


def generate_id() -> str:
    """Return a new id in the layout of UUID version 7: milliseconds, then 72 random bits.

    The ids of one machine sort roughly by time, which helps people who read logs. graphkit never
    derives an order from them.
    """
    return make_id(time_ns() // 1_000_000)


def make_id(milliseconds: int) -> str:
    """Return a new id, as `generate_id`, for a time in milliseconds since 1970."""
    try:
        ending = _ENDINGS.pop()
    except IndexError:
        # Ask the system for the random bits of many ids at once: formatting each would take three times as long.
        text = bytearray(urandom(_ENDINGS_AT_ONCE * _ENDING_WIDTH // 2).hex(), "ascii")
        for at, character in _FIXED_CHARACTERS.items():
            text[at::_ENDING_WIDTH] = character * _ENDINGS_AT_ONCE
        endings = text.decode("ascii").split()
        ending = endings.pop()
        _ENDINGS.extend(endings)
    digits = (milliseconds & _TIME_BITS).to_bytes(6).hex()
    return f"{digits[:8]}-{digits[8:]}-{ending}"


_TIME_BITS: Final = (1 << 48) - 1
"""What an id has of a time. The clock of an application may be before 1970."""
_ENDINGS: Final[list[str]] = []
"""The random parts of ids to come: see docs/adr/0066-random-bits-from-a-pool.md. `pop` gives
each to one thread of execution only; the child of a fork forgets them."""
_ENDINGS_AT_ONCE: Final = 64
_ENDING_WIDTH: Final = 24
"""Characters of "7xxx-8xxx-xxxxxxxxxxxx", which is the random part of an id, and two spaces."""
_FIXED_CHARACTERS: Final = {0: b"7", 4: b"-", 5: b"8", 9: b"-", 22: b" ", 23: b" "}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ENDINGS.clear)
