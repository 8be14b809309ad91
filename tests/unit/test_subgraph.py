"""Embedded graphs: a history of their own, updates merged once, and no crash, stop or answer that loses or repeats."""

import operator
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
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
    InterruptableAction,
    RemoveByHash,
    ReplaceAllWith,
    RunnableConfig,
    StateGraph,
    errors,
    interrupt,
)
from graphkit.operations import cancel, rollback
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver, VersionedMemorySaver
from tests.support.graphs import (
    CONFIG,
    COUNTED as LOG,
    Killed,
    fail_once,
    ids_of,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    stored,
)
from tests.support.workers import status

pytestmark = pytest.mark.sweep(1, of=("saver", "go"), in_turn=True)

INSIDE = RunnableConfig("t", checkpoint_ns="s")
DEEP = RunnableConfig("t", checkpoint_ns="s/t")


chain = partial(make_chain, LOG)


class Node:
    """Logs its name, and counts how often it came to its end."""

    def __init__(self, name, runs, question=None, *, fails=False):
        self.name, self.runs, self.question, self.fails = name, runs, question, fails

    def __call__(self, state):
        said = self.name if self.question is None else interrupt(self.question)
        if self.fails:
            raise ValueError(self.name)
        self.runs.append(self.name)
        return {"log": said, "n": 1}


def three_levels(runs, saver, questions=(), **options):
    """a -> s(p -> t(x -> y) -> q) -> z"""

    def node(name):
        return Node(name, runs, f"{name}?" if name in questions else None)

    inmost = chain(x=node("x"), y=node("y")).compile()
    middle = chain(p=node("p"), t=inmost, q=node("q")).compile()
    return chain(a=node("a"), s=middle, z=node("z")).compile(checkpoint_saver=saver, **options)


WHOLE = ["a", "p", "x", "y", "q", "z"]


def levels_of(outputs):
    """Return the nodes of outputs, those of nested graphs with a star."""
    return [f"{output.node}*" if output.is_subgraph else output.node for output in outputs]


# --- what it hands out and what it keeps ------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 12")
def test_each_of_three_levels_has_outputs_between_those_around_it_and_a_history_of_its_own(saver, go):
    graph = three_levels([], saver)
    outputs = go(graph, {})
    inmost = ["__START__*", "x*", "y*", "__END__*"]
    middle = ["__START__*", "p*", *inmost, "t*", "q*", "__END__*"]
    assert levels_of(outputs) == ["__START__", "a", *middle, "s", "z", "__END__"]
    assert logged(outputs) == WHOLE
    assert outputs[-1].state["n"] == 6

    run_ids = set()
    for config, path in ((CONFIG, "asz"), (INSIDE, "ptq"), (DEEP, "xy")):
        assert stored(saver, config) == [*pairwise([START, *path, END])]
        run_ids |= {checkpoint.metadata["run_id"] for checkpoint in saver.list(config)}
    assert len(run_ids) == 1
    assert graph.get_state(DEEP).values == {"log": ["a", "p", "x", "y"], "n": 4}
    assert nodes_of(graph.get_state_history(INSIDE)) == ["q", "t", "p", START]


def test_it_starts_from_the_state_around_it_at_every_visit(saver, go):
    seen = []
    child = chain(p=lambda state: seen.append(list(state["log"])) or {"log": "p", "n": 1}).compile()
    graph = make_graph(LOG, "START>a a>s", a=lambda state: {"log": "a"}, s=child)
    graph.add_conditional_edges("s", lambda state: "a" if state["n"] < 3 else END)
    outputs = go(graph.compile(checkpoint_saver=saver), {})
    assert seen == [["a"], ["a", "p", "a"], ["a", "p", "a", "p", "a"]]
    assert logged(outputs) == ["a", "p"] * 3


@pytest.mark.parametrize("method", ["put", "put_writes"])
def test_a_visit_is_not_taken_for_the_one_before_it_when_nothing_can_be_stored(go, method):
    runs = []
    child = chain(p=Node("p", runs)).compile()
    graph = StateGraph(LOG).add_node("s", child).add_edge(START, "s")
    graph.add_conditional_edges("s", lambda state: "s" if state["n"] < 3 else END)
    saver = ScriptedSaver(MemorySaver())
    saver.on(method, lambda: is_parents(saver), times=None)

    compiled = graph.compile(checkpoint_saver=saver, on_save_error="warn")

    assert logged(go(compiled, {})) == ["p", "p", "p"]
    assert runs == ["p", "p", "p"]


