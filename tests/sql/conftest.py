"""Databases for the tests of the layer below the SQL savers."""

import json
import uuid
from contextlib import ExitStack
from functools import partial
from threading import Timer

import pytest

from savers import FileSystemSaver, PostgresSaver, SqliteSaver
from tests.support.client import ROOT
from tests.support.databases import PostgresDatabase, SqliteDatabase
from tests.support.workers import PATIENCE


@pytest.fixture
def schema(server):
    """The name of a schema that is removed in the end."""
    name = f"test {uuid.uuid4().hex}"
    yield name
    server.drop_schema(name)


@pytest.fixture
def at_end():
    """Closes what the other fixtures have opened."""
    with ExitStack() as stack:
        yield stack


def opening(at_end, make):
    """Return a function that opens the same store once more with each call."""

    def open_again(**options):
        opened = make(**options)
        at_end.callback(opened.close)
        return opened

    open_again.opener = make
    return open_again


@pytest.fixture
def open_sqlite(tmp_path, at_end):
    return opening(at_end, partial(SqliteDatabase, tmp_path / "test.db", fsync="never"))


@pytest.fixture
def open_postgres(server, schema, at_end):
    return opening(at_end, partial(PostgresDatabase, server.connection_string, schema=schema))


@pytest.fixture(params=["sqlite", "postgres"])
def open_database(request):
    return request.getfixturevalue(f"open_{request.param}")


@pytest.fixture
def sqlite_opener(tmp_path):
    return partial(SqliteSaver, str(tmp_path / "store.db"), fsync="never")


@pytest.fixture
def files_opener(tmp_path):
    return partial(FileSystemSaver, str(tmp_path / "files"), fsync="never")


@pytest.fixture
def synced_files_opener(tmp_path):
    return partial(FileSystemSaver, str(tmp_path / "files"))


@pytest.fixture
def postgres_opener(server, schema):
    return partial(PostgresSaver, server.connection_string, schema=schema)


@pytest.fixture(params=["sqlite", "postgres"])
def open_saver(request):
    opener = request.getfixturevalue(f"{request.param}_opener")
    return opening(request.getfixturevalue("at_end"), opener)


@pytest.fixture
def open_postgres_saver(postgres_opener, at_end):
    return opening(at_end, partial(postgres_opener, lock_timeout=60.0))


@pytest.fixture
def start_flow(launcher, server, schema, at_end):
    """Starts tests/sql/flow.py on the schema of the test; kills it in the end, or if it says nothing for too long."""

    def start(what, *arguments, lease=10.0):
        task = [what, server.connection_string, {"schema": schema, "lease": lease}, *arguments]
        process = launcher.start("-m", "tests.sql.flow", json.dumps(task), cwd=ROOT)
        killer = Timer(PATIENCE, process.kill)
        killer.start()
        at_end.push(process)
        at_end.callback(process.kill)
        at_end.callback(killer.cancel)
        return process

    return start


@pytest.fixture
def saver(open_saver):
    return open_saver()


@pytest.fixture
def database(open_database):
    return open_database()
