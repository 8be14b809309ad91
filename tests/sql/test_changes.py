"""Watchers learn of changes: of this object, of others and of other processes; nothing is missed."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from savers._sql.encoded_text import encode_text
from savers._sql.postgres_database import PostgresDatabase
from tests.sql.rows import add_history, put

LONG = 60


@pytest.fixture
def listener(database):
    listener = database.open_listener("t")
    # What was committed before may be told, and is not what the tests wait for.
    while listener.wait_for_change(monotonic() + 0.1):
        pass
    yield listener
    listener.close()


def put_and_notify(database, history, position, thread="t"):
    """A put that tells watchers in the same statement."""
    database.write(
        f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, ?, ?){database.notify_clause()}",
        (history, position, b"", *database.notify_parameters(encode_text(thread))),
    )


def test_a_change_is_told_once(database, listener, open_database):
    history = add_history(database)
    for position, writer in enumerate([database, open_database()]):
        while listener.wait_for_change(monotonic() + 0.1):
            pass
        put_and_notify(writer, history, position)
        assert listener.wait_for_change(monotonic() + LONG)


def test_a_transaction_notifies_at_its_commit(database, listener):
    history = add_history(database)
    while listener.wait_for_change(monotonic() + 0.1):
        pass
    with database.transaction() as transaction:
        transaction.execute(
            f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, 1, ?)", (history, b"")
        )
        transaction.notify("t")
        assert not listener.wait_for_change(monotonic() + 0.1)
    assert listener.wait_for_change(monotonic() + LONG)


def test_nothing_is_told_if_nothing_changes(database, listener):
    database.read(f"SELECT * FROM {database.names.records}")
    assert not listener.wait_for_change(monotonic() + 0.1)
    assert not listener.wait_for_change(monotonic() - 1)


def test_a_change_between_two_waits_is_not_missed(database, listener):
    history = add_history(database)
    other = database.open_listener("t")
    put_and_notify(database, history, 0)
    assert other.wait_for_change(monotonic() + LONG)
    assert listener.wait_for_change(monotonic() + LONG)
    other.close()


def test_a_wait_can_be_ended(listener):
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(listener.wait_for_change, monotonic() + LONG)
        listener.wake()
        assert waiting.result() is False


def test_a_change_in_another_process_is_told(database, listener):
    history = add_history(database)
    while listener.wait_for_change(monotonic() + 0.1):
        pass
    pid = os.fork()
    if pid == 0:
        put_and_notify(database, history, 0)
        os._exit(0)
    assert listener.wait_for_change(monotonic() + LONG)
    assert os.waitpid(pid, 0)[1] == 0


def test_the_thread_ends_with_the_last_listener(database):
    before = set(threading.enumerate())
    listeners = [database.open_listener("t") for _ in range(3)]
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "graphkit-changes"]
    for listener in listeners:
        assert thread.is_alive()
        listener.close()
        listener.close()
    thread.join(LONG)
    assert not thread.is_alive()
    again = database.open_listener("t")
    history = add_history(database)
    put_and_notify(database, history, 0)
    assert again.wait_for_change(monotonic() + LONG)
    again.close()


def test_a_file_that_was_replaced_is_watched_again(open_sqlite, tmp_path):
    database = open_sqlite()
    listener = database.open_listener("t")
    for name in ("test.db", "test.db-wal", "test.db-shm"):
        (tmp_path / name).unlink()
    history = add_history(database)
    assert listener.wait_for_change(monotonic() + LONG)
    while listener.wait_for_change(monotonic() + 0.1):
        pass
    put(database, history, 0)
    assert listener.wait_for_change(monotonic() + LONG)
    listener.close()
    database.close()


def test_a_lost_connection_counts_as_a_change_and_is_replaced(open_postgres):
    database = open_postgres()
    history = add_history(database)
    listener = database.open_listener("t")
    for position in range(2):
        while listener.wait_for_change(monotonic() + 0.3):
            pass
        database.read(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        assert listener.wait_for_change(monotonic() + LONG)
        while listener.wait_for_change(monotonic() + 0.3):
            pass
        put_and_notify(database, history, position)
        assert listener.wait_for_change(monotonic() + LONG)
    listener.close()
    database.close()


def test_schemas_do_not_notify_each_other(server, open_postgres):
    database = open_postgres()
    other = PostgresDatabase(server.connection_string, schema="other schema")
    listener = database.open_listener("t")
    put_and_notify(other, add_history(other), 0)
    assert not listener.wait_for_change(monotonic() + 0.2)
    listener.close()
    other.write('DROP SCHEMA "other schema" CASCADE')
    other.close()
    database.close()
