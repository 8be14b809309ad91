"""LangGraph's checkpointer on SQLite, PostgreSQL and memory does what it does on files."""

import random
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit import Checkpoint, CheckpointConflictError, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from savers.langgraph import CheckpointSaver, FileSystemCheckpointSaver
from tests.contract.test_minimal import FourMethods
from tests.integrations.langgraph_stores import DATABASES, OTHERS, parametrize
from tests.integrations.test_langgraph_graphs import STORIES, deltas, watch_story
from tests.support.langgraph_checkpoints import put, thread
from tests.support.statements import StatementCounter

DAY = timedelta(days=1)
# Whole graphs


@pytest.mark.sweep(1, of="way", in_turn=True)
@pytest.mark.parametrize(
    "way", [("sync", "sync"), ("sync", "exit"), ("async", "sync"), ("async", "async")], ids="-".join
)
@pytest.mark.parametrize("story", [*STORIES, deltas(1), deltas(3)])
@parametrize(*OTHERS)
def test_graphs_do_what_they_do_in_memory(opener, story, way):
    mode, durability = way
    expected = watch_story(
        story, InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None)), mode, durability
    )
    assert watch_story(story, opener.new(), mode, durability) == expected


# Listings


def fill(savers, seed, threads):
    """Put the same histories into each of some savers."""
    dice = random.Random(seed)
    ids = []
    for number in range(threads):
        namespaces = ["", "sub:1"] if dice.random() < 0.2 else [""]
        for namespace in namespaces:
            parent = None
            for step in range(dice.choice([1, 2, 5, 40])):
                checkpoint = empty_checkpoint()
                version = f"{step + 1:03}"
                values = {"text": "x" * dice.choice([1, 300, 9000 if threads < 10 else 20]), "n": step}
                checkpoint |= {
                    "channel_values": values,
                    "channel_versions": dict.fromkeys(values, version),
                    "versions_seen": {"node": {"n": version}},
                }
                if dice.random() < 0.1 and ids:
                    # A clock that goes back.
                    checkpoint["id"] = dice.choice(ids)[:-4] + f"{number * 50 + step:04x}"
                ids.append(checkpoint["id"])
                metadata = {"source": "loop", "step": step, "run_id": f"run {number % 7}", "odd": bool(step % 2)}
                writes = dice.random() < 0.3
                config = thread(f"thread {number}", namespace, parent)
                for saver in savers:
                    stored = saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])
                    if writes:
                        saver.put_writes(stored, [("n", step)], "task")
                parent = checkpoint["id"]
    return ids


def seen(saver, config, **query):
    """What a listing yields, except what is made anew for each."""
    return [
        (found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes)
        for found in saver.list(config, **query)
    ]


QUERIES = [
    {}, {"limit": 1}, {"limit": 10}, {"limit": 1000}, {"limit": 0},
    {"filter": {"run_id": "run 3"}}, {"filter": {"run_id": "run 3", "step": 1}}, {"filter": {"run_id": "run 3"}, "limit": 3},
    {"filter": {"step": 0.0}}, {"filter": {"odd": True}}, {"filter": {"missing": None}, "limit": 5},
    {"filter": {"run_id": "missing"}}, {"filter": {"parents": {}}}, {"filter": {"run_id": ["run 3"]}},
]  # fmt: skip


@pytest.mark.sweep(1, of="threads", in_turn=True)
@pytest.mark.parametrize("threads", [6, 25])
@parametrize(*OTHERS)
def test_listings_are_those_of_files(opener, tmp_path, threads):
    saver = opener.new()
    files = FileSystemCheckpointSaver(tmp_path / "files", fsync="never")
    ids = fill([saver, files], threads, threads)
    again = opener.reopen(saver) if opener.kind in DATABASES else saver
    queries = [*QUERIES]
    for last in ids[::40]:
        queries += [{"before": thread(checkpoint_id=last), "limit": limit} for limit in (3, None)]
    for query in queries:
        expected = seen(files, None, **query)
        for reader in (saver, again):
            assert seen(reader, None, **query) == expected, query
    one = {"configurable": {"thread_id": "thread 3"}}
    for config in (thread("thread 3"), one, thread("thread 3", "sub:1"), thread("missing")):
        for query in QUERIES:
            assert seen(again, config, **query) == seen(files, config, **query)


NEEDED = [({"limit": 10}, 10), ({"filter": {"run_id": "run 3"}}, 4), ({"filter": {"run_id": 3}}, 0)]
"""Queries, and how many histories a listing of them needs."""


@parametrize(*DATABASES)
def test_a_listing_opens_only_the_histories_that_it_needs(opener, monkeypatch):
    saver = opener.new()
    for number in range(100):
        config = put(saver, thread(f"thread {number}"), {"run_id": f"run {number % 25}"}, n=1)
        put(saver, config, {"run_id": f"run {number % 25}"}, n=2)
    for query, histories in NEEDED:
        # One lists the histories; each is then opened, and what was appended since is asked for.
        reader = opener.reopen(saver)
        counter = StatementCounter(reader.store, monkeypatch)
        assert counter.count(lambda reader=reader, query=query: list(reader.list(None, **query))) <= 1 + 3 * histories


