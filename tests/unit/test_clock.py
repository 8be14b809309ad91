"""Where a run has its times and ids from: a clock that the driver passes in."""

from datetime import UTC, datetime, timedelta

import pytest

from graphkit import GraphResume, interrupt, wait_until
from graphkit.errors import GraphRunnerError, NodeExecutionError
from graphkit.testing import ManualClock
from savers import MemorySaver
from tests.support.graphs import CONFIG, fail_once, log_node, make_chain, make_graph
from tests.support.times import NOON


def test_what_is_recorded_has_the_time_of_the_clock():
    saver = MemorySaver()
    options = {"checkpoint_saver": saver, "clock": ManualClock(NOON)}
    ask = fail_once(lambda state: {"log": interrupt("?")})
    app = make_chain(ask=ask).compile(**options)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    assert saver.get_writes(CONFIG.replace(checkpoint_id=saver.get(CONFIG).id))["failure"]["at"] == NOON
    (stop,) = app.invoke(None, CONFIG).interrupts
    app.invoke(GraphResume("yes"), CONFIG)
    app.update_state(CONFIG, {"log": "b"})
    assert {stop.created_at, *[checkpoint.created_at for checkpoint in saver.list(CONFIG)]} == {NOON}
    assert saver.list(CONFIG)[1].metadata["resumed_at"] == NOON.isoformat()


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
