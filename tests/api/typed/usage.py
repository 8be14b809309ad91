"""What a type checker infers for users of graphkit. Nothing here runs: test_types.py checks it."""
# ruff: noqa: F403, F405, T201 - all names are exported

import operator
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, assert_type

from pydantic import BaseModel

from graphkit import *  # pyright: ignore[reportWildcardImportFromLibrary]
from graphkit.recovery import recover
from savers import MemorySaver, PostgresSaver, SqliteSaver


class Order(TypedDict):
    item: str
    log: Annotated[list[str], operator.add]


class Model(BaseModel):
    number: int = 0


@dataclass
class Data:
    number: int = 0


class Own(AgentState):
    SCHEMA = {"a": Channels.appender(list)}


# Nodes and conditions of every kind


def node(state: Order) -> dict[str, Any]:
    return {"log": [state["item"]]}


def node_with_config(state: Order, config: RunnableConfig) -> Command | None:
    return Command(END) if config.thread_id else None


async def async_node(state: Order) -> dict[str, object]:
    return {"item": state["item"]}


async def async_node_with_config(state: Order, config: RunnableConfig) -> Order:
    return {"item": config.thread, "log": state["log"]}


def generator(state: Order) -> Iterator[str]:
    yield state["item"]


async def async_generator(state: Order) -> AsyncIterator[str]:
    yield state["item"]


def condition(state: Order) -> str:
    return state["item"]


async def async_condition(state: Order, config: RunnableConfig) -> bool:
    return state["item"] == config.thread


def of_model(state: Model) -> Model:
    return Model(number=state.number)


def of_data(state: Data) -> Data:
    return Data(number=state.number)


def build() -> None:
    graph = StateGraph(Order)
    assert_type(graph, StateGraph[Order])
    graph.add_node("a", node).add_node("b", node_with_config)
    graph.add_node("c", async_node)
    graph.add_node("d", async_node_with_config)
    graph.add_node("e", generator)
    graph.add_node("f", async_generator)
    graph.add_node(node)
    graph.add_sequence([node, ("again", async_node)])
    graph.add_node("g", lambda state: {"log": [state["item"]]})
    graph.add_node("h", lambda state, config: {"log": [state["item"], config.thread]})
    graph.add_conditional_edges("a", condition, {"x": END})
    graph.add_conditional_edges("b", async_condition, {True: "a"})
    graph.add_conditional_edges("c", lambda state: state["item"])

    app = graph.compile(checkpointer=MemorySaver(), interrupt_before=["a"])
    assert_type(app, CompiledGraph[Order])
    graph.add_node("nested", app)
    graph.add_node("inlined", StateGraph(Order))


def invoke_graphs_of_each_kind_of_state() -> None:
    of_models = StateGraph(Model).add_node("m", of_model).compile()
    assert_type(of_models.invoke(Model()), Model)
    of_datas = StateGraph(Data).add_node("d", of_data).compile()
    assert_type(of_datas.invoke(Data()), Data)
    own = StateGraph(Own).compile()
    assert_type(own.invoke({}), Own)
    own_of_channels = StateGraph(Own.SCHEMA, Own).compile()
    assert_type(own_of_channels.invoke({}), Own)
    of_channels = StateGraph({"a": Channels.appender(list)}).compile()
    assert_type(of_channels.invoke({}), AgentState)
    of_messages = MessagesStateGraph().compile()
    assert_type(of_messages.invoke({}), MessagesState)


async def run(app: CompiledGraph[Order]) -> None:
    assert_type(app.invoke({"item": "tea"}), Order)
    order = app.invoke({"item": "tea", "log": []}, "thread")
    assert_type(order["log"], list[str])
    assert_type(await app.ainvoke(None, RunnableConfig("thread")), Order)
    config = {"configurable": {"thread_id": "thread"}}
    assert_type(app.invoke(GraphResume("yes"), config), Order)
    assert_type(app.resume("thread"), Order)
    assert_type(recover(app, "thread"), Order)

    final = app.invoke_final({}, interrupt_after=["a"])
    assert_type(final, NodeOutput[Order])
    print(final.is_interrupted, final.payload, final.interrupts[0].node_id)

    assert_type(app.get_state("thread"), StateSnapshot[Order])
    for snapshot in app.get_state_history("thread"):
        assert_type(snapshot.state, Order)
    for output in app.stream({}, stream_mode="updates"):
        assert_type(output, NodeOutput[Order])
    for mode, item in app.stream({}, stream_mode=["updates", "custom"]):
        assert_type(mode, StreamMode)
        print(item)
    async with aclosing(app.astream({})) as outputs:
        async for output in outputs:
            assert_type(output.state, Order)
    app.stream({}).close()


def read() -> None:
    assert_type(SqliteSaver("runs.db", fsync=0.5).get(), Checkpoint | None)
    assert_type(PostgresSaver("host=h", lease=5.0).versions_by_thread_id("t")[0], int)


def errors_are_among_the_names(error: GraphKitError) -> None:
    assert_type(error.add_note("x"), None)
