"""One connection to a SQLite file, and its errors; the only module that imports sqlite3.

A fork while a statement is under way would leave SQLite's own mutexes locked in the child. So each
connection has a mutex that is held during its statements, and a fork takes all of them. The child
closes the connections: SQLite keeps one record of locks for each file and process, and the locks are
not inherited. A connection that stayed open would make it believe that the child holds them.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from stat import S_ISREG
from time import time_ns
from typing import Final, NamedTuple
from urllib.parse import quote
from weakref import WeakSet

from graphkit.errors import CheckpointerConfigurationError, CheckpointFormatError, CheckpointStorageError
from savers._log.log_bytes import StaleLogError
from savers._sql.database import DatabaseDamagedError, ForeignDatabaseError, Parameters, Row, make_table_error
from savers._threads import Backoff, check_may_wait

OLDEST_VERSION: Final = (3, 40)
"""Of SQLite. Older ones lack fixes of the write-ahead log."""

_FIRST_WAIT: Final = 0.0002
_LONGEST_WAIT: Final = 0.005
_SMALLEST_FILE: Final = 512
"""Bytes of SQLite's smallest page; a database has none or at least one."""
_CACHED_STATEMENTS: Final = 256
_GRAIN: Final = 100_000_000
"""Nanoseconds after which a later change of a directory has a later time, with some to spare."""
_NO_FILE: Final = 0, 0


_NUMBERS: Final[frozenset[type]] = frozenset({int, type(None)})
_TEXTS: Final[frozenset[type]] = frozenset({str, type(None)})
_BYTES: Final[frozenset[type]] = frozenset({bytes, type(None)})
_KINDS: Final = {
    **dict.fromkeys(("history", "position", "length", "keyframe", "is_keyframe", "version", "released"), _NUMBERS),
    **dict.fromkeys(("thread", "namespace", "status", "holder"), _TEXTS),
    **dict.fromkeys(("checkpoint", "long_thread", "long_namespace"), _BYTES),
    "frame": frozenset({bytes}),
}
"""What the columns of our tables have. SQLite lets any value pass, which a damaged page may have in any column."""

