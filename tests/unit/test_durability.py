"""When a step is stored, and what a failure to store it does: durability, on_save_error, preserve, interval, status."""

import asyncio
import threading
from functools import partial

import pytest

from graphkit import END, START, GraphResume, RunnableConfig, StateGraph, interrupt
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
    Killed,
    both,
    close_at,
    fail_once,
    is_node,
    logged,
    make_graph,
    outputs as run,
    status_of,
    stored,
)
from tests.support.sweeps import ALL

pytestmark = pytest.mark.sweep(ALL)

log_node = partial(graphs.log_node, n=1)
chain = partial(graphs.make_chain_of, LOG, {"n": 1})


def full():
    return CheckpointStorageError("the store", "write", OSError(28, "the disk is full"))


WHOLE = [(START, "a"), ("a", "b"), ("b", "c"), ("c", END)]


# --- in the background ------------------------------------------------------------------------------------------------


@both
def test_in_the_background_all_is_stored_in_order_when_the_last_item_comes(saver, how):
    graph = chain("a", "b", "c").compile(checkpoint_saver=saver, durability="async")
    seen = []

    def look(output):
        if output.is_end:
            seen.extend(stored(saver))

    run(graph, {}, how=how, on_output=look)
    assert seen == WHOLE


def test_in_the_background_a_step_does_not_wait_for_the_one_before_to_be_stored():
    ran, steps = threading.Event(), []
    saver = ScriptedSaver(MemorySaver())
    saver.on("put", lambda: steps.append("put") or ran.wait(60), skip=1)

    def last(state):
        steps.append("b")
        ran.set()

    chain("a", b=last).compile(checkpoint_saver=saver, durability="async").invoke({}, CONFIG)
    assert sorted(steps) == ["b", "put"]
    assert stored(saver) == [(START, "a"), ("a", "b"), ("b", END)]


@pytest.mark.requirement("H36")
def test_the_background_is_bounded():
    free, ran, done = threading.Event(), [], []
    saver = ScriptedSaver(MemorySaver()).on("put", lambda: free.wait(60))

    def node(state):
        ran.append(1)
        if len(ran) == 50:
            free.set()  # some wait, and not all of them
        return {"n": 1}

    graph = StateGraph(LOG).add_node("a", node).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: "a" if state["n"] < 300 else END)
    saver.on("put", lambda: done.append(len(ran)), times=None, late=True)
    graph.compile(checkpoint_saver=saver, durability="async").invoke({}, CONFIG)

    assert len(done) == 301
    assert max(ahead - stored for stored, ahead in enumerate(done)) <= 64 + 2


@pytest.mark.requirement("H36")
@both
def test_a_failure_in_the_background_comes_back_at_the_next_save_or_the_end(list_saver, how):
    error = full()
    saver = ScriptedSaver(list_saver).fail("put", error, skip=2)
    graph = chain("a", "b", "c").compile(checkpoint_saver=saver, durability="async")

    with pytest.raises(CheckpointStorageError) as raised:
        run(graph, {}, how=how)
    assert raised.value is error
    assert stored(saver) == WHOLE[:2]  # nothing after what failed
    assert logged(run(graph, None, how=how)) == ["a", "b", "c"]
    assert stored(saver) == WHOLE


@both
def test_a_failure_of_the_last_put_is_no_success(saver, how):
    scripted = ScriptedSaver(saver).fail("put", full(), skip=3)
    graph = chain("a", "b", "c").compile(checkpoint_saver=scripted, durability="async")
    with pytest.raises(CheckpointStorageError):
        run(graph, {}, how=how)
    assert logged(run(graph, None, how=how)) == ["a", "b", "c"]


@both
def test_closing_the_stream_raises_a_failure_in_the_background(how):
    saver = ScriptedSaver(MemorySaver()).fail("put", full(), skip=1)
    graph = chain("a", "b").compile(checkpoint_saver=saver, durability="async")
    with pytest.raises(CheckpointStorageError):
        close_at(graph, is_node("a"), how=how)
    assert stored(saver) == [(START, "a")]