def is_parents(saver):
    config, *_ = saver.calls[-1].args
    if not config.checkpoint_ns and saver.count("put") > 1:
        raise OSError("full")


@pytest.mark.parametrize("config", [CONFIG, INSIDE, DEEP])
def test_a_node_inside_cannot_run_any_of_the_graphs_around_it(saver, config):
    again = chain(b=lambda state: None).compile(checkpoint_saver=saver)
    inmost = chain(x=lambda state: again.invoke({}, config)).compile()
    graph = chain(s=chain(t=inmost).compile()).compile(checkpoint_saver=saver)
    with pytest.raises(errors.GraphRunnerError, match="cannot run its own thread"):
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
        ({}, {}, [{"k": 1, "j": 2}, {"k": REMOVE}], {"k": 0}, {"j": 2}),
        ({}, {}, [{"k": REMOVE}, {"k": 2}], {"k": 0}, {"k": 2}),
        ({"d": Channels.base(default=lambda: 5)}, {"d": Channels.base()}, [{"d": 7}, {"d": RESET}], {}, {"d": 5}),
        ({}, {"c": Channels.base(default=lambda: 5)}, [{"k": 1}], {}, {"k": 1}),
    ],
)
def test_updates_are_merged_once_by_the_rules_around_it(saver, around, inside, updates, start, end):
    nodes = {f"p{n}": (lambda state, update=update: update) for n, update in enumerate(updates)}
    graph = make_chain(around, s=make_chain(inside, **nodes).compile()).compile(checkpoint_saver=saver)
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
def test_schemas_of_any_kind_on_either_side(around, inside):
    one = "1" if inside is Model else 1  # the model makes a number of it before it goes up
    child = make_chain(
        inside, p=lambda state: {"log": ["p"], "n": one}, q=lambda state: {"log": ["q"], "n": one, "mine": "m"}
    ).compile()
    graph = make_chain(around, a=lambda state: {"log": ["a"], "n": 1}, s=child).compile(checkpoint_saver=MemorySaver())
    state = graph.invoke({"log": [], "n": 0}, CONFIG)
    assert (list(state["log"]), state["n"], state["mine"]) == (["a", "p", "q"], 3, "m")


def test_a_state_that_does_not_fit_the_model_inside(saver):
    child = make_chain(Model, p=lambda state: None).compile()
    graph = make_chain({}, s=child).compile(checkpoint_saver=saver)
    with pytest.raises(errors.GraphRunnerError, match="does not fit"):
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


def go_on(graph, go):
    """Resume without knowing what happened: answer pending interrupts with "yes", else go on, else begin."""
    for _ in range(20):
        latest = graph.last_state_of(CONFIG)
        given = GraphResume() if latest else {}
        last = go(graph, given)[-1]
        while last.node != END:
            last = go(graph, GraphResume({stop.id: "yes" for stop in last.interrupts}))[-1]
        return last.state

    raise AssertionError("it never ends")


def statuses(saver):
    return [status(saver, config) for config in (CONFIG, INSIDE, DEEP)]


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


def sweep_deaths(make_graph, stores, kind, go, sweep, expected):
    """Let a run die at each of its writes, and resume it; yield each case: the write, the runs of nodes, the store."""
    counting = ScriptedSaver(stores("counted", kind))
    go_on(make_graph([], counting), go)
    writes = counting.count("put") + counting.count("put_writes")
    assert writes >= 3
    for at in sweep.some(range(1, writes + 2), 4):
        deaths = 0
        for late in (False, True):
            runs = []
            store = (at, late)
            try:
                go_on(make_graph(runs, dying(stores(store, kind), at, late=late)), go)
            except Killed:
                deaths += 1
            state = go_on(make_graph(runs, stores(store, kind)), go)
            assert (list(state["log"]), state["n"]) == (expected, len(expected)), store
            yield store, runs, stores(store, kind)
        # What ends together may be stored by one call, so that a run makes fewer calls than another.
        assert deaths or at > min(3, writes), at


