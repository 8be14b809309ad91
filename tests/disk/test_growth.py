"""Bytes on disk are proportional to what changed, and a put costs the same however long the history is."""

import os
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from graphkit import Channels, Checkpoint, RunnableConfig
from graphkit.saver_kit import freeze, generate_id
from savers import FileSystemSaver, SqliteSaver
from tests.support.checkpoints import apply_update, make_checkpoint, make_following
from tests.support.disks import CountingIO, HookedIO
from tests.support.logs import locate_log, read_checkpoints, read_records


def run(state, updates):
    """The checkpoints of a run, as the engine makes them: each knows what changed since its parent."""
    channels = {"messages": Channels.appender_with_duplicate()}
    state = freeze(state)
    parent = None
    for step, update in enumerate(updates):
        state, changes = apply_update(state, update, channels)
        checkpoint = make_following(
            step, state, changes if parent else None,
            id=generate_id(), node_id="agent", next_node_id="agent", parent_id=parent,
            metadata=freeze({"step": step, "run_id": "r" * 36}),
        )  # fmt: skip
        yield checkpoint
        parent = checkpoint.id


def grow(count):
    """The checkpoints of a list that grows by a message each time."""
    return run({"messages": [], "n": 0}, ({"messages": [f"{n:0200}"]} for n in range(count)))


def noise(n):
    """300 characters that share nothing with the ones before."""
    return random.Random(n).randbytes(150).hex()


@pytest.mark.requirement("promise 6", "H48", "P51")
def test_3000_puts_of_a_growing_list_take_less_than_900_kB(opener, config):
    saver = opener()
    for checkpoint in grow(3000):
        saver.put(config, checkpoint)
    assert saver.size("t") <= 900_000
    io = CountingIO()
    fresh = opener(io=io)
    assert fresh.get(config).state == checkpoint.state
    assert io.calls.count("read") < 32, "its bytes are found by at most 16 keyframes"
    listed = fresh.list(config)
    assert len(listed) == 3000
    messages = [f"{n:0200}" for n in range(3000)]
    for n in (0, 1, 13, 14, 500, 1499, 2998):
        checkpoint = listed[2999 - n]
        assert checkpoint.state["messages"] == messages[: n + 1]


@pytest.mark.requirement("H54")
def test_a_big_value_that_stays_is_stored_once(opener, config):
    saver = opener()
    for checkpoint in run({"blob": b"\xff" * 1_000_000}, ({"n": n} for n in range(500))):
        saver.put(config, checkpoint)
    assert saver.size("t") <= 1_000_000 + 500 * 110
    assert opener().get(config).state == checkpoint.state


def test_a_small_change_deep_inside_is_a_small_record(opener, config):
    saver = opener()
    nested = {}
    for k in range(200):
        nested[f"key {k}"] = {"values": [*range(10)], "name": f"name {k}"}
    for n in range(20):
        nested["key 77"] = {"values": [n], "name": "changed"}
        saver.put(config, make_checkpoint(1, nested=dict(nested)))
    path = locate_log(saver.base_directory)
    *_, last = read_records(path)
    assert last.size < 200
    found = opener().get(config).state["nested"]
    assert found == nested
    assert list(found) == list(nested)


@pytest.mark.requirement("promise 6")
@pytest.mark.parametrize(
    ("fsync", "calls", "length"),
    # A record over the zeros of another process does not change the size, so up to 64 bytes are looked at.
    [("always", ["measure", "read", "write", "fdatasync"], 64), ("never", ["fstat", "write"], 0)],
)
def test_a_warm_put_is_one_fstat_and_one_write_however_long_the_history_is(fsync, calls, length, config, tmp_path):
    io = CountingIO()
    saver = FileSystemSaver(tmp_path, fsync=fsync, io=io)
    costs = []
    for checkpoint in grow(1500):
        io.reset()
        saver.put(config, checkpoint)
        costs.append((io.calls, io.read))
    if fsync == "always":
        assert costs[0][0].count("fsync_dir") >= 2, "the first put of a thread brings its directories to the disk"
    # A keyframe looks its bases up in the log, a few records of it; all other puts read nothing more.
    plain = [read for made, read in costs[1:] if made == calls and read <= length]
    assert len(plain) >= len(costs) - 40
    assert max(read for _, read in costs) < 200_000
    saver.close()


@pytest.mark.requirement("L9")
def test_a_cold_put_reads_the_end_of_the_log_only(config, tmp_path):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for n in range(3000):
        saver.put(config, make_checkpoint(n, text=noise(n)))
    size = saver.size("t")
    assert size > 1_000_000
    saver.close()
    io = CountingIO()
    fresh = FileSystemSaver(tmp_path, fsync="never", io=io)
    io.reset()
    fresh.put(config, make_checkpoint(3000, text="x"))
    assert io.read < 200_000
    io.reset()
    assert fresh.get(config).state["n"] == 3000
    assert io.read == 0
    fresh.close()


def test_one_sync_serves_all_who_wait_for_it(config, tmp_path):
    entered = threading.Event()
    go_on = threading.Event()
    calls = []

    def note(kind, _):
        calls.append(kind)
        if kind == "fdatasync":
            entered.set()
            go_on.wait()

    io = HookedIO()
    saver = FileSystemSaver(tmp_path, io=io)
    saver.put(config, make_checkpoint(0))
    io.hook = note
    with ThreadPoolExecutor(8) as pool:
        puts = [pool.submit(saver.put, config, make_checkpoint(1))]
        entered.wait()
        puts += [pool.submit(saver.put, config, make_checkpoint(n)) for n in range(2, 9)]
        # While the first one waits for the disk, the others write.
        while calls.count("write_at") < 8:
            pass
        go_on.set()
        for put in puts:
            put.result()
    assert calls.count("fdatasync") <= 3
    assert len(saver.list(config)) == 9
    saver.close()


# Values of many bytes


SIZE = 8 << 20
CONFIG = RunnableConfig("t")


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
