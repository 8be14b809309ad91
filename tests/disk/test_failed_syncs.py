"""Several syncs fail in a row, as on a dying disk: what was refused is not there, and tried again it is there once (C8)."""

import errno
import itertools
import logging
from contextlib import suppress

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from graphkit.testing import made as make
from savers import FileSystemSaver
from tests.disk import crashes
from tests.disk.crashes import config_of, made, open_durable, open_saver, view
from tests.disk.simfs import SimFS
from tests.support.checkpoints import apply_update, list_numbers, make_following
from tests.support.contents import expect_alike, read_all
from tests.support.disks import CHANGES, Fault, HookedIO, failing, quiet
from tests.support.logs import locate_log

CONFIG = RunnableConfig("t")
SYNCS = ("fdatasync", "fsync", "fsync_dir")


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


def ids(saver):
    return expect_alike(saver, CONFIG)[::-1]


def begun(root, **options):
    io = HookedIO()
    saver = FileSystemSaver(root, io=io, **options)
    saver.put(CONFIG, make({"n": 0}, id="c0"))
    saver.put(CONFIG, make({"n": 1}, id="c1"))
    return io, saver


def expect_everywhere(root, saver, expected):
    assert ids(saver) == expected
    with FileSystemSaver(root) as fresh:
        assert ids(fresh) == expected
        assert fresh.verify().ok


KINDS = (SYNCS, (*SYNCS, "truncate"), (*SYNCS, "rename"), (*SYNCS, "truncate", "rename"))
"""What fails: the syncs, and the calls with which a log is cut back or rewritten after that."""


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
@pytest.mark.parametrize("count", range(1, 7))
def test_a_put_whose_syncs_fail_is_not_in_the_history_and_tried_again_it_is_there_once(tmp_path, kinds, count):
    io, saver = begun(tmp_path)
    io.hook = Fault(kinds, times=count)
    attempts = 0
    while io.hook.met < count:
        with pytest.raises(CheckpointStorageError):
            saver.put(CONFIG, make({"n": 2}, id="c2"))
        attempts += 1
        # Until the log can be cut back the saver itself must not show it.
        assert ids(saver) == ["c0", "c1"]
        if kinds == SYNCS:
            expect_everywhere(tmp_path, saver, ["c0", "c1"])
    saver.put(CONFIG, make({"n": 2}, id="c2"))
    expect_everywhere(tmp_path, saver, ["c0", "c1", "c2"])
    assert attempts >= 1 + (count > 2 and kinds == SYNCS)
    saver.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda saver: saver.put(CONFIG.with_check_point_id("c0"), make({"n": 0, "text": "instead"}, id="c0")),
        lambda saver: saver.put_writes(CONFIG, {"key": 1}),
        lambda saver: saver.add_tags(CONFIG, "tag"),
        lambda saver: saver.put(RunnableConfig("t", checkpoint_ns="inner"), make({"n": 5}, id="c5")),
        lambda saver: saver.put(RunnableConfig("new"), make({"n": 5}, id="c5")),
    ],
    ids=["replace", "writes", "tags", "namespace", "thread"],
)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_kind_of_change_is_refused_as_a_whole(tmp_path, change, count):
    io, saver = begun(tmp_path)
    before = read_all(saver)
    io.hook = Fault(SYNCS, times=count)
    while io.hook.met < count:
        with pytest.raises(CheckpointStorageError):
            change(saver)
        with FileSystemSaver(tmp_path) as fresh:
            assert read_all(saver) == read_all(fresh) == before
    change(saver)
    with FileSystemSaver(tmp_path) as fresh:
        assert read_all(saver) == read_all(fresh) != before
        assert sum(map(len, read_all(fresh).values())) - 2 in {0, 1}
        assert fresh.verify().ok
    saver.close()


def test_a_log_whose_torn_end_is_cut_off_by_a_sync_that_fails_is_rewritten(tmp_path):
    io, saver = begun(tmp_path)
    with failing(io, "fdatasync", times=1), pytest.raises(CheckpointStorageError):
        saver.put(CONFIG, make({"n": 2}, id="c2"))
    saver.put(CONFIG, make({"n": 2}, id="c2"))
    path = locate_log(tmp_path)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + b"torn")
    number = path.stat().st_ino
    io.hook = Fault(("fsync",), where="/log")
    with pytest.raises(CheckpointStorageError):
        saver.put(CONFIG, make({"n": 3}, id="c3"))
    assert path.stat().st_ino == number
    io.hook = None
    saver.put(CONFIG, make({"n": 3}, id="c3"))

    assert path.stat().st_ino != number
    expect_everywhere(tmp_path, saver, ["c0", "c1", "c2", "c3"])
    saver.close()


@pytest.mark.parametrize(("refused", "kept"), [(CHANGES, ["c2"]), ((*SYNCS, "rename"), [])], ids=["all", "rename"])
def test_what_another_writer_puts_after_records_that_could_not_be_rewritten_stays(tmp_path, refused, kept):
    """On the records whose put has failed, or in their place, if they could be cut off: with the same length."""
    io, saver = begun(tmp_path)
    failed = []

    def fail_from_the_sync_on(kind, path):
        if kind == "fdatasync" or (failed and kind in refused):
            failed.append(kind)
            raise OSError(errno.EIO, "injected", path)

    io.hook = fail_from_the_sync_on
    with pytest.raises(CheckpointStorageError):
        saver.put(CONFIG, make({"n": 2}, id="c2"))
    io.hook = None
    with FileSystemSaver(tmp_path) as other:
        other.put(CONFIG, make({"n": 3}, id="c3"))
    saver.put(CONFIG, make({"n": 4}, id="c4"))
    expect_everywhere(tmp_path, saver, ["c0", "c1", *kept, "c3", "c4"])
    saver.close()