@pytest.mark.parametrize("kind", ["memory", "four-methods", "file"])
@pytest.mark.parametrize("questions", [(), ("y",), ("p", "y", "q")])
@pytest.mark.sweep(1, of=("kind", "go"), in_turn=True)
def test_a_death_at_any_write_repeats_nothing_and_ends_the_same(stores, kind, questions, go, sweep):
    def make_graph(runs, saver):
        return three_levels(runs, saver, questions)

    undisturbed = stores("undisturbed", kind)
    go_on(make_graph([], undisturbed), go)

    expected = histories(undisturbed)

    for (at, late), runs, saver in sweep_deaths(make_graph, stores, kind, go, sweep, answered(questions)):
        repeated = len(runs) - len(WHOLE)
        allowed = 0 if late else 1
        assert repeated <= allowed, (at, late, runs)
        assert list(dict.fromkeys(runs)) == WHOLE
        assert histories(saver) == expected, (at, late)


def answered(questions):
    """The log of a run of three levels in which these nodes ask, and get "yes"."""
    return ["yes" if word in questions else word for word in WHOLE]


@pytest.mark.parametrize("options", [{}, {"durability": "exit"}, {"checkpoint_interval": 5}])
@pytest.mark.parametrize("kind", ["memory", "four-methods"])
@pytest.mark.sweep(1, of=("kind", "go"), in_turn=True)
def test_a_death_at_any_write_of_subgraphs_side_by_side(stores, options, kind, go, sweep):
    def make_graph(runs, saver):
        def child(name, question):
            inner = chain(x=Node(f"x{name}", runs, question)).compile()
            return chain(p=Node(f"p{name}", runs), t=inner, q=Node(f"q{name}", runs)).compile()

        silent = child("1", None)
        asks = child("2", "two?")
        return branches(saver, ("s1", silent), ("s2", asks), ("b", Node("b", runs)), **options)

    expected = ["p1", "x1", "q1", "p2", "yes", "q2", "b", "j"]

    for store, runs, _ in sweep_deaths(make_graph, stores, kind, go, sweep, expected):
        if not options:
            # What runs side by side may be under way together; what is inside runs one by one.
            counts = Counter(runs)
            assert max(counts.values()) <= 2, (store, runs)
            assert len(runs) - len(counts) <= 3, (store, runs)


def test_at_exit_each_history_is_stored_at_its_end_only(saver, go):
    go(three_levels([], saver, durability="exit"), {})
    assert histories(saver) == [[("z", END)], [("q", END)], [("y", END)]]


def test_at_exit_the_executions_of_a_loop_are_distinguished(saver, go):
    runs, fails = [], []

    def q(state):
        if state["n"] == 3:
            fails.append(1)
            if len(fails) == 1:
                raise ValueError
        return {"log": "q", "n": 1}

    inmost = chain(p=Node("p", runs), q=q).compile()
    graph = StateGraph(LOG).add_node("s", chain(t=inmost).compile()).add_edge(START, "s")
    graph.add_conditional_edges("s", lambda state: "s" if state["n"] < 6 else END)
    compiled = graph.compile(checkpoint_saver=saver, durability="exit")
    with pytest.raises(errors.NodeExecutionError) as failed:
        go(compiled, {})

    assert failed.value.node_id == "q"
    assert statuses(saver) == ["failed"] * 3

    assert logged(go(compiled, None)) == ["p", "q"] * 3
    assert runs == ["p"] * 3
    assert statuses(saver) == ["finished"] * 3


def test_each_graph_counts_its_own_nodes_to_the_same_limit(saver, go):
    graph = StateGraph(LOG).add_node("p", Node("p", [])).add_edge(START, "p")
    child = graph.add_conditional_edges("p", lambda state: "p" if state["n"] < 5 else END).compile(max_iterations=2)
    compiled = chain(a=Node("a", []), s=child).compile(checkpoint_saver=saver, max_iterations=4)

    assert go(compiled, {})[-1].state["n"] == 5

    for given in ({"n": -7}, None):  # going on does not reset the count
        with pytest.raises(errors.MaxIterationsError):
            go(compiled, given, RunnableConfig("u"))
        assert saver.get(RunnableConfig("u", checkpoint_ns="s")).metadata["step"] == 4

    assert go(compiled, None, RunnableConfig("u", max_iterations=20))[-1].state["n"] == 5


# --- stops ------------------------------------------------------------------------------------------------------------


