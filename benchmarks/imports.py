"""What a new process takes: an import, and the latest checkpoint of a thread of 3,000."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.at_scale import filled, message
from benchmarks.table import Row, run

COUNT = 3000

CODE = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"

OWN = """
import sys, time
started = time.process_time()
from graphkit import RunnableConfig
from savers import FileSystemSaver
imported = time.process_time()
saver = FileSystemSaver(sys.argv[1])
assert saver.get(RunnableConfig("bench")).state
done = time.process_time()
print(done - started, done - imported)
"""
PEER = """
import sys, time
started = time.process_time()
import langgraph.graph
from langgraph.checkpoint.sqlite import SqliteSaver
imported = time.process_time()
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    assert saver.get_tuple({"configurable": {"thread_id": "bench"}}).checkpoint["channel_values"]
    done = time.process_time()
print(done - started, done - imported)
"""
"""Print the CPU seconds with the imports, and without."""


def run_code(code: str, *arguments: str) -> list[float]:
    """The figures that some code prints in a fresh process."""
    # pip compiles what it installs; a checkout must be allowed to do so too.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return [float(figure) for figure in result.stdout.split()]


def importing(statement: str) -> Callable[[], float]:
    """Seconds that an import statement takes."""

    def measure() -> float:
        try:
            (seconds,) = run_code(CODE.format(statement))
        except subprocess.CalledProcessError as error:
            raise ImportError(name=statement.split()[1]) from error
        return seconds

    return measure


def filled_peer(file: Path) -> Path:
    """Create a database with the same thread, by LangGraph's SqliteSaver."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(file, check_same_thread=False)
    connection.execute("PRAGMA synchronous=OFF")
    saver = SqliteSaver(connection)
    config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
    for number in range(COUNT):
        checkpoint = {**empty_checkpoint(), "channel_values": {"n": number, "last": message(number)}}
        checkpoint["channel_versions"] = {"n": number + 1, "last": number + 1}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"n": number + 1})
    connection.close()
    return file


def first_get(code: str, place: Path, column: int) -> Callable[[], float]:
    """Seconds of CPU to open a store and get the latest checkpoint: with the imports (0), or without (1)."""
    return lambda: run_code(code, str(place))[column]


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    rows = [
        Row("import langgraph.graph", importing("import langgraph.graph")),
        Row("import graphkit, savers", importing("import graphkit, savers")),
    ]
    run("Imports", rows, rounds=7, unit="ms", scale=1e3, base="import langgraph.graph")
    own = folder()
    filled(own, COUNT).close()
    try:
        peer = filled_peer(folder() / "peer.db")
    except ImportError as error:
        print(f"\nnot installed: {error.name}")
        return
    for column, title in enumerate(["Import, open and latest", "Open and latest"]):
        rows = [
            Row("LangGraph, SqliteSaver", first_get(PEER, peer, column)),
            Row("FileSystemSaver", first_get(OWN, own, column)),
        ]
        run(f"{title} of {COUNT}, CPU", rows, rounds=7, unit="ms", scale=1e3, base=rows[0].name)
