"""Executors: where the branches of a fork and the items of a map run; nodes in other processes."""

import asyncio
import multiprocessing
import os
import re
import signal
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import ContextVar, copy_context
from pathlib import Path

import pytest

from graphkit import (
    END,
    REMOVE,
    RESET,
    START,
    Channels,
    Command,
    GraphResume,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from graphkit.errors import CheckpointerConfigurationError, GraphStateError, NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, LOG, FlakyNode, connect, logged, make_graph, make_map, pending_payloads
from tests.support.sweeps import ALL

SCHEMA = {**LOG, "sum": Channels.base(lambda a, b: a + b, lambda: 10)}
CALLER = ContextVar("caller", default="unset")


class Boom(Exception):
    def __init__(self, what, more):
        super().__init__(what, more)
        self.what = what


class Unpicklable(Exception):
    def __init__(self, what, more):
        super().__init__(what)


def new_pool(workers=2):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def processes():
    with new_pool() as pool:
        yield pool


@pytest.fixture
def store(tmp_path):
    return FileSystemSaver(tmp_path / "store", fsync="never", lock_timeout=0)


def fork_of(*nodes, **options):
    graph = StateGraph(SCHEMA)
    for n, node in enumerate(nodes):
        connect(graph.add_node(f"n{n}", node, **options), f"START>n{n} n{n}>END")
    return graph


def alone(node, **options):
    return connect(StateGraph(SCHEMA).add_node("n", node, **options), "START>n n>END")


def where(state):
    return {"log": threading.current_thread().name.partition("_")[0], "caller": CALLER.get()}


# --- which executor ---------------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    pools = {name: ThreadPoolExecutor(2, thread_name_prefix=name) for name in ("mine", "other", "third")}
    yield pools
    for pool in pools.values():
        assert pool.submit(int).result() == 0  # it is not shut down
        pool.shutdown()


def test_a_graphs_executor_is_for_forks_and_maps_and_a_nodes_for_itself(go, threads):
    mine = {"executor": threads["mine"]}
    CALLER.set("me")

    for options, expected in (({}, "graphkit"), (mine, "mine")):
        outputs = go(fork_of(where, alone(where).compile()).compile(**options), {})
        assert logged(outputs) == [expected] * 2
        assert outputs[-1].state["caller"] == "me"  # the context variables of the caller are seen

    assert logged(go(alone(where).compile(**mine), {})) != ["mine"]
    assert logged(go(alone(where, **mine).compile(), {})) == ["mine"]
    assert logged(go(make_map(where, "ab", SCHEMA).compile(**mine), {})) == ["mine"] * 2


def test_the_nearest_executor_counts(go, threads):
    """A node's own, then the run's, then the one around a nested fork, then the graph's."""
    graph = fork_of(where, where).add_node("own", where, executor=threads["third"]).add_edge(START, "own")
    compiled = graph.add_edge("own", END).compile(executor=threads["mine"])
    assert logged(go(compiled, {}, CONFIG.replace(executor=threads["other"]))) == ["other", "other", "third"]
    assert logged(go(compiled, {}, CONFIG.replace(executor={START: threads["other"]}))) == ["other", "other", "third"]


@pytest.mark.parametrize(
    ("more", "log"),
    [
        ({"m": "other"}, ["mine", "mine", "mine", "mine", "other"]),  # a nested fork runs where the one around it does
        ({"b": "third"}, ["mine", "third", "third", "mine", "graphkit"]),
    ],
)
def test_an_executor_by_the_id_of_the_forking_node(go, threads, more, log):  # addParallelNodeExecutor
    graph = make_graph(SCHEMA, "START>a a>b,c b>d,e", lambda name: where, a=lambda s: None)
    graph.add_map_node("m", where, lambda s: "x")
    app = connect(graph, "d>m e>m c>m m>END").compile()
    config = RunnableConfig.builder()
    for node_id, name in {"a": "mine", **more}.items():
        config = config.addParallelNodeExecutor(node_id, threads[name])

    outputs = go(app, {}, config.build())

    assert logged(outputs) == log


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n1", "it is in a branch of '__START__'"),
        ("mapp", "did you mean 'map'?"),
        ("other", "the graph has '__START__', 'chosen', 'map', 'inner'"),
    ],
)
def test_an_executor_that_would_have_no_effect_is_refused(threads, name, hint):
    inner = connect(StateGraph(SCHEMA).add_map_node("inner", where, lambda s: "x"), "START>inner inner>END").compile()
    graph = make_graph(SCHEMA, "START>n0,n1 nested>chosen x>END y>END", lambda name: where, nested=inner)
    graph.add_map_node("map", where, lambda s: "x")
    graph.add_conditional_edges("chosen", lambda s: ["x", "y"], ["x", "y"])
    app = connect(graph, "n0>map n1>map map>nested").compile()
    mine = threads["mine"]
    config = CONFIG.replace(executor={"map": mine, name: mine})

    with pytest.raises(GraphStateError, match=f"executor names '{name}', which .* map node; {re.escape(hint)}"):
        app.invoke({}, config)


