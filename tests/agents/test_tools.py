"""tool(): the schema and the checks of a function."""

import functools
from datetime import date
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from graphkit import RetryPolicy, RunnableConfig
from graphkit.agents import Tool, tool
from graphkit.agents.tools import ToolArgumentsError, collect_tools


class Address(BaseModel):
    street: str
    number: int


def ship(to: Address, weight: Annotated[float, Field(description="in kg", gt=0)], express: bool = False) -> str:
    """Ship a parcel."""
    return f"{to.street} {to.number}, {weight} kg, {express}"


def test_the_signature_is_the_schema():
    schema = tool(ship).schema
    assert schema["type"] == "function"
    function = schema["function"]
    assert function["name"] == "ship"
    assert function["description"] == "Ship a parcel."
    parameters = function["parameters"]
    assert parameters["required"] == ["to", "weight"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["weight"] == {"description": "in kg", "exclusiveMinimum": 0, "type": "number"}
    assert properties["express"] == {"default": False, "type": "boolean"}
    address = parameters["$defs"]["Address"]
    assert address["properties"] == {"street": {"type": "string"}, "number": {"type": "integer"}}


def test_arguments_are_converted_to_the_annotated_types():
    checked = tool(ship).check_arguments({"to": {"street": "Elm", "number": 5}, "weight": 2})
    assert checked == {"to": Address(street="Elm", number=5), "weight": 2.0}
    assert ship(**checked) == "Elm 5, 2.0 kg, False"


def test_wrong_arguments_are_named():
    for arguments, problem in (
        ({"weight": 1}, "to: is missing"),
        ({"to": {"street": "Elm", "number": "five"}, "weight": 1}, "to.number: must be a valid integer"),
        ({"to": {"street": "Elm", "number": 5}, "weight": 0}, "weight: must be greater than 0"),
        ({"to": {"street": "Elm", "number": 5}, "weight": 1, "colour": 1}, "colour: is unknown"),
    ):
        with pytest.raises(ToolArgumentsError, match=problem):
            tool(ship).check_arguments(arguments)


def test_names_that_pydantic_reserves_are_names_of_parameters():
    def odd(schema: str, model_config: int, _private: date, copy: Literal["a", "b"] = "a"):
        pass

    odd_tool = tool(odd)
    assert list(odd_tool.parameters["properties"]) == ["schema", "model_config", "_private", "copy"]
    checked = odd_tool.check_arguments({"schema": "s", "model_config": 1, "_private": "2026-11-22"})
    assert checked == {"schema": "s", "model_config": 1, "_private": date(2026, 11, 22)}


def test_the_model_does_not_see_the_config():
    def save(text: str, config: RunnableConfig):
        pass

    saving = tool(save)
    assert list(saving.parameters["properties"]) == ["text"]
    assert saving.signature.config_parameter == "config"


def test_a_decorated_function_can_still_be_called():
    @tool(name="twice", requires_approval=True, retry=RetryPolicy(max_attempts=2), timeout=3, on_error="raise")
    def double(number: int) -> int:
        return 2 * number

    assert isinstance(double, Tool)
    assert double(4) == 8
    assert (double.name, double.requires_approval, double.timeout, double.on_error) == ("twice", True, 3, "raise")


def test_partials_and_objects_are_tools():
    class Adder:
        """Adds."""

        def __call__(self, a: int, b: int) -> int:
            return a + b

    async def wait(seconds: int, unit: str) -> None:
        pass

    assert tool(Adder()).name == "Adder"
    assert list(tool(Adder()).parameters["properties"]) == ["a", "b"]
    waiting = tool(functools.partial(wait, unit="s"))
    assert waiting.name == "wait"
    assert waiting.is_async
    assert tool(wait).is_async
    assert not tool(ship).is_async


def takes_any(*values):
    pass


def takes_keywords(**values):
    pass


def takes_positions(value, /):
    pass


class Opaque:
    pass


def takes_opaque(value: Opaque):
    pass


def takes_unknown(value: "NoSuchType"):  # noqa: F821
    pass


def yields(value: int):
    yield value


def test_a_function_that_cannot_be_a_tool_is_refused():
    for function in (takes_any, takes_keywords, takes_positions, takes_opaque, takes_unknown, yields):
        with pytest.raises(TypeError, match=function.__name__):
            tool(function)


def test_wrong_options_are_refused():
    for options, problem in (
        ({"name": "two words"}, "1 to 64 letters"),
        ({"timeout": 0}, "above 0"),
        ({"on_error": "ignore"}, "one of 'model', 'raise'"),
    ):
        with pytest.raises(ValueError, match=problem):
            tool(ship, **options)
    with pytest.raises(TypeError, match="cannot be called"):
        Tool(name="x", description="", parameters={}, function="f", is_async=False)


def takes_nothing():
    pass


def test_each_tool_has_a_name_of_its_own():
    assert list(collect_tools([ship, ship])) == ["ship"]
    with pytest.raises(ValueError, match="two tools named 'ship'"):
        collect_tools([ship, tool(takes_nothing, name="ship")])
    with pytest.raises(TypeError, match="a function or a Tool"):
        collect_tools(["ship"])
