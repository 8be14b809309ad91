"""A worker takes up what can go on, once, and leaves alone what cannot."""

import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import graphkit.worker
from graphkit import END, START, Checkpoint, RetryPolicy, RunnableConfig, interrupt
from graphkit.abc import Watch
from graphkit.errors import NodeExecutionError, ThreadBusyError
from graphkit.operations import answer, pause
from graphkit.retention import RetentionPolicy
from graphkit.saver_kit import Change
from graphkit.testing import ScriptedSaver
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver
from savers._filesystem.layout import locate_thread
from tests.support.disks import HookedIO
from tests.support.graphs import LOG, FlakyNode, invoke, log_node, make_chain, make_chain_of
from tests.support.interruptions import run_apart
from tests.support.savers import saver_fixture
from tests.support.workers import PATIENCE, log_of, serving, status, wait_for

SOON = 0.01


saver = saver_fixture(["memory", "file", "wrapped"])
chain = partial(make_chain_of, LOG, {})


def crash(app, thread, after):
    """Leave a run as a process does that dies after a node."""
    for output in app.stream({}, RunnableConfig(thread)):
        if output.node == after:
            break


# What is taken up


def test_a_thread_is_taken_whatever_is_written_late_to_its_older_checkpoints(saver):
    def leave_another(state):
        crash(app, "another", "a")
        saver.put_writes(app.get_state_history("another")[-1].config, {"failure": {}})
        is_left.set()

    is_left = threading.Event()
    app = chain("a", "b").compile(checkpoint_saver=saver)
    other = make_chain(late=leave_another).compile(checkpoint_saver=saver, graph_id="other")
    other.submit({}, "late")
    with serving(Worker(saver, {"other": other, None: app})):
        assert is_left.wait(PATIENCE)
        wait_for(saver, "finished", "another")


def test_a_run_stopped_before_a_node_goes_on_with_what_was_answered(saver):
    app = chain("a", "b").compile(checkpoint_saver=saver, interrupt_before=["b"])
    for thread in ("given", "passed", "open"):
        app.invoke({}, RunnableConfig(thread))
    answer(saver, "given", {"log": "by hand"})
    answer(saver, "passed", None)

    assert Worker(saver, app).run(once=True) == 2

    logs = {thread: log_of(saver, thread) for thread in ("given", "passed", "open")}
    assert logs == {"given": ["a", "by hand", "b"], "passed": ["a", "b"], "open": ["a"]}
    assert status(saver, "open") == "interrupted"


def test_a_stop_after_the_last_node_is_brought_to_its_end(saver):
    app = chain("a").compile(checkpoint_saver=saver, interrupt_after=["a"])
    for thread, value in (("given", {"log": "by hand"}), ("passed", None)):
        app.invoke({}, RunnableConfig(thread))
        answer(saver, thread, value)
    assert Worker(saver, app).run(once=True) == 1  # of the other nothing is left to do
    assert log_of(saver, "given") == ["a", "by hand"]
    assert Worker(saver, app).run(once=True) == 0


def test_an_embedded_graph_with_a_saver_of_its_own_is_not_passed_by(saver):
    child = chain("a", "b").compile(checkpoint_saver=MemorySaver(), interrupt_before=["b"])
    app = make_chain(LOG, child=child).compile(checkpoint_saver=saver)
    app.invoke({}, RunnableConfig("t"))
    assert Worker(saver, app).run(once=True) == 0
    assert status(saver, "t") == "interrupted"


def test_a_passed_stop_at_the_end_is_cleared_away_if_the_graph_wants_that(saver):
    app = chain("a").compile(checkpoint_saver=saver, interrupt_after=["a"], preserve=False)
    app.invoke({}, RunnableConfig("t"))
    answer(saver, "t", None)
    assert Worker(saver, app).run(once=True) == 1
    assert not saver.threads()


