"""What holds on PostgreSQL: connections, settings, guests, rights, a server that is killed."""

import gc
import multiprocessing
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psycopg
import psycopg_pool
import pytest
from psycopg.rows import dict_row

from graphkit import RunnableConfig
from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from graphkit.testing import made
from savers import PostgresSaver
from tests.sql.rows import add_history, call_within_next_statement, positions, put
from tests.support.checkpoints import list_numbers
from tests.support.databases import OutcomeUnknownError, PostgresDatabase, end_idle_transactions_soon, limit_read
from tests.support.forked import start_in_child

PREPARED_AFTER = 5
"""How often psycopg executes a statement before it prepares it."""


@pytest.fixture
def database(open_postgres):
    return open_postgres()


@pytest.fixture
def history(database):
    return add_history(database)


# Arguments


WRONG = [{}, {"connection_string": "", "pool": 1}, {"pool": 1}, {"connection_string": 1}]
WRONG += [{"connection_string": "", "schema": schema} for schema in ("", "a\0b", "x" * 64, "pg_mine", None)]


@pytest.mark.parametrize("arguments", WRONG)
def test_either_a_connection_string_or_a_pool_is_needed_and_a_name_that_a_schema_can_have(arguments):
    with pytest.raises(CheckpointerConfigurationError):
        PostgresDatabase(**arguments)


@pytest.mark.parametrize("schema", ['a"."b', "per%cent ?", "Upper'", "x" * 63, "select"])
def test_any_other_name_is_a_schema(server, schema):
    database = PostgresDatabase(server.connection_string, schema=schema)
    history = add_history(database)
    assert put(database, history, 0) == 1
    database.close()
    quoted = schema.replace('"', '""')
    server.execute(f'DROP SCHEMA "{quoted}" CASCADE')


@pytest.mark.parametrize(
    "wrong",
    [
        "host=/nowhere user=u password=SECRET dbname=d",
        "postgresql://u:SECRET@127.0.0.1:1/d",
        "{server} dbname=nowhere password=SECRET",
        "{server} user=nobody password=SECRET",
    ],
)
def test_a_server_that_cannot_be_reached_is_an_error_without_the_password(server, wrong):
    database = PostgresDatabase(wrong.format(server=server.connection_string), lock_timeout=1)
    with pytest.raises(CheckpointStorageError, match="check the connection string") as caught:
        database.read("SELECT 1")
    seen = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {database!r} {database.path}"
    assert "SECRET" not in seen


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("postgresql://u:SECRET@127.0.0.1:1/d", "u@127.0.0.1:1/d"),
        ("host=h1,h2 port=1,2 user=u dbname=d password=SECRET", "u@h1:1,h2:2/d"),
        ("host=/sockets user=u password=SECRET", "u@/sockets:5433/u"),
        ("hostaddr=10.0.0.1 user=u", "u@10.0.0.1:5433/u"),
        ("dbname=d", "operator@localhost:5433/d"),
    ],
)
def test_a_connection_is_named_with_user_host_port_and_database(monkeypatch, given, named):
    monkeypatch.setenv("PGPORT", "5433")
    monkeypatch.setenv("PGUSER", "operator")
    for name in ("PGHOST", "PGHOSTADDR", "PGDATABASE"):
        monkeypatch.delenv(name, raising=False)
    assert PostgresDatabase(given).path == f'schema "graphkit" of {named}'


def test_two_users_of_a_database_share_its_run_locks_and_two_servers_of_a_host_do_not():
    def key(connection_string):
        return PostgresSaver(connection_string).run_lock_key(RunnableConfig("t"))

    assert key("postgresql://one@h:1/d") == key("postgresql://two@h:1/d")
    assert key("postgresql://one@h:1/d") != key("postgresql://one@h:2/d")


@pytest.mark.parametrize("wrong", ["postgres//u:SECRET@host/d", "SECRET", "host=h passwort=SECRET"])
def test_what_is_no_connection_string_is_refused_without_repeating_it(wrong):
    with pytest.raises(CheckpointerConfigurationError, match="not understood") as caught:
        PostgresDatabase(wrong)
    assert "SECRET" not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


# Tables


def test_eight_processes_that_start_at_once_make_one_schema(server, schema):
    start = multiprocessing.get_context("fork").Barrier(8)

    def create(name):
        database = PostgresDatabase(server.connection_string, schema=schema)
        start.wait(60)
        add_history(database, name)

    children = [start_in_child(partial(create, f"thread {number}")) for number in range(8)]
    assert [wait() for wait in children] == [0] * 8
    found = PostgresDatabase(server.connection_string, schema=schema)
    assert found.read(f"SELECT count(DISTINCT thread) FROM {found.names.histories}") == [(8,)]
    found.close()


