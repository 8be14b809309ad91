"""Sealed stores: no plaintext in any file, a wrong key is never damage, and nothing is lost on the way."""

import itertools
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from graphkit import (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointStorageError,
    RunnableConfig,
)
from savers import Compression, FileSystemSaver
from tests.disk import crashes
from tests.support.contents import read_history
from tests.support.disks import FileIO, HookedIO, failing, quiet
from tests.support.forked import run_in_child
from tests.support.logs import (
    DATA,
    MARK,
    SEALED,
    WRITE,
    append_record,
    flip,
    flip_in_file,
    forge_meta,
    locate_log,
    read_records,
    replace_bytes,
    replace_payload,
)
from tests.support.sealed import BOTH, CONFIG, INNER, MARKERS, NEW, OLD, fill, fill_rotatable, made, write


def open_saver(root, cipher=NEW, **options):
    options = {"fsync": "never", "compression": Compression(threshold=20_000), "lock_timeout": 0, **options}
    return FileSystemSaver(root, cipher=cipher, **options)


def files_of(root):
    return [path for path in sorted(Path(root).rglob("*")) if path.is_file()]


def contents(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in files_of(root) if path.name != "run.lock"}


def assert_no_plaintext(root):
    for path, data in contents(root).items():
        for marker in MARKERS:
            assert marker not in data, (path, data.index(marker))


def payloads_of(root):
    """The payloads behind the two METAs of the log of "t"."""
    return {record.payload for record in read_records(locate_log(root))[2:]}


class WatchingIO(FileIO):
    """Refuses to write plaintext, to whatever file."""

    written = 0

    def write_at(self, fd, offset, data):
        assert not any(marker in data for marker in MARKERS)
        self.written += len(data)
        return super().write_at(fd, offset, data)


# No plaintext


@pytest.mark.usefixtures("short_records")
@pytest.mark.requirement("P70", "H52")
def test_no_file_ever_has_plaintext(tmp_path):
    """States, their keys, writes, metadata, tags and nodes, through every operation of a store."""
    root = tmp_path / "store"
    io = WatchingIO()
    with open_saver(root, OLD, io=io) as saver, quiet():
        watch = saver.watch("t")
        write(saver)
        write(saver, INNER, 4)
        assert_no_plaintext(root)
        assert len(list(itertools.islice(watch, 16))) == 16
        watch.close()
        before = read_history(saver, CONFIG)
        saver.copy("t", "u")
        saver.put(CONFIG.with_check_point_id(before[3][0]), made(99, plain="replaced"))
        saver.compact()
        saver.prune("t", keep_last=5)
        saver.release(CONFIG)
        write(saver)
        assert_no_plaintext(root)
        locate_log(root).write_bytes(locate_log(root).read_bytes().rstrip(b"\0")[:-40])  # a torn write
        saver.put(CONFIG, made(50))
        assert [path.name for path in files_of(root) if path.name.startswith("torn-")]
        damaged = read_records(locate_log(root))[4]
        flip_in_file(locate_log(root), damaged.offset + 100, 255)
        flip_in_file(locate_log(root), damaged.offset + 200, 255)
        assert saver.repair().ok
        assert [path.name for path in files_of(root) if path.name.startswith("damaged-")]
        assert saver.verify().ok
    with open_saver(root, BOTH, io=io) as saver:
        report = saver.rotate()
        noise = [random.Random(seed).randbytes(50_000).hex() for seed in range(2)]
        saver.put(CONFIG, made(60, noise=["plain", *noise]))
        assert DATA in {record.type for record in read_records(locate_log(root))}
        assert len(report.rewritten) == 5  # t with a namespace, its version with one, and u's two logs less one
        assert saver.verify().ok
        assert_no_plaintext(root)
        saver.delete("u")
    assert_no_plaintext(root)

    assert io.written > 50_000


GOLDEN = Path(__file__).with_name("golden_sealed")
"""Written once by `write_golden`, when the format of sealed records was new; every later graphkit must read it."""