def test_an_asynchronous_graph(saver):
    async def node(state):
        return {"log": interrupt("ok?")}

    app = make_chain(LOG, ask=node).compile(checkpoint_saver=saver)
    invoke(app, {}, how="async")
    answer(saver, "t", "yes")
    assert Worker(saver, app).run(once=True) == 1
    assert log_of(saver) == ["yes"]


# What is not


def test_threads_of_other_graphs_are_left_alone_and_named_once(saver, caplog):
    mine = chain("a", "b").compile(checkpoint_saver=saver)
    other = chain("a", "b", "c").compile(checkpoint_saver=saver)
    crash(other, "one", after="a")
    crash(other, "two", after="a")
    crash(mine, "mine", after="a")
    saver.put(RunnableConfig("by hand"), Checkpoint(node_id="a", next_node_id="b", state={}))

    with caplog.at_level(logging.WARNING, "graphkit"):
        assert Worker(saver, mine).run(once=True) == 1

    assert [status(saver, thread) for thread in ("mine", "one", "two")] == ["finished", "stalled", "stalled"]
    assert len(caplog.records) == 2  # the other graph, and none at all
    assert "another graph" in caplog.text


def test_a_failed_run_waits_for_a_human(saver, caplog):
    app = chain("a", b=FlakyNode("b", fails=True)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, RunnableConfig("t"))
    assert Worker(saver, app).run(once=True) == 0

    crash(app, "u", after="a")
    with caplog.at_level(logging.WARNING, "graphkit"):
        assert Worker(saver, app).run(once=True) == 1
    assert "waits for a human" in caplog.text
    assert status(saver, "u") == "failed"
    assert Worker(saver, app).run(once=True) == 0


def test_failed_runs_are_taken_up_again_with_pauses_and_not_for_ever(saver):
    said, enough, node = [], threading.Event(), FlakyNode("b", fails=True)

    def hear(record):
        said.append(record.getMessage())
        if "leaves it until its thread changes" in said[-1]:
            enough.set()

    app = chain("a", b=node).compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    retry = RetryPolicy(max_attempts=4, initial_delay=SOON, jitter=False)
    handler = logging.Handler()
    handler.emit = hear
    logger = logging.getLogger("graphkit.worker")
    logger.addHandler(handler)
    try:
        with serving(Worker(saver, app, interval=SOON, failed=True, retry=retry)):
            assert enough.wait(PATIENCE)
    finally:
        logger.removeHandler(handler)
    assert len(node.runs) == 4
    for line, part in zip(said, ("in 0.01 s", "in 0.02 s", "in 0.04 s", "leaves"), strict=True):
        assert part in line


def test_a_missing_node_is_logged_and_does_not_keep_the_worker_busy(saver, caplog):
    app = chain("a", "b").compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    latest = saver.get(RunnableConfig("t"))
    lost = Checkpoint(node_id="a", next_node_id="lost", state=latest.state, metadata=latest.metadata)
    saver.put(RunnableConfig("t"), lost)
    crash(app, "u", after="a")
    worker = Worker(saver, app, retry=RetryPolicy(initial_delay=3600, max_delay=3600))

    with caplog.at_level(logging.WARNING, "graphkit"):
        assert [worker.run(once=True), worker.run(once=True)] == [2, 2]

    assert "'lost' is not a node of this graph" in caplog.text
    assert "failed here once; the next attempt is in" in caplog.text
    assert status(saver, "u") == "finished"


def test_a_thread_with_another_run_is_left_alone(saver):
    app = chain("a", "b").compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    with saver.run_lock(RunnableConfig("t")), ThreadPoolExecutor(1) as pool:
        assert pool.submit(Worker(saver, app).run, once=True).result(PATIENCE) == 0
    assert log_of(saver) == ["a"]


