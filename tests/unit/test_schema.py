"""What a graph's schema may be: channels, a state class, a TypedDict, a factory, a serializer."""

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, NamedTuple, NotRequired, Required, TypedDict, TypeVar

import pytest

from graphkit import END, START, AgentState, Channels, MessagesStateGraph, StateGraph, StateSerializer
from graphkit.errors import GraphStateError
from savers import MemorySaver
from tests.support.graphs import CONFIG, make_chain


def run(schema, given, *updates, saver=None):
    """The state after nodes that return these updates."""
    nodes = {f"n{number}": lambda state, update=update: update for number, update in enumerate(updates)}
    return make_chain(schema, **nodes).compile(checkpoint_saver=saver).invoke(given, CONFIG)


def last(old, new):
    return new


def test_defaults_are_made_for_each_thread():
    made = []

    def default():
        made.append([])
        return made[-1]

    schema = {"x": Channels.base(default)}
    assert run(schema, {})["x"] == run(schema, {})["x"] == []
    assert len(made) == 2


def test_messages_state_graph():
    graph = MessagesStateGraph().add_node("a", lambda s: {"messages": s.last_message() + "!"})
    final = graph.add_edge(START, "a").add_edge("a", END).compile().invoke({"messages": "hi"})
    assert final.messages() == ["hi", "hi!"]


class Typed(TypedDict):
    added: Annotated[list[str], operator.add]
    largest: Annotated[int, max]
    maybe: Annotated[int | None, operator.add]
    absent: NotRequired[Annotated[list[int], operator.add]]
    inside: Annotated[NotRequired[list[int]], operator.add]
    needed: Required[Annotated[Sequence[int], operator.add]]
    mapping: Annotated[Mapping[str, int], operator.or_]
    anything: Annotated[Any, operator.add]
    appended: Annotated[list[str], Channels.appender()]
    documented: Annotated[int, "a note"]
    last_of_two: Annotated[int, max, last]
    plain: int


@pytest.mark.parametrize(
    ("key", "updates", "expected"),
    [
        ("added", (["a"], ["b"]), ["a", "b"]),
        ("largest", (3, 2), 3),
        ("largest", (-3, -2), 0),
        ("maybe", (1, 2), 3),
        ("absent", ([1], [2]), [1, 2]),
        ("inside", ([1], [2]), [1, 2]),
        ("needed", ([1], [2]), [1, 2]),
        ("mapping", ({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        ("anything", ((1,), (2,)), (1, 2)),
        ("appended", ("a", ["a", "b"]), ["a", "b"]),
        ("documented", (1, 2), 2),
        ("last_of_two", (2, 1), 1),
        ("plain", (1, 2), 2),
    ],
)
def test_a_typed_dict(key, updates, expected):
    first, second = updates
    assert run(Typed, {key: first}, {key: second})[key] == expected
    assert run(Typed, {}, {key: first}, {key: second})[key] == expected


def test_a_node_may_read_before_anything_was_written():
    assert run(Typed, {}) == {"appended": []}


def test_a_reducer_that_does_not_take_two_values():
    class Wrong(TypedDict):
        x: Annotated[int, lambda only: only]

    with pytest.raises(GraphStateError, match="'x'"):
        StateGraph(Wrong)


def test_an_annotation_that_cannot_be_read():
    Broken = TypedDict("Broken", {"x": "Nowhere"})  # noqa: UP013, F821
    with pytest.raises(GraphStateError, match="Broken"):
        StateGraph(Broken)


class Colour(Enum):
    RED = 1


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    left: int


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    content: T


@dataclass
class Refusal(Exception):
    reason: str = ""


class Rich(TypedDict):
    colour: Colour
    points: list[Point]
    pair: Annotated[Pair | None, last]
    by_name: dict[str, tuple[Colour, ...]]
    box: Box[Colour]
    refusal: Annotated[Refusal, Channels.transient()]


def test_the_types_of_a_schema_come_back_from_a_saver_but_one_that_cannot_be_stored():
    saver = MemorySaver()
    given = {"colour": Colour.RED, "points": [Point(1)], "pair": Pair(2), "by_name": {"x": (Colour.RED,)}}
    given["box"] = Box(Colour.RED)
    run(Rich, given | {"refusal": Refusal("no")}, saver=saver)
    assert dict(saver.get(CONFIG).state) == given


class Counting(AgentState):
    SCHEMA = {"n": Channels.base(operator.add, int)}


@pytest.mark.parametrize("schema", [[Counting], [Counting.SCHEMA, Counting]])
def test_a_state_class_or_factory_makes_what_nodes_see(schema):
    seen = []
    graph = StateGraph(*schema).add_node("a", lambda state: seen.append(type(state)) or {"n": 2})
    final = graph.add_edge(START, "a").add_edge("a", END).compile().invoke({"n": 1})
    assert (seen, type(final), final["n"]) == ([Counting], Counting, 3)


def test_a_factory_alone():
    assert run(lambda data: ("made", dict(data)), {"x": 1}) == ("made", {"x": 1})


class Json(StateSerializer):
    def dumps(self, data):
        return json.dumps(data).encode()

    def loads(self, data):
        return json.loads(data)


def test_a_serializer():
    serializer = Json()
    assert StateGraph(serializer).state_serializer is serializer
    assert StateGraph({"n": Channels.base(operator.add, int)}, serializer).state_serializer is serializer
    assert run(serializer, {"x": 1}, {"x": 2}) == {"x": 2}
    assert StateGraph({}).state_serializer is None


@pytest.mark.parametrize("schema", [None, int, dict, {"x": list}, {"x": None, "y": 2}])
def test_what_is_no_schema(schema):
    with pytest.raises(GraphStateError) as failed:
        StateGraph(schema)
    assert len(failed.value.problems) == (2 if schema == {"x": None, "y": 2} else 1)


def test_what_is_no_factory():
    with pytest.raises(GraphStateError, match="factory"):
        StateGraph({}, 3)
