"""Channels and reducers on their own."""

import operator
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from graphkit import AppenderChannel, Channel, Channels, RemoveByHash, RemoveIdentifier, ReplaceAllWith
from graphkit.saver_kit import freeze


class AtEvenPlaces(RemoveIdentifier):
    def compare_to(self, element, index):
        return index % 2


def make_three():
    return 3


@pytest.mark.parametrize(
    ("channel", "reducer", "default"),
    [
        (Channels.base(operator.add), operator.add, None),
        (Channels.base(max), max, None),
        (Channels.base(list), None, list),
        (Channels.base(make_three), None, make_three),
        (Channels.base(operator.add, int), operator.add, int),
        (Channels.base(default=int), None, int),
        (Channels.base(int, reducer=operator.add), operator.add, int),
        (Channels.base(), None, None),
    ],
)
def test_base_takes_a_reducer_a_default_or_both(channel, reducer, default):
    assert (channel.reducer, channel.default) == (reducer, default)
    assert channel.initial() == (None if default is None else default())


@pytest.mark.parametrize("wrong", [{"reducer": 3}, {"default": []}])
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(TypeError, match="callable"):
        Channel(**wrong)


def test_a_channel_without_a_reducer_replaces_and_another_one_starts_with_the_default():
    assert Channel().update("k", 1, 2) == 2
    channel = Channels.base(operator.add, lambda: 10)
    assert channel.update("k", None, 1) == 11
    assert channel.update("k", 0, 1) == 1


class Clash(str):
    """Texts that all have one hash."""

    __slots__ = ()

    def __hash__(self):
        return 1


KEEPS, DUPLICATES = Channels.appender(), Channels.appender_with_duplicate()


@pytest.mark.requirement("behaviour 2")
@pytest.mark.parametrize(
    ("channel", "old", "new", "expected"),
    [
        (KEEPS, [], ["A", "A", "b"], ["A", "b"]),
        (KEEPS, [1], [True, 1.0, 1], [1, True, 1.0]),
        (KEEPS, [[1]], [[1], {"x": 1}, {"x": 1}], [[1], {"x": 1}]),
        (KEEPS, None, "x", ["x"]),
        (KEEPS, [Clash("a")], [Clash("b")], [Clash("a"), Clash("b")]),
        (DUPLICATES, ["A"], ["A", "A"], ["A", "A", "A"]),
        (DUPLICATES, None, ("a", "b"), ["a", "b"]),
        (DUPLICATES, ["x"], "yz", ["x", "yz"]),
        (DUPLICATES, ["x"], {"k": 1}, ["x", {"k": 1}]),
        (DUPLICATES, None, [], None),
        (DUPLICATES, ["x"], None, []),
        (DUPLICATES, ["x"], ReplaceAllWith(["y", "y"]), ["y", "y"]),
        (DUPLICATES, ["a", "b", "c", "d"], AtEvenPlaces(), ["b", "d"]),
        (DUPLICATES, ["a", "b", "a"], [RemoveByHash("a"), "a"], ["b", "a"]),
        (DUPLICATES, [{"x": 1}, 2], RemoveByHash({"x": 1}), [2]),
        (DUPLICATES, [1, True], RemoveByHash(True), [1]),
        (DUPLICATES, None, [RemoveByHash("a"), "b"], ["b"]),
    ],
)
def test_appending(channel, old, new, expected):
    result = channel.update("k", old, new)
    assert result == expected
    assert [type(item) for item in result or []] == [type(item) for item in expected or []]


def test_an_appender_may_start_with_something():
    channel = AppenderChannel(lambda: ["first"])
    assert channel.initial() == ["first"]
    assert channel.update("k", None, "x") == ["first", "x"]
    assert channel.update("k", ["x"], None) == ["first"]
    assert channel.update("k", None, [RemoveByHash("first"), "x"]) == ["x"]


@st.composite
def elements(draw):
    leaf = st.one_of(
        st.integers(-2, 2), st.booleans(), st.sampled_from([1.0, 0.0, "a", "b", b"a", None, Point(1, [2])])
    )
    inner = st.one_of(
        st.lists(leaf, max_size=2), st.dictionaries(st.sampled_from("xy"), leaf, max_size=2), st.sets(st.integers(0, 2))
    )
    return draw(st.one_of(leaf, inner, st.tuples(inner)))


@dataclass
class Point:
    x: int
    rest: list


def strictly_in(item, items):
    """The plain meaning: equal, and of one type."""
    return any(type(each) is type(item) and each == item for each in items)


@given(st.lists(st.lists(elements(), max_size=6), max_size=12), st.sampled_from([0, 48, 49, 50, 70]))
def test_a_long_list_without_duplicates_is_what_comparing_all_would_make(updates, head):
    channel = Channels.appender()
    plain = [f"message {n}" for n in range(head)]
    found = freeze([*plain])

    for update in updates:
        for item in update:
            if not strictly_in(item, plain):
                plain.append(item)
        found = freeze(channel.update("k", found, update))
        assert found == plain
        assert [type(item) for item in found] == [type(freeze(item)) for item in plain]


def test_two_lists_that_grow_from_one_do_not_share_what_they_have_seen():
    channel, old = Channels.appender(), freeze([f"message {n}" for n in range(100)])
    for _ in range(3):
        left, right = channel.update("k", old, ["left"]), channel.update("k", old, ["right"])
        assert (left[-1], right[-1]) == ("left", "right")
        assert channel.update("k", left, ["right", "left"])[-2:] == ["left", "right"]
        assert channel.update("k", right, ["right", "left"])[-2:] == ["right", "left"]
        assert channel.update("k", left, ["left"]) is left
