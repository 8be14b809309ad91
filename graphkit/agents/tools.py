"""tool() and Tool: functions that a model may call, and what they take. ToolCalls executes the calls of a message.

The calls of a message are the items of a map node. The map records the result of each call when the
call has finished, so a resume executes only the others. A call that has to be approved stops there
with an interrupt of its own.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack, final, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from graphkit._options import check_choice, check_seconds, parse_json
from graphkit._plan.calls import compose_call
from graphkit._plan.retry import RetryPolicy
from graphkit._plan.topology import Call
from graphkit._records.config import RunnableConfig
from graphkit._records.context import interrupt
from graphkit._to_thread import HeldCancellation
from graphkit._wording import describe_error, simplify_message
from graphkit.agents.messages import check_tool_call, to_plain, tool_message
from graphkit.agents.state import MESSAGES
from graphkit.errors import CheckpointerError, ToolError

_CONFIG: Final = ConfigDict(extra="forbid")
_REFUSED_KINDS: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}


class ToolArgumentsError(ValueError):
    """The arguments of a tool call do not fit the tool; the message is for the model."""


def parse_arguments(sent: Any) -> Mapping[str, Any]:
    """Return the arguments of a tool call, as the model sent them.

    Raises:
        ToolArgumentsError: they are not a JSON object.
    """
    if sent is None or sent == "":  # models send this for a tool without parameters
        return {}
    if isinstance(sent, Mapping):  # some compatible servers send the object itself
        return sent
    try:
        parsed = parse_json(sent)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolArgumentsError(f"the arguments are not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ToolArgumentsError(f"the arguments must be a JSON object, not {type(parsed).__name__}")
    return parsed


@final
class _SchemaWithoutTitles(GenerateJsonSchema):
    """Titles repeat the names, and the model pays for each word."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


@final
class ToolSignature:
    """What a function takes, as the model sees it.

    A parameter annotated with RunnableConfig receives the config of the run; the model does not see
    it.

    Attributes:
        parameters: the JSON schema of the arguments, an object.
        config_parameter: the name of the parameter that receives the config; None without one.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        """Read the signature of a function.

        Args:
            name: the name of the tool, for messages.
            function: its parameters are annotated with types that pydantic knows; one without an
                annotation accepts any JSON value.

        Raises:
            TypeError: a parameter cannot be passed by name, or its annotation has no JSON schema; or the function is
                a method without its object.
        """
        self.config_parameter: str | None = None
        fields: dict[str, Any] = {}
        for parameter in _parameters_of(name, function):
            if parameter.annotation is RunnableConfig:
                self.config_parameter = parameter.name
                continue
            # An alias, because a field cannot have the name of an attribute of pydantic's models.
            field_name = f"argument_{len(fields)}"
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[field_name] = Annotated[parameter.annotation, Field(alias=parameter.name)], default
        try:
            self._model: type[BaseModel] = create_model(name, __config__=_CONFIG, **fields)
            schema = self._model.model_json_schema(schema_generator=_SchemaWithoutTitles)
        except PydanticUserError as error:
            reason = error.message.splitlines()[0]
            raise TypeError(f"the parameters of tool {name!r} have no JSON schema: {reason}") from error
        schema.pop("title", None)
        self.parameters: Mapping[str, Any] = schema

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments converted to the types of the annotations.

        Arguments that are missing and have a default are left out.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or of the wrong type.
        """
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            problems: list[str] = []
            for problem in error.errors():
                where = ".".join(map(str, problem["loc"]))
                message = simplify_message(problem["msg"])
                problems.append(f"{where}: {message}" if where else message)
            raise ToolArgumentsError("; ".join(problems)) from error
        given = model.model_fields_set
        fields = self._model.model_fields.items()
        return {str(field.alias): getattr(model, name) for name, field in fields if name in given}


