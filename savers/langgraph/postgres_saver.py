"""PostgresCheckpointSaver: LangGraph's checkpointer on graphkit's rows in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from savers._cipher import Cipher
from savers._compression import Compression
from savers._sql.postgres_saver import PostgresSaver
from savers.langgraph.saver import CheckpointSaver, check_options
from savers.langgraph.serializer import OnBlockedType

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool


class PostgresCheckpointSaver(CheckpointSaver):
    """Stores LangGraph's threads in one schema of a PostgreSQL database: CheckpointSaver on a PostgresSaver.

    One object serves synchronous and asynchronous graphs, and any number of threads, processes and
    machines. A put writes only what changed. The tables of LangGraph's own PostgresSaver are in
    another schema, and are left alone. Needs the extra `postgres`.

    Attributes:
        store: the underlying PostgresSaver: for verify, compact, size, prune by age, and the other
            methods that LangGraph does not have.
    """

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        pool: ConnectionPool | Connection[Any] | None = None,
        schema: str = "graphkit",
        serde: SerializerProtocol | None = None,
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        types: Iterable[type] = (),
        on_blocked_type: OnBlockedType = "raise",
        ttl: timedelta | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use connects, and creates the schema and its tables.

        Args:
            connection_string: a URL or the keywords of libpq.
            pool: an open pool, or a single open connection, in place of the connection string; see
                PostgresSaver. It is never closed.
            schema: the schema of the tables.
            serde: LangGraph's serializer; see CheckpointSaver.
            compression: how values of 100,000 bytes and more are stored.
            types: the only classes of the application that may be stored and read, made by their
                constructors; list the types of their fields, too. Without it, these are all Enums,
                dataclasses, NamedTuples and pydantic models, made from their fields; a reader must
                have imported them.
            on_blocked_type: what reading does with a type that the serializer may not create:
                raise a CheckpointSerializationError, or return its plain data, such as a dict; "plain"
                makes only the classes in `types`, and stores what LangGraph's own serializer stores.
            ttl: how long a thread stays after the last write to it; see CheckpointSaver.
            cipher: the keys that seal all values, writes and metadata; see FileSystemCheckpointSaver.

        Raises:
            CheckpointerConfigurationError: an option is invalid; or both a connection string and a
                pool are given, or neither.
            MissingDependencyError: the extra `postgres`, or that of `zstd` or `cipher`, is not installed.
        """
        serde = check_options(serde, types, on_blocked_type, ttl)
        saver = PostgresSaver(connection_string, pool=pool, schema=schema, compression=compression, cipher=cipher)
        super().__init__(saver, serde=serde, on_blocked_type=on_blocked_type, ttl=ttl)
        self.store: PostgresSaver = saver