def test_a_thread_that_another_run_ended_before_its_lock_was_taken_is_left_alone(saver, monkeypatch):
    app = chain("a", "b").compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    run_lock = saver.run_lock

    def lock_late(config, timeout):
        monkeypatch.undo()
        app.invoke(None, config)
        return run_lock(config, timeout)

    monkeypatch.setattr(saver, "run_lock", lock_late)
    assert Worker(saver, app).run(once=True) == 0
    assert log_of(saver) == ["a", "b"]


def test_runs_that_share_a_write_lock_do_not_refuse_each_other(tmp_path):
    """No run waits for another one on its thread, but a write takes a moment."""
    threads = [thread for thread in map(str, range(1000)) if locate_thread(thread).stripe == 0][:2]
    both_run, have_met = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def write_slowly(kind, path):
        if kind == "write_at" and have_met.is_set():
            threading.Event().wait(SOON)

    def meet(state):
        both_run.wait()
        have_met.set()

    with FileSystemSaver(tmp_path, fsync="never", lock_timeout=0, io=HookedIO(write_slowly)) as saver:
        app = make_chain({}, a=meet, b=lambda state: None).compile(checkpoint_saver=saver)
        for thread in threads:
            app.submit({}, RunnableConfig(thread))
        assert Worker(saver, app, concurrency=2).run(once=True) == 2
        assert [status(saver, thread) for thread in threads] == ["finished", "finished"]


@pytest.mark.parametrize(("left", "pause"), [(1, 3600), (3, SOON)])
def test_a_worker_looks_again_when_the_run_of_another_has_ended(tmp_path, monkeypatch, left, pause):
    """Files report the end of each run; the report may come when the next one holds the thread already."""
    monkeypatch.setattr(graphkit.worker, "_BUSY", RetryPolicy(initial_delay=pause, max_delay=pause))
    done = threading.Event()
    with FileSystemSaver(tmp_path / "runs", fsync="never") as store:
        saver = ScriptedSaver(store)
        app = chain("a", b=FlakyNode("b", begun=done)).compile(checkpoint_saver=saver)
        crash(app, "t", after="a")

        def take():
            """Another run takes the run lock just before the worker does, and ends soon."""
            with store.run_lock("t"):
                raise ThreadBusyError("t", "run", 0)

        saver.on("run_lock", take, times=left)

        with serving(Worker(saver, app, interval=pause)) as (served,):
            assert done.wait(PATIENCE)

        assert saver.count("run_lock") > left + 1
        assert served.result() == 1


@pytest.mark.parametrize(("kind", "count"), [("idle", 2), ("checkpoint", 1)])
def test_reports_of_a_thread_with_another_run_do_not_keep_the_worker_busy(monkeypatch, kind, count):
    """A store may report after each look that the run has ended, if it does not see the lock that refuses the worker."""
    monkeypatch.setattr(graphkit.worker, "_BUSY", RetryPolicy(initial_delay=3600, max_delay=3600))
    saver = ScriptedSaver(MemorySaver())
    app = chain("a", "b").compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    worker = Worker(saver, app)
    looks = []
    reports = []

    def refuse():
        looks.append("t")
        raise ThreadBusyError("t", "run", 0)

    def get(watch, timeout, get=Watch.get):
        change = get(watch, 0.0)
        if change is None and len(reports) < len(looks) < 10:
            change = Change(kind, "t", "", saver.recent("t", limit=1)[0])
            reports.append(change)
        elif change is None and timeout != 0.0:
            worker.stop()
        return change

    saver.on("run_lock", refuse, times=None)
    monkeypatch.setattr(Watch, "get", get)

    assert worker.run() == 0
    assert (len(looks), len(reports)) == (count, count)


# While it runs


class Work(FlakyNode):
    """A node that begins while a worker is stopped, and goes on when the worker has been told."""

    def __init__(self):
        super().__init__("work", begun=threading.Event(), after=threading.Event())

    def stop_worker_of(self, app, *, before=lambda: None):
        """Stop a worker while the node executes; return how many runs it resumed."""
        worker = Worker(app.compile_config.saver, app, interval=SOON)
        with serving(worker) as (served,):
            assert self.begun.wait(PATIENCE)
            before()
            worker.stop()
            self.after.set()
        return served.result()


