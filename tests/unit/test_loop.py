"""How a graph runs: what happens in which order, what is stored, what a resume repeats."""

import operator
import pickle
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import pytest

from graphkit import (
    END,
    START,
    Channels,
    Command,
    GraphResume,
    InterruptionMetadata,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    StateSnapshot,
)
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    GraphRunnerError,
    MaxIterationsError,
    NodeExecutionError,
)
from graphkit.testing import ScriptedSaver
from savers import MemorySaver
from tests.support.graphs import (
    CONFIG,
    CYCLE,
    LOG,
    Boom,
    FlakyNode,
    at_checkpoint,
    log_node,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    outputs,
    stored,
)
from tests.support.workers import status


def chain(*names, schema=LOG, fails=None):
    """A graph START -> a -> b -> ... -> END of nodes that log their names; returns it and its nodes."""
    nodes = {name: FlakyNode(name, fails=name == fails) for name in names}
    return make_chain(schema, **nodes), nodes


def logs(saver, config=CONFIG):
    return [list(checkpoint.state.get("log", [])) for checkpoint in reversed(saver.list(config))]


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_step_runs_the_node_merges_takes_the_edge_saves_and_only_then_hands_out(saver):
    events = []

    def node(state):
        events.append("node")
        return {"log": "n"}

    def edge(state):
        events.append(f"edge {list(state['log'])}")
        return Command("stop", {"log": "e"})

    scripted = ScriptedSaver(saver).on("put", lambda: events.append("put"), times=None)
    graph = make_graph(LOG, "START>n", n=node).add_conditional_edges("n", edge, {"stop": END})
    app = graph.compile(checkpoint_saver=scripted)
    outputs(app, {"log": "i"}, on_output=lambda output: events.append(f"out {output.node}"))
    assert events == ["put", "out __START__", "node", "edge ['i', 'n']", "put", "out n", "out __END__"]
    assert logs(saver) == [["i"], ["i", "n", "e"]]


@pytest.mark.requirement("H30", "behaviour 7")
def test_k_nodes_store_k_plus_one_checkpoints_each_the_child_of_the_last(saver):
    graph, _ = chain("a", "b", "c")
    graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert stored(saver) == [(START, "a"), ("a", "b"), ("b", "c"), ("c", END)]
    history = list(reversed(saver.list(CONFIG)))
    assert [checkpoint.parent_id for checkpoint in history] == [None, *(checkpoint.id for checkpoint in history[:-1])]
    assert logs(saver) == [[], ["a"], ["a", "b"], ["a", "b", "c"]]


@pytest.mark.requirement("P5", "G10", "H30")
@pytest.mark.parametrize("options", [{}, {"checkpoint_saver": MemorySaver(), "checkpoint_interval": 0}])
def test_without_a_saver_or_with_interval_zero_nothing_is_kept_between_runs(options):
    compiled = chain("a")[0].compile(**options)
    assert compiled.invoke({}, CONFIG)["log"] == ["a"]
    assert compiled.invoke({}, CONFIG)["log"] == ["a"]


@pytest.mark.requirement("G28", "G15")
@pytest.mark.parametrize("failing", ["node", "edge", "update", "command"])
def test_a_step_that_fails_stores_nothing_and_a_resume_runs_it_again(saver, failing):
    runs, broken = [], [True]

    def b(state):
        runs.append("b")
        if broken and failing == "node":
            raise Boom("no")
        if broken and failing == "update":
            return 17
        if broken and failing == "command":
            return Command("nowhere", {"log": "b"})
        return {"log": "b"}

    def after_b(state):
        if broken and failing == "edge":
            raise Boom("no")
        return END

    graph = make_graph(LOG, "START>a a>b", a=lambda state: runs.append("a"), b=b).add_conditional_edges("b", after_b)
    compiled = graph.compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError) as failed:
        compiled.invoke({"x": 1}, CONFIG)
    assert failed.value.node_id == "b"
    assert failed.value.thread_id == "t"
    assert failed.value.path[:1] == ("a",)
    assert isinstance(failed.value.__cause__, Boom) == (failing in {"node", "edge"})
    assert stored(saver) == [(START, "a"), ("a", "b")]
    assert status(saver) == "failed"
    before = saver.list(CONFIG)
    broken.clear()
    assert compiled.invoke(None, CONFIG)["log"] == ["b"]
    assert runs == ["a", "b", "b"]
    assert [c.id for c in saver.list(CONFIG)][1:] == [c.id for c in before]


