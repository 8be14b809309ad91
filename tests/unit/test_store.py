"""State and CheckpointStore: go-agents-orchestration's state that is its own checkpoint."""

import copy
import dataclasses
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.compat.go_agents import CheckpointStore, State
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)
from graphkit.registry import get_checkpoint_store, register_checkpoint_store
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, LOG, asking, make_chain
from tests.support.logs import flip_in_file, locate_log
from tests.support.savers import open_kind


@pytest.fixture
def store(saver):
    return CheckpointStore(saver)


@pytest.fixture(params=["memory", "file"])
def listing_store(request, tmp_path):
    """A store on a saver that knows its threads."""
    with open_kind(request.param, tmp_path) as saver:
        yield CheckpointStore(saver)


def types_of(events):
    return [event.type for event in events]


# State


@pytest.mark.requirement("G2")
def test_a_new_state_knows_where_it_comes_from():
    events = []
    before = datetime.now(UTC)
    state = State(observer=events.append)
    assert len(state.run_id) == 36
    assert state.run_id != State().run_id
    assert before <= state.timestamp <= datetime.now(UTC)
    assert (state.checkpoint_node, state.data) == ("", {})
    (event,) = events
    assert event.type == "state.create"
    assert event.level == "verbose"
    assert event.thread_id == state.run_id
    assert event.data["run_id"] == state.run_id


@pytest.mark.requirement("G3")
def test_every_change_makes_another_state():
    mine = {"k": [1]}
    first = State(mine)
    mine["k"].append(2)
    second = first.set("k", [3])
    third = second.merge({"k": [4], "l": 5})
    fourth = third.set_checkpoint_node("n")
    states = (first, second, third, fourth)
    assert [state.get("k") for state in states] == [([1], True), ([3], True), ([4], True), ([4], True)]
    assert [state.get("l") for state in states] == [(None, False), (None, False), (5, True), (5, True)]
    assert [state.checkpoint_node for state in states] == ["", "", "", "n"]
    assert State({"none": None}).get("none") == (None, True)
    with pytest.raises(AttributeError, match="immutable"):
        first.run_id = "x"
    with pytest.raises(AttributeError):
        del first.run_id
    with pytest.raises(TypeError, match="read-only"):
        first.get("k")[0].append(9)
    with pytest.raises(TypeError, match="read-only"):
        first.data["k"] = 9


@pytest.mark.requirement("G4")
def test_provenance_goes_along_and_merge_keeps_the_left_one():
    left = State({"a": 1}).set_checkpoint_node("left")
    right = State({"a": 2, "b": 3}).set_checkpoint_node("right")

    for changed in (left.clone(), left.set("x", 1), left.merge(right)):
        assert changed.run_id == left.run_id
        assert changed.checkpoint_node == "left"
        assert changed.timestamp == left.timestamp
    assert left.merge(right).data == {"a": 2, "b": 3}
    assert left.clone() == left
    assert hash(left.clone()) == hash(left)
    assert left != left.set("x", 1)
    assert left != "left"


@dataclasses.dataclass
class Mutable:
    items: list


@pytest.mark.requirement("G4")
def test_nothing_of_a_state_can_be_changed_from_outside():
    mine = Mutable([1])
    state = State({"object": mine, "list": [[1]]})
    mine.items.append(2)
    state.get("object")[0].items.append(3)
    state.data["object"].items.append(4)
    state.clone().get("object")[0].items.append(5)

    assert state.get("object")[0].items == [1]

    saver = MemorySaver()
    saver.register_types(Mutable)
    store = CheckpointStore(saver)
    store.save(state)
    store.load(state.run_id).get("object")[0].items.append(6)
    state.get("object")[0].items.append(7)

    assert store.load(state.run_id).get("object")[0].items == [1]


@pytest.mark.requirement("G5")
def test_set_checkpoint_node_moves_time_on():
    state = State()
    ahead = State.from_json(json.dumps({**json.loads(state.to_json()), "timestamp": "2999-01-01T00:00:00+00:00"}))

    for start in (state, ahead):
        states = [start]
        for n in range(100):
            states.append(states[-1].set_checkpoint_node(f"n{n}"))
        times = [each.timestamp for each in states]
        assert times == sorted(set(times))


