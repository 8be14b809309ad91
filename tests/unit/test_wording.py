"""Messages of pydantic in plain words, as the command line and configurations show them."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from graphkit.cli.cells import describe_failure
from graphkit.compat.go_agents import CheckpointConfig
from graphkit.errors import CheckpointerConfigurationError


class Inner(BaseModel):
    n: int


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner
    name: str = ""

    @model_validator(mode="after")
    def check_name(self):
        if self.name == "bad":
            raise ValueError("choose another name")
        return self


def show(message):
    """The text that the command line shows of a failure with this message."""
    return describe_failure({"type": "Error", "message": message}).removeprefix("Error: ")


def error_of(**fields):
    with pytest.raises(ValidationError) as raised:
        Outer(**fields)
    return str(raised.value)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inner": {"n": "]x, input_type=int]"}}, "Outer: inner.n: must be a valid integer, unable to parse string as an integer"),
        ({"inner": {"n": 1}, "more": 2, "name": 3}, "Outer: name: must be a valid string; more: is unknown"),
        ({"inner": {"n": 1}, "name": "bad"}, "Outer: choose another name"),
    ],
)  # fmt: skip
def test_a_validation_error_in_one_line(fields, text):
    shown = show(f"the input cannot be merged: {error_of(**fields)}")
    assert shown.startswith(f"the input cannot be merged: {text}")


def test_a_configuration_names_the_field_and_what_is_wrong():
    with pytest.raises(CheckpointerConfigurationError) as raised:
        CheckpointConfig(interval=-1, colour="red")
    assert str(raised.value) == "interval: must be greater than or equal to 0; colour: is unknown"
