"""The databases of LangGraph's SqliteSaver and PostgresSaver, read as they are.

No code runs for a value that is read: what LangGraph's serializer would make an object of stays the bytes that it is.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS

from graphkit.errors import CheckpointStorageError, MissingDependencyError
from savers.langgraph.writes import Write

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

_SENDS_APART = 4
"""Before this version of its format, LangGraph kept a checkpoint's pending sends among its parent's writes."""


def as_it_is() -> JsonPlusSerializer:
    """A serializer that moves values of any type without making them."""
    return JsonPlusSerializer(__unpack_ext_hook__=ormsgpack.Ext)


class Place(NamedTuple):
    """A namespace of a thread."""

    thread_id: str
    namespace: str


class Found(NamedTuple):
    """A checkpoint, with what is beside it."""

    parent_id: str | None
    checkpoint: Any
    metadata: Any
    writes: Sequence[Write]


class Source(Protocol):
    """A database of checkpoints, as of one moment."""

    def places(self) -> Sequence[tuple[Place, int]]:
        """The namespaces, and how many checkpoints each has."""

    def ids(self, place: Place) -> Sequence[str]:
        """The ids of a namespace's checkpoints, oldest first."""

    def read(self, place: Place, id: str) -> Found:
        """One of them."""


class SqliteSource:
    """The database of a SqliteSaver or AsyncSqliteSaver."""

    def __init__(self, connection: sqlite3.Connection, serde: SerializerProtocol) -> None:
        self._connection, self._serde = connection, serde
        columns = [row[1] for row in connection.execute("PRAGMA table_info(writes)")]
        path = "task_path" if "task_path" in columns else "''"  # databases of before it have no such column
        self._writes = (
            f"SELECT {path}, task_id, idx, channel, type, value FROM writes"  # noqa: S608 - one of two words of ours
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )

    def places(self) -> Sequence[tuple[Place, int]]:
        return _places(self._connection)

    def ids(self, place: Place) -> Sequence[str]:
        rows = self._connection.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY 1", place
        )
        return [row[0] for row in rows]

    def read(self, place: Place, id: str) -> Found:
        parent, kind, data, metadata = self._connection.execute(
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            (*place, id),
        ).fetchone()
        writes = _writes(self._connection.execute(self._writes, (*place, id)))
        checkpoint = self._serde.loads_typed((kind, data))
        return Found(parent or None, checkpoint, json.loads(metadata) if metadata else {}, writes)


class PostgresSource:
    """The database of a PostgresSaver or AsyncPostgresSaver."""

    def __init__(self, connection: Any, serde: SerializerProtocol) -> None:
        self._connection, self._serde = connection, serde

    def places(self) -> Sequence[tuple[Place, int]]:
        return _places(self._connection)

    def ids(self, place: Place) -> Sequence[str]:
        rows = self._connection.execute(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s"
            ' ORDER BY checkpoint_id COLLATE "C"',
            place,
        )
        return [row[0] for row in rows]

    def read(self, place: Place, id: str) -> Found:
        parent, checkpoint, metadata = self._connection.execute(
            "SELECT parent_checkpoint_id, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            (*place, id),
        ).fetchone()
        values = dict(checkpoint.get("channel_values") or {})
        for channel, kind, data in self._blobs(place, id):
            values[channel] = self._serde.loads_typed((kind, data))
        checkpoint["channel_values"] = values
        if checkpoint["v"] < _SENDS_APART and parent:
            self._take_sends(checkpoint, self._writes(place, parent))
        return Found(parent or None, checkpoint, metadata, self._writes(place, id))

    def _blobs(self, place: Place, id: str) -> Iterable[tuple[str, str, bytes]]:
        found: Iterable[tuple[str, str, bytes]] = self._connection.execute(
            "SELECT blob.channel, blob.type, blob.blob FROM checkpoints c"
            " CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS version"
            " JOIN checkpoint_blobs blob ON blob.thread_id = c.thread_id AND blob.checkpoint_ns = c.checkpoint_ns"
            " AND blob.channel = version.key AND blob.version = version.value"
            " WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s AND blob.type <> 'empty'",
            (*place, id),
        )
        return found

    def _writes(self, place: Place, id: str) -> list[Write]:
        return _writes(
            self._connection.execute(
                "SELECT task_path, task_id, idx, channel, type, blob FROM checkpoint_writes"
                " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
                (*place, id),
            )
        )

    def _take_sends(self, checkpoint: Any, writes: Sequence[Write]) -> None:
        """As PostgresSaver does when it reads a checkpoint of an old format."""
        found = sorted(write for write in writes if write.channel == TASKS)
        if found:
            sends = [self._serde.loads_typed((write.type, write.data)) for write in found]
            checkpoint["channel_values"][TASKS] = sends
            checkpoint["channel_versions"][TASKS] = max(checkpoint["channel_versions"].values(), default=1)


def _places(connection: Any) -> list[tuple[Place, int]]:
    rows = connection.execute("SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY 1, 2 ORDER BY 1, 2")
    return [(Place(thread, namespace), count) for thread, namespace, count in rows]


def _writes(rows: Iterable[Sequence[Any]]) -> list[Write]:
    return [
        Write(path, task, place, channel, kind or "null", bytes(data or b""))
        for path, task, place, channel, kind, data in rows
    ]


@contextmanager
def sqlite_source(file: str, serde: SerializerProtocol) -> Iterator[Source]:
    """Open a SQLite file, to read only.

    Raises:
        CheckpointStorageError: it cannot be read, or is no database of LangGraph's.
    """
    try:
        with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT checkpoint_id FROM checkpoints LIMIT 1")
            yield SqliteSource(connection, serde)
    except sqlite3.Error as error:
        raise CheckpointStorageError(file, "read", OSError(0, str(error))) from error


@contextmanager
def postgres_source(dsn: str, serde: SerializerProtocol) -> Iterator[Source]:
    """Open a PostgreSQL database, to read only, as it is at this moment.

    Raises:
        MissingDependencyError: psycopg is not installed.
        CheckpointStorageError: it cannot be reached, or is no database of LangGraph's.
    """
    try:
        import psycopg
    except ImportError as error:
        raise MissingDependencyError("psycopg", "postgres") from error
    try:
        with psycopg.connect(dsn) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield PostgresSource(connection, serde)
    except psycopg.Error as error:
        raise CheckpointStorageError("the database", "read", OSError(0, str(error).strip())) from error