class Careful(InterruptableAction):
    def interrupt(self, node_id, state, config):
        return None if "ok" in state["log"] else {"why": "look"}

    def __call__(self, state, config):
        return {"log": "p"}


def asking(state):
    return {"log": interrupt("ok?")}


STOPS = {
    "inside": (asking, {}, "ok", ["a", "ok", "q", "z"]),
    "action": (Careful(), {}, {"log": "ok"}, ["a", "ok", "p", "q", "z"]),
    "before": (Node("p", []), {"interrupt_before": ["p"]}, {"log": "ok"}, ["a", "ok", "p", "q", "z"]),
    "after": (Node("p", []), {"interrupt_after": ["p"]}, {"log": "ok"}, ["a", "p", "ok", "q", "z"]),
    "before_edge": (
        Node("p", []),
        {"interrupt_after": ["p"], "interrupt_before_edge": True},
        {"log": "ok"},
        ["a", "p", "ok", "q", "z"],
    ),
}


def stopping(kind, saver, *, deep=False):
    """a -> s(p -> q) -> z, which stops at p in one of the ways; or with one level more around p and q."""
    p, options, answer, log = STOPS[kind]
    child = chain(p=p, q=Node("q", [])).compile(**options)
    if deep:
        child = chain(t=child).compile()
    graph = chain(a=Node("a", []), s=child, z=Node("z", [])).compile(checkpoint_saver=saver)
    return graph, answer, log


@pytest.mark.parametrize("kind", STOPS)
@pytest.mark.parametrize("deep", [False, True])
def test_a_stop_inside_stops_the_run_and_is_answered_through_it(saver, kind, deep, go):
    graph, answer, log = stopping(kind, saver, deep=deep)
    last = go(graph, {})[-1]

    assert (last.is_subgraph, last.node_id) == (True, "p")
    assert last.when == ("after" if kind == "before_edge" else kind)
    assert status(saver) == "interrupted"

    (pending,) = graph.get_state(CONFIG).interrupts

    assert (pending.id, pending.checkpoint_ns) == (last.id, "s/t" if deep else "s")

    if len(saver.namespaces("t")) > 1:  # a saver of four methods does not list them
        assert saver.interrupts("t") == [pending]

    given = GraphResume({last.id: answer} if deep else answer)
    at = graph.get_state(CONFIG).config if deep else CONFIG

    assert logged(go(graph, given, at)) == log
    assert status(saver) == "finished"
    assert saver.interrupts("t") == []
    assert [snapshot.interrupts for snapshot in graph.get_state_history(CONFIG) if snapshot.interrupts] == []


def test_an_answer_has_left_the_outer_graphs_when_an_open_edge_is_taken(saver, go):
    seen = []
    child = make_graph(LOG, "START>p", p=Node("p", []))
    child.add_conditional_edges("p", lambda state: seen.append(status(saver)) or END, {END: END})
    child = child.compile(interrupt_after=["p"], interrupt_before_edge=True)
    graph = chain(s=chain(t=child).compile()).compile(checkpoint_saver=saver)
    go(graph, {})
    go(graph, GraphResume())
    assert seen == ["running"]


def everything(saver):
    """All that is stored: ids, and what is recorded beside each checkpoint."""
    return [
        (checkpoint.id, dict(saver.get_writes(config.replace(checkpoint_id=checkpoint.id))))
        for config in (CONFIG, INSIDE, DEEP)
        for checkpoint in saver.list(config)
    ]


