"""Checkpoint and Tag: frozen, comparable, copied under a new id."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from uuid import RFC_4122, UUID

import pytest
from hypothesis import example, given, strategies as st

from graphkit import AgentState, Channels, Checkpoint, CheckpointSerializationError
from graphkit.saver_kit import generate_id
from savers import FileSystemSaver
from tests.support.forked import run_in_child
from tests.support.graphs import CONFIG, CYCLE


def made(**fields):
    return Checkpoint(**{"node_id": "a", "next_node_id": "b", "state": {"x": [1]}, **fields})


def test_what_is_filled_in():
    before = datetime.now(UTC)
    one, two = made(parent_id="", state=AgentState({"x": [1]})), made()
    assert one.id != two.id
    assert before - timedelta(milliseconds=1) <= one.created_at <= datetime.now(UTC)
    assert one.created_at.tzinfo is UTC
    assert (one.parent_id, one.metadata, one.state) == (None, {}, {"x": [1]})


@pytest.mark.requirement("H34")
def test_ids_are_of_version_7_and_differ_in_their_random_part():
    with ThreadPoolExecutor(4) as threads:
        ids = [UUID(thread) for thread in threads.map(lambda _: generate_id(), range(2000))]
    assert {(each.version, each.variant) for each in ids} == {(7, RFC_4122)}
    assert len({random_part(str(each)) for each in ids}) == 2000


def test_each_id_begins_with_the_time_at_which_it_was_made(monkeypatch):
    times = [5_000_000, 5_999_999, 6_000_000, 5_000_000, 0xABCDEF012345 * 1_000_000]
    clock = iter(times)
    monkeypatch.setattr("graphkit._records.checkpoint.time_ns", lambda: next(clock))
    made_at = [int(generate_id().replace("-", "")[:12], 16) for _ in times]
    assert made_at == [5, 5, 6, 5, 0xABCDEF012345]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_fork_makes_other_ids_than_its_parent(tmp_path):
    generate_id()
    path = tmp_path / "id"
    assert run_in_child(lambda: path.write_text(random_part(generate_id())))
    assert path.read_text() not in {"", random_part(generate_id())}


def random_part(id):
    """An id without its time."""
    return id[14:]


def test_a_time_of_another_zone_is_the_same_moment():
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone(timedelta(hours=2)))
    assert made(created_at=when).created_at == when
    assert made(created_at=when).created_at.utcoffset() == timedelta(0)
    naive = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - taken as local time
    assert made(created_at=naive).created_at == naive.astimezone()


@pytest.mark.parametrize(
    ("name", "value"),
    [("node_id", None), ("state", [1]), ("parent_id", b"x"), ("created_at", date(2026, 1, 1)), ("metadata", None)],
)
def test_fields_of_the_wrong_type(name, value):
    with pytest.raises(CheckpointSerializationError, match=f"a checkpoint's {name} must be a") as failed:
        made(**{name: value})
    assert (failed.value.path, failed.value.type_name) == (name, type(value).__name__)
    assert isinstance(failed.value, TypeError)
    with pytest.raises(TypeError):
        Checkpoint(node_id="a")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"created_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))}, "created_at"),
        ({"metadata": {5: 1}}, "metadata key"),
    ],
)
def test_a_time_that_utc_has_no_year_for_and_a_key_that_is_no_text(fields, words):
    with pytest.raises(CheckpointSerializationError, match=words):
        made(**fields)


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("value", "words"), [(nested(10_000), "nested too deeply"), (CYCLE, "contains itself")])
@pytest.mark.parametrize(("field", "path"), [("state", "deep"), ("metadata", "metadata.deep")])
def test_what_cannot_be_frozen_is_refused_with_its_path(value, words, field, path):
    with pytest.raises(CheckpointSerializationError, match=words) as failed:
        made(**{field: {"fine": 1, "deep": value}})
    assert (failed.value.path, failed.value.type_name) == (path, "list")


@pytest.mark.requirement("L4")
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


@pytest.mark.requirement("L4")
def test_a_copy_has_another_id():
    one = made(id="one", parent_id="p", metadata={"m": 1})
    copied = Checkpoint.copy_of(one)
    assert copied.id != "one"
    assert copied != one
    assert Checkpoint.builder(copied).id("one").build() == one


@pytest.mark.requirement("L4")
def test_update_state_keeps_the_id():
    one = made(state={"log": ["a"], "x": 1})
    updated = one.update_state({"log": "b", "x": 2}, {"log": Channels.appender()})
    assert updated.state == {"log": ["a", "b"], "x": 2}
    assert (updated.id, updated.node_id, updated.created_at) == (one.id, "a", one.created_at)
    assert one.state == {"log": ["a"], "x": 1}


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


# --- times ------------------------------------------------------------------------------------------------------------


BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
LIMITS = [datetime.min.replace(tzinfo=UTC), BEFORE_1970, datetime.max.replace(tzinfo=UTC)]
"""The microseconds of the latest timestamps take more than the bits of a double."""


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=20))
@example(LIMITS)
def test_a_time_is_exact_to_the_microsecond(tmp_path_factory, times):
    saver = FileSystemSaver(tmp_path_factory.mktemp("store"), fsync="never")
    for time in times:
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}, created_at=time))
    found = [info.created_at for info in saver.history(CONFIG)]
    assert found[::-1] == times
    assert {time.tzinfo for time in found} == {UTC}
