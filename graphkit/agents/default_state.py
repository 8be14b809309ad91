"""DefaultState: the state of an agent that names no other."""

from __future__ import annotations

from typing import Any, NamedTuple, is_typeddict

from graphkit._build.schema_forms import parse_schema
from graphkit._plan.schema import StateSchema, is_pydantic_model
from graphkit._values.channels import MessagesChannel
from graphkit._values.state import MessagesState
from graphkit.errors import GraphStateError

MESSAGES = "messages"
"""The key of the state that holds the conversation."""


class DefaultState(MessagesState):
    """A conversation: `messages`, a growing list, and whatever else the steps store.

    A message with an id replaces the earlier message with that id; a message without an id is
    appended.
    """


class DeclaredKeys(NamedTuple):
    """The keys that a state type names, and `messages`."""

    keys: tuple[str, ...]
    are_all: bool
    """Whether the type means that a state has no others."""


def find_declared_keys(state_type: Any) -> DeclaredKeys:
    """Return the keys that the state of an agent with a chat step has by its type.

    A TypedDict and a pydantic model name all keys; in an AgentState, steps and inputs may store others.
    """
    keys = tuple(dict.fromkeys((*parse_schema(state_type).keys, MESSAGES)))
    has_extra = getattr(state_type, "model_config", {}).get("extra") == "allow"
    is_model = isinstance(state_type, type) and is_pydantic_model(state_type)
    return DeclaredKeys(keys, are_all=is_typeddict(state_type) or (is_model and not has_extra))


def parse_state_type(state_type: object, *, with_messages: bool) -> StateSchema:
    """Read the state type of an agent: every form that StateGraph takes.

    Args:
        state_type: a TypedDict, a pydantic model, an AgentState class, or a mapping of channels.
        with_messages: add the channel of the messages, if the type does not define one.

    Raises:
        GraphStateError: it is none of these; or it is a pydantic model without the field
            `messages`, which an agent cannot add.
    """
    schema = parse_schema(state_type)
    if not with_messages or MESSAGES in schema.channels:
        return schema
    if type(schema) is not StateSchema:
        raise GraphStateError(
            f"the state type of an agent with a chat step needs messages: add "
            f"`{MESSAGES}: Annotated[list, MessagesState.SCHEMA['{MESSAGES}']]` to {state_type!r}"
        )
    return StateSchema(
        {**schema.channels, MESSAGES: MessagesChannel()},
        schema.state_factory,
        keys=schema.keys,
        types=schema.types,
        serializer=schema.serializer,
        closed_as=schema.closed_as,
    )
