"""Two spellings, one body: overriding either overrides both."""

import pytest

from graphkit import AgentState


class Base(AgentState):
    def get_state(self):
        return "base"

    def get_a_bit_more(self):
        return "base"

    getState = get_state
    getABitMore = get_a_bit_more


class Snake(Base):
    def get_state(self):
        return "snake"


class Camel(Base):
    def getState(self):
        return "camel"


class Both(Base):
    def get_state(self):
        return "one"

    def getState(self):
        return "two"


class Below(Snake):
    def getState(self):
        return "below"


class Mixed(Snake, Camel):
    pass


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Base, ("base", "base")),
        (Snake, ("snake", "snake")),
        (Camel, ("camel", "camel")),
        (Both, ("one", "two")),
        (Below, ("below", "below")),
        (Mixed, ("snake", "snake")),
    ],
)
def test_both_spellings(cls, expected):
    assert (cls().get_state(), cls().getState()) == expected


def test_super_reaches_the_one_above():
    class Super(Camel):
        def get_state(self):
            return f"super {super().getState()}"

    assert Super().getState() == "super camel"


def test_a_name_of_several_words():
    class Overriding(Base):
        def get_a_bit_more(self):
            return "overriding"

    assert Overriding().getABitMore() == "overriding"
