"""A release that died before its version had its name: what follows it finishes it."""

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.support.checkpoints import make_checkpoint
from tests.support.disks import CountingIO, HookedIO, failing

ROOT, INNER = (RunnableConfig("t", checkpoint_ns=namespace) for namespace in ("", "inner"))


def unfinished(tmp_path, configs):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path / "store", fsync="never", io=io)
    for config in configs:
        saver.put(config, make_checkpoint(0))
    with failing(io, "rename"), pytest.raises(CheckpointStorageError):
        saver.release(ROOT)
    saver.close()
    return FileSystemSaver(tmp_path / "store", fsync="never")


def test_its_states_can_be_read_before_and_after_it_is_finished(tmp_path):
    saver = unfinished(tmp_path, (ROOT, INNER))
    assert (saver.threads(), saver.threads(released=True)) == ([], ["t"])
    before, after = saver.tag(ROOT, 1).checkpoints[0], saver.tag(INNER, 1).checkpoints[0]
    assert before.state["n"] == 0
    assert saver.release(ROOT).version == 1
    assert after.state["n"] == 0
    assert saver.release(ROOT).version is None, "an empty thread makes no version"
    assert not [*tmp_path.glob("store/r-*")]
    saver.close()


def test_delete_and_repair_take_an_unfinished_release_along(tmp_path):
    saver = unfinished(tmp_path, (ROOT, INNER))
    assert saver.repair().finished == ("t",)
    assert saver.versions_by_thread_id("t") == [1]
    assert saver.delete("t")
    assert saver.threads(released=True) == []
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["graphkit.store", "locks"]
    saver.close()


def test_listing_threads_opens_no_log_but_that_of_an_unfinished_release(opener, tmp_path):
    unfinished(tmp_path, (ROOT,)).close()
    saver = opener()
    for number in range(20):
        saver.put(RunnableConfig(f"u{number}"), make_checkpoint(0))
    io = CountingIO()
    reader = opener(io=io)
    io.reset()
    assert len(reader.threads()) == 20
    assert io.calls.count("open") <= 2
    (tmp_path / "store" / "r-nonsense").mkdir()
    assert len(reader.threads()) == 20
