"""Settings of a role, or in the connection string, that a saver on PostgreSQL meets."""

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointStorageError
from savers import PostgresSaver
from tests.sql.rows import add_history, put
from tests.support.databases import PostgresDatabase

T = RunnableConfig("t")


def with_setting(server, name, value):
    return f"{server.connection_string} options='-c {name}={value}'"


def test_the_connection_of_the_run_locks_may_be_idle(server, schema):
    database = PostgresDatabase(with_setting(server, "idle_session_timeout", "60000"), schema=schema)
    session = database._server.connect()
    try:
        rows, _ = session.run(
            "SELECT count(*) FROM pg_settings WHERE name = 'idle_session_timeout' AND setting <> '0' AND ?", (True,)
        )
    finally:
        session.close()
    assert rows == [(0,)]


def test_the_error_of_a_slow_statement_names_the_setting_to_raise(server, schema):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"n": 1})
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        saver.put(T, checkpoint)
    blocking = PostgresDatabase(server.connection_string, schema=schema)
    limited = with_setting(server, "statement_timeout", "100")
    hasty = PostgresSaver(limited, schema=schema)

    def block(transaction):
        transaction.execute(f"SELECT 1 FROM {blocking.names.histories} FOR UPDATE")
        with pytest.raises(CheckpointStorageError, match="statement timeout; raise statement_timeout of the role"):
            hasty.delete("t")

    with hasty:
        blocking.transact(block)
    blocking.close()
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        assert saver.get(T).state["n"] == 1


def test_a_refused_connection_of_the_run_locks_is_not_called_lost(server, schema, monkeypatch):
    database = PostgresDatabase(server.connection_string, schema=schema)
    history = add_history(database)

    def refuse():
        raise CheckpointStorageError(database.path, "connect to", "too many connections for this role")

    monkeypatch.setattr(database._server, "connect", refuse)
    with pytest.raises(CheckpointStorageError, match=r"cannot connect to .*: too many connections for this role$"):
        database.run_locks.hold("t", 0).__enter__()
    assert put(database, history, 0) == 1
    database.close()
