"""Processes that die at an exact call, and many of them at work.

`test_processes.py` kills at random and has the locks between whole processes; here every system call has its turn.
"""

import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver, VersionedMemorySaver
from tests.disk.crashes import config_of, expect_each, expect_whole, grown, made, view
from tests.support.checkpoints import list_states
from tests.support.disks import HookedIO, StopAt, count_open_files
from tests.support.logs import limit_descriptors

if not hasattr(os, "fork"):
    pytest.skip("forks", allow_module_level=True)

# Since 3.12 a fork beside other threads warns; none of them is in the middle of anything here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CALLS = (
    "close", "fdatasync", "fsync", "fsync_dir", "listdir", "lock", "mkdir", "open", "read_at", "rename", "rmdir",
    "truncate", "unlink", "unlock", "write_at",
)  # fmt: skip


def kill_at(number):
    """A hook: the process is killed at a call, which may be half-way through a write."""
    return StopAt(CALLS, number, lambda: os.kill(os.getpid(), signal.SIGKILL), part=0.4)


STEPS = {
    "first put": ([], lambda saver: saver.put(config_of(), made(50, text="f" * 3000))),
    "put": (
        [lambda saver: saver.put(config_of(), made(0, items=[1]))],
        lambda saver: saver.put(config_of(), made(50, items=[1, 2], text="p" * 3000)),
    ),
    "namespace": (
        [lambda saver: saver.put(config_of(), made(0))],
        lambda saver: saver.put(config_of("t", "inner"), made(50)),
    ),
    "replace": (
        [lambda saver: saver.put(config_of(), made(0)), lambda saver: saver.put(config_of(), made(1))],
        lambda saver: saver.put(config_of().with_check_point_id(made(0).id), made(50, id=made(0).id, text="r")),
    ),
    "writes": (
        [lambda saver: saver.put(config_of(), made(0))],
        lambda saver: saver.put_writes(config_of(), {"branch": [1, 2], "answer": "x" * 500}),
    ),
    "release": (
        [lambda saver: saver.put(config_of(), made(0)), lambda saver: saver.put(config_of("t", "inner"), made(1))],
        lambda saver: saver.release(config_of()),
    ),
    "prune": (
        [lambda saver, n=n: saver.put(config_of(), made(n, text=f"{n}" * 200)) for n in range(4)],
        lambda saver: saver.prune("t", keep_last=2),
    ),
    "delete": (
        [lambda saver: saver.put(config_of(), made(0)), lambda saver: saver.put(config_of("t", "inner"), made(1))],
        lambda saver: saver.delete("t"),
    ),
    "copy": (
        [lambda saver: saver.put(config_of(), made(0)), lambda saver: saver.put(config_of("t", "inner"), made(1))],
        lambda saver: saver.copy("t", "u"),
    ),
}


def killed(root, change, number):
    """Whether a child that makes a change was killed at its n-th call; a child that needs fewer ends well."""
    child = os.fork()
    if child == 0:
        try:
            io = HookedIO()
            saver = FileSystemSaver(root, lock_timeout=0, io=io)
            io.hook = kill_at(number)
            change(saver)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status != 0


def views_of(name):
    """What may be seen around a change that is cut short: before it, half-way where that is promised, after it."""
    before, change = STEPS[name]
    oracle = VersionedMemorySaver()
    for step in before:
        step(oracle)
    views = [view(oracle)]
    change(oracle)
    views.append(view(oracle))
    if name == "copy":
        views.insert(1, {**views[1], "u": {key: one for key, one in views[1]["u"].items() if key[0]}})
    return views


def calls_of(name, root):
    """The numbers of the calls that a change makes."""
    before, change = STEPS[name]
    with FileSystemSaver(root, fsync="never") as saver:
        for step in before:
            step(saver)
    calls = []
    io = HookedIO()
    with FileSystemSaver(root, lock_timeout=0, io=io) as saver:
        io.hook = lambda kind, _: calls.append(kind) if kind in CALLS else None
        change(saver)
        return range(len(calls))


@pytest.mark.requirement("promise 2", "H8")
@pytest.mark.parametrize("name", STEPS)
def test_killed_at_any_call_it_leaves_what_was_there_or_what_was_wanted(name, tmp_path, sweep):
    before, change = STEPS[name]
    views = views_of(name)
    calls = calls_of(name, tmp_path / "counted")
    assert len(calls) > 3
    for number in [*sweep.some(calls, 3), len(calls)]:
        root = tmp_path / str(number)
        saver = FileSystemSaver(root, fsync="never")
        for step in before:
            step(saver)
        # A saver that had the store open all along, and one that comes afterwards.
        watcher = FileSystemSaver(root, fsync="never")
        expect_whole(view(watcher), views[:1])
        died = killed(root, change, number)
        assert died == (number in calls)
        if not died:
            expect_whole(view(watcher), views[-1:])
            break
        other = FileSystemSaver(root, fsync="never")
        expect_each(view(other), views)
        expect_each(view(watcher), views)
        for thread in ("t", "u"):
            other.put(config_of(thread), made(900))
            expect_each(view(watcher, [thread]), [grown(one, thread, "", 900) for one in views])
            assert other.delete(thread)
            assert view(watcher, [thread]) == {thread: {}}
        for one in (saver, watcher, other):
            one.close()
    saver.close()
    watcher.close()


