"""langgraph4j's table of validation errors, re-stated; its defects are errors here.

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


@pytest.mark.requirement("behaviour 3")
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


@pytest.mark.requirement("behaviour 3")
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