def test_a_release_whose_sync_fails_is_rewritten_before_it_is_finished(tmp_path):
    """No later sync of that file could be trusted."""
    io, saver = begun(tmp_path)
    path = locate_log(tmp_path)
    number = path.stat().st_ino
    with failing(io, "fsync", times=1), pytest.raises(CheckpointStorageError):
        saver.release(CONFIG)

    assert saver.release(CONFIG).version == 1
    assert path.with_name("v000001.log").stat().st_ino != number
    assert [checkpoint.id for checkpoint in saver.tag(CONFIG).checkpoints] == ["c1", "c0"]
    saver.close()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_with_seconds_a_flush_that_fails_raises_and_loses_nothing(tmp_path, count):
    """What was acknowledged before stays in the history, and the next flush brings it to the disk."""
    io, saver = begun(tmp_path, fsync=3600)
    saver.flush()
    saver.put(CONFIG, make({"n": 2}, id="c2"))
    saver.put(CONFIG, make({"n": 3}, id="c3"))
    with failing(io, SYNCS, times=count), pytest.raises(CheckpointStorageError):
        saver.flush()

    assert ids(saver) == ["c0", "c1", "c2", "c3"]
    saver.put(CONFIG, make({"n": 4}, id="c4"))
    saver.flush()
    expect_everywhere(tmp_path, saver, ["c0", "c1", "c2", "c3", "c4"])
    saver.close()


# On the simulated disk: what the disk has, not what the page cache shows


FAILURES = [count for count in itertools.product((0, 1), repeat=4) if any(count)]


@pytest.mark.parametrize("pattern", FAILURES, ids=lambda one: "".join(map(str, one)))
@pytest.mark.parametrize("fsync", ["always", 3600])
def test_what_was_acknowledged_after_failed_syncs_is_on_the_disk(pattern, fsync):
    """Some of the next syncs of the log and of its rewrites fail; then all goes on, and the power is lost."""
    plan = []

    def fail(kind, path):
        if kind in {"fdatasync", "fsync"} and ("/log" in path or "/tmp-" in path) and plan and plan.pop(0):
            raise OSError(errno.EIO, "injected", path)

    fs = SimFS(hook=fail)
    with crashes.fixed(1):
        saver = open_saver(fs, fsync)
        saver.put(config_of(), made(0, text="a" * 700))
        saver.flush()
        plan += pattern
        kept = [0]
        for number in range(1, 5):
            try:
                saver.put(config_of(), made(number, text=f"{number}" * 900))
            except CheckpointStorageError:
                pass
            else:
                kept.append(number)
            with suppress(CheckpointStorageError):
                saver.flush()
            assert list_numbers(saver, config_of())[::-1] == kept
        plan.clear()
        saver.put(config_of(), made(9))
        saver.flush()
        assert list_numbers(saver, config_of())[::-1] == [*kept, 9]
        assert view(open_durable(fs)) == view(saver)


@pytest.mark.parametrize("refused", [2, 3, 5])
def test_a_put_whose_writing_could_not_be_started_is_refused_though_the_sync_succeeds(refused, caplog):
    """What could not be written is not on the disk, and the system says so once: not to the sync."""
    fs = SimFS()
    with crashes.fixed(1):
        saver = open_saver(fs)
        saver.put(config_of(), made(0))
        state = saver.get(config_of()).state
        kept = [0]
        for number in range(1, 7):
            new, changes = apply_update(state, {"n": number})
            checkpoint = make_following(number, new, changes)
            if number == refused:
                caplog.set_level(logging.WARNING, logger="graphkit")
                with failing(fs, "start_writing", errno.ENOSPC, times=1), pytest.raises(CheckpointStorageError):
                    saver.put(config_of(), checkpoint)
                assert "may not have reached the disk" in caplog.text
            else:
                saver.put(config_of(), checkpoint)
                kept.append(number)
            state = saver.get(config_of()).state
            assert list_numbers(saver, config_of())[::-1] == kept
        assert view(open_durable(fs)) == view(saver)


# In the background


def test_a_sync_that_fails_in_the_background_is_logged_and_the_log_is_rewritten(opener, config, caplog):
    io = HookedIO()
    saver = opener(fsync=0.01, io=io)
    saver.put(config, make({"n": 0}, id="c0"))
    saver.flush()
    path = locate_log(saver.base_directory)
    inode = path.stat().st_ino
    caplog.set_level(logging.ERROR, logger="graphkit")
    with failing(io, "fdatasync", times=1):
        saver.put(config, make({"n": 1}, id="c1"))
        while not caplog.messages:
            pass
    assert caplog.messages == ["checkpoints could not be brought to the disk"]
    saver.put(config, make({"n": 2}, id="c2"))
    saver.flush()
    assert list_numbers(opener(), config) == [2, 1, 0]
    assert path.stat().st_ino != inode, "what a failed sync left cannot be believed"
