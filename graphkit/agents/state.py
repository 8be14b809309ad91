"""The state of an agent: DefaultState, and the prompt templates that are filled from a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, Final

from graphkit._build.state_graph import parse_schema
from graphkit._plan.schema import StateSchema
from graphkit._values.channels import MessagesChannel
from graphkit._values.state import MessagesState
from graphkit.agents.messages import newest_user_text
from graphkit.errors import GraphStateError

MESSAGES = "messages"
"""The key of the state that holds the conversation."""


class DefaultState(MessagesState):
    """A conversation: `messages`, a growing list, and whatever else the steps store.

    A message with an id replaces the earlier message with that id; a message without an id is
    appended.
    """


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


_CONVERSIONS: Final = (None, "a", "r", "s")


def fill_template(template: str, state: Mapping[str, Any], step: str) -> str:
    """Return a template with the values of a state.

    Args:
        template: the template.
        state: the state.
        step: the name of the step, for the error.

    Raises:
        ValueError: the state lacks a key.
    """
    text = newest_user_text(state.get(MESSAGES) or ())
    values = {} if text is None else {"input": text}
    try:
        return template.format_map({**values, **state})
    except KeyError as error:
        key = error.args[0]
        raise ValueError(
            f"the prompt template of step {step!r} needs {key!r}, which the state does not have"
        ) from error


def check_template(template: str) -> str:
    """Return a template if it can be filled with a state that has its keys.

    Raises:
        ValueError: it is malformed, or has a field that is not a key.
    """
    try:
        fields = list(_fields_of(template))
    except ValueError as error:
        raise ValueError(f"is malformed: {error}; write {{{{ and }}}} for braces") from error
    for name, conversion in fields:
        if not name or name[0].isdigit():
            raise ValueError(f"has {{{name}}}: name a key of the state, or write {{{{ and }}}} for braces")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"has {{{name}!{conversion}}}: only !r, !s and !a are conversions")
    return template


def _fields_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the conversion of each field of a template, also of those in format specifications."""
    for _, name, specification, conversion in Formatter().parse(template):
        if name is not None:  # None: text after the last field
            yield name, conversion
            yield from _fields_of(specification or "")
