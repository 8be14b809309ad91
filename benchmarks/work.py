"""A worker on a store of many threads that are not due, and runs that wait in a queue, beside DBOS on SQLite.

Each worker is a fresh process. The CPU time of a process is that of all its threads, from its start on.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from graphkit import END, START, Channels, CompiledGraph, RunnableConfig, StateGraph, operations, wait_until
from graphkit.worker import Worker
from savers import FileSystemSaver, SqliteSaver

KINDS = ("directory", "SQLite")
CONCURRENCIES = (1, 8)
DBOS = ((1, 0.05), (8, 0.05), (8, 1.0), (None, 1.0))
"""The concurrency of a queue of DBOS, None is no limit, and the seconds between two looks at it. At each look it takes
no more runs than may run at once. No limit and one second are its defaults."""
IDLE = 10
"""Seconds for which an idle worker is measured."""
SUBMITS = 20
"""How often the start of a run is measured."""
DELAY = 2
"""Seconds until a run is due that is submitted for later."""
QUEUED = 300
"""Runs of the queue."""
PATIENCE = 600

_SPAWN = multiprocessing.get_context("spawn")


class Place(NamedTuple):
    """A store, as a process opens it."""

    kind: str
    name: str


class Usage(NamedTuple):
    """What a process has used so far."""

    cpu: float
    megabytes: float
    """Its most resident memory."""


def open_saver(place: Place, fsync: Any = "always") -> Any:
    if place.kind == "directory":
        return FileSystemSaver(place.name, fsync=fsync)
    return SqliteSaver(place.name, fsync=fsync)


def measure_usage() -> Usage:
    return Usage(time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def make_graph(pack: Callable[..., Any], saver: Any = None) -> CompiledGraph[Any]:
    """Return the graph of all runs, which has one node."""
    graph = StateGraph({"log": Channels.appender()}).add_node("pack", pack)
    graph.add_edge(START, "pack").add_edge("pack", END)
    return graph.compile(graph_id="work", checkpointer=saver)


# The processes of workers


def serve(place: Place, concurrency: int, connection: Any) -> None:
    """Run a worker. Send of each run the thread, the time of its begin and the usage; answer what is asked."""
    with open_saver(place) as saver:

        def pack(state: Any, config: RunnableConfig) -> dict[str, str]:
            connection.send((config.thread, time.time(), measure_usage()))
            return {"log": "packed"}

        worker = Worker(saver, make_graph(pack), concurrency=concurrency)

        def answer() -> None:
            while connection.recv() != "stop":
                connection.send(measure_usage())
            worker.stop()

        Thread(target=answer).start()
        worker.run()


def serve_dbos(file: str, concurrency: int | None, poll: float, connection: Any) -> None:
    """Enqueue workflows of one step; send how many per second, how many are run per second, and delays."""
    from dbos import DBOS, SetEnqueueOptions

    config: Any = {"name": "bench", "system_database_url": f"sqlite:///{file}", "log_level": "ERROR"}
    DBOS(config=config)
    begins: dict[int, float] = {}
    ends: list[float] = []

    @DBOS.step()
    def pack(item: int) -> str:
        return f"packed {item}"

    @DBOS.workflow()
    def flow(item: int) -> None:
        begins[item] = time.time()
        pack(item)
        ends.append(time.time())

    DBOS.launch()
    queue = DBOS.register_queue("work", worker_concurrency=concurrency, polling_interval_sec=poll)
    started = time.time()
    for item in range(QUEUED):
        queue.enqueue(flow, item)
    submitted = time.time()
    while len(ends) < QUEUED:
        time.sleep(0.01)
    rates = QUEUED / (submitted - started), QUEUED / (max(ends) - started)
    due = {}
    for item in range(QUEUED, QUEUED + SUBMITS):
        due[item] = time.time() + DELAY
        with SetEnqueueOptions(delay_seconds=DELAY):
            queue.enqueue(flow, item)
        time.sleep(0.1)
    while len(ends) < QUEUED + SUBMITS:
        time.sleep(0.01)
    late = [begins[item] - at for item, at in due.items()]
    connection.send((*rates, late))
    DBOS.destroy()


@contextmanager
def start(target: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Start a process; yield the connection to it."""
    connection, other = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(*arguments, other))
    process.start()
    # Without its other end in this process, a connection to one that has died raises.
    other.close()
    try:
        yield connection
        if target is serve:
            connection.send("stop")
        process.join(PATIENCE)
    finally:
        process.kill()
        process.join()


def receive(connection: Any) -> Any:
    if not connection.poll(PATIENCE):
        raise TimeoutError("a worker did not answer")
    return connection.recv()


# Many threads that are not due


