"""Checkpoints that a listing decodes from their packed bytes are those that `get_tuple` returns."""

import random
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit import CheckpointSerializationError
from savers._delta import BIN, LIST, STR, pack_header
from savers._log.packed_chain import PackedCheckpoint
from savers.langgraph import FileSystemCheckpointSaver
from savers.langgraph.history_decoder import HistoryDecoder
from savers.langgraph.packed_checkpoints import PackedDecoder

VALUES = [
    1, None, b"", b"b" * 100, bytearray(b"x" * 70), "s" * 300, [1] * 20, {"a": {"b": [1]}}, Decimal("1.5"),
    datetime(2026, 1, 1, tzinfo=UTC), deque([1, 2]), {1: 2}, [{"id": str(n)} for n in range(40)], "\ud800", {3, 4},
]  # fmt: skip
VERSIONS = [1, 2.5, "00000000000000000000000000000001.0.5", 1 << 40, "v" * 80]


@dataclass
class Opaque:
    """A class that LangGraph's serializer may not create."""

    n: int


@pytest.fixture
def saver(tmp_path):
    with FileSystemCheckpointSaver(tmp_path, fsync="never") as opened:
        yield opened


@pytest.fixture
def decoded(monkeypatch):
    """What was decoded from packed bytes; None for what was not."""
    found = []
    decode = PackedDecoder.decode
    monkeypatch.setattr(PackedDecoder, "decode", lambda *args: found.append(decode(*args)) or found[-1])
    return found


def put_one(saver, config, values, versions, seen, version_of=None):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = versions
    checkpoint["versions_seen"] = seen
    return saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, version_of or versions)


@pytest.mark.parametrize("seed", range(6))
def test_every_shape_of_value_and_version(saver, decoded, seed):
    randomness = random.Random(seed)
    for thread in range(4):
        config = {"configurable": {"thread_id": f"t{thread}", "checkpoint_ns": ""}}
        for _ in range(12):
            names = randomness.sample(["a", "b", "channel:c", "value:d", "", "é", "n" * 300], 4)
            values = {name: randomness.choice(VALUES) for name in names[:3]}
            values = {name: value for name, value in values.items() if value != "\ud800"}
            versions = {name: randomness.choice(VERSIONS) for name in names}
            seen = {node: {"a": randomness.choice(VERSIONS)} for node in randomness.sample(["x", "y", ""], 2)}
            config = put_one(saver, config, values, versions, seen)
    with FileSystemCheckpointSaver(saver.store.base_directory) as other:
        listed = list(other.list(None))
        assert listed == [other.get_tuple(one.config) for one in listed]
    assert len(decoded) == 48
    assert None not in decoded


@pytest.mark.parametrize("version", [Decimal(1), None, [1, 2], datetime(2026, 1, 1, tzinfo=UTC), True])
def test_versions_of_other_types_are_read_in_the_general_way(saver, decoded, version):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    put_one(saver, config, {"a": 1}, {"a": version}, {})
    put_one(saver, config, {"a": 1}, {"a": 1}, {"node": {"a": version}})
    assert [*saver.list(None)] == [*saver.list(config)]
    assert decoded == [None, None]


def test_writes_that_came_with_a_checkpoint(saver, decoded):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    saver.restore(config, empty_checkpoint(), {"source": "loop"}, {}, {"k": ["", "task", 0, "a", "msgpack", b"\1"]})
    (found,) = saver.list(None)
    assert found.pending_writes == [("task", "a", 1)]
    assert decoded == [None]


def test_a_type_that_may_not_be_created_is_named(tmp_path):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with FileSystemCheckpointSaver(tmp_path, serde=JsonPlusSerializer(allowed_msgpack_modules=True)) as saver:
        put_one(saver, config, {"a": 1, "b": Decimal(1), "c": Opaque(1)}, {"a": 1, "b": 1, "c": 1}, {})
        assert next(saver.list(None)).checkpoint["channel_values"]["c"] == Opaque(1)
    with FileSystemCheckpointSaver(tmp_path, types=[Decimal]) as strict:
        with pytest.raises(CheckpointSerializationError) as caught:
            list(strict.list(None))
        assert caught.value.path == "c"
        assert "Opaque" in str(caught.value)
    with FileSystemCheckpointSaver(tmp_path, on_blocked_type="plain") as lenient:
        assert next(lenient.list(None)).checkpoint["channel_values"]["c"] == {"n": 1}


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"checkpoint": pack_header(STR, 1) + b"a"},
        {"checkpoint": pack_header(LIST, 2) + b"\1"},
        {"checkpoint": pack_header(LIST, 1) + b"\1"},
        {"channel:a": pack_header(LIST, 0) + b""},
        {"channel:a": pack_header(LIST, 3) + b"\1\xa7msgpack\xc0", "value:a": pack_header(BIN, 1) + b"a"},
        {"channel:a": pack_header(LIST, 3) + b"\1\xa7msgpack\xc4\0", "value:a": pack_header(LIST, 0) + b""},
        {"seen:a": pack_header(LIST, 0) + b""},
        {"other": pack_header(BIN, 1) + b"a"},
    ],
)
def test_states_of_other_shapes_are_left_to_the_general_way(saver, state):
    assert PackedDecoder(saver._deserializer).decode(state) is None


