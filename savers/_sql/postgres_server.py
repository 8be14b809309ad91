"""One schema on a server of PostgreSQL: how to connect to it, what its errors mean, and its tables."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

from graphkit.errors import CheckpointerConfigurationError, CheckpointStorageError
from savers._log.log_bytes import StaleLogError
from savers._sql.database import POSTGRES, DatabaseDamagedError, TableNames, make_table_error, quote_name
from savers._sql.postgres_session import (
    LostError,
    PostgresError,
    PostgresSession,
    connect,
    describe_error,
    get_state,
    name_database,
)
from savers._sql.statements import create_tables, is_current, select_version

_UNDEFINED: Final = {"42P01", "3F000"}
"""A table or a schema does not exist."""
RETRIED: Final = {"40001", "40P01"}
"""The server has rolled back a statement for the sake of another one; it may be executed again."""
BUSY: Final = {"55P03", *RETRIED}
"""Another transaction kept a row for too long."""
_STALE: Final = {"23505", "23503"}
"""A unique key exists already, or the row of a foreign key does not."""
_DAMAGED: Final = {"XX001", "XX002"}

_ADVICE: Final = (
    *((state, errno.ETIMEDOUT, "wait for it to end") for state in sorted(BUSY)),
    ("42501", errno.EACCES, "grant this role the use of the schema, its tables and its sequences"),
    ("25006", errno.EROFS, "connect to a server that accepts writes"),
    ("53100", errno.ENOSPC, "free some space on the server, and try again"),
    ("53200", errno.ENOMEM, "free some memory of the server"),
    ("53300", errno.EAGAIN, "raise max_connections of the server, or close other clients"),
    ("54", errno.EFBIG, "a value is larger than PostgreSQL can store (1 GB)"),
    ("57014", errno.ETIMEDOUT, "raise statement_timeout of the role, or in the connection string"),
    ("22P05", errno.EILSEQ, "create the database with ENCODING 'UTF8'"),
    ("58", errno.EIO, "check the disk of the server"),
)
"""The beginning of a SQLSTATE, the error number, and what to do."""

BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_LEAST_IDLE: Final = 10.0
"""Seconds after which the server may end a transaction that executes nothing, or later."""
_LONGEST_NAME: Final = 63
"""Bytes of a name in PostgreSQL, which cuts longer ones without an error."""
_LONGEST_DELIVERY: Final = 10.0
"""Seconds after which a notification does not arrive any more. It takes 0.1 ms on an idle server."""


class PostgresServer:
    """Connects to the server of one schema, explains what it refuses, and creates the tables.

    Attributes:
        path: the schema in messages.
        identity: the schema, whichever user connects to it.
        schema: its name.
        names: the names of its tables.
        has_seen_tables: whether this object has found or created them.
        lock_timeout: seconds to wait for other writers.
        lease: seconds after which the run lock of a paused process is lost.
        transaction_settings: a statement for a transaction on a connection that is not our own.
    """

    def __init__(self, parameters: Mapping[str, Any], schema: str, *, lock_timeout: float, lease: float) -> None:
        self._parameters = parameters
        user, servers, name = name_database(parameters)
        self.path = f'schema "{schema}" of {user}@{servers}/{name}'
        self.identity = f'schema "{schema}" of {servers}/{name}'
        self.schema = schema
        self.names = TableNames(*(f"{quote_name(schema)}.{quote_name(name)}" for name in TableNames._fields))
        self.has_seen_tables = False
        self.lock_timeout = lock_timeout
        self.lease = lease
        self._keeps_sessions = False
        """Whether the first connection has shown that a connection keeps its session of the server."""
        # 0 would mean for ever.
        lock = max(1, round(lock_timeout * 1000))
        # A paused process must not keep the row of a run lock for longer than its lease.
        idle = round(max(lease, _LEAST_IDLE) * 1000)
        waits = (
            f"SELECT set_config('lock_timeout', '{lock}ms', {{0}}), "
            f"set_config('idle_in_transaction_session_timeout', '{idle}ms', {{0}})"
        )
        self.transaction_settings = waits.format("true")
        self._settings = waits.format("false") + (
            ", set_config('default_transaction_isolation', 'read committed', false), "
            "set_config('default_transaction_read_only', 'off', false), "
            # The connection of the run locks may be idle. The setting is new in PostgreSQL 14.
            "CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL "
            "THEN set_config('idle_session_timeout', '0', false) END"
        )

    def connect(self) -> PostgresSession:
        """Open a connection; the caller closes it.

        Raises:
            CheckpointStorageError: the server cannot be reached, or refuses.
            CheckpointerConfigurationError: a pooler lends its sessions for single transactions.
        """
        session = self._open_session()
        try:
            with self.explained("connect to"):
                # Before the settings, which would stay on a session that the pooler lends to others.
                if not self._keeps_sessions:
                    # Run locks and prepared statements need a session of their own.
                    if lends_transactions(session, self._open_session):
                        raise CheckpointerConfigurationError(  # noqa: TRY301 - it is closed below
                            f"{self.path}: a pooler lends the sessions of the server for single transactions, as "
                            "PgBouncer does with pool_mode=transaction; run locks need a session of their own: use "
                            "pool_mode=session, or connect to the server directly"
                        )
                    self._keeps_sessions = True
                session.run(self._settings)
        except BaseException:
            session.close()
            raise
        return session

    def _open_session(self) -> PostgresSession:
        try:
            return connect(self._parameters)
        except PostgresError as error:
            reason = f"{describe_error(error)}; check the connection string, and that the server runs"
            raise CheckpointStorageError(self.path, "connect to", OSError(errno.ECONNREFUSED, reason)) from None

    @contextmanager
    def explained(self, operation: str) -> Iterator[None]:
        """Raise what callers of the saver see, in place of an error before a commit."""
        try:
            yield
        except LostError as error:
            reason = f"the connection was lost ({error}); nothing was changed, try again"
            raise CheckpointStorageError(self.path, operation, reason) from error
        except PostgresError as error:
            raise self.translate(error, operation) from error

    def translate(self, error: Exception, operation: str) -> Exception:
        """Return the error that callers of the saver see for one of a session; told apart by SQLSTATE.

        Args:
            error: an error of psycopg, with which the connection still works.
            operation: what the saver was doing, as a verb.
        """
        state = get_state(error)
        message = describe_error(error)
        if state in _STALE:
            return StaleLogError(message)
        if state in _UNDEFINED or state == "42P07":
            return make_table_error(self.path, message)
        if state in _DAMAGED:
            return DatabaseDamagedError(self.path, f"the server says: {message}", "restore a backup of the database")
        if state in BUSY:
            message = f"another writer kept the rows for {self.lock_timeout:g} s ({message})"
        option = "lock_timeout" if state in BUSY else ""
        for beginning, number, advice in _ADVICE:
            if state.startswith(beginning):
                reason = OSError(number, message)
                return CheckpointStorageError(self.path, operation, reason, advice=advice, option=option)
        return CheckpointStorageError(self.path, operation, f"{message} (SQLSTATE {state or 'unknown'})")

    # Tables

    def find_tables(self, *, creates: bool) -> bool:
        """Return whether there are tables; create them before, if that is wanted."""
        if not self.has_seen_tables:
            with self._connect_to_create() as session:
                is_there = is_current(self._read_version(session), self.path)
                if creates and not is_there:
                    self._create_tables(session)
                # Another thread of execution may have created them since they were looked for.
                if is_there or creates:
                    self.has_seen_tables = True
        return self.has_seen_tables

    @contextmanager
    def _connect_to_create(self) -> Iterator[PostgresSession]:
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
            ((version,),) = session.run(select_version(self.names))
        except PostgresError as error:
            if get_state(error) in _UNDEFINED:
                return None
            raise
        return version  # type: ignore[no-any-return]

    def _create_tables(self, session: PostgresSession) -> None:
        ((encoding,),) = session.run("SHOW server_encoding")
        if encoding != "UTF8":
            reason = f"the encoding is {encoding}; create the database with ENCODING 'UTF8'"
            raise CheckpointStorageError(self.path, "create tables in", reason)
        session.run(BEGIN)
        # One process at a time. Before the second one continues, the first has committed.
        session.run("SELECT pg_advisory_xact_lock(?)", (self.make_advisory_key("schema"),))
        # A session caches that a name does not exist, until it uses a table. A pooler may have lent this one before, so
        # that nothing else lets it look again after it has waited for the lock.
        ((has_schema, has_meta),) = session.run(
            "SELECT count(*) > 0, to_regclass(?) IS NOT NULL FROM pg_catalog.pg_namespace WHERE nspname = ?",
            (self.names.meta, self.schema),
        )
        version = self._read_version(session) if has_meta else None
        if not is_current(version, self.path):
            if not has_schema:
                session.run(f"CREATE SCHEMA {quote_name(self.schema)}")
            create_tables(session.run, self.names, POSTGRES)
        session.commit()

    def make_advisory_key(self, purpose: str) -> int:
        """Return the key of an advisory lock, for one purpose in this schema."""
        digest = blake2b(f"graphkit {self.schema} {purpose}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


def check_schema(schema: object) -> None:
    """Check the name of a schema.

    Raises:
        CheckpointerConfigurationError: it is wrong.
    """
    if not isinstance(schema, str) or not schema or "\0" in schema or len(schema.encode()) > _LONGEST_NAME:
        raise CheckpointerConfigurationError(
            f"schema must be a name of 1 to {_LONGEST_NAME} bytes, not {schema!r}",
        )
    if schema.startswith("pg_"):
        raise CheckpointerConfigurationError(f"schema must not begin with pg_, as {schema!r} does")


# Poolers
#
# A server tells its client the number of its process when the client connects. A pooler, which does not know yet on
# which process its client will work, makes up a number. So a wrong number tells of a pooler, but not of its mode:
# PgBouncer says `pool_mode` to its administrators only.
#
# What tells the mode is a notification. A client that is idle and listens is notified only if it has the process for
# itself: a pooler of transactions has taken the process back, and drops what arrives there. That the same process
# serves two clients tells it at once, but they may also happen to get different ones, as where several poolers have
# one address.


def lends_transactions(session: PostgresSession, connect: Callable[[], PostgresSession]) -> bool:
    """Return whether a pooler gives each transaction of a new connection any session of the server.

    On a standby, which cannot notify, the answer may be False although a pooler does.

    Args:
        session: the connection.
        connect: opens another one.

    Raises:
        LostError, psycopg.Error: a connection failed.
    """
    ((process, is_standby),) = session.run("SELECT pg_backend_pid(), pg_is_in_recovery()")
    if process == session.process:
        return False
    channel = f"graphkit_{os.urandom(8).hex()}"
    if not is_standby:
        session.run(f"LISTEN {channel}")
    with closing(connect()) as other:
        notify = "NULL" if is_standby else f"pg_notify('{channel}', '')"
        ((other_process, _),) = other.run(f"SELECT pg_backend_pid(), {notify}")
    if other_process == process:
        return True
    if is_standby:
        return False
    deadline = monotonic() + _LONGEST_DELIVERY
    poller = select.poll()
    poller.register(session.fileno(), select.POLLIN)
    while not session.take_notifications():
        seconds = deadline - monotonic()
        if seconds < 0:
            return True
        poller.poll(seconds * 1000)
    return False
