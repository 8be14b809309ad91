"""Map nodes: an action per item, side by side; items decided once, results recorded one by one, merged in order."""

import asyncio
import multiprocessing
import operator
import os
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, TypedDict

import pytest

from graphkit import (
    END,
    START,
    Channels,
    Command,
    GraphResume,
    GraphStateError,
    MapFailure,
    MapProgress,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from graphkit.agents.testing import RecordingSaver
from graphkit.errors import CheckpointSerializationError, GraphRunnerError, MaxIterationsError, NodeExecutionError
from graphkit.testing import ScriptedSaver
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.graphs import (
    CONFIG,
    CYCLE,
    LOG,
    Boom,
    ConcurrentCalls,
    at_checkpoint,
    connect,
    fail_once,
    ids_of,
    logged,
    make_chain,
    make_graph,
    nodes_of,
    payloads_of,
    stored,
)
from tests.support.sweeps import ALL

SCHEMA = {**LOG, "items": Channels.base(list)}
PATIENCE = 60
QUICK = RetryPolicy(max_attempts=3, initial_delay=0.0, jitter=False)


def mapped(action, items, schema=SCHEMA, **options):
    return connect(StateGraph(schema).add_map_node("m", action, items, **options), "START>m m>END")


def double(item):
    return {"log": item * 2}


def log_item(item):
    return {"log": item}


# --- items ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_any_number_of_items(saver, go, count):
    graph = mapped(double, lambda state: range(count)).compile(checkpoint_saver=saver)
    outputs = go(graph, {})

    assert nodes_of(outputs) == [START, "m", END]
    assert logged(outputs) == [2 * n for n in range(count)]
    assert stored(saver) == [(START, "m"), ("m", END)]


ITEMS = {
    "a key of the state": "items",
    "a list": lambda state: [1, 2],
    "a generator": lambda state: (n for n in (1, 2)),
    "a set's order is fixed once": lambda state: {1, 2},
    "the keys of a mapping": lambda state: {1: "x", 2: "y"},
    "with the config": lambda state, config: [1, 2] if config.thread_id == "t" else [],
}


@pytest.mark.parametrize("items", ITEMS)
def test_items(saver, go, items):
    graph = mapped(double, ITEMS[items]).compile(checkpoint_saver=saver)
    assert logged(go(graph, {"items": [1, 2]})) == [2, 4]


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (lambda state: 3, "TypeError"),
        (lambda state: None, "TypeError"),
        (lambda state: state["no such key"], "no such key"),
        ("nothing", "nothing"),
        (lambda state: (1 // n for n in (1, 0)), "ZeroDivisionError"),
        (lambda state: interrupt("which?"), "maps over"),
    ],
)
def test_items_that_cannot_be_listed(saver, go, items, reason):
    with pytest.raises(NodeExecutionError, match="maps over") as failed:
        go(mapped(double, items).compile(checkpoint_saver=saver), {})
    assert failed.value.node_id == "m"
    assert reason in str(failed.value)


def test_items_that_cannot_be_stored_are_refused_before_any_runs(tmp_path, go):
    runs = []
    graph = mapped(runs.append, lambda state: ["fine", object()])
    compiled = graph.compile(checkpoint_saver=FileSystemSaver(tmp_path, fsync="never"))
    with pytest.raises(CheckpointSerializationError, match=r"\[1\].*object"):
        go(compiled, {})
    assert runs == []
    hooked = mapped(runs.append, "items").add_before_call_node_hook("m", lambda *arguments: {"items": [object()]})
    with pytest.raises(CheckpointSerializationError, match=r"\[0\].*object"):
        go(hooked.compile(checkpoint_saver=FileSystemSaver(tmp_path / "single", fsync="never")), {})
    assert runs == []
    go(graph.compile(), {})  # without a saver there is nothing to store

    assert len(runs) == 2


def test_an_item_is_not_the_nodes_to_change(go):
    graph = mapped(lambda item: item.update(n=2), lambda state: [{"n": 1}])
    with pytest.raises(NodeExecutionError, match="read-only"):
        go(graph.compile(), {})


# --- what an item returns ---------------------------------------------------------------------------------------------


def test_updates_are_merged_in_the_order_of_the_items(saver, go):
    done = [threading.Event() for _ in range(5)]

    def action(item):
        if item < 4:
            assert done[item + 1].wait(PATIENCE)
        done[item].set()
        return {"log": [item, item], "last": item}

    outputs = go(mapped(action, lambda state: range(5)).compile(checkpoint_saver=saver), {})
    assert logged(outputs) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert outputs[-1].state["last"] == 4


@pytest.mark.parametrize(
    ("returned", "log"), [(None, []), ({}, []), ({"log": 1}, [1, 1]), (Command(update={"log": 2}), [2, 2])]
)
def test_what_an_item_may_return(saver, go, returned, log):
    assert logged(go(mapped(lambda item: returned, lambda state: "ab").compile(checkpoint_saver=saver), {})) == log


def test_asynchronous_items(saver):
    met = asyncio.Event()

    async def action(item):
        if item:
            met.set()
        await met.wait()
        return {"log": item}

    graph = mapped(action, lambda state: range(3)).compile(checkpoint_saver=saver)
    assert asyncio.run(graph.ainvoke({}, CONFIG))["log"] == [0, 1, 2]


def test_a_map_counts_as_one_node(go):
    graph = connect(StateGraph(SCHEMA).add_map_node("m", double, "items").add_node("z", double), "START>m m>z z>END")
    with pytest.raises(MaxIterationsError) as failed:
        go(graph.compile(), {"items": range(5)}, RunnableConfig(max_iterations=1))
    assert failed.value.node_id == "z"


# --- failures, questions, effects -------------------------------------------------------------------------------------


def test_many_threads_record_at_once_and_none_is_lost(saver, go):
    """Two at once that read what is recorded, add to it and put it back, would lose one of the two."""
    effects, broken, inside = [], [True], threading.Lock()

    def enter():
        assert inside.acquire(blocking=False), "two record at once"
        for _ in range(200):
            os.sched_yield()

    def action(item, config):
        results = [config.once(f"{n}", lambda n=n: effects.append((item, n)) or n) for n in range(3)]
        if item == 19 and broken:
            raise Boom
        return {"log": results}

    scripted = ScriptedSaver(saver).on("put_writes", enter, times=None)
    scripted.on("put_writes", inside.release, times=None, late=True)
    graph = mapped(action, lambda state: range(20)).compile(checkpoint_saver=scripted)
    with pytest.raises(NodeExecutionError):
        go(graph, {})
    broken.clear()
    kept = saver.get_writes(at_checkpoint(saver.get(CONFIG)))
    assert sum(key.startswith("once:") for key in kept) == len(effects)

    go(graph, None)
    assert len(effects) == len(set(effects)) == 60


@pytest.fixture
def busy_threads():
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("busy_threads")
@pytest.mark.parametrize("then", [interrupt, lambda item: item], ids=["asks", "ends"])
def test_items_record_while_others_ask_and_a_nested_graph_of_another_branch_takes_its_steps(then):
    def action(item, config):
        for n in range(40):
            config.once(f"{n}", lambda n=n: n)
        return {"log": then(item)}

    turns = StateGraph({"n": Channels.base(operator.add, lambda: 0)}).add_node("turn", lambda state: {"n": 1})
    turns.add_conditional_edges("turn", lambda state: END if state["n"] == 400 else "turn", {"turn": "turn", END: END})
    graph = mapped(action, lambda state: range(200))
    graph.add_node("turns", connect(turns, "START>turn").compile(max_iterations=400))
    graph = connect(graph, "START>turns turns>END").compile(checkpoint_saver=MemorySaver(), max_iterations=800)
    last = graph.invoke_final({}, CONFIG)
    assert last.is_end or len(last.interrupts) == 200


def test_idempotency_keys_of_items(saver, go):
    keys, broken = {}, [True]

    def action(item, config):
        keys.setdefault(item, []).append(config.idempotency_key)
        if keys[item][1:] == [] or (item == 2 and broken):
            raise Boom

    graph = mapped(action, lambda state: range(3), retry=QUICK).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError):
        go(graph, {})
    broken.clear()
    go(graph, None)
    assert len(keys[2]) == 4
    assert len({key for item in keys.values() for key in item}) == 3


