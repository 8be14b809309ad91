"""Statements that the tests of the databases share."""


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
        f"{database.dialect.lock_rows(key_share='h')}",
        (b"id", position, frame, history),
    )


def positions(database, history):
    rows = database.read(
        f"SELECT position FROM {database.names.records} WHERE history = ? ORDER BY position", (history,)
    )
    return [position for (position,) in rows]


def fenced_put(database, thread, history, position):
    """A put of the holder of a run lock, which inserts nothing once another one has the lock."""
    token = database.run_locks.token_of(thread)
    if token is None:
        return put(database, history, position)
    return database.write(
        f"INSERT INTO {database.names.records} (history, position, frame) "
        f"SELECT h.history, ?, ? FROM {database.names.histories} AS h, {database.names.run_locks} AS l "
        f"WHERE h.history = ? AND h.version = 0 AND l.thread = ? AND l.token = ?"
        f"{database.dialect.lock_rows(share='l', key_share='h')}",
        (position, b"", history, thread, token),
    )
