"""Errors of PostgreSQL, as callers of the saver see them; told apart by SQLSTATE."""

from __future__ import annotations

import errno
from typing import Final

from graphkit.errors import CheckpointStorageError
from savers._sql.database_errors import DatabaseDamagedError, HistoryGoneError, PositionTakenError, make_table_error

UNDEFINED: Final = {"42P01", "3F000"}
"""A table or a schema does not exist."""
RETRIED: Final = {"40001", "40P01"}
"""The server has rolled back a statement for the sake of another one; it may be executed again."""
BUSY: Final = {"55P03", *RETRIED}
"""Another transaction kept a row for too long."""
_DAMAGED: Final = {"XX001", "XX002"}

_ADVICE: Final = (
    *((state, errno.ETIMEDOUT, "wait for it to end, or raise lock_timeout") for state in sorted(BUSY)),
    ("42501", errno.EACCES, "grant this role the use of the schema, its tables and its sequences"),
    ("25006", errno.EROFS, "connect to a server that accepts writes"),
    ("53100", errno.ENOSPC, "free some space on the server, and try again"),
    ("53200", errno.ENOMEM, "free some memory of the server"),
    ("53300", errno.EAGAIN, "raise max_connections of the server, or close other clients"),
    ("54", errno.EFBIG, "a value is larger than PostgreSQL can store (1 GB)"),
    ("57014", errno.ETIMEDOUT, "raise statement_timeout of the role, or in the connection string"),
    ("22P05", errno.EILSEQ, "create the database with ENCODING 'UTF8'"),
    ("58", errno.EIO, "check the disk of the server"),
)
"""The beginning of a SQLSTATE, the error number, and what to do."""


def get_state(error: Exception) -> str:
    """Return the SQLSTATE of an error; "" for an error that the server has not sent."""
    return getattr(error, "sqlstate", None) or ""


def describe_error(error: Exception) -> str:
    """Return the message of an error, in one line and without the values of a statement."""
    diagnosis = getattr(error, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(message.split())


def translate_error(error: Exception, path: str, operation: str, lock_timeout: float) -> Exception:
    """Return the error to raise.

    Args:
        error: an error that the server has sent; the connection still works.
        path: the database in messages.
        operation: what the saver was doing, as a verb.
        lock_timeout: how long the server waits for other writers, in seconds.
    """
    state = get_state(error)
    message = describe_error(error)
    if state == "23505":
        return PositionTakenError(message)
    if state == "23503":
        return HistoryGoneError(message)
    if state in UNDEFINED or state == "42P07":
        return make_table_error(path, message)
    if state in _DAMAGED:
        return DatabaseDamagedError(path, f"the server says: {message}", "restore a backup of the database")
    if state in BUSY:
        message = f"another writer kept the rows for {lock_timeout:g} s ({message})"
    return CheckpointStorageError(path, operation, _os_error(state, message))


def _os_error(state: str, message: str) -> OSError | str:
    for beginning, number, advice in _ADVICE:
        if state.startswith(beginning):
            return OSError(number, f"{message}; {advice}")
    return f"{message} (SQLSTATE {state or 'unknown'})"
