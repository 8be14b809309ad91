"""Timers: a run sleeps, is resumed when it is due and not before, and no human sees it; and the clock that it reads."""

from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from graphkit import (
    END,
    START,
    GraphResume,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    interrupt,
    operations,
    sleep,
    wait_until,
)
from graphkit.errors import GraphRunnerError, NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import (
    CONFIG,
    LOG,
    asking,
    both,
    fail_once,
    invoke_final as run,
    log_node,
    make_chain,
    make_graph,
    make_map,
    payloads_of,
)
from tests.support.savers import contents, saver_fixture
from tests.support.times import HOUR, MINUTE, MOMENT, NOON, WEEK
from tests.support.workers import status_everywhere as status

RETRY = RetryPolicy(max_attempts=2, initial_delay=0)
saver = saver_fixture(most=2, lock_timeout=0)


def nap(*times, then="awake"):
    """Make a node that sleeps these times, and logs when it ran."""

    def node(state):
        runs.append("nap")
        for time in times:
            if isinstance(time, datetime):
                wait_until(time)
            else:
                sleep(time)
        return {"log": then}

    runs = node.runs = []
    return node


# One timer


@pytest.mark.requirement("W7")
@pytest.mark.parametrize("time", [3600, HOUR, NOON + HOUR, (NOON + HOUR).astimezone(timezone(HOUR))])
def test_a_run_sleeps_until_its_timer_is_due(saver, clock, time):
    node = nap(time)
    app = make_chain(a=log_node("a"), nap=node, b=log_node("b")).compile(checkpoint_saver=saver, clock=clock)
    stop = app.invoke_final({}, CONFIG)

    assert (stop.node, stop.reason(), stop.due) == ("nap", "timer", NOON + HOUR)
    assert status(saver) == "sleeping"

    before = contents(saver)
    clock.advance(HOUR - MOMENT)
    again = app.invoke_final(None, CONFIG)
    assert (again.node, again.due, again.id) == ("nap", NOON + HOUR, stop.id)
    assert again.state["log"] == ["a"]
    assert contents(saver) == before
    assert node.runs == ["nap"]

    clock.advance(MOMENT)
    assert status(saver) == "sleeping"
    assert app.resume("t")["log"] == ["a", "awake", "b"]
    assert node.runs == ["nap", "nap"]
    assert status(saver) == "finished"


def test_no_human_sees_a_timer(saver, clock):
    events = []
    app = make_chain(nap=nap(60)).compile(checkpoint_saver=saver, clock=clock, observers=events.append)
    assert app.invoke({}, CONFIG).interrupts == ()

    (event,) = [event for event in events if event.type in {"timer.set", "interrupt.raised"}]
    assert event.type == "timer.set"
    assert event.node_id == "nap"
    assert event.data["due"] == NOON + MINUTE
    assert_no_human_is_asked(saver, app)
    assert saver.wait_for_resume("t", 0)
    with pytest.raises(GraphRunnerError, match="nothing waits for an answer"):
        app.invoke(GraphResume("yes"), CONFIG)
    assert status(saver) == "sleeping"


def assert_no_human_is_asked(saver, app):
    assert status(saver) == "sleeping"
    assert [*saver.interrupts("t")] == []
    assert not saver.summary(CONFIG).waiting
    assert app.get_state(CONFIG).interrupts == ()


@both
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_sleeps_follow_each_other(clock, how, durability):
    saver = MemorySaver()

    async def anap(state):
        sleep(60)
        wait_until(NOON + HOUR)
        return {"log": "awake"}

    node = nap(60, NOON + HOUR) if how == "sync" else anap
    app = make_chain(nap=node).compile(checkpoint_saver=saver, clock=clock, durability=durability)
    assert run(app, {}, how=how).due == NOON + MINUTE
    clock.advance(60)
    assert run(app, None, how=how).due == NOON + HOUR
    clock.advance(HOUR)
    assert run(app, None, how=how).state["log"] == ["awake"]


def test_a_time_that_has_passed_counts_as_a_call(saver, clock):
    def node(state):
        wait_until(NOON - HOUR)
        first = interrupt("first?")
        wait_until(NOON + HOUR)
        sleep(0)
        sleep(max(0, HOUR.total_seconds() - (clock() - NOON).total_seconds()))
        second = interrupt("second?")
        return {"log": [first, second]}

    app = make_chain(node=node).compile(checkpoint_saver=saver, clock=clock)
    assert app.invoke({}, CONFIG).interrupts[0].payload == "first?"

    app.invoke(None, CONFIG)  # asks again
    assert app.invoke_final(GraphResume(1), CONFIG).due == NOON + HOUR
    clock.advance(HOUR)
    assert app.invoke(None, CONFIG).interrupts[0].payload == "second?"
    assert app.invoke(GraphResume(2), CONFIG)["log"] == [1, 2]