def test_a_failed_entry_edge_stores_nothing(saver):
    def entry(state):
        raise Boom("no")

    graph = StateGraph({}).add_node("a", lambda s: None).add_conditional_edges(START, entry).add_edge("a", END)
    with pytest.raises(NodeExecutionError, match="__START__"):
        graph.compile(checkpoint_saver=saver).invoke({"x": 1}, CONFIG)
    assert stored(saver) == []


def test_what_a_node_may_return():
    def run(result):
        graph = make_chain(LOG, a=lambda s: result, b=log_node("b"))
        return graph.compile().invoke({"log": "i"})["log"]

    update = {"log": "a"}

    assert run(None) == ["i", "b"]
    assert run({}) == ["i", "b"]
    assert run(update) == ["i", "a", "b"]
    assert run(Command(update=update)) == ["i", "a", "b"]
    assert run(Command(END, update)) == ["i", "a"]
    assert run(Command(END)) == ["i"]
    # The state itself is no update.
    assert make_chain(LOG, a=lambda s: s).compile().invoke({"log": "i"})["log"] == ["i"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (1, "'odd' returned"),
        ("x", "'odd' returned"),
        (["log"], "'odd' returned"),
        (True, "'odd' returned"),
        ({1: 2}, "'odd'"),
        ({"x": CYCLE}, "contains itself"),
    ],
)
def test_another_result_is_an_error_that_names_the_node(result, reason):
    graph = make_chain(LOG, odd=lambda s: result)
    with pytest.raises(NodeExecutionError, match=reason):
        graph.compile().invoke({})


@pytest.mark.parametrize("result", ["nope", None, 3, ["list"], Command("nope"), Command()])
@pytest.mark.parametrize("mappings", [{"yes": END}, None])
def test_an_unmapped_condition_names_its_source(saver, result, mappings):
    graph = StateGraph({}).add_node("a", lambda s: None).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda s: result, mappings)
    with pytest.raises(GraphRunnerError, match="'a'"):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert stored(saver) == [(START, "a")]


def test_conditions_may_return_any_key_of_the_mappings():
    graph = make_graph({}, "START>a b>END", a=lambda s: None, b=lambda s: None)
    graph.add_conditional_edges("a", lambda s: s["x"], {True: "b", False: END, ("x", "y"): END})
    assert nodes_of(graph.compile().stream({"x": True})) == [START, "a", "b", END]
    assert nodes_of(graph.compile().stream({"x": False})) == [START, "a", END]
    assert nodes_of(graph.compile().stream({"x": ("x", "y")})) == [START, "a", END]


def test_node_ids_may_be_members_of_an_enum(saver):
    class Step(StrEnum):
        ONE = "one"
        TWO = "two"

    graph = StateGraph({}).add_node(Step.ONE, lambda s: Command(Step.TWO), destinations=Step)
    graph.add_node(Step.TWO, lambda s: None).add_edge(START, Step.ONE)
    graph.add_conditional_edges(Step.TWO, lambda s: END, [Step.ONE, END])
    compiled = graph.compile(checkpoint_saver=saver, interrupt_before=[Step.TWO])

    assert stops(compiled, {}) == ([START, "one"], ("two", "before"))
    assert stops(compiled) == (["two", END], None)
    assert {type(checkpoint.next_node_id) for checkpoint in saver.list(CONFIG)} == {str}


# --- beginning, resuming ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("P13")
def test_input_on_a_finished_thread_continues_from_its_state(saver):
    compiled = chain("a")[0].compile(checkpoint_saver=saver)
    compiled.invoke({"log": "1"}, CONFIG)
    assert compiled.invoke({"log": "2"}, CONFIG)["log"] == ["1", "a", "2", "a"]
    assert stored(saver) == [(START, "a"), ("a", END)] * 2