@pytest.mark.parametrize("options", [{"interrupt_before": ["y"]}, {"interrupt_after": ["x"]}])
def test_no_crash_skips_a_declared_stop_in_a_nested_graph(options, go):
    def make(runs, saver):
        inner = chain(x=Node("x", runs), y=Node("y", runs)).compile(**options)
        return chain(s=chain(t=inner).compile()).compile(checkpoint_saver=saver)

    counting = ScriptedSaver(MemorySaver())
    go(make([], counting), {})
    for at in range(1, counting.count("put") + counting.count("put_writes") + 1):
        runs = []
        saver = MemorySaver()
        with pytest.raises(Killed):
            go(make(runs, dying(saver, at, late=False)), {})
        graph = make(runs, saver)
        last = go(graph, GraphResume() if graph.last_state_of(CONFIG) else {})[-1]
        (waiting,) = saver.interrupts(CONFIG)
        assert (waiting.id, "y" in runs) == (last.id, False), at
        assert logged(go(graph, GraphResume())) == ["x", "y"]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("node", "options", "answer", "log"),
    [(asking, {}, "ok", ["ok"]), (Node("p", []), {"interrupt_after": ["p"]}, {"log": "ok"}, ["p", "ok"])],
    ids=["inside", "after its last node"],
)
def test_after_a_death_in_an_answer_the_question_waits_exactly_if_it_can_be_answered(
    go, node, options, answer, log, late
):
    def make(saver):
        return chain(s=chain(p=node).compile(**options)).compile(checkpoint_saver=saver)

    died = True
    at = 0
    while died:
        died = False
        at += 1
        saver = MemorySaver()
        go(make(saver), {})
        try:
            go(make(dying(saver, at, late=late)), GraphResume(answer))
        except Killed:
            died = True
        given = GraphResume(answer) if saver.interrupts("t") else None
        assert logged(go(make(saver), given)) == log, at
    assert at > 3


def branches(saver, *nodes, **options):
    """Subgraphs side by side, which meet in j."""
    edges = [f"START>{name} {name}>j" for name, _ in nodes]
    return make_graph(LOG, " ".join([*edges, "j>END"]), j=Node("j", []), **dict(nodes)).compile(
        checkpoint_saver=saver, **options
    )


def test_an_answer_passes_no_declared_stop_in_another_branch(saver, go):
    runs = []
    stop = chain(p=Node("p", runs)).compile(interrupt_before=["p"])
    deep = chain(d=chain(q=Node("q", runs)).compile(interrupt_before=["q"])).compile()
    graph = branches(saver, ("s1", stop), ("s2", deep), ("own", lambda state: {"log": interrupt("own")}))
    ids = {stop.node_id: stop.id for stop in go(graph, {})[-1].interrupts}

    for node_id, answer, ran in (("own", "O", []), ("p", {"log": "P"}, ["p"]), ("q", {"log": "Q"}, ["p", "q"])):
        last = go(graph, GraphResume({ids.pop(node_id): answer}))[-1]
        assert runs == ran
        assert {stop.id for stop in last.interrupts} == {*ids.values()}
        assert {each.id for each in saver.interrupts(CONFIG)} == {*ids.values()}
    assert last.state["log"] == ["P", "p", "Q", "q", "O", "j"]


def test_an_update_for_several_that_wait_is_for_none_of_them(saver):
    graph = branches(saver, *((name, chain(p=asking).compile()) for name in ("s1", "s2")))
    graph.invoke({}, CONFIG)
    before = everything(saver)
    with pytest.raises(errors.GraphRunnerError, match="several subgraphs wait"):
        graph.invoke(GraphResume(update={"log": "u"}), CONFIG)
    assert everything(saver) == before


# --- correcting while it waits ----------------------------------------------------------------------------------------


def test_an_update_inside_may_set_where_it_goes_on(saver):
    graph, _, _ = stopping("inside", saver)
    graph.invoke({}, CONFIG)
    graph.update_state(INSIDE, {"log": "by hand"}, "p")
    assert saver.interrupts("t") == []
    assert graph.get_state(CONFIG).interrupts == ()

    before = everything(saver)
    with pytest.raises(errors.GraphRunnerError, match="nothing waits"):
        graph.invoke(GraphResume("ok"), CONFIG)
    assert everything(saver) == before
    assert graph.invoke(None, CONFIG)["log"] == ["a", "by hand", "q", "z"]
    graph.invoke({"log": RESET}, CONFIG)
    graph.update_state(INSIDE, {}, goto=END)
    assert graph.invoke(None, CONFIG)["log"] == ["a", "z"]


def test_time_travel_before_it_and_into_it(saver):
    graph, _, log = stopping("inside", saver)
    graph.invoke({}, CONFIG)
    graph.invoke(GraphResume("ok"), CONFIG)
    before, into = [snapshot for snapshot in reversed(graph.get_state_history(CONFIG)) if snapshot.next in {"a", "s"}]

    for past in (before, into):
        last = graph.invoke_final(None, past.config)
        assert last.payload == "ok?"
        assert graph.invoke(GraphResume("other"), CONFIG)["log"] == ["a", "other", *log[2:]]

    question = next(snapshot for snapshot in graph.get_state_history(INSIDE) if snapshot.next == "p")

    assert graph.update_state(question.config, {"log": "past"}).checkpoint_ns == "s"
    assert graph.get_state(CONFIG).next == END


