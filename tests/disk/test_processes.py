"""Several savers, threads and processes on one store; processes that die."""

import gc
import os
import signal
import threading

import pytest

from graphkit import RunnableConfig, ThreadBusyError
from savers import FileSystemSaver
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import count_open_files

PRELUDE = """
import os, sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from savers._log import catalogue
saver = FileSystemSaver(sys.argv[1], fsync=sys.argv[2])
config = RunnableConfig(thread_id="t")
def step(n, **state):
    return Checkpoint(node_id="a", next_node_id="b", state={"n": n, **state})
"""


@pytest.fixture
def start(launcher):
    def start_process(root, code, *arguments, fsync="never"):
        return launcher.start("-c", PRELUDE + code, root, fsync, *arguments)

    return start_process


@pytest.mark.requirement("promise 2")
def test_a_killed_writer_loses_nothing_that_was_acknowledged(opener, config, tmp_path, start):
    code = "n = 0\nwhile True:\n    saver.put(config, step(n, text='z' * 3000)); print(n, flush=True); n += 1\n"
    acknowledged = -1
    for turn in range(6):
        writer = start(tmp_path / "store", code)
        for _ in range(turn * 3 + 1):
            last = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
        last = int(rest[-1]) if rest else last
        history = opener().list(config)
        own = history[: len(history) - (acknowledged + 1)]
        assert last + 1 <= len(own) <= last + 2, "all that was acknowledged, and at most one more"
        assert [one.state["n"] for one in own] == [*range(len(own) - 1, -1, -1)]
        acknowledged = len(history) - 1
    opener().put(config, make_checkpoint(0))
    assert len(opener().list(config)) == acknowledged + 2


# Since 3.12 a fork beside other threads warns; that it may still happen is what is tested here.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_with_an_open_saver_opens_its_own_files(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    with saver.run_lock(config):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                saver.put(config, make_checkpoint(1))
                try:
                    with saver.run_lock(config, timeout=0):
                        status = 2
                except ThreadBusyError:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert saver.get(config).state["n"] == 1
    saver.put(config, make_checkpoint(2))
    assert list_numbers(opener(), config) == [2, 1, 0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_locks_that_others_held_at_the_fork_do_not_hang_the_child(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    history = saver._store.shared_log("t", "")
    taken = threading.Event()
    done = threading.Event()

    def hold():
        with history.mutex, saver._store.write_lock(saver._store.locate("t")):
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert saver.get(config).state["n"] == 0
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    holder.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_flusher_that_was_in_use_at_the_fork_does_not_hang_the_child(opener, config):
    saver = opener(fsync=3600.0)
    saver.put(config, make_checkpoint(0))
    flusher = saver._sync_mode
    with flusher._mutex:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)  # where it hangs, it is ended
                assert flusher._tickets == {}, "what the parent has put is the parent's to sync"
                saver.flush()
                saver.put(config, make_checkpoint(1))
                assert [thread.name for thread in threading.enumerate()].count("graphkit-flush") == 1
                saver.flush()
                saver.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    saver.flush()
    assert list_numbers(opener(), config) == [1, 0]


def test_a_saver_that_was_dropped_keeps_no_descriptor(tmp_path):
    def use():
        saver = FileSystemSaver(tmp_path, fsync="never")
        for number in range(10):
            saver.put(RunnableConfig(f"thread {number}"), make_checkpoint(number))

    gc.collect()
    before = count_open_files()
    use()
    gc.collect()
    assert count_open_files() <= before
