"""States as bytes and as JSON, and checkpoints as plain data."""

import json
import pickle
from dataclasses import dataclass, make_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest

from graphkit import AgentState, CheckpointCorruptionError, CheckpointFormatError, CheckpointSerializationError
from graphkit.agents import CheckpointData, StateSerializer
from graphkit.testing import same
from graphkit.testing._values import UnknownType, application_types, sample_values

TYPES = application_types()
NOW = datetime(2026, 11, 22, 10, 30, 1, 5, tzinfo=UTC)


@pytest.mark.requirement("P61")
@pytest.mark.parametrize("name", list(sample_values()))
def test_every_type_comes_back_exactly_from_bytes_and_from_json(name):
    state = {"value": sample_values()[name], "list": [sample_values()[name], 1]}
    same(StateSerializer.deserialize(StateSerializer.serialize(state), types=TYPES), state)
    same(StateSerializer.from_json(StateSerializer.to_json(state), types=TYPES), state)


def test_what_json_can_hold_is_plain_json():
    state = {"messages": [{"role": "user", "content": "é"}], "n": 1, "x": 0.5, "none": None}
    assert json.loads(StateSerializer.to_json(state)) == state
    assert "é" in StateSerializer.to_json(state)


class Size(tuple, Enum):  # noqa: SLOT001 - members have attributes
    SMALL = (1, 2)


@dataclass
class Shirt:
    sizes: list[Size]


def test_a_member_of_an_enum_of_tuples_comes_back_as_itself():
    state = {"size": Size.SMALL, "shirt": Shirt([Size.SMALL])}
    back = StateSerializer.from_json(StateSerializer.to_json(state), types=[Size, Shirt])
    assert back["size"] is Size.SMALL
    assert back["shirt"].sizes[0] is Size.SMALL


def test_a_state_of_a_run_is_accepted():
    assert StateSerializer.deserialize(StateSerializer.serialize(AgentState({"n": [1]}))) == {"n": [1]}
    assert StateSerializer.from_json(StateSerializer.to_json(AgentState({"n": [1]}))) == {"n": [1]}


@pytest.mark.parametrize("write", [StateSerializer.serialize, StateSerializer.to_json])
def test_a_value_that_cannot_be_stored_is_refused_with_its_path(write):
    with pytest.raises(CheckpointSerializationError, match=r"a\[0\]"):
        write({"a": [object()]})


@pytest.mark.parametrize("write", [StateSerializer.serialize, StateSerializer.to_json])
def test_two_classes_of_one_name_are_refused_with_the_path(write):
    first, second = (make_dataclass("Item", [("number", int)]) for _ in range(2))
    first.__module__ = second.__module__ = "shop"
    assert write({"a": [first(1), first(2)]})
    with pytest.raises(CheckpointSerializationError, match=r"a\[1\].*two classes are called 'shop.Item'"):
        write({"a": [first(1), second(2)]})


def test_a_type_that_the_reader_does_not_name_is_refused():
    state = {"value": next(value for value in sample_values().values() if type(value) in TYPES)}
    with pytest.raises(CheckpointSerializationError):
        StateSerializer.deserialize(StateSerializer.serialize(state))
    with pytest.raises(CheckpointSerializationError):
        StateSerializer.from_json(StateSerializer.to_json(state))


@pytest.mark.requirement("P61")
def test_pickle_is_used_only_on_request_on_both_sides():
    state = {"value": UnknownType()}
    with pytest.raises(CheckpointSerializationError):
        StateSerializer.serialize(state)
    with pytest.raises(CheckpointSerializationError, match="cannot be pickled"):
        StateSerializer.serialize({"f": lambda: 1}, allow_pickle=True)
    data = StateSerializer.serialize(state, allow_pickle=True)
    with pytest.raises(CheckpointSerializationError, match="allow_pickle=True"):
        StateSerializer.deserialize(data)
    restored = StateSerializer.deserialize(data, allow_pickle=True)
    assert type(restored["value"]) is UnknownType
    plain = StateSerializer.serialize({"n": 1}, allow_pickle=True)
    assert b"pickle" not in plain
    assert StateSerializer.deserialize(plain) == {"n": 1}


class Trap:
    """Its pickle runs code."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the data ran')",))


def test_bare_pickles_are_never_read():
    with pytest.raises(CheckpointFormatError, match="not written by"):
        StateSerializer.deserialize(pickle.dumps(Trap()), allow_pickle=True)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_each_changed_or_missing_byte_is_an_error(allow_pickle):
    state = {"value": UnknownType() if allow_pickle else [1, "two"]}
    data = StateSerializer.serialize(state, allow_pickle=allow_pickle)
    for index in range(len(data)):
        changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
        for damaged in (changed, data[:index]):
            with pytest.raises((CheckpointCorruptionError, CheckpointFormatError)):
                StateSerializer.deserialize(damaged, allow_pickle=allow_pickle)


def test_json_that_is_damaged_is_an_error():
    for text in ("", "{", '{"a": NaN}', '{"a": {"$packed": "!"}}', '{"a": {"$packed": 3}}', "[" * 100_000):
        with pytest.raises(CheckpointFormatError):
            StateSerializer.from_json(text)


def make_data():
    state = {"when": NOW, "n": 1, "set": {1, 2}}
    metadata = {"step": 3, "took": timedelta(seconds=2)}
    return CheckpointData(thread_id="t", checkpoint_id="c", state=state, metadata=metadata, timestamp=NOW)


@pytest.mark.requirement("P62")
def test_checkpoint_data_makes_a_round_trip_through_json():
    data = make_data()
    plain = json.loads(json.dumps(data.to_dict()))
    again = CheckpointData.from_dict(plain)
    assert again == data
    assert CheckpointData.from_dict(plain | {"timestamp": NOW}) == data
    same(again.state, data.state)
    assert plain["timestamp"] == "2026-11-22T10:30:01.000005+00:00"
    assert plain["state"]["n"] == 1
    assert plain.pop("version") == "1.0"
    del plain["metadata"]
    again = CheckpointData.from_dict(plain)
    assert (again.version, again.metadata) == ("1.0", {})


@pytest.mark.requirement("P62")
def test_a_newer_version_is_a_clear_error():
    for version in ("1.1", "2.0", "10.0"):
        with pytest.raises(CheckpointFormatError, match=f"version {version} is newer than 1.0; install"):
            CheckpointData.from_dict(make_data().to_dict() | {"version": version, "unknown": 1})


def test_a_wrong_or_missing_field_is_named():
    for change, message in (
        ({"version": "one"}, "version must be text"),
        ({"thread_id": 3}, "thread_id must be a str"),
        ({"state": [1]}, "state must be a Mapping"),
        ({"timestamp": "yesterday"}, "timestamp must be a time"),
        ({"state": {"a": {"$packed": "!"}}}, "state is damaged"),
        ({"more": 1}, "'more' is unknown"),
    ):
        with pytest.raises(CheckpointFormatError, match=message):
            CheckpointData.from_dict(make_data().to_dict() | change)
    for name in ("thread_id", "checkpoint_id", "state", "timestamp"):
        plain = make_data().to_dict()
        del plain[name]
        with pytest.raises(CheckpointFormatError, match=f"{name} is missing"):
            CheckpointData.from_dict(plain)
