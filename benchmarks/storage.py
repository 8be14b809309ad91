"""3000 puts of a list that grows by 200 bytes, as a graph makes them and by hand; and reading the latest."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import END, START, Checkpoint, StateGraph
from savers import FileSystemSaver

PUTS = 3000
CONFIG: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


class State(TypedDict):
    """A conversation."""

    messages: Annotated[list[str], add]


def message(number: int) -> str:
    """200 bytes that no compressor makes much of."""
    return os.urandom(97).hex() + f"{number:06d}"


def by_hand(folder: Path, fsync: Any) -> float:
    """Seconds for 3000 puts of checkpoints made by hand, each with a list of its own."""
    saver = FileSystemSaver(folder, fsync=fsync)
    messages: list[str] = []

    def put_all() -> None:
        for number in range(PUTS):
            messages.append(message(number))
            saver.put(CONFIG, Checkpoint(node_id="chat", next_node_id="chat", state={"messages": list(messages)}))

    return timed(put_all)


def by_graph(folder: Path, fsync: Any) -> float:
    """Seconds for 3000 steps of a graph with a reducer."""
    graph = StateGraph(State).add_node("chat", lambda state: {"messages": [message(len(state["messages"]))]})
    graph.add_edge(START, "chat")
    graph.add_conditional_edges("chat", lambda state: END if len(state["messages"]) >= PUTS else "chat")
    app = graph.compile(checkpoint_saver=FileSystemSaver(folder, fsync=fsync), max_iterations=PUTS + 1)
    return timed(lambda: app.invoke({"messages": []}, CONFIG))


def by_langgraph(folder: Path) -> float:
    """Seconds for 3000 puts through SqliteSaver, synchronous FULL."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(folder / "peer.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    saver = SqliteSaver(connection)
    messages: list[str] = []

    def put_all() -> None:
        config = CONFIG
        for number in range(PUTS):
            messages.append(message(number))
            checkpoint = {**empty_checkpoint(), "channel_values": {"messages": messages}}
            checkpoint["channel_versions"] = {"messages": number + 1}
            config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"messages": number + 1})

    seconds = timed(put_all)
    connection.close()
    return seconds


def floor(folder: Path) -> float:
    """Seconds for 3000 raw appends of 300 bytes, each with fdatasync."""
    descriptor = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def append() -> None:
        for _ in range(PUTS):
            os.write(descriptor, b"x" * 300)
            os.fdatasync(descriptor)

    try:
        return timed(append)
    finally:
        os.close(descriptor)


def bytes_of(folder: Path) -> int:
    """What the files of a folder hold."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


COLD = """
import sys, time
from graphkit import RunnableConfig
from savers import FileSystemSaver

saver, config = FileSystemSaver(sys.argv[1]), RunnableConfig("bench")
saver.get(RunnableConfig("unknown"))  # imports and opens what every first call does

def timed(call):
    started = time.perf_counter()
    return call(), time.perf_counter() - started

cold_length, cold = timed(lambda: len(saver.get(config).state["messages"]))
warm_length, warm = timed(lambda: len(saver.get(config).state["messages"]))
infos, history = timed(lambda: saver.history(config))
assert cold_length == warm_length == len(infos) - 1
print(cold, warm, history)
"""


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    sizes: dict[str, int] = {}

    def sized(name: str, measure: Callable[[Path], float]) -> Row:
        def once() -> float:
            place = folder()
            seconds = measure(place)
            sizes[name] = bytes_of(place)
            return seconds

        return Row(name, once)

    rows = [
        sized("raw appends + fdatasync", floor),
        sized("graphkit, by a graph, always", lambda place: by_graph(place, "always")),
        sized("graphkit, by hand, always", lambda place: by_hand(place, "always")),
        sized("graphkit, by a graph, never", lambda place: by_graph(place, "never")),
        sized("graphkit, by hand, never", lambda place: by_hand(place, "never")),
        sized("LangGraph, SqliteSaver FULL", by_langgraph),
    ]
    title = f"{PUTS} puts of a list growing by 200 bytes"
    run(title, rows, rounds=3, unit="s", scale=1, base="raw appends + fdatasync")
    for name, size in sizes.items():
        print(f"- {name}: {size / 1e6:.3f} MB")

    place = folder()
    by_graph(place, "never")
    reads: list[list[float]] = []

    def read(column: int) -> float:
        if column == 0:
            result = subprocess.run(
                [sys.executable, "-c", COLD, str(place)], capture_output=True, text=True, check=True
            )
            reads.append([float(figure) for figure in result.stdout.split()])
        return reads[-1][column]

    names = ["latest, first in its process (cold)", "latest again (warm)", "history: metadata of all, first scan"]
    rows = [Row(name, lambda column=column: read(column)) for column, name in enumerate(names)]  # type: ignore[misc]
    run(f"Reading a thread of {PUTS} (600 KB state)", rows, rounds=5, unit="ms", scale=1e3)
