"""What checkpointing adds to a graph whose nodes take 5 ms, with each saver, beside LangGraph.

The figure is the time of a run outside its nodes, less the same without a saver, as a share of 5 ms per step. Nodes
measure themselves, so that the timer of the system and other processes falsify it little. A node waits, as for a
network: what a saver writes in the background meanwhile is not counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import END, START, BaseCheckpointSaver, StateGraph
from savers import FileSystemSaver, MemorySaver

STEPS = 100
NODE = 0.005
"""Seconds that a node takes."""


class State(TypedDict):
    """What the loop counts."""

    n: int


class Work:
    """The node: 5 ms of waiting, one cheap update; adds up how long it took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, state: Any) -> dict[str, int]:
        started = perf_counter()
        sleep(NODE)
        self.seconds += perf_counter() - started
        return {"n": state["n"] + 1}


def again(state: Any) -> str:
    """The edge: round and round."""
    return END if state["n"] >= STEPS else "a"


CONFIG = {"configurable": {"thread_id": "bench"}, "recursion_limit": STEPS + 10}


def share_beside_nodes(compiled: Callable[[Work], Any], **options: Any) -> float:
    """The time that a run takes outside its nodes, as a share of what the nodes should take."""
    work = Work()
    app = compiled(work)
    app.invoke({"n": STEPS - 2}, {"configurable": {"thread_id": "first"}}, **options)  # what a store does once
    work.seconds = 0.0
    whole = timed(lambda: app.invoke({"n": 0}, CONFIG, **options))
    return (whole - work.seconds) / (STEPS * NODE)


def ours(make_saver: Callable[[], BaseCheckpointSaver], **options: Any) -> Callable[[], float]:
    """What a saver adds to graphkit."""

    def compiled(work: Work, **chosen: Any) -> Any:
        graph = StateGraph(State).add_node("a", work).add_node("b", work)
        graph.add_edge(START, "a").add_edge("a", "b").add_conditional_edges("b", again)
        return graph.compile(**chosen)

    def measure() -> float:
        without = share_beside_nodes(compiled)
        return share_beside_nodes(lambda work: compiled(work, checkpoint_saver=make_saver(), **options)) - without

    return measure


def langgraph(make_saver: Callable[[], Any], durability: str) -> Callable[[], float]:
    """What a checkpointer adds to LangGraph."""

    def compiled(work: Work, checkpointer: Any = None) -> Any:
        from langgraph.graph import StateGraph as Peer

        graph = Peer(State)
        graph.add_node("a", work)
        graph.add_node("b", work)
        graph.add_edge("__start__", "a")
        graph.add_edge("a", "b")
        graph.add_conditional_edges("b", lambda state: "__end__" if state["n"] >= STEPS else "a", ["a", "__end__"])
        return graph.compile(checkpointer=checkpointer)

    def measure() -> float:
        without = share_beside_nodes(compiled)
        return share_beside_nodes(lambda work: compiled(work, make_saver()), durability=durability) - without

    return measure


def main(folder: Callable[[], Path]) -> None:
    """Print the table."""

    def sqlite() -> Any:
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(folder() / "peer.db", check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute("PRAGMA synchronous=FULL")
        return saver

    def always() -> BaseCheckpointSaver:
        return FileSystemSaver(folder())

    rows = [
        Row("graphkit, MemorySaver", ours(MemorySaver)),
        Row("graphkit, FileSystemSaver, never", ours(lambda: FileSystemSaver(folder(), fsync="never"))),
        Row("graphkit, FileSystemSaver, every second", ours(lambda: FileSystemSaver(folder(), fsync=1.0))),
        Row("graphkit, FileSystemSaver, always, in the background", ours(always, durability="async")),
        Row("graphkit, FileSystemSaver, always", ours(always)),
        Row("LangGraph, SqliteSaver FULL, async", langgraph(sqlite, "async")),
        Row("LangGraph, SqliteSaver FULL, sync", langgraph(sqlite, "sync")),
    ]
    title = f"What checkpointing adds to steps of 5 ms ({STEPS} steps of a two-node loop)"
    run(title, rows, rounds=5, unit="% of the nodes' time", scale=100)
