"""A PostgreSQL server for tests, on a socket in a directory of its own.

The fixtures `server` and `own_server` of `tests/conftest.py` start them. Making the data of a server takes five times as
long as starting one, so that all servers of a process begin with copies of the same data.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
DEFAULT_OPTIONS = "-F"
"""A server with them does not wait for the disk."""
POOLER_SETTINGS = """
[databases]
* = host={server}
[pgbouncer]
unix_socket_dir = {directory}
listen_port = 6432
auth_type = trust
auth_file = {directory}/users
log_connections = 0
log_disconnections = 0
log_stats = 0
pool_mode = {pool_mode}
{more}
"""


class PostgresServer:
    """A server that tests may stop, kill and start again."""

    def __init__(self, directory):
        self.directory = directory
        self.connection_string = f"host={directory} user=test dbname=postgres"
        self.is_running = False
        self.options = DEFAULT_OPTIONS

    def _control(self, *arguments):
        run_as_owner(PROGRAMS[-1] / "pg_ctl", "-D", f"{self.directory}/data", "-w", *arguments, cwd=self.directory)

    def execute(self, statement, parameters=None):
        """Execute a statement on a connection of its own; return the rows."""
        import psycopg  # may be missing

        with psycopg.connect(self.connection_string, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def end_connections(self):
        """End all connections but this one, as a restart would; wait for their end."""
        self.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    def create_database(self):
        """Create a database, and return its connection string."""
        name = f"db_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return f"{self.connection_string} dbname={name}"

    def start(self, options=DEFAULT_OPTIONS):
        """Start it."""
        own = f"{options} -k {self.directory} -c listen_addresses= -c max_connections=200"
        deadline = monotonic() + 60
        while True:
            try:
                self._control("-l", f"{self.directory}/log", "-o", own, "start")
                break
            except subprocess.CalledProcessError:
                # Processes of a server that was killed have not ended yet.
                if monotonic() > deadline:
                    raise
        self.is_running = True
        self.options = options

    def reset(self):
        """Start it if a test has left it stopped or with other options; end all connections and drop the schema."""
        if self.is_running and self.options != DEFAULT_OPTIONS:
            self.stop()
        if not self.is_running:
            self.start()
        self.end_connections()
        self.drop_schema("graphkit")

    def drop_schema(self, name):
        """Drop a schema with its tables, if it is there."""
        import psycopg

        self.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(psycopg.sql.Identifier(name)))

    def stop(self, mode="immediate"):
        self._control("-m", mode, "stop")
        self.is_running = False

    def kill(self):
        """Kill its first process; the others end when they notice."""
        os.kill(int(Path(f"{self.directory}/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        self.is_running = False


def owner():
    """Return the options of a process that runs as the user of the server, which must not be root."""
    return {"user": "postgres"} if os.geteuid() == 0 else {}


def run_as_owner(program, *arguments, cwd):
    """Run a program as the user that the server runs as."""
    subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=cwd, **owner())


@contextmanager
def make_directory():
    """Make a directory that the server may write to, and remove it in the end."""
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o777)
        yield directory


@contextmanager
def make_data():
    """Make the data that servers begin with; skip the test where PostgreSQL is not installed."""
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed")
    with make_directory() as directory:
        data = f"{directory}/data"
        options = ("-A", "trust", "-U", "test", "-N", "-E", "UTF8", "--locale", "C")
        run_as_owner(PROGRAMS[-1] / "initdb", "-D", data, *options, cwd=directory)
        yield data


@contextmanager
def start(data):
    """Start a server with a copy of the data, and stop it in the end."""
    with make_directory() as directory:
        run_as_owner("cp", "-r", data, f"{directory}/data", cwd=directory)
        server = PostgresServer(directory)
        server.start()
        try:
            yield server
        finally:
            if server.is_running:
                server.stop()


@contextmanager
def start_standby(primary):
    """Start a server that follows another one and only reads, and stop it in the end."""
    with make_directory() as directory:
        source = ("-h", primary.directory, "-U", "test")
        run_as_owner(
            PROGRAMS[-1] / "pg_basebackup", *source, "-D", f"{directory}/data", "-R", "-c", "fast", cwd=directory
        )
        standby = PostgresServer(directory)
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()


@contextmanager
def start_pooler(server, pool_mode, database="postgres", *settings):
    """Start PgBouncer in front of a server, yield the connection string, and stop it in the end."""
    if POOLER is None:
        pytest.skip("PgBouncer is not installed")
    with make_directory() as directory:
        Path(directory, "users").write_text('"test" ""\n')
        more = "\n".join(settings)
        text = POOLER_SETTINGS.format(server=server.directory, directory=directory, pool_mode=pool_mode, more=more)
        Path(directory, "settings").write_text(text)
        command = (POOLER, f"{directory}/settings")
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=directory, **owner()) as pooler:
            try:
                # It says so when it accepts connections, and little afterwards: the pipe must not become full.
                assert any("process up" in line for line in pooler.stderr), "PgBouncer did not start"
                yield f"host={directory} port=6432 user=test dbname={database}"
            finally:
                pooler.kill()
