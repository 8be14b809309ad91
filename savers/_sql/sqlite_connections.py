"""The connections to one SQLite file: the main one, and those that only read."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final

from graphkit.errors import CheckpointFormatError, CheckpointStorageError
from savers._options import Fsync
from savers._sql.database import SQLITE, Parameters, TableNames
from savers._sql.schema import is_current, migrate, select_version
from savers._sql.sqlite_connection import SqliteConnection, is_no_such_table, make_busy_error
from savers._threads import InUseError, check_may_wait, is_mine

_MOST_IDLE: Final = 4
"""The most connections for reading that stay open while they are not used."""


class SqliteConnections:
    """Opens the connections to one file, which the first one creates with its tables.

    Attributes:
        main: the connection that writes; None if it is not open.
        lock: held during a statement or a transaction on it.
        lock_if_free: the same lock, which is not waited for.
        generation: counts how often another file was found in place of the one that was open.
    """

    def __init__(
        self, path: str, names: TableNames, *, fsync: Fsync, lock_timeout: float, overwrites_deleted: bool
    ) -> None:
        self._path = path
        self._names = names
        self._fsync = fsync
        self._lock_timeout = lock_timeout
        self._overwrites_deleted = overwrites_deleted
        self.generation = 0
        self._last_inode: tuple[int, int] | None = None
        """What identified the file when it was opened last."""
        self.forget()

    def forget(self) -> None:
        """Begin without connections."""
        mutex = threading.RLock()
        self.lock = _MainLock(mutex, self._path, self._lock_timeout)
        self.lock_if_free = _MainLock(mutex, self._path, None)
        self.main: SqliteConnection | None = None
        self._idle: list[SqliteConnection] = []

    def use_main(self) -> SqliteConnection:
        """Return the main connection, opened if necessary; the caller holds its lock."""
        # SQLite keeps using a file that was removed or replaced, so that what it commits is lost without an error. A
        # new file gets a new connection; histories that are open in memory see it by the generation. Without its log
        # a database lacks what was committed last, so that going on would lose it: that is an error.
        connection = self.main
        if connection is not None and connection.has_files():
            return connection
        if connection is not None and connection.is_at_path():
            # Closing copies what the removed log has to the database, unless another process uses it.
            self.close_all()
            raise CheckpointStorageError(
                f"{self._path}-wal",
                "use",
                "it was removed or replaced while the database was in use: end all processes that have the database "
                "open, so that they store what they still have of it, and start them again",
            )
        # It is the first use, or the file was removed or replaced.
        self.close_all()
        connection = self.open()
        if connection.inode != self._last_inode:
            if self._last_inode is not None:
                self.generation += 1
            self._last_inode = connection.inode
        try:
            self._create_tables(connection)
        except BaseException:
            connection.close()
            raise
        connection.note_log()
        self.main = connection
        return connection

    @contextmanager
    def borrow_reader(self) -> Iterator[SqliteConnection]:
        """Lend a connection for a statement that reads."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.open()
        if not connection.is_at_path():
            connection.close()
            connection = self.open()
        try:
            yield connection
        finally:
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
            else:
                connection.close()

    def open(self) -> SqliteConnection:
        """Open one more connection; the caller closes it."""
        self.make_directories()
        synchronous = {"always": "FULL", "never": "OFF"}.get(str(self._fsync), "NORMAL")
        connection = SqliteConnection(self._path, synchronous, self._lock_timeout)
        if self._overwrites_deleted:
            connection.run("PRAGMA secure_delete = ON", (), "open")
        return connection

    def make_directories(self) -> None:
        """Create the directories of the file, and bring their names to the disk."""
        missing = []
        directory = os.path.dirname(self._path)
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        if not missing:
            return
        try:
            os.makedirs(missing[0], exist_ok=True)
            if self._fsync != "never":
                for created in missing:
                    sync_file(os.path.dirname(created))
        except OSError as error:
            raise CheckpointStorageError(missing[0], "create", error) from error

    def _create_tables(self, connection: SqliteConnection) -> None:
        if is_current(self._read_version(connection), self._path):
            return
        connection.run("BEGIN IMMEDIATE", (), "create tables in")
        try:
            # Another process may have created them while this one waited for the lock.
            version = self._read_version(connection)
            if not is_current(version, self._path):

                def execute(sql: str, parameters: Parameters) -> None:
                    connection.run(sql, parameters, "create tables in")

                migrate(execute, version, self._names, SQLITE)
            connection.run("COMMIT", (), "create tables in")
        finally:
            connection.roll_back_if_open()
        if self._fsync != "never":
            try:
                sync_file(os.path.dirname(self._path))
            except OSError as error:
                raise CheckpointStorageError(self._path, "create", error) from error

    def _read_version(self, connection: SqliteConnection) -> int | None:
        try:
            rows = connection.run(select_version(self._names), (), "read")[0]
        except CheckpointFormatError as error:
            if is_no_such_table(error):
                return None
            raise
        version: int | None = rows[0][0]
        return version

    def close_all(self) -> None:
        """Close all connections that are not in use; the caller holds the lock of the main one."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()
        self.drop_main()

    def drop_main(self) -> None:
        """Close the main connection, which rolls back its transaction; the caller holds its lock."""
        main = self.main
        self.main = None
        if main is not None:
            main.close()


class _MainLock:
    """The lock of the main connection, for `with`; not reentrant.

    The mutex knows itself which thread of execution has acquired it. So an exception at any line, as
    Ctrl-C raises it, leaves nothing locked.
    """

    def __init__(self, mutex: Any, path: str, timeout: float | None) -> None:
        """Prepare the lock.

        Args:
            mutex: an RLock.
            path: the database, for errors.
            timeout: seconds to wait for another thread of execution; None to raise InUseError at once.
        """
        self._mutex = mutex
        self._path = path
        self._timeout = timeout

    def is_mine(self) -> bool:
        """Return whether the calling thread of execution holds the lock: it has a transaction open."""
        return is_mine(self._mutex)

    def __enter__(self) -> None:
        if self.is_mine():
            raise RuntimeError("a transaction of this thread of execution is open")
        try:
            if not self._mutex.acquire(blocking=False):
                self._wait()
        except BaseException:
            self._free()
            raise

    def _wait(self) -> None:
        if self._timeout is None:
            raise InUseError
        check_may_wait()
        if not self._mutex.acquire(timeout=self._timeout):
            raise make_busy_error(self._path, "write", self._timeout)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._mutex.release()
        except BaseException:
            self._free()
            raise

    def _free(self) -> None:
        if self.is_mine():
            self._mutex.release()


def sync_file(path: str) -> None:
    """Bring the bytes of a file to the disk; a file that does not exist has none.

    Raises:
        OSError: the disk refused.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
