"""Forks: branches side by side, joined once; what is recorded of them, what a resume repeats, what stops them."""

import asyncio
import itertools
import operator
import os
import signal
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial

import pytest
from hypothesis import given, settings, strategies as st

from graphkit import (
    END,
    START,
    Channels,
    Command,
    GraphResume,
    GraphRunnerError,
    InterruptionMetadata,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from graphkit._engine.concurrent import Scheduler, run_elsewhere
from graphkit._engine.requests import Start, Task, Wait, Withdraw
from graphkit.errors import CheckpointStorageError, MaxIterationsError, NodeExecutionError
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import (
    CONFIG,
    LOG,
    Boom,
    FlakyNode,
    asking,
    at_checkpoint,
    close,
    close_at,
    connect,
    ids_of,
    invoke,
    invoke_final,
    is_chunk,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    payloads_of,
    stored,
    stored_nodes,
)
from tests.support.savers import open_kind
from tests.support.sweeps import examples
from tests.support.workers import PATIENCE, status

SCHEMA = {**LOG, "sum": Channels.base(operator.add, lambda: 10)}


def log_node(word):
    return lambda state: {"log": word, "sum": 1, "last": word}


built = partial(make_graph, SCHEMA, make_node=log_node)


def diamond(**nodes):
    return built("START>a a>b,c b>d c>d d>END", **nodes)


def ask_in_two_branches(saver, go, **nodes):
    """Return a graph that waits in two branches, and the ids of the interrupts of b and c."""
    graph = diamond(**{"b": asking("b?"), "c": asking("c?"), **nodes}).compile(checkpoint_saver=saver)
    ids = ids_of(go(graph, {})[-1])
    return graph, ids["b?"], ids["c?"]


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 13")
def test_a_fork_is_one_step_with_one_output_and_one_checkpoint(saver, go):
    outputs = go(diamond().compile(checkpoint_saver=saver), {})

    assert nodes_of(outputs) == [START, "a", "__PARALLEL__(a)", "d", END]
    assert stored(saver) == [(START, "a"), ("a", "__PARALLEL__(a)"), ("__PARALLEL__(a)", "d"), ("d", END)]
    assert logged(outputs) == ["a", "b", "c", "d"]

    fork = saver.list(CONFIG)[1]

    assert fork.state["log"] == ["a", "b", "c"]
    assert fork.metadata["step"] == 3


SHAPES = {
    "END among the targets": ("START>a a>b,END b>END", ["a", "b"]),
    "END and two branches": ("START>a a>b,c,END b>d c>d d>END", ["a", "b", "c", "d"]),
    "a branch without an outgoing edge": ("START>a a>b,c b>d d>END", ["a", "b", "c", "d"]),
    "nested, the same join": ("START>a a>b,c b>e,f e>d f>d c>d d>END", ["a", "b", "e", "f", "c", "d"]),
    "edges in another order": ("START>a a>c,b b>d c>d d>END", ["a", "c", "b", "d"]),
}
"""Besides those of the random graphs below."""


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(saver, go, shape):
    edges, log = SHAPES[shape]
    final = go(built(edges).compile(checkpoint_saver=saver), {})[-1].state
    assert final["log"] == log
    assert final["sum"] == 10 + len(log)  # once each: not 10 more for every branch
    assert final["last"] == log[-1]


def test_conditional_edges_loops_and_commands_inside_a_branch(saver, go):
    graph = built("START>b,c c>d x>d d>END").add_node("y", lambda s: Command("x", {"log": "y"}))
    graph.add_conditional_edges("y", lambda s: "y", ["x", "y"])
    graph.add_conditional_edges("b", lambda s: "b" if s["sum"] < 13 else Command("y", {"log": "edge"}), ["b", "y"])
    # The branch counts its own: three times b make 13, whatever c does.
    assert logged(go(graph.compile(checkpoint_saver=saver), {})) == ["b", "b", "b", "edge", "y", "x", "c", "d"]


@pytest.mark.parametrize("target", ["e", "c", "a", END, "__PARALLEL__(a)", "nowhere"])
def test_a_command_that_leads_out_of_its_branch_is_refused(go, target):
    graph = built("START>a a>b,c b>d c>d d>e e>END", b=lambda s: Command(target)).compile()
    with pytest.raises(GraphRunnerError, match=r"out of its branch|not a node") as failed:
        go(graph, {})
    assert failed.value.node_id == "b"


@pytest.mark.requirement("behaviour 13")
def test_a_branch_node_reached_alone_runs_alone(saver, go):  # loop back to A1 runs only A1
    graph = built("START>a a>b,c b>d c>d")
    graph.add_conditional_edges("d", lambda s: "back" if s["sum"] < 15 else "on", {"back": "b", "on": END})
    outputs = go(graph.compile(checkpoint_saver=saver), {})
    assert nodes_of(outputs) == [START, "a", "__PARALLEL__(a)", "d", "b", "d", END]
    assert logged(outputs) == ["a", "b", "c", "d", "b", "d"]


@pytest.mark.parametrize("first", ["b", "c", "e"])
def test_the_order_is_that_of_the_edges_whichever_branch_finishes_first(saver, go, first):
    done = threading.Event()

    def node(name):
        def run(state):
            if name == first:
                done.set()
            else:
                assert done.wait(PATIENCE)
            return {"log": [name, "again", "again"], "sum": 1, "last": name}

        return run

    graph = built("START>b,c,e b>d c>d e>d d>END", b=node("b"), c=node("c"), e=node("e"), d=lambda s: None)
    final = go(graph.compile(checkpoint_saver=saver), {"sum": 5})[-1].state
    assert final["log"] == ["b", "again", "again", "c", "again", "again", "e", "again", "again"]
    assert (final["sum"], final["last"]) == (18, "e")


def test_a_hundred_branches_take_a_bounded_number_of_threads(go):
    counts = []

    def node(state):
        counts.append(len(set(threading.enumerate()) - before))

    edges = " ".join(f"START>n{n} n{n}>END" for n in range(100))
    graph = built(edges, **{f"n{n}": node for n in range(100)})
    before = set(threading.enumerate())
    go(graph.compile(), {})

    assert max(counts) <= 64 + 2
    assert set(threading.enumerate()) <= before


# --- how many nodes, and when to save ---------------------------------------------------------------------------------


def test_the_count_survives_a_crash_and_a_resume(saver, go):
    runs = []
    c = FlakyNode("c", runs, fails=True)
    graph = built("START>a a>b,c b>b2 b2>d c>d d>END", c=c).compile(checkpoint_saver=saver)
    for _ in range(3):  # a failed attempt costs nothing
        with pytest.raises(NodeExecutionError):
            go(graph, {} if not runs else None, RunnableConfig("t", max_iterations=5))
    c.fails = False
    with pytest.raises(MaxIterationsError):
        go(graph, None, RunnableConfig("t", max_iterations=4))

    assert logged(go(graph, None, RunnableConfig("t", max_iterations=5))) == ["a", "b", "b2", "c", "d"]


@pytest.mark.parametrize(
    ("interval", "nodes"),
    [
        (1, [START, "a", "__PARALLEL__(a)", "d", "e"]),
        (2, [START, "a", "__PARALLEL__(a)", "d", "e"]),
        (3, [START, "a", "__PARALLEL__(a)", "e"]),
        (5, [START, "a", "e"]),
    ],
)
def test_interval_with_forks(saver, go, interval, nodes):
    """It stores before a fork always, for its branches are recorded there; a, b and c are steps 1, 2 and 3."""
    runs = []
    c = FlakyNode("c", runs, fails=True)
    graph = built("START>a a>b,c b>d c>d d>e e>END", b=FlakyNode("b", runs), c=c)
    compiled = graph.compile(checkpoint_saver=saver, checkpoint_interval=interval)
    with pytest.raises(NodeExecutionError):
        go(compiled, {})
    c.fails = False

    assert logged(go(compiled, None)) == ["a", "b", "c", "d", "e"]
    assert sorted(runs) == ["b", "c", "c"]
    assert stored_nodes(saver)[::-1] == nodes


def test_checkpoint_when_is_asked_after_forks_and_not_inside(saver, go):
    asked = []
    when = lambda node_id, state: asked.append(node_id) or node_id == "a"  # noqa: E731
    go(diamond().compile(checkpoint_saver=saver, checkpoint_when=when), {})
    assert asked == ["a", "__PARALLEL__(a)"]
    assert stored_nodes(saver) == ["d", "a", START]


# --- a branch fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_failing_branch_lets_running_nodes_finish_and_a_resume_repeats_only_it(saver, go, is_embedded):
    runs = []
    failed = threading.Event()
    p = FlakyNode("p", runs, after=failed)
    q = FlakyNode("q", runs)
    c = FlakyNode("c", runs, fails=True, begun=failed)
    child = built("START>p p>q q>END", p=p, q=q)
    graph = diamond(a=FlakyNode("a", runs), b=child.compile() if is_embedded else child, c=c)
    compiled = graph.compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError) as error:
        go(compiled, {})
    assert error.value.node_id == "c"
    assert error.value.thread_id == "t"
    assert type(error.value.__cause__) is Boom
    assert error.value.path[0] == "a"
    assert sorted(runs) == ["a", "c", "p"]
    assert status(saver) == "failed"
    c.fails = False
    assert logged(go(compiled, None)) == ["a", "p", "q", "c", "d"]
    assert sorted(runs) == ["a", "c", "c", "p", "q"]
    assert status(saver) == "finished"


