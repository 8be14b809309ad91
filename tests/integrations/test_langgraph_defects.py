"""FileSystemCheckpointSaver where LangGraph's own savers behave alike: what a user who switches would notice."""

import pytest

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
