"""A client that is killed at any moment: its transactions are there as a whole or not at all."""

import json
import threading
from pathlib import Path

import pytest

from tests.sql.rows import add_history, positions, put
from tests.support.databases import PostgresDatabase

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start_writer(request, launcher, tmp_path, database):
    def start(history, number):
        if isinstance(database, PostgresDatabase):
            place = request.getfixturevalue("server").connection_string
            kind, options = "postgres", {"schema": database.schema}
        else:
            kind, place, options = "sqlite", str(tmp_path / "test.db"), {}
        return launcher.start("-m", "tests.sql.writer", json.dumps([kind, place, options, history, number]), cwd=ROOT)

    return start


def kill_soon(writer, dice):
    """Kill it between or within statements: after some microseconds that differ each time."""
    threading.Timer(dice * 0.00037, writer.kill).start()


def test_what_was_acknowledged_is_there_and_nothing_by_halves(database, start_writer):
    history = add_history(database)
    for dice in range(6):
        first = len(positions(database, history)) // 3
        writer = start_writer(history, first)
        told = [int(writer.stdout.readline()) for _ in range(3)]
        kill_soon(writer, dice)
        told += [int(line) for line in writer.stdout]
        writer.wait()
        writer.stdout.close()
        writer.stdin.close()
        # The server may not have noticed yet, so the last commit may still be on its way.
        with database.transaction() as transaction:
            if isinstance(database, PostgresDatabase):
                transaction.execute(f"LOCK TABLE {database.names.records} IN SHARE MODE")
            transaction.execute(f"UPDATE {database.names.histories} SET status = ?", ("checked",))
        found = positions(database, history)
        while len(found) % 3:
            found = positions(database, history)
        assert told == list(range(first, first + len(told)))
        assert found == list(range(len(found)))
        assert len(found) // 3 - told[-1] in {1, 2}
        # A position that a killed transaction had taken is free again.
        assert put(database, history, len(found)) == 1
        assert database.write(f"DELETE FROM {database.names.records} WHERE position = ?", (len(found),)) == 1
