"""tool() and Tool: functions that a model may call, and what they take."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypedDict, Unpack, final, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from graphkit._options import check_choice, check_seconds
from graphkit._plan.retry import RetryPolicy
from graphkit._plan.topology import Call
from graphkit._records.config import RunnableConfig
from graphkit._wording import simplify_message

_CONFIG: Final = ConfigDict(extra="forbid")
_REFUSED_KINDS: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}


class ToolArgumentsError(ValueError):
    """The arguments of a tool call do not fit the tool; the message is for the model."""


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
            TypeError: a parameter cannot be passed by name, or its annotation has no JSON schema.
        """
        self.config_parameter: str | None = None
        self._names: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for parameter in _parameters_of(name, function):
            if parameter.annotation is RunnableConfig:
                self.config_parameter = parameter.name
                continue
            # An alias, because a field cannot have the name of an attribute of pydantic's models.
            field_name = f"argument_{len(fields)}"
            self._names[field_name] = parameter.name
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
            problems = [_describe_problem(problem) for problem in error.errors()]
            raise ToolArgumentsError("; ".join(problems)) from error
        checked: dict[str, Any] = {}
        for field_name, name in self._names.items():
            if field_name in model.model_fields_set:
                checked[name] = getattr(model, field_name)
        return checked


def _parameters_of(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function, with their annotations resolved."""
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_annotated_part(function), include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise TypeError(f"the signature of tool {name!r} cannot be read: {error}") from error
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        refusal = _REFUSED_KINDS.get(parameter.kind)
        if refusal is not None:
            raise TypeError(
                f"tool {name!r}: parameter {parameter.name!r} {refusal}; "
                f"a model passes arguments by name, so give each argument a parameter of its own"
            )
        annotation = hints.get(parameter.name, Any)
        parameters.append(parameter.replace(annotation=annotation))
    return parameters


def _annotated_part(function: Any) -> Any:
    """Return what has the annotations of a callable: a partial's function, an object's `__call__`."""
    while hasattr(function, "func"):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _describe_problem(problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    message = simplify_message(problem["msg"])
    return f"{where}: {message}" if where else message


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
        tool_name = name or _name_of(function)
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


def _name_of(function: Any) -> str:
    while hasattr(function, "func"):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__
