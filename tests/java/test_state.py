"""langgraph4j's state, channels and reducers, re-stated. Deviations are the design's."""

import pytest

from graphkit import REMOVE, RESET, AgentState, Channels, RemoveByHash, RemoveIdentifier, ReplaceAllWith

CHANNELS = {
    "list": Channels.appender(),
    "duplicates": Channels.appenderWithDuplicate(),
    "sum": Channels.base(lambda a, b: a + b, lambda: 0),
}


def updated(state, partial):
    return AgentState.updateState(state, partial, CHANNELS)


@pytest.mark.requirement("behaviour 2")
def test_none_and_reset_bring_a_channels_default_back():  # 2, updateState 4 [1.9]
    assert updated({"sum": 5, "list": [1]}, {"sum": None, "list": RESET}) == {"sum": 0, "list": []}
    assert updated({"sum": 5, "a": 1}, {"sum": REMOVE, "a": REMOVE}) == {}


@pytest.mark.requirement("behaviour 2")
def test_the_appender():  # 2, AppenderChannel
    assert updated({"list": ["a"]}, {"list": "b"})["list"] == ["a", "b"]
    assert updated({"list": ["a"]}, {"list": ["b", "c"]})["list"] == ["a", "b", "c"]
    assert updated({"list": []}, {"list": ["A", "A", "b"]})["list"] == ["A", "b"]
    assert updated({"duplicates": ["A"]}, {"duplicates": ["A", "A"]})["duplicates"] == ["A", "A", "A"]
    assert updated({"list": ["a"]}, {"list": None})["list"] == []
    assert updated({"list": ["a"]}, {"list": []})["list"] == ["a"]
    assert updated({"list": ["a"]}, {"list": ReplaceAllWith.of(["z", "z"])})["list"] == ["z", "z"]
    assert updated({"list": ["a"]}, {"list": ReplaceAllWith.of("z")})["list"] == ["z"]


def test_two_texts_of_one_hash_are_two_elements():  # 2 and 19, defect: hashes were compared
    class Clash(str):
        __slots__ = ()

        def __hash__(self):
            return 1

    assert updated({"list": [Clash("a")]}, {"list": [Clash("b")]})["list"] == ["a", "b"]


@pytest.mark.requirement("behaviour 2")
def test_removals_go_first_and_all_matches_go():  # 2
    class First(RemoveIdentifier):
        def compareTo(self, element, index):
            return index

        compare_to = compareTo

    assert updated({"duplicates": ["a", "b", "a"]}, {"duplicates": RemoveByHash.of("a")})["duplicates"] == ["b"]
    assert updated({"duplicates": ["a", "b"]}, {"duplicates": [RemoveByHash.of("a"), "a"]})["duplicates"] == ["b", "a"]
    assert updated({"duplicates": ["a", "b"]}, {"duplicates": First()})["duplicates"] == ["b"]
