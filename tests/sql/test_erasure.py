"""What an erasure leaves in the files of a database: nothing, or a reason."""

import sqlite3
import threading
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import psycopg
import pytest

from graphkit import RunnableConfig
from graphkit.operations import erase, erase_where
from savers import PostgresSaver, SqliteSaver
from tests.sql.savers import names_of, put
from tests.support import postgres_server
from tests.support.client import start_client
from tests.support.erasure import MARKER, fill, find_files

# SQLite


@pytest.fixture
def sqlite_saver(tmp_path):
    with SqliteSaver(tmp_path / "a.db", compression=None, lock_timeout=0.5) as saver:
        yield saver


@pytest.fixture
def connection(tmp_path):
    """Another connection to the file of the saver."""
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        yield connection


@pytest.mark.requirement("P73")
def test_no_file_of_sqlite_has_a_byte_of_what_was_erased(sqlite_saver, tmp_path):
    fill(sqlite_saver)
    put(sqlite_saver, {"x": "kept"}, "other")
    delete_without_overwriting(sqlite_saver, tmp_path, "deleted before")
    report = erase(sqlite_saver, MARKER)
    assert (report.ok, report.remaining, report.copies) == (True, (), ())
    assert find_files(tmp_path) == []
    assert sqlite_saver.get("other").state["x"] == "kept"
    assert sqlite_saver.verify().ok


def delete_without_overwriting(saver, tmp_path, thread):
    """Store and delete a thread as where SQLite does not overwrite by default what it deletes."""
    fill(saver, thread)
    saver.close()  # which copies the write-ahead log to the file
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"DELETE FROM {names_of(saver).histories} WHERE thread = ?", (thread,))
    assert thread not in saver.threads(released=True)
    saver.close()
    assert find_files(tmp_path)


def test_a_reader_of_sqlite_with_an_old_snapshot_keeps_bytes(sqlite_saver, tmp_path, connection):
    fill(sqlite_saver)
    connection.execute("BEGIN")
    connection.execute(f"SELECT count(*) FROM {names_of(sqlite_saver).records}").fetchall()
    report = erase(sqlite_saver, MARKER)
    assert not report.ok
    assert "another connection reads an older state" in report.remaining[0]
    assert find_files(tmp_path)
    connection.execute("ROLLBACK")
    assert erase(sqlite_saver, MARKER).ok
    assert find_files(tmp_path) == []


def test_a_writer_of_sqlite_that_does_not_end_keeps_bytes(sqlite_saver, connection):
    fill(sqlite_saver)
    sqlite_saver.delete(MARKER)
    connection.execute("BEGIN IMMEDIATE")
    (report,) = erase_where(sqlite_saver, {"user": "nobody"})
    assert report.thread_id is None
    assert "VACUUM failed" in report.remaining[0]
    connection.execute("ROLLBACK")
    assert sqlite_saver.erase_deleted() == ()


def test_a_watch_of_sqlite_misses_nothing_of_what_follows_an_erasure(sqlite_saver):
    for number in range(20):
        put(sqlite_saver, {"n": number}, MARKER)
        put(sqlite_saver, {"n": number}, "kept")
    with sqlite_saver.watch("kept") as changes:
        assert erase(sqlite_saver, MARKER).ok
        stored = put(sqlite_saver, {"n": 20}, "kept")
        assert changes.get(10).checkpoint.id == stored.id


# PostgreSQL


def base(server):
    """The directory with the files of the tables; the write-ahead log is elsewhere."""
    return Path(server.directory, "data", "base")


@pytest.mark.requirement("P73")
@pytest.mark.parametrize("analyzes", [False, True])
def test_no_table_of_postgres_has_a_byte_of_what_was_erased(open_postgres_saver, server, analyzes):
    saver = open_postgres_saver(compression=None)
    with ExitStack() as stack:
        # Tables name the threads of watches and runs; a single row gives no samples.
        for name in (MARKER, f"{MARKER} too"):
            stack.enter_context(saver.watch(name))
            stack.enter_context(saver.run_lock(name))
        fill(saver)
        if analyzes:
            # The statistics have samples of all columns, also of tables that have no rows any more.
            server.execute("ANALYZE")
    server.execute("CHECKPOINT")
    assert find_files(base(server))
    report = erase(saver, MARKER)
    assert not report.ok
    assert "until VACUUM FULL" in report.remaining[0]
    put(saver, {"x": "kept"}, "other")
    with saver.run_lock("other"), saver.watch("other"):
        assert erase(saver, MARKER, full=True).remaining == ()
    server.execute("CHECKPOINT")
    assert find_files(base(server)) == []
    assert saver.get("other").state["x"] == "kept"
    assert saver.verify().ok


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "READ COMMITTED"])
def test_an_old_transaction_of_postgres_keeps_bytes(open_postgres_saver, server, isolation):
    saver = open_postgres_saver(compression=None, lock_timeout=0.3)
    fill(saver)
    with psycopg.connect(server.connection_string) as old:
        old.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        # One reads a snapshot, and the other has changed something.
        old.execute("SELECT 1" if isolation == "REPEATABLE READ" else "CREATE TEMPORARY TABLE x ()")
        report = erase(saver, MARKER, full=True)
        assert not report.ok
        assert f"process {old.info.backend_pid}" in report.remaining[0]
    assert erase(saver, MARKER, full=True).ok


