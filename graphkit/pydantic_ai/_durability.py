"""What needs pydantic-ai: the capability that executes each model call and each tool call, and what a thread keeps.

The interface is public (`pydantic_ai.durable_exec`). What is recorded is JSON text, so a store needs to know no
types of pydantic-ai, and reads records of older versions as pydantic-ai does.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Union, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied, durable_exec
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, UserContent, UserPromptPart
from pydantic_ai.output import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.toolsets.function import FunctionToolsetTool
from pydantic_core import from_json, to_json, to_jsonable_python

from graphkit._records.config import RunnableConfig
from graphkit._to_thread import HeldCancellation

_NAME: Final = "agent"
"""What the names of records begin with. Not the name of the agent, which may have another one when it goes on: the
thread and the execution of the node say whose records they are."""


@dataclass(init=False, kw_only=True)
class Durability(durable_exec.BaseDurabilityCapability[Any]):
    """Records what an agent does in one execution of a node. A new execution needs a new instance."""

    engine_spec = durable_exec.DurabilityEngineSpec(
        engine_name="graphkit",
        durable_unit_noun="record",
        durable_container_noun="node",
        codec=durable_exec.JSON_CODEC,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    )

    def __init__(self, event_stream_handler: EventStreamHandler[Any] | None = None) -> None:
        super().__init__(name=_NAME, event_stream_handler=event_stream_handler)
        self._backend = _Backend()

    @property
    def in_durable_context(self) -> bool:
        """Always, because the capability is made for one execution of a node."""
        return True

    def get_durable_operation_backend(self) -> durable_exec.DurableOperationBackend[Any]:
        """Return what executes and records."""
        return self._backend

    def get_default_run_id(self) -> str | None:
        """Return the name of the execution of the node, which is the same after a crash."""
        return RunnableConfig().idempotency_key


class _Backend(durable_exec.CallableOperationBackend[dict[str, Any]]):
    """Executes an operation, or returns its recorded result.

    The key of a record must be the same when the agent runs again after a crash. A tool call has an id, which comes
    from a recorded answer of the model, so parallel calls may end in any order. Everything else happens at a step of
    the agent's loop. Operations that still share a name, such as a model that is asked again after an error, are
    numbered; they follow each other.
    """

    def __init__(self) -> None:
        config = durable_exec.RoleBasedOperationConfig[dict[str, Any]](model={}, event={}, capability={}, tool={})
        super().__init__(namer=_Namer(_NAME), config=config)
        self._counts: Counter[tuple[str, str]] = Counter()

    async def execute(
        self,
        *,
        operation_id: durable_exec.DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: dict[str, Any],  # noqa: ARG002 - of the interface
    ) -> object:
        """Return the result of an operation, from the record if there is one."""
        if isinstance(operation_id, durable_exec.EventStreamHandlerId):
            return await body()  # an event of a stream is shown again, and has no effect
        context = next((item for item in cache_key if isinstance(item, RunContext)), None)
        place = "" if context is None else context.tool_call_id or str(context.run_step)
        self._counts[name, place] += 1
        key = f"{name}:{place}:{self._counts[name, place]}"

        async def make_record() -> str:
            return json.dumps(await body())

        record = RunnableConfig().aonce(key, make_record)
        if not any(isinstance(item, FunctionToolsetTool) and not item.is_async for item in cache_key):
            return json.loads(await record)
        # A function on a thread goes on although the call is cancelled, because a parallel one has failed. The
        # cancellation waits for it, and for its record: a run has its thread only until it stops.
        held = HeldCancellation()
        try:
            return json.loads(await held.complete(record))
        finally:
            held.release()


class _Namer(durable_exec.JournalOperationNamer):
    """Names a model request alike whether it is streamed: a run that was streamed may be resumed without a stream."""

    def operation_name(self, operation_id: durable_exec.DurableOperationId) -> str:
        """Return the name under which an operation is recorded."""
        if isinstance(operation_id, durable_exec.ModelRequestId):
            operation_id = replace(operation_id, streaming=False)
        return super().operation_name(operation_id)


# What a thread keeps: messages, prompts, outputs and answers, as JSON texts and plain values


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
        given = {answer["id"]: to_jsonable_python(answer["answer"]) for answer in state["answers"]}
        results = DeferredToolResults()
        for request in state["requests"]:
            answer = given[request["id"]]
            if request["kind"] == "call":
                results.calls[request["id"]] = answer
            elif isinstance(answer, bool):
                results.approvals[request["id"]] = answer
            elif answer["approved"]:
                results.approvals[request["id"]] = ToolApproved(override_args=answer.get("arguments"))
            else:
                denied = ToolDenied(answer["reason"]) if answer.get("reason") else ToolDenied()
                results.approvals[request["id"]] = denied
        return {"message_history": history, "deferred_tool_results": results}
    (message,) = load_messages([state["prompt"]])
    return {"message_history": history, "user_prompt": message.parts[0].content}  # type: ignore[union-attr]


def make_update(output: Any, messages: Sequence[ModelMessage]) -> dict[str, Any]:
    """Return the update for the end of a run of the agent: its output as a JSON text, or the tools that wait."""
    update = {"messages": dump_messages(messages), "requests": None, "output": None}
    if not isinstance(output, DeferredToolRequests):
        return {**update, "output": to_json(output).decode()}
    waiting = [("approval", call) for call in output.approvals] + [("call", call) for call in output.calls]
    requests = [
        {"kind": kind, "tool": call.tool_name, "arguments": call.args_as_dict(), "id": call.tool_call_id}
        for kind, call in waiting
    ]
    return {**update, "requests": requests or None}


def load_output(output_type: Any, text: str | None) -> Any:
    """Return an output. One of a type that pydantic cannot build from JSON stays plain data."""
    if text is None:
        return None
    any_of: Any = Union[tuple(_types_in(output_type))]  # noqa: UP007 - of a tuple
    try:
        return TypeAdapter(any_of).validate_json(text)
    except (PydanticSchemaGenerationError, ValidationError):
        return from_json(text)


def _types_in(output_type: Any) -> Iterator[Any]:
    """Yield the types of the outputs; for a function, which pydantic would call, the type that it returns."""
    if isinstance(output_type, Sequence):
        for part in output_type:
            yield from _types_in(part)
    elif isinstance(output_type, ToolOutput):
        yield from _types_in(output_type.output)
    elif isinstance(output_type, NativeOutput | PromptedOutput):
        yield from _types_in(output_type.outputs)
    elif isinstance(output_type, TextOutput):
        yield from _types_in(output_type.output_function)
    elif inspect.isroutine(output_type):
        yield get_type_hints(output_type).get("return", Any)
    elif output_type is not DeferredToolRequests:
        yield output_type
