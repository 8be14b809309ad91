"""A PostgreSQL server for tests, on a socket in a directory of its own."""

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class PostgresServer:
    """A server that tests may stop, kill and start again."""

    def __init__(self, directory):
        self.directory = directory
        self.connection_string = f"host={directory} user=test dbname=postgres"
        self.is_running = False
        # It refuses to run as root.
        self._own = {"user": "postgres"} if os.geteuid() == 0 else {}

    def _run(self, name, *arguments):
        command = [str(PROGRAMS[-1] / name), "-D", f"{self.directory}/data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.directory, **self._own)

    def create(self):
        self._run("initdb", "-A", "trust", "-U", "test", "-N", "-E", "UTF8", "--locale", "C")

    def start(self, options="-F"):
        """Start it; with -F it does not wait for the disk."""
        own = f"{options} -k {self.directory} -c listen_addresses= -c max_connections=200"
        deadline = monotonic() + 60
        while True:
            try:
                self._run("pg_ctl", "-w", "-l", f"{self.directory}/log", "-o", own, "start")
                break
            except subprocess.CalledProcessError:
                # Processes of a server that was killed have not ended yet.
                if monotonic() > deadline:
                    raise
        self.is_running = True

    def stop(self, mode="immediate"):
        self._run("pg_ctl", "-w", "-m", mode, "stop")
        self.is_running = False

    def kill(self):
        """Kill its first process; the others end when they notice."""
        os.kill(int(Path(f"{self.directory}/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        self.is_running = False


@contextmanager
def start():
    """Start a server, and stop it in the end; skip the test where PostgreSQL is not installed."""
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed")
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o777)
        server = PostgresServer(directory)
        server.create()
        server.start()
        try:
            yield server
        finally:
            if server.is_running:
                server.stop()