@pytest.mark.requirement("G1")
def test_json_has_the_names_of_go_and_no_observer():
    got = []
    state = State({"n": 1, "deep": {"list": [None, True, "x", 1.5]}}, got.append).set_checkpoint_node("ingest")
    text = state.to_json()

    assert list(json.loads(text)) == ["data", "run_id", "checkpoint_node", "timestamp"]
    assert "observer" not in text

    assert State.from_json(text) == state
    assert State.from_json(text).clone().set("n", 2).get("n") == (2, True), "it has no observer, and does not mind"

    State.from_json(text.encode(), got.append).set("n", 3)
    assert types_of(got) == ["state.create", "state.set"]


@pytest.mark.requirement("G1")
def test_json_of_go_is_read():
    go = '{"data":{"k":1},"run_id":"r","checkpoint_node":"n","timestamp":"2025-11-20T10:00:00.123456789Z"}'
    state = State.from_json(go)
    assert (state.run_id, state.checkpoint_node, state.data) == ("r", "n", {"k": 1})
    assert state.timestamp == datetime(2025, 11, 20, 10, 0, 0, 123456, tzinfo=UTC)
    assert State.from_json(go.replace("Z", "")).timestamp == state.timestamp


@pytest.mark.requirement("G39", "G1")
@pytest.mark.parametrize("value", [(1,), {1}, b"x", float("nan"), {1: 2}, datetime.now(UTC), [[(1,)]], object()])
def test_what_json_would_change_is_refused_by_name(value):
    with pytest.raises(CheckpointSerializationError, match=r"^bad \("):
        State({"good": 1, "bad": value}).to_json()


@pytest.mark.requirement("G1")
@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"data": 1, "run_id": "r", "checkpoint_node": "", "timestamp": "2025-01-01"}',
     '{"data": [["k", 1]], "run_id": "r", "checkpoint_node": "", "timestamp": "2025-01-01"}',
     '{"data": {}, "run_id": 7, "checkpoint_node": "", "timestamp": "2025-01-01"}',
     '{"data": {}, "run_id": "r", "checkpoint_node": "", "timestamp": "noon"}',
     '{"data": {"k": NaN}, "run_id": "r", "checkpoint_node": "", "timestamp": "2025-01-01"}'],
)  # fmt: skip
def test_json_that_is_no_state_is_refused(text):
    with pytest.raises(CheckpointSerializationError, match="not a State"):
        State.from_json(text)


@pytest.mark.requirement("G26", "G2")
def test_changes_are_events(caplog):
    got = []
    state = State({"a": 1}, got.append)
    state.clone().set("k", 1).merge({"x": 1, "y": 2}).set_checkpoint_node("n").set("l", 2)

    assert [(event.type, {**event.data}.get("key") or {**event.data}.get("keys"), event.node_id) for event in got] == [
        ("state.create", None, None), ("state.clone", None, None), ("state.set", "k", None),
        ("state.merge", ["x", "y"], None), ("state.set", "l", "n"),
    ]  # fmt: skip
    assert {event.level for event in got} == {"verbose"}

    def raising(_):
        raise RuntimeError("no")

    assert State({"a": 1}, raising).set("a", 2).get("a") == (2, True)
    assert caplog.text.count("RuntimeError: no") == 2


def bytes_under(directory):
    return b"".join(path.read_bytes() for path in Path(directory).rglob("*") if path.is_file())


@pytest.mark.requirement("G32")
def test_a_secret_goes_along_and_nowhere_else(tmp_path, caplog):
    events = []
    state = State({"k": 1}, events.append).set_secret("token", "hunter2").set_secret("gone", "hunter2-gone")

    state = state.delete_secret("gone").delete_secret("never there")
    assert state.get_secret("gone") == (None, False)
    assert State().get_secret("token") == (None, False)

    merged = State().set_secret("other", 1).merge(state)
    assert merged.get_secret("other") == (1, True)

    changes = (state.clone(), state.set("k", 2), state.merge({"k": 3}), state.set_checkpoint_node("n"))
    for each in (state, *changes, merged):
        assert each.get_secret("token") == ("hunter2", True)

    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    store = CheckpointStore(saver, observer=events.append)
    store.save(state)

    for shown in (state.to_json(), state, state.data, events, vars(store)):
        assert "hunter2" not in repr(shown)
    assert "hunter2" not in str(state)
    assert "hunter2" not in caplog.text
    assert b"hunter2" not in pickle.dumps(state)
    assert pickle.loads(pickle.dumps(state)) == copy.deepcopy(state) == state
    assert not dataclasses.is_dataclass(state), "of which others would show the fields"
    assert b"hunter2" not in bytes_under(tmp_path)
    assert types_of(events) == ["state.create", "state.clone", "state.set", "state.merge"], "no event of a secret"
    assert store.load(state.run_id).get_secret("token") == (None, False)


