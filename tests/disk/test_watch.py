"""Following a directory: events and no polling, files that are replaced, and what to do without events."""

import errno
import gc
import logging
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from uuid import uuid4

import pytest

from graphkit import RunnableConfig
from graphkit.errors import CheckpointStorageError
from savers import FileSystemSaver
from savers._filesystem import watch as file_watch
from savers._log import log_watch
from tests.support.checkpoints import make_checkpoint
from tests.support.client import start_client
from tests.support.disks import CountingIO, HookedIO, count_open_files, failing
from tests.support.logs import flip_in_file, locate_log

PATIENCE = 60.0
NEVER = 3600.0


def until(watch, wanted):
    """The changes up to one like this."""
    found = []
    while True:
        found.append(watch.get(PATIENCE))
        assert found[-1] is not None, found
        if wanted(found[-1]):
            return found


def ids(found):
    return [change.checkpoint.id for change in found if change.kind == "checkpoint"]


def stored_ids(saver, thread):
    """The ids of the checkpoints of both namespaces."""
    histories = [saver.history(RunnableConfig(thread, checkpoint_ns=namespace)) for namespace in ("", "in")]
    return {info.id for history in histories for info in history}


def to(id):
    return lambda change: change.checkpoint is not None and change.checkpoint.id == id


def put_and_follow(watch, saver, config, number):
    """Put a checkpoint; return the changes up to it."""
    return until(watch, to(saver.put(config, make_checkpoint(number)).checkpoint_id))


# Events


def test_nothing_is_read_while_nothing_happens(opener, config, monkeypatch):
    io = CountingIO()
    saver = opener(io=io)
    dispatch = file_watch.FileEvents.dispatch
    is_settled = threading.Event()

    def dispatch_and_see(events, event):
        dispatch(events, event)
        if event.src_path.endswith("settled"):
            is_settled.set()

    monkeypatch.setattr(file_watch.FileEvents, "dispatch", dispatch_and_see)
    saver.put(config, make_checkpoint(1))
    with saver.watch(interval=0.01) as watch:
        # The watch may hear of what was done before. Events come in order.
        Path(saver.base_directory, "settled").touch()
        assert is_settled.wait(PATIENCE)
        until_quiet(watch)
        io.reset()
        assert watch.get(0.2) is None
        assert io.calls == []


def until_quiet(watch):
    """Take what there is to report. Events that are under way are not waited for."""
    while watch.get(0) is not None:
        pass


def so_far(watch, saver):
    """The changes of all that has happened: events come in order, and a look goes by the names.

    The last thread is a new one each time, because the look before may not have ended, and goes on with its own.
    """
    found = put_and_follow(watch, saver, RunnableConfig(f"zzz{uuid4().hex}"), 0)
    return [change for change in found if change.kind != "idle" and not change.thread_id.startswith("zzz")]


def test_a_watch_reports_the_death_of_a_run_at_once_and_no_vain_attempt(saver, config, launcher):
    saver.put(config, make_checkpoint(1))
    with saver.watch(config, interval=NEVER) as watch:
        holder = start_client(launcher, saver.opener(), "holder")
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError), saver.run_lock(config, 0):
            pass
        assert [change.kind for change in put_and_follow(watch, saver, config, 2)] == ["checkpoint"]
        assert watch.get(0.2) is None
        holder.kill()
        change = watch.get(PATIENCE)
        assert (change.kind, change.value) == ("idle", True)
        holder.communicate()
        with saver.run_lock(config, 0):
            pass
        change = watch.get(PATIENCE)
        assert (change.kind, change.value) == ("idle", False)


LOOK = """
import os, sys
from savers._filesystem.lock import is_locked
parent = os.getppid()
print("looking", flush=True)
while os.getppid() == parent:
    is_locked(sys.argv[1])
"""


def test_a_look_at_a_run_lock_refuses_no_caller_that_takes_it_meanwhile(saver, config, launcher):
    """A look takes the lock for some microseconds, and a caller that does not wait tries again after that."""
    saver.put(config, make_checkpoint(1))
    with saver.run_lock(config):
        pass
    (path,) = Path(saver.base_directory).glob("t-*/run.lock")
    looker = launcher.start("-c", LOOK, path)
    assert looker.stdout.readline() == "looking\n"
    for _ in range(2000):
        with saver.run_lock(config, 0):
            pass
    looker.kill()
    looker.communicate()


