"""Starts processes that run or serve the graphs of tests/sql/flow.py."""

import json
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

PATIENCE = 60.0


@contextmanager
def start_process(launcher, *task):
    """Start tests/sql/flow.py; kill it in the end, or if it says nothing for too long."""
    with launcher.start("-m", "tests.sql.flow", json.dumps(task), cwd=Path(__file__).parents[2]) as process:
        killer = Timer(PATIENCE, process.kill)
        killer.start()
        try:
            yield process
        finally:
            killer.cancel()
            process.kill()
