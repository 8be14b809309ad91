"""The history of a delta channel is what LangGraph's own walk finds, also after the log has changed."""

import random

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from graphkit import Checkpoint, CheckpointConflictError, RunnableConfig
from savers._log import log_reader
from savers.langgraph import FileSystemCheckpointSaver
from savers.langgraph.file_histories import FileHistories

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
        other = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
        assert found == other.get_delta_channel_history(config=config, channels=CHANNELS)
        assert found == BaseCheckpointSaver.get_delta_channel_history(other, config=config, channels=CHANNELS)


@pytest.fixture
def saver(tmp_path):
    return FileSystemCheckpointSaver(tmp_path, fsync="never")


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


def test_a_log_that_is_rewritten_during_a_walk(saver, monkeypatch):
    ids = fill(saver)
    expected = saver.get_delta_channel_history(config=thread(ids[-1]), channels=CHANNELS)
    other = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
    reader = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
    load_values = log_reader.LogReader.load_values
    calls = []

    def load_after_rewriting(*args):
        calls.append(args)
        if len(calls) in {1, 3}:
            other.store.remove(RunnableConfig("t"), [put(other, ids[-1], {})])
            other.store.compact()
        return load_values(*args)

    monkeypatch.setattr(log_reader.LogReader, "load_values", load_after_rewriting)
    assert reader.get_delta_channel_history(config=thread(ids[-1]), channels=CHANNELS) == expected
    assert len(calls) > 3


def test_only_the_channels_of_an_ancestor_are_decoded_and_only_once(saver, monkeypatch):
    ids = [put(saver, None, {"a": [0], "b": [0], "large": "x" * 1000})]
    for number in range(50):
        saver.put_writes(thread(ids[-1]), [("a", number)], "task")
        ids.append(put(saver, ids[-1], {}))
    reader = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
    load_values = log_reader.LogReader.load_values
    calls = []
    monkeypatch.setattr(log_reader.LogReader, "load_values", lambda *args: calls.append(args) or load_values(*args))
    monkeypatch.setattr(log_reader.LogReader, "load_state", lambda *_: pytest.fail("a whole state was read"))
    for checkpoint_id in ids[-5:]:
        found = reader.get_delta_channel_history(config=thread(checkpoint_id), channels=["a"])
        assert found["a"]["seed"] == [0]
    assert len(calls) == 50 + 5, "each ancestor, and the value that each history begins with"


def test_a_history_of_graphkit_is_refused(saver):
    config = saver.store.put(RunnableConfig("t"), Checkpoint(node_id="n", next_node_id="m", state={}))
    with pytest.raises(CheckpointConflictError):
        saver.get_delta_channel_history(config=thread(config.checkpoint_id), channels=["a"])


def test_a_walk_from_the_end_of_a_listed_log_searches_for_no_id(saver, monkeypatch):
    ids = [put(saver, None, {"a": [0], "b": [0]})]
    for number in range(70):
        saver.put_writes(thread(ids[-1]), [("a", [number]), ("b", [number])], "task")
        ids.append(put(saver, ids[-1], {}))
    other = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")
    assert len(list(other.list(thread(), limit=20))) == 20
    searched = []
    search = log_reader.LogReader._search
    monkeypatch.setattr(log_reader.LogReader, "_search", lambda *args: searched.append(args[1]) or search(*args))
    found = other.get_delta_channel_history(config=thread(ids[-1]), channels=["a", "b"])
    assert [value for _, _, value in found["a"]["writes"]] == [[number] for number in range(70)]
    assert found["a"]["seed"] == [0]
    assert searched == []
    put(saver, ids[-1], {"a": [1]})
    check(saver, ids)


def test_ancestors_are_found_anew_after_the_log_was_rewritten(saver):
    ids = fill(saver)
    saver = FileSystemCheckpointSaver(saver.store.base_directory, fsync="never")  # has no index yet
    assert len(list(saver.list(thread(), limit=20))) == 20
    walk = FileHistories(saver.store).open_ancestors(RunnableConfig("t"))
    assert walk.find(ids[-1]) is not None
    saver.store.remove(RunnableConfig("t"), ids[10:15])
    saver.store.compact()
    saver.store._shared_writer(RunnableConfig("t")).drop_caches()
    found = walk.find(ids[-2])
    part = walk.read(found, lambda _: True)
    assert part.state == saver.store.get(RunnableConfig("t", checkpoint_id=ids[-2])).state