def test_a_prepared_transaction_of_postgres_keeps_bytes(own_server):
    own_server.stop()
    own_server.start("-F -c max_prepared_transactions=2")
    with PostgresSaver(own_server.connection_string, compression=None, lock_timeout=0.3) as saver:
        fill(saver)
        with psycopg.connect(own_server.connection_string, autocommit=True) as connection:
            connection.execute("BEGIN")
            connection.execute("CREATE TABLE x ()")
            connection.execute("PREPARE TRANSACTION 'forgotten'")
            assert "forgotten" in erase(saver, MARKER, full=True).remaining[0]
            connection.execute("ROLLBACK PREPARED 'forgotten'")
        assert erase(saver, MARKER, full=True).ok
    own_server.stop("fast")  # without the setting, it could not recover after a crash


def test_an_erasure_waits_for_transactions_that_end_soon(open_postgres_saver, server):
    saver = open_postgres_saver(compression=None)
    fill(saver)
    with psycopg.connect(server.connection_string) as old:
        old.execute("CREATE TEMPORARY TABLE x ()")
        timer = threading.Timer(0.3, old.commit)
        timer.start()
        assert erase(saver, MARKER, full=True).ok
        timer.join()


def test_a_table_that_another_transaction_uses_is_not_waited_for_for_ever(open_postgres_saver, server):
    saver = open_postgres_saver(compression=None, lock_timeout=0.3)
    fill(saver)
    table = names_of(saver).records
    saver.delete(MARKER)
    with psycopg.connect(server.connection_string) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
        reasons = saver.erase_deleted(full=True)
        assert any("VACUUM FULL failed" in reason and table in reason for reason in reasons)
    assert saver.erase_deleted(full=True) == []


def test_a_role_that_does_not_own_the_tables_is_reported(open_postgres_saver, server, schema):
    saver = open_postgres_saver(compression=None)
    fill(saver)
    role = f"guest_{schema[-8:]}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    try:
        server.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {role}')
        for kind in ("TABLES", "SEQUENCES"):
            server.execute(f'GRANT ALL ON ALL {kind} IN SCHEMA "{schema}" TO {role}')
        with PostgresSaver(f"{server.connection_string} user={role}", schema=schema) as guest:
            report = erase(guest, MARKER, full=True)
            assert len(report.remaining) == 4
            assert all("does not own the table" in reason for reason in report.remaining)
    finally:
        server.execute(f"DROP OWNED BY {role}")
        server.execute(f"DROP ROLE {role}")


def test_a_standby_keeps_bytes_until_it_has_followed(own_server):
    with PostgresSaver(own_server.connection_string, compression=None, lock_timeout=1.0) as saver:
        fill(saver)
        with postgres_server.start_standby(own_server) as standby:
            standby.execute("SELECT pg_wal_replay_pause()")
            report = erase(saver, MARKER, full=True)
            assert not report.ok
            assert "standbys have not done it yet" in report.remaining[0]
            assert find_files(base(standby))
            standby.execute("SELECT pg_wal_replay_resume()")
            assert erase(saver, MARKER, full=True).ok
            standby.execute("CHECKPOINT")
            assert find_files(base(standby)) == []


# Both


@pytest.mark.requirement("P73")
def test_an_erasure_while_another_process_writes(open_saver, launcher):
    saver = open_saver(compression=None)
    fill(saver)
    with start_client(launcher, partial(open_saver.opener, lock_timeout=60.0), "busy", 100) as client:
        assert client.stdout.readline(), "it has begun"
        assert erase(saver, MARKER, full=True).ok
        assert client.wait(60) == 0
    assert erase(saver, MARKER, full=True).ok
    assert saver.verify().ok


def test_a_persons_threads_are_found_by_metadata_also_in_versions(open_saver):
    saver = open_saver()
    fill(saver, "live", "ann")
    fill(saver, "released", "ann")
    saver.release(RunnableConfig("released"))
    put(saver, {"x": 1}, "other")
    reports = erase_where(saver, {"user": "ann"}, full=True)
    assert {report.thread_id for report in reports} == {"live", "released"}
    assert all(report.ok for report in reports)
    assert saver.threads(released=True) == ["other"]
