"""What the contract compares with must see every difference."""

from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from graphkit._values.frozen import freeze
from graphkit.testing import same
from graphkit.testing._check import find_difference
from graphkit.testing._values import Level, Money, Note, Point, answer_model, sample_values

NAIVE = datetime(2026, 10, 25, 2, 30)  # noqa: DTZ001 - naive ones are values too


@pytest.mark.parametrize("name", list(sample_values()))
def test_equal_values_are_the_same(name):
    same(freeze(sample_values()[name]), sample_values()[name])


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
    ],
)
def test_unequal_values_are_not(one, other):
    for pair in ((one, other), (other, one)):
        assert find_difference(*pair)
        assert find_difference([{"deep": pair[0]}], [{"deep": pair[1]}]).startswith("value[0][1]")
        with pytest.raises(AssertionError):
            same(*pair)


def test_models_are_compared_field_by_field():
    model = answer_model()
    same(model(text="a"), model(text="a"))
    assert find_difference(model(text="a", score=1.0), model(text="a", score=2.0))


def test_nan_is_the_same_as_itself():
    same(float("nan"), float("nan"))
