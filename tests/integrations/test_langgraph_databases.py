"""LangGraph's checkpointer on SQLite, PostgreSQL and memory does what it does on files."""

import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest import mock

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from graphkit import RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.transfer import copy_threads
from savers import FileSystemSaver, MemorySaver, SaverWrapper
from savers.langgraph import CheckpointSaver, FileSystemCheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, OTHERS, parametrize
from tests.support.disks import Died
from tests.support.langgraph_checkpoints import id_of, make_checkpoint, put, thread, values_of
from tests.support.savers import ListSaver
from tests.support.statements import StatementCounter

DAY = timedelta(days=1)


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
    stored = saver.get_tuple(own).pending_writes

    assert sorted(stored) == [("task 1", "a", "first"), ("task 1", "b", 1), ("task 2", "__error__", "new")]
    assert saver.get_tuple(thread()).pending_writes == stored

    for config, limit in itertools.product((thread(), None), (None, 1)):
        (found,) = saver.list(config, limit=limit)
        assert found.pending_writes == stored

    saver.put_writes(own, [("c", 3)], "task 3")
    saver.put(thread(), checkpoint, {"step": -1}, {})  # replaces it

    assert sorted(saver.get_tuple(own).pending_writes) == sorted([*stored, ("task 3", "c", 3)])


# Early writes that a saver without a log keeps in a namespace of their own, and those through a saver that hides its log


def put_two(saver, namespace="", early=7):
    """Put two checkpoints, each of which has a write that came before it; return their ids."""
    config = thread(namespace=namespace)
    ids = []
    for n in range(2):
        made = make_checkpoint(version=f"{n:04}", metadata={"step": n}, n=n)
        ids.append(made[0]["id"])
        saver.put_writes(at(ids[-1], namespace), [("n", early + n)], "task")
        config = saver.put(config, *made)

    return ids


def at(checkpoint_id, namespace=""):
    return thread(namespace=namespace, checkpoint_id=checkpoint_id)


READS = {
    "latest": lambda saver, ids, namespace: saver.get_tuple(thread(namespace=namespace)),
    "past": lambda saver, ids, namespace: saver.get_tuple(at(ids[0], namespace)),
    "latest by its id": lambda saver, ids, namespace: saver.get_tuple(at(ids[1], namespace)),
    "list": lambda saver, ids, namespace: next(saver.list(thread(namespace=namespace))),
    "list with a limit": lambda saver, ids, namespace: next(saver.list(thread(namespace=namespace), limit=1)),
    "list all": lambda saver, ids, namespace: next(saver.list(None, limit=1)),
    "list all with a filter": lambda saver, ids, namespace: next(saver.list(None, filter={"step": 1}, limit=1)),
}


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("namespace", ["", "sub:1"])
@parametrize("file", *DATABASES)
def test_early_writes_are_read_by_a_new_object(opener, namespace, is_copied):
    """They were copied from memory, or put through a saver around the one of the store, which hides the log."""
    saver = opener.open("store").store
    writer = MemorySaver() if is_copied else SaverWrapper(saver)
    ids = put_two(CheckpointSaver(writer), namespace)
    if is_copied:
        copy_threads(writer, saver)
    for name, read in READS.items():
        found = read(opener.open("store"), ids, namespace)
        expected = 7 if name == "past" else 8
        assert found.pending_writes == [("task", "n", expected)], name


def put_and_die(saver):
    """Put a checkpoint that has an early write, and die before the write is recorded with the checkpoint."""
    store = SaverWrapper(saver.store)
    effects = [mock.DEFAULT, Died]
    with mock.patch.object(store, "put_writes", wraps=store.put_writes, side_effect=effects), pytest.raises(Died):
        put_two(CheckpointSaver(store))
    return saver.store.history("t")[0].id


@pytest.fixture(params=["memory", "wrapped file"])
def without_log(request, tmp_path):
    """A checkpointer on a saver that has no log, or hides it."""
    if request.param == "memory":
        yield CheckpointSaver(MemorySaver())
        return
    with FileSystemSaver(tmp_path / "store", fsync="never") as files:
        yield CheckpointSaver(SaverWrapper(files))


def test_a_prune_keeps_the_early_writes_of_an_old_checkpoint_that_it_keeps(without_log):
    store = without_log.store
    old = put_and_die(without_log)
    ids = put_two(without_log, early=8)
    store.add_tags(RunnableConfig("t", old), "golden")
    assert store.prune("t", keep_last=1, keep_tags=["golden"]) == 1
    assert without_log.get_tuple(at(old)).pending_writes == [("task", "n", 7)]
    assert without_log.get_tuple(at(ids[1])).pending_writes == [("task", "n", 9)]


def test_a_prune_removes_the_early_writes_of_what_it_removes_and_no_writes_of_what_is_still_to_come(without_log):
    put_two(without_log)
    ids = put_two(without_log)
    for number in range(2):
        without_log.put_writes(at(f"later {number}"), [("n", number)], "task")

    def list_early():
        return {info.id for info in without_log.store.history(RunnableConfig("t", checkpoint_ns="#early:"))}

    assert len(list_early()) == 6
    assert without_log.store.prune("t", keep_last=1) == 3
    assert list_early() == {ids[1], "later 0", "later 1"}


