"""The history of a delta channel is what LangGraph's own walk finds, also after the log has changed."""

import random

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit import Checkpoint, CheckpointConflictError, RunnableConfig
from savers.langgraph import FileSystemCheckpointSaver

CHANNELS = ["a", "b", "never"]


def thread(checkpoint_id=None):
    names = {"thread_id": "t", "checkpoint_ns": ""}
    return {"configurable": names if checkpoint_id is None else {**names, "checkpoint_id": checkpoint_id}}


def put(saver, parent, values, versions=("a", "b"), checkpoint_id=None):
    checkpoint = {**empty_checkpoint(), "id": checkpoint_id or str(uuid6())}
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {name: f"{random.random()}" for name in versions}
    saver.put(thread(parent), checkpoint, {"source": "loop", "step": 0}, checkpoint["channel_versions"])
    return checkpoint["id"]


def fill(saver, count=60, seed=1):
    randomness = random.Random(seed)
    ids = [put(saver, None, {"a": [0], "b": [0]})]
    for number in range(1, count):
        for task in range(randomness.randrange(3)):
            writes = [(randomness.choice("ab"), [number, task]), ("other", number)]
            saver.put_writes(thread(ids[-1]), writes, f"task {task}", "path")
        values = {name: [number] for name in "ab" if randomness.random() < 0.05}
        parent = ids[-1] if randomness.random() < 0.9 else randomness.choice(ids)
        ids.append(put(saver, parent, values))
    return ids


def check(saver, ids):
    for checkpoint_id in (ids[-1], ids[len(ids) // 2], ids[1], ids[0], None):
        config = thread(checkpoint_id)
        found = saver.get_delta_channel_history(config=config, channels=CHANNELS)
        other = open_again(saver)
        assert found == other.get_delta_channel_history(config=config, channels=CHANNELS)
        assert found == BaseCheckpointSaver.get_delta_channel_history(other, config=config, channels=CHANNELS)


@pytest.mark.parametrize("seed", range(4))
def test_as_langgraphs_own_walk(saver, seed):
    check(saver, fill(saver, seed=seed))


def test_what_is_remembered_is_right_after_the_log_changed(saver):
    ids = fill(saver)
    check(saver, ids)
    parent = saver.get_tuple(thread(ids[-1])).parent_config["configurable"]["checkpoint_id"]
    saver.put_writes(thread(parent), [("a", "late")], "late task")
    check(saver, ids)
    late = saver.get_delta_channel_history(config=thread(ids[-1]), channels=["a"])["a"]["writes"][-1]
    assert late == ("late task", "a", "late")
    put(saver, ids[-4], {"a": ["replaced"]}, checkpoint_id=ids[-3])
    check(saver, ids)
    saver.store.compact()
    check(saver, ids)
    saver.store.remove(RunnableConfig("t"), ids[-6:-4])
    check(saver, ids)


class Listening(JsonPlusSerializer):
    """LangGraph's serializer, which calls a function before it restores a value."""

    def __init__(self, listen):
        super().__init__(allowed_msgpack_modules=None)
        self.listen = listen

    def loads_typed(self, data):
        self.listen()
        return super().loads_typed(data)


def open_again(saver, listen=None):
    serde = None if listen is None else Listening(listen)
    return FileSystemCheckpointSaver(saver.store.base_directory, fsync="never", serde=serde)


def test_a_log_that_is_rewritten_during_a_walk(saver):
    ids = fill(saver)
    expected = saver.get_delta_channel_history(config=thread(ids[-1]), channels=CHANNELS)
    other = open_again(saver)
    restored = []

    def rewrite_at_first():
        restored.append(1)
        if len(restored) in {1, 3}:
            other.store.remove(RunnableConfig("t"), [put(other, ids[-1], {})])

    reader = open_again(saver, rewrite_at_first)
    assert reader.get_delta_channel_history(config=thread(ids[-1]), channels=CHANNELS) == expected
    assert len(restored) > 3


def test_only_the_writes_and_values_of_the_wanted_channels_are_restored(saver):
    ids = [put(saver, None, {"a": [0], "b": [0]})]
    for number in range(50):
        saver.put_writes(thread(ids[-1]), [("a", number), ("b", number)], "task")
        ids.append(put(saver, ids[-1], {}))
    restored = []
    reader = open_again(saver, lambda: restored.append(1))
    for checkpoint_id in ids[-5:]:
        restored.clear()
        found = reader.get_delta_channel_history(config=thread(checkpoint_id), channels=["a"])["a"]
        assert found["seed"] == [0]
        assert len(restored) == len(found["writes"]) + 1


def test_a_history_of_graphkit_is_refused(saver):
    config = saver.store.put(RunnableConfig("t"), Checkpoint(node_id="n", next_node_id="m", state={}))
    with pytest.raises(CheckpointConflictError):
        saver.get_delta_channel_history(config=thread(config.checkpoint_id), channels=["a"])
