"""AgentState, and how an update merges into a state.

A state is immutable: a FrozenDict whose values are frozen as they enter, so every later step shares them and a merge
costs what the update costs. A merge also says what it changed, which is all that a saver has to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from graphkit._java_names import JavaNames
from graphkit._values.channels import REMOVE, RESET, Channel, MessagesChannel
from graphkit._values.frozen import (
    CONTAINERS,
    PRIVATE,
    FrozenDict,
    FrozenList,
    check_size,
    freeze,
    freeze_grown,
    kind_of,
    private_copy,
)

SET: Final = -1
"""In `Changes.ops`: the key has a new value."""
REMOVED: Final = -2
"""In `Changes.ops`: the key is gone."""


class Changes:
    """What turned one state into another; keys that are not named are unchanged.

    Attributes:
        base: the state the changes apply to; identity counts, not equality.
        ops: per changed key SET, REMOVED, or n >= 0: the list's first n elements are the old ones, the rest is new.
    """

    __slots__ = ("base", "ops")

    def __init__(self, base: FrozenDict, ops: dict[str, int]) -> None:
        self.base = base
        self.ops = ops

    def compose(self, ops: Mapping[str, int]) -> Changes:
        """These changes and, after them, those of a later merge."""
        if not self.ops:
            return Changes(self.base, dict(ops))
        mine = dict(self.ops)
        for key, op in ops.items():
            if op == REMOVED and key not in self.base:
                mine.pop(key, None)  # it came and went
            elif op < 0 or key not in mine:
                mine[key] = op
            # Else growth upon growth is growth from the first length; growth upon a new value is that new value.
        return Changes(self.base, mine)


def merge(
    data: FrozenDict, update: Mapping[str, Any] | None, channels: Mapping[str, Channel]
) -> tuple[FrozenDict, dict[str, int]]:
    """Merge an update into a state; returns the new state and what changed (see `Changes.ops`).

    A key with a channel goes through it; None and RESET give it its default again. For a key without one, None is a
    value like any other. REMOVE removes a key, and so does RESET where there is no default. Cost: the update, plus a
    shallow copy of the keys.

    Raises:
        TypeError: the update is not a mapping of strings.
        ValueError: a reducer failed, or a value contains itself.
    """
    if not update:
        return data, {}
    new = FrozenDict(data)
    new.kind = data.kind  # known there, and counted on by _put; found out anew it would cost O(keys)
    ops: dict[str, int] = {}
    for key, value in update.items():
        if key.__class__ is not str:
            raise TypeError(f"a state's keys are strings, not {key!r}")
        channel = channels.get(key)
        old = data.get(key)
        plain = REMOVE if value is RESET else value
        merged = plain if channel is None else _through(channel, key, old, value)
        if merged is REMOVE:
            if key in new:
                dict.__delitem__(new, key)
                ops[key] = REMOVED
            continue
        frozen, op = _enter(old, merged)
        for container in (frozen, old):
            if type(container) in CONTAINERS:
                check_size(container)
        if frozen is old and (frozen is not None or key in data):
            continue
        new._set_frozen(key, frozen)  # noqa: SLF001 - the one writer of a state
        ops[key] = op
    return (new, ops) if ops else (data, ops)


def _through(channel: Channel, key: str, old: Any, value: Any) -> Any:
    if value is REMOVE:
        return REMOVE
    try:
        merged = channel.initial() if value is None or value is RESET else channel.update(key, old, value)
    except Exception as error:
        raise ValueError(f"the channel of {key!r} cannot take it: {type(error).__name__}: {error}") from error
    return REMOVE if merged is None else merged


def _enter(old: Any, value: Any) -> tuple[Any, int]:
    """Freeze a value that enters the state, and see whether it is the old list grown."""
    if value.__class__ is FrozenList:
        base, value.base = value.base, None
        if base is None or base is not old:
            return value, SET
        return (value, len(old)) if len(value) > len(old) else (old, SET)
    if value.__class__ is list and old.__class__ is FrozenList and old:
        frozen, appended = freeze_grown(old, value)
        return frozen, len(old) if appended else SET
    return freeze(value), SET


class AgentState(JavaNames, Mapping[str, Any]):
    """A read-only state, a Mapping. Subclass it to name a schema and to add accessors.

    Lists, dicts and sets inside are read-only subclasses of the builtins: `list(x)` gives a copy to change. Mutable
    application objects (a dataclass, a pydantic model) are handed out as private copies.
    """

    SCHEMA: ClassVar[Mapping[str, Channel]] = {}
    """The channels of a subclass that serves as a graph's schema."""

    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """Make a state of a mapping, which is frozen: O(size) unless it is frozen already."""
        self._data: FrozenDict = data if data.__class__ is FrozenDict else freeze(dict(data or {}))

    @property
    def data(self) -> FrozenDict:
        """The plain, read-only mapping."""
        return private_copy(self._data) if self._data.kind == PRIVATE else self._data

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default if it is absent or None."""
        value = self.get(key)
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        value = self._data[key]
        if self._data.kind == PRIVATE and kind_of(value) == PRIVATE:
            return self._own(key, value)
        return value

    def _own(self, key: str, value: Any) -> Any:
        # One copy per state object, so that a node sees its own changes and nobody else does.
        copies = self.__dict__.setdefault("_copies", {})
        if key not in copies:
            copies[key] = private_copy(value)
        return copies[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        return key in self._data

    def __eq__(self, other: object) -> bool:
        # Not by items(), get() and the like: a model may have fields of these names.
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self._data)!r})"

    def __setitem__(self, key: str, value: Any) -> None:
        raise TypeError(f"a state is read-only: return {{{key!r}: ...}} from the node instead of assigning it")

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"a state is read-only: return {{{key!r}: REMOVE}} from the node instead of deleting it")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as its class and its data."""
        return type(self), (dict(self._data),)

    @staticmethod
    def update_state(
        state: AgentState | Mapping[str, Any],
        partial: Mapping[str, Any] | None,
        channels: Mapping[str, Channel],
    ) -> Mapping[str, Any]:
        """The state's mapping with an update merged in, as a run would; the state itself if there is nothing to do."""
        data = state._data if isinstance(state, AgentState) else freeze(dict(state))  # noqa: SLF001 - its own class
        return merge(data, partial, channels)[0]

    # Java names
    updateState = update_state


class MessagesState(AgentState):
    """A state with a list of messages that grows.

    A message with an id takes the place of the earlier message with that id; a message without one is always appended.
    """

    SCHEMA: ClassVar[Mapping[str, Channel]] = {"messages": MessagesChannel()}

    def messages(self) -> list[Any]:
        """The messages, oldest first.

        Raises:
            KeyError: there are none yet.
        """
        if "messages" not in self:
            raise KeyError("messages not found")
        return self["messages"]  # type: ignore[no-any-return]

    def last_message(self) -> Any | None:
        """The newest message, or None."""
        return self.last_minus(0)

    def last_minus(self, n: int) -> Any | None:
        """The message n before the newest, or None if there is none."""
        messages = self.value("messages", ())
        return messages[-1 - n] if 0 <= n < len(messages) else None

    # Java names
    lastMessage = last_message
    lastMinus = last_minus
