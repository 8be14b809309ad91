"""Cancel and pause from elsewhere: what a thread becomes, what stops, and what the run says."""

import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from graphkit import END, START, GraphInterrupt, GraphResume, GraphRunnerError, RunnableConfig, StateGraph, operations
from graphkit._engine import driver, history
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    NodeExecutionError,
)
from graphkit.operations import cancel, pause
from graphkit.testing import ScriptedSaver
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.graphs import (
    CONFIG,
    LOG,
    FlakyNode,
    asking,
    both,
    close_at,
    connect,
    fail_once,
    invoke_final as run,
    is_node,
    leave_with_status,
    log_node,
    make_chain,
    make_graph,
    make_map,
    payloads_of,
    pending_ids,
)
from tests.support.savers import ListSaver, contents, saver_fixture
from tests.support.sweeps import ALL
from tests.support.workers import PATIENCE, status_everywhere as status

saver = saver_fixture()


@pytest.fixture
def store(tmp_path):
    with FileSystemSaver(tmp_path / "runs", fsync="never") as saver:
        yield saver


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """A run looks at each boundary, and a cancel waits for a moment only."""
    if "real_times" not in request.fixturenames:
        monkeypatch.setattr(history, "LOOK_INTERVAL", 0.0)
        monkeypatch.setattr(history, "_REST", 0)
        monkeypatch.setattr(operations, "_PATIENCE", 0.05)


@pytest.fixture
def real_times():
    """The usual times."""


