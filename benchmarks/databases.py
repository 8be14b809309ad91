"""SQLite and PostgreSQL: our savers beside LangGraph's on the same databases, in one interleaved run.

The columns "API" use graphkit's savers as graphkit's own graphs do. The others are checkpointers of
LangGraph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.langgraph_savers import Row, make_rows, measure_rows, print_table, select_rows
from benchmarks.peers.bench import Bench, Sizes
from benchmarks.peers.contenders import Contender

FAST = (
    Contender("files, API", "own", "never"),
    Contender("SQLite, API", "own-sqlite", "never"),
    Contender("PostgreSQL, API", "own-postgres", "off"),
    Contender("files", "graphkit", "never"),
    Contender("SQLite", "graphkit-sqlite", "never"),
    Contender("SqliteSaver", "sqlite", "OFF"),
    Contender("PostgreSQL", "graphkit-postgres", "off"),
    Contender("PostgresSaver", "postgres", "off"),
)
DURABLE = (
    Contender("files, always", "graphkit", "always"),
    Contender("SQLite, always", "graphkit-sqlite", "always"),
    Contender("SqliteSaver FULL", "sqlite", "FULL"),
    Contender("PostgreSQL, fsync", "graphkit-postgres", "on"),
    Contender("PostgresSaver, fsync", "postgres", "on"),
)
FAST_RATIOS = (
    ("SQLite / theirs", "SQLite", "SqliteSaver"),
    ("SQLite, API / theirs", "SQLite, API", "SqliteSaver"),
    ("PostgreSQL / theirs", "PostgreSQL", "PostgresSaver"),
    ("PostgreSQL, API / theirs", "PostgreSQL, API", "PostgresSaver"),
)
DURABLE_RATIOS = (
    ("SQLite / theirs", "SQLite, always", "SqliteSaver FULL"),
    ("PostgreSQL / theirs", "PostgreSQL, fsync", "PostgresSaver, fsync"),
)
DURABLE_KEYS = ("put", "invoke-sync", "invoke-async", "ainvoke-async", "delete")
"""The rows whose figures depend on the disk."""
OWN_KEYS = frozenset(
    {
        "put",
        "bytes",
        "invoke-sync",
        "latest-cold",
        "latest-warm",
        "newest",
        "past-cold",
        "past-warm",
        "list",
        "list-filter",
        "process",
        "delete",
        "left",
    }
)
"""The rows that graphkit's own API can be measured with."""
LEFT_OUT = frozenset({"encrypted", "syncs", "invoke-exit", "ainvoke-exit"})


def main(folder: Callable[[], Path], *, keys: Sequence[str] = (), rounds: int = 3, sizes: Sizes | None = None) -> None:
    """Print two tables: without waiting for the disk, and with it.

    Args:
        folder: makes an empty folder.
        keys: the rows to measure; all by default.
        rounds: how often each row is measured.
        sizes: how much work a row does.

    Raises:
        SystemExit: there is no row of such a name.
    """
    sizes = sizes or Sizes()
    rows = make_database_rows(sizes, keys)
    _print_part("Databases, not waiting for the disk", FAST, FAST_RATIOS, rows, rounds, sizes, folder)
    rows = [row for row in make_database_rows(sizes, keys) if row.key in DURABLE_KEYS]
    if rows:
        _print_part("Databases, each commit on the disk", DURABLE, DURABLE_RATIOS, rows, rounds, sizes, folder)


def make_database_rows(sizes: Sizes, keys: Sequence[str] = ()) -> list[Row]:
    """Return the rows with some names, all by default."""
    return select_rows([_limit(row) for row in make_rows(sizes) if row.key not in LEFT_OUT], keys)


def _limit(row: Row) -> Row:
    """Return the row; graphkit's own API is measured only where it can be."""
    measure = row.measure

    def measure_if_possible(bench: Bench) -> float | None:
        is_own = bench.contender.kind.startswith("own")
        return None if is_own and row.key not in OWN_KEYS else measure(bench)

    row.measure = measure_if_possible
    return row


def _print_part(
    title: str,
    contenders: Sequence[Contender],
    ratios: Sequence[tuple[str, str, str]],
    rows: Sequence[Row],
    rounds: int,
    sizes: Sizes,
    folder: Callable[[], Path],
) -> None:
    present: list[Contender] = []
    for contender in contenders:
        reason = contender.explain_missing()
        if reason is None:
            present.append(contender)
        else:
            print(f"{contender.name} is left out: {reason}", file=sys.stderr)
    names = {contender.name for contender in present}
    possible = [ratio for ratio in ratios if {ratio[1], ratio[2]} <= names]
    measure_rows(rows, [Bench(contender, sizes, folder) for contender in present], rounds)
    print_table(title, rows, present, possible, rounds)
