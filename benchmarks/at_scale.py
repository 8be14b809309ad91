"""The file saver with many checkpoints, large values and many threads; beside SqliteSaver, pickles and diskcache."""

from __future__ import annotations

import os
import pickle
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.storage import CONFIG, bytes_of, message
from benchmarks.table import Row, run, timed
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver

LONG, SHORT = 100_000, 3_000
SOME = 2_000
THREADS = 10_000
SAMPLE = 300

COLD = """
import sys, time
from graphkit import RunnableConfig
from savers import FileSystemSaver

saver, config = FileSystemSaver(sys.argv[1]), RunnableConfig("bench")
saver.get(RunnableConfig("unknown"))
for call in (lambda: saver.get(config).state, lambda: saver.get(config).state, lambda: saver.history(config)):
    started = time.perf_counter()
    call()
    print(time.perf_counter() - started)
"""


def filled(folder: Path, count: int, *, fsync: Any = "never") -> FileSystemSaver:
    """Create a thread of this many checkpoints, each with a small state."""
    saver = FileSystemSaver(folder, fsync=fsync)
    for number in range(count):
        saver.put(CONFIG, small(number))
    return saver


def small(number: int) -> Checkpoint:
    """A step with 200 bytes of its own."""
    return Checkpoint(node_id="chat", next_node_id="chat", state={"n": number, "last": message(number)})


def median_put(saver: FileSystemSaver) -> float:
    """Seconds for a put, the median of some."""
    return statistics.median(
        timed(lambda number=number: saver.put(CONFIG, small(number)))  # type: ignore[misc]
        for number in range(SAMPLE)
    )


def megabyte() -> str:
    """Text that compresses like prose."""
    random.seed(1)
    words = ["".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 9))) for _ in range(3000)]
    return " ".join(random.choices(words, k=200_000))[: 1 << 20]


def counter_graphkit(compression: Any) -> Callable[[Path], float]:
    """2000 puts of an unchanged 1 MB value and a counter."""

    def measure(folder: Path) -> float:
        saver, text = FileSystemSaver(folder, fsync="always", compression=compression), megabyte()

        def put_all() -> None:
            for number in range(SOME):
                state = {"text": text, "n": number}
                saver.put(CONFIG, Checkpoint(node_id="chat", next_node_id="chat", state=state))

        return timed(put_all) / SOME

    return measure