def write_golden(root):
    small = {"size": 30, "lines": 20}
    with open_saver(root, OLD, compression=Compression(threshold=1000)) as saver:
        write(saver, count=3, **small)
        saver.release(CONFIG)
        write(saver, count=6, **small)
        write(saver, INNER, 2, **small)
    with open_saver(root, BOTH) as saver:
        saver.put(CONFIG, made(6, text="plain golden"))


def test_the_golden_directory_is_read_as_it_was_written(tmp_path):
    root = shutil.copytree(GOLDEN, tmp_path / "store")
    assert_no_plaintext(root)
    new_root = tmp_path / "new"
    write_golden(new_root)
    histories = [(CONFIG, None), (CONFIG, 1), (INNER, None)]
    with open_saver(root, BOTH) as saver, open_saver(new_root, BOTH) as new:
        for config, version in histories:
            assert read_history(saver, config, version) == read_history(new, config, version)
        assert saver.verify().ok
        report = saver.rotate()
        assert len(report.rewritten) == 3
        assert read_history(saver, CONFIG) == read_history(new, CONFIG)


# Keys


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("sealed") / "store"
    with open_saver(root) as saver:
        fill(saver)
    return root


def test_without_the_key_damage_is_still_found_and_not_repaired(store, tmp_path):
    root = shutil.copytree(store, tmp_path / "store")
    path = locate_log(root)
    record = read_records(path)[-4]
    before = path.read_bytes()
    data = replace_bytes(before, record.offset + 60, b"?" * 30)
    path.write_bytes(data)
    with open_saver(root, None) as saver:
        found = saver.verify()
        problem = next(file for file in found.problems if file.state == "damaged")
        assert problem.offset == record.offset
        report = saver.repair()
        (file,) = [file for file in report.files if file.before.state == "damaged"]
        assert "'current'" in file.refused
    assert path.read_bytes() == data

    with open_saver(root) as saver, quiet():
        assert saver.repair().ok
        assert len(saver.list(CONFIG)) > 4
        assert saver.verify().ok


def test_threads_versions_sizes_and_delete_need_no_key(store, tmp_path):
    root = shutil.copytree(store, tmp_path / "store")
    with open_saver(root, None) as saver:
        assert saver.threads() == ["t"]
        assert saver.versions_by_thread_id("t") == [1]
        assert saver.size("t") > 10_000
        assert saver.delete("t")
        assert saver.threads() == []


# Moved and changed records


@pytest.fixture
def same_steps(tmp_path):
    """A store whose records are all of the same length."""
    root = tmp_path / "store"
    with open_saver(root) as saver:
        for number in range(6):
            saver.put(CONFIG, made(number, secret=f"plain secret {number}"))
            saver.put(RunnableConfig("u"), made(number, secret=f"plain other {number}."))
            saver.put(INNER, made(number, secret=f"plain inner {number}."))
    return root


@pytest.mark.requirement("H53")
def test_a_changed_record_with_right_checksums_is_damage_that_repair_leaves_out(same_steps):
    path = locate_log(same_steps)
    record = read_records(path)[5]
    payload = flip(record.payload, -3)
    replace_payload(path, record, payload)
    with open_saver(same_steps) as saver, quiet():
        with pytest.raises(CheckpointCorruptionError, match="changed, or moved"):
            saver.list(CONFIG)
        (problem,) = saver.verify().problems
        assert problem.offset == record.offset
        assert saver.repair("t").ok
        oldest = saver.list(CONFIG)[-1]
        assert oldest.state["secret"] == "plain secret 0"
        assert saver.verify().ok


def test_a_long_value_is_read_across_a_damaged_record_of_other_values(tmp_path):
    items = []
    with open_saver(tmp_path) as saver:
        for number in range(20):
            items = [*items, f"plain item {number} " * 20]
            saver.put(CONFIG, made(number, items=items))
            if number == 9:
                saver.put_writes(CONFIG, {"plain_write": "plain answer"})
    path = locate_log(tmp_path)
    (written,) = [record for record in read_records(path) if record.type == WRITE]
    path.write_bytes(replace_bytes(path.read_bytes(), written.offset + 45, b"damaged"))
    with open_saver(tmp_path) as saver, quiet():
        assert saver.repair().files[0].kept == 20
        assert saver.get(CONFIG).state["items"] == items


