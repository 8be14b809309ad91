"""Several savers, threads and processes on one store; processes that die (promises 1 and 2)."""

import gc
import os
import signal
import threading

import pytest

from graphkit import RunnableConfig, ThreadBusyError
from savers import FileSystemSaver
from tests.support.checkpoints import make_checkpoint
from tests.support.disks import count_open_files
from tests.support.logs import limit_descriptors

PRELUDE = """
import os, sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
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


def test_what_one_saver_puts_another_sees_at_once(opener, config):
    first, second = opener(), opener()
    for n in range(20):
        writer, reader = (first, second) if n % 2 else (second, first)
        writer.put(config, make_checkpoint(n, items=[*range(n)]))
        assert reader.get(config).state == {"n": n, "items": [*range(n)]}
        assert [one.state["n"] for one in reader.list(config)] == [*range(n, -1, -1)]
        writer.add_tags(config, f"tag{n}")
        writer.put_writes(config, {"n": n})
        assert reader.tags_of(config) == (f"tag{n}",)
        assert reader.get_writes(config) == {"n": n}


def test_eight_writers_on_one_thread_lose_nothing(opener, config, tmp_path, start):
    code = """
sys.stdin.readline()
for n in range(50):
    saver.put(config, step(n, who=int(sys.argv[3]), items=["x"] * n))
"""
    writers = [start(tmp_path / "store", code, number) for number in range(8)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.wait() == 0
        writer.stdin.close()
        writer.stdout.close()
    history = opener().list(config)
    assert len({one.id for one in history}) == len(history) == 400
    for number in range(8):
        mine = [one.state["n"] for one in history if one.state["who"] == number]
        assert mine == [*range(49, -1, -1)]
        assert all(one.state["items"] == ["x"] * one.state["n"] for one in history)


def test_threads_of_one_process_lose_nothing(opener, config):
    savers = [opener(), opener()]

    def work(number):
        for n in range(50):
            savers[number % 2].put(config, make_checkpoint(n, who=number))
            savers[number % 2].put(RunnableConfig(f"own {number}"), make_checkpoint(n))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    history = opener().list(config)
    assert len(history) == 300
    assert all(
        [one.state["n"] for one in history if one.state["who"] == number] == [*range(49, -1, -1)] for number in range(6)
    )
    assert all(len(opener().list(RunnableConfig(f"own {number}"))) == 50 for number in range(6))


def test_a_reader_beside_a_writer_sees_only_whole_checkpoints_in_order(opener, config, tmp_path, start):
    writer = start(tmp_path / "store", "for n in range(400):\n    saver.put(config, step(n, items=['y' * 50] * n))\n")
    reader = opener()
    last = -1
    while writer.poll() is None or last < 399:
        found = reader.get(config)
        if found is not None:
            assert found.state["n"] >= last
            assert found.state["items"] == ["y" * 50] * found.state["n"]
            last = found.state["n"]
    writer.stdin.close()
    writer.stdout.close()
    assert [one.state["n"] for one in reader.list(config)] == [*range(399, -1, -1)]


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
    assert [one.state["n"] for one in opener().list(config)] == [2, 1, 0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_locks_that_others_held_at_the_fork_do_not_hang_the_child(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    history = saver._store.shared_log("t", "")
    taken, done = threading.Event(), threading.Event()

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
    assert [one.state["n"] for one in opener().list(config)] == [1, 0]


def test_the_run_lock_keeps_other_processes_out_and_names_its_holder(opener, config, tmp_path, start):
    code = "with saver.run_lock(config):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    holder = start(tmp_path / "store", code)
    assert holder.stdout.readline() == "held\n"
    saver = opener()
    with pytest.raises(ThreadBusyError) as caught, saver.run_lock(config, timeout=0):
        pass
    assert f"process {holder.pid} on host" in caught.value.holder
    with pytest.raises(ThreadBusyError), saver.run_lock(config, timeout=0.02):
        pass
    with saver.run_lock(config.replace(thread_id="another"), timeout=0):
        pass
    assert saver.get(config) is None, "readers do not wait"
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.wait() == 0
    holder.stdin.close()
    holder.stdout.close()
    with saver.run_lock(config, timeout=0):
        pass


def test_a_dead_holders_run_lock_is_free_at_once(opener, config, tmp_path, start):
    code = "with saver.run_lock(config):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    holder = start(tmp_path / "store", code)
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    with opener().run_lock(config, timeout=0):
        pass


def test_two_savers_of_one_process_exclude_each_other(opener, config, tmp_path):
    first, second = opener(), opener(f"{tmp_path}/store/./")
    with first.run_lock(config):
        with pytest.raises(ThreadBusyError, match=f"process {os.getpid()}"), second.run_lock(config, timeout=0):
            pass
        entered = threading.Event()

        def wait():
            with second.run_lock(config, timeout=60):
                entered.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not entered.is_set()
    waiter.join()
    assert entered.is_set()
    assert first.run_lock_key(config) == second.run_lock_key(config)


def test_release_delete_and_copy_wait_for_a_run_of_somebody_else(opener, config, tmp_path, start):
    opener().put(config, make_checkpoint(0))
    code = "with saver.run_lock(config):\n    print('held', flush=True)\n    sys.stdin.readline()\n"
    holder = start(tmp_path / "store", code)
    holder.stdout.readline()
    saver = opener(lock_timeout=0)
    for change in (lambda: saver.release(config), lambda: saver.delete("t"), lambda: saver.copy("t", "u")):
        with pytest.raises(ThreadBusyError):
            change()
    assert len(saver.list(config)) == 1
    assert saver.threads() == ["t"]
    holder.communicate("\n")
    assert saver.release(config).version == 1


def test_a_holder_may_release_and_delete_its_own_thread(opener, config):
    saver = opener(lock_timeout=0)
    saver.put(config, make_checkpoint(0))
    with saver.run_lock(config):
        assert saver.release(config).version == 1
        saver.put(config, make_checkpoint(1))
        assert saver.delete("t")
    assert saver.threads(released=True) == []


def test_descriptors_are_bounded(opener, monkeypatch):
    limit_descriptors(monkeypatch, 1024)
    saver = opener()
    before = count_open_files()
    for number in range(400):
        saver.put(RunnableConfig(f"thread {number}"), make_checkpoint(number))
    assert count_open_files() <= before + 256 + 64 + 2
    assert len(saver.threads()) == 400
    assert all(saver.get(RunnableConfig(f"thread {number}")).state["n"] == number for number in range(0, 400, 37))
    saver.close()
    saver.put(RunnableConfig("thread 7"), make_checkpoint(7))
    assert len(saver.list(RunnableConfig("thread 7"))) == 2


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
