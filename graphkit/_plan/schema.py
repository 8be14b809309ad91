"""StateSchema: the rules of a graph's state: its channels, its state class, the application types in it."""

from __future__ import annotations

import collections.abc as abstract
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeGuard

from graphkit._saver.base import StateSerializer
from graphkit._values.channels import Channel
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._values.state import AgentState, merge
from graphkit.errors import GraphStateError

if TYPE_CHECKING:
    from pydantic import BaseModel

_EMPTY: Final = FrozenDict()


class StateSchema:
    """The rules of a graph's state.

    Attributes:
        channels: by key; a key without one is simply replaced.
        state_factory: makes the state object that nodes see.
        keys: the keys that the schema names.
        types: the application types that stand in its annotations; a graph registers them with its saver.
        serializer: the serializer that was given as the schema, if one was.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        state_factory: Callable[[Any], AgentState] = AgentState,
        *,
        keys: Iterable[str] = (),
        types: Iterable[type] = (),
        serializer: StateSerializer | None = None,
    ) -> None:
        self.channels = dict(channels)
        self.state_factory = state_factory
        self.keys = tuple(dict.fromkeys((*channels, *keys)))
        self.types = tuple(types)
        self.serializer = serializer
        self.transient = frozenset(key for key, channel in self.channels.items() if channel.is_transient)
        """The keys that live in memory only."""

    def initial_state(self) -> FrozenDict:
        """The state of a thread that has none: the channels' defaults."""
        defaults = {
            key: channel.initial()
            for key, channel in self.channels.items()
            if channel.default is not None and key not in self.transient
        }
        return merge(_EMPTY, {key: value for key, value in defaults.items() if value is not None}, {})[0]

    def merge_input(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run."""
        return self.merge(data, update)

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update; see `graphkit._values.state.merge`."""
        return merge(data, update, self.channels)

    def to_mapping(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """An update as a mapping of the keys that it names."""
        return update

    def normalize_update(self, update: Mapping[str, Any], data: FrozenDict) -> Mapping[str, Any]:  # noqa: ARG002 - for schemas that validate
        """An update as it was merged into what is now `data`: what another graph may merge again."""
        return update

    def adopt(self, data: Mapping[str, Any]) -> FrozenDict:
        """The state of another graph as this one's first: as it is, with this schema's defaults for what it lacks."""
        initial = self.initial_state()
        return merge(initial, data, {})[0] if initial else freeze(dict(data))

    def merge_transient(self, private: FrozenDict, update: Mapping[str, Any]) -> FrozenDict:
        """Merge an update of transient keys; what has no value yet gets its default."""
        missing = {key: self.channels[key].initial() for key in self.transient if key not in private}
        begun = merge(private, {key: value for key, value in missing.items() if value is not None}, {})[0]
        return merge(begun, update, self.channels)[0]


class TypedChannel(Channel):
    """A reducer from an annotation: its first old value is the empty value of the type, if that has one."""

    def __init__(self, reducer: Any, annotation: Any) -> None:
        super().__init__(reducer)
        self._empty = _empty_of(annotation)

    def update(self, key: str, old: Any, new: Any) -> Any:
        """Merge; without an old value, a default and an empty value, the new value is taken as it is."""
        if old is None and self.default is None:
            if self._empty is None:
                return new
            old = self._empty()
        return super().update(key, old, new)


def read_channels(hints: Mapping[str, Any]) -> dict[str, Channel]:
    """The channels that `Annotated[T, reducer]` (or a Channel in the reducer's place) asks for."""
    found = {key: _channel_of(key, hint) for key, hint in hints.items()}
    return {key: channel for key, channel in found.items() if channel is not None}


def find_application_types(annotations: Iterable[Any]) -> Iterator[type]:
    """The Enum, dataclass, NamedTuple and pydantic classes that stand in annotations, however deep."""
    for annotation in annotations:
        if isinstance(annotation, type) and typing.get_origin(annotation) is None:
            if _is_application_type(annotation):
                yield annotation
        else:
            yield from find_application_types(typing.get_args(annotation))


def is_pydantic_model(cls: type) -> TypeGuard[type[BaseModel]]:
    """Whether a class is a pydantic model, without importing pydantic to find out."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _is_application_type(cls: type) -> bool:
    from enum import Enum

    is_named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return issubclass(cls, Enum) or hasattr(cls, "__dataclass_fields__") or is_named_tuple or is_pydantic_model(cls)


def _channel_of(key: str, hint: Any) -> Channel | None:
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is not Annotated:
        return None
    annotation, *extras = typing.get_args(hint)
    return read_channel(key, annotation, extras)


def read_channel(key: str, annotation: Any, extras: Iterable[Any]) -> Channel | None:
    """The channel among an annotation's extras: a Channel, or the last callable as a reducer."""
    channel: Channel | None = None
    for extra in extras:
        if isinstance(extra, Channel):
            channel = extra
        elif callable(extra) and not isinstance(extra, type):
            _check_reducer(key, extra)
            channel = TypedChannel(extra, annotation)
    return channel


def _check_reducer(key: str, reducer: Callable[..., Any]) -> None:
    import inspect

    try:
        inspect.signature(reducer).bind(None, None)
    except ValueError:  # a builtin that tells nothing, such as max
        return
    except TypeError:
        raise GraphStateError(f"the reducer of {key!r} must take two values, the old and the new one") from None


_EMPTIES: Final[Mapping[Any, Callable[[], Any]]] = {
    **{kind: kind for kind in (list, dict, set, frozenset, tuple, str, bytes, int, float, complex, bool)},
    abstract.Sequence: list,
    abstract.MutableSequence: list,
    abstract.Collection: list,
    abstract.Iterable: list,
    abstract.Mapping: dict,
    abstract.MutableMapping: dict,
    abstract.Set: set,
    abstract.MutableSet: set,
}


def _empty_of(annotation: Any) -> Callable[[], Any] | None:
    while typing.get_origin(annotation) in (typing.Required, typing.NotRequired):
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        found = (_empty_of(arg) for arg in typing.get_args(annotation) if arg is not type(None))
        return next(found, None)
    return _EMPTIES.get(origin) if isinstance(origin, abstract.Hashable) else None
