"""Reads the databases of LangGraph's SqliteSaver and PostgresSaver.

Reading a value runs no code: where LangGraph's serializer would create an object, its bytes are kept.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import ormsgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS

from graphkit.errors import CheckpointStorageError, MissingDependencyError
from savers.langgraph.checked_serializer import CheckedSerializer
from savers.langgraph.writes import Write

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

_FIRST_VERSION_WITH_SENDS = 4
"""Older formats of LangGraph keep the pending sends of a checkpoint in its parent's writes."""


def make_passthrough_serializer(serde: SerializerProtocol | None = None) -> SerializerProtocol:
    """Make a serializer that passes values of any type through without creating them.

    Args:
        serde: the serializer of the values. The result decrypts as it does. A serializer that is none
            of LangGraph's is returned unchanged.
    """
    if serde is None:
        return JsonPlusSerializer(__unpack_ext_hook__=ormsgpack.Ext)
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, make_passthrough_serializer(serde.serde))
    if isinstance(serde, JsonPlusSerializer) and type(serde) in {JsonPlusSerializer, CheckedSerializer}:
        return JsonPlusSerializer(pickle_fallback=serde.pickle_fallback, __unpack_ext_hook__=ormsgpack.Ext)
    return serde


class HistoryKey(NamedTuple):
    """The thread and the namespace of a history, in the order of the queries' parameters."""

    thread_id: str
    namespace: str


class SourceCheckpoint(NamedTuple):
    """A checkpoint of the database, with its pending writes."""

    parent_id: str | None
    checkpoint: Any
    metadata: Any
    writes: Sequence[Write]


