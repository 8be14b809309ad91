"""What a map records, and when: a copy of the store, taken while a node runs, is what a crash leaves at that moment."""

import multiprocessing
import shutil
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from graphkit import END, START, Channels, GraphResume, StateGraph, interrupt
from graphkit.agents.testing import RecordingSaver
from graphkit.errors import NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, connect, logged

PATIENCE = 60
SCHEMA = {"log": Channels.appender_with_duplicate(), "items": Channels.base(lambda old, new: new)}


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


def mapped(action, items, **options):
    graph = StateGraph(SCHEMA).add_node("a", lambda state: {"log": "a"}).add_map_node("m", action, items, **options)
    return connect(graph, "START>a a>m m>END")


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
    assert methods.count("put") == 3


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
    assert logged(outputs) == ["a", "one"]
    assert crash.left().get_writes(CONFIG)["items:"] == ["one"]
    assert logged(go(graph.compile(checkpoint_saver=crash.left()), None)) == ["a", "one"]
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
    def action(item):
        crash.here()
        return {"log": item}

    graph = mapped(action, "items")
    assert logged(go(graph.compile(checkpoint_saver=crash.saver), {"items": ["one"]})) == ["a", "one"]
    assert crash.left().get_writes(CONFIG) == {}
    assert logged(go(graph.compile(checkpoint_saver=crash.left()), None)) == ["a", "one"]


@pytest.mark.parametrize("count", [1, 3])
def test_the_items_are_recorded_before_one_runs(go, crash, count):
    items = Items(count)

    def action(item):
        crash.here()
        return {"log": item}

    graph = mapped(action, items)
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
    interval = 1
    if where == "after hook":
        graph.add_after_call_node_hook("m", other).add_edge(START, "m").add_edge("m", "z")
    elif where == "edge":
        graph.add_edge(START, "m").add_conditional_edges("m", lambda state: other() or "z", ["z"])
    elif where == "branch":
        graph.add_node("b", lambda state: None).add_edge(START, "m").add_edge(START, "b")
        graph.add_node("after m", other).add_edge("m", "after m").add_edge("after m", "z").add_edge("b", "z")
    else:
        interval = 10
        graph.add_edge(START, "m").add_edge("m", "z")
    graph.add_edge("z", END)

    def compiled(saver):
        return graph.compile(checkpoint_saver=saver, checkpoint_interval=interval)

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

    graph = StateGraph({"log": Channels.base(reduce)}).add_map_node("m", action, Items(2))
    compiled = graph.add_edge(START, "m").add_edge("m", END).compile(checkpoint_saver=saver)
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