_STALE: Final = {
    "SQLITE_CONSTRAINT_FOREIGNKEY",
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
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What a statement raises; the second if SQLite's message quotes what is no text."""
_OPENING: Final = threading.Lock()
"""Held while a connection is opened, and during a fork."""


class _Column(NamedTuple):
    """A result of a statement that is a column of our tables."""

    number: int
    name: str
    kinds: frozenset[type]
    """The types of its values."""
    key: int | None
    """The number of the column that is NULL where an outer join has found no row; None without one."""

    def is_wrong(self, rows: Sequence[Row]) -> bool:
        """Return whether a value of the column has another type."""
        others = {row[self.number].__class__ for row in rows} - self.kinds
        if others == {type(None)} and self.key is not None:
            return any(row[self.number] is None and row[self.key] is not None for row in rows)
        return bool(others)


class SqliteConnection:
    """An open connection in autocommit mode, which one thread of execution uses at a time."""

    def __init__(self, path: str, synchronous: str, lock_timeout: float) -> None:
        """Open the file, or create it.

        Args:
            path: the file.
            synchronous: SQLite's word for when to sync.
            lock_timeout: seconds to wait for other connections.

        Raises:
            CheckpointerError: the file cannot be opened, or is no database.
        """
        self.path = path
        self._lock_timeout = lock_timeout
        self.mutex = threading.Lock()
        """Held during a statement, and during a fork."""
        _check_size(path)
        try:
            with _OPENING:
                self._raw = sqlite3.connect(
                    path,
                    timeout=0,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=_CACHED_STATEMENTS,
                )
                _CONNECTIONS.add(self)
        except sqlite3.Error as error:
            raise translate_error(error, path, "open") from error
        self.inode = find_inode(path)
        """What identifies the file."""
        self._columns: dict[str, list[_Column]] = {}
        """Which results of a statement are columns of our tables."""
        self._log_inode = _NO_FILE
        """What identifies the write-ahead log."""
        self._directory = os.path.dirname(path)
        self._checked_directory = 0, 0, 0
        """The directory in which both files were found last, with the time of its last change."""
        try:
            ((mode,),) = self.run("PRAGMA journal_mode = WAL", (), "open")[0]
            if mode != "wal":
                reason = f"SQLite cannot keep a write-ahead log there (mode {mode!r}); use a local file system"
                raise CheckpointStorageError(path, "open", reason)  # noqa: TRY301 - it is closed below
            self.run(f"PRAGMA synchronous = {synchronous}", (), "open")
            self.run("PRAGMA foreign_keys = ON", (), "open")
            # A transaction writes nothing before its commit, so that the child of a fork can drop it.
            self.run("PRAGMA cache_spill = OFF", (), "open")
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        with suppress(Exception):
            self._raw.close()

    def is_at_path(self) -> bool:
        """Return whether the file was neither removed nor replaced.

        What a connection writes to a removed file is lost without an error.
        """
        return find_inode(self.path) == self.inode

    def note_log(self) -> None:
        """Note which file the write-ahead log is: SQLite opens it with the first statement."""
        self._log_inode = find_inode(f"{self.path}-wal")

    def has_files(self) -> bool:
        """Return whether neither the file nor its write-ahead log was removed or replaced.

        SQLite does not notice it, and removes the log itself only with the last connection.
        """
        # Part of every statement, so one look at the directory serves for both files. Whatever removes or replaces a
        # file changes the directory, and the system notes the time of the change, which no program can set back as it
        # can set the time of modification. That time has the grain of the system's clock, 1 to 10 ms. A second change
        # in the same grain would not show, so a directory that has changed a moment ago is not believed.
        try:
            found = os.stat(self._directory)
        except OSError:
            return False
        directory = found.st_ctime_ns, found.st_ino, found.st_dev
        if directory == self._checked_directory:
            return True
        if not self.is_at_path() or find_inode(f"{self.path}-wal") != self._log_inode:
            return False
        if time_ns() - found.st_ctime_ns > _GRAIN:
            self._checked_directory = directory
        return True

    def run(self, sql: str, parameters: Parameters, operation: str) -> tuple[list[Row], int]:
        """Execute a statement, and wait while another connection holds a lock.

        Args:
            sql: the statement.
            parameters: its values.
            operation: what the saver is doing, as a verb for errors.

        Returns:
            The rows that it returned, and how many it changed.

        Raises:
            StaleLogError, CheckpointerError: see `Transaction.execute`.
        """
        # SQLite's own wait would hold the mutex, and sleeps for up to 100 ms.
        backoff: Backoff | None = None
        while True:
            try:
                return self._execute(sql, parameters)
            except _ERRORS as error:
                name = get_name(error)
                if name in _STALE and sql.startswith("DELETE"):
                    # The records of a history go with it; a damaged index has hidden some.
                    raise make_damage_error(self.path, error) from error
                # Another connection holds a lock, so that trying again may help.
                is_busy = name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
                if not is_busy:
                    raise translate_error(error, self.path, operation) from error
                if backoff is None:
                    check_may_wait()
                    backoff = Backoff(self._lock_timeout, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
                elif backoff.is_over:
                    raise make_busy_error(self.path, operation, self._lock_timeout) from error
            backoff.wait()

    def _execute(self, sql: str, parameters: Parameters) -> tuple[list[Row], int]:
        with self.mutex:
            cursor = self._raw.execute(sql, parameters)
            rows = cursor.fetchall()
        if rows:
            # Pages have no checksums, and SQLite lets any column have any type: what a damaged page returns must not
            # reach code that expects a number. Which results are columns of ours is found once for each statement.
            columns = self._columns.get(sql)
            if columns is None:
                names = [column[0] for column in cursor.description]
                key = names.index("position") if "position" in names else None
                columns = self._columns[sql] = [
                    _Column(number, name, _KINDS[name], key) for number, name in enumerate(names) if name in _KINDS
                ]
            for column in columns:
                if column.is_wrong(rows):
                    reason = f"a row has a value of another type in the column {column.name}"
                    raise DatabaseDamagedError(self.path, reason, _RESTORE)
        return rows, cursor.rowcount

    def run_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Execute a statement of an open transaction for each row of parameters."""
        try:
            with self.mutex:
                self._raw.executemany(sql, rows)
        except _ERRORS as error:
            raise translate_error(error, self.path, "write") from error

    def roll_back_if_open(self) -> None:
        """Roll back the transaction, unless it is over: after some errors, SQLite has rolled back already."""
        if self._raw.in_transaction:
            self.run("ROLLBACK", (), "write")

    def close(self) -> None:
        """Close the connection, after the statement that is under way."""
        with self.mutex:
            self._raw.close()


_CONNECTIONS: Final[WeakSet[SqliteConnection]] = WeakSet()
"""All that are open, and some that were closed."""
_HELD_FOR_FORK: Final[list[threading.Lock]] = []


def _before_fork() -> None:
    _OPENING.acquire()
    for connection in list(_CONNECTIONS):
        connection.mutex.acquire()
        _HELD_FOR_FORK.append(connection.mutex)


def _after_fork_in_parent() -> None:
    while _HELD_FOR_FORK:
        _HELD_FOR_FORK.pop().release()
    _OPENING.release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    for connection in list(_CONNECTIONS):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def check_version() -> None:
    """Check the version of SQLite.

    Raises:
        CheckpointerConfigurationError: it is older than 3.40.
    """
    if sqlite3.sqlite_version_info < OLDEST_VERSION:
        raise CheckpointerConfigurationError(
            f"SQLite {sqlite3.sqlite_version} is too old: use a Python with SQLite 3.40 or later"
        )


def find_inode(path: str) -> tuple[int, int]:
    """Return what identifies the file at a path; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return _NO_FILE
    return found.st_dev, found.st_ino


def _check_size(path: str) -> None:
    """Refuse a file that is too small to be a database; SQLite would overwrite it."""
    with suppress(OSError):
        # By its name: to close the file would release SQLite's locks on it.
        found = os.stat(path)
        if S_ISREG(found.st_mode) and 0 < found.st_size < _SMALLEST_FILE:
            raise make_format_error(path)


def read_without_opening(path: str, sql: str, lock_timeout: float) -> list[Row] | None:
    """Execute a statement on a file and change nothing of it; return None if it has no such table.

    The usual connection would turn the file into one with a write-ahead log.

    Raises:
        CheckpointerError: the file is no database, or cannot be read.
    """
    _check_size(path)
    location = f"file:{quote(os.fsencode(path))}?mode=ro"
    try:
        with _OPENING, closing(sqlite3.connect(location, uri=True, timeout=lock_timeout)) as raw:
            return raw.execute(sql).fetchall()
    except _ERRORS as error:
        if is_no_such_table(error):
            return None
        raise translate_error(error, path, "read") from error


# Errors of SQLite, as callers of the saver see them; told apart by the names that SQLite gives


def get_name(error: Exception) -> str:
    """Return SQLite's name of an error, such as "SQLITE_FULL"; "" for an error of the module."""
    return getattr(error, "sqlite_errorname", "")


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
    if name in _STALE:
        return StaleLogError(str(error))
    if name == "SQLITE_NOTADB":
        return make_format_error(path)
    # An operational error without a name comes from the module: a text is no UTF-8.
    is_undecodable = not name and isinstance(error, sqlite3.OperationalError | UnicodeDecodeError)
    if name.startswith("SQLITE_CORRUPT") or is_undecodable:
        return make_damage_error(path, error)
    if is_no_such_table(error) or "already exists" in str(error):
        return make_table_error(path, str(error))
    reason: OSError | str = f"{error} ({name or type(error).__name__})"
    if name.startswith("SQLITE_CANTOPEN"):
        reason = _explain_cannot_open(path)
    elif "too big" in str(error):
        reason = OSError(errno.EFBIG, "a value is larger than SQLite can store (1 GB)")
    else:
        for prefix, number, advice in _ADVICE:
            if name.startswith(prefix):
                reason = OSError(number, f"{error} ({name})")
                return CheckpointStorageError(path, operation, reason, advice=advice)
    return CheckpointStorageError(path, operation, reason)


def make_damage_error(path: str, error: Exception) -> DatabaseDamagedError:
    """Return the error for damage that SQLite has found."""
    return DatabaseDamagedError(path, f"SQLite does not say where, only that {error}", _RESTORE)


def make_format_error(path: str) -> CheckpointFormatError:
    """Return the error for a file that is something else."""
    return ForeignDatabaseError(
        path, "the file is not a SQLite database, or it is encrypted; give the path of another file"
    )


def make_busy_error(path: str, operation: str, timeout: float) -> CheckpointStorageError:
    """Return the error for a lock that another connection kept for too long."""
    reason = OSError(errno.ETIMEDOUT, f"another writer kept the database for {timeout:g} s")
    return CheckpointStorageError(path, operation, reason, advice="wait for it to end", option="lock_timeout")


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
