"""A pydantic model as the schema: every update is validated, and a bad one is not stored."""

import operator
import pickle
from enum import Enum
from typing import Annotated, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from graphkit import REMOVE, RESET, Channels, RemoveByHash
from graphkit.errors import GraphRunnerError, NodeExecutionError
from savers import MemorySaver
from tests.support.graphs import CONFIG, make_chain


class Colour(Enum):
    RED = 1


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


def compiled(schema, *updates, **options):
    nodes = {
        f"n{number}": update if callable(update) else lambda state, update=update: update
        for number, update in enumerate(updates)
    }
    return make_chain(schema, **nodes).compile(**options)


def run(schema, given, *updates):
    return compiled(schema, *updates).invoke(given, CONFIG)


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
        compiled(Model, checkpoint_saver=saver).invoke(given, CONFIG)
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
    graph = compiled(Model, {"count": 1}, {"count": 2, **update}, checkpoint_saver=saver)

    with pytest.raises(NodeExecutionError, match=field) as failed:
        graph.invoke({"name": "n"}, CONFIG)
    assert failed.value.node_id == "n1"
    assert "'n1'" in str(failed.value)
    assert saver.get(CONFIG).node_id == "n0"


def test_reducers_start_with_the_default():
    assert run(Model, {"name": "n", "log": ["in"]}, {"log": ["a"]}).log == ["start", "in", "a"]
    assert run(Model, {"name": "n"}, {"log": ["a"]}, {"log": RESET}).log == ["start"]
    assert run(Model, {"name": "n"}, {"log": ["a"]}, {"log": None}).log == ["start"]


def test_a_channel_without_a_default_gets_that_of_its_field():
    class Counts(BaseModel):
        one: Annotated[int, Channels.base(operator.add)] = 5

    assert make_chain(Counts, node=lambda state: {"one": 2}).compile().invoke({"one": 1}) == {"one": 8}


def test_reset_and_remove_of_fields_with_defaults():
    final = run(Model, {"name": "n", "count": 5, "even": 4}, {"count": RESET, "even": REMOVE})
    assert final.count == 0
    assert "even" not in final
    assert run(Model, {"name": "n", "tags": [1, 2]}, {"tags": [RemoveByHash(1), 3]}).tags == [2, 3]
    saver = MemorySaver()
    graph = compiled(Model, {"even": REMOVE}, checkpoint_saver=saver)
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

    graph = compiled(Awkward, lambda s: {"items": [*s.items, 0], "data": {"x": s.get}}, checkpoint_saver=MemorySaver())
    expected = {"items": [1, 0], "keys": [2], "values": [3], "get": 4, "data": {"x": 4}}

    assert graph.invoke({}, CONFIG) == graph.get_state(CONFIG).values == expected


def test_a_field_that_the_model_got_since_is_filled_in():
    class Old(BaseModel):
        name: str

    saver = MemorySaver()
    compiled(Old, checkpoint_saver=saver).invoke({"name": "n"}, CONFIG)
    assert compiled(Model, checkpoint_saver=saver).invoke({"count": 1}, CONFIG).even == 0
