"""Workers and time: they take what is due when it is due, in order, once, and after a restart."""

import threading
from datetime import timedelta
from time import monotonic, sleep as sleep_here

import pytest

import graphkit.worker
from graphkit import GraphResume, RetryPolicy, RunnableConfig, interrupt, operations, sleep, wait_until
from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError, ThreadBusyError
from graphkit.testing import ManualClock, ScriptedSaver
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import LOG, FlakyNode, Killed, asking, fail_once, log_node, make_chain, make_graph, make_map
from tests.support.savers import ListingSaver, saver_fixture
from tests.support.times import HOUR, NOON
from tests.support.workers import PATIENCE, log_of, serving, status, wait_for

T = RunnableConfig("t")
saver = saver_fixture(four_methods=ListingSaver)


def nap(time):
    def node(state):
        sleep(time)
        return {"log": "awake"}

    return node


def test_graphs_with_different_clocks_need_one_of_the_worker(saver, clock):
    """A run would be due by the clock of the one, and not by that of the other, and begin again and again."""
    ahead = make_chain(b=log_node("b")).compile(clock=clock)
    naps = make_chain(nap=nap(HOUR)).compile()
    late = make_chain(b=log_node("b")).compile(clock=lambda: NOON)
    with pytest.raises(CheckpointerConfigurationError, match="different clocks"):
        Worker(saver, {"ahead": ahead, "late": late})

    Worker(saver, {"ahead": ahead, "late": late}, clock=clock)
    operations.submit(saver, {}, T, graph_id="naps")
    worker = Worker(saver, {"naps": naps, "ahead": ahead})  # the clock of the one holds for the other, too
    assert worker.run(once=True) == 1

    clock.advance(HOUR)
    assert worker.run(once=True) == 2


def test_a_clock_that_is_set_back_postpones_a_run(saver):
    times = [NOON]
    app = make_chain(b=log_node("b")).compile(checkpoint_saver=saver)
    app.submit({}, T, at=NOON + HOUR)
    scripted = ScriptedSaver(saver)
    worker = Worker(scripted, app, clock=lambda: times[-1])
    assert worker.run(once=True) == 0

    times.append(NOON + HOUR)
    scripted.on("recent", lambda: times.append(NOON))
    assert worker.run(once=True) == 0
    times.append(NOON + HOUR)
    assert worker.run(once=True) == 1


def test_an_idle_worker_wakes_at_the_time(saver):
    """By the clock of the system, without any change in the store."""
    app = make_chain(nap=nap(0.3)).compile(checkpoint_saver=saver)
    app.invoke({}, T)
    started = saver.get(T).created_at
    with serving(Worker(saver, app, interval=3600)):
        wait_for(saver, "finished")
    assert saver.get(T).created_at - started >= timedelta(seconds=0.3)
    assert log_of(saver) == ["awake"]


def test_a_thread_that_is_not_due_costs_no_reads(clock):
    """A worker looks at it when it is due, and not before."""
    saver = ScriptedSaver(MemorySaver())
    app = make_chain(nap=nap(HOUR)).compile(checkpoint_saver=saver, clock=clock)
    for number in range(50):
        app.invoke({}, RunnableConfig(f"t{number}"))
    app.submit({}, RunnableConfig("queued"), at=NOON + HOUR)
    before = saver.count("recent")
    worker = Worker(saver, app)
    for _ in range(3):
        worker.run(once=True)
    assert saver.count("recent") == before
    clock.advance(HOUR)
    assert worker.run(once=True) == 51
    assert saver.count("recent") > before


@pytest.mark.requirement("W4")
def test_due_threads_are_taken_in_the_order_of_their_times(saver, clock):
    order = []

    def node(state, config):
        sleep(state["n"] * HOUR)
        order.append(config.thread)

    app = make_chain(nap=node).compile(checkpoint_saver=saver, clock=clock)
    for number in (3, 1, 2):
        app.invoke({"n": number}, RunnableConfig(f"nap {number}"))
    app.submit({"n": 0}, RunnableConfig("queued"), at=NOON + 1.5 * HOUR)
    clock.advance(4 * HOUR)
    Worker(saver, app).run(once=True)
    assert order == ["nap 1", "queued", "nap 2", "nap 3"]