@pytest.mark.requirement("P14")
def test_input_with_a_checkpoint_id_starts_from_that_state(saver):
    compiled = chain("a")[0].compile(checkpoint_saver=saver)
    compiled.invoke({"log": "1"}, CONFIG)
    before = list(saver.list(CONFIG))

    assert compiled.invoke({"log": "2"}, at_checkpoint(before[-1]))["log"] == ["1", "2", "a"]

    _, begun, *rest = saver.list(CONFIG)

    assert rest == before
    assert begun.parent_id == before[-1].id


def test_an_input_that_is_none_of_the_kinds_is_refused(saver):
    with pytest.raises(GraphRunnerError):
        chain("a")[0].compile(checkpoint_saver=saver).invoke(["x"], CONFIG)


@pytest.mark.requirement("G21")
@pytest.mark.parametrize("options", [{}, {"checkpoint_interval": 0}])
def test_a_resume_without_a_saver(options):
    if options:
        options["checkpoint_saver"] = MemorySaver()
    compiled = chain("a")[0].compile(**options)
    for given in (None, GraphResume(), GraphResume(1)):
        with pytest.raises(CheckpointerConfigurationError):
            compiled.invoke(given, CONFIG)


@pytest.mark.requirement("G21")
@pytest.mark.filterwarnings("ignore::graphkit.DefaultThreadWarning")
@pytest.mark.parametrize("config", [CONFIG, RunnableConfig("t", "nope"), None])
def test_a_resume_without_a_checkpoint(saver, config):
    compiled = chain("a")[0].compile(checkpoint_saver=saver)
    with pytest.raises(CheckpointNotFoundError):
        compiled.invoke(None, config)
    if config and config.checkpoint_id:
        with pytest.raises(CheckpointNotFoundError):
            compiled.invoke({}, config)
    assert not saver.list(CONFIG)


@pytest.mark.requirement("behaviour 9", "G22", "L14")
def test_resuming_a_finished_thread_emits_the_end_and_stores_nothing(saver):
    compiled = chain("a")[0].compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    before = list(saver.list(CONFIG))
    for _ in range(2):
        (end,) = compiled.stream(None, CONFIG)
        assert end.is_end
        assert end.state["log"] == ["a"]
    assert list(saver.list(CONFIG)) == before


@pytest.mark.requirement("G36", "behaviour 9")
def test_resuming_a_past_checkpoint_appends_and_removes_nothing(saver):
    graph, nodes = chain("a", "b", "c")
    compiled = graph.compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    before = [*saver.list(CONFIG)]
    at_a = before[2]

    outputs = list(compiled.stream(None, at_checkpoint(at_a)))

    assert nodes_of(outputs) == ["b", "c", END]
    assert logged(outputs) == ["a", "b", "c"]
    _, first, *rest = saver.list(CONFIG)
    assert rest == before
    assert first.parent_id == at_a.id
    assert [len(node.runs) for node in nodes.values()] == [1, 2, 2]


@pytest.mark.requirement("H46")
@pytest.mark.parametrize("given", [None, GraphResume(update={"x": 1})])
def test_a_stored_next_node_that_is_gone(saver, given):
    graph = chain("a", "b", fails="b")[0]
    with pytest.raises(NodeExecutionError):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    other = chain("a", "c")[0].compile(checkpoint_saver=saver)
    before = list(saver.list(CONFIG))
    with pytest.raises(GraphRunnerError, match="'b'") as failed:
        other.invoke(given, CONFIG)
    assert not isinstance(failed.value, NodeExecutionError)
    assert list(saver.list(CONFIG)) == before

    other.invoke(None, other.update_state(CONFIG, {}, goto="c"))

    assert logs(saver)[-1] == ["a", "c"]


# --- max_iterations ---------------------------------------------------------------------------------------------------


def endless(**options):
    graph = make_graph({"n": Channels.base(operator.add, int)}, "START>a", a=lambda state: {"n": 1})
    return graph.add_conditional_edges("a", lambda state: "a", ["a", END]).compile(**options)