class Outer(TypedDict):
    inner: State


@pytest.mark.requirement("G32")
def test_a_state_in_the_state_of_a_graph_keeps_its_secrets_and_is_not_stored(tmp_path):
    seen = []
    state = State({"k": 1}).set_secret("token", "hunter2")
    graph = make_chain(Outer, a=lambda outer: seen.append(outer["inner"].get_secret("token")))

    graph.compile().invoke({"inner": state})
    assert seen == [("hunter2", True)]

    app = graph.compile(checkpoint_saver=FileSystemSaver(tmp_path, fsync="never", compression=None))
    with pytest.raises(CheckpointSerializationError, match="cannot be stored"):
        app.invoke({"inner": state}, RunnableConfig("t"))
    assert b"hunter2" not in bytes_under(tmp_path)


# CheckpointStore


@pytest.mark.requirement("G7", "G6")
def test_save_and_load(store):
    state = State({"documents": [1, (2, 3)], "when": datetime(2025, 1, 1, tzinfo=UTC)}).set_checkpoint_node("ingest")
    assert state.checkpoint(store) is None
    assert store.load(state.run_id) == state
    fresh = State({"k": 1})
    store.save(fresh)
    assert store.load(fresh.run_id) == fresh, "before the first node, too"


@pytest.mark.requirement("G7")
def test_delete(store):
    one, two = State({"n": 1}), State({"n": 2})
    store.save(one)
    store.save(two)
    assert store.delete(one.run_id) is None
    with pytest.raises(CheckpointNotFoundError, match=one.run_id):
        store.load(one.run_id)

    store.delete(one.run_id)
    assert store.load(two.run_id) == two


def test_a_damaged_run_does_not_hide_the_others_and_can_be_deleted(tmp_path):
    damaged, good = State({"n": 1}), State({"n": 2})
    with FileSystemSaver(tmp_path) as saver:
        store = CheckpointStore(saver)
        store.save(damaged)
        store.save(good)
        flip_in_file(locate_log(tmp_path, damaged.run_id), 30)
    with FileSystemSaver(tmp_path) as saver:
        store = CheckpointStore(saver)
        assert store.list() == [good.run_id]
        with pytest.raises(CheckpointCorruptionError):
            store.load(damaged.run_id)
        store.delete(damaged.run_id)
        assert saver.threads() == [good.run_id]


@pytest.mark.requirement("G8")
def test_many_threads_save_and_load_at_once(listing_store):
    shared = State({"n": -1})

    def work(worker):
        state = State()
        for n in range(20):
            state = state.set("n", n).set_checkpoint_node(f"{worker}-{n}")
            listing_store.save(state)
            listing_store.save(shared.set("n", (worker, n)))
            assert listing_store.load(state.run_id) == state

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert listing_store.load(shared.run_id).get("n")[0] in [(worker, 19) for worker in range(8)]
    assert len(listing_store.saver.list(RunnableConfig(shared.run_id))) == 1
    assert len(listing_store.list()) == 9


@pytest.mark.requirement("G40")
def test_ten_thousand_runs_leave_nothing(sweep):
    saver = MemorySaver()
    store = CheckpointStore(saver)
    for n in range(sweep.count(10_000, 1000)):
        state = State({"n": n})
        store.save(state)
        store.delete(state.run_id)
    assert store.list() == []
    assert not saver.threads()


@pytest.mark.requirement("G24")
def test_a_loaded_state_posts_to_the_observer_of_its_store(saver):
    got = []
    store = CheckpointStore(saver, observer=got.append)
    state = State({"k": 1})

    store.save(state)

    assert got == [], "saving is no change of a state"
    assert store.load(state.run_id).clone().set("k", 2).get("k") == (2, True)
    assert types_of(got) == ["state.clone", "state.set"]
    assert CheckpointStore(saver).load(state.run_id).clone() == state
    assert state.with_observer(got.append).observer == got.append


