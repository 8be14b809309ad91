"""What an erasure leaves in a directory: nothing, or a reason."""

import shutil
from pathlib import Path

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.operations import ErasureLedger, erase, erase_where
from tests.support.client import start_client
from tests.support.erasure import MARKER, fill, find_files


def put(saver, thread, text="kept"):
    saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"x": text}))


@pytest.fixture
def saver(opener):
    return opener(compression=None)


@pytest.mark.requirement("P73")
def test_no_file_has_a_byte_of_what_was_erased(saver):
    root = Path(saver.base_directory)
    fill(saver)
    put(saver, "other")
    # What a killed writer, a killed rewrite, a repair and a killed delete leave.
    directory = Path(saver.thread_directory(MARKER))
    with (directory / "log").open("ab") as log:
        log.write(MARKER.encode())
    put(saver, MARKER)  # sets the torn bytes aside
    for name in ("tmp-00000001", "damaged-1"):
        (directory / name).write_text(MARKER)
    shutil.copytree(directory, root / f"tmp-{directory.name}")
    assert any("torn-" in name for name in find_files(root))
    report = erase(saver, MARKER)
    assert (report.ok, report.remaining, report.copies) == (True, (), ())
    assert find_files(root) == []
    assert saver.get("other").state["x"] == "kept"
    assert saver.verify().ok


def test_what_graphkit_did_not_make_stays_and_is_reported(saver):
    fill(saver)
    (Path(saver.thread_directory(MARKER)) / "mine").mkdir()
    (Path(saver.thread_directory(MARKER)) / "mine" / "file").write_text("x")
    report = erase(saver, MARKER)
    assert not report.ok
    assert "1 directory of a deleted thread stays" in report.remaining[0]


def test_the_callers_run_lock_names_the_thread(saver):
    fill(saver)
    with saver.run_lock(MARKER):
        report = erase(saver, MARKER)
        assert not report.ok
        assert "holds its run lock" in report.remaining[0]
        assert find_files(saver.base_directory)
    assert erase(saver, MARKER).ok
    assert find_files(saver.base_directory) == []


def test_a_thread_that_cannot_be_read_is_erased_and_its_copies_are_not_known(saver, opener):
    fill(saver)
    put(saver, "broken")
    put(saver, "other")
    for thread in (MARKER, "broken"):
        with (Path(saver.thread_directory(thread)) / "log").open("r+b") as log:
            log.seek(150)
            log.write(b"\xff" * 40)
    again = opener(compression=None)
    report = erase(again, MARKER)
    assert not report.ok
    assert any("its copies are not known" in reason for reason in report.remaining)
    assert find_files(again.base_directory) == []
    report = erase(again, "other")
    assert any("'broken'" in reason or "broken may be a copy" in reason for reason in report.remaining)
    (report,) = erase_where(again, {"user": MARKER})
    assert (report.thread_id, report.ok) == ("broken", False)


@pytest.mark.requirement("P73")
def test_an_erasure_while_another_process_writes(saver, launcher):
    with start_client(launcher, saver.opener(), "busy", 100) as client:
        assert client.stdout.readline() == "ready\n"
        while client.poll() is None:
            fill(saver)
            assert erase(saver, MARKER).ok
            # A run that has stored nothing, and a delete that has died.
            with saver.run_lock("unused"):
                pass
            Path(saver.base_directory, f"r-{Path(saver.thread_directory(MARKER)).name[2:]}").touch()
            assert saver.erase_deleted() == []
        assert client.wait(60) == 0
    assert find_files(saver.base_directory) == []
    assert not find_files(saver.base_directory, "unused")
    assert len(saver.list("t")) == 100
    assert saver.verify().ok


@pytest.mark.requirement("P73")
def test_a_ledger_erases_what_a_backup_brings_back(saver, opener, tmp_path):
    ledger = ErasureLedger(tmp_path / "ledger", key=bytes(32))
    fill(saver)
    put(saver, "other")
    shutil.copytree(saver.base_directory, tmp_path / "backup")
    assert erase(saver, MARKER, ledger=ledger).ok
    put(saver, "anew")
    assert erase(saver, "anew", ledger=ledger).ok
    put(saver, "anew", "written after the erasure")
    assert ledger.apply(saver) == []
    assert saver.get("anew").state["x"] == "written after the erasure"
    saver.close()

    restored = opener(tmp_path / "backup", compression=None)
    # A worker may go on with it before the ledger is applied.
    put(restored, MARKER, "later")
    assert find_files(restored.base_directory)
    (report,) = ledger.apply(restored)
    assert (report.thread_id, report.ok) == (MARKER, True)
    assert find_files(restored.base_directory) == []
    assert restored.threads() == ["other"]
    assert ledger.apply(restored) == []
    assert find_files(tmp_path) == [], "not in the ledger either"
