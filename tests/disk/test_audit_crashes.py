"""Power loss, a full disk, failing calls, kills, forks and other processes, while an audit log is written."""

import errno
import gc
import multiprocessing
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from graphkit import (
    Checkpoint,
    CheckpointConflictError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    RunnableConfig,
    ThreadBusyError,
)
from graphkit.saver_kit import freeze
from savers import AuditedSaver, AuditLog, FileSystemSaver, MemorySaver, VersionedMemorySaver
from tests.disk.crashes import fixed
from tests.disk.simfs import Disk, SimFS
from tests.support.audit_logs import list_files, replace_pause
from tests.support.checkpoints import list_numbers, make_checkpoint as made
from tests.support.disks import HOOKED, HookedIO, failing, list_open_files, noting_calls, quiet
from tests.support.forked import run_in_child, start_in_child
from tests.support.interruptions import find_places, interrupt

pytestmark = pytest.mark.requirement("P72")
CONFIG = RunnableConfig("t")
PLACE = "/place"
MANY = 12


def open_both(fs, fsync="always", **options):
    log = AuditLog(f"{PLACE}/log", io=fs, **options)
    return AuditedSaver(FileSystemSaver(f"{PLACE}/store", fsync=fsync, lock_timeout=0, io=fs), log)


def work(saver, note):
    """Everything that an audit records, with notes of what was acknowledged."""
    for number in range(3):
        note(number)
        saver.put(CONFIG, made(number))
    saver.put_writes(CONFIG, {"answer": number})
    saver.put(RunnableConfig("u"), made(7))
    saver.prune("t", keep_last=1)
    saver.copy("t", "v")
    saver.release(CONFIG)
    saver.delete("u")
    note(3)
    saver.put(CONFIG, made(3))


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("max_bytes", [1500, 64 << 20])
def test_after_a_power_loss_no_acknowledged_record_is_missing_and_the_store_has_no_other(fsync, max_bytes, sweep):
    with fixed("audit"):
        fs = SimFS()
        saver = open_both(fs, fsync, max_bytes=max_bytes)
        begun = []

        def note(number):
            # All records before are of operations that have returned.
            begun.append(len(saver.log.records()))
            fs.note("acknowledged", begun[-1])

        work(saver, note)
    rng = random.Random(1)
    disk = Disk()
    acknowledged = 0
    states = 0
    each = sweep.count(12, 2)
    with quiet():
        for op in fs.ops:
            if op[0] == "note":
                acknowledged = op[2]
                continue
            disk.apply(op)
            for what, tree in disk.states(rng, each):
                states += 1
                after = SimFS(tree, record=False)
                again = open_both(after, fsync, max_bytes=max_bytes)
                # The next writer sets aside what did not finish.
                again.put(RunnableConfig("after"), made(0))
                report = again.log.verify(again if fsync == "always" else None)
                assert report.problems == (), (op[:3], what)
                assert len(again.log.records()) > acknowledged
                again.log.close()
    assert states > sweep.count(500, 100)


def open_on_simulated_disk(**options):
    """A simulated disk, and an audited saver whose log is on it, with one checkpoint."""
    fs = SimFS()
    saver = AuditedSaver(MemorySaver(), AuditLog(f"{PLACE}/log", io=fs), **options)
    saver.put(CONFIG, made(0))
    return fs, saver


@pytest.mark.parametrize("fault", [{"error": errno.EIO}, {"error": errno.ENOSPC}, {"part": 7}], ids=repr)
def test_an_entry_that_cannot_be_written_refuses_the_operation_and_changes_nothing(fault):
    """Each call of the file system for the audit log fails in turn."""
    fs, saver = open_on_simulated_disk()
    with noting_calls(fs) as calls:
        saver.put(CONFIG, made(1))
    refused = 0
    for number, call in enumerate(calls):
        fs, saver = open_on_simulated_disk()
        with failing(fs, HOOKED, after=number, times=1, **fault):
            try:
                saver.put(CONFIG, made(1))
            except CheckpointStorageError:
                refused += 1
                assert len(saver.list(CONFIG)) == 1, call
        saver.put(CONFIG, made(2))
        assert saver.log.verify(saver).problems == (), (number, call)
        assert saver.log.verify().unknown + saver.log.verify().gaps <= 2
    assert refused