def _parameters_of(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with their annotations resolved."""
    # What has the annotations: the function of a partial, and the `__call__` of an object.
    annotated: Any = function
    while isinstance(annotated, partial):
        annotated = annotated.func
    if not inspect.isroutine(annotated):
        annotated = type(annotated).__call__
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(annotated, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(f"the signature of tool {name!r} cannot be read: {error}") from error
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            raise TypeError(f"tool {name!r} is a method without its object: give a method of an object")
        refusal = _REFUSED_KINDS.get(parameter.kind)
        if refusal is not None:
            raise TypeError(
                f"tool {name!r}: parameter {parameter.name!r} {refusal}; "
                f"a model passes arguments by name, so give each argument a parameter of its own"
            )
        annotation = hints.get(parameter.name, Any)
        parameters.append(parameter.replace(annotation=annotation))
    return parameters


OnError = Literal["model", "raise"]
"""What a failed call does: answer the model with the error, or stop the run."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What the protocol of chat completions accepts as the name of a function."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call, and how graphkit executes such a call. Immutable.

    `tool()` makes one from a function. Calling a Tool calls its function.
    """

    name: str
    """Unique in an agent: 1 to 64 letters, digits, `_` and `-`."""
    description: str
    """What the tool does, for the model."""
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments, an object."""
    function: Callable[..., Any]
    """Called with the arguments by keyword; it may be asynchronous."""
    is_async: bool = False
    """Whether the function returns an awaitable."""
    requires_approval: bool = False
    """Whether a human has to approve each call before it is executed."""
    retry: RetryPolicy | None = None
    """When a failed call is executed again; None: never."""
    timeout: float | None = None
    """Seconds for one attempt; None: no limit."""
    on_error: OnError = "model"
    """What happens when the last attempt has failed. "model": the model receives the error as the
    result. "raise": the run fails, and a resume executes the call again."""
    signature: ToolSignature | None = None
    """Checks the arguments; None: they are passed on as the model sent them."""

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"the name of a tool must be 1 to 64 letters, digits, '_' or '-', not {name!r}")
        if not callable(self.function):
            raise TypeError(f"the function of tool {self.name!r} cannot be called: {self.function!r}")
        what = f"tool {self.name!r}"
        check_choice(f"on_error of {what}", self.on_error, "model", "raise")
        if not isinstance(self.retry, RetryPolicy | None):
            raise TypeError(f"retry of {what} must be a RetryPolicy, not {self.retry!r}")
        if self.timeout is not None:
            check_seconds(f"the timeout of {what}", self.timeout)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the form of chat completions."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    def check_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them.

        Raises:
            ToolArgumentsError: an argument is missing, unknown or of the wrong type.
        """
        if self.signature is None:
            return dict(arguments)
        return self.signature.check(arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class _Options(TypedDict, total=False):
    name: str | None
    requires_approval: bool
    retry: RetryPolicy | None
    timeout: float | None
    on_error: OnError


@overload
def tool(function: Callable[..., Any], **options: Unpack[_Options]) -> Tool: ...
@overload
def tool(function: None = None, **options: Unpack[_Options]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    requires_approval: bool = False,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    on_error: OnError = "model",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function; also a decorator, with or without options.

    The docstring is the description, and the annotations are the schema: `Annotated[int,
    Field(description="in metres")]` describes a parameter. A parameter annotated with
    RunnableConfig receives the config of the run.

    Args:
        function: synchronous or asynchronous; its result must be text or have a JSON form.
        name: the name for the model; the function's own name by default.
        requires_approval: stop the run before each call until a human has approved it.
        retry: when a failed call is executed again.
        timeout: seconds for one attempt. An asynchronous function is cancelled; a synchronous one
            is abandoned, because a thread cannot be stopped.
        on_error: "model": the model receives the error as the result; "raise": the run fails.

    Raises:
        TypeError: the function's parameters cannot be passed by name or have no JSON schema, or it
            is a generator.
        ValueError: the name, the timeout or on_error is not valid.
    """

    def make(function: Callable[..., Any]) -> Tool:
        call = Call(function)
        tool_name = name or name_of(function)
        if call.is_generator:
            raise TypeError(f"tool {tool_name!r} is a generator: return the result instead")
        signature = ToolSignature(tool_name, function)
        return Tool(
            name=tool_name,
            description=inspect.getdoc(function) or "",
            parameters=signature.parameters,
            function=function,
            is_async=call.is_async,
            requires_approval=requires_approval,
            retry=retry,
            timeout=timeout,
            on_error=on_error,
            signature=signature,
        )

    return make if function is None else make(function)


def collect_tools(tools: Iterable[Any]) -> dict[str, Tool]:
    """Return tools by name, in their order; a plain function becomes a tool, and the same tool counts once.

    Raises:
        ValueError: two tools have the same name.
        TypeError: one is neither a tool nor a function that can be one.
    """
    collected: dict[str, Tool] = {}
    for given in tools:
        if not callable(given):
            raise TypeError(f"a tool must be a function or a Tool, not {given!r}")
        new = given if isinstance(given, Tool) else tool(given)
        known = collected.setdefault(new.name, new)
        if known is not new and known.function != new.function:
            raise ValueError(f"there are two tools named {new.name!r}: give one another name with tool(..., name=)")
    return collected


