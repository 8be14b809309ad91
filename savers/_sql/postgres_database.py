"""A database in one schema of PostgreSQL: connections, transactions, reconnection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import Any, Final, TypeVar

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from savers._sql.database import (
    POSTGRES,
    Database,
    OutcomeUnknownError,
    Parameters,
    Row,
    Transaction,
)
from savers._sql.postgres_changes import PostgresChanges
from savers._sql.postgres_connections import (
    Connections,
    GuestConnection,
    GuestConnections,
    OwnConnections,
)
from savers._sql.postgres_run_locks import PostgresRunLocks
from savers._sql.postgres_server import BEGIN, PostgresServer, PostgresTables, check_schema
from savers._sql.postgres_session import (
    RETRIED,
    LostError,
    PostgresError,
    PostgresSession,
    complete_parameters,
    get_connection_parameters,
    get_pool_parameters,
    get_state,
    is_connection,
    is_pool,
    parse_connection_string,
)
from savers._sql.schema import name_token_sequence

_Result = TypeVar("_Result")


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
        if pool is not None and not is_pool(pool) and not is_connection(pool):
            raise CheckpointerConfigurationError(
                f"pool must be a psycopg_pool.ConnectionPool or a psycopg.Connection, not {type(pool).__name__}"
            )
        if not isinstance(connection_string, (str, type(None))):
            raise CheckpointerConfigurationError(
                f"connection_string must be a str, not {type(connection_string).__name__}"
            )
        check_schema(schema)
        self.lock_timeout = lock_timeout
        self._guest: Any = pool
        parameters = _find_parameters(connection_string, pool)
        self._server = PostgresServer(parameters, schema, lock_timeout=lock_timeout, lease=lease)
        self.schema = schema
        self.path = self._server.path
        self.identity = self._server.identity
        self._reset()
        self.names = self._tables.names
        self.run_locks: PostgresRunLocks = PostgresRunLocks(
            self._server,
            self.read,
            table=self.names.run_locks,
            sequence=name_token_sequence(self.names),
            advisory_key=self._tables.make_advisory_key("run lock"),
            lease=lease,
        )
        self.changes: PostgresChanges = PostgresChanges(
            self._server, self._read_for_watches, schema, self.names.watchers
        )
        super().__init__()

    def __repr__(self) -> str:
        return f"PostgresDatabase({self.path})"

    def _reset(self) -> None:
        """Begin without connections."""
        self._tables = PostgresTables(self._server, self.schema)
        self._mutex = threading.Lock()
        """Guards the next attribute."""
        self._connections: Connections | None = None
        self._in_transaction: dict[int, PostgresSession] = {}
        """The connection of each thread of execution that has an open transaction."""

    def has_tables(self) -> bool:
        return self._tables.exist()

    # Statements

    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        def run(session: PostgresSession) -> list[Row]:
            return session.run(sql, parameters)[0]

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
        if self._connections is not None or not self._tables.are_known:
            return self.read(sql, parameters)
        with closing(self._server.connect()) as session, self._server.explained("read"):
            return session.run(sql, parameters)[0]

    def write(self, sql: str, parameters: Parameters = ()) -> int:
        return self._write(lambda session: session.write(sql, parameters))

    def write_returning(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._write(lambda session: session.run(sql, parameters)[0])

    def _write(self, run: Callable[[PostgresSession], _Result]) -> _Result:
        if threading.get_ident() in self._in_transaction:
            raise RuntimeError("a transaction of this thread of execution is open")
        try:
            return self._run_on_session(run, "write")
        except LostError as error:
            # It is not executed again here: the server may have committed it before the connection was lost.
            raise OutcomeUnknownError(self.path, "write", f"the connection was lost ({error})") from error

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        ident = threading.get_ident()
        if ident in self._in_transaction:
            raise RuntimeError("a transaction of this thread of execution is open")
        with self._borrow() as session:
            try:
                # BEGIN is inside, because it may be interrupted when the server has executed it. Whatever ends the
                # block must leave the session without a transaction: what it executes next would become part of it.
                with self._server.explained("write"):
                    session.run(BEGIN)
                    if self._guest is not None:
                        # Our own connections have these settings for good.
                        session.run(self._server.transaction_settings)
                self._in_transaction[ident] = session
                yield _PostgresTransaction(self._server, self.changes, session)
                self._commit(session)
            finally:
                self._in_transaction.pop(ident, None)
                # A lost connection is in no transaction any more, on the server.
                with suppress(LostError, PostgresError):
                    if session.is_in_transaction:
                        session.run("ROLLBACK")

    def _commit(self, session: PostgresSession) -> None:
        try:
            is_committed = session.commit()
        except LostError as error:
            raise OutcomeUnknownError(self.path, "commit to", f"the connection was lost meanwhile ({error})") from error
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
        deadline = monotonic() + self.lock_timeout
        # Without `_borrow`, as part of each put: a context manager takes 3 us.
        connections = self._connections or self._open_connections()
        session = connections.take(self.lock_timeout)
        try:
            while True:
                try:
                    return run(session)
                except PostgresError as error:
                    if get_state(error) not in RETRIED or monotonic() > deadline:
                        raise self._server.translate(error, operation) from error
        finally:
            connections.give_back(session)

    def erase_deleted(self, *, full: bool) -> Sequence[str]:
        if not full:
            advice = "erase again with full=True (--full), for which all users of the tables have to wait"
            return [f"{self.path} keeps the bytes of deleted rows until VACUUM FULL: {advice}"]
        from savers._sql.postgres_erasure import rewrite_tables

        self.read("SELECT 1")  # creates the tables, if they are missing
        # A connection of our own: VACUUM cannot be in a transaction, and waits longer than other statements.
        with closing(self._server.connect()) as session, self._server.explained("erase what was deleted from"):
            return rewrite_tables(session, self.names, self.schema, self.lock_timeout)

    # Connections

    @contextmanager
    def _borrow(self) -> Iterator[PostgresSession]:
        connections = self._connections or self._open_connections()
        session = connections.take(self.lock_timeout)
        try:
            yield session
        finally:
            connections.give_back(session)

    def _open_connections(self) -> Connections:
        with self._mutex:
            if self._connections is None:
                self._tables.create()
                if self._guest is None:
                    self._connections = OwnConnections(self._server.connect, self.path)
                elif is_connection(self._guest):
                    self._connections = GuestConnection(self._guest, self.path)
                else:
                    self._connections = GuestConnections(self._guest, self._server.connect, self.path)
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
            rows, self.row_count = self._session.run(sql, parameters)
        return rows

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        with self._server.explained("write"):
            self.row_count = self._session.run_many(sql, rows)

    def notify(self, thread_id: str) -> None:
        expression, parameters = self._changes.make_notification(thread_id)
        self.execute(f"SELECT {expression}", parameters)

    def notify_status(self, thread_id: str) -> None:
        self.notify(thread_id)


_INHERITED: Final[list[Any]] = []
"""The parent's connections, kept for ever: to close them would end the sessions of the parent."""


def _find_parameters(connection_string: str | None, guest: Any) -> dict[str, Any]:
    """Return the parameters of the connections that the saver opens itself."""
    if connection_string is not None:
        return complete_parameters(parse_connection_string(connection_string))
    if is_connection(guest):
        return complete_parameters(get_connection_parameters(guest))
    parameters = get_pool_parameters(guest)
    return complete_parameters({**parse_connection_string(parameters.pop("conninfo")), **parameters})