def test_metadata_of_the_caller_do_not_mislead_a_resume(saver):
    """Keys that the engine uses itself; a second round would be taken for the first one."""
    metadata = {"visit": "today", "within": "a clinic", "keeps": "x", "schema_version": "2.1", "resumed_at": 5}
    config = RunnableConfig("t", metadata={**metadata, "doctor": "ann"})
    child = chain(ask=asking).compile()
    graph = make_graph(LOG, "START>s", s=child)
    graph.add_conditional_edges("s", lambda state: "s" if len(state["log"]) < 2 else END, {"s": "s", END: END})
    app = graph.compile(checkpoint_saver=saver, interrupt_before=["s"], interrupt_after=["s"])

    given = ({}, None, GraphResume("one"), None, GraphResume("two"))
    stops = [app.invoke_final(each, config).when for each in given]
    assert stops == ["before", "inside", "after", "inside", "after"]
    app.invoke(None, config)

    assert app.get_state(CONFIG).values["log"] == ["one", "two"]
    assert saver.get(CONFIG).metadata["doctor"] == "ann"
    assert "today" not in [checkpoint.metadata.get("visit") for checkpoint in saver.list(CONFIG)]


def test_a_rollback_leaves_no_question_pending_two_levels_down(saver):
    graph = three_levels([], saver, ["x"])
    graph.invoke({}, CONFIG)
    rollback(saver, CONFIG.with_check_point_id(saver.get(CONFIG).id))

    assert saver.interrupts("t") == []

    graph.invoke(None, CONFIG)  # asks again

    assert [stop.payload for stop in saver.interrupts("t")] == ["x?"]


def test_pruning_while_it_waits_loses_nothing(saver):
    graph, _, log = stopping("inside", saver, deep=True)
    last = graph.invoke_final({}, CONFIG)
    graph.update_state(CONFIG, {"log": "u"})
    saver.prune("t", keep_last=1)

    assert len(saver.list(CONFIG)) == 2  # the stop before the update is kept, too

    saver.prune("t", keep_last=1, keep_interrupted=False)

    assert len(saver.list(CONFIG)) == 1
    assert graph.invoke(GraphResume({last.id: "ok"}), CONFIG)["log"] == ["a", "u", *log[1:]]


def test_no_two_share_a_history_whatever_their_ids(saver, go):
    def child(word):
        return chain(p=Node(word, []), q=lambda state: {"log": interrupt(word)}).compile()

    s = chain(t=child("in s")).compile()
    graph = branches(saver, ("s", s), ("s/t", child("s/t")), ("s%2Ft", child("s%2Ft")))
    stop = go(graph, {})[-1]

    for namespace, word in {"s/t": "in s", "s%2Ft": "s/t"}.items():
        assert graph.get_state(CONFIG.replace(checkpoint_ns=namespace)).values["log"] == [word]

    ids = ids_of(stop)
    answers = {ids["in s"]: 1, ids["s/t"]: 2, ids["s%2Ft"]: 3}

    before = everything(saver)
    for wrong in ("x", {**answers, "unknown": 4}):
        with pytest.raises(errors.GraphRunnerError, match="several interrupts"):
            go(graph, GraphResume(wrong))
    assert everything(saver) == before

    assert logged(go(graph, GraphResume(answers))) == ["in s", 1, "s/t", 2, "s%2Ft", 3, "j"]


