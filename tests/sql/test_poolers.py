"""PostgreSQL behind PgBouncer, which lends the sessions of the server to its clients."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from graphkit import RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.testing import made
from savers import PostgresSaver
from tests.support import postgres_server
from tests.support.client import start_client
from tests.support.databases import limit_wait_for_delivery

LONG = 60.0
"""Seconds that nothing takes: neither a lease nor an interval may end in a test."""
CONFIG = RunnableConfig("t")
CHECKPOINT = made({"n": 1})
USES = {
    "put": lambda saver: saver.put(CONFIG, CHECKPOINT),
    "get": lambda saver: saver.get(CONFIG),
    "exists": lambda saver: saver.exists(),
    "run_lock": lambda saver: saver.run_lock(CONFIG).__enter__(),
    "watch": lambda saver: saver.watch("t"),
    "verify": lambda saver: saver.verify(),
}


@pytest.fixture
def database(server):
    """The connection string of a database that no other test uses."""
    return server.create_database()


def through(server, database, pool_mode, *settings):
    """Start a pooler in front of a database, and yield the connection string."""
    return postgres_server.start_pooler(server, pool_mode, database.rpartition("dbname=")[2], *settings)


@contextmanager
def refused(database):
    """Check that the block raises what says what to do, and changes nothing."""
    advice = "use pool_mode=session, or connect to the server directly"
    with pytest.raises(CheckpointerConfigurationError, match=advice):
        yield
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'graphkit'").fetchall() == []
        assert connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchall() == []


@pytest.mark.sweep(1, of="pool_mode", in_turn=True)
@pytest.mark.parametrize("pool_mode", ["transaction", "statement"])
@pytest.mark.parametrize("use", USES)
def test_a_pooler_that_lends_sessions_for_single_transactions_is_refused(server, database, pool_mode, use):
    with through(server, database, pool_mode) as pooled, PostgresSaver(pooled) as saver, refused(database):
        USES[use](saver)


@pytest.mark.parametrize("connect", [ConnectionPool, psycopg.connect], ids=["pool", "connection"])
def test_what_an_application_has_opened_behind_it_is_refused(server, database, connect):
    with (
        through(server, database, "transaction") as pooled,
        connect(pooled) as opened,
        PostgresSaver(pool=opened) as saver,
        refused(database),
    ):
        saver.put(CONFIG, CHECKPOINT)


def test_it_is_refused_although_two_clients_have_never_had_the_same_session(server, database, monkeypatch):
    limit_wait_for_delivery(monkeypatch, 0.1)
    # Three sessions, which take turns: the first statements of the saver get one each.
    with through(server, database, "transaction", "server_round_robin = 1") as pooled:
        with ExitStack() as clients:
            for _ in range(3):
                clients.enter_context(psycopg.connect(pooled)).execute("SELECT 1")
        with PostgresSaver(pooled) as saver, refused(database):
            saver.put(CONFIG, CHECKPOINT)


@pytest.fixture
def session_pooler(server, database):
    with through(server, database, "session") as pooled:
        yield pooled


def test_a_pool_of_sessions_and_a_single_one_may_be_passed_in(session_pooler):
    with ConnectionPool(session_pooler, min_size=1, max_size=2) as pool, psycopg.connect(session_pooler) as connection:
        for guest in (pool, connection):
            with PostgresSaver(pool=guest) as saver, saver.run_lock(CONFIG):
                saver.put(CONFIG, made({"n": 2}))
                assert saver.get(CONFIG).state["n"] == 2


def test_a_killed_client_of_it_frees_its_run_lock_at_once(session_pooler, launcher):
    holder = start_client(launcher, partial(PostgresSaver, session_pooler, lease=LONG), "holder")
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    with PostgresSaver(session_pooler) as saver, saver.run_lock(CONFIG, LONG / 2):
        saver.put(CONFIG, CHECKPOINT)
    holder.communicate()


def test_the_session_of_a_closed_watch_is_clean_for_the_next_client(database, session_pooler):
    """A notification may be on its way when the pooler resets it."""
    is_over = Event()

    def notify(channel):
        with psycopg.connect(database, autocommit=True) as connection:
            while not is_over.is_set():
                connection.execute("SELECT pg_notify(%s, 't')", (channel,))

    with ThreadPoolExecutor() as executor:
        try:
            with PostgresSaver(session_pooler) as saver, saver.watch("t"):
                notifying = executor.submit(notify, find_channel(database))
            for _ in range(20):
                with PostgresSaver(session_pooler) as saver, saver.watch("t"):
                    saver.put(CONFIG, CHECKPOINT)
        finally:
            is_over.set()
        notifying.result()


def find_channel(database):
    """Return the name of the channel on which a session of the server listens."""
    with psycopg.connect(database) as connection:
        ((query,),) = connection.execute(
            "SELECT query FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND datname = current_database()"
        )
    return query.removeprefix("LISTEN ")


def test_savers_on_used_sessions_may_create_one_schema_at_once(session_pooler):
    clients = 4

    def use(schema):
        with PostgresSaver(session_pooler, schema=schema) as saver:
            saver.put(CONFIG, CHECKPOINT)

    with ThreadPoolExecutor(clients) as workers:
        for number in range(3):
            list(workers.map(use, [f"schema {number}"] * clients))


def test_a_standby_behind_a_pooler_of_sessions_can_be_read(own_server):
    with PostgresSaver(own_server.connection_string) as saver:
        saver.put(CONFIG, CHECKPOINT)
    with postgres_server.start_standby(own_server) as standby:
        with postgres_server.start_pooler(standby, "session") as pooled, PostgresSaver(pooled) as saver:
            assert saver.get(CONFIG).state["n"] == 1
        is_refused = pytest.raises(CheckpointerConfigurationError, match="pool_mode=session")
        with postgres_server.start_pooler(standby, "transaction") as pooled, PostgresSaver(pooled) as saver, is_refused:
            saver.get(CONFIG)
