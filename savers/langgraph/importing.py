"""Imports the databases of LangGraph's SqliteSaver and PostgresSaver into files or tables of graphkit.

An import keeps the threads, checkpoints, writes, metadata and ids. Reading a value runs no code: where
LangGraph's serializer would create an object, its bytes are kept. Exports read and compare in the same
way.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS

from graphkit import BaseCheckpointSaver, RunnableConfig
from graphkit.abc import SupportsVerify
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointStorageError,
    GraphKitError,
    MissingDependencyError,
)
from graphkit.saver_kit import Progress
from savers._cipher import Cipher
from savers.langgraph.checked_serializer import CheckedSerializer
from savers.langgraph.checkpoint_savers import FileSystemCheckpointSaver
from savers.langgraph.encoding import Write
from savers.langgraph.metadata import get_checkpoint_id, make_langgraph_config
from savers.langgraph.saver import CheckpointSaver

_FSYNC_INTERVAL: Final = 1.0
"""Seconds between two syncs of what was imported. After a power loss the import is run again."""
_FIRST_VERSION_WITH_SENDS: Final = 4
"""Older formats of LangGraph keep the pending sends of a checkpoint in its parent's writes."""
DAMAGE: Final = (AttributeError, KeyError, TypeError, ValueError)
"""What LangGraph's serializer makes of damage in a database."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportReport:
    """The result of an import."""

    threads: int
    """The number of threads in the database."""
    checkpoints: int
    """The number of imported checkpoints."""
    skipped: int
    """The number of checkpoints that the store already had."""
    problems: tuple[str, ...] = ()
    """The differences between the store and the database, damaged checkpoints, and damaged files."""

    @property
    def ok(self) -> bool:
        """Whether the store was verified and equals the database."""
        return not self.problems


def import_langgraph_sqlite(
    file: str | os.PathLike[str],
    target: str | os.PathLike[str] | BaseCheckpointSaver,
    *,
    progress: Progress | None = None,
    serde: SerializerProtocol | None = None,
    cipher: Cipher | None = None,
) -> ImportReport:
    """Copy the threads of a SqliteSaver's file to a directory or a saver; its tables are only read.

    A target in the same file is a `SqliteSaver` of graphkit on it, whose tables have other names.

    An interrupted import continues when it is called again: it skips checkpoints that the store
    already has. A later import adds what is new, pending writes too. The import reads back each
    checkpoint, compares it with the database, and finally verifies every byte of the store.

    Args:
        file: the SQLite database.
        target: the directory of the store, created if it is missing; or a saver of graphkit, which
            is not closed.
        progress: called after each checkpoint.
        serde: the serializer with which the database was written, if it encrypts, or if it is none
            of LangGraph's.
        cipher: the keys that seal a directory, as of FileSystemCheckpointSaver.

    Raises:
        CheckpointerConfigurationError: `cipher` with a saver, whose own keys seal it; or the values are
            encrypted and `serde` is missing.
        CheckpointStorageError: the database cannot be read, or the file system refused. Checkpoints
            imported so far stay.
        CheckpointConflictError: a thread of the same id holds a run of graphkit.
    """
    serde = make_passthrough_serializer(serde)
    return _import(partial(open_sqlite, os.fspath(file), serde), target, serde, cipher, progress)


def import_langgraph_postgres(
    dsn: str,
    target: str | os.PathLike[str] | BaseCheckpointSaver,
    *,
    progress: Progress | None = None,
    serde: SerializerProtocol | None = None,
    cipher: Cipher | None = None,
) -> ImportReport:
    """Copy the threads of a PostgresSaver's database, as they are when it begins.

    Otherwise this works like `import_langgraph_sqlite`.

    Args:
        dsn: the connection string.
        target: as for `import_langgraph_sqlite`. In the same database it is a PostgresSaver of
            graphkit, whose tables are in a schema of their own.
        progress: called after each checkpoint.
        serde: the serializer with which the database was written, if it encrypts, or if it is none
            of LangGraph's.
        cipher: the keys that seal a directory, as of FileSystemCheckpointSaver.

    Raises:
        CheckpointerConfigurationError: `cipher` with a saver, whose own keys seal it; or the values are
            encrypted and `serde` is missing.
        MissingDependencyError: psycopg is not installed.
        CheckpointStorageError: the database cannot be read, or the file system refused. Checkpoints
            imported so far stay.
        CheckpointConflictError: a thread of the same id holds a run of graphkit.
    """
    serde = make_passthrough_serializer(serde)
    return _import(partial(open_postgres, dsn, serde), target, serde, cipher, progress)


# Reading databases


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

    def describe(self) -> str:
        """Return the history as problems and errors name it."""
        return f"thread {self.thread_id!r}, namespace {self.namespace!r}"


class SourceCheckpoint(NamedTuple):
    """A checkpoint of a database or a store, with its pending writes."""

    parent_id: str | None
    checkpoint: Any
    metadata: Any
    writes: Sequence[Write]


class Source(ABC):
    """A database of checkpoints, as it was at one moment."""

    _select_ids: str
    """Selects the ids of a history, oldest first."""
    _select_writes: str
    """Selects the pending writes of a checkpoint. The columns are in the order of the fields of Write."""

    def __init__(self, connection: Any, serde: SerializerProtocol) -> None:
        self._connection = connection
        self._serde = serde

    def count_checkpoints(self) -> Mapping[HistoryKey, int]:
        """Return how many checkpoints each history has, in the order of threads and namespaces."""
        rows = self._connection.execute(
            "SELECT thread_id, checkpoint_ns, count(*) FROM checkpoints GROUP BY 1, 2 ORDER BY 1, 2"
        )
        return {HistoryKey(thread_id, namespace): count for thread_id, namespace, count in rows}

    def list_ids(self, history: HistoryKey) -> Sequence[str]:
        """Return the ids of the checkpoints of a history, oldest first."""
        return [row[0] for row in self._connection.execute(self._select_ids, history)]

    @abstractmethod
    def read(self, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint:
        """Read one checkpoint."""

    def read_writes(self, history: HistoryKey, checkpoint_id: str) -> Sequence[Write]:
        """Read the pending writes of a checkpoint, even if it does not exist."""
        rows = self._connection.execute(self._select_writes, (*history, checkpoint_id))
        # Older versions of LangGraph store None without a type.
        return [
            Write(path, task_id, idx, channel, type_name or "null", bytes(data or b""))
            for path, task_id, idx, channel, type_name, data in rows
        ]


class SqliteSource(Source):
    """The database of a SqliteSaver or AsyncSqliteSaver."""

    _select_ids = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY 1"

    def __init__(self, connection: sqlite3.Connection, serde: SerializerProtocol) -> None:
        super().__init__(connection, serde)
        columns = [row[1] for row in connection.execute("PRAGMA table_info(writes)")]
        # Databases of older versions of LangGraph have no such column.
        path = "task_path" if "task_path" in columns else "''"
        self._select_writes = (
            f"SELECT {path}, task_id, idx, channel, type, value FROM writes"  # noqa: S608 - a constant of this module
            " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )

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


class PostgresSource(Source):
    """The database of a PostgresSaver or AsyncPostgresSaver."""

    # SQLite compares ids by their bytes; a database of PostgreSQL may have the order of a language.
    _select_ids = (
        "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s"
        ' ORDER BY checkpoint_id COLLATE "C"'
    )
    _select_writes = (
        "SELECT task_path, task_id, idx, channel, type, blob FROM checkpoint_writes"
        " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
    )

    def read(self, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint:
        named = (*history, checkpoint_id)
        parent_id, checkpoint, metadata = self._connection.execute(
            "SELECT parent_checkpoint_id, checkpoint, metadata FROM checkpoints"
            " WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s",
            named,
        ).fetchone()
        # Scalars are in the row of the checkpoint. Other values are in blobs, one for each version of a
        # channel, which all checkpoints with that version share.
        blobs = self._connection.execute(
            "SELECT blob.channel, blob.type, blob.blob FROM checkpoints c"
            " CROSS JOIN LATERAL jsonb_each_text(c.checkpoint -> 'channel_versions') AS version"
            " JOIN checkpoint_blobs blob ON blob.thread_id = c.thread_id AND blob.checkpoint_ns = c.checkpoint_ns"
            " AND blob.channel = version.key AND blob.version = version.value"
            " WHERE c.thread_id = %s AND c.checkpoint_ns = %s AND c.checkpoint_id = %s AND blob.type <> 'empty'",
            named,
        )
        values = dict(checkpoint.get("channel_values") or {})
        for channel, type_name, data in blobs:
            values[channel] = self._serde.loads_typed((type_name, data))
        checkpoint["channel_values"] = values
        if checkpoint["v"] < _FIRST_VERSION_WITH_SENDS and parent_id:
            # As PostgresSaver does for a checkpoint of an old format.
            sends = sorted(write for write in self.read_writes(history, parent_id) if write.channel == TASKS)
            if sends:
                versions = checkpoint["channel_versions"]
                values[TASKS] = [self._serde.loads_typed((write.type, write.data)) for write in sends]
                versions[TASKS] = max(versions.values(), default=1)
        return SourceCheckpoint(
            parent_id=parent_id or None,
            checkpoint=checkpoint,
            metadata=metadata,
            writes=self.read_writes(history, checkpoint_id),
        )


@contextmanager
def open_sqlite(file: str, serde: SerializerProtocol) -> Iterator[Source]:
    """Open a SQLite file for reading only.

    Raises:
        CheckpointStorageError: the file cannot be read, or is not a database of LangGraph.
    """
    try:
        with closing(sqlite3.connect(f"{Path(file).absolute().as_uri()}?mode=ro", uri=True)) as connection:
            # A transaction, so that all queries see the database as it is now.
            connection.execute("BEGIN")
            connection.execute("SELECT checkpoint_id FROM checkpoints LIMIT 1")
            yield SqliteSource(connection, serde)
    except sqlite3.Error as error:
        cause = OSError(0, str(error))
        if not Path(file).exists():
            cause = FileNotFoundError(errno.ENOENT, "there is no such file")
        elif str(error).startswith("no such table") or getattr(error, "sqlite_errorname", "") == "SQLITE_NOTADB":
            cause = OSError(0, f"{error}; name the database of a SqliteSaver of LangGraph")
        raise CheckpointStorageError(file, "read", cause) from error


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


@contextmanager
def open_checkpointer(
    store: str | os.PathLike[str] | BaseCheckpointSaver,
    serde: SerializerProtocol,
    cipher: Cipher | None,
) -> Iterator[CheckpointSaver]:
    """Open the checkpointer of a directory or of a saver, which moves values without creating objects.

    Closes the directory at the end. A saver stays open.

    Args:
        store: the directory, or the saver.
        serde: the serializer of `make_passthrough_serializer`.
        cipher: the keys of the directory.

    Raises:
        CheckpointerConfigurationError: `cipher` with a saver, whose own keys seal it.
    """
    if isinstance(store, BaseCheckpointSaver):
        if cipher is not None:
            raise CheckpointerConfigurationError("cipher is for a directory; give the keys to the saver")
        yield CheckpointSaver(store, serde=serde, on_blocked_type="plain")
        return
    saver = FileSystemCheckpointSaver(store, serde=serde, fsync=_FSYNC_INTERVAL, on_blocked_type="plain", cipher=cipher)
    with saver:
        yield saver


def read_stored(saver: CheckpointSaver, history: HistoryKey, checkpoint_id: str) -> SourceCheckpoint | None:
    """Read a checkpoint of a store; None if there is none."""
    config = make_langgraph_config(*history, checkpoint_id)
    found = saver.get_tuple(config)
    if found is None:
        return None
    return SourceCheckpoint(
        parent_id=get_checkpoint_id(found.parent_config),
        checkpoint=found.checkpoint,
        metadata=found.metadata,
        writes=saver.writes_of(config),
    )


def list_differences(
    serde: SerializerProtocol, stored: SourceCheckpoint | None, original: SourceCheckpoint
) -> list[str]:
    """Return which parts of a checkpoint differ: its checkpoint, metadata, parent and writes.

    Args:
        serde: the serializer of the values.
        stored: the checkpoint as it was read back; None if it is missing.
        original: the checkpoint as it should be.
    """
    if stored is None:
        return ["checkpoint", "metadata", "parent", "writes"]
    are_equal = {
        "checkpoint": _serialize_values(serde, stored.checkpoint) == _serialize_values(serde, original.checkpoint),
        "metadata": stored.metadata == original.metadata,
        "parent": stored.parent_id == original.parent_id,
        "writes": sorted(stored.writes) == sorted(original.writes),
    }
    return [part for part, is_equal in are_equal.items() if not is_equal]


def list_missing_writes(stored: Sequence[Write], wanted: Sequence[Write]) -> Sequence[Write] | None:
    """Return the writes that a stored checkpoint lacks; None if it has one that differs, or is not wanted."""
    by_key = {write.key: write for write in wanted}
    if any(by_key.get(write.key) != write for write in stored):
        return None
    known = {write.key for write in stored}
    return [write for write in wanted if write.key not in known]


def _serialize_values(serde: SerializerProtocol, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a checkpoint with its values as bytes, which can be compared.

    Channels without a version are left out, as LangGraph's savers do.
    """
    while isinstance(serde, EncryptedSerializer):
        # Each encryption of the same value gives another ciphertext.
        serde = serde.serde
    versions = checkpoint["channel_versions"]
    serialized = {}
    for name, value in checkpoint["channel_values"].items():
        if name in versions:
            # In a list: inside a checkpoint, LangGraph's serializer stores a bytearray as bytes.
            serialized[name] = serde.dumps_typed([value])
    return {**checkpoint, "channel_values": serialized}


