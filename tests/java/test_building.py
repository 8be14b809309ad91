"""langgraph4j's table of validation errors (behaviour, section 3), re-stated; its defects are errors here."""

import pytest

from graphkit import END, START, StateGraph
from graphkit.errors import GraphRunnerException, GraphStateException


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


def test_refused_by_the_run_unmapped_key():
    compiled = graph().addEdge(START, "A").addConditionalEdges("A", lambda s: "nope", {"x": "B"}).compile()
    with pytest.raises(GraphRunnerException, match=r"'A'.*'nope'"):  # swapped there
        compiled.invoke({})


def test_refused_by_the_run_no_outgoing_edge():
    with pytest.raises(GraphRunnerException, match="'A'"):
        graph().addEdge(START, "A").compile().invoke({})


def test_start_to_end_alone_is_legal_and_so_are_unreachable_nodes():
    outputs = list(graph().addEdge(START, END).compile().stream({}))
    assert [output.node for output in outputs] == [START, END]


def test_compile_may_be_called_again_and_the_graph_stays_editable():
    built = graph().addEdge(START, "A").addEdge("A", END)
    built.compile()
    built.addNode("C", node).addEdge("B", "C")
    built.compile()


def test_an_edge_command_names_a_key_of_the_mappings():
    from graphkit import Command

    compiled = (
        graph().addEdge(START, "A").addConditionalEdges("A", lambda s: Command("x", {"u": 1}), {"x": END}).compile()
    )
    assert compiled.invoke({}) == {"u": 1}
