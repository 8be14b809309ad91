"""What the file saver can do beside its contract: look at one checkpoint, and write beside none."""

from multiprocessing import get_context

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver

CONTEXT = get_context("spawn")


def at(id=None):
    return RunnableConfig("t", checkpoint_id=id)


@pytest.fixture
def saver(opener):
    saver = opener()
    for n in range(4):
        saver.put(at(), Checkpoint(id=f"c{n}", node_id=f"n{n}", next_node_id="x", state={"list": list(range(n * 100))}))
    return saver


def test_info_is_the_line_of_the_history(saver, opener):
    assert [saver.info(at(info.id)) for info in saver.history(at())] == list(saver.history(at()))
    assert opener().info(at()).id == "c3"
    assert saver.info(at("unknown")) is None
    assert saver.info(RunnableConfig("nobody")) is None


def test_a_checkpoint_that_is_to_be_unique_is_replaced_if_it_is_there(saver, opener):
    def made(id):
        return Checkpoint(id=id, node_id="new", next_node_id="x", state={"n": 1})

    def ids():
        return [info.id for info in opener().history(at())]

    new = made("c1")
    saver.put_writes(at("c1"), {"w": 1})
    saver.put(at(), new, unique=True)
    opener().put(at(), made("c4"), unique=True)
    assert ids() == ["c4", "c3", "c2", "c1", "c0"]
    assert opener().get(at("c1")) == new
    assert opener().get_writes(at("c1")) == {"w": 1}
    opener().put(RunnableConfig("empty"), new, unique=True)
    saver.put(at(), new)
    assert len(ids()) == 6


def test_what_is_to_be_kept_stays_and_the_rest_is_replaced(saver, opener):
    saver.put_writes(at("c1"), {"first": 1, "last": 1}, keep=["first"])
    saver.put_writes(at("c1"), {"first": 2, "last": 2, "new": 2}, keep=["first", "new"])
    assert opener().get_writes(at("c1")) == {"first": 1, "last": 2, "new": 2}
    before = saver.size("t")
    saver.put_writes(at("c1"), {"first": 3}, keep=["first"])
    assert saver.size("t") == before


def _race(root, name):
    FileSystemSaver(root, fsync="never").put_writes(
        at("none"),
        {"who": name, name: True},
        keep=["who"],
        early=True,
    )


def test_of_two_processes_that_write_for_a_checkpoint_to_come_one_is_first(tmp_path):
    processes = [CONTEXT.Process(target=_race, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    saver = FileSystemSaver(tmp_path)
    assert saver.history(at()) == []
    saver.put(at(), Checkpoint(id="none", node_id="n", next_node_id=None, state={}))
    found = saver.get_writes(at("none"))
    assert found.keys() == {"a", "b", "who"}
    assert found["who"] in {"a", "b"}
