"""Timers and deadlines on both databases, by workers that share one."""

from collections import Counter

import pytest

from graphkit import RunnableConfig, interrupt, operations, sleep
from graphkit.errors import CheckpointConflictError
from graphkit.testing import ManualClock
from graphkit.worker import Worker
from tests.support.graphs import LOG, make_chain
from tests.support.times import HOUR, NOON, WEEK
from tests.support.workers import serving, status, wait_for


@pytest.fixture
def clock():
    return ManualClock(NOON)


def test_a_run_sleeps_and_asks_for_weeks(open_saver, clock):
    def node(state):
        sleep(WEEK)
        return {"log": interrupt("?", deadline=HOUR, default="no")}

    saver = open_saver()
    app = make_chain(node=node).compile(checkpoint_saver=saver, clock=clock)
    for thread in ("one", "two"):
        app.submit({}, RunnableConfig(thread))
    assert Worker(open_saver(), app).run(once=True) == 2
    assert {status(saver, "one"), status(saver, "two")} == {"sleeping"}
    assert saver.interrupts() == []
    clock.advance(WEEK)
    assert Worker(open_saver(), app).run(once=True) == 2
    assert {status(saver, "one"), status(saver, "two")} == {"interrupted"}
    assert len(saver.interrupts()) == 2
    operations.answer(saver, "one", "yes", clock=clock)
    clock.advance(HOUR)
    with pytest.raises(CheckpointConflictError, match="too late"):
        operations.answer(saver, "two", "yes", clock=clock)
    assert Worker(open_saver(), app).run(once=True) == 2
    for thread, answer in (("one", "yes"), ("two", "no")):
        latest = saver.get(RunnableConfig(thread))
        assert list(latest.state["log"]) == [answer]


def test_one_of_two_workers_takes_a_thread_that_is_due(open_saver, sweep):
    work = []

    def node(state, config):
        sleep(0.2)
        work.append(config.thread)
        return {"log": "awake"}

    saver = open_saver()
    app = make_chain(LOG, nap=node).compile(checkpoint_saver=saver)
    threads = [f"t{number}" for number in range(sweep.count(500, 20))]
    with serving(*(Worker(open_saver(), app, interval=0.02, concurrency=2) for _ in range(2))):
        for thread_id in threads:
            app.invoke({}, RunnableConfig(thread_id))
        for thread_id in threads:
            wait_for(saver, "finished", thread_id)
    assert Counter(work) == dict.fromkeys(threads, 1)