@both
def test_closing_waits_for_the_background(saver, how):
    graph = chain("a", "b", "c").compile(checkpoint_saver=saver, durability="async")
    close_at(graph, is_node("a"), how=how)
    assert stored(saver) == WHOLE[:2]
    assert logged(run(graph, None, how=how)) == ["a", "b", "c"]


@both
def test_the_failure_of_a_node_is_raised_and_the_rest_is_stored(saver, how):
    graph = chain("a", b=lambda state: 1 / 0).compile(checkpoint_saver=saver, durability="async")
    with pytest.raises(NodeExecutionError):
        run(graph, {}, how=how)
    assert stored(saver) == WHOLE[:2]
    assert status_of(saver) == "failed"


def test_a_value_that_cannot_be_stored_in_the_background(tmp_path):
    saver = FileSystemSaver(tmp_path)
    graph = chain(a=lambda state: {"bad": object()}, b=log_node("b")).compile(
        checkpoint_saver=saver, durability="async"
    )
    with pytest.raises(CheckpointSerializationError, match="bad"):
        graph.invoke({}, CONFIG)
    assert stored(saver) == [(START, "a")]


@both
def test_what_a_node_reads_of_its_own_thread_is_there(saver, how):
    seen = []

    def node(state, config):
        seen.append(config.once("k", lambda: stored(saver)))

    graph = chain("a", b=node).compile(checkpoint_saver=saver, durability="async")
    run(graph, {}, how=how)
    assert run(graph, {}, how=how)
    assert len(seen) == 2


def test_a_node_that_catches_the_failure_does_not_hide_it():
    saver = ScriptedSaver(MemorySaver()).fail("put", full(), skip=1)

    def b(state, config):
        try:
            config.once("k", lambda: 1)
        except CheckpointStorageError:
            return {"log": "went on"}
        raise AssertionError

    graph = chain("a", b=b, c=log_node("c")).compile(checkpoint_saver=saver, durability="async")
    with pytest.raises(CheckpointStorageError):
        graph.invoke({}, CONFIG)
    assert stored(saver) == [(START, "a")]


@pytest.mark.parametrize("error", [Killed(), ValueError("a mistake of the saver")])
@pytest.mark.parametrize("on_save_error", ["raise", "warn"])
@both
def test_a_saver_that_breaks_in_the_background_ends_the_run(error, on_save_error, how):
    saver = ScriptedSaver(MemorySaver()).fail("put", error, skip=1)
    graph = chain("a", "b").compile(checkpoint_saver=saver, durability="async", on_save_error=on_save_error)
    with pytest.raises(type(error)):
        run(graph, {}, how=how)
    assert stored(saver) == [(START, "a")]


@both
def test_a_death_at_any_write_in_the_background_loses_only_what_was_not_stored(list_saver, how):
    at = 0
    while True:
        at += 1
        runs = []

        def node(name, runs=runs):
            return lambda state: runs.append(name) or {"log": name, "n": 1}

        store = type(list_saver)()
        dying = ScriptedSaver(store).fail("put", Killed(), skip=at - 1, times=None)
        graph = chain(**{name: node(name) for name in "abc"})
        try:
            run(graph.compile(checkpoint_saver=dying, durability="async"), {}, how=how)
        except Killed:
            assert stored(store) == WHOLE[: at - 1]
        else:
            break
        given = None if at > 1 else {}
        assert logged(run(graph.compile(checkpoint_saver=store), given, how=how)) == ["a", "b", "c"]
        assert stored(store) == WHOLE
    assert at == 5


def test_no_thread_is_left_behind():
    before = set(threading.enumerate())
    graph = chain("a").compile(checkpoint_saver=MemorySaver(), durability="async")
    graph.invoke({}, CONFIG)
    asyncio.run(graph.ainvoke({}, CONFIG))
    stream = graph.stream({}, CONFIG)
    next(stream)
    stream.close()
    assert set(threading.enumerate()) <= before


# --- only when it stands still ----------------------------------------------------------------------------------------


