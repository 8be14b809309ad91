"""ToolCalls: executes the tool calls of a message, as the items of a map node.

The map records the result of each call when the call has finished, so a resume executes only the
others. A call that has to be approved stops there with an interrupt of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from graphkit._plan.calls import compose_call
from graphkit._plan.topology import Call
from graphkit._records.config import RunnableConfig
from graphkit._records.context import interrupt
from graphkit._to_thread import finish_in_thread
from graphkit._wording import describe_error
from graphkit.agents.messages import parse_tool_call, to_plain, tool_message
from graphkit.agents.state import MESSAGES
from graphkit.agents.tools import Tool, ToolArgumentsError
from graphkit.errors import CheckpointerError, ToolError

_NO_RESULT: Final = "No result: the conversation went on before this call was recorded as finished."
_ANSWER_KEYS: Final = frozenset({"approved", "reason", "arguments"})


def find_pending_calls(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tool calls of the last message of the model that have no result yet."""
    answered: set[Any] = set()
    for message in reversed(state.get(MESSAGES) or ()):
        role = message.get("role")
        if role == "tool":
            answered.add(message.get("tool_call_id"))
        elif role == "assistant":
            calls = message.get("tool_calls") or ()
            return [call for call in calls if call.get("id") not in answered]
        else:
            break
    return []


def complete_results(messages: Sequence[Any]) -> list[Any]:
    """Return a conversation in which every tool call has a result, as models demand.

    A call has none if new input came before it was recorded as finished.

    Raises:
        TypeError: an entry is not a mapping.
    """
    # Servers refuse a conversation with a call that has no result directly after its message. The results are
    # added to what is sent, not to the state: a late result may still be supplied there.
    completed: list[Any] = []
    missing: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            found = type(message).__name__
            raise TypeError(f"messages[{number}] must be a mapping with role and content, not {found}")
        if message.get("role") == "tool":
            answered = message.get("tool_call_id")
            if answered in missing:
                missing.remove(answered)
        else:
            completed += _explain_missing(missing)
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
            missing = list(dict.fromkeys(ids))  # each once
        completed.append(message)
    completed += _explain_missing(missing)
    return completed


