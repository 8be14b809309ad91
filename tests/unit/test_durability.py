"""When a step is stored, and what a failure to store it does: durability, on_save_error, preserve, interval, status."""

import asyncio
import threading
from functools import partial

import pytest

from graphkit import END, START, GraphResume, RunnableConfig, interrupt
from graphkit.errors import (
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    NodeExecutionError,
)
from graphkit.testing.fakes import ScriptedSaver
from savers import FileSystemSaver, MemorySaver, VersionedMemorySaver
from tests.support import graphs
from tests.support.graphs import (
    CONFIG,
    COUNTED as LOG,
    CYCLE,
    FlakyNode,
    Killed,
    close_at,
    fail_once,
    is_node,
    logged,
    make_graph,
    stored,
)
from tests.support.workers import status

pytestmark = pytest.mark.sweep(1, of="saver", in_turn=True)

log_node = partial(graphs.log_node, n=1)
chain = partial(graphs.make_chain_of, LOG, {"n": 1})


def in_background(saver, *names, **nodes):
    """Compile a chain whose steps are stored in the background."""
    return chain(*names, **nodes).compile(checkpoint_saver=saver, durability="async")


def count_to(count, node):
    """Make a graph whose node runs again until it has counted to a number."""
    graph = make_graph(LOG, "START>a", a=node)
    return graph.add_conditional_edges("a", lambda state: "a" if state["n"] < count else END)


def full():
    return CheckpointStorageError("the store", "write", OSError(28, "the disk is full"))


WHOLE = [(START, "a"), ("a", "b"), ("b", "c"), ("c", END)]


# --- in the background ------------------------------------------------------------------------------------------------


def test_in_the_background_all_is_stored_in_order_when_the_last_item_comes(saver, go):
    def look(output):
        assert stored(saver) == WHOLE or not output.is_end

    go(in_background(saver, "a", "b", "c"), {}, on_output=look)


@pytest.mark.requirement("H36")
def test_the_background_is_bounded():
    free, ran, done = threading.Event(), [], []
    saver = ScriptedSaver(MemorySaver()).on("put", lambda: free.wait(60))

    def node(state):
        ran.append(1)
        if len(ran) == 50:
            free.set()  # some wait, and not all of them
        return {"n": 1}

    saver.on("put", lambda: done.append(len(ran)), times=None, late=True)
    count_to(300, node).compile(checkpoint_saver=saver, durability="async").invoke({}, CONFIG)

    assert len(done) == 301
    assert max(ahead - stored for stored, ahead in enumerate(done)) <= 64 + 2


@pytest.mark.requirement("H36")
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failure_in_the_background_comes_back_at_the_next_save_or_the_end(saver, go, nth):
    error = full()
    graph = in_background(ScriptedSaver(saver).fail("put", error, skip=nth), "a", "b", "c")
    with pytest.raises(CheckpointStorageError) as raised:
        go(graph, {})
    assert raised.value is error
    assert stored(saver) == WHOLE[:nth]  # nothing after what failed

    assert logged(go(graph, None)) == ["a", "b", "c"]
    assert stored(saver) == WHOLE


def test_closing_the_stream_raises_a_failure_in_the_background(go):
    saver = ScriptedSaver(MemorySaver()).fail("put", full(), skip=1)
    with pytest.raises(CheckpointStorageError):
        close_at(in_background(saver, "a", "b"), is_node("a"), how=go.kind)
    assert stored(saver) == [(START, "a")]


@pytest.mark.parametrize(("durability", "expected"), [("async", WHOLE[:2]), ("exit", WHOLE[1:2])])
def test_a_closed_stream_stores_where_it_stood(saver, durability, expected, go):
    graph = chain("a", "b", "c").compile(checkpoint_saver=saver, durability=durability)
    close_at(graph, is_node("a"), how=go.kind)
    assert stored(saver) == expected
    assert logged(go(graph, None)) == ["a", "b", "c"]


def test_the_failure_of_a_node_is_raised_and_the_rest_is_stored(saver, go):
    with pytest.raises(NodeExecutionError):
        go(in_background(saver, "a", b=lambda state: 1 / 0), {})
    assert stored(saver) == WHOLE[:2]
    assert status(saver) == "failed"


