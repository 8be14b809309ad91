"""SqliteCheckpointSaver: LangGraph's checkpointer on graphkit's rows in a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from savers._cipher import Cipher
from savers._compression import Compression
from savers._sql.sqlite_saver import SqliteSaver
from savers.langgraph.saver import CheckpointSaver, check_options
from savers.langgraph.serializer import OnBlockedType


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
        serde = check_options(serde, types, on_blocked_type, ttl)
        saver = SqliteSaver(db_file, fsync=fsync, compression=compression, cipher=cipher)
        super().__init__(saver, serde=serde, on_blocked_type=on_blocked_type, ttl=ttl)
        self.store: SqliteSaver = saver
