"""A database in one SQLite file: statements, transactions, durability."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from savers._options import Fsync
from savers._sql.database import SQLITE, Backoff, Database, Parameters, Row, TableNames, Transaction
from savers._sql.schema import is_current, select_version
from savers._sql.sqlite_changes import SqliteChanges, count_rewrites
from savers._sql.sqlite_connection import (
    SqliteConnection,
    check_version,
    quote_name,
    read_without_opening,
)
from savers._sql.sqlite_connections import SqliteConnections, sync_file
from savers._sql.sqlite_integrity import SqliteIntegrity
from savers._sql.sqlite_run_locks import SqliteRunLocks
from savers._threads import InUseError, PeriodicFlush, check_may_wait


class SqliteDatabase(Database):
    """One SQLite file, in the mode that lets readers go on beside one writer.

    One connection serves all threads of execution: its cache knows what it has written, so that a
    read after a put takes half the time. While it is busy, reads take connections of their own.
    """

    dialect = SQLITE
    read_size = 7 << 14
    reads_at_once = True

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        overwrites_deleted: bool = False,
        prefix: str = "graphkit_",
    ) -> None:
        """Check the arguments; the first use opens the file, or creates it with its directories.

        Args:
            db_file: the path of the file.
            fsync: "always": a commit survives power loss; seconds: except for the last seconds;
                "never": it survives the death of the process, and a power loss may damage the file.
            lock_timeout: seconds to wait for other writers.
            overwrites_deleted: whether zeros replace what is deleted; otherwise it may stay in the file.
            prefix: the beginning of the names of the tables.

        Raises:
            CheckpointerConfigurationError: an argument is wrong, or SQLite is older than 3.40.
        """
        check_version()
        self.path = self.identity = _check_path(db_file)
        self.names = TableNames(*(quote_name(prefix + name) for name in TableNames._fields))
        self.lock_timeout = lock_timeout
        self._connections = SqliteConnections(
            self.path, self.names, fsync=fsync, lock_timeout=lock_timeout, overwrites_deleted=overwrites_deleted
        )
        self.run_locks = SqliteRunLocks(f"{self.path}-lock", self._connections.make_directories)
        self.changes = SqliteChanges(self._connect_to_tables, self.names)
        self.integrity = SqliteIntegrity(self.path, self.names, self.read, self._connect_to_tables)
        self.writes_at_once = fsync == "never"
        self._log_sync = _LogSync(self.path, fsync, self.empty_log)
        super().__init__()

    def __repr__(self) -> str:
        return f"SqliteDatabase({self.path!r})"

    @property
    def generation(self) -> int:  # type: ignore[override] # the connections count
        return self._connections.generation

    def has_tables(self) -> bool:
        if not os.path.exists(self.path):
            return False
        rows = read_without_opening(self.path, select_version(self.names), self.lock_timeout)
        if rows is None or rows == [(None,)]:
            return False
        # An older version counts: the first use migrates it.
        is_current(rows[0][0], self.path)
        return True

    def check_free(self) -> bool:
        connections = self._connections
        if connections.lock.is_mine():
            raise InUseError
        with connections.lock_if_free:
            return connections.main is not None

    # Statements

    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        # The main connection reads what it has written from its cache. While another thread of execution uses it, as a
        # put does that waits for the disk, a read takes a connection of its own. But while another one opens the main
        # connection, there may be no tables yet, so that the read waits.
        connections = self._connections
        own = connections.main
        if connections.lock.is_mine():
            # A rewrite reads rows that its transaction has inserted, which no other connection sees.
            assert own is not None
            return own.run(sql, parameters, "read")[0]
        try:
            with connections.lock if own is None else connections.lock_if_free:
                return connections.use_main().run(sql, parameters, "read")[0]
        except InUseError:
            check_may_wait()
        with connections.borrow_reader() as connection:
            return connection.run(sql, parameters, "read")[0]

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        return self._write(sql, parameters)[1]

    def write_returning(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._write(sql, parameters)[0]

    def _write(self, sql: str, parameters: Parameters) -> tuple[list[Row], int]:
        with self._connections.lock:
            written = self._connections.use_main().run(sql, parameters, "write")
        self._log_sync.note_commit()
        return written

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._connections.lock:
            connection = self._connections.use_main()
            try:
                # Inside, because Ctrl-C may come when it has been executed.
                connection.run("BEGIN IMMEDIATE", (), "write")
                yield _SqliteTransaction(connection, self.names)
                connection.run("COMMIT", (), "write")
            finally:
                try:
                    connection.roll_back_if_open()
                except BaseException:
                    # Later writes would become part of the transaction.
                    self._connections.drop_main()
                    raise
        self._log_sync.note_commit()

    # Connections

    def reset_after_fork(self) -> None:
        # The module of the connections closes those of the parent.
        self.changes.reset_after_fork()
        self._connections.forget()
        self._log_sync.reset()

    def _connect_to_tables(self) -> SqliteConnection:
        """Open a connection that sees tables; the caller closes it."""
        self.read("SELECT 1")
        return self._connections.open()

    def empty_log(self) -> bool:
        with self._connections.lock:
            ((is_busy, _, _),) = self._connections.use_main().run("PRAGMA wal_checkpoint(TRUNCATE)", (), "sync")[0]
        return not is_busy

    def erase_deleted(self, *, full: bool) -> Sequence[str]:  # noqa: ARG002 - a file needs nothing more
        # VACUUM writes every page anew from the rows that are there, so that neither free pages nor gaps in pages have
        # old bytes, whether `secure_delete` was on when they were deleted or not. The new pages are in the write-ahead
        # log, behind the old ones. The checkpoint copies them over the file, cuts it, and empties the log.
        with closing(self._connect_to_tables()) as connection:
            # Whatever `fsync` says: a power loss must not bring back what was erased.
            connection.run("PRAGMA synchronous = FULL", (), "erase")
            try:
                connection.run("VACUUM", (), "erase")
                is_empty = _wait_for_empty_log(connection, self.lock_timeout)
            except CheckpointStorageError as error:
                return [f"{self.path} still has what was deleted, because VACUUM failed: {error}"]
        if is_empty:
            return ()
        cause = "another connection reads an older state of the database, or wrote all the time"
        return [f"{self.path}-wal still has what was deleted, because {cause}: erase again when it has ended"]

    def flush(self) -> None:
        self._log_sync.flush()

    def close(self) -> None:
        self._log_sync.stop()
        try:
            self.flush()
        finally:
            with self._connections.lock:
                self._connections.close_all()
            self.run_locks.close()


def _wait_for_empty_log(connection: SqliteConnection, timeout: float) -> bool:
    """Empty the write-ahead log, as soon as no other connection uses it; return False if one does until the timeout."""
    backoff = Backoff(timeout)
    while True:
        # Unlike other statements, this one does not fail if the log is in use. It returns that at once.
        ((is_busy, _, _),) = connection.run("PRAGMA wal_checkpoint(TRUNCATE)", (), "erase")[0]
        if not is_busy or backoff.is_over:
            return not is_busy
        backoff.wait()


class _LogSync:
    """Brings what was committed to the disk, unless each commit waits for that: `fsync=seconds`.

    After a failed sync, no later one of the same bytes can be trusted: the system has dropped its note of what
    the disk lacks. So the write-ahead log is copied to the database, which SQLite syncs, and emptied.
    """

    def __init__(self, path: str, fsync: Fsync, empty_log: Callable[[], bool]) -> None:
        self._path = path
        self._fsync = fsync
        self._empty_log = empty_log
        self._is_suspect = False
        """Whether a sync of the write-ahead log has failed, and its bytes are still there."""
        self.reset()

    def reset(self) -> None:
        """Begin without a thread."""
        self._has_unsynced = False
        """Whether something was committed since the last sync."""
        self._flushing: PeriodicFlush | None = None
        if self._fsync not in {"always", "never"}:
            self._flushing = PeriodicFlush(float(self._fsync), self.flush, lambda: self._has_unsynced)

    def note_commit(self) -> None:
        # The first test is what a put pays.
        if self._flushing is None or (self._has_unsynced and self._flushing.is_running):
            return
        self._has_unsynced = True
        self._flushing.start()

    def flush(self) -> None:
        if not self._has_unsynced:
            return
        # Before the sync: a commit during it sets it again.
        self._has_unsynced = False
        try:
            self._sync()
        except BaseException:
            self._has_unsynced = True
            raise

    def _sync(self) -> None:
        """Bring the write-ahead log to the disk; SQLite syncs what it copies from there."""
        if self._is_suspect:
            self._replace_log()
            return
        try:
            sync_file(f"{self._path}-wal")
        except OSError as error:
            self._is_suspect = True
            self._replace_log()
            raise CheckpointStorageError(self._path, "sync", error) from error

    def _replace_log(self) -> None:
        self._is_suspect = not self._empty_log()
        if self._is_suspect:
            raise CheckpointStorageError(self._path, "sync", "a reader keeps the write-ahead log in use")

    def stop(self) -> None:
        """Stop the thread that flushes."""
        if self._flushing is not None:
            self._flushing.stop()


class _SqliteTransaction(Transaction):
    def __init__(self, connection: SqliteConnection, names: TableNames) -> None:
        self._connection = connection
        self._count_rewrites = count_rewrites(names)

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        rows, self.row_count = self._connection.run(sql, parameters, "write")
        return rows

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        self.row_count = self._connection.run_many(sql, rows)

    def notify(self, thread_id: str) -> None:  # noqa: ARG002 - as in every database
        self.execute(self._count_rewrites)


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
    if os.path.basename(path) in {"", ".", ".."}:
        raise CheckpointerConfigurationError(
            f"db_file must be the path of a file, not of a directory, as {path!r} is; add the name of the file"
        )
    # SQLite names the files beside it after the real path, and so does the file of the run locks.
    return os.path.realpath(path)