@pytest.mark.parametrize("executor", ["a name", {"n0": "a name"}])
def test_what_is_no_executor_is_refused_where_it_is_given(executor):
    with pytest.raises(TypeError, match=r"executor must be a .*Executor.* has no submit\(\)"):
        alone(where).compile(executor=executor)
    with pytest.raises(CheckpointerConfigurationError, match=r"'a name' has no submit\(\)"):
        RunnableConfig("t", executor=executor)


def test_a_node_may_pass_its_executors_on_to_another_graph(go, threads):
    other = fork_of(where, where).compile()
    graph = fork_of(lambda state, config: {"log": other.invoke({}, config)["log"]}, where)
    connect(graph.add_map_node("m", where, lambda s: "x"), "START>m m>END")
    executors = {START: threads["mine"], "m": threads["other"]}
    assert logged(go(graph.compile(), {}, CONFIG.replace(executor=executors))) == ["mine", "mine", "mine", "other"]


def test_asynchronous_nodes_stay_in_the_event_loop(threads, processes):
    async def node(state):
        return {"log": threading.current_thread() is threading.main_thread()}

    graph = fork_of(node, where)

    for pool in (threads["mine"], processes):
        assert asyncio.run(graph.compile(executor=pool).ainvoke({}))["log"][0] is True
    for pool in (threads["mine"], processes):
        with pytest.raises(NodeExecutionError, match="asynchronous: it cannot run on a"):
            asyncio.run(alone(node, executor=pool).compile().ainvoke({}))


def test_a_plain_function_that_gives_an_awaitable(go, threads):
    async def later(config):
        return {"log": config.node_id}

    graph = fork_of(*[lambda state, config: later(config)] * 2)
    for executor in (None, threads["mine"]):
        assert asyncio.run(graph.compile(executor=executor).ainvoke({}))["log"] == ["n0", "n1"]
        with pytest.raises(NodeExecutionError, match="astream"):
            graph.compile(executor=executor).invoke({})


def test_an_executor_that_takes_nothing_is_a_failure_of_the_node(go):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(NodeExecutionError, match="shutdown") as failed:
        go(fork_of(where, where).compile(executor=pool), {})
    assert failed.value.node_id == "n0"


class Confused(Executor):
    """Returns something else than the function does that it is given."""

    def __init__(self, result):
        self.result = result

    def submit(self, _function, /, *args, **_kwargs):
        future = Future()
        future.set_result(self.result)
        self.log = repr(args)
        return future


@pytest.mark.sweep(ALL)
@pytest.mark.parametrize("result", [None, ({"log": "?"}, None)])
def test_an_executor_that_returns_something_else_is_a_failure_of_the_node(go, result):
    confused = Confused(result)
    app = alone(where, executor=confused).compile()
    with pytest.raises(NodeExecutionError, match=re.escape(f"a Confused, returned {result!r} in place of")):
        go(app, {"log": "of the state"})
    assert "of the state" not in confused.log


