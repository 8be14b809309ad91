"""langgraph4j's outputs and streaming nodes, re-stated."""

import pytest

from graphkit import (
    END,
    START,
    Channels,
    CompileConfig,
    InterruptionMetadata,
    NodeOutput,
    RunnableConfig,
    StateGraph,
    StateSnapshot,
    StreamingOutput,
    StreamMode,
)
from graphkit.errors import GraphRunnerException
from savers import MemorySaver

CONFIG = RunnableConfig.builder().threadId("t").build()


def streams(*chunks, update=None):
    def action(state):
        yield from chunks
        return update

    return action


def graph(**nodes):
    built = StateGraph({"log": Channels.appenderWithDuplicate()})
    for name, action in nodes.items():
        built.addNode(name, action)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        built.addEdge(source, target)
    return built


def says(word):
    return lambda state: {"log": word}


def compiled(built, saver=None, **options):
    return built.compile(CompileConfig(checkpoint_saver=saver, **options))


@pytest.mark.requirement("behaviour 14")
def test_chunks_then_one_output_and_one_checkpoint():
    saver = MemorySaver()
    built = graph(node1=streams("c1", "c2", "c3", update={"log": "n1"}), node2=says("n2"), node3=says("n3"))
    outputs = list(compiled(built, saver).stream({}, CONFIG))
    assert [output.node for output in outputs] == [START, "node1", "node1", "node1", "node1", "node2", "node3", END]
    assert [output.chunk for output in outputs if isinstance(output, StreamingOutput)] == ["c1", "c2", "c3"]
    assert outputs[-1].state["log"] == ["n1", "n2", "n3"]
    assert [checkpoint.getNodeId() for checkpoint in saver.list(CONFIG)] == ["node3", "node2", "node1", START]


@pytest.mark.requirement("behaviour 14")
def test_a_chunk_is_of_its_node_and_of_no_subgraph():  # isSubGraph is true there
    chunk = next(output for output in compiled(graph(a=streams("c"))).stream({}) if isinstance(output, StreamingOutput))
    assert (chunk.node, chunk.isSubGraph(), chunk.isSTART(), chunk.isEND()) == ("a", False, False, False)


@pytest.mark.requirement("behaviour 14")
def test_a_streaming_node_is_one_iteration():  # two turns there
    assert compiled(graph(a=streams("1", "2", "3"))).invoke({}, RunnableConfig(max_iterations=1)) is not None


@pytest.mark.requirement("behaviour 13")
def test_streaming_branches_stream():  # collected there
    built = StateGraph({"log": Channels.appenderWithDuplicate()})
    for name in ("A1", "A2"):
        built.addNode(name, streams(f"{name}!", update={"log": name})).addEdge(START, name).addEdge(name, END)
    outputs = list(compiled(built).stream({}))
    assert sorted(output.chunk for output in outputs if isinstance(output, StreamingOutput)) == ["A1!", "A2!"]
    assert outputs[-1].state["log"] == ["A1", "A2"]


@pytest.mark.requirement("behaviour 10")
def test_not_end_last_is_interrupted():
    outputs = list(compiled(graph(a=says("a"), b=says("b")), interrupt_before=["b"]).stream({}))
    assert isinstance(outputs[-1], InterruptionMetadata)
    assert not outputs[-1].isEND()


@pytest.mark.requirement("behaviour 10")
def test_stream_snapshots():
    runnable = compiled(graph(a=says("a"), b=streams("c")), MemorySaver())
    outputs = list(runnable.streamSnapshots({}, CONFIG))
    assert [type(output) for output in outputs] == [
        StateSnapshot,
        StateSnapshot,
        StreamingOutput,
        StateSnapshot,
        NodeOutput,
    ]
    assert [output.getNextNodeId() for output in outputs if isinstance(output, StateSnapshot)] == ["a", "b", END]
    config = RunnableConfig.builder(CONFIG).streamMode(StreamMode.SNAPSHOTS).build()
    assert [output.node for output in runnable.stream({}, config)] == [output.node for output in outputs]
    assert {type(output) for output in compiled(graph(a=says("a"))).streamSnapshots({})} == {NodeOutput}


@pytest.mark.requirement("behaviour 5")
def test_a_custom_dispatcher_emits_into_the_stream_and_not_into_the_state():
    def action(state, config):
        config.customDispatcher()("extra")
        return {"log": "a"}

    outputs = list(compiled(graph(a=action)).stream({}))
    assert [getattr(output, "chunk", output.node) for output in outputs] == [START, "extra", "a", END]
    assert outputs[-1].state.data == {"log": ["a"]}
    with pytest.raises(GraphRunnerException):
        CONFIG.customDispatcher()


@pytest.mark.requirement("behaviour 10")
def test_a_cancelled_stream_keeps_its_checkpoints_and_can_be_resumed():
    saver = MemorySaver()
    runnable = compiled(graph(a=says("a"), b=says("b")), saver, release_thread=True)
    stream = runnable.stream({}, CONFIG)
    assert [next(stream).node, next(stream).node] == [START, "a"]
    stream.close()
    assert [checkpoint.getNodeId() for checkpoint in saver.list(CONFIG)] == ["a", START]
    assert [output.node for output in runnable.stream(None, CONFIG)] == ["b", END]
    assert not saver.list(CONFIG)