# What fails as long as the disk is full, or dying: a log that cannot be synced cannot be rewritten either.
DISKS = {"full": ("write_at", errno.ENOSPC), "dying": (("fdatasync", "fsync"), errno.EIO)}


@pytest.mark.parametrize("disk", DISKS)
def test_on_a_bad_disk_writing_is_refused_and_reading_goes_on(disk):
    fs, saver = open_on_simulated_disk()
    unrecorded_reads = 0
    with quiet(), failing(fs, *DISKS[disk], where="/log/"):
        for _ in range(3):
            with pytest.raises(CheckpointStorageError):
                saver.put(CONFIG, made(1))
            if disk == "full":
                latest = saver.get(CONFIG)
                assert latest.state["n"] == 0
                unrecorded_reads += 1
    saver.put(CONFIG, made(2))
    assert list_numbers(saver, CONFIG) == [2, 0]
    report = saver.log.verify(saver)
    assert report.problems == ()
    assert saver.log.verify().gaps == unrecorded_reads


def test_with_warn_writing_goes_on_and_the_log_records_what_is_missing(caplog):
    fs, saver = open_on_simulated_disk(on_error="warn")
    with failing(fs, "write_at", errno.ENOSPC, where="/log/"):
        saver.put(CONFIG, made(1))
    assert "could not be written" in caplog.text
    latest = saver.get(CONFIG)
    assert latest.state["n"] == 1
    report = saver.log.verify(saver)
    assert report.gaps == 2
    assert len(report.problems) == 1
    records = saver.log.records()
    (gap,) = [record for record in records if record.operation == "(gap)"]
    assert gap.details["count"] == 2


def test_a_gap_is_not_forgotten_when_its_entry_cannot_be_synced():
    fs, saver = open_on_simulated_disk(on_error="warn")
    with quiet():
        for number, kind in enumerate(("write_at", "fdatasync"), 1):
            with failing(fs, kind, where="/log/"):
                saver.put(CONFIG, made(number))
        saver.put(CONFIG, made(3))
    assert saver.log.verify().gaps >= 4


def test_an_exception_at_any_line_leaves_a_log_that_goes_on(tmp_path_factory, sweep):
    """Ctrl-C, a signal handler, a lack of memory."""

    def prepare():
        log = AuditLog(tmp_path_factory.mktemp("log"), max_bytes=900)
        saver = AuditedSaver(MemorySaver(), log)
        saver.put(CONFIG, made(0))
        log.note_gap()
        return saver

    def operate(saver):
        saver.put(CONFIG, made(1))
        saver.get(CONFIG)
        saver.prune("t", keep_last=1)

    saver = prepare()
    operate(saver)
    places = find_places(lambda: operate(saver))
    for place in sweep.some(places, 60):
        saver = prepare()
        interrupt(lambda saver=saver: operate(saver), place)
        other = AuditedSaver(saver.delegate, AuditLog(saver.log._files.root))
        for each in (saver, other, saver):
            each.put(CONFIG, made(2))
        report = saver.log.verify(saver)
        assert report.problems == (), place
        assert report.gaps >= 1, place
        saver.log.close()
        other.log.close()


# Processes


def write_many(path, name):
    log = AuditLog(path / "log", max_bytes=4000)
    saver = AuditedSaver(FileSystemSaver(path / "store", fsync="never"), log)
    for number in range(MANY):
        saver.put(RunnableConfig(name), made(number))
        saver.put(CONFIG, made(number))


