"""LangGraph on FileSystemCheckpointSaver, beside its InMemorySaver and SqliteSaver, in one interleaved run."""

from __future__ import annotations

import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.bench import Bench, Sizes, drain, median_of, settle
from benchmarks.peers.contenders import CONTENDERS, Contender
from benchmarks.peers.workloads import THREAD
from benchmarks.table import timed


@dataclass
class Row:
    """One line of the table: its name for --rows, and the samples of each contender.

    In a round, the contenders take `turns` turns each, so that a noisy second hits all of them.
    """

    key: str
    title: str
    unit: str
    measure: Callable[[Bench], float | None]
    turns: int = 1
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
        figure = median * SCALES[self.unit]
        if figure >= 1000:
            return f"{figure:,.0f}"
        return f"{figure:.3g}" if figure >= 0.001 else "< 0.001"

    def format_ratio(self, ours: str, theirs: str) -> str:
        """Return how much longer ours takes."""
        numerator = self.median(ours)
        denominator = self.median(theirs)
        if numerator is None or not denominator:
            return ""
        ratio = numerator / denominator
        if ratio >= 10:
            return f"{ratio:.0f}"
        return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


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
            turns=3,
        ),
        Row("delete", f"`delete_thread` of {sizes.puts}", "ms", lambda bench: bench.delete()),
        Row("left", "... left on the disk", "MB", lambda bench: bench.deleted().size()),
    ]


def _make_step_rows() -> list[Row]:
    def make(call: str, durability: str) -> Row:
        asynchronous = call == "ainvoke"
        return Row(
            f"{call}-{durability}",
            f"step, `{call}`, {durability}",
            "us",
            lambda bench: bench.step(asynchronous=asynchronous, durability=durability),
            turns=4,
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

    def read_newest_history(bench: Bench) -> float:
        return read_history(bench, 20)

    steps = sizes.steps
    return [
        Row("latest-cold", f"latest of {sizes.puts}, new object", "ms", read_latest, turns=5),
        Row("latest-warm", f"latest of {sizes.puts}, warm", "ms", read_latest_warm),
        Row("newest", f"10 newest of {sizes.puts}", "ms", list_newest, turns=5),
        Row("history", f"`get_state_history` of {steps} steps", "ms", lambda bench: read_history(bench, None), turns=3),
        Row("history-20", "`get_state_history(limit=20)`", "ms", read_newest_history, turns=5),
        Row("past-cold", "a past state by id, new object", "ms", lambda bench: bench.read_past(cold=True)),
        Row("past-warm", "a past state by id, warm", "ms", lambda bench: bench.read_past(cold=False), turns=3),
    ]


def _make_store_rows(sizes: Sizes) -> list[Row]:
    def list_filtered(bench: Bench) -> float:
        return bench.list_all(filter={"step": 4})

    return [
        Row("list", f"`list(None)`, {sizes.threads} threads of 5", "ms", lambda bench: bench.list_all(), turns=2),
        Row("list-20", "`list(None, limit=20)`", "ms", lambda bench: bench.list_all(limit=20), turns=5),
        Row("list-filter", "`list(None, filter=...)`: step 4", "ms", list_filtered, turns=2),
    ]


def _make_chat_rows(sizes: Sizes) -> list[Row]:
    steps = sizes.delta_steps

    def read_delta(bench: Bench, read: Callable[[Any], Any]) -> float:
        return bench.read_graph(bench.delta(), read, delta=True)

    return [
        Row(
            "delta-history",
            f"DeltaChannel of {steps} steps, `get_state_history(limit=20)`",
            "ms",
            lambda bench: read_delta(bench, lambda app: drain(app.get_state_history(THREAD, limit=20))),
            turns=2,
        ),
        Row(
            "delta-state",
            f"DeltaChannel of {steps} steps, `get_state`, new object",
            "ms",
            lambda bench: read_delta(bench, lambda app: app.get_state(THREAD)),
            turns=5,
        ),
        Row("window", f"last 100 of {sizes.window_steps} messages, step", "us", lambda bench: bench.slide(), turns=2),
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
    rows = select_rows(make_rows(sizes), keys)
    benches = [Bench(contender, sizes, folder) for contender in CONTENDERS]
    measure_rows(rows, benches, rounds)
    print_table("LangGraph's checkpointers", rows, CONTENDERS, RATIOS, rounds)


def select_rows(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Return the rows with some names, in their order; all if there are no names.

    Raises:
        SystemExit: there is no row of such a name.
    """
    unknown = set(keys) - {row.key for row in rows}
    if unknown:
        sys.exit(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(row.key for row in rows)}")
    return [row for row in rows if not keys or row.key in keys]


def measure_rows(rows: Sequence[Row], benches: Sequence[Bench], rounds: int) -> None:
    """Measure all rows in interleaved rounds, and close the stores."""
    turn = deque(benches)
    for number in range(rounds):
        for row in rows:
            print(f"round {number + 1} of {rounds}: {row.key}", file=sys.stderr)
            for _ in range(row.turns):
                for bench in turn:
                    row.sample(bench)
                turn.rotate(-1)  # another contender begins in the next turn
    for bench in benches:
        bench.close()


def print_table(
    title: str,
    rows: Sequence[Row],
    contenders: Sequence[Contender],
    ratios: Sequence[tuple[str, str, str]],
    rounds: int,
) -> None:
    """Print the medians of the contenders, and the ratios: their titles, ours and theirs."""
    names = [contender.name for contender in contenders]
    print(f"\n### {title}, median of {rounds} interleaved rounds\n")
    print("| row | | " + " | ".join([*names, *(title for title, _, _ in ratios)]) + " |")
    print("|---|---|" + "---|" * (len(names) + len(ratios)))
    for row in rows:
        cells = [row.format_cell(name) for name in names]
        figures = [row.format_ratio(ours, theirs) for _, ours, theirs in ratios]
        print(f"| `{row.key}` | {row.title}, {row.unit} | " + " | ".join([*cells, *figures]) + " |")
