"""Checkpoint and Tag: frozen, comparable, copied under a new id."""

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from graphkit import AgentState, Channels, Checkpoint, Tag


def made(**fields):
    return Checkpoint(**{"node_id": "a", "next_node_id": "b", "state": {"x": [1]}, **fields})


def test_what_is_filled_in():
    before = datetime.now(UTC)
    one, two = made(), made()
    assert one.id != two.id
    assert before - timedelta(milliseconds=1) <= one.created_at <= datetime.now(UTC)
    assert one.created_at.tzinfo is UTC
    assert (one.parent_id, one.metadata, one.state) == (None, {}, {"x": [1]})


def test_a_time_of_another_zone_is_the_same_moment():
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    assert made(created_at=when).created_at == when
    assert made(created_at=when).created_at.utcoffset() == timedelta(0)
    naive = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - taken as local time
    assert made(created_at=naive).created_at == naive.astimezone()


@pytest.mark.parametrize("wrong", [{"node_id": None}, {"next_node_id": 3}, {"state": None}, {"state": [1]}, {"id": 5}])
def test_fields_of_the_wrong_type(wrong):
    with pytest.raises(TypeError):
        made(**wrong)
    with pytest.raises(TypeError):
        Checkpoint(node_id="a")


def test_it_is_immutable():
    given = {"x": [1]}
    checkpoint = made(state=given, metadata={"m": [1]})
    given["x"].append(2)
    assert checkpoint.state == {"x": [1]}
    for change in (
        lambda: setattr(checkpoint, "id", "z"),
        lambda: delattr(checkpoint, "id"),
        lambda: checkpoint.state.update(x=2),
        lambda: checkpoint.state["x"].append(2),
        lambda: checkpoint.metadata["m"].append(2),
    ):
        with pytest.raises((AttributeError, TypeError)):
            change()


def test_a_state_object_will_do():
    assert made(state=AgentState({"x": 1})).state == {"x": 1}


def test_copies():
    one = made(id="one", parent_id="p", metadata={"m": 1})
    for copied in (Checkpoint.copy_of(one), Checkpoint.copyOf(one)):
        assert copied.id != "one"
        assert copied != one
        assert Checkpoint.builder(copied).id("one").build() == one


def test_update_state_keeps_the_id():
    one = made(state={"log": ["a"], "x": 1})
    channels = {"log": Channels.appender()}
    for updated in (one.update_state({"log": "b", "x": 2}, channels), one.updateState({"log": "b", "x": 2}, channels)):
        assert updated.state == {"log": ["a", "b"], "x": 2}
        assert (updated.id, updated.node_id, updated.created_at) == (one.id, "a", one.created_at)
    assert one.state == {"log": ["a"], "x": 1}


def test_the_builder():
    when = datetime(2026, 1, 1, tzinfo=UTC)
    one = (
        Checkpoint.builder().id("i").nodeId("n").nextNodeId("m").parentId("p").createdAt(when).metadata({"k": 1})
        .state({"x": 1}).build()
    )  # fmt: skip
    assert (one.getId(), one.getNodeId(), one.getNextNodeId(), one.getState()) == ("i", "n", "m", {"x": 1})
    assert (one.parent_id, one.created_at, one.metadata) == ("p", when, {"k": 1})
    with pytest.raises(TypeError, match="next_node_id, state"):
        Checkpoint.builder().nodeId("n").build()


def test_equality_hash_text_and_pickle():
    one = made(id="i", metadata={"k": (1,)})
    twin = pickle.loads(pickle.dumps(one))
    assert twin == one
    assert hash(twin) == hash(one)
    assert one != made(id="i", created_at=one.created_at)
    assert one != "i"
    assert repr(one) == "Checkpoint(a -> b, id='i')"
    with pytest.raises(TypeError):
        twin.state["x"].append(1)


def test_a_tag():
    tag = Tag("t", (made(),), 3)
    assert (tag.threadId(), len(tag.checkpoints), tag.version) == ("t", 1, 3)
    assert Tag("t", ()).version is None
