"""What goes in and what comes out: small objects, both spellings."""

import pickle

import pytest

from graphkit import (
    END,
    START,
    AgentState,
    Checkpoint,
    Command,
    GraphResume,
    InterruptionMetadata,
    NodeOutput,
    RunnableConfig,
    StateSnapshot,
    StreamingOutput,
)

STATE = AgentState({"x": 1})


def test_node_outputs():
    start, node, end = NodeOutput(START, STATE), NodeOutput("a", STATE, is_subgraph=True), NodeOutput(END, STATE)
    assert [(each.is_start, each.is_end, each.is_subgraph) for each in (start, node, end)] == [
        (True, False, False), (False, False, True), (False, True, False)
    ]  # fmt: skip
    assert (start.isSTART(), end.isEND(), node.isSubGraph()) == (True, True, True)
    assert repr(node) == "NodeOutput('a', AgentState({'x': 1}))"
    assert StreamingOutput("chunk", "a", STATE).chunk == "chunk"


def test_a_command():
    command = Command("b", {"x": 1})
    assert (command.goto, command.gotoNode(), command.update) == ("b", "b", {"x": 1})
    assert command == Command("b", {"x": 1})
    assert command != Command("b")
    assert hash(command) == hash(Command("b"))
    assert Command().update == {}
    assert repr(command) == "Command(goto='b', update={'x': 1})"
    assert command != "b"


def test_a_resume_tells_none_from_nothing():
    assert not GraphResume().has_value
    assert GraphResume(None).has_value
    assert GraphResume(update={"x": 1}).update == {"x": 1}
    assert repr(GraphResume()) == "GraphResume(<absent>, update=None)"
    assert not pickle.loads(pickle.dumps(GraphResume())).has_value


def test_interruption_metadata():
    one = InterruptionMetadata.builder("a", STATE).addMetadata("k", [1]).putMetadata("l", 2).build()
    assert (one.node_id, one.node, one.nodeId(), one.getNodeId()) == ("a",) * 4
    assert (one.when, one.metadata, one.payload, one.reason()) == ("action", {"k": [1], "l": 2}, None, None)
    assert one.interrupts == (one,)
    assert isinstance(one, NodeOutput)
    assert InterruptionMetadata("a", STATE, metadata={"reason": "r"}).reason() == "r"
    assert InterruptionMetadata("a", STATE, payload="p", metadata={"reason": "r"}).reason() == "p"
    assert one.id != InterruptionMetadata("a", STATE).id
    with pytest.raises(TypeError):
        one.metadata["k"].append(2)
    assert "action 'a'" in repr(one)


def test_a_snapshot():
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"x": [1]}, parent_id="p", metadata={"k": 1})
    asked = []

    def waiting(config):
        asked.append(config)
        return ["w"]

    snapshot = StateSnapshot(checkpoint, RunnableConfig("t"), AgentState, waiting)
    assert (snapshot.node, snapshot.next, snapshot.is_end) == ("a", "b", False)
    assert (snapshot.getNodeId(), snapshot.getNextNodeId(), snapshot.nextNodeId()) == ("a", "b", "b")
    assert snapshot.checkpoint_id == snapshot.getCheckpointId() == snapshot.checkpointId() == checkpoint.id
    assert (snapshot.parent_id, snapshot.metadata, snapshot.created_at) == ("p", {"k": 1}, checkpoint.created_at)
    assert snapshot.state == snapshot.getState() == {"x": [1]}
    assert type(snapshot.values) is dict
    assert snapshot.config == RunnableConfig("t", checkpoint.id, next_node="b")
    assert asked == []
    assert snapshot.interrupts == snapshot.interrupts == ("w",)
    assert asked == [snapshot.config]
    assert repr(snapshot) == f"StateSnapshot('a' -> 'b', id={checkpoint.id!r})"
    with pytest.raises(AttributeError):
        snapshot.nothing  # noqa: B018
