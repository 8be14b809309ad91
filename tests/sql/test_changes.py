"""Watchers learn of changes: of this object, of others and of other processes; nothing is missed."""

import itertools
import threading

import pytest

from savers._sql.sqlite_changes import _Commits
from tests.sql.rows import add_history, put
from tests.support.databases import encode_text
from tests.support.forked import run_in_child

LONG = 60
ANY = None
"""What a listener returns where any thread may have changed."""
MARKS = itertools.count()
MOST_MARKS = 1000
"""How many marks are made until a listener names one. Few are needed: a new connection reports any thread."""


@pytest.fixture
def listener(database):
    listener = database.changes.open_listener("t")
    # It may hear of what was committed before, for which the tests do not wait.
    take_changed_threads(listener, database)
    yield listener
    listener.close()


def has_heard(listener):
    """Whether the listener hears of a change within the time that any of them may take."""
    with listener.condition:
        return listener.condition.wait_for(listener.has_changes, LONG)


def take_changed_threads(listener, database):
    """The threads of whose changes the listener heard since the last call, up to those committed before this one.

    Nothing waits for a time to pass. Two threads are made one after the other: once the listener has heard of the second
    one, it has heard of all that was committed before the first one. (One look at SQLite may tell of the first one before
    it tells of a change before it.)
    """
    changed = set()
    for _ in range(2):
        changed |= _take_until_mark(listener, database)
    return {thread for thread in changed if thread is ANY or not thread.startswith("mark-")}


def _take_until_mark(listener, database):
    changed = set()
    for _ in range(MOST_MARKS):
        mark = f"mark-{next(MARKS)}"
        # PostgreSQL notifies of threads that are watched.
        watching_mark = database.changes.open_listener(mark)
        put_and_notify(database, add_history(database, mark), 0, mark)
        threads = set()
        while threads is not ANY:
            changed |= threads
            if mark in changed:
                watching_mark.close()
                return changed
            assert has_heard(listener)
            threads = listener.take_threads()
        # The mark may be one of any: make another one.
        changed.add(ANY)
        watching_mark.close()
    raise AssertionError("no thread was named")


def put_and_notify(database, history, position, thread="t"):
    """A put that tells watchers in the same statement."""
    database.write(
        f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, ?, ?){database.changes.notify_clause}",
        (history, position, b"", *database.changes.notify_parameters(encode_text(thread))),
    )


def test_a_listener_hears_of_a_change_once(database, listener, open_database):
    history = add_history(database)
    for position, writer in enumerate([database, open_database()]):
        put_and_notify(writer, history, position)
        assert take_changed_threads(listener, database) == {"t"}
        assert take_changed_threads(listener, database) == set()


def notify_in_transaction(database):
    """Add a record and notify of it; yield before the commit."""
    history = add_history(database)
    with database.transaction() as transaction:
        transaction.execute(
            f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, 1, ?)", (history, b"")
        )
        transaction.notify("t")
        yield


def test_a_transaction_notifies_at_its_commit(open_postgres):
    database = open_postgres()
    other = open_postgres()
    listener = database.changes.open_listener("t")
    watching_mark = database.changes.open_listener("mark")
    history = add_history(database, "mark")
    transaction = notify_in_transaction(database)
    next(transaction)
    put_and_notify(other, history, 0, "mark")
    assert has_heard(listener)
    assert listener.take_threads() == {"mark"}
    assert list(transaction) == []
    assert has_heard(listener)
    assert listener.take_threads() == {"t"}
    watching_mark.close()
    listener.close()


def test_a_listener_hears_of_a_change_in_another_process(database, listener):
    history = add_history(database)
    assert run_in_child(lambda: put_and_notify(database, history, 0))
    assert take_changed_threads(listener, database) == {"t"}


def test_the_thread_ends_with_the_last_listener(database):
    before = set(threading.enumerate())
    listeners = [database.changes.open_listener("t") for _ in range(3)]
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "graphkit-changes"]
    for listener in listeners:
        assert thread.is_alive()
        listener.close()
        listener.close()
    thread.join(LONG)
    assert not thread.is_alive()
    again = database.changes.open_listener("t")
    history = add_history(database)
    put_and_notify(database, history, 0)
    assert has_heard(again)
    again.close()


def test_a_file_that_was_replaced_is_watched_again(open_sqlite, tmp_path):
    database = open_sqlite()
    listener = database.changes.open_listener("t")
    for name in ("test.db", "test.db-wal", "test.db-shm"):
        (tmp_path / name).unlink()
    history = add_history(database)
    assert has_heard(listener)
    take_changed_threads(listener, database)
    put(database, history, 0)
    assert take_changed_threads(listener, database) == {"t"}
    listener.close()


def test_a_file_that_could_not_be_opened_for_a_while_is_watched_again(open_sqlite, tmp_path):
    database = open_sqlite()
    add_history(database)
    commits = _Commits(database.connect_to_tables, database.names)
    file = tmp_path / "test.db"
    file.rename(tmp_path / "away")
    file.mkdir()
    assert commits.find_threads() == {ANY}
    file.rmdir()
    (tmp_path / "away").rename(file)
    assert commits.find_threads() == {ANY}
    assert commits.find_threads() == set()
    commits.close()


def test_a_lost_connection_counts_as_a_change_and_is_replaced(open_postgres):
    database = open_postgres()
    history = add_history(database)
    listener = database.changes.open_listener("t")
    for position in range(2):
        take_changed_threads(listener, database)
        database.read(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        # Told as a change of any thread, and not of none, until notifications arrive again.
        assert ANY in take_changed_threads(listener, database)
        put_and_notify(database, history, position)
        assert take_changed_threads(listener, database) == {"t"}
    listener.close()
