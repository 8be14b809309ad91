"""StateSchema: the rules of a graph's state: channels, state class and application types."""

from __future__ import annotations

import collections.abc as abstract
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from graphkit._values.channels import REMOVE, Channel
from graphkit._values.frozen import FrozenDict, is_pydantic_model
from graphkit._values.state import AgentState, StateSerializer, merge
from graphkit._wording import suggest
from graphkit.errors import GraphStateError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_EMPTY: Final = FrozenDict()


class StateSchema:
    """The rules of a graph's state.

    Attributes:
        channels: by key. A new value replaces the old value of a key without a channel.
        state_factory: builds the state object that nodes receive.
        keys: the keys that the schema names.
        types: the application types in its annotations; a graph registers them with its saver.
        serializer: the serializer passed as the schema; None without one.
        transient: the keys whose values are kept in memory only.
        closed_as: the name of a schema whose states have `known_keys` only; "" if they may have others.
        known_keys: the keys, and those of the schemas of inlined graphs.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        state_factory: Callable[[Any], AgentState] = AgentState,
        *,
        keys: Iterable[str] = (),
        types: Iterable[type] = (),
        serializer: StateSerializer | None = None,
        closed_as: str = "",
    ) -> None:
        self.channels = dict(channels)
        self.state_factory = state_factory
        self.keys = tuple(dict.fromkeys((*channels, *keys)))
        self.types = tuple(types)
        self.serializer = serializer
        self.closed_as = closed_as
        self.known_keys = frozenset(self.keys)
        transient = [key for key, channel in self.channels.items() if channel.is_transient]
        self.transient = frozenset(transient)

    def make_transient(self, key: str) -> None:
        """Keep the values of a key in memory only; its channel stays."""
        self.channels.setdefault(key, Channel())
        self.transient |= {key}

    def initial_state(self) -> FrozenDict:
        """Return the state of a new thread: the defaults of the channels."""
        public = [key for key in self.channels if key not in self.transient]
        return self._add_defaults(_EMPTY, public)

    def _add_defaults(self, data: FrozenDict, keys: Iterable[str]) -> FrozenDict:
        """Return a state in which the keys that have no value have the defaults of their channels."""
        defaults = {key: self.channels[key].initial() for key in keys if key not in data}
        given = {key: value for key, value in defaults.items() if value is not None}
        state, _ = merge(data, given, {})
        return state

    def merge_input(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge the input of a run; as `merge`."""
        return self.merge(data, update)

    def merge(self, data: FrozenDict, update: Mapping[str, Any]) -> tuple[FrozenDict, dict[str, int]]:
        """Merge a node's update; see `graphkit._values.state.merge`.

        Raises:
            ValueError: the update has a key that a closed schema lacks, or a value does not fit;
                nothing is merged.
        """
        self.refuse_unknown_keys(update, data)
        return merge(data, update, self.channels)

    def refuse_unknown_keys(self, update: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Refuse keys that a closed schema lacks; a key that a state has nevertheless may be removed.

        Every update of a state is checked here: of a run's input, a node, an edge, a resume and
        `update_state`.

        Raises:
            ValueError: there is such a key. The message names the one that it may be meant for.
        """
        if not self.closed_as or self.known_keys.issuperset(update):
            return
        for key, value in update.items():
            is_removed = value is REMOVE and key in data
            if key in self.known_keys or is_removed:
                continue
            known = sorted(self.known_keys)
            hint = suggest(str(key), known, most=1)
            if not hint:
                names = ", ".join(map(repr, known))
                hint = f"; its keys: {names}"
            raise ValueError(f"{self.closed_as} has no key {key!r}{hint}")

    def select_known(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the part of an update that this schema has keys for: all of it, if it is open."""
        if not self.closed_as:
            return update
        return {key: value for key, value in update.items() if key in self.known_keys}

    def allow_keys_of(self, others: Iterable[StateSchema]) -> Self:
        """Return this schema with the keys of others, whose graphs are inlined; open if one of them is."""
        # All nodes of the graph merge into one state, those of inlined graphs too. If the outer schema has
        # `question` and that of an inlined graph has `draft`, updates with either key are right, and only
        # `answr` is unknown. An open schema among them allows any key, so nothing is unknown then.
        joined = copy(self)
        for other in others:
            joined.known_keys |= other.known_keys
            if not other.closed_as:
                joined.closed_as = ""
        return joined

    def parse_update(self, value: object) -> Mapping[str, Any] | None:
        """Return an update as a mapping of the keys that it sets; None for what is no update.

        It is a mapping or an object of the schema. All other methods take the mapping.
        """
        return value if isinstance(value, Mapping) else None

    def normalize_update(self, update: Mapping[str, Any], data: FrozenDict) -> Mapping[str, Any]:  # noqa: ARG002 - a subclass's
        """Return an update that another graph may merge again.

        Args:
            update: the update of the node.
            data: the state after the update was merged.
        """
        return update

    def adopt(self, data: Mapping[str, Any]) -> FrozenDict:
        """Return the state of another graph as a first state of this one.

        Values are taken over unchanged; keys that are missing get the defaults of this schema.
        """
        # Without channels: the values were merged in the outer graph, and replace the defaults. A reducer
        # would add them: with the default ["hello"], a list that begins with it would begin with it twice.
        state, _ = merge(self.initial_state(), data, {})
        return state

    def merge_transient(self, private: FrozenDict, update: Mapping[str, Any]) -> FrozenDict:
        """Merge an update of transient keys; a key without a value gets its default first."""
        begun = self._add_defaults(private, self.transient)
        state, _ = merge(begun, update, self.channels)
        return state


class DataclassSchema(StateSchema):
    """The rules of a dataclass: its fields, and their defaults.

    The class itself is not called, so `__post_init__` does not run: a state need not have all fields.
    """

    def __init__(self, cls: type[DataclassInstance], hints: Mapping[str, Any]) -> None:
        """Read a dataclass.

        Args:
            cls: the dataclass.
            hints: its annotations, with extras.
        """
        self.cls = cls
        self._defaults: dict[str, Channel] = {}
        """The fields with a default, by name; each Channel makes a new default for a new thread."""
        channels = read_channels(hints)
        names = [field.name for field in dataclasses.fields(cls)]
        for field in dataclasses.fields(cls):
            make_default: Any = field.default_factory
            if make_default is dataclasses.MISSING:
                if field.default is dataclasses.MISSING:
                    continue
                make_default = partial(getattr, field, "default")
            channel = channels.get(field.name)
            if channel is None:
                self._defaults[field.name] = Channel(default=make_default)
            else:
                channels[field.name] = with_default(channel, make_default)
        from graphkit._values.codec.type_registry import find_application_types  # loads msgpack

        types = find_application_types(hints.values())
        super().__init__(channels, make_state_class(cls, names), keys=names, types=types, closed_as=cls.__name__)

    def initial_state(self) -> FrozenDict:
        defaults = {name: channel.initial() for name, channel in self._defaults.items()}
        state, _ = merge(super().initial_state(), defaults, {})
        return state

    def parse_update(self, value: object) -> Mapping[str, Any] | None:
        """Return an update as a mapping; an object of the dataclass sets all fields that it has."""
        if isinstance(value, self.cls):
            return {name: getattr(value, name) for name in self.keys if hasattr(value, name)}
        return super().parse_update(value)


def make_state_class(model: type, fields: Iterable[str]) -> type[AgentState]:
    """Create an AgentState class that also has the fields, properties and methods of a class.

    Args:
        model: a pydantic model or a dataclass.
        fields: the names of its fields.
    """
    names = tuple(fields)

    class ModelState(AgentState):
        """A read-only state with the attributes of its model."""

        def __getattr__(self, name: str) -> Any:
            # Not a field: a property or a method of the model.
            if name.startswith("_"):
                raise AttributeError(name)
            # Without any validation.
            if is_pydantic_model(model):
                return getattr(model.model_construct(**dict(self)), name)
            instance: Any = object.__new__(model)
            for field, value in self.items():
                object.__setattr__(instance, field, value)  # the dataclass may be frozen
            return getattr(instance, name)

        def __reduce__(self) -> tuple[Any, ...]:
            return _rebuild_state, (model, names, dict(self._data))

    for name in names:
        if name != "keys":  # dict() calls keys() of a mapping
            setattr(ModelState, name, property(itemgetter(name), _make_setter(name)))
    ModelState.__name__ = f"{model.__name__}State"
    ModelState.__qualname__ = ModelState.__name__
    return ModelState


def _make_setter(field: str) -> Callable[[AgentState, Any], None]:
    """Return a setter that raises, as any change of an AgentState does."""
    return lambda state, value: AgentState.__setitem__(state, field, value)


def _rebuild_state(model: type, fields: tuple[str, ...], data: dict[str, Any]) -> AgentState:
    return make_state_class(model, fields)(data)


class TypedChannel(Channel):
    """A reducer from an annotation.

    Without an old value it starts from the empty value of the type, if the type has one.
    """

    def __init__(self, reducer: Any, annotation: Any) -> None:
        super().__init__(reducer)
        self._empty = _find_empty(annotation)

    def update(self, key: str, old: Any, new: Any) -> Any:
        """Merge a value. Without an old value, a default and an empty value, return the new one."""
        if old is None and self.default is None:
            if self._empty is None:
                return new
            old = self._empty()
        return super().update(key, old, new)


def read_channels(hints: Mapping[str, Any]) -> dict[str, Channel]:
    """Return the channels in annotations: `Annotated[T, reducer]` or `Annotated[T, Channel]`."""
    channels: dict[str, Channel] = {}
    for key, hint in hints.items():
        annotated = _strip_required(hint)
        if typing.get_origin(annotated) is not Annotated:
            continue

        annotation, *extras = typing.get_args(annotated)
        channel = read_channel(key, annotation, extras)
        if channel is not None:
            channels[key] = channel

    return channels


def read_channel(key: str, annotation: Any, extras: Iterable[Any]) -> Channel | None:
    """Return the channel in the metadata of an annotation.

    Args:
        key: the key of the state, for messages.
        annotation: the annotated type.
        extras: its metadata. The last Channel, or callable that is not a class, counts.

    Raises:
        GraphStateError: a reducer does not take two values.
    """
    channel: Channel | None = None
    for extra in extras:
        if isinstance(extra, Channel):
            channel = extra
        elif callable(extra) and not isinstance(extra, type):
            try:
                inspect.signature(extra).bind(None, None)
            except ValueError:  # a builtin without a signature, such as max
                pass
            except TypeError:
                raise GraphStateError(f"the reducer of {key!r} must take two values, the old and the new one") from None
            channel = TypedChannel(extra, annotation)
    return channel


def with_default(channel: Channel, default: Callable[[], Any]) -> Channel:
    """Return the channel of a field with a default; a default of the channel itself goes before."""
    if channel.default is None:
        channel = copy(channel)  # the same one may be in the annotation of another field
        channel.default = default
    return channel


def _strip_required(hint: Any) -> Any:
    """Return an annotation without the Required and NotRequired around it."""
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    return hint


_EMPTY_FACTORIES: Final[Mapping[Any, Callable[[], Any]]] = {
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
"""Type -> what makes its empty value."""


def _find_empty(annotation: Any) -> Callable[[], Any] | None:
    """Return what makes the empty value of a type; for a union, of its first member but None."""
    annotation = _strip_required(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            if member is not type(None):
                return _find_empty(member)
        return None

    if not isinstance(origin, abstract.Hashable):
        return None
    return _EMPTY_FACTORIES.get(origin)