def test_a_role_that_may_not_create_and_finds_nothing_gets_a_clear_error(server, schema):
    server.execute("DROP ROLE IF EXISTS guest2")
    server.execute("CREATE ROLE guest2 LOGIN")
    limited = PostgresDatabase(server.connection_string.replace("user=test", "user=guest2"), schema=schema)
    with pytest.raises(CheckpointStorageError, match="use graphkit once as a role that may create them"):
        limited.read("SELECT 1")


def test_a_database_with_another_encoding_is_refused(server):
    server.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(CheckpointStorageError, match="UTF8"):
        PostgresDatabase(f"{server.connection_string} dbname=latin").read("SELECT 1")
    server.execute("DROP DATABASE latin")


# Settings of a role, or in the connection string


def with_setting(server, name, value):
    return f"{server.connection_string} options='-c {name}={value}'"


def test_the_connection_of_the_run_locks_may_be_idle(server, schema):
    database = PostgresDatabase(with_setting(server, "idle_session_timeout", "60000"), schema=schema)
    with closing(database._server.connect()) as session:
        rows = session.run(
            "SELECT count(*) FROM pg_settings WHERE name = 'idle_session_timeout' AND setting <> '0' AND ?", (True,)
        )
    assert rows == [(0,)]


def test_the_error_of_a_slow_statement_names_the_setting_to_raise(server, schema, open_postgres_saver):
    saver = open_postgres_saver()
    saver.put("t", made({"n": 1}))
    limited = with_setting(server, "statement_timeout", "100")

    def block(transaction):
        transaction.execute(f"SELECT 1 FROM {saver._database.names.histories} FOR UPDATE")
        with pytest.raises(CheckpointStorageError, match="statement timeout; raise statement_timeout of the role"):
            hasty.delete("t")

    with PostgresSaver(limited, schema=schema) as hasty:
        saver._database.transact(block)
    assert saver.get("t").state["n"] == 1


def test_a_refused_connection_of_the_run_locks_is_not_called_lost(database, history, monkeypatch):
    def refuse():
        raise CheckpointStorageError(database.path, "connect to", "too many connections for this role")

    monkeypatch.setattr(database._server, "connect", refuse)
    with pytest.raises(CheckpointStorageError, match=r"cannot connect to .*: too many connections for this role$"):
        database.run_locks.hold("t", 0).__enter__()
    assert put(database, history, 0) == 1


# Guests


@pytest.fixture
def make_pool(server):
    pools = []

    def make(**options):
        options = {"min_size": 1, "max_size": 2, "open": True, **options}
        pools.append(psycopg_pool.ConnectionPool(server.connection_string, **options))
        pools[-1].wait(60)  # it connects in the background; some tests give it little time
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_guest_gives_connections_back_as_they_were(make_pool, schema, autocommit):
    pool = make_pool(kwargs={"autocommit": autocommit, "row_factory": dict_row}, max_size=1)
    read_settings = "SELECT name, setting FROM pg_settings ORDER BY name"
    with pool.connection() as connection:
        settings = connection.execute(read_settings).fetchall()
    database = PostgresDatabase(pool=pool, schema=schema)
    history = add_history(database)
    assert put(database, history, 0) == 1
    with pytest.raises(ZeroDivisionError):
        database.transact(
            lambda transaction: transaction.execute(f"DELETE FROM {database.names.histories}").append(1 / 0)
        )
    assert positions(database, history) == [0]
    database.close()
    assert not pool.closed
    assert pool.get_stats()["requests_num"] > 4
    with pool.connection() as connection:
        assert connection.autocommit == autocommit
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert connection.execute(read_settings).fetchall() == settings


def test_a_guest_waits_for_other_writers_no_longer_than_it_may(make_pool, schema, database, history):
    guest = PostgresDatabase(pool=make_pool(), schema=schema, lock_timeout=0.05)
    update = f"UPDATE {database.names.histories} SET status = ?"

    def keep_waiting(transaction):
        transaction.execute(update, ("x",))
        with pytest.raises(CheckpointStorageError, match="lock_timeout"):
            guest.transact(lambda late: late.execute(update, ("y",)))

    database.transact(keep_waiting)
    assert put(guest, history, 0) == 1


