"""What objects show of themselves."""

import pytest

from graphkit import END, START, CheckpointStorageError, StateGraph, interrupt
from graphkit.abc import BaseCheckpointSaver
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver, SqliteSaver, ValidatingSaver


def ask(state):
    return {"answer": interrupt("Ship it?")}


def make_graph():
    graph = StateGraph({}).add_node("ask", ask).add_edge(START, "ask")
    return graph.add_conditional_edges("ask", lambda state: END, [END])


def test_a_graph_shows_its_nodes_and_edges():
    assert repr(make_graph()) == "StateGraph(nodes: ask; edges: __START__ -> ask, ask -> ?)"
    assert repr(StateGraph({})) == "StateGraph(nodes: none; edges: none)"


def test_a_compiled_graph_shows_its_saver_and_interrupts():
    app = make_graph().compile(checkpoint_saver=MemorySaver(), interrupt_before=["ask"])

    assert repr(app) == (
        "CompiledGraph(nodes: ask; CompileConfig(checkpoint_saver=MemorySaver(0 threads), interrupt_before=('ask',)))"
    )


def test_a_stopped_state_shows_what_it_waits_for():
    saver = MemorySaver()
    state = make_graph().compile(checkpoint_saver=saver).invoke({}, "order-1")

    assert "'Ship it?'" in str(state)
    assert state.interrupts == tuple(saver.interrupts())


@pytest.mark.parametrize("kind", [FileSystemSaver, SqliteSaver])
def test_a_saver_shows_its_place_and_its_threads(tmp_path, kind):
    place = tmp_path / "runs"
    with kind(place) as saver:
        assert repr(saver).startswith(kind.__name__)
        assert "0 threads" in repr(saver)
        assert not place.exists() or kind is FileSystemSaver  # nothing is made to be shown

        make_graph().compile(checkpoint_saver=saver).invoke({}, "order-1")
        assert str(place) in repr(saver)
        assert "1 thread)" in repr(saver)


def test_a_wrapper_shows_the_saver_that_it_wraps():
    assert repr(ValidatingSaver(MemorySaver())) == "ValidatingSaver(MemorySaver(0 threads))"


def test_a_store_that_fails_is_shown_as_such():
    saver = ScriptedSaver(MemorySaver()).fail("threads", CheckpointStorageError("x", "read", "no disk"))

    assert "CheckpointStorageError" in BaseCheckpointSaver.__repr__(saver)  # as a saver that is no wrapper
