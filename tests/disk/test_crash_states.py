"""Power loss and death at any instant: every legal state of the disk is opened by a new saver.

GRAPHKIT_CRASH_SEED chooses another sample; a failure names its seed and its operations.
"""

import random

import pytest

from tests.disk import crashes
from tests.disk.simfs import Disk, SimFS
from tests.support.disks import failing

STATES = {
    "puts": 330, "replaces": 205, "beside": 220, "release": 700, "prune": 310,
    "delete": 820, "copy": 785, "several_threads": 275, "two_savers": 275, "two_workers": 280, "failed_sync": 305,
    "failed_write": 250, "early_writes": 340, "rewritten_early_writes": 340,
    "langgraph_steps": 340, "shared_sync": 270, "late_worker": 280,
}  # fmt: skip
"""How many states --full finds at least, of each workload."""
NEEDING_A_SYNC = {
    crashes.two_savers, crashes.two_workers, crashes.late_worker, crashes.failed_sync, crashes.failed_write, crashes.rewritten_early_writes,
    crashes.shared_sync,
}  # fmt: skip
WITHOUT_WAITING = [
    (workload, fsync) for workload in crashes.WORKLOADS if workload not in NEEDING_A_SYNC for fsync in ("never", 3600)
]


def named(one):
    return one.__name__ if callable(one) else str(one)


@pytest.mark.requirement("promise 1", "H39", "P59")
@pytest.mark.parametrize("workload", crashes.WORKLOADS, ids=named)
def test_power_loss_keeps_what_was_acknowledged_and_at_most_one_more(workload, sweep):
    found = crashes.Crashes()
    found.explore(workload, sweep.count(14_700, 100), many=sweep.count(80, 12))
    assert found.states >= sweep.count(STATES[workload.__name__], 20)
    assert found.nested >= found.states


@pytest.mark.requirement("promise 1")
@pytest.mark.sweep(1, of="fsync", in_turn=True)
@pytest.mark.parametrize(("workload", "fsync"), [*WITHOUT_WAITING, (crashes.flushes, 3600)], ids=named)
def test_who_does_not_wait_loses_nothing_by_death_and_keeps_a_beginning_after_power_loss(workload, fsync, sweep):
    found = crashes.Crashes(fsync=fsync)
    # A release has more steps than the others, and most of its states are the same.
    cases = sweep.count(300, 70)
    found.explore(workload, 2 * cases if workload is crashes.release else cases)
    assert found.states > sweep.count(30, 20)


# The simulated disk itself


def written(*sizes, sync=True):
    fs = SimFS()
    fd = fs.open("/f", write=True, create=True)
    if sync:
        fs.fsync_dir("/")
        fs.fsync(fd)
    end = 0
    for number, size in enumerate(sizes, 1):
        fs.write_at(fd, end, bytes([number]) * size)
        end += size
    return fs, fd


def possible(fs, limit=10_000, many=10_000):
    return [tree for _, tree in Disk(ops=fs.ops).states(random.Random(1), limit, many)]


def test_the_simulated_disk_forgets_what_was_not_synced_and_only_that():
    fs, fd = written(3)
    found = [tree["f"] for tree in possible(fs)]
    assert {b"", b"\1", b"\1\1", b"\1\1\1", b"\0\0\0"} == set(found)
    fs.fdatasync(fd)
    assert possible(fs) == [{"f": b"\1\1\1"}]
    fs.truncate(fd, 1)
    assert {b"\1", b"\1\1\1"} == {tree["f"] for tree in possible(fs)}


def test_the_simulated_disk_loses_single_sectors():
    fs, _ = written(700, 500)
    found = {tree["f"] for tree in possible(fs)}
    first = b"\1" * 700
    second = b"\2" * 500
    whole = first + second
    expected = {
        "all of it": whole,
        "without the first sector": bytes(512) + whole[512:],
        "without the second sector": whole[:512] + bytes(512) + whole[1024:],
        "each sector as it was after the first write": first + bytes(500),
    }
    for name, content in expected.items():
        assert content in found, name
    assert max(map(len, found)) <= 1200


@pytest.mark.requirement("H39")
def test_the_simulated_disk_forgets_names_in_any_order_until_their_directory_is_synced():
    fs = SimFS()
    for name in "abc":
        fs.close(fs.open(f"/{name}", write=True, create=True))
    assert {frozenset(tree) for tree in possible(fs)} == {
        frozenset(tree) for tree in ("", "a", "b", "c", "ab", "ac", "bc", "abc")
    }
    fs.fsync_dir("/")
    fs.rename("/a", "/c")
    fs.unlink("/b")
    assert {frozenset(tree) for tree in possible(fs)} == {frozenset(tree) for tree in ("abc", "c", "bc", "ac")}
    assert fs.tree() == {"c": b""}


def test_a_sync_that_failed_in_the_simulation_proves_nothing_about_what_was_before():
    fs, fd = written(5)
    with failing(fs, "fdatasync"), pytest.raises(OSError, match="Input/output error"):
        fs.fdatasync(fd)
    fs.write_at(fd, 5, b"later")
    fs.fdatasync(fd)
    assert fs.read_at(fd, 0, 100) == b"\1\1\1\1\1later", "the page cache shows what the disk does not have"
    assert Disk(ops=fs.ops).durable() == {"f": b"\0\0\0\0\0later"}
