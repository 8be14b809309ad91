"""CheckpointSaver on a directory, on a SQLite file and on PostgreSQL: opened by their own options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit.errors import CheckpointerConfigurationError, CheckpointerError
from graphkit.registry import saver_names
from savers._cipher import Cipher
from savers._compression import Compression
from savers._filesystem import FileSystemSaver
from savers.langgraph.saver import CheckpointSaver, check_options
from savers.langgraph.serializer import OnBlockedType

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

    from savers._sql.saver import PostgresSaver, SqliteSaver

VARIABLE: Final = "GRAPHKIT_DIR"
"""The environment variable that names the directory for LangGraph's Agent Server, as for the command line."""


class FileSystemCheckpointSaver(CheckpointSaver):
    """Stores LangGraph's threads in a directory, which any process and the CLI can read.

    One object serves synchronous and asynchronous graphs, and any number of threads and processes.
    It needs no setup and need not be closed; `with`, `async with` and `setup()` work as with
    LangGraph's own savers. A put writes only what changed. Once it returns, the checkpoint survives
    power loss (`fsync="always"`). LangGraph's serializer encodes the values; reading them runs no
    code except what that serializer allows.

    Every method of LangGraph's BaseCheckpointSaver is implemented with LangGraph's meaning. The
    latest checkpoint is the one written last, whatever the clock says. A thread that holds a run of
    graphkit is refused.

    Attributes:
        store: the underlying FileSystemSaver: for verify, repair, size, prune by age, and the other
            methods that LangGraph does not have.
    """

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: Literal["always", "never"] | float = "always",
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        types: Iterable[type] = (),
        on_blocked_type: OnBlockedType = "raise",
        ttl: timedelta | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        """Open a store, and create its directory if it is missing.

        Args:
            base_directory: the directory of the store.
            serde: a serializer of LangGraph, which then decides what can be stored and read. The
                default writes LangGraph's format and refuses what a fresh process could not read;
                see docs/langgraph.md.
            fsync: when a put waits for the disk: always, never, or after this many seconds.
            compression: how values of 100,000 bytes and more are stored.
            types: the only classes of the application that may be stored and read, made by their
                constructors; list the types of their fields, too. Without it, these are all Enums,
                dataclasses, NamedTuples and pydantic models, made from their fields; a reader must
                have imported them.
            on_blocked_type: what reading does with a type that the serializer may not create:
                raise a CheckpointSerializationError, or return its plain data, such as a dict; "plain"
                makes only the classes in `types`, and stores what LangGraph's own serializer stores.
            ttl: how long a thread stays after the last write to it, also one that waits at an
                interrupt. A background thread deletes older threads of LangGraph: when the saver is
                opened, and then ten times in each `ttl`, but not more often than every minute and
                not less often than every hour. Choose a time longer than any step of a graph.
            cipher: the keys that seal all values, writes and metadata: 32 bytes by key id, the
                current key first; or a function from a key id to the key, which returns the id and
                the key of the current one for None; or the path of a key file. Unlike with
                LangGraph's EncryptedSerializer, a put still writes only what changed.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            CheckpointStorageError: the file system refused.
            MissingDependencyError: `cipher` without the package of the extra `encryption`.
        """
        # Before the directory is created.
        serde = check_options(serde, types, on_blocked_type, ttl)
        saver = FileSystemSaver(base_directory, fsync=fsync, compression=compression, cipher=cipher)
        super().__init__(saver, serde=serde, on_blocked_type=on_blocked_type, ttl=ttl)
        self.store: FileSystemSaver = saver


class SqliteCheckpointSaver(CheckpointSaver):
    """Stores LangGraph's threads in one SQLite file: CheckpointSaver on a SqliteSaver.

    One object serves synchronous and asynchronous graphs, and any number of threads and processes. A
    put writes only what changed. Tables of other programs in the file, such as those of LangGraph's
    own SqliteSaver, are left alone.

    Attributes:
        store: the underlying SqliteSaver: for verify, compact, size, prune by age, and the other
            methods that LangGraph does not have.
    """

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: Literal["always", "never"] | float = "always",
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        types: Iterable[type] = (),
        on_blocked_type: OnBlockedType = "raise",
        ttl: timedelta | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use creates the file, its directories and its tables.

        Args:
            db_file: the path of the file.
            serde: LangGraph's serializer; see CheckpointSaver.
            fsync: when a put waits for the disk: always, never, or after this many seconds.
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
            CheckpointerConfigurationError: an option is invalid, or SQLite is older than 3.40.
            MissingDependencyError: `zstd` or `cipher` without the package of that extra.
        """
        # Imported here: few processes use more than one of the three.
        from savers._sql.saver import SqliteSaver

        serde = check_options(serde, types, on_blocked_type, ttl)
        saver = SqliteSaver(db_file, fsync=fsync, compression=compression, cipher=cipher)
        super().__init__(saver, serde=serde, on_blocked_type=on_blocked_type, ttl=ttl)
        self.store: SqliteSaver = saver


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
        pool: ConnectionPool[Any] | Connection[Any] | None = None,
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
        from savers._sql.saver import PostgresSaver

        serde = check_options(serde, types, on_blocked_type, ttl)
        saver = PostgresSaver(connection_string, pool=pool, schema=schema, compression=compression, cipher=cipher)
        super().__init__(saver, serde=serde, on_blocked_type=on_blocked_type, ttl=ttl)
        self.store: PostgresSaver = saver


def open_from_environment(environment: Mapping[str, str]) -> FileSystemCheckpointSaver:
    """Open the directory that GRAPHKIT_DIR names; create it if it is missing.

    Raises:
        CheckpointerConfigurationError: the variable is missing or empty, or what it names cannot be
            used. The error names the variable.
    """
    directory = environment.get(VARIABLE, "")
    if not directory:
        raise CheckpointerConfigurationError(
            f"{VARIABLE} is not set: name the directory of the checkpoints, for example in langgraph.json: "
            f'"env": {{"{VARIABLE}": "./checkpoints"}}'
        )
    kind, colon, _ = directory.partition(":")
    if colon and kind in saver_names() and not Path(directory).exists():
        raise CheckpointerConfigurationError(
            f"{VARIABLE}={directory!r} names another kind of store; LangGraph's checkpointer needs a directory"
        )
    try:
        return FileSystemCheckpointSaver(directory)
    except CheckpointerError as error:
        raise CheckpointerConfigurationError(f"{VARIABLE}={directory!r} cannot be used: {error}") from error