def test_a_node_that_catches_the_failure_does_not_hide_it():
    saver = ScriptedSaver(MemorySaver()).fail("put", full(), skip=1)

    def b(state, config):
        with pytest.raises(CheckpointStorageError):
            config.once("k", lambda: 1)
        return {"log": "went on"}

    with pytest.raises(CheckpointStorageError):
        in_background(saver, "a", b=b, c=log_node("c")).invoke({}, CONFIG)
    assert stored(saver) == [(START, "a")]


@pytest.mark.parametrize("error", [Killed(), ValueError("a mistake of the saver")])
@pytest.mark.parametrize("on_save_error", ["raise", "warn"])
def test_a_saver_that_breaks_in_the_background_ends_the_run(error, on_save_error, go):
    saver = ScriptedSaver(MemorySaver()).fail("put", error, skip=1)
    graph = chain("a", "b").compile(checkpoint_saver=saver, durability="async", on_save_error=on_save_error)
    with pytest.raises(type(error)):
        go(graph, {})
    assert stored(saver) == [(START, "a")]


def test_no_thread_is_left_behind():
    before = set(threading.enumerate())
    graph = in_background(MemorySaver(), "a")
    graph.invoke({}, CONFIG)
    asyncio.run(graph.ainvoke({}, CONFIG))
    close_at(graph, is_node(START), {})
    assert set(threading.enumerate()) <= before


# --- only when it stands still ----------------------------------------------------------------------------------------


def test_at_exit_a_stop_and_a_failure_are_stored(saver, go):
    c = fail_once(lambda state: {"log": interrupt("?")})
    graph = chain("a", "b", "c", "d", c=c).compile(checkpoint_saver=saver, durability="exit")
    with pytest.raises(NodeExecutionError):
        go(graph, {})
    assert stored(saver) == [("b", "c")]
    assert status(saver) == "failed"

    stop = go(graph, None)[-1]

    assert stop.payload == "?"
    assert stored(saver) == [("b", "c")]
    outputs = go(graph, GraphResume("c"))
    assert logged(outputs) == ["a", "b", "c", "d"]
    assert stored(saver) == [("b", "c"), ("d", END)]


def test_at_exit_an_interrupted_fork_stores_the_branches_that_have_ended(saver):
    b = FlakyNode("b")
    c = fail_once(FlakyNode("c"), KeyboardInterrupt)
    graph = make_graph(LOG, "START>b,c b>d c>d d>END", b=b, c=c).compile(checkpoint_saver=saver, durability="exit")
    with pytest.raises(KeyboardInterrupt):
        graph.invoke({}, CONFIG.replace(max_concurrency=1))

    assert graph.invoke(None, CONFIG)["log"] == ["b", "c", "d"]
    assert b.runs == ["b"]


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_an_update_by_hand_is_stored_at_once_under_each_durability(list_saver, durability):
    saver = ScriptedSaver(list_saver)
    graph = chain("a").compile(checkpoint_saver=saver, durability=durability, on_save_error="warn")
    graph.invoke({}, CONFIG)
    assert graph.update_state(CONFIG, {"log": "u"}).checkpoint_id == list_saver.get(CONFIG).id
    saver.fail("put", full())
    with pytest.raises(CheckpointStorageError):
        graph.update_state(CONFIG, {"log": "v"})


# --- a failure to save ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G19")
def test_a_save_that_fails_ends_the_run_with_its_own_error(saver, go):
    error, runs = full(), []
    scripted = ScriptedSaver(saver).fail("put", error, skip=2)
    compiled = chain("a", b=FlakyNode("b", runs), c=FlakyNode("c", runs)).compile(checkpoint_saver=scripted)
    with pytest.raises(CheckpointStorageError) as raised:
        go(compiled, {})
    assert raised.value is error
    assert runs == ["b"]

    go(compiled, None)
    assert runs == ["b", "b", "c"]


