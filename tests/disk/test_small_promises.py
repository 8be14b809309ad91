"""Promises about the file saver that need no fault to be shown."""

import os
import shutil
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointerConfigurationError, RunnableConfig
from graphkit.abc import StateSerializer
from savers import FileSystemSaver
from savers._filesystem import store
from savers._filesystem.lock import WriteLock
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import FileIO
from tests.support.logs import locate_log


class Reversed(StateSerializer):
    def dumps(self, data):
        return repr(dict(data)).encode()[::-1]

    def loads(self, data):
        import ast

        return dict(ast.literal_eval(data[::-1].decode()))


@pytest.mark.requirement("L6")
@pytest.mark.parametrize("more", [(), (Reversed(),)], ids=["path", "path and serializer"])
def test_a_path_is_enough_and_a_serializer_may_follow(tmp_path, more, config):
    for kind in (str, Path):
        path = kind(tmp_path / kind.__name__ / "made")
        with FileSystemSaver(path, *more) as saver:
            saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        assert Path(path).is_dir()
        with FileSystemSaver(path, *more) as saver:
            assert saver.get(config).state == {"n": 1}
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointerConfigurationError):
        FileSystemSaver(tmp_path / "file", *more)


@pytest.mark.requirement("L8", "H8")
@pytest.mark.parametrize(
    "name", ["a[", "../x", "/etc/passwd", "a/b\\c", "..", "", "CON", "x" * 10_000, "\ud800", "a\0b"]
)
def test_hostile_ids_of_threads_and_nodes_stay_inside_and_come_back(name, opener, config, tmp_path):
    config = config.replace(thread_id=name, checkpoint_ns=name)
    saver = opener()
    saver.put(config.replace(checkpoint_ns=""), Checkpoint(node_id=name, next_node_id=name, state={"n": 1}))
    saver.put(config, Checkpoint(node_id=name, next_node_id=name, state={"n": 2}))
    fresh = opener()
    assert list(fresh.threads()) == [name]
    assert fresh.get(config).node_id == name
    assert fresh.release(config).checkpoints[0].next_node_id == name
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert fresh.verify().ok
    assert fresh.delete(name)
    assert not list(fresh.threads(released=True))


@pytest.mark.requirement("H7")
def test_a_run_has_a_directory_of_its_own_and_no_pointer_says_which_checkpoint_is_its_latest(opener, tmp_path):
    saver = opener()
    for run in ("first", "second"):
        for number in range(3):
            saver.put(RunnableConfig(run), Checkpoint(node_id=f"{number}", next_node_id="next", state={"n": number}))
    directories = [path for path in (tmp_path / "store").iterdir() if path.name.startswith("t-")]
    assert sorted(path.name.split("-")[1] for path in directories) == ["first", "second"]
    shutil.rmtree(next(path for path in directories if path.name.startswith("t-first")))
    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "store", moved)
    for place in (tmp_path / "store", moved):
        fresh = opener(place)
        assert list(fresh.threads()) == ["second"]
        assert fresh.get(RunnableConfig("second")).node_id == "2"
        assert fresh.get(RunnableConfig("first")) is None


@pytest.mark.requirement("H33")
def test_there_is_no_index_to_lose_and_all_files_but_the_logs_are_created_again(opener, config):
    saver = opener()
    for n in range(5):
        saver.put(config.replace(thread_id=f"Thread {n}"), Checkpoint(node_id="a", next_node_id="b", state={"n": n}))
    saver.close()
    root = Path(saver.base_directory)
    (root / "graphkit.store").unlink()
    shutil.rmtree(root / "locks")
    for lock in root.glob("t-*/run.lock"):
        lock.unlink()
    saver = opener()
    assert list(saver.threads()) == [f"Thread {n}" for n in range(5)]
    saver.put(config.replace(thread_id="Thread 3"), Checkpoint(node_id="a", next_node_id="b", state={"n": 33}))
    assert list_numbers(opener(), config.replace(thread_id="Thread 3")) == [33, 3]
    assert (root / "graphkit.store").exists()


@pytest.mark.parametrize("namespace", ["", "sub"])
def test_a_deletion_of_what_was_set_aside_is_one(namespace, opener, config, tmp_path):
    saver = opener()
    saver.put(config.replace(checkpoint_ns=namespace), make_checkpoint(0))
    saver.close()
    path = locate_log(tmp_path / "store", namespace=namespace)
    path.rename(path.with_name("damaged-00000000000000000000000000000001.bin"))
    again = opener()
    assert again.threads() == []
    assert again.delete("t") is True
    assert not path.parent.exists()
    assert again.delete("t") is False


def test_two_writers_that_need_a_lock_at_the_same_time_get_the_same_one(opener, monkeypatch):
    locks = opener()._store
    found = []

    def make_while_another_makes_it(*arguments):
        if not found:
            found.append(None)
            found[0] = locks.write_lock(locks.locate("t"))
        return WriteLock(*arguments)

    monkeypatch.setattr(store, "WriteLock", make_while_another_makes_it)
    assert locks.write_lock(locks.locate("t")) is found[0]
    assert locks.write_lock(locks.locate("t")) is found[0]


def test_a_new_file_may_lose_its_name_to_another_process_at_once(tmp_path, monkeypatch):
    io = FileIO()
    make = os.open

    def make_and_lose(path, *arguments):
        fd = make(path, *arguments)
        Path(path).unlink()
        return fd

    monkeypatch.setattr(os, "open", make_and_lose)
    fd = io.open(str(tmp_path / "tmp-marker"), write=True, create=True)
    assert io.fstat(fd).st_nlink == 0
    io.close(fd)
