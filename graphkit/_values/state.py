"""AgentState, and how an update merges into a state.

A state is immutable: a FrozenDict whose values are frozen as they enter it. All later steps share
them, and the cost of a merge is the cost of the update. A merge also returns what it changed, which
is all that a saver has to write.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from graphkit._public_names import JavaNames
from graphkit._values.channels import REMOVE, RESET, Channel, MessagesChannel, RemoveIdentifier, ReplaceAllWith
from graphkit._values.frozen import (
    CONTAINERS,
    NATIVE_SCALARS,
    PRIVATE,
    FrozenDict,
    FrozenList,
    check_size,
    freeze,
    freeze_grown,
    kind_of,
    private_copy,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from graphkit._records.output import WaitingInterrupt

    StateT = TypeVar("StateT", default=Any)
else:
    from typing import TypeVar

    StateT = TypeVar("StateT")  # a default is news of Python 3.13

SET: Final = -1
"""In `Changes.ops`: the key has a new value."""
REMOVED: Final = -2
"""In `Changes.ops`: the key was removed."""
_LIST_MARKERS: Final = (RemoveIdentifier, ReplaceAllWith)
_NEEDS_CHANNEL: Final = "{} is for a key with Channels.appender(list); declare that channel, or return the new value"


class Changes:
    """What changed from one state to another. Keys that it does not name are unchanged.

    Attributes:
        base: the state to which the changes apply; by identity, not equality.
        ops: for each changed key SET, REMOVED, or n >= 0: the first n elements of the list are the
            old list, and the others are new.
    """

    __slots__ = ("base", "ops")

    def __init__(self, base: FrozenDict, ops: dict[str, int]) -> None:
        self.base = base
        self.ops = ops

    def compose(self, ops: Mapping[str, int]) -> Changes:
        """Combine these changes with those of a later merge."""
        if not self.ops:
            return Changes(self.base, dict(ops))
        combined = dict(self.ops)
        for key, op in ops.items():
            if op == REMOVED and key not in self.base:
                combined.pop(key, None)  # set after the base, and removed again
            elif op < 0 or key not in combined:
                combined[key] = op
            # Else the key keeps its op: a list that grows twice has grown from its first length,
            # and a new value that grows is still a new value.
        return Changes(self.base, combined)


def merge(
    data: FrozenDict, update: Mapping[str, Any] | None, channels: Mapping[str, Channel]
) -> tuple[FrozenDict, dict[str, int]]:
    """Merge an update into a state; return the new state and what changed (see `Changes.ops`).

    The channel of a key merges its value; None and RESET restore the channel's default. For a key
    without a channel, None is a value like any other. REMOVE removes a key, and so does RESET if
    there is no default.

    Cost: the update, and a shallow copy of the keys.

    Raises:
        TypeError: the update is not a mapping of strings.
        ValueError: a reducer failed, a value contains itself, or the channel of a key does not
            understand a RemoveIdentifier or ReplaceAllWith.
    """
    if not update:
        return data, {}
    new = FrozenDict(data)
    new.kind = data.kind  # computing it again would cost O(keys)
    ops: dict[str, int] = {}
    for key, value in update.items():
        if key.__class__ is not str:
            raise TypeError(f"a state's keys are strings, not {key!r}")
        channel = channels.get(key)
        old = data.get(key)
        if channel is not None:
            merged = _merge_through(channel, key, old, value)
        else:
            merged = REMOVE if value is RESET else value
        if merged is REMOVE:
            if key in new:
                dict.__delitem__(new, key)
                ops[key] = REMOVED
            continue
        op = SET
        # A scalar in the place of a scalar needs none of this, which is five sixths of the cost of a small update.
        if merged.__class__ not in NATIVE_SCALARS or old.__class__ not in NATIVE_SCALARS:
            merged, op = _freeze_entering(key, old, merged)
            for container in (merged, old):
                if type(container) in CONTAINERS:
                    check_size(container)
            new.kind = max(new.kind, kind_of(merged))
        if merged is old and (merged is not None or key in data):
            continue
        dict.__setitem__(new, key, merged)
        ops[key] = op
    return (new, ops) if ops else (data, ops)


def _merge_through(channel: Channel, key: str, old: Any, value: Any) -> Any:
    if value is REMOVE:
        return REMOVE
    try:
        is_reset = value is None or value is RESET
        merged = channel.initial() if is_reset else channel.update(key, old, value)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if channel.reducer is not None and isinstance(value, _LIST_MARKERS):
            reason = _NEEDS_CHANNEL.format(type(value).__name__)
        raise ValueError(f"the channel of {key!r} cannot merge the update: {reason}") from error
    if merged is None:
        return REMOVE
    return merged


def _freeze_entering(key: str, old: Any, value: Any) -> tuple[Any, int]:
    """Freeze a value that enters the state; return it and its op (see `Changes.ops`)."""
    if value.__class__ is FrozenList:
        base = value.base
        value.base = None
        if base is None or base is not old:
            return value, SET
        if len(value) > len(old):
            return value, len(old)
        return old, SET
    if value.__class__ is list and old.__class__ is FrozenList and old:
        frozen, is_appended = freeze_grown(old, value)
        if is_appended:
            return frozen, len(old)
        return frozen, SET
    frozen = freeze(value)
    if type(frozen) not in CONTAINERS and isinstance(frozen, _LIST_MARKERS):
        raise ValueError(f"the key {key!r} cannot merge the update: {_NEEDS_CHANNEL.format(type(value).__name__)}")
    return frozen, SET


class AgentState(JavaNames, Mapping[str, Any]):
    """A read-only state, a Mapping. Subclass it to define a schema and to add accessors.

    Its lists, dicts and sets are read-only subclasses of the builtins: `list(x)` returns a copy
    that you can change. Readers receive private copies of mutable application objects (a dataclass,
    a pydantic model).
    """

    SCHEMA: ClassVar[Mapping[str, Channel]] = {}
    """The channels of a subclass that is the schema of a graph."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """Make a state from a mapping and freeze it: O(size) unless it is frozen already."""
        self._data: FrozenDict = data if data.__class__ is FrozenDict else freeze(dict(data or {}))

    @property
    def interrupts(self) -> tuple[WaitingInterrupt, ...]:
        """What the run that returned this state waits for; empty if it is over.

        Nodes, streams and stored states have none. A schema may have a key of this name: `state["interrupts"]`.
        """
        waiting: tuple[WaitingInterrupt, ...] = self.__dict__.get("_interrupts", ())
        return waiting

    @property
    def data(self) -> FrozenDict:
        """The plain, read-only mapping."""
        if self._data.kind != PRIVATE:
            return self._data
        return private_copy(self._data)  # type: ignore[no-any-return]

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default if it is absent or None."""
        value = self.get(key)
        if value is None:
            return default
        return value

    def __getitem__(self, key: str) -> Any:
        value = self._data[key]
        if self._data.kind == PRIVATE and kind_of(value) == PRIVATE:
            # One copy per state object: a node sees its own changes, and no other reader does.
            copies = self.__dict__.setdefault("_copies", {})
            if key not in copies:
                copies[key] = private_copy(value)
            return copies[key]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        # Not by items() or get(): a model may have fields of these names.
        return dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        waiting = f", interrupts={self.interrupts!r}" if "_interrupts" in self.__dict__ else ""
        return f"{type(self).__name__}({dict(self._data)!r}{waiting})"

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(f"a state is read-only: return {{{key!r}: ...}} from the node instead of assigning it")

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"a state is read-only: return {{{key!r}: REMOVE}} from the node instead of deleting it")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the class and the data."""
        return type(self), (dict(self._data),)

    @staticmethod
    def update_state(
        state: AgentState | Mapping[str, Any],
        partial: Mapping[str, Any] | None,
        channels: Mapping[str, Channel],
    ) -> Mapping[str, Any]:
        """Merge an update as a run does; return the new mapping, or the old one if nothing changes."""
        data = state._data if isinstance(state, AgentState) else freeze(dict(state))  # noqa: SLF001 - its own class
        merged, _ = merge(data, partial, channels)
        return merged

    # Java names
    updateState = update_state


class MessagesState(AgentState):
    """A state with a growing list of messages.

    A message with an id replaces the earlier message with that id; a message without an id is
    appended.
    """

    SCHEMA: ClassVar[Mapping[str, Channel]] = {"messages": MessagesChannel()}

    def messages(self) -> list[Any]:
        """Return the messages, oldest first.

        Raises:
            KeyError: the state has no messages yet.
        """
        if "messages" not in self:
            raise KeyError("messages not found")
        return self["messages"]  # type: ignore[no-any-return]

    def last_message(self) -> Any | None:
        """Return the newest message, or None."""
        return self.last_minus(0)

    def last_minus(self, n: int) -> Any | None:
        """Return the message n before the newest, or None if there is none."""
        messages = self.value("messages", ())
        if not 0 <= n < len(messages):
            return None
        return messages[-1 - n]

    # Java names
    lastMessage = last_message
    lastMinus = last_minus


@dataclasses.dataclass(frozen=True, slots=True)
class MapFailure:
    """An item of a map whose action has failed; see `add_map_node(on_error="collect")`.

    Every saver can store it: it need not be registered.
    """

    index: int
    """The number of the item, from 0."""
    item: Any
    error: str
    """The type and the message of the error."""


class StateSerializer(abc.ABC):
    """Turns a state into bytes and back, in place of graphkit's own codec."""

    transient_attributes: frozenset[str] = frozenset()
    """The keys that are not stored."""

    def declare_transient_attributes(self, *keys: str) -> None:
        """Keep the values of some keys out of the stored state; as `Channels.transient()` for each of them.

        Graphs that are built with this serializer from now on do so. A run has the values for itself.
        """
        self.transient_attributes |= frozenset(keys)

    # Java names
    declareTransientAttributes = declare_transient_attributes

    @abc.abstractmethod
    def dumps(self, data: Mapping[str, Any]) -> bytes:
        """Return the state as bytes.

        Equal states should give equal bytes. Otherwise every checkpoint takes the full size of its
        state.
        """

    @abc.abstractmethod
    def loads(self, data: bytes) -> Mapping[str, Any]:
        """Return the state that `dumps` turned into these bytes."""
