"""Checkpoints are decoded from the packed bytes of their histories; other bytes are damage."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import Codec, FrozenDict
from savers._delta import BIN, LIST, STR, pack_header
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.decoding import take_ancestor, take_apart
from savers.langgraph.histories import FoundCheckpoint
from tests.support.langgraph_checkpoints import again, put

HISTORY = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


@pytest.mark.parametrize("version", [Decimal(1), None, [1, 2], datetime(2026, 1, 1, tzinfo=UTC), True])
def test_versions_of_types_that_no_saver_of_langgraph_makes(saver, version):
    config = HISTORY
    puts = []
    for number, versions in enumerate(({"a": version}, {"a": 1})):
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"a": number}
        checkpoint["channel_versions"] = versions
        checkpoint["versions_seen"] = {"node": {"a": version}}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, versions)
        puts.append((config, checkpoint))
    with again(saver) as other:
        for found, (config, checkpoint) in zip(other.list(HISTORY), reversed(puts), strict=True):
            assert found.config == config
            assert found.checkpoint == checkpoint
            assert other.get_tuple(config).checkpoint == checkpoint


def test_checkpoints_of_a_history_share_nothing_that_can_be_changed(saver):
    config = HISTORY
    for _ in range(3):
        config = put(saver, config, {"parents": {}}, a=[1, {"b": [2]}])
    for found in saver.list(HISTORY):
        values = found.checkpoint["channel_values"]
        assert values == {"a": [1, {"b": [2]}]}
        values["a"][1]["b"].clear()
        found.checkpoint["channel_versions"].clear()
        found.metadata["parents"]["x"] = 1


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


UNPACKED_STATES = [
    {},
    {"checkpoint": "a"},
    {"checkpoint": (1, 2)},
    {"checkpoint": ("null", b""), "channel:a": ()},
    {"checkpoint": ("null", b""), "channel:a": (1, "null", b""), "value:a": [1]},
    {"checkpoint": ("null", b""), "seen:a": 1},
    {"checkpoint": ("null", b""), "other": 1},
]
"""What a saver without a log may return."""
IS_DAMAGED = {"match": "does not have the shape of one of LangGraph"}


@pytest.mark.parametrize(
    ("state", "is_packed"), [(state, True) for state in BAD_STATES] + [(state, False) for state in UNPACKED_STATES]
)
def test_a_state_of_another_shape_is_damage_of_its_record(state, is_packed):
    with pytest.raises(CheckpointCorruptionError, **IS_DAMAGED) as caught:
        take_apart(find(state, is_packed=is_packed))
    assert caught.value.offset == 7


@pytest.mark.parametrize("write", [b"\xc0", Codec().pack([1], ""), b"\xc1"])
def test_so_are_writes_of_another_shape(write):
    assert take_apart(find({"checkpoint": EMPTY})).writes == []
    found = find({"checkpoint": EMPTY}, {"write:0:t": write})
    for take in (take_apart, lambda found: take_ancestor(found, ["a"])):
        with pytest.raises(CheckpointCorruptionError, **IS_DAMAGED):
            take(found)
