"""Savers of several fsync modes on one log: what "always" acknowledges stays; the others lose an end, never more (A4, A6)."""

import random
from functools import partial

import pytest

from graphkit import CheckpointCorruptionError, RunnableConfig
from savers import FileSystemSaver
from tests.disk import crashes
from tests.disk.crashes import Crashes, config_of, made, open_saver
from tests.support.checkpoints import list_numbers
from tests.support.contents import expect_alike
from tests.support.disks import FileIO, set_boot
from tests.support.logs import SECTOR, locate_log, lose_sectors, read_records

CONFIG = RunnableConfig("t")


@pytest.fixture(autouse=True)
def boot(monkeypatch):
    """The start of the system, which a test may change."""
    now = [1]
    set_boot(monkeypatch, lambda: now[0])
    return now


# "always" beside another mode, on the simulated disk


def lazily(run, saver, number, **state):
    """A put that nobody has promised to keep: it is acknowledged, and no sync follows."""
    checkpoint = made(number, **state)
    run.oracle.put(config_of(), checkpoint)
    run.views.append(run.expected())
    run.fs.note("begin", len(run.views) - 1)
    saver.put(config_of(), checkpoint)


def in_turn(run, fsync="never"):
    """Puts of two savers, one after the other."""
    lazy = open_saver(run.fs, fsync)
    run.put(0, text="a" * 700)
    lazily(run, lazy, 1, text="b" * 900)
    lazily(run, lazy, 2, text="c" * 1300)
    run.put(3, text="d" * 600)
    lazily(run, lazy, 4, text="e" * 2000)
    run.put(5)
    lazily(run, lazy, 6)


def begun_lazily(run, fsync="never"):
    """The log is made by the saver that does not wait."""
    lazy = open_saver(run.fs, fsync)
    lazily(run, lazy, 0, text="a" * 700)
    lazily(run, lazy, 1, text="b" * 700)
    run.put(2, text="c" * 900)
    lazily(run, lazy, 3)
    run.put(4)


def during_a_sync(run, fsync="never"):
    """The other saver appends while the first one waits for the disk, before and after a worker's append."""
    lazy = open_saver(run.fs, fsync)
    run.put(0)
    for number in (1, 4, 7):
        worker = crashes.Worker(partial(run.put, number + 1, text="w" * 900))

        def meanwhile(kind, _, worker=worker, number=number):
            if kind == "fdatasync" and not worker.thread.ident:
                worker.let_append()
                run.fs.hook = None
                lazily(run, lazy, number + 2, text="l" * 700)
                run.fs.hook = meanwhile
                # The first saver sees, meanwhile, what the lazy one has appended.
                run.saver.get(config_of())
            worker.notice(kind)

        run.fs.hook = meanwhile
        run.put(number, text="a" * 500)
        worker.thread.join()
        run.fs.hook = None
    run.put(10)


def early_in_turn(run, fsync="never"):
    """Writes that come before their checkpoint, between puts of the other saver."""
    lazy = open_saver(run.fs, fsync)
    run.put(0, text="a" * 700)
    lazily(run, lazy, 1, text="b" * 900)
    run.write(4, a="behind a lazy put")
    lazily(run, lazy, 2, text="c" * 1300)
    run.write(3, a="E" * 600)
    run.put(3, text="d" * 600)
    run.put(4)
    lazily(run, lazy, 5)
    run.write(6, a="of none")


def by_seconds(run):
    """The same as in_turn, with a saver that syncs later."""
    in_turn(run, 3600)


@pytest.mark.parametrize(
    "workload", [in_turn, begun_lazily, during_a_sync, early_in_turn, by_seconds], ids=lambda one: one.__name__
)
def test_nothing_that_always_has_acknowledged_is_lost(workload, sweep):
    found = Crashes()
    found.explore(workload, sweep.count(350, 120))
    assert found.states > sweep.count(60, 30)
    assert found.nested >= found.states


# Without "always": shorter, never wrong


COUNT = 40