class Source(Protocol):
    """A database of checkpoints, as it was at one moment."""

    def count_checkpoints(self) -> Mapping[HistoryKey, int]:
        """Return how many checkpoints each history has, in the order of threads and namespaces."""

    def list_ids(self, history: HistoryKey) -> Sequence[str]:
        """Return the ids of the checkpoints of a history, oldest first."""

    def read(self, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint:
        """Read one checkpoint."""


class SqliteSource:
    """The database of a SqliteSaver or AsyncSqliteSaver."""

    def __init__(self, connection: sqlite3.Connection, serde: SerializerProtocol) -> None:
        self._connection = connection
        self._serde = serde
        columns = [row[1] for row in connection.execute("PRAGMA table_info(writes)")]
        # Databases of older versions of LangGraph have no such column.
        path = "task_path" if "task_path" in columns else "''"
        self._select_writes = (
            f"SELECT {path}, task_id, idx, channel, type, value FROM writes"  # noqa: S608 - a constant of this module
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )

    def count_checkpoints(self) -> Mapping[HistoryKey, int]:
        return _count_checkpoints(self._connection)

    def list_ids(self, history: HistoryKey) -> Sequence[str]:
        rows = self._connection.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY 1", history
        )
        return [row[0] for row in rows]

    def read(self, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint:
        parent_id, type_name, data, metadata = self._connection.execute(
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (*history, checkpoint_id),
        ).fetchone()
        return SourceCheckpoint(
            parent_id=parent_id or None,
            checkpoint=self._serde.loads_typed((type_name, data)),
            metadata=json.loads(metadata) if metadata else {},
            writes=self.read_writes(history, checkpoint_id),
        )

    def read_writes(self, history: HistoryKey, checkpoint_id: str) -> Sequence[Write]:
        """Read the pending writes of a checkpoint, even if it does not exist."""
        return _parse_writes(self._connection.execute(self._select_writes, (*history, checkpoint_id)))


class PostgresSource:
    """The database of a PostgresSaver or AsyncPostgresSaver."""

    def __init__(self, connection: Any, serde: SerializerProtocol) -> None:
        self._connection = connection
        self._serde = serde

    def count_checkpoints(self) -> Mapping[HistoryKey, int]:
        return _count_checkpoints(self._connection)

    def list_ids(self, history: HistoryKey) -> Sequence[str]:
        rows = self._connection.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s"
            ' ORDER BY checkpoint_id COLLATE "C"',
            history,
        )
        return [row[0] for row in rows]

    def read(self, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint:
        parent_id, checkpoint, metadata = self._connection.execute(
            "SELECT parent_checkpoint_id, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            (*history, checkpoint_id),
        ).fetchone()
        values = dict(checkpoint.get("channel_values") or {})
        for channel, type_name, data in self._read_blobs(history, checkpoint_id):
            values[channel] = self._serde.loads_typed((type_name, data))
        checkpoint["channel_values"] = values
        if checkpoint["v"] < _FIRST_VERSION_WITH_SENDS and parent_id:
            self._add_sends(checkpoint, self._read_writes(history, parent_id))
        return SourceCheckpoint(
            parent_id=parent_id or None,
            checkpoint=checkpoint,
            metadata=metadata,
            writes=self._read_writes(history, checkpoint_id),
        )

    def _read_blobs(self, history: HistoryKey, checkpoint_id: str) -> Iterable[tuple[str, str, bytes]]:
        rows: Iterable[tuple[str, str, bytes]] = self._connection.execute(
            "SELECT blob.channel, blob.type, blob.blob FROM checkpoints c"
            " CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS version"
            " JOIN checkpoint_blobs blob ON blob.thread_id = c.thread_id AND blob.checkpoint_ns = c.checkpoint_ns"
            " AND blob.channel = version.key AND blob.version = version.value"
            " WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s AND blob.type <> 'empty'",
            (*history, checkpoint_id),
        )
        return rows

    def _read_writes(self, history: HistoryKey, checkpoint_id: str) -> list[Write]:
        rows = self._connection.execute(
            "SELECT task_path, task_id, idx, channel, type, blob FROM checkpoint_writes"
            " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            (*history, checkpoint_id),
        )
        return _parse_writes(rows)

    def _add_sends(self, checkpoint: Any, parent_writes: Sequence[Write]) -> None:
        """Add the pending sends, as PostgresSaver does for a checkpoint of an old format."""
        writes = sorted(write for write in parent_writes if write.channel == TASKS)
        if not writes:
            return
        sends = [self._serde.loads_typed((write.type, write.data)) for write in writes]
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"][TASKS] = sends
        versions[TASKS] = max(versions.values(), default=1)


def _count_checkpoints(connection: Any) -> dict[HistoryKey, int]:
    rows = connection.execute("SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY 1, 2 ORDER BY 1, 2")
    return {HistoryKey(thread_id, namespace): count for thread_id, namespace, count in rows}


def _parse_writes(rows: Iterable[Sequence[Any]]) -> list[Write]:
    """Return writes from rows whose columns are in the order of the fields of Write."""
    writes = []
    for path, task_id, idx, channel, type_name, data in rows:
        write = Write(
            task_path=path,
            task_id=task_id,
            idx=idx,
            channel=channel,
            type=type_name or "null",
            data=bytes(data or b""),
        )
        writes.append(write)
    return writes


@contextmanager
def open_sqlite(file: str, serde: SerializerProtocol) -> Iterator[Source]:
    """Open a SQLite file for reading only.

    Raises:
        CheckpointStorageError: the file cannot be read, or is not a database of LangGraph.
    """
    try:
        with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT checkpoint_id FROM checkpoints LIMIT 1")
            yield SqliteSource(connection, serde)
    except sqlite3.Error as error:
        raise CheckpointStorageError(file, "read", _explain_sqlite(error, file)) from error


def _explain_sqlite(error: sqlite3.Error, file: str) -> OSError:
    if not Path(file).exists():
        return FileNotFoundError(errno.ENOENT, "there is no such file")
    reason = str(error)
    if reason.startswith("no such table") or getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
        reason = f"{reason}; name the database of a SqliteSaver of LangGraph"
    return OSError(0, reason)


@contextmanager
def open_postgres(dsn: str, serde: SerializerProtocol) -> Iterator[Source]:
    """Open a PostgreSQL database for reading only, as it is at this moment.

    Raises:
        MissingDependencyError: psycopg is not installed.
        CheckpointStorageError: the database cannot be reached, or is not one of LangGraph.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingDependencyError("psycopg", "postgres") from error
    try:
        # A pooler of transactions would lend prepared statements to its other clients, which use the same names.
        with psycopg.connect(dsn, prepare_threshold=None) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SELECT checkpoint_id FROM checkpoints LIMIT 1")
            yield PostgresSource(connection, serde)
    except psycopg.Error as error:
        reason = " ".join((error.diag.message_primary or str(error)).split())
        if isinstance(error, psycopg.errors.UndefinedTable):
            reason = (
                f"{reason}; name the database of a PostgresSaver of LangGraph, and the schema of its tables in the"
                ' search_path: "host=... dbname=... options=-csearch_path=..."'
            )
        raise CheckpointStorageError("the database", "read", OSError(0, reason)) from error
