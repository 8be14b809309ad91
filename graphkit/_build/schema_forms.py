"""The forms that a graph's schema argument may have, and the StateSchema that each of them means."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from graphkit._plan.schema import StateSchema, find_application_types, is_pydantic_model, read_channels
from graphkit._saver.base import StateSerializer
from graphkit._values.channels import Channel
from graphkit._values.frozen import private_copy
from graphkit._values.state import AgentState
from graphkit.errors import GraphStateError


def parse_schema(schema: Any, state_factory: Any = None) -> StateSchema:
    """Read a schema argument: channels, a state class, a TypedDict, a pydantic model, a factory or a serializer.

    Raises:
        GraphStateError: it is none of these, or an annotation's reducer does not take two values.
    """
    found = _read(schema)
    if isinstance(state_factory, StateSerializer):
        found.serializer = state_factory
    elif state_factory is not None:
        found.state_factory = _factory(state_factory)
    return found


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


def _of_channels(schema: Mapping[str, Any]) -> StateSchema:
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
        return StateSchema(read_channels(hints), keys=hints, types=find_application_types(hints.values()))
    if is_pydantic_model(schema):
        from graphkit._plan.pydantic_schema import PydanticSchema

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
