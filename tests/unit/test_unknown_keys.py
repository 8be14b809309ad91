"""A key that a TypedDict or a pydantic model lacks is refused wherever it comes from, and the nearest is named."""

from typing import Annotated, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict

from graphkit import (
    END,
    REMOVE,
    START,
    AgentState,
    Channels,
    Command,
    GraphResume,
    RunnableConfig,
    StateGraph,
    operations,
)
from graphkit.errors import GraphRunnerError, GraphStateError, NodeExecutionError
from savers import MemorySaver
from tests.support.graphs import CONFIG, make_chain

REFUSED = r"Order has no key 'itme'; did you mean 'item'\?"
TYPO = {"itme": "lamp"}


class TypedOrder(TypedDict, total=False):
    item: str
    log: Annotated[list, lambda old, new: [*old, *new]]


class ModelOrder(BaseModel):
    item: str = ""
    log: Annotated[list, lambda old, new: [*old, *new]] = []


class CheckedOrder(BaseModel):
    """A model that is validated as a whole."""

    model_config = ConfigDict(frozen=True)
    item: str = ""


for cls in (TypedOrder, ModelOrder, CheckedOrder):
    cls.__name__ = "Order"


class OpenState(AgentState):
    SCHEMA = {"item": Channels.base(str)}


class OpenOrder(BaseModel):
    model_config = ConfigDict(extra="allow")
    item: str = ""


closed = pytest.mark.parametrize("schema", [TypedOrder, ModelOrder, CheckedOrder])


def graph_of(schema, node=lambda state: {}, saver=None, **options):
    return make_chain(schema, a=node).compile(checkpoint_saver=saver, **options)


@pytest.fixture
def saver():
    return MemorySaver()


@closed
def test_in_an_input(schema, saver):
    app = graph_of(schema, saver=saver)
    with pytest.raises(GraphRunnerError, match=REFUSED):
        app.invoke(TYPO, CONFIG)
    assert saver.list(CONFIG) == ()
    app.invoke({"item": "lamp"}, CONFIG)
    with pytest.raises(GraphRunnerError, match=REFUSED):
        app.invoke(TYPO, CONFIG)
    assert app.get_state(CONFIG).state["item"] == "lamp"


@closed
def test_in_an_update_of_a_node_or_an_edge(schema):
    with pytest.raises(NodeExecutionError, match=f"the update of 'a' cannot be merged: {REFUSED}"):
        graph_of(schema, lambda state: TYPO).invoke({})
    graph = StateGraph(schema).add_node("a", lambda state: {}).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: Command(goto=END, update=TYPO))
    with pytest.raises(NodeExecutionError, match=REFUSED):
        graph.compile().invoke({})


@closed
def test_in_update_state(schema, saver):
    app = graph_of(schema, saver=saver)
    app.invoke({"item": "lamp"}, CONFIG)
    count = len(saver.list(CONFIG))
    with pytest.raises(NodeExecutionError, match=f"the values of update_state cannot be merged: {REFUSED}"):
        app.update_state(CONFIG, TYPO)
    assert len(saver.list(CONFIG)) == count


@closed
def test_in_a_resume(schema, saver):
    app = graph_of(schema, saver=saver, interrupt_before=["a"])
    app.invoke({"item": "lamp"}, CONFIG)
    for resume in (GraphResume(TYPO), GraphResume(update=TYPO)):
        with pytest.raises(GraphRunnerError, match=REFUSED):
            app.invoke(resume, CONFIG)
    assert app.invoke(GraphResume({"item": "cup"}), CONFIG)["item"] == "cup"


@closed
def test_what_was_stored_without_the_graph_is_refused_by_the_resume_and_dropped_by_a_rollback(schema, saver):
    app = graph_of(schema, saver=saver, interrupt_before=["a"])
    app.invoke({"item": "lamp"}, CONFIG)
    operations.update(saver, "t", TYPO)
    for _ in range(2):
        with pytest.raises(GraphRunnerError, match=f"{REFUSED}; it was stored for this resume, and a rollback"):
            app.invoke(None, CONFIG)
    operations.rollback(saver, RunnableConfig("t", saver.get(CONFIG).id))

    assert app.invoke(None, CONFIG)["item"] == "lamp"


def test_without_a_similar_key_all_are_named():
    with pytest.raises(GraphRunnerError, match="Order has no key 'zzz'; its keys: 'item', 'log'"):
        graph_of(TypedOrder).invoke({"zzz": 1})


def test_a_stored_key_that_the_schema_has_no_more_can_be_removed(saver):
    graph_of({}, saver=saver).invoke({"item": "lamp", "old": 1}, CONFIG)
    app = graph_of(TypedOrder, saver=saver)
    app.update_state(CONFIG, {"old": REMOVE})
    assert dict(app.get_state(CONFIG).state) == {"item": "lamp"}
    with pytest.raises(NodeExecutionError, match="no key 'old'"):
        app.update_state(CONFIG, {"old": REMOVE})


@pytest.mark.parametrize("schema", [{}, {"item": Channels.base(str)}, OpenState, OpenOrder])
def test_an_open_schema_stores_what_it_does_not_know(schema, saver):
    app = graph_of(schema, lambda state: {"more": 1}, saver)
    assert app.invoke(TYPO, CONFIG)["itme"] == "lamp"
    app.update_state(CONFIG, {"most": 2})
    state = app.get_state(CONFIG).state
    assert (state["more"], state["most"]) == (1, 2)


class Private(TypedDict, total=False):
    item: str
    secret: str


@closed
def test_a_nested_graph_keeps_its_own_keys(schema, saver):
    nested = graph_of(Private, lambda state: {"item": "cup", "secret": "x"})
    final = graph_of(schema, nested, saver).invoke({"item": "lamp"}, CONFIG)
    assert final["item"] == "cup"
    assert "secret" not in final
    assert saver.get(RunnableConfig("t", checkpoint_ns="a")).state["secret"] == "x"


def test_the_nodes_of_an_inlined_graph_may_set_its_keys():
    inlined = make_chain(Private, n=lambda state: {"secret": "x"})
    outer = StateGraph(Private).add_subgraph("in", inlined).add_edge(START, "in").add_edge("in", END)
    assert graph_of(TypedOrder, outer).invoke({"item": "lamp"})["secret"] == "x"
    with pytest.raises(GraphStateError, match="no entry point"):
        outer.add_node("broken", StateGraph({}))  # an open schema, which was not added
    with pytest.raises(GraphRunnerError, match="no key 'sekret'; did you mean 'secret'"):
        graph_of(TypedOrder, outer).invoke({"sekret": "lamp"})
    anything = make_chain({}, n=lambda state: {"free": 1})
    assert graph_of(TypedOrder, anything).invoke({"item": "lamp"})["free"] == 1
