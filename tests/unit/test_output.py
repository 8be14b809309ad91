"""What goes in and what comes out: small objects, both spellings."""

import pickle

import pytest

from graphkit import (
    END,
    START,
    AgentState,
    Checkpoint,
    CheckpointStorageError,
    Command,
    GraphResume,
    InterruptionMetadata,
    NodeOutput,
    RunnableConfig,
    StateGraph,
    StateSnapshot,
    StreamingOutput,
    interrupt,
)
from graphkit.abc import BaseCheckpointSaver
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver, SqliteSaver, ValidatingSaver

STATE = AgentState({"x": 1})


def test_node_outputs():
    start, node, end = NodeOutput(START, STATE), NodeOutput("a", STATE, is_subgraph=True), NodeOutput(END, STATE)
    assert [(each.is_start, each.is_end, each.is_subgraph) for each in (start, node, end)] == [
        (True, False, False), (False, False, True), (False, True, False)
    ]  # fmt: skip
    assert repr(node) == "NodeOutput('a', AgentState({'x': 1}))"
    assert StreamingOutput("chunk", "a", STATE).chunk == "chunk"


def test_a_command():
    command = Command("b", {"x": 1})
    assert command == Command("b", {"x": 1})
    assert command not in (Command("b"), "b")
    assert hash(command) == hash(Command("b"))
    assert hash(Command(["a", "b"])) == hash(Command(["a"]))
    assert Command().update == {}
    assert repr(command) == "Command(goto='b', update={'x': 1})"


def test_a_resume_distinguishes_none_from_no_value():
    assert not GraphResume().has_value
    assert GraphResume(None).has_value
    assert GraphResume(update={"x": 1}).update == {"x": 1}
    assert repr(GraphResume()) == "GraphResume(<absent>, update=None)"
    assert not pickle.loads(pickle.dumps(GraphResume())).has_value


def test_interruption_metadata():
    one = InterruptionMetadata.builder("a", STATE).addMetadata("k", [1]).putMetadata("l", 2).build()

    assert (one.node_id, one.node, one.when) == ("a", "a", "action")
    assert one.metadata == {"k": [1], "l": 2}
    assert (one.payload, one.reason()) == (None, None)
    assert one.interrupts == (one,)
    assert InterruptionMetadata("a", STATE, metadata={"reason": "r"}).reason() == "r"
    assert InterruptionMetadata("a", STATE, payload="p", metadata={"reason": "r"}).reason() == "p"
    assert one.id != InterruptionMetadata("a", STATE).id

    with pytest.raises(TypeError):
        one.metadata["k"].append(2)

    assert "action 'a'" in repr(one)


def test_a_snapshot():
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"x": [1]}, parent_id="p", metadata={"k": 1})
    asked = []
    snapshot = StateSnapshot(checkpoint, RunnableConfig("t"), AgentState, lambda config: asked.append(config) or ["w"])

    assert (snapshot.node, snapshot.next, snapshot.is_end) == ("a", "b", False)
    assert (snapshot.checkpoint_id, snapshot.parent_id) == (checkpoint.id, "p")
    assert (snapshot.metadata, snapshot.created_at) == ({"k": 1}, checkpoint.created_at)
    assert snapshot.state == {"x": [1]}
    assert type(snapshot.values) is dict
    assert snapshot.config == RunnableConfig("t", checkpoint.id, next_node="b")
    assert asked == []
    assert snapshot.interrupts == snapshot.interrupts == ("w",)
    assert asked == [snapshot.config]
    assert repr(snapshot) == f"StateSnapshot('a' -> 'b', id={checkpoint.id!r})"

    with pytest.raises(AttributeError):
        snapshot.nothing  # noqa: B018


# --- what objects show of themselves ----------------------------------------------------------------------------------


def make_graph():
    graph = StateGraph({}).add_node("ask", lambda state: interrupt("Ship it?")).add_edge(START, "ask")
    return graph.add_conditional_edges("ask", lambda state: END, [END])


def test_a_graph_shows_its_nodes_and_edges():
    assert repr(make_graph()) == "StateGraph(nodes: ask; edges: __START__ -> ask, ask -> ?)"
    assert repr(StateGraph({})) == "StateGraph(nodes: none; edges: none)"


def test_a_compiled_graph_shows_its_saver_and_interrupts():
    saver = ValidatingSaver(MemorySaver())
    options = "CompileConfig(checkpoint_saver=ValidatingSaver(MemorySaver(0 threads)), interrupt_before=('ask',))"
    app = make_graph().compile(checkpoint_saver=saver, interrupt_before=["ask"])
    assert repr(app) == f"CompiledGraph(nodes: ask; {options})"


def test_a_stopped_state_shows_what_it_waits_for():
    state = make_graph().compile(checkpoint_saver=MemorySaver()).invoke({}, "order-1")
    assert "'Ship it?'" in str(state)


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


def test_a_store_that_fails_is_shown_as_such():
    saver = ScriptedSaver(MemorySaver()).fail("threads", CheckpointStorageError("x", "read", "no disk"))

    assert "CheckpointStorageError" in BaseCheckpointSaver.__repr__(saver)  # as a saver that is no wrapper