def test_the_run_lock_of_a_process_in_another_container_is_seen(saver, config):
    """Its process has a number in a namespace of its own, so that /proc/locks does not show its locks."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a namespace")
    saver.put(config, make_checkpoint(1))
    look = (
        "import sys; from savers import FileSystemSaver; from graphkit import RunnableConfig;"
        "print(FileSystemSaver(sys.argv[1]).history(RunnableConfig('t'))[0].status)"
    )
    with saver.run_lock(config):
        command = [*unshare, sys.executable, "-c", look, saver.base_directory]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "running\n"


# Files that are replaced


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(20))
def test_a_watch_reports_everything_whenever_it_looks(saver, seed):
    dice = random.Random(seed)
    found = []
    put = set()
    released = 0
    with saver.watch(interval=NEVER) as watch:
        for n in range(60):
            config = RunnableConfig(dice.choice("ab"), checkpoint_ns=dice.choice(["", "in"]))
            what = dice.choices(["put", "release", "compact", "prune", "look"], [12, 2, 1, 1, 2])[0]
            if what == "put":
                put.add(saver.put(config, make_checkpoint(n)).checkpoint_id)
            elif what == "release":
                released += len(saver.namespaces(config.thread))
                saver.release(config)
            elif what == "compact":
                saver.compact(config.thread)
            elif what == "prune":
                before = stored_ids(saver, config.thread)
                saver.prune(config.thread, keep_last=2)
                left = stored_ids(saver, config.thread)
                put -= before - left
            else:
                found += so_far(watch, saver)
        found += so_far(watch, saver)
    assert put <= set(ids(found))
    kinds = [change.kind for change in found]
    assert kinds.count("release") == released
    assert "delete" not in kinds


def test_a_thread_that_was_deleted_and_created_again_before_the_watch_looked(saver, config):
    saver.put(config, make_checkpoint(1))
    path = locate_log(saver.base_directory)
    # While the old log is open, the new one cannot get its inode.
    with path.open("rb"), saver.watch(config, interval=NEVER) as watch:
        saver.delete(config)
        saver.put(config, make_checkpoint(2))
        found = put_and_follow(watch, saver, config, 3)
    kinds = [change.kind for change in found if change.kind != "idle"]
    assert kinds == ["delete", "checkpoint", "checkpoint"]


@pytest.mark.parametrize("latest", [False, True])
def test_a_watch_reports_a_rewritten_log_from_its_beginning(saver, config, latest):
    put = [saver.put(config, make_checkpoint(n)).checkpoint_id for n in range(4)]
    with saver.watch(config, latest=latest, interval=NEVER) as watch:
        put.append(saver.put(config, make_checkpoint(4)).checkpoint_id)
        saver.prune(config, keep_last=3)
        put.append(saver.put(config, make_checkpoint(5)).checkpoint_id)
        assert ids(until(watch, to(put[-1]))) == put[2:]


def test_a_tail_that_was_cut_short_is_passed_over(saver, config):
    saver.put(config, make_checkpoint(1))
    path = locate_log(saver.base_directory)
    with saver.watch(config, interval=NEVER) as watch:
        put_and_follow(watch, saver, config, 2)

        with path.open("ab") as file:
            file.write(path.read_bytes()[64:84])

        put_and_follow(watch, saver, config.replace(checkpoint_ns="other"), 0)
        found = put_and_follow(watch, saver, config, 3)
        assert found[-1].checkpoint.node_id == "n3"


def test_a_damaged_log_is_named_and_the_others_are_followed(saver, caplog):
    caplog.set_level(logging.WARNING, "graphkit")
    good = RunnableConfig("good")
    for thread in ("bad", "good"):
        saver.put(RunnableConfig(thread), make_checkpoint(1))
    path = locate_log(saver.base_directory, "bad")
    size = path.stat().st_size
    flip_in_file(path, size - 10)
    with saver.watch(latest=True, interval=NEVER) as watch:
        latest = watch.get(PATIENCE)
        assert latest.thread_id == "good"
        put_and_follow(watch, saver, good, 2)
        (record,) = [record for record in caplog.records if str(path) in record.getMessage()]
        assert record.levelname == "WARNING"
        saver.repair("bad")
        until(watch, lambda change: change.thread_id == "bad")


# Without events


def refused(*_args, **_options):
    raise OSError(errno.ENOSPC, "no watches left")


@pytest.mark.parametrize("reason", ["refused", "remote", "forked"])
def test_without_events_it_polls_and_reports_it(saver, config, caplog, monkeypatch, reason):
    if reason == "refused":
        monkeypatch.setattr("watchdog.observers.api.BaseObserver.schedule", refused)
    elif reason == "remote":
        monkeypatch.setattr(file_watch, "find_network_file_system", lambda _: "nfs4")
    else:
        monkeypatch.setattr(file_watch.FileEvents, "process", os.getpid() + 1)
    saver.put(config, make_checkpoint(1))
    with caplog.at_level(logging.WARNING, "graphkit"), saver.watch(interval=0.01) as watch:
        (record,) = caplog.records
        assert "looking every 0.01 seconds instead" in record.getMessage()
        puts = [saver.put(config, make_checkpoint(n)) for n in range(5)]
        written = [put.checkpoint_id for put in puts]
        found = until(watch, to(written[-1]))
        assert ids(found) == written
        saver.release(config)
        assert until(watch, lambda change: change.kind == "release")

    assert saver.wait_for_resume("t", 0) is True


@pytest.mark.parametrize("how", ["run out", "end"])
def test_when_events_end_later_it_goes_on_without(saver, config, caplog, monkeypatch, how):
    monkeypatch.setattr(log_watch, "FULL_READ_INTERVAL", 0.05)
    with caplog.at_level(logging.WARNING, "graphkit"), saver.watch(config, interval=0.01) as watch:
        if how == "end":
            watch._source._events.stop()
        else:
            monkeypatch.setattr("watchdog.observers.api.BaseObserver.schedule", refused)
        for number in (1, 2):
            put_and_follow(watch, saver, config, number)
    assert ("looking every 0.01 seconds instead" if how == "end" else "no watches left") in caplog.text


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "no more files"), KeyboardInterrupt("no")])
def test_a_failed_look_is_made_up_for(opener, config, error):
    def fail():
        raise error

    saver = opener()
    io = HookedIO()
    with opener(io=io).watch(interval=NEVER) as watch:
        with failing(io, "open", fail):
            last = saver.put(config, make_checkpoint(1)).checkpoint_id
            with pytest.raises((CheckpointStorageError, KeyboardInterrupt), match="no"):
                watch.get(PATIENCE)
        until(watch, to(last))


def test_what_an_event_was_lost_of_is_found_later(saver, config, monkeypatch):
    monkeypatch.setattr(log_watch, "FULL_READ_INTERVAL", 0.05)
    monkeypatch.setattr(file_watch.FileEvents, "dispatch", lambda *_: None)
    with saver.watch(interval=NEVER) as watch:
        put_and_follow(watch, saver, config, 1)


# What it takes


def test_a_closed_watch_leaves_nothing_behind(saver, config):
    saver.put(config, make_checkpoint(1))
    with saver.watch(latest=True) as watch:  # what watchdog keeps for good is there from the first one on
        until_quiet(watch)
    gc.collect()
    files = count_open_files()
    threads = set(threading.enumerate())
    for _ in range(5):
        with saver.watch(latest=True) as one, saver.watch(config) as two:
            one.get(PATIENCE)
            two.get(0)
    gc.collect()
    assert count_open_files() <= files
    assert set(threading.enumerate()) <= threads


def test_descriptors_of_a_watch_are_bounded(saver):
    with saver.watch(interval=NEVER) as watch:
        until_quiet(watch)
        saver.close()
        before = count_open_files()
        with FileSystemSaver(saver.base_directory, fsync="never") as writer:
            for n in range(300):
                last = writer.put(RunnableConfig(f"thread {n}"), make_checkpoint(n)).checkpoint_id
        missing = {f"thread {n}" for n in range(300)}
        while missing:
            change = watch.get(PATIENCE)
            assert change is not None
            missing.discard(change.thread_id)
        assert last
        assert count_open_files() <= before + log_watch.MAX_OPEN_LOGS


@pytest.mark.parametrize("size", [0, 20])
def test_a_log_that_is_being_created_is_no_warning(saver, caplog, size):
    caplog.set_level(logging.WARNING, "graphkit")
    known = RunnableConfig("known")
    saver.put(known, make_checkpoint(0))
    place = saver._store.locate("A thread whose name does not say its id", "")
    directory = Path(saver.base_directory, place.path)
    with saver.watch(interval=0.01) as watch:
        directory.mkdir()
        (directory / "log").write_bytes(bytes(size))
        put_and_follow(watch, saver, known, 1)
    assert caplog.records == []