@pytest.mark.requirement("G9")
def test_a_store_is_made_of_a_saver_or_a_name():
    saver = MemorySaver()
    assert CheckpointStore("memory").saver is get_checkpoint_store("memory")
    register_checkpoint_store("test-of-store", CheckpointStore(saver))
    assert get_checkpoint_store("test-of-store") is saver
    assert CheckpointStore("test-of-store").saver is saver
    with pytest.raises(CheckpointerConfigurationError, match="unknown"):
        CheckpointStore("test-nowhere")
    with pytest.raises(CheckpointerConfigurationError, match="saver or its name"):
        CheckpointStore({})


# Beside graphs


def counting(saver):
    graph = make_chain({}, a=lambda state: {"a": state.get("n", 0)}, b=lambda state: {"b": 1})
    return graph.compile(checkpoint_saver=saver)


@pytest.mark.requirement("G7")
def test_runs_of_a_graph_are_found(listing_store):
    app = counting(listing_store.saver)
    app.invoke({"n": 1}, RunnableConfig("t"))
    app.invoke({"n": 2}, RunnableConfig("t"))
    app.invoke({"n": 3}, RunnableConfig("alone"))
    (alone,) = {info.metadata["run_id"] for info in listing_store.saver.history(RunnableConfig("alone"))}
    second, first = dict.fromkeys(info.metadata["run_id"] for info in listing_store.saver.history(RunnableConfig("t")))

    assert sorted(listing_store.list()) == sorted([alone, first, second])
    assert [listing_store.load(run).get("n")[0] for run in (first, second, alone)] == [1, 2, 3]
    assert listing_store.load("t").run_id == second
    assert listing_store.load(alone).checkpoint_node == "b"
    assert listing_store.load(alone).run_id == alone

    with pytest.raises(CheckpointConflictError, match="1 other run"):
        listing_store.delete(first)
    listing_store.delete(alone)
    assert sorted(listing_store.list()) == sorted([first, second])
    listing_store.delete("t")
    assert listing_store.list() == []


def test_the_histories_of_nested_graphs_are_no_runs(listing_store):
    saver = listing_store.saver
    app = make_chain(LOG, sub=make_chain(LOG, ask=asking("?")).compile()).compile(checkpoint_saver=saver)
    app.invoke({"log": "outer"}, CONFIG)

    inner = Checkpoint(node_id="a", next_node_id="b", state={}, metadata={"run_id": "inner"})
    saver.put(CONFIG.replace(checkpoint_ns="by hand"), inner)
    (run,) = {info.metadata["run_id"] for info in saver.history(CONFIG)}

    listing_store.delete("inner")  # deletes nothing: there is no such run

    assert listing_store.list() == [run]
    assert listing_store.load(run).data == {"log": ["outer"]}


@pytest.mark.requirement("G21", "G36")
def test_a_graph_goes_on_from_a_saved_state(store):
    state = State({"n": 5}).set_checkpoint_node("a")
    store.save(state)
    result = counting(store.saver).resume(state.run_id)
    assert dict(result) == {"n": 5, "b": 1}, "a had finished and is not run again"


@pytest.mark.requirement("G7")
def test_saving_after_a_graph_keeps_its_history(store):
    app = counting(store.saver)
    app.invoke({"n": 1}, RunnableConfig("t"))
    before = store.saver.list(RunnableConfig("t"))
    loaded = store.load("t")
    mine = State.from_json(json.dumps({**json.loads(State({"mine": 1}).to_json()), "run_id": "t"}))

    for n in range(3):
        store.save(mine.set("mine", n))

    after = store.saver.list(RunnableConfig("t"))

    assert list(after[1:]) == list(before)
    assert store.load("t").get("mine") == (2, True)
    assert loaded.get("n") == (1, True)


def test_a_thread_that_runs_is_busy(tmp_path):
    saver = FileSystemSaver(tmp_path / "store", fsync="never", lock_timeout=0)
    store, state = CheckpointStore(saver), State()
    with ThreadPoolExecutor(1) as pool, saver.run_lock(RunnableConfig(state.run_id)):
        with pytest.raises(ThreadBusyError):
            pool.submit(store.save, state).result()
        store.save(state)  # the holder of the run lock may