@parametrize(*DATABASES)
def test_an_index_finds_metadata_of_each_way_to_put(opener):
    """Also of the usual put, whose record no other code makes."""
    saver = opener.new()
    config = thread()
    for number in range(30):
        config = put(saver, config, {"run_id": str(number)}, n=number)
    for number in range(30):
        heads = saver.store.catalogue.list_heads({"run_id": str(number)})
        assert [head.thread_id for head in heads] == ["t"], number
    assert saver.store.catalogue.list_heads({"run_id": "30"}) == []
    found = [one.checkpoint["channel_values"]["n"] for one in saver.list(None, filter={"run_id": "17"})]
    assert found == [17]


# Writes


@parametrize("file", *OTHERS)
def test_writes_that_come_before_their_checkpoint(opener):
    saver = opener.new()
    checkpoint = empty_checkpoint()
    own = thread(checkpoint_id=checkpoint["id"])
    saver.put_writes(own, [("a", "first"), ("b", 1)], "task 1")
    saver.put_writes(own, [("a", "second")], "task 1")
    saver.put_writes(own, [("__error__", "old")], "task 2")
    assert saver.get_tuple(thread()) is None
    assert list(saver.list(None)) == []
    saver.put_writes(own, [("__error__", "new")], "task 2")
    saver.put(thread(), checkpoint, {"step": -1}, {})
    expected = [("task 1", "a", "first"), ("task 1", "b", 1), ("task 2", "__error__", "new")]
    assert sorted(saver.get_tuple(thread()).pending_writes) == expected
    assert sorted(saver.get_tuple(own).pending_writes) == expected
    for query in ({}, {"limit": 1}):
        ((found,), (from_all,)) = list(saver.list(thread(), **query)), list(saver.list(None, **query))
        assert found.pending_writes == from_all.pending_writes == saver.get_tuple(own).pending_writes
    saver.put_writes(own, [("c", 3)], "task 3")
    saver.put(thread(), checkpoint, {"step": -1}, {})  # replaces it
    assert ("task 3", "c", 3) in saver.get_tuple(own).pending_writes
    assert len(saver.get_tuple(own).pending_writes) == 4


@parametrize(*DATABASES)
def test_a_thread_that_another_saver_has_deleted_is_begun_again(opener):
    first = opener.new()
    second = opener.reopen(first)
    own = RunnableConfig("t")
    first.store.put(own, Checkpoint(node_id="a", next_node_id="b", state={}))
    for _ in range(2):
        with pytest.raises(CheckpointConflictError):
            put(first, thread(), n=1)
    with pytest.raises(CheckpointConflictError):
        first.get_tuple(thread())
    second.delete_thread("t")
    put(first, thread(), n=1)
    assert first.get_tuple(thread()).checkpoint["channel_values"] == {"n": 1}


# Removing


@parametrize("file", *OTHERS)
def test_what_runs_made_is_removed(opener):
    saver = opener.new()
    fill([saver], 2, 10)
    before = seen(saver, None)
    saver.delete_for_runs(["run 1", "run 3"])
    left = [one for one in before if one[2]["run_id"] not in {"run 1", "run 3"}]
    assert [one[:3] for one in seen(saver, None)] == [one[:3] for one in left]
    assert "thread 1" not in saver.store.threads()


@parametrize(*OTHERS)
def test_idle_threads_are_deleted(opener):
    saver = opener.new(ttl=10 * DAY)
    saver._sweeper.stop()  # in the background it may delete the old thread first
    now = datetime.now(UTC)
    if opener.kind in DATABASES:
        histories = saver.store._database.names.histories
        records = saver.store._database.names.records
    for name, age in (("old", 20), ("recent", 5), ("imported", 20)):
        checkpoint = empty_checkpoint()
        checkpoint["ts"] = (now - age * DAY).isoformat()
        saver.put(thread(name), checkpoint, {"step": -1}, {})
        if opener.kind in DATABASES and name != "imported":
            with saver.store._database.transaction() as transaction:
                created = round((now - age * DAY).timestamp() * 1_000_000)
                transaction.execute(f"UPDATE {histories} SET created = ? WHERE thread = ?", (created, name))
                transaction.execute(
                    f"UPDATE {records} SET written = ?"
                    f" WHERE history IN (SELECT history FROM {histories} WHERE thread = ?)",
                    (created, name),
                )
    left = ["imported", "recent"] if opener.kind in DATABASES else ["recent"]
    assert saver.sweep_ttl() == 3 - len(left)
    assert sorted(saver.store.threads()) == left


def test_a_saver_that_cannot_list_says_so():
    saver = CheckpointSaver(FourMethods())
    config = put(saver, thread(), n=1)
    assert [one.config for one in saver.list(thread())] == [config]
    everywhere = {"configurable": {"thread_id": "t"}}
    for call in (lambda: list(saver.list(None)), lambda: list(saver.list(everywhere)), lambda: saver.prune(["t"])):
        with pytest.raises(CheckpointerConfigurationError, match="cannot list"):
            call()
    assert saver.get_tuple(thread()).config == config


def test_what_is_no_saver_is_refused():
    with pytest.raises(CheckpointerConfigurationError, match="takes a saver of graphkit"):
        CheckpointSaver("runs")