@pytest.fixture
def decoded_histories(monkeypatch):
    """What was decoded from the packed bytes of one history; None for what was not."""
    found = []
    decode = HistoryDecoder.decode
    monkeypatch.setattr(HistoryDecoder, "decode", lambda *args: found.append(decode(*args)) or found[-1])
    return found


@pytest.mark.parametrize("limit", [None, 9])
@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_every_shape_of_value_and_version(saver, decoded_histories, seed, limit, monkeypatch):
    randomness = random.Random(seed)
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    values, versions, seen = {}, {}, {}
    for _ in range(40):
        changed = randomness.sample(["a", "b", "channel:c", "value:d", "", "é", "n" * 300], 2)
        for name in changed:
            values[name] = randomness.choice(VALUES)
            if values[name] == "\ud800":
                del values[name]
            versions[name] = randomness.choice(VERSIONS)
        seen = {**seen, randomness.choice(["x", "y", ""]): {"a": randomness.choice(VERSIONS)}}
        config = put_one(saver, config, dict(values), dict(versions), seen)
        for task in randomness.sample(["one", "two", "three"], randomness.randrange(3)):
            saver.put_writes(config, [("a", randomness.choice(VALUES[:5])), ("__error__", "e")], task)
    with FileSystemCheckpointSaver(saver.store.base_directory) as other:
        listed = list(other.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, limit=limit))
        assert len(listed) == len(decoded_histories) == (limit or 40)
        assert None not in decoded_histories
        # The other ways to read a state: of a past one, and the general one.
        assert listed == [other.get_tuple(one.config) for one in listed]
        monkeypatch.setattr(HistoryDecoder, "decode", lambda *_: None)
        assert listed == [other.get_tuple(one.config) for one in listed]


def test_checkpoints_of_a_history_share_nothing_that_can_be_changed(saver, decoded_histories):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for _ in range(3):
        config = put_one(saver, config, {"a": [1, {"b": [2]}]}, {"a": 1}, {"node": {"a": 1}})
    for one in saver.list({"configurable": {"thread_id": "t"}}):
        assert one.checkpoint["channel_values"] == {"a": [1, {"b": [2]}]}
        assert one.checkpoint["versions_seen"] == {"node": {"a": 1}}
        one.checkpoint["channel_values"]["a"][1]["b"].clear()
        one.checkpoint["versions_seen"]["node"].clear()
        one.checkpoint["channel_versions"].clear()
        one.metadata["parents"]["x"] = 1
    assert len(decoded_histories) == 3
    assert None not in decoded_histories


EMPTY = b"\x92\xa7msgpack\xc4\1\x80"
"""The rest of a checkpoint that has no other fields."""


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"checkpoint": b"a"},
        {"checkpoint": b"\x91\1"},
        {"checkpoint": EMPTY, "channel:a": b"\x90"},
        {
            "checkpoint": EMPTY,
            "channel:a": b"\x93\1\xa4null\xc4\0",
            "value:a": b"\xc4\2a",
        },
        {"checkpoint": EMPTY, "channel:a": b"\x93\1\xa4null\xc4\0", "value:a": b"\x90"},
        {"checkpoint": EMPTY, "seen:a": b"\x90"},
        {"checkpoint": EMPTY, "other": b"\1"},
    ],
)
def test_states_of_other_shapes_in_a_history_are_left_to_the_general_way(saver, state):
    assert HistoryDecoder(saver._deserializer).decode(PackedCheckpoint(state, {})) is None


def test_writes_of_other_shapes_in_a_history_are_left_to_the_general_way(saver):
    state = {"checkpoint": EMPTY}
    decoder = HistoryDecoder(saver._deserializer)
    assert decoder.decode(PackedCheckpoint(state, {})) is not None
    assert decoder.decode(PackedCheckpoint(state, {"write:0:t": b"\xc0"})) is None


def test_writes_that_preceded_their_checkpoint(saver, decoded_histories):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for number in range(40):
        checkpoint = empty_checkpoint()
        own = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
        saver.put_writes(own, [("a", number)], "task")
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {})
    with FileSystemCheckpointSaver(saver.store.base_directory) as other:
        listed = list(other.list({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, limit=4))
    assert [one.pending_writes for one in listed] == [[("task", "a", number)] for number in (39, 38, 37, 36)]
    assert None not in decoded_histories
