"""A database in one SQLite file: connections, transactions, durability."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from stat import S_ISREG
from time import monotonic, sleep
from typing import Any, Final, Literal

from graphkit.errors import CheckpointerConfigurationError, CheckpointFormatError, CheckpointStorageError
from savers._sql.database import Database, Parameters, Row, TableNames, Transaction
from savers._sql.schema import SQLITE_TYPES, is_current, migrate, select_version
from savers._sql.sqlite_errors import is_busy, is_no_such_table, make_busy_error, make_format_error, translate_error
from savers._sql.sqlite_run_locks import SqliteRunLocks
from savers._sql.wal_sync import PeriodicSync, sync_file

Fsync = Literal["always", "never"] | float

OLDEST_VERSION: Final = (3, 40)
"""Of SQLite. Older ones lack fixes of the write-ahead log."""

_FIRST_WAIT: Final = 0.0002
_LONGEST_WAIT: Final = 0.005
_MOST_IDLE: Final = 4
"""The most connections for reading that stay open while they are not used."""
_SMALLEST_FILE: Final = 512
"""Bytes of SQLite's smallest page; a database has none or at least one."""
_CACHED_STATEMENTS: Final = 256

_OPENING: Final = threading.Lock()
"""Held while a connection is opened, and during a fork."""


class _Connection:
    """An open connection. Its mutex is held during each statement, so that a fork interrupts none."""

    __slots__ = ("inode", "mutex", "raw")

    def __init__(self, raw: sqlite3.Connection, inode: tuple[int, int]) -> None:
        self.raw = raw
        self.inode = inode
        self.mutex = threading.Lock()


