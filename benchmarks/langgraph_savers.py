"""LangGraph on FileSystemCheckpointSaver, beside its InMemorySaver and SqliteSaver, in one interleaved run."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import CONTENDERS, Contender, Store
from benchmarks.peers.workloads import (
    THREAD,
    arun_steps,
    arun_threads,
    chat_graph,
    counting_graph,
    put_growing,
    run_chat,
    run_steps,
)
from benchmarks.table import timed


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work a row does."""

    puts: int = 3000
    steps: int = 1000
    threads: int = 1000
    delta_steps: int = 800
    window_steps: int = 500
    encrypted_puts: int = 500
    tasks: int = 200
    synced_threads: int = 300


QUICK = Sizes(
    puts=30, steps=12, threads=6, delta_steps=12, window_steps=12, encrypted_puts=12, tasks=4, synced_threads=4
)

COLD = """
import sys
from pathlib import Path
from benchmarks.peers.contenders import Contender
from benchmarks.peers.workloads import THREAD
from benchmarks.table import timed

saver = Contender("", sys.argv[1], sys.argv[2]).open(Path(sys.argv[3]))
saver.get_tuple({"configurable": {"thread_id": "unknown", "checkpoint_ns": ""}})  # imports what every first call does
print(timed(lambda: saver.get_tuple(THREAD)))
"""

SYNCED = """
import sys
from pathlib import Path
from benchmarks.peers.contenders import Contender
from benchmarks.peers.workloads import put_in_turn

put_in_turn(Contender("", sys.argv[1], sys.argv[2]).open(Path(sys.argv[3])), int(sys.argv[4]), 3)
"""


def drain(items: Iterable[Any]) -> None:
    """Read what an iterator yields."""
    for _ in items:
        pass


def median_of(times: int, measure: Callable[[], float]) -> float:
    """Measure several times; one short read is noise."""
    return statistics.median(measure() for _ in range(times))