@pytest.mark.requirement("G19", "H10")
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_with_a_warning_the_run_goes_on(saver, durability, go, caplog):
    scripted = ScriptedSaver(saver).fail("put", full(), skip=1, times=1)
    events = []
    options = {"durability": durability, "on_save_error": "warn", "observers": [events.append]}
    compiled = chain("a", "b", "c").compile(checkpoint_saver=scripted, **options)

    go(compiled, {})

    assert dict(saver.get(CONFIG).state) == {"log": ["a", "b", "c"], "n": 3}
    assert stored(saver) == [WHOLE[0], *WHOLE[2:]]
    assert "the disk is full" in caplog.text
    assert [event.type for event in events if event.level == "error"] == ["checkpoint.fail"]


def test_with_a_warning_and_a_store_that_never_works(go):
    saver = ScriptedSaver(MemorySaver())
    for method in ("put", "put_writes"):
        saver.fail(method, OSError("the disk is gone"), times=None)
    graph = chain("a", b=lambda state, config: {"log": config.once("k", lambda: "once")})
    compiled = graph.compile(checkpoint_saver=saver, on_save_error="warn")
    assert logged(go(compiled, {})) == ["a", "once"]


def test_with_a_warning_a_resume_repeats_what_was_not_stored_and_no_more(saver, go):
    runs = []
    a, b, c = (FlakyNode(name, runs) for name in "abc")
    graph = chain(a=a, b=b, c=fail_once(c, Killed))
    scripted = ScriptedSaver(saver).fail("put", full(), skip=2, times=None).fail("put_writes", full(), times=None)

    with pytest.raises(Killed):
        go(graph.compile(checkpoint_saver=scripted, on_save_error="warn"), {})

    resumed = go(graph.compile(checkpoint_saver=saver), None)

    assert logged(resumed) == ["a", "b", "c"]
    assert runs == ["a", "b", "b", "c"]


# --- what becomes of a thread that has ended well ---------------------------------------------------------------------


@pytest.mark.requirement("G20", "H21")
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_without_preserve_it_is_gone_after_success_and_kept_after_failure(saver, durability, go):
    b = fail_once(log_node("b"))
    graph = chain("a", b=b).compile(checkpoint_saver=saver, preserve=False, durability=durability)
    with pytest.raises(NodeExecutionError):
        go(graph, {})
    assert saver.get(CONFIG).node_id == "a"
    outputs = go(graph, None)
    assert logged(outputs) == ["a", "b"]
    assert not saver.list(CONFIG)
    with pytest.raises(CheckpointNotFoundError):
        go(graph, None)


@pytest.mark.requirement("G20")
def test_a_delete_that_fails_is_an_event_and_costs_no_result(saver, go, caplog):
    events = []
    scripted = ScriptedSaver(saver).fail("delete", full())
    graph = chain("a").compile(checkpoint_saver=scripted, preserve=False, observers=[events.append])

    assert logged(go(graph, {})) == ["a"]
    assert "could not be deleted" in caplog.text
    (failure,) = [event for event in events if event.type == "checkpoint.delete"]
    assert failure.level == "warning"
    assert "full" in failure.data["error"]
    assert status(saver) == "finished"


def test_at_a_stop_it_is_kept_and_at_the_end_no_version_is():
    saver = VersionedMemorySaver()
    graph = chain("a", b=lambda state: interrupt("?")).compile(checkpoint_saver=saver, preserve=False)
    graph.invoke({}, CONFIG)
    assert len(saver.interrupts("t")) == 1
    graph.invoke(GraphResume(None), CONFIG)
    assert saver.get(CONFIG) is None
    assert [*saver.versions_by_thread_id("t")] == []


