"""StateSchema: what a graph's schema argument says, whichever form it has: channels, a state class, types, validation."""

from __future__ import annotations

import collections.abc as abstract
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

from graphkit._abc import StateSerializer
from graphkit._channels import Channel
from graphkit._frozen import FrozenDict, private_copy
from graphkit._state import AgentState, merge
from graphkit.errors import GraphStateError

_EMPTY: Final = FrozenDict()


class StateSchema:
    """The rules of a graph's state.

    Attributes:
        channels: by key; a key without one is simply replaced.
        state_of: makes the state object that nodes see.
        keys: the keys that the schema names.
        types: the application types that stand in its annotations; a graph registers them with its saver.
        serializer: the serializer that was given as the schema, if one was.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        state_of: Callable[[Any], AgentState] = AgentState,
        *,
        keys: Iterable[str] = (),
        types: Iterable[type] = (),
        serializer: StateSerializer | None = None,
    ) -> None:
        self.channels = dict(channels)
        self.state_of = state_of
        self.keys = tuple(dict.fromkeys((*channels, *keys)))
        self.types = tuple(types)
        self.serializer = serializer

    def initial(self) -> FrozenDict:
        """The state of a thread that has none: the channels' defaults."""
        defaults = {key: channel.initial() for key, channel in self.channels.items() if channel.default is not None}
        return merge(_EMPTY, {key: value for key, value in defaults.items() if value is not None}, {})[0]

    def begin(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run."""
        return self.merge(data, update)

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update; see `graphkit._state.merge`."""
        return merge(data, update, self.channels)

    @staticmethod
    def of(schema: Any, state_factory: Any = None) -> StateSchema:
        """Read a schema argument: channels, a state class, a TypedDict, a pydantic model, a factory or a serializer.

        Raises:
            GraphStateError: it is none of these, or an annotation's reducer does not take two values.
        """
        if isinstance(state_factory, StateSerializer):
            return _with_serializer(StateSchema.of(schema), state_factory)
        found = _read(schema)
        if state_factory is not None:
            found.state_of = _factory(state_factory)
        return found


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


def channels_of(hints: Mapping[str, Any]) -> dict[str, Channel]:
    """The channels that `Annotated[T, reducer]` (or a Channel in the reducer's place) asks for."""
    found = {key: _channel_of(key, hint) for key, hint in hints.items()}
    return {key: channel for key, channel in found.items() if channel is not None}


def application_types(annotations: Iterable[Any]) -> Iterator[type]:
    """The Enum, dataclass, NamedTuple and pydantic classes that stand in annotations, however deep."""
    for annotation in annotations:
        if isinstance(annotation, type) and typing.get_origin(annotation) is None:
            if _is_application_type(annotation):
                yield annotation
        else:
            yield from application_types(typing.get_args(annotation))


def _read(schema: Any) -> StateSchema:
    if isinstance(schema, StateSchema):
        return schema
    if isinstance(schema, StateSerializer):
        return StateSchema({}, serializer=schema)
    if isinstance(schema, Mapping):
        return _of_channels(schema)
    if isinstance(schema, type):
        return _of_class(schema)
    if callable(schema):
        return StateSchema({}, _factory(schema))
    raise GraphStateError(
        f"a schema is a dict of channels, an AgentState class, a TypedDict or a pydantic model, not {schema!r}"
    )


def _of_channels(schema: Mapping[str, Channel]) -> StateSchema:
    wrong = [key for key, channel in schema.items() if not isinstance(channel, Channel)]
    if wrong:
        raise GraphStateError(*(f"the schema's {key!r} is {schema[key]!r}, which is not a Channel" for key in wrong))
    return StateSchema(schema)


def _of_class(schema: type) -> StateSchema:
    if issubclass(schema, AgentState):
        return StateSchema(schema.SCHEMA, schema)
    if typing.is_typeddict(schema):
        try:
            hints = typing.get_type_hints(schema, include_extras=True)
        except NameError as error:
            raise GraphStateError(f"an annotation of {schema.__name__} cannot be read: {error}") from error
        return StateSchema(channels_of(hints), keys=hints, types=application_types(hints.values()))
    if is_pydantic_model(schema):
        from graphkit._pydantic import PydanticSchema

        return PydanticSchema(schema)
    raise GraphStateError(
        f"{schema.__name__} cannot be a schema: use an AgentState class with a SCHEMA, a TypedDict or a pydantic model"
    )


def _factory(state_factory: Any) -> Callable[[Any], AgentState]:
    """A factory that is handed nothing it could change: an AgentState sees to that itself."""
    if isinstance(state_factory, type) and issubclass(state_factory, AgentState):
        return state_factory
    if not callable(state_factory):
        raise GraphStateError(f"a state factory is callable(mapping), not {state_factory!r}")
    return lambda data: state_factory(private_copy(data))


def _with_serializer(schema: StateSchema, serializer: StateSerializer) -> StateSchema:
    schema.serializer = serializer
    return schema


def is_pydantic_model(cls: type) -> bool:
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
    return channel_from(key, annotation, extras)


def channel_from(key: str, annotation: Any, extras: Iterable[Any]) -> Channel | None:
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
