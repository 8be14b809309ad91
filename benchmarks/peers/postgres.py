"""PostgreSQL servers for the benchmarks: one that waits for the disk, one that does not."""

from __future__ import annotations

import atexit
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
VARIABLE = "GRAPHKIT_BENCHMARK_POSTGRES_{}"
"""Tells a new process of this benchmark where the servers are."""


@lru_cache
def find_server(fsync: str) -> str:
    """Return the connection string of a server; the first call starts it, and the end of the process stops it.

    Args:
        fsync: "on", or "off" for commits that do not wait for the disk.

    Raises:
        ImportError: PostgreSQL is not installed.
    """
    variable = VARIABLE.format(fsync.upper())
    if variable not in os.environ:
        os.environ[variable] = _start(fsync)
    return os.environ[variable]


def _start(fsync: str) -> str:
    if not PROGRAMS:
        raise ImportError("PostgreSQL is not installed", name="postgresql")
    # The path of a socket must be short.
    directory = tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True)
    Path(directory.name).chmod(0o777)

    def run(program: str, *arguments: str) -> None:
        # The server refuses to run as root.
        own = {"user": "postgres"} if os.geteuid() == 0 else {}
        command = [str(PROGRAMS[-1] / program), "-D", f"{directory.name}/data", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=directory.name, **own)

    def stop() -> None:
        run("pg_ctl", "-w", "-m", "immediate", "stop")
        directory.cleanup()

    options = f"-k {directory.name} -c listen_addresses= -c max_connections=300"
    if fsync == "off":
        options += " -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
    run("initdb", "-A", "trust", "-U", "benchmark", "-N", "-E", "UTF8", "--locale", "C")
    run("pg_ctl", "-w", "-l", f"{directory.name}/log", "-o", options, "start")
    atexit.register(stop)
    return f"host={directory.name} user=benchmark dbname=postgres"


def execute(connection_string: str, statement: str) -> list[tuple[object, ...]]:
    """Execute a statement on a connection of its own; return its rows."""
    import psycopg

    with psycopg.connect(connection_string, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def measure_schema(connection_string: str, schema: str) -> float:
    """Return the bytes of the tables of a schema with their indexes, after a VACUUM."""
    execute(connection_string, "VACUUM")
    ((size,),) = execute(
        connection_string,
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8 FROM pg_class AS c"
        f" JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = '{schema}' AND c.relkind = 'r'",
    )
    assert isinstance(size, float)
    return size


def drop_schema(connection_string: str, schema: str) -> None:
    """Delete the tables of a schema."""
    execute(connection_string, f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
