"""langgraph4j's table of validation errors (behaviour 3), re-stated; its defects are errors here.

Fork shapes and merged subgraphs that it refuses, or fails on, and that work here stand in tests/unit/test_joins.py and
test_flatten.py. Its node of a command and mappings (1.9) is here a node that returns a Command, whose goto names a node.
"""

import pytest

from graphkit import END, START, StateGraph
from graphkit.errors import GraphStateException


def node(state):
    return {}


def graph():
    return StateGraph({}).addNode("A", node).addNode("B", node)


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda g: g.addNode(END, node), id="addNode END"),
        pytest.param(lambda g: g.addNode(START, node), id="addNode START (a defect there)"),
        pytest.param(lambda g: g.addNode("A", node), id="addNode twice"),
        pytest.param(lambda g: g.addEdge(END, "A"), id="addEdge from END"),
        pytest.param(lambda g: g.addConditionalEdges(END, node, {"x": "A"}), id="addConditionalEdges from END"),
        pytest.param(lambda g: g.addConditionalEdges("A", node, {}), id="empty mappings"),
        pytest.param(lambda g: g.addConditionalEdges("Z", node, {}), id="empty mappings, unknown source"),
        pytest.param(
            lambda g: g.addEdge("A", "B").addConditionalEdges("A", node, {"x": "B"}), id="conditional after plain"
        ),
        pytest.param(
            lambda g: g.addConditionalEdges("A", node, {"x": "B"}).addConditionalEdges("A", node, {"x": "B"}),
            id="conditional twice",
        ),
        pytest.param(
            lambda g: g.addConditionalEdges("A", node, {"x": "B"}).addEdge("A", "B"),
            id="plain after conditional (a NullPointerException there)",
        ),
    ],
)
def test_refused_when_added(build):
    with pytest.raises(GraphStateException):
        build(graph())


@pytest.mark.parametrize(
    ("build", "options"),
    [
        pytest.param(lambda g: g, {}, id="no entry point"),
        pytest.param(lambda g: g.addEdge(START, "Z"), {}, id="unknown START target"),
        pytest.param(lambda g: g.addEdge(START, "A").addEdge("Z", "A"), {}, id="unknown source"),
        pytest.param(lambda g: g.addEdge(START, "A").addEdge("A", "Z"), {}, id="unknown target"),
        pytest.param(lambda g: g.addEdge(START, "A").addEdge("A", "B").addEdge("A", "B"), {}, id="duplicate targets"),
        pytest.param(
            lambda g: g.addEdge(START, "A").addConditionalEdges("A", node, {"x": "Z"}), {}, id="unknown mapping"
        ),
        pytest.param(lambda g: g.addEdge(START, "A"), {"interrupt_before": ["Z"]}, id="unknown interruptBefore"),
        pytest.param(
            lambda g: g.addEdge(START, "A"), {"interrupt_after": ["Z"]}, id="unknown interruptAfter (unchecked there)"
        ),
    ],
)
def test_refused_by_compile(build, options):
    with pytest.raises(GraphStateException):
        build(graph()).compile(**options)


# Forks


# Merged subgraphs


def child():
    return StateGraph({}).addNode("a", node).addEdge(START, "a").addEdge("a", END)


def merging():
    return graph().addNode("S", child()).addEdge(START, "A").addEdge("A", "S").addEdge("S", "B").addEdge("B", END)


def test_interruptions_name_the_merged_nodes():
    compiled = merging().compile(interrupt_before=["S"], interrupt_after=["S-a"]).compileConfig()
    assert (compiled.interruptsBefore(), compiled.interruptsAfter()) == (("S-a",), ("S-a",))


def test_what_is_refused_there_about_merged_graphs_works_here():
    forking = child().addNode("b", node).addEdge(START, "b").addEdge("b", END)
    merged = graph().addNode("S", forking).addEdge(START, "S").addEdge("S", "A").addEdge("S", "B")
    forks = merged.addEdge("A", END).addEdge("B", END).compile().topology.forks
    assert list(forks) == ["__PARALLEL__(S-__START__)", "__PARALLEL__(S-__END__)"]


def test_add_subgraph_is_an_alias():
    built = StateGraph({}).addSubgraph("S", child()).addEdge(START, "S").addEdge("S", END)
    assert "S-a" in built.compile().topology.nodes


# What only a run finds


# What only a run finds there, and compile here


def test_compile_may_be_called_again_and_the_graph_stays_editable():
    built = graph().addEdge(START, "A").addEdge("A", "B").addConditionalEdges("B", node)
    built.compile()
    built.addNode("C", node).addEdge("C", END)
    built.compile()
