"""SIGKILL at every call that stores something of a copy: a second copy continues it, and loses and repeats nothing."""

import os
import signal
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from graphkit.transfer import copy_threads
from savers import FileSystemSaver
from tests.support.terminal import checkpoint
from tests.support.threads import TYPES, assert_same, everything, exact

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

ROOT = Path(__file__).resolve().parents[2]
T = RunnableConfig("t")
CALLS = 26
"""Calls of a whole copy that store something."""
PROGRAM = """
import os, signal, sys
from graphkit.transfer import copy_threads
from savers import FileSystemSaver
sys.path.insert(0, sys.argv[4])
from tests.support.threads import TYPES

when, left = sys.argv[2], int(sys.argv[3])

def deadly(method):
    def stores(self, *arguments):
        global left
        left -= 1
        if when == "before" and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(self, *arguments)
        if when == "after" and not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return stores

for name in ("put", "put_writes", "add_tags", "release"):
    setattr(FileSystemSaver, name, deadly(getattr(FileSystemSaver, name)))
stores = [FileSystemSaver(os.path.join(sys.argv[1], name), fsync="never", types=TYPES) for name in ("source", "target")]
copy_threads(*stores)
"""


@pytest.fixture
def source(tmp_path):
    saver = everything(FileSystemSaver(tmp_path / "source", fsync="never", types=TYPES))
    saver.release(T)
    everything(saver)
    saver.put(RunnableConfig("u"), checkpoint(8, "a", "b", {"n": 1}))
    return saver


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
@pytest.mark.sweep(4, of="call")
def test_a_copy_that_was_killed_is_continued(tmp_path, launcher, source, call, when):
    done = launcher.run("-c", PROGRAM, tmp_path, when, call, ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    target = FileSystemSaver(tmp_path / "target", fsync="never", types=TYPES)
    before = [one for thread in target.threads() for one in target.list(RunnableConfig(thread))]
    before = {one.id for one in before if "graphkit:incomplete" not in one.metadata}
    for thread in target.threads():
        if target.history(RunnableConfig(thread))[0].status != "incomplete":
            assert_same(source, target, thread, thread)
    copied = copy_threads(source, target)
    assert copied.checkpoints + copied.skipped_checkpoints == 11
    assert copied.versions + copied.skipped_versions == 1
    assert copied.skipped_checkpoints >= len(before)
    assert_same(source, target)
    assert_same(source, target, "u", "u")
    for namespace in ("", "sub"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        pair = [[exact(checkpoint) for checkpoint in saver.tag(config, 1).checkpoints] for saver in (source, target)]
        assert pair[0] == pair[1]
    assert target.verify().ok