@pytest.mark.requirement("W4")
def test_the_earliest_of_several_timers_counts(saver, clock):
    app = make_map(lambda hours: nap(hours * HOUR)(hours), [1, 2]).compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, T)
    for expected in ("sleeping", "finished"):
        clock.advance(HOUR)
        assert Worker(saver, app).run(once=True) == 1
        assert status(saver) == expected


@pytest.mark.parametrize("kind", ["fork", "map"])
def test_what_died_beside_a_sleeping_branch_goes_on_at_once(tmp_path, clock, kind):
    seen = []
    dying = fail_once(log_node("b"), Killed)

    def die_once(state):
        seen.append(status(store))
        return dying(state)

    def work(item):
        return die_once(item) if item else nap(HOUR)(item)

    with FileSystemSaver(tmp_path / "runs", fsync="never") as store:
        if kind == "fork":
            graph = make_graph(LOG, "START>s s>nap,b b>j nap>j j>END", nap=nap(HOUR), b=die_once)
        else:
            graph = make_map(work, [0, 1], max_concurrency=1)
        app = graph.compile(checkpoint_saver=store, clock=clock)
        with pytest.raises(Killed):
            app.invoke({}, T)
        assert status(store) == "stalled"
        worker = Worker(store, app)
        assert worker.run(once=True) == 1
        assert (status(store), len(seen), seen[0]) == ("sleeping", 2, "running")
        assert worker.run(once=True) == 1
        clock.advance(HOUR)
        assert worker.run(once=True) == 2
        assert status(store) == "finished"


def test_what_died_after_the_timer_of_a_nested_graph_goes_on_at_once(saver, clock):
    inner = make_chain(nap=nap(HOUR), b=fail_once(log_node("b"), Killed)).compile()
    app = make_chain(sub=make_chain(deep=inner).compile()).compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, T)
    clock.advance(HOUR)
    with pytest.raises(Killed):
        Worker(saver, app).run(once=True)
    assert status(saver) == "stalled"
    assert Worker(saver, app).run(once=True) == 1
    assert log_of(saver) == ["awake", "b"]


@pytest.mark.parametrize("who", ["worker", "human"])
def test_what_was_stopped_beside_a_sleeping_branch_does_not_wait_for_its_timer(clock, who):
    saver = MemorySaver()
    work = FlakyNode("b", begun=threading.Event(), after=threading.Event())
    graph = make_graph(LOG, "START>s s>nap,b b>c c>j nap>j j>END", nap=nap(HOUR), b=work)
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.submit({}, T)
    worker = Worker(saver, app)
    with serving(worker):
        assert work.begun.wait(PATIENCE)
        if who == "worker":
            worker.stop()
        else:
            assert operations.pause(saver, T)
        work.after.set()
    other = Worker(saver, app)
    if who == "worker":
        assert (status(saver), other.run(once=True)) == ("answered", 1)
        assert status(saver) == "sleeping"
    clock.advance(HOUR)
    other.run(once=True)
    if who == "human":
        assert status(saver) == "interrupted"
        operations.answer(saver, T, None)
        assert other.run(once=True) == 1
    assert status(saver) == "finished"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_timer_goes_on_and_passes_no_declared_stop_in_another_branch(saver, clock, depth):
    woken = []

    def nap_twice(state):
        sleep(HOUR)
        woken.append(clock())
        sleep(HOUR)
        return {"log": interrupt("?", deadline=HOUR, default="no")}

    child = make_chain(ship=log_node("shipped")).compile(interrupt_before=["ship"])
    if depth > 1:
        child = make_chain(child=child).compile(interrupt_before=["child"])
    graph = make_graph(LOG, "START>s s>nap,child nap>j child>j j>END", nap=nap_twice, child=child)
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, T)
    worker = Worker(saver, app)
    for runs in range(1, 4):
        clock.advance(HOUR)
        assert worker.run(once=True) == runs
        assert worker.run(once=True) == runs
        assert status(saver) == "interrupted"
    assert woken[0] == NOON + HOUR
    assert [stop.when for stop in saver.interrupts(T)] == ["before"]
    for _ in range(depth):
        assert log_of(saver) == ["s"]
        operations.answer(saver, T, None)
        worker.run(once=True)
    assert log_of(saver) == ["s", "no", "shipped", "j"]


