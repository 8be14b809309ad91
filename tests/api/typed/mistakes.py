"""Mistakes that type checkers find: each line that ends in a comment is an error for those it names."""
# ruff: noqa: B018

from typing import TypedDict

from graphkit import CompiledGraph, RunnableConfig, StateGraph
from savers import MemorySaver, PostgresSaver, SqliteSaver


class Order(TypedDict):
    item: str


class Other(TypedDict):
    name: int


def of_other(state: Other) -> dict[str, object]:
    return {}


def of_number(state: Order) -> int:
    return 2


def wrong_key(state: Order) -> str:
    return state["itme"]  # mypy, pyright


def build(graph: StateGraph[Order]) -> None:
    graph.add_node("x", 42)  # mypy, pyright
    graph.add_node("x", of_other)  # mypy, pyright
    graph.add_node("x", of_number)  # mypy, pyright
    graph.add_node("x", lambda state: 42)  # mypy, pyright
    graph.add_node("x", lambda state: {"item": state["itme"]})  # pyright
    graph.add_conditional_edges("x", lambda state: state["itme"])  # pyright
    graph.add_conditional_edges("x", of_other)  # mypy, pyright
    graph.compile(checkpoint_savr=None)  # mypy, pyright
    graph.compile(max_iterations="many")  # mypy, pyright
    graph.compile(durability="sometimes")  # mypy, pyright
    graph.invoke({})  # mypy, pyright
    graph.compile(MemorySaver())  # mypy, pyright
    graph.compile(checkpointer=MemorySaver)  # mypy, pyright


def run(app: CompiledGraph[Order]) -> None:
    app.invoke(42)  # mypy, pyright
    app.invoke({"item": "tea"})["itme"]  # mypy, pyright
    app.invoke({}, interupt_before=["x"])  # mypy, pyright
    app.stream({}, stream_mode="value")  # mypy, pyright
    app.run({})  # mypy, pyright
    app.get_state("thread").state["itme"]  # mypy, pyright
    app.invoke_final({}).stat  # mypy, pyright
    app.invoke({}, RunnableConfig(thread="t"))  # mypy, pyright
    app.with_config({})  # mypy, pyright


def open_savers() -> None:
    SqliteSaver("runs.db", fsync="sometimes")  # mypy, pyright
    PostgresSaver(dsn="host=h")  # mypy, pyright