@pytest.mark.requirement("G28", "behaviour 6")
def test_max_iterations_counts_nodes_and_is_checked_before_a_node_runs(saver):
    graph, nodes = chain("a", "b", "c")
    with pytest.raises(MaxIterationsError) as failed:
        graph.compile(checkpoint_saver=saver, max_iterations=2).invoke({}, RunnableConfig("u"))

    assert nodes["c"].runs == []
    assert (failed.value.node_id, failed.value.thread_id) == ("c", "u")
    assert "'u'" in str(failed.value)
    assert stored(saver, RunnableConfig("u"))[-1] == ("b", "c")
    assert graph.compile(max_iterations=3).invoke({})["log"] == ["a", "b", "c"]

    with pytest.raises(MaxIterationsError) as failed:
        endless(max_iterations=2).invoke({})

    assert failed.value.thread_id == "$default"


@pytest.mark.requirement("G17")
def test_the_count_survives_a_resume_and_an_update_and_starts_again_with_new_input(saver):
    compiled = endless(checkpoint_saver=saver, max_iterations=3)

    def run_to_the_limit(given, **options):
        with pytest.raises(MaxIterationsError):
            compiled.invoke(given, RunnableConfig("t", **options))
        return saver.get(CONFIG).state["n"]

    assert run_to_the_limit({}) == 3
    compiled.update_state(CONFIG, {})
    assert run_to_the_limit(None) == 3
    compiled.set_max_iterations(5)
    assert run_to_the_limit(None) == 5
    assert run_to_the_limit(None, max_iterations=6) == 6
    assert run_to_the_limit({}) == 6 + 5


def test_max_iterations_starts_again_after_an_interrupt(saver):
    compiled = endless(checkpoint_saver=saver, max_iterations=1, interrupt_after=["a"])
    for n in range(1, 5):
        assert compiled.invoke({} if n == 1 else None, CONFIG)["n"] == n


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError):
        endless().set_max_iterations(limit)
    with pytest.raises(ValueError):
        RunnableConfig(max_iterations=limit)


# --- checkpoint_interval ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("G10", "G16", "G18")
def test_every_nth_node_is_saved_and_start_and_end_always(saver):
    compiled = chain("a", "b", "c", "d", "e")[0].compile(checkpoint_saver=saver, checkpoint_interval=2)
    compiled.invoke({}, CONFIG)
    assert stored(saver) == [(START, "a"), ("b", "c"), ("d", "e"), ("e", END)]
    assert logs(saver) == [[], ["a", "b"], ["a", "b", "c", "d"], ["a", "b", "c", "d", "e"]]
    snapshots = [output for output in compiled.stream_snapshots({}, CONFIG) if isinstance(output, StateSnapshot)]
    assert nodes_of(snapshots) == [START, "b", "d", "e"]


@pytest.mark.requirement("G18")
@pytest.mark.parametrize("end", ["a node fails", "an edge fails", "the limit", "a stop", "a close"])
def test_what_was_finished_is_saved_however_a_run_ends(saver, end):
    broken = [end]

    def edge(state):
        if broken == ["an edge fails"]:
            raise Boom("no")
        return END

    nodes = {name: FlakyNode(name) for name in "abc"}
    nodes["c"].fails = end == "a node fails"
    graph = make_graph(LOG, "START>a a>b b>c", **nodes).add_conditional_edges("c", edge)
    options = {"the limit": {"max_iterations": 2}, "a stop": {"interrupt_before": ["c"]}}.get(end, {})
    compiled = graph.compile(checkpoint_saver=saver, checkpoint_interval=10, **options)

    with suppress(NodeExecutionError, MaxIterationsError):
        for output in compiled.stream({}, CONFIG):
            if end == "a close" and output.node == "b":
                break

    assert stored(saver) == [(START, "a"), ("b", "c")]
    assert [stop.node_id for stop in saver.interrupts("t")] == ["c"] * (end == "a stop")

    broken.clear()
    nodes["c"].fails = False
    assert compiled.invoke(None, RunnableConfig("t", max_iterations=9))["log"] == ["a", "b", "c"]
    assert len(nodes["a"].runs) == len(nodes["b"].runs) == 1


# --- declared stops ---------------------------------------------------------------------------------------------------


def stops(compiled, given=None, config=CONFIG):
    """The ids walked, and (node, when) of the stop at the end if there was one."""
    outputs = list(compiled.stream(given, config))
    last = outputs[-1]
    if isinstance(last, InterruptionMetadata):
        return nodes_of(outputs[:-1]), (last.node_id, last.when)
    return nodes_of(outputs), None


