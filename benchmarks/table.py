"""Measuring and printing: rounds of all rows interleaved, medians, one table per subject."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """One line: a name, a way to measure once (seconds, or any figure), and what came out."""

    name: str
    measure: Callable[[], float]
    samples: list[float] = field(default_factory=list)
    failure: str = ""

    def sample(self) -> None:
        """Measure once; a peer that is not installed becomes a note in the table."""
        if self.failure:
            return
        gc.collect()
        try:
            self.samples.append(self.measure())
        except ImportError as error:
            self.failure = f"not installed: {error.name}"

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.samples)


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run(
    title: str, rows: list[Row], *, rounds: int, unit: str = "us", scale: float = 1e6, base: str | None = None
) -> None:
    """Measure all rows, a round of each in turn, and print the table; `base` names the row that ratios refer to."""
    for _ in range(rounds):
        for row in rows:
            row.sample()
    reference = next((row.median for row in rows if row.name == base and row.samples), None)
    print(f"\n### {title}\n")
    print(f"| | {unit}, median [min .. max] of {rounds} |" + (f" against {base} |" if base else ""))
    print("|---|---|" + ("---|" if base else ""))
    for row in rows:
        if not row.samples:
            print(f"| {row.name} | {row.failure} |" + (" |" if base else ""))
            continue
        low, mid, high = (scale * value for value in (min(row.samples), row.median, max(row.samples)))
        ratio = f" {row.median / reference:.2f} |" if reference else (" |" if base else "")
        print(f"| {row.name} | {mid:.4g} [{low:.4g} .. {high:.4g}] |{ratio}")
    sys.stdout.flush()