def fill(place: Place, count: int, *, sleeping: bool) -> None:
    """Submit runs for another day, or begin runs that sleep until then."""
    at = datetime.now(UTC) + timedelta(days=1)
    with open_saver(place, "never") as saver:
        graph = make_graph(lambda _: wait_until(at), saver)
        for number in range(count):
            thread = f"far-{number}"
            if sleeping:
                graph.invoke({}, thread)
            else:
                operations.submit(saver, {}, thread, graph_id="work", at=at)


def measure_listing(place: Place) -> float:
    """Return the CPU time of reading the latest checkpoint of each thread."""
    with open_saver(place) as saver:
        started = time.process_time()
        for thread in saver.threads():
            saver.recent(RunnableConfig(thread), limit=1)
        return time.process_time() - started


def measure_worker(place: Place) -> dict[str, str]:
    """Return what a worker takes on a store, and how soon it begins a run."""
    with open_saver(place) as saver:
        # The last one that a listing finds.
        operations.submit(saver, {}, "z-first")
        started = time.time()
        with start(serve, place, 1) as connection:
            _, begun, first = receive(connection)
            time.sleep(1)
            connection.send("usage")
            before = receive(connection)
            time.sleep(IDLE)
            connection.send("usage")
            after = receive(connection)
            waited = []
            for number in range(SUBMITS):
                submitted = time.time()
                operations.submit(saver, {}, f"z-now-{number}")
                waited.append(receive(connection)[1] - submitted)
            due = {}
            for number in range(SUBMITS):
                at = datetime.now(UTC) + timedelta(seconds=DELAY)
                due[f"z-later-{number}"] = at.timestamp()
                operations.submit(saver, {}, f"z-later-{number}", at=at)
                time.sleep(0.1)
            late = [begun_at - due[thread] for thread, begun_at, _ in (receive(connection) for _ in due)]
    return {
        "CPU time of one listing of the latest checkpoints, s": f"{measure_listing(place):.2f}",
        "until the first run has begun in a fresh process: CPU time, s": f"{first.cpu:.2f}",
        "the same, wall time, s": f"{begun - started:.1f}",
        f"idle for {IDLE} s: CPU time, % of a core": f"{100 * (after.cpu - before.cpu) / IDLE:.2f}",
        "most memory, MB": f"{after.megabytes:.0f}",
        "from a submit to the begin of its run, ms": describe(waited),
        "begin after `at`, ms": describe(late),
    }


def describe(seconds: list[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f}, at most {1e3 * max(seconds):.0f}"


# A queue


def measure_queue(place: Place, concurrency: int) -> tuple[float, float]:
    """Return how many runs are submitted per second, and how many of them a worker runs per second.

    The second begins with the first submit, as the worker is there already.
    """
    with open_saver(place) as saver, start(serve, place, concurrency) as connection:
        operations.submit(saver, {}, "warm")
        receive(connection)
        started = time.time()
        for number in range(QUEUED):
            operations.submit(saver, {}, f"run-{number}")
        submitted = time.time()
        begun = max(receive(connection)[1] for _ in range(QUEUED))
    return QUEUED / (submitted - started), QUEUED / (begun - started)


def measure_dbos(file: Path, concurrency: int | None, poll: float) -> tuple[float, float, list[float]]:
    with start(serve_dbos, str(file), concurrency, poll) as connection:
        found: tuple[float, float, list[float]] = receive(connection)
    return found


def main(folder: Callable[[], Path], threads: int) -> None:
    """Measure, and print the tables."""
    columns = {}
    for kind, sleeping in product(KINDS, (False, True)):
        place = Place(kind, str(folder() / "runs"))
        fill(place, threads, sleeping=sleeping)
        columns[f"{kind}, {'sleeping' if sleeping else 'queued'}"] = measure_worker(place)
    print(f"\n### A worker on a store of {threads} threads that are not due\n")
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name in next(iter(columns.values())):
        print(f"| {name} | {' | '.join(column[name] for column in columns.values())} |")

    print(f"\n### A queue of {QUEUED} runs of one node, and one worker\n")
    print("| | concurrency | submits/s | runs/s | begin after a delay, ms |\n|---|---|---|---|---|")
    for concurrency in CONCURRENCIES:
        for kind in KINDS:
            submits, runs = measure_queue(Place(kind, str(folder() / "runs")), concurrency)
            print(f"| {kind} | {concurrency} | {submits:.0f} | {runs:.0f} | see above |")
    if find_spec("dbos") is None:
        print("\nDBOS is not installed.")
        return
    for limit, poll in DBOS:
        submits, runs, late = measure_dbos(folder() / "dbos.sqlite", limit, poll)
        name = f"DBOS on SQLite, looks every {poll:g} s"
        print(f"| {name} | {limit or 'no limit'} | {submits:.0f} | {runs:.0f} | {describe(late)} |", flush=True)
