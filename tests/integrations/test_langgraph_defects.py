"""FileSystemCheckpointSaver where LangGraph's own savers behave alike: what a user who switches would notice."""

from datetime import UTC, datetime

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations.test_langgraph_store import put, thread


@pytest.fixture
def saver(tmp_path):
    return FileSystemCheckpointSaver(tmp_path / "store", fsync="never")


def test_one_id_in_place_of_a_list_of_ids_is_refused_and_nothing_is_removed(saver):
    for name in "ab":
        put(saver, thread(name), {"run_id": name}, a=1)
    for refuse in (
        lambda: saver.prune("ab", strategy="delete"),
        lambda: saver.prune("ab"),
        lambda: saver.delete_for_runs("ab"),
        lambda: saver.prune(b"ab"),
    ):
        with pytest.raises(TypeError, match=r"a list of ids.*\[b?'ab'\]"):
            refuse()
    assert [one.config["configurable"]["thread_id"] for one in saver.list(None)] == ["b", "a"]


@pytest.mark.parametrize(
    "ts",
    ["", "yesterday", None, 7, "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"],
)
def test_a_ts_that_is_no_time_is_kept_and_the_put_is_dated_by_the_clock(saver, ts):
    before = datetime.now(UTC)
    checkpoint = {**empty_checkpoint(), "ts": ts}
    config = saver.put(thread(), checkpoint, {}, {})
    assert saver.get_tuple(config).checkpoint["ts"] == ts
    (info,) = saver.store.history(config)
    assert info.created_at >= before
    assert [one.checkpoint["ts"] for one in saver.list(None)] == [ts]


def test_a_checkpoint_without_ts_is_dated_by_the_clock(saver):
    before = datetime.now(UTC)
    checkpoint = empty_checkpoint()
    del checkpoint["ts"]
    config = saver.put(thread(), checkpoint, {}, {})
    assert "ts" not in saver.get_tuple(config).checkpoint
    assert saver.store.history(config)[0].created_at >= before
