"""Embedded graphs: a history of their own, updates merged once, and no crash, stop or answer that loses or repeats."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest
from pydantic import BaseModel

from graphkit import (
    END,
    REMOVE,
    RESET,
    START,
    Channels,
    Command,
    GraphResume,
    RemoveByHash,
    ReplaceAllWith,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from graphkit.errors import (
    GraphRunnerError,
)
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver

CONFIG = RunnableConfig("t")
INSIDE = RunnableConfig("t", checkpoint_ns="s")
DEEP = RunnableConfig("t", checkpoint_ns="s/t")
LOG = {"log": Channels.appender_with_duplicate(), "n": Channels.base(operator.add, lambda: 0)}


class Killed(BaseException):
    """The process is gone: nothing else is stored by it."""


class Node:
    """Logs its name, and counts how often it came to its end."""

    def __init__(self, name, runs, question=None):
        self.name, self.runs, self.question = name, runs, question
        self.fails = False

    def __call__(self, state):
        said = self.name if self.question is None else interrupt(self.question)
        if self.fails:
            raise ValueError(self.name)
        self.runs.append(self.name)
        return {"log": said, "n": 1}


def chain(schema=LOG, **nodes):
    graph = StateGraph(schema)
    for name, node in nodes.items():
        graph.add_node(name, node)
    for source, target in zip([START, *nodes], [*nodes, END], strict=True):
        graph.add_edge(source, target)
    return graph


def three_levels(runs, saver, questions=(), **options):
    """a -> s(p -> t(x -> y) -> q) -> z"""

    def node(name):
        made = Node(name, runs, f"{name}?" if name in questions else None)
        return made

    inmost = chain(x=node("x"), y=node("y")).compile()
    middle = chain(p=node("p"), t=inmost, q=node("q")).compile()
    return chain(a=node("a"), s=middle, z=node("z")).compile(checkpoint_saver=saver, **options)


WHOLE = ["a", "p", "x", "y", "q", "z"]


def run(graph, given, config=CONFIG, *, how="sync"):
    """The outputs of a run, by either driver."""
    if how == "sync":
        return list(graph.stream(given, config))

    async def collected():
        return [output async for output in graph.astream(given, config)]

    return asyncio.run(collected())


def walked(outputs):
    return [f"{output.node}*" if output.is_subgraph else output.node for output in outputs]


def stored(saver, config=CONFIG):
    return [(one.node_id, one.next_node_id) for one in reversed(saver.list(config))]


both = pytest.mark.parametrize("how", ["sync", "async"])


# --- what it hands out and what it keeps ------------------------------------------------------------------------------


@both
def test_its_outputs_come_between_those_around_it_flagged(saver, how):
    outputs = run(three_levels([], saver), {}, how=how)
    inmost = ["__START__*", "x*", "y*", "__END__*"]
    middle = ["__START__*", "p*", *inmost, "t*", "q*", "__END__*"]
    assert walked(outputs) == ["__START__", "a", *middle, "s", "z", "__END__"]
    assert outputs[-1].state["log"] == WHOLE
    assert outputs[-1].state["n"] == 6


def test_each_has_a_history_of_its_own_three_levels_deep(saver):
    graph = three_levels([], saver)
    graph.invoke({}, CONFIG)
    assert stored(saver) == [("__START__", "a"), ("a", "s"), ("s", "z"), ("z", "__END__")]
    assert stored(saver, INSIDE) == [("__START__", "p"), ("p", "t"), ("t", "q"), ("q", "__END__")]
    assert stored(saver, DEEP) == [("__START__", "x"), ("x", "y"), ("y", "__END__")]
    assert graph.get_state(DEEP).values == {"log": ["a", "p", "x", "y"], "n": 4}
    assert [s.node for s in graph.get_state_history(INSIDE)] == ["q", "t", "p", START]
    runs = {one.metadata["run_id"] for config in (CONFIG, INSIDE, DEEP) for one in saver.list(config)}
    assert len(runs) == 1


def test_without_a_saver_it_runs_too():
    assert three_levels([], None).invoke({})["log"] == WHOLE


@both
def test_it_starts_from_the_state_around_it_at_every_visit(saver, how):
    seen = []
    child = chain(p=lambda state: seen.append(list(state["log"])) or {"log": "p", "n": 1}).compile()
    graph = StateGraph(LOG).add_node("a", lambda state: {"log": "a"}).add_node("s", child).add_edge(START, "a")
    graph.add_edge("a", "s").add_conditional_edges("s", lambda state: "a" if state["n"] < 3 else END)
    outputs = run(graph.compile(checkpoint_saver=saver), {}, how=how)
    assert seen == [["a"], ["a", "p", "a"], ["a", "p", "a", "p", "a"]]
    assert outputs[-1].state["log"] == ["a", "p"] * 3


@both
@pytest.mark.parametrize("method", ["put", "put_writes"])
def test_a_visit_is_not_taken_for_the_one_before_it_when_nothing_can_be_stored(how, method):
    runs = []
    child = chain(p=Node("p", runs)).compile()
    graph = StateGraph(LOG).add_node("s", child).add_edge(START, "s")
    graph.add_conditional_edges("s", lambda state: "s" if state["n"] < 3 else END)
    saver = ScriptedSaver(MemorySaver())
    saver.on(method, lambda: is_parents(saver), times=None)
    compiled = graph.compile(checkpoint_saver=saver, on_save_error="warn")
    assert run(compiled, {}, how=how)[-1].state["log"] == ["p", "p", "p"]
    assert runs == ["p", "p", "p"]


def is_parents(saver):
    config, *_ = saver.calls[-1].args
    if not config.checkpoint_ns and saver.count("put") > 1:
        raise OSError("full")


def test_a_run_by_hand_has_a_state_and_a_history_of_its_own(saver):
    child = chain(p=lambda state: {"log": "p"}).compile(checkpoint_saver=saver)
    graph = chain(a=lambda state: {"log": child.invoke({"log": "own"}, RunnableConfig("u"))["log"]})
    assert graph.compile(checkpoint_saver=saver).invoke({"log": "i"}, CONFIG)["log"] == ["i", "own", "p"]
    assert stored(saver) == [("__START__", "a"), ("a", "__END__")]
    assert stored(saver, RunnableConfig("u")) == [("__START__", "p"), ("p", "__END__")]


@both
def test_a_run_by_hand_of_the_same_thread_is_an_error_at_once(saver, how):
    child = chain(p=lambda state: {"log": "p"}).compile(checkpoint_saver=saver)
    graph = chain(a=lambda state: {"log": child.invoke({}, CONFIG)["log"]}).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="cannot run its own thread"):
        run(graph, {}, how=how)


@pytest.mark.parametrize("config", [CONFIG, INSIDE, DEEP])
def test_a_node_inside_cannot_run_any_of_the_graphs_around_it(saver, config):
    again = chain(b=lambda state: None).compile(checkpoint_saver=saver)
    inmost = chain(x=lambda state: again.invoke({}, config)).compile()
    graph = chain(s=chain(t=inmost).compile()).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="cannot run its own thread"):
        graph.invoke({}, CONFIG)


# --- what is merged ---------------------------------------------------------------------------------------------------

SUM = Channels.base(operator.add, lambda: 10)
UNIQUE = Channels.appender()


@pytest.mark.parametrize(
    ("around", "inside", "updates", "start", "end"),
    [
        ({"n": SUM}, {"n": SUM}, [{"n": 1}, {"n": 2}], {"n": 0}, {"n": 13}),
        ({"n": SUM}, {}, [{"n": 1}, {"n": 2}], {"n": 0}, {"n": 13}),
        ({}, {"n": SUM}, [{"n": 1}, {"n": 2}], {"n": 0}, {"n": 3}),
        (LOG, LOG, [{"log": "x"}, {"log": ["x", "x"]}], {"log": "x"}, {"log": ["x"] * 4, "n": 0}),
        ({"l": UNIQUE}, LOG, [{"l": ["x", "y"]}, {"l": ["y", "z"]}], {"l": ["x"]}, {"l": ["x", "y", "z"]}),
        (LOG, LOG, [{"log": RESET}, {"log": "x"}], {"log": "i"}, {"log": ["x"], "n": 0}),
        (LOG, LOG, [{"log": REMOVE}], {"log": "i"}, {"n": 0}),
        (LOG, LOG, [{"log": ReplaceAllWith(["r"])}, {"log": "x"}], {"log": "i"}, {"log": ["r", "x"], "n": 0}),
        (LOG, LOG, [{"log": [RemoveByHash("i"), "x"]}], {"log": ["i", "j"]}, {"log": ["j", "x"], "n": 0}),
        (LOG, LOG, [{"log": RemoveByHash("i")}, {"log": None}], {"log": ["i", "j"]}, {"log": [], "n": 0}),
        ({}, {}, [{"k": 1}, {"k": None}], {"k": 0}, {"k": None}),
        ({}, {}, [{"k": 1, "j": 2}, {"k": REMOVE}], {"k": 0}, {"j": 2}),
        ({}, {}, [{"k": REMOVE}, {"k": 2}], {"k": 0}, {"k": 2}),
        ({"d": Channels.base(default=lambda: 5)}, {"d": Channels.base()}, [{"d": 7}, {"d": RESET}], {}, {"d": 5}),
        ({}, {"c": Channels.base(default=lambda: 5)}, [{"k": 1}], {}, {"k": 1}),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "file", "none"])
def test_updates_are_merged_once_by_the_rules_around_it(around, inside, updates, start, end, kind, tmp_path):
    saver = {"memory": MemorySaver, "file": lambda: FileSystemSaver(tmp_path), "none": lambda: None}[kind]()
    nodes = {f"p{n}": (lambda state, update=update: update) for n, update in enumerate(updates)}
    graph = chain(around, s=chain(inside, **nodes).compile()).compile(checkpoint_saver=saver)
    assert dict(graph.invoke(start, CONFIG)) == end


class Typed(TypedDict, total=False):
    log: Annotated[list, operator.add]
    n: Annotated[int, operator.add]
    mine: str


class Model(BaseModel):
    log: Annotated[list[str], operator.add] = []
    n: Annotated[int, operator.add] = 0
    mine: str = ""


@pytest.mark.parametrize("around", [Typed, Model, LOG])
@pytest.mark.parametrize("inside", [Typed, Model, LOG])
def test_schemas_of_any_kind_on_either_side(around, inside, tmp_path):
    child = chain(
        inside, p=lambda state: {"log": ["p"], "n": 1}, q=lambda state: {"log": ["q"], "n": 1, "mine": "m"}
    ).compile()
    graph = chain(around, a=lambda state: {"log": ["a"], "n": 1}, s=child).compile(checkpoint_saver=MemorySaver())
    state = graph.invoke({"log": [], "n": 0}, CONFIG)
    assert (list(state["log"]), state["n"], state["mine"]) == (["a", "p", "q"], 3, "m")


def test_a_state_that_does_not_fit_the_model_inside(saver):
    child = chain(Model, p=lambda state: None).compile()
    graph = chain({}, s=child).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="does not fit"):
        graph.invoke({"n": "no number"}, CONFIG)


def test_a_command_inside_stays_inside_and_one_after_it_goes_on(saver):
    child = chain(p=lambda state: Command("r", {"log": "p"}), q=lambda state: {"log": "q"}, r=lambda state: None)
    graph = StateGraph(LOG).add_node("s", child.compile()).add_edge(START, "s")
    graph.add_conditional_edges("s", lambda state: Command(END, {"log": "edge"}))
    assert graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)["log"] == ["p", "edge"]


# --- crashes ----------------------------------------------------------------------------------------------------------


def dying(saver, at, *, late):
    """A saver that dies at the at-th put or put_writes: before it is done, or after, but before it is acknowledged."""
    count = [0]

    def early():
        count[0] += 1
        if count[0] > at or (count[0] == at and not late):
            raise Killed

    def afterwards():
        if count[0] >= at and late:
            raise Killed

    scripted = ScriptedSaver(saver)
    for method in ("put", "put_writes"):
        scripted.on(method, early, times=None).on(method, afterwards, times=None, late=True)
    return scripted


def go_on(graph, how, answer="yes"):
    """Resume like somebody who does not know what happened: answer what waits, else go on, else begin."""
    for _ in range(20):
        latest = graph.last_state_of(CONFIG)
        given = GraphResume() if latest else {}
        last = run(graph, given, how=how)[-1]
        while last.node != END:
            last = run(graph, GraphResume({stop.id: answer for stop in last.interrupts}), how=how)[-1]
        return last.state
    raise AssertionError("it never ends")


def histories(saver):
    return [stored(saver, config) for config in (CONFIG, INSIDE, DEEP)]


@pytest.fixture
def stores(request, tmp_path, list_saver):
    """Makes saver objects: `stores(n)` gives a new one on store n each time it is asked."""
    kept = {}

    def open_(n, kind):
        if kind == "file":
            return FileSystemSaver(tmp_path / str(n), fsync="never", lock_timeout=0)
        return kept.setdefault(n, MemorySaver() if kind == "memory" else type(list_saver)())

    return open_


@pytest.mark.parametrize("kind", ["memory", "four-methods", "file"])
@pytest.mark.parametrize("questions", [(), ("y",), ("p", "y", "q")])
@both
def test_a_death_at_any_write_repeats_nothing_and_ends_the_same(stores, kind, questions, how):
    expected = [word if word not in questions else "yes" for word in WHOLE]
    undisturbed = histories_of_undisturbed(stores, kind, questions, how)
    at = 0
    while True:
        at += 1
        deaths = 0
        for late in (False, True):
            runs = []
            store = (at, late)
            saver = dying(stores(store, kind), at, late=late)
            try:
                go_on(three_levels(runs, saver, questions), how)
            except Killed:
                deaths += 1
            state = go_on(three_levels(runs, stores(store, kind), questions), how)
            assert (list(state["log"]), state["n"]) == (expected, 6), (at, late)
            repeated = len(runs) - len(WHOLE)
            assert repeated <= (0 if late else 1), (at, late, runs)
            assert list(dict.fromkeys(runs)) == WHOLE
            assert histories(stores(store, kind)) == undisturbed, (at, late)
        if not deaths:
            break
    assert at > 10


def histories_of_undisturbed(stores, kind, questions, how):
    saver = stores("undisturbed", kind)
    go_on(three_levels([], saver, questions), how)
    return histories(saver)