@pytest.mark.parametrize("name", STEPS)
def test_after_a_kill_those_who_had_it_open_and_those_who_come_agree(name, tmp_path, sweep):
    before, change = STEPS[name]
    views = views_of(name)
    for number in sweep.some(calls_of(name, tmp_path / "counted"), 3):
        root = tmp_path / str(number)
        with FileSystemSaver(root, fsync="never") as first, FileSystemSaver(root, fsync="never") as second:
            for step in before:
                step(first)
            view(second)
            assert killed(root, change, number)
            allowed = views
            for turn, (saver, thread, namespace) in enumerate(
                ((first, "t", ""), (second, "t", ""), (first, "t", "inner"), (second, "u", ""), (first, "u", "inner"))
            ):
                saver.put(config_of(thread, namespace), made(900 + turn))
                allowed = [grown(one, thread, namespace, 900 + turn) for one in allowed]
            with FileSystemSaver(root) as third:
                found = view(third)
                expect_whole(found, allowed)
                assert view(first) == view(second) == found


def test_these_were_hundreds_of_kills(tmp_path):
    calls = [len(calls_of(name, tmp_path / name)) for name in STEPS]
    assert 2 * sum(calls) >= 300


PROGRAM = """
import sys
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
saver = FileSystemSaver(sys.argv[1], fsync=sys.argv[2])
who = int(sys.argv[3])
config, count = RunnableConfig(sys.argv[4]), int(sys.argv[5])
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    saver.put(config, Checkpoint(node_id=f"w{who}", next_node_id="b", state={"who": who, "n": n, "items": ["x"] * n}))
"""


def workers(launcher, root, fsync, threads, count):
    started = [launcher.start("-c", PROGRAM, root, fsync, who, thread, count) for who, thread in enumerate(threads)]
    for worker in started:
        assert worker.stdout.readline() == "ready\n"
    for worker in started:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return started


def finished(started):
    for worker in started:
        assert worker.communicate()[0] == ""
        assert worker.returncode == 0


@pytest.mark.requirement("H47")
@pytest.mark.sweep(1)
@pytest.mark.parametrize("fsync", ["always", "never"])
def test_eight_processes_on_one_thread_and_eight_on_their_own(fsync, launcher, tmp_path):
    own = [f"own {who}" for who in range(8, 16)]
    finished(workers(launcher, str(tmp_path / "store"), fsync, ["shared"] * 8 + own, 25))

    def expected(who):
        return [{"who": who, "n": n, "items": ["x"] * n} for n in range(24, -1, -1)]

    with FileSystemSaver(tmp_path / "store") as saver:
        assert sorted(saver.threads()) == sorted(["shared", *own])
        history = saver.list(config_of("shared"))
        assert len(history) == 200
        assert len({checkpoint.id for checkpoint in history}) == 200
        states = [dict(checkpoint.state) for checkpoint in history]
        for who in range(8):
            assert [state for state in states if state["who"] == who] == expected(who)
        for who, thread in enumerate(own, 8):
            assert list_states(saver, config_of(thread)) == expected(who)


@pytest.mark.requirement("L9")
def test_whatever_a_reader_sees_beside_writers_was_put(launcher, tmp_path):
    """Each reading shows the history as it was at a moment, and never goes back."""
    with FileSystemSaver(tmp_path / "store") as reader:
        started = workers(launcher, str(tmp_path / "store"), "never", ["t"] * 3, 60)
        seen = []
        while any(worker.poll() is None for worker in started):
            found = [
                (checkpoint.state["who"], checkpoint.state["n"], len(checkpoint.state["items"]))
                for checkpoint in reversed(reader.list(config_of()))
            ]
            assert found[: len(seen)] == seen, "what was there stays, in its order"
            seen = found
            for who in range(3):
                mine = [(n, length) for writer, n, length in found if writer == who]
                assert mine == [(n, n) for n in range(len(mine))]
        finished(started)
        assert len(reader.list(config_of())) == 180


@pytest.mark.requirement("P86")
def test_thousands_of_threads_and_sixteen_workers(tmp_path, monkeypatch, sweep):
    """Nothing is lost or mixed, descriptors stay bounded, and nothing grows with the number of threads."""
    limit_descriptors(monkeypatch, 1024)
    threads = sweep.count(2000, 1000)
    quarter = threads // 4
    calls = []
    # Workers that wait for a lock try again: locks do not count.
    counted = {*CALLS, "fstat", "stat"} - {"lock", "unlock"}
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
                saver.put(config, made(n, own=number))
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
            assert [(one.state["own"], one.state["n"]) for one in found] == [(number, 1), (number, 0)]

        list(pool.map(check, range(threads)))