def test_processes_and_threads_that_write_at_once_share_one_chain(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(tmp_path, f"process {number}")) for number in range(2)]
    for process in processes:
        process.start()
    log = AuditLog(tmp_path / "log", max_bytes=4000)
    saver = AuditedSaver(FileSystemSaver(tmp_path / "store", fsync="never"), log)

    def put_many(name):
        for number in range(MANY):
            saver.put(RunnableConfig(name), made(number))

    threads = [threading.Thread(target=put_many, args=(f"thread {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    while any(process.is_alive() for process in processes):
        assert log.verify(saver).problems == (), "while the others write"
    for each in (*threads, *processes):
        each.join()
    assert [process.exitcode for process in processes] == [0, 0]
    report = log.verify(saver)
    assert report.problems == ()
    assert report.unknown == 0
    assert len(log.records(operation="put")) == 2 * 2 * MANY + 3 * MANY
    assert len(list_files(tmp_path / "log")) > 3


def test_what_a_writer_is_at_work_on_is_no_finding(monkeypatch, tmp_path):
    io = HookedIO()
    saver = AuditedSaver(MemorySaver(), AuditLog(tmp_path / "log", io=io))
    saver.put(CONFIG, made(0))
    looked = threading.Event()
    written = threading.Event()
    reports = []

    def wait_for_the_writer(_):
        looked.set()
        assert written.wait(20)

    def write_in_two_parts(kind, path):
        if kind != "write_at":
            return None
        if not parts:
            parts.append(path)
            return 1  # byte
        io.hook = None
        reader.start()
        assert looked.wait(20)
        return None

    parts = []
    replace_pause(monkeypatch, wait_for_the_writer)
    reader = threading.Thread(target=lambda: reports.append(AuditLog(tmp_path / "log").verify()))
    io.hook = write_in_two_parts
    saver.get(CONFIG)
    written.set()
    reader.join()
    assert [report.problems for report in reports] == [()]


def test_a_log_that_was_dropped_keeps_no_file_open(tmp_path):
    gc.disable()
    try:
        AuditedSaver(MemorySaver(), AuditLog(tmp_path)).put(CONFIG, made(0))
        assert list_open_files(tmp_path) == []
    finally:
        gc.enable()


def test_a_process_that_forks_with_an_open_log_shares_it_with_its_child(tmp_path):
    log = AuditLog(tmp_path / "log")
    saver = AuditedSaver(FileSystemSaver(tmp_path / "store", fsync="never"), log)
    saver.put(CONFIG, made(0))
    log.note_gap()

    def put_in_child():
        signal.alarm(20)
        for number in range(3):
            saver.put(RunnableConfig("child"), made(number))

    # Another thread holds the locks of the log at the moment of the fork.
    with log._mutex, log._files.directory.write_lock:
        end = start_in_child(put_in_child)
    saver.put(CONFIG, made(1))
    assert end() == 0
    assert run_in_child(put_in_child)
    saver.put(CONFIG, made(2))
    report = log.verify(saver)
    assert report.problems == ()
    assert report.gaps == 1, "the child does not repeat the gap of its parent"
    assert len(log.records(thread_id="child")) == 6


# Operations that overlap


FIRST = made(0)
LATEST = CONFIG.with_check_point_id(FIRST.id)
COPIED = RunnableConfig("u").with_check_point_id(FIRST.id)
CHANGED = FIRST.with_metadata(freeze({"k": 1}))
SECOND = made(2)
SECOND_LATEST = CONFIG.with_check_point_id(SECOND.id)
OVERLAPS = {
    "a put is deleted": ("put", (RunnableConfig("u"), made(1)), lambda saver: saver.delete("u")),
    "a put is pruned": (
        "put",
        (CONFIG, made(1)),
        lambda saver: (saver.put(CONFIG, made(2)), saver.prune("t", keep_last=1)),
    ),
    "a put is released": ("put", (CONFIG, made(1)), lambda saver: saver.release(CONFIG)),
    "a put is replaced": ("put", (CONFIG, CHANGED), lambda saver: saver.put(LATEST, made(2))),
    "a replacement is replaced": (
        "put",
        (LATEST, CHANGED),
        lambda saver: saver.put(LATEST, FIRST.with_metadata(freeze({"k": 2}))),
    ),
    "a tag is removed": ("add_tags", (CONFIG, "x"), lambda saver: saver.remove_tags(CONFIG, "x")),
    "a write is overwritten": ("put_writes", (CONFIG, {"a": 1}), lambda saver: saver.put_writes(CONFIG, {"a": 2})),
    "what is copied is replaced": ("copy", ("t", "u"), lambda saver: saver.put(LATEST, CHANGED)),
    "a copy with writes is replaced": ("copy", ("t", "u"), lambda saver: saver.put(COPIED, SECOND)),
    "what has writes is replaced": ("put_writes", (LATEST, {"a": 1}), lambda saver: saver.put(LATEST, made(2))),
    "what has writes is replaced twice": (
        "put_writes",
        (LATEST, {"a": 1}),
        lambda saver: (saver.put(LATEST, SECOND), saver.put(SECOND_LATEST, made(3))),
    ),
    "what takes over writes is replaced": (
        "put",
        (LATEST, SECOND),
        lambda saver: saver.put(SECOND_LATEST, made(3)),
    ),
}
"""An operation with its arguments, and what another caller does when the store has done it and it is not recorded."""


@pytest.mark.parametrize("name", OVERLAPS)
def test_an_operation_within_another_one_on_the_same_keys_is_no_finding(tmp_path, monkeypatch, name):
    operation, arguments, act = OVERLAPS[name]
    store = MemorySaver()
    saver = AuditedSaver(store, AuditLog(tmp_path / "log"))
    saver.put(CONFIG, FIRST)
    saver.put_writes(LATEST, {"b": 0})
    operate = getattr(store, operation)

    def operate_and_let_others(*args):
        done = operate(*args)
        monkeypatch.undo()
        act(saver)
        return done

    monkeypatch.setattr(store, operation, operate_and_let_others)
    getattr(saver, operation)(*arguments)
    assert saver.log.verify(saver).problems == ()


def test_pending_writes_to_a_history_that_was_empty_a_moment_before_are_no_finding(tmp_path, monkeypatch):
    store = MemorySaver()
    saver = AuditedSaver(store, AuditLog(tmp_path / "log"))
    find_latest = store.recent
    actions = [
        lambda: (saver.put_writes(CONFIG, {"a": 2}), saver.put(CONFIG, SECOND)),
        lambda: saver.put(CONFIG, FIRST),
    ]

    def find_latest_and_let_others(*arguments, **options):
        found = find_latest(*arguments, **options)
        actions.pop(0)()
        return found

    monkeypatch.setattr(store, "recent", find_latest_and_let_others)
    saver.put_writes(CONFIG, {"a": 1})
    monkeypatch.undo()
    assert saver.log.verify(saver).problems == ()


def do_something(saver, config, rng):
    match rng.choice(["put"] * 6 + ["writes"] * 4 + ["tags"] * 2 + ["replace"] * 3 + ["whole thread"]):
        case "put":
            saver.put(config, made(rng.random()))
        case "writes":
            saver.put_writes(config, {rng.choice(["a", "b"]): rng.random()})
        case "tags":
            rng.choice([saver.add_tags, saver.remove_tags])(config, rng.choice(["x", "y"]))
        case "replace":
            listed = saver.list(config)
            if listed:
                replaced = rng.choice(listed).id
                new = rng.choice([None, replaced])
                checkpoint = Checkpoint(id=new, node_id="a", next_node_id="b", state={"n": rng.random()})
                saver.put(config.with_check_point_id(replaced), checkpoint)
        case _:
            change = rng.choice([
                lambda: saver.delete(config.thread),
                lambda: saver.release(RunnableConfig(config.thread)),
                lambda: saver.prune(config.thread, keep_last=2),
                lambda: saver.prune(keep_last=3),
                lambda: saver.copy(config.thread, f"copy {rng.random()}"),
            ])  # fmt: skip
            change()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sweep(3)
def test_operations_on_the_same_keys_at_once_are_no_finding(tmp_path, seed):
    log = AuditLog(tmp_path / "log")
    saver = AuditedSaver(VersionedMemorySaver(), log)

    def operate(number):
        rng = random.Random(f"{seed} {number}")
        for _ in range(25):
            config = RunnableConfig(rng.choice("tu"), checkpoint_ns=rng.choice(["", "inner"]))
            with suppress(CheckpointNotFoundError, CheckpointConflictError, ThreadBusyError):
                do_something(saver, config, rng)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(operate, range(4)))
    assert log.verify(saver).problems == ()
