"""ToolSignature: the parameters of a function as a JSON schema, and the check of arguments against it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

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
            fields[field_name] = _make_field(parameter)
        try:
            self._model: type[BaseModel] = create_model(name, __config__=_CONFIG, **fields)
            self.parameters: Mapping[str, Any] = _make_schema(self._model)
        except PydanticUserError as error:
            reason = error.message.splitlines()[0]
            raise TypeError(f"the parameters of tool {name!r} have no JSON schema: {reason}") from error

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


def _make_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(schema_generator=_SchemaWithoutTitles)
    schema.pop("title", None)
    return schema


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


def _make_field(parameter: inspect.Parameter) -> Any:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return Annotated[parameter.annotation, Field(alias=parameter.name)], default


def _describe_problem(problem: Any) -> str:
    where = ".".join(map(str, problem["loc"]))
    message = simplify_message(problem["msg"])
    return f"{where}: {message}" if where else message