@pytest.mark.requirement("behaviour 8", "G16")
@pytest.mark.parametrize("has_saver", [True, False])
@pytest.mark.parametrize(
    ("options", "first", "stop", "rest"),
    [
        ({"interrupt_before": "a"}, [START], ("a", "before"), ["a", "b", END]),
        ({"interrupt_before": "b"}, [START, "a"], ("b", "before"), ["b", END]),
        ({"interrupt_after": ["a"]}, [START, "a"], ("a", "after"), ["b", END]),
        ({"interrupt_after": ["b"]}, [START, "a", "b"], ("b", "after"), [END]),
        ({"interrupt_after": ["a"], "interrupt_before": ["b"]}, [START, "a"], ("a", "after"), ["b", END]),
    ],
)
def test_a_run_stops_once_and_goes_on_there(saver, has_saver, options, first, stop, rest):
    compiled = chain("a", "b")[0].compile(checkpoint_saver=saver if has_saver else None, **options)

    assert stops(compiled, {}) == (first, stop)

    if has_saver:
        assert status(saver) == "interrupted"
        assert stops(compiled) == (rest, None)
        assert status(saver) == "finished"
        assert saver.interrupts("t") == []
        assert stops(compiled) == ([END], None)


def test_an_answer_after_the_last_node_is_stored(saver):
    compiled = chain("a")[0].compile(checkpoint_saver=saver, interrupt_after=["a"])
    compiled.invoke({}, CONFIG)
    assert compiled.invoke(GraphResume({"log": "approved"}), CONFIG)["log"] == ["a", "approved"]
    assert stops(compiled) == ([END], None)  # and is not asked for again
    assert compiled.get_state(CONFIG).state["log"] == ["a", "approved"]


def test_an_update_with_a_resume_is_always_merged(saver):
    compiled = chain("a", "b")[0].compile(checkpoint_saver=saver, interrupt_before=["b"])
    compiled.invoke({}, CONFIG)
    final = compiled.invoke(GraphResume({"log": "value"}, update={"log": "update"}), CONFIG)
    assert final["log"] == ["a", "value", "update", "b"]
    final = compiled.invoke(GraphResume(update={"log": "late"}), CONFIG)
    assert final["log"] == ["a", "value", "update", "b", "late"]
    assert saver.get(CONFIG).state["log"] == final["log"]


WRONG_UPDATES = [1, "yes", ["log"], True, {"n": "one"}, {"x": CYCLE}]
WRONG_RESUMES = [*map(GraphResume, [*WRONG_UPDATES, None]), *(GraphResume(update=update) for update in WRONG_UPDATES)]


@pytest.mark.parametrize("resume", WRONG_RESUMES)
def test_at_a_declared_stop_what_cannot_be_merged_is_refused_before_it_is_stored(saver, resume):
    graph, nodes = chain("a", "b", schema={**LOG, "n": Channels.base(operator.add, int)})
    compiled = graph.compile(checkpoint_saver=saver, interrupt_before=["b"])
    compiled.invoke({}, CONFIG)

    before, waiting = list(saver.list(CONFIG)), saver.interrupts("t")

    with pytest.raises(GraphRunnerError):
        compiled.invoke(resume, CONFIG)

    assert list(saver.list(CONFIG)) == before
    assert saver.interrupts("t") == waiting
    assert nodes["b"].runs == []
    assert compiled.invoke(GraphResume({"n": 1}), CONFIG)["n"] == 1


def test_any_value_is_refused_when_nothing_waits(saver):
    graph, nodes = chain("a", "b", fails="b")
    compiled = graph.compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        compiled.invoke({}, CONFIG)
    for value in ({"log": "x"}, 1, None):
        with pytest.raises(GraphRunnerError, match="update="):
            compiled.invoke(GraphResume(value), CONFIG)
    nodes["b"].fails = False
    final = compiled.invoke(GraphResume(update={"log": "x"}), CONFIG)
    assert final["log"] == ["a", "x", "b"]


def fail_to_record(saver):
    """Return a saver that dies at the first record of pending writes."""
    return ScriptedSaver(saver).fail("put_writes", KeyboardInterrupt())


