"""A map of many items, at most 16 at once, with its results in the state, beside LangGraph's Send."""

from __future__ import annotations

import operator
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import BaseCheckpointSaver, StateGraph
from savers import FileSystemSaver

ITEMS = 10_000
AT_ONCE = 16


class State(TypedDict):
    """The items, and what became of them."""

    items: list[int]
    results: Annotated[list[int], operator.add]


def work(item: Any) -> dict[str, Any]:
    """Do next to nothing with an item."""
    return {"results": [item]}


def ours(make_saver: Callable[[], BaseCheckpointSaver | None]) -> Callable[[], Any]:
    """Return what runs the map of graphkit once."""
    graph = StateGraph(State).add_map_node("work", work, "items", max_concurrency=AT_ONCE)
    app = graph.set_entry_point("work").set_finish_point("work").compile(checkpointer=make_saver())
    return lambda: app.invoke({"items": list(range(ITEMS))}, "thread")


def langgraph(make_saver: Callable[[], Any]) -> Callable[[], Any]:
    """Return what runs the same with LangGraph once."""
    from langgraph.graph import StateGraph as Peer
    from langgraph.types import Send

    graph: Any = Peer(State)
    graph.add_node("source", lambda _: {})
    graph.add_node("work", work)
    graph.add_edge("__start__", "source")
    graph.add_conditional_edges("source", lambda state: [Send("work", item) for item in state["items"]], ["work"])
    graph.add_edge("work", "__end__")
    app = graph.compile(checkpointer=make_saver())
    config = {"configurable": {"thread_id": "thread"}, "max_concurrency": AT_ONCE}
    return lambda: app.invoke({"items": list(range(ITEMS)), "results": []}, config)


def time_per_item(make: Callable[[], Callable[[], Any]]) -> float:
    """Return the seconds of one item."""
    return timed(make()) / ITEMS


def peak_memory(make: Callable[[], Callable[[], Any]]) -> float:
    """Return the most bytes that Python's allocator held for the run."""
    once = make()
    tracemalloc.start()
    try:
        once()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""

    def sqlite_saver() -> Any:
        from langgraph.checkpoint.sqlite import SqliteSaver

        return SqliteSaver(sqlite3.connect(folder() / "checkpoints.db", check_same_thread=False))

    ways: dict[str, Callable[[], Callable[[], Any]]] = {
        "graphkit, no saver": lambda: ours(lambda: None),
        "graphkit, FileSystemSaver, never": lambda: ours(lambda: FileSystemSaver(folder(), fsync="never")),
        "LangGraph, no checkpointer": lambda: langgraph(lambda: None),
        "LangGraph, SqliteSaver": lambda: langgraph(sqlite_saver),
    }
    first = "graphkit, no saver"
    times = [Row(name, lambda make=make: time_per_item(make)) for name, make in ways.items()]
    run(f"A map of {ITEMS} items, {AT_ONCE} at once, per item", times, rounds=3, base=first)
    memory = [Row(name, lambda make=make: peak_memory(make)) for name, make in ways.items()]
    run("... most memory", memory, rounds=1, unit="MB", scale=1e-6, base=first)
