"""What a graph's schema may be: channels, a state class, a TypedDict, a dataclass, a pydantic model, a factory, a serializer."""

import json
import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NotRequired, Required, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from graphkit import (
    END,
    REMOVE,
    RESET,
    START,
    AgentState,
    Channels,
    MessagesStateGraph,
    RemoveByHash,
    StateGraph,
    StateSerializer,
)
from graphkit.errors import GraphRunnerError, GraphStateError, NodeExecutionError
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import CONFIG, make_chain
from tests.support.threads import Colour, Pair, Point


def compiled(schema, *updates, saver=None):
    """Return a graph of nodes that are these functions, or return these updates."""
    nodes = {
        f"n{number}": update if callable(update) else lambda state, update=update: update
        for number, update in enumerate(updates)
    }
    return make_chain(schema, **nodes).compile(checkpoint_saver=saver)


def run(schema, given, *updates, saver=None):
    return compiled(schema, *updates, saver=saver).invoke(given, CONFIG)


def last(old, new):
    return new


def test_defaults_are_made_for_each_thread():
    made = []
    schema = {"x": Channels.base(lambda: made.append([]) or made[-1])}
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
    given = {"colour": Colour.RED, "points": [Point(1)], "pair": Pair(2, "b"), "by_name": {"x": (Colour.RED,)}}
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


# --- a dataclass: its defaults, reducers and methods, and its objects as updates ---------------------------------------


@dataclass
class Address:
    city: str


@dataclass
class Order:
    item: str
    amount: int = 1
    address: Address | None = None
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    sold: bool = field(init=False)

    @property
    def label(self):
        return f"{self.amount} x {self.item}"

    def is_for(self, city):
        return self.address is not None and self.address.city == city


def test_a_node_reads_fields_properties_and_methods():
    seen = []
    run(
        Order,
        Order("tea", 2, Address("Rome")),
        lambda state: seen.append((state.item, state.label, state.is_for("Rome"))),
    )

    assert seen == [("tea", "2 x tea", True)]


@dataclass
class Counts:
    ten: Annotated[int, Channels.base(operator.add)] = 10
    own: Annotated[int, Channels.base(operator.add, lambda: 1)] = 2


class CountsModel(BaseModel):
    ten: Annotated[int, Channels.base(operator.add)] = 10
    own: Annotated[int, Channels.base(operator.add, lambda: 1)] = 2


@pytest.mark.parametrize("schema", [Counts, CountsModel])
def test_a_channel_without_a_default_gets_that_of_its_field(schema):
    assert run(schema, {}, {"ten": 1, "own": 1}) == {"ten": 11, "own": 2}
    assert run(schema, {"ten": 1}, {"ten": 1}) == {"ten": 12, "own": 1}


def test_fields_that_the_input_lacks_get_their_defaults():
    state = run(Order, {"item": "tea"})

    assert state == {"item": "tea", "amount": 1, "address": None, "log": [], "seen": set()}


def test_an_object_of_the_schema_is_an_update_of_all_its_fields():
    state = run(Order, Order("tea", log=["input"]), lambda state: Order(state.item, 7, log=["node"]))

    assert (state.amount, state.log) == (7, ["input", "node"])


def test_an_object_whose_field_cannot_be_read_fails_the_node():
    class Detached(Order):
        item = property(lambda self: 1 / 0, lambda self, value: None)

    for make in (StateGraph.add_node, lambda graph, *node: graph.add_map_node(*node, lambda state: [1])):
        graph = make(StateGraph(Order), "n", lambda item: Detached("tea")).add_edge(START, "n").add_edge("n", END)
        with pytest.raises(NodeExecutionError, match=r"the update of .*'n' cannot be .*: division by zero"):
            graph.compile().invoke({})


def test_a_field_without_a_value_is_an_attribute_error():
    with pytest.raises(NodeExecutionError, match="item"):
        run(Order, {}, lambda state: {"amount": len(state.item)})


def test_a_frozen_dataclass_with_slots():
    @dataclass(frozen=True, slots=True)
    class Frozen:
        value: int = 2

    assert run(Frozen, {}, lambda state: Frozen(state.value + 1)).value == 3


@pytest.mark.parametrize("given", [{"itme": "tea"}, {"item": "tea", "label": "x"}])
def test_an_unknown_field_is_refused(given):
    with pytest.raises(GraphRunnerError, match="Order has no key"):
        run(Order, given)


def test_an_object_of_another_class_is_not_an_update():
    with pytest.raises(GraphRunnerError, match="Address"):
        run(Order, Address("Rome"))
    with pytest.raises(NodeExecutionError, match="Address"):
        run(Order, {"item": "tea"}, Address("Rome"))