@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
def test_a_crash_between_the_checkpoint_and_the_record_of_the_stop_still_stops(saver, option):
    node = "b" if option == "interrupt_before" else "a"
    graph, nodes = chain("a", "b")
    compiled = graph.compile(checkpoint_saver=fail_to_record(saver), **{option: [node]})

    with pytest.raises(KeyboardInterrupt):
        compiled.invoke({}, CONFIG)

    assert stored(saver) == [(START, "a"), ("a", "b")]
    assert saver.interrupts("t") == []
    assert stops(compiled) == ([], (node, option.removeprefix("interrupt_")))
    assert nodes["b"].runs == []
    assert len(saver.interrupts("t")) == 1
    assert stops(compiled) == (["b", END], None)


def test_a_crash_before_the_record_of_a_stop_under_before_edge_still_stops(saver):
    compiled = steered(checkpoint_saver=fail_to_record(saver), interrupt_after=["a"], interrupt_before_edge=True)
    with pytest.raises(KeyboardInterrupt):
        compiled.invoke({}, CONFIG)
    assert stops(compiled) == ([], ("a", "after"))
    assert stops(compiled, GraphResume({"go": "b"})) == (["b", END], None)


def test_a_past_stop_is_passed_without_a_copy_and_an_answer_to_it_is_found_after_a_failure(saver):
    graph, nodes = chain("a", "b")
    compiled = graph.compile(checkpoint_saver=saver, interrupt_before=["b"])
    compiled.invoke({}, CONFIG)
    stop = at_checkpoint(saver.get(CONFIG))
    compiled.invoke(GraphResume({"log": "old"}), CONFIG)
    writes = saver.get_writes(stop)

    assert stops(compiled, None, stop) == (["b", END], None)
    assert stored(saver) == [(START, "a"), ("a", "b"), ("b", END), ("b", END)]

    nodes["b"].fails = True
    with pytest.raises(NodeExecutionError):
        compiled.invoke(GraphResume({"log": "new"}), stop)
    nodes["b"].fails = False

    assert compiled.invoke(None, CONFIG)["log"] == ["a", "new", "b"]
    assert saver.get_writes(stop) == writes


# --- interrupt_before_edge --------------------------------------------------------------------------------------------


def steered(**options):
    graph = make_graph(LOG, "START>a b>END c>END", make_node=FlakyNode)
    return graph.add_conditional_edges("a", lambda s: Command(s.value("go", "c"), {"log": "edge"})).compile(**options)


@pytest.mark.requirement("behaviour 8", "L14")
@pytest.mark.parametrize(("target", "ends"), [("b", ["b", END]), ("c", ["c", END]), (END, [END])])
def test_before_the_edge_the_answer_steers_it(saver, target, ends):
    compiled = steered(checkpoint_saver=saver, interrupt_after=["a"], interrupt_before_edge=True)

    assert stops(compiled, {}) == ([START, "a"], ("a", "after"))
    assert compiled.get_state(CONFIG).next is None
    assert stops(compiled, GraphResume({"go": target})) == (ends, None)

    last = compiled.get_state(CONFIG)

    assert last.next == END
    assert last.state["log"] == ["a", "edge", *(ends[:-1])]
    assert stops(compiled) == ([END], None)


def test_an_open_edge_that_fails_is_taken_again(saver):
    compiled = steered(checkpoint_saver=saver, interrupt_after=["a"], interrupt_before_edge=True)
    compiled.invoke({}, CONFIG)

    with pytest.raises(GraphRunnerError, match="nowhere"):
        compiled.invoke(GraphResume({"go": "nowhere"}), CONFIG)
    compiled.update_state(CONFIG, {"go": "nowhere"})
    with pytest.raises(GraphRunnerError, match="nowhere"):
        compiled.invoke(None, CONFIG)
    assert compiled.invoke(GraphResume(update={"go": "b"}), CONFIG)["log"] == ["a", "edge", "b"]


def test_a_graph_that_no_longer_stops_takes_an_open_edge(saver):
    stopping = steered(checkpoint_saver=fail_to_record(saver), interrupt_after=["a"], interrupt_before_edge=True)
    with pytest.raises(KeyboardInterrupt):
        stopping.invoke({"go": "b"}, CONFIG)
    assert stops(steered(checkpoint_saver=saver)) == (["b", END], None)


