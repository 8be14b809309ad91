"""The async twins: the same runs, with awaits; cancelled and closed at a boundary."""

import asyncio
import functools
import threading

import pytest

from graphkit import (
    END,
    START,
    Command,
    GraphResume,
    InterruptableAction,
    InterruptionMetadata,
    StateSnapshot,
    interrupt,
)
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError, NodeExecutionError, ThreadBusyError
from graphkit.testing.fakes import ScriptedSaver
from savers import MemorySaver, SaverWrapper
from tests.support.graphs import (
    CONFIG,
    LOG,
    FlakyNode,
    both,
    invoke,
    logged,
    make_chain,
    make_graph,
    make_map,
    nodes_of,
    outputs,
    payloads_of,
    stored,
)

pytestmark = pytest.mark.sweep(1, of="saver", in_turn=True)


def log_node(word):
    async def node(state):
        await asyncio.sleep(0)
        return {"log": word}

    return node


def call(function, state):
    return function(state)


def test_asynchronous_and_synchronous_nodes_in_one_run(saver):
    threads = []

    def sync(state, config):
        threads.append(threading.current_thread())
        return {"log": config.thread_id}

    class Callable:
        async def __call__(self, state, config):
            return Command(update={"log": "object"})

    compiled = make_chain(a=log_node("a"), b=sync, c=Callable(), d=functools.partial(call, log_node("b"))).compile(
        checkpoint_saver=saver
    )
    found = outputs(compiled, {"log": "i"}, how="async")
    assert nodes_of(found) == [START, "a", "b", "c", "d", END]
    assert logged(found) == ["i", "a", "t", "object", "b"]
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("where", ["node", "edge", "object"])
def test_a_synchronous_run_of_an_asynchronous_graph_is_refused_before_anything(saver, where):
    class Later:
        async def __call__(self, state):
            return END

    async def edge(state):
        return END

    node = {"node": edge, "object": Later(), "edge": lambda s: None}[where]
    graph = make_graph({}, "START>a", a=node).add_conditional_edges("a", edge if where == "edge" else lambda s: END)
    compiled = graph.compile(checkpoint_saver=saver)
    for run in (compiled.invoke, compiled.invoke_final, compiled.stream, compiled.stream_snapshots):
        with pytest.raises(GraphRunnerError, match=r"'a'.*astream"):
            run({}, CONFIG)
    assert saver.get(CONFIG) is None


class Future:
    def __await__(self):
        yield


@pytest.mark.parametrize("give", [functools.partial(call, log_node("a")), lambda s: Future()])
def test_an_awaitable_of_a_plain_function_is_refused_too(give):
    edge = make_graph({}, "START>a").add_conditional_edges("a", give)
    for graph in (make_chain(a=give), edge):
        with pytest.raises(GraphRunnerError, match="astream"):
            graph.compile().invoke({})


async def test_the_twins_look_and_correct(saver):
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, interrupt_before=["b"])
    assert await compiled.astate_of(CONFIG) is None
    assert await compiled.alast_state_of(CONFIG) is None
    assert await compiled.aget_state_history(CONFIG) == []

    with pytest.raises(CheckpointNotFoundError):
        await compiled.aget_state(CONFIG)
    stop = await compiled.ainvoke_final({}, CONFIG)
    assert isinstance(stop, InterruptionMetadata)
    assert (await compiled.aget_state(CONFIG)).next == "b"

    config = await compiled.aupdate_state(CONFIG, {"log": "u"})
    assert (await compiled.astate_of(config)).state["log"] == ["a", "u"]
    assert len(await compiled.aget_state_history(CONFIG)) == 3

    first = (await compiled.aget_state_history(CONFIG))[-1].config
    assert (await compiled.alast_state_of(first)).checkpoint_id == config.checkpoint_id

    node, end = [each async for each in compiled.astream_snapshots(GraphResume({"log": "ok"}), CONFIG)]
    assert isinstance(node, StateSnapshot)
    assert end.is_end
    await compiled.aupdate_state(CONFIG, {}, "a")
    assert (await compiled.aresume("t"))["log"] == ["a", "u", "ok", "b", "b"]


def test_an_action_may_ask_asynchronously(saver):
    class Gate(InterruptableAction):
        async def interrupt(self, node_id, state, config):
            return None if "go" in state else {"reason": "wait"}

        async def __call__(self, state, config):
            return {"log": "gate"}

    compiled = make_chain(gate=Gate()).compile(checkpoint_saver=saver)
    with pytest.raises(GraphRunnerError, match="astream"):
        compiled.invoke({}, CONFIG)
    assert outputs(compiled, {}, how="async")[-1].metadata == {"reason": "wait"}
    assert invoke(compiled, GraphResume({"go": 1}), how="async")["log"] == ["gate"]


@both
def test_a_node_that_stops_an_iteration_fails(how):
    with pytest.raises(NodeExecutionError, match="StopIteration"):
        invoke(make_chain(a=lambda state: next(iter(()))).compile(), {}, how=how)


