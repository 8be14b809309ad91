"""Erasure on any saver: reports, copies, people, the ledger, and who may."""

import asyncio
import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from graphkit import RunnableConfig
from graphkit.abc import SupportsErase
from graphkit.errors import (
    AccessDeniedError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from graphkit.operations import ErasureLedger, aerase, aerase_where, erase, erase_where, fork
from graphkit.testing import made
from savers import (
    AccessControlledSaver,
    FileSystemSaver,
    KeyFile,
    MemorySaver,
    ObjectStoreSaver,
    SubjectKeys,
    VersionedMemorySaver,
    acting_as,
    policies,
)
from tests.support.erasure import MARKER, fill, find_files
from tests.support.logs import flip_in_file
from tests.support.savers import ListSaver, open_kind, saver_fixture

pytestmark = pytest.mark.requirement("P73")

KEY = bytes(range(32))
saver = saver_fixture(("memory", "file", "sqlite", "wrapped"), most=4, compression=None)


def put(saver, thread, user="bob", *, minutes_ago=None, namespace=""):
    created_at = None if minutes_ago is None else datetime.now(UTC) - timedelta(minutes=minutes_ago)
    checkpoint = made({"x": 1}, node_id="a", next_node_id="b", metadata={"user": user}, created_at=created_at)
    saver.put(RunnableConfig(thread, checkpoint_ns=namespace), checkpoint)


def outcomes(reports):
    """Return which threads were erased wholly."""
    return {report.thread_id: report.ok for report in reports}


@pytest.fixture
def keys(tmp_path):
    """Keys for each person, which can be destroyed."""
    pytest.importorskip("cryptography")
    keys = KeyFile(tmp_path / "keys")
    keys.add("current")
    return keys


@pytest.fixture
def sealed(tmp_path, keys):
    """Opens a store in which the checkpoints of each user have a key of their own."""

    def open_store():
        cipher = SubjectKeys(keys, key_for=lambda thread, metadata: keys.add(metadata["user"]))
        return FileSystemSaver(tmp_path / "store", fsync="never", cipher=cipher)

    return open_store


@pytest.fixture
def two(tmp_path):
    """Two savers on a store, the second of which another thread of execution uses."""
    options = {"fsync": "never", "lock_timeout": 0}
    with FileSystemSaver(tmp_path / "two", **options) as saver, FileSystemSaver(tmp_path / "two", **options) as other:
        put(saver, "t", "ann")
        put(saver, "u", "ann")
        with ThreadPoolExecutor(1) as pool:
            yield saver, other, lambda *call, **options: pool.submit(*call, **options).result()


# Threads


def test_nothing_of_an_erased_thread_is_left(saver, tmp_path):
    fill(saver)
    put(saver, "other")

    report = erase(saver, MARKER, full=True)

    assert (report.thread_id, report.ok, report.remaining, report.copies) == (MARKER, True, (), ())
    assert find_files(tmp_path) == []
    assert [*saver.threads(released=True)] == ["other"]
    assert saver.get("other").state == {"x": 1}
    assert erase(saver, MARKER, full=True).ok, "it was done already"


def test_copies_are_named_and_not_erased(saver):
    fill(saver)
    put(saver, "other")
    saver.copy(MARKER, "copied")
    fork(saver, RunnableConfig(MARKER), "forked")
    put(saver, "forked")
    saver.release("forked")
    report = erase(saver, MARKER, full=True)
    assert sorted(report.copies) == ["copied", "forked"][: len(saver.threads(released=True)) - 1]
    assert report.ok


def test_a_busy_thread_is_not_erased(two):
    saver, other, submit = two
    with saver.run_lock("t"):
        with pytest.raises(ThreadBusyError):
            submit(erase, other, "t")
        reports = submit(erase_where, other, {"user": "ann"})
    assert outcomes(reports) == {"t": False, "u": True}
    assert "it was not deleted: thread 't' is busy" in reports[0].remaining[0]
    assert saver.threads() == ["t"]


def test_a_saver_that_cannot_prove_it_is_reported():
    saver = ListSaver()
    assert not isinstance(saver, SupportsErase)
    put(saver, "t")
    report = erase(saver, "t")
    assert saver.list("t") == []
    assert not report.ok
    assert "ListSaver deletes, but cannot tell what is left" in str(report.remaining)
    assert "cannot list its threads" in str(report.remaining)


def test_async():
    saver = MemorySaver()
    put(saver, "t", "ann")
    put(saver, "u", "ann")
    assert asyncio.run(aerase(saver, "t")).ok
    assert outcomes(asyncio.run(aerase_where(saver, {"user": "ann"}))) == {"u": True}


# People


def test_all_threads_of_a_person_are_erased(saver, tmp_path):
    put(saver, "t", MARKER)
    put(saver, "t", "bob")
    put(saver, "nested", "bob")
    put(saver, "nested", MARKER, namespace="sub")
    put(saver, "other", "bob")
    assert outcomes(erase_where(saver, {"user": MARKER}, full=True)) == {"nested": True, "t": True}
    assert [*saver.threads()] == ["other"]
    assert find_files(tmp_path) == []
    assert erase_where(saver, {"user": MARKER}, full=True) == []


def test_a_selection_of_all_subjects_is_refused():
    with pytest.raises(ValueError, match="must not be empty"):
        erase_where(MemorySaver(), {})


def test_what_a_destroyed_key_had_sealed_is_in_no_ones_way(sealed, keys):
    with sealed() as saver:
        put(saver, "t", "ann")
        saver.copy("t", "copy")
        put(saver, "u", "bob")
    keys.destroy("ann")
    with sealed() as saver:
        assert outcomes(erase_where(saver, {"user": "bob"})) == {"u": True}
        report = erase(saver, "t")
        assert (report.ok, report.copies) == (True, ())
        assert saver.threads() == ["copy"]


def test_a_ledger_erases_again_what_a_destroyed_key_had_sealed(sealed, keys, ledger):
    with sealed() as saver:
        put(saver, "t", "ann")
        put(saver, "other", "ann")
        ledger.record("t")  # and a backup brought it back
    keys.destroy("ann")
    with sealed() as saver:
        assert outcomes(ledger.apply(saver)) == {"t": True}
        assert saver.threads() == ["other"]
        assert ledger.apply(saver) == []


@pytest.fixture(params=["a version", "versions", "a namespace", "a namespace of a version"])
def shared(request, sealed, keys, ledger):
    """A thread that was erased, then bob's, who has a copy of it, then ann's, whose key was destroyed."""
    ledger.record("t")
    with sealed() as saver:
        put(saver, "t", "bob", namespace="sub" if "namespace" in request.param else "")
        saver.copy("t", "copy")
        if "namespace" not in request.param:
            saver.release("t")
        put(saver, "t", "ann")
        if request.param in {"versions", "a namespace of a version"}:
            saver.release("t")
    keys.destroy("ann")
    with sealed() as saver:
        yield saver


def test_a_destroyed_key_hides_no_other_history_of_its_thread(shared):
    assert outcomes(erase_where(shared, {"user": "bob"})) == {"copy": True, "t": True}
    assert shared.threads(released=True) == []


def test_a_destroyed_key_hides_no_copy_of_another_history(shared):
    assert erase(shared, "t").copies == ("copy",)


def test_a_destroyed_key_makes_no_newer_history_older(shared, ledger):
    assert ledger.apply(shared) == []
    assert sorted(shared.threads(released=True)) == ["copy", "t"]


@pytest.mark.parametrize("kind", ["file", "sqlite", "objects"])
def test_a_thread_without_a_checkpoint_belongs_to_no_subject(tmp_path, kind):
    objects = nullcontext(ObjectStoreSaver(f"file://{tmp_path}/bucket"))
    with objects if kind == "objects" else open_kind(kind, tmp_path) as saver:
        saver.put_writes(RunnableConfig("early", checkpoint_id="1ef"), {"k": "v"}, early=True)
        put(saver, "t", "ann")
        reports = {report.thread_id: report for report in erase_where(saver, {"user": "ann"})}
        assert reports.keys() == {"early", "t"}
        assert "nothing else tells whose it is" in reports["early"].remaining[0]
        assert saver.threads(released=True) == ["early"]
        assert (saver.delete("early"), saver.delete("early")) == (True, False)


# Access


def test_who_may_not_delete_may_not_erase(tmp_path, ledger):
    saver = AccessControlledSaver(MemorySaver(), policies.prefix({"ann": "ann/", "bob": "bob/"}))
    for name in ("ann", "bob"):
        with acting_as(name):
            put(saver, f"{name}/1", "ann")

    with acting_as("bob"):
        with pytest.raises(AccessDeniedError, match="delete"):
            erase(saver, "ann/1", ledger=ledger)
        reports = erase_where(saver, {"user": "ann"}, ledger=ledger)
    assert outcomes(reports) == {"bob/1": True}
    assert erase(saver, RunnableConfig("ann/1").with_principal("ann")).ok
    assert len((tmp_path / "ledger").read_bytes().split()) == 4, "the refused one is not recorded"


def test_a_right_that_one_thread_lacks_changes_nothing():
    def policy(principal, operation, thread_id, checkpoint_ns):
        return operation != "delete" or thread_id != "kept"

    saver = AccessControlledSaver(MemorySaver(), policy)
    put(saver, "t", "ann")
    put(saver, "kept", "ann")
    with pytest.raises(AccessDeniedError):
        erase_where(saver, {"user": "ann"})
    assert sorted(saver.threads()) == ["kept", "t"]


# The ledger


@pytest.fixture
def ledger(tmp_path):
    return ErasureLedger(tmp_path / "ledger", key=KEY)


def restored(**times):
    """A store with threads that were written so many minutes ago."""
    saver = VersionedMemorySaver()
    for thread, minutes in times.items():
        put(saver, thread, minutes_ago=minutes)
    return saver


def test_what_is_older_than_its_last_erasure_is_erased_again(ledger):
    for thread in ("twice", "back", "released", "anew"):
        ledger.record(thread)
    saver = restored(back=1, released=1, twice=0, other=1, anew=-1)
    ledger.record("twice")
    saver.release("released")
    put(saver, "back", minutes_ago=-1)
    report = ledger.apply(saver)
    assert outcomes(report) == {"back": True, "released": True, "twice": True}
    assert sorted(saver.threads(released=True)) == ["anew", "other"]


def test_a_relative_path_means_the_same_ledger_after_a_change_of_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ledger = ErasureLedger("ledger", key=KEY)
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.record("back")
    assert outcomes(ErasureLedger(tmp_path / "ledger", key=KEY).apply(restored(back=1))) == {"back": True}


def test_what_has_no_checkpoint_is_erased_again(ledger, tmp_path):
    ledger.record("early")
    with FileSystemSaver(tmp_path / "store", fsync="never", compression=None) as saver:
        for thread in ("early", "other"):
            saver.put_writes(RunnableConfig(thread, checkpoint_id="1ef"), {"k": "v"}, early=True)
        assert outcomes(ledger.apply(saver)) == {"early": True}
        assert saver.threads() == ["other"]


def test_an_erasure_that_failed_is_completed_by_another(ledger, two):
    saver, other, submit = two
    with saver.run_lock("t"):
        with pytest.raises(ThreadBusyError):
            submit(erase, other, "t", ledger=ledger)
        put(saver, "t")
    other.prune("t", keep_last=1)
    assert ledger.apply(other) == [], "what is left is later than the attempt"
    assert erase(other, "t", ledger=ledger).ok
    assert saver.threads(released=True) == ["u"]


def test_a_ledger_has_keyed_hashes_and_times_only(ledger, tmp_path):
    for each in (ledger, ledger, ErasureLedger(tmp_path / "other", key=bytes(32))):
        each.record("ann@example.org")
    text = (tmp_path / "ledger").read_text()
    first, second = (line.split()[1] for line in text.split("\n\n"))

    assert first == second
    assert first not in (tmp_path / "other").read_text()
    assert "ann" not in text
    assert not (tmp_path / "ledger").stat().st_mode & 0o077


def test_a_torn_record_costs_no_other(ledger, tmp_path):
    path = tmp_path / "ledger"
    ledger.record("t")
    first = path.read_bytes()
    ledger.record("u")
    whole = path.read_bytes()
    for end in range(len(first), len(whole)):
        for filler in (b"", b"\0" * (len(whole) - end)):
            path.write_bytes(whole[:end] + filler)
            ledger.record("v")
            saver = restored(t=1, u=1, v=1)
            # The last line feed is not needed to read a record.
            expected = ["t", "u", "v"] if end == len(whole) - 1 else ["t", "v"]
            assert sorted(report.thread_id for report in ledger.apply(saver)) == expected


def test_a_changed_record_and_another_key_are_errors(ledger, tmp_path):
    path = tmp_path / "ledger"
    ledger.record("t")
    whole = path.read_bytes()
    saver = restored(t=1)

    for position in range(1, len(whole) - 1, 5):
        flip_in_file(path, position)
        with pytest.raises(CheckpointCorruptionError, match="damaged, or was written with another key"):
            ledger.apply(saver)
        flip_in_file(path, position)
    with pytest.raises(CheckpointCorruptionError):
        ErasureLedger(path, key=bytes(32)).apply(saver)
    assert saver.threads() == ("t",)


def test_a_ledger_that_cannot_be_used_erases_nothing(tmp_path):
    saver = restored(t=1)
    missing = ErasureLedger(tmp_path / "missing", key=KEY)
    with pytest.raises(CheckpointStorageError):
        missing.apply(saver)
    nowhere = ErasureLedger(tmp_path / "no" / "ledger", key=KEY)
    with pytest.raises(CheckpointStorageError):
        erase(saver, "t", ledger=nowhere)
    assert saver.threads() == ("t",)
    for key in (b"short", "0123456789abcdef"):
        with pytest.raises(CheckpointerConfigurationError, match="16 bytes or more"):
            ErasureLedger(tmp_path / "ledger", key=key)


def test_a_record_that_may_not_be_on_the_disk_is_not_acknowledged(ledger, monkeypatch):
    def refuse(fd):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", refuse)
    saver = restored(t=1)
    with pytest.raises(CheckpointStorageError):
        erase(saver, "t", ledger=ledger)
    assert saver.threads() == ("t",)


def test_a_thread_that_cannot_be_recorded_stays_and_keeps_no_other(ledger, tmp_path, monkeypatch):
    saver = restored(t=1, u=1, v=1)
    write = os.write
    is_cut = iter([False, True])

    def write_a_part_of_the_second(fd, data):
        part = data[:50] if next(is_cut, False) else data
        return write(fd, part)

    monkeypatch.setattr(os, "write", write_a_part_of_the_second)
    reports = erase_where(saver, {"user": "bob"}, ledger=ledger)
    assert outcomes(reports) == {"t": True, "u": False, "v": True}
    (reason,) = reports[1].remaining
    assert reason.startswith("it was not deleted: ")
    assert str(tmp_path / "ledger") in reason
    assert saver.threads() == ("u",)
    assert outcomes(ledger.apply(restored(t=1, u=1))) == {"t": True}, "the torn record costs no other"
