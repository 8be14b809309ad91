"""What an import takes, in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Row, run

CODE = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"


def importing(statement: str) -> Callable[[], float]:
    """Seconds that an import statement takes."""

    def measure() -> float:
        # pip compiles what it installs; a checkout must be allowed to do so too.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-c", CODE.format(statement)]
        result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        if result.returncode:
            raise ImportError(name=statement.split()[1])
        return float(result.stdout)

    return measure


def main(folder: Callable[[], Path]) -> None:
    """Print the table."""
    rows = [
        Row("import langgraph.graph", importing("import langgraph.graph")),
        Row("import graphkit, savers", importing("import graphkit, savers")),
    ]
    run("Imports", rows, rounds=7, unit="ms", scale=1e3, base="import langgraph.graph")
