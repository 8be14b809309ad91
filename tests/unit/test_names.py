"""Two spellings, one body: overriding either overrides both."""

import pytest

from graphkit._public_names import JavaNames, snake_to_camel


class Base(JavaNames):
    def get_state(self):
        return "base"

    def close(self):
        return "close"

    def _get_own(self):
        return "private"

    getState = get_state


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


@pytest.mark.parametrize(("snake", "camel"), [("get_state", "getState"), ("a_b_c", "aBC"), ("one", "one")])
def test_spelling(snake, camel):
    assert snake_to_camel(snake) == camel
