"""A database in one schema of PostgreSQL: its connections, our own or a guest's; statements and transactions."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from savers._sql.database import POSTGRES, Database, OutcomeUnknownError, Parameters, Row, Transaction
from savers._sql.postgres_changes import PostgresChanges
from savers._sql.postgres_run_locks import PostgresRunLocks
from savers._sql.postgres_server import BEGIN, RETRIED, PostgresServer, check_schema
from savers._sql.postgres_session import (
    LostError,
    Pool,
    PoolError,
    PostgresError,
    PostgresSession,
    find_parameters,
    get_state,
    is_connection,
)
from savers._threads import Backoff, RLock, is_mine

if TYPE_CHECKING:
    import psycopg

_Result = TypeVar("_Result")
_MOST: Final = 10
"""The most connections that are open at the same time."""
_LONGEST_IDLE: Final = 60.0
"""Seconds after which a connection is closed that nothing has used."""
_LENT: Final[WeakKeyDictionary[Any, RLock]] = WeakKeyDictionary()
"""The locks of single connections: one for all savers that were given the same connection."""
_LENT_GUARD: Final = threading.Lock()
_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.25


class PostgresDatabase(Database):
    """One schema of a PostgreSQL database."""

    dialect = POSTGRES
    read_size = 1 << 23

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        pool: object = None,
        schema: str = "graphkit",
        lease: float = 10.0,
        lock_timeout: float = 10.0,
    ) -> None:
        """Check the arguments; the first use connects, and creates the tables.

        Args:
            connection_string: a URL or the keywords of libpq; opens up to ten connections.
            pool: an open `psycopg_pool.ConnectionPool` that lends its connections, or an open
                `psycopg.Connection`; it is never closed. Run locks and watches open one connection each
                with the same parameters, so that they do not take one of its connections for long.
            schema: the schema of the tables, created where it is missing.
            lease: seconds after which the run lock of a paused process is lost.
            lock_timeout: seconds to wait for other writers, and for a server that restarts. A
                single statement on a connection of `pool` waits as that connection is configured to.

        Raises:
            CheckpointerConfigurationError: an argument is wrong.
        """
        if (connection_string is None) == (pool is None):
            raise CheckpointerConfigurationError("give either connection_string or pool")
        parameters = find_parameters(connection_string, pool)
        check_schema(schema)
        self._guest: Any = pool
        server = self._server = PostgresServer(parameters, schema, lock_timeout=lock_timeout, lease=lease)
        self.path = server.path
        self.identity = server.identity
        self.names = server.names
        self.run_locks: PostgresRunLocks = PostgresRunLocks(server, self.read)
        self.changes: PostgresChanges = PostgresChanges(server, self._read_for_watches)
        self._reset()
        super().__init__()

    def _reset(self) -> None:
        """Begin without connections."""
        self._mutex = threading.Lock()
        """Guards the next attribute."""
        self._connections: Connections | None = None
        self._in_transaction: dict[int, PostgresSession] = {}
        """The connection of each thread of execution that has an open transaction."""

    def has_tables(self) -> bool:
        return self._server.find_tables(creates=False)

    # Statements

    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        def run(session: PostgresSession) -> list[Row]:
            return session.run(sql, parameters)

        own = self._in_transaction.get(threading.get_ident())
        if own is not None:
            # With a second connection, as many transactions as there are connections could wait for one.
            with self._server.explained("read"):
                return run(own)
        try:
            return self._run_on_session(run, "read")
        except LostError:
            # A statement that changes nothing may be executed again.
            with self._server.explained("read"):
                return self._run_on_session(run, "read")

    def _read_for_watches(self, sql: str, parameters: Parameters) -> list[Row]:
        """As `read`. After `close`, use a connection that is closed again: a watch may end later."""
        if self._connections is not None or not self._server.has_seen_tables:
            return self.read(sql, parameters)
        with closing(self._server.connect()) as session, self._server.explained("read"):
            return session.run(sql, parameters)

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        return self._write(lambda session: session.write(sql, parameters))

    def write_returning(self, sql: str, parameters: Parameters) -> list[Row]:
        return self._write(lambda session: session.run(sql, parameters))

    def _write(self, run: Callable[[PostgresSession], _Result]) -> _Result:
        try:
            return self._run_on_session(run, "write")
        except LostError as error:
            # It is not executed again here: the server may have committed it before the connection was lost.
            raise OutcomeUnknownError(self.path, "write", f"the connection was lost ({error})") from error

    def transact(self, work: Callable[[Transaction], _Result]) -> _Result:
        ident = threading.get_ident()

        def transact(session: PostgresSession) -> _Result:
            try:
                # BEGIN is inside, because it may be interrupted when the server has executed it. Whatever ends the
                # work must leave the session without a transaction: what it executes next would become part of it.
                with self._server.explained("write"):
                    session.run(BEGIN)
                    if self._guest is not None:
                        # Our own connections have these settings for good.
                        session.run(self._server.transaction_settings)
                self._in_transaction[ident] = session
                result = work(_PostgresTransaction(self._server, self.changes, session))
                self._commit(session)
                return result
            finally:
                self._in_transaction.pop(ident, None)
                # A lost connection is in no transaction any more, on the server.
                with suppress(LostError, PostgresError):
                    if session.is_in_transaction:
                        session.run("ROLLBACK")

        return self._use_session(transact)

    def _commit(self, session: PostgresSession) -> None:
        try:
            is_committed = session.commit()
        except LostError as error:
            reason = f"the connection was lost meanwhile ({error})"
            raise OutcomeUnknownError(self.path, "commit to", reason) from error
        except PostgresError as error:
            raise self._server.translate(error, "commit to") from error
        if not is_committed:
            # After an error that the caller has not passed on, the server answers COMMIT with a rollback.
            reason = "the transaction had failed before; nothing was changed"
            raise CheckpointStorageError(self.path, "commit to", reason)

    def _run_on_session(self, run: Callable[[PostgresSession], _Result], operation: str) -> _Result:
        """Run a statement on a connection, again if the server rolled it back for another one.

        Raises:
            LostError: the connection was lost.
        """
        deadline = monotonic() + self._server.lock_timeout

        def run_patiently(session: PostgresSession) -> _Result:
            while True:
                try:
                    return run(session)
                except PostgresError as error:
                    if get_state(error) not in RETRIED or monotonic() > deadline:
                        raise self._server.translate(error, operation) from error

        return self._use_session(run_patiently)

    def _use_session(self, use: Callable[[PostgresSession], _Result]) -> _Result:
        """Call a function with a connection, which is given back whatever interrupts it."""
        if threading.get_ident() in self._in_transaction:
            raise RuntimeError("a transaction of this thread of execution is open")
        connections = self._connections or self._open_connections()
        loan = connections.take()
        try:
            return use(loan.session)
        finally:
            try:
                connections.give_back(loan)
            except BaseException:
                # Ctrl-C may have come within the first attempt.
                connections.give_back(loan)
                raise

    def erase_deleted(self, *, full: bool) -> Sequence[str]:
        if not full:
            advice = "erase again with full=True (--full), for which all users of the tables have to wait"
            return [f"{self.path} keeps the bytes of deleted rows until VACUUM FULL: {advice}"]
        from savers._sql.postgres_erasure import rewrite_tables

        self.read("SELECT 1")  # creates the tables, if they are missing
        # A connection of our own: VACUUM cannot be in a transaction, and waits longer than other statements.
        with closing(self._server.connect()) as session, self._server.explained("erase what was deleted from"):
            return rewrite_tables(session, self._server)

    # Connections

    def _open_connections(self) -> Connections:
        with self._mutex:
            if self._connections is None:
                self._server.find_tables(creates=True)
                if self._guest is None:
                    self._connections = OwnConnections(self._server)
                elif is_connection(self._guest):
                    self._connections = GuestConnection(self._guest, self._server)
                else:
                    self._connections = GuestConnections(self._guest, self._server)
            return self._connections

    def close(self) -> None:
        with self._mutex:
            connections = self._connections
            self._connections = None
        if connections is not None:
            connections.close()
        self.run_locks.close()

    def reset_after_fork(self) -> None:
        # There, a guest has connections of its own.
        _INHERITED.extend((self._connections, self._guest))
        _INHERITED.extend((self.run_locks.close_after_fork(), self.changes.close_after_fork()))
        self._guest = None
        self._reset()


class _PostgresTransaction(Transaction):
    def __init__(self, server: PostgresServer, changes: PostgresChanges, session: PostgresSession) -> None:
        self._server = server
        self._changes = changes
        self._session = session

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with self._server.explained("write"):
            return self._session.run(sql, parameters)

    def change(self, sql: str, parameters: Parameters) -> int:
        with self._server.explained("write"):
            return self._session.change(sql, parameters)

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        with self._server.explained("write"):
            self._session.run_many(sql, rows)

    def notify(self, thread_id: str) -> None:
        expression, parameters = self._changes.make_notification(thread_id)
        self.execute(f"SELECT {expression}", parameters)

    notify_status = notify


_INHERITED: Final[list[Any]] = []
"""The parent's connections, kept for ever: to close them would end the sessions of the parent."""