@both
def test_at_exit_one_checkpoint_at_the_end(saver, how):
    graph = chain("a", "b", "c").compile(checkpoint_saver=saver, durability="exit")
    assert logged(run(graph, {}, how=how)) == ["a", "b", "c"]
    assert stored(saver) == [("c", END)]


@both
def test_at_exit_at_a_stop_a_failure_and_a_close(saver, how):

    c = fail_once(lambda state: {"log": interrupt("?"), "n": 1})

    graph = chain("a", "b", c=c, d=log_node("d")).compile(checkpoint_saver=saver, durability="exit")
    with pytest.raises(NodeExecutionError):
        run(graph, {}, how=how)
    assert stored(saver) == [("b", "c")]
    assert status_of(saver) == "failed"

    run(graph, None, how=how)

    assert stored(saver) == [("b", "c")]
    assert status_of(saver) == "interrupted"
    assert logged(run(graph, GraphResume("c"), how=how)) == ["a", "b", "c", "d"]
    assert stored(saver) == [("b", "c"), ("d", END)]

    close_at(graph, is_node("a"), {}, RunnableConfig("u"), how=how)

    assert stored(saver, RunnableConfig("u")) == [("a", "b")]


@both
def test_at_exit_a_finished_branch_is_kept_at_a_failure(saver, how):
    runs = []

    def b(state):
        runs.append("b")
        return {"log": "b"}

    c = fail_once(lambda state: {"log": "c"})

    graph = make_graph(LOG, "START>b,c b>END c>END", b=b, c=c)
    compiled = graph.compile(checkpoint_saver=saver, durability="exit")
    with pytest.raises(NodeExecutionError):
        run(compiled, {}, how=how)
    assert logged(run(compiled, None, how=how)) == ["b", "c"]
    assert runs == ["b"]


def test_an_update_by_hand_is_stored_at_once_under_each_durability(list_saver):
    for durability in ("async", "exit"):
        config = RunnableConfig(durability)
        graph = chain("a").compile(checkpoint_saver=list_saver, durability=durability, on_save_error="warn")
        graph.invoke({}, config)
        assert graph.update_state(config, {"log": "u"}).checkpoint_id == list_saver.get(config).id
        fails = ScriptedSaver(list_saver).fail("put", full())
        with pytest.raises(CheckpointStorageError):
            chain("a").compile(checkpoint_saver=fails, durability=durability, on_save_error="warn").update_state(
                config, {"log": "v"}
            )


# --- a failure to save ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G19")
@both
def test_a_save_that_fails_ends_the_run_with_its_own_error(saver, how):
    error = full()
    scripted = ScriptedSaver(saver).fail("put", error, skip=2)
    runs = []
    graph = chain("a", b=lambda state: runs.append("b"), c=lambda state: runs.append("c"))
    compiled = graph.compile(checkpoint_saver=scripted)
    with pytest.raises(CheckpointStorageError) as raised:
        run(compiled, {}, how=how)
    assert raised.value is error
    assert runs == ["b"]
    run(compiled, None, how=how)
    assert runs == ["b", "b", "c"]


@pytest.mark.requirement("G19", "H10")
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@both
def test_with_a_warning_the_run_goes_on(saver, durability, how, caplog):
    scripted = ScriptedSaver(saver).fail("put", full(), skip=1, times=1)
    events = []
    graph = chain("a", "b", "c")
    compiled = graph.compile(
        checkpoint_saver=scripted, durability=durability, on_save_error="warn", observers=[events.append]
    )
    assert logged(run(compiled, {}, how=how)) == ["a", "b", "c"]

    if durability == "exit":
        assert not caplog.records
        assert stored(saver) == [("c", END)]
        return
    assert "the disk is full" in caplog.text
    assert [event.type for event in events if event.level == "error"] == ["checkpoint.fail"]
    assert stored(saver) == [WHOLE[0], *WHOLE[2:]]
    assert dict(saver.get(CONFIG).state) == {"log": ["a", "b", "c"], "n": 3}