# --- which steps ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G17", "G18", "H14")
@pytest.mark.parametrize("interval", [1, 2, 3, 10])
def test_crashed_and_resumed_the_same_is_stored_as_undisturbed(interval):
    def loop(saver):
        return count_to(7, log_node("a")).compile(
            checkpoint_saver=saver, checkpoint_interval=interval, max_iterations=7
        )

    def counts(saver):
        return [(kept.metadata["step"], kept.state["n"]) for kept in saver.list(CONFIG)]

    undisturbed = MemorySaver()
    loop(undisturbed).invoke({}, CONFIG)
    for dies_at in range(1, 8):
        saver = MemorySaver()
        scripted = ScriptedSaver(saver)
        stream = loop(scripted).stream({}, CONFIG)
        while next(stream).state["n"] < dies_at:
            pass
        scripted.fail("put", Killed(), times=None)  # dead without a last word
        with pytest.raises(Killed):
            stream.throw(Killed())
        loop(saver).invoke(None, CONFIG)
        assert counts(saver) == counts(undisturbed), dies_at


@pytest.mark.requirement("G37")
def test_which_is_asked_of_a_predicate(saver):
    asked = []

    def when(node_id, state):
        asked.append((node_id, state["n"]))
        return node_id == "b"

    graph = chain("a", "b", "c", "d").compile(checkpoint_saver=saver, checkpoint_when=when)
    assert graph.invoke({}, CONFIG)["n"] == 4
    assert stored(saver) == [(START, "a"), ("b", "c"), ("d", END)]
    assert asked == [("a", 1), ("b", 2), ("c", 3)]


def test_a_predicate_that_fails_ends_the_run_with_all_of_it_stored(saver, go):
    graph = chain("a", "b").compile(checkpoint_saver=saver, checkpoint_when=lambda node_id, state: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        go(graph, {})
    assert stored(saver) == [(START, "a"), ("a", "b")]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("how_it_is_refused", ["update", "question", "once"])
def test_a_value_that_the_store_refuses_is_a_failure_of_its_node(tmp_path, durability, how_it_is_refused, go):
    good = []

    def b(state, config):
        value = 1 if good else object()
        if how_it_is_refused == "question":
            interrupt(value)
        return {"log": config.once("k", lambda: value) if how_it_is_refused == "once" else value}

    saver = FileSystemSaver(tmp_path, fsync="never")
    graph = chain("a", b=b).compile(checkpoint_saver=saver, durability=durability)
    with pytest.raises(CheckpointSerializationError):
        go(graph, {})
    if durability == "sync":
        assert status(saver) == "failed"
        assert saver.get_writes(CONFIG)["failure"]["node_id"] == "b"
    good.append(1)
    go(graph, None if saver.list(CONFIG) else {})
    if how_it_is_refused == "question":
        go(graph, GraphResume(2))
    assert status(saver) == "finished"


def test_a_question_that_contains_itself_is_a_failure_of_its_node(saver, go):
    graph = chain("a", b=lambda state: interrupt(CYCLE)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="the interrupt of 'b' cannot be stored"):
        go(graph, {})
    assert status(saver) == "failed"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_an_input_that_the_store_refuses_is_no_failure_of_the_run_before(tmp_path, durability):
    saver = FileSystemSaver(tmp_path, fsync="never")
    graph = chain("a").compile(checkpoint_saver=saver, durability=durability)
    graph.invoke({}, CONFIG)
    with pytest.raises(CheckpointSerializationError):
        graph.invoke({"log": object()}, CONFIG)
    assert status(saver) == "finished"


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G21")
def test_resume_takes_a_thread_or_the_id_of_a_run(go):
    saver = MemorySaver()
    graph = chain("a", "b").compile(checkpoint_saver=saver, interrupt_before=["b"])
    for thread in ("t", "u"):
        graph.invoke({"log": thread}, RunnableConfig(thread))
    run_id = saver.get(RunnableConfig("u")).metadata["run_id"]

    def resume(*given):
        return graph.resume(*given) if go.kind == "sync" else asyncio.run(graph.aresume(*given))

    assert resume(run_id)["log"] == ["u", "a", "b"]
    assert resume("t")["log"] == ["t", "a", "b"]
    past = saver.list(CONFIG)[-1]
    for thread in ("t", RunnableConfig("t")):
        assert resume(thread, past.id)["log"] == ["t", "a"]  # and stops before b again
    for unknown in (["neither"], ["t", "no such checkpoint"]):
        with pytest.raises(CheckpointNotFoundError):
            resume(*unknown)