def test_a_command_leaves_no_edge_open(saver):
    graph = StateGraph({}).add_node("a", lambda s: Command(END), destinations=[END]).add_edge(START, "a")
    compiled = graph.compile(checkpoint_saver=saver, interrupt_after=["a"], interrupt_before_edge=True)
    assert stops(compiled, {}) == ([START, "a"], ("a", "after"))
    assert stored(saver)[-1] == ("a", END)


# --- what a node can do to its state ----------------------------------------------------------------------------------


@dataclass
class Box:
    content: list
    n: int = 0


def assign(state):
    state["list"] = []


REFUSED = {
    "nested list": lambda state: state["list"][0].append(1),
    "assign": assign,
    "data": lambda state: state.data["list"].clear(),
}
PRIVATE = {
    "dataclass": lambda state: setattr(state["box"], "n", 5),
    "inside a dataclass": lambda state: state["box"].content.append(5),
    "dataclass in a list": lambda state: setattr(state["boxes"][0], "n", 5),
    "dataclass in data": lambda state: setattr(state.data["box"], "n", 5),
}


def fresh():
    return {"list": [[], [2]], "box": Box([1]), "boxes": [Box([2])]}


@pytest.mark.sweep(1, of="saver", in_turn=True)
@pytest.mark.parametrize("has_saver", [True, False])
@pytest.mark.parametrize("name", [*REFUSED, *PRIVATE])
def test_a_node_cannot_change_the_state_it_was_given(name, has_saver, saver):
    saver.register_types(Box)
    bad = (REFUSED | PRIVATE)[name]
    seen = []
    graph = make_chain({}, bad=bad, look=lambda state: seen.append(dict(state)))
    compiled = graph.compile(checkpoint_saver=saver if has_saver else None)
    given = fresh()

    if name in REFUSED:
        with pytest.raises(NodeExecutionError, match="read-only") as failed:
            compiled.invoke(given, CONFIG)
        assert isinstance(failed.value.__cause__, TypeError)
    else:
        seen += [dict(output.state) for output in compiled.stream(given, CONFIG)]
    stored_states = [dict(checkpoint.state) for checkpoint in saver.list(CONFIG)]
    for state in (given, *seen, *stored_states):
        assert state == fresh()


@pytest.mark.parametrize("kind", ["none", "memory"])
def test_what_is_done_to_an_output_or_an_update_afterwards_changes_nothing(kind):
    saver = MemorySaver() if kind == "memory" else None
    if saver:
        saver.register_types(Box)
    update = {"box": Box([7]), "list": [1]}
    seen = []
    graph = make_chain({}, first=lambda state: update, look=lambda state: seen.append((state["box"], state["list"])))
    for output in graph.compile(checkpoint_saver=saver).stream({}, CONFIG):
        if output.node == "first":
            output.state["box"].n = 99
            update["box"].n = 98
            update["list"].append(2)

    assert seen == [(Box([7]), [1])]


def test_the_state_of_an_error_is_a_copy():
    saver = MemorySaver()
    saver.register_types(Box)
    compiled = chain("a", "b", fails="b")[0].compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError) as failed:
        compiled.invoke({"box": Box([1])}, CONFIG)
    failed.value.state["box"].n = 99
    assert saver.get(CONFIG).state["box"] == Box([1])


# --- metadata, errors -------------------------------------------------------------------------------------------------


def test_each_checkpoint_has_its_source(saver):
    graph, nodes = chain("a", "b", fails="b")
    compiled = graph.compile(checkpoint_saver=saver)
    mine = CONFIG.replace(metadata={"user": "ann", "run_id": "mine", "step": 99})
    late = CONFIG.replace(metadata={"shift": "late"})
    with pytest.raises(NodeExecutionError):
        compiled.invoke({}, mine)
    nodes["b"].fails = False
    compiled.invoke(None, late)
    compiled.invoke({}, CONFIG)

    def values(key):
        return [checkpoint.metadata.get(key) for checkpoint in reversed(saver.list(CONFIG))]

    # Of a run that failed after two nodes, of its resume, and of another run.
    assert values("source") == ["input", "loop", "loop"] * 2
    assert values("step") == [0, 1, 2] * 2
    assert values("user") == ["ann"] * 3 + [None] * 3
    assert values("shift") == [None, None, "late"] + [None] * 3
    assert len(set(values("graph"))) == 1
    first, *_, last = values("run_id")

    assert values("run_id") == [first] * 3 + [last] * 3
    assert len({first, last, "mine"}) == 3


