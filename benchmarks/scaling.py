"""Puts and steps by the number of processes, and bytes, rows and round trips, on each kind of store.

PostgreSQL is started in a temporary folder, with the settings it has when it is installed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.table import Row, run
from graphkit import END, START, Channels, Checkpoint, RunnableConfig, StateGraph
from graphkit.abc import BaseCheckpointSaver
from graphkit.worker import Worker
from savers import FileSystemSaver, PostgresSaver, SqliteSaver
from tests.support import postgres_server

PROCESSES = (1, 2, 4, 8)
PUTS = 200
"""Puts of each process."""
RUNS = 40
STEPS = 6
LONG = 1000
"""Checkpoints of the thread whose bytes are measured."""
MANY = 1000
"""Threads of three checkpoints."""
ROUNDS = 3

_SPAWN = multiprocessing.get_context("spawn")


class Place(NamedTuple):
    """A store, as a process opens it."""

    kind: str
    name: str
    schema: str = ""


def open_saver(place: Place) -> Any:
    if place.kind == "directory":
        return FileSystemSaver(place.name)
    if place.kind == "SQLite":
        return SqliteSaver(place.name)
    return PostgresSaver(place.name, schema=place.schema)


def put_some(saver: BaseCheckpointSaver, thread_id: str, count: int) -> None:
    """Put checkpoints of a list that grows by 200 bytes."""
    messages: list[str] = []
    for number in range(count):
        messages.append(os.urandom(100).hex())
        state = {"messages": list(messages), "count": number}
        saver.put(RunnableConfig(thread_id), Checkpoint(node_id="chat", next_node_id="chat", state=state))


def put_in_process(place: Place, number: int, start: Any, ends: Any) -> None:
    with open_saver(place) as saver:
        put_some(saver, f"warm-{os.getpid()}-{number}", 3)
        start.wait()
        started = perf_counter()
        put_some(saver, f"thread-{os.getpid()}-{number}", PUTS)
        ends.put(perf_counter() - started)


def in_processes(target: Callable[..., None], place: Place, count: int) -> list[Any]:
    """Run a function in processes that begin together; return what each of them has put into the queue."""
    start = _SPAWN.Barrier(count)
    ends = _SPAWN.Queue()
    processes = [_SPAWN.Process(target=target, args=(place, number, start, ends)) for number in range(count)]
    for process in processes:
        process.start()
    found = [ends.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return found


def puts_per_second(place: Place, count: int) -> float:
    return count * PUTS / max(in_processes(put_in_process, place, count))


def puts_per_second_followed(place: Place, count: int) -> float:
    """Puts per second while a watch of one thread is notified of each of them."""
    assert place.kind.startswith("PostgreSQL")
    with open_saver(place) as saver:
        # Every put asks for its own thread; here all of them find an entry.
        database = saver._database  # noqa: SLF001
        table = database.names.watchers
        database.write(f"DROP TABLE {table}")
        database.write(
            f"CREATE VIEW {table} AS SELECT CAST(1 AS BIGINT) AS watcher, thread, "
            f"now() + interval '60 seconds' AS expires FROM {database.names.histories} WHERE version = 0"
        )
        return puts_per_second(place, count)


def work(state: Any) -> dict[str, str]:
    return {"log": "x" * 100}


def make_graph() -> Any:
    graph = StateGraph({"log": Channels.appender_with_duplicate()})
    names = [f"n{number}" for number in range(STEPS)]
    for name in names:
        graph.add_node(name, work)
    for source, target in pairwise([START, *names, END]):
        graph.add_edge(source, target)
    return graph


def serve_in_process(place: Place, number: int, start: Any, ends: Any) -> None:
    del number
    with open_saver(place) as saver:
        worker = Worker(saver, make_graph().compile())
        start.wait()
        started = perf_counter()
        count = worker.run(once=True)
        ends.put((count, perf_counter() - started))


def steps_per_second(place: Place, count: int) -> float:
    with open_saver(place) as saver:
        app = make_graph().compile(checkpoint_saver=saver)
        for number in range(RUNS):
            next(app.stream({}, RunnableConfig(f"run-{os.urandom(8).hex()}-{number}")))
    found = in_processes(serve_in_process, place, count)
    return sum(runs for runs, _ in found) * STEPS / max(seconds for _, seconds in found)


@contextmanager
def open_server() -> Iterator[str]:
    with postgres_server.make_data() as data, postgres_server.start(data) as server:
        server.stop("fast")
        # With fsync, as it is installed.
        server.start(options="")
        yield server.connection_string


class Measure(NamedTuple):
    """What a store takes."""

    bytes: int
    rows: int


def measure(place: Place, saver: Any) -> Measure:
    """Return the bytes on the disk, and the rows or files."""
    if place.kind == "directory":
        files = [Path(folder, name) for folder, _, names in os.walk(place.name) for name in names]
        return Measure(sum(file.stat().st_blocks * 512 for file in files), len(files))
    database = saver._database  # noqa: SLF001
    read = database.read
    tables = [database.names.histories, database.names.records]
    if not database.dialect.combines_writes:
        tables.append(database.names.terms)
    rows = sum(read(f"SELECT count(*) FROM {table}")[0][0] for table in tables)
    if place.kind == "SQLite":
        ((pages, size),) = read("SELECT page_count, page_size FROM pragma_page_count(), pragma_page_size()")
        return Measure(pages * size, rows)
    taken = sum(read("SELECT pg_total_relation_size(CAST(? AS regclass))", (table,))[0][0] for table in tables)
    return Measure(taken, rows)


def measure_size(place: Place) -> tuple[str, float, float, float, float]:
    """Return the name of a store, bytes and rows per checkpoint of a long thread, and per short thread."""
    with open_saver(place) as saver:
        put_some(saver, "first", 1)
        empty = measure(place, saver)
        put_some(saver, "long", LONG)
        long = measure(place, saver)
        for number in range(MANY):
            put_some(saver, f"short-{number}", 3)
        short = measure(place, saver)
    return (
        place.kind,
        (long.bytes - empty.bytes) / LONG,
        (long.rows - empty.rows) / LONG,
        (short.bytes - long.bytes) / MANY,
        (short.rows - long.rows) / MANY,
    )


def count_round_trips(place: Place) -> None:
    """Print the statements of a put, a step, a read of the latest checkpoint and a read of waiting threads."""
    from savers._sql.postgres_session import PostgresSession

    counted: list[str] = []
    for name in ("run", "run_many"):
        original = getattr(PostgresSession, name)

        def count(self: Any, sql: str, *arguments: Any, original: Any = original) -> Any:
            counted.append(sql)
            return original(self, sql, *arguments)

        setattr(PostgresSession, name, count)
    with open_saver(place) as saver, open_saver(place) as other:
        put_some(saver, "t", 3)
        saver.get(RunnableConfig("t"))
        other.threads()
        app = make_graph().compile(checkpoint_saver=saver)
        rows: list[tuple[str, Callable[[], Any], int]] = [
            (
                "put by hand",
                lambda: saver.put(RunnableConfig("t"), Checkpoint(node_id="a", next_node_id="a", state={"count": 9})),
                1,
            ),
            ("step of a run", lambda: app.invoke({}, RunnableConfig("u")), STEPS),
            ("latest, by another object", lambda: other.get(RunnableConfig("t")), 1),
            ("latest again", lambda: other.get(RunnableConfig("t")), 1),
            ("all threads", other.threads, 1),
            ("all that wait", other.interrupts, 1),
        ]
        print("\n### Statements sent to PostgreSQL, one round trip each\n\n| | statements |\n|---|---|")
        for name, call, divisor in rows:
            counted.clear()
            call()
            print(f"| {name} | {len(counted) / divisor:.1f} |")


def main(new_folder: Callable[[], Path]) -> None:
    """Measure, and print the tables."""
    with ExitStack() as stack:
        connection_string = stack.enter_context(open_server())

        def places() -> list[Place]:
            folder = new_folder()
            schema = os.urandom(6).hex()
            asynchronous = f"{connection_string} options='-c synchronous_commit=off'"
            return [
                Place("directory", str(folder / "runs")),
                Place("SQLite", str(folder / "runs.db")),
                Place("PostgreSQL", connection_string, f"on {schema}"),
                Place("PostgreSQL, synchronous_commit=off", asynchronous, f"off {schema}"),
            ]

        def make_rows(call: Callable[[Place, int], float], numbers: tuple[int, ...]) -> list[Row]:
            return [
                Row(f"{place.kind}, {count}", lambda index=index, count=count: call(places()[index], count))
                for index, place in enumerate(places())
                for count in numbers
            ]

        rows = make_rows(puts_per_second, PROCESSES)
        run("Puts by the number of processes, different threads", rows, rounds=ROUNDS, unit="puts/s", scale=1)
        rows = [
            Row(f"{name}, {count}", lambda call=call, count=count: call(places()[2], count))
            for count in PROCESSES
            for name, call in (("not followed", puts_per_second), ("each followed", puts_per_second_followed))
        ]
        run("Puts that notify, on PostgreSQL", rows, rounds=ROUNDS, unit="puts/s", scale=1)
        rows = make_rows(steps_per_second, (1, 2, 4))
        run("Steps by the number of worker processes", rows, rounds=ROUNDS, unit="steps/s", scale=1)

        print("\n### Bytes and rows\n")
        print(
            "| | bytes per checkpoint | rows per checkpoint | bytes per short thread | rows (files) per short thread |"
        )
        print("|---|---|---|---|---|")
        sizes = [measure_size(place) for place in places()[:3]]
        for kind, *figures in sizes:
            print(f"| {kind} |" + "|".join(f" {figure:.2f} " for figure in figures) + "|")
        print("\n### 10^6 threads and 10^9 checkpoints, calculated\n\n| | TB | rows (files) |\n|---|---|---|")
        for kind, long_bytes, long_rows, short_bytes, short_rows in sizes:
            total = 1e9 * long_bytes + 1e6 * short_bytes
            print(f"| {kind} | {total / 1e12:.2f} | {1e9 * long_rows + 1e6 * short_rows:.3g} |")
        count_round_trips(places()[2])
