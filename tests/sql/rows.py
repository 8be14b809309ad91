"""Statements that the tests of the databases share."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.support.databases import PostgresSession
from tests.support.interruptions import count_signal_points, interrupt_signal_point


def add_history(database, thread="t"):
    """Insert a live history; return its number."""
    insert = (
        f"INSERT INTO {database.names.histories} (thread, namespace, version, created) VALUES (?, '', 0, 0) "
        "RETURNING history"
    )
    ((history,),) = database.transact(lambda transaction: transaction.execute(insert, (thread,)))
    return history


def put(database, history, position, frame=b"frame"):
    """Insert a record; return 1, or 0 if the history is not live."""
    return database.write(
        f"INSERT INTO {database.names.records} (history, checkpoint, position, frame) "
        f"SELECT h.history, ?, ?, ? FROM {database.names.histories} AS h WHERE h.history = ? AND h.version = 0"
        f"{database.dialect.lock_rows('KEY SHARE OF h')}",
        (b"id", position, frame, history),
    )


def positions(database, history):
    rows = database.read(
        f"SELECT position FROM {database.names.records} WHERE history = ? ORDER BY position", (history,)
    )
    return [position for (position,) in rows]


def call_within_next_statement(monkeypatch, call):
    """Let the next statement on PostgreSQL call a function first, as a finalizer or the handler of a signal may."""
    run = PostgresSession.run

    def run_after_call(session, *statement):
        monkeypatch.setattr(PostgresSession, "run", run)
        call()
        return run(session, *statement)

    monkeypatch.setattr(PostgresSession, "run", run_after_call)


USES = {
    "transact": lambda database: database.transact(
        lambda transaction: transaction.execute(f"UPDATE {database.names.histories} SET created = 1")
    ),
    "write": lambda database: database.write(f"UPDATE {database.names.histories} SET created = 2"),
    "read": lambda database: database.read("SELECT 1"),
}


def interrupt_at_each_point(database, other, use):
    """Use a database, which a signal interrupts; then it, and another one in another thread of execution, can write."""
    history = add_history(database)
    operation = partial(USES[use], database)
    operation()
    count = count_signal_points(operation)
    assert count > 10
    with ThreadPoolExecutor(1) as executor:
        for number in range(1, count + 1):
            interrupt_signal_point(operation, number)
            writing = executor.submit(put, other, history, 2 * number)
            where = f"interrupted at {number} of {count}"
            assert writing.result(10) == 1, where
            assert put(database, history, 2 * number + 1) == 1, where
