"""langgraph4j's subgraphs: merged, compiled, and called by hand, re-stated."""

import pytest

from graphkit import END, START, Channels, CompileConfig, GraphResume, InterruptionMetadata, RunnableConfig, StateGraph
from graphkit.errors import GraphStateException
from savers import MemorySaver

CONFIG = RunnableConfig.builder().threadId("t").build()
INSIDE = RunnableConfig.builder().threadId("t").checkPointNs("S").build()


def graph(*names, **given):
    built = StateGraph({"log": Channels.appenderWithDuplicate()})
    nodes = {**{name: (lambda state, name=name: {"log": name}) for name in names}, **given}
    for name, action in nodes.items():
        built.addNode(name, action)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        built.addEdge(source, target)
    return built


def around(child):
    """A -> S -> C"""
    built = StateGraph({"log": Channels.appenderWithDuplicate()})
    built.addNode("A", lambda state: {"log": "A"}).addNode("S", child).addNode("C", lambda state: {"log": "C"})
    return built.addEdge(START, "A").addEdge("A", "S").addEdge("S", "C").addEdge("C", END)


def compiled(built, saver=None, **options):
    return built.compile(CompileConfig(checkpoint_saver=saver, **options))


def nodes(stream):
    return [output.node for output in stream if not isinstance(output, InterruptionMetadata)]


# --- A: merged --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 12")
def test_merged_nodes_are_named_after_the_subgraph_in_one_history():
    saver = MemorySaver()
    runnable = compiled(around(graph("a", "b")), saver)
    assert nodes(runnable.stream({}, CONFIG)) == [START, "A", "S-a", "S-b", "C", END]
    assert [checkpoint.getNodeId() for checkpoint in saver.list(CONFIG)] == ["C", "S-b", "S-a", "A", START]


@pytest.mark.requirement("behaviour 3")
def test_interrupt_after_it_is_an_error():
    with pytest.raises(GraphStateException, match="S"):
        compiled(around(graph("a")), interrupt_after=["S"])


# --- B: compiled ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 12")
def test_it_has_a_history_of_its_own():  # interleaved with the parent's there
    saver = MemorySaver()
    compiled(around(graph("a", "b").compile()), saver).invoke({}, CONFIG)
    assert [(checkpoint.getNodeId(), checkpoint.getNextNodeId()) for checkpoint in saver.list(CONFIG)] == [
        ("C", END),
        ("S", "C"),
        ("A", "S"),
        (START, "A"),
    ]
    assert [checkpoint.getNodeId() for checkpoint in saver.list(INSIDE)] == ["b", "a", START]


@pytest.mark.requirement("behaviour 12")
def test_interrupted_inside_it_goes_on_inside():  # no interruption support there
    saver = MemorySaver()
    runnable = compiled(around(compiled(graph("a", "b"), interrupt_before=["b"])), saver)
    last = runnable.invokeFinal({}, CONFIG)
    assert (last.nodeId(), last.isSubGraph()) == ("b", True)
    assert saver.get(CONFIG).getNextNodeId() == "S"
    assert nodes(runnable.stream(GraphResume({"log": "ok"}), CONFIG)) == ["b", END, "S", "C", END]
    assert runnable.getState(CONFIG).getState()["log"] == ["A", "a", "ok", "b", "C"]


@pytest.mark.requirement("behaviour 9")
def test_an_update_beside_a_subgraph_is_merged_once():  # twice there, after a resume
    saver = MemorySaver()
    runnable = compiled(around(graph("a").compile()), saver, interrupt_before=["A"])
    runnable.invoke({}, CONFIG)
    runnable.updateState(CONFIG, {"log": "updated"})
    assert runnable.invoke(GraphResume({"log": "resumed"}), CONFIG)["log"] == ["updated", "resumed", "A", "a", "C"]


# --- C: as an action --------------------------------------------------------------------------------------------------


# --- hooks ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 18")
def test_hooks_of_a_subgraph_and_of_its_parent():
    seen = []

    def hook(name):
        return lambda node_id, state, config: seen.append(f"{name} {node_id}")

    child = graph("a").addBeforeCallNodeHook(hook("child"))
    compiled(around(child).addBeforeCallNodeHook(hook("parent"))).invoke({})
    assert seen == ["parent A", "parent S-a", "child S-a", "parent C"]
