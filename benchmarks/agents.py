"""An agent beside LangGraph's prebuilt one with SqliteSaver: the same scripted model and tools.

A turn is three model calls and three tool calls, two of them parallel. The conversation grows to 100 turns. The last
table kills a process within each call of a turn, resumes the turn in another one, and counts the calls that had
finished before the kill and were made again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.agents import CALLS, KINDS, Work, open_agent
from benchmarks.table import Row, run, timed

TURNS = 100
NAMES = {
    "graphkit-file": "graphkit, FileSystemSaver",
    "graphkit-sqlite": "graphkit, SqliteSaver",
    "langgraph-async": "LangGraph create_react_agent, SqliteSaver, async",
    "langgraph-sync": "LangGraph create_react_agent, SqliteSaver, sync",
}


def time_of_turn(kind: str, folder: Callable[[], Path], *, is_durable: bool) -> float:
    """Seconds per turn, over a conversation of TURNS turns."""
    with open_agent(kind, folder(), Work(), is_durable=is_durable) as turn:
        turn("first")
        return timed(lambda: [turn(f"question {number}") for number in range(TURNS - 1)]) / (TURNS - 1)


def size_of_conversation(kind: str, folder: Callable[[], Path]) -> float:
    """The bytes of a store with TURNS turns."""
    where = folder()
    with ExitStack() as stack:
        turn = stack.enter_context(open_agent(kind, where, Work(), is_durable=False))
        for number in range(TURNS):
            turn(f"question {number}")
    return sum(path.stat().st_size for path in where.rglob("*") if path.is_file())


def count_repeated(kind: str, folder: Callable[[], Path]) -> float:
    """Kill a process within each call of a turn; the finished calls that are made again when it is resumed."""
    repeated = 0
    for deadly in CALLS:
        where = folder()
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.peers.agents", kind, str(where)]
        subprocess.run([*command, deadly], check=False, capture_output=True)
        calls = where / "calls"
        finished = calls.read_text().splitlines() if calls.exists() else []
        subprocess.run([*command, "none"], check=True, capture_output=True)
        again = calls.read_text().splitlines()[len(finished) :]
        assert {*finished, *again} == {*CALLS}, f"{kind} killed in {deadly}: {finished} then {again}"
        repeated += len(set(finished) & set(again))
    return repeated


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    for is_durable in (False, True):
        rows = [
            Row(NAMES[kind], lambda kind=kind: time_of_turn(kind, folder, is_durable=is_durable))  # type: ignore[misc]  # noqa: B023 - measured before the next one
            for kind in KINDS
        ]
        durable = "each record on the disk (always, FULL)" if is_durable else "not waiting for the disk (never, OFF)"
        run(f"A turn of an agent, {durable}", rows, rounds=3, unit="ms", scale=1e3, base=NAMES[KINDS[-1]])
    sizes = [Row(NAMES[kind], lambda kind=kind: size_of_conversation(kind, folder)) for kind in KINDS]  # type: ignore[misc]
    run(f"The store after {TURNS} turns", sizes, rounds=1, unit="KB", scale=1e-3, base=NAMES[KINDS[-1]])
    calls = [Row(NAMES[kind], lambda kind=kind: count_repeated(kind, folder)) for kind in KINDS]  # type: ignore[misc]
    run(
        f"Finished calls made again, after a kill in each of {len(CALLS)} calls", calls, rounds=1, unit="calls", scale=1
    )