def test_the_first_failure_in_the_order_of_the_edges_is_raised_with_a_note_of_the_others(go):
    failed = threading.Event()
    b, c = FlakyNode("b", fails=True, after=failed), FlakyNode("c", fails=True, begun=failed)

    with pytest.raises(NodeExecutionError) as error:
        go(diamond(b=b, c=c).compile(), {})
    assert error.value.node_id == "b"
    assert str(error.value.__cause__) == "b"
    note, _ = error.value.__notes__  # the second one names the thread and the step
    assert note.startswith("Another branch also failed: NodeExecutionError: node 'c' failed: Boom: c")


class RunsOne(ThreadPoolExecutor):
    """Runs the first call; the others wait until they are taken back."""

    waiting = None

    def submit(self, *call):
        if self.waiting is None:
            self.waiting = []
            return super().submit(*call)
        self.waiting.append(Future())
        return self.waiting[-1]


def test_what_has_not_started_does_not_start(saver, go):
    runs = []
    b = FlakyNode("b", runs, fails=True)
    others = {name: FlakyNode(name, runs) for name in "cefg"}
    graph = built("START>b,c,e,f,g b>d c>d e>d f>d g>d d>END", b=b, **others).compile(checkpoint_saver=saver)
    with RunsOne() as pool, pytest.raises(NodeExecutionError):
        go(graph, {}, CONFIG.replace(executor=pool))

    assert [future.cancelled() for future in pool.waiting] == [True] * 4

    b.fails = False

    assert logged(go(graph, None)) == ["b", "c", "e", "f", "g", "d"]
    assert sorted(runs) == ["b", "b", "c", "e", "f", "g"]


