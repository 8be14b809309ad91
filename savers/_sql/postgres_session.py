"""One connection to PostgreSQL, and how it is opened; the only module that imports psycopg."""

from __future__ import annotations

import itertools
import re
import select
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError
from savers._sql.database import Parameters, Row

try:
    import psycopg
    import psycopg_pool
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.generators import execute
    from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg.types.numeric import Int8BinaryDumper
    from psycopg.types.string import StrDumper
except ImportError as error:
    raise MissingDependencyError("psycopg with its pool", "postgres") from error

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

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
    # Planning a statement takes 0.3 to 0.8 ms, executing it 0.1. It is prepared when it comes again.
    "prepare_threshold": 1,
}
_MOST_MESSAGES: Final = 100
"""How many messages an idle connection may have received, until it is taken for broken."""
_UNKNOWN_STATEMENT: Final = "26000"
"""The SQLSTATE of a prepared statement that the connection does not have."""
_NUMBERS: Final = itertools.count()
"""Numbers the prepared statements of the process: two savers may use the connections of one pool."""
_MISREAD: Final = re.compile(r"postgres(ql)?://[^?@/]*[/@][^?@]*@")
"""A URL of which libpq takes a part of the password for the server or the database, which errors name."""
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
        self._transformer = Transformer(cursor)
        """Makes values of the server of parameters, as the cursor does."""
        self._names: dict[str, bytes] = {}
        """The statements that `write` has prepared, with their names on the server."""
        self._uses: dict[str, int] = {}
        """How often `write` has executed the others."""
        self._was_autocommit = True
        """The mode of the connection before `begin_autocommit`."""
        self._poller = select.poll()
        self._poller.register(connection.fileno(), select.POLLIN)

    def begin_autocommit(self) -> None:
        """Let each statement be a transaction, until `restore_mode`."""
        self._was_autocommit = self.connection.autocommit
        if not self._was_autocommit:
            self.connection.autocommit = True

    def restore_mode(self) -> None:
        """Put the connection back into the mode in which it was before `begin_autocommit`."""
        if self._was_autocommit or self.connection.closed:
            return
        # Fails only for a connection that does not work: a pool replaces it, and without one the next call reports it.
        with suppress(psycopg.Error):
            self.connection.autocommit = False

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

    def run(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Execute a statement; return its rows.

        Raises:
            LostError: the connection was lost.
            psycopg.Error: the server refused the statement.
        """
        cursor = self._cursor
        try:
            cursor.execute(translate_placeholders(sql), parameters)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def write(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement outside a transaction; return how many rows it changed.

        As `run`, but what the statement returns is dropped, and where it has an integer or several,
        they must be of the type bigint. A statement that comes again and again is prepared and sent
        without psycopg's cursor, which would take 23 of the 111 us that the client works on a put.

        Raises:
            LostError, psycopg.Error: as `run`.
        """
        name = self._names.get(sql)
        if name is None:
            threshold = self.connection.prepare_threshold
            uses = self._uses[sql] = self._uses.get(sql, 0) + 1
            if threshold is None or uses <= threshold:
                return self.change(sql, parameters)
        pgconn = self.connection.pgconn
        try:
            if name is None:
                name = f"graphkit_{next(_NUMBERS)}".encode()
                pgconn.send_prepare(name, number_placeholders(sql).encode())
                self._wait_for_result()
                self._names[sql] = name
            values = self._transformer.dump_sequence(parameters, [PyFormat.BINARY] * len(parameters))
            pgconn.send_query_prepared(name, values, self._transformer.formats, Format.BINARY)
            return self._wait_for_result().command_tuples or 0
        except psycopg.Error as error:
            self._raise_if_lost(error)
            if error.sqlstate != _UNKNOWN_STATEMENT:
                raise
        # After a rollback of a transaction that failed, psycopg drops all prepared statements of its connection, ours
        # too. Nothing was executed, so the statement is sent again.
        self._names.clear()
        return self.change(sql, parameters)

    def change(self, sql: str, parameters: Parameters) -> int:
        """Execute a statement as `run` does; return how many rows it changed."""
        self.run(sql, parameters)
        return self._cursor.rowcount

    def _wait_for_result(self) -> PGresult:
        """Wait for the result of what was sent; an interrupt from the keyboard cancels it.

        Raises:
            psycopg.Error: the server refused, or the connection was lost.
        """
        result: PGresult = self.connection.wait(execute(self.connection.pgconn))[-1]
        if result.status == ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
        return result

    def run_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Execute a statement for each row of parameters, in few round trips."""
        try:
            self._cursor.executemany(translate_placeholders(sql), rows)
        except psycopg.Error as error:
            self._raise_if_lost(error)
            raise

    def commit(self) -> bool:
        """Commit; return False if the server has rolled back instead, because of an earlier error."""
        self.run("COMMIT")
        return self._cursor.statusmessage == "COMMIT"

    def _raise_if_lost(self, error: Exception) -> None:
        if self.connection.closed or self.connection.pgconn.status != ConnStatus.OK:
            raise LostError(" ".join(str(error).split())) from error

    @property
    def process(self) -> int:
        """The number of the server's process, as it was told to the client that connected."""
        return self.connection.info.backend_pid

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open, or was aborted and must be rolled back."""
        return self.connection.pgconn.transaction_status != TransactionStatus.IDLE

    @property
    def is_in_pipeline(self) -> bool:
        """Whether the application has begun a pipeline, in which no statement has its result at once."""
        return self.connection.pgconn.pipeline_status != PipelineStatus.OFF

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
    # The names in the statements are checked and quoted, and the values are parameters.
    return _PLACEHOLDER.sub(lambda match: "%s" if match[0] == "?" else match[0].replace("%", "%%"), sql)


@lru_cache(maxsize=1024)
def number_placeholders(sql: str) -> str:
    """Return a statement whose `?` are the server's `$1`, `$2`, ..., except in literals and names."""
    numbers = itertools.count(1)
    return _PLACEHOLDER.sub(lambda match: f"${next(numbers)}" if match[0] == "?" else match[0], sql)


def find_parameters(connection_string: str | None, guest: object) -> dict[str, Any]:
    """Return the parameters of the connections that a saver opens itself.

    Args:
        connection_string: a URL or the keywords of libpq; None if there is a guest.
        guest: the pool or the connection that the application lends; the same parameters as its.

    Raises:
        CheckpointerConfigurationError: the connection string is none. The message does not repeat it, because
            it may contain a password. Or the guest is something else, or closed.
    """
    parameters: dict[str, Any] = {}
    if isinstance(guest, psycopg.Connection):
        if guest.closed:
            raise CheckpointerConfigurationError("the connection is closed; pass an open one, or a pool")
        parameters |= guest.info.get_parameters()
        if guest.info.password:
            parameters["password"] = guest.info.password
    elif isinstance(guest, psycopg_pool.ConnectionPool):
        conninfo: Any = guest.conninfo
        kwargs: Any = guest.kwargs
        if callable(conninfo):
            conninfo = conninfo()
        if callable(kwargs):
            kwargs = kwargs()
        parameters = {**_parse_connection_string(conninfo or ""), **(kwargs or {})}
    elif guest is not None:
        raise CheckpointerConfigurationError(
            f"pool must be a psycopg_pool.ConnectionPool or a psycopg.Connection, not {type(guest).__name__}"
        )
    elif not isinstance(connection_string, str):
        raise CheckpointerConfigurationError(f"connection_string must be a str, not {type(connection_string).__name__}")
    else:
        parameters = _parse_connection_string(connection_string)
    return {**_DEFAULTS, **parameters, "client_encoding": "UTF8", "autocommit": True}


def _parse_connection_string(text: str) -> dict[str, Any]:
    try:
        if not _MISREAD.match(text):
            return dict(conninfo_to_dict(text))
    except psycopg.Error:
        pass
    # Outside of the handler, so that the error does not have that of psycopg, which repeats the text.
    raise CheckpointerConfigurationError(
        "connection_string is not understood: write postgresql://user@host:5432/database, with %2F and %40 for / and @ "
        'in a name or a password, or "host=... dbname=... user=..."'
    )


def is_connection(guest: object) -> bool:
    """Return whether the application lends a single connection, and no pool."""
    return isinstance(guest, psycopg.Connection)


def name_database(parameters: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the user, the servers with their ports, and the database of a connection, for messages.

    What is not given comes from the environment, such as PGPORT, or from the library of PostgreSQL.
    """
    options: dict[str, str] = {}
    for option in psycopg.pq.Conninfo.get_defaults():
        if option.val is not None:
            options[option.keyword.decode()] = option.val.decode()
    for name, value in parameters.items():
        if value:
            options[name] = str(value)
    user = options.get("user", "")
    hosts = options.get("host") or options.get("hostaddr") or "localhost"
    ports = itertools.cycle(options["port"].split(","))
    servers = [f"{host}:{next(ports)}" for host in hosts.split(",")]
    return user, ",".join(servers), options.get("dbname") or user


def connect(parameters: Mapping[str, Any]) -> PostgresSession:
    """Open a connection.

    Args:
        parameters: of `psycopg.connect`; "conninfo" is the connection string.

    Raises:
        psycopg.Error: the server cannot be reached, or refuses.
    """
    return PostgresSession(psycopg.connect(**parameters))


def get_state(error: Exception) -> str:
    """Return the SQLSTATE of an error; "" for an error that the server has not sent."""
    return getattr(error, "sqlstate", None) or ""


def describe_error(error: Exception) -> str:
    """Return the message of an error, in one line and without the values of a statement."""
    diagnosis = getattr(error, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(message.split())
