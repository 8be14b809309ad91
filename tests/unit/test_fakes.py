import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import pytest

from graphkit.errors import CheckpointStorageError
from graphkit.saver_kit import freeze
from graphkit.testing import Call, ScriptedSaver, made, same
from savers import MemorySaver, VersionedMemorySaver

FULL = CheckpointStorageError("/disk", "write to", "No space left on device")


@pytest.mark.requirement("P81")
def test_calls_are_noted_in_order_under_one_name():
    saver = ScriptedSaver(MemorySaver())
    checkpoint = made({"n": 1})
    saver.put(None, checkpoint)
    saver.putWrites(None, {"w": 1})
    asyncio.run(saver.aget(None))
    saver.search({"k": 1}, limit=2)
    assert saver.calls == [
        Call("put", (None, checkpoint), {}),
        Call("put_writes", (None, {"w": 1}), {}),
        Call("get", (None,), {}),
        Call("search", ({"k": 1},), {"limit": 2}),
    ]
    assert (saver.count("put"), saver.count("get"), saver.count("list")) == (1, 1, 0)


@pytest.mark.requirement("P81")
def test_a_failure_comes_when_it_is_due():
    saver = ScriptedSaver(MemorySaver()).fail("put", FULL, skip=1, times=2)
    saver.put(None, made({"n": 1}))
    for _ in range(2):
        with pytest.raises(CheckpointStorageError):
            saver.put(None, made({"n": 2}))
    saver.put(None, made({"n": 3}))
    assert [checkpoint.state["n"] for checkpoint in saver.list()] == [3, 1]


def test_a_late_failure_comes_after_the_deed():
    saver = ScriptedSaver(MemorySaver()).fail("put", FULL, late=True)
    with pytest.raises(CheckpointStorageError):
        asyncio.run(saver.aput(None, made({"n": 1})))
    assert len(saver.list()) == 1


@pytest.mark.requirement("P81")
def test_latency(monkeypatch):
    waited = []
    monkeypatch.setattr("graphkit.testing.fakes.time.sleep", waited.append)
    ScriptedSaver(MemorySaver()).slow("put", 0.5).put(None, made({"n": 1}))
    assert waited == [0.5]


def test_things_happen_in_the_order_in_which_they_were_scripted():
    seen = []
    saver = ScriptedSaver(MemorySaver())
    saver.on("put", lambda: seen.append("after"), late=True).on("put", lambda: seen.append(saver.get()))
    saver.put(None, made({"n": 1}))
    assert seen == [None, "after"]


def test_a_method_that_does_not_exist_cannot_be_scripted():
    with pytest.raises(ValueError, match="'putt'"):
        ScriptedSaver(MemorySaver()).fail("putt", FULL)


def test_methods_of_capabilities_are_scripted_too():
    saver = ScriptedSaver(VersionedMemorySaver()).fail("tag", FULL).fail("remove", FULL)
    for method, call in (("tag", saver.tag), ("remove", partial(saver.remove, ids=["a"]))):
        with pytest.raises(CheckpointStorageError):
            call(None)
        assert saver.count(method) == 1


def test_a_subclass_keeps_its_own_methods():
    class Full(ScriptedSaver):
        def tag(self, config, version=None):
            raise FULL

    saver = Full(VersionedMemorySaver())
    with pytest.raises(CheckpointStorageError):
        saver.tag(None)
    assert [*saver.versions_by_thread_id("t")] == []
    assert saver.count("versions_by_thread_id") == 1


# --- what the contract compares with ----------------------------------------------------------------------------------


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: float
    tags: tuple[str, ...] = ()


@dataclass
class Note:
    text: str
    lines: tuple = ()


NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - naive ones are values too
PLAIN = {"list": [1, 1.0, True, None, b"a", "a"], "nested": [{"k": [[]]}], 1: -0.0}
VALUES = [PLAIN, {1, "1"}, frozenset({1}), (1, [2]), NAIVE, Point(1.5), Note("a"), float("nan")]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal_values_are_the_same(value):
    same(freeze(value), value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (1, Level.LOW),
        ("a", b"a"),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "x"}, {True: "x"}),
        ({"a": 1}, OrderedDict(a=1)),
        ({1}, {True}),
        ((1.5, ("a",)), Point(1.5, ("a",))),
        (Decimal("1.0"), Decimal("1.00")),
        (NAIVE, NAIVE.replace(fold=1)),
        (NAIVE.replace(tzinfo=UTC), NAIVE.replace(tzinfo=timezone(timedelta(0), "other"))),
        (Note("a", [1]), Note("a", [True])),
    ],
)
def test_a_difference_is_found_and_its_place_named(one, other):
    for got, expected in ((one, other), (other, one)):
        with pytest.raises(AssertionError):
            same(got, expected)
        with pytest.raises(AssertionError, match=r"^value\[0\]\['deep'\]"):
            same([{"deep": got}], [{"deep": expected}])
