"""2,000 threads and 16 workers on one store: nothing lost, nothing mixed, a bounded number of open descriptors.

Each thread gets several runs, in random order, from whichever worker is free. Afterwards a new saver reads all of it,
and the notes below the table compare that with what the runs must have left. The number of descriptors is bounded by
the saver's cache of open logs, not by the number of threads.
"""

from __future__ import annotations

import multiprocessing
import operator
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from benchmarks.table import Row, run, timed
from graphkit import END, START, CompiledGraph, RunnableConfig, StateGraph
from savers import FileSystemSaver

THREADS = 2_000
WORKERS = 16
TURNS = 3
"""How many runs each thread gets, one after the other."""
BATCH = 25
"""How many runs a worker takes at a time."""
STEPS = 3
"""The checkpoints of one run: START and two nodes."""


class State(TypedDict):
    """Whose the thread is, and what its runs wrote."""

    owner: str
    log: Annotated[list[str], operator.add]


class Found(NamedTuple):
    """What was wrong with the threads afterwards."""

    lost: int
    mixed: int
    damaged: int


def write(name: str) -> Callable[[Any], dict[str, list[str]]]:
    """A node that appends an entry with thread, turn and node."""

    def node(state: Any) -> dict[str, list[str]]:
        turn = len(state.get("log", ())) // 2
        return {"log": [f"{state['owner']} {turn} {name}"]}

    return node


@cache
def app_on(folder: Path, fsync: Any) -> CompiledGraph:
    """The graph on a store: one saver for each process, shared by its workers."""
    graph = StateGraph(State).add_node("a", write("a")).add_node("b", write("b"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return graph.compile(checkpoint_saver=FileSystemSaver(folder, fsync=fsync, lock_timeout=60))


def descriptors() -> int:
    """Return how many descriptors this process has open; 0 if the system does not report it."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0


def serve(folder: Path, fsync: Any, threads: tuple[str, ...]) -> int:
    """Run some threads once; returns the largest number of open descriptors seen."""
    app = app_on(folder, fsync)
    most = 0
    for thread in threads:
        app.invoke({"owner": thread}, RunnableConfig(thread))
        most = max(most, descriptors())
    return most


def serve_all(pool: Executor, folder: Path, fsync: Any, names: list[str]) -> int:
    """Give each thread its turns, each in a new order; returns the largest number of open descriptors seen."""
    most = 0
    for _ in range(TURNS):
        random.shuffle(names)
        parts = [*batches(names)]
        most = max(most, *pool.map(serve, [folder] * len(parts), [fsync] * len(parts), parts))
    return most


def batches(names: list[str]) -> Iterator[tuple[str, ...]]:
    """The threads in parts of a few."""
    for start in range(0, len(names), BATCH):
        yield tuple(names[start : start + BATCH])


def compare(folder: Path, names: list[str]) -> Found:
    """Read everything back with a saver that has seen nothing."""
    saver = FileSystemSaver(folder)
    lost = mixed = 0
    known = set(saver.threads())
    for thread in names:
        history = saver.list(RunnableConfig(thread)) if thread in known else ()
        wanted = [f"{thread} {turn} {node}" for turn in range(TURNS) for node in "ab"]
        written = list(history[0].state["log"]) if history else []
        lost += len(history) != STEPS * TURNS or any(entry not in written for entry in wanted)
        mixed += written != wanted and any(entry not in wanted for entry in written)
        mixed += any(older.id != newer.parent_id for newer, older in pairwise(history))
    return Found(lost, mixed, 0 if saver.verify().ok else 1)


def main(folder: Callable[[], Path]) -> None:
    """Print the table, and what was found afterwards."""
    random.seed(1)
    names = [f"thread-{number}" for number in range(THREADS)]
    notes: list[str] = []

    def served(title: str, make_pool: Callable[[], Executor], fsync: Any) -> Row:
        def once() -> float:
            place, most = folder(), [0]

            def serve_them() -> None:
                most[0] = serve_all(pool, place, fsync, [*names])

            with make_pool() as pool:
                seconds = timed(serve_them)
                app_on(place, fsync).compile_config.checkpoint_saver.close()
                app_on.cache_clear()
            found = compare(place, names)
            notes.append(
                f"- {title}: lost {found.lost}, mixed {found.mixed}, damaged {found.damaged}; "
                f"at most {most[0]} open descriptors in one process"
            )
            return seconds / (THREADS * TURNS)

        return Row(title, once)

    def processes() -> Executor:
        return ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn"))

    def threads() -> Executor:
        return ThreadPoolExecutor(WORKERS)

    rows = [
        served(f"{WORKERS} threads of one process, never", threads, "never"),
        served(f"{WORKERS} threads of one process, always", threads, "always"),
        served(f"{WORKERS} processes, never", processes, "never"),
        served(f"{WORKERS} processes, always", processes, "always"),
    ]
    run(f"One run of {STEPS} checkpoints ({THREADS} threads, {TURNS} runs each, {WORKERS} workers)", rows, rounds=1)
    print(*notes, sep="\n")
