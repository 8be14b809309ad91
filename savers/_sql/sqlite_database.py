"""A database in one SQLite file: its connections, statements and transactions, durability, and what damage hides."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

from graphkit.errors import CheckpointerConfigurationError, CheckpointFormatError, CheckpointStorageError
from savers._options import Fsync, parse_path
from savers._sql.database import (
    SQLITE,
    Database,
    DatabaseDamagedError,
    Integrity,
    Parameters,
    Row,
    TableNames,
    Transaction,
    quote_name,
)
from savers._sql.sqlite_changes import SqliteChanges, count_rewrites
from savers._sql.sqlite_connection import (
    SqliteConnection,
    check_version,
    is_no_such_table,
    make_busy_error,
    read_without_opening,
)
from savers._sql.sqlite_run_locks import SqliteRunLocks
from savers._sql.statements import create_tables, is_current, select_version
from savers._threads import Backoff, PeriodicFlush, WouldWaitError, check_may_wait, is_mine

_Result = TypeVar("_Result")
_REINDEX: Final = (
    "restore a backup, or copy the file and execute REINDEX on it in SQLite's shell, which rebuilds all indexes; "
    "verify says whether that was enough"
)
_EMPTY_LOG: Final = "PRAGMA wal_checkpoint(TRUNCATE)"
"""Copies the write-ahead log to the database and cuts it, unless it is in use."""
_MOST_IDLE: Final = 4
"""The most connections for reading that stay open while they are not used."""
_MOST_PROBLEMS: Final = 20
"""The most problems that SQLite describes when it checks a file."""
_TYPES: Final = {"INTEGER": "integer", "BIGINT": "integer", "BOOLEAN": "integer", "TEXT": "text", "BLOB": "blob"}
"""What SQLite calls the values of a column, by the type that the table declares."""


class SqliteDatabase(Database):
    """One SQLite file, in the mode that lets readers go on beside one writer.

    One connection serves all threads of execution: its cache knows what it has written, so that a
    read after a put takes half the time. While it is busy, reads take connections of their own.
    """

    dialect = SQLITE
    read_size = 7 << 14

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        overwrites_deleted: bool = False,
    ) -> None:
        """Check the arguments; the first use opens the file, or creates it with its directories.

        Args:
            db_file: the path of the file.
            fsync: "always": a commit survives power loss; seconds: except for the last seconds;
                "never": it survives the death of the process, and a power loss may damage the file.
            lock_timeout: seconds to wait for other writers.
            overwrites_deleted: whether zeros replace what is deleted; otherwise it may stay in the file.

        Raises:
            CheckpointerConfigurationError: an argument is wrong, or SQLite is older than 3.40.
        """
        check_version()
        self.path = self.identity = _check_path(db_file)
        self.names = TableNames(*(quote_name("graphkit_" + name) for name in TableNames._fields))
        self.lock_timeout = lock_timeout
        self._connections = SqliteConnections(
            self.path, self.names, fsync=fsync, lock_timeout=lock_timeout, overwrites_deleted=overwrites_deleted
        )
        self.run_locks = SqliteRunLocks(f"{self.path}-lock", self._connections.make_directories)
        self.changes = SqliteChanges(self.connect_to_tables, self.names)
        self.integrity = SqliteIntegrity(self)
        self.writes_at_once = fsync == "never"
        self._log_sync = _LogSync(self.path, fsync, self.empty_log)
        super().__init__()

    @property
    def generation(self) -> int:  # type: ignore[override] # the connections count
        return self._connections.generation

    def has_tables(self) -> bool:
        if not os.path.exists(self.path):
            return False
        rows = read_without_opening(self.path, select_version(self.names), self.lock_timeout)
        return rows is not None and is_current(rows[0][0], self.path)

    def check_free(self) -> bool:
        connections = self._connections
        if connections.lock.is_mine():
            return False
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
        except WouldWaitError:
            check_may_wait()
        with connections.borrow_reader() as connection:
            return connection.run(sql, parameters, "read")[0]

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        with self._connections.lock:
            _, count = self._connections.use_main().run(sql, parameters, "write")
        self._log_sync.note_commit()
        return count

    def transact(self, work: Callable[[Transaction], _Result]) -> _Result:
        # A function, and no context manager made from a generator: Ctrl-C on the way into the `__exit__` of one would
        # leave the transaction open until Python throws away the traceback, and with it the generator.
        with self._connections.lock:
            connection = self._connections.use_main()
            try:
                # Inside, because Ctrl-C may come when it has been executed.
                connection.run("BEGIN IMMEDIATE", (), "write")
                result = work(_SqliteTransaction(connection, self.names))
                connection.run("COMMIT", (), "write")
            finally:
                try:
                    connection.roll_back_if_open()
                except BaseException:
                    # Later writes would become part of the transaction.
                    self._connections.drop_main()
                    raise
        self._log_sync.note_commit()
        return result

    # Connections

    def reset_after_fork(self) -> None:
        # The module of the connections closes those of the parent.
        self.changes.reset_after_fork()
        self._connections.forget()
        self._log_sync.reset()

    def connect_to_tables(self) -> SqliteConnection:
        """Open a connection that sees tables; the caller closes it."""
        self.read("SELECT 1")
        return self._connections.open()

    def empty_log(self) -> bool:
        with self._connections.lock:
            ((is_busy, _, _),) = self._connections.use_main().run(_EMPTY_LOG, (), "sync")[0]
        return not is_busy

    def erase_deleted(self, *, full: bool) -> Sequence[str]:  # noqa: ARG002 - a file needs nothing more
        # VACUUM writes every page again from the rows that are there, so that neither free pages nor gaps in pages have
        # old bytes, whether `secure_delete` was on when they were deleted or not. The new pages are in the write-ahead
        # log, behind the old ones. The checkpoint copies them over the file, cuts it, and empties the log.
        with closing(self.connect_to_tables()) as connection:
            # Whatever `fsync` says: a power loss must not bring back what was erased.
            connection.run("PRAGMA synchronous = FULL", (), "erase")
            try:
                connection.run("VACUUM", (), "erase")
                backoff = Backoff(self.lock_timeout)
                while True:
                    # Unlike other statements, this one does not fail if the log is in use. It returns that at once.
                    ((is_busy, _, _),) = connection.run(_EMPTY_LOG, (), "erase")[0]
                    if not is_busy or backoff.is_over:
                        break
                    backoff.wait()
            except CheckpointStorageError as error:
                return [f"{self.path} still has what was deleted, because VACUUM failed: {error}"]
        if not is_busy:
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


class _SqliteTransaction(Transaction):
    def __init__(self, connection: SqliteConnection, names: TableNames) -> None:
        self._connection = connection
        self._count_rewrites = count_rewrites(names)

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._connection.run(sql, parameters, "write")[0]

    def change(self, sql: str, parameters: Parameters) -> int:
        return self._connection.run(sql, parameters, "write")[1]

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        self._connection.run_many(sql, rows)

    def notify(self, thread_id: str) -> None:  # noqa: ARG002 - as in every database
        self.execute(self._count_rewrites)


def _check_path(db_file: object) -> str:
    path = parse_path("db_file", db_file)
    if path == ":memory:" or path.startswith("file:"):
        raise CheckpointerConfigurationError(
            f"db_file must be the path of a file, not {path!r}; MemorySaver stores in memory"
        )
    if os.path.basename(path) in {"", ".", ".."}:
        raise CheckpointerConfigurationError(
            f"db_file must be the path of a file, not of a directory, as {path!r} is; add the name of the file"
        )
    # SQLite names the files beside it after the real path, and so does the file of the run locks.
    return os.path.realpath(path)


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
            if not is_current(self._read_version(connection), self._path):
                create_tables(partial(connection.run, operation="create tables in"), self._names, SQLITE)
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
            timeout: seconds to wait for another thread of execution; None to raise WouldWaitError at once.
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
            if self.is_mine():
                self._mutex.release()
            raise

    def _wait(self) -> None:
        if self._timeout is None:
            raise WouldWaitError
        check_may_wait()
        if not self._mutex.acquire(timeout=self._timeout):
            raise make_busy_error(self._path, "write", self._timeout)

    # That of the mutex itself: a function of Python may be interrupted by a signal before its first line.
    __exit__ = property(attrgetter("_mutex.__exit__"))


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
            if self._is_suspect:
                self._replace_log()
                return
            # SQLite syncs what it copies from there.
            try:
                sync_file(f"{self._path}-wal")
            except OSError as error:
                self._is_suspect = True
                self._replace_log()
                raise CheckpointStorageError(self._path, "sync", error) from error
        except BaseException:
            self._has_unsynced = True
            raise

    def _replace_log(self) -> None:
        self._is_suspect = not self._empty_log()
        if self._is_suspect:
            raise CheckpointStorageError(self._path, "sync", "a reader keeps the write-ahead log in use")

    def stop(self) -> None:
        """Stop the thread that flushes."""
        if self._flushing is not None:
            self._flushing.stop()


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


class SqliteIntegrity(Integrity):
    """Finds what damage to the file hides.

    Pages have no checksums. If one holds what belongs to another, what it had is missing without an error. So where a
    statement finds nothing more, the index that it has used is compared with its table.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._read = database.read
        histories = database.names.histories
        records = database.names.records
        self._select_neighbours = (
            "WITH near AS ("
            f"SELECT * FROM (SELECT thread, history FROM {histories} WHERE thread <= ? ORDER BY thread DESC LIMIT 1)"
            " UNION ALL"
            f" SELECT * FROM (SELECT thread, history FROM {histories} WHERE thread > ? ORDER BY thread LIMIT 1))"
            " SELECT count(*), count(*) FILTER (WHERE EXISTS"
            f" (SELECT 1 FROM {histories} AS t NOT INDEXED WHERE t.history = near.history AND t.thread = near.thread)),"
            f" count(*) FILTER (WHERE EXISTS (SELECT 1 FROM {histories} AS i WHERE i.thread = near.thread)),"
            f" EXISTS (SELECT 1 FROM {histories} NOT INDEXED) FROM near"
        )
        """Looks for the entries around a thread, which is given twice: how many there are in the index, how many of
        them are in the table, how many a search finds, and whether the table has rows. It takes 7 us."""
        self._count_threads = (
            f"SELECT (SELECT count(*) FROM {histories} WHERE thread >= ''),"
            f" (SELECT count(*) FROM {histories} NOT INDEXED)"
        )
        """Counts the entries of the index, and the rows of the table."""
        self._select_wrong_end = (
            f"SELECT 1 FROM (SELECT rowid AS number, history, position FROM {records}"
            " WHERE (history, position) > (?, ?) ORDER BY history, position LIMIT 1) AS e WHERE NOT EXISTS"
            f" (SELECT 1 FROM {records} AS t NOT INDEXED"
            " WHERE t.rowid = e.number AND t.history = e.history AND t.position = e.position)"
        )
        """Finds the entry of the index behind a row, if it is not that of a row. It takes 4 us."""

    def check_absence(self, thread: str | None) -> None:
        if thread is None:
            ((found, in_table),) = self._read(self._count_threads)
            is_right = found == in_table
        else:
            # Then the entries before and behind the thread are not those of the table, or no search finds them.
            rows = self._read(self._select_neighbours, (thread, thread))
            ((found, in_table, in_index, has_rows),) = rows
            is_right = found == in_table == in_index and (found > 0 or not has_rows)
        if not is_right:
            raise self._make_error()

    def check_end(self, history: int, position: int) -> None:
        # A search for rows ends at the first entry of another history. A damaged entry may seem to be one.
        if self._read(self._select_wrong_end, (history, position)):
            raise self._make_error()

    def _make_error(self) -> DatabaseDamagedError:
        return DatabaseDamagedError(self._database.path, "an index does not have what its table has", _REINDEX)

    def check(self) -> Sequence[str]:
        names = self._database.names
        # A connection of its own, because this takes its time.
        with closing(self._database.connect_to_tables()) as connection:
            rows = connection.run(f"PRAGMA integrity_check({_MOST_PROBLEMS})", (), "read")[0]
            found = [" ".join(text.split()) for (text,) in rows if text != "ok"]
            for table in names:
                # SQLite lets any column have values of any type. A writer puts only those of one type there.
                for _, column, declared, _, _, _ in connection.run(f"PRAGMA table_info({table})", (), "read")[0]:
                    name = quote_name(column)
                    sql = f"SELECT count(*) FROM {table} NOT INDEXED WHERE typeof({name}) NOT IN (?, 'null')"
                    ((count,),) = connection.run(sql, (_TYPES.get(declared, ""),), "read")[0]
                    if count:
                        found.append(f"{count} values of the column {column} of {table} are no {declared}")
            # Swapped with its own index, the table has good pages. Records without a history are reported one by one.
            if connection.run(f"PRAGMA foreign_key_check({names.terms})", (), "read")[0]:
                found.append(f"rows of {names.terms} name histories that do not exist")
        return found
