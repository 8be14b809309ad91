"""Read-only values: what may not change, what copies give, and what is shared."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from graphkit._values.frozen import PLAIN, PRIVATE, VALUE, FrozenList, freeze, kind_of, private_copy


@dataclass
class Mutable:
    items: list


@dataclass(frozen=True)
class Fixed:
    value: object


class Pair(NamedTuple):
    left: object
    right: object = 0


class Model(BaseModel):
    x: int = 1


class Tagged(tuple):  # noqa: SLOT001 - it has attributes on purpose
    """A tuple with attributes."""


SET_OPERATIONS = "update intersection_update difference_update symmetric_difference_update"


@pytest.mark.parametrize(
    ("plain", "mutators"),
    [
        ([3, 2], "append extend insert pop remove clear sort reverse __iadd__ __imul__ __setitem__ __delitem__"),
        ({0: 1}, "update pop popitem clear setdefault __ior__ __setitem__ __delitem__"),
        ({1, 2}, f"add discard remove pop clear {SET_OPERATIONS} __ior__ __iand__ __isub__ __ixor__"),
    ],
)
def test_every_mutator_refuses_and_changes_nothing(plain, mutators):
    frozen = freeze(plain)
    for method in mutators.split():
        with pytest.raises(TypeError, match=rf"return an update from the node.*{type(plain).__name__}\(x\)"):
            getattr(frozen, method)()
    assert frozen == plain


def test_they_behave_as_the_builtins():
    frozen = freeze({"b": [1, {"c": (2,)}], "a": {3}})

    assert frozen == {"b": [1, {"c": (2,)}], "a": {3}}
    assert repr(frozen) == "{'b': [1, {'c': (2,)}], 'a': {3}}".replace("{3}", repr(frozen["a"]))
    assert json.dumps(freeze({"x": [1, {"y": None}]})) == '{"x": [1, {"y": null}]}'
    assert type(frozen["b"][:1]) is list
    assert type([0] + frozen["b"]) is list
    assert type(frozen | {}) is dict
    assert type(frozen["a"].copy()) is set


@pytest.mark.parametrize("plain", [[1, [2]], {"a": [1]}, {1, 2}])
def test_a_copy_is_plain(plain):
    made = copy.copy(freeze(plain))
    assert type(made) is type(plain)
    assert made == plain


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_deep_copies_and_pickles_are_plain_all_the_way(copier):
    assert type(copy.copy(freeze({1}))) is set
    made = copier(freeze({"a": [[1], {"b": {2}}]}))
    assert made == {"a": [[1], {"b": {2}}]}
    assert [type(made), type(made["a"]), type(made["a"][0]), type(made["a"][1]["b"])] == [dict, list, list, set]


def test_freezing_shares_what_is_frozen():
    inner = freeze([1])
    assert freeze(inner) is inner
    assert freeze([inner])[0] is inner
    assert freeze((inner,))[0] is inner
    unchanged = (1, (2, "x"))
    assert freeze(unchanged) is unchanged
    pair = freeze(Pair([1]))
    assert type(pair) is Pair
    assert type(pair.left) is FrozenList
    fs = frozenset({1})
    assert freeze(fs) is fs


def test_what_cannot_be_copied_is_shared():
    held = Mutable([threading.Lock()])
    client = object()
    first, second = freeze([held, client])
    assert first is held
    assert second is client


def test_a_tuple_class_of_its_own_is_copied_whole():
    tagged = Tagged([[1]])
    tagged.name = "n"
    frozen = freeze([tagged])
    assert frozen[0] is not tagged
    assert frozen[0].name == "n"
    assert private_copy(frozen)[0].name == "n"


KINDS = [
    (PLAIN, [1, "a", None, True, 2.5, b"x", [], {}]),
    (VALUE, [(1,)]),
    (VALUE, {"a": {1}}),
    (VALUE, [Fixed((1, "a"))]),
    (VALUE, [Pair(1)]),
    (PRIVATE, [Fixed([1])]),
    (PRIVATE, [Model()]),
    (PRIVATE, [Pair(bytearray())]),
]


@pytest.mark.parametrize(("kind", "value"), KINDS)
def test_kinds(kind, value):
    assert kind_of(freeze(value)) == kind


def test_private_copies_share_all_but_the_private():
    frozen = freeze({"m": [Mutable([1])], "t": (Mutable([2]), Pair([3], Mutable([4]))), "v": [(1,)]})
    made = private_copy(frozen)

    assert made == frozen
    assert made["v"] is frozen["v"]

    made["m"][0].items.append(9)
    made["t"][1].right.items.append(9)

    assert frozen["m"] == [Mutable([1])]
    assert frozen["t"][1].right == Mutable([4])
    assert private_copy(frozen["v"]) is frozen["v"]


def test_objects_that_are_nested_too_deeply_are_refused():
    node = Mutable([])
    for _ in range(3000):
        node = Mutable([node])
    with pytest.raises(ValueError, match="nested too deeply"):
        freeze([node])