class Bench:
    """One column: a contender, and the stores that its rows share."""

    def __init__(self, contender: Contender, sizes: Sizes, make_folder: Callable[[], Path]) -> None:
        self.contender = contender
        self.sizes = sizes
        self.make_folder = make_folder
        self.ids: list[str] = []
        self._stores: dict[str, Store] = {}
        self._is_deleted = False

    def make_store(self, *, encrypted: bool = False) -> Store:
        """Open the contender on a new folder."""
        return Store(self.contender, self.make_folder(), encrypted=encrypted)

    def _replace(self, name: str) -> Store:
        """Make a store, and remove the one of the last round."""
        if name in self._stores:
            self._stores.pop(name).remove()
        settle()
        self._stores[name] = self.make_store()
        return self._stores[name]

    def _share(self, name: str, fill: Callable[[], Any]) -> Store:
        """Return a store that several rows read, and fill it at its first use."""
        if name not in self._stores:
            fill()
            settle()
        return self._stores[name]

    # The stores

    def grow(self) -> float:
        """Measure the puts of a list that grows by 200 bytes."""
        store = self._replace("grown")
        self._is_deleted = False
        return timed(lambda: put_growing(store.saver, "bench", self.sizes.puts))

    def grown(self) -> Store:
        """A thread of many puts."""
        if self._is_deleted:
            self.grow()
        return self._share("grown", self.grow)

    def delete(self) -> float:
        """Measure the deletion of that thread."""
        store = self.grown()
        self._is_deleted = True
        return timed(lambda: store.saver.delete_thread("bench"))

    def deleted(self) -> Store:
        """The store of the thread that was deleted."""
        if not self._is_deleted:
            self.delete()
        return self._stores["grown"]

    def stepped(self) -> Store:
        """A thread of many steps, each with a small state."""

        def fill() -> None:
            store = self._replace("stepped")
            run_steps(store.saver, self.sizes.steps, durability="sync")
            found = store.saver.list(THREAD)
            self.ids = [checkpoint.config["configurable"]["checkpoint_id"] for checkpoint in found]

        return self._share("stepped", fill)

    def many(self) -> Store:
        """Many threads of five checkpoints each."""

        def fill() -> None:
            saver = self._replace("many").saver
            for number in range(self.sizes.threads):
                put_growing(saver, f"t{number}", 5)

        return self._share("many", fill)

    def delta(self) -> Store:
        """A thread whose messages are a DeltaChannel."""

        def fill() -> None:
            run_chat(self._replace("delta").saver, self.sizes.delta_steps, delta=True)

        return self._share("delta", fill)

    def slide(self) -> float:
        """Measure a step of a thread that keeps its last 100 messages."""
        store = self._replace("windowed")
        return run_chat(store.saver, self.sizes.window_steps, delta=False)

    def windowed(self) -> Store:
        """A thread that keeps its last 100 messages."""
        return self._share("windowed", self.slide)

    # Rows that need more than one line

    def step(self, *, asynchronous: bool, durability: str) -> float:
        """Measure one step of a two-node loop."""
        folder = self.make_folder()

        async def run() -> float:
            async with self.contender.open_async(folder) as saver:
                return await arun_steps(saver, self.sizes.steps, durability=durability)

        if asynchronous:
            return asyncio.run(run())
        store = Store(self.contender, folder)
        seconds = run_steps(store.saver, self.sizes.steps, durability=durability)
        store.remove()
        return seconds

    def read_past(self, *, cold: bool) -> float:
        """Measure the read of past states by id, each of another one."""
        store = self.stepped()
        ids = iter(self.ids[1 :: max(len(self.ids) // 12, 1)])
        store.reopen().get_tuple(THREAD)

        def read() -> float:
            if cold:
                store.reopen()
            config = {"configurable": {**THREAD["configurable"], "checkpoint_id": next(ids)}}
            return timed(lambda: store.saver.get_tuple(config))

        return median_of(9, read)

    def list_all(self, times: int, **options: Any) -> float:
        """Measure a listing of the whole store by a new object."""
        store = self.many()

        def read() -> float:
            saver = store.reopen()
            return timed(lambda: drain(saver.list(None, **options)))

        return median_of(times, read)

    def read_graph(self, store: Store, read: Callable[[Any], Any], *, delta: bool = False) -> float:
        """Measure a read of a graph that is compiled with a new object."""
        saver = store.reopen()
        app = chat_graph(saver, 1, delta=True) if delta else counting_graph(saver, 1)
        return timed(lambda: read(app))

    def read_in_new_process(self) -> float | None:
        """Measure the first read of a process."""
        if self.contender.kind == "memory":
            return None
        store = self.grown()
        store.close()
        output = run_script(COLD, [self.contender.kind, self.contender.option, str(store.folder)])
        store.reopen()
        return float(output)

    def encrypt(self) -> float:
        """Return the bytes of encrypted puts of a growing list."""
        store = self.make_store(encrypted=True)
        put_growing(store.saver, "bench", self.sizes.encrypted_puts)
        size = store.size()
        store.remove()
        return size

    def run_tasks(self) -> float:
        """Measure threads that run at once in one event loop."""

        async def run() -> float:
            async with self.contender.open_async(self.make_folder()) as saver:
                return await arun_threads(saver, self.sizes.tasks)

        return asyncio.run(run())

    def count_syncs(self) -> float | None:
        """Count the calls of fsync and fdatasync of three puts into each of many threads."""
        if self.contender.kind == "memory":
            return None
        folder = self.make_folder()
        trace = folder.with_suffix(".trace")
        strace = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        arguments = [self.contender.kind, self.contender.option, str(folder), str(self.sizes.synced_threads)]
        try:
            run_script(SYNCED, arguments, under=strace)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise ImportError(str(error), name="strace") from error
        calls = trace.read_text(encoding="utf-8").splitlines()
        return float(sum("sync(" in line for line in calls))


def run_script(script: str, arguments: Sequence[str], under: Sequence[str] = ()) -> str:
    """Run a script in a new process, and return its output."""
    command = [*under, sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def settle() -> None:
    """Let the disk finish, so that no row pays for the one before."""
    gc.collect()
    os.sync()


@dataclass
class Row:
    """One line of the table: its name for --rows, and the samples of each contender."""

    key: str
    title: str
    unit: str
    measure: Callable[[Bench], float | None]
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def sample(self, bench: Bench) -> None:
        """Measure once."""
        name = bench.contender.name
        if name in self.notes:
            return
        settle()
        try:
            value = self.measure(bench)
        except ImportError as error:
            self.notes[name] = f"not installed: {error.name}"
            return
        if value is not None:
            self.samples.setdefault(name, []).append(value)

    def median(self, contender: str) -> float | None:
        """Return the median of the rounds."""
        samples = self.samples.get(contender)
        return statistics.median(samples) if samples else None

    def format_cell(self, contender: str) -> str:
        """Return the median in the unit of the row."""
        median = self.median(contender)
        if median is None:
            return self.notes.get(contender, "")
        return f"{median * SCALES[self.unit]:.3g}"

    def format_ratio(self, ours: str, theirs: str) -> str:
        """Return how much longer ours takes."""
        numerator = self.median(ours)
        denominator = self.median(theirs)
        if numerator is None or not denominator:
            return ""
        ratio = numerator / denominator
        return f"{ratio:.2f}" if ratio >= 0.01 else f"{ratio:.1g}"


SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6, "MB": 1e-6, "calls": 1.0}


def make_rows(sizes: Sizes) -> list[Row]:
    """Return every row, in the order in which a round measures them."""
    return [
        Row("put", f"{sizes.puts} puts of a list growing by 200 bytes", "s", lambda bench: bench.grow()),
        Row("bytes", "... on the disk", "MB", lambda bench: bench.grown().size()),
        *_make_step_rows(),
        *_make_thread_rows(sizes),
        *_make_store_rows(sizes),
        *_make_chat_rows(sizes),
        Row("tasks", f"{sizes.tasks} threads at once in one event loop", "s", lambda bench: bench.run_tasks()),
        Row(
            "syncs",
            f"{sizes.synced_threads} threads x 3 puts, fsync and fdatasync",
            "calls",
            lambda bench: bench.count_syncs(),
        ),
        Row(
            "process",
            f"latest of {sizes.puts}, new process (after imports)",
            "ms",
            lambda bench: bench.read_in_new_process(),
        ),
        Row("delete", f"delete_thread of {sizes.puts}", "ms", lambda bench: bench.delete()),
        Row("left", "... left on the disk", "MB", lambda bench: bench.deleted().size()),
    ]


def _make_step_rows() -> list[Row]:
    def make(call: str, durability: str) -> Row:
        asynchronous = call == "ainvoke"
        return Row(
            f"{call}-{durability}",
            f"step, {call}, durability={durability}",
            "us",
            lambda bench: bench.step(asynchronous=asynchronous, durability=durability),
        )

    return [make(call, durability) for call in ("invoke", "ainvoke") for durability in ("sync", "async", "exit")]


def _make_thread_rows(sizes: Sizes) -> list[Row]:
    def read_latest(bench: Bench) -> float:
        saver = bench.grown().reopen()
        return timed(lambda: saver.get_tuple(THREAD))

    def read_latest_warm(bench: Bench) -> float:
        saver = bench.grown().saver
        saver.get_tuple(THREAD)
        return median_of(9, lambda: timed(lambda: saver.get_tuple(THREAD)))

    def list_newest(bench: Bench) -> float:
        saver = bench.grown().reopen()
        return timed(lambda: drain(saver.list(THREAD, limit=10)))

    def read_history(bench: Bench, limit: int | None) -> float:
        return bench.read_graph(bench.stepped(), lambda app: drain(app.get_state_history(THREAD, limit=limit)))

    return [
        Row(
            "latest-cold",
            f"latest of {sizes.puts}, new object",
            "ms",
            lambda bench: median_of(3, lambda: read_latest(bench)),
        ),
        Row("latest-warm", f"latest of {sizes.puts}, warm", "ms", read_latest_warm),
        Row("newest", f"10 newest of {sizes.puts}", "ms", lambda bench: median_of(3, lambda: list_newest(bench))),
        Row("history", f"get_state_history of {sizes.steps} steps", "ms", lambda bench: read_history(bench, None)),
        Row(
            "history-20",
            "get_state_history(limit=20)",
            "ms",
            lambda bench: median_of(3, lambda: read_history(bench, 20)),
        ),
        Row("past-cold", "a past state by id, new object", "ms", lambda bench: bench.read_past(cold=True)),
        Row("past-warm", "a past state by id, warm", "ms", lambda bench: bench.read_past(cold=False)),
    ]


def _make_store_rows(sizes: Sizes) -> list[Row]:
    return [
        Row("list", f"list(None), {sizes.threads} threads of 5", "ms", lambda bench: bench.list_all(1)),
        Row("list-20", "list(None, limit=20)", "ms", lambda bench: bench.list_all(3, limit=20)),
        Row("list-filter", "list(None, filter=step 4)", "ms", lambda bench: bench.list_all(1, filter={"step": 4})),
    ]


def _make_chat_rows(sizes: Sizes) -> list[Row]:
    steps = sizes.delta_steps

    def read_delta(bench: Bench, read: Callable[[Any], Any]) -> float:
        return median_of(3, lambda: bench.read_graph(bench.delta(), read, delta=True))

    return [
        Row(
            "delta-history",
            f"DeltaChannel of {steps} steps, get_state_history(limit=20)",
            "ms",
            lambda bench: read_delta(bench, lambda app: drain(app.get_state_history(THREAD, limit=20))),
        ),
        Row(
            "delta-state",
            f"DeltaChannel of {steps} steps, get_state, new object",
            "ms",
            lambda bench: read_delta(bench, lambda app: app.get_state(THREAD)),
        ),
        Row("window", f"last 100 of {sizes.window_steps} messages, step", "us", lambda bench: bench.slide()),
        Row("window-bytes", "... on the disk", "MB", lambda bench: bench.windowed().size()),
        Row("encrypted", f"{sizes.encrypted_puts} puts, encrypted, on the disk", "MB", lambda bench: bench.encrypt()),
    ]


RATIOS = (
    ("never / OFF", CONTENDERS[3].name, CONTENDERS[1].name),
    ("always / FULL", CONTENDERS[4].name, CONTENDERS[2].name),
)


def main(folder: Callable[[], Path], *, keys: Sequence[str] = (), rounds: int = 3, sizes: Sizes | None = None) -> None:
    """Print the table.

    Args:
        folder: makes an empty folder.
        keys: the rows to measure; all by default.
        rounds: how often each row is measured.
        sizes: how much work a row does.

    Raises:
        SystemExit: there is no row of such a name.
    """
    sizes = sizes or Sizes()
    rows = make_rows(sizes)
    unknown = set(keys) - {row.key for row in rows}
    if unknown:
        sys.exit(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(row.key for row in rows)}")
    rows = [row for row in rows if not keys or row.key in keys]
    benches = [Bench(contender, sizes, folder) for contender in CONTENDERS]
    for number in range(rounds):
        for row in rows:
            print(f"round {number + 1} of {rounds}: {row.key}", file=sys.stderr)
            for bench in benches:
                row.sample(bench)
        benches.append(benches.pop(0))  # another contender begins in the next round
    names = [contender.name for contender in CONTENDERS]
    print(f"\n### LangGraph's checkpointers, median of {rounds} interleaved rounds\n")
    print("| row | | " + " | ".join([*names, *(title for title, _, _ in RATIOS)]) + " |")
    print("|---|---|" + "---|" * (len(names) + len(RATIOS)))
    for row in rows:
        cells = [row.format_cell(name) for name in names]
        ratios = [row.format_ratio(ours, theirs) for _, ours, theirs in RATIOS]
        print(f"| `{row.key}` | {row.title}, {row.unit} | " + " | ".join([*cells, *ratios]) + " |")
