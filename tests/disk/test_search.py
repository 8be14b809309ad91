"""What a search reads, and that nobody can change what it finds. The contract has what it finds."""

from contextlib import suppress

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.saver_kit import PLAIN
from graphkit.testing import made
from savers import FileSystemSaver
from tests.support.checkpoints import make_checkpoint
from tests.support.disks import CountingIO


@pytest.fixture
def filled(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for thread in "ab":
        for step in range(5):
            saver.put(RunnableConfig(thread), make_checkpoint(step))
    saver.put(RunnableConfig("b", checkpoint_ns="inner"), make_checkpoint(3))
    nested = Checkpoint(node_id="n", next_node_id="m", state={}, metadata={"step": 3, "nested": {"a": [1, 2]}})
    saver.put(RunnableConfig("b"), nested)
    saver.put_writes(RunnableConfig("a"), {"key": 1})
    return saver


def test_a_log_that_is_open_is_not_read_again(filled):
    expected = filled.search({"step": 3})
    io = CountingIO()
    with FileSystemSaver(filled.base_directory, io=io) as saver:
        for thread in saver.threads():
            for namespace in saver.namespaces(thread):
                saver.history(RunnableConfig(thread, checkpoint_ns=namespace))
        io.reset()
        assert saver.search({"step": 3}) == expected
    assert io.read == 0


def test_metadata_of_an_info_cannot_change_what_is_found_later(filled):
    with FileSystemSaver(filled.base_directory) as saver:
        (info,) = saver.search({"nested": {"a": [1, 2]}})
        assert info.metadata.kind == PLAIN
        with suppress(TypeError):
            info.metadata["nested"] = 1
        assert saver.search({"nested": {"a": [1, 2]}}) == [info]


def test_a_status_is_that_of_the_latest_checkpoint_and_not_of_an_older_one_with_its_id(tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for n in (1, 2):
        saver.put("t", made({}, id="same", metadata={"n": n}))
    assert [saver.search({"n": n})[0].status for n in (1, 2)] == ["", "stalled"]