@pytest.mark.parametrize(
    "stop",
    [
        lambda: sleep(-1),
        lambda: sleep(float("nan")),
        lambda: sleep(1e15),
        lambda: sleep(True),
        lambda: sleep("1"),
        lambda: wait_until(datetime(2031, 4, 1)),  # noqa: DTZ001
        lambda: interrupt("?", deadline=-1),
        lambda: interrupt("?", default="no"),
        lambda: interrupt("?", reminders=HOUR),
    ],
)
def test_times_that_are_refused(clock, stop):
    saver = MemorySaver()
    app = make_chain(node=lambda state: stop()).compile(checkpoint_saver=saver, clock=clock)
    with pytest.raises(
        NodeExecutionError, match=r"(not negative|time zone|year 9999|a deadline, too|list of times)[^;]*\n"
    ):
        app.invoke({}, CONFIG)
    assert status(saver) == "failed"


def sleep_elsewhere(state):
    wait_until(datetime(2001, 1, 1, tzinfo=UTC))
    sleep(3600)
    return {"log": "awake"}


def test_a_node_in_another_process(tmp_path, clock):
    with ProcessPoolExecutor(1) as pool, FileSystemSaver(tmp_path / "runs", fsync="never") as saver:
        app = StateGraph(LOG).add_node("nap", sleep_elsewhere, executor=pool)
        app = app.add_edge(START, "nap").add_edge("nap", END).compile(checkpoint_saver=saver, clock=clock)
        assert app.invoke_final({}, CONFIG).due == NOON + HOUR
        clock.advance(HOUR)
        assert app.invoke(None, CONFIG)["log"] == ["awake"]


# Hooks, retries, timeouts


def test_hooks_do_not_run_before_the_timer_is_due(saver, clock):
    calls = []
    graph = make_chain(nap=nap(60))
    graph.add_before_call_node_hook(lambda node_id, state, config: calls.append(node_id))
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, CONFIG)
    app.invoke(None, CONFIG)
    assert calls == ["nap"]


def test_retries_and_timeouts_know_what_has_passed(clock):
    attempts = []

    def node(state):
        wait_until(NOON - HOUR)
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError
        sleep(60)
        return {"log": interrupt("?")}

    app = make_chain(node=node).compile(checkpoint_saver=MemorySaver(), clock=clock, timeout=60, retry=RETRY)
    assert app.invoke_final({}, CONFIG).due == NOON + MINUTE
    clock.advance(60)
    app.invoke(None, CONFIG)
    assert app.invoke(GraphResume("yes"), CONFIG)["log"] == ["yes"]


# Branches, maps, nested graphs


def test_a_branch_sleeps_while_another_asks(saver, clock):
    graph = make_graph(LOG, "START>s s>nap,ask ask>c c>j nap>j j>END", nap=nap(60), ask=asking("?"))
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    stop = app.invoke_final({}, CONFIG)
    assert stop.payload == "?"
    assert [each.due for each in stop.interrupts] == [None, NOON + MINUTE]
    assert status(saver) == "interrupted"
    assert payloads_of(stop.state) == ["?"]
    # What was answered goes on, and does not wait for the timer.
    operations.answer(saver, "t", "yes")
    assert status(saver) == "answered"
    app.invoke(None, CONFIG)
    assert status(saver) == "sleeping"
    clock.advance(60)
    assert sorted(app.invoke(None, CONFIG)["log"]) == ["awake", "c", "j", "s", "yes"]


@pytest.mark.requirement("W7")
@both
def test_items_of_a_map_sleep(saver, clock, how):
    runs = []

    def work(item):
        runs.append(item)
        sleep(item * 60)
        return {"log": item}

    app = make_map(work, [0, 1, 2, 1]).compile(checkpoint_saver=saver, clock=clock)
    stop = run(app, {}, how=how)
    assert sorted((each.due - NOON).seconds for each in stop.interrupts) == [60, 60, 120]
    clock.advance(60)
    assert [each.due for each in run(app, None, how=how).interrupts] == [NOON + 2 * MINUTE]
    assert status(saver) == "sleeping"
    before = contents(saver)
    run(app, None, how=how)
    assert contents(saver) == before
    clock.advance(60)
    assert run(app, None, how=how).state["log"] == [0, 1, 2, 1]
    assert sorted(runs) == [0, 1, 1, 1, 1, 2, 2]


