"""A directory that is removed while it is in use: an error, and never a history that silently begins anew."""

import shutil

import pytest

from graphkit import CheckpointConflictError, CheckpointStorageError, RunnableConfig
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import HookedIO, failing
from tests.support.graphs import make_chain

T = RunnableConfig("t")


INNER = RunnableConfig("t", checkpoint_ns="inner")


def remove_thread(root):
    shutil.rmtree(next(root.glob("t-t-*")))


def remove_log(root):
    (next(root.glob("t-t-*")) / "log").unlink()


REMOVALS = {"thread": remove_thread, "log": remove_log, "store": shutil.rmtree}
WRITES = {
    "put": lambda saver: saver.put(T, make_checkpoint(9)),
    "put_writes": lambda saver: saver.put_writes(T, {"key": 1}),
    "add_tags": lambda saver: saver.add_tags(T, "tag"),
}


@pytest.mark.parametrize("removal", REMOVALS)
@pytest.mark.parametrize("name", WRITES)
def test_the_next_write_to_an_open_log_raises_and_the_one_after_it_begins_a_new_history(
    name, removal, opener, tmp_path
):
    saver = opener()
    for number in range(3):
        saver.put(T, make_checkpoint(number))
    REMOVALS[removal](tmp_path / "store")
    with pytest.raises(CheckpointConflictError, match="was removed while it was in use"):
        WRITES[name](saver)
    assert opener().list(T) == []
    saver.put(T, make_checkpoint(7))
    assert list_numbers(opener(), T) == [7]
    assert opener().verify().ok


def graph(nodes):
    return make_chain({}, **{f"n{number}": node for number, node in enumerate(nodes)})


def one_more(state):
    return {"n": state["n"] + 1}


@pytest.mark.parametrize("read", [False, True], ids=["", "read in between"])
@pytest.mark.parametrize("evicted", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("removal", ["thread", "store"])
def test_a_run_whose_directory_goes_fails_and_leaves_no_part_of_a_history(removal, evicted, read, opener, tmp_path):
    saver = opener()

    def removing(state):
        REMOVALS[removal](tmp_path / "store")
        if evicted:
            saver._store.close()
        if read:
            # Another caller of the same saver finds nothing, which must not make the run forget.
            assert saver.list(T) == []
        return one_more(state)

    app = graph([one_more, removing, one_more, one_more]).compile(checkpoint_saver=saver)
    with pytest.raises(CheckpointConflictError, match="was removed while it was in use"):
        app.invoke({"n": 0}, T)
    assert opener().list(T) == []
    again = graph([one_more, one_more]).compile(checkpoint_saver=saver)
    assert again.invoke({"n": 0}, T) == {"n": 2}
    assert len(opener().list(T)) == 3


def test_a_run_may_delete_its_own_thread(opener):
    saver = opener()

    def deleting(state):
        assert saver.delete("t")
        return one_more(state)

    app = graph([one_more, deleting, one_more]).compile(checkpoint_saver=saver)
    assert app.invoke({"n": 0}, T) == {"n": 3}
    assert [checkpoint.node_id for checkpoint in saver.list(T)] == ["n2", "n1"]


def prune(saver, _io):
    assert saver.prune("t", keep_last=1) == 2


def remove_all(saver, _io):
    assert saver.remove(T, [checkpoint.id for checkpoint in saver.list(T)]) == 3


def fail_to_sync(saver, io):
    with failing(io, "fdatasync", times=1), pytest.raises(CheckpointStorageError):
        saver.put(T, make_checkpoint(3))


REWRITES = {"prune": prune, "remove": remove_all, "failed sync": fail_to_sync}
ENDS = {"delete": lambda saver: saver.delete("t"), "release": lambda saver: saver.release(T)}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("rewrite", REWRITES)
def test_what_another_process_rewrites_and_then_deletes_or_releases_is_no_loss(rewrite, end, opener):
    saver = opener()
    for number in range(3):
        saver.put(T, make_checkpoint(number))
    io = HookedIO()
    other = opener(fsync="always", io=io)
    REWRITES[rewrite](other, io)
    ENDS[end](other)
    saver.put(T, make_checkpoint(4))
    assert list_numbers(saver, T) == [4]


def test_a_copy_that_another_process_deletes_is_no_loss(opener):
    saver = opener()
    for config in (T, INNER):
        saver.put(config, make_checkpoint(0))
    saver.copy("t", "copied")  # puts a mark first, which keeps the log open that the copy replaces
    assert opener().delete("copied")
    saver.put(RunnableConfig("copied"), make_checkpoint(1))
    assert list_numbers(saver, RunnableConfig("copied")) == [1]
