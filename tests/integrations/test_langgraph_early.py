"""Early writes that a saver without a log kept in a namespace of their own are read from copies of its store.

So is what was written through a saver around one that has logs.
"""

from unittest import mock

import pytest

pytest.importorskip("langgraph")

from graphkit import RunnableConfig
from graphkit.transfer import copy_threads
from savers import FileSystemSaver, MemorySaver, SaverWrapper
from savers.langgraph import CheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.disks import Died
from tests.support.langgraph_checkpoints import make_checkpoint, thread


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


# What a prune leaves of them


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