def make_paused(saver, clock, ask, *, depth, has_timer=False):
    """Return a graph whose run was paused in one branch while the others wait; perhaps a nested one."""

    def work(state):
        app.pause(T)
        return {"log": "b"}

    naps = nap(HOUR) if has_timer else log_node("awake")
    graph = make_graph(LOG, "START>s s>ask,nap,b b>c c>j ask>j nap>j j>END", ask=ask, nap=naps, b=work)
    for _ in range(depth):
        graph = make_chain(sub=graph.compile())
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, T)
    return app


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("waits", ["question", "nested question", "timer"])
def test_no_time_ends_a_pause(saver, clock, waits, depth):
    ask = asking("?", deadline=HOUR, default="no")
    if waits == "nested question":
        ask = make_chain(inner=ask).compile()
    if waits == "timer":
        ask = asking("?")
    app = make_paused(saver, clock, ask, depth=depth, has_timer=waits == "timer")
    clock.advance(HOUR)
    assert Worker(saver, app).run(once=True) == 0
    assert status(saver) == "interrupted"

    answer = GraphResume("no") if waits == "timer" else None
    assert app.invoke(answer, T)["log"] == ["s", "no", "awake", "b", "c", "j"]


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("embedded", [False, True])
def test_an_answer_without_an_id_is_for_the_question_and_not_for_the_pause(saver, clock, embedded, depth):
    ask = make_chain(inner=asking("?")).compile() if embedded else asking("?")
    app = make_paused(saver, clock, ask, depth=depth)
    assert app.invoke(GraphResume("yes"), T)["log"] == ["s", "yes", "awake", "b", "c", "j"]


def test_a_run_that_sleeps_again_is_left_alone_until_then(saver, clock):
    # Nothing in the store of the worker says until when such a nested graph sleeps.
    inner = make_chain(short=nap(HOUR), long=nap(2 * HOUR)).compile(checkpoint_saver=MemorySaver())
    app = make_chain(sub=inner).compile(checkpoint_saver=saver, clock=clock)
    outputs = []

    def stop_if_endless(thread, output):
        outputs.append(output)
        if len(outputs) > 9:
            worker.stop()

    worker = Worker(saver, app, on_output=stop_if_endless)
    app.submit({}, T)
    for count in (1, 2, 2):
        assert worker.run(once=True) == count
        clock.advance(HOUR)


# Reminders


def reminders_of(events):
    return [
        (event.thread_id, event.node_id, event.data["payload"], event.data["number"], event.data["total"])
        for event in events
        if event.type == "interrupt.reminder"
    ]


asks = asking("?", deadline=4 * HOUR, default="no", reminders=[2 * HOUR, HOUR, NOON + 3 * HOUR])


