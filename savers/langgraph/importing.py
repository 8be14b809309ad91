"""Imports the databases of LangGraph's SqliteSaver and PostgresSaver into files or tables of graphkit.

An import keeps the threads, checkpoints, writes, metadata and ids.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit import BaseCheckpointSaver, RunnableConfig
from graphkit.abc import SupportsVerify
from graphkit.saver_kit import Progress
from savers._cipher import Cipher
from savers.langgraph.metadata import make_langgraph_config
from savers.langgraph.saver import CheckpointSaver
from savers.langgraph.sources import (
    HistoryKey,
    Source,
    SourceCheckpoint,
    list_differences,
    make_passthrough_serializer,
    open_checkpointer,
    open_postgres,
    open_sqlite,
    read_stored,
)

_FSYNC_INTERVAL: Final = 1.0
"""Seconds between two syncs of what was imported. After a power loss the import is run again."""


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
    """The differences between the store and the database, and the damaged files."""

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
    already has. It reads back each checkpoint, compares it with the database, and finally verifies
    every byte of the store.

    Args:
        file: the SQLite database.
        target: the directory of the store, created if it is missing; or a saver of graphkit, which
            is not closed.
        progress: called after each checkpoint.
        serde: the serializer with which the database was written, if it encrypts, or if it is none
            of LangGraph's.
        cipher: the keys that seal a directory, as of FileSystemCheckpointSaver.

    Raises:
        CheckpointerConfigurationError: `cipher` with a saver, whose own keys seal it.
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
        CheckpointerConfigurationError: `cipher` with a saver, whose own keys seal it.
        MissingDependencyError: psycopg is not installed.
        CheckpointStorageError: the database cannot be read, or the file system refused. Checkpoints
            imported so far stay.
        CheckpointConflictError: a thread of the same id holds a run of graphkit.
    """
    serde = make_passthrough_serializer(serde)
    return _import(partial(open_postgres, dsn, serde), target, serde, cipher, progress)


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
    skipped = 0
    problems: list[str] = []
    with ExitStack() as opened:
        saver = opened.enter_context(open_checkpointer(target, serde, cipher, fsync=_FSYNC_INTERVAL))
        # The tables of a target in the same file must be there before the transaction that reads.
        saver.store.threads()
        source = opened.enter_context(open_source())
        counts = source.count_checkpoints()
        total = sum(counts.values())
        for history in counts:
            config = RunnableConfig(history.thread_id, checkpoint_ns=history.namespace)
            stored_ids = {info.id for info in saver.store.history(config)}
            for checkpoint_id in source.list_ids(history):
                original = source.read(history, checkpoint_id)
                if checkpoint_id in stored_ids:
                    skipped += 1
                else:
                    _restore(saver, history, original)
                stored = read_stored(saver, history, checkpoint_id)
                where = f"{history.describe()}, checkpoint {checkpoint_id}"
                problems += [f"{where}: its {part} differs" for part in list_differences(saver.serde, stored, original)]
                done += 1
                if progress is not None:
                    progress(done, total, history.thread_id)
        problems += _find_damage(saver)
    return ImportReport(
        threads=len({history.thread_id for history in counts}),
        checkpoints=done - skipped,
        skipped=skipped,
        problems=tuple(problems),
    )


def _restore(saver: CheckpointSaver, history: HistoryKey, original: SourceCheckpoint) -> None:
    config = make_langgraph_config(*history, original.parent_id)
    if original.writes:
        # Before their checkpoint: if the import is interrupted, it is not taken for complete.
        saver.restore_writes(config, original.checkpoint["id"], original.writes, original.metadata)
    new_versions = original.checkpoint["channel_versions"]
    saver.restore(config, original.checkpoint, original.metadata, new_versions)


def _find_damage(saver: CheckpointSaver) -> list[str]:
    if not isinstance(saver.store, SupportsVerify):
        return []
    return [f"{file.path} is {file.state}" for file in saver.store.verify().problems]
