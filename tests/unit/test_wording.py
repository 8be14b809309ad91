"""Messages of pydantic in plain words, as the command line and configurations show them."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from graphkit import Checkpoint, RunnableConfig
from graphkit.cli.cells import describe_failure
from graphkit.compat.go_agents import CheckpointConfig
from graphkit.errors import CheckpointerConfigurationError
from savers import FileSystemSaver
from tests.support.terminal import graphkit


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
        assert self.name != "worse", "never"
        return self


@pytest.fixture
def show(tmp_path):
    """Stores failures with these messages; returns the texts that the command line shows."""

    def run(*messages):
        with FileSystemSaver(tmp_path, fsync="never") as saver:
            for number, message in enumerate(messages):
                config = RunnableConfig(f"{number:05}")
                saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={}))
                saver.put_writes(config, {"failure": {"type": "Error", "message": message}})

        rows = graphkit("threads", tmp_path, "--json", "--limit", str(len(messages))).json
        texts = {row["thread"]: describe_failure(row["failure"]).removeprefix("Error: ") for row in rows}
        return [text for _, text in sorted(texts.items())]

    return run


def error_of(**fields):
    with pytest.raises(ValidationError) as raised:
        Outer(**fields)
    return str(raised.value)


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
def test_a_validation_error_in_one_line(fields, text, show):
    (shown,) = show(f"the input cannot be merged: {error_of(**fields)}")
    assert shown.startswith(f"the input cannot be merged: {text}")


def test_other_text_stays_as_it_is(show):
    texts = ["no such item", "1 validation error for X", "Value error: 1"]
    assert show(*texts) == texts


def test_a_configuration_names_the_field_and_what_is_wrong():
    with pytest.raises(CheckpointerConfigurationError) as raised:
        CheckpointConfig(interval=-1, colour="red")
    assert str(raised.value) == "interval: must be greater than or equal to 0; colour: is unknown"
