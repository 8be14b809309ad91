"""The database below a SQL saver: what is the same for SQLite and PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from savers._sql.changes import ChangeListener
from savers._sql.dialect import Dialect
from savers._sql.run_locks import RunLocks

Parameters = Sequence[Any]
Row = tuple[Any, ...]


class TableNames(NamedTuple):
    """The names of the tables as SQL identifiers, quoted where that is necessary."""

    histories: str
    records: str
    terms: str
    run_locks: str
    meta: str
    watchers: str
    """Only on PostgreSQL: who must be told of puts."""


class Transaction(ABC):
    """An open transaction. Its statements take effect together, or not at all."""

    row_count: int = 0
    """How many rows the last statement inserted, changed or deleted."""

    @abstractmethod
    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Execute one statement, and return its rows.

        Raises:
            PositionTakenError: a unique key exists already. End the transaction.
            HistoryGoneError: the row of a foreign key does not exist. End the transaction.
            CheckpointerError: another error. The transaction is rolled back.
        """

    @abstractmethod
    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Execute one statement for each row of parameters; it returns no rows.

        Raises:
            CheckpointerError, PositionTakenError, HistoryGoneError: as `execute`.
        """

    @abstractmethod
    def notify(self, thread_id: str) -> None:
        """Tell watchers at the commit that a history of the thread has ended or was rewritten."""

    @abstractmethod
    def notify_status(self, thread_id: str) -> None:
        """Tell watchers at the commit that the status of a history of the thread has changed."""


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
    """The run locks of the threads."""
    dialect: Dialect

    reads_at_once = False
    """Whether a short statement that reads takes only some microseconds."""
    writes_at_once = False
    """Whether a short statement that writes takes only some microseconds."""

    def check_free(self) -> bool:
        """Return whether a connection is open, so that a short statement would not wait for that.

        Raises:
            InUseError: another thread of execution of this process uses the connection.
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
            PositionTakenError: a unique key exists already. Nothing was changed.
            HistoryGoneError: the row of a foreign key does not exist. Nothing was changed.
            OutcomeUnknownError: the connection was lost after the statement was sent.
            CheckpointerError: another error. Nothing was changed.
        """

    @abstractmethod
    def write_returning(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Execute one statement as `write` does, and return the rows that it returns.

        Raises:
            CheckpointerError, PositionTakenError, HistoryGoneError, OutcomeUnknownError: as `write`.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Open a transaction. It commits at the end of the block, and rolls back on any exception.

        A thread of execution has one open transaction at most. On SQLite it excludes all other
        writers from its beginning on.

        Raises:
            ConnectionLostError: the connection was lost before the commit. Nothing was changed.
            OutcomeUnknownError: the connection was lost during the commit.
            CheckpointerError: another error. Nothing was changed.
        """

    @abstractmethod
    def make_notification(self, thread_id: str) -> tuple[str, Parameters]:
        """Return an expression that notifies as `Transaction.notify` does, and its parameters.

        Only where the dialect `combines_writes`.
        """

    def run_lock(self, thread_id: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the run lock of a thread during the block; see `RunLocks.hold`."""
        return self.run_locks.hold(thread_id, timeout)

    def token_of(self, thread_id: str) -> int | None:
        """Return the token that a put of the holder checks; see `RunLocks.token_of`."""
        return self.run_locks.token_of(thread_id)

    def is_held(self, thread_id: str) -> bool:
        """Return whether any run holds the run lock of a thread now; see `RunLocks.is_held`."""
        return self.run_locks.is_held(thread_id)

    @abstractmethod
    def notify_clause(self) -> str:
        """Return the clause at the end of a put's statement that tells the watchers of its thread.

        It takes `notify_parameters`, and no round trip. On SQLite it is empty: watchers see every
        commit.
        """

    @abstractmethod
    def notify_parameters(self, thread: str) -> tuple[str, ...]:
        """Return the parameters of `notify_clause` for an encoded thread id."""

    @abstractmethod
    def open_listener(self, thread_id: str | None = None) -> ChangeListener:
        """Return a listener that hears of changes committed after this call; the caller closes it.

        Args:
            thread_id: the thread to watch; None: all threads.

        Raises:
            CheckpointStorageError: the database cannot be watched.
        """

    def check_absence(self, thread: str | None) -> None:  # noqa: B027 - only a damaged file of SQLite hides a thread
        """Check that what no statement finds is not hidden by damage.

        Args:
            thread: the encoded id of a thread that seems not to be there; None: all threads have been
                listed.

        Raises:
            DatabaseDamagedError: there may be more.
        """

    def check_end(self, history: int, position: int) -> None:  # noqa: B027 - as `check_absence`
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

    def empty_log(self) -> None:  # noqa: B027 - only that of SQLite belongs to its user
        """Empty the log of the database, which still has what was replaced, unless another connection reads it."""

    @abstractmethod
    def flush(self) -> None:
        """Bring everything that was committed to the disk, if `fsync` promises that.

        Raises:
            CheckpointStorageError: the disk refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Flush, and close the connections. A later use opens them again."""