# --- in other processes -----------------------------------------------------------------------------------------------


def process_of(state):
    return {"log": os.getpid()}


def markers(state):
    return Command(update={"log": RESET, "gone": REMOVE, "deep": {"list": [1, (2, {3})]}})


def test_markers_and_values_survive_the_way(go, processes, store):
    graph = alone(markers, executor=processes).compile(checkpoint_saver=store)
    state = go(graph, {"log": "x", "gone": 1})[-1].state
    assert state.data == {"log": [], "sum": 10, "deep": {"list": [1, (2, {3})]}}


def sees(state, config):
    if config.attempt < 3:
        raise Boom("not", "yet")
    return {"log": [os.getpid(), [*state["log"]], config.thread_id, config.metadata["who"], config.idempotency_key]}


def test_state_and_config_arrive_and_retries_are_events_of_the_run(go, processes, store):
    events = []
    graph = alone(sees, executor=processes, retry=RetryPolicy(initial_delay=0.0, jitter=False))
    app = graph.compile(checkpoint_saver=store, observers=[lambda event: events.append((event.type, event.node_id))])
    config = CONFIG.replace(metadata={"who": "me"}, executor=ThreadPoolExecutor(1))
    process, state, thread, who, key = logged(go(app, {"log": "in"}, config))[1:]

    assert process != os.getpid()
    assert (state, thread, who) == (["in"], "t", "me")
    assert (key[:2], key[-2:]) == ("t/", "/n")
    assert events.count(("retry.attempt", "n")) == 2


def fails(state):
    raise Boom("what", "more")


def fails_after_a_chunk(state):
    yield "a"
    raise Boom("what", "more")


def fails_badly(state):
    raise Unpicklable("what", "more")


def lock(state):
    return {"log": threading.Lock()}


def test_errors_come_back(go, processes, store):
    with pytest.raises(NodeExecutionError, match="Boom") as failed:
        go(fork_of(process_of, fails, executor=processes).compile(checkpoint_saver=store), {})

    assert failed.value.node_id == "n1"
    assert failed.value.__cause__.what == "what"
    assert "in fails" in "".join(failed.value.__cause__.__notes__)  # where it was raised, over there

    with pytest.raises(NodeExecutionError, match="Boom"):
        go(alone(fails_after_a_chunk, executor=processes).compile(), {})
    with pytest.raises(NodeExecutionError, match=r"Unpicklable: what"):
        go(alone(fails_badly, executor=processes).compile(), {})

    with pytest.raises(NodeExecutionError, match="pickle"):
        go(alone(lock, executor=processes).compile(), {})
    with pytest.raises(NodeExecutionError, match=r"[Pp]ickle|local object"):
        go(alone(lambda s: None, executor=processes).compile(), {})


def asks(state):
    return {"log": [interrupt({"first": len(state["log"])}), interrupt("second")]}


def asks_between_chunks(state):
    yield "a"
    return asks(state)


@pytest.mark.parametrize("node", [asks, asks_between_chunks])
def test_interrupt_inside_a_process(go, processes, store, node):
    graph = fork_of(node, process_of, executor=processes).compile(checkpoint_saver=store)
    assert go(graph, {})[-1].payload == {"first": 0}
    assert pending_payloads(store) == [{"first": 0}]
    assert go(graph, GraphResume(1))[-1].payload == "second"
    assert logged(go(graph, GraphResume(2)))[:2] == [1, 2]


def chunks(state, config):
    yield "a"
    config.dispatch("extra")
    yield "b"
    return {"log": "done"}


def last_is_a_command(state):
    yield "a"
    yield Command(update={"log": "done"})


def test_generators_and_what_they_dispatch(go, processes, store):
    outputs = go(fork_of(chunks, last_is_a_command, executor=processes).compile(checkpoint_saver=store), {})
    handed = [(output.node, output.chunk) for output in outputs if hasattr(output, "chunk")]
    assert [chunk for node, chunk in handed if node == "n0"] == ["a", "b", "extra"]
    assert [chunk for node, chunk in handed if node == "n1"] == ["a"]
    assert logged(outputs) == ["done", "done"]


