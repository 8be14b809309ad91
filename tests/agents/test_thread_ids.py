"""Thread ids by strategy."""

import multiprocessing
import re
import time
import uuid

import pytest
from hypothesis import given, strategies as st

from graphkit.agents import ThreadIDGenerator, ThreadIDManager
from graphkit.agents.thread_ids import MAX_LENGTH, check_thread_id
from tests.support.forked import run_in_child

HOSTILE = ["../", "a\nb", "\x00", "é" * 300, "😀" * 300, "%2F", "-", "a-b-c", "user-x", "\ud800", "CON", "*?"]


@pytest.mark.requirement("P20")
def test_uuid_makes_distinct_uuids():
    made = {ThreadIDGenerator.uuid() for _ in range(10_000)}
    assert len(made) == 10_000
    assert {uuid.UUID(thread_id).version for thread_id in made} == {4}


def test_timestamps_are_the_time_and_sort_by_the_order_in_which_they_were_made():
    before = time.time_ns()
    made = [ThreadIDGenerator.timestamp() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == 10_000
    assert all(re.fullmatch(r"\d{8}T\d{6}\.\d{9}Z-[0-9a-f]{16}", thread_id) for thread_id in made)
    assert made[0] >= f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(before // 10**9))}"


@pytest.mark.requirement("P21")
@pytest.mark.parametrize("ticks", [[10**18], [10**18, 10**18 - 10**12, 10**18 - 10**13]])
def test_timestamps_are_distinct_and_sorted_while_the_clock_stands_still_or_goes_back(ticks, monkeypatch):
    left = list(ticks)
    monkeypatch.setattr("graphkit.agents.thread_ids._INSTANTS._last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: left.pop(0) if len(left) > 1 else left[0])
    made = [ThreadIDGenerator.timestamp() for _ in range(1000)]
    assert [thread_id[:26] for thread_id in made] == sorted({thread_id[:26] for thread_id in made})


def make_some(_):
    return [ThreadIDGenerator.user_specific("bob") for _ in range(500)]


@pytest.mark.requirement("P21")
def test_ids_of_several_processes_are_distinct_at_one_instant(monkeypatch):
    # Forked processes share the clock that stands still, and the counter.
    monkeypatch.setattr("graphkit.agents.thread_ids._INSTANTS._last", 0)
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        made = [thread_id for some in pool.map(make_some, range(8), chunksize=2) for thread_id in some]
    assert len(set(made)) == 4000


def test_a_fork_while_a_thread_makes_an_id_does_not_block_the_child(monkeypatch):
    from graphkit.agents.thread_ids import _INSTANTS

    with _INSTANTS._lock:
        assert run_in_child(ThreadIDGenerator.timestamp)


@pytest.mark.requirement("P22")
@given(st.sampled_from(HOSTILE) | st.text(st.characters(), min_size=1, max_size=300))
def test_hostile_user_ids_give_safe_thread_ids_and_map_back(user_id):
    made = ThreadIDGenerator.user_specific(user_id)
    assert re.fullmatch(r"user-[A-Za-z0-9_.~%-]+", made)
    assert check_thread_id(made) == made
    assert ThreadIDGenerator.user_of(made) == user_id


def test_a_user_id_that_is_no_text_or_too_long_is_an_error():
    for user_id, message in (
        ("", "user_id must be a non-empty str"),
        (b"bob", "user_id must be a non-empty str"),
        ("x" * MAX_LENGTH, "user_id is too long"),
    ):
        with pytest.raises(ValueError, match=message):
            ThreadIDGenerator.user_specific(user_id)


def test_only_an_id_of_a_user_maps_back():
    for thread_id in ("", "bob", "user-", "user-bob", "20261122T222229.123456789Z-5f0c1d2e3a4b5c6d"):
        with pytest.raises(ValueError, match="no id of user_specific"):
            ThreadIDGenerator.user_of(thread_id)


@pytest.mark.requirement("P23")
def test_custom_refuses_what_is_no_valid_id():
    for made in ("", None, 7, "a\nb", "x" * 5000):
        with pytest.raises(ValueError, match="thread id"):
            ThreadIDGenerator.custom(lambda made=made: made)


@pytest.mark.requirement("P24")
def test_the_manager_uses_the_strategy_and_an_option_of_one_call_replaces_its_own():
    for strategy, options, pattern in (
        ("uuid", {}, r"[0-9a-f-]{36}"),
        ("timestamp", {}, r"\d{8}T.*"),
        ("user_specific", {"user_id": "bob"}, r"user-bob-.*"),
        ("custom", {"generator_func": lambda: "x-1"}, r"x-1"),
    ):
        assert re.fullmatch(pattern, ThreadIDManager(strategy, **options).generate())
    manager = ThreadIDManager("user_specific", user_id="bob")
    assert ThreadIDGenerator.user_of(manager.generate(user_id="eve")) == "eve"
    assert ThreadIDGenerator.user_of(manager.generate()) == "bob"


@pytest.mark.requirement("P24")
def test_a_wrong_strategy_or_option_is_an_error():
    for strategy in ("", "UUID", "user_of", "__init__", None, ["uuid"]):
        with pytest.raises(ValueError, match=r"unknown thread id strategy .*; known are uuid, timestamp"):
            ThreadIDManager(strategy)
    for strategy, options, message in (
        ("uuid", {"user_id": "bob"}, "'uuid' has no option user_id; it takes none"),
        ("custom", {"user_id": "bob"}, "'custom' has no option user_id; it takes only generator_func"),
        ("user_specific", {"user_id": None}, "'user_specific' needs the option user_id"),
        ("custom", {}, "'custom' needs the option generator_func"),
    ):
        with pytest.raises(ValueError, match=message):
            ThreadIDManager(strategy, **options).generate()
        with pytest.raises(ValueError, match=message):
            ThreadIDManager(strategy).generate(**options)


@pytest.mark.requirement("P25")
def test_the_error_of_an_invalid_thread_id_names_the_reason():
    for thread_ids, message in (
        ([""], "must not be empty"),
        ([None, 17, b"a"], "must be a str"),
        (["x" * (MAX_LENGTH + 1)], "at most 4096 characters, not 4097"),
        (["a\nb", "a\x00", "a\x7fb", "a\u2028b", "\ud800"], "no control character"),
        ([" a", "a\n"], "white space"),
    ):
        for thread_id in thread_ids:
            with pytest.raises(ValueError, match=message):
                check_thread_id(thread_id)
