"""Rows of go-agents-orchestration's and hive's lists that are about one run as a whole."""

from functools import partial

import pytest

from graphkit import END, START, Checkpoint, RunnableConfig, StateGraph, interrupt
from graphkit.errors import CheckpointStorageError, GraphRunnerError, NodeExecutionError
from savers import FileSystemSaver, SaverWrapper
from tests.support.graphs import CONFIG, make_chain

chain = partial(make_chain, {})


@pytest.mark.requirement("G15")
def test_a_node_is_stored_when_it_is_done_and_a_failed_one_never(tmp_path):
    """A deviation: the edge is evaluated first, so that the next node is stored with it."""
    saver, seen = FileSystemSaver(tmp_path), []

    def first(state):
        seen.append(saver.get(CONFIG).node_id)
        return {"first": 1}

    def second(state):
        seen.append(saver.get(CONFIG).node_id)
        raise ValueError("no")

    with pytest.raises(NodeExecutionError):
        chain(first=first, second=second).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert seen == [START, "first"]
    latest = saver.get(CONFIG)
    assert (latest.node_id, latest.next_node_id, dict(latest.state)) == ("first", "second", {"first": 1})


@pytest.mark.requirement("G22")
def test_a_resume_at_the_end_gives_the_final_state_though_an_edge_leads_on(tmp_path):
    """In go-agents, an exit point with an outgoing edge ran on past the end."""
    runs = []
    graph = StateGraph({}).add_node("a", lambda state: runs.append("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if len(runs) == 1 else "a", ["a", END])
    app = graph.compile(checkpoint_saver=FileSystemSaver(tmp_path))
    app.invoke({"x": 1}, CONFIG)
    for _ in range(2):
        assert app.resume("t")["x"] == 1
    assert runs == ["a"]


@pytest.mark.requirement("G23", "H32")
def test_a_resume_goes_where_the_edge_led_when_it_was_taken(tmp_path):
    """The chosen next node is stored; an edge that would choose another one now is not asked again."""
    choices, runs = iter(["left", "right"]), []

    def left(state):
        runs.append("left")
        if len(runs) == 1:
            raise ValueError("once")

    graph = StateGraph({}).add_node("a", lambda state: None).add_node("left", left)
    graph.add_node("right", lambda state: runs.append("right")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: next(choices), ["left", "right"])
    app = graph.add_edge("left", END).add_edge("right", END).compile(checkpoint_saver=FileSystemSaver(tmp_path))
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    app.resume("t")
    assert runs == ["left", "left"]


@pytest.mark.requirement("H21")
@pytest.mark.parametrize(
    ("action", "kept"), [(lambda state: None, 0), (lambda state: 1 / 0, 1), (lambda state: interrupt("?"), 1)]
)
def test_a_run_is_cleared_away_when_it_ended_well_and_kept_when_it_failed_or_waits(tmp_path, action, kept):
    saver = FileSystemSaver(tmp_path)
    app = chain(a=action).compile(checkpoint_saver=saver, preserve=False)
    try:
        app.invoke({}, CONFIG)
    except NodeExecutionError:
        assert kept
    assert len(saver.threads()) == kept


@pytest.mark.requirement("H36")
def test_what_is_saved_in_the_background_is_in_order_and_none_is_lost_unseen(tmp_path):
    """In hive, a background save was never awaited: lost at exit, its error unseen."""
    saver = FileSystemSaver(tmp_path)
    names = [f"n{number}" for number in range(20)]
    nodes = {name: lambda state, name=name: {name: 1} for name in names}
    *_, last = chain(**nodes).compile(checkpoint_saver=saver, durability="async").stream({}, CONFIG)
    assert last.is_end
    again = FileSystemSaver(tmp_path)
    assert [each.node_id for each in again.list(CONFIG)][::-1] == [START, *names]

    class Full(SaverWrapper):
        def put(self, config, checkpoint):
            if checkpoint.node_id == "n3":
                raise CheckpointStorageError("runs", "write", OSError(28, "No space left on device"))
            return super().put(config, checkpoint)

    with pytest.raises(CheckpointStorageError):
        chain(**nodes).compile(checkpoint_saver=Full(saver), durability="async").invoke({}, RunnableConfig("u"))
    assert [each.node_id for each in again.list(RunnableConfig("u"))][::-1] == [START, "n0", "n1", "n2"]


def test_a_thread_of_another_engine_is_left_alone(tmp_path):
    saver = FileSystemSaver(tmp_path)
    theirs = Checkpoint(node_id="x", next_node_id="a", state={}, metadata={"graphkit:made_by": "langgraph"})
    saver.put(CONFIG, theirs)
    app = chain(a=lambda state: None).compile(checkpoint_saver=saver)
    for call in (lambda: app.invoke({}, CONFIG), lambda: app.resume("t"), lambda: app.update_state(CONFIG, {"x": 1})):
        with pytest.raises(GraphRunnerError, match="belongs to langgraph"):
            call()
    assert [checkpoint.id for checkpoint in saver.list(CONFIG)] == [theirs.id]
