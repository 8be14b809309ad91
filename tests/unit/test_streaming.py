"""Nodes that hand out chunks while they run, and stream modes: what comes out when, and what is stored of it."""

import asyncio
import threading
from contextlib import closing

import pytest

from graphkit import (
    END,
    START,
    Channels,
    Command,
    GraphResume,
    InterruptionMetadata,
    MapProgress,
    NodeOutput,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    StateSnapshot,
    StreamingOutput,
    StreamMode,
    interrupt,
)
from graphkit.errors import GraphRunnerError, NodeExecutionError
from savers import MemorySaver
from tests.support.graphs import (
    CONFIG,
    LOG,
    close,
    close_at,
    connect,
    invoke,
    is_chunk,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    outputs as run,
    stored_nodes,
)
from tests.support.workers import status

pytestmark = pytest.mark.sweep(1, of="saver", in_turn=True)


def items(outputs):
    """Node ids, and chunks as they are."""
    return [output.chunk if isinstance(output, StreamingOutput) else output.node for output in outputs]


class Talker:
    """A generator as a node: chunks, and what happens before each."""

    def __init__(self, *chunks, update=None):
        self.chunks, self.update = chunks, {"log": "done"} if update is None else update
        self.began, self.closed = 0, 0
        self.at = {}

    def plain(self, state):
        self.began += 1
        try:
            for chunk in self.chunks:
                if chunk in self.at:
                    self.at[chunk]()
                yield chunk
            return self.update
        finally:
            self.closed += 1

    async def later(self, state):
        with closing(self.plain(state)) as chunks:
            for chunk in chunks:
                await asyncio.sleep(0)
                yield chunk
        yield Command(update=self.update)

    def node(self, kind):
        return self.later if kind == "async" else self.plain


kinds = pytest.mark.parametrize(("how", "kind"), [("sync", "plain"), ("async", "plain"), ("async", "async")])


@pytest.mark.requirement("behaviour 14")
@kinds
def test_chunks_come_as_they_are_made_and_the_update_is_merged_once(saver, how, kind):
    talker = Talker("x", "y")
    graph = make_chain(a=lambda state: {"log": "a"}, g=talker.node(kind), z=lambda state: {"log": "z"})
    outputs = run(graph.compile(checkpoint_saver=saver, max_iterations=3), {}, how=how)

    assert items(outputs) == [START, "a", "x", "y", "g", "z", END]

    for chunk in outputs[2:4]:
        assert (chunk.node, chunk.state["log"], chunk.is_subgraph) == ("g", ["a"], False)

    assert logged(outputs) == ["a", "done", "z"]
    assert stored_nodes(saver) == ["z", "g", "a", START]
    assert (talker.began, talker.closed) == (1, 1)


def test_nothing_runs_ahead_of_the_caller():
    talker = Talker("x", "y")
    talker.at = {"y": lambda: 1 / 0}
    stream = make_chain(g=lambda state: talker.plain(state)).compile().stream({})  # noqa: PLW0108 - it returns a generator
    assert next(stream).node == START
    assert talker.began == 0
    assert next(stream).chunk == "x"
    stream.close()


@pytest.mark.parametrize("chunk", [None, {"log": "no update"}, ["list"], NodeOutput("custom", {})])
def test_a_chunk_may_be_anything(chunk):
    def node(state):
        yield chunk

    outputs = list(make_chain(g=node).compile().stream({}))
    assert (outputs[1] if isinstance(chunk, NodeOutput) else outputs[1].chunk) is chunk
    assert logged(outputs) == []


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("late", [[], ["chunk"], [Command()]], ids=["the update", "chunk", "command"])
def test_nothing_may_come_after_it(saver, kind, late):
    talker = Talker(Command(update={"log": "lost?"}), *late)
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="Command last"):
        run(graph, {}, how="async" if kind == "async" else "sync")
    assert stored_nodes(saver) == [START]
    assert talker.closed == 1


@kinds
def test_closing_the_stream_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    graph = make_chain(a=lambda state: {"log": "a"}, g=talker.node(kind)).compile(checkpoint_saver=saver)

    async def aclose(stream):
        await stream.aclose()
        assert talker.closed == 1, "before the event loop ends, which closes all generators"

    close_at(graph, is_chunk, how=how, act=close if how == "sync" else aclose)
    assert (talker.began, talker.closed) == (1, 1)
    assert saver.get(CONFIG).node_id == "a"
    assert status(saver) == "stalled"
    assert items(run(graph, None, how=how)) == ["x", "y", "g", END]


@kinds
def test_a_failure_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    talker.at["y"] = lambda: 1 / 0
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError) as failed:
        run(graph, {}, how=how)
    assert failed.value.node_id == "g"
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert talker.closed == 1

    talker.at.clear()
    assert items(run(graph, None, how=how)) == ["x", "y", "g", END]


