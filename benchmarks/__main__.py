"""Compare graphkit and its peers on real files, and print tables."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

TABLES = (
    "steps",
    "growth",
    "storage",
    "at_scale",
    "imports",
    "langgraph_savers",
    "databases",
    "fan_out",
    "maps",
    "commands",
    "overhead",
    "wrappers",
    "many_threads",
    "scaling",
    "work",
    "agents",
    "agents_at_scale",
)

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="which tables; all by default")
parser.add_argument("--dir", type=Path, help="where the files go")
parser.add_argument("--rows", help="rows of langgraph_savers or databases, with commas between; all by default")
parser.add_argument("--rounds", type=int, default=3, help="rounds of langgraph_savers and databases; 3 by default")
parser.add_argument("--quick", action="store_true", help="these two with little work, to see that they run")
parser.add_argument("--threads", type=int, default=10_000, help="threads of the store of work; 10000 by default")
arguments = parser.parse_args()


def read_options(table: str) -> dict[str, Any]:
    """Return the options of a table; only langgraph_savers, databases and work have some."""
    if table == "work":
        return {"threads": arguments.threads}
    if table not in {"langgraph_savers", "databases"}:
        return {}
    from benchmarks.peers.bench import QUICK

    options: dict[str, Any] = {"rounds": arguments.rounds}
    if arguments.rows:
        options["keys"] = arguments.rows.split(",")
    if arguments.quick:
        options |= {"sizes": QUICK, "rounds": 1}
    return options


print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
with tempfile.TemporaryDirectory(dir=arguments.dir) as root:
    for table in arguments.tables or TABLES:
        main = importlib.import_module(f"benchmarks.{table}").main
        main(lambda: Path(tempfile.mkdtemp(dir=root)), **read_options(table))
