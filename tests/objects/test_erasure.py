"""What an erasure leaves in object storage, also if it dies between two objects."""

from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.operations import erase, erase_where
from savers import ObjectStoreSaver
from tests.support.buckets import die_at
from tests.support.disks import Died
from tests.support.erasure import MARKER, fill, find_files

pytestmark = pytest.mark.requirement("P73")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "bucket"


def open_saver(directory):
    return ObjectStoreSaver(f"file://{directory}", compression=None)


def put(saver, thread):
    saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"x": 1}))


def test_without_full_only_names_are_left(directory):
    saver = open_saver(directory)
    fill(saver)
    report = erase(saver, MARKER)
    (remaining,) = report.remaining
    assert "the names of empty objects" in remaining
    assert MARKER not in remaining
    for path in Path(directory).rglob("*"):
        assert path.is_dir() or path.stat().st_size == 0
    put(saver, MARKER)
    assert saver.get(MARKER).state == {"x": 1}
    assert erase(saver, MARKER, full=True).ok
    assert find_files(directory) == []


def test_threads_with_digests_for_names_and_live_ones_stay(directory):
    saver = open_saver(directory)
    long = "long " * 100
    fill(saver, long)
    put(saver, "live")
    saver.release("live")
    put(saver, "live")
    assert erase(saver, long, full=True).ok
    assert saver.get("live").state == {"x": 1}
    assert saver.versions_by_thread_id("live") == [1]
    assert [path.name for path in directory.iterdir()] == ["live"]


def test_what_a_killed_put_has_left_is_reported_and_removed(directory):
    saver = open_saver(directory)
    put(saver, "live")
    (directory / f".{uuid4().hex}").write_text(MARKER)
    (directory / ".other").write_text("not ours")
    (reason,) = saver.erase_deleted()
    assert "have not finished" in reason
    assert saver.erase_deleted(full=True) == ()
    assert find_files(directory) == []
    assert (directory / ".other").exists()


def test_an_erasure_that_dies_at_any_object_is_completed_by_a_second_one(tmp_path, monkeypatch):
    for number in count():
        directory = tmp_path / f"{number}"
        saver = open_saver(directory)
        fill(saver)
        put(saver, "other")
        with monkeypatch.context() as patch:
            die_at(patch, number)
            try:
                erase(saver, MARKER, full=True)
                break
            except Died:
                pass
        again = open_saver(directory)
        if number % 2:
            assert erase(again, MARKER, full=True).ok
        else:
            assert all(report.ok for report in erase_where(again, {"user": MARKER}, full=True))
        assert find_files(directory) == [], f"died at {number}"
        assert again.get("other").state == {"x": 1}
    assert number > 10
