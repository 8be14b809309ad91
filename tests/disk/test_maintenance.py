"""Keeping a store small and private: compression, pruning, compacting, deleting, sizes."""

import errno
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from graphkit import (
    Checkpoint,
    CheckpointerConfigurationError,
    CheckpointStorageError,
    MissingDependencyError,
    RunnableConfig,
)
from savers import Compression, FileSystemSaver
from tests.support.checkpoints import list_ids, list_states, make_checkpoint
from tests.support.client import start_client
from tests.support.disks import Fault, HookedIO, list_open_files
from tests.support.logs import COMPRESSED, locate_log, read_records

TEXT = "".join(f"line {n} of a text that says much the same again and again\n" for n in range(4000))


def content(root):
    return b"".join(path.read_bytes() for path in Path(root).rglob("*") if path.is_file())


def put_all(saver, config, states):
    return [saver.put(config, Checkpoint(node_id="n", next_node_id="n", state=state)).checkpoint_id for state in states]


# Compression


@pytest.mark.requirement("P50", "H50", "P87")
@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_large_values_are_compressed_and_come_back_without_being_asked(method, opener, config):
    if method == "zstd":
        pytest.importorskip("zstandard")
    saver = opener(compression=method)
    below = TEXT[:99_000]
    above = TEXT[:101_000]
    put_all(saver, config, [{"text": below}])
    small = saver.size("t")
    assert small > len(below)
    put_all(saver, config, [{"other": above}])
    assert saver.size("t") - small < len(above) / 3
    path = locate_log(saver.base_directory)
    flags = [record.flags & COMPRESSED for record in read_records(path)]
    assert flags == [0, 0, 0, COMPRESSED]
    reader = opener(compression=None)
    assert list_states(reader, config) == [{"other": above}, {"text": below}]
    assert reader.verify().ok


def test_options_are_checked_at_once(tmp_path, monkeypatch):
    for options in ({"level": 0}, {"level": 10}, {"threshold": 0}, {"method": "lz4"}):
        with pytest.raises(CheckpointerConfigurationError):
            Compression(**options)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependencyError, match=r"graphkit-durable\[zstd\]"):
        FileSystemSaver(tmp_path, compression="zstd")


# Space and privacy


SECRET = b"the content that must be forgotten"


@pytest.mark.requirement("P73")
@pytest.mark.parametrize("work", ["prune", "compact"])
def test_after_prune_and_compact_no_byte_of_what_they_remove_is_left(work, opener, config):
    saver = opener()
    secret = SECRET.decode()
    kept = {"note": "kept", "log": []}
    first, *_ = put_all(saver, config, [{"note": secret, "log": [secret]}, kept, kept])
    if work == "compact":
        gone = Checkpoint(node_id="n", next_node_id="n", state={"note": "gone"})
        saver.put(config.with_check_point_id(first), gone)
        saver.put_writes(config, {"w": secret})
        saver.put_writes(config, {"w": "kept"})
    assert SECRET in content(saver.base_directory)
    before = saver.size()
    if work == "prune":
        saver.prune("t", keep_last=2)
    else:
        would_free = saver.compact("t", dry_run=True)
        assert saver.size() == before
        freed = saver.compact("t")
        assert would_free == freed == before - saver.size()
        assert not saver.compact()
    assert SECRET not in content(saver.base_directory)
    assert saver.size() < before
    assert saver.get(config).state["note"] == "kept"
    assert opener().verify().ok


def test_delete_gives_its_descriptors_back(opener, config):
    saver = opener()
    put_all(saver, config, [{"n": 1}])
    saver.release(config)
    saver.tag(config)
    put_all(saver, config, [{"n": 1}])
    logs = [file for file in list_open_files(saver.base_directory) if file.endswith("/log")]
    assert logs
    saver.delete("t")
    left = list_open_files(saver.base_directory)
    assert not {*logs} & {*left}, "a file that somebody has open still takes its space"
    assert not [file for file in left if file.endswith(" (deleted)")]


def test_what_crashed_deletes_left_goes_with_the_first_thread_that_a_process_makes_or_deletes(opener, config):
    saver = opener()
    put_all(saver, config, [{"n": 1}])
    root = Path(saver.base_directory)
    for work in (lambda one: put_all(one, config.replace(thread_id="new"), [{}]), lambda one: one.delete("new")):
        dead = root / "tmp-t-dead-aaaaaaaaaaaaaaaaaaaaaaaa"
        dead.mkdir()
        (dead / "log").write_bytes(SECRET)
        work(opener())
        assert not dead.exists()


# delete_idle: threads that no process writes to, and those that one writes to at the last moment


NOW = datetime(2020, 1, 10, 12, 0, tzinfo=UTC)


def days_ago(days):
    return NOW - timedelta(days=days)


def put(saver, thread, namespace="", n=1):
    return saver.put(RunnableConfig(thread, checkpoint_ns=namespace), make_checkpoint(n))


def age(saver, thread, days):
    """Set the time at which every file of a thread was last written."""
    time = round(days_ago(days).timestamp() * 10**9)
    for path in locate_log(saver.base_directory, thread).parent.rglob("*"):
        os.utime(path, ns=(time, time))


@pytest.fixture
def saver(opener):
    saver = opener()
    for days, thread in enumerate(("now", "day", "days"), 0):
        put(saver, thread)
        age(saver, thread, days)
    return saver


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
    assert saver.delete_idle(idle_since=days_ago(1)) == ["days"]  # not the one of exactly then
    assert not locate_log(saver.base_directory, "days").parent.exists()


def test_a_thread_that_a_process_writes_to_between_the_check_and_the_lock_stays(saver, opener, launcher):
    def put_at_the_last_moment(kind, path):
        if kind == "lock" and "/locks/" in path:
            io.hook = None
            start_client(launcher, saver.opener(), "last", 1, "days").communicate()

    with saver.run_lock(RunnableConfig("days")):
        pass  # makes the file, which takes the write lock
    io = HookedIO(put_at_the_last_moment)
    other = opener(io=io)
    assert other.delete_idle("days", idle_since=days_ago(1)) == []
    assert io.hook is None
    assert list_ids(other, RunnableConfig("days"))[0] == "last 0"


def test_an_error_of_one_thread_does_not_stop_the_others_and_names_it(saver, opener):
    age(saver, "day", 2)
    refusing = opener(io=HookedIO(Fault("rename", errno.EACCES, where="t-day-")))
    with pytest.raises(CheckpointStorageError, match=r"day; all others are done"):
        refusing.delete_idle(idle_since=days_ago(1))
    # Its end was recorded before the rename: it reads as deleted, and the next delete removes its directory.
    assert saver.threads(released=True) == ["now"]
    assert saver.delete("day")
    assert not list(Path(saver.base_directory).glob("*t-day-*"))


# Copies


@pytest.mark.parametrize("moment", ["history", "own_key"])
def test_a_copy_of_a_thread_whose_root_is_removed_meanwhile_has_the_rest(opener, config, monkeypatch, moment):
    saver = opener()
    inner = RunnableConfig("t", checkpoint_ns="inner")
    for each in (config, inner):
        put_all(saver, each, [{"n": 1}])
    original = getattr(saver, moment)

    def remove_and_go_on(given):
        monkeypatch.undo()
        saver.remove(config, list_ids(saver, config))
        return original(given)

    monkeypatch.setattr(saver, moment, remove_and_go_on)
    saver.copy("t", "u")
    assert list(saver.namespaces("u")) == ["inner"]
    assert list_states(saver, RunnableConfig("u", checkpoint_ns="inner")) == [{"n": 1}]
