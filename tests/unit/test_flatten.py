"""Merging: a graph added as a node becomes part of its parent: names, edges, bridges, stops, hooks, at any depth."""

from itertools import pairwise

import pytest

from graphkit import END, START, Channels, Command, StateGraph
from graphkit.errors import GraphStateError, MaxIterationsError
from tests.support.graphs import (
    CONFIG,
    LOG,
    both,
    connect,
    log_node,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    outputs,
    stored,
)


def chain(*names, schema=LOG):
    """START -> each of these -> END; a pair is a name and what to add as it."""
    parts = dict(part if isinstance(part, tuple) else (part, log_node(part)) for part in names)
    return make_chain(schema, **parts)


def edges(graph, **options):
    return graph.compile(**options).topology.edges


def log(app, state=None):
    return list(app.invoke(state or {})["log"])


CHILD = chain("a", "b")
CONDITIONAL = make_graph(LOG, "a>END b>END").add_conditional_edges(START, lambda s: s["way"], {"x": "a", "y": "b"})


def test_merged_in_merged_in_merged():
    """A NullPointerException in langgraph4j."""
    graph = chain(("S", chain(("I", chain(("K", CHILD), "k")), "i")), "Z")
    assert list(graph.compile().topology.nodes) == ["S-I-K-a", "S-I-K-b", "S-I-k", "S-i", "Z"]
    assert log(graph.compile()) == ["a", "b", "k", "i", "Z"]
    assert graph.compile().topology.aliases == {"S-I-K": "S-I-K-a", "S-I": "S-I-K-a", "S": "S-I-K-a"}


def test_a_graph_that_is_added_to_itself_is_added_as_it_was():
    graph = StateGraph(LOG).add_node("a", log_node("a"), destinations=[END]).add_edge(START, "a")
    graph.add_node("again", graph).add_edge("a", "again").add_edge("again", END)
    assert list(graph.compile().topology.nodes) == ["a", "again-a"]


# Bridges


def test_an_inner_start_and_an_outer_way_out_meet_in_one_bridge_each():
    inner = chain(("I", CONDITIONAL))
    graph = StateGraph(LOG).add_node("S", inner).add_edge(START, "S").add_conditional_edges("S", lambda s: END)
    assert list(graph.compile().topology.nodes) == ["S-I-__START__", "S-I-a", "S-I-b", "S-__END__"]
    assert log(graph.compile(), {"way": "x"}) == ["a"]


def test_a_start_that_forks_and_a_way_out_that_forks():
    """Refused in langgraph4j."""
    forking = make_graph(LOG, "START>a,b a>END b>END")
    first, second = make_graph(LOG, "START>S S>Y,Z Y>END Z>END", S=forking).compile().topology.forks.values()
    assert (first.source, first.heads, first.join) == ("S-__START__", ("S-a", "S-b"), "S-__END__")
    assert (second.source, second.heads, second.join) == ("S-__END__", ("Y", "Z"), END)


def test_end_is_no_branch_of_a_fork_in_a_merged_graph():
    child = make_graph(LOG, "START>a a>b,END b>END")
    assert log(chain(("S", child), "Z").compile()) == ["a", "b", "Z"]


def test_merged_graphs_as_branches():
    graph = make_graph(LOG, "START>A A>S,T S>J T>J J>END", S=CHILD, T=CONDITIONAL)
    (fork,) = graph.compile().topology.forks.values()
    assert (fork.heads, fork.join) == (("S-a", "T-__START__"), "J")
    assert fork.branches["T-__START__"] == {"T-__START__", "T-a", "T-b"}


def test_a_child_that_does_nothing():
    graph = chain(("S", StateGraph({}).add_edge(START, END)), "Z")
    assert nodes_of(graph.compile().stream({})) == [START, "S-__START__", "Z", END]


def test_a_branch_that_nothing_leads_on_from_ends_in_its_bridge():
    graph = make_graph(LOG, "START>S,T T>END", S=CHILD, T=log_node("T"))
    topology = graph.compile().topology
    fork = "__PARALLEL__(__START__)"
    assert topology.edges == {START: fork, "S-a": "S-b", "S-b": "S-__END__", "T": END, fork: END}
    assert log(graph.compile()) == ["a", "b", "T"]


# Names that are only known when it runs


def test_a_condition_without_mappings_uses_the_names_of_its_own_graph():
    child = make_graph(LOG, "START>a I>END", a=log_node("a"), I=CHILD)
    child.add_conditional_edges("a", lambda state: state["way"])
    app = chain(("S", child), "Z").compile()
    assert log(app, {"way": "I"}) == ["a", "a", "b", "Z"]
    assert log(app, {"way": END}) == ["a", "Z"]
    assert app.topology.edges["S-a"].mappings == {"a": "S-a", "I-a": "S-I-a", "I-b": "S-I-b", "I": "S-I-a", END: "Z"}


def test_where_a_command_leads_from_a_merged_node():
    topology = chain(("S", chain(("I", CHILD), "i")), "Z", "a").compile().topology
    assert [topology.resolve_target(name, "S-i") for name in ["I", "I-b", "i", END]] == ["S-I-a", "S-I-b", "S-i", "Z"]
    assert [topology.resolve_target(name, "S-I-a") for name in ["a", "b", END]] == ["S-I-a", "S-I-b", "S-i"]
    assert [topology.resolve_target(name, "Z") for name in ["a", "S", "S-I", END]] == ["a", "S-I-a", "S-I-a", END]


# Stops


def stops(app):
    return app.compile_config.interrupt_before, app.compile_config.interrupt_after


