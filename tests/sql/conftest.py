"""Databases for the tests of the layer below the SQL savers."""

import pickle
import uuid
from functools import partial
from pathlib import Path

import pytest

from savers import PostgresSaver, SqliteSaver
from tests.support.databases import PostgresDatabase, SqliteDatabase

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def schema(server):
    """The name of a schema that is removed in the end."""
    name = f"test {uuid.uuid4().hex}"
    yield name
    server.drop_schema(name)


@pytest.fixture
def open_sqlite(tmp_path):
    def open_again(**options):
        return SqliteDatabase(tmp_path / "test.db", **{"fsync": "never", **options})

    return open_again


@pytest.fixture
def open_postgres(request):
    server = request.getfixturevalue("server")
    schema = request.getfixturevalue("schema")

    def open_again(**options):
        return PostgresDatabase(server.connection_string, **{"schema": schema, **options})

    return open_again


@pytest.fixture(params=["sqlite", "postgres"])
def open_database(request):
    """Opens the same database once more with each call, and closes all in the end."""
    opener = request.getfixturevalue(f"open_{request.param}")
    opened = []

    def open_again(**options):
        database = opener(**options)
        opened.append(database)
        return database

    yield open_again
    for database in opened:
        database.close()


@pytest.fixture
def sqlite_opener(tmp_path):
    return partial(SqliteSaver, str(tmp_path / "store.db"), fsync="never")


@pytest.fixture
def postgres_opener(request):
    server = request.getfixturevalue("server")
    return partial(PostgresSaver, server.connection_string, schema=request.getfixturevalue("schema"))


@pytest.fixture(params=["sqlite", "postgres"])
def open_saver(request):
    """Opens one more saver on the same store with each call, and closes all in the end."""
    opener = request.getfixturevalue(f"{request.param}_opener")
    opened = []

    def open_again(**options):
        saver = opener(**options)
        opened.append(saver)
        return saver

    open_again.opener = opener
    yield open_again
    for saver in opened:
        saver.close()


@pytest.fixture
def start_client(launcher):
    """Starts tests/sql/client.py."""

    def start(opener, name, count):
        return launcher.start("-m", "tests.sql.client", pickle.dumps((opener, name, count)).hex(), cwd=ROOT)

    return start


@pytest.fixture
def saver(open_saver):
    return open_saver()


@pytest.fixture
def database(open_database):
    return open_database()


@pytest.fixture
def open_postgres_saver(server, schema):
    """Opens the same schema once more with each call, and closes all in the end."""
    opened = []

    def open_again(**options):
        options = {"schema": schema, "lock_timeout": 60.0, **options}
        saver = PostgresSaver(server.connection_string, **options)
        opened.append(saver)
        return saver

    yield open_again
    for saver in opened:
        saver.close()