@pytest.mark.parametrize("is_nested", [False, True])
def test_stopping_stops_at_the_node_boundary_and_leaves_the_run_to_others(saver, is_nested):
    work = Work()
    app = app_with(work, saver, is_nested=is_nested)
    crash(app, "t", after="a")
    assert work.stop_worker_of(app) == 1
    assert log_of(saver) == (["a"] if is_nested else ["a", "work"])
    assert not saver.interrupts("t")
    assert status(saver, "t") == "answered"
    assert Worker(saver, app).run(once=True) == 1
    assert log_of(saver) == ["a", "work", "c"]


def app_with(work, saver, *, is_nested):
    """A graph of the nodes a, work and c; the last two may be in a nested graph."""
    graph = chain("a", "work", "c", work=work)
    if is_nested:
        graph = make_chain(LOG, a=log_node("a"), child=chain("work", "c", work=work).compile())
    return graph.compile(checkpoint_saver=saver)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_stopped_worker_leaves_a_run_that_others_paused(saver, is_nested):
    work = Work()
    app = app_with(work, saver, is_nested=is_nested)
    crash(app, "t", after="a")

    assert work.stop_worker_of(app, before=lambda: pause(saver, "t")) == 1
    assert [stop.when for stop in saver.interrupts("t")] == ["before"]
    assert Worker(saver, app).run(once=True) == 0

    answer(saver, "t", None)
    assert Worker(saver, app).run(once=True) == 1


def test_a_worker_that_was_stopped_before_it_ran_does_nothing(saver):
    app = chain("a", "b").compile(checkpoint_saver=saver)
    crash(app, "t", after="a")
    worker = Worker(saver, app)
    worker.stop()
    assert worker.run() == 0
    assert log_of(saver) == ["a"]


def test_stopping_a_worker_stops_no_other_run_of_the_app(saver):
    app = chain("a", "b", "c").compile(checkpoint_saver=saver)
    worker = Worker(saver, app)
    nodes = []
    for output in app.stream({}, RunnableConfig("t")):
        nodes.append(output.node)
        worker.stop()
    assert nodes == [START, "a", "b", "c", END]


def test_a_signal_just_before_the_sleep_is_not_lost(saver, monkeypatch):
    """A handler runs in the thread that it interrupts, whose locks do not keep it out."""
    app = chain("a").compile(checkpoint_saver=saver)
    worker = Worker(saver, app, interval=3600)
    sleep = Watch._sleep_until

    def interrupted(self, until):
        monkeypatch.setattr(Watch, "_sleep_until", sleep)
        worker.stop()
        sleep(self, until)

    monkeypatch.setattr(Watch, "_sleep_until", interrupted)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(worker.run)
        try:
            assert done.result(PATIENCE) == 0
        finally:
            worker._changes.close()


def test_a_second_signal_may_interrupt_the_handler_of_the_first():
    saver = MemorySaver()
    worker = Worker(saver, chain("a").compile(checkpoint_saver=saver), policy=RetentionPolicy(keep_last=1))
    worker.run(once=True)

    def stop():
        # At each call and return, where Python would run the handler of the other signal.
        sys.setprofile(lambda *_: worker.stop())
        worker.stop()
        sys.setprofile(None)

    run_apart(stop)


def test_a_stopped_worker_leaves_a_human_s_stop_alone(saver):
    work = Work()
    app = chain("a", "work", "c", work=work).compile(checkpoint_saver=saver, interrupt_before=["c"])
    crash(app, "t", after="a")
    assert work.stop_worker_of(app) == 1
    assert [stop.when for stop in saver.interrupts("t")] == ["before"]
    assert Worker(saver, app).run(once=True) == 0
