"""Where a run has its times and ids from: a clock that the driver passes in."""

from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace

import pytest

from graphkit import interrupt, wait_until
from graphkit.errors import GraphRunnerError, NodeExecutionError
from graphkit.testing import ManualClock
from savers import MemorySaver
from tests.support.graphs import CONFIG, log_node, make_chain, make_graph
from tests.support.times import NOON


@pytest.fixture
def ids(monkeypatch):
    """Let it always be noon; return the ids that were made, in order."""
    made = []
    numbers = count()

    def new_id(milliseconds):
        assert milliseconds == int(NOON.timestamp() * 1000)
        made.append(f"id {next(numbers)}")
        return made[-1]

    nanoseconds = int(NOON.timestamp()) * 1_000_000_000
    clock = SimpleNamespace(now=lambda: nanoseconds, measure=lambda: 0.0, new_id=new_id)
    monkeypatch.setattr("graphkit._engine.driver.CLOCK", clock)
    return made


def test_checkpoints_and_interrupts(ids):
    saver = MemorySaver()
    graph = make_chain(a=log_node("a"), ask=lambda state: {"log": interrupt("?")})
    compiled = graph.compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    (stop,) = saver.interrupts("t")
    compiled.update_state(CONFIG, {"log": "b"})

    history = saver.list(CONFIG)
    for made in (stop, *history):
        assert made.id in ids
        assert made.created_at == NOON
    assert history[-1].metadata["run_id"] in ids


def test_failures_and_resumes(ids):
    def fail(state):
        raise KeyError(state)

    saver = MemorySaver()
    compiled = make_chain(a=fail).compile(checkpoint_saver=saver)
    for again in ({}, None):
        with pytest.raises(NodeExecutionError):
            compiled.invoke(again, CONFIG)
    config = CONFIG.replace(checkpoint_id=saver.get(CONFIG).id)
    assert saver.get_writes(config)["failure"]["at"] == NOON
    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    compiled.invoke(None, CONFIG)
    assert saver.get(CONFIG).metadata["resumed_at"] == NOON.isoformat()


@pytest.mark.requirement("W16")
def test_what_a_run_calls_reads_its_clock():
    clock, times = ManualClock(NOON), []

    def edge(state, config):
        times.append(config.now())
        return "b"

    def node(state, config):
        clock.advance(1)
        times.append(config.now())
        wait_until(config.now() + timedelta(weeks=1))

    graph = make_graph({}, "START>a b>END", a=node, b=log_node("b")).add_conditional_edges("a", edge, ["b"])
    graph.add_before_call_node_hook("a", lambda node_id, state, config: times.append(config.now()))
    saver = MemorySaver()
    app = graph.compile(checkpoint_saver=saver, clock=clock)
    app.invoke({}, CONFIG)
    clock.advance(timedelta(weeks=1))
    app.invoke(None, CONFIG)
    app.update_state(CONFIG, {})
    second = timedelta(seconds=1)
    later = NOON + timedelta(weeks=1) + second
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
