"""Topology: how functions are called, what names resolve to, where stops apply, and fingerprints."""

import pytest

from graphkit import END, START, InterruptableAction, StateGraph
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import Call, Condition, Fork, Node, Topology, fork_id
from graphkit.errors import GraphStateError
from tests.support.graphs import make_chain


def chunks(state):
    yield 1


# A topology by hand


def node(node_id, **more):
    return Node(id=node_id, action=Call(lambda s: None), **more)


def fork(source, join, **inside):
    branches = {head: frozenset(nodes) for head, nodes in inside.items()}
    return Fork(id=fork_id(source), source=source, heads=tuple(branches), join=join, branches=branches)


def topology(nodes, edges, forks=(), schema=None, **aliases):
    made = {each.id: each for each in (node(each) if isinstance(each, str) else each for each in nodes)}
    return Topology(made, {each.id: each for each in forks}, edges, schema or StateSchema({}), aliases)


class Embedded:
    def __init__(self, inner):
        self.topology = inner


# Fingerprints


def test_fingerprints_that_older_versions_stored_hold_on():
    schema = StateSchema({}, keys=["x", "y"])
    edges = {
        START: "a",
        "a": Condition(call=Call(chunks), mappings={"k": "b", 1: END}),
        "b": Condition(call=Call(chunks)),
    }
    assert topology("ab", edges, schema=schema).fingerprint == "90e57f750437b8a7"
    assert topology([], {START: END}).fingerprint == "3b3b310b88d5d070"


def test_forks_and_embedded_graphs_tell_graphs_apart():
    def forked(*heads):
        branches = {head: head for head in heads}
        return topology("ABCJ", {"A": fork_id("A"), fork_id("A"): "J"}, [fork("A", "J", **branches)]).fingerprint

    def embedding(*inner):
        return topology([Node(id="S", graph=Embedded(topology(inner, {})))], {}).fingerprint

    assert forked("B", "C") == forked("B", "C")
    assert embedding("x") == embedding("x")
    prints = {
        forked("B", "C"),
        forked("C", "B"),
        forked("B"),
        embedding("x"),
        embedding("y"),
        topology("S", {}).fingerprint,
    }
    assert len(prints) == 6


def fingerprint(build):
    graph = StateGraph({}).add_node("a", lambda s: None).add_edge(START, "a")
    build(graph)
    return graph.compile().topology.fingerprint


def test_the_fingerprint_follows_nodes_and_edges_and_nothing_else():
    plain = fingerprint(lambda g: g.add_edge("a", END))
    assert plain == fingerprint(lambda g: g.add_edge("a", END).add_before_call_node_hook(lambda *all: None))
    others = {
        fingerprint(lambda g: g.add_conditional_edges("a", lambda s: "a", ["a", END])),
        fingerprint(lambda g: g.add_conditional_edges("a", lambda s: END)),
        fingerprint(lambda g: g.add_conditional_edges("a", lambda s: 1, {1: END})),
        fingerprint(lambda g: g.add_edge("a", "b").add_node("b", lambda s: None).add_edge("b", END)),
        plain,
    }
    assert len(others) == 5


def test_an_attribute_called_interrupt_that_cannot_be_called_asks_nothing():
    def node(state):
        return {"x": 1}

    node.interrupt = "a note"
    assert make_chain({}, a=node).compile().invoke({}) == {"x": 1}


def test_an_interruptable_action_has_to_say_both():
    with pytest.raises(TypeError):
        InterruptableAction()


def test_an_unhashable_source():
    with pytest.raises(GraphStateError):
        StateGraph({}).add_conditional_edges({}, lambda s: END)
