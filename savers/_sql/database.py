"""The database below a SQL saver: what is the same for SQLite and PostgreSQL, and where their SQL differs."""

from __future__ import annotations

import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointStorageError
from savers._log.log_watch import Signals
from savers._threads import call_after_fork

_LOGGER: Final = getLogger("graphkit")
_Result = TypeVar("_Result")

Parameters = Sequence[Any]
Row = tuple[Any, ...]

# What a database reports to its saver: these errors, and StaleLogError if a unique key exists already (another writer
# has appended at this position) or the row of a foreign key does not (the history was deleted meanwhile). The saver
# handles StaleLogError. Whatever else leaves a saver is an error of `graphkit.errors`.


class OutcomeUnknownError(CheckpointStorageError):
    """The connection was lost during a commit: read whether it has happened."""


class DatabaseDamagedError(CheckpointCorruptionError):
    """The database says that it is damaged itself, whichever history was asked for."""

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, 0, reason, advice)


class ForeignDatabaseError(CheckpointFormatError):
    """The file, its tables or their version are none that graphkit has made, or are damaged so that they seem so."""


def make_table_error(path: str, message: str) -> CheckpointFormatError:
    """Return the error for a table that is missing, or is there before graphkit has created it.

    Args:
        path: the database.
        message: what the database says, with the name of the table.
    """
    return ForeignDatabaseError(
        path,
        f"the tables are not those of graphkit or not complete ({message}); restore a backup, or use another place",
    )


class TableNames(NamedTuple):
    """The names of the tables as SQL identifiers, quoted."""

    histories: str
    records: str
    terms: str
    run_locks: str
    meta: str
    watchers: str
    """Only on PostgreSQL: who must be told of puts."""
    run_locks_token: str
    """Only on PostgreSQL: the sequence that numbers the run locks."""


def quote_name(name: str) -> str:
    """Return a name as a quoted identifier."""
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What one database understands. The names of tables are in braces."""

    # Tables

    serial_key: str
    """A primary key that counts up and never returns."""
    text: str
    """Text that is ordered by code point."""
    bytes: str
    """Bytes."""
    terms: str = ""
    """The definition of the column of a record's terms; empty if a table has them."""
    extra_statements: tuple[str, ...] = ()
    """What the first step executes at its end."""

    # Statements

    combines_writes: bool
    """Whether one statement can change several tables, and a record has its terms in a column. Then
    a put is one round trip."""
    has_row_locks: bool
    """Whether a SELECT can keep rows from changing until the commit. Otherwise there is one writer at a time."""
    record_columns: str = "position, checkpoint, is_keyframe, frame, written"
    """The columns of a record, without the history;"""
    record_values: str = "?, ?, ?, ?, ?"
    """and their parameters."""
    history_values: str = "?, ?, ?, ?, ?, ?, ?, ?"
    """The parameters of the columns of a history."""
    insert_if: str
    """Inserts a record into {records} if {source}, the rest of a SELECT, finds its history `h`."""
    has_term: str
    """Whether a history `h` has one of three terms."""
    without_index: str = ""
    """Stands behind a table from which all rows are read, so that a damaged index hides none."""

    def lock_rows(self, *locks: str) -> str:
        """Return the clause at the end of a SELECT that keeps rows from changing until the commit.

        Args:
            locks: each a kind and the alias of a table: "UPDATE OF h" if the transaction will change the selected
                rows, "SHARE OF l" if they must not change at all, "KEY SHARE OF h" if they must keep their keys.
                The version of a history is part of a key.
        """
        return "".join(f" FOR {lock}" for lock in locks if self.has_row_locks)


