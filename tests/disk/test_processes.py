"""Several savers, threads and processes on one store; processes that die.

tests/sql/test_savers.py has eight processes on one thread, and forks, in every store.
"""

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from graphkit import CheckpointConflictError, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.support.checkpoints import list_ids, list_numbers, make_checkpoint
from tests.support.disks import HOOKED, HookedIO, count_open_files
from tests.support.forked import run_in_child
from tests.support.logs import limit_descriptors

# Since 3.12 a fork beside other threads warns; that it may still happen is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_forked_child_waits_for_the_write_lock_that_its_parent_holds(opener, config):
    saver = opener(lock_timeout=0)
    saver.put(config, make_checkpoint(0))

    def put_beside_the_writer():
        with pytest.raises(CheckpointStorageError, match="another writer"):
            saver.put(config, make_checkpoint(1))

    with saver._store.write_lock(saver._store.locate("t")):
        assert run_in_child(put_beside_the_writer)


def test_a_forked_child_closes_the_files_of_its_parent_once(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    saver.put(config, make_checkpoint(1))
    for id_ in list_ids(saver, config):
        # Such a read leaves a cycle, which keeps the lock of the log until the garbage is collected.
        saver.get(config.replace(checkpoint_id=id_))

    def open_files_in_their_place():
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        gc.collect()
        for fd in opened:
            os.close(fd)

    assert run_in_child(open_files_in_their_place)


def test_a_flusher_that_was_in_use_at_the_fork_does_not_hang_the_child(opener, config):
    saver = opener(fsync=3600.0)
    saver.put(config, make_checkpoint(0))
    flusher = saver._sync_mode

    def put_and_flush():
        signal.alarm(60)  # where it hangs, it is ended
        assert flusher._tickets == {}, "what the parent has put is the parent's to sync"
        saver.flush()
        saver.put(config, make_checkpoint(1))
        assert [thread.name for thread in threading.enumerate()].count("graphkit-flush") == 1
        saver.flush()
        saver.close()

    with flusher._mutex:
        assert run_in_child(put_and_flush)
    saver.flush()
    assert list_numbers(opener(), config) == [1, 0]


# Many at work


@pytest.mark.requirement("P86")
def test_thousands_of_threads_and_sixteen_workers(tmp_path, monkeypatch, sweep):
    """Nothing is lost or mixed, descriptors stay bounded, and nothing grows with the number of threads."""
    limit_descriptors(monkeypatch, 1024)
    threads = sweep.count(2000, 1000)
    quarter = threads // 4
    calls = []
    # Workers that wait for a lock try again: locks do not count.
    counted = {*HOOKED} - {"lock", "unlock"}
    io = HookedIO(lambda kind, _: calls.append(kind) if kind in counted else None)
    with FileSystemSaver(tmp_path / "store", fsync="never", io=io) as saver:
        most = [0]
        guard = threading.Lock()
        counts = []
        gc.collect()
        open_before = count_open_files()

        def work(number):
            config = RunnableConfig(f"thread {number}")
            for n in range(2):
                saver.put(config, make_checkpoint(n, own=number))
            if number % 50 == 0:
                with guard:
                    most[0] = max(most[0], count_open_files())

        with ThreadPoolExecutor(16) as pool:
            for start in range(0, threads, quarter):
                before = len(calls)
                list(pool.map(work, range(start, start + quarter)))
                counts.append(len(calls) - before)
        assert most[0] - open_before < 256 + 64 + 60
        # Workers that meet ask again, by a quarter more often on a busy machine; growth would show as three times as much.
        assert max(counts[1:]) < counts[0] * 1.5, "the last quarter costs no more than the first"
        assert len(saver.threads()) == threads
    with FileSystemSaver(tmp_path / "store") as saver, ThreadPoolExecutor(16) as pool:

        def check(number):
            found = saver.list(RunnableConfig(f"thread {number}"))
            assert [(checkpoint.state["own"], checkpoint.state["n"]) for checkpoint in found] == [
                (number, 1),
                (number, 0),
            ]

        list(pool.map(check, range(threads)))


# Nothing is left


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


def test_no_two_operations_wait_for_each_other(tmp_path):
    """An operation that waits for ever fails after the lock timeout, which is longer than all of them take."""
    with FileSystemSaver(tmp_path, fsync="never", lock_timeout=30) as saver, ThreadPoolExecutor(4) as executor:
        nested = RunnableConfig("t", checkpoint_ns="nested")
        operations = [
            lambda: saver.put("t", make_checkpoint(1)),
            lambda: saver.put(nested, make_checkpoint(1)),
            lambda: saver.get("t"),
            lambda: saver.get(nested),
            lambda: saver.versions_by_thread_id("t"),
            lambda: saver.release("t"),
            lambda: saver.delete("t"),
        ]

        def work(seed):
            chosen = random.Random(seed).choices(operations, k=400)
            for operation in chosen:
                # A put that comes in the middle of a delete is refused.
                with suppress(CheckpointConflictError):
                    operation()

        for working in [executor.submit(work, seed) for seed in range(4)]:
            working.result()
        assert saver.verify().ok


# A fork beside threads that do their first puts: the child is never left with a module that is locked for ever


NOTHING_LEFT = """
import sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.disks import preload_modules
t, inner = RunnableConfig("t"), RunnableConfig("t", checkpoint_ns="a b")
one = lambda: Checkpoint(node_id="a", next_node_id="b", state={"n": 1, "list": [1.5, None, "x"]}, metadata={"m": 1})
saver = FileSystemSaver(sys.argv[1], fsync=FSYNC)
preload_modules()  # as the first put does it, while no fork can come
before = set(sys.modules)
for config in (t, inner):
    saver.put(config, one())
    saver.put(config, one())
    saver.put_writes(config, {"key": 1})
    saver.add_tags(config, "tag")
    saver.get(config), saver.list(config)[0].state, saver.history(config), saver.summary(config)
with saver.run_lock(t, 0):
    pass
saver.release(t)
saver.put(t, one())
saver.threads(), saver.interrupts(), saver.namespaces("t"), saver.versions_by_thread_id("t"), saver.tag(t)
saver.copy("t", "u")
saver.prune(keep_last=1), saver.compact(), saver.delete("t"), saver.flush()
saver.close()
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("fsync", ["'always'", "0.01"])
def test_nothing_else_is_imported_after_what_the_first_put_imports(fsync, tmp_path):
    code = NOTHING_LEFT.replace("FSYNC", fsync)
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")


FORKS = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
one = lambda: Checkpoint(node_id="a", next_node_id="b", state={})
root = sys.argv[2]
stuck = done = 0
for turn in range(int(sys.argv[1])):
    pid = os.fork()  # a fresh state of the interpreter each time
    if pid == 0:
        go = threading.Event()
        def first_put(number):
            go.wait()
            saver = MADE or FileSystemSaver(f"{root}/{turn}/{number}", fsync="never")
            saver.put(RunnableConfig(f"p{number}"), one())
        MADE = FileSystemSaver(f"{root}/{turn}/all", fsync="never") if turn % 2 else None
        for number in range(4):
            threading.Thread(target=first_put, args=(number,), daemon=True).start()
        go.set()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a child that hangs
            saver = FileSystemSaver(f"{root}/{turn}/all", fsync="never")
            saver.put(RunnableConfig("child"), one())
            with saver.run_lock(RunnableConfig("child")):
                os._exit(0 if saver.get(RunnableConfig("child")) is not None else 2)
        os._exit(1 if os.waitpid(child, 0)[1] else 0)
    done += 1
    stuck += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
print(done, stuck)
"""


def test_a_child_that_is_forked_beside_first_puts_does_its_own(sweep, tmp_path):
    count = sweep.count(40, 8)
    run = subprocess.run(
        [sys.executable, "-c", FORKS, str(count), tmp_path], capture_output=True, text=True, check=False
    )
    assert run.stdout == f"{count} 0\n", run.stderr
