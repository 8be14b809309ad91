"""Errors of SQLite, as callers of the saver see them; told apart by the names that SQLite gives."""

from __future__ import annotations

import errno
import os
from typing import Final

from graphkit.errors import CheckpointFormatError, CheckpointStorageError
from savers._sql.database_errors import (
    DatabaseDamagedError,
    ForeignDatabaseError,
    HistoryGoneError,
    PositionTakenError,
    make_table_error,
)

_UNIQUE: Final = {
    "SQLITE_CONSTRAINT_PRIMARYKEY",
    "SQLITE_CONSTRAINT_ROWID",
    "SQLITE_CONSTRAINT_UNIQUE",
}

_ADVICE: Final = (
    ("SQLITE_FULL", errno.ENOSPC, "free some space, and try again"),
    ("SQLITE_READONLY", errno.EACCES, "let this user write the file, those beside it and their directory"),
    ("SQLITE_PERM", errno.EACCES, "let this user read and write the file"),
    ("SQLITE_AUTH", errno.EACCES, "let this user read and write the file"),
    ("SQLITE_IOERR", errno.EIO, "check the disk, and whether it is full"),
    ("SQLITE_NOMEM", errno.ENOMEM, "free some memory"),
)
"""The beginning of SQLite's name of an error, the error number, and what to do."""


_RESTORE: Final = (
    "restore a backup, or copy the threads that can be read to a new file, with graphkit copy --to; "
    ".recover of SQLite's shell may save rows of the others"
)
_REINDEX: Final = (
    "restore a backup, or copy the file and execute REINDEX on it in SQLite's shell, which makes all indexes anew; "
    "verify says whether that was enough"
)


def get_name(error: Exception) -> str:
    """Return SQLite's name of an error, such as "SQLITE_FULL"; "" for an error of the module."""
    return getattr(error, "sqlite_errorname", "")


def is_busy(error: Exception) -> bool:
    """Return whether another connection holds a lock, so that trying again may help."""
    return get_name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def is_no_such_table(error: Exception) -> bool:
    """Return whether a statement names a table that does not exist."""
    return "no such table" in str(error)


def translate_error(error: Exception, path: str, operation: str) -> Exception:
    """Return the error to raise.

    Args:
        error: an error of `sqlite3`.
        path: the file.
        operation: what the saver was doing, as a verb.
    """
    name = get_name(error)
    if name in _UNIQUE:
        return PositionTakenError(str(error))
    if name == "SQLITE_CONSTRAINT_FOREIGNKEY":
        return HistoryGoneError(str(error))
    if name == "SQLITE_NOTADB":
        return make_format_error(path)
    # An operational error without a name comes from the module: a text is no UTF-8.
    is_undecodable = not name and type(error).__name__ == "OperationalError"
    if name.startswith("SQLITE_CORRUPT") or is_undecodable:
        return DatabaseDamagedError(path, f"SQLite does not say where, only that {error}", _RESTORE)
    if is_no_such_table(error) or "already exists" in str(error):
        return make_table_error(path, str(error))
    return CheckpointStorageError(path, operation, _os_error(error, name, path))


def make_format_error(path: str) -> CheckpointFormatError:
    """Return the error for a file that is something else."""
    return ForeignDatabaseError(
        path, "the file is not a SQLite database, or it is encrypted; give the path of another file"
    )


def make_type_error(path: str, column: str) -> DatabaseDamagedError:
    """Return the error for a value that a column never has."""
    return DatabaseDamagedError(path, f"a row has a value of another type in the column {column}", _RESTORE)


def make_index_error(path: str) -> DatabaseDamagedError:
    """Return the error for an index that does not have what its table has."""
    return DatabaseDamagedError(path, "an index does not have what its table has", _REINDEX)


def make_busy_error(path: str, operation: str, timeout: float) -> CheckpointStorageError:
    """Return the error for a lock that another connection kept for too long."""
    reason = f"another writer kept the database for {timeout:g} s; wait for it to end, or raise lock_timeout"
    return CheckpointStorageError(path, operation, OSError(errno.ETIMEDOUT, reason))


def _os_error(error: Exception, name: str, path: str) -> OSError | str:
    if name.startswith("SQLITE_CANTOPEN"):
        return _explain_cannot_open(path)
    if "too big" in str(error):
        return OSError(errno.EFBIG, "a value is larger than SQLite can store (1 GB)")
    for prefix, number, advice in _ADVICE:
        if name.startswith(prefix):
            return OSError(number, f"{error} ({name}); {advice}")
    return f"{error} ({name or type(error).__name__})"


def _explain_cannot_open(path: str) -> OSError:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            return error
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        return OSError(errno.EISDIR, "it is a directory; give the path of a file")
    if not os.path.isdir(directory):
        return OSError(errno.ENOENT, f"its directory {directory} does not exist")
    if os.path.exists(path) and not os.access(path, os.R_OK):
        return OSError(errno.EACCES, "this user may not read the file")
    return OSError(errno.EACCES, f"this user may not create files in {directory}, which SQLite needs beside the file")
