"""Early writes that a saver without a log kept in a namespace of their own are read from copies of its store.

So is what was written through a saver around one that has logs.
"""

import uuid
from functools import partial

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from graphkit.transfer import copy_threads
from savers import MemorySaver, SaverWrapper
from savers.langgraph import CheckpointSaver
from tests.integrations.langgraph_stores import DATABASES, parametrize


def thread(namespace="", checkpoint_id=None):
    return {"configurable": {"thread_id": "t", "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def put(saver, namespace="", early=None):
    """Put two checkpoints, the first of which may have a write that came before it; return their ids."""
    ids = []
    for n in range(2):
        checkpoint = empty_checkpoint()
        checkpoint |= {"channel_values": {"n": n}, "channel_versions": {"n": f"{n:04}"}}
        if early is not None:
            saver.put_writes(thread(namespace, checkpoint["id"]), [("n", early + n)], "task")
        parent = ids[-1] if ids else None
        saver.put(thread(namespace, parent), checkpoint, {"step": n}, checkpoint["channel_versions"])
        ids.append(checkpoint["id"])
    return ids


def put_through_wrapper(saver, namespace=""):
    """Put through a saver around the one of the store, which hides the log; return the ids."""
    return put(CheckpointSaver(SaverWrapper(saver.store)), namespace, early=7)


def copy_from_memory(saver, namespace=""):
    """Put to a MemorySaver, and copy its threads to the store; return the ids."""
    memory = MemorySaver()
    ids = put(CheckpointSaver(memory), namespace, early=7)
    copy_threads(memory, saver.store)
    return ids


@pytest.fixture
def reopen(opener):
    """Open the store of the test, with a new object each time."""
    return partial(opener.open, uuid.uuid4().hex)


READS = {
    "latest": lambda saver, ids, namespace: saver.get_tuple(thread(namespace)),
    "past": lambda saver, ids, namespace: saver.get_tuple(thread(namespace, ids[0])),
    "latest by its id": lambda saver, ids, namespace: saver.get_tuple(thread(namespace, ids[1])),
    "list": lambda saver, ids, namespace: next(saver.list(thread(namespace))),
    "list with a limit": lambda saver, ids, namespace: next(saver.list(thread(namespace), limit=1)),
}


@pytest.mark.parametrize("fill", [put_through_wrapper, copy_from_memory])
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("namespace", ["", "sub:1"])
@parametrize("file", *DATABASES)
def test_early_writes_are_read_by_a_new_object(reopen, namespace, name, fill):
    saver = reopen()
    ids = fill(saver, namespace)
    found = READS[name](reopen(), ids, namespace)
    expected = 7 if name == "past" else 8
    assert found.pending_writes == [("task", "n", expected)]


@parametrize("file", *DATABASES)
def test_the_namespace_of_early_writes_is_not_listed(reopen):
    saver = reopen()
    ids = put_through_wrapper(saver)
    assert "#early:" in saver.store.namespaces("t")
    for config in (None, {"configurable": {"thread_id": "t"}}):
        for limit in (None, 5):
            listed = [one.config["configurable"]["checkpoint_id"] for one in saver.list(config, limit=limit)]
            assert listed == ids[::-1]