@both
def test_with_a_warning_and_a_store_that_never_works(how):
    saver = ScriptedSaver(MemorySaver())
    for method in ("put", "put_writes"):
        saver.fail(method, full(), times=None)
    graph = chain("a", b=lambda state, config: {"log": config.once("k", lambda: "once")})
    compiled = graph.compile(checkpoint_saver=saver, on_save_error="warn")
    assert logged(run(compiled, {}, how=how)) == ["a", "once"]


@both
def test_with_a_warning_a_resume_repeats_what_was_not_stored_and_no_more(saver, how):
    runs, fails = [], [1]

    def node(name):
        def called(state):
            runs.append(name)
            if name == "c" and fails:
                raise Killed
            return {"log": name}

        return called

    graph = chain(**{name: node(name) for name in "abc"})
    scripted = ScriptedSaver(saver).fail("put", full(), skip=2, times=None).fail("put_writes", full(), times=None)
    with pytest.raises(Killed):
        run(graph.compile(checkpoint_saver=scripted, on_save_error="warn"), {}, how=how)
    fails.clear()
    assert logged(run(graph.compile(checkpoint_saver=saver), None, how=how)) == ["a", "b", "c"]
    assert runs == ["a", "b", "c", "b", "c"]


# --- what becomes of a thread that has ended well ---------------------------------------------------------------------


@pytest.mark.requirement("G20", "H21")
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@both
def test_without_preserve_it_is_gone_after_success_and_kept_after_failure(saver, durability, how):

    b = fail_once(lambda state: {"log": "b"})

    graph = chain("a", b=b).compile(checkpoint_saver=saver, preserve=False, durability=durability)
    with pytest.raises(NodeExecutionError):
        run(graph, {}, how=how)
    assert saver.get(CONFIG).node_id == "a"
    for output in run(graph, None, how=how):
        last = output
    assert last.state["log"] == ["a", "b"]
    assert not saver.list(CONFIG)
    with pytest.raises(CheckpointNotFoundError):
        run(graph, None, how=how)


def test_a_version_is_not_kept_either():
    saver = VersionedMemorySaver()
    chain("a").compile(checkpoint_saver=saver, preserve=False).invoke({}, CONFIG)
    assert [*saver.versions_by_thread_id("t")] == []


@pytest.mark.requirement("G20")
@both
def test_a_delete_that_fails_is_an_event_and_costs_no_result(saver, how, caplog):
    events = []
    scripted = ScriptedSaver(saver).fail("delete", full())
    graph = chain("a").compile(checkpoint_saver=scripted, preserve=False, observers=[events.append])

    assert logged(run(graph, {}, how=how)) == ["a"]
    assert "could not be deleted" in caplog.text

    (failure,) = [event for event in events if event.type == "checkpoint.delete"]
    assert failure.level == "warning"
    assert "full" in failure.data["error"]
    assert status_of(saver) == "finished"


def test_at_a_stop_it_is_kept(saver):
    graph = chain("a", b=lambda state: interrupt("?")).compile(checkpoint_saver=saver, preserve=False)
    graph.invoke({}, CONFIG)
    assert len(saver.interrupts("t")) == 1
    graph.invoke(GraphResume(None), CONFIG)
    assert saver.get(CONFIG) is None


# --- which steps ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G17", "G18", "H14")
@pytest.mark.parametrize("interval", [1, 2, 3, 10])
@pytest.mark.parametrize("dies_at", range(1, 8))
def test_crashed_and_resumed_the_same_is_stored_as_undisturbed(interval, dies_at):
    def runs(saver, dies):
        def node(state):
            if state["n"] == dies:
                raise Killed
            return {"n": 1}

        graph = StateGraph(LOG).add_node("a", node).add_edge(START, "a")
        graph.add_conditional_edges("a", lambda state: "a" if state["n"] < 7 else END)
        return graph.compile(checkpoint_saver=saver, checkpoint_interval=interval, max_iterations=7)

    undisturbed = MemorySaver()
    runs(undisturbed, None).invoke({}, CONFIG)
    saver = MemorySaver()
    scripted = ScriptedSaver(saver)
    graph = runs(scripted, dies_at)

    def dies():
        for output in graph.stream({}, CONFIG):
            if output.state["n"] == dies_at:  # dead without a last word
                scripted.fail("put", Killed(), times=None)
        raise Killed

    with pytest.raises(Killed):
        dies()
    runs(saver, None).invoke(None, CONFIG)

    def counts(one):
        return [(kept.metadata["step"], kept.state["n"]) for kept in one.list(CONFIG)]

    assert counts(saver) == counts(undisturbed)


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


