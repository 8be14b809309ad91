"""What the contract compares with must see every difference."""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from graphkit.testing import same
from graphkit.values import freeze


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: float
    tags: tuple[str, ...] = ()


@dataclass
class Note:
    text: str
    lines: tuple = ()


@dataclass(frozen=True)
class Money:
    amount: Decimal


class Answer(BaseModel):
    text: str
    score: float = 0.5


NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - naive ones are values too
PLAIN = {"list": [1, 1.0, True, None, b"a", "a"], "nested": [{"k": [[]]}], 1: -0.0}
VALUES = [PLAIN, {1, "1"}, frozenset({1}), (1, [2]), NAIVE, Point(1.5), Note("a"), Answer(text="a"), float("nan")]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_equal_values_are_the_same(value):
    same(freeze(value), value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1, Level.LOW),
        (0j, complex(0.0, -0.0)),
        ("a", b"a"),
        ([1], (1,)),
        ([1], [1, 2]),
        ([1, 2], []),
        ([], None),
        ({}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: "x"}, {True: "x"}),
        ({"a": 1}, OrderedDict(a=1)),
        ({1}, frozenset({1})),
        ({1}, {True}),
        ((1.5, ("a",)), Point(1.5, ("a",))),
        (Decimal("1.0"), Decimal("1.00")),
        (NAIVE, NAIVE.replace(fold=1)),
        (NAIVE, NAIVE.replace(tzinfo=UTC)),
        (NAIVE.replace(tzinfo=UTC), NAIVE.replace(tzinfo=timezone(timedelta(0), "other"))),
        (Note("a"), Note("b")),
        (Note("a", [1]), Note("a", [True])),
        (Money(Decimal(1)), Money(Decimal("1.0"))),
        (Answer(text="a", score=1.0), Answer(text="a", score=2.0)),
    ],
)
def test_a_difference_is_found_and_its_place_named(one, other):
    for got, expected in ((one, other), (other, one)):
        with pytest.raises(AssertionError):
            same(got, expected)
        with pytest.raises(AssertionError, match=r"^value\[0\]\[1\]"):
            same([{"deep": got}], [{"deep": expected}])