SQLITE: Final = Dialect(
    serial_key="INTEGER PRIMARY KEY AUTOINCREMENT",
    text="TEXT",
    bytes="BLOB",
    extra_statements=(
        """CREATE TABLE {terms} (
            term BIGINT NOT NULL,
            history BIGINT NOT NULL REFERENCES {histories} ON DELETE CASCADE,
            PRIMARY KEY (term, history)
        ) WITHOUT ROWID""",
        "CREATE INDEX {terms_history} (history)",
    ),
    combines_writes=False,
    has_row_locks=False,
    # SQLite would put the rows of an INSERT that selects from its own table into a temporary table
    # first, which takes 1.5 us of 12. If no history is found, its column would be NULL: OR IGNORE
    # inserts nothing then, nor if the position is taken.
    insert_if="INSERT OR IGNORE INTO {records} ({columns}, history) VALUES ({values}, (SELECT h.history {source}))",
    has_term="h.history IN (SELECT t.history FROM {terms} AS t WHERE t.term IN (?, ?, ?))",
    without_index=" NOT INDEXED",
)
POSTGRES: Final = Dialect(
    serial_key="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    text='TEXT COLLATE "C"',
    bytes="BYTEA",
    terms="terms BIGINT[],",
    extra_statements=(
        # Its rows expire. Only few are there at a time.
        """CREATE TABLE {watchers} (
            watcher BIGINT PRIMARY KEY,
            thread TEXT COLLATE "C",
            expires TIMESTAMP WITH TIME ZONE NOT NULL
        )""",
        # The frames are compressed already.
        "ALTER TABLE {records} ALTER COLUMN frame SET STORAGE EXTERNAL",
        # A put inserts one row, in one statement; a table of terms would take three times the bytes.
        "CREATE INDEX {records_terms} USING gin (terms) WHERE terms IS NOT NULL",
        # Owned, so that it goes with its table.
        "CREATE SEQUENCE {run_locks_token} OWNED BY {run_locks}.token",
    ),
    combines_writes=True,
    has_row_locks=True,
    record_columns="position, checkpoint, is_keyframe, frame, written, terms",
    history_values="?::text, ?::text, ?::bigint, ?::bigint, ?::text, ?::bigint, ?::bytea, ?::bytea",
    record_values="?::bigint, ?::bytea, ?::boolean, ?::bytea, ?::bigint, ?::bigint[]",
    insert_if="INSERT INTO {records} ({columns}, history) SELECT {values}, h.history {source}",
    # PostgreSQL would ask the index for each history as long as it has no statistics of the tables:
    # 0.5 s for 1,000 histories. An array is made once, whatever it expects.
    has_term=("h.history = ANY(ARRAY(SELECT r.history FROM {records} AS r WHERE r.terms && ARRAY[?, ?, ?]::bigint[]))"),
)


# Waiting


class WakeUp:
    """Ends the wait of a thread that waits for descriptors."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._reader, self._writer = os.pipe()
        self.is_woken = False
        self._is_closed = False

    def wait(self, seconds: float, fd: int | None = None) -> None:
        """Wait until a descriptor has something to read, `wake` was called, or the time is over."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        if fd is not None:
            poller.register(fd, select.POLLIN)
        poller.poll(seconds * 1000)

    def wake(self) -> None:
        """End the wait."""
        with self._mutex:
            self.is_woken = True
            if not self._is_closed:
                os.write(self._writer, b"x")

    def close(self) -> None:
        """Close the descriptors; the waiting thread does it at its end."""
        with self._mutex:
            if not self._is_closed:
                os.close(self._reader)
                os.close(self._writer)
            self._is_closed = True

    def close_after_fork(self) -> None:
        """Close the descriptors, in the child; the thread that may have used this one is not there."""
        self._mutex = threading.Lock()
        self.close()


# Run locks: one run per thread, across the processes that share a database


