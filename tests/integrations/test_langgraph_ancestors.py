"""The history of a delta channel is what LangGraph's own walk finds, also after the log has changed."""

import random

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6

from graphkit import RunnableConfig
from tests.support.langgraph_checkpoints import Listening, again, id_of, make_checkpoint, thread

CHANNELS = ["a", "b", "never"]


def at(checkpoint_id=None):
    return thread(checkpoint_id=checkpoint_id)


def put_next(saver, parent, values, checkpoint_id=None):
    """Put a checkpoint whose channels are a and b, with or without a value; return its id."""
    checkpoint, metadata, _ = make_checkpoint(id=checkpoint_id or str(uuid6()), **values)
    checkpoint["channel_versions"] = {name: f"{random.random()}" for name in "ab"}
    return id_of(saver.put(at(parent), checkpoint, metadata, checkpoint["channel_versions"]))


def fill(saver, count=60, seed=1):
    """Put checkpoints with writes of chance, a tenth of which fork; return their ids."""
    dice = random.Random(seed)
    values = {"a": [0], "b": [0]}
    ids = [put_next(saver, None, values)]

    for number in range(1, count):
        for task in range(dice.randrange(3)):
            writes = [(dice.choice("ab"), [number, task]), ("other", number)]
            saver.put_writes(at(ids[-1]), writes, f"task {task}", "path")
        values = {name: [number] for name in "ab" if dice.random() < 0.05}
        parent = dice.choice(ids) if dice.random() >= 0.9 else ids[-1]
        ids.append(put_next(saver, parent, values))

    return ids


def read_history(saver, checkpoint_id, channels=CHANNELS):
    return saver.get_delta_channel_history(config=at(checkpoint_id), channels=channels)


def check(saver, ids):
    for checkpoint_id in (ids[-1], ids[len(ids) // 2], ids[1], ids[0], None):
        other = again(saver)
        walked = BaseCheckpointSaver.get_delta_channel_history(other, config=at(checkpoint_id), channels=CHANNELS)
        assert read_history(saver, checkpoint_id) == read_history(other, checkpoint_id) == walked


@pytest.mark.parametrize("seed", range(4))
def test_as_langgraphs_own_walk(saver, seed):
    check(saver, fill(saver, seed=seed))


def test_what_is_remembered_is_right_after_the_log_changed(saver):
    ids = fill(saver)
    check(saver, ids)
    *_, older, replaced, _, newest = ids
    parent = saver.get_tuple(at(newest)).parent_config
    saver.put_writes(parent, [("a", "late")], "late task")
    check(saver, ids)

    assert read_history(saver, newest, ["a"])["a"]["writes"][-1] == ("late task", "a", "late")

    put_next(saver, older, {"a": ["replaced"]}, checkpoint_id=replaced)
    check(saver, ids)
    saver.store.compact()
    check(saver, ids)
    saver.store.remove("t", ids[-6:-4])
    check(saver, ids)


def test_a_log_that_is_rewritten_during_a_walk(saver):
    ids = fill(saver)
    expected = read_history(saver, ids[-1])
    other = again(saver)
    restored = []

    def rewrite_at_first():
        restored.append(1)
        if len(restored) in {1, 3}:
            new = put_next(other, ids[-1], {})
            other.store.remove(RunnableConfig("t"), [new])

    reader = again(saver, serde=Listening(rewrite_at_first))
    assert read_history(reader, ids[-1]) == expected
    assert len(restored) > 3


def test_only_the_writes_and_values_of_the_wanted_channels_are_restored(saver):
    ids = [put_next(saver, None, {"a": [0], "b": [0]})]

    for number in range(50):
        saver.put_writes(at(ids[-1]), [("a", number), ("b", number)], "task")
        ids.append(put_next(saver, ids[-1], {}))

    restored = []
    reader = again(saver, serde=Listening(lambda: restored.append(1)))

    for checkpoint_id in ids[-5:]:
        restored.clear()
        found = read_history(reader, checkpoint_id, ["a"])["a"]
        assert found["seed"] == [0]
        assert len(restored) == len(found["writes"]) + 1
