"""What langgraph4j 1.9 has added, in both spellings."""

import pytest

from graphkit import (
    Channels,
    GraphInput,
    GraphInterruptException,
    GraphResume,
    RunnableConfig,
    StateGraph,
    StateSerializer,
)
from savers import FileSystemSaver, MemorySaver, VersionedMemorySaver


def graph_of(node, schema=None):
    return StateGraph(schema or {}).add_node("node", node).set_entry_point("node").set_finish_point("node")


def test_the_inputs_of_a_run_by_name():
    app = graph_of(lambda state: {"seen": state.value("given")}).compile(checkpoint_saver=MemorySaver())

    assert app.invoke(GraphInput.args({"given": 1}), "a")["seen"] == 1
    assert app.invoke(GraphInput.noArgs(), "b")["seen"] is None
    assert isinstance(GraphInput.resume(), GraphResume)


def test_an_exception_stops_the_run_and_a_resume_runs_the_node_again():
    def node(state, config):
        if "approval" not in state:
            raise GraphInterruptException(config, "approve first")
        return {"done": True}

    app = graph_of(node).compile(checkpoint_saver=MemorySaver())

    assert app.invoke_final({}, "t").reason() == "approve first"
    assert app.invoke(GraphInput.resume({"approval": "yes"}), "t")["done"]


def test_the_path_of_a_node():
    paths = []
    inner = graph_of(lambda state, config: paths.append((config.nodePath(), config.node_path))).compile()
    outer = StateGraph({}).add_node("outer", inner).set_entry_point("outer").set_finish_point("outer")
    outer.compile().invoke({}, "t")

    assert paths == [("outer/node", "outer/node")]
    assert RunnableConfig.empty().nodePath() is None


@pytest.mark.parametrize("kind", [VersionedMemorySaver, FileSystemSaver])
def test_the_last_released_history(tmp_path, kind):
    saver = kind(tmp_path) if kind is FileSystemSaver else kind()
    app = graph_of(lambda state: {"n": state["n"] + 1}).compile(checkpoint_saver=saver)

    assert saver.lastTag("t") is None

    for n in (1, 5):
        app.invoke({"n": n}, "t")
        saver.release("t")

    assert saver.last_tag("t").version == saver.lastVersionByThreadId("t")
    assert saver.lastTag("t").lastCheckpoint().state["n"] == 6
    assert saver.tag("t", 1).last_checkpoint().state["n"] == 2


class PlainSerializer(StateSerializer):
    def dumps(self, data):
        return repr(dict(data)).encode()

    def loads(self, data):
        return eval(data)


def test_transient_attributes_are_not_stored():
    serializer = PlainSerializer()
    serializer.declareTransientAttributes("client")
    seen = []

    def node(state):
        seen.append(state["client"])
        return {"done": True}

    saver = MemorySaver()
    app = graph_of(node, serializer).compile(checkpoint_saver=saver)
    state = app.invoke({"client": object, "n": 1}, "t")

    assert seen == [object]
    assert "client" not in state
    assert set(saver.get("t").state) == {"n", "done"}


def test_transient_attributes_with_channels_of_their_own():
    serializer = PlainSerializer()
    serializer.declare_transient_attributes("client")
    graph = StateGraph({"client": Channels.base(None, lambda: "default")}, serializer)
    seen = []
    graph.add_node("node", lambda state: seen.append(state["client"]))
    graph.set_entry_point("node").set_finish_point("node").compile().invoke({})

    assert seen == ["default"]
