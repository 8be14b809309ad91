"""Values of many bytes: a put copies them seldom, and the bytes of a record are the same as without that care."""

import os
import tracemalloc

import msgpack
import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver, SqliteSaver
from tests.support.logs import locate_log, read_checkpoints

SIZE = 8 << 20
CONFIG = RunnableConfig("t")
SECTOR = 512


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("open_saver", [FileSystemSaver, SqliteSaver])
def test_a_put_takes_three_times_the_bytes_of_a_long_value_and_keeps_none(tmp_path, open_saver, fsync):
    with open_saver(tmp_path / "store", fsync=fsync) as saver:
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"n": 2, "long": os.urandom(SIZE)})
        tracemalloc.start()
        try:
            saver.put(CONFIG, checkpoint)
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 3.2 * SIZE
        assert kept < SIZE / 10
        assert saver.get(CONFIG).state["long"] == checkpoint.state["long"]


@pytest.mark.parametrize("length", [0, 1, 65_535, 65_536, 65_537, 1 << 17])
def test_the_payload_with_a_long_value_is_what_msgpack_makes(tmp_path, length):
    with FileSystemSaver(tmp_path, fsync="never", compression=None) as saver:
        for number in range(2):
            state = {"long": os.urandom(length)}
            saver.put(CONFIG, Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", state=state))
        saver.put(CONFIG.with_check_point_id("c1"), Checkpoint(id="c2", node_id="a", next_node_id="b", state=state))
    for record in read_checkpoints(locate_log(tmp_path)):
        assert msgpack.packb(msgpack.unpackb(record.payload)) == record.payload
