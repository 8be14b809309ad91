"""Reads the schema argument of a graph, in each of its forms, as a StateSchema."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from graphkit._plan.schema import (
    DataclassSchema,
    StateSchema,
    find_application_types,
    is_pydantic_model,
    read_channels,
)
from graphkit._values.channels import Channel
from graphkit._values.frozen import private_copy
from graphkit._values.state import AgentState, StateSerializer
from graphkit.errors import GraphStateError


def parse_schema(schema: Any, state_factory: Any = None) -> StateSchema:
    """Read a schema argument.

    Args:
        schema: channels, a state class, a TypedDict, a dataclass, a pydantic model, a state factory, a
            serializer, or a StateSchema.
        state_factory: a state factory or a serializer; overrides that of the schema.

    Raises:
        GraphStateError: it is none of these, or an annotation's reducer does not take two values.
    """
    if isinstance(schema, StateSchema):
        parsed = schema
    elif isinstance(schema, StateSerializer):
        parsed = StateSchema({}, serializer=schema)
    elif isinstance(schema, Mapping):
        problems = [
            f"the schema's {key!r} is {channel!r}, which is not a Channel"
            for key, channel in schema.items()
            if not isinstance(channel, Channel)
        ]
        if problems:
            raise GraphStateError(*problems)
        parsed = StateSchema(schema)
    elif isinstance(schema, type):
        parsed = _parse_class(schema)
    elif callable(schema):
        parsed = StateSchema({}, _parse_state_factory(schema))
    else:
        raise GraphStateError(
            f"a schema must be a dict of channels, an AgentState class, a TypedDict or a pydantic model, not {schema!r}"
        )
    if isinstance(state_factory, StateSerializer):
        parsed.serializer = state_factory
    elif state_factory is not None:
        parsed.state_factory = _parse_state_factory(state_factory)
    if parsed.serializer is not None:
        for key in parsed.serializer.transient_attributes:
            parsed.make_transient(key)
    return parsed


def _parse_class(schema: type) -> StateSchema:
    if issubclass(schema, AgentState):
        return StateSchema(schema.SCHEMA, schema)
    if typing.is_typeddict(schema):
        hints = _read_hints(schema)
        types = find_application_types(hints.values())
        return StateSchema(read_channels(hints), keys=hints, types=types, closed_as=schema.__name__)
    if is_pydantic_model(schema):
        from graphkit._plan.pydantic_schema import PydanticSchema

        return PydanticSchema(schema)
    if dataclasses.is_dataclass(schema):
        return DataclassSchema(schema, _read_hints(schema))
    raise GraphStateError(
        f"{schema.__name__} cannot be a schema: use an AgentState class with a SCHEMA, a TypedDict, a dataclass or a "
        f"pydantic model"
    )


def _read_hints(schema: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise GraphStateError(f"an annotation of {schema.__name__} cannot be read: {error}") from error


def _parse_state_factory(state_factory: Any) -> Callable[[Any], AgentState]:
    """Return a state factory that receives copies of mutable application objects.

    An AgentState class makes such copies itself.
    """
    if isinstance(state_factory, type) and issubclass(state_factory, AgentState):
        return state_factory
    if not callable(state_factory):
        raise GraphStateError(f"a state factory must be callable(mapping), not {state_factory!r}")
    return lambda data: state_factory(private_copy(data))