# The connections that statements are executed on


class Loan:
    """A connection that one borrower has, until it gives it back: the next one gets another loan of it."""

    session: PostgresSession
    is_over = False


class Connections(ABC):
    """Lends connections that work, or did a microsecond ago."""

    @abstractmethod
    def take(self) -> Loan:
        """Lend a connection in autocommit mode; the caller gives it back.

        Waits for a connection that is free, and for a server that restarts, for as long as for a lock.

        Raises:
            CheckpointStorageError: there was none.
        """

    @abstractmethod
    def give_back(self, loan: Loan) -> None:
        """Take back a connection that is in no transaction, or that was lost.

        If an interrupt ends the call, a second one does what is left to do.
        """

    def close(self) -> None:  # noqa: B027 - those of the application stay open
        """Close the connections that are not lent, if they are our own."""


class OwnConnections(Connections):
    """Keeps connections open from one statement to the next.

    A pool of psycopg connects in the background: its callers wait for the end of their timeout and
    do not learn the reason when a server cannot be reached, and for longer after each failure.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._mutex = threading.RLock()
        """Guards the next attributes. A semaphore is in Python, so that an interrupt may leave it locked for ever."""
        self._returned = threading.Condition(self._mutex)
        self._loans: set[Loan] = set()
        """Of those who have a connection, or are about to open one. A thread of execution may have several: a finalizer
        or a signal handler uses another one in the middle of a statement."""
        self._idle: dict[PostgresSession, float] = {}
        """The connections that are not lent, with the time of their return; the last one is lent first."""
        self._is_closed = False
        self._has_connected = False

    def take(self) -> Loan:
        timeout = self._server.lock_timeout
        started = monotonic()
        loan = Loan()
        try:
            with self._mutex:
                if not self._returned.wait_for(lambda: len(self._loans) < _MOST, timeout):
                    reason = f"all {_MOST} connections were in use for {timeout:g} s; start fewer threads at once"
                    raise CheckpointStorageError(self._server.path, "use", reason)  # noqa: TRY301 - as any error
                self._loans.add(loan)
                session = self._find_usable()
            loan.session = session or self._connect_patiently(started + timeout - monotonic())
        except BaseException:
            self._end(loan)
            raise
        return loan

    def _find_usable(self) -> PostgresSession | None:
        while self._idle:
            session, _ = self._idle.popitem()
            if session.is_usable():
                return session
            session.close()
        return None

    def _connect_patiently(self, timeout: float) -> PostgresSession:
        """Connect; wait for a server that was there before, because it may be restarting."""
        backoff = Backoff(timeout, first=_FIRST_WAIT, longest=_LONGEST_WAIT)
        while True:
            try:
                session = self._server.connect()
            except CheckpointStorageError:
                if not self._has_connected or backoff.is_over:
                    raise
            else:
                self._has_connected = True
                return session
            backoff.wait()

    def give_back(self, loan: Loan) -> None:
        session = loan.session
        now = monotonic()
        with self._mutex:
            if loan not in self._loans:
                return
            # If this object is closed, the connection was lent when the others were closed.
            is_kept = session.is_reusable and not self._is_closed
            self._end(loan)
            if is_kept:
                self._idle[session] = now
            else:
                session.close()
            for idle, returned in list(self._idle.items()):
                if returned < now - _LONGEST_IDLE:
                    del self._idle[idle]
                    idle.close()

    def _end(self, loan: Loan) -> None:
        with self._mutex:
            self._loans.discard(loan)
            self._returned.notify()

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            while self._idle:
                self._idle.popitem()[0].close()


class GuestConnections(Connections):
    """Borrows connections of a pool, and gives them back as they were."""

    def __init__(self, pool: Pool, server: PostgresServer) -> None:
        """Prepare; the pool is never closed."""
        self._pool = pool
        self._server = server
        self._sessions: dict[psycopg.Connection[Any], PostgresSession] = {}
        """The sessions of the connections of the pool, which know what was prepared."""

    def take(self) -> Loan:
        loan = Loan()
        deadline = monotonic() + self._server.lock_timeout
        pool = self._pool
        while True:
            try:
                connection = pool.getconn(timeout=max(0.1, deadline - monotonic()))
            except PoolError as error:
                raise self._explain(error) from error
            session: PostgresSession | None = None
            try:
                if not connection.closed:
                    session = loan.session = self._find_session(connection)
                    if session.is_usable():
                        session.begin_autocommit()
                        return loan
            except BaseException:
                if session is not None:
                    session.restore_mode()
                pool.putconn(connection)
                raise
            # The server has ended this connection, and so probably all of them.
            connection.close()
            pool.putconn(connection)
            pool.check()

    def _find_session(self, connection: psycopg.Connection[Any]) -> PostgresSession:
        session = self._sessions.get(connection)
        if session is None:
            for each in list(self._sessions):
                if each.closed:  # the pool has replaced it
                    self._sessions.pop(each, None)
            session = self._sessions[connection] = PostgresSession(connection)
        return session

    def _explain(self, error: Exception) -> CheckpointStorageError:
        # A connection outside the pool tells why the pool has none.
        try:
            self._server.connect().close()
        except CheckpointStorageError as refusal:
            return refusal
        reason = f"the pool lends no connection ({error}); open it, or raise its max_size"
        return CheckpointStorageError(self._server.path, "use", reason)

    def give_back(self, loan: Loan) -> None:
        if loan.is_over:
            return
        loan.session.restore_mode()
        # Before the call: an interrupt at its end must not return a connection that the pool may have lent again.
        loan.is_over = True
        self._pool.putconn(loan.session.connection)


class GuestConnection(Connections):
    """Borrows the only connection that the application has passed in, for one statement or transaction at a time."""

    def __init__(self, connection: psycopg.Connection[Any], server: PostgresServer) -> None:
        """Prepare; the connection is never closed."""
        self._connection = connection
        self._server = server
        self._session: PostgresSession | None = None
        with _LENT_GUARD:
            self._free = _LENT.setdefault(connection, threading.RLock())
        """Held while the connection is lent, to this saver or to another one. It knows which thread of execution has
        the connection, whatever interrupted that one."""

    def take(self) -> Loan:
        loan = Loan()
        timeout = self._server.lock_timeout
        if is_mine(self._free):
            # A finalizer, or the handler of a signal, would begin in the middle of a statement.
            raise self._error("the connection is in use by this thread of execution; pass a pool of several")
        try:
            if not self._free.acquire(timeout=timeout):
                raise self._error(f"the connection was in use for {timeout:g} s; pass a pool of several")  # noqa: TRY301 - what follows frees the lock
            loan.session = self._find_usable()
            loan.session.begin_autocommit()
        except BaseException:
            if is_mine(self._free):
                self._free.release()
            raise
        return loan

    def _find_usable(self) -> PostgresSession:
        if self._session is None and not self._connection.closed:
            self._session = PostgresSession(self._connection)
        session = self._session
        if session is None or self._connection.closed or not session.is_usable():
            raise self._error("the connection that was passed in is closed; a pool would replace it")
        if session.is_in_pipeline:
            raise self._error("the connection that was passed in is in a pipeline; end it, or pass a pool")
        if session.is_in_transaction:
            raise self._error("the connection that was passed in has an open transaction; end it, or pass a pool")
        return session

    def _error(self, reason: str) -> CheckpointStorageError:
        return CheckpointStorageError(self._server.path, "use", reason)

    def give_back(self, loan: Loan) -> None:
        if is_mine(self._free):
            loan.session.restore_mode()
            self._free.release()