@kinds
def test_a_question_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    talker.at["y"] = lambda: interrupt("ok?")
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    assert items(run(graph, {}, how=how)) == [START, "x", "g"]
    assert items(run(graph, GraphResume("yes"), how=how)) == ["x", "y", "g", END]


def test_a_command_at_the_end_may_go_elsewhere():
    def node(state):
        yield Command("z", {"log": "g"})

    outputs = list(make_chain(g=node, h=Talker().plain, z=lambda state: {"log": "z"}).compile().stream({}))
    assert logged(outputs) == ["g", "z"]


def test_an_asynchronous_generator_in_a_synchronous_run(saver):
    graph = make_chain(a=lambda state: None, g=Talker("x").later).compile(checkpoint_saver=saver)

    with pytest.raises(GraphRunnerError, match=r"'g'.*astream"):
        graph.stream({}, CONFIG)

    hidden = make_chain(g=lambda state: Talker("x").later(state)).compile()
    with pytest.raises(GraphRunnerError, match="astream"):
        hidden.invoke({})
    inside = make_chain(s=make_chain(g=Talker("x").later).compile()).compile()
    with pytest.raises(GraphRunnerError, match="astream"):
        inside.stream({})


@kinds
def test_branches_and_subgraphs_stream(saver, how, kind):
    child = make_chain(g=Talker("u", "v").node(kind)).compile()
    graph = make_graph(LOG, "START>f,s f>END s>END", f=Talker("x", "y").node(kind), s=child)
    outputs = run(graph.compile(checkpoint_saver=saver), {}, how=how)
    assert logged(outputs) == ["done", "done"]
    assert [item for item in items(outputs) if item in {"u", "v", "g"}] == ["u", "v", "g"]
    chunks = [output for output in outputs if is_chunk(output)]
    assert [output.chunk for output in chunks if not output.is_subgraph] == ["x", "y"]
    assert [output.chunk for output in chunks if output.is_subgraph] == ["u", "v"]


# --- dispatch ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 5")
def test_what_is_dispatched_comes_before_the_nodes_own_output_and_stays_out_of_the_state(saver):
    output = NodeOutput("custom", {})

    def node(state, config):
        config.dispatch("one")
        config.customDispatcher()(output)
        return {"log": "a"}

    outputs = list(make_chain(a=node).compile(checkpoint_saver=saver).stream({}, CONFIG))
    assert items(outputs) == [START, "one", "custom", "a", END]
    assert outputs[2] is output
    assert dict(saver.get(CONFIG).state) == {"log": ["a"]}
    with pytest.raises(GraphRunnerError):
        CONFIG.customDispatcher()


# --- stream modes -----------------------------------------------------------------------------------------------------


def updates(graph, given, *, how="sync", mode="updates", config=CONFIG):
    return [(output.node, output.update) for output in run(graph, given, config.replace(stream_mode=mode), how=how)]


def node(word):
    return lambda state: {"log": word}


def test_updates_of_nodes_and_of_the_commands_of_edges(saver, go):
    graph = StateGraph(LOG).add_node("a", node("a")).add_node("b", lambda state: None)
    graph.add_conditional_edges(START, lambda state: Command("a", {"start": 1}))
    graph.add_conditional_edges("a", lambda state: Command("b", {"edge": 2})).add_edge("b", END)

    assert updates(graph.compile(checkpoint_saver=saver), {"log": "input"}, how=go.kind) == [
        (START, {START: {"start": 1}}),
        ("a", {"a": {"log": "a", "edge": 2}}),
        ("b", {}),
        (END, None),
    ]


def test_the_update_of_an_edge_that_a_resume_takes_is_shown_and_that_of_the_resume_is_not(saver):
    graph = make_graph(LOG, "START>a b>END", a=node("a"), b=node("b"))
    graph.add_conditional_edges("a", lambda state: Command("b", {"edge": 1}))
    compiled = graph.compile(checkpoint_saver=saver, interrupt_after=["a"], interrupt_before_edge=True)
    compiled.invoke({}, CONFIG)
    assert updates(compiled, GraphResume(update={"mine": 2}))[0] == ("b", {"a": {"edge": 1}, "b": {"log": "b"}})


def test_updates_of_forks_and_subgraphs(saver):
    child = make_chain(p=node("p"), q=lambda state: {"mine": 1}).compile()
    graph = make_graph(LOG, "START>b,c b>b2 b2>s c>s", b=node("b"), b2=node("b2"), c=node("c"), s=child)
    assert updates(graph.add_edge("s", END).compile(checkpoint_saver=saver), {}) == [
        (START, {}),
        ("__PARALLEL__(__START__)", {"b": {"log": "b"}, "b2": {"log": "b2"}, "c": {"log": "c"}}),
        (START, {}),
        ("p", {"p": {"log": "p"}}),
        ("q", {"q": {"mine": 1}}),
        (END, None),
        ("s", {"s": {"log": "p", "mine": 1}}),
        (END, None),
    ]


