"""python -m benchmarks [TABLE ...] [--dir DIR]."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import tempfile
from pathlib import Path

TABLES = (
    "steps",
    "growth",
    "storage",
    "at_scale",
    "imports",
    "langgraph_savers",
    "fan_out",
    "commands",
    "overhead",
    "many_threads",
)

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="which tables; all by default")
parser.add_argument("--dir", type=Path, help="where the files go")
arguments = parser.parse_args()

print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}")
with tempfile.TemporaryDirectory(dir=arguments.dir) as root:
    for table in arguments.tables or TABLES:
        importlib.import_module(f"benchmarks.{table}").main(lambda: Path(tempfile.mkdtemp(dir=root)))