@pytest.mark.parametrize("late", [False, True], ids=["refused", "not acknowledged"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("on_save_error", ["raise", "warn"])
def test_a_store_that_fails_at_any_of_its_calls(go, durability, on_save_error, late):
    edges = "START>a a>b,c b>b2 b2>d c>d d>END"
    refused = CheckpointStorageError("x", "write", "refused")

    for method, at in itertools.product(["put", "put_writes"], range(6)):
        runs = []
        nodes = {name: FlakyNode(name, runs) for name in ("a", "b", "b2", "c", "d")}
        saver = ScriptedSaver(MemorySaver()).fail(method, refused, skip=at, late=late)
        compiled = built(edges, **nodes).compile(
            checkpoint_saver=saver, durability=durability, on_save_error=on_save_error
        )
        try:
            final = go(compiled, {})[-1]
        except CheckpointStorageError:
            assert on_save_error == "raise"
            given = {} if saver.get(CONFIG) is None else None
            final = go(compiled, given)[-1]
            assert max(runs.count(name) for name in runs) <= 2
        else:
            assert sorted(runs) == ["a", "b", "b2", "c", "d"]
        assert final.state["log"] == ["a", "b", "b2", "c", "d"]


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_position_is_stored_once_if_the_run_and_a_branch_make_a_checkpoint_of_it(moment):
    """The run asks the time four times to store an interrupt, at last for the checkpoint; there a branch stores."""
    has_asked, is_at_moment, has_stored = threading.Event(), threading.Event(), threading.Event()
    readings = []

    def clock():
        if has_asked.is_set() and threading.current_thread() is threading.main_thread():
            readings.append(1)
            if len(readings) == moment:
                is_at_moment.set()
                assert has_stored.wait(PATIENCE)
        return datetime.now(UTC)

    def b(state, config):
        assert is_at_moment.wait(PATIENCE)
        config.once("effect", lambda: "b")
        has_stored.set()

    def c(state):
        has_asked.set()
        interrupt("c?")

    saver = MemorySaver()
    graph = built("START>b,c b>d c>d d>END", b=b, c=c)
    list(graph.compile(checkpoint_saver=saver, durability="exit", clock=clock).stream({}, CONFIG))

    (only,) = saver.list(CONFIG)
    kinds = sorted(key.partition(":")[0] for key in saver.get_writes(at_checkpoint(only)))
    assert kinds == ["interrupt", "once", "task"]


# --- several wait for a human -----------------------------------------------------------------------------------------


def test_several_questions_are_listed_answered_one_after_the_other_and_asked_again_from_the_past(saver, go):
    graph, b, c = ask_in_two_branches(saver, go)

    assert stored(saver)[-1] == ("a", "__PARALLEL__(a)")

    stops = {(stop.id, stop.payload, stop.node_id, stop.when) for stop in graph.get_state(CONFIG).interrupts}

    assert stops == {(b, "b?", "b", "inside"), (c, "c?", "c", "inside")}

    past = at_checkpoint(saver.get(CONFIG))

    assert ids_of(go(graph, GraphResume({c: "C"}))[-1]) == {"b?": b}

    graph.update_state(CONFIG, {"log": "update"})

    assert ids_of(graph.get_state(CONFIG)) == {"b?": b}
    assert logged(go(graph, GraphResume("B"))) == ["a", "update", "B", "C", "d"]  # only one was left

    ids = ids_of(go(graph, None, past)[-1])

    assert sorted(ids) == ["b?", "c?"]
    assert logged(go(graph, GraphResume({ids["b?"]: "again", ids["c?"]: "C"}))) == ["a", "again", "C", "d"]


@pytest.mark.parametrize("value", ["plain", {"no such id": 1}, {"b?": "B", "other": 1}, {}, None, ["b", "c"]])
@pytest.mark.parametrize("c", [asking("c?"), make_chain(c=asking("c?")).compile()], ids=["node", "graph"])
def test_several_questions_are_answered_by_their_ids_only(saver, go, value, c):
    graph, b, c = ask_in_two_branches(saver, go, c=c)
    if isinstance(value, dict):
        value = {b if key == "b?" else key: answer for key, answer in value.items()}
    before = saver.get(CONFIG).id

    with pytest.raises(GraphRunnerError, match=r"several interrupts wait.*ids are"):
        go(graph, GraphResume(value))

    assert saver.get(CONFIG).id == before

    again = go(graph, GraphResume())[-1]

    assert ids_of(again) == {"b?": b, "c?": c}  # asked again, under the same ids
    assert logged(go(graph, GraphResume({c: [], b: ["B"]}))) == ["a", "B", "d"]


def test_a_loop_in_a_branch_asks_at_every_turn(saver, go):
    def b(state):
        return {"log": interrupt(len(state["log"]))}

    graph = built("START>b,c c>END", b=b)
    graph.add_conditional_edges("b", lambda s: "b" if len(s["log"]) < 3 else END, ["b", END])
    compiled = graph.compile(checkpoint_saver=saver)
    stop = go(compiled, {})[-1]
    asked = []
    for answer in "xyz":
        asked.append(stop.payload)
        stop = go(compiled, GraphResume(answer))[-1]
    assert asked == [0, 1, 2]
    assert stop.state["log"] == ["x", "y", "z", "c"]


def test_an_interruptable_action_in_a_branch(saver, go):
    class Careful:
        def interrupt(self, node_id, state, config):
            return None if state.get("approved") else {"why": node_id}

        def __call__(self, state):
            return {"log": "b"}

    runs = []
    graph = diamond(b=Careful(), c=FlakyNode("c", runs)).compile(checkpoint_saver=saver)
    stop = go(graph, {})[-1]
    assert (stop.when, stop.node_id, stop.metadata) == ("action", "b", {"why": "b"})
    assert go(graph, GraphResume())[-1].when == "action"  # asks again
    assert logged(go(graph, GraphResume({"approved": True}))) == ["a", "b", "c", "d"]
    assert runs == ["c"]


@pytest.mark.parametrize(
    ("kind", "latest", "place"), [("before", ("a", "__PARALLEL__(a)"), 1), ("after", ("__PARALLEL__(a)", "d"), -2)]
)
@pytest.mark.parametrize("node", ["b", "b2", "e", "c"])
def test_a_declared_stop_at_a_branch_node_is_at_its_fork(saver, go, kind, latest, place, node):
    runs = []
    names = ["b", "b2", "c", "e", "f", "g"]
    nodes = {name: FlakyNode(name, runs) for name in names}
    graph = built("START>a a>b,c b>b2 b2>e,f e>g f>g g>d c>d d>END", **nodes)
    compiled = graph.compile(checkpoint_saver=saver, **{f"interrupt_{kind}": [node]})

    stop = go(compiled, {})[-1]

    assert stop.when == kind
    assert stop.node_id == node
    assert bool(runs) == (kind == "after")
    assert stored(saver)[-1] == latest

    final = go(compiled, GraphResume({"log": "approved"}))[-1].state

    assert final["log"][place] == "approved"
    assert sorted(runs) == names


# --- corrections and time travel --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "asked", "log"),
    [
        ({"as_node": "__PARALLEL__(a)"}, [], ["a", "by hand", "d"]),
        ({"as_node": "b"}, [], ["a", "by hand", "d"]),
        ({"goto": "d"}, [], ["a", "by hand", "d"]),
        ({"goto": "b"}, ["b?"], ["a", "by hand", "B", "d"]),
    ],
)
def test_update_state_that_leads_past_the_fork_or_into_a_branch(saver, go, where, asked, log):
    graph, *_ = ask_in_two_branches(saver, go)
    graph.update_state(CONFIG, {"log": "by hand"}, **where)
    assert graph.get_state(CONFIG).interrupts == ()
    with pytest.raises(GraphRunnerError, match="nothing waits"):
        go(graph, GraphResume("x"))
    outputs = go(graph, None)
    if asked:
        assert payloads_of(outputs[-1]) == asked
        outputs = go(graph, GraphResume("B"))
    assert logged(outputs) == log


# --- closed, cancelled, thrown into, killed ---------------------------------------------------------------------------


def two_of_chunks(runs, both=None):
    """A fork of two generators, which meet before each chunk, and a chain beside them."""

    def node(name):
        def run(state):
            try:
                for n in range(3):
                    if both is not None:
                        both.wait(PATIENCE)
                    yield f"{name}{n}"
                runs.append(name)
                return {"log": name}
            finally:
                runs.append(f"{name} closed")

        return run

    return built(
        "START>a a>b,c,e b>d c>d e>f f>d d>END",
        b=node("b"),
        c=node("c"),
        e=FlakyNode("e", runs),
        f=FlakyNode("f", runs),
    )


def test_generators_in_nested_graphs_of_branches_advance_side_by_side(go):
    both = threading.Barrier(2, timeout=PATIENCE)

    def meet(state):
        yield both.wait()
        return {"log": "met"}

    nested = make_chain(n=meet).compile()
    assert logged(go(diamond(b=nested, c=nested).compile(), {})) == ["a", "met", "met", "d"]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit])
