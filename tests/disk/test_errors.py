"""The file system refuses: what was there before stays, and the next put works."""

import errno
import gc
import logging
import os
import subprocess
import sys
import threading

import pytest

from graphkit import CheckpointStorageError
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import HookedIO, count_open_files
from tests.support.logs import locate_log

if os.name == "nt":
    pytest.skip("POSIX errors", allow_module_level=True)


class FaultyIO(HookedIO):
    """The real file system. The next calls of a kind fail as planned."""

    def __init__(self):
        super().__init__(self._meet)
        self.plan = {}
        self.log = []

    def fail(self, kind, *errors):
        """Let the next calls of a kind fail with these errors; "short" cuts a write in two."""
        self.plan[kind] = [*errors]

    def _meet(self, kind, path):
        if kind == "write_at" and path.endswith("run.lock"):
            return None  # it only names the holder
        self.log.append(kind)
        errors = self.plan.get(kind)
        if not errors:
            return None
        error = errors.pop(0)
        if error is None:
            return None
        if error == "short":
            self.log[-1] = error
            return 0.5
        raise OSError(error, os.strerror(error), path)


def test_a_write_that_cannot_even_be_undone_is_set_aside_by_the_next_writer(opener, config, caplog):
    io = FaultyIO()
    saver = opener(io=io)
    saver.put(config, make_checkpoint(0))
    io.fail("write_at", "short", errno.EIO)
    io.fail("truncate", errno.EIO)
    with pytest.raises(CheckpointStorageError):
        saver.put(config, make_checkpoint(1))
    assert list_numbers(saver, config) == list_numbers(opener(), config) == [0]
    saver.put(config, make_checkpoint(2))
    assert list_numbers(saver, config) == list_numbers(opener(), config) == [2, 0]
    assert len(list(locate_log(saver.base_directory).parent.glob("torn-*"))) == 1
    assert "set aside" in caplog.text


@pytest.mark.requirement("H47")
def test_a_real_full_disk(tmp_path):
    code = """
import resource, signal, sys
from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
saver = FileSystemSaver(sys.argv[1])
config = RunnableConfig("t")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
stored = 0
while True:
    try:
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": stored, "text": "x" * 777}))
    except CheckpointStorageError as error:
        print(stored, error.errno)
        break
    stored += 1
assert [one.state["n"] for one in saver.list(config)] == [*range(stored - 1, -1, -1)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": stored, "text": ""}))
assert [one.state["n"] for one in FileSystemSaver(sys.argv[1]).list(config)] == [*range(stored, -1, -1)]
"""
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "store"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    stored, number = run.stdout.split()
    assert int(stored) > 10
    assert int(number) == errno.EFBIG


def test_a_sync_that_fails_in_the_background_is_logged_and_the_log_is_rewritten(opener, config):
    io = FaultyIO()
    said = []
    is_logged = threading.Event()

    def listening(record):
        said.append(record.getMessage())
        is_logged.set()
        return True

    saver = opener(fsync=0.01, io=io)
    saver.put(config, make_checkpoint(0))
    saver.flush()
    path = locate_log(saver.base_directory)
    inode = path.stat().st_ino
    io.fail("fdatasync", errno.EIO)
    logging.getLogger("graphkit").addFilter(listening)
    try:
        saver.put(config, make_checkpoint(1))
        assert is_logged.wait(60)
    finally:
        logging.getLogger("graphkit").removeFilter(listening)
    assert said == ["checkpoints could not be brought to the disk"]
    saver.put(config, make_checkpoint(2))
    saver.flush()
    assert list_numbers(opener(), config) == [2, 1, 0]
    assert path.stat().st_ino != inode, "what a failed sync left cannot be believed"


def test_nothing_is_left_open(opener, config):
    gc.collect()
    before = count_open_files()
    saver = opener(fsync=0.01)
    for n in range(5):
        saver.put(config, make_checkpoint(n))
    saver.release(config)
    saver.put(config, make_checkpoint(5))
    saver.copy("t", "u")
    saver.tag(config)
    saver.prune(keep_last=1)
    saver.delete("t")
    saver.close()
    assert count_open_files() <= before
