"""One thread that cannot be read costs no other thread anything."""

import os
from unittest.mock import Mock

import pytest

from graphkit import (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointStorageError,
    RunnableConfig,
    ThreadBusyError,
)
from savers import ObjectStoreSaver, SqliteSaver
from tests.support.checkpoints import make_checkpoint, make_interrupt
from tests.support.client import start_client
from tests.support.disks import Fault, HookedIO, as_an_ordinary_user, let_others_reach
from tests.support.logs import flip_in_file, locate_log, locate_thread


def flip(path):
    flip_in_file(path, path.stat().st_size - 20)


def replace_by_link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def replace_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


def foreign(path):
    path.write_bytes(b"this is no log, but it is long enough" * 10)


DAMAGES = {
    "flipped": (flip, CheckpointCorruptionError),
    "foreign": (foreign, CheckpointFormatError),
    "link": (replace_by_link, CheckpointStorageError),
    "fifo": (replace_by_fifo, CheckpointStorageError),
}


@pytest.fixture(params=DAMAGES)
def damaged(request, opener, tmp_path):
    """A saver on a store whose second and fourth threads of five cannot be read; and the error that says so."""
    saver = opener()
    for thread in "abcde":
        config = RunnableConfig(thread)
        for number in range(4):
            saver.put(config, make_checkpoint(number, text=thread * 50))
        for _ in range(2):  # compact removes the first one
            saver.put_writes(config, {"interrupt:1": make_interrupt()})
    saver.close()
    damage, error = DAMAGES[request.param]
    for thread in "bd":
        damage(locate_log(tmp_path / "store", thread))
    return opener(), error


def test_interrupts_and_search_return_the_others_and_log_a_warning(damaged, caplog):
    saver, error = damaged

    def threads_of(infos):
        return [info.thread_id for info in infos]

    assert threads_of(saver.interrupts()) == ["a", "c", "e"]
    assert "'b'" in caplog.text
    assert "'d'" in caplog.text
    caplog.clear()
    assert threads_of(saver.search({"step": 3})) == ["a", "c", "e"]
    assert threads_of(saver.search({}, limit=5)) == ["a"] * 4 + ["c"]
    assert "thread 'b' is passed over" in caplog.text
    with pytest.raises(error):
        saver.interrupts("b")
    with pytest.raises(error):
        saver.search({}, thread_id="b")


def test_prune_and_compact_do_the_others_and_name_those_that_they_cannot(damaged):
    saver, error = damaged
    for operation in (lambda: saver.prune(keep_last=1), saver.compact):
        with pytest.raises(error, match=r"b, d; all others are done"):
            operation()
    assert [len(saver.history(RunnableConfig(thread))) for thread in "ace"] == [1, 1, 1]
    for thread in "ace":
        saver.delete(thread)
    with pytest.raises(error, match=r"b, d; no other is done"):
        saver.prune(keep_last=1)
    with pytest.raises(error):
        saver.compact("b")


def test_verify_and_repair_handle_all(damaged):
    saver, _ = damaged
    assert [thread.thread_id for thread in saver.verify().threads if not thread.ok] == ["b", "d"]
    report = saver.repair()
    repaired = {file.before.path.split("/")[0][:4]: not file.refused for file in report.files}
    assert set(repaired) == {"t-b-", "t-d-"}
    assert report.ok is all(repaired.values()) is saver.verify().ok


@pytest.mark.requirement("promise 3")
def test_other_threads_are_listed_read_and_written(damaged):
    saver, _ = damaged
    assert saver.threads() == ["a", "b", "c", "d", "e"]
    for thread in "ace":
        saver.put(RunnableConfig(thread), make_checkpoint(9))
        assert saver.get(RunnableConfig(thread)).state["n"] == 9


def refuse_logs_of(thread, number):
    """A file system that refuses to open the logs of one thread."""
    return HookedIO(Fault("open", number, where=f"{locate_thread(thread).name}/log"))


@pytest.mark.parametrize("number", [5, 13], ids=["EIO", "EACCES"])
def test_a_thread_that_the_file_system_refuses_to_open_is_like_a_damaged_one(number, opener):
    saver = opener()
    for thread in "abc":
        saver.put(RunnableConfig(thread), make_checkpoint(0))
    refused = opener(io=refuse_logs_of("b", number))
    assert [info.thread_id for info in refused.search({})] == ["a", "c"]
    assert refused.interrupts() == []
    with pytest.raises(CheckpointStorageError, match="cannot prune b; all others are done") as caught:
        refused.prune(keep_last=1)
    assert caught.value.errno == number


@pytest.mark.parametrize("make", [SqliteSaver, lambda path: ObjectStoreSaver(path.as_uri())], ids=["SQL", "objects"])
def test_a_database_or_bucket_that_refuses_one_thread_ends_the_operation(make, monkeypatch, tmp_path):
    saver = make(tmp_path / "store")
    for thread in "ab":
        saver.put(RunnableConfig(thread), make_checkpoint(0))
    monkeypatch.setattr(saver, "namespaces", Mock(side_effect=CheckpointStorageError("store", "read", "unreachable")))
    with pytest.raises(CheckpointStorageError, match=r"unreachable$"):
        saver.prune(keep_last=1)


def test_a_process_without_descriptors_gets_an_error_and_no_empty_list(opener):
    saver = opener()
    saver.put(RunnableConfig("a"), make_checkpoint(0))
    for operation in ("interrupts", "compact"):
        with pytest.raises(CheckpointStorageError, match="Too many open files"):
            getattr(opener(io=refuse_logs_of("a", 24)), operation)()


def test_repair_goes_on_behind_a_busy_thread_and_reports_it_at_the_end(opener, tmp_path, launcher):
    with opener(lock_timeout=0) as saver:
        for thread in "abc":
            saver.put(RunnableConfig(thread), make_checkpoint(0))
            saver.put(RunnableConfig(thread), make_checkpoint(1))
    flip(locate_log(tmp_path / "store", "c"))
    with start_client(launcher, saver.opener(), "holder", thread="b") as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ThreadBusyError, match="'b'"):
            saver.repair()
        assert saver.get(RunnableConfig("c")).state["n"] == 1, "one flipped bit is corrected"
        assert saver.verify().ok


def test_a_thread_whose_directory_may_not_be_entered_costs_the_others_nothing(opener, tmp_path):
    saver = opener()
    for thread in ("a", "b b", "b", "c"):
        saver.put(RunnableConfig(thread), make_checkpoint(0))
    saver.close()
    root = tmp_path / "store"
    closed = [*root.glob("t-b-*")]
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    for path in closed:
        path.chmod(0)
    let_others_reach(root)
    with as_an_ordinary_user():
        reader = opener()
        assert reader.threads() == ["a", "c"]
        assert [info.thread_id for info in reader.search({})] == ["a", "c"]
        assert reader.prune(keep_last=1) == 0
        assert {problem.path for problem in reader.verify().problems} == {path.name for path in closed}
        with pytest.raises(CheckpointStorageError, match="Permission denied"):
            reader.repair()
        with pytest.raises(CheckpointStorageError, match="Permission denied"):
            reader.get(RunnableConfig("b"))
        reader.close()
    for path in closed:
        path.chmod(0o700)
    assert len(closed) == 2