def counter_sqlite(synchronous: str) -> Callable[[Path], float]:
    """The same by LangGraph's SqliteSaver; a tenth of the puts, each has the whole value."""

    def measure(folder: Path) -> float:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(folder / "peer.db", check_same_thread=False)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        saver, text, config = SqliteSaver(connection), megabyte(), CONFIG
        started = time.perf_counter()
        for number in range(SOME // 10):
            checkpoint = {**empty_checkpoint(), "channel_values": {"text": text, "n": number}}
            checkpoint["channel_versions"] = {"n": number + 1}
            config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"n": number + 1})
        seconds = time.perf_counter() - started
        connection.close()
        return seconds / (SOME // 10)

    return measure


def counter_pickle(folder: Path) -> float:
    """A pickle per file, with fsync; a tenth of the puts."""
    text = megabyte()
    started = time.perf_counter()
    for number in range(SOME // 10):
        with (folder / f"{number}.pickle").open("wb") as file:
            pickle.dump({"text": text, "n": number}, file)
            file.flush()
            os.fsync(file.fileno())
    return (time.perf_counter() - started) / (SOME // 10)


def counter_diskcache(folder: Path) -> float:
    """diskcache; a tenth of the puts."""
    import diskcache

    text = megabyte()
    with diskcache.Cache(str(folder), sqlite_synchronous=2, size_limit=1 << 40, eviction_policy="none") as cache:
        started = time.perf_counter()
        for number in range(SOME // 10):
            cache[number] = {"text": text, "n": number}
        return (time.perf_counter() - started) / (SOME // 10)


def counters(folder: Callable[[], Path]) -> None:
    """An unchanged 1 MB value with a counter."""
    sizes: dict[str, tuple[int, int]] = {}

    def sized(name: str, count: int, measure: Callable[[Path], float]) -> Row:
        def once() -> float:
            place = folder()
            seconds = measure(place)
            sizes[name] = count, bytes_of(place)
            return seconds

        return Row(name, once)

    rows = [
        sized("graphkit, always", SOME, counter_graphkit("zlib")),
        sized("graphkit, always, not compressed", SOME, counter_graphkit(None)),
        sized("LangGraph, SqliteSaver FULL", SOME // 10, counter_sqlite("FULL")),
        sized("LangGraph, SqliteSaver OFF", SOME // 10, counter_sqlite("OFF")),
        sized("a pickle per file, fsync", SOME // 10, counter_pickle),
        sized("diskcache, FULL", SOME // 10, counter_diskcache),
    ]
    run("A put of an unchanged 1 MB value and a counter", rows, rounds=1)
    for name, (count, size) in sizes.items():
        print(f"- {name}: {size / 1e6:.3f} MB after {count} puts")


def reading(folder: Callable[[], Path], count: int) -> None:
    """The latest and the metadata of a thread, in processes of their own."""
    place = folder()
    filled(place, count).close()
    figures: list[list[float]] = []

    def read(column: int) -> float:
        if column == 0:
            command = [sys.executable, "-c", COLD, str(place)]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            figures.append([float(figure) for figure in result.stdout.split()])
        return figures[-1][column]

    names = ["latest, first in its process", "latest again", "metadata of all, first scan"]
    rows = [Row(name, lambda column=column: read(column)) for column, name in enumerate(names)]  # type: ignore[misc]
    run(f"Reading a thread of {count} small checkpoints", rows, rounds=5, unit="ms", scale=1e3)


def many_threads(folder: Callable[[], Path]) -> None:
    """10,000 threads, half of them with ids that a directory's name does not hold."""
    place = folder()
    saver = FileSystemSaver(place, fsync="never")
    ids = [f"thread-{number}" if number % 2 else f"User {number}" for number in range(THREADS)]
    for thread_id in ids:
        saver.put(RunnableConfig(thread_id), small(0))
    saver.close()

    def first() -> float:
        fresh = FileSystemSaver(place, fsync="never")
        seconds = timed(fresh.threads)
        assert len(fresh.threads()) == THREADS
        return seconds

    rows = [
        Row("ids, by a saver that has not seen them", first),
        Row("ids again", lambda: timed(saver.threads)),
        Row("size of all", lambda: timed(saver.size)),
        Row("verify all", lambda: timed(saver.verify)),
    ]
    saver.threads()
    run(f"{THREADS} threads", rows, rounds=3, unit="ms", scale=1e3)


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    young, old = filled(folder(), 10), filled(folder(), LONG)
    rows = [Row("after 10", lambda: median_put(young)), Row(f"after {LONG}", lambda: median_put(old))]
    run("One put, never", rows, rounds=5, base="after 10")
    counters(folder)
    for count in (SHORT, LONG):
        reading(folder, count)

    def care(work: Callable[[FileSystemSaver], Any]) -> Callable[[], float]:
        def once() -> float:
            saver = filled(folder(), SHORT)
            return timed(lambda: work(saver))

        return once

    thread = "bench"
    rows = [
        Row("delete", care(lambda saver: saver.delete(thread))),
        Row("copy", care(lambda saver: saver.copy(thread, "other"))),
        Row("prune to 1000", care(lambda saver: saver.prune(thread, keep_last=1000))),
        Row("verify", care(lambda saver: saver.verify(thread))),
    ]
    run(f"A thread of {SHORT} small checkpoints", rows, rounds=3, unit="ms", scale=1e3)
    many_threads(folder)
