"""Streams of several modes, and what nodes dispatch while they run."""

import asyncio
import threading

import pytest

from graphkit import (
    END,
    START,
    Channels,
    MapProgress,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    StreamMode,
    interrupt,
)
from graphkit.errors import NodeExecutionError
from savers import MemorySaver
from tests.support.graphs import both, connect, make_chain, make_graph, nodes_of, outputs

WAIT = 20
"""Seconds that a test waits for another thread before it fails."""


def chain(*nodes):
    graph = StateGraph({"log": Channels.appender(list)}).add_sequence(nodes)
    return graph.set_entry_point(nodes[0].__name__).set_finish_point(nodes[-1].__name__)


def dispatching(*values):
    def node(state, config):
        for value in values:
            config.dispatch(value)
        return {"log": ["node"]}

    return node


@both
def test_several_modes_yield_pairs_in_order(how):
    app = chain(dispatching(1, 2)).compile()

    items = outputs(app, {}, stream_mode=["values", "custom"], how=how)

    assert [(mode, item if mode == "custom" else item.node) for mode, item in items] == [
        ("values", START),
        ("custom", 1),
        ("custom", 2),
        ("values", "node"),
        ("values", END),
    ]


@both
def test_each_mode_gets_what_it_shows_alone(how):
    app = chain(dispatching()).compile(checkpoint_saver=MemorySaver())

    items = outputs(app, {}, stream_mode=["updates", "snapshots"], how=how)

    step = [item for mode, item in items if item.node == "node"]

    assert [mode for mode, item in items if item.node == "node"] == [StreamMode.UPDATES, StreamMode.SNAPSHOTS]
    assert step[0].update == {"node": {"log": ["node"]}}
    assert step[1].checkpoint_id


@both
def test_the_modes_of_the_config_count_and_the_argument_overrides_them(how):
    app = chain(dispatching(1)).compile()
    config = RunnableConfig(stream_mode=["custom", "custom"])

    assert outputs(app, {}, config, how=how) == [("custom", 1)]
    assert nodes_of(outputs(app, {}, config, stream_mode="values", how=how))[-1] == END


@both
def test_chunks_of_generators_are_custom_items(how):
    def talk(state):
        yield "a"
        yield "b"
        return {"log": ["ab"]}

    items = outputs(chain(talk).compile(), {}, stream_mode=["custom", "values"], how=how)

    assert [item for mode, item in items if mode == "custom"] == ["a", "b"]
    assert [item.node for mode, item in items if mode == "values"] == [START, "talk", END]


@both
def test_an_interrupt_is_the_last_item(how):
    app = make_chain({}, ask=lambda state: interrupt("sure?")).compile(checkpoint_saver=MemorySaver())
    *_, (mode, stop) = outputs(app, {}, stream_mode=["custom", "values"], how=how)
    assert (mode, stop.payload) == ("values", "sure?")


@both
def test_an_error_of_a_node_leaves_the_stream(how):
    def fail(state):
        raise OSError("no network")

    with pytest.raises(NodeExecutionError, match="no network"):
        outputs(chain(fail).compile(), {}, stream_mode="custom", how=how)


@pytest.mark.parametrize(("how", "is_async"), [("sync", False), ("async", False), ("async", True)])
def test_a_value_arrives_while_its_node_runs(how, is_async):
    seen = threading.Event()

    def node(state, config):
        config.dispatch("here")
        assert seen.wait(WAIT), "the caller has not received the value while the node runs"

    async def later(state, config):
        config.dispatch("here")
        assert await asyncio.to_thread(seen.wait, WAIT)

    app = chain(later if is_async else node).compile()
    assert outputs(app, {}, how=how, stream_mode="custom", on_output=lambda _: seen.set()) == ["here"]


@both
def test_branches_items_and_nested_graphs_dispatch_too(how):
    def dispatch_item(item, config):
        config.dispatch(item)

    def dispatch_id(state, config):
        config.dispatch(config.node_id)

    inner = make_chain({}, nested=dispatch_id).compile()
    graph = make_graph({}, "START>left,right inner>END", left=dispatch_id, right=dispatch_id, inner=inner)
    connect(graph.add_map_node("map", dispatch_item, lambda state: ["x", "y"]), "left>map right>map map>inner")

    items = outputs(graph.compile(), {}, stream_mode="custom", how=how)

    items = [item for item in items if not isinstance(item, MapProgress)]
    assert sorted(items[:2]) == ["left", "right"]
    assert sorted(items[2:4]) == ["x", "y"]
    assert items[4:] == ["nested"]


def test_invoke_ignores_the_stream_modes_of_the_config():
    app = chain(dispatching(1)).compile()

    assert app.invoke({}, RunnableConfig(stream_mode=["custom", "values"])) == {"log": ["node"]}


@pytest.mark.parametrize(("modes", "count"), [(["custom"], 1), (["custom", "values"], 3)])
def test_a_closed_stream_stops_at_the_node_boundary(modes, count):
    def second(state):
        raise AssertionError("the stream is closed")

    saver = MemorySaver()
    app = chain(dispatching(1), second).compile(checkpoint_saver=saver)
    stream = app.stream({}, RunnableConfig("t"), stream_mode=modes)
    items = [next(stream) for _ in range(count)]
    assert ("custom", 1) in items
    stream.close()

    assert app.get_state(RunnableConfig("t")).next == "second"
    assert not any(thread.name == "graphkit stream" for thread in threading.enumerate())


def test_a_cancelled_task_cancels_its_run():
    async def main():
        started = asyncio.Event()
        ended = []

        async def node(state, config):
            try:
                started.set()
                await asyncio.sleep(WAIT)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def consume():
            async for _ in chain(node).compile().astream({}, stream_mode="custom"):
                pass

        task = asyncio.ensure_future(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]

    asyncio.run(main())


def test_an_attempt_that_is_too_late_dispatches_nothing_to_a_stream_that_goes_on():
    is_repeated = threading.Event()
    has_dispatched = threading.Event()

    def node(state, config):
        if config.attempt == 1:
            is_repeated.wait(WAIT)
            config.dispatch("late")
            has_dispatched.set()
        else:
            is_repeated.set()
            assert has_dispatched.wait(WAIT)
            config.dispatch("in time")

    retry = RetryPolicy(max_attempts=2, initial_delay=0)
    app = chain(node).compile(timeout=0.5, retry=retry)
    assert list(app.stream({}, stream_mode="custom")) == ["in time"]


@pytest.mark.parametrize("mode", ["messages", ["values", "nothing"], [], 5])
def test_an_unknown_mode_is_refused_before_the_run(mode):
    ran = []

    def node(state):
        ran.append(1)

    with pytest.raises((ValueError, TypeError)):
        chain(node).compile().stream({}, stream_mode=mode)
    assert ran == []
