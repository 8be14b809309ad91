"""A new interpreter for tests of what a process imports or prints, without the coverage hooks of this one."""

import os
import subprocess
import sys


def unmeasured_environment():
    """The environment for a process in which coverage does not start, since that imports modules of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def fresh_process(code):
    """What a new interpreter prints; a warning or an error in it fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=unmeasured_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr  # what a warning is in a finalizer
    return done.stdout