def test_a_state_is_read_only_and_pickles():
    state = run(Order, Order("tea", 2))

    with pytest.raises(TypeError, match="read-only"):
        state.amount = 3
    copy = pickle.loads(pickle.dumps(state))
    assert (copy, copy.label) == (state, "2 x tea")


def test_fields_with_types_of_the_application_are_stored(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        run(Order, Order("tea", address=Address("Rome")), {"seen": {"a"}}, saver=saver)

    with FileSystemSaver(tmp_path, types=[Address]) as saver:
        state = saver.get(CONFIG).state
        assert (state["address"], state["seen"]) == (Address("Rome"), {"a"})


# --- a pydantic model: every update is validated, and a bad one is not stored ------------------------------------------


class Inner(BaseModel):
    n: int = 0
    colour: Colour = Colour.RED


class Model(BaseModel):
    name: str
    count: int = 0
    log: Annotated[list[str], operator.add] = ["start"]
    tags: Annotated[list[int], Channels.appender()] = Field(default_factory=list)
    inner: Inner = Inner()
    inners: list[Inner] = []
    short: Annotated[list[int], operator.add, Field(max_length=3)] = []
    even: int = Field(default=0, multiple_of=2)

    def loud(self):
        return self.name.upper()

    def spoil(self):
        self.inner.n = 99

    @property
    def total(self):
        return self.count + len(self.log)


def test_defaults_are_filled_in_at_the_first_input():
    final = run(Model, {"name": "n"})
    assert dict(final) == {
        "name": "n", "count": 0, "log": ["start"], "tags": [], "inner": Inner(), "inners": [], "short": [], "even": 0
    }  # fmt: skip


def test_the_input_may_be_the_model():
    assert run(Model, Model(name="n", count=2), Model.model_construct({"count"}, count=5)).count == 5


@pytest.mark.parametrize("given", [{}, {"count": 1}, {"name": 3}, {"name": "n", "count": "many"}])
def test_a_bad_input_is_an_error_and_is_not_stored(given):
    saver = MemorySaver()
    with pytest.raises(GraphRunnerError, match=r"name|count") as failed:
        compiled(Model, saver=saver).invoke(given, CONFIG)
    assert isinstance(failed.value.__cause__, ValidationError)
    assert saver.get(CONFIG) is None


@pytest.mark.parametrize(
    ("update", "field"),
    [
        ({"count": "many"}, "count"),
        ({"log": [1]}, "log"),
        ({"tags": ["x"]}, "tags"),
        ({"inner": {"n": "x"}}, "n"),
        ({"inners": [3]}, "inners"),
        ({"short": [1, 2, 3, 4]}, "short"),
        ({"even": 3}, "even"),
        ({"unknown": 1}, "unknown"),
        ({"name": RESET}, "name"),
        ({"name": REMOVE}, "name"),
    ],
)
def test_a_bad_update_names_node_and_field_and_is_not_stored(update, field):
    saver = MemorySaver()
    graph = compiled(Model, {"count": 1}, {"count": 2, **update}, saver=saver)

    with pytest.raises(NodeExecutionError, match=field) as failed:
        graph.invoke({"name": "n"}, CONFIG)
    assert failed.value.node_id == "n1"
    assert "'n1'" in str(failed.value)
    assert saver.get(CONFIG).node_id == "n0"


def test_reducers_start_with_the_default():
    assert run(Model, {"name": "n", "log": ["in"]}, {"log": ["a"]}).log == ["start", "in", "a"]
    assert run(Model, {"name": "n"}, {"log": ["a"]}, {"log": RESET}).log == ["start"]
    assert run(Model, {"name": "n"}, {"log": ["a"]}, {"log": None}).log == ["start"]


def test_reset_and_remove_of_fields_with_defaults():
    final = run(Model, {"name": "n", "count": 5, "even": 4}, {"count": RESET, "even": REMOVE})
    assert final.count == 0
    assert "even" not in final
    assert run(Model, {"name": "n", "tags": [1, 2]}, {"tags": [RemoveByHash(1), 3]}).tags == [2, 3]
    saver = MemorySaver()
    graph = compiled(Model, {"even": REMOVE}, saver=saver)
    graph.invoke({"name": "n"}, CONFIG)
    assert graph.invoke({}, CONFIG) == graph.invoke({}, CONFIG)


def test_a_required_field_with_a_reducer():
    class Strict(BaseModel):
        log: Annotated[list[int], operator.add]

    assert run(Strict, {"log": [1]}, {"log": [2]}).log == [1, 2]
    for nothing in (None, RESET, REMOVE):
        with pytest.raises(NodeExecutionError, match="log"):
            run(Strict, {"log": [1]}, {"log": nothing})


def test_field_validators_hold_for_the_merged_value():
    class Sorted(BaseModel):
        items: Annotated[list[int], operator.add] = []

        @field_validator("items")
        @classmethod
        def sort(cls, value):
            return sorted(value)

    assert run(Sorted, {"items": ["3"]}, {"items": ["1"]}, {"items": [2]})["items"] == [1, 2, 3]


class Span(BaseModel):
    low: int
    high: int
    width: int = 0
    notes: Annotated[list[str], operator.add] = []
    inner: Inner = Inner()

    @model_validator(mode="after")
    def check(self):
        if self.low > self.high:
            raise ValueError("low is above high")
        self.width = self.high - self.low
        return self


def test_model_validators_see_the_whole_update_at_once():
    final = run(Span, {"low": 1, "high": 2}, {"low": 5, "high": 9}, {"notes": ["x"]})
    assert (final.low, final.width, final.notes) == (5, 4, ["x"])
    for update, words in (({"low": 5}, "low is above high"), ({"unknown": 5}, "unknown"), ({"low": REMOVE}, "low")):
        with pytest.raises(NodeExecutionError, match=words):
            run(Span, {"low": 1, "high": 2}, update)


@pytest.mark.parametrize("one_piece", [False, True])
def test_extra_fields_are_kept_where_the_model_allows_them(one_piece):
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow", frozen=one_piece)
        __pydantic_extra__: dict[str, int]
        n: int = 0

    assert run(Open, {"x": 1}, {"y": "2"}, {"n": "3", "x": REMOVE}) == {"n": 3, "y": 2}


class Whole(Model, extra="forbid", frozen=True):
    """Validated as a whole, because a frozen model refuses to be assigned to."""


@pytest.mark.parametrize("schema", [Model, Whole])
@pytest.mark.parametrize("inlined_schema", [TypedDict("Inlined", {"draft": str}), {}])
def test_the_nodes_of_an_inlined_graph_may_set_its_keys(schema, inlined_schema):
    inlined = make_chain(
        inlined_schema,
        a=lambda state: {"draft": state.get("draft", "") + "x", "count": 2.0},
        b=lambda state: {"draft": state["draft"] + "y"},
    )
    graph = make_chain(schema, inlined=inlined).compile()
    final = graph.invoke({"name": "n"})
    assert final["draft"] == "xy"
    assert repr(final["count"]) == "2"

    outer = make_chain({}, nested=graph).compile()
    assert outer.invoke({"name": "n", "draft": "w"})["draft"] == "wxy"


def test_a_node_cannot_change_the_model_it_was_given():
    def bad(state):
        state.inner.n = 5
        state.inners[0].n = 5
        state.spoil()
        with pytest.raises(TypeError, match="read-only"):
            state.count = 5
        with pytest.raises(TypeError, match="read-only"):
            state.log.append("x")
        with pytest.raises(TypeError, match="read-only"):
            state["count"] += 1

    final = compiled(Model, bad).invoke({"name": "n", "inners": [Inner()]}, CONFIG)
    assert (final.inner, final.inners, final.count) == (Inner(), [Inner()], 0)


def test_a_state_reads_like_the_model():
    seen = []
    final = run(Model, {"name": "n"}, lambda s: seen.append((s.name, s["count"], s.loud(), s.total)))
    assert seen == [("n", 0, "N", 1)]
    with pytest.raises(AttributeError):
        final.nothing  # noqa: B018
    with pytest.raises(AttributeError):
        final._nothing  # noqa: B018
    assert type(final).__name__ == "ModelState"
    twin = pickle.loads(pickle.dumps(final))
    assert twin == final
    assert twin.loud() == "N"


def test_fields_may_have_the_names_of_a_mappings_methods():
    class Awkward(BaseModel):
        items: list[int] = [1]
        keys: list[int] = [2]
        values: list[int] = [3]
        get: int = 4
        data: dict[str, int] = {"x": 6}

    graph = compiled(Awkward, lambda s: {"items": [*s.items, 0], "data": {"x": s.get}}, saver=MemorySaver())
    expected = {"items": [1, 0], "keys": [2], "values": [3], "get": 4, "data": {"x": 4}}

    assert graph.invoke({}, CONFIG) == graph.get_state(CONFIG).values == expected


def test_a_field_that_the_model_got_since_is_filled_in():
    class Old(BaseModel):
        name: str

    saver = MemorySaver()
    compiled(Old, saver=saver).invoke({"name": "n"}, CONFIG)
    assert compiled(Model, saver=saver).invoke({"count": 1}, CONFIG).even == 0