class RunLocks(ABC):
    """The run locks of one database, as one database object sees them."""

    @abstractmethod
    def hold(self, thread_id: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the run lock of a thread during the block.

        Args:
            thread_id: the thread.
            timeout: seconds to wait for another run.

        Raises:
            ThreadBusyError: another run held the lock until the timeout.
            CheckpointStorageError: the database cannot be used.
        """

    def token_of(self, thread_id: str) -> int | None:  # noqa: ARG002 - where a holder can lose the lock
        """Return the token with which this object holds a run lock.

        A put of the holder checks in its statement that the row of the lock still has this token.
        None if this object does not hold the lock, or if a paused holder cannot lose it.
        """
        return None

    @abstractmethod
    def is_mine(self, thread_id: str) -> bool:
        """Return whether the calling thread of execution holds the run lock of a thread."""

    @abstractmethod
    def is_held(self, thread_id: str) -> bool:
        """Return whether any run holds the run lock of a thread now.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def read_mark(self, thread_id: str) -> object:
        """Return a mark of the run lock, which changes when its holder lets it go, but not when the holder dies.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def is_abandoned(self, thread_id: str, mark: object) -> bool:
        """Return whether the holder of a run lock that nobody holds any more has died, as far as that is known.

        Args:
            thread_id: the thread.
            mark: the mark that was read before the lock was seen to be held.

        Raises:
            CheckpointStorageError: the database cannot be used.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what is open while no lock is held; locks that are held stay."""


# Changes: what wakes watches, so that they read what is new


class ChangeListener(Signals):
    """Collects the changes for one watcher; threads are named by their encoded ids."""

    def __init__(self, close: Callable[[ChangeListener], None], thread: str | None) -> None:
        super().__init__()
        self._close = close
        self.thread = thread
        """The encoded id of the thread that is watched; None: all threads."""

    def close(self) -> None:
        """Stop listening."""
        self._close(self)


class ChangeSource(ABC):
    """Watches one database in a thread of execution, while there are listeners; and how writers notify them."""

    notify_clause = ""
    """The end of a put's statement, which notifies the watchers of its thread, without a round trip. It takes the
    encoded id of the thread. On SQLite it is empty, and takes nothing: watchers see every commit."""

    def make_notification(self, thread_id: str) -> tuple[str, tuple[str, ...]]:
        """Return an expression that notifies as `Transaction.notify` does, and its parameters.

        Only where the dialect `combines_writes`.
        """
        raise NotImplementedError

    hears_all = False
    """Whether a new listener hears of each change."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._listeners: list[ChangeListener] = []
        self._stop: WakeUp | None = None
        """Stops the thread; None if there is none."""

    def open_listener(self, thread: str | None = None) -> ChangeListener:
        """Return a listener that hears of changes committed after this call.

        Args:
            thread: the encoded id of the thread to watch; None: all threads.

        Raises:
            CheckpointStorageError: the database cannot be watched.
        """
        listener = ChangeListener(self._remove, thread)
        listener.hears_all = self.hears_all
        try:
            with self._mutex:
                self._listeners.append(listener)
                if self._stop is None:
                    self._start_thread()
        except BaseException:
            # Without listeners there is no thread, so that the next one starts another.
            self._remove(listener)
            raise
        return listener

    def notify(self, thread: str | None = None) -> None:
        """Notify all listeners of a change of a thread, by its encoded id; None: of any."""
        for listener in list(self._listeners):
            listener.notify(thread)

    def _start_thread(self) -> None:
        """Start the thread that watches; the caller holds the mutex."""
        watch = self._start_watching()
        stop = self._stop = WakeUp()
        watcher = threading.Thread(target=self._watch, args=(watch, stop), name="graphkit-changes", daemon=True)
        try:
            watcher.start()
        except RuntimeError:
            stop.wake()
            self._watch(watch, stop)  # closes what was prepared
            raise

    @abstractmethod
    def _start_watching(self) -> Callable[[WakeUp], None]:
        """Prepare what the thread needs, so that no later change is missed.

        Returns:
            Watches until it is woken up, calls `notify` for changes, and closes what was prepared.
        """

    def _watch(self, watch: Callable[[WakeUp], None], stop: WakeUp) -> None:
        try:
            watch(stop)
        except Exception:
            _LOGGER.exception("a database can no longer be watched")
        finally:
            stop.close()

    def _remove(self, listener: ChangeListener) -> None:
        with self._mutex:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if not self._listeners and self._stop is not None:
                self._stop.wake()
                self._stop = None

    def reset_after_fork(self) -> None:
        """Forget the listeners of the parent, in the child; it has no thread that watches."""
        self._mutex = threading.Lock()
        self._listeners = []
        if self._stop is not None:
            self._stop.close_after_fork()
        self._stop = None


# Statements and transactions


class Transaction(ABC):
    """An open transaction. Its statements take effect together, or not at all."""

    @abstractmethod
    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Execute one statement, and return its rows.

        Raises:
            StaleLogError: another writer was faster. End the transaction.
            CheckpointerError: another error. The transaction is rolled back.
        """

    @abstractmethod
    def change(self, sql: str, parameters: Parameters) -> int:
        """Execute one statement, and return how many rows it inserted, changed or deleted.

        Raises:
            CheckpointerError, StaleLogError: as `execute`.
        """

    @abstractmethod
    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Execute one statement for each row of parameters; it returns no rows.

        Raises:
            CheckpointerError, StaleLogError: as `execute`.
        """

    @abstractmethod
    def notify(self, thread_id: str) -> None:
        """Tell watchers at the commit that a history of the thread has ended or was rewritten."""

    def notify_status(self, thread_id: str) -> None:  # noqa: B027 - watchers of SQLite see every row that is inserted
        """Tell watchers at the commit that a history of the thread, and perhaps its status, has changed."""


class Integrity:
    """Checks whether damage hides something. PostgreSQL does that itself; only a file of SQLite does not."""

    def check_absence(self, thread: str | None) -> None:
        """Check that what no statement finds is not hidden by damage.

        Args:
            thread: the encoded id of a thread that seems not to be there; None: all threads have been
                listed.

        Raises:
            DatabaseDamagedError: there may be more.
        """

    def check_end(self, history: int, position: int) -> None:
        """Check that the row of a history which seems to be its last one is not followed by hidden ones.

        Raises:
            DatabaseDamagedError: it may be.
        """

    def check(self) -> Sequence[str]:
        """Return what is wrong with the tables themselves, whatever the histories in them say.

        PostgreSQL has other tools for that: checksums of its pages, and the extension amcheck.

        Raises:
            CheckpointerError: the database cannot be read.
        """
        return ()


class Database(ABC):
    """Executes SQL for a saver, from any thread of execution.

    Both databases understand the same statements: values are `?` parameters, bytes stay bytes, and
    RETURNING and ON CONFLICT are allowed. After a fork, the child opens connections of its own.
    """

    path: str
    """The database in messages: a file, or a schema, a user and a server; without a password."""
    identity: str
    """The database, whichever user connects to it."""
    names: TableNames
    run_locks: RunLocks
    """The run locks of the threads, which hold across processes."""
    changes: ChangeSource
    """Notifies watches of what other connections have committed."""
    integrity: Integrity = Integrity()
    """Checks whether damage hides something."""
    dialect: Dialect

    writes_at_once = False
    """Whether a short statement that writes takes only some microseconds."""

    def __init__(self) -> None:
        _DATABASES.add(self)

    @abstractmethod
    def reset_after_fork(self) -> None:
        """Forget the connections and run locks of the parent, in the child."""

    def check_free(self) -> bool:
        """Return whether a short statement that reads takes only some microseconds: a connection is open, to a file.

        Raises:
            WouldWaitError: another thread of execution of this process uses the connection.
        """
        return False

    @abstractmethod
    def has_tables(self) -> bool:
        """Return whether the tables exist, without creating them or anything else.

        Raises:
            CheckpointFormatError: a newer graphkit has created them, or it is no database.
            CheckpointerError: the database cannot be read.
        """

    generation = 0
    """Counts how often another database was found in place of the one that was open."""

    @abstractmethod
    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Execute one statement that changes nothing; it sees what was committed last.

        During a transaction of the calling thread of execution, it also sees what this has done.

        Raises:
            CheckpointerError: the database cannot be read.
        """

    read_size: int
    """How many bytes of a long value to read with one statement. Where statements cost little, it is
    so little that the memory of one read serves the next one."""

    @abstractmethod
    def write(self, sql: str, parameters: Parameters = ()) -> int:
        """Execute one statement as a transaction of its own, in one round trip.

        Returns:
            How many rows it inserted, changed or deleted.

        Raises:
            StaleLogError: another writer was faster. Nothing was changed.
            OutcomeUnknownError: the connection was lost after the statement was sent.
            CheckpointerError: another error. Nothing was changed.
        """

    def write_returning(self, sql: str, parameters: Parameters) -> list[Row]:
        """Execute one statement as `write` does, and return the rows that it returns.

        Only where the dialect `combines_writes`.

        Raises:
            CheckpointerError, StaleLogError, OutcomeUnknownError: as `write`.
        """
        raise NotImplementedError

    @abstractmethod
    def transact(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Call a function with an open transaction, commit, and return its result.

        Any exception rolls back. One at any line, as Ctrl-C raises it, leaves no transaction open. A thread of
        execution has one open transaction at most. On SQLite it excludes all other writers from its beginning on.

        Raises:
            OutcomeUnknownError: the connection was lost during the commit.
            CheckpointerError: another error. Nothing was changed.
        """

    def empty_log(self) -> bool:
        """Empty the log of the database, which still has what was replaced; return False if a reader keeps it.

        Only that of SQLite belongs to its user.
        """
        return True

    @abstractmethod
    def erase_deleted(self, *, full: bool) -> Sequence[str]:
        """Remove the bytes of deleted rows from the files of the database; see `graphkit.abc.SupportsErase`."""

    def flush(self) -> None:  # noqa: B027 - a server does it at each commit
        """Bring everything that was committed to the disk, if `fsync` promises that.

        Raises:
            CheckpointStorageError: the disk refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush, and close the connections. A later use opens them again."""


_DATABASES: Final[WeakSet[Database]] = WeakSet()
call_after_fork(_DATABASES, lambda database: database.reset_after_fork())
