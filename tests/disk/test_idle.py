"""delete_idle: threads that no process writes to, and those that one writes to at the last moment."""

import errno
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.disks import Fault, HookedIO
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


PUT = """
import sys
from tests.disk.test_idle import put
from savers import FileSystemSaver
put(FileSystemSaver(sys.argv[1]), "days", n=2)
"""


def test_a_thread_that_a_process_writes_to_between_the_check_and_the_lock_stays(saver, opener):
    def put_at_the_last_moment(kind, path):
        if kind == "lock" and "/locks/" in path:
            io.hook = None
            subprocess.run([sys.executable, "-c", PUT, saver.base_directory], check=True)

    with saver.run_lock(RunnableConfig("days")):
        pass  # makes the file, which takes the write lock
    io = HookedIO(put_at_the_last_moment)
    other = opener(io=io)
    assert other.delete_idle("days", idle_since=days_ago(1)) == []
    assert io.hook is None
    assert list_numbers(other, RunnableConfig("days")) == [2, 1]


def test_an_error_of_one_thread_does_not_stop_the_others_and_names_it(saver, opener):
    age(saver, "day", 2)
    refusing = opener(io=HookedIO(Fault("rename", errno.EACCES, where="t-day-")))
    with pytest.raises(CheckpointStorageError, match=r"day; all others are done"):
        refusing.delete_idle(idle_since=days_ago(1))
    # Its end was recorded before the rename: it reads as deleted, and the next delete removes its directory.
    assert saver.threads(released=True) == ["now"]
    assert saver.delete("day")
    assert not list(Path(saver.base_directory).glob("*t-day-*"))