@pytest.mark.requirement("W7")
@both
@pytest.mark.parametrize("embedded", [False, True])
def test_a_nested_graph_sleeps(saver, clock, how, embedded):
    inner = make_chain(x=log_node("x"), nap=nap(60), y=log_node("y"))
    graph = make_chain(a=log_node("a"), sub=inner.compile() if embedded else inner, b=log_node("b"))
    app = graph.compile(checkpoint_saver=saver, clock=clock)

    stop = run(app, {}, how=how)

    assert (stop.due, stop.state.interrupts) == (NOON + MINUTE, ())

    assert_no_human_is_asked(saver, app)
    before = contents(saver)
    assert run(app, None, how=how).due == stop.due
    assert contents(saver) == before

    clock.advance(60)
    assert run(app, None, how=how).state["log"] == ["a", "x", "awake", "y", "b"]
    assert status(saver) == "finished"


# What else there is


def test_a_past_checkpoint_sleeps_no_second_time(saver, clock):
    def node(state):
        sleep(60)
        return {"log": interrupt("?")}

    app = make_chain(a=log_node("a"), node=node).compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, CONFIG)
    config = app.get_state(CONFIG).config
    clock.advance(60)
    app.invoke(None, CONFIG)
    app.invoke(GraphResume("no"), CONFIG)
    assert app.invoke(GraphResume("yes"), config)["log"] == ["a", "yes"]
    operations.rollback(saver, config)
    assert status(saver) == "interrupted"
    assert app.invoke(GraphResume("maybe"), CONFIG)["log"] == ["a", "maybe"]
    operations.fork(saver, config, "other")
    assert app.invoke(GraphResume("perhaps"), RunnableConfig("other"))["log"] == ["a", "perhaps"]


def test_an_update_and_a_fork_leave_a_run_asleep(saver, clock):
    app = make_chain(a=log_node("a"), nap=nap(60)).compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, CONFIG)
    app.update_state(CONFIG, {"log": "updated"})
    operations.fork(saver, CONFIG, "other")
    assert status(saver) == status(saver, "other") == "sleeping"
    assert app.invoke_final(None, CONFIG).due == NOON + MINUTE
    clock.advance(60)
    assert app.invoke(None, CONFIG)["log"] == ["a", "updated", "awake"]


@pytest.mark.parametrize("stop", [lambda: sleep(1), lambda: wait_until(NOON)])
def test_only_a_node_sleeps(stop):
    with pytest.raises(GraphRunnerError, match="inside a node"):
        stop()


# The clock of a run


def test_what_is_recorded_has_the_time_of_the_clock(clock):
    saver = MemorySaver()
    ask = fail_once(asking("?"))
    app = make_chain(ask=ask).compile(checkpoint_saver=saver, clock=clock)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    assert saver.get_writes(CONFIG.replace(checkpoint_id=saver.get(CONFIG).id))["failure"]["at"] == NOON
    (stop,) = app.invoke(None, CONFIG).interrupts
    app.invoke(GraphResume("yes"), CONFIG)
    app.update_state(CONFIG, {"log": "b"})
    assert {stop.created_at, *[checkpoint.created_at for checkpoint in saver.list(CONFIG)]} == {NOON}
    assert saver.list(CONFIG)[1].metadata["resumed_at"] == NOON.isoformat()


@pytest.mark.requirement("W16")
def test_what_a_run_calls_reads_its_clock(clock):
    times = []

    def edge(state, config):
        times.append(config.now())
        return "b"

    def node(state, config):
        clock.advance(1)
        times.append(config.now())
        wait_until(config.now() + WEEK)

    graph = make_graph({}, "START>a b>END", a=node, b=log_node("b")).add_conditional_edges("a", edge, ["b"])
    graph.add_before_call_node_hook("a", lambda node_id, state, config: times.append(config.now()))
    saver = MemorySaver()
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, CONFIG)
    clock.advance(WEEK)
    app.invoke(None, CONFIG)
    app.update_state(CONFIG, {})
    second = timedelta(seconds=1)
    later = NOON + WEEK + second
    assert times == [NOON, NOON + second, later, later + second, later + second]
    assert [checkpoint.created_at for checkpoint in saver.list(CONFIG)] == [later + second] * 3 + [NOON]


def test_a_run_without_a_clock_reads_that_of_the_system():
    before = datetime.now(UTC)
    app = make_chain(a=lambda state, config: {"log": config.now()}).compile()
    (time,) = app.invoke({}, CONFIG)["log"]
    assert before <= time <= datetime.now(UTC)
    with pytest.raises(GraphRunnerError, match="inside a running graph"):
        CONFIG.now()


@pytest.mark.parametrize("clock", [datetime.now, lambda: 1.5, NOON])
def test_a_clock_that_is_none(clock):
    with pytest.raises(TypeError, match="aware datetime"):
        make_chain(a=log_node("a")).compile(clock=clock)
