"""Graphs that were merged into another: one history, one thread, their nodes like any other's."""

from functools import partial
from itertools import pairwise

import pytest

from graphkit import END, START, Channels, Command, StateGraph
from graphkit.errors import MaxIterationsError
from tests.support import graphs
from tests.support.graphs import (
    CONFIG,
    COUNTED as LOG,
    both,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    outputs as run,
    stored,
)

pytestmark = pytest.mark.sweep(1, of=("saver", "how"), in_turn=True)

log_node = partial(graphs.log_node, n=1)
chain = partial(graphs.make_chain_of, LOG, {"n": 1})


@pytest.mark.requirement("behaviour 12")
@both
def test_one_history_and_one_thread_however_deep(saver, how):
    inside = chain("p", T=chain("x", "y"), q=log_node("q"))
    graph = chain("a", S=inside, z=log_node("z")).compile(checkpoint_saver=saver)
    nodes = [START, "a", "S-p", "S-T-x", "S-T-y", "S-q", "z", END]

    outputs = run(graph, {}, how=how)

    assert nodes_of(outputs) == nodes
    for output in outputs:
        assert not output.is_subgraph
    final = outputs[-1].state
    assert dict(final) == {"log": ["a", "p", "x", "y", "q", "z"], "n": 6}
    assert stored(saver) == [*pairwise(nodes)]
    assert [*saver.namespaces("t")] == [""]


def conditional(key):
    """A graph with a condition at its start."""
    graph = make_graph(LOG, "p>END q>END", p=log_node("p"), q=log_node("q"))
    return graph.add_conditional_edges(START, lambda state: state[key], {"left": "p", "right": "q"})


@both
def test_the_condition_behind_it_is_a_step_of_its_own(saver, how):
    graph = StateGraph(LOG).add_node("S", chain("p")).add_edge(START, "S")
    graph.add_conditional_edges("S", lambda state: "S" if state["n"] < 3 else END)
    outputs = run(graph.compile(checkpoint_saver=saver), {}, how=how)
    assert nodes_of(outputs) == [START, *["S-p", "S-__END__"] * 3, END]
    assert logged(outputs) == ["p"] * 3


def test_a_bridge_counts_as_a_node():
    graph = chain(S=conditional("way")).compile(max_iterations=1)
    with pytest.raises(MaxIterationsError):
        graph.invoke({"way": "left"})
    assert chain(S=chain("p", "q")).compile(max_iterations=2).invoke({})["n"] == 2


@both
def test_commands_and_updates_go_to_merged_nodes(saver, how):
    inside = chain(p=lambda state: Command("r", {"log": "p"}), q=log_node("q"), r=log_node("r"))
    graph = make_chain(LOG, a=lambda state: Command("S-p", {"log": "a"}), b=log_node("b"), S=inside)
    compiled = graph.compile(checkpoint_saver=saver)

    assert nodes_of(run(compiled, {}, how=how)) == [START, "a", "S-p", "S-r", END]
    assert compiled.update_state(CONFIG, {}, goto="S").next_node == "S-p"
    assert logged(run(compiled, None, how=how)) == ["a", "p", "r", "p", "r"]


def test_the_rules_of_the_graph_around_it_hold(saver):
    inside = make_chain({"log": Channels.base()}, p=log_node("p"))
    assert chain("a", S=inside).compile(checkpoint_saver=saver).invoke({}, CONFIG)["log"] == ["a", "p"]