@pytest.mark.requirement("W10")
@pytest.mark.parametrize("embedded", [False, True])
def test_each_reminder_is_posted_once(saver, clock, embedded):
    events = []
    graph = make_chain(ask=asks)
    if embedded:
        graph = make_chain(sub=graph.compile())
    app = graph.compile(checkpoint_saver=saver, clock=clock, observers=events.append)
    app.invoke({}, T)
    expected = []
    for number in (1, 2, 3):
        for worker in (Worker(saver, app), Worker(saver, app)):
            assert worker.run(once=True) == 0
            assert reminders_of(events) == expected
        clock.advance(HOUR)
        expected.append(("t", "ask", "?", number, 3))
    worker = Worker(saver, app)
    assert worker.run(once=True) == 0
    assert reminders_of(events) == expected
    assert status(saver) == "interrupted"
    clock.advance(HOUR)
    assert worker.run(once=True) == 1
    assert log_of(saver) == ["no"]
    assert reminders_of(events) == expected


def test_reminders_end_with_the_answer(saver, clock):
    events = []
    app = make_chain(ask=asks).compile(checkpoint_saver=saver, clock=clock, observers=events.append)
    app.invoke({}, T)
    worker = Worker(saver, app)
    clock.advance(2 * HOUR)  # those that no worker has posted in time come together
    worker.run(once=True)
    operations.answer(saver, "t", "yes", clock=clock)
    clock.advance(HOUR * 5)

    assert worker.run(once=True) == 1
    assert [number for *_, number, _ in reminders_of(events)] == [1, 2]


def test_a_worker_posts_no_reminder_of_a_graph_that_it_does_not_serve(saver, clock, caplog):
    events = []
    options = {"checkpoint_saver": saver, "clock": clock, "observers": events.append}
    make_chain(ask=asks).compile(**options).invoke({}, T)
    clock.advance(HOUR)
    assert Worker(saver, make_chain(other=asks).compile(**options)).run(once=True) == 0
    assert reminders_of(events) == []
    assert "failed" not in caplog.text


def test_a_reminder_that_is_due_with_a_timer_is_posted_after_the_run(saver, clock):
    events = []
    graph = make_graph(LOG, "START>s s>nap,ask nap>j ask>j j>END", nap=nap(HOUR), ask=asks)
    app = graph.compile(checkpoint_saver=saver, clock=clock, observers=events.append)
    app.invoke({}, T)
    clock.advance(HOUR)
    assert Worker(saver, app).run(once=True) == 1
    assert [number for *_, number, _ in reminders_of(events)] == [1]


def test_an_answer_to_another_question_drops_no_reminder(clock, monkeypatch):
    monkeypatch.setattr(graphkit.worker, "_BUSY", RetryPolicy(initial_delay=3600, max_delay=3600))
    saver = ScriptedSaver(MemorySaver())
    posted = threading.Event()
    graph = make_graph(LOG, "START>s s>first,ask first>j ask>j j>END", first=asking("first"), ask=asks)
    options = {"clock": clock, "observers": lambda event: event.type == "interrupt.reminder" and posted.set()}
    app = graph.compile(checkpoint_saver=saver, **options)
    app.invoke({}, T)
    first = next(stop.id for stop in saver.interrupts(T) if stop.payload == "first")
    clock.advance(HOUR)

    def hold():
        operations.answer(saver.delegate, T, "yes", interrupt=first)
        raise ThreadBusyError("t", "answer", 0)

    saver.on("run_lock", hold)
    with serving(Worker(saver, app, interval=0.01)):
        assert posted.wait(PATIENCE)


def test_a_worker_that_dies_leaves_its_reminder_to_another(saver, clock):
    events = []
    app = make_chain(ask=asks).compile(checkpoint_saver=saver, clock=clock, observers=events.append)
    app.invoke({}, T)
    clock.advance(HOUR)
    dying = ScriptedSaver(saver)
    dying.fail("put_writes", Killed())
    with pytest.raises(Killed):
        Worker(dying, app).run(once=True)
    for _ in range(2):
        Worker(saver, app).run(once=True)
    assert [number for *_, number, _ in reminders_of(events)] == [1, 1]


