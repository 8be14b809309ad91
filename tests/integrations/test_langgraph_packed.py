"""Checkpoints are packed as any other way to put would, and decoded from the packed bytes; other bytes are damage."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from operator import attrgetter
from unittest import mock

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.types import Send

from graphkit import END, Checkpoint
from graphkit.errors import CheckpointCorruptionError
from savers import MemorySaver
from savers._log.writer import LogWriter
from savers.langgraph import FileSystemCheckpointSaver, saver as module
from savers.langgraph.encoding import encode_successor
from savers.langgraph.metadata import derive_next_node
from tests.disk.crashes import fixed
from tests.integrations.langgraph_stores import parametrize
from tests.support.langgraph_checkpoints import again, put, thread, values_of
from tests.support.logs import locate_log

HISTORY = thread()


@pytest.mark.parametrize("version", [Decimal(1), None, [1, 2], datetime(2026, 1, 1, tzinfo=UTC), True])
def test_versions_of_types_that_no_saver_of_langgraph_makes(saver, version):
    config = HISTORY
    puts = []

    for number, versions in enumerate(({"a": version}, {"a": 1})):
        checkpoint = empty_checkpoint()
        checkpoint |= {"channel_values": {"a": number}, "channel_versions": versions}
        checkpoint["versions_seen"] = {"node": {"a": version}}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, versions)
        puts.append((config, checkpoint))

    with again(saver) as other:
        assert [(found.config, found.checkpoint) for found in other.list(HISTORY)] == puts[::-1]
        for config, checkpoint in puts:
            assert other.get_tuple(config).checkpoint == checkpoint


def test_what_is_read_shares_nothing_that_can_be_changed(saver):
    config = HISTORY

    for _ in range(3):
        config = put(saver, config, {"parents": {}, "set": {1, 2}}, a=[1, {"b": [2]}])

    for found in (*saver.list(HISTORY), saver.get_tuple(config), saver.get_tuple(config)):
        values = found.checkpoint["channel_values"]
        assert values == {"a": [1, {"b": [2]}]}
        assert found.checkpoint["channel_versions"].keys() == {"a"}
        assert found.metadata == {"parents": {}, "set": {1, 2}}

        values["a"][1]["b"].clear()
        found.checkpoint["channel_versions"].clear()
        found.metadata["parents"]["x"] = 1
        found.metadata["set"].clear()


# What is no checkpoint of LangGraph


EMPTY = ("msgpack", b"\x80")
"""The rest of a checkpoint that has no other fields."""
STATES = [
    {},
    {"checkpoint": "a"},
    {"checkpoint": (1, 2)},
    {"checkpoint": EMPTY, "other": 1},
    {"checkpoint": EMPTY, "seen:a": 1},
    {"checkpoint": EMPTY, "channel:a": ()},
    {"checkpoint": EMPTY, "channel:a": (1, "msgpack")},
    {"checkpoint": EMPTY, "channel:a": (1, "null", None), "value:a": b"a"},
    {"checkpoint": EMPTY, "channel:a": (1, "null", b""), "value:a": [1]},
]


def assert_is_damage(saver, read):
    with pytest.raises(CheckpointCorruptionError, match="does not have the shape of one of LangGraph") as caught:
        read()
    assert isinstance(saver.store, MemorySaver) or caught.value.offset > 0


@parametrize("file", "MemorySaver")
@pytest.mark.parametrize("state", STATES)
def test_a_state_of_another_shape_is_damage_of_its_record(opener, state):
    saver = opener.new()
    metadata = {"graphkit:made_by": "langgraph"}
    config = saver.store.put("t", Checkpoint(node_id="a", next_node_id="b", state=state, metadata=metadata))
    assert_is_damage(saver, lambda: saver.get_tuple(HISTORY))
    if "channel:a" in state:
        child = put(saver, thread(checkpoint_id=config.checkpoint_id), b=1)
        assert_is_damage(saver, lambda: saver.get_delta_channel_history(config=child, channels=["a"]))


@parametrize("file", "MemorySaver")
def test_so_are_writes_of_another_shape(opener):
    saver = opener.new()
    config = put(saver, a=1)
    saver.store.put_writes(config, {"write:0:t": [1]})
    child = put(saver, config, b=1)
    assert_is_damage(saver, lambda: saver.get_tuple(config))
    assert_is_damage(saver, lambda: saver.get_delta_channel_history(config=child, channels=["b"]))


# The short way of a usual put


def run_of(seed, count):
    """Checkpoints as a graph makes them, and some that it does not make.

    Channels appear, disappear, grow, move like a window, become short, and are emptied; versions are
    strings or numbers; nodes see new versions; metadata are plain or nested.
    """
    dice = random.Random(seed)
    values, versions, seen = {"n": 0, "window": []}, {"n": "1", "window": "1"}, {}
    for number in range(count):
        window = [*values.get("window", []), {"id": str(number), "text": "x" * dice.choice([3, 200, 5000])}][-20:]
        kinds = [
            {"n": number},
            {"n": number, "branch:to:a": None},
            {"window": window},
            {"window": window, "n": -number},
            {"window": ["short"]},
            {"text": f"{number} ä" * dice.choice([1, 40, 3000, 30_000])},
            {f"new{dice.randrange(3)}": {"deep": [number]}},
            {"raw": dice.randbytes(dice.choice([0, 63, 64, 65, 255, 256, 5000]))},
            {},
        ]

        (update,) = dice.choices(kinds, [30, 20, 15, 15, 2, 6, 3, 6, 3])
        version = dice.choice([f"v{number}", f"v{number}", f"{number + 2:032}.{dice.random():016}", number + 2])
        changed = dict.fromkeys(update, version)
        if dice.random() < 0.1:
            changed = {name: f"{version}.{name}" for name in update}

        values = {**values, **update}
        if values and dice.random() < 0.3:
            emptied = dice.choice([*values])
            del values[emptied]
            changed[emptied] = version
        versions = {**versions, **changed}

        if len(versions) > 1 and dice.random() < 0.03:
            forgotten = dice.choice([*versions])
            for channels in (values, versions, changed):
                channels.pop(forgotten, None)
        if versions and dice.random() < 0.5:
            seen = {**seen, dice.choice(["a", "b", "c"]): dict(dice.sample([*versions.items()], 1))}

        checkpoint = empty_checkpoint() | {
            "id": f"1f1e6a33-9706-653a-8006-{number:012x}" if number % 5 else f"c{number}",
            "ts": f"2026-11-22T18:33:34.{number:06}+00:00",
            "channel_values": dict(values),
            "channel_versions": dict(versions),
            "versions_seen": {node: dict(seen[node]) for node in seen},
            "extra": "y" * (5000 if 100 < number < 120 else 5),
        }
        nested = {"parents": {"": "p"}, "list": (1, [2])} if dice.random() < 0.1 else {"parents": {}}
        yield checkpoint, {"source": "loop", "step": number // 2, **nested}, changed


def check_index(saver):
    """What a writer knows of its checkpoints is what a reader of the log finds."""
    fields = attrgetter("id", "parent", "offset", "size", "keyframe_offset", "writes", "metadata")
    known, found = [], []
    for index in (known, found):
        index.extend(map(fields, saver.store.catalogue.shared_log("t", "").history.load_index().checkpoints))
        saver.store.close()
        saver.get_tuple(HISTORY)
    assert known == found


def written(root, seed):
    """The bytes of a log, and how many puts took the short way."""
    with (
        fixed("usual"),
        mock.patch.object(LogWriter, "put_packed", autospec=True, side_effect=LogWriter.put_packed) as short,
    ):
        saver = FileSystemCheckpointSaver(root, fsync="never")
        config = HISTORY
        puts = [*run_of(seed, 250)]
        for number, (checkpoint, metadata, new_versions) in enumerate(puts):
            own = thread(checkpoint_id=checkpoint["id"])
            if number % 4 == 0:
                saver.put_writes(own, [("n", number), ("window", ["w"])], f"early{number}")

            config = saver.put(config, checkpoint, metadata, new_versions)
            if number % 4 == 1:
                saver.put_writes(own, [("n", number)], f"late{number}", "path")
            if number % 9 == 0:
                assert values_of(saver.get_tuple(HISTORY)) == checkpoint["channel_values"]
            if number % 40 == 7:
                config = saver.put(config, checkpoint, metadata, new_versions)  # replaces it
            if number % 40 == 17:
                # It replaces an older one, so the last record is not that of the latest checkpoint.
                older, *_ = puts[number - 4]
                saver.put(thread(checkpoint_id=older["id"]), *puts[number - 3])
            if number % 50 == 49:
                saver.store.catalogue.logs.close()  # the next put continues what it reads
        assert saver.store.verify().ok
        assert [found.checkpoint for found in saver.list(HISTORY)] == [checkpoint for checkpoint, *_ in reversed(puts)]

        check_index(saver)
        saver.store.close()
    return locate_log(root).read_bytes(), short.call_count


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(6))
def test_the_short_way_writes_what_the_general_way_writes(seed, tmp_path):
    def encode_keys(*arguments):
        """Return what changed, of which only the keys are used."""
        successor = encode_successor(*arguments)
        return successor if successor is None else successor._replace(is_usual=False)

    short, taken = written(tmp_path / "short", seed)
    with mock.patch.object(module, "encode_successor", encode_keys):
        general, none_taken = written(tmp_path / "general", seed)
    assert taken > 80, "many puts are usual"
    assert none_taken == 0
    assert short == general


@pytest.mark.parametrize(
    ("values", "following"),
    [
        ({"n": 1}, END),
        ({"branch:to:b": None, "branch:to:a": None}, "langgraph:a, b"),
        ({"join:a+b:c": {"a"}}, END),
        ({"join:a+b:c": {"a", "b"}, "branch:to:d": None}, "langgraph:c, d"),
        ({"__pregel_tasks": [Send("x", 1)]}, "langgraph:x"),
        ({"__pregel_tasks": [Send("y", 1)]}, "langgraph:y"),
    ],
)
def test_the_next_node_depends_on_the_values_where_they_decide(values, following):
    versions = dict.fromkeys([*values, "branch:to:z"], 1)
    assert derive_next_node({"channel_values": values, "channel_versions": versions}) == following
