"""The databases below the SQL savers, for tests that look below the savers.

This module may import the private code of the databases. Test files take it from here.
"""

from savers._sql import postgres_changes, postgres_server, row_inserts, row_log_bytes, saver, sqlite_changes
from savers._sql.columns import MOST_NUMBERS as MOST_NUMBERS, encode_text as encode_text
from savers._sql.database import OutcomeUnknownError as OutcomeUnknownError
from savers._sql.postgres_database import PostgresDatabase as PostgresDatabase
from savers._sql.postgres_session import LostError as LostError, PostgresSession as PostgresSession
from savers._sql.row_log_bytes import RowLogBytes as RowLogBytes
from savers._sql.sqlite_connection import SqliteConnection as SqliteConnection
from savers._sql.sqlite_database import SqliteDatabase as SqliteDatabase


def open_commits(database):
    """Return what finds the threads that were changed in a SQLite file."""
    return sqlite_changes._Commits(database.connect_to_tables, database.names)


# Limits that tests change


def limit_read(monkeypatch, size):
    """Let one statement read a number of bytes of frames."""
    monkeypatch.setattr(row_log_bytes, "_MAX_READ", size)


def limit_part(monkeypatch, size):
    """Let a rewrite insert its records in parts of a number of bytes."""
    monkeypatch.setattr(saver, "_PART_SIZE", size)


def limit_statement(monkeypatch, size):
    """Let one statement insert a number of bytes of frames."""
    monkeypatch.setattr(row_inserts, "_MOST_COMBINED_SIZE", size)


def limit_wait_for_puts(monkeypatch, seconds):
    """Let a new listener wait so long for the puts that do not know of it yet."""
    monkeypatch.setattr(postgres_changes, "_LONGEST_PUT", seconds)


def limit_wait_for_delivery(monkeypatch, seconds):
    """Let the check for a pooler wait so long for a notification."""
    monkeypatch.setattr(postgres_server, "_LONGEST_DELIVERY", seconds)


def end_idle_transactions_soon(monkeypatch):
    """Let the server end a transaction of a paused process as soon as the lease is over."""
    monkeypatch.setattr(postgres_server, "_LEAST_IDLE", 0)