def test_one_of_two_workers_posts_a_reminder(saver, sweep):
    events = []
    graph = make_chain(ask=asking("?", reminders=[0.05]))
    app = graph.compile(checkpoint_saver=saver, observers=events.append)
    threads = [f"t{number}" for number in range(sweep.count(200, 20))]
    workers = [Worker(saver, app, interval=0.02) for _ in range(2)]
    with serving(*workers):
        for thread in threads:
            app.invoke({}, RunnableConfig(thread))
        end = monotonic() + PATIENCE
        while len(reminders_of(events)) < len(threads):
            assert monotonic() < end
            sleep_here(0.01)
    reminded = [thread for thread, *_ in reminders_of(events)]

    assert sorted(reminded) == sorted(threads)


# Faults at any write: nothing is lost, and the run ends the same


def late(state):
    wait_until(NOON + 3 * HOUR)
    return {"log": "late"}


def item(number):
    sleep(number * HOUR)
    return {"log": f"item {number}"}


def make_app(saver, clock):
    """A fork of two branches that sleep and a nested graph that asks, and then a map whose items sleep."""
    inner = make_chain(ask=asking("?", deadline=2 * HOUR, default="no"))
    nodes = {"nap": nap(HOUR), "late": late, "sub": inner.compile()}
    graph = make_graph(LOG, "START>s s>nap,late,sub nap>j late>j sub>j", log_node, **nodes)
    graph.add_map_node("m", item, lambda state: [1, 2]).add_edge("j", "m").set_finish_point("m")
    return graph.compile(checkpoint_saver=saver, clock=clock)


def run(store, script):
    """Submit and serve, with a store of which each write is scripted; return how many writes there were."""
    clock = ManualClock(NOON)
    with FileSystemSaver(store, fsync="never") as saver:
        make_app(saver, clock).submit({}, T)
        scripted = ScriptedSaver(saver)
        script(scripted)
        for _ in range(8):
            try:
                Worker(scripted, make_app(scripted, clock), failed=True).run(once=True)
            except Killed:
                break
            if status(saver) == "finished":
                break
            clock.advance(HOUR)
        writes = scripted.count("put") + scripted.count("put_writes")
    with FileSystemSaver(store, fsync="never") as saver:  # as another process
        for _ in range(24):  # a failure is repeated at once, and a death is noticed
            Worker(saver, make_app(saver, clock), failed=True).run(once=True)
            if status(saver) == "finished":
                break
            clock.advance(HOUR / 3)
        assert status(saver) == "finished"
        assert log_of(saver) == ["s", "awake", "late", "no", "j", "item 1", "item 2"]
    return writes


@pytest.mark.parametrize("fault", ["refused", "killed before", "killed after"])
def test_a_fault_at_each_write(tmp_path, fault, sweep):
    writes = run(tmp_path / "without a fault", lambda saver: None)
    assert 12 <= writes <= 30
    for nth in range(0, writes, sweep.count(1, 6)):
        left = [nth]

        def fail(left=left):
            left[0] -= 1
            if fault == "refused" and left[0] == -1:
                raise CheckpointStorageError("store", "write", "as scripted")
            if fault != "refused" and left[0] < 0:  # nothing else is stored by this process
                raise Killed

        def script(saver, fail=fail):
            for method in ("put", "put_writes"):
                saver.on(method, fail, times=None, late=fault == "killed after")

        run(tmp_path / f"runs {nth}", script)


def test_a_thread_that_was_left_alone_and_has_changed_since_is_woken(clock):
    saver = MemorySaver()
    app = make_chain(nap=nap(HOUR), again=nap(2 * HOUR)).compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, T)
    scripted = ScriptedSaver(saver)
    worker = Worker(scripted, app, retry=RetryPolicy(max_attempts=1))
    clock.advance(HOUR)
    scripted.fail("recent", CheckpointStorageError("t", "read", OSError()))
    assert worker.run(once=True) == 0

    app.invoke(None, T)
    clock.advance(2 * HOUR)
    assert worker.run(once=True) == 1
    assert status(saver) == "finished"
