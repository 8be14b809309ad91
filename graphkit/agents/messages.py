"""Messages in the form of chat completions, with an `id` of ours.

A message is a dict: `role` ("system", "user", "assistant" or "tool") and `content`, a text or a list of
parts. An assistant's message may have `tool_calls`, and a tool's message has the `tool_call_id` of the
call that it answers. States keep messages in this form; what only graphkit uses (`id`, `usage`,
`finish_reason`) stays in the state and is not sent to a model.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Any, Final

Message = dict[str, Any]
"""A message: `{"role": ..., "content": ..., "tool_calls": [...], "tool_call_id": ..., "id": ...}`."""

Messages = Sequence[Mapping[str, Any]]
"""A conversation, oldest message first."""

ToolSchemas = Sequence[Mapping[str, Any]]
"""What a model may call: `{"type": "function", "function": {"name", "description", "parameters"}}` for each."""

TextHandler = Callable[[str], object]
"""What is called with each piece of text while a model answers."""

ROLES: Final = ("assistant", "developer", "system", "tool", "user")

_LOGGER: Final = getLogger("graphkit.agents")
_NOT_SENT: Final = frozenset({"id", "usage", "finish_reason"})


def new_message_id() -> str:
    """Return a new id for a message: 32 hexadecimal digits."""
    return uuid.uuid4().hex


def tool_message(tool_call_id: str, content: str) -> Message:
    """Return a message with the result of a tool call."""
    return {
        "role": "tool",
        "content": make_sendable(content),
        "id": new_message_id(),
        "tool_call_id": tool_call_id,
    }


def check_tool_call(call: Any, number: int = 0) -> None:
    """Check one call of the list `tool_calls` of a message.

    Args:
        call: the call.
        number: its place in the list, for the error.

    Raises:
        ValueError: it has no name or no id.
    """
    where = f"tool_calls[{number}]"
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise ValueError(f"{where} has no function")  # noqa: TRY004 - one error for a malformed message
    _require_text(call, "id", where)
    _require_text(call["function"], "name", where)


def _require_text(mapping: Mapping[str, Any], key: str, where: str) -> None:
    text = mapping.get(key)
    if not isinstance(text, str) or not text:
        raise ValueError(f"{where} has no {key}")


def check_messages(messages: Any) -> None:
    """Check that what is appended to a conversation are messages; what is no list is left to its channel.

    Raises:
        ValueError: it is a text, or an entry is not a mapping with a role. The message has its number.
    """
    if isinstance(messages, str):
        raise ValueError("messages must be a list of messages, not a text: run the agent with the text itself")  # noqa: TRY004 - one kind for wrong input
    if not isinstance(messages, list | tuple):
        return
    for number, message in enumerate(messages):
        found = type(message).__name__
        if isinstance(message, Mapping):
            role = message.get("role")
            if role in ROLES:
                continue
            found = f"the role {role!r}"
        raise ValueError(
            f"messages[{number}] must be a mapping such as {{'role': 'user', 'content': 'Hello'}}, not {found}; "
            f"the roles are {', '.join(ROLES)}"
        )


def as_reply(reply: Any) -> Message:
    """Return what a model returned, a text or a message of the assistant, as a checked message.

    Raises:
        TypeError: it is neither a text nor a mapping.
        ValueError: it is not a message of the assistant, or has malformed tool calls.
    """
    if isinstance(reply, str):
        reply = {"content": make_sendable(reply)}
    if not isinstance(reply, Mapping):
        raise TypeError(f"a model must return a text or a message, not {type(reply).__name__}")
    message: Message = {"role": "assistant", "content": None, **reply}
    if not isinstance(message.get("id"), str) or not message["id"]:
        message["id"] = new_message_id()  # later updates can replace the message by it
    if message["role"] != "assistant":
        raise ValueError(f"a model must return a message with the role 'assistant', not {message['role']!r}")
    content: object = message["content"]
    if isinstance(content, bytes) or not isinstance(content, Sequence | None):
        found = type(content).__name__
        raise ValueError(f"the content of a message must be a text or a list of parts, not {found}")  # noqa: TRY004 - one error for a malformed message
    calls = message.get("tool_calls") or ()
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise ValueError(f"tool_calls must be a list, not {type(calls).__name__}")  # noqa: TRY004 - one error for a malformed message
    for number, call in enumerate(calls):
        check_tool_call(call, number)
    return message


def newest_user_text(messages: Sequence[Any]) -> str | None:
    """Return the text of the newest message of the user; None if there is none."""
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, str):
                return content
            parts = [part for part in content or () if isinstance(part, Mapping)]
            return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return None


def to_request(message: Mapping[str, Any]) -> Message:
    """Return the message as it is sent to a model: without the keys that only graphkit uses."""
    sent = {name: value for name, value in message.items() if name not in _NOT_SENT}
    plain: Message = to_plain(sent)
    return plain


def to_plain(value: Any) -> Any:
    """Return a value as it can be sent: with dicts and lists for what states keep read-only, and sendable texts."""
    if isinstance(value, str):
        return make_sendable(value)
    if isinstance(value, Mapping):
        plain: dict[Any, Any] = {}
        for name, item in value.items():
            key = make_sendable(name) if isinstance(name, str) else name
            plain[key] = to_plain(item)
        return plain
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def make_sendable(text: str) -> str:
    """Return a text that can be sent: with an escape in place of each half of a surrogate pair.

    Python makes such halves of file names that are not UTF-8, and of escapes in JSON. UTF-8 has no bytes
    for them, so one in a conversation would fail every request that contains it. The escape, such as
    "backslash udce9", shows the model and the readers of the state what was there. Two halves that
    belong together become their character.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        halves = sorted({character for character in joined if "\ud800" <= character <= "\udfff"})
        if halves:
            replaced = ", ".join(map(ascii, halves))
            _LOGGER.warning("replaced half of a surrogate pair, which cannot be sent, by its escape: %s", replaced)
        return joined.encode("utf-8", "backslashreplace").decode()
    return text
