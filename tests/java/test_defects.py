"""langgraph4j's constants, options, serializer and its list of defects, re-stated.

What was reproduced there must not happen here. Most of it is proved at length elsewhere; here each has its number.
"""

from pathlib import Path

import pytest

from graphkit import END, START, Checkpoint, CompileConfig, RunnableConfig, StateGraph, StateSerializer
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import connect, nodes_of


def at(thread):
    return RunnableConfig(thread)


def put(saver, thread, **state):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state=state)
    saver.put(at(thread), checkpoint)
    return checkpoint


@pytest.fixture
def saver(tmp_path):
    return FileSystemSaver(tmp_path / "runs")


def reopened(saver):
    return FileSystemSaver(saver.base_directory)


@pytest.mark.requirement("behaviour 1")
def test_constants():
    """START, END, the default thread, and the ids of forks and merged nodes."""
    assert (START, END, MemorySaver.THREAD_ID_DEFAULT) == ("__START__", "__END__", "$default")
    child = StateGraph({}).add_node("a", lambda state: None).add_edge(START, "a").add_edge("a", END)
    graph = connect(StateGraph({}).add_node("s", child).add_node("b", lambda state: None), "START>s,b s>END b>END")
    nodes = nodes_of(graph.compile().stream({}))
    assert nodes == [START, "__PARALLEL__(__START__)", END]
    assert set(graph.compile().topology.nodes) == {"s-a", "b"}


@pytest.mark.requirement("behaviour 4")
def test_options_of_a_compiled_graph_show_the_merged_ids():
    """Each call of the builder replaces the set, and S becomes its first node."""
    config = CompileConfig.builder().interruptBefore("x", "y").interruptBefore("s").build()
    assert config.interruptsBefore() == ("s",)
    child = StateGraph({}).add_node("a", lambda state: None).add_edge(START, "a").add_edge("a", END)
    graph = StateGraph({}).add_node("s", child).add_edge(START, "s").add_edge("s", END)
    assert graph.compile(config).compileConfig().interruptsBefore() == ("s-a",)


@pytest.mark.requirement("behaviour 16")
def test_a_serializer_of_the_applications_own(tmp_path):
    """A StateSerializer turns whole states into bytes and back; the built-in one knows sets and long keys."""

    class Text(StateSerializer):
        def dumps(self, data):
            return repr(sorted(data.items())).encode()

        def loads(self, data):
            return dict(__import__("ast").literal_eval(data.decode()))

    graph = StateGraph(Text()).add_node("a", lambda state: {"x": [1]}).add_edge(START, "a").add_edge("a", END)
    saver = FileSystemSaver(tmp_path / "text", Text())
    graph.compile(checkpoint_saver=saver).invoke({"y": 2}, at("t"))

    assert FileSystemSaver(tmp_path / "text", Text()).get(at("t")).state == {"x": [1], "y": 2}

    plain = FileSystemSaver(tmp_path / "plain")
    long = "k" * 70_000
    put(plain, "t", **{long: {1, 2}})
    assert reopened(plain).get(at("t")).state == {long: {1, 2}}


@pytest.mark.requirement("behaviour 19")
@pytest.mark.parametrize(
    "thread", ["x/../../evil2", "a/b", "x" * 300, "a\0b", "..", "", "thread-t-v1", "a(b", "CON", "ÅÅ"]
)
def test_5_6_7_any_thread_id_is_a_place_of_its_own(saver, thread):
    """Unescaped ids (5), names that clash with versions (6), ids taken for patterns (7)."""
    put(saver, "t", n=0)
    saver.release(at("t"))
    put(saver, thread, n=1)
    put(saver, "abc", n=2)

    root = Path(saver.base_directory)

    assert {path.name for path in root.parent.iterdir()} == {root.name}
    assert saver.release(at(thread)).version == 1
    assert saver.versions_by_thread_id("abc") == []
    assert saver.tag(at("t")).checkpoints[0].state == {"n": 0}
    assert saver.tag(at(thread)).checkpoints[0].state == {"n": 1}
