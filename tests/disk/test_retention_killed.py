"""SIGKILL at every call that changes a file while a policy is applied: each history is whole, and the next pass ends it."""

import os
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.retention import RetentionPolicy
from savers import FileSystemSaver
from tests.support.retention import fill

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

ROOT = Path(__file__).resolve().parents[2]
CHANGES = ("write_at", "truncate", "fsync", "fdatasync", "fsync_dir", "rename", "unlink", "rmdir", "mkdir")
PROGRAM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.disk.test_retention_killed import CHANGES, POLICY
from tests.support.disks import FileIO
from savers import FileSystemSaver

directory, when, deadly = sys.argv[2], sys.argv[3], int(sys.argv[4])
count = 0

def mortal(method):
    def change(*arguments):
        global count
        count += 1
        if when == "before" and count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments)
        if when == "after" and count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return change

for name in CHANGES:
    setattr(FileIO, name, mortal(getattr(FileIO, name)))
with FileSystemSaver(directory) as saver:
    POLICY.apply(saver)
print(count)
"""
POLICY = RetentionPolicy(keep_last=2, keep_tags=["golden"])
EARLY = "#early:"
HISTORIES = (("t", ""), ("t", EARLY), ("t", "sub"), ("u", ""))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Threads with tags, a pending interrupt, a nested history, and early writes of LangGraph's tasks."""
    directory = tmp_path_factory.mktemp("retention") / "store"
    with FileSystemSaver(directory, fsync="never") as saver:
        fill(saver, "t")
        fill(saver, "u")
        saver.add_tags(RunnableConfig("t", "c0"), "golden")
        interrupt = {"node_id": "a", "when": "inside", "payload": 1, "created_at": datetime.now(UTC)}
        saver.put_writes(RunnableConfig("u", "c1"), {"interrupt:1": interrupt})
        for namespace in ("sub", EARLY):
            for number in range(5):
                checkpoint = Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", state={"n": number})
                saver.put(RunnableConfig("t", checkpoint_ns=namespace), checkpoint)
    return directory


def read(saver):
    """The checkpoints of each history, with their pending writes and tags."""
    found = {}
    for thread, namespace in HISTORIES:
        config = RunnableConfig(thread, checkpoint_ns=namespace)
        found[thread, namespace] = [
            (info.id, info.tags, saver.get(config.with_check_point_id(info.id)).state["n"], info.stopped)
            for info in saver.history(config)
        ]
    return found


@pytest.mark.requirement("P59")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_policy_that_was_killed_is_applied_again(tmp_path, launcher, store, when, sweep):
    def apply_and_die(number):
        directory = tmp_path / f"{when} {number}"
        shutil.copytree(store, directory)
        return directory, launcher.run("-c", PROGRAM, ROOT, directory, when, number)

    directory, done = apply_and_die(0)
    assert done.returncode == 0, done.stderr
    with FileSystemSaver(store, fsync="never") as saver:
        before = read(saver)
    with FileSystemSaver(directory, fsync="never") as saver:
        after = read(saver)
    assert {name: [each[0] for each in history] for name, history in after.items()} == {
        ("t", ""): ["c4", "c3", "c0"],
        ("t", EARLY): ["c4", "c3", "c0"],
        ("t", "sub"): ["c4", "c3"],
        ("u", ""): ["c4", "c3", "c1"],
    }
    seen = set()
    for number in sweep.some(range(1, int(done.stdout) + 1), 12):
        directory, killed = apply_and_die(number)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        with FileSystemSaver(directory, fsync="never") as saver:
            found = read(saver)
            for name, history in found.items():
                assert history in (before[name], after[name])
            seen.add(tuple(found[name] == after[name] for name in HISTORIES))
            assert saver.verify().ok
            assert POLICY.apply(saver).ok
            assert read(saver) == after
            assert POLICY.apply(saver, dry_run=True).removed == 0
        shutil.rmtree(directory)
    assert len(seen) > 2