def long_log(root, fsync, flushed=None):
    """A log of some 240 KB, none of it known to be on the disk but what was flushed."""
    with FileSystemSaver(root, fsync=fsync, compression=None) as saver:
        for number in range(COUNT):
            saver.put(CONFIG, made(number, **{f"text{number % 5}": random.Random(number).randbytes(3000).hex()}))
            if number == flushed:
                saver.flush()
    return locate_log(root)


def lose_sector(path, record):
    """Lose a sector in the middle of a record."""
    sector = record.offset // SECTOR + 2
    assert (sector + 1) * SECTOR < record.end
    path.write_bytes(lose_sectors(path.read_bytes(), record.offset, [sector]))


def expect_beginning(root, fsync, count):
    """Every way to read gives the first checkpoints and nothing else; so after the next put."""
    expected = [*range(count)]
    with FileSystemSaver(root, fsync=fsync) as saver:
        expect_numbers(saver, expected)
        saver.put(CONFIG, made(900))
        assert saver.get(CONFIG).state["n"] == 900
    with FileSystemSaver(root, fsync=fsync) as saver:
        expect_numbers(saver, [*expected, 900])
    with FileSystemSaver(root, fsync=fsync) as saver:
        assert saver.verify().ok


def expect_numbers(saver, expected):
    assert list_numbers(saver, CONFIG)[::-1] == expected
    ids = expect_alike(saver, CONFIG)
    assert [info.id for info in saver.recent(CONFIG, limit=3)] == ids[:3]
    report = saver.verify()
    assert "damaged" not in {file.state for file in report.problems}


@pytest.mark.parametrize("fsync", ["never", 60.0, "always"])
@pytest.mark.parametrize("lost", [0, 1, 7, 20, 35, 39])
def test_a_loss_further_back_than_is_looked_at_otherwise_is_found_after_a_new_start(tmp_path, boot, fsync, lost):
    path = long_log(tmp_path, "never")
    lose_sector(path, read_records(path)[2 + lost])
    boot[0] = 2
    expect_beginning(tmp_path, fsync, lost)


def test_so_it_is_where_the_number_of_the_boot_is_unknown(tmp_path, boot):
    boot[0] = 0
    path = long_log(tmp_path, "never")
    lose_sector(path, read_records(path)[2 + 7])
    expect_beginning(tmp_path, "never", 7)


def test_damage_in_what_was_flushed_is_damage_after_a_new_start_too(tmp_path, boot):
    path = long_log(tmp_path, 60.0, flushed=30)
    lose_sector(path, read_records(path)[12])
    boot[0] = 2
    with FileSystemSaver(tmp_path, fsync=60.0) as saver:
        with pytest.raises(CheckpointCorruptionError):
            saver.list(CONFIG)
        assert [file.state for file in saver.verify().problems] == ["damaged"]


@pytest.mark.parametrize("known", [0, 1, 2], ids=["unknown boot", "same boot", "new start"])
def test_only_a_saver_in_a_new_start_takes_what_it_read_for_synced(tmp_path, boot, known):
    long_log(tmp_path, "never")
    boot[0] = known
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        saver.put(CONFIG, made(COUNT))
    last = read_records(locate_log(tmp_path))[-1]
    if known == 2:
        assert last.unsynced == 0
    else:
        assert last.unsynced * SECTOR >= last.offset - SECTOR


@pytest.mark.parametrize(("fsync", "is_synced"), [("always", True), (60, True), ("never", False)])
def test_a_worker_process_syncs_each_put_unless_its_saver_never_does(tmp_path, monkeypatch, fsync, is_synced):
    """It has no thread that flushes."""
    syncs = []
    monkeypatch.setattr(FileIO, "fdatasync", lambda io, fd: syncs.append(fd))
    with FileSystemSaver(tmp_path, fsync=fsync).opener()() as saver:
        saver.put(config_of(), made(0))
        syncs.clear()
        saver.put(config_of(), made(1))
        assert bool(syncs) is is_synced
