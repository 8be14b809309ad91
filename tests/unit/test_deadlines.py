"""Deadlines of questions: the default or an error answers them, and exactly one of a late human and the deadline wins."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import GraphResume, RunnableConfig, interrupt, operations
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointSerializationError,
    GraphRunnerError,
    InterruptExpiredError,
    ThreadBusyError,
)
from graphkit.testing import ManualClock
from tests.support.graphs import CONFIG, LOG, log_node, make_chain, make_graph
from tests.support.savers import contents, saver_fixture
from tests.support.sweeps import ALL
from tests.support.times import HOUR, MOMENT, NOON
from tests.support.workers import status

saver = saver_fixture(lock_timeout=0)


def asks(**terms):
    return lambda state: {"log": [interrupt("pay?", **terms)]}


def begin(graph, saver, clock, config=CONFIG, **options):
    """Run a graph until it asks."""
    app = graph.compile(checkpoint_saver=saver, clock=clock, **options)
    app.invoke({}, config)
    return app


def ask(saver, clock, *, config=CONFIG, **terms):
    """Run a graph that asks until its deadline in an hour."""
    return begin(make_chain(ask=asks(deadline=HOUR, **terms)), saver, clock, config)


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("deadline", [3600, HOUR, NOON + HOUR])
def test_the_default_answers_when_the_deadline_has_passed(saver, clock, deadline):
    app = begin(make_chain(ask=asks(deadline=deadline, default=None), b=log_node("b")), saver, clock)
    (pending,) = saver.interrupts("t")
    assert pending.created_at == NOON
    assert pending.deadline == NOON + HOUR

    clock.advance(HOUR - MOMENT)
    (again,) = app.invoke(None, CONFIG).interrupts
    assert again.deadline == NOON + HOUR  # asks again, with the deadline that it had

    clock.advance(MOMENT)
    assert status(saver) == "interrupted"
    assert app.invoke(None, CONFIG)["log"] == [None, "b"]


def test_an_answer_in_time_counts_whenever_the_run_goes_on(saver, clock):
    app = ask(saver, clock, default="no")
    operations.answer(saver, "t", "yes", clock=clock)
    clock.advance(HOUR * 2)
    assert app.invoke(None, CONFIG)["log"] == ["yes"]


WAYS_TO_ANSWER = {
    "answer": lambda app, saver, clock, stop: operations.answer(saver, "t", "yes", clock=clock),
    "aanswer": lambda app, saver, clock, stop: asyncio.run(operations.aanswer(saver, "t", "yes", clock=clock)),
    "resume": lambda app, saver, clock, stop: app.invoke(GraphResume("yes"), CONFIG),
    "resume by id": lambda app, saver, clock, stop: app.invoke(GraphResume({stop.id: "yes"}), CONFIG),
}


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("by", WAYS_TO_ANSWER)
def test_a_late_answer_is_refused(saver, clock, by):
    app = ask(saver, clock, default="no")
    (stop,) = saver.interrupts("t")
    clock.advance(HOUR)
    before = contents(saver)
    with pytest.raises((CheckpointConflictError, GraphRunnerError), match="too late: the deadline of interrupt"):
        WAYS_TO_ANSWER[by](app, saver, clock, stop)
    assert contents(saver) == before
    final = app.invoke(None, CONFIG)
    assert final["log"] == ["no"]
    with pytest.raises(CheckpointConflictError, match="no interrupt is pending"):
        operations.answer(saver, "t", "yes", clock=clock)


@pytest.mark.requirement("W8")
def test_a_run_without_a_default_fails(saver, clock):
    app = ask(saver, clock)
    config = app.get_state(CONFIG).config
    clock.advance(HOUR)
    for _ in range(2):
        with pytest.raises(InterruptExpiredError, match="no answer came") as caught:
            app.invoke(None, CONFIG)
        assert (caught.value.node_id, caught.value.deadline, caught.value.thread_id) == ("ask", NOON + HOUR, "t")
        assert status(saver) == "failed"
        assert saver.summary(CONFIG).failure["type"] == "InterruptExpiredError"
    # Asks again, for an hour from then on.
    operations.rollback(saver, config, created_at=clock())

    assert status(saver) == "interrupted"
    assert saver.interrupts("t")[0].deadline is None
    app.invoke(None, CONFIG)

    assert saver.interrupts("t")[0].deadline == NOON + HOUR * 2
    operations.answer(saver, "t", "yes", clock=clock)
    assert app.invoke(None, CONFIG)["log"] == ["yes"]


def test_a_node_may_catch_the_error(saver, clock):
    def ask(state):
        try:
            first = interrupt("first?", deadline=HOUR)
        except InterruptExpiredError:
            first = "nobody"
        return {"log": [first, interrupt("second?")]}

    app = begin(make_chain(ask=ask), saver, clock)
    clock.advance(HOUR)
    assert app.invoke(None, CONFIG).interrupts[0].payload == "second?"
    assert app.invoke(GraphResume("two"), CONFIG)["log"] == ["nobody", "two"]


def find_resumed(saver, stop):
    """Return what the pending writes of a checkpoint say of its answered interrupts."""
    writes = saver.get_writes(stop)
    return [value for key, value in writes.items() if key.startswith("resumed:")]


def test_the_record_names_who_answered(saver, clock):
    events = []
    question = asks(deadline=HOUR, default="no")
    app = begin(make_chain(ask=question, again=question), saver, clock, observers=events.append)
    first = app.get_state(CONFIG).config
    app.invoke(GraphResume("yes"), CONFIG)
    second = app.get_state(CONFIG).config
    clock.advance(HOUR)
    app.invoke(None, CONFIG)

    answered = [event for event in events if event.type == "interrupt.answered"]

    assert [event.data["by"] for event in answered] == ["human", "deadline"]
    assert find_resumed(saver, first) == [True]
    assert find_resumed(saver, second) == [{"by": "deadline", "expired": False}]


@pytest.mark.parametrize("embedded", [False, True])
def test_a_deadline_in_a_nested_graph(saver, clock, embedded):
    inner = make_chain(ask=asks(deadline=HOUR, default="no"))
    app = begin(make_chain(sub=inner.compile() if embedded else inner), saver, clock)
    (pending,) = saver.interrupts("t")
    assert pending.deadline == NOON + HOUR

    clock.advance(HOUR)
    before = contents(saver)
    for answer in (WAYS_TO_ANSWER["resume"], WAYS_TO_ANSWER["answer"]):
        with pytest.raises((CheckpointConflictError, GraphRunnerError), match="too late"):
            answer(app, saver, clock, None)

    assert contents(saver) == before
    assert app.invoke(None, CONFIG)["log"] == ["no"]


def test_several_questions_with_deadlines(saver, clock):
    nodes = {"a": asks(deadline=HOUR, default="a"), "b": asks(deadline=2 * HOUR, default="b"), "c": asks()}
    graph = make_graph(LOG, "START>a,b,c a>j b>j c>j j>END", **nodes)
    app = begin(graph, saver, clock)

    clock.advance(HOUR)
    left = {stop.deadline: stop.id for stop in app.invoke(None, CONFIG).interrupts}

    assert left.keys() == {NOON + 2 * HOUR, None}

    app.invoke(GraphResume({left[None]: "c"}), CONFIG)
    clock.advance(HOUR)

    assert app.invoke(None, CONFIG)["log"] == ["a", "b", "c", "j"]


def test_a_past_checkpoint_asks_again_without_the_deadline_that_has_passed(saver, clock):
    app = ask(saver, clock, default="no")
    past = app.get_state(CONFIG).config
    operations.fork(saver, past, "early", created_at=clock())
    assert saver.interrupts("early")[0].deadline == NOON + HOUR
    clock.advance(HOUR)
    app.invoke(None, CONFIG)
    final = app.invoke(GraphResume("yes"), past)
    assert final["log"] == ["yes"]

    other = operations.fork(saver, past, "other", created_at=clock()).config
    operations.answer(saver, other, "maybe", clock=clock)
    final = app.invoke(None, RunnableConfig("other"))

    assert final["log"] == ["maybe"]


@pytest.mark.parametrize(
    "record", [{"deadline": "noon"}, {"deadline": NOON.replace(tzinfo=None)}, {"call": -1}, {"call": "x"}]
)
def test_records_that_no_reader_could_use(saver, record):
    make_chain(a=log_node("a")).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    config = CONFIG.with_check_point_id(saver.get(CONFIG).id)
    shape = {"node_id": "a", "when": "inside", "payload": None, "created_at": NOON}
    for key, value in [("interrupt:i", {**shape, **record}), ("timer:i", shape), ("timer:i", {**shape, "due": 1})]:
        with pytest.raises(CheckpointSerializationError):
            saver.put_writes(config, {key: value})


@pytest.mark.requirement("W9")
@pytest.mark.sweep(ALL)
@pytest.mark.parametrize(("terms", "without_answer"), [({"default": "deadline"}, ["deadline"]), ({}, [])])
def test_exactly_one_of_a_late_human_and_the_deadline_wins(saver, sweep, terms, without_answer):
    """Around the deadline a human answers, while two resumes run as workers would."""
    barrier = threading.Barrier(4)

    def answer(config, clock):
        barrier.wait()
        with contextlib.suppress(CheckpointConflictError, ThreadBusyError):
            return operations.answer(saver, config, "human", clock=clock)

    def resume(app, config):
        barrier.wait()
        with contextlib.suppress(InterruptExpiredError, ThreadBusyError):
            app.invoke(None, config)

    with ThreadPoolExecutor(3) as pool:
        for number in range(sweep.count(500, 10)):
            config, clock = RunnableConfig(f"t{number}"), ManualClock(NOON)
            app = ask(saver, clock, config=config, **terms)
            clock.advance(HOUR - MOMENT)
            accepted = pool.submit(answer, config, clock)
            resumed = [pool.submit(resume, app, config) for _ in range(2)]
            barrier.wait()
            clock.advance(MOMENT)
            for each in resumed:
                each.result(60)
            expected = without_answer if accepted.result(60) is None else ["human"]
            with contextlib.suppress(InterruptExpiredError):
                app.invoke(None, config)
            assert app.get_state(config).state["log"] == expected
            assert expected or saver.history(config)[0].status == "failed"