@kinds
def test_snapshots_with_all_of_it(saver, how, kind):
    child = make_chain(p=node("p")).compile()
    graph = make_chain(g=Talker("x").node(kind), s=child, z=lambda state: {"log": interrupt("?")})
    compiled = graph.compile(checkpoint_saver=saver)
    config = CONFIG.replace(stream_mode="snapshots")
    outputs = run(compiled, {}, config, how=how)
    snapshots = [output for output in outputs if isinstance(output, StateSnapshot)]

    assert nodes_of(snapshots) == [START, "g", START, "p", "s"]

    others = [(type(output), output.node) for output in outputs if output not in snapshots]

    assert others == [(StreamingOutput, "g"), (NodeOutput, END), (InterruptionMetadata, "z")]

    for snapshot in snapshots:
        assert compiled.get_state(snapshot.config).values == dict(snapshot.state) == snapshot.values
    snapshot, end = run(compiled, GraphResume("!"), config, how=how)

    assert (type(snapshot), type(end)) == (StateSnapshot, NodeOutput)


def test_without_a_saver_snapshots_are_plain_outputs_in_subgraphs_too():
    graph = make_chain(s=make_chain(p=node("p")).compile()).compile()
    assert {type(snapshot) for snapshot in graph.stream_snapshots({})} == {NodeOutput}


# --- several modes, and what arrives while nodes run ------------------------------------------------------------------

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


def test_several_modes_yield_pairs_in_order(go):
    def node(state, config):
        config.dispatch(1)
        yield 2
        return {"log": ["node"]}

    items = go(chain(node).compile(), {}, stream_mode=["values", "custom"])

    assert [(mode, item if mode == "custom" else item.node) for mode, item in items] == [
        ("values", START),
        ("custom", 1),
        ("custom", 2),
        ("values", "node"),
        ("values", END),
    ]


def test_each_mode_gets_what_it_shows_alone(go):
    app = chain(dispatching()).compile(checkpoint_saver=MemorySaver())

    items = go(app, {}, stream_mode=["updates", "snapshots"])

    (first, update), (second, snapshot) = [(mode, item) for mode, item in items if item.node == "node"]

    assert (first, second) == (StreamMode.UPDATES, StreamMode.SNAPSHOTS)
    assert update.update == {"node": {"log": ["node"]}}
    assert snapshot.checkpoint_id


def test_the_modes_of_the_config_count_and_the_argument_overrides_them(go):
    app = chain(dispatching(1)).compile()
    config = RunnableConfig(stream_mode=["custom", "custom"])

    assert go(app, {}, config) == [("custom", 1)]
    assert nodes_of(go(app, {}, config, stream_mode="values"))[-1] == END
    assert invoke(app, {}, config, how=go.kind) == {"log": ["node"]}, "which does not stream"


def test_an_interrupt_is_the_last_item(go):
    app = make_chain({}, ask=lambda state: interrupt("sure?")).compile(checkpoint_saver=MemorySaver())
    *_, (mode, stop) = go(app, {}, stream_mode=["custom", "values"])
    assert (mode, stop.payload) == ("values", "sure?")


def test_an_error_of_a_node_leaves_the_stream(go):
    with pytest.raises(NodeExecutionError, match="division"):
        go(make_chain(fail=lambda state: 1 / 0).compile(), {}, stream_mode="custom")


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
    assert run(app, {}, how=how, stream_mode="custom", on_output=lambda _: seen.set()) == ["here"]


def test_branches_items_and_nested_graphs_dispatch_too(go):
    def dispatch_item(item, config):
        config.dispatch(item)

    def dispatch_id(state, config):
        config.dispatch(config.node_id)

    inner = make_chain({}, nested=dispatch_id).compile()
    graph = make_graph({}, "START>left,right inner>END", left=dispatch_id, right=dispatch_id, inner=inner)
    connect(graph.add_map_node("map", dispatch_item, lambda state: ["x", "y"]), "left>map right>map map>inner")

    items = go(graph.compile(), {}, stream_mode="custom")

    items = [item for item in items if not isinstance(item, MapProgress)]
    assert sorted(items[:2]) == ["left", "right"]
    assert sorted(items[2:4]) == ["x", "y"]
    assert items[4:] == ["nested"]


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

    async def close_async_stream():
        stream = app.astream({}, RunnableConfig("async"), stream_mode=modes)
        items = [await anext(stream) for _ in range(count)]
        assert ("custom", 1) in items
        await asyncio.wait_for(stream.aclose(), WAIT)

    asyncio.run(close_async_stream())
    assert app.get_state(RunnableConfig("async")).next == "second"


async def test_a_cancelled_task_cancels_its_run():
    started, ended = asyncio.Event(), asyncio.Event()

    async def node(state):
        try:
            started.set()
            await asyncio.sleep(WAIT)
        finally:
            ended.set()

    task = asyncio.ensure_future(anext(chain(node).compile().astream({}, stream_mode="custom")))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


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