@pytest.mark.parametrize("forged_meta", [False, True])
def test_a_log_in_the_place_of_another_is_refused(same_steps, forged_meta):
    path = locate_log(same_steps)
    before = path.read_bytes()
    error = CheckpointKeyError if forged_meta else CheckpointFormatError
    state = "sealed" if forged_meta else "foreign"
    for thread, namespace in (("u", ""), ("t", "inner")):
        foreign = locate_log(same_steps, thread, namespace).read_bytes()
        path.write_bytes(foreign)
        if forged_meta:
            forge_meta(path, thread="t", ns="")
        with open_saver(same_steps) as saver:
            with pytest.raises(error):
                saver.get(CONFIG)
            report = saver.verify("t")
            assert {file.state for file in report.problems} == {state}
        path.write_bytes(before)


def test_a_plain_record_in_a_sealed_log_and_a_sealed_one_in_a_plain_log_are_refused(tmp_path):
    sealed = tmp_path / "sealed"
    plain = tmp_path / "plain"
    for root, cipher in ((sealed, NEW), (plain, None)):
        with open_saver(root, cipher) as saver:
            saver.put(CONFIG, made(0))
    path = locate_log(sealed)
    append_record(path, MARK, b"\x93\xa1c\x91\xa1x\x90")
    with open_saver(sealed) as saver, pytest.raises(CheckpointCorruptionError, match="it is not sealed"):
        saver.get(CONFIG)
    path = locate_log(plain)
    append_record(path, MARK, b"x" * 80, SEALED)
    for cipher in (None, NEW):
        with open_saver(plain, cipher) as saver, pytest.raises(CheckpointCorruptionError, match="it is sealed"):
            saver.get(CONFIG)


# The marker


def test_a_repaired_marker_still_marks_the_store_as_sealed(tmp_path):
    root = tmp_path / "store"
    with open_saver(root) as saver:
        write(saver, count=2)
    for cipher in (NEW, None):
        (root / "graphkit.store").write_bytes(b"?" * 30)
        with open_saver(root, cipher) as saver, quiet():
            assert saver.repair().marker is not None
        with open_saver(root, None) as saver, pytest.raises(CheckpointKeyError, match="'current'"):
            saver.put(RunnableConfig("new"), made(1))


# Rotation


def test_rotation_names_the_files_that_keep_old_bytes(tmp_path):
    rotatable = tmp_path / "store"
    fill_rotatable(partial(open_saver, rotatable))
    end = read_records(locate_log(rotatable))[-1].end
    locate_log(rotatable).write_bytes(locate_log(rotatable).read_bytes()[:end] + b"torn")
    with open_saver(rotatable, BOTH) as saver, quiet():
        saver.put(CONFIG, made(71))
        (path,) = saver.rotate().set_aside
        assert (rotatable / path).name.startswith("torn-")
        assert (rotatable / path).read_bytes() == b"torn"


def test_rotation_finishes_a_release_removes_what_dead_writers_left_and_rewrites_no_damaged_version(tmp_path):
    io = HookedIO()
    with open_saver(tmp_path, OLD, io=io) as saver:
        write(saver, CONFIG, 3)
        with failing(io, "rename", times=1), pytest.raises(CheckpointStorageError):
            saver.release(CONFIG)
    live = locate_log(tmp_path)
    inner = locate_log(tmp_path, namespace=INNER.checkpoint_ns)
    version = live.with_name("v000001.log")
    with open_saver(tmp_path, BOTH) as saver:
        assert saver.rotate().rewritten == (str(version.relative_to(tmp_path)),)
        assert saver.versions_by_thread_id(CONFIG) == [1]
        assert saver.list(CONFIG) == []
        write(saver, INNER, 1)
        leftovers = [directory / "tmp-00000001" for directory in (live.parent, inner.parent)]
        for leftover in leftovers:
            leftover.write_bytes(b"sealed by an old key")
        assert saver.rotate().rewritten == ()
        assert not any(leftover.exists() for leftover in leftovers)
        version.write_bytes(version.read_bytes()[: read_records(version)[-1].offset])
        with pytest.raises(CheckpointCorruptionError, match="the end of the released history is missing"):
            saver.rotate()


