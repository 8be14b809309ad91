"""Channels and reducers on their own."""

import operator

import pytest

from graphkit import REMOVE, RESET, AppenderChannel, Channel, Channels, RemoveByHash, RemoveIdentifier, ReplaceAllWith


class AtEvenPlaces(RemoveIdentifier):
    def compare_to(self, element, index):
        return index % 2


def test_base_takes_a_reducer_a_default_or_both():
    assert Channels.base(operator.add).reducer is operator.add
    assert Channels.base(max).reducer is max
    assert Channels.base(list).default is list
    assert Channels.base(lambda: 3).initial() == 3
    both = Channels.base(operator.add, lambda: 3)
    assert (both.getReducer(), both.getDefault()()) == (operator.add, 3)
    assert (Channels.base(reducer=operator.add, default=int).reducer, Channels.base(default=int).initial()) == (
        operator.add,
        0,
    )
    assert Channels.base(operator.add, default=int).default is int
    assert Channels.base(int, reducer=operator.add).reducer is operator.add
    assert Channels.base().reducer is None
    assert Channels.base(None, list).default is list


@pytest.mark.parametrize("wrong", [{"reducer": 3}, {"default": []}])
def test_what_cannot_be_called_is_refused(wrong):
    with pytest.raises(TypeError, match="callable"):
        Channel(**wrong)


def test_a_channel_without_a_reducer_replaces():
    assert Channel().update("k", 1, 2) == 2
    assert Channel().initial() is None


def test_a_reducer_starts_with_the_default():
    channel = Channels.base(operator.add, lambda: 10)
    assert channel.update("k", None, 1) == 11
    assert channel.update("k", 0, 1) == 1


def test_a_subclass_has_rules_of_its_own():
    class Keyed(Channel):
        def update(self, key, old, new):
            return f"{key}={new}"

    assert Keyed().update("k", None, 1) == "k=1"


KEEPS, DUPLICATES = Channels.appender(), Channels.appender_with_duplicate()


@pytest.mark.parametrize(
    ("channel", "old", "new", "expected"),
    [
        (KEEPS, [], ["A", "A", "b"], ["A", "b"]),
        (KEEPS, ["A"], ["A", "c"], ["A", "c"]),
        (KEEPS, [1], [True, 1.0, 1], [1, True, 1.0]),
        (KEEPS, [[1]], [[1], {"x": 1}, {"x": 1}], [[1], {"x": 1}]),
        (KEEPS, None, "x", ["x"]),
        (DUPLICATES, ["A"], ["A", "A"], ["A", "A", "A"]),
        (DUPLICATES, None, ("a", "b"), ["a", "b"]),
        (DUPLICATES, ["x"], "yz", ["x", "yz"]),
        (DUPLICATES, ["x"], {"k": 1}, ["x", {"k": 1}]),
        (DUPLICATES, ["x"], [], ["x"]),
        (DUPLICATES, None, [], None),
        (DUPLICATES, ["x"], None, []),
        (DUPLICATES, ["x"], ReplaceAllWith(["y", "y"]), ["y", "y"]),
        (DUPLICATES, ["x"], ReplaceAllWith.of("y"), ["y"]),
        (DUPLICATES, ["a", "b", "c", "d"], AtEvenPlaces(), ["b", "d"]),
        (DUPLICATES, ["a", "b", "a"], [RemoveByHash("a"), "a"], ["b", "a"]),
        (DUPLICATES, ["a", "b"], [RemoveByHash.of("a"), RemoveByHash("b")], []),
        (DUPLICATES, [{"x": 1}, 2], RemoveByHash({"x": 1}), [2]),
        (DUPLICATES, [1, True], RemoveByHash(True), [1]),
        (DUPLICATES, None, [RemoveByHash("a"), "b"], ["b"]),
        (DUPLICATES, ["a"], RemoveByHash("b"), ["a"]),
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


def test_removal_by_java_name():
    class ByJavaName(RemoveIdentifier):
        def compareTo(self, element, index):
            return 0

        compare_to = compareTo

    assert DUPLICATES.update("k", [1], ByJavaName()) == []
    assert RemoveByHash(1).compareTo(1, 0) == 0


def test_markers_show_their_names():
    assert (repr(RESET), repr(REMOVE)) == ("RESET", "REMOVE")
