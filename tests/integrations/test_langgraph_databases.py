"""LangGraph's checkpointer on SQLite, PostgreSQL and memory does what it does on files."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from graphkit import Checkpoint, CheckpointConflictError, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from savers.langgraph import CheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, OTHERS, parametrize
from tests.support.langgraph_checkpoints import make_checkpoint, put, thread, values_of
from tests.support.savers import ListSaver

DAY = timedelta(days=1)


@parametrize(*DATABASES)
def test_an_index_finds_metadata_of_each_way_to_put(opener):
    """Also of the usual put, whose record no other code makes."""
    saver = opener.new()
    find = saver.store.catalogue.list_heads
    config = thread()
    for number in range(30):
        config = put(saver, config, {"run_id": str(number)}, n=number)
    for number in range(30):
        (head,) = find({"run_id": str(number)})
        assert head.thread_id == "t"
    assert find({"run_id": "30"}) == []
    (found,) = saver.list(None, filter={"run_id": "17"})
    assert values_of(found) == {"n": 17}


# Writes


@parametrize("file", *OTHERS)
def test_writes_that_come_before_their_checkpoint(opener):
    saver = opener.new()
    checkpoint = empty_checkpoint()
    own = thread(checkpoint_id=checkpoint["id"])
    first = [("a", "first"), ("b", 1)]
    saver.put_writes(own, first, "task 1")
    saver.put_writes(own, [("a", "second")], "task 1")
    saver.put_writes(own, [("__error__", "old")], "task 2")
    assert saver.get_tuple(thread()) is None
    assert list(saver.list(None)) == []

    saver.put_writes(own, [("__error__", "new")], "task 2")
    saver.put(thread(), checkpoint, {"step": -1}, {})
    stored = saver.get_tuple(own).pending_writes
    assert sorted(stored) == [
        ("task 1", "a", "first"),
        ("task 1", "b", 1),
        ("task 2", "__error__", "new"),
    ]
    newest = saver.get_tuple(thread())
    for found in (newest, *list_each_way(saver)):
        assert found.pending_writes == stored

    saver.put_writes(own, [("c", 3)], "task 3")
    saver.put(thread(), checkpoint, {"step": -1}, {})  # replaces it
    writes = saver.get_tuple(own).pending_writes
    expected = [*stored, ("task 3", "c", 3)]
    assert sorted(writes) == sorted(expected)


def list_each_way(saver):
    """What listings of a history and of the whole store find, with a limit and without one."""
    for config in (thread(), None):
        for limit in (None, 1):
            yield from saver.list(config, limit=limit)


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
    """With the writes of a checkpoint, also those that came before it, and threads that have no other."""
    saver = opener.new()
    put_runs(saver, "all of it", ["r", "s", "r"])
    puts = put_runs(saver, "some of it", ["r", "kept", "s", "kept"])
    saver.delete_for_runs(["r", "s", "unknown"])
    saver.delete_for_runs([])
    left = [*saver.list(None)]
    for found, number in zip(left, (3, 1), strict=True):
        assert found.config == puts[number]
        assert values_of(found) == {"n": number}
        early, late = found.pending_writes
        assert early == ("early", "n", number)
        assert late == ("late", "n", number)
    (thread_id,) = saver.store.threads()
    assert thread_id == "some of it"


def put_early_write(saver):
    """Put a write before its checkpoint; return what makes the checkpoint."""
    made = make_checkpoint(version="0", n=0)
    saver.put_writes(thread("t", checkpoint_id=made[0]["id"]), [("n", 0)], "early")
    return made


def check_early_write(saver, made):
    """Put the checkpoint, which must have its write."""
    saver.put(thread("t"), *made)
    own = thread("t", checkpoint_id=made[0]["id"])
    assert saver.get_tuple(own).pending_writes == [("early", "n", 0)]


@parametrize("file", *OTHERS)
def test_what_other_threads_wrote_before_a_checkpoint_stays(opener):
    saver = opener.new()
    made = put_early_write(saver)
    put_runs(saver, "other", ["r"])
    for runs in (["r"], ["r", "unknown"]):
        saver.delete_for_runs(runs)
    check_early_write(saver, made)


@parametrize("file", *DATABASES)
def test_what_waits_for_its_checkpoint_is_no_history_that_could_be_released(opener):
    saver = opener.new()
    made = put_early_write(saver)
    assert saver.store.release(RunnableConfig("t")).version is None
    assert list(saver.store.versions_by_thread_id("t")) == []
    check_early_write(saver, made)


@parametrize("file")
def test_released_versions_stay_when_runs_are_removed(opener):
    saver = opener.new()
    put_runs(saver, "t", ["kept"])
    saver.store.release(RunnableConfig("t"))
    put_runs(saver, "t", ["r"])
    saver.delete_for_runs(["r"])
    assert saver.store.versions_by_thread_id("t") == [1]
    assert not saver.store.namespaces("t")
    assert list(saver.list(None)) == []


def put_runs(saver, thread_id, runs):
    """Put checkpoints of runs with writes, which come before the checkpoint and after it; return their configs."""
    configs = [thread(thread_id)]
    for number, run in enumerate(runs):
        made = make_checkpoint(version=f"{number}", metadata={"run_id": run}, n=number)
        checkpoint, _, _ = made
        own = thread(thread_id, checkpoint_id=checkpoint["id"])
        writes = [("n", number)]
        saver.put_writes(own, writes, "early")
        stored = saver.put(configs[-1], *made)
        configs.append(stored)
        saver.put_writes(own, writes, "late")
    return configs[1:]


@parametrize(*OTHERS)
def test_idle_threads_are_deleted(opener):
    saver = opener.new(ttl=10 * DAY)
    saver._sweeper.stop()  # in the background it may delete the old thread first
    now = datetime.now(UTC)
    is_database = opener.kind in DATABASES
    for name, age in (("old", 20), ("recent", 5), ("imported", 20)):
        made_at = now - age * DAY
        checkpoint = empty_checkpoint()
        checkpoint["ts"] = made_at.isoformat()
        saver.put(thread(name), checkpoint, {"step": -1}, {})
        if is_database and name != "imported":
            database = saver.store._database
            histories = database.names.histories
            records = database.names.records
            created = round(made_at.timestamp() * 1_000_000)
            with database.transaction() as transaction:
                transaction.execute(f"UPDATE {histories} SET created = ? WHERE thread = ?", (created, name))
                transaction.execute(
                    f"UPDATE {records} SET written = ?"
                    f" WHERE history IN (SELECT history FROM {histories} WHERE thread = ?)",
                    (created, name),
                )
    left = ["imported", "recent"] if is_database else ["recent"]
    assert saver.sweep_ttl() == 3 - len(left)
    assert sorted(saver.store.threads()) == left


@parametrize("MemorySaver", "ListingSaver")
def test_a_long_history_without_a_log_is_read_as_far_as_it_is_needed(opener):
    saver = opener.new()
    config = thread()
    for number in range(60):
        config = put(saver, config, {"step": number}, n=number)
    (found,) = saver.list(None, filter={"step": 2}, limit=1)
    assert values_of(found) == {"n": 2}
    orphan = put(saver, thread(checkpoint_id="absent"), n=1)
    history = saver.get_delta_channel_history(config=orphan, channels=["n"])
    assert history == {"n": {"writes": []}}


def test_a_saver_that_cannot_list_raises():
    saver = CheckpointSaver(ListSaver())
    config = put(saver, thread(), n=1)
    assert [saved.config for saved in saver.list(thread())] == [config]
    for call in (
        lambda: list(saver.list(None)),
        lambda: list(saver.list({"configurable": {"thread_id": "t"}})),
        lambda: saver.prune(["t"]),
    ):
        with pytest.raises(CheckpointerConfigurationError, match="cannot list"):
            call()
    assert saver.get_tuple(thread()).config == config


def test_what_is_no_saver_is_refused():
    with pytest.raises(CheckpointerConfigurationError, match="takes a saver of graphkit"):
        CheckpointSaver("runs")