def test_a_stream_that_is_left_in_the_middle_of_chunks(saver, go, error):
    """By a close, or by an error that is thrown in."""
    runs, both = [], threading.Barrier(2)
    graph = two_of_chunks(runs, both).compile(checkpoint_saver=saver)
    threads = set(threading.enumerate())

    def throw(stream):
        return stream.athrow(error()) if hasattr(stream, "athrow") else stream.throw(error())

    with nullcontext() if error is None else pytest.raises(error):
        close_at(graph, is_chunk, how=go.kind, act=close if error is None else throw)

    assert set(threading.enumerate()) <= threads
    assert sorted(each for each in runs if "closed" in each) == ["b closed", "c closed"]
    assert "b" not in runs
    assert stored(saver) == [(START, "a"), ("a", "__PARALLEL__(a)")]

    both.reset()

    assert logged(go(graph, None)) == ["a", "b", "c", "e", "f", "d"]
    assert [runs.count("e"), runs.count("f")] == [1, 1]
    assert status(saver) == "finished"


def test_closing_where_something_was_dispatched_loses_nothing(saver, go):
    runs = []

    def make_node(name):
        def node(state, config):
            runs.append(name)
            config.dispatch(name)
            return {"log": name}

        return node

    graph = make_graph(SCHEMA, "START>a a>b,c b>d c>d d>END", make_node).compile(checkpoint_saver=saver)
    given = {}
    while saver.get(CONFIG) is None or saver.get(CONFIG).next_node_id != END:
        close_at(graph, is_chunk, given, how=go.kind)
        given = None
    assert logged(go(graph, None)) == ["a", "b", "c", "d"]
    assert sorted(runs) == list("abcd")