@both
def test_a_predicate_that_fails_ends_the_run_with_all_of_it_stored(saver, how):
    def when(node_id, state):
        return 1 / 0

    graph = chain("a", "b").compile(checkpoint_saver=saver, checkpoint_when=when)
    with pytest.raises(ZeroDivisionError):
        run(graph, {}, how=how)
    assert stored(saver) == [(START, "a"), ("a", "b")]


# --- status -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("H20", "H40")
@both
def test_the_status_of_a_run_wherever_it_stands(saver, how):
    fails, seen = [1], []

    def b(state):
        seen.append(status_of(saver))
        if fails:
            raise ValueError("too bad")
        return {"log": interrupt("?")}

    graph = chain("a", b=b).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        run(graph, {}, how=how)
    assert [info.status for info in saver.history(CONFIG)] == ["failed", ""]
    failure = saver.get_writes(CONFIG)["failure"]
    assert (failure["node_id"], failure["type"]) == ("b", "NodeExecutionError")
    assert "too bad" in failure["message"]
    fails.clear()
    run(graph, None, how=how)
    assert [info.status for info in saver.history(CONFIG)] == ["interrupted", ""]
    assert saver.get_writes(CONFIG)["failure"] is None
    run(graph, GraphResume("ok"), how=how)
    assert status_of(saver) == "finished"
    assert seen[0] == "running"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("how_it_is_refused", ["update", "question", "once"])
@both
def test_a_value_that_the_store_refuses_is_a_failure_of_its_node(tmp_path, durability, how_it_is_refused, how):
    good = []

    def b(state, config):
        value = 1 if good else object()
        if how_it_is_refused == "question":
            interrupt(value)
        return {"log": config.once("k", lambda: value) if how_it_is_refused == "once" else value}

    saver = FileSystemSaver(tmp_path, fsync="never")
    graph = chain("a", b=b).compile(checkpoint_saver=saver, durability=durability)
    with pytest.raises(CheckpointSerializationError):
        run(graph, {}, how=how)
    if durability == "sync":
        assert status_of(saver) == "failed"
        assert saver.get_writes(CONFIG)["failure"]["node_id"] == "b"
    good.append(1)
    run(graph, None if saver.list(CONFIG) else {}, how=how)
    if how_it_is_refused == "question":
        run(graph, GraphResume(2), how=how)
    assert status_of(saver) == "finished"


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G21")
@both
def test_resume_takes_a_thread_or_the_id_of_a_run(how):
    saver = MemorySaver()
    fails = [1]

    def b(state):
        if fails:
            raise ValueError
        return {"log": "b"}

    graph = chain("a", b=b).compile(checkpoint_saver=saver)
    for thread in ("t", "u"):
        with pytest.raises(NodeExecutionError):
            graph.invoke({"log": thread}, RunnableConfig(thread))
    fails.clear()
    run_id = saver.get(RunnableConfig("u")).metadata["run_id"]

    def resume(*given):
        return graph.resume(*given) if how == "sync" else asyncio.run(graph.aresume(*given))

    assert resume(run_id)["log"] == ["u", "a", "b"]
    assert resume("t")["log"] == ["t", "a", "b"]
    past = saver.list(CONFIG)[-1]
    assert resume("t", past.id)["log"] == ["t", "a", "b"]
    assert resume(RunnableConfig("t"), past.id)["log"] == ["t", "a", "b"]
    with pytest.raises(CheckpointNotFoundError):
        resume("neither")
    with pytest.raises(CheckpointNotFoundError):
        resume("t", "no such checkpoint")
