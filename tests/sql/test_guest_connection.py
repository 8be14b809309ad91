"""PostgreSQL on a single connection that the application has opened, and passes in as `pool`."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool

from graphkit import RunnableConfig
from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from graphkit.testing import made
from savers import PostgresSaver
from tests.sql.rows import USES, call_within_next_statement, interrupt_at_each_point
from tests.support.databases import PostgresDatabase, PostgresSession

OFTEN = 7
"""So often is a statement executed that psycopg has prepared it, and then the saver."""


@pytest.fixture
def guest(server):
    """A connection of an application."""
    with psycopg.connect(server.connection_string, row_factory=dict_row) as connection:
        yield connection


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_single_connection_may_be_passed_in(guest, schema, autocommit):
    guest.autocommit = autocommit
    with PostgresSaver(pool=guest, schema=schema) as saver:
        thread = RunnableConfig("t")
        for number in range(OFTEN):
            saver.put(thread, made({"n": number}))
        with saver.run_lock(thread):
            assert saver.prune("t", keep_last=1) == OFTEN - 1
        assert saver.get(thread).state["n"] == OFTEN - 1
        assert saver.opener() is None

    assert guest.autocommit == autocommit
    assert guest.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert guest.execute("SELECT 1 AS one").fetchall() == [{"one": 1}]


def test_savers_take_turns_on_a_single_connection(guest, schema):
    savers = [PostgresSaver(pool=guest, schema=schema, lock_timeout=60) for _ in range(2)]

    def put(number):
        savers[number % 2].put(f"t{number % 4}", made({"n": number}))

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(put, range(160)))
    for saver in savers:
        assert [len(saver.history(thread)) for thread in saver.threads()] == [40] * 4
        saver.close()


def test_the_transaction_of_an_application_is_not_committed_by_a_put(guest, schema):
    saver = PostgresSaver(pool=guest, schema=schema, lock_timeout=0.1)
    assert saver.threads() == []
    guest.execute("CREATE TABLE of_the_application (n int)")
    with pytest.raises(CheckpointStorageError, match="has an open transaction; end it, or pass a pool"):
        saver.put("t", made({}))
    guest.rollback()
    assert guest.execute("SELECT to_regclass('of_the_application') AS found").fetchall() == [{"found": None}]
    guest.rollback()
    assert saver.threads() == []


def test_a_transaction_that_cannot_begin_leaves_none_open(guest, schema, monkeypatch):
    database = PostgresDatabase(pool=guest, schema=schema)
    database.read("SELECT 1")
    run = PostgresSession.run

    def time_out(session, sql, *args):
        if sql.startswith("SELECT set_config"):
            raise psycopg.errors.QueryCanceled
        return run(session, sql, *args)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresSession, "run", time_out)
        with pytest.raises(CheckpointStorageError, match="raise statement_timeout"):
            database.transact(lambda _: None)
    assert guest.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert database.transact(lambda transaction: transaction.execute("SELECT 1")) == [(1,)]
    database.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_pool", [False, True])
def test_a_signal_at_any_point_keeps_no_connection_of_an_application(server, guest, schema, is_pool, use):
    with ConnectionPool(server.connection_string, min_size=1, open=True) as pool:
        lent = pool if is_pool else guest
        databases = [PostgresDatabase(pool=lent, schema=schema, lock_timeout=1.0) for _ in range(2)]
        interrupt_at_each_point(*databases, use)
        with pool.connection() as connection:
            assert (connection if is_pool else guest).autocommit is False
        for database in databases:
            database.close()


def test_a_finalizer_within_a_statement_leaves_the_mode_of_the_connection(guest, schema, monkeypatch):
    database = PostgresDatabase(pool=guest, schema=schema, lock_timeout=0.1)
    database.read("SELECT 1")

    def read_another():
        with pytest.raises(CheckpointStorageError, match="in use"):
            database.read("SELECT 2")

    call_within_next_statement(monkeypatch, read_another)
    assert database.read("SELECT 1") == [(1,)]
    assert guest.autocommit is False
    database.close()


def test_a_pipeline_of_an_application_is_an_error(guest, schema):
    guest.autocommit = True
    saver = PostgresSaver(pool=guest, schema=schema)
    with guest.pipeline(), pytest.raises(CheckpointStorageError, match="is in a pipeline; end it, or pass a pool"):
        saver.put("t", made({}))
    saver.put("t", made({}))
    assert len(saver.list("t")) == 1


def test_a_single_connection_that_is_closed_is_an_error(server, guest, schema):
    saver = PostgresSaver(pool=guest, schema=schema, lock_timeout=0.1)
    assert saver.threads() == []
    server.end_connections()
    for use in (saver.threads, lambda: saver.put("t", made({}))):
        with pytest.raises(CheckpointStorageError, match="the connection that was passed in is closed"):
            use()
    with pytest.raises(CheckpointerConfigurationError, match="the connection is closed"):
        PostgresSaver(pool=guest)


def test_a_single_connection_keeps_its_password(server, monkeypatch):
    opened = []
    monkeypatch.setattr("savers._sql.postgres_server.connect", lambda parameters: opened.append(parameters) or 1 / 0)
    with psycopg.connect(f"{server.connection_string} password=secret application_name=shop") as connection:
        database = PostgresDatabase(pool=connection)
        assert "secret" not in f"{database!r}"
        with pytest.raises(ZeroDivisionError):
            database._server.connect()
    assert opened[0]["password"] == "secret"
    assert opened[0]["application_name"] == "shop"