# --- inside other things ----------------------------------------------------------------------------------------------


def test_a_map_in_a_merged_and_in_an_embedded_graph(saver, go):
    child = mapped(double, lambda state: range(2))
    graph = make_chain(SCHEMA, merged=child, inside=child.compile())
    assert logged(go(graph.compile(checkpoint_saver=saver), {})) == [0, 2, 0, 2]


# --- how many at a time, which one, and how far -----------------------------------------------------------------------


def squares(items, action=None, **options):
    return mapped(action or (lambda n: {"log": n * n}), lambda state: items, **options)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.sweep(ALL)
def test_max_concurrency_bounds_how_many_items_run_at_the_same_time(limit, go):
    calls = ConcurrentCalls(min(limit, 12))
    graph = squares(range(12), lambda n: {"log": calls(n)}, max_concurrency=limit)
    assert logged(go(graph.compile(), {})) == [*range(12)]
    assert calls.most == min(limit, 12)


@pytest.mark.parametrize("shape", ["map", "map with a higher limit", "fork"])
def test_the_max_concurrency_of_a_config_bounds_branches_and_items(go, shape):
    calls = ConcurrentCalls(2)
    if shape == "fork":
        graph = make_graph(
            SCHEMA, "START>a,b,c,d a>END b>END c>END d>END", lambda name: lambda state: {"log": calls(name)}
        )
    else:
        limit = 5 if "higher" in shape else None
        graph = squares(range(6), lambda n: {"log": calls(n)}, max_concurrency=limit)

    go(graph.compile(), {}, {"configurable": {"thread_id": "t"}, "max_concurrency": 2})

    assert calls.most == 2


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
def test_a_max_concurrency_that_is_refused(limit):
    with pytest.raises(GraphStateError, match="max_concurrency of node 'm'"):
        squares([], max_concurrency=limit)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_max_concurrency_starts_nothing_after_a_failure_and_repeats_nothing(saver, durability):
    ran = []
    actions = [log_item, log_item, fail_once(log_item), log_item, log_item]

    def action(n):
        ran.append(n)
        return actions[n](n)

    app = squares(range(5), action, max_concurrency=1).compile(checkpoint_saver=saver, durability=durability)
    with pytest.raises(NodeExecutionError):
        app.invoke({}, CONFIG)
    assert ran == [0, 1, 2]
    assert app.invoke(None, CONFIG)["log"] == [0, 1, 2, 3, 4]
    assert ran == [0, 1, 2, 2, 3, 4]