class SqliteDatabase(Database):
    """One SQLite file, in the mode that lets readers go on beside one writer.

    One connection serves all threads of execution: its cache knows what it has written, so that a
    read after a put takes half the time. While it is busy, reads take connections of their own.
    """

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        prefix: str = "graphkit_",
    ) -> None:
        """Check the arguments; the first use opens the file, or creates it with its directories.

        Args:
            db_file: the path of the file.
            fsync: "always": a commit survives power loss; seconds: except for the last seconds;
                "never": it survives the death of the process, and a power loss may damage the file.
            lock_timeout: seconds to wait for other writers.
            prefix: the beginning of the names of the tables.

        Raises:
            CheckpointerConfigurationError: an argument is wrong, or SQLite is older than 3.40.
        """
        if sqlite3.sqlite_version_info < OLDEST_VERSION:
            raise CheckpointerConfigurationError(
                f"SQLite {sqlite3.sqlite_version} is too old: use a Python with SQLite 3.40 or later"
            )
        self.path = _check_path(db_file)
        self.names = TableNames(*(_quote(prefix + name) for name in TableNames._fields))
        self.lock_timeout = lock_timeout
        self.run_locks = SqliteRunLocks(f"{self.path}-lock", self._make_directories)
        self._fsync = fsync
        self._sync = self._make_sync()
        self._wal_is_suspect = False
        self._reset()
        with _OPENING:
            _DATABASES.add(self)

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path!r})"

    def _make_sync(self) -> PeriodicSync | None:
        if self._fsync in {"always", "never"}:
            return None
        return PeriodicSync(float(self._fsync), self._sync_wal)

    def _reset(self) -> None:
        """Begin without connections."""
        self._main_lock = threading.Lock()
        """Held during a statement or a transaction on the main connection."""
        self._main_holder = 0
        """The thread of execution that has an open transaction."""
        self._main: _Connection | None = None
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        """All that are open."""

    # Statements

    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        # While another thread of execution opens the main connection, there may be no tables yet.
        if self._main_lock.acquire(blocking=self._main is None):
            try:
                return self._run(self._use_main(), sql, parameters, "read")[0]
            finally:
                self._main_lock.release()
        with self._borrow_reader() as connection:
            return self._run(connection, sql, parameters, "read")[0]

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        self._acquire_main()
        try:
            row_count = self._run(self._use_main(), sql, parameters, "write")[1]
        finally:
            self._main_lock.release()
        if self._sync is not None:
            self._sync.mark()
        return row_count

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        self._acquire_main()
        try:
            connection = self._use_main()
            self._run(connection, "BEGIN IMMEDIATE", (), "write")
            self._main_holder = threading.get_ident()
            try:
                yield _SqliteTransaction(self, connection)
                self._run(connection, "COMMIT", (), "write")
            finally:
                self._main_holder = 0
                if connection.raw.in_transaction:
                    # After some errors, SQLite has rolled back already.
                    self._run(connection, "ROLLBACK", (), "write")
        finally:
            self._main_lock.release()
        if self._sync is not None:
            self._sync.mark()

    def lock_rows(self, update: str = "", share: str = "", key_share: str = "") -> str:  # noqa: ARG002 - as in every database
        return ""

    def _acquire_main(self) -> None:
        if self._main_lock.acquire(blocking=False):
            return
        if self._main_holder == threading.get_ident():
            raise RuntimeError("a transaction of this thread of execution is open")
        if not self._main_lock.acquire(timeout=self.lock_timeout):
            raise make_busy_error(self.path, "write", self.lock_timeout)

    def _run(
        self,
        connection: _Connection,
        sql: str,
        parameters: Parameters,
        operation: str,
    ) -> tuple[list[Row], int]:
        """Execute a statement, and wait while another connection holds a lock.

        Returns:
            The rows that it returned, and how many it changed.
        """
        try:
            with connection.mutex:
                cursor = connection.raw.execute(sql, parameters)
                return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:
            if not is_busy(error):
                raise translate_error(error, self.path, operation) from error
        return self._run_when_free(connection, sql, parameters, operation)

    def _run_when_free(
        self,
        connection: _Connection,
        sql: str,
        parameters: Parameters,
        operation: str,
    ) -> tuple[list[Row], int]:
        # SQLite's own wait would hold the mutex, and sleeps for up to 100 ms.
        deadline = monotonic() + self.lock_timeout
        pause = _FIRST_WAIT
        while True:
            sleep(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT)
            try:
                with connection.mutex:
                    cursor = connection.raw.execute(sql, parameters)
                    return cursor.fetchall(), cursor.rowcount
            except sqlite3.Error as error:
                if not is_busy(error):
                    raise translate_error(error, self.path, operation) from error
                if monotonic() > deadline:
                    raise make_busy_error(self.path, operation, self.lock_timeout) from error

    def execute_many(self, connection: _Connection, sql: str, rows: Iterable[Parameters]) -> int:
        """Execute a statement of an open transaction for each row; return how many it changed."""
        try:
            with connection.mutex:
                return connection.raw.executemany(sql, rows).rowcount
        except sqlite3.Error as error:
            raise translate_error(error, self.path, "write") from error

    # Connections

    def _use_main(self) -> _Connection:
        """Return the main connection, opened if necessary; the caller holds its lock."""
        connection = self._main
        if connection is not None and connection.inode == _find_inode(self.path):
            return connection
        # It is the first use, or the file was removed or replaced. What a connection writes to a
        # removed file is lost without an error.
        self._close_connections()
        connection = self._open_connection()
        try:
            self._create_tables(connection)
        except BaseException:
            self._close_connection(connection)
            raise
        self._main = connection
        return connection

    @contextmanager
    def _borrow_reader(self) -> Iterator[_Connection]:
        inode = _find_inode(self.path)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._open_connection()
        if connection.inode != inode:
            self._close_connection(connection)
            connection = self._open_connection()
        try:
            yield connection
        finally:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                self._close_connection(connection)

    def _open_connection(self) -> _Connection:
        self._make_directories()
        self._check_size()
        try:
            with _OPENING:
                raw = sqlite3.connect(
                    self.path,
                    timeout=0,
                    isolation_level=None,
                    check_same_thread=False,
                    cached_statements=_CACHED_STATEMENTS,
                )
                connection = _Connection(raw, _find_inode(self.path))
                self._connections.add(connection)
        except sqlite3.Error as error:
            raise translate_error(error, self.path, "open") from error
        try:
            self._configure(connection)
        except BaseException:
            self._close_connection(connection)
            raise
        return connection

    def _check_size(self) -> None:
        """Refuse a file that is too small to be a database; SQLite would overwrite it."""
        with suppress(OSError):
            # By its name: to close the file would release SQLite's locks on it.
            found = os.stat(self.path)
            if S_ISREG(found.st_mode) and 0 < found.st_size < _SMALLEST_FILE:
                raise make_format_error(self.path)

    def _make_directories(self) -> None:
        """Create the directories of the file, and bring their names to the disk."""
        directory = os.path.dirname(self.path)
        if os.path.isdir(directory):
            return
        missing = []
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        try:
            os.makedirs(missing[0], exist_ok=True)
            if self._fsync != "never":
                for created in missing:
                    sync_file(os.path.dirname(created))
        except OSError as error:
            raise CheckpointStorageError(missing[0], "create", error) from error

    def _configure(self, connection: _Connection) -> None:
        ((mode,),) = self._run(connection, "PRAGMA journal_mode = WAL", (), "open")[0]
        if mode != "wal":
            raise CheckpointStorageError(
                self.path,
                "open",
                f"SQLite cannot keep a write-ahead log there (mode {mode!r}); use a local file system",
            )
        synchronous = {"always": "FULL", "never": "OFF"}.get(str(self._fsync), "NORMAL")
        self._run(connection, f"PRAGMA synchronous = {synchronous}", (), "open")
        self._run(connection, "PRAGMA foreign_keys = ON", (), "open")
        # So a transaction that a fork interrupts between two statements has written nothing yet.
        self._run(connection, "PRAGMA cache_spill = OFF", (), "open")

    def _create_tables(self, connection: _Connection) -> None:
        if is_current(self._read_version(connection), self.path):
            return
        self._run(connection, "BEGIN IMMEDIATE", (), "create tables in")
        try:
            # Another process may have created them while this one waited for the lock.
            version = self._read_version(connection)
            if not is_current(version, self.path):
                migrate(_SqliteTransaction(self, connection), version, self.names, SQLITE_TYPES)
            self._run(connection, "COMMIT", (), "create tables in")
        except BaseException:
            if connection.raw.in_transaction:
                self._run(connection, "ROLLBACK", (), "create tables in")
            raise
        if self._fsync != "never":
            try:
                sync_file(os.path.dirname(self.path))
            except OSError as error:
                raise CheckpointStorageError(self.path, "create", error) from error

    def _read_version(self, connection: _Connection) -> int | None:
        try:
            rows = self._run(connection, select_version(self.names), (), "read")[0]
        except CheckpointFormatError as error:
            if is_no_such_table(error):
                return None
            raise
        return rows[0][0] if rows else None

    def _close_connection(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        with connection.mutex:
            connection.raw.close()

    def _close_connections(self) -> None:
        """Close all connections that are not in use; the caller holds the lock of the main one."""
        while self._idle:
            with suppress(IndexError):
                self._close_connection(self._idle.pop())
        if self._main is not None:
            self._close_connection(self._main)
            self._main = None

    # Durability

    def flush(self) -> None:
        if self._sync is not None:
            try:
                self._sync.flush()
            except OSError as error:
                if isinstance(error, CheckpointStorageError):
                    raise
                raise CheckpointStorageError(self.path, "sync", error) from error

    def _sync_wal(self) -> None:
        """Bring the write-ahead log to the disk; SQLite syncs what it copies from there.

        After a failed sync, no later one of the same bytes can be believed: the log is copied to
        the database and emptied.
        """
        if self._wal_is_suspect:
            self._empty_wal()
            return
        try:
            sync_file(f"{self.path}-wal")
        except OSError:
            self._wal_is_suspect = True
            self._empty_wal()
            raise

    def _empty_wal(self) -> None:
        self._acquire_main()
        try:
            rows = self._run(self._use_main(), "PRAGMA wal_checkpoint(TRUNCATE)", (), "sync")[0]
        finally:
            self._main_lock.release()
        self._wal_is_suspect = bool(rows[0][0])
        if self._wal_is_suspect:
            raise CheckpointStorageError(self.path, "sync", "a reader keeps the write-ahead log in use")

    def close(self) -> None:
        if self._sync is not None:
            self._sync.stop()
        try:
            self.flush()
        finally:
            self._acquire_main()
            try:
                self._close_connections()
            finally:
                self._main_lock.release()
            self.run_locks.close()

    # Fork

    def lock_for_fork(self) -> threading.Lock | None:
        """Let no transaction be open, except one of the caller; return the lock to release."""
        if self._main_holder == threading.get_ident():
            return None
        self._main_lock.acquire()
        return self._main_lock

    def get_mutexes(self) -> list[threading.Lock]:
        """Return the locks that are held during statements; no connection is being opened."""
        return [connection.mutex for connection in list(self._connections)]

    def close_after_fork(self) -> None:
        """Close the parent's connections, in the child.

        SQLite keeps one record of locks per file and process, and the locks were not inherited. A
        connection that stayed open would make it believe that the child holds them.
        """
        for connection in list(self._connections):
            connection.raw.close()
        self._sync = self._make_sync()
        self._reset()


class _SqliteTransaction(Transaction):
    def __init__(self, database: SqliteDatabase, connection: _Connection) -> None:
        self._database = database
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        rows, self.row_count = self._database._run(self._connection, sql, parameters, "write")  # noqa: SLF001
        return rows

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        self.row_count = self._database.execute_many(self._connection, sql, rows)

    def notify(self, thread_id: str) -> None:
        # Other connections see a new data_version.
        pass


_DATABASES: Final[weakref.WeakSet[SqliteDatabase]] = weakref.WeakSet()
_HELD_FOR_FORK: Final[list[Any]] = []


def _before_fork() -> None:
    """Let no statement be under way, so that SQLite's own mutexes are free in the child."""
    while True:
        with _OPENING:
            databases = list(_DATABASES)
        locks = [database.lock_for_fork() for database in databases]
        _HELD_FOR_FORK.extend(lock for lock in locks if lock is not None)
        _OPENING.acquire()
        _HELD_FOR_FORK.append(_OPENING)
        if len(_DATABASES) <= len(databases):
            break
        # Another thread of execution has made a database meanwhile.
        _after_fork_in_parent()
    for database in databases:
        for mutex in database.get_mutexes():
            mutex.acquire()
            _HELD_FOR_FORK.append(mutex)


def _after_fork_in_parent() -> None:
    while _HELD_FOR_FORK:
        _HELD_FOR_FORK.pop().release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    for database in list(_DATABASES):
        database.close_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def _check_path(db_file: object) -> str:
    if not isinstance(db_file, (str, os.PathLike)) or not os.fspath(db_file):
        raise CheckpointerConfigurationError(f"db_file must be a path, not {db_file!r}")
    path = os.fsdecode(db_file)
    if path == ":memory:" or path.startswith("file:"):
        raise CheckpointerConfigurationError(
            f"db_file must be the path of a file, not {path!r}; MemorySaver stores in memory"
        )
    if "\0" in path:
        raise CheckpointerConfigurationError(f"db_file must be a path, not {path!r}")
    # SQLite names the files beside it after the real path, and so does the file of the run locks.
    return os.path.realpath(path)


def _find_inode(path: str) -> tuple[int, int]:
    """Return what identifies the file at a path; zeros if there is none. Takes 1 us."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _quote(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'
