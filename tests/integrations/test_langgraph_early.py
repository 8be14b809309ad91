"""Early writes in a namespace of their own, as an earlier version stored them, are read from copies of such stores."""

import uuid
from functools import partial

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.base import empty_checkpoint

from savers._wrappers.base import SaverWrapper
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


def copy_files(saver, namespace=""):
    """Put as a store of files does that an earlier version wrote; return the ids."""
    return put(CheckpointSaver(SaverWrapper(saver.store)), namespace, early=7)


@pytest.fixture
def reopen(opener):
    """Open the store of the test, with a new object each time."""
    return partial(opener.open, uuid.uuid4().hex)


def count_statements(saver, monkeypatch, call):
    statements = []
    database = saver.store._database
    read = database.read
    with monkeypatch.context() as patch:
        patch.setattr(database, "read", lambda *args: statements.append(args) or read(*args))
        call()
    return len(statements)


READS = {
    "latest": lambda saver, ids, namespace: saver.get_tuple(thread(namespace)),
    "past": lambda saver, ids, namespace: saver.get_tuple(thread(namespace, ids[0])),
    "latest by its id": lambda saver, ids, namespace: saver.get_tuple(thread(namespace, ids[1])),
    "list": lambda saver, ids, namespace: next(saver.list(thread(namespace))),
    "list with a limit": lambda saver, ids, namespace: next(saver.list(thread(namespace), limit=1)),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("namespace", ["", "sub:1"])
@parametrize("file", *DATABASES)
def test_early_writes_are_read_by_a_new_object(reopen, namespace, name):
    saver = reopen()
    ids = copy_files(saver, namespace)
    found = READS[name](reopen(), ids, namespace)
    expected = 7 if name == "past" else 8
    assert found.pending_writes == [("task", "n", expected)]


@parametrize("file", *DATABASES)
def test_early_writes_are_read_after_each_other_read(reopen):
    saver = reopen()
    ids = copy_files(saver)
    reader = reopen()
    for _ in range(2):
        for name, read in READS.items():
            assert len(read(reader, ids, "").pending_writes) == 1, name


@parametrize(*DATABASES)
def test_a_thread_with_one_namespace_is_not_asked_for_others(reopen, monkeypatch):
    saver = reopen()
    ids = put(saver)
    for name, read in READS.items():
        reader = reopen()
        reader.get_tuple({"configurable": {"thread_id": "other"}})
        found = count_statements(reader, monkeypatch, partial(read, reader, ids, ""))
        assert found == 1, name


@parametrize(*DATABASES)
def test_a_thread_with_other_namespaces_is_asked_for_them_once(reopen, monkeypatch):
    saver = reopen()
    ids = put(saver)
    put(saver, "sub:1")
    reader = reopen()
    reader.get_tuple({"configurable": {"thread_id": "other"}})
    assert count_statements(reader, monkeypatch, partial(READS["past"], reader, ids, "")) == 2
    assert count_statements(reader, monkeypatch, partial(READS["past"], reader, ids, "")) == 1


@parametrize(*DATABASES)
def test_a_released_namespace_counts_no_more(reopen, monkeypatch):
    saver = reopen()
    put(saver)
    put(saver, "sub:1")
    saver.store.release(thread())
    ids = put(saver)
    reader = reopen()
    reader.get_tuple({"configurable": {"thread_id": "other"}})
    assert count_statements(reader, monkeypatch, partial(READS["past"], reader, ids, "")) == 1


@parametrize(*DATABASES)
def test_a_history_without_rows_is_damaged_and_not_absent(reopen):
    saver = reopen()
    ids = put(saver)
    database = saver.store._database
    with database.transaction() as transaction:
        transaction.execute(f"DELETE FROM {database.names.records}")
    for name, read in READS.items():
        with pytest.raises(Exception, match="first record is missing"):
            pytest.fail(f"{name}: {read(reopen(), ids, '')}")
