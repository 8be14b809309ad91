"""Topology: how things want to be called, and what tells two graphs apart."""

import functools

import pytest

from graphkit import END, START, InterruptableAction, StateGraph
from graphkit._topology import Call
from graphkit.errors import GraphStateError


class Later:
    async def __call__(self, state, config):
        return None


async def later(state):
    return None


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
    ],
)
def test_how_it_wants_to_be_called(function, takes_config, is_async):
    call = Call(function)
    assert (call.takes_config, call.is_async) == (takes_config, is_async)


def test_what_cannot_be_called():
    with pytest.raises(TypeError):
        Call(3)


def fingerprint(build):
    graph = StateGraph({}).add_node("a", lambda s: None).add_edge(START, "a")
    build(graph)
    return graph.compile()._topology.fingerprint


def test_the_fingerprint_follows_nodes_and_edges_and_nothing_else():
    plain = fingerprint(lambda g: g.add_edge("a", END))
    assert plain == fingerprint(lambda g: g.add_edge("a", END))
    others = {
        fingerprint(lambda g: g.add_edge("a", "a")),
        fingerprint(lambda g: g.add_conditional_edges("a", lambda s: END)),
        fingerprint(lambda g: g.add_conditional_edges("a", lambda s: 1, {1: END})),
        fingerprint(lambda g: g.add_edge("a", END).add_node("b", lambda s: None)),
        plain,
    }
    assert len(others) == 5


def test_an_attribute_called_interrupt_that_cannot_be_called_asks_nothing():
    def node(state):
        return {"x": 1}

    node.interrupt = "a note"
    assert StateGraph({}).add_node("a", node).add_edge(START, "a").add_edge("a", END).compile().invoke({}) == {"x": 1}


def test_an_interruptable_action_has_to_say_both():
    with pytest.raises(TypeError):
        InterruptableAction()


def test_an_unhashable_source():
    with pytest.raises(GraphStateError):
        StateGraph({}).add_conditional_edges({}, lambda s: END)
