"""Databases for the tests of the layer below the SQL savers."""

import pytest

from savers._sql.sqlite_database import SqliteDatabase


@pytest.fixture
def open_database(tmp_path):
    """Opens the same database once more with each call, and closes all in the end."""
    opened = []

    def open_again(**options):
        options.setdefault("fsync", "never")
        database = SqliteDatabase(tmp_path / "test.db", **options)
        opened.append(database)
        return database

    yield open_again
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database):
    return open_database()
