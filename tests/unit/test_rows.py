"""Rows of go-agents-orchestration's and hive's lists that are about one run as a whole."""

from functools import partial

import pytest

from graphkit import END, START, Checkpoint, StateGraph
from graphkit.errors import GraphRunnerError, NodeExecutionError
from savers import FileSystemSaver
from tests.support.graphs import CONFIG, make_chain

chain = partial(make_chain, {})


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


def test_a_thread_of_another_engine_is_left_alone(tmp_path):
    saver = FileSystemSaver(tmp_path)
    theirs = Checkpoint(node_id="x", next_node_id="a", state={}, metadata={"graphkit:made_by": "langgraph"})
    saver.put(CONFIG, theirs)
    app = chain(a=lambda state: None).compile(checkpoint_saver=saver)
    for call in (lambda: app.invoke({}, CONFIG), lambda: app.resume("t"), lambda: app.update_state(CONFIG, {"x": 1})):
        with pytest.raises(GraphRunnerError, match="belongs to langgraph"):
            call()
    assert [checkpoint.id for checkpoint in saver.list(CONFIG)] == [theirs.id]
