"""One step of a two-node loop over a tiny state, with each saver, beside LangGraph."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import END, START, BaseCheckpointSaver, StateGraph
from savers import FileSystemSaver, MemorySaver

STEPS = 1000
SHORT = 200
"""Steps of the rows that are compared closely: more rounds, because the disk's latency drifts within seconds."""


class State(TypedDict):
    """What the loop counts."""

    n: int


def count(state: Any) -> dict[str, int]:
    """The node: one cheap update."""
    return {"n": state["n"] + 1}


def ours(make_saver: Callable[[], BaseCheckpointSaver | None], steps: int = STEPS) -> Callable[[], float]:
    """Time per step of graphkit with a saver."""

    def again(state: Any) -> str:
        return END if state["n"] >= steps else "a"

    def measure() -> float:
        saver = make_saver()
        graph = StateGraph(State).add_node("a", count).add_node("b", count)
        graph.add_edge(START, "a").add_edge("a", "b").add_conditional_edges("b", again)
        app = graph.compile(checkpoint_saver=saver)
        app.invoke({"n": steps - 2}, {"configurable": {"thread_id": "first"}})  # what a store does once
        return timed(lambda: app.invoke({"n": 0}, {"configurable": {"thread_id": "bench"}})) / steps

    return measure


def langgraph(make_saver: Callable[[], Any], **options: Any) -> Callable[[], float]:
    """Time per step of LangGraph with a checkpointer."""

    def measure() -> float:
        from benchmarks.peers.workloads import run_steps

        return run_steps(make_saver(), STEPS, **options)

    return measure


def floor(folder: Callable[[], Path], steps: int = STEPS) -> float:
    """A raw append and fdatasync of 200 bytes."""
    descriptor = os.open(folder() / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append() -> None:
        for _ in range(steps):
            os.write(descriptor, b"x" * 200)
            os.fdatasync(descriptor)

    try:
        return timed(append) / steps
    finally:
        os.close(descriptor)


def main(folder: Callable[[], Path]) -> None:
    """Print the table."""

    def in_memory() -> Any:
        from langgraph.checkpoint.memory import InMemorySaver

        return InMemorySaver()

    def sqlite(synchronous: str) -> Callable[[], Any]:
        def make() -> Any:
            from langgraph.checkpoint.sqlite import SqliteSaver

            connection = sqlite3.connect(folder() / "peer.db", check_same_thread=False)
            saver = SqliteSaver(connection)
            saver.setup()
            connection.execute(f"PRAGMA synchronous={synchronous}")
            return saver

        return make

    raw = "raw append + fdatasync"
    rows = [
        Row(raw, lambda: floor(folder)),
        Row("graphkit, no saver", ours(lambda: None)),
        Row("graphkit, MemorySaver", ours(MemorySaver)),
        Row("graphkit, FileSystemSaver, never", ours(lambda: FileSystemSaver(folder(), fsync="never"))),
        Row("graphkit, FileSystemSaver, always", ours(lambda: FileSystemSaver(folder()))),
        Row("LangGraph, no checkpointer", langgraph(lambda: None)),
        Row("LangGraph, InMemorySaver, sync", langgraph(in_memory, durability="sync")),
        Row("LangGraph, SqliteSaver OFF, sync", langgraph(sqlite("OFF"), durability="sync")),
        Row("LangGraph, SqliteSaver FULL, sync", langgraph(sqlite("FULL"), durability="sync")),
    ]
    run(f"One step ({STEPS} steps of a two-node loop)", rows, rounds=5, base=raw)
    rows = [
        Row(raw, lambda: floor(folder, SHORT)),
        Row("graphkit, FileSystemSaver, always", ours(lambda: FileSystemSaver(folder()), SHORT)),
        Row("graphkit, FileSystemSaver, never", ours(lambda: FileSystemSaver(folder(), fsync="never"), SHORT)),
    ]
    run(f"One step beside the disk's own ({SHORT} steps in turn)", rows, rounds=15, base=raw)
