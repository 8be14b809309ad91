"""What a thread of a durable agent keeps: messages, prompts, outputs and answers, as JSON texts and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter
from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, UserContent, UserPromptPart
from pydantic_core import from_json, to_json, to_jsonable_python


def dump_messages(messages: Sequence[ModelMessage]) -> list[str]:
    """Return each message as a JSON text: a thread appends them, and stores each once."""
    return [ModelMessagesTypeAdapter.dump_json([message]).decode() for message in messages]


def load_messages(texts: Sequence[str]) -> list[ModelMessage]:
    """Return the messages of a thread."""
    return [message for text in texts for message in ModelMessagesTypeAdapter.validate_json(text)]


def dump_prompt(prompt: str | Sequence[UserContent]) -> str:
    """Return a prompt, which may hold images, as the message of a user."""
    (text,) = dump_messages([ModelRequest(parts=[UserPromptPart(prompt)])])
    return text


def make_arguments(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the agent is run with: the prompt of the run, or the answers to the tools that waited."""
    history = load_messages(state["messages"])
    if state["requests"]:
        results = _make_results(state["requests"], state["answers"])
        return {"message_history": history, "deferred_tool_results": results}
    (message,) = load_messages([state["prompt"]])
    return {"message_history": history, "user_prompt": message.parts[0].content}  # type: ignore[union-attr]


def make_update(output: Any, messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """Return the update for the end of a run of the agent: its output as a JSON text, or the tools that wait."""
    update = {"messages": dump_messages(messages), "requests": [], "output": None}
    if not isinstance(output, DeferredToolRequests):
        return {**update, "output": to_json(output).decode()}
    waiting = [("approval", call) for call in output.approvals] + [("call", call) for call in output.calls]
    requests = [
        {"kind": kind, "tool": call.tool_name, "arguments": call.args_as_dict(), "id": call.tool_call_id}
        for kind, call in waiting
    ]
    return {**update, "requests": requests}


def load_output(output_type: Any, text: str | None) -> Any:
    """Return an output. One of a type that pydantic cannot build from JSON stays plain data."""
    if text is None:
        return None
    types = output_type if isinstance(output_type, Sequence) else [output_type]
    wanted = [kind for kind in types if kind is not DeferredToolRequests]
    try:
        return TypeAdapter(wanted[0] if len(wanted) == 1 else Any).validate_json(text)
    except PydanticSchemaGenerationError:
        return from_json(text)


def _make_results(requests: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> DeferredToolResults:
    """Return the answers to the tools that waited, as pydantic-ai takes them."""
    given = {answer["id"]: to_jsonable_python(answer["answer"]) for answer in answers}
    results = DeferredToolResults()
    for request in requests:
        answer = given[request["id"]]
        if request["kind"] == "call":
            results.calls[request["id"]] = answer
        else:
            results.approvals[request["id"]] = _make_approval(answer)
    return results


def _make_approval(answer: Any) -> bool | ToolApproved | ToolDenied:
    if isinstance(answer, bool):
        return answer
    if answer["approved"]:
        return ToolApproved(override_args=answer.get("arguments"))
    return ToolDenied(answer["reason"]) if answer.get("reason") else ToolDenied()
