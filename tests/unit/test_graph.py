"""StateGraph: what it refuses at once, and what compile reports together."""

import functools

import pytest

from graphkit import END, START, CompileConfig, RunnableConfig, StateGraph
from graphkit.errors import CheckpointerConfigurationError, GraphStateError


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
    ("source", "target"),
    [(END, "a"), ("a", START), ("", "a"), (None, "a"), (["a"], "a"), ("a", None), ("a", ""), ("a", ["b"])],
)
def test_edges_that_are_refused(graph, source, target):
    with pytest.raises(GraphStateError):
        graph.add_edge(source, target)


@pytest.mark.parametrize(
    ("source", "condition", "mappings"),
    [
        (END, node, None),
        ("a", node, {}),
        ("a", node, []),
        ("nowhere", node, {}),
        ("a", None, None),
        ("a", "b", {"x": "a"}),
        ("a", node, {"x": None}),
        ("a", node, {"x": ["a"]}),
        (START, node, None),
        (None, node, None),
    ],
)
def test_conditional_edges_that_are_refused(graph, source, condition, mappings):
    with pytest.raises(GraphStateError):
        graph.add_conditional_edges(source, condition, mappings)


def test_plain_and_conditional_edges_exclude_each_other(graph):
    graph.add_conditional_edges("a", node)
    for add in (lambda: graph.add_edge("a", END), lambda: graph.add_conditional_edges("a", node)):
        with pytest.raises(GraphStateError, match="already"):
            add()


def test_all_problems_are_reported_at_once():
    graph = StateGraph({}).add_node("a", node).add_node("b", node).add_node("c", node).add_node("d", node)
    graph.add_edge("a", "gone").add_edge("ghost", "a").add_edge("b", "a").add_edge("b", "a").add_edge(
        "d", "a"
    ).add_edge("d", "d")
    graph.add_conditional_edges("c", node, {"k": "lost", "start": START})
    with pytest.raises(GraphStateError) as failed:
        graph.compile(interrupt_before=["x", "a"], interrupt_after=["y"])
    words = ["entry point", "'gone'", "'ghost'", "'b'", "cannot be joined", "'lost'", "'__START__'", "'x'", "'y'"]
    assert len(failed.value.problems) == len(words)
    for word in words:
        assert any(word in problem for problem in failed.value.problems), word
        assert word in str(failed.value)


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda g: g.add_edge("a", "x"), "'x'"),
        (lambda g: g.add_edge("x", "a"), "'x'"),
        (lambda g: g.add_conditional_edges("a", node, {"k": "x"}), "'x'"),
        (lambda g: g.add_conditional_edges("a", node, ["x"]), "'x'"),
        (lambda g: g.add_edge("a", END).add_edge("a", "a"), "cannot be joined"),
        (lambda g: g.add_edge("a", END).add_edge("a", END), "more than once"),
        (lambda g: g.add_edge(START, END), "cannot be joined"),
    ],
)
def test_each_problem_alone(graph, build, word):
    build(graph)
    with pytest.raises(GraphStateError, match=word) as failed:
        graph.compile()
    assert len(failed.value.problems) == 1


def test_no_entry_point():
    with pytest.raises(GraphStateError, match="entry point"):
        StateGraph({}).compile()


def test_unreachable_nodes_and_nodes_without_an_edge_are_no_problem(graph):
    graph.add_node("island", node).compile()


def test_compiling_again_with_other_options(graph):
    graph.add_edge("a", END)
    config = CompileConfig(interrupt_before=["a"], max_iterations=5)
    one, two = graph.compile(config), graph.compile(config, max_iterations=6)
    assert (one.compile_config, two.compile_config.max_iterations) == (config, 6)
    assert two.compile_config.interrupt_before == ("a",)
    with pytest.raises(TypeError):
        graph.compile(unknown=1)


def test_a_saver_that_is_none(graph):
    with pytest.raises(CheckpointerConfigurationError):
        graph.compile(checkpoint_saver="disk")


class Method:
    def two(self, state, config):
        return {"got": config.thread_id}

    def __call__(self, state):
        return {"got": "call"}


def kinds():
    yield "lambda", lambda state: {"got": 1}, 1
    yield "config", lambda state, config: {"got": config.thread_id}, "t"
    yield "any name", lambda s, c: {"got": c.thread_id}, "t"
    yield "optional config", lambda state, config=None: {"got": config.thread_id}, "t"
    yield "own default", lambda state, n=2: {"got": n}, 2
    yield "all arguments", lambda *all: {"got": len(all)}, 2
    yield "method", Method().two, "t"
    yield "object", Method(), "call"
    yield "partial", functools.partial(lambda n, state: {"got": n}, 7), 7
    yield "builtin", dict, None


@pytest.mark.parametrize(("action", "expected"), [pytest.param(*rest, id=name) for name, *rest in kinds()])
def test_what_an_action_may_be(action, expected):
    graph = StateGraph({}).add_node("a", action, metadata={"note": 1}).add_edge(START, "a").add_edge("a", END)
    assert graph.compile().invoke({"x": 1}, RunnableConfig("t")).value("got") == expected


def test_java_names(graph):
    twin = StateGraph({}).addNode("a", node).addEdge(START, "a").addConditionalEdges("a", lambda s: "k", {"k": END})
    assert [output.node for output in twin.compile().stream({})] == [START, "a", END]
