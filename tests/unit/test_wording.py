"""Messages of pydantic in plain words."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from graphkit._wording import simplify_message, simplify_text
from graphkit.compat.go_agents import CheckpointConfig
from graphkit.errors import CheckpointerConfigurationError


class Inner(BaseModel):
    n: int


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner
    name: str = ""

    @model_validator(mode="after")
    def whole(self):
        if self.name == "bad":
            raise ValueError("choose another name")
        assert self.name != "worse", "never"
        return self


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"inner": {"n": "]x, input_type=int]"}}, "Outer: inner.n: must be a valid integer, unable to parse string as an integer"),
        ({}, "Outer: inner: is missing"),
        ({"inner": {"n": 1}, "more": 2, "name": 3}, "Outer: name: must be a valid string; more: is unknown"),
        ({"inner": {"n": 1}, "name": "bad"}, "Outer: choose another name"),
        ({"inner": {"n": 1}, "name": "worse"}, "Outer: never"),
    ],
)  # fmt: skip
def test_a_validation_error_in_one_line(fields, text):
    with pytest.raises(ValidationError) as raised:
        Outer(**fields)
    assert simplify_text(f"the input cannot be merged: {raised.value}").startswith(
        f"the input cannot be merged: {text}"
    )


@pytest.mark.parametrize("text", ["", "no such item", "1 validation error for nobody", "Value error: 1\n  2"])
def test_other_text_stays_as_it_is(text):
    assert simplify_text(text) == text


def test_a_text_that_was_cut_is_as_plain_as_it_can_be():
    with pytest.raises(ValidationError) as raised:
        Outer(inner={"n": 1}, name="bad")
    text = str(raised.value)
    for length in range(len(text)):
        assert "Value error, " not in simplify_text(text[:length]) or length < len("1 validation error for Outer\n  ")


def test_a_sentence_without_the_library_s_beginning():
    assert simplify_message("Value error, too small") == "too small"
    assert simplify_message("too small") == "too small"


def test_a_configuration_names_the_field_and_what_is_wrong():
    with pytest.raises(CheckpointerConfigurationError) as raised:
        CheckpointConfig(interval=-1, colour="red")
    assert str(raised.value) == "interval: must be greater than or equal to 0; colour: is unknown"
