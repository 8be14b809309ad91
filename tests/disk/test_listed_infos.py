"""A history is a list of infos as it was when it was read, although each info is made later."""

import copy
import pickle

import pytest

from graphkit import Checkpoint, RunnableConfig
from tests.support.checkpoints import make_checkpoint

THREAD = RunnableConfig("t")


def at(number):
    return THREAD.replace(checkpoint_id=f"c{number}")


@pytest.fixture
def saver(opener):
    saver = opener()
    for number in range(6):
        new = Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", metadata={"step": number}, state={"n": number})
        saver.put(THREAD, new)
    saver.put_writes(at(1), {"failure": "no"})
    return saver


def change(saver):
    """Change everything of a history that can change."""
    saver.put_writes(at(0), {"failure": "no"})
    saver.put_writes(at(1), {"failure": None, "k": 2})
    saver.put_writes(at(5), {"k": 1})
    saver.add_tags(at(2), "late")
    saver.put(at(3), Checkpoint(id="c3", node_id="other", next_node_id="b", state={}))
    saver.put(THREAD, make_checkpoint(7))


@pytest.mark.parametrize("is_recent", [False, True])
def test_later_records_do_not_change_it(saver, opener, is_recent):
    def read(saver):
        return saver.recent(THREAD, limit=5) if is_recent else saver.history(THREAD)

    before = list(read(opener()))
    one_by_one = read(saver)
    at_once = read(saver)
    change(saver)
    assert list(read(saver)) != before
    assert [one_by_one[number] for number in range(len(one_by_one))] == before
    assert list(at_once) == before


def test_it_is_used_like_a_list(saver):
    expected = list(saver.history(THREAD))
    oldest_first = expected[::-1]
    for warm in (lambda _: None, list):
        history = saver.history(THREAD)
        warm(history)
        assert len(history) == 6
        assert history[0] == expected[0]
        assert history[-1] == expected[-1]
        assert history[1:4] == expected[1:4]
        assert history[::-2] == expected[::-2]
        assert list(reversed(history)) == oldest_first
        assert expected[2] in history
        assert history.index(expected[3]) == 3
        with pytest.raises(IndexError):
            history[6]
        assert repr(history) == repr(expected)


def test_it_equals_lists_and_histories(saver, opener):
    history = saver.history(THREAD)
    assert history == list(history)
    assert list(history) == history
    assert history == opener().history(THREAD)
    assert history != history[1:]
    assert history != [*history[1:], history[0]]
    assert history != tuple(history)
    assert saver.history(RunnableConfig("unknown")) == []
    with pytest.raises(TypeError):
        hash(history)


def test_copies_and_pickles_are_lists(saver):
    history = saver.history(THREAD)
    for copied in (copy.copy(history), copy.deepcopy(history), pickle.loads(pickle.dumps(history))):
        assert type(copied) is list
        assert copied == history
