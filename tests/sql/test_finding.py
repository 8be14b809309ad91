"""Finding checkpoints by their ids, and what an open log keeps."""

import pytest

from graphkit import Checkpoint, RunnableConfig
from tests.support.logs import limit_cache

CONFIG = RunnableConfig("t")


def make_checkpoint(number, **options):
    return Checkpoint(node_id="a", next_node_id="b", state={"n": number}, **options)


@pytest.fixture
def filled(saver):
    """A saver, and the ids of the checkpoints of its history."""
    ids = []
    for number in range(30):
        checkpoint = make_checkpoint(number)
        saver.put(CONFIG, checkpoint)
        ids.append(checkpoint.id)
    return saver, ids


def open_log(open_saver):
    """Return the log of a new saver, which knows what is there now."""
    log = open_saver()._store.shared_log("t", "")
    assert log.refresh()
    return log


def refuse_index(log, monkeypatch):
    def load_index():
        raise AssertionError("the whole history is read")

    monkeypatch.setattr(log.history, "load_index", load_index)


def test_a_checkpoint_behind_the_known_end_is_not_there_yet(filled, open_saver, monkeypatch):
    saver, _ = filled
    log = open_log(open_saver)
    refuse_index(log, monkeypatch)
    new = make_checkpoint(30)
    saver.put(CONFIG, new)
    assert log.history.find(new.id) is None
    # It has taken in nothing by this.
    assert log.history.find(None).id != new.id
    assert log.refresh()
    assert log.history.find(new.id).id == new.id
    assert log.load_state(log.history.find(new.id)) == {"n": 30}


def test_a_replacement_behind_the_known_end_hides_nothing(filled, open_saver, monkeypatch):
    saver, ids = filled
    log = open_log(open_saver)
    refuse_index(log, monkeypatch)
    saver.put(CONFIG.with_check_point_id(ids[4]), make_checkpoint(99, id=ids[4]))
    found = log.history.find(ids[4])
    assert log.load_state(found) == {"n": 4}
    monkeypatch.undo()
    assert log.refresh()
    assert log.load_state(log.history.find(ids[4])) == {"n": 99}


def test_logs_used_longest_ago_drop_the_rows_that_they_keep(saver, monkeypatch):
    limit_cache(monkeypatch, 200_000)
    for thread in range(20):
        for number in range(12):
            checkpoint = make_checkpoint(number, metadata={"text": f"{number} " * 2_000})
            saver.put(RunnableConfig(f"t{thread}"), checkpoint)
    sizes = [saver._store.shared_log(f"t{thread}", "").frames.bytes.kept_size for thread in range(20)]
    assert sizes[0] == 0
    assert sizes[-1] > 20_000
    assert sum(sizes) <= 200_000
    assert [saver.get(RunnableConfig(f"t{thread}")).state["n"] for thread in range(20)] == [11] * 20