@contextmanager
def explain_unknown_types(place: str, history: HistoryKey) -> Iterator[None]:
    """Replace the error of LangGraph's serializer for types that it does not know, such as encrypted ones.

    Raises:
        CheckpointerConfigurationError: the serializer does not know the type of a value.
    """
    try:
        yield
    except NotImplementedError as error:
        raise CheckpointerConfigurationError(
            f"{history.describe()} of the {place}: {error}; if the values are encrypted, pass the serializer that"
            " wrote them (serde=...)"
        ) from error


# Importing


def _import(
    open_source: Callable[[], AbstractContextManager[Source]],
    target: str | os.PathLike[str] | BaseCheckpointSaver,
    serde: SerializerProtocol,
    cipher: Cipher | None,
    progress: Progress | None,
) -> ImportReport:
    # The target is created only if there is something to read.
    with open_source():
        pass
    done = 0
    imported = 0
    skipped = 0
    problems: list[str] = []
    with ExitStack() as opened:
        saver = opened.enter_context(open_checkpointer(target, serde, cipher))
        # The tables of a target in the same file must be there before the transaction that reads.
        saver.store.threads()
        source = opened.enter_context(open_source())
        counts = source.count_checkpoints()
        total = sum(counts.values())
        for history in counts:
            config = RunnableConfig(history.thread_id, checkpoint_ns=history.namespace)
            stored_ids = {info.id for info in saver.store.history(config)}
            for checkpoint_id in source.list_ids(history):
                where = f"{history.describe()}, checkpoint {checkpoint_id}"
                is_new = checkpoint_id not in stored_ids
                try:
                    different = _import_checkpoint(saver, source, history, checkpoint_id, is_new=is_new)
                except GraphKitError:
                    raise
                except DAMAGE as error:
                    problems.append(f"{where}: it is damaged in the database: {type(error).__name__}: {error}")
                else:
                    problems += [f"{where}: its {part} differs" for part in different]
                    imported += is_new
                    skipped += not is_new
                done += 1
                if progress is not None:
                    progress(done, total, history.thread_id)
        if isinstance(saver.store, SupportsVerify):
            problems += [f"{file.path} is {file.state}" for file in saver.store.verify().problems]
    return ImportReport(
        threads=len({history.thread_id for history in counts}),
        checkpoints=imported,
        skipped=skipped,
        problems=tuple(problems),
    )


def _import_checkpoint(
    saver: CheckpointSaver, source: Source, history: HistoryKey, checkpoint_id: str, *, is_new: bool
) -> list[str]:
    """Store a checkpoint, or what it lacks if it is stored; return which parts differ when it is read back."""
    with explain_unknown_types("database", history):
        original = source.read(history, checkpoint_id)
    named = make_langgraph_config(*history, original.parent_id)
    writes: Sequence[Write] | None = original.writes
    if not is_new:
        # The thread may have gone on since an earlier import, with answers to what was the latest.
        known = saver.writes_of(make_langgraph_config(*history, checkpoint_id))
        writes = list_missing_writes(known, original.writes)
    if writes:
        # Before their checkpoint: if the import is interrupted, it is not taken for complete.
        saver.restore_writes(named, original.checkpoint["id"], writes, original.metadata)
    if is_new:
        new_versions = original.checkpoint["channel_versions"]
        saver.restore(named, original.checkpoint, original.metadata, new_versions)
    stored = read_stored(saver, history, checkpoint_id)
    return list_differences(saver.serde, stored, original)
