"""PostgresSaver: checkpoints in one schema of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

from graphkit.saver_kit import get_held_run_locks
from savers._cipher import Cipher, check_cipher
from savers._compression import Compression
from savers._options import parse_lease, parse_lock_timeout
from savers._sql.saver import RunLockKey, SqlSaver

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool


@final
class PostgresSaver(SqlSaver):
    """Stores the history of each thread in rows of a PostgreSQL database.

    When `put` returns, the checkpoint is committed: `synchronous_commit` of the server says what it
    survives. A put inserts what changed, in one round trip: it costs the same after 10 and after
    100,000 checkpoints. Any number of threads, saver objects, processes and machines may use a
    database at once. Ports the `postgres` checkpointer of Petal. Needs the extra `postgres`.
    """

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        pool: ConnectionPool[Any] | Connection[Any] | None = None,
        schema: str = "graphkit",
        lease: float = 10.0,
        lock_timeout: float = 10.0,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use connects, and creates the schema and its tables.

        Args:
            connection_string: a URL or the keywords of libpq. The saver opens connections as they are
                needed, up to ten.
            pool: an open pool, or a single open connection, in place of the connection string. It is
                never closed. A single connection serves one call at a time, and is not replaced when it
                is lost.
            schema: the schema of the tables.
            lease: after how many seconds another run may take the thread of a process that was paused.
                The paused run gets a ThreadBusyError at its next put, and changes nothing.
            lock_timeout: how long a run waits for another one on the same thread, and a writer for
                other writers and for a server that restarts, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: as for FileSystemSaver.
            cipher: as for FileSystemSaver. The ids of threads and checkpoints, the statuses of threads, times
                and sizes stay readable in columns.

        Raises:
            CheckpointerConfigurationError: an argument is wrong; or both a connection string and a
                pool are given, or neither.
            MissingDependencyError: the extra `postgres`, or that of `zstd` or `cipher`, is not installed.
        """
        lease = parse_lease(lease)
        lock_timeout = parse_lock_timeout(lock_timeout)
        self.lease = lease
        self._connection_string = connection_string
        self._schema = schema
        # Here, because it needs psycopg: the class can be imported without it.
        from savers._sql.postgres_database import PostgresDatabase

        database = PostgresDatabase(connection_string, pool=pool, schema=schema, lease=lease, lock_timeout=lock_timeout)
        super().__init__(
            database,
            types=types,
            compression=compression,
            lock_timeout=lock_timeout,
            cipher=cipher,
        )

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors. Nothing is opened or created."""
        check_cipher(options.pop("cipher", None))
        cls(*arguments, **options)

    checkOptions = check_options

    def opener(self) -> Callable[[], PostgresSaver] | None:
        """Return a function that opens the same schema with the same types, in any process.

        It contains the connection string, with its password, and the mapping of a `cipher`, and so does its
        pickle; a function that is a `cipher` is pickled by its name. None if the
        saver uses a pool, which no other process has.

        What the opened saver writes to a thread whose run lock the calling code holds is fenced with
        that lock: after the run has lost it or has ended, a put raises ThreadBusyError and changes
        nothing.
        """
        if self._connection_string is None:
            return None
        open_saver = partial(
            PostgresSaver,
            self._connection_string,
            schema=self._schema,
            lease=self.lease,
            **self._list_options(),
        )
        tokens = self._list_held_tokens()
        return partial(_open_for_runs, open_saver, tokens) if tokens else open_saver

    def _list_held_tokens(self) -> dict[str, int]:
        """Return the tokens of the run locks that the calling code holds, by thread."""
        tokens: dict[str, int] = {}
        for key in get_held_run_locks():
            # Savers of other kinds have other keys, and nested runs have keys of their own.
            if isinstance(key, RunLockKey) and key.database == self._database.identity:
                token = self._database.run_locks.token_of(key.thread_id)
                if token is not None:
                    tokens[key.thread_id] = token
        return tokens


def _open_for_runs(open_saver: Callable[[], PostgresSaver], tokens: dict[str, int]) -> PostgresSaver:
    """Open a saver whose writes are fenced with the run locks of another process."""
    from savers._sql.postgres_database import PostgresDatabase

    saver = open_saver()
    database = saver._database  # noqa: SLF001 - a part of the same class
    assert isinstance(database, PostgresDatabase)
    database.run_locks.borrow(tokens)
    return saver