def test_a_guest_survives_the_end_of_all_connections_and_forgets_them(server, make_pool, schema, caplog):
    caplog.set_level("ERROR", "psycopg.pool")  # a record would keep a connection
    pool = make_pool(min_size=2)
    database = PostgresDatabase(pool=pool, schema=schema)
    history = add_history(database)
    ended = database.transact(lambda transaction: weakref.ref(transaction._session.connection))
    for position in range(3):
        server.end_connections()
        assert put(database, history, position) == 1
    assert positions(database, history) == [0, 1, 2]
    gc.collect()
    assert ended() is None


def test_a_guest_passes_over_a_connection_that_was_closed_in_its_pool(make_pool, schema):
    pool = make_pool(max_size=1)
    database = PostgresDatabase(pool=pool, schema=schema)
    with pool.connection() as connection:
        pass
    connection.close()
    assert database.read("SELECT 1") == [(1,)]


def test_an_interrupt_at_the_end_of_a_return_gives_no_connection_to_a_pool_twice(make_pool, schema, monkeypatch):
    pool = make_pool(max_size=1)
    database = PostgresDatabase(pool=pool, schema=schema)
    database.read("SELECT 1")
    put_back = pool.putconn

    def put_back_and_interrupt(connection):
        monkeypatch.undo()
        put_back(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "putconn", put_back_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        database.read("SELECT 1")
    assert database.read("SELECT 2") == [(2,)]


def test_a_pool_without_a_free_connection_is_reported(make_pool, schema):
    pool = make_pool(max_size=1)
    database = PostgresDatabase(pool=pool, schema=schema, lock_timeout=0.2)
    add_history(database)
    with pool.connection(), pytest.raises(CheckpointStorageError, match="max_size"):
        database.read("SELECT 1")


# Prepared statements


def prepare(database, history, first=0):
    """Insert rows with one statement until it is prepared without a cursor of psycopg; return the next position."""
    for position in range(first, first + PREPARED_AFTER + 1):
        assert put(database, history, position) == 1
    assert database.read("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'graphkit%'") == [(1,)]
    return first + PREPARED_AFTER + 1


def test_a_prepared_statement_that_was_dropped_is_executed_once_and_prepared_again(database, history):
    first = prepare(database, history)
    database.read("DEALLOCATE ALL")
    following = prepare(database, history, first)
    assert positions(database, history) == list(range(following))


def test_a_prepared_statement_survives_a_rollback(database, history):
    # psycopg then drops all that is prepared on the connection, if some of it is its own.
    position = prepare(database, history)
    for _ in range(PREPARED_AFTER + 1):
        database.read("SELECT 1")
    with pytest.raises(ZeroDivisionError):
        database.transact(
            lambda transaction: transaction.execute(f"DELETE FROM {database.names.records}").append(1 / 0)
        )
    assert put(database, history, position) == 1
    assert positions(database, history) == list(range(position + 1))


# Lost connections


def test_a_lost_connection_is_replaced_before_a_statement(server, database, history):
    update = f"UPDATE {database.names.histories} SET status = 'x'"
    for position in range(3):
        server.end_connections()
        assert put(database, history, position) == 1
        server.end_connections()
        assert positions(database, history) == list(range(position + 1))
        server.end_connections()
        database.transact(lambda transaction: transaction.execute(update))


def test_a_finalizer_within_a_statement_has_a_connection_of_its_own_and_both_are_kept(database, monkeypatch):
    database.read("SELECT 1")
    sessions = set()
    for _ in range(3):
        call_within_next_statement(monkeypatch, lambda: database.read("SELECT 2"))
        assert database.read("SELECT 1") == [(1,)]
        sessions.add(frozenset(database._connections._idle))
    assert [len(idle) for idle in sessions] == [2]


def test_a_finalizer_that_gets_no_connection_leaves_its_statement_its_own(open_postgres, monkeypatch):
    monkeypatch.setattr("savers._sql.postgres_database._MOST", 1)
    database = open_postgres(lock_timeout=0.1)
    read_process = "SELECT pg_backend_pid()"
    process = database.read(read_process)

    def read_another():
        with pytest.raises(CheckpointStorageError, match="all 1 connections were in use"):
            database.read("SELECT 2")

    call_within_next_statement(monkeypatch, read_another)
    assert database.read(read_process) == process
    assert database.read(read_process) == process, "it was kept"


def test_a_connection_that_was_lent_while_the_others_were_closed_is_closed_when_it_returns(database):
    def close(transaction):
        session = transaction._session
        database.close()
        assert not session.connection.closed
        return session

    assert database.transact(close).connection.closed
    assert database.read("SELECT 1") == [(1,)], "a later use connects again"


def test_a_watch_that_ends_after_its_store_was_closed_leaves_no_connection(server, schema, database):
    listener = database.changes.open_listener("t")
    database.close()
    listener.close()
    assert database._connections is None
    assert server.execute(f'SELECT count(*) FROM "{schema}".watchers') == [(0,)]


def test_a_transaction_of_a_paused_process_is_ended_by_the_server(
    server, database, open_postgres, monkeypatch, history
):
    """It would keep the row of a run lock, which another process waits for."""
    end_idle_transactions_soon(monkeypatch)
    paused = open_postgres(lease=0.1)
    paused.read("SELECT 1")

    def pause(transaction):
        transaction.execute(f"DELETE FROM {database.names.histories}")
        while server.execute("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction'"):
            pass
        transaction.execute("SELECT 1")

    with pytest.raises(CheckpointStorageError, match="nothing was changed"):
        paused.transact(pause)
    paused.close()
    assert put(database, history, 0) == 1


def is_sleeping(server):
    return server.execute(
        "SELECT 1 FROM pg_stat_activity "
        "WHERE query LIKE '%pg_sleep(CASE%' AND state = 'active' AND pid <> pg_backend_pid()"
    )


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_connection_that_is_lost_before_the_answer_leaves_the_outcome_open(server, database, is_prepared, history):
    statement = (
        f"INSERT INTO {database.names.records} (history, position, frame)"
        f" SELECT ?, ?, '' FROM pg_sleep(CASE WHEN ?::bigint = 0 THEN 0 ELSE 600 END)"
    )
    expected = list(range(PREPARED_AFTER + 1)) if is_prepared else []
    for position in expected:
        assert database.write(statement, (history, position, 0)) == 1
    with ThreadPoolExecutor(1) as executor:
        slow = executor.submit(database.write, statement, (history, 100, 600))
        while not is_sleeping(server):
            assert not slow.done()
        server.end_connections()
        with pytest.raises(OutcomeUnknownError):
            slow.result()
    assert positions(database, history) == expected


# Rewrites

IS_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.mark.parametrize("change", ["delete", "release"])
def test_what_waits_for_a_rewrite_finds_the_new_history(server, open_postgres_saver, monkeypatch, change):
    saver = open_postgres_saver()
    other = open_postgres_saver()
    for number in range(3):
        saver.put("t", made({"n": number}))
    transact = saver._database.transact
    waiting = []

    with ThreadPoolExecutor(1) as executor:

        def transact_and_wait(work):
            return transact(lambda transaction: wait_after(work(transaction)))

        def wait_after(freed):
            waiting.append(executor.submit(getattr(other, change), "t"))
            while not server.execute(IS_WAITING):
                assert not waiting[0].done()
            return freed

        monkeypatch.setattr(saver._database, "transact", transact_and_wait)
        assert saver.prune("t", keep_last=2) == 1
        result = waiting[0].result()
    assert saver.list("t") == []
    if change == "delete":
        assert result is True
        assert saver.threads(released=True) == []
    else:
        assert [checkpoint.state["n"] for checkpoint in result.checkpoints] == [2, 1]
        assert saver.tag("t", 1).checkpoints == result.checkpoints


def test_a_rewrite_waits_until_the_history_is_copied(server, open_postgres_saver, monkeypatch):
    limit_read(monkeypatch, 0)
    writer = open_postgres_saver()
    for number in range(20):
        writer.put("t", made({"n": number, "whole": os.urandom(60_000)}))
    saver = open_postgres_saver()
    new_log = saver._store.new_log
    waiting = []

    with ThreadPoolExecutor(1) as executor:

        def rewrite_and_begin(thread_id, *more):
            if thread_id == "u":
                waiting.append(executor.submit(open_postgres_saver().prune, "t", keep_last=2))
                while not waiting[0].done() and not server.execute(IS_WAITING):
                    pass
            return new_log(thread_id, *more)

        monkeypatch.setattr(saver._store, "new_log", rewrite_and_begin)
        saver.copy("t", "u")
        assert waiting[0].result() == 18
    assert list_numbers(open_postgres_saver(), "u") == [*range(19, -1, -1)]
