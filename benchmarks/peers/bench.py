"""One column of the table of LangGraph's checkpointers: its stores, and how its rows are measured."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.contenders import Contender, Store
from benchmarks.peers.own_api import OwnApi
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
    step_run: int = 300
    threads: int = 1000
    delta_steps: int = 800
    window_steps: int = 500
    encrypted_puts: int = 500
    tasks: int = 200
    synced_threads: int = 300


QUICK = Sizes(
    puts=30,
    steps=12,
    step_run=12,
    threads=6,
    delta_steps=12,
    window_steps=12,
    encrypted_puts=12,
    tasks=4,
    synced_threads=4,
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

    def close(self) -> None:
        """Close the stores that the rows share."""
        for store in self._stores.values():
            store.close()

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
            if isinstance(store.saver, OwnApi):
                self.ids = [info.id for info in store.saver.store.history(THREAD)]
                return
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
                return await arun_steps(saver, self.sizes.step_run, durability=durability)

        if asynchronous:
            return asyncio.run(run())
        store = Store(self.contender, folder)
        seconds = run_steps(store.saver, self.sizes.step_run, durability=durability)
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

    def list_all(self, **options: Any) -> float:
        """Measure a listing of the whole store by a new object."""
        saver = self.many().reopen()
        return timed(lambda: drain(saver.list(None, **options)))

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

    def encrypt(self) -> float | None:
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

        settle()
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
    """Let the disk finish, and hide from the collector what other stores hold in memory.

    Without this, a measurement would pay for the one before, and for the size of InMemorySaver.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    os.sync()