def test_an_unknown_namespace_is_an_error(saver):
    graph, _, _ = stopping("inside", saver)
    graph.invoke({}, CONFIG)
    for namespace in ("x", "s/x", "a", "s/", "/s", "ss"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        for look in (graph.get_state, graph.get_state_history, lambda at: graph.update_state(at, {})):
            with pytest.raises(errors.GraphRunnerError, match="no subgraph at checkpoint_ns"):
                look(config)

    with pytest.raises(errors.CheckpointNotFoundError):
        graph.get_state(RunnableConfig("u", checkpoint_ns="s"))


def test_a_snapshot_has_no_question_of_a_subgraph_that_is_gone_or_of_a_cancelled_run(saver):
    graph, _, _ = stopping("inside", saver)
    graph.invoke({}, CONFIG)
    assert len(graph.get_state(CONFIG).interrupts) == 1
    assert not chain(a=asking).compile(checkpoint_saver=saver).get_state(CONFIG).interrupts
    cancel(saver, "t")
    assert not graph.get_state(CONFIG).interrupts


@pytest.mark.parametrize("given", [{}, None, GraphResume("ok")])
def test_the_namespace_of_a_subgraph_is_run_by_the_graph_around_it_only(saver, given, go):
    child = chain(p=asking, q=Node("q", [])).compile(checkpoint_saver=saver)
    graph = chain(a=Node("a", []), s=child).compile(checkpoint_saver=saver)
    go(graph, {})
    before = everything(saver)

    for each in (graph, child):
        with pytest.raises(errors.GraphRunnerError, match="subgraph"):
            go(each, given, INSIDE)

    assert everything(saver) == before
    assert logged(go(graph, GraphResume("ok"))) == ["a", "ok", "q"]


# --- savers of its own ------------------------------------------------------------------------------------------------


def with_own(own, saver, *, p=asking, **options):
    child = chain(p=p, q=Node("q", [])).compile(checkpoint_saver=own, **options)
    return chain(a=Node("a", []), s=child, z=Node("z", []))


@pytest.mark.requirement("P43")
def test_a_saver_of_its_own(saver, go):
    own = VersionedMemorySaver()
    graph = with_own(own, saver).compile(checkpoint_saver=saver, release_thread=True)
    go(graph, {})

    assert (stored(saver, INSIDE), stored(own, INSIDE)) == ([], [("__START__", "p")])
    assert [stop.checkpoint_ns for stop in own.interrupts("t")] == ["s"]
    assert graph.get_state(CONFIG).interrupts == tuple(own.interrupts("t"))

    graph.update_state(INSIDE, {"log": "u"})

    assert graph.get_state(INSIDE).values["log"] == ["a", "u"]
    assert logged(go(graph, GraphResume("ok"))) == ["a", "u", "ok", "q", "z"]
    assert (stored(own, INSIDE), stored(saver)) == ([], [])
    assert [*own.versions_by_thread_id("t")] == [1]


def test_an_answer_does_not_reach_the_question_that_another_store_s_run_has_asked_in_a_shared_saver():
    child = chain(p=asking).compile(checkpoint_saver=MemorySaver())
    first, second = (chain(s=child).compile(checkpoint_saver=MemorySaver()) for _ in range(2))
    for graph in (first, second):
        graph.invoke({}, CONFIG)
    with pytest.raises(
        errors.GraphRunnerError, match="subgraph 's' was already answered, or the run has moved past it"
    ):
        first.invoke(GraphResume("yes"), CONFIG)
    assert second.invoke(GraphResume("no"), CONFIG)["log"] == ["no"]


def test_a_saver_of_its_own_without_one_around_it():
    own = MemorySaver()
    with_own(own, None, p=Node("p", [])).compile().invoke({}, CONFIG)
    assert [checkpoint.node_id for checkpoint in own.list(INSIDE)] == ["q", "p", START]


def test_a_saver_of_its_own_is_locked_while_the_run_goes_on(saver, tmp_path):
    own = FileSystemSaver(tmp_path / "own", fsync="never", lock_timeout=0)
    other = FileSystemSaver(tmp_path / "own", fsync="never", lock_timeout=0)

    def hold():
        with pytest.raises(errors.ThreadBusyError), other.run_lock(CONFIG):
            pass

    def p(state):
        with ThreadPoolExecutor() as pool:  # outside the nodes of the run
            pool.submit(hold).result()
        return {"log": "p"}

    graph = with_own(own, saver, p=p).compile(checkpoint_saver=saver)
    for output in graph.stream({}, CONFIG):
        if output.is_end and not output.is_subgraph:
            with other.run_lock(CONFIG):  # the last item
                pass
    assert output.state["log"] == ["a", "p", "q", "z"]


@pytest.mark.parametrize("options", [{"release_thread": True}, {"preserve": False}])
def test_what_is_its_own_is_kept_until_the_run_around_it_has_taken_it_over(options):
    own, runs = MemorySaver(), []
    saver = ScriptedSaver(MemorySaver()).fail("put", Killed(), skip=2)
    child = chain(p=Node("p", runs)).compile(checkpoint_saver=own, **options)

    graph = chain(a=Node("a", runs), s=child).compile(checkpoint_saver=saver)

    with pytest.raises(Killed):
        graph.invoke({}, CONFIG)

    assert graph.invoke(None, CONFIG)["log"] == ["a", "p"]
    assert runs == ["a", "p"]


@pytest.mark.parametrize("options", [{"release_thread": True}, {"preserve": False}])
def test_it_goes_with_the_thread(options, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    assert three_levels([], saver, **options).invoke({}, CONFIG)["log"] == WHOLE
    assert not saver.namespaces("t")
    assert [*saver.versions_by_thread_id("t")] == ([1] if "release_thread" in options else [])


@pytest.mark.parametrize("options", [{"release_thread": True}, {"preserve": False}])
def test_a_saver_in_which_a_nested_graph_stores_nothing_is_left_alone(options):
    own = VersionedMemorySaver()
    chain(p=Node("p", [])).compile(checkpoint_saver=own).invoke({}, CONFIG)
    kept = stored(own)

    graph = with_own(own, None, p=Node("p", []), checkpoint_interval=0)
    graph.compile(checkpoint_saver=MemorySaver(), **options).invoke({}, CONFIG)

    assert stored(own) == kept


def test_without_checkpoints_of_its_own_it_starts_over(saver, go):
    runs = []
    q = Node("q", runs, fails=True)
    child = chain(p=Node("p", runs), q=q).compile(checkpoint_interval=0)
    graph = chain(a=Node("a", runs), s=child).compile(checkpoint_saver=saver)
    with pytest.raises(errors.NodeExecutionError):
        go(graph, {})
    q.fails = False

    assert logged(go(graph, None)) == ["a", "p", "q"]
    assert runs == ["a", "p", "p", "q"]
    assert stored(saver, INSIDE) == []


def test_a_question_inside_one_without_checkpoints_cannot_be_answered(saver, go):
    child = chain(p=asking).compile(checkpoint_interval=0)
    graph = chain(s=child).compile(checkpoint_saver=saver)

    assert go(graph, {})[-1].payload == "ok?"

    before = everything(saver)
    with pytest.raises(errors.CheckpointerConfigurationError, match="checkpoint_interval"):
        go(graph, GraphResume("ok"))
    assert everything(saver) == before
    assert go(graph, None)[-1].payload == "ok?"


# --- markers in what a resume brings ----------------------------------------------------------------------------------


MARKED = {"n": Channels.base(operator.add, lambda: 0), "list": Channels.appender()}
GIVEN = {"n": 5, "gone": 1, "list": ["a", "b"]}
UPDATE = {"n": RESET, "gone": REMOVE, "list": [RemoveByHash("a"), "c"]}


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("way", ["update", "update and a failure", "value", "update_state"])
def test_markers_are_allowed_in_a_resume_at_any_depth(saver, way, depth):
    finish = lambda answer: {"answer": answer}  # noqa: E731
    if way == "update and a failure":
        finish = fail_once(finish)
    graph = make_chain(MARKED, ask=lambda state: finish("yes" if way == "value" else interrupt("?")))
    options = {"interrupt_before": ["ask"]} if way == "value" else {}
    for _ in range(depth):
        graph = make_chain(MARKED, sub=graph.compile(**options))
        options = {}
    app = graph.compile(checkpoint_saver=saver, **options)
    app.invoke(GIVEN, CONFIG)

    if way == "value":
        state = app.invoke(GraphResume(UPDATE), CONFIG)
    elif way == "update_state":
        app.update_state(CONFIG.replace(checkpoint_ns="/".join(["sub"] * depth)), UPDATE)
        state = app.invoke(GraphResume("yes"), CONFIG)
    elif way == "update and a failure":
        with pytest.raises(errors.NodeExecutionError):
            app.invoke(GraphResume("yes", update=UPDATE), CONFIG)
        state = app.invoke(None, CONFIG)
    else:
        state = app.invoke(GraphResume("yes", update=UPDATE), CONFIG)

    assert dict(state) == {"n": 0, "list": ["b", "c"], "answer": "yes"}