def _explain_missing(call_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return results that say that there are none."""
    return [tool_message(call_id, _NO_RESULT) for call_id in call_ids]


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ToolCall:
    """A call that the model made, and how it is executed."""

    tool: Tool
    call_id: str
    arguments: Mapping[str, Any]
    """As JSON values, perhaps changed by the human who approved the call."""
    checked: Mapping[str, Any]
    """As the function takes them."""
    is_changed: bool
    """Whether a human has changed the arguments."""


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Approval:
    """What a human answered."""

    is_approved: bool
    reason: str
    arguments: Mapping[str, Any] | None
    """None: those of the model."""


@final
class ToolCalls:
    """Executes tool calls; its methods are the functions of a map node.

    Attributes:
        is_async: whether a tool is asynchronous, so that only `aexecute` can be the action.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.is_async = any(tool.is_async for tool in tools.values())
        self._tools = tools
        self._attempts = {
            name: compose_call(_as_call(tool), name, (), tool.retry, tool.timeout, kind="tool")
            for name, tool in tools.items()
        }

    def execute(self, call: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """Execute a call; return the update that appends its result to the messages."""
        prepared = self._prepare(call)
        if isinstance(prepared, str):
            return _make_update(call, prepared)
        # The attempts of a call are one item of the map: the map records their last result, so a retry repeats only
        # the function. The approval came before, and its answer is recorded, so nothing asks for it again.
        attempts = self._attempts[prepared.tool.name]
        try:
            result = attempts.run(prepared.checked, config)
            content = _describe_result(prepared, result)
        except Exception as error:  # noqa: BLE001 - the model learns of it, or it is raised again
            content = _describe_failure(prepared, error)
        return _make_update(call, content)

    async def aexecute(self, call: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
        """As `execute`; a synchronous tool runs on a thread."""
        prepared = self._prepare(call)
        if isinstance(prepared, str):
            return _make_update(call, prepared)
        attempts = self._attempts[prepared.tool.name]
        try:
            if attempts.is_async:
                result = await attempts.run(prepared.checked, config)
            else:
                # A cancelled run waits for the function: what it does must not go on after the run lock is free.
                result = await finish_in_thread(attempts.run, prepared.checked, config)
            content = _describe_result(prepared, result)
        except Exception as error:  # noqa: BLE001 - the model learns of it, or it is raised again
            content = _describe_failure(prepared, error)
        return _make_update(call, content)

    def _prepare(self, call: Mapping[str, Any]) -> _ToolCall | str:
        """Find the tool of a call, check the arguments and ask for approval.

        Returns:
            The call to execute; or, if it will not be executed, the result for the model.

        Raises:
            GraphInterrupt: it has to be approved.
        """
        # What the model can correct is a result that says so. An exception would end the run, and with it the
        # other calls of the message.
        parsed = parse_tool_call(call)
        tool = self._tools.get(parsed.name)
        if tool is None:
            names = ", ".join(self._tools)
            return f"Error: there is no tool {parsed.name!r}; the tools are: {names}"
        if parsed.arguments is None:
            return f"Error: the call was not executed: {parsed.problem}"
        try:
            checked = tool.check_arguments(parsed.arguments)
        except ToolArgumentsError as error:
            return f"Error: the call was not executed: {error}"
        prepared = _ToolCall(
            tool=tool,
            call_id=parsed.id,
            arguments=parsed.arguments,
            checked=checked,
            is_changed=False,
        )
        if tool.requires_approval:
            return _approve(prepared)
        return prepared


def _as_call(tool: Tool) -> Call:
    """Return a tool as a call that takes the arguments, as a mapping, and the config."""
    function = tool.function
    config_parameter = tool.signature and tool.signature.config_parameter

    def with_config(arguments: Mapping[str, Any], config: RunnableConfig) -> Mapping[str, Any]:
        if config_parameter is None:
            return arguments
        return {**arguments, config_parameter: config}

    def run(arguments: Mapping[str, Any], config: RunnableConfig) -> Any:
        return function(**with_config(arguments, config))

    async def arun(arguments: Mapping[str, Any], config: RunnableConfig) -> Any:
        return await function(**with_config(arguments, config))

    call = arun if tool.is_async else run
    return Call(call, takes_config=True)


# Approval


def _approve(call: _ToolCall) -> _ToolCall | str:
    """Return a call as a human has approved it; or, if it was refused, the result for the model."""
    approval = _ask_for_approval(call)
    if not approval.is_approved:
        reason = f": {approval.reason}" if approval.reason else ""
        return f"The call was not executed: a human refused it{reason}"
    if approval.arguments is None:
        return call
    arguments = dict(approval.arguments)
    return dataclasses.replace(
        call,
        arguments=arguments,
        checked=call.tool.check_arguments(arguments),
        is_changed=approval.arguments != call.arguments,
    )


def _ask_for_approval(call: _ToolCall) -> _Approval:
    """Ask a human, again if the answer cannot be used."""
    payload: dict[str, Any] = {"tool": call.tool.name, "arguments": dict(call.arguments), "id": call.call_id}
    # Each `interrupt` matches the next recorded answer of this item. After a resume, the first calls return the
    # answers that could not be used, and the last one stops again, or returns the answer that can be.
    answer = interrupt(payload)
    while True:
        try:
            return _parse_approval(call.tool, answer)
        except ValueError as error:  # the answer is recorded, so an exception would be final
            answer = interrupt({**payload, "error": str(error)})


def _parse_approval(tool: Tool, answer: object) -> _Approval:
    """Read the answer of a human.

    Raises:
        ValueError: it is neither an approval nor a refusal, or the arguments do not fit the tool.
    """
    if isinstance(answer, bool):
        return _Approval(is_approved=answer, reason="", arguments=None)
    if not isinstance(answer, Mapping) or not _ANSWER_KEYS.issuperset(answer):
        raise _wrong_answer(answer)
    approved = answer.get("approved")
    if not isinstance(approved, bool):
        raise _wrong_answer(answer)
    reason = answer.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"the reason must be text, not {reason!r}")
    arguments = answer.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments must be a mapping, not {arguments!r}")
    if approved and arguments is not None:
        tool.check_arguments(arguments)
    return _Approval(is_approved=approved, reason=reason or "", arguments=arguments)


def _wrong_answer(answer: object) -> ValueError:
    forms = "{'approved': ..., 'reason': ..., 'arguments': ...}"
    return ValueError(f"answer True, False or {forms}, not {answer!r}")


# Results


def _make_update(call: Mapping[str, Any], content: str) -> dict[str, Any]:
    return {MESSAGES: [tool_message(call["id"], content)]}


def _describe_result(call: _ToolCall, result: Any) -> str:
    """Return the result of a tool as text: text as it is, anything else as JSON.

    Raises:
        TypeError: the result has no JSON form.
    """
    if isinstance(result, str):
        return _note_change(call) + result
    try:
        jsonable = to_jsonable_python(to_plain(result))
    except PydanticSerializationError as error:
        found = type(result).__name__
        raise TypeError(f"the tool was executed, but its result, {found}, has no JSON form: {error}") from error
    return _note_change(call) + json.dumps(jsonable, ensure_ascii=False, separators=(",", ":"))


def _describe_failure(call: _ToolCall, error: Exception) -> str:
    """Return the failure of a tool as text for the model.

    Raises:
        ToolError: failures of this tool stop the run.
        CheckpointerError: the store failed, not the tool.
    """
    # A store that fails inside a tool, such as in `config.once`, must not become an answer: the model would go on
    # as if the tool had failed, and the run would record what it could not read or write.
    if isinstance(error, CheckpointerError):
        raise error
    reason = describe_error(error)
    if call.tool.on_error == "raise":
        raise ToolError(call.tool.name, call.call_id, reason) from error
    return f"{_note_change(call)}Error: {reason}"


def _note_change(call: _ToolCall) -> str:
    """Return a note for the model if a human has changed the arguments."""
    if not call.is_changed:
        return ""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return f"A human changed the arguments to {arguments}.\n"
