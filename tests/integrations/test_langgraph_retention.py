"""Retention of LangGraph's threads: keep-last with DeltaChannels, threads that nobody writes to, and `ttl=`."""

import pytest

from graphkit import RunnableConfig
from savers import MemorySaver
from savers.langgraph import FileSystemCheckpointSaver
from tests.cli.terminal import graphkit
from tests.integrations import langgraph_graphs as graphs

THREAD = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def saver(tmp_path):
    return FileSystemCheckpointSaver(tmp_path / "store", fsync="never")


# Keep-last, with DeltaChannels


def run_delta(saver, frequency=4):
    """A thread with a list that is stored whole at every fourth update, and a fork in its past."""
    app = graphs.delta(frequency, turns=12).compile(checkpointer=saver)
    app.invoke({"log": ["in"], "n": 0}, THREAD)
    past = list(app.get_state_history(THREAD))[7]
    app.update_state(past.config, {"log": ["fork"], "n": 11}, as_node="b")
    app.invoke(None, THREAD)
    return app


def read_states(app):
    return {found.config["configurable"]["checkpoint_id"]: found.values for found in app.get_state_history(THREAD)}


@pytest.mark.parametrize("keep_last", [1, 2, 5, 9])
def test_keep_last_keeps_the_writes_from_which_a_delta_channel_is_read(saver, keep_last):
    app = run_delta(saver)
    before = read_states(app)
    saver.store.prune("t", keep_last=keep_last)
    after = read_states(app)
    newest = list(before)[:keep_last]
    assert keep_last <= len(after) < len(before)
    assert {name: after[name] for name in newest} == {name: before[name] for name in newest}
    assert len(next(iter(after.values()))["log"]) > 15
    assert saver.store.verify().ok


def test_every_checkpoint_that_keep_last_keeps_has_its_whole_value(saver):
    """Also the ancestors: they were kept back to the checkpoint that stores the value."""
    app = run_delta(saver)
    before = read_states(app)
    saver.store.prune("t", keep_last=3)
    after = read_states(app)
    oldest = list(after)[-1]
    assert {name: values for name, values in after.items() if name != oldest} == {
        name: before[name] for name in after if name != oldest
    }
    assert after[oldest] == before[oldest]  # the checkpoint that stores the value


def test_a_thread_goes_on_after_keep_last(saver):
    app = run_delta(saver)
    saver.store.prune("t", keep_last=1)
    before = app.get_state(THREAD).values["log"]
    app.update_state(THREAD, {"log": ["more"], "n": 12}, as_node="b")
    assert app.get_state(THREAD).values["log"] == [*before, "more"]


def test_the_command_keeps_the_same_and_its_dry_run_counts_the_same(saver):
    app = run_delta(saver)
    before = read_states(app)
    store = saver.store.base_directory
    would = graphkit("prune", store, "--keep-last", "2", "--dry-run", "--json").json["removed"]
    assert graphkit("prune", store, "--keep-last", "2", "--json").json["removed"] == would
    after = read_states(app)
    newest = list(before)[:2]
    assert 2 <= len(after) < len(before)
    assert {name: after[name] for name in newest} == {name: before[name] for name in newest}


def test_keep_last_of_other_savers_keeps_them_too(saver):
    run_delta(saver)
    memory = MemorySaver()
    config = RunnableConfig("t")
    for checkpoint in reversed(saver.store.list(config)):
        memory.put(config, checkpoint)
    saver.store.prune("t", keep_last=2)
    memory.prune("t", keep_last=2)
    assert [info.id for info in memory.history(config)] == [info.id for info in saver.store.history(config)]


def test_keep_last_without_delta_channels_keeps_no_more(saver):
    app = graphs.loop(turns=6).compile(checkpointer=saver)
    app.invoke({"log": [], "n": 0}, THREAD)
    saver.store.prune("t", keep_last=2)
    assert len(read_states(app)) == 2
