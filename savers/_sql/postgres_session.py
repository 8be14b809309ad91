"""One connection to PostgreSQL; the only module that imports psycopg."""

from __future__ import annotations

import re
import select
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError
from savers._sql.database import Parameters, Row

try:
    import psycopg
    import psycopg_pool
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import ConnStatus, Format, TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg.types.numeric import Int8BinaryDumper
    from psycopg.types.string import StrDumper
except ImportError as error:
    raise MissingDependencyError("psycopg with its pool", "postgres") from error

PostgresError: Final = psycopg.Error
PoolError: Final = (psycopg_pool.PoolTimeout, psycopg_pool.PoolClosed, psycopg_pool.TooManyRequests)
Pool = psycopg_pool.ConnectionPool[psycopg.Connection[Any]]

_DEFAULTS: Final[Mapping[str, object]] = {
    "application_name": "graphkit",
    "connect_timeout": 10,
    # A server whose machine has vanished is noticed after a minute, and not after two hours.
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_MOST_MESSAGES: Final = 100
"""How many messages an idle connection may have received, until it is taken for broken."""
_PLACEHOLDER: Final = re.compile("""'[^']*'|"[^"]*"|[?%]""")


class LostError(Exception):
    """The connection does not work any more; the statement may have been executed."""


class PostgresSession:
    """Executes statements on one connection, each at once committed unless one was BEGIN."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Take over a connection that is not in a transaction, in autocommit mode."""
        self.connection = connection
        cursor: psycopg.Cursor[Row] = psycopg.Cursor(connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        # One type for all integers, so that a statement is prepared once, whatever their size.
        cursor.adapters.register_dumper(int, Int8BinaryDumper)
        cursor.adapters.register_dumper(str, StrDumper)
        self._cursor = cursor
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)

    def is_usable(self) -> bool:
        """Return whether the server has not closed the connection so far. Takes 1 us."""
        pgconn = self.connection.pgconn
        try:
            for _ in range(_MOST_MESSAGES):
                if pgconn.status != ConnStatus.OK:
                    return False
                if not self._poller.poll(0):
                    return True
                # A message that nobody has asked for; or the end of the connection.
                pgconn.consume_input()
        except psycopg.Error:
            pass
        return False

    def run(self, sql: str, parameters: Parameters = ()) -> tuple[list[Row], int]:
        """Execute a statement; return its rows, and how many it changed.

        Raises:
            LostError: the connection was lost.
            psycopg.Error: the server refused the statement.
        """
        cursor = self._cursor
        try:
            cursor.execute(translate_placeholders(sql), parameters)
            rows = cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise
        return rows, cursor.rowcount

    def run_many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Execute a statement for each row of parameters, in few round trips; return how many it changed."""
        try:
            self._cursor.executemany(translate_placeholders(sql), rows)
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise
        return self._cursor.rowcount

    def commit(self) -> bool:
        """Commit; return False if the server has rolled back instead, because of an earlier error."""
        self.run("COMMIT")
        return self._cursor.statusmessage == "COMMIT"

    def _raise_if_lost(self, error: Exception) -> None:
        if self.connection.closed or self.connection.pgconn.status != ConnStatus.OK:
            raise LostError(" ".join(str(error).split())) from error

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, or was aborted and must be rolled back."""
        return self.connection.pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def is_reusable(self) -> bool:
        """Whether the connection works and is in no transaction."""
        return not self.connection.closed and not self.is_in_transaction

    def fileno(self) -> int:
        """Return the descriptor of the connection, for waiting."""
        return self.connection.fileno()

    def take_notifications(self) -> list[str]:
        """Return the payloads of the notifications that have arrived.

        Raises:
            LostError: the connection was lost.
        """
        pgconn = self.connection.pgconn
        try:
            pgconn.consume_input()
        except psycopg.Error as error:
            raise LostError(str(error)) from error
        if pgconn.status != ConnStatus.OK:
            raise LostError("the server has closed the connection")
        payloads = []
        while (notification := pgconn.notifies()) is not None:
            payloads.append(notification.extra.decode("utf-8", "replace"))
        return payloads

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@lru_cache(maxsize=1024)
def translate_placeholders(sql: str) -> str:
    """Return a statement whose `?` are psycopg's `%s`, except in literals and names."""

    def translate(match: re.Match[str]) -> str:
        found = match[0]
        return "%s" if found == "?" else found.replace("%", "%%")

    # The names in the statements are checked and quoted, and the values are parameters.
    return _PLACEHOLDER.sub(translate, sql)


def quote_name(name: str) -> str:
    """Return a name as a quoted identifier."""
    return psycopg.sql.Identifier(name).as_string(None)


def parse_connection_string(text: str) -> dict[str, Any]:
    """Return the parameters of a connection string.

    Raises:
        CheckpointerConfigurationError: it is none. The message does not repeat it, because it may
            contain a password.
    """
    try:
        return dict(conninfo_to_dict(text))
    except psycopg.Error:
        pass
    raise CheckpointerConfigurationError(
        "connection_string is not understood: write postgresql://user@host:5432/database, "
        'or "host=... dbname=... user=..."'
    )


def complete_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a connection, with defaults for those that are not given."""
    return {**_DEFAULTS, **parameters, "client_encoding": "UTF8", "autocommit": True}


def connect(parameters: Mapping[str, Any]) -> PostgresSession:
    """Open a connection.

    Args:
        parameters: of `psycopg.connect`; "conninfo" is the connection string.

    Raises:
        psycopg.Error: the server cannot be reached, or refuses.
    """
    return PostgresSession(psycopg.connect(**parameters))


def get_pool_parameters(pool: Pool) -> dict[str, Any]:
    """Return the parameters with which a pool connects."""
    conninfo: Any = pool.conninfo
    kwargs: Any = pool.kwargs
    if callable(conninfo):
        conninfo = conninfo()
    if callable(kwargs):
        kwargs = kwargs()
    return {"conninfo": conninfo or "", **(kwargs or {})}


def is_pool(thing: object) -> bool:
    """Return whether this is a pool of psycopg for synchronous use."""
    return isinstance(thing, psycopg_pool.ConnectionPool)