def name_of(function: Any) -> str:
    """Return the name of a function, or of the function of a partial; of another object, that of its type."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


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
    note: str = ""
    """Put before the result for the model, if a human has changed the arguments."""


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
                # A cancelled run waits for the function, and records its result: the cancellation is held back, and
                # dropped, because it reaches the run by itself.
                result = await HeldCancellation().complete_in_thread(attempts.run, prepared.checked, config)
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
        check_tool_call(call)
        function = call["function"]
        tool = self._tools.get(function["name"])
        if tool is None:
            names = ", ".join(self._tools)
            return f"Error: there is no tool {function['name']!r}; the tools are: {names}"
        try:
            arguments = parse_arguments(function.get("arguments"))
            checked = tool.check_arguments(arguments)
        except ToolArgumentsError as error:
            return f"Error: the call was not executed: {error}"
        prepared = _ToolCall(
            tool=tool,
            call_id=call["id"],
            arguments=arguments,
            checked=checked,
        )
        if tool.requires_approval:
            return _approve(prepared)
        return prepared


def _as_call(tool: Tool) -> Call:
    """Return a tool as a call that takes the arguments, as a mapping, and the config."""
    function = tool.function
    config_parameter = tool.signature and tool.signature.config_parameter

    def run(arguments: Mapping[str, Any], config: RunnableConfig) -> Any:
        if config_parameter is not None:
            arguments = {**arguments, config_parameter: config}
        return function(**arguments)

    call = Call(run, takes_config=True)
    call.is_async = tool.is_async
    return call


# Approval


def _approve(call: _ToolCall) -> _ToolCall | str:
    """Return a call as a human has approved it; or, if it was refused, the result for the model."""
    payload: dict[str, Any] = {"tool": call.tool.name, "arguments": dict(call.arguments), "id": call.call_id}
    # Each `interrupt` matches the next recorded answer of this item. After a resume, the first calls return the
    # answers that could not be used, and the last one stops again, or returns the answer that can be.
    answer = interrupt(payload)
    while True:
        try:
            return _apply_answer(call, answer)
        except ValueError as error:  # the answer is recorded, so an exception would be final
            answer = interrupt({**payload, "error": str(error)})


def _apply_answer(call: _ToolCall, answer: object) -> _ToolCall | str:
    """Return a call as an answer approves it; or, if it was refused, the result for the model.

    Raises:
        ValueError: it is neither an approval nor a refusal, or the arguments do not fit the tool.
    """
    given: Any = {"approved": answer} if isinstance(answer, bool) else answer
    is_answer = isinstance(given, Mapping) and _ANSWER_KEYS.issuperset(given)
    if not is_answer or not isinstance(given.get("approved"), bool):
        forms = "{'approved': ..., 'reason': ..., 'arguments': ...}"
        raise ValueError(f"answer True, False or {forms}, not {answer!r}")
    reason = given.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise ValueError(f"the reason must be text, not {reason!r}")
    arguments = given.get("arguments")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments must be a mapping, not {arguments!r}")
    if not given["approved"]:
        return "The call was not executed: a human refused it" + (f": {reason}" if reason else "")
    if arguments is None:
        return call
    # The form in which a model sends arguments: an answer made in code may hold dates and other objects.
    sent = to_jsonable_python(to_plain(arguments))
    checked = call.tool.check_arguments(sent)
    note = ""
    if sent != call.arguments:
        note = f"A human changed the arguments to {json.dumps(sent, ensure_ascii=False)}.\n"
    return dataclasses.replace(call, arguments=sent, checked=checked, note=note)


# Results


def _make_update(call: Mapping[str, Any], content: str) -> dict[str, Any]:
    return {MESSAGES: [tool_message(call["id"], content)]}


def _describe_result(call: _ToolCall, result: Any) -> str:
    """Return the result of a tool as text: text as it is, anything else as JSON.

    Raises:
        TypeError: the result has no JSON form.
    """
    if isinstance(result, str):
        return call.note + result
    try:
        jsonable = to_jsonable_python(to_plain(result))
    except (ValueError, RecursionError) as error:
        found = type(result).__name__
        raise TypeError(f"the tool was executed, but its result, {found}, has no JSON form: {error}") from error
    return call.note + json.dumps(jsonable, ensure_ascii=False, separators=(",", ":"))


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
    return f"{call.note}Error: {reason}"