# Crashes and damage


def rotates(run):
    """Two threads, sealed by an old key, and rotated."""
    for number in range(4):
        items = [*range(number)]
        text = "x" * number * 300
        run.put(number, items=items, text=text)
        run.put(number + 10, namespace="inner")
    config = crashes.config_of()
    run.do(lambda saver: saver.release(config))
    run.put(4, text="y" * 700)
    run.fs.note("rotation")
    with crashes.open_saver(run.fs, run.fsync, cipher=NEW | OLD) as saver:
        saver.rotate()
    run.put(5)


WORKLOADS = [workload for workload in crashes.WORKLOADS if workload != crashes.two_workers]


@pytest.fixture
def sealed_crashes(monkeypatch):
    monkeypatch.setattr(crashes, "FileSystemSaver", partial(FileSystemSaver, cipher=BOTH))


@pytest.mark.usefixtures("sealed_crashes")
@pytest.mark.sweep(4)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.__name__)
def test_power_loss_keeps_what_was_acknowledged(workload, sweep):
    found = crashes.Crashes()
    found.explore(workload, sweep.count(800, 25))
    assert found.states >= 15


def test_power_loss_during_a_rotation(monkeypatch, sweep):
    monkeypatch.setattr(crashes, "FileSystemSaver", partial(FileSystemSaver, cipher=OLD | NEW))
    found = crashes.Crashes()
    found.explore(rotates, sweep.count(1600, 60))
    assert found.states >= sweep.count(300, 20)


def test_a_failed_sync_reseals_what_was_acknowledged(tmp_path):
    io = HookedIO()
    root = tmp_path / "store"
    with open_saver(root, OLD, fsync="always", io=io) as saver:
        write(saver, count=4)
    with open_saver(root, BOTH, fsync="always", io=io) as saver:
        saver.put(CONFIG, made(70))
        before = read_history(saver, CONFIG)
        old = payloads_of(root)
        with failing(io, "fdatasync", times=1), pytest.raises(CheckpointStorageError):
            saver.put(CONFIG, made(71))
        saver.put(CONFIG, made(72))
        assert read_history(saver, CONFIG)[1:] == before

    assert old.isdisjoint(payloads_of(root))
    with open_saver(root, BOTH) as saver:
        assert read_history(saver, CONFIG)[1:] == before


def test_no_nonce_is_used_twice_under_one_salt(tmp_path):
    """Through rewrites, copies, a cut off tail that is written again, and a fork."""
    seen = {}

    def collect():
        for path in files_of(tmp_path):
            if path.name == "log" or path.name.startswith("v0"):
                for frame in read_records(path):
                    if frame.flags & SEALED:
                        size = frame.payload[0]
                        at = frame.payload[: 1 + size + 20], frame.payload[21 + size : 33 + size]
                        assert seen.setdefault(at, frame.payload) == frame.payload

    root = tmp_path / "store"
    with open_saver(root) as saver, quiet():
        write(saver)
        collect()
        whole = locate_log(root).read_bytes()
        last = read_records(locate_log(root))[-1].offset
        for number in range(20):
            locate_log(root).write_bytes(whole[: last + 50])
            with open_saver(root) as other:
                other.put(CONFIG, made(80 + number))
            collect()
        saver.copy("t", "u")
        collect()
        saver.prune("t", keep_last=3)
        collect()
        saver.release(CONFIG)
        collect()
        assert run_in_child(lambda: saver.put(RunnableConfig("u"), made(90)))
        saver.put(RunnableConfig("u"), made(91))
        collect()
    assert len(seen) > 60