def test_interrupt_before_a_merged_graph_is_before_its_first_node():
    graph = chain("A", ("S", chain(("I", CHILD))), ("T", CONDITIONAL))
    app = graph.compile(interrupt_before=["A", "S", "S-I", "T", "S-I-b"], interrupt_after=["S-I-a"])
    assert stops(app) == (("A", "S-I-a", "T-__START__", "S-I-b"), ("S-I-a",))
    assert app.invoke_final({}).node == "A"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("S", "interrupt_before 'Z'"),
        ("S-I", "interrupt_before 'S-i'"),
        ("T", "interrupt_after 'T-__END__'"),
        ("U", "its nodes that lead to END"),
    ],
)
def test_interrupt_after_a_merged_graph_is_a_problem_with_a_hint(name, hint):
    graph = chain(("S", chain(("I", CHILD), "i")), "Z").add_node("T", CHILD).add_conditional_edges("T", lambda s: END)
    graph.add_node("U", CHILD).add_edge("U", END)
    with pytest.raises(GraphStateError, match=f"interrupt_after names '{name}'.*{hint}"):
        graph.compile(interrupt_after=[name])


# What is added is what was there


def test_a_child_is_checked_when_it_is_added():
    child = StateGraph({}).add_node("a", log_node("a")).add_edge("a", "gone")
    with pytest.raises(GraphStateError) as failed:
        StateGraph({}).add_node("S", child)
    assert [problem.startswith("subgraph 'S': ") for problem in failed.value.problems] == [True, True]
    assert "entry point" in failed.value.problems[0]
    assert "'gone'" in failed.value.problems[1]


def test_later_changes_of_the_child_change_nothing():
    child = chain("a")
    graph = chain(("S", child))
    before = graph.compile()
    child.add_node("b", log_node("b")).add_edge("b", "a").add_wrap_call_node_hook(lambda *all: {"log": "no"})
    assert before.topology.edges == edges(graph) == {START: "S-a", "S-a": END}
    assert log(graph.compile()) == ["a"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("name", "part"), [("S-a", log_node("x")), ("S-a", CHILD), ("S-I", log_node("x"))])
def test_names_that_clash(name, part, is_first):
    parts = [("S", chain(("I", CHILD), "a")), (name, part)]
    graph = chain(*(reversed(parts) if is_first else parts))
    with pytest.raises(GraphStateError, match=f"'{name}' names two nodes"):
        graph.compile()


def test_notes_on_a_merged_graph_are_on_its_nodes():
    child = StateGraph(LOG).add_node("a", log_node("a"), metadata={"k": "own", "l": 1})
    graph = StateGraph(LOG).add_node("S", connect(child, "START>a a>END"), metadata={"k": "outer", "m": 2})
    graph.add_node("E", child.compile(), metadata={"n": 3})
    topology = connect(graph, "START>S S>E E>END").compile().topology
    assert topology.nodes["E"].metadata == {"n": 3}
    assert topology.nodes["S-a"].metadata == {"k": "own", "l": 1, "m": 2}


# Runs: one history, one thread, their nodes like any other's


in_turn = pytest.mark.sweep(1, of=("saver", "how"), in_turn=True)


@pytest.mark.requirement("behaviour 12")
@in_turn
@both
def test_one_history_and_one_thread_however_deep(saver, how):
    inside = chain("p", ("T", chain("x", "y")), "q")
    graph = chain("a", ("S", inside), "z").compile(checkpoint_saver=saver)
    nodes = [START, "a", "S-p", "S-T-x", "S-T-y", "S-q", "z", END]

    found = outputs(graph, {}, how=how)

    assert nodes_of(found) == nodes
    assert not any(output.is_subgraph for output in found)
    assert logged(found) == ["a", "p", "x", "y", "q", "z"]
    assert stored(saver) == [*pairwise(nodes)]
    assert [*saver.namespaces("t")] == [""]


@in_turn
@both
def test_the_condition_behind_it_is_a_step_of_its_own(saver, how):
    graph = StateGraph(LOG).add_node("S", chain("p")).add_edge(START, "S")
    graph.add_conditional_edges("S", lambda state: "S" if len(state["log"]) < 3 else END)
    found = outputs(graph.compile(checkpoint_saver=saver), {}, how=how)
    assert nodes_of(found) == [START, *["S-p", "S-__END__"] * 3, END]
    assert logged(found) == ["p"] * 3


def test_a_bridge_counts_as_a_node():
    with pytest.raises(MaxIterationsError):
        chain(("S", CONDITIONAL)).compile(max_iterations=1).invoke({"way": "x"})
    assert log(chain(("S", CHILD)).compile(max_iterations=2)) == ["a", "b"]


@in_turn
@both
def test_commands_and_updates_go_to_merged_nodes(saver, how):
    inside = chain(("p", lambda state: Command("r", {"log": "p"})), "q", "r")
    graph = chain(("a", lambda state: Command("S-p", {"log": "a"})), "b", ("S", inside))
    compiled = graph.compile(checkpoint_saver=saver)

    assert nodes_of(outputs(compiled, {}, how=how)) == [START, "a", "S-p", "S-r", END]
    assert compiled.update_state(CONFIG, {}, goto="S").next_node == "S-p"
    assert logged(outputs(compiled, None, how=how)) == ["a", "p", "r", "p", "r"]


def test_the_rules_of_the_graph_around_it_hold(saver):
    inside = chain("p", schema={"log": Channels.base()})
    graph = chain("a", ("S", inside)).compile(checkpoint_saver=saver)
    assert graph.invoke({}, CONFIG)["log"] == ["a", "p"]