def test_a_close_wins_over_a_failure_that_comes_after_it(saver, go):
    closing = threading.Event()

    def b(state):
        yield "b"
        return {"log": "b"}

    graph = diamond(b=b, c=FlakyNode("c", fails=True, after=closing)).compile(checkpoint_saver=saver)

    def act(stream):
        closing.set()
        return close(stream)

    close_at(graph, is_chunk, how=go.kind, act=act)
    assert saver.get(CONFIG).next_node_id == "__PARALLEL__(a)"


async def test_a_cancelled_task_keeps_what_finished(saver):
    runs = []
    recorded, cancelled = threading.Event(), threading.Event()

    async def slow(state):
        runs.append("b")
        if not cancelled.is_set():
            await asyncio.Event().wait()
        return {"log": "b"}

    thread = FlakyNode("c", runs, after=cancelled)  # cannot be cancelled: it is waited for

    async def quick(state):
        runs.append("e")
        return {"log": "e"}

    def observe(event):
        if event.type == "parallel.branch":
            recorded.set()

    nodes = {"b": slow, "c": thread, "c2": FlakyNode("c2", runs), "e": quick, "e2": FlakyNode("e2", runs)}
    graph = built("START>b,c,e b>d c>c2 c2>d e>e2 e2>d d>END", **nodes)
    compiled = graph.compile(checkpoint_saver=saver, observers=[observe])

    task = asyncio.create_task(compiled.ainvoke({}, CONFIG))
    await asyncio.to_thread(recorded.wait, PATIENCE)
    task.cancel()
    asyncio.get_running_loop().call_soon(cancelled.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(runs) == ["b", "c", "e", "e2"]  # c2 did not start

    assert (await compiled.ainvoke(None, CONFIG))["log"] == ["b", "c", "c2", "e", "e2", "d"]
    assert sorted(runs) == ["b", "b", "c", "c2", "e", "e2"]


def test_an_abandoned_async_stream_is_closed_by_the_event_loop(saver):
    runs = []
    graph = two_of_chunks(runs).compile(checkpoint_saver=saver)
    threads = set(threading.enumerate())

    async def begin():
        async for output in graph.astream({}, CONFIG):
            if is_chunk(output):
                return

    async def main():
        await begin()
        await asyncio.sleep(0)  # the event loop begins to close the stream in its next turn
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - turns of the loop, not a wait
            await asyncio.sleep(0)
        return (await graph.ainvoke(None, CONFIG))["log"]

    assert asyncio.run(main()) == ["a", "b", "c", "e", "f", "d"]
    assert [runs.count("e"), runs.count("f")] == [1, 1]
    asyncio.run(begin())  # and here the event loop ends
    assert set(threading.enumerate()) <= threads
    assert asyncio.run(graph.ainvoke(None, CONFIG))["log"][-6:] == ["a", "b", "c", "e", "f", "d"]


def press_ctrl_c_where_main_waits():
    thread = threading.main_thread().ident
    while sys._current_frames()[thread].f_code.co_qualname != "ThreadPool.wait":
        os.sched_yield()
    signal.pthread_kill(thread, signal.SIGINT)


@pytest.fixture
def ctrl_c():
    """Python's own handler: in a background job of a shell it is not installed, and Ctrl-C would do nothing."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_keyboard_interrupt_while_branches_run(saver):
    """Ctrl-C in the main thread: what runs comes to its end and is recorded, the rest does not begin."""
    runs, begun, main = [], threading.Event(), threading.Event()
    b = FlakyNode("b", runs, begun=begun, after=main)

    def c(state):
        assert begun.wait(PATIENCE)
        runs.append("c")
        press_ctrl_c_where_main_waits()
        main.set()
        return {"log": "c"}

    graph = built("START>b,c b>b2 b2>d c>d d>END", b=b, b2=FlakyNode("b2", runs), c=c).compile(checkpoint_saver=saver)
    with pytest.raises(KeyboardInterrupt):
        graph.invoke({}, CONFIG)
    assert sorted(runs) == ["b", "c"]
    assert graph.invoke(None, CONFIG)["log"] == ["b", "b2", "c", "d"]
    assert sorted(runs) == ["b", "b2", "c"]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_names_with_dots_and_colons_do_not_meet(saver, go):
    """The second node of `a`, a map, has the items a.1.0, ...; the branch `a.1` has the node a.1.0."""
    runs = []

    def work(item):
        runs.append(item)
        return {"log": item}

    nodes = {name: FlakyNode(name, runs) for name in ("a", "a.1", "d")}
    nodes["d"].fails = True
    graph = make_graph(SCHEMA, "START>a,a.1 a.1>END d>END", **nodes).add_map_node("m", work, lambda state: [1, 2])
    compiled = connect(graph, "a>m m>d").compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        go(compiled, {})

    nodes["d"].fails = False
    assert logged(go(compiled, None)) == ["a", 1, 2, "d", "a.1"]
    assert sorted(map(str, runs)) == ["1", "2", "a", "a.1", "d", "d"]


# --- chosen forks -----------------------------------------------------------------------------------------------------


NAMES = ["a", "b", "c"]


def graph_of(condition, mappings=(*NAMES, END), **nodes):
    """Return START -> route -> some of a, b and c -> join -> END."""
    graph = make_graph(LOG, "START>route a>join b>join c>join join>END", **nodes)
    return graph.add_conditional_edges("route", condition, mappings)


def log_of(graph, **options):
    return graph.compile(**options).invoke({}, "t")["log"]


def test_the_chosen_branches_run_in_the_order_of_the_mappings_and_meet():
    mappings = {1: "a", 2: "b", 3: "c"}
    for count in range(1, 4):
        for keys in itertools.permutations(mappings, count):
            graph = graph_of(lambda state, keys=keys: [*keys], mappings)
            assert log_of(graph) == ["route", *[mappings[key] for key in sorted(keys)], "join"]


@pytest.mark.parametrize("chosen", [["a", "a"], ("a",), {"a"}, ["a", END], [], [END], END])
def test_a_target_counts_once_and_end_only_alone(chosen):
    branches = ["a", "join"] if "a" in chosen else []
    assert log_of(graph_of(lambda state: chosen)) == ["route", *branches]


def test_async_runs_and_a_command_of_the_condition():
    async def condition(state):
        return Command(["b", "a"], {"log": ["chosen"]})

    assert invoke(graph_of(condition).compile(), {}, how="async")["log"] == ["route", "chosen", "a", "b", "join"]


def test_a_command_of_a_node_chooses_among_its_destinations():
    graph = make_graph(LOG, "a>join b>join c>join join>END")
    graph.add_node("route", lambda state: Command(["c", "a"]), destinations=NAMES)
    assert log_of(graph.add_edge(START, "route")) == ["a", "c", "join"]


@pytest.mark.requirement("G23", "H32")
def test_a_resume_in_a_new_process_finds_the_chosen_fork(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        log_of(graph_of(lambda state: ["a", "b"], b=asking("ok?")), checkpoint_saver=saver)

    with FileSystemSaver(tmp_path) as saver:
        graph = graph_of(lambda state: pytest.fail("the edge was taken already"), b=asking("ok?"))
        state = graph.compile(checkpoint_saver=saver).invoke(GraphResume("yes"), "t")
        assert state["log"] == ["route", "a", "yes", "join"]


def test_a_stored_fork_that_the_graph_no_longer_declares_is_refused():
    saver = MemorySaver()
    log_of(graph_of(lambda state: ["a", "b"], b=asking("ok?")), checkpoint_saver=saver)
    app = graph_of(lambda state: "a", ["a", "c"]).add_edge(START, "b").compile(checkpoint_saver=saver)

    with pytest.raises(GraphRunnerError, match="route -> a, b"):
        app.invoke(GraphResume("yes"), "t")


@pytest.mark.parametrize(
    ("stop", "before"), [("interrupt_before", ["route"]), ("interrupt_after", ["route", "a", "b"])]
)
def test_a_stop_inside_is_a_stop_at_the_whole_fork(stop, before):
    app = graph_of(lambda state: ["a", "b"]).compile(checkpoint_saver=MemorySaver(), **{stop: ["b"]})

    stopped = app.invoke({}, "t")
    assert (stopped.interrupts[0].node_id, stopped["log"]) == ("b", before)
    assert app.invoke(None, "t")["log"] == ["route", "a", "b", "join"]


def test_ids_with_the_separator_of_heads_are_found_again():
    def graph():
        graph = make_graph(LOG, "START>route c>join join>END", c=asking("ok?"))
        graph.add_node("a, b", lambda state: {"log": "a, b"}).add_edge("a, b", "join")
        return graph.add_conditional_edges("route", lambda state: ["a, b", "c"], ["a, b", "c"])

    saver = MemorySaver()
    log_of(graph(), checkpoint_saver=saver)
    final = graph().compile(checkpoint_saver=saver).invoke(GraphResume("yes"), "t")
    assert final["log"] == ["route", "a, b", "yes", "join"]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            make_graph({}, "START>route a>b b>END").add_conditional_edges("route", lambda s: ["a", "b"], ["a", "b"]),
            "cannot be joined",
        ),
        (graph_of(lambda state: ["a", "b"], None), "add_edge"),
        (graph_of(lambda state: ["a", "d"]), "'d'"),
    ],
    ids=["do not meet", "not declared", "no such node"],
)
def test_what_cannot_be_chosen_is_refused(graph, reason):
    with pytest.raises(GraphRunnerError, match=reason):
        log_of(graph)


def test_a_loop_chooses_again():
    def condition(state):
        rounds = state["log"].count("route")
        return {1: ["a", "b"], 2: ["b", "c"]}.get(rounds, END)

    graph = graph_of(condition, join=lambda state: Command("route"))
    assert log_of(graph, checkpoint_saver=MemorySaver()) == ["route", "a", "b", "route", "b", "c", "route"]


def test_a_chosen_fork_inside_a_branch():
    inner = graph_of(lambda state: ["a", "c"])
    graph = make_graph(LOG, "START>left,right left>end right>end end>END", left=inner)
    assert log_of(graph) == ["route", "a", "c", "join", "right", "end"]


@pytest.mark.parametrize("make", [lambda graph: graph, lambda graph: graph.compile()], ids=["inlined", "nested"])
@pytest.mark.parametrize("chosen", [[], END, [END], ["a", END], ["a", "b", END]])
@pytest.mark.parametrize("source", ["route", START])
def test_end_among_the_targets_is_that_of_the_subgraph(make, chosen, source):
    inner = make_graph(LOG, "a>join b>join join>END")

    if source == "route":
        inner.add_node(source, lambda state: {}).add_edge(START, source)

    inner.add_conditional_edges(source, lambda state: chosen, ["a", "b", END])
    branches = [name for name in chosen if name != END] if isinstance(chosen, list) else []
    expected = [*branches, "join"] if branches else []
    outer = make_graph(LOG, "START>sub sub>last last>END", sub=make(inner))

    assert log_of(outer) == [*expected, "last"]


# --- random graphs of forks, and the strands in which they run ------------------------------------------------------


def test_interrupted_again_it_waits_no_longer():
    def strand():
        yield from run_elsewhere(Task(None, None))

    steps = Scheduler([strand(), strand()], 2).steps()
    assert isinstance(next(steps), Start)
    assert isinstance(steps.send(0), Start)
    assert isinstance(steps.send(1), Wait)
    assert isinstance(steps.throw(KeyboardInterrupt("once")), Withdraw)
    assert isinstance(steps.send(None), Wait)
    with pytest.raises(KeyboardInterrupt, match="twice"):
        steps.throw(KeyboardInterrupt("twice"))


LEAF = st.just("node")
SEQUENCES = st.recursive(
    st.lists(LEAF, min_size=1, max_size=3),
    lambda inner: st.lists(LEAF | st.lists(inner, min_size=2, max_size=3), min_size=1, max_size=3),
    max_leaves=8,
)
"""What comes one after the other: a node, or a fork, which is a list of what runs side by side."""


def named(sequence, names):
    """The same with names: a node is its name; a fork is (source, branches, join)."""
    return [
        next(names) if part == "node" else (next(names), [named(each, names) for each in part], next(names))
        for part in sequence
    ]


def expected(sequence, seen):
    """What the nodes log: their name, and how many words they saw."""
    log = []
    for part in sequence:
        if isinstance(part, str):
            log.append((part, seen + len(log)))
            continue
        source, branches, join = part
        log.append((source, seen + len(log)))
        base = seen + len(log)
        for branch in branches:
            log += expected(branch, base)
        log.append((join, seen + len(log)))
    return log


def wired(graph, sequence, source, node):
    """Add a sequence after a place; returns its last place."""
    for part in sequence:
        first = part if isinstance(part, str) else part[0]
        graph.add_node(first, node(first)).add_edge(source, first)
        source = first
        if not isinstance(part, str):
            _, branches, join = part
            graph.add_node(join, node(join))
            for branch in branches:
                graph.add_edge(wired(graph, branch, source, node), join)
            source = join
    return source


class DiagramModel:
    """Nodes that fail and ask a number of times, and record when they finish."""

    def __init__(self, failures, questions):
        self.failures, self.questions = dict(failures), questions
        self.finished = []

    def node(self, name):
        def run(state):
            seen = len(state["log"])
            answers = [interrupt((name, n)) for n in range(self.questions.get(name, 0))]

            assert answers == [(name, n) for n in range(len(answers))]

            if self.failures.get(name, 0) > 0:
                self.failures[name] -= 1
                raise Boom(name)
            self.finished.append(name)
            return {"log": [(name, seen)]}

        return run


def run_through(run, choose):
    """Run, and resume after every failure and stop, until the end; answers all, or one, of what waits."""
    given = {}
    while True:
        try:
            last = run(given)
        except NodeExecutionError:
            given = None
            continue
        if not isinstance(last, InterruptionMetadata):
            return last
        waiting = {stop.id: tuple(stop.payload) for stop in last.interrupts}
        given = GraphResume(waiting if choose() else dict([next(iter(waiting.items()))]))


@settings(max_examples=examples(150))
@given(
    st.data(),
    SEQUENCES,
    st.sampled_from(["memory", "four-methods", "file"]),
    st.sampled_from(["sync", "async", "exit"]),
    st.sampled_from(["sync", "async"]),
    st.sampled_from([1, 3]),
)
def test_a_disturbed_run_ends_as_an_undisturbed_one(tmp_path_factory, data, sequence, kind, durability, how, interval):
    names = (f"n{n}" for n in itertools.count())
    sequence = named(sequence, names)
    log = expected(sequence, 0)
    chosen = st.dictionaries(st.sampled_from([name for name, _ in log]), st.integers(1, 2), max_size=3)
    scene = DiagramModel(data.draw(chosen, "failures"), data.draw(chosen, "questions"))
    graph = StateGraph(LOG)
    graph.add_edge(wired(graph, sequence, START, scene.node), END)

    with open_kind(kind, tmp_path_factory.mktemp("store")) as saver:
        compiled = graph.compile(checkpoint_saver=saver, durability=durability, checkpoint_interval=interval)
        run = partial(invoke_final, compiled, how=how)
        final = run_through(run, lambda: data.draw(st.booleans(), "answer all"))
        assert saver.get(CONFIG).next_node_id == END

    assert [tuple(word) for word in final.state["log"]] == log

    if durability == "exit":
        return

    once = {name for name, _ in log}

    if interval > 1:
        forks = [part for part in sequence if not isinstance(part, str)]
        branches = [branch for _, branches, _ in forks for branch in branches]
        once = {name for branch in branches for name, _ in expected(branch, 0)}

    for name in once:
        assert scene.finished.count(name) == 1
