"""StateGraph: what it refuses at once, and what compile reports together."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import pytest

from graphkit import END, START, Command, RetryPolicy, RunnableConfig, StateGraph, when
from graphkit.errors import GraphRunnerError, GraphStateError, NodeExecutionError
from tests.support.graphs import connect, make_chain, make_graph, nodes_of


def node(state):
    return None


@pytest.fixture
def graph():
    return StateGraph({}).add_node("a", node).add_edge(START, "a")


@pytest.mark.parametrize("id", [START, END, "a", "", None, 3, ["x"]])
def test_node_ids_that_are_refused(graph, id):
    with pytest.raises(GraphStateError):
        graph.add_node(id, node)


@pytest.mark.parametrize("action", [None, "node", {}, 3])
def test_actions_that_are_refused(graph, action):
    with pytest.raises(GraphStateError, match="'x'"):
        graph.add_node("x", action)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"retry": 3}, "RetryPolicy"),
        ({"executor": 3}, "submit"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": float("nan")}, "above 0"),
        ({"timeout": "1"}, "above 0"),
    ],
)
def test_options_of_a_node_that_are_refused(graph, options, word):
    for add in (lambda: graph.add_node("x", node, **options), lambda: graph.add_map_node("x", node, "k", **options)):
        with pytest.raises(GraphStateError, match=f"'x'.*{word}"):
            add()
    graph.add_node("x", node)  # what was refused left nothing behind


@pytest.mark.parametrize(("own", "seconds"), [(None, "0.01"), (0.02, "0.02")])
def test_a_late_node_fails_after_its_own_timeout_or_that_of_the_graph(own, seconds):
    free = threading.Event()
    graph = connect(StateGraph({}).add_node("a", lambda state: free.wait(60), timeout=own), "START>a a>END")
    with pytest.raises(NodeExecutionError, match=f"its timeout of {seconds} s"):
        graph.compile(timeout=0.01).invoke({})
    free.set()


def test_the_graphs_retry_is_for_nodes_without_their_own():
    tries = []
    once, never = RetryPolicy(max_attempts=2, initial_delay=0), RetryPolicy(max_attempts=1)
    graph = StateGraph({}).add_node("a", lambda state: tries.append(1) or {}["missing"], retry=once)
    with pytest.raises(NodeExecutionError):
        connect(graph, "START>a a>END").compile(retry=never).invoke({})
    assert len(tries) == 2


# Map nodes


@pytest.mark.parametrize(
    ("id", "action", "items"), [("a", node, "k"), ("m", None, "k"), ("m", node, 3), ("m", StateGraph({}), "k")]
)
def test_map_nodes_that_are_refused(graph, id, action, items):
    with pytest.raises(GraphStateError):
        graph.add_map_node(id, action, items)


# Graphs as nodes; see test_flatten.py too


def test_add_subgraph_is_add_node(graph):
    inner = graph.add_edge("a", END)
    outer = connect(StateGraph({}).add_subgraph("S", inner).add_subgraph("T", inner.compile()), "START>S S>T T>END")
    assert list(outer.compile().topology.nodes) == ["S-a", "T"]
    with pytest.raises(GraphStateError, match="'x'"):
        outer.add_subgraph("x", node)


@pytest.mark.parametrize(
    "option", [{"retry": RetryPolicy()}, {"timeout": 1}, {"executor": ThreadPoolExecutor}, {"destinations": ["a"]}]
)
def test_a_graph_has_no_retry_timeout_executor_or_destinations(graph, option):
    graph.add_edge("a", END)
    for action in (graph, graph.compile()):
        with pytest.raises(
            GraphStateError, match="'x' is a graph: put retry, executor, timeout and destinations on its nodes"
        ):
            StateGraph({}).add_node("x", action, **option)


@pytest.mark.requirement("behaviour 3")
@pytest.mark.parametrize(
    ("source", "target"),
    [(END, "a"), ("a", START), ("", "a"), (None, "a"), (["a"], "a"), ("a", None), ("a", ""), ("a", ["b"])],
)
def test_edges_that_are_refused(graph, source, target):
    with pytest.raises(GraphStateError):
        graph.add_edge(source, target)


@pytest.mark.requirement("behaviour 3")
@pytest.mark.parametrize(
    ("source", "condition", "mappings"),
    [(END, node, None), ("a", node, {}), ("a", "b", {"x": "a"}), ("a", node, {"x": ["a"]}), (START, node, None)],
)
def test_conditional_edges_that_are_refused(graph, source, condition, mappings):
    with pytest.raises(GraphStateError):
        graph.add_conditional_edges(source, condition, mappings)


def test_plain_and_conditional_edges_exclude_each_other(graph):
    graph.add_conditional_edges("a", node)
    for add in (lambda: graph.add_edge("a", END), lambda: graph.add_conditional_edges("a", node)):
        with pytest.raises(GraphStateError, match="already"):
            add()


@pytest.mark.requirement("G30")
def test_all_problems_are_reported_at_once():
    graph = connect(make_graph({}, "b>a,a d>a,d", lambda name: node).add_node("c", node), "a>gone ghost>a")
    graph.add_conditional_edges("c", node, {"k": "lost", "start": START})

    with pytest.raises(GraphStateError) as failed:
        graph.compile(interrupt_before=["x", "a"], interrupt_after=["y"])
    words = ["entry point", "'gone'", "'ghost'", "'b'", "cannot be joined", "'lost'", "'__START__'", "'x'", "'y'"]

    assert len(failed.value.problems) == len(words)

    for word in words:
        assert any(word in problem for problem in failed.value.problems), word
        assert word in str(failed.value)


@pytest.mark.requirement("G30", "behaviour 3")
@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda g: g.add_conditional_edges("a", node, ["x"]), "'x'"),
        (lambda g: g.add_edge("a", END).add_edge("a", END), "more than once"),
        (lambda g: g.add_edge("a", "a"), "END cannot be reached from START"),
        (lambda g: g.add_edge("a", END).add_node("b", node).add_edge("b", END), "'b' cannot be reached from START"),
        (lambda g: g.add_edge("a", "b").add_node("b", node, destinations=["a", "x"]), "a destination of 'b' is 'x'"),
    ],
)
def test_each_problem_alone(graph, build, word):
    build(graph)
    with pytest.raises(GraphStateError, match=word) as failed:
        graph.compile()
    assert len(failed.value.problems) == 1


def test_a_fork_needs_its_own_id():
    graph = StateGraph({}).add_node("a", node).add_node("b", node).add_node("__PARALLEL__(__START__)", node)
    connect(graph, "START>a,b a>END b>END")
    with pytest.raises(GraphStateError, match="the fork has it"):
        graph.compile()


# Graphs that cannot end


def find_problems(graph):
    with pytest.raises(GraphStateError) as failed:
        graph.compile()
    return failed.value.problems


def test_every_way_in_which_a_graph_cannot_end_is_reported_at_once():
    graph = StateGraph({})
    for name in ("fork", "left", "right", "spin", "dead", "island"):
        graph.add_node(name, node)
    graph.add_conditional_edges(START, node, ["fork", "dead"])
    connect(graph, "fork>left,right left>fork right>spin spin>right island>island")
    assert find_problems(graph) == (
        "the branches out of 'fork' cannot be joined: no path leads from the branch 'right' to 'fork', where the other branches meet",
        "'dead' has no outgoing edge: add_edge('dead', ...), or destinations=[...] if it returns Commands",
        "'island' cannot be reached from START: no edge leads to it, and no destinations=[...] of a node name it",
        "END cannot be reached from START, so no run can end: add_edge(..., END)",
    )


def test_end_among_the_targets_of_a_fork_is_no_way_to_end(graph):
    connect(graph.add_node("b", node), "a>b,END b>a")
    assert find_problems(graph) == ("END cannot be reached from START, so no run can end: add_edge(..., END)",)


def test_a_branch_may_just_end_if_another_shows_where_they_meet(graph):
    graph.add_node("b", node).add_edge(START, "b").add_edge("b", END)
    assert graph.compile().topology.forks["__PARALLEL__(__START__)"].join == END
    alone = StateGraph({}).add_node("a", node).add_node("b", node).add_edge(START, "a").add_edge(START, "b")
    assert any("cannot be joined" in problem for problem in find_problems(alone))
    assert sum("has no outgoing edge" in problem for problem in find_problems(alone)) == 2


def test_what_may_lead_anywhere_causes_no_report(graph):
    graph.add_conditional_edges("a", node).add_node("b", node).add_edge("b", "b")
    assert list(graph.compile().topology.nodes) == ["a", "b"]


def test_a_condition_that_no_run_comes_to_hides_nothing(graph):
    graph.add_edge("a", END).add_node("b", node).add_conditional_edges("b", node).add_node("c", node).add_edge("c", END)
    assert [problem.split()[0] for problem in find_problems(graph)] == ["'b'", "'c'"]


def test_a_merged_graph_is_reported_by_the_name_it_was_added_under(graph):
    child = make_chain({}, x=node, y=make_chain({}, z=node))
    graph.add_edge("a", END).add_node("S", child)
    assert [problem.split(":")[0] for problem in find_problems(graph)] == [
        "'S' has no outgoing edge",
        "'S' cannot be reached from START",
    ]


# Destinations


def test_destinations_count_as_edges():
    graph = StateGraph({}).add_node("a", lambda state: Command("b"), destinations=["b", END]).add_edge(START, "a")
    graph.add_node("b", lambda state: Command(END), destinations=(END,))
    app = graph.compile()
    assert nodes_of(app.stream({})) == [START, "a", "b", END]
    assert app.topology.nodes["a"].destinations == ("b", END)


def test_destinations_lead_within_a_branch():
    graph = StateGraph({}).add_node("a", lambda state: Command("c"), destinations=["c", "j"]).add_node("b", node)
    connect(graph.add_node("c", lambda state: {"c": 1}).add_node("j", node), "j>END START>a,b b>j c>j")
    app = graph.compile()
    assert app.topology.forks["__PARALLEL__(__START__)"].branches["a"] == {"a", "c"}
    assert app.invoke({}) == {"c": 1}


def test_destinations_of_a_merged_graph_go_with_it():
    child = StateGraph({}).add_node("x", lambda state: Command("y"), destinations=["y"]).add_edge(START, "x")
    child.add_node("y", lambda state: Command(END), destinations=[END])
    graph = StateGraph({}).add_node("go", lambda state: Command("S"), destinations=["S"]).add_node("S", child)
    connect(graph.add_node("z", node), "START>go S>z z>END")
    assert nodes_of(graph.compile().stream({})) == [START, "go", "S-x", "S-y", "z", END]


@pytest.mark.parametrize(
    "add_edges",
    [
        lambda graph: connect(graph, "a>b"),
        lambda graph: graph.add_conditional_edges("a", lambda state: "no", {"yes": "b", "no": "c"}),
        lambda graph: connect(graph, "a>b,c"),
    ],
    ids=["plain", "conditional", "fork"],
)
def test_a_command_may_go_where_an_edge_leads_too(add_edges):
    graph = StateGraph({}).add_node("a", lambda state: Command("b"), destinations=["c", "d"])
    connect(graph.add_node("b", node).add_node("c", node).add_node("d", node), "START>a b>d c>d d>END")
    add_edges(graph)
    assert nodes_of(graph.compile().stream({})) == [START, "a", "b", "d", END]


@pytest.mark.parametrize("edges", ["b>c c>END", "b>c c>END START>d d>END"], ids=["alone", "in a branch"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Command("c"), r"'a' goes to 'c', which is not among its destinations \('b'\)"),
        (None, "'a' has no outgoing edge, and returned no Command with a goto"),
    ],
)
def test_a_node_that_does_not_go_where_its_destinations_say_is_an_error(edges, given, reason):
    graph = make_graph({}, edges, lambda name: node).add_node("a", lambda state: given, destinations=["b"])
    with pytest.raises(GraphRunnerError, match=reason):
        graph.add_edge(START, "a").compile().invoke({})


@pytest.mark.parametrize("destinations", ["b", [None], [3], [""], 3, [START]])
def test_destinations_that_are_refused(graph, destinations):
    with pytest.raises(GraphStateError, match="destination"):
        graph.add_node("x", node, destinations=destinations)
    graph.add_node("x", node)  # what was refused left nothing behind


class Action:
    def __call__(self, state, config):
        return {"got": config.thread_id}


ACTIONS = {
    "method": (Action().__call__, "t"),
    "object": (Action(), "t"),
    "lambda": (lambda state: {"got": 1}, 1),
    "any name": (lambda s, c: {"got": c.thread_id}, "t"),
    "optional config": (lambda state, config=None: {"got": config.thread_id}, "t"),
    "own default": (lambda state, n=2: {"got": n}, 2),
    "all arguments": (lambda *all: {"got": len(all)}, 2),
    "partial": (functools.partial(lambda n, state: {"got": n}, 7), 7),
    "builtin": (dict, None),
}


@pytest.mark.parametrize("kind", ACTIONS)
def test_what_an_action_may_be(kind):
    action, expected = ACTIONS[kind]
    assert make_chain({}, a=action).compile().invoke({"x": 1}, RunnableConfig("t")).value("got") == expected


def test_drawing_needs_no_whole_graph(graph):
    drawn = graph.add_edge("a", "later").get_graph("mermaid", title=None)
    assert '\tlater("later")' in drawn.content
    assert "a:::a --> later:::later" in drawn.content
    with pytest.raises(ValueError, match="'mermaid', 'plantuml', 'text', not 'svg'"):
        graph.get_graph("svg")


@pytest.mark.requirement("G37", "H51")
def test_a_slip_in_a_name_that_checkpoint_when_has_is_found_at_compile():
    """Otherwise it would store nothing, without a message."""
    graph = make_chain({}, a=lambda state: None)
    graph.compile(checkpoint_when=when.any_of(when.after("a"), when.before(END)))
    forking = make_graph({}, "START>a,b a>END b>END", lambda name: node)
    forking.compile(checkpoint_when=when.after("__PARALLEL__(__START__)"))
    with pytest.raises(GraphStateError, match="checkpoint_when names 'b', which is not a node"):
        graph.compile(checkpoint_when=when.after("b"))


# --- fingerprints -----------------------------------------------------------------------------------------------------


class State(TypedDict):
    x: int
    y: int


def fingerprint(edges="", *, condition=None, schema=None, names="a", **options):
    """Return the fingerprint of a graph of nodes with one letter, the first of which has the condition and options."""
    graph = StateGraph(schema or {})
    for name in names:
        graph.add_node(name, node, **(options if name == "a" else {}))
    if condition is not None:
        graph.add_conditional_edges("a", node, *condition)
    return connect(graph, f"START>a {edges}").compile().topology.fingerprint


def test_fingerprints_that_older_versions_stored_hold_on():
    graph = StateGraph(State).add_node("a", node).add_node("b", node).add_edge(START, "a")
    graph.add_conditional_edges("a", node, {"k": "b", 1: END}).add_conditional_edges("b", node)
    assert graph.compile().topology.fingerprint == "90e57f750437b8a7"
    assert StateGraph({}).add_edge(START, END).compile().topology.fingerprint == "3b3b310b88d5d070"


def test_the_fingerprint_follows_nodes_edges_forks_and_nested_graphs_and_nothing_else():
    def nesting(name):
        return make_chain({}, S=make_chain({}, **{name: node}).compile()).compile().topology.fingerprint

    plain = fingerprint("a>END")
    prints = {
        plain,
        fingerprint(condition=[["a", END]]),
        fingerprint(condition=[{1: END}]),
        fingerprint("a>b b>END", names="ab"),
        fingerprint("a>c,b b>END c>END", names="abc"),
        nesting("x"),
        nesting("y"),
    }
    assert len(prints) == 7
    # What an older version stored is served on after its nodes were given the destinations that compile asks for.
    assert fingerprint("a>END", destinations=[END]) == plain
    hooked = connect(StateGraph({}).add_node("a", node), "START>a a>END").add_before_call_node_hook(lambda *all: None)
    assert hooked.compile().topology.fingerprint == plain


def test_an_attribute_called_interrupt_that_cannot_be_called_asks_nothing():
    def node_of(state):
        return {"x": 1}

    node_of.interrupt = "a note"
    assert make_chain({}, a=node_of).compile().invoke({}) == {"x": 1}