# --- cancelling -------------------------------------------------------------------------------------------------------


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelling_an_asynchronous_node_stops_before_it(saver):
    started = asyncio.Event()

    async def waits(state):
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return {"log": "b"}

    compiled = make_chain(a=log_node("a"), b=waits).compile(checkpoint_saver=saver, checkpoint_interval=10)
    task = asyncio.create_task(compiled.ainvoke({}, CONFIG))
    await started.wait()
    await cancelled(task)
    assert stored(saver) == [(START, "a"), ("a", "b")]
    assert (await compiled.ainvoke(None, CONFIG))["log"] == ["a", "b"]


async def test_cancelling_a_node_in_a_thread_waits_for_it_and_stores_its_step():
    saver = MemorySaver(lock_timeout=0)
    started, go_on = threading.Event(), threading.Event()
    b = FlakyNode("b", begun=started, after=go_on)
    graph = make_chain(a=log_node("a"), b=b, c=log_node("c"))

    compiled = graph.compile(checkpoint_saver=saver, checkpoint_interval=10)
    task = asyncio.create_task(compiled.ainvoke({}, CONFIG))
    await asyncio.to_thread(started.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    with pytest.raises(ThreadBusyError):  # the lock is held as long as the node runs
        saver.run_lock(CONFIG).__enter__()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stored(saver) == [(START, "a"), ("b", "c")]

    assert (await compiled.ainvoke(None, CONFIG))["log"] == ["a", "b", "c"]
    assert b.runs == ["b"]


class Slow(MemorySaver):
    """Its puts are stored, and then wait in the event loop until they may go on."""

    def __init__(self):
        super().__init__(lock_timeout=0)
        self.started, self.go_on = asyncio.Event(), asyncio.Event()

    async def aput(self, config, checkpoint):
        saved = self.put(config, checkpoint)
        if checkpoint.node_id == "a":
            self.started.set()
            await self.go_on.wait()
        return saved


async def test_cancelling_a_put_waits_for_it_and_stores_once():
    saver = Slow()
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver)
    task = asyncio.create_task(compiled.ainvoke({}, CONFIG))
    await saver.started.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    saver.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stored(saver) == [(START, "a"), ("a", "b")]
    with saver.run_lock(CONFIG):
        pass


async def test_cancelling_while_a_branch_is_stored_cancels_one_that_runs_and_begins_no_other():
    ended = []
    d = FlakyNode("d")

    async def c(state):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("c")

    loop = asyncio.get_running_loop()
    is_cancelled = threading.Event()

    def cancel():
        loop.call_soon_threadsafe(task.cancel)
        loop.call_soon_threadsafe(is_cancelled.set)
        assert is_cancelled.wait(60)

    saver = ScriptedSaver(MemorySaver()).on("put_writes", cancel)
    graph = make_graph(LOG, "START>b,c,d b>j c>j d>j j>END", b=log_node("b"), c=c, d=d)
    compiled = graph.compile(checkpoint_saver=saver)
    task = asyncio.ensure_future(compiled.ainvoke({}, CONFIG.replace(max_concurrency=2)))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 30)
    assert (ended, d.runs) == (["c"], [])


async def test_cancelling_while_the_lock_is_awaited_leaves_it_free():
    saver = MemorySaver(lock_timeout=60)

    compiled = make_chain(a=log_node("a")).compile(checkpoint_saver=saver)
    with saver.run_lock(CONFIG):
        task = asyncio.create_task(compiled.ainvoke({}, CONFIG))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stored(saver) == []
    with saver.run_lock(CONFIG, 0):
        pass


async def await_a_cancelled_task(*_):
    task = asyncio.ensure_future(asyncio.sleep(0))
    task.cancel()
    await task


async def yield_and_await_a_cancelled_task(state):
    yield "a"
    await await_a_cancelled_task()


def run_what_was_cancelled(*_):
    raise asyncio.CancelledError


def make_graphs(function):
    edge = make_graph(LOG, "START>a").add_conditional_edges("a", function, [END])
    return make_chain(a=function), make_map(function, [1, 2]), edge


AWAITING = [*make_graphs(await_a_cancelled_task), make_chain(a=yield_and_await_a_cancelled_task)]
RUNNING = make_graphs(run_what_was_cancelled)


@pytest.mark.parametrize(
    ("how", "graph"), [*(("async", graph) for graph in (*AWAITING, *RUNNING)), *(("sync", graph) for graph in RUNNING)]
)
def test_what_awaits_a_cancelled_task_fails_and_cancels_no_run(saver, how, graph):
    with pytest.raises(GraphRunnerError, match="awaited a task that was cancelled"):
        invoke(graph.compile(checkpoint_saver=saver), {}, how=how)
    assert saver.history(CONFIG)[0].status == "failed"


class NotOnTheLoop(SaverWrapper):
    """A saver that refuses to be read by the thread of an event loop."""

    def get(self, config=None):
        self._check()
        return super().get(config)

    def get_writes(self, config):
        self._check()
        return super().get_writes(config)

    def _check(self):
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()


async def test_an_async_snapshot_reads_nothing_on_the_event_loop():
    inner = make_chain(LOG, ask=lambda _: {"log": interrupt("sure?")})
    app = make_chain(LOG, inner=inner.compile()).compile(checkpoint_saver=NotOnTheLoop(MemorySaver()))

    await app.ainvoke({}, CONFIG)

    for look in (app.aget_state, app.astate_of, app.alast_state_of):
        snapshot = await look(CONFIG)
        assert payloads_of(snapshot) == ["sure?"]
        assert snapshot.values["log"] == []