class OrderError(NodeExecutionError):
    pass


class UnprintableError(Exception):
    def __str__(self):
        raise KeyError("no text")


def failing_graph(error, **options):
    def fail(state):
        raise error

    return StateGraph(LOG).add_node("a", fail, **options).add_edge(START, "a").add_edge("a", END)


def test_an_error_of_a_subclass_leaves_the_run_as_itself():
    error = OrderError("no such order")
    for thread in ("1", "2"):  # the same object twice
        with pytest.raises(OrderError) as failed:
            failing_graph(error).compile(checkpoint_saver=MemorySaver()).invoke({"x": 1}, RunnableConfig(thread))
        assert failed.value is error
        assert (error.node_id, error.thread_id, error.state["x"], error.config.thread_id) == ("a", thread, 1, thread)
        assert error.__cause__ is None


def test_the_error_of_another_run_is_the_cause():
    inner = failing_graph(Boom("no")).compile()
    outer = make_chain(LOG, b=lambda state: inner.invoke({}))
    with pytest.raises(NodeExecutionError, match=r"'b' failed: NodeExecutionError: .*'a' failed: Boom: no") as failed:
        outer.compile().invoke({})
    assert (failed.value.node_id, failed.value.__cause__.node_id) == ("b", "a")


def test_an_error_without_a_text_is_reported_and_recorded():
    events, saver = [], MemorySaver()
    retry = RetryPolicy(max_attempts=2, initial_delay=0, jitter=False)
    compiled = failing_graph(UnprintableError(), retry=retry).compile(checkpoint_saver=saver, observers=[events.append])

    with pytest.raises(NodeExecutionError, match="UnprintableError: its __str__ raised KeyError"):
        compiled.invoke({}, CONFIG)
    assert saver.summary(CONFIG).failure["message"].endswith("its __str__ raised KeyError")
    assert {event.data["error"] for event in events if event.type.startswith("retry.")} == {
        "its __str__ raised KeyError"
    }


@pytest.mark.requirement("G28")
def test_a_failure_pickles():
    graph, _ = chain("a", fails="a")
    compiled = graph.compile(checkpoint_saver=MemorySaver())

    with pytest.raises(NodeExecutionError) as failed:
        compiled.invoke({"x": [1]}, RunnableConfig("t", metadata={"k": 1}))
    copy = pickle.loads(pickle.dumps(failed.value))

    assert type(copy) is NodeExecutionError
    assert str(copy) == str(failed.value)
    assert copy.node_id == "a"
    assert copy.state == {"x": [1], "log": []}
    assert copy.config == failed.value.config


# --- a goto that is not one node id -----------------------------------------------------------------------------------


@pytest.mark.parametrize("goto", [["b", "c"], ("b", "c"), {"b"}, [], 3])
@pytest.mark.parametrize("where", ["main", "branch"])
def test_a_command_that_names_several_nodes_is_a_clear_error(goto, where):
    graph = make_graph({}, "START>a a>b b>END", a=lambda s: Command(goto=goto), b=lambda s: None)
    if where == "branch":
        graph.add_node("other", lambda s: None).add_edge(START, "other").add_edge("other", END)
    with pytest.raises(GraphRunnerError, match=r"Command of 'a' goes to .*, but a goto is one node id. To run several"):
        graph.compile().invoke({})


@pytest.mark.parametrize("arguments", [{"goto": ["a"]}, {"as_node": ["a"]}, {"goto": 3}, {"as_node": {"a"}}])
def test_an_update_that_names_several_nodes_is_a_clear_error(saver, arguments):
    app = chain("a", "b")[0].compile(checkpoint_saver=saver)
    app.invoke({}, CONFIG)
    with pytest.raises(GraphRunnerError, match="is not a node id: give one node id"):
        app.update_state(CONFIG, {}, **arguments)
