"""langgraph4j's table of validation errors (behaviour 3), re-stated; its defects are errors here.

Fork shapes and merged subgraphs that it refuses, or fails on, and that work here stand in tests/unit/test_joins.py and
test_flatten.py. Its node of a command and mappings (1.9) is here a node that returns a Command, whose goto names a node.
"""

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


def test_what_compile_says_names_the_nodes():
    words = {
        "entry point": graph(),
        "'Z'.*not a node": graph().addEdge(START, "Z"),
        "'A' lead to 'B' more than once": graph().addEdge(START, "A").addEdge("A", "B").addEdge("A", "B"),
        "'A' maps 'x' to 'Z'": graph().addEdge(START, "A").addConditionalEdges("A", node, {"x": "Z"}),
    }
    for pattern, built in words.items():
        with pytest.raises(GraphStateException, match=pattern):
            built.compile()


# Forks


def fork():
    """A to A1, A2 and A3, which lead to B; and C, which START may lead to."""
    built = graph().addNode("C", node).addConditionalEdges(START, node, ["A", "C"]).addEdge("B", END)
    for branch in ("A1", "A2", "A3"):
        built.addNode(branch, node).addEdge("A", branch)
    return built


def test_branches_have_one_common_next_node():
    built = fork().addEdge("A1", "B").addEdge("A2", "B").addEdge("A3", "B").addEdge("C", "B")
    (one,) = built.compile().topology.forks.values()
    assert (one.id, one.heads, one.join) == ("__PARALLEL__(A)", ("A1", "A2", "A3"), "B")


def test_branches_that_lead_to_different_nodes_meet_later():
    """An error there: "must have only one target"."""
    built = fork().addEdge("A1", "B").addEdge("A2", "B").addEdge("A3", "C").addEdge("C", END)
    with pytest.raises(GraphStateException, match="'A1' and 'A2' meet in 'B', before all of them meet in '__END__'"):
        built.compile()
    built = fork().addEdge("A1", "B").addEdge("A3", "C").addEdge("C", "B")
    (one,) = built.compile().topology.forks.values()
    assert (one.join, one.branches["A3"]) == ("B", {"A3", "C"})


def test_a_branch_without_an_outgoing_edge_is_tolerated():
    built = fork().addEdge("A1", "B").addEdge("A2", "B").addEdge("C", "B")
    assert built.compile().topology.edges["__PARALLEL__(A)"] == "B"


def test_end_as_a_target_is_no_branch():
    built = graph().addEdge(START, "A").addEdge("A", "B").addEdge("A", END).addEdge("B", END)
    (one,) = built.compile().topology.forks.values()
    assert (one.heads, one.join) == (("B",), END)


def test_a_fork_out_of_start():
    built = graph().addEdge(START, "A").addEdge(START, "B").addEdge("A", END).addEdge("B", END)
    assert "__PARALLEL__(__START__)" in built.compile().topology.forks


def test_conditional_branches():
    """Refused there, and accepted if all are conditional, to fail at the run."""
    for targets in ({"x": "B"}, {"x": "B", "y": "C"}):
        built = fork().addEdge("C", "B")
        for branch in ("A1", "A2"):
            built.addConditionalEdges(branch, node, {"x": "B"})
        built.addConditionalEdges("A3", node, targets)
        assert built.compile().topology.edges["__PARALLEL__(A)"] == "B"
    with pytest.raises(GraphStateException, match=r"'A3'.*without mappings"):
        fork().addEdge("A1", "B").addEdge("A2", "B").addConditionalEdges("A3", node).compile()


# Merged subgraphs


def child():
    return StateGraph({}).addNode("a", node).addEdge(START, "a").addEdge("a", END)


def merging():
    return graph().addNode("S", child()).addEdge(START, "A").addEdge("A", "S").addEdge("S", "B").addEdge("B", END)


def test_an_invalid_child_is_refused_when_it_is_added():
    with pytest.raises(GraphStateException, match="entry point"):
        graph().addNode("S", StateGraph({}).addNode("a", node))


def test_interruptions_name_the_merged_nodes():
    compiled = merging().compile(interrupt_before=["S"], interrupt_after=["S-a"]).compileConfig()
    assert (compiled.interruptsBefore(), compiled.interruptsAfter()) == (("S-a",), ("S-a",))


def test_interruption_after_a_merged_graph_is_refused_with_a_hint():
    with pytest.raises(GraphStateException, match="interrupt_before 'B'"):
        merging().compile(interrupt_after=["S"])


def test_what_is_refused_there_about_merged_graphs_works_here():
    forking = child().addNode("b", node).addEdge(START, "b").addEdge("b", END)
    merged = graph().addNode("S", forking).addEdge(START, "S").addEdge("S", "A").addEdge("S", "B")
    forks = merged.addEdge("A", END).addEdge("B", END).compile().topology.forks
    assert list(forks) == ["__PARALLEL__(S-__START__)", "__PARALLEL__(S-__END__)"]


def test_add_subgraph_is_an_alias():
    built = StateGraph({}).addSubgraph("S", child()).addEdge(START, "S").addEdge("S", END)
    assert "S-a" in built.compile().topology.nodes


# What only a run finds


def test_refused_by_the_run_unmapped_key():
    built = graph().addEdge(START, "A").addConditionalEdges("A", lambda s: "nope", {"x": "B"}).addEdge("B", END)
    compiled = built.compile()
    with pytest.raises(GraphRunnerException, match=r"'A'.*'nope'"):  # swapped there
        compiled.invoke({})


def test_start_to_end_alone_is_legal():
    outputs = list(StateGraph({}).addEdge(START, END).compile().stream({}))
    assert [output.node for output in outputs] == [START, END]


# What only a run finds there, and compile here


def test_no_outgoing_edge():
    with pytest.raises(GraphStateException, match="'A' has no outgoing edge"):
        StateGraph({}).addNode("A", node).addEdge(START, "A").compile()


def test_unreachable_nodes():
    with pytest.raises(GraphStateException, match="'B' cannot be reached from START"):
        graph().addEdge(START, "A").addEdge("A", END).addEdge("B", END).compile()


def test_compile_may_be_called_again_and_the_graph_stays_editable():
    built = graph().addEdge(START, "A").addEdge("A", "B").addConditionalEdges("B", node)
    built.compile()
    built.addNode("C", node).addEdge("C", END)
    built.compile()


def test_an_edge_command_names_a_key_of_the_mappings():
    from graphkit import Command

    compiled = (
        StateGraph({})
        .addNode("A", node)
        .addEdge(START, "A")
        .addConditionalEdges("A", lambda s: Command("x", {"u": 1}), {"x": END})
        .compile()
    )
    assert compiled.invoke({}) == {"u": 1}
