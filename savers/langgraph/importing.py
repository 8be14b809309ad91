"""Imports the databases of LangGraph's SqliteSaver and PostgresSaver into files or tables of graphkit.

An import keeps the threads, checkpoints, writes, metadata and ids.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from graphkit import BaseCheckpointSaver, RunnableConfig
from graphkit.abc import SupportsVerify
from graphkit.errors import CheckpointerConfigurationError
from savers._log.reports import StoreReport
from savers.langgraph.comparison import list_differences
from savers.langgraph.configs import make_langgraph_config
from savers.langgraph.file_saver import FileSystemCheckpointSaver
from savers.langgraph.saver import CheckpointSaver
from savers.langgraph.sources import (
    HistoryKey,
    Source,
    SourceCheckpoint,
    make_passthrough_serializer,
    open_postgres,
    open_sqlite,
)

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from savers._cipher import Cipher

Progress = Callable[[int, int, str], object]
"""Called with the number of checkpoints done, the number of all checkpoints, and the thread."""

_FSYNC_INTERVAL = 1.0
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
        saver = _open_target(target, serde, cipher, opened)
        # The tables of a target in the same file must be there before the transaction that reads.
        saver.store.threads()
        source = opened.enter_context(open_source())
        counts = source.count_checkpoints()
        total = sum(counts.values())
        for history in counts:
            stored_ids = {info.id for info in saver.store.history(_history_config(history))}
            for checkpoint_id in source.list_ids(history):
                original = source.read(history, checkpoint_id)
                if checkpoint_id in stored_ids:
                    skipped += 1
                else:
                    _restore(saver, history, original)
                problems += _iter_problems(saver, history, checkpoint_id, original)
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


def _open_target(
    target: str | os.PathLike[str] | BaseCheckpointSaver,
    serde: SerializerProtocol,
    cipher: Cipher | None,
    opened: ExitStack,
) -> CheckpointSaver:
    if not isinstance(target, BaseCheckpointSaver):
        saver = FileSystemCheckpointSaver(
            target,
            serde=serde,
            fsync=_FSYNC_INTERVAL,
            on_blocked_type="plain",
            cipher=cipher,
        )
        opened.enter_context(saver.store)
        return saver
    if cipher is not None:
        raise CheckpointerConfigurationError("cipher is for a directory; give the keys to the saver")
    return CheckpointSaver(target, serde=serde, on_blocked_type="plain")


def _history_config(history: HistoryKey) -> RunnableConfig:
    return RunnableConfig(history.thread_id, checkpoint_ns=history.namespace)


def _restore(saver: CheckpointSaver, history: HistoryKey, original: SourceCheckpoint) -> None:
    config = make_langgraph_config(*history, original.parent_id)
    if original.writes:
        # Before their checkpoint: if the import is interrupted, it is not taken for complete.
        saver.restore_writes(config, original.checkpoint["id"], original.writes)
    saver.restore(
        config,
        original.checkpoint,
        original.metadata,
        new_versions=original.checkpoint["channel_versions"],
    )


def _iter_problems(
    saver: CheckpointSaver, history: HistoryKey, checkpoint_id: str, original: SourceCheckpoint
) -> Iterator[str]:
    """Read a checkpoint back and yield a message for each part that differs from the database."""
    stored = _read_back(saver, make_langgraph_config(*history, checkpoint_id))
    where = f"thread {history.thread_id!r}, namespace {history.namespace!r}, checkpoint {checkpoint_id}"
    for part in list_differences(saver.serde, stored, original):
        yield f"{where}: its {part} differs"


def _read_back(saver: CheckpointSaver, config: Any) -> SourceCheckpoint | None:
    stored = saver.get_tuple(config)
    if stored is None:
        return None
    parent_id = None
    if stored.parent_config is not None:
        parent_id = stored.parent_config["configurable"]["checkpoint_id"]
    return SourceCheckpoint(
        parent_id=parent_id,
        checkpoint=stored.checkpoint,
        metadata=stored.metadata,
        writes=saver.writes_of(config),
    )


def _find_damage(saver: CheckpointSaver) -> list[str]:
    if not isinstance(saver.store, SupportsVerify):
        return []
    report = saver.store.verify()
    if isinstance(report, StoreReport):
        return [f"{file.path} is {file.state}" for file in report.problems]
    return [] if report.ok else ["verify finds damage in the store"]