def in_thread(function, *arguments, **keywords):
    """Call a function on another thread, which holds no lock of this one; return what it returned."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments, **keywords).result(PATIENCE)


class Canceller:
    """A node that has its own run cancelled from elsewhere, once."""

    def __init__(self, saver, word="a", operation=cancel, **arguments):
        self.saver = saver
        self.word = word
        self.operation = operation
        self.arguments = arguments
        self.results = []

    def __call__(self, state):
        if not self.results:
            while self.saver.get("t") is None:  # stored in the background
                time.sleep(0.001)
            self.results.append(in_thread(self.operation, self.saver, "t", **self.arguments))
        return {"log": self.word}


def make_app(saver, options=None, **nodes):
    """Compile a chain of nodes; those that are a word log it."""
    nodes = {name: log_node(node) if isinstance(node, str) else node for name, node in nodes.items()}
    return make_chain(**nodes).compile(checkpoint_saver=saver, **(options or {}))


# A run that is going on


@pytest.mark.requirement("W6")
@pytest.mark.sweep(ALL)
@both
@pytest.mark.parametrize("options", [{}, {"durability": "async"}, {"checkpoint_interval": 5}])
def test_it_ends_before_the_next_node(saver, options, how):
    a = Canceller(saver, reason="sold out")
    events = []
    app = make_app(saver, {**options, "observers": [events.append]}, a=a, b="b")

    last = run(app, {}, how=how)

    assert a.results == [True]
    assert (last.node_id, last.reason()) == ("b", "sold out")
    assert (last.is_cancelled, last.is_interrupted) == (True, False)
    assert last.state["log"] == ["a"]
    assert saver.get(CONFIG).state["log"] == ["a"]
    assert_nothing_waits(saver, app)

    cancellation = saver.summary(CONFIG).cancellation

    assert cancellation["reason"] == "sold out"
    assert datetime.now(UTC) - cancellation["at"] < timedelta(seconds=PATIENCE)
    assert [event.data["reason"] for event in events if event.type == "graph.cancel"] == ["sold out"]

    assert run(app, None, how=how).state["log"] == ["a", "b"]
    assert saver.summary(CONFIG).cancellation is None


def test_with_everything_stored_at_the_exit_invoke_returns_the_state(saver):
    make_app(saver, a="old").invoke({}, CONFIG)
    app = make_app(saver, {"durability": "exit"}, a=Canceller(saver), b="b")
    assert app.invoke({}, CONFIG)["log"] == ["old", "a"]
    assert status(saver) == "cancelled"
    assert app.invoke(None, CONFIG)["log"] == ["old", "a", "b"]


@both
@pytest.mark.parametrize("embedded", [False, True])
def test_a_resume_makes_the_declared_stop_that_the_cancelled_run_had_reached(saver, how, embedded):
    graph = make_chain(a=Canceller(saver), b=log_node("b"))
    if embedded:
        app = make_app(saver, sub=graph.compile(interrupt_before=["b"]))
    else:
        app = graph.compile(checkpoint_saver=saver, interrupt_before=["b"])

    assert run(app, {}, how=how).is_cancelled
    stop = run(app, None, how=how)

    assert (stop.node, stop.when, stop.state["log"]) == ("b", "before", ["a"])
    assert run(app, None, how=how).state["log"] == ["a", "b"]


def test_a_run_in_its_last_node_finishes(saver):
    last = make_app(saver, a=Canceller(saver)).invoke_final({}, CONFIG)
    assert (last.is_end, last.is_cancelled) == (True, False)
    assert status(saver) == "finished"
    # What this run has not read is not for the next one.
    assert make_app(saver, a="a", b="b").invoke_final({}, CONFIG).is_end


def wait_until_cancelled(state, config):
    started = time.monotonic()
    while not config.is_cancelled and time.monotonic() - started < PATIENCE:
        time.sleep(0.01)
    return {"log": str(config.is_cancelled)}


def test_a_node_asks_whether_its_run_is_cancelled(saver, real_times):
    def work(state, config):
        assert not config.is_cancelled
        assert in_thread(cancel, saver, "t")
        return wait_until_cancelled(state, config)

    last = make_app(saver, work=work, b="b").invoke_final({}, CONFIG)
    assert (last.is_cancelled, last.state["log"]) == (True, ["True"])


def test_outside_a_node_there_is_nothing_to_ask_and_without_a_saver_nothing_to_cancel():
    assert make_app(None, a=lambda state, config: {"log": config.is_cancelled}).invoke({})["log"] == [False]
    with pytest.raises(GraphRunnerError, match="is_cancelled works inside a node"):
        _ = RunnableConfig("t").is_cancelled


@pytest.mark.parametrize("open_store", [FileSystemSaver, SqliteSaver])
def test_a_node_in_another_process_asks(tmp_path, open_store):
    with open_store(tmp_path / "store", fsync="never") as saver, ProcessPoolExecutor(1) as pool:
        graph = StateGraph(LOG).add_node("p", wait_until_cancelled, executor=pool).add_node("j", log_node("j"))
        graph.add_node("q", lambda state: {"log": str(in_thread(cancel, saver, "t"))})
        app = connect(graph, "START>p,q p>j q>j j>END").compile(checkpoint_saver=saver)
        last = app.invoke_final({}, CONFIG)
    assert (last.is_cancelled, last.state["log"]) == (True, ["True", "True"])


# Nested graphs, forks and maps


@both
def test_nested_graphs_and_forks_stop_as_one_and_no_question_waits(saver, how):
    q = FlakyNode("q")
    child = make_chain(p=Canceller(saver, "p"), q=q).compile()
    graph = make_graph(LOG, "START>s,ask s>b b>j ask>j j>END", s=child, ask=asking("ok?"))
    app = graph.compile(checkpoint_saver=saver)

    assert run(app, {}, how=how).is_cancelled
    assert q.runs == []
    assert_nothing_waits(saver, app)

    assert payloads_of(run(app, None, how=how)) == ["ok?"]
    assert run(app, GraphResume("yes"), how=how).state["log"] == ["p", "q", "b", "yes", "j"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_nested_graph_with_a_saver_of_its_own(saver, durability):
    q = FlakyNode("q")
    nested = make_chain(p=Canceller(saver, "p"), q=q).compile(checkpoint_saver=MemorySaver())
    app = make_app(saver, {"durability": durability}, a="a", s=nested, b="b")
    make_app(saver, a="old").invoke({}, CONFIG)
    assert app.invoke_final({}, CONFIG).is_cancelled
    assert q.runs == []
    assert app.invoke(None, CONFIG)["log"] == ["old", "a", "p", "q", "b"]


@both
def test_the_branches_that_have_not_begun(saver, how):
    app = make_graph(LOG, "START>b,d b>c c>END d>END", b=Canceller(saver, "b")).compile(checkpoint_saver=saver)
    assert run(app, {}, how=how).is_cancelled
    assert [key for key in saver.get_writes(CONFIG) if key.startswith("task:b")] == ["task:b.0"]
    assert run(app, None, how=how).state["log"] == ["b", "c", "d"]


@both
def test_the_items_that_have_not_begun(saver, how):
    done, cancel_run = [], Canceller(saver, "m")

    def work(item):
        done.append(item)
        return cancel_run(item)

    app = make_map(work, range(9)).compile(checkpoint_saver=saver)
    assert run(app, {}, RunnableConfig("t", max_concurrency=2), how=how).is_cancelled
    assert len(done) < 9
    assert run(app, None, how=how).state["log"] == ["m"] * 9
    assert sorted(done) == [*range(9)]


def assert_nothing_waits(saver, app):
    assert status(saver) == "cancelled"
    assert saver.interrupts("t") == []
    assert app.get_state(CONFIG).interrupts == ()


# A thread that is not running


def make_idle(saver, wanted):
    """Make a thread with a status, and return its graph."""
    app = leave_with_status(saver, wanted)
    assert status(saver) == wanted
    return app


@pytest.mark.sweep(ALL)
@pytest.mark.parametrize("wanted", ["queued", "stalled", "interrupted", "answered", "failed"])
def test_it_is_cancelled_at_once(saver, wanted):
    app = make_idle(saver, wanted)
    before = [(info.id, info.stopped) for info in saver.history(CONFIG)]

    assert cancel(saver, "t", reason="no more")

    (latest, _), *older = before
    assert [(info.id, info.stopped) for info in saver.history(CONFIG)] == [(latest, "cancelled"), *older]
    assert_nothing_waits(saver, app)
    assert saver.wait_for_resume("t", 0)
    with pytest.raises(CheckpointConflictError, match="no interrupt is pending"):
        operations.answer(saver, "t", "yes")

    assert not cancel(saver, "t", reason="again")
    assert saver.summary(CONFIG).cancellation["reason"] == "no more"
    if saver.lists_threads:
        assert Worker(saver, app, failed=True).run(once=True) == 0

    last = app.invoke_final(None, CONFIG)
    if last.is_interrupted:
        last = app.invoke_final(GraphResume("yes"), CONFIG)
    assert last.state["log"] == ["a", "asked"]
    assert status(saver) == "finished"


def test_it_takes_new_input_and_a_new_submit(saver):
    app = make_idle(saver, "interrupted")
    cancel(saver, "t")
    app.submit({"log": "new"}, CONFIG)
    assert status(saver) == "queued"
    cancel(saver, "t")
    assert app.invoke_final({"log": "newer"}, CONFIG).payload == "ok?"
    assert status(saver) == "interrupted"


def test_a_cancelled_submission_that_is_not_due_is_queued_again_by_a_resume(saver):
    app = make_app(saver, a="a")
    app.submit({}, CONFIG, at=datetime.now(UTC) + timedelta(days=1))
    cancel(saver, "t")
    app.invoke(None, CONFIG)
    assert status(saver) == "queued"


def test_a_finished_thread_stays_finished(saver):
    make_app(saver, a="a").invoke({}, CONFIG)
    before = contents(saver)
    assert not cancel(saver, "t")
    assert not pause(saver, "t")
    assert contents(saver) == before


@pytest.mark.parametrize(("wanted", "rounds"), [("interrupted", 2), ("stalled", 1)])
def test_a_run_that_has_stopped_and_still_holds_its_thread_is_waited_for(wanted, rounds):
    """Its thread is cancelled then, and the next run does not find a request that this one has not read."""
    saver = ScriptedSaver(MemorySaver())
    app = make_idle(saver, wanted)
    lock = saver.run_lock(CONFIG)
    copy_context().run(lock.__enter__)
    saver.on("run_lock", lambda: lock.__exit__(None, None, None), skip=rounds)
    assert cancel(saver, "t")
    assert status(saver) == "cancelled"
    assert not app.invoke_final(None, CONFIG).is_cancelled


def test_a_finished_thread_stays_finished_in_a_saver_whose_history_has_no_status():
    class NoStatus(ListSaver):
        def history(self, config=None):
            return [info._replace(status="") for info in super().history(config)]

    saver = NoStatus()
    make_app(saver, a="a").invoke({}, CONFIG)
    assert not cancel(saver, "t")
    assert dict(saver.get_writes(CONFIG)) == {}


def test_what_cannot_be_cancelled_is_refused(saver):
    with pytest.raises(CheckpointNotFoundError):
        cancel(saver, "t")
    make_idle(saver, "interrupted")
    if saver.refuses_unstorable_values:
        with pytest.raises(CheckpointSerializationError):
            cancel(saver, "t", reason=object())
    with pytest.raises(CheckpointerConfigurationError):
        cancel(saver, RunnableConfig("t", checkpoint_ns="sub"))
    assert status(saver) == "interrupted"


@pytest.mark.parametrize("operation", [cancel, pause])
def test_the_holder_of_the_lock_may_cancel(saver, operation):
    make_idle(saver, "stalled")
    with saver.run_lock(CONFIG):
        assert operation(saver, "t") == (operation is cancel)
    assert status(saver) == ("cancelled" if operation is cancel else "stalled")


@pytest.mark.parametrize("operation", [cancel, pause])
def test_a_node_may_stop_its_own_run(saver, operation):
    last = make_app(saver, a=lambda state: {"log": str(operation(saver, "t"))}, b="b").invoke_final({}, CONFIG)
    assert (last.state["log"], last.is_cancelled) == (["True"], operation is cancel)


# Pause


class Pauser:
    """A node that pauses its graph, which is set after it is compiled."""

    def __init__(self, word):
        self.word = word
        self.graph = None
        self.asked = []

    def __call__(self, state):
        if not self.asked:
            self.asked.append(self.graph.pause())
        return {"log": self.word}


@pytest.mark.requirement("H41")
@both
@pytest.mark.parametrize("options", [{}, {"durability": "async"}, {"durability": "exit"}, {"checkpoint_interval": 5}])
def test_a_pause_stops_before_the_next_node_and_the_run_goes_on_there(saver, options, how):
    a = Pauser("a")
    graph = a.graph = make_chain(a=a, b=log_node("b")).compile(checkpoint_saver=saver, **options)
    last = run(graph, {}, how=how)

    assert (last.node_id, last.when) == ("b", "before")
    assert last.reason() == "pause"
    assert last.metadata == {"reason": "pause"}
    assert last.state["log"] == ["a"]
    assert a.asked == [1]
    assert status(saver) == "interrupted"
    assert pending_ids(saver) == [last.id]

    assert run(graph, None, how=how).state["log"] == ["a", "b"]


@pytest.mark.requirement("H41")
@pytest.mark.parametrize("has_saver", [True, False])
def test_a_pause_from_another_thread_or_a_signal_handler(saver, has_saver, monkeypatch):
    inside = threading.Barrier(4, timeout=60)

    def a(state):
        inside.wait()
        inside.wait()
        return {"log": "a"}

    graph = make_chain(a=a, b=log_node("b")).compile(checkpoint_saver=saver if has_saver else None)

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(graph.invoke_final, {}, RunnableConfig(thread)) for thread in "tuv"]
        inside.wait()
        with monkeypatch.context() as interrupted:
            interrupted.setattr(saver, "get", None)  # a handler may have interrupted it
            assert graph.pause("other") == 0
            assert graph.pause("t") == 1
        assert graph.pause() == 3
        inside.wait()
        assert [run.result(60).metadata for run in runs] == [{"reason": "pause"}] * 3

    assert graph.pause() == 0


@pytest.mark.requirement("H41")
@both
def test_a_pause_reaches_a_run_that_waits_for_its_lock(saver, monkeypatch, how):
    graph = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    asked = []
    run_lock = saver.run_lock
    monkeypatch.setattr(saver, "run_lock", lambda *args: asked.append(graph.pause("t")) or run_lock(*args))
    last = run(graph, {}, how=how)
    assert (asked, last.node_id, last.reason()) == ([1], "a", "pause")


def test_a_run_that_is_about_to_end_when_it_is_paused_ends(saver):
    a = Pauser("a")
    graph = a.graph = make_chain(a=a).compile(checkpoint_saver=saver)
    assert graph.invoke_final({}, CONFIG).is_end


@both
def test_a_pause_inside_a_subgraph_and_a_fork(saver, how):
    p = Pauser("p")
    q = FlakyNode("q")
    graph = make_graph(LOG, "j>END START>s,b s>j b>j", s=make_chain(p=p, q=q).compile())
    compiled = p.graph = graph.compile(checkpoint_saver=saver)

    assert run(compiled, {}, how=how).metadata == {"reason": "pause"}
    assert q.runs == []

    assert run(compiled, None, how=how).state["log"] == ["p", "q", "b", "j"]
    assert q.runs == ["q"]


def test_an_answer_beside_a_pause_is_for_the_question_of_the_nested_graph(saver):
    p = Pauser("p")
    graph = make_graph(LOG, "j>END START>s,p s>j p>r r>j", s=make_chain(q=asking("q?")).compile(), p=p)
    compiled = p.graph = graph.compile(checkpoint_saver=saver)
    assert len(compiled.invoke_final({}, CONFIG).interrupts) == 2
    assert compiled.invoke(GraphResume("yes"), CONFIG)["log"] == ["yes", "p", "r", "j"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("answer", [GraphResume({"log": "x"}), GraphResume(update={"log": "x"})])
def test_a_paused_nested_graph_gets_the_correction(saver, answer, depth):
    p = Pauser("p")
    graph = make_chain(p=p, q=lambda state: {"log": f"after {state['log'][-1]}"})

    for _ in range(depth):
        graph = make_chain(sub=graph.compile(), r=log_node("r"))

    compiled = p.graph = graph.compile(checkpoint_saver=saver)

    assert compiled.invoke_final({}, CONFIG).node == "q"
    assert compiled.invoke(answer, CONFIG)["log"] == ["p", "x", "after x"] + ["r"] * depth


@both
def test_ctrl_c_in_a_node_keeps_what_was_finished(saver, how):
    b = fail_once(log_node("b"), KeyboardInterrupt)
    graph = make_chain(a=log_node("a"), b=b).compile(checkpoint_saver=saver, checkpoint_interval=5)
    with pytest.raises(KeyboardInterrupt):
        run(graph, {}, how=how)
    assert saver.get(CONFIG).node_id == "a"
    assert status(saver) == "stalled"
    assert run(graph, None, how=how).state["log"] == ["a", "b"]


@both
def test_a_pause_from_elsewhere_is_that_of_the_graph(saver, how):
    a = Canceller(saver, operation=pause)
    app = make_app(saver, a=a, b="b")
    last = run(app, {}, how=how)
    assert (last.node_id, last.when, last.metadata, a.results) == ("b", "before", {"reason": "pause"}, [True])
    assert status(saver) == "interrupted"
    assert not pause(saver, "t")
    assert run(app, None, how=how).state["log"] == ["a", "b"]


# What goes wrong


NO_SPACE = CheckpointStorageError("runs", "write", OSError("no space"))


@pytest.mark.parametrize("wanted", ["queued", "stalled", "interrupted", "answered", "failed"])
def test_a_cancel_that_cannot_be_stored_leaves_the_thread(store, wanted):
    make_idle(store, wanted)
    before = dict(store.get_writes(CONFIG))
    with pytest.raises(CheckpointStorageError):
        cancel(ScriptedSaver(store).fail("put_writes", NO_SPACE), "t")
    assert status(store) == wanted
    assert dict(store.get_writes(CONFIG)) == before


def test_a_run_that_cannot_record_its_cancel_is_stalled_and_a_worker_grants_it(store):
    saver = ScriptedSaver(store)

    def a(state):
        in_thread(cancel, store, "t", reason="stop")
        saver.fail("put_writes", NO_SPACE, times=None)
        return {"log": "a"}

    with pytest.raises(CheckpointStorageError):
        make_app(saver, a=a, b="b").invoke({}, CONFIG)
    assert status(store) == "stalled"
    app = make_app(store, a=a, b="b")
    assert Worker(store, app).run(once=True) == 0
    assert (status(store), store.summary(CONFIG).cancellation["reason"]) == ("cancelled", "stop")
    assert app.invoke(None, CONFIG)["log"] == ["a", "b"]


def test_a_run_that_cannot_read_pending_writes_goes_on_with_a_warning_until_a_node_asks(store, caplog):
    failure = CheckpointStorageError("runs", "read", OSError("no"))
    blind = ScriptedSaver(store).fail("get_writes", failure, times=None)
    seen = []
    app = make_app(
        blind, a="a", b=lambda state, config: seen.append(list(state["log"])) or {"log": config.is_cancelled}
    )
    with pytest.raises(CheckpointStorageError):
        app.invoke({}, CONFIG)
    assert seen == [["a"]]
    assert "cannot see whether it was cancelled" in caplog.text


@pytest.mark.parametrize("error", [ValueError("no luck"), GraphInterrupt("ok?")])
def test_a_run_that_fails_or_asks_after_the_request_is_cancelled(saver, error):
    def a(state):
        in_thread(cancel, saver, "t", reason="stop")
        raise error

    app = make_app(saver, x="x", a=a)
    with pytest.raises(NodeExecutionError) if isinstance(error, ValueError) else nullcontext():
        app.invoke({}, CONFIG)
    assert status(saver) == "cancelled"
    assert (saver.summary(CONFIG).failure is None) == isinstance(error, GraphInterrupt)


# Where a run looks


class SteppedRun:
    """A run whose node executes when the test says so, and takes a twentieth of a second by the clock of the run."""

    def __init__(self, monkeypatch):
        self.nanoseconds = 10**18 + 130_000_000  # in the middle of a slot
        clock = driver.CLOCK._replace(now=lambda: self.nanoseconds, measure=lambda: self.nanoseconds / 10**9)
        monkeypatch.setattr(driver, "CLOCK", clock)
        self.arrived = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)
        self.count = 0
        self.last = None

    def node(self, state):
        self.arrived.release()
        assert self.permits.acquire(timeout=PATIENCE)
        self.nanoseconds += 50_000_000
        self.count += 1

    def next_node(self, state):
        return END if self.count == self.last else "a"

    def wait(self):
        """Wait until the run is about to execute the node."""
        assert self.arrived.acquire(timeout=PATIENCE)

    def advance(self, count):
        for _ in range(count):
            self.permits.release()
            self.wait()

    def let_go(self, count):
        """Let the run go on, for so many steps."""
        self.last = self.count + count
        self.permits.release(count)


@pytest.mark.requirement("W6")
@pytest.mark.parametrize("late", [0, 2, 5, 12])
@pytest.mark.parametrize("before", [0, 3, 11])
def test_a_request_reaches_a_run_that_stores_meanwhile(saver, real_times, monkeypatch, before, late):
    monkeypatch.setattr(operations, "_PATIENCE", 0.01)
    run = SteppedRun(monkeypatch)
    graph = StateGraph({}).add_node("a", run.node).add_edge(START, "a").add_conditional_edges("a", run.next_node)
    app = graph.compile(checkpoint_saver=saver)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            done = pool.submit(app.invoke_final, {}, RunnableConfig("t", max_iterations=100))
            run.wait()
            run.advance(before)

            assert cancel(ScriptedSaver(saver).on("put_writes", partial(run.advance, late)), "t")
            asked_at = run.count
            run.let_go(20)

            assert done.result(PATIENCE).is_cancelled
            assert run.count - asked_at <= 5  # it looks each fifth of a second
            run.last, run.permits, run.arrived = None, threading.Semaphore(0), threading.Semaphore(0)


def test_a_resume_of_an_older_checkpoint_finds_it_at_the_latest(saver):
    make_app(saver, x="x", a="a", b="b").invoke({}, CONFIG)
    older = RunnableConfig("t", saver.history(CONFIG)[2].id)
    assert make_app(saver, x="x", a=Canceller(saver), b="b").invoke_final(None, older).is_cancelled


def test_a_request_that_comes_while_a_run_takes_its_thread_is_granted(saver):
    app = make_app(saver, a="a", b="b", c="c")
    close_at(app, is_node(START))
    # As if it had come after the run had taken the lock, and before it had read anything.
    saver.put_writes(CONFIG, {"cancel_request": {"reason": "just now", "at": datetime.now(UTC)}})
    last = app.invoke_final(None, CONFIG)
    assert (last.reason(), last.state["log"]) == ("just now", [])
    assert app.invoke(None, CONFIG)["log"] == ["a", "b", "c"]


@pytest.mark.parametrize("operation", [cancel, pause])
def test_a_request_is_granted_once(saver, operation):
    """Also where nothing is stored between the request and the stop, so that both are at one checkpoint."""
    app = make_app(saver, {"checkpoint_interval": 9}, a=Canceller(saver, operation=operation), b="b", c="c")
    assert not app.invoke_final({}, CONFIG).is_end
    assert app.invoke_final(None, CONFIG).is_end


@pytest.mark.parametrize("options", [{"release_thread": True}, {"preserve": False}])
def test_a_run_that_finishes_and_leaves_no_thread(saver, monkeypatch, options):
    at_work = threading.Event()
    go_on = threading.Event()
    monkeypatch.setattr(operations, "_PATIENCE", PATIENCE)
    app = make_app(saver, options, a=FlakyNode("a", begun=at_work, after=go_on))
    scripted = ScriptedSaver(saver).on("put_writes", go_on.set, late=True)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(app.invoke_final, {}, CONFIG)
        assert at_work.wait(PATIENCE)
        assert not cancel(scripted, "t")
        assert running.result(PATIENCE).is_end
