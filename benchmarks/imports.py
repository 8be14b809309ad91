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
{start_all}
from graphkit import RunnableConfig
from savers import FileSystemSaver
{start}
saver = FileSystemSaver(sys.argv[1])
assert saver.get(RunnableConfig("bench")).state
print(time.process_time() - started)
"""
PEER = """
import sys, time
{start_all}
import langgraph.graph
from langgraph.checkpoint.sqlite import SqliteSaver
{start}
with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    assert saver.get_tuple({{"configurable": {{"thread_id": "bench"}}}}).checkpoint["channel_values"]
    print(time.process_time() - started)
"""
START = "started = time.process_time()"


def run_code(code: str, *arguments: str) -> float:
    """The figure that some code prints in a fresh process."""
    # pip compiles what it installs; a checkout must be allowed to do so too.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code, *arguments]
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise ImportError(result.stderr, name="a module of this row")
    return float(result.stdout)


def importing(statement: str) -> Callable[[], float]:
    """Seconds that an import statement takes."""
    return lambda: run_code(CODE.format(statement))


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


def first_get(code: str, place: Path, *, with_import: bool) -> Callable[[], float]:
    """Seconds of CPU to open a store and get the latest checkpoint, with or without the import."""
    start_all, start = (START, "") if with_import else ("", START)
    return lambda: run_code(code.format(start_all=start_all, start=start), str(place))


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
    for title, with_import in (("Import, open and latest", True), ("Open and latest", False)):
        rows = [
            Row("LangGraph, SqliteSaver", first_get(PEER, peer, with_import=with_import)),
            Row("FileSystemSaver", first_get(OWN, own, with_import=with_import)),
        ]
        run(f"{title} of {COUNT}, CPU", rows, rounds=7, unit="ms", scale=1e3, base=rows[0].name)
