"""Hooks: who is called around what, in which order; and which hooks are problems. Reference, section 18."""

import pytest

from graphkit import END, START, StateGraph
from graphkit.errors import GraphStateError


def node(state):
    return None


def hook(name):
    def called(*arguments):
        return None

    called.__name__ = name
    return called


def names(calls):
    return " ".join(call.function.__name__ for call in calls)


def around(part):
    return names(part.before), names(part.wraps), names(part.after)


def chain(*nodes):
    graph = StateGraph({})
    before = START
    for one in nodes:
        graph.add_node(one, node).add_edge(before, one)
        before = one
    return graph.add_edge(before, END)


def add(graph, part, name, *place):
    for kind in ("before", "after", "wrap"):
        getattr(graph, f"add_{kind}_call_{part}_hook")(*place, hook(name))
    return graph


def test_the_first_added_is_outermost_and_those_of_all_nodes_outside_those_of_one():
    graph = chain("a", "b")
    add(graph, "node", "one1", "a")
    add(graph, "node", "all1")
    add(graph, "node", "one2", "a")
    add(graph, "node", "all2")
    nodes = graph.compile().topology.nodes
    order = "all1 all2 one1 one2"
    assert around(nodes["a"]) == (order, order, "one2 one1 all2 all1")
    assert around(nodes["b"]) == ("all1 all2", "all1 all2", "all2 all1")


def test_edge_hooks_in_the_same_order():
    graph = (
        StateGraph({})
        .add_node("a", node)
        .add_conditional_edges("a", node, [END])
        .add_conditional_edges(START, node, ["a"])
    )
    add(graph, "edge", "one", "a")
    add(graph, "edge", "all")
    add(graph, "edge", "start", START)
    edges = graph.compile().topology.edges
    assert around(edges["a"]) == ("all one", "all one", "one all")
    assert around(edges[START]) == ("all start", "all start", "start all")


def test_a_merged_graphs_hooks_go_with_its_nodes_inside_those_of_its_parent():
    child = add(add(chain("a", "b"), "node", "child"), "node", "child-a", "a")
    child = add(add(child, "edge", "childs"), "node", "child-b", "b")
    parent = chain("Z").add_node("S", child).add_edge("S", END)
    add(parent, "node", "one", "S-a")
    add(parent, "node", "all")
    nodes = parent.compile().topology.nodes
    assert around(nodes["S-a"])[0] == "all one child child-a"
    assert around(nodes["S-a"])[2] == "child-a child one all"
    assert around(nodes["S-b"])[1] == "all child child-b"
    assert around(nodes["Z"])[1] == "all"


def test_edge_hooks_on_a_merged_graph_are_on_the_bridge_it_is_left_by():
    child = StateGraph({}).add_node("a", node).add_edge("a", END).add_conditional_edges(START, node, ["a"])
    add(child, "edge", "child", START)
    parent = StateGraph({}).add_node("S", child).add_edge(START, "S").add_conditional_edges("S", node, [END])
    add(parent, "edge", "out", "S")
    edges = parent.compile().topology.edges
    assert around(edges["S-__START__"])[0] == "child"
    assert around(edges["S-__END__"])[0] == "out"


def test_an_embedded_graph_is_not_wrapped():
    graph = StateGraph({}).add_node("S", chain("a").compile()).add_edge(START, "S").add_edge("S", END)
    add(graph, "node", "all")
    assert around(graph.compile().topology.nodes["S"]) == ("all", "", "all")
    with pytest.raises(GraphStateError, match="wrap hook is on 'S', a compiled graph"):
        graph.add_wrap_call_node_hook("S", hook("x")).compile()


def test_wrap_hooks_are_composed_into_what_runs():
    seen = []

    def wrap(name):
        def called(node_id, state, config, call):
            seen.append((name, node_id))
            return call()

        return called

    graph = chain("a").add_wrap_call_node_hook(wrap("first")).add_wrap_call_node_hook("a", wrap("second"))
    graph.add_node("b", node).add_conditional_edges("b", lambda state: END).add_wrap_call_edge_hook(wrap("edge"))
    topology = graph.compile().topology
    topology.nodes["a"].action.function({}, None)
    assert topology.edges["b"].call.function({}, None) == END
    assert seen == [("first", "a"), ("second", "a"), ("edge", "b")]
    assert topology.nodes["a"].action.takes_config


def test_a_run_calls_them_in_this_order():
    seen = []

    def before(name):
        return lambda node_id, state, config: seen.append(f"before {name} {node_id}")

    def after(name):
        return lambda node_id, state, config, result: seen.append(f"after {name} {node_id}") or result

    def wrap(name):
        return lambda node_id, state, config, call: seen.append(f"wrap {name} {node_id}") or call()

    graph = StateGraph({}).add_node("a", lambda state: seen.append("a")).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: seen.append("edge") or END)
    for name in ("1", "2"):
        for part in ("node", "edge"):
            getattr(graph, f"add_before_call_{part}_hook")(before(name))
            getattr(graph, f"add_after_call_{part}_hook")(after(name))
            getattr(graph, f"add_wrap_call_{part}_hook")(wrap(name))
    graph.compile().invoke({})
    around = ["before 1 a", "before 2 a", "wrap 1 a", "wrap 2 a"], ["after 2 a", "after 1 a"]
    assert seen == [*around[0], "a", *around[1], *around[0], "edge", *around[1]]


def test_both_ways_to_say_it():
    graph = chain("a")
    graph.add_before_call_node_hook(hook("h1")).add_before_call_node_hook(hook=hook("h2"))
    graph.add_before_call_node_hook("a", hook("h3")).add_before_call_node_hook(node_id="a", hook=hook("h4"))
    graph.add_before_call_node_hook(None, hook("h5"))
    assert names(graph.compile().topology.nodes["a"].before) == "h1 h2 h5 h3 h4"


@pytest.mark.parametrize("part", ["node", "edge"])
@pytest.mark.parametrize("kind", ["before", "after", "wrap"])
@pytest.mark.parametrize("arguments", [(), ("a",), ("a", "b"), (None, 3), ("", hook("x")), (3, hook("x"))])
def test_hooks_that_are_refused(part, kind, arguments):
    with pytest.raises(GraphStateError, match="hook"):
        getattr(chain("a"), f"add_{kind}_call_{part}_hook")(*arguments)


@pytest.mark.parametrize("kind", ["before", "after", "wrap"])
@pytest.mark.parametrize(
    ("part", "place", "words"),
    [
        ("node", "gone", "hook is on 'gone', which is not a node"),
        ("node", START, "hook is on '__START__', which is not a node"),
        ("node", "S", "hook is on 'S', a subgraph that is merged: put it on 'S-<node>'"),
        ("edge", "gone", "hook is on the edge of 'gone', which has no conditional edge"),
        ("edge", "a", "hook is on the edge of 'a', which has no conditional edge"),
        ("edge", "S", "hook is on the edge of 'S', which has no conditional edge"),
    ],
)
def test_hooks_that_compile_refuses(kind, part, place, words):
    graph = chain("a").add_node("S", chain("x")).add_edge("S", END)
    getattr(graph, f"add_{kind}_call_{part}_hook")(place, hook("x"))
    with pytest.raises(GraphStateError, match=f"a {kind} {words}") as failed:
        graph.compile()
    assert len(failed.value.problems) == 1


def test_a_childs_own_hooks_are_checked_when_it_is_added():
    child = chain("a").add_before_call_node_hook("gone", hook("x"))
    with pytest.raises(GraphStateError, match="subgraph 'S': a before hook is on 'gone'"):
        chain("Z").add_node("S", child)