# Removing


@parametrize("file", *OTHERS)
def test_what_runs_made_is_removed(opener):
    """With the writes of a checkpoint, also those that came before it, and threads that have no other."""
    saver = opener.new()
    put_runs(saver, "all of it", ["r", "s", "r"])
    puts = put_runs(saver, "some of it", ["r", "kept", "s", "kept"])
    saver.delete_for_runs(["r", "s", "unknown"])
    saver.delete_for_runs([])

    for found, number in zip(saver.list(None), (3, 1), strict=True):
        assert found.config == puts[number]
        assert values_of(found) == {"n": number}
        assert found.pending_writes == [("early", "n", number), ("late", "n", number)]

    assert list(saver.store.threads()) == ["some of it"]


@parametrize("file", *OTHERS)
def test_what_was_written_before_a_checkpoint_stays_when_other_threads_are_removed_and_is_no_history(opener):
    saver = opener.new()
    made = make_checkpoint(version="0", n=0)
    own = thread("t", checkpoint_id=made[0]["id"])
    saver.put_writes(own, [("n", 0)], "early")
    if opener.kind in {"file", *DATABASES}:
        assert saver.store.release(RunnableConfig("t")).version is None
        assert list(saver.store.versions_by_thread_id("t")) == []

    put_runs(saver, "other", ["r"])
    for runs in (["r"], ["r", "unknown"]):
        saver.delete_for_runs(runs)

    saver.put(thread("t"), *made)
    assert saver.get_tuple(own).pending_writes == [("early", "n", 0)]


def test_released_versions_stay_when_runs_are_removed(saver):
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
        own = thread(thread_id, checkpoint_id=made[0]["id"])
        saver.put_writes(own, [("n", number)], "early")
        configs.append(saver.put(configs[-1], *made))
        saver.put_writes(own, [("n", number)], "late")

    return configs[1:]


@parametrize("MemorySaver", "ListingSaver")
def test_idle_threads_are_deleted_by_the_times_of_their_checkpoints(opener):
    saver = opener.new(ttl=10 * DAY)
    saver._sweeper.stop()  # in the background it may delete the old thread first
    for name, age in (("old", 20), ("recent", 5)):
        put(saver, thread(name), ts=(datetime.now(UTC) - age * DAY).isoformat())
    assert saver.sweep_ttl() == 1
    assert list(saver.store.threads()) == ["recent"]


@parametrize("MemorySaver", "ListingSaver")
def test_the_history_of_a_channel_ends_at_a_missing_parent(opener):
    saver = opener.new()
    orphan = put(saver, thread(checkpoint_id="absent"), n=1)
    assert saver.get_delta_channel_history(config=orphan, channels=["n"]) == {"n": {"writes": []}}


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


# Puts


ABSENT = "ffffffff-ffff-6fff-bfff-ffffffffffff"


def put_many(saver, count, ids=None):
    """Put checkpoints one after another; return their configs."""
    configs = [thread()]
    for number, checkpoint_id in enumerate(ids or [None] * count):
        configs.append(put(saver, configs[-1], id=checkpoint_id, n=number))
    return configs[1:]


def seen(saver):
    return [
        (id_of(found.config), found.checkpoint["channel_values"], found.parent_config, found.pending_writes)
        for found in saver.list(thread())
    ]


@parametrize("postgres")
def test_a_put_and_early_writes_are_one_round_trip(opener, monkeypatch):
    saver = opener.new()
    assert saver.get_tuple(thread()) is None

    counter = StatementCounter(saver.store, monkeypatch)

    # That there is no history is known.
    assert counter.count(partial(put, saver, n=1)) == 1

    config = put_many(saver, 3)[-1]
    assert counter.count(partial(put, saver, config, n=7)) == 1
    config = saver.get_tuple(thread()).config
    assert counter.count(partial(put, saver, config, n=8, m=1)) == 1
    for own in (thread(checkpoint_id=ABSENT), saver.get_tuple(thread()).config):
        assert counter.count(partial(saver.put_writes, own, [("n", 1)], "task")) == 1


@pytest.mark.parametrize("values", [{"n": 99}, {"n": 99, "new": 1}])
@parametrize(*DATABASES)
def test_an_old_id_is_replaced_although_the_writer_does_not_know_it(opener, tmp_path, values):
    """The writer has read the end of the history, and does not ask for the id before it puts."""
    saver = opener.new()
    files = FileSystemCheckpointSaver(tmp_path / "files", fsync="never")
    configs = put_many(saver, 30)
    *_, newest = put_many(files, 30, map(id_of, configs))
    old = configs[3]
    writer = opener.reopen(saver)
    for each in (writer, files):
        assert each.get_tuple(thread()).config == newest
        put(each, newest, id=id_of(old), **values)
        put(each, old, id=ABSENT, **values)

    assert seen(writer) == seen(files)
    assert len(seen(writer)) == 31
    assert writer.store.verify().ok
