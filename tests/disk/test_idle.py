"""delete_idle: threads that no process writes to, and those that one writes to at the last moment."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from graphkit import CheckpointerError, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.disk.simfs import Fault, SimFS
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import FileIO
from tests.support.logs import locate_log

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def days_ago(days):
    return NOW - timedelta(days=days)


def in_ns(time):
    return round(time.timestamp() * 10**9)


def put(saver, thread, namespace="", n=1):
    return saver.put(RunnableConfig(thread, checkpoint_ns=namespace), make_checkpoint(n))


def age(saver, thread, days):
    """Set the time at which every file of a thread was last written."""
    time = in_ns(days_ago(days))
    for path in locate_log(saver.base_directory, thread).parent.rglob("*"):
        os.utime(path, ns=(time, time))


@pytest.fixture
def saver(opener):
    saver = opener()
    for days, thread in enumerate(("now", "day", "days"), 0):
        put(saver, thread)
        age(saver, thread, days)
    return saver


def test_it_deletes_the_threads_that_were_not_written_to_since_then(saver, opener):
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]  # not the one of exactly then
    for reader in (saver, opener()):
        assert reader.threads() == ["day", "now"]
    assert saver.delete_idle(idle_since=days_ago(0.5)) == ["day"]
    assert not locate_log(saver.base_directory, "day").parent.exists()
    assert saver.verify().ok
    assert saver.delete_idle(idle_since=days_ago(9)) == []


def test_a_dry_run_returns_the_same_and_changes_nothing(saver):
    assert saver.delete_idle(idle_since=days_ago(0.5), dry_run=True) == ["day", "days"]
    assert saver.threads() == ["day", "days", "now"]


def test_it_looks_at_one_thread_only(saver):
    assert saver.delete_idle("now", idle_since=days_ago(0.5)) == []
    assert saver.delete_idle("unknown", idle_since=days_ago(0.5)) == []
    assert saver.delete_idle(RunnableConfig("days"), idle_since=days_ago(0.5)) == ["days"]
    assert saver.threads() == ["day", "now"]
    assert not locate_log(saver.base_directory, "unknown").parent.exists()


def test_progress_is_reported_for_each_thread(saver):
    seen = []
    saver.delete_idle(idle_since=days_ago(1), progress=lambda *what: seen.append(what))
    assert seen == [(1, 3, "day"), (2, 3, "days"), (3, 3, "now")]


@pytest.mark.parametrize("write", ["put", "replace", "namespace", "write", "tag", "release"])
def test_each_kind_of_write_counts(saver, write):
    config = RunnableConfig("days")
    (info,) = saver.history(config)
    named = config.with_check_point_id(info.id)
    {
        "put": lambda: put(saver, "days", n=2),
        "replace": lambda: saver.put(named, make_checkpoint(3)),
        "namespace": lambda: put(saver, "days", "inner"),
        "write": lambda: saver.put_writes(named, {"key": 1}),
        "tag": lambda: saver.add_tags(named, "tag"),
        "release": lambda: saver.release(config),
    }[write]()
    assert saver.delete_idle(idle_since=days_ago(0)) == ["day"]
    assert "days" in saver.threads(released=True)


def test_reading_and_the_run_lock_do_not_count(saver, opener):
    with saver.run_lock(RunnableConfig("days")):
        pass
    for reader in (saver, opener()):
        reader.list(RunnableConfig("days"))
        reader.verify("days")
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]


def test_a_thread_that_only_has_versions_is_deleted_too(saver):
    saver.release(RunnableConfig("days"))
    age(saver, "days", 2)
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]
    assert saver.threads(released=True) == ["day", "now"]


def test_a_thread_that_waits_for_a_human_is_idle_too(saver):
    config = RunnableConfig("days")
    (info,) = saver.history(config)
    interrupt = {"node_id": "n", "when": "inside", "payload": 1, "metadata": {}, "created_at": NOW}
    saver.put_writes(config.with_check_point_id(info.id), {"interrupt:i": interrupt})
    assert len(saver.interrupts()) == 1
    age(saver, "days", 2)
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]


def test_a_thread_with_a_run_stays_and_nothing_waits_for_it(saver, opener):
    with opener().run_lock(RunnableConfig("days")):
        assert saver.delete_idle(idle_since=days_ago(1)) == []
        found = []
        other = threading.Thread(target=lambda: found.extend(saver.delete_idle(idle_since=days_ago(1))))
        other.start()
        other.join()
        assert found == []
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]


PUT = """
import sys
from tests.disk.test_idle import put
from savers import FileSystemSaver
put(FileSystemSaver(sys.argv[1]), "days", n=2)
"""


class LastMomentIO(FileIO):
    """Lets another process write to the thread just before the write lock is taken."""

    def __init__(self, root):
        super().__init__()
        self.root = root
        self.is_armed = True

    def lock(self, fd):
        if self.is_armed and "/locks/" in self._paths[fd]:
            self.is_armed = False
            subprocess.run([sys.executable, "-c", PUT, self.root], check=True)
        return super().lock(fd)


def test_a_thread_that_a_process_writes_to_between_the_check_and_the_lock_stays(saver):
    io = LastMomentIO(saver.base_directory)
    with saver.run_lock(RunnableConfig("days")):
        pass  # makes the file, which takes the write lock
    with FileSystemSaver(saver.base_directory, fsync="never", io=io) as other:
        assert other.delete_idle("days", idle_since=days_ago(1)) == []
        assert not io.is_armed
        assert list_numbers(other, RunnableConfig("days")) == [2, 1]


def test_an_error_of_one_thread_does_not_stop_the_others_and_names_it(saver, monkeypatch):
    age(saver, "day", 2)
    rename = FileIO.rename

    def refuse(io, source, target):
        if "t-day-" in source:
            raise PermissionError(13, "Permission denied", source)
        return rename(io, source, target)

    monkeypatch.setattr(FileIO, "rename", refuse)
    with pytest.raises(CheckpointStorageError, match=r"day; all others are done"):
        saver.delete_idle(idle_since=days_ago(1))
    monkeypatch.undo()
    # Its end was recorded before the rename: it reads as deleted, and the next delete removes its directory.
    assert saver.threads(released=True) == ["now"]
    assert saver.delete("day")
    assert not list(Path(saver.base_directory).glob("*t-day-*"))


def test_a_time_without_a_zone_is_refused(saver):
    with pytest.raises(ValueError, match="time zone"):
        saver.delete_idle(idle_since=datetime(2030, 1, 1))  # noqa: DTZ001
    assert len(saver.threads()) == 3


# A process that dies, on the simulated disk


def make_aged(hook=None):
    """Two threads, of two days and of now, with a namespace each."""
    fs = SimFS(hook=hook)
    saver = FileSystemSaver("/store", io=fs, fsync="never")
    fs.now_ns = in_ns(days_ago(2))
    put(saver, "old")
    put(saver, "old", "inner")
    fs.now_ns = in_ns(NOW)
    put(saver, "new")
    return fs, saver


def test_the_simulated_clock_decides():
    _, saver = make_aged()
    assert saver.delete_idle(idle_since=days_ago(1)) == ["old"]
    assert saver.threads() == ["new"]


def test_a_process_that_dies_in_it_leaves_each_thread_whole_or_gone(sweep):
    fs, saver = make_aged()
    first = len(fs.calls)
    saver.delete_idle(idle_since=days_ago(1))
    calls = len(fs.calls) - first
    assert calls > 20
    outcomes = set()
    for death in sweep.some(range(calls), 40):
        fs, saver = make_aged()
        start = len(fs.calls)

        def die(kind, number, place, fs=fs, last=start + death):
            if len(fs.calls) > last:
                raise Fault

        fs.hook = die
        with pytest.raises(Fault):
            saver.delete_idle(idle_since=days_ago(1))
        reopened = FileSystemSaver("/store", io=SimFS(fs.tree()), fsync="never")
        threads = reopened.threads()
        assert threads in (["new", "old"], ["new"])
        assert len(reopened.list(RunnableConfig("new"))) == 1
        is_whole = len(reopened.list(RunnableConfig("old"))) == 1
        if is_whole:
            assert len(reopened.list(RunnableConfig("old", checkpoint_ns="inner"))) == 1
        outcomes.add(is_whole)
        put(reopened, "old", n=7)
        assert list_numbers(reopened, RunnableConfig("old")) == ([7, 1] if is_whole else [7])
        assert reopened.namespaces("old") == (["", "inner"] if is_whole else [""])
    assert outcomes == {True, False}


def test_a_refused_lock_changes_nothing():
    fs, saver = make_aged()
    fs.hook = lambda kind, number, place: (_ for _ in ()).throw(OSError(5, "broken", place)) if kind == "lock" else None
    with pytest.raises(CheckpointerError):
        saver.delete_idle(idle_since=days_ago(1))
    fs.hook = None
    assert saver.threads() == ["new", "old"]