FAULTS = {
    "raises": (lambda n: {"log": 1 // (2 - n)}, "item 2 of node 'm' failed: ZeroDivisionError"),
    "returns no update": (lambda n: {} if n != 2 else 3, "item 2 of node 'm' returned int"),
    "goes somewhere": (lambda n: {} if n != 2 else Command("m"), "item 2 of node 'm' returned a Command that goes to 'm'"),
    "ends the run": (lambda n: {} if n != 2 else Command(END), "item 2 of node 'm' returned a Command that goes to"),
    "contains itself": (lambda n: {"log": CYCLE if n == 2 else n}, "the update of item 2 of node 'm' cannot be stored"),
    "cannot be merged": (lambda n: {} if n != 2 else {"strict": "x"}, "the update of item 2 of 'm' cannot be merged"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_item_is_named_by_its_index(fault):
    action, words = FAULTS[fault]
    graph = mapped(action, lambda state: range(4), {**SCHEMA, "strict": Channels.base(lambda old, new: int(new))})
    with pytest.raises(GraphRunnerError, match=words) as failed:
        graph.compile().invoke({})
    assert failed.value.node_id == "m"


# --- keys that more than one writes -----------------------------------------------------------------------------------


def overwrites_of(events):
    return [(event.node_id, dict(event.data), event.level) for event in events if event.type == "parallel.overwrite"]


def test_branches_that_write_the_same_plain_key_are_reported_and_the_last_edge_wins():
    events = []

    def make_node(name):
        return lambda state: {"plain": name, "list": [name], "log": name, f"only {name}": 1}

    graph = make_graph({**SCHEMA, "list": Channels.base(None, list)}, "START>a,b a>END b>END", make_node)
    state = graph.compile(observers=[events.append]).invoke({})
    assert state["plain"] == "b"
    assert state["list"] == ["b"]
    assert state["log"] == ["a", "b"]
    fork = "__PARALLEL__(__START__)"
    assert overwrites_of(events) == [
        (fork, {"key": "plain", "branches": ["a", "b"]}, "warning"),
        (fork, {"key": "list", "branches": ["a", "b"]}, "warning"),
    ]


def test_items_that_write_the_same_plain_key_are_reported_too():
    events = []
    app = squares([1, 2], lambda n: {"plain": n, "log": n}).compile(observers=[events.append])
    assert app.invoke({})["plain"] == 2
    assert overwrites_of(events) == [("m", {"key": "plain", "branches": ["0", "1"]}, "warning")]


# --- maps for real work -----------------------------------------------------------------------------------------------


class Batch(TypedDict):
    documents: list[str]
    read: Annotated[list[str], operator.add]
    failed: list[MapFailure]


DOCUMENTS = ["a", "b", "c", "d"]


def graph_of(action, **options):
    graph = StateGraph(Batch).add_map_node("read", action, "documents", **options)
    return graph.set_entry_point("read").set_finish_point("read")


def collecting(action, **options):
    return graph_of(action, on_error="collect", failures="failed", **options)


def read(document):
    if document in ("b", "d"):
        raise OSError(f"no {document}")
    return {"read": [document]}


def branches_of(events):
    data = [event.data for event in events if event.type == "parallel.branch"]
    return sorted((each["index"], each["total"], each.get("label")) for each in data)


def test_each_finished_item_is_reported_to_the_stream_and_to_observers():
    events = []
    app = graph_of(lambda document: {}, label=str.upper).compile(observers=events.append)

    items = list(app.stream({"documents": DOCUMENTS}, stream_mode="custom"))

    assert {type(item) for item in items} == {MapProgress}
    assert [(item.node_id, item.done, item.total) for item in items] == [("read", done, 4) for done in (1, 2, 3, 4)]

    labels = sorted((item.index, item.label) for item in items)

    assert labels == [(0, "A"), (1, "B"), (2, "C"), (3, "D")]
    assert branches_of(events) == [(index, 4, label) for index, label in labels]

    events.clear()
    make_graph({}, "START>a,b a>END b>END", lambda name: lambda state: None).compile(observers=events.append).invoke({})

    assert branches_of(events) == [(0, 2, None), (1, 2, None)]


@pytest.mark.parametrize("make", [FileSystemSaver, lambda path: SqliteSaver(path / "db")])
def test_failures_are_handed_over_and_kept_and_the_others_finish(tmp_path, make):
    with make(tmp_path) as saver:
        state = collecting(read).compile(checkpointer=saver).invoke({"documents": DOCUMENTS}, "t")
    assert state["read"] == ["a", "c"]
    assert state["failed"] == [MapFailure(1, "b", "OSError: no b"), MapFailure(3, "d", "OSError: no d")]
    with make(tmp_path) as saver:
        assert saver.get("t").state["failed"] == state["failed"]
    assert collecting(read).compile().invoke({"documents": ["a"]})["failed"] == []


@pytest.mark.parametrize(
    "options",
    [{"on_error": "collect"}, {"failures": "failed"}, {"on_error": "ignore"}, {"on_error": "collect", "failures": ""}],
)
def test_options_that_do_not_fit_together_are_refused(options):
    with pytest.raises(GraphStateError, match="read"):
        graph_of(read, **options)


def test_a_failing_label_fails_the_node_and_an_async_one_needs_an_async_run():
    with pytest.raises(GraphRunnerError, match=r"'read'.*astream"):
        graph_of(lambda document: {}, label=asyncio.sleep).compile().invoke({"documents": []})
    with pytest.raises(NodeExecutionError, match="label"):
        graph_of(lambda document: {}, label=lambda document: 1 / 0).compile().invoke({"documents": ["a"]})


def test_an_item_that_waits_and_one_that_failed_do_not_run_again_while_others_are_answered():
    ran = []

    def action(document):
        ran.append(document)
        if document == "d":
            raise OSError
        return {"read": [f"{document}: {interrupt(document)}"]}

    app = collecting(action, retry=QUICK).compile(checkpointer=MemorySaver())
    ids = ids_of(app.invoke({"documents": DOCUMENTS}, "t"))
    assert sorted(ran) == ["a", "b", "c", "d", "d", "d"]  # collected after three attempts

    ran.clear()
    state = app.invoke(GraphResume({ids["a"]: "yes", ids["c"]: "no"}), "t")
    assert sorted(ran) == ["a", "c"]
    assert payloads_of(state) == ["b"]

    state = app.invoke(GraphResume("maybe"), "t")
    assert ran[2:] == ["b"]
    assert state["read"] == ["a: yes", "b: maybe", "c: no"]
    assert [failure.index for failure in state["failed"]] == [3]


# --- what a map records, and when -------------------------------------------------------------------------------------


# A copy of the store, taken while a node runs, is what a crash leaves at that moment.


class Crash:
    """A store that is copied where a test says that the process dies."""

    def __init__(self, directory):
        self.directory = directory
        self.lock = threading.Lock()
        self.saver = FileSystemSaver(directory / "store", fsync="never")

    def here(self):
        """What is stored now is what the crash leaves; the first call counts."""
        with self.lock:
            if not (self.directory / "left").exists():
                shutil.copytree(self.directory / "store", self.directory / "left")

    def log(self, item):
        """Log an item, at which the process dies."""
        self.here()
        return {"log": item}

    def left(self):
        return FileSystemSaver(self.directory / "left", fsync="never")


@pytest.fixture
def crash(tmp_path):
    return Crash(tmp_path)


class Items:
    """The items of a map: others each time, as those of a directory or a queue."""

    def __init__(self, count):
        self.count = count
        self.asked = 0

    def __call__(self, state):
        self.asked += 1
        return [f"{self.asked}.{number}" for number in range(self.count)]


@pytest.mark.parametrize(
    ("count", "are_found", "records"),
    [(0, False, [0]), (1, False, [0]), (1, True, [1]), (2, False, [2]), (5, True, range(2, 6))],
)
def test_how_many_records_a_map_needs(go, count, are_found, records):
    """A record has the results of all items that were ready when it was made, the last one has none."""
    saver = RecordingSaver(MemorySaver())
    together = threading.Barrier(max(count, 1))

    def action(item):
        together.wait(PATIENCE)
        return {"log": item}

    items = Items(count) if are_found else "items"
    go(mapped(action, items).compile(checkpoint_saver=saver), {"items": [*range(count)]})
    methods = [call.method for call in saver.calls]
    assert methods.count("put_writes") in records
    assert methods.count("put") == 2


@pytest.mark.parametrize("use", ["idempotency_key", "once", "interrupt"])
def test_a_single_item_is_recorded_before_anything_depends_on_it(go, crash, use):
    seen = []

    def action(item, config):
        if use == "idempotency_key":
            used = config.idempotency_key
        elif use == "once":
            used = config.once("effect", lambda: f"effect on {item}")
        else:
            used = interrupt("?")
        seen.append((item, used))
        crash.here()
        return {"log": item}

    graph = mapped(action, "items")
    outputs = go(graph.compile(checkpoint_saver=crash.saver), {"items": ["one"]})
    if use == "interrupt":
        assert seen == []
        outputs = go(graph.compile(checkpoint_saver=crash.saver), GraphResume("yes"))
    assert logged(outputs) == ["one"]
    assert crash.left().get_writes(CONFIG)["items:"] == ["one"]
    assert logged(go(graph.compile(checkpoint_saver=crash.left()), None)) == ["one"]
    assert seen[0] == seen[1]


def note_key_elsewhere(item, config):
    """In another process: what is stored now is what a crash leaves."""
    store = Path(item["store"])
    if not (store.parent / "left").exists():
        shutil.copytree(store, store.parent / "left")
    return {"log": config.idempotency_key}


def test_a_single_item_is_recorded_before_it_is_sent_to_another_process(go, crash):
    items = [{"store": str(crash.directory / "store")}]
    graph = mapped(note_key_elsewhere, "items")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        expected = logged(go(graph.compile(checkpoint_saver=crash.saver, executor=pool), {"items": items}))
        assert crash.left().get_writes(CONFIG)["items:"] == items
        assert logged(go(graph.compile(checkpoint_saver=crash.left(), executor=pool), None)) == expected


def test_a_single_item_of_the_state_is_found_there_again(go, crash):
    graph = mapped(crash.log, "items")
    assert logged(go(graph.compile(checkpoint_saver=crash.saver), {"items": ["one"]})) == ["one"]
    assert crash.left().get_writes(CONFIG) == {}
    assert logged(go(graph.compile(checkpoint_saver=crash.left()), None)) == ["one"]


@pytest.mark.parametrize("count", [1, 3])
def test_the_items_are_recorded_before_one_runs(go, crash, count):
    items = Items(count)
    graph = mapped(crash.log, items)
    go(graph.compile(checkpoint_saver=crash.saver), {})
    go(graph.compile(checkpoint_saver=crash.left()), None)
    assert items.asked == 1


@pytest.mark.parametrize("where", ["after hook", "edge", "branch", "every ten steps"])
@pytest.mark.parametrize("count", [1, 2])
def test_all_results_are_recorded_where_other_code_runs_before_the_checkpoint(go, crash, where, count):
    items, runs = Items(count), []

    def action(item):
        runs.append(item)
        return {"log": item}

    def other(*_):
        crash.here()

    graph = StateGraph(SCHEMA).add_map_node("m", action, items).add_node("z", other)
    connect(graph, "START>m z>END")
    if where == "after hook":
        connect(graph, "m>z").add_after_call_node_hook("m", other)
    elif where == "edge":
        graph.add_conditional_edges("m", lambda state: other() or "z", ["z"])
    elif where == "branch":
        graph.add_node("b", lambda state: None).add_node("n", other)
        connect(graph, "START>b m>n n>z b>z")
    else:
        connect(graph, "m>z")

    def compiled(saver):
        return graph.compile(checkpoint_saver=saver, checkpoint_interval=10 if where == "every ten steps" else 1)

    expected = [f"1.{number}" for number in range(count)]
    assert logged(go(compiled(crash.saver), {})) == expected
    assert logged(go(compiled(crash.left()), None)) == expected
    assert sorted(runs) == expected


def test_the_last_result_is_recorded_if_the_merge_fails(go):
    saver, runs, broken = MemorySaver(), [], [True]

    def reduce(old, new):
        if broken and new == "1.1":
            raise ValueError("broken")
        return [*(old or ()), new]

    def action(item):
        runs.append(item)
        return {"log": item}

    compiled = mapped(action, Items(2), {"log": Channels.base(reduce)}).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="broken"):
        go(compiled, {})
    broken.clear()
    assert logged(go(compiled, None)) == ["1.0", "1.1"]
    assert sorted(runs) == ["1.0", "1.1"]


def test_dispatched_outputs_are_emitted_when_the_update_is_stored(crash):
    stored = []

    def action(item, config):
        config.dispatch(item)
        return {"log": item}

    graph = mapped(action, Items(1)).compile(checkpoint_saver=crash.saver)
    for output in graph.stream({}, CONFIG):
        if getattr(output, "chunk", None):
            stored = [key for key in crash.saver.get_writes(CONFIG) if key.startswith("task:")]
    assert stored == ["task:0"]
