"""Topology: how functions are called, what names resolve to, where stops apply, and fingerprints."""

import functools

import pytest

from graphkit import END, START, InterruptableAction, StateGraph
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import Call, Condition, Fork, Node, Topology, fork_id
from graphkit.errors import GraphStateError
from tests.support.graphs import make_chain


class Later:
    async def __call__(self, state, config):
        return None


async def later(state):
    return None


def chunks(state):
    yield 1


async def later_chunks(state, config):
    yield 1


class Chunks:
    def __call__(self, state):
        yield 1


@pytest.mark.parametrize(
    ("function", "takes_config", "is_async"),
    [
        (lambda s: s, False, False),
        (lambda s, c: s, True, False),
        (lambda s, n=1: s, False, False),
        (lambda s, config=None: s, True, False),
        (lambda *all: all, True, False),
        (lambda s, *rest: s, True, False),
        (lambda s, n=1, *rest: s, False, False),
        (lambda s, *, key=1: s, False, False),
        (later, False, True),
        (Later(), True, True),
        (functools.partial(later), False, True),
        (max, False, False),
        (chunks, False, False),
        (later_chunks, True, True),
    ],
)
def test_how_it_wants_to_be_called(function, takes_config, is_async):
    call = Call(function)
    assert (call.takes_config, call.is_async) == (takes_config, is_async)


@pytest.mark.parametrize(
    ("function", "is_generator"),
    [
        (chunks, True),
        (functools.partial(chunks), True),
        (Chunks(), True),
        (Chunks().__call__, True),
        (later_chunks, True),
        (later, False),
        (lambda s: [s], False),
    ],
)
def test_what_hands_out_chunks(function, is_generator):
    assert Call(function).is_generator is is_generator


@pytest.mark.parametrize("takes_config", [True, False])
def test_who_knows_better_says_whether_it_takes_the_config(takes_config):
    assert Call(lambda s, c=None: s, takes_config=takes_config).takes_config is takes_config


def test_what_cannot_be_called():
    with pytest.raises(TypeError):
        Call(3)


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


NESTED = topology(
    "ABCDEFJ",
    {START: "A", "A": fork_id("A"), fork_id("A"): "J", "B": fork_id("B"), fork_id("B"): "J", "J": END},
    [fork("A", "J", B="BDEF", C="C"), fork("B", "J", D="DF", E="E")],
)


def test_where_a_run_may_go():
    assert all(NESTED.has_target(place) for place in ["A", END, fork_id("A")])
    assert not any(NESTED.has_target(place) for place in ["Z", START, None, ""])
    assert [NESTED.resolve_target(name) for name in ["A", END, fork_id("A"), "Z", START]] == [
        "A",
        END,
        fork_id("A"),
        None,
        None,
    ]


def test_the_id_of_a_merged_graph_is_where_a_run_enters_it():
    graph = topology(["S-a"], {START: "S-a"}, S="S-a")
    assert (graph.resolve_target("S"), graph.resolve_target("S-a"), graph.has_target("S")) == ("S-a", "S-a", False)


def test_in_a_merged_graph_its_own_names_come_first():
    names = {"a": "S-a", END: "b"}
    graph = topology(["a", "b", node("S-a", local_names=names)], {START: "S-a"}, S="S-a")
    assert [graph.resolve_target(name, "S-a") for name in ["a", END, "b", "S"]] == ["S-a", "b", "b", "S-a"]
    assert [graph.resolve_target(name, "a") for name in ["a", END]] == ["a", END]
    assert graph.resolve_target("a", START) == "a"


def test_a_stop_in_a_branch_holds_at_the_forks_around_it():
    """Before a branch: the stop is before its fork."""
    assert NESTED.stops_before(["D"]) == {"D": "D", fork_id("A"): "D", fork_id("B"): "D"}
    assert NESTED.stops_after(["C", "J"]) == {"C": "C", fork_id("A"): "C", "J": "J"}
    assert NESTED.stops_before(["C", "B"])[fork_id("A")] == "C"
    assert NESTED.stops_before([]) == {}


def test_what_a_synchronous_run_cannot_execute():
    late = Call(later)
    inner = topology([Node(id="x", action=late), "y"], {})
    graph = topology(
        [
            "plain",
            Node(id="action", action=late),
            node("asks", interrupt_call=late),
            node("items", items=late),
            node("before", before_hooks=(late,)),
            node("after", after_hooks=(late,)),
            Node(id="chunks", action=Call(later_chunks)),
            Node(id="graph", graph=Embedded(inner)),
            Node(id="hooked", graph=Embedded(inner), before_hooks=(late,)),
        ],
        {
            "plain": Condition(call=late),
            "action": Condition(call=Call(chunks), after_hooks=(late,)),
            "asks": Condition(call=Call(chunks)),
        },
    )
    expected = [
        "action",
        "asks",
        "items",
        "before",
        "after",
        "chunks",
        "graph/x",
        "hooked",
        "hooked/x",
        "plain",
        "action",
    ]
    assert graph.asynchronous == expected


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