def once_there(state, config):
    return {"log": config.once("pid", os.getpid)}


def once_then_fail(state, config):
    result = config.once("effect", lambda: _append(state["folder"], "effects"))
    if result == 1 and not Path(state["folder"], "repaired").exists():
        raise Boom("after", "it")
    return {"log": result}


def _append(folder, name):
    """Count the calls in a file."""
    with Path(folder, name).open("a") as file:
        return file.write("x") and file.tell()


@pytest.mark.parametrize(
    "options", [{}, {"checkpoint_interval": 5}, {"durability": "async"}, {"durability": "exit"}], ids=str
)
def test_once_is_found_again_whatever_is_stored_when(go, processes, store, tmp_path, options):
    """What is recorded there belongs to where the run stands, also if that was not stored yet."""
    graph = StateGraph(SCHEMA).add_node("a", lambda s: {"log": "a"}).add_node("n", once_then_fail, executor=processes)
    connect(graph.add_node("z", once_there, executor=processes), "START>a a>n n>z z>END")
    compiled = graph.compile(checkpoint_saver=store, **options)

    with pytest.raises(NodeExecutionError):
        go(compiled, {"folder": str(tmp_path)})

    (tmp_path / "repaired").touch()

    assert logged(go(compiled, None))[:2] == ["a", 1]
    assert (tmp_path / "effects").read_text() == "x"


def test_once_without_a_saver_that_others_can_open(go, processes, tmp_path):
    graph = alone(once_then_fail, executor=processes)
    (tmp_path / "repaired").touch()
    assert logged(go(graph.compile(), {"folder": str(tmp_path)})) == [1]  # nothing is stored anyway
    with pytest.raises(NodeExecutionError, match=r"once.*cannot open the run's saver: use a FileSystemSaver"):
        go(graph.compile(checkpoint_saver=MemorySaver()), {"folder": str(tmp_path)})
    assert (tmp_path / "effects").read_text() == "x"  # it was said before the effect


def dies(state):
    if not Path(state["folder"], "repaired").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"log": "n1"}


@pytest.mark.sweep(ALL)
def test_a_broken_pool_is_an_error_and_another_one_goes_on(go, store, threads, processes, tmp_path, caplog):
    here = FlakyNode("n0")
    graph = StateGraph(SCHEMA).add_node("n0", here, executor=threads["mine"]).add_node("n1", dies)
    connect(graph, "START>n0,n1 n0>END n1>END")
    compiled = graph.compile(checkpoint_saver=store)

    with new_pool(1) as pool, pytest.raises(NodeExecutionError, match="BrokenProcessPool") as failed:
        go(compiled, {"folder": str(tmp_path)}, CONFIG.replace(executor=pool))

    assert failed.value.node_id == "n1"
    assert isinstance(failed.value.__cause__, BrokenProcessPool)

    (tmp_path / "repaired").touch()

    assert logged(go(compiled, None, CONFIG.replace(executor=processes))) == ["n0", "n1"]
    assert here.runs == ["n0"]
    assert [record for record in caplog.records if record.name == "asyncio"] == []


node_is_done = threading.Event()
late_keys = []


def leave_work(state, config):
    def find_key():
        node_is_done.wait(10)
        return config.idempotency_key

    late_keys.append(ThreadPoolExecutor(1).submit(copy_context().run, find_key))
    return {"log": config.idempotency_key}


def await_left_work(state):
    node_is_done.set()
    return {"log": late_keys.pop().result(10)}


def test_work_that_a_node_leaves_behind_stays_part_of_it(go, store):
    with new_pool(1) as pool:
        graph = StateGraph(SCHEMA).add_node("n", leave_work, executor=pool)
        connect(graph.add_node("late", await_left_work, executor=pool), "START>n n>late late>END")
        key, found_later = logged(go(graph.compile(checkpoint_saver=store), {}))
    assert found_later == key
