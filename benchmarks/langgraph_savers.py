"""LangGraph on FileSystemCheckpointSaver, beside its InMemorySaver and SqliteSaver."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import steps
from benchmarks.table import Row, run, timed

PUTS = 3000
THREADS = 1000
CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class Store:
    """A saver, where it is, and what it takes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.saver = self.open()

    def open(self) -> Any:
        """A saver on the folder."""
        kind, _, option = self.name.partition(", ")
        if kind == "FileSystemCheckpointSaver":
            from savers.langgraph import FileSystemCheckpointSaver

            return FileSystemCheckpointSaver(self.folder, fsync=option)
        if kind == "InMemorySaver":
            from langgraph.checkpoint.memory import InMemorySaver

            return InMemorySaver()
        from langgraph.checkpoint.sqlite import SqliteSaver

        connection = sqlite3.connect(self.folder / "peer.db", check_same_thread=False)
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute(f"PRAGMA synchronous={option}")
        return saver

    def reopen(self) -> None:
        """As another process would."""
        if self.name != "InMemorySaver":
            self.saver = self.open()

    def size(self) -> float:
        """The bytes on the disk."""
        return float(sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()))

    def grow(self) -> float:
        """Put a list that grows by 200 bytes each time; seconds."""
        return timed(lambda: self._put("t", PUTS))

    def fill(self) -> None:
        """Many threads of five checkpoints each."""
        for n in range(THREADS):
            self._put(f"t{n}", 5)

    def _put(self, thread: str, count: int) -> None:
        from langgraph.checkpoint.base import empty_checkpoint

        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        messages: list[Any] = []
        version = None
        for n in range(count):
            messages.append({"id": str(n), "role": "user", "content": "x" * 200})
            version = self.saver.get_next_version(version, None)
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = {"messages": messages}
            checkpoint["channel_versions"] = {"messages": version}
            metadata = {"source": "loop", "step": n, "parents": {}}
            config = self.saver.put(config, checkpoint, metadata, {"messages": version})

    def latest(self) -> Any:
        """Read the last checkpoint."""
        return self.saver.get_tuple(CONFIG)

    def list(self) -> list[Any]:
        """Read the ten newest checkpoints."""
        return list(self.saver.list(CONFIG, limit=10))

    def threads(self) -> set[str]:
        """List the whole store, which is LangGraph's way to find its threads."""
        return {found.config["configurable"]["thread_id"] for found in self.saver.list(None)}

    def delete(self) -> None:
        """Delete the thread of 3000."""
        self.saver.delete_thread("t")


NAMES = (
    "InMemorySaver", "SqliteSaver, OFF", "SqliteSaver, FULL", "FileSystemCheckpointSaver, never",
    "FileSystemCheckpointSaver, always",
)  # fmt: skip


def _step_rows(folder: Callable[[], Path]) -> list[Row]:
    def measure(name: str) -> Callable[[], float]:
        return steps.langgraph(lambda: Store(name, folder()).saver, durability="sync")

    return [Row("no checkpointer", steps.langgraph(lambda: None)), *(Row(name, measure(name)) for name in NAMES)]


def _figures(folder: Callable[[], Path], name: str) -> dict[str, float]:
    store = Store(name, folder())
    found = {"put": store.grow(), "bytes": store.size()}
    store.reopen()
    found["cold"] = timed(store.latest)
    found["latest"] = min(timed(store.latest) for _ in range(5))
    found["list"] = min(timed(store.list) for _ in range(3))
    found["delete"] = timed(store.delete)
    found["left"] = store.size()
    many = Store(name, folder())
    many.fill()
    many.reopen()
    found["threads"] = timed(many.threads)
    return found


SUBJECTS = (
    ("put", f"{PUTS} puts of a list growing by 200 bytes", "s", 1.0),
    ("bytes", f"{PUTS} puts: on the disk", "MB", 1e-6),
    ("cold", f"latest of {PUTS}, just opened", "ms", 1e3),
    ("latest", f"latest of {PUTS}", "ms", 1e3),
    ("list", f"the 10 newest of {PUTS}", "ms", 1e3),
    ("delete", f"delete of a thread of {PUTS}", "ms", 1e3),
    ("left", "on the disk after that", "MB", 1e-6),
    ("threads", f"list(None) over {THREADS} threads of 5", "ms", 1e3),
)


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    run(f"LangGraph, one step ({steps.STEPS} steps of a two-node loop, durability sync)", _step_rows(folder), rounds=3)
    figures = {name: _figures(folder, name) for name in NAMES}
    print("\n### LangGraph's savers, in one run\n")
    print("| | " + " | ".join(NAMES) + " |")
    print("|---|" + "---|" * len(NAMES))
    for key, title, unit, scale in SUBJECTS:
        cells = [f"{figures[name][key] * scale:.3g}" for name in NAMES]
        print(f"| {title}, {unit} | " + " | ".join(cells) + " |")
