"""A database in one schema of PostgreSQL: connections, transactions, reconnection."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from time import monotonic
from typing import Any, Final, TypeVar

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from savers._sql.changes import ChangeListener
from savers._sql.database import (
    POSTGRES,
    ConnectionLostError,
    Database,
    OutcomeUnknownError,
    Parameters,
    Row,
    TableNames,
    Transaction,
)
from savers._sql.encoded_text import encode_text
from savers._sql.postgres_changes import PostgresChanges
from savers._sql.postgres_connections import (
    Connections,
    GuestConnection,
    GuestConnections,
    OwnConnections,
    lends_transactions,
)
from savers._sql.postgres_run_locks import PostgresRunLocks
from savers._sql.postgres_session import (
    RETRIED,
    UNDEFINED,
    LostError,
    PostgresError,
    PostgresSession,
    complete_parameters,
    connect,
    describe_error,
    get_connection_parameters,
    get_pool_parameters,
    get_state,
    is_connection,
    is_pool,
    name_database,
    parse_connection_string,
    quote_name,
    translate_error,
)
from savers._sql.schema import is_current, migrate, name_token_sequence, select_version

_Result = TypeVar("_Result")

_LEAST_IDLE: Final = 10.0
"""Seconds after which the server may end a transaction that executes nothing, or later."""
_LONGEST_NAME: Final = 63
"""Bytes of a name in PostgreSQL, which cuts longer ones without an error."""
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


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
        _check_schema(schema)
        self.schema = schema
        self.lease = lease
        self.lock_timeout = lock_timeout
        self._guest: Any = pool
        self._parameters = self._make_parameters(connection_string)
        user, servers, name = name_database(self._parameters)
        self.path = f'schema "{schema}" of {user}@{servers}/{name}'
        self.identity = f'schema "{schema}" of {servers}/{name}'
        self._keeps_sessions = False
        """Whether the first connection has shown that a connection keeps its session of the server."""
        self.names = TableNames(*(f"{quote_name(schema)}.{quote_name(name)}" for name in TableNames._fields))
        self.channel = f"graphkit_{blake2b(schema.encode(), digest_size=12).hexdigest()}"
        """The channel of the schema's notifications."""
        self.notify_clause = (
            f" RETURNING (SELECT pg_notify('{self.channel}', w.thread) FROM {self.names.watchers} AS w"
            " WHERE w.thread = ? AND w.expires > now() LIMIT 1)"
        )
        self._reset()
        self._own_run_locks = PostgresRunLocks(
            self.connect,
            self.read,
            self.translate,
            path=self.path,
            table=self.names.run_locks,
            sequence=name_token_sequence(self.names),
            advisory_key=self.make_advisory_key("run lock"),
            lease=lease,
        )
        self.run_locks = self._own_run_locks
        self._changes = PostgresChanges(
            self.connect,
            self._read_for_watches,
            self._translate_for_session,
            channel=self.channel,
            table=self.names.watchers,
        )
        super().__init__()

    def __repr__(self) -> str:
        return f"PostgresDatabase({self.path})"

    def _reset(self) -> None:
        """Begin without connections."""
        self._mutex = threading.Lock()
        """Guards the creation of the tables and of the next attribute."""
        self._connections: Connections | None = None
        self._has_tables = False
        self._in_transaction: dict[int, PostgresSession] = {}
        """The connection of each thread of execution that has an open transaction."""

    def _make_parameters(self, connection_string: str | None) -> dict[str, Any]:
        if connection_string is not None:
            return complete_parameters(parse_connection_string(connection_string))
        if is_connection(self._guest):
            return complete_parameters(get_connection_parameters(self._guest))
        parameters = get_pool_parameters(self._guest)
        return complete_parameters({**parse_connection_string(parameters.pop("conninfo")), **parameters})

    def has_tables(self) -> bool:
        with self._mutex:
            if self._has_tables:
                return True
            with self._connect_for_tables() as session:
                version = self._read_version(session)
            # An older version counts: the first use migrates it.
            self._has_tables = is_current(version, self.path)
        return version is not None

    # Statements

    def read(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        def run(session: PostgresSession) -> list[Row]:
            return session.run(sql, parameters)[0]

        own = self._in_transaction.get(threading.get_ident())
        if own is not None:
            # With a second connection, as many transactions as there are connections could wait for one.
            with self.explained("read"):
                return run(own)
        try:
            return self._run_on_session(run, "read")
        except LostError:
            # A statement that changes nothing may be executed again.
            with self.explained("read"):
                return self._run_on_session(run, "read")

    def _read_for_watches(self, sql: str, parameters: Parameters) -> list[Row]:
        """As `read`. After `close`, use a connection that is closed again: a watch may end later."""
        if self._connections is not None or not self._has_tables:
            return self.read(sql, parameters)
        with closing(self.connect()) as session, self.explained("read"):
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
                with self.explained("write"):
                    session.run(_BEGIN)
                    if self._guest is not None:
                        # Our own connections have these settings for good.
                        session.run(
                            f"SELECT set_config('lock_timeout', '{self._lock_milliseconds}ms', true), "
                            f"set_config('idle_in_transaction_session_timeout', '{self._idle_milliseconds}ms', true)"
                        )
                self._in_transaction[ident] = session
                yield _PostgresTransaction(self, session)
                self._commit(session)
            finally:
                self._in_transaction.pop(ident, None)
                # A lost connection is in no transaction any more, on the server.
                with suppress(LostError, PostgresError):
                    if session.is_in_transaction:
                        session.run("ROLLBACK")

    def borrow_tokens(self, tokens: Mapping[str, int]) -> None:
        """Fence what this object writes with the run locks of other processes; see `PostgresRunLocks.borrow`."""
        self._own_run_locks.borrow(tokens)

    def make_notification(self, thread_id: str) -> tuple[str, Parameters]:
        thread = encode_text(thread_id)
        expression = (
            f"(SELECT pg_notify(?, ?) WHERE EXISTS (SELECT 1 FROM {self.names.watchers} AS w"
            " WHERE w.expires > now() AND (w.thread IS NULL OR w.thread = ?)))"
        )
        return expression, (self.channel, thread, thread)

    def notify_parameters(self, thread: str) -> tuple[str, ...]:
        return (thread,)

    def open_listener(self, thread_id: str | None = None) -> ChangeListener:
        return self._changes.open_listener(None if thread_id is None else encode_text(thread_id))

    def _commit(self, session: PostgresSession) -> None:
        try:
            is_committed = session.commit()
        except LostError as error:
            raise OutcomeUnknownError(self.path, "commit to", f"the connection was lost meanwhile ({error})") from error
        except PostgresError as error:
            raise self.translate(error, "commit to") from error
        if not is_committed:
            # After an error that the caller has not passed on, the server answers COMMIT with a rollback.
            reason = "the transaction had failed before; nothing was changed"
            raise CheckpointStorageError(self.path, "commit to", reason)

    @contextmanager
    def explained(self, operation: str) -> Iterator[None]:
        """Raise what callers of the saver see, in place of an error before a commit."""
        try:
            yield
        except LostError as error:
            reason = f"the connection was lost ({error}); nothing was changed, try again"
            raise ConnectionLostError(self.path, operation, reason) from error
        except PostgresError as error:
            raise self.translate(error, operation) from error

    def translate(self, error: Exception, operation: str) -> Exception:
        """Return the error that callers of the saver see for one that the server has sent."""
        return translate_error(error, self.path, operation, self.lock_timeout)

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
                        raise self.translate(error, operation) from error
        finally:
            connections.give_back(session)

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
                self._create_tables()
                if self._guest is None:
                    self._connections = OwnConnections(self.connect, self.path)
                elif is_connection(self._guest):
                    self._connections = GuestConnection(self._guest, self.path)
                else:
                    self._connections = GuestConnections(self._guest, self.connect, self.path)
            return self._connections

    def connect(self) -> PostgresSession:
        """Open a connection outside the pool; the caller closes it.

        Raises:
            CheckpointStorageError: the server cannot be reached, or refuses.
            CheckpointerConfigurationError: a pooler lends its sessions for single transactions.
        """
        session = self._open_session()
        try:
            # Before the settings, which would stay on a session that the pooler lends to others.
            self._refuse_transaction_pooler(session)
            session.run(self._settings)
        except BaseException as error:
            session.close()
            if isinstance(error, (LostError, PostgresError)):
                raise self._translate_for_session(error, "connect to") from error
            raise
        return session

    def _open_session(self) -> PostgresSession:
        try:
            return connect(self._parameters)
        except PostgresError as error:
            reason = f"{describe_error(error)}; check the connection string, and that the server runs"
            raise CheckpointStorageError(self.path, "connect to", OSError(errno.ECONNREFUSED, reason)) from None

    def _refuse_transaction_pooler(self, session: PostgresSession) -> None:
        """Refuse what would give each transaction another session: run locks and prepared statements need one."""
        if self._keeps_sessions:
            return
        if lends_transactions(session, self._open_session):
            raise CheckpointerConfigurationError(
                f"{self.path}: a pooler lends the sessions of the server for single transactions, as PgBouncer does "
                "with pool_mode=transaction; run locks need a session of their own: use pool_mode=session, or connect "
                "to the server directly"
            )
        self._keeps_sessions = True

    def _translate_for_session(self, error: Exception, operation: str) -> Exception:
        """As `translate`, also for the loss of a connection."""
        if isinstance(error, PostgresError):
            return self.translate(error, operation)
        return CheckpointStorageError(self.path, operation, str(error))

    @property
    def _lock_milliseconds(self) -> int:
        # 0 would mean for ever.
        return max(1, round(self.lock_timeout * 1000))

    @property
    def _settings(self) -> str:
        return (
            f"SELECT set_config('lock_timeout', '{self._lock_milliseconds}ms', false), "
            f"set_config('idle_in_transaction_session_timeout', '{self._idle_milliseconds}ms', false), "
            "set_config('default_transaction_isolation', 'read committed', false), "
            "set_config('default_transaction_read_only', 'off', false), "
            # The connection of the run locks may be idle. The setting is new in PostgreSQL 14.
            "CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL "
            "THEN set_config('idle_session_timeout', '0', false) END"
        )

    def close(self) -> None:
        with self._mutex:
            connections = self._connections
            self._connections = None
        if connections is not None:
            connections.close()
        self.run_locks.close()

    @property
    def _idle_milliseconds(self) -> int:
        # A paused process must not keep the row of a run lock for longer than its lease.
        return round(max(self.lease, _LEAST_IDLE) * 1000)

    def reset_after_fork(self) -> None:
        # There, a guest has connections of its own.
        _INHERITED.extend((self._connections, self._guest))
        _INHERITED.extend((self._own_run_locks.close_after_fork(), self._changes.close_after_fork()))
        self._guest = None
        self._reset()

    # Tables

    def _create_tables(self) -> None:
        """Create or migrate the tables, unless that was done; the caller holds the mutex."""
        if self._has_tables:
            return
        with self._connect_for_tables() as session:
            if not is_current(self._read_version(session), self.path):
                self._migrate(session)
        self._has_tables = True

    @contextmanager
    def _connect_for_tables(self) -> Iterator[PostgresSession]:
        with closing(self.connect()) as session, self.explained("create tables in"):
            try:
                yield session
            except PostgresError as error:
                if get_state(error) != "42501":
                    raise
                reason = (
                    f"{describe_error(error)}; the tables are missing or old: use graphkit once as a role that may "
                    f"create them, then grant this role the use of the schema, its tables and its sequences"
                )
                missing = OSError(errno.EACCES, reason)
                raise CheckpointStorageError(self.path, "create tables in", missing) from error

    def _read_version(self, session: PostgresSession) -> int | None:
        try:
            rows = session.run(select_version(self.names))[0]
        except PostgresError as error:
            if get_state(error) in UNDEFINED:
                return None
            raise
        version: int | None = rows[0][0]
        return version

    def _migrate(self, session: PostgresSession) -> None:
        ((encoding,),) = session.run("SHOW server_encoding")[0]
        if encoding != "UTF8":
            raise CheckpointStorageError(
                self.path, "create tables in", f"the encoding is {encoding}; create the database with ENCODING 'UTF8'"
            )
        session.run(_BEGIN)
        # One process at a time. Before the second one continues, the first has committed.
        session.run("SELECT pg_advisory_xact_lock(?)", (self.make_advisory_key("schema"),))
        # A session caches that a name does not exist, until it uses a table. A pooler may have lent this one before, so
        # that nothing else lets it look again after it has waited for the lock.
        ((has_schema, has_meta),) = session.run(
            "SELECT count(*) > 0, to_regclass(?) IS NOT NULL FROM pg_catalog.pg_namespace WHERE nspname = ?",
            (self.names.meta, self.schema),
        )[0]
        version = self._read_version(session) if has_meta else None
        if not is_current(version, self.path):
            if not has_schema:
                session.run(f"CREATE SCHEMA {quote_name(self.schema)}")
            migrate(_PostgresTransaction(self, session), version, self.names, self.dialect)
        session.commit()

    def make_advisory_key(self, purpose: str) -> int:
        """Return the key of an advisory lock, for one purpose in this schema."""
        digest = blake2b(f"graphkit {self.schema} {purpose}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


class _PostgresTransaction(Transaction):
    def __init__(self, database: PostgresDatabase, session: PostgresSession) -> None:
        self._database = database
        self._session = session

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with self._database.explained("write"):
            rows, self.row_count = self._session.run(sql, parameters)
        return rows

    def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        with self._database.explained("write"):
            self.row_count = self._session.run_many(sql, rows)

    def notify(self, thread_id: str) -> None:
        expression, parameters = self._database.make_notification(thread_id)
        self.execute(f"SELECT {expression}", parameters)

    def notify_status(self, thread_id: str) -> None:
        self.notify(thread_id)


_INHERITED: Final[list[Any]] = []
"""The parent's connections, kept for ever: to close them would end the sessions of the parent."""


def _check_schema(schema: object) -> None:
    if not isinstance(schema, str) or not schema or "\0" in schema or len(schema.encode()) > _LONGEST_NAME:
        raise CheckpointerConfigurationError(
            f"schema must be a name of 1 to {_LONGEST_NAME} bytes, not {schema!r}",
        )
    if schema.startswith("pg_"):
        raise CheckpointerConfigurationError(f"schema must not begin with pg_, as {schema!r} does")
