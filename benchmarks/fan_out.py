"""A step of N branches that do next to nothing, joined and merged, with each saver, beside LangGraph.

The figure is the whole step: starting the branches, recording each as it finishes, merging, the checkpoint of the fork.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import END, START, BaseCheckpointSaver, StateGraph
from savers import FileSystemSaver, MemorySaver

WIDTHS = (1, 10, 100)
ROUNDS = 20
"""How often one run goes through the fork."""


class State(TypedDict):
    """What the branches add to, and how often they did."""

    total: Annotated[int, operator.add]
    turns: int


def branch(state: Any) -> dict[str, int]:
    """A branch: one cheap update."""
    return {"total": 1}


def source(state: Any) -> None:
    """Where the branches leave from."""


def join(state: Any) -> dict[str, int]:
    """Where they meet."""
    return {"turns": state["turns"] + 1}


def again(state: Any) -> str:
    """The edge: round and round."""
    return END if state["turns"] >= ROUNDS else "source"


def wired(graph: Any, width: int, start: str) -> Any:
    """Build the same shape for both: source, N branches, join, and back."""
    graph.add_node("source", source)
    graph.add_node("join", join)
    graph.add_edge(start, "source")
    for n in range(width):
        graph.add_node(f"b{n}", branch)
        graph.add_edge("source", f"b{n}")
        graph.add_edge(f"b{n}", "join")
    return graph


def ours(width: int, make_saver: Callable[[], BaseCheckpointSaver | None]) -> Callable[[], float]:
    """Time per turn of graphkit with a saver: source, fork and join."""

    def measure() -> float:
        graph = wired(StateGraph(State), width, START).add_conditional_edges("join", again)
        app = graph.compile(checkpoint_saver=make_saver(), max_iterations=ROUNDS * (width + 2))
        app.invoke({"turns": ROUNDS - 1}, {"configurable": {"thread_id": "first"}})  # what a store does once
        return timed(lambda: app.invoke({"turns": 0}, {"configurable": {"thread_id": "bench"}})) / ROUNDS

    return measure


def langgraph(width: int, make_saver: Callable[[], Any], **options: Any) -> Callable[[], float]:
    """Time per turn of LangGraph with a checkpointer."""

    def measure() -> float:
        from langgraph.graph import StateGraph as Peer

        graph = wired(Peer(State), width, "__start__")
        graph.add_conditional_edges(
            "join", lambda state: "__end__" if state["turns"] >= ROUNDS else "source", ["source", "__end__"]
        )
        app = graph.compile(checkpointer=make_saver())
        app.invoke({"total": 0, "turns": ROUNDS - 1}, {"configurable": {"thread_id": "first"}}, **options)
        config = {"configurable": {"thread_id": "bench"}, "recursion_limit": 4 * ROUNDS}
        return timed(lambda: app.invoke({"total": 0, "turns": 0}, config, **options)) / ROUNDS

    return measure


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""

    def in_memory() -> Any:
        from langgraph.checkpoint.memory import InMemorySaver

        return InMemorySaver()

    for width in WIDTHS:
        first = "graphkit, no saver"
        rows = [
            Row(first, ours(width, lambda: None)),
            Row("graphkit, MemorySaver", ours(width, MemorySaver)),
            Row("graphkit, FileSystemSaver, never", ours(width, lambda: FileSystemSaver(folder(), fsync="never"))),
            Row("graphkit, FileSystemSaver, always", ours(width, lambda: FileSystemSaver(folder()))),
            Row("LangGraph, no checkpointer", langgraph(width, lambda: None)),
            Row("LangGraph, InMemorySaver, sync", langgraph(width, in_memory, durability="sync")),
        ]
        run(f"Source, {width} branch{'es' if width > 1 else ''}, join ({ROUNDS} turns)", rows, rounds=5, base=first)
