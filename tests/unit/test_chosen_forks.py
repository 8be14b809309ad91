"""A condition, or a Command, that chooses several of its declared targets: they run as a fork."""

import asyncio
import itertools

import pytest

from graphkit import END, START, Channels, Command, GraphResume, GraphRunnerError, StateGraph, interrupt
from savers import FileSystemSaver, MemorySaver

NAMES = ["a", "b", "c"]


def noting(name):
    def node(state):
        return {"log": [name]}

    return node


def graph_of(condition, mappings=(*NAMES, END), **nodes):
    """Return START -> route -> some of a, b and c -> join -> END."""
    graph = StateGraph({"log": Channels.appender_with_duplicate(list)})
    for name in ["route", *NAMES, "join"]:
        graph.add_node(name, nodes.get(name, noting(name)))
    graph.add_edge(START, "route").add_conditional_edges("route", condition, mappings)
    for name in NAMES:
        graph.add_edge(name, "join")
    return graph.add_edge("join", END)


def log_of(app, **options):
    return app.invoke({}, **options)["log"]


@pytest.mark.parametrize(
    "chosen", [list(names) for count in range(1, 4) for names in itertools.permutations(NAMES, count)]
)
def test_the_chosen_branches_run_in_the_order_of_the_mappings_and_meet(chosen):
    assert log_of(graph_of(lambda state: chosen).compile()) == ["route", *sorted(chosen), "join"]


@pytest.mark.parametrize("chosen", [["a", "a"], ("a",), {"a"}, ["a", END]])
def test_a_target_counts_once_and_end_only_alone(chosen):
    assert log_of(graph_of(lambda state: chosen).compile()) == ["route", "a", "join"]


@pytest.mark.parametrize("chosen", [[], [END], END])
def test_no_target_ends_the_run(chosen):
    assert log_of(graph_of(lambda state: chosen).compile()) == ["route"]


def test_the_keys_of_mappings_are_chosen():
    app = graph_of(lambda state: [1, 3], {1: "a", 2: "b", 3: "c"}).compile()

    assert log_of(app) == ["route", "a", "c", "join"]


def test_async_runs_and_a_command_of_the_condition():
    async def condition(state):
        return Command(["b", "a"], {"log": ["chosen"]})

    state = asyncio.run(graph_of(condition).compile().ainvoke({}))

    assert state["log"] == ["route", "chosen", "a", "b", "join"]


def test_a_command_of_a_node_chooses_among_its_destinations():
    graph = StateGraph({"log": Channels.appender(list)})
    graph.add_node("route", lambda state: Command(["c", "a"]), destinations=NAMES)
    for name in [*NAMES, "join"]:
        graph.add_node(name, noting(name))
    graph.add_edge(START, "route").add_edge("join", END)
    for name in NAMES:
        graph.add_edge(name, "join")

    assert log_of(graph.compile()) == ["a", "c", "join"]


def test_a_resume_in_a_new_process_finds_the_chosen_fork(tmp_path):
    def ask(state):
        return {"log": [interrupt("ok?")]}

    with FileSystemSaver(tmp_path) as saver:
        graph_of(lambda state: ["a", "b"], b=ask).compile(checkpoint_saver=saver).invoke({}, "t")
    with FileSystemSaver(tmp_path) as saver:
        app = graph_of(lambda state: pytest.fail("the edge was taken already"), b=ask).compile(checkpoint_saver=saver)
        assert app.invoke(GraphResume("yes"), "t")["log"] == ["route", "a", "yes", "join"]


def test_a_stored_fork_that_the_graph_no_longer_declares_is_refused():
    def ask(state):
        interrupt("ok?")

    saver = MemorySaver()
    graph_of(lambda state: ["a", "b"], b=ask).compile(checkpoint_saver=saver).invoke({}, "t")
    app = graph_of(lambda state: "a", mappings=["a", "c"]).add_edge(START, "b").compile(checkpoint_saver=saver)

    with pytest.raises(GraphRunnerError, match="route -> a, b"):
        app.invoke(GraphResume("yes"), "t")


@pytest.mark.parametrize("stop", ["interrupt_before", "interrupt_after"])
def test_a_stop_inside_is_a_stop_at_the_whole_fork(stop):
    app = graph_of(lambda state: ["a", "b"]).compile(checkpoint_saver=MemorySaver(), **{stop: ["b"]})

    stopped = app.invoke({}, "t")
    assert stopped.interrupts[0].node_id == "b"
    assert stopped["log"] == (["route"] if stop == "interrupt_before" else ["route", "a", "b"])
    assert app.invoke(None, "t")["log"] == ["route", "a", "b", "join"]


def test_branches_that_do_not_meet_are_refused():
    graph = StateGraph({}).add_node("route", noting("route")).add_node("a", noting("a")).add_node("b", noting("b"))
    graph.add_edge(START, "route").add_conditional_edges("route", lambda state: ["a", "b"], ["a", "b"])
    graph.add_edge("a", "b").add_edge("b", END)

    with pytest.raises(GraphRunnerError, match="cannot be joined"):
        graph.compile().invoke({})


def test_undeclared_targets_are_refused():
    with pytest.raises(GraphRunnerError, match="add_edge"):
        graph_of(lambda state: ["a", "b"], None).compile().invoke({})
    with pytest.raises(GraphRunnerError, match="'d'"):
        graph_of(lambda state: ["a", "d"]).compile().invoke({})


def test_a_loop_chooses_again():
    def condition(state):
        rounds = state["log"].count("route")
        return {1: ["a", "b"], 2: ["b", "c"]}.get(rounds, END)

    app = graph_of(condition, join=lambda state: Command("route")).compile(checkpoint_saver=MemorySaver())

    assert log_of(app, config="t") == ["route", "a", "b", "route", "b", "c", "route"]


def test_a_chosen_fork_inside_a_branch():
    inner = StateGraph({"log": Channels.appender(list)})
    for name in ["split", *NAMES, "meet"]:
        inner.add_node(name, noting(name))
    inner.add_edge(START, "split").add_conditional_edges("split", lambda state: ["a", "c"], NAMES)
    for name in NAMES:
        inner.add_edge(name, "meet")
    inner.add_edge("meet", END)
    graph = StateGraph({"log": Channels.appender(list)}).add_node("left", inner).add_node("right", noting("right"))
    graph.add_node("join", noting("join"))
    graph.add_edge(START, "left").add_edge(START, "right").add_edge("left", "join").add_edge("right", "join")

    assert log_of(graph.add_edge("join", END).compile()) == ["split", "a", "c", "meet", "right", "join"]
