"""Checkpoints are decoded from the packed bytes of their histories as they were put, in whatever way they are read."""

import random
from collections import deque
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import Codec, FrozenDict
from savers._delta import BIN, LIST, STR, pack_header
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph import FileSystemCheckpointSaver
from savers.langgraph.histories import FoundCheckpoint
from savers.langgraph.history_decoder import HistoryDecoder

HISTORY = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
VALUES = [
    1, None, b"", b"b" * 100, bytearray(b"x" * 70), "s" * 300, [1] * 20, {"a": {"b": [1]}}, Decimal("1.5"),
    datetime(2026, 1, 1, tzinfo=UTC), deque([1, 2]), {1: 2}, [{"id": str(n)} for n in range(40)], {3, 4},
]  # fmt: skip
VERSIONS = [1, 2.5, "00000000000000000000000000000001.0.5", 1 << 40, "v" * 80]
OTHER_VERSIONS = [Decimal(1), None, [1, 2], datetime(2026, 1, 1, tzinfo=UTC), True]
"""Of types that no saver of LangGraph makes; a version may be of any type."""
NAMES = ["a", "b", "channel:c", "value:d", "", "é", "n" * 300]


def put_one(saver, config, values, versions, seen):
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = versions
    checkpoint["versions_seen"] = seen
    return saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, versions), checkpoint


def check(saver, puts):
    """Whatever way is taken, the checkpoints of a history are those that were put."""
    for limit in (None, 9):
        expected = puts[::-1][:limit]
        with FileSystemCheckpointSaver(saver.store.base_directory) as other:
            for config in (None, HISTORY):
                listed = list(other.list(config, limit=limit))
                assert [one.checkpoint for one in listed] == [checkpoint for _, checkpoint in expected]
                assert [one.config for one in listed] == [config for config, _ in expected]
    order = [*puts]
    for find_one in (FileSystemCheckpointSaver.get_tuple, lambda saver, config: next(saver.list(config))):
        random.Random(len(puts)).shuffle(order)
        with FileSystemCheckpointSaver(saver.store.base_directory) as other:
            for config, checkpoint in order:
                found = find_one(other, config)
                assert found.config == config
                assert found.checkpoint == checkpoint


@pytest.mark.parametrize("seed", range(6))
def test_a_history_in_which_some_values_change(saver, seed):
    randomness = random.Random(seed)
    config = HISTORY
    values = {}
    versions = {}
    seen = {}
    puts = []
    for _ in range(40):
        for name in randomness.sample(NAMES, 2):
            values[name] = randomness.choice(VALUES)
            if randomness.random() < 0.1:
                del values[name]
            versions[name] = randomness.choice([*VERSIONS, *OTHER_VERSIONS])
        seen = {**seen, randomness.choice(["x", "y", ""]): {"a": randomness.choice(VERSIONS)}}
        config, checkpoint = put_one(saver, config, dict(values), dict(versions), seen)
        puts.append((config, checkpoint))
    check(saver, puts)


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_versions_of_other_types(saver, version):
    first = put_one(saver, HISTORY, {"a": 1}, {"a": version}, {})
    check(saver, [first, put_one(saver, first[0], {"a": 1}, {"a": 1}, {"node": {"a": version}})])


def test_checkpoints_of_a_history_share_nothing_that_can_be_changed(saver):
    config = HISTORY
    for _ in range(3):
        config, _ = put_one(saver, config, {"a": [1, {"b": [2]}]}, {"a": 1}, {"node": {"a": 1}})
    for one in saver.list({"configurable": {"thread_id": "t"}}):
        assert one.checkpoint["channel_values"] == {"a": [1, {"b": [2]}]}
        assert one.checkpoint["versions_seen"] == {"node": {"a": 1}}
        one.checkpoint["channel_values"]["a"][1]["b"].clear()
        one.checkpoint["versions_seen"]["node"].clear()
        one.checkpoint["channel_versions"].clear()
        one.metadata["parents"]["x"] = 1


# What is no checkpoint of LangGraph


def find(state, writes=(), *, is_packed=True):
    """A checkpoint of a log at offset 7."""
    stored = StoredCheckpoint("id", "a", "b", 0, None, FrozenDict(), offset=7)
    return FoundCheckpoint(stored, state, dict(writes), is_packed=is_packed, path="the log")


EMPTY = b"\x92\xa7msgpack\xc4\1\x80"
"""The rest of a checkpoint that has no other fields."""
BAD_STATES = [
    {},
    {"checkpoint": pack_header(STR, 1) + b"a"},
    {"checkpoint": pack_header(LIST, 2) + b"\1"},
    {"checkpoint": pack_header(LIST, 1) + b"\1"},
    {"checkpoint": pack_header(LIST, 2) + b"\1\2"},
    {"checkpoint": EMPTY, "channel:a": pack_header(LIST, 0)},
    {"checkpoint": EMPTY, "channel:a": pack_header(LIST, 2) + b"\1\xa7msgpack"},
    {"checkpoint": EMPTY, "channel:a": pack_header(LIST, 3) + b"\1\xa4null\xc0", "value:a": pack_header(BIN, 1) + b"a"},
    {"checkpoint": EMPTY, "channel:a": pack_header(LIST, 3) + b"\1\xa4null\xc4\0", "value:a": pack_header(LIST, 0)},
    {"checkpoint": EMPTY, "seen:a": pack_header(LIST, 1) + b"\1"},
    {"checkpoint": EMPTY, "other": b"\1"},
]  # fmt: skip


@pytest.mark.parametrize("state", BAD_STATES)
def test_a_state_of_another_shape_is_damage_of_its_record(saver, state):
    with pytest.raises(CheckpointCorruptionError, match="does not have the shape of one of LangGraph") as caught:
        HistoryDecoder(saver._deserializer).take_apart(find(state))
    assert caught.value.offset == 7


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"checkpoint": "a"},
        {"checkpoint": (1, 2)},
        {"checkpoint": ("null", b""), "channel:a": ()},
        {"checkpoint": ("null", b""), "channel:a": (1, "null", b""), "value:a": [1]},
        {"checkpoint": ("null", b""), "seen:a": 1},
        {"checkpoint": ("null", b""), "other": 1},
    ],
)
def test_so_is_one_that_a_saver_without_a_log_returns(saver, state):
    with pytest.raises(CheckpointCorruptionError, match="does not have the shape of one of LangGraph"):
        HistoryDecoder(saver._deserializer).take_apart(find(state, is_packed=False))


@pytest.mark.parametrize("write", [b"\xc0", Codec().pack([1], ""), b"\xc1"])
def test_so_are_writes_of_another_shape(saver, write):
    decoder = HistoryDecoder(saver._deserializer)
    assert decoder.take_apart(find({"checkpoint": EMPTY})).writes == []
    with pytest.raises(CheckpointCorruptionError, match="does not have the shape of one of LangGraph"):
        decoder.take_apart(find({"checkpoint": EMPTY}, {"write:0:t": write}))
    with pytest.raises(CheckpointCorruptionError, match="does not have the shape of one of LangGraph"):
        decoder.take_ancestor(find({"checkpoint": EMPTY}, {"write:0:t": write}), ["a"])
