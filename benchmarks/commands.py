"""Whole commands of `graphkit`, from the shell: 10,000 threads, and one of 100,000 checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.at_scale import LONG, THREADS, filled
from benchmarks.table import Row, run, timed
from graphkit import END, START, Channels, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver

ASKS = 10
"""One thread in this many waits for a human."""


def asked_or_done(folder: Path) -> None:
    """10,000 runs of three checkpoints; a tenth of them waits."""
    graph = StateGraph({"n": Channels.base(lambda old, new: old + new, lambda: 0)})
    graph.add_node("draft", lambda _: {"n": 1}).add_node("review", lambda _: {"n": interrupt("publish?")})
    graph.add_node("publish", lambda _: {"n": 1}).add_edge(START, "draft")
    graph.add_conditional_edges("draft", lambda state: "publish" if state["number"] % ASKS else "review")
    graph.add_edge("review", "publish").add_edge("publish", END)
    with FileSystemSaver(folder, fsync="never") as saver:
        app = graph.compile(checkpoint_saver=saver)
        for number in range(THREADS):
            app.invoke_final({"number": number, "text": "lorem ipsum " * 10}, RunnableConfig(f"order-{number}"))


def command(*arguments: object) -> Callable[[], float]:
    """Seconds from the start of a process to its end."""
    # pip compiles what it installs; a checkout must be allowed to do so too.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    words = [sys.executable, *map(str, arguments)]
    return lambda: timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment))


def main(folder: Callable[[], Path]) -> None:
    """Print the table."""
    many, long = folder(), folder()
    asked_or_done(many)
    filled(long, LONG).close()

    def graphkit(*arguments: object) -> Callable[[], float]:
        return command("-m", "graphkit", *arguments)

    rows = [
        Row("python -c pass", command("-c", "pass")),
        Row("--help", graphkit("--help")),
        Row(f"threads, the first 100 of {THREADS}, as at a terminal", graphkit("threads", many, "--limit", 100)),
        Row(f"threads, all {THREADS}", graphkit("threads", many)),
        Row(f"threads, one of {LONG} checkpoints", graphkit("threads", long)),
        Row("history --limit 20 of it", graphkit("history", long, "bench", "--limit", 20)),
        Row("show of it", graphkit("show", long, "bench")),
        Row(f"interrupts of {THREADS} threads", graphkit("interrupts", many)),
    ]
    run("Commands", rows, rounds=5, unit="ms", scale=1e3, base="--help")
