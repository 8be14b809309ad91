"""Exports threads of LangGraph to a SQLite database, as LangGraph's own SqliteSaver keeps them.

An export keeps the threads, checkpoints, writes, metadata and ids. Values are moved without creating
any object. A checkpoint that the database already has is never replaced.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit import BaseCheckpointSaver, RunnableConfig
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    GraphKitError,
    MissingDependencyError,
)
from graphkit.saver_kit import EARLY_WRITES, LANGGRAPH, MADE_BY, Progress
from savers._cipher import Cipher
from savers._filesystem.layout import MARKER
from savers._filesystem.saver import FileSystemSaver
from savers.langgraph.encoding import Write
from savers.langgraph.importing import (
    DAMAGE,
    HistoryKey,
    SourceCheckpoint,
    SqliteSource,
    explain_unknown_types,
    list_differences,
    list_missing_writes,
    make_passthrough_serializer,
    open_checkpointer,
    read_stored,
)
from savers.langgraph.metadata import make_langgraph_config
from savers.langgraph.saver import CheckpointSaver, check_ids

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver

_INSERT_WRITE: Final = (
    "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_path, task_id, idx, channel, type, value)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The result of an export."""

    threads: int
    """The number of exported threads."""
    checkpoints: int
    """The number of checkpoints that were written to the database."""
    skipped: int
    """The number of checkpoints that the database already had."""
    left_out: tuple[str, ...] = ()
    """The threads that were left out, because they hold runs of graphkit's own."""
    problems: tuple[str, ...] = ()
    """The differences between the database and the store."""

    @property
    def ok(self) -> bool:
        """Whether the database was read back and equals the store."""
        return not self.problems


def export_langgraph_sqlite(
    source: str | os.PathLike[str] | BaseCheckpointSaver,
    file: str | os.PathLike[str],
    *,
    threads: Sequence[str] | None = None,
    progress: Progress | None = None,
    serde: SerializerProtocol | None = None,
    cipher: Cipher | None = None,
    plaintext: bool = False,
) -> ExportReport:
    """Copy LangGraph's threads from a directory or a saver to a database of LangGraph's SqliteSaver.

    The store is only read; runs may go on meanwhile. The database is created if it is missing. A
    checkpoint that it already has is never replaced: if it differs, the report says so. An
    interrupted export continues when it is called again, and a later export adds what is new. Each
    checkpoint is read back and compared with the store. Released versions are not exported, because
    LangGraph has none.

    Args:
        source: the directory of the store; or a saver of graphkit, which is not closed.
        file: the SQLite database. It may be that of a SqliteSaver of graphkit.
        threads: the ids of the threads; None is all of LangGraph's.
        progress: called after each checkpoint.
        serde: the serializer of the store, if it encrypts. The database is encrypted, too.
        cipher: the keys of a sealed directory, as of FileSystemCheckpointSaver. The database is not
            sealed.
        plaintext: confirms that an export with a cipher may write to a database that is not sealed.

    Raises:
        TypeError: `threads` is one id.
        MissingDependencyError: langgraph-checkpoint-sqlite is not installed, or `cipher` without
            the package of the extra `encryption`.
        CheckpointerConfigurationError: there is no store in the directory, its values are encrypted
            and `serde` is missing, `cipher` was given with a saver, or the store is sealed and
            `plaintext` is False. The last two leave the database as it was.
        CheckpointKeyError: the store is sealed, and `cipher` lacks a key or has a wrong one. The
            database was not opened.
        CheckpointNotFoundError: a thread in `threads` does not exist.
        CheckpointConflictError: a thread in `threads` holds a run of graphkit's own.
        CheckpointCorruptionError: a thread is damaged. Checkpoints exported so far stay; name the
            others in `threads`.
        CheckpointStorageError: the store cannot be read, or the database cannot be written. The
            same.
    """
    check_ids("threads", threads)
    passthrough = make_passthrough_serializer(serde)
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise MissingDependencyError("langgraph-checkpoint-sqlite", "langgraph-sqlite") from error
    if not isinstance(source, BaseCheckpointSaver) and not Path(source).is_dir():
        raise CheckpointerConfigurationError(f"there is no directory {os.fspath(source)!r}")
    with ExitStack() as opened:
        saver = opened.enter_context(open_checkpointer(source, passthrough, cipher))
        if saver.store.seals_records and not plaintext:
            raise CheckpointerConfigurationError(
                "the store is sealed, and a database of SqliteSaver is not: ask for plaintext (plaintext=True,"
                " --plaintext), or export the sealed logs of a directory (format='logs', `graphkit export --raw`)"
            )
        plan, left_out = _list_checkpoints(saver, threads)
        if not plan and isinstance(saver.store, FileSystemSaver):
            directory = saver.store.base_directory
            if not Path(directory, MARKER).exists():  # empty, or with the entries of LangGraph's store only
                raise CheckpointerConfigurationError(f"{directory!r} is not a checkpoint directory")
        target = opened.enter_context(_open_database(SqliteSaver, os.fspath(file), passthrough))
        export = _Export(saver, target, progress, total=sum(map(len, plan.values())))
        for history, ids in plan.items():
            export.export_history(history, ids)
    return ExportReport(
        threads=len({history.thread_id for history in plan}),
        checkpoints=export.written,
        skipped=export.skipped,
        left_out=tuple(left_out),
        problems=tuple(export.problems),
    )


def _list_checkpoints(
    saver: CheckpointSaver, threads: Sequence[str] | None
) -> tuple[Mapping[HistoryKey, Sequence[str]], Sequence[str]]:
    """Return the ids of the checkpoints of each history, oldest first, and the threads to leave out."""
    plan: dict[HistoryKey, Sequence[str]] = {}
    left_out: list[str] = []
    for thread_id in saver.store.threads() if threads is None else threads:
        histories = _list_histories(saver, thread_id)
        if histories is None:
            if threads is not None:
                reason = "it holds a run of graphkit's own, which LangGraph cannot read"
                raise CheckpointConflictError(thread_id, reason)
            left_out.append(thread_id)
        elif threads is not None and not histories:
            raise CheckpointNotFoundError(thread_id)
        else:
            plan.update(histories)
    return plan, left_out


def _list_histories(saver: CheckpointSaver, thread_id: str) -> dict[HistoryKey, Sequence[str]] | None:
    """Return the ids of the checkpoints of a thread; None if it holds a run of graphkit's own."""
    histories: dict[HistoryKey, Sequence[str]] = {}
    for namespace in saver.store.namespaces(thread_id):
        if namespace.startswith(EARLY_WRITES):
            continue
        infos = saver.store.history(RunnableConfig(thread_id, checkpoint_ns=namespace))
        if any(info.metadata.get(MADE_BY) != LANGGRAPH for info in infos):
            return None
        if infos:
            histories[HistoryKey(thread_id, namespace)] = [info.id for info in reversed(infos)]
    return histories


@contextmanager
def _open_database(saver_class: type[SqliteSaver], file: str, serde: SerializerProtocol) -> Iterator[SqliteSaver]:
    """Open a database of LangGraph's SqliteSaver; create it if it is missing.

    Raises:
        CheckpointStorageError: the database cannot be written, or the file is none.
    """
    try:
        with closing(sqlite3.connect(file)) as connection:
            saver = saver_class(connection, serde=serde)
            saver.setup()
            # Each checkpoint is a transaction. After a power loss, the export is run again.
            connection.execute("PRAGMA synchronous = NORMAL")
            yield saver
    except sqlite3.Error as error:
        raise CheckpointStorageError(file, "write", OSError(0, str(error))) from error


class _Export:
    """An export to a database that is open."""

    def __init__(self, saver: CheckpointSaver, target: SqliteSaver, progress: Progress | None, *, total: int) -> None:
        self._saver = saver
        self._target = target
        self._database = SqliteSource(target.conn, target.serde)
        """Reads the rows of the target."""
        self._progress = progress
        self._total = total
        self._done = 0
        self.written = 0
        self.skipped = 0
        self.problems: list[str] = []

    def export_history(self, history: HistoryKey, ids: Sequence[str]) -> None:
        """Export the checkpoints of one thread and namespace.

        Args:
            history: names the thread and the namespace.
            ids: the ids of the checkpoints, oldest first.
        """
        try:
            "".join(history).encode()
        except UnicodeEncodeError:  # a lone surrogate
            self.problems.append(f"{history.describe()}: SQLite cannot store this id, which is not Unicode text")
            return
        existing_ids = set(self._database.list_ids(history))
        for checkpoint_id in ids:
            with explain_unknown_types("store", history):
                original = read_stored(self._saver, history, checkpoint_id)
            if original is not None:  # it may have been removed meanwhile
                self._export(history, checkpoint_id, original, is_new=checkpoint_id not in existing_ids)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total, history.thread_id)
        if list(ids) != sorted(ids):
            self.problems.append(
                f"{history.describe()}: SqliteSaver sorts checkpoints by id, and this history has another order:"
                f" its latest checkpoint is {ids[-1]}, and SqliteSaver's is {max(ids)}"
            )

    def _export(self, history: HistoryKey, checkpoint_id: str, original: SourceCheckpoint, *, is_new: bool) -> None:
        where = f"{history.describe()}, checkpoint {checkpoint_id}"
        try:
            json.dumps(original.metadata)
        except (TypeError, ValueError) as error:
            self.problems.append(f"{where}: SqliteSaver cannot store its metadata: {error}")
            return
        different: list[str] = []
        if is_new:
            existing_writes = self._database.read_writes(history, checkpoint_id)
        else:
            self.skipped += 1
            try:
                with explain_unknown_types("database", history):
                    existing = self._database.read(history, checkpoint_id)
                different = list_differences(self._saver.serde, existing, original)
            except GraphKitError:
                raise
            except DAMAGE as error:
                reason = f"{type(error).__name__}: {error}"
                self.problems.append(f"{where}: the database has it damaged: {reason}; nothing was overwritten")
                return
            existing_writes = existing.writes
        missing = list_missing_writes(existing_writes, original.writes)
        if missing and not is_new:  # the thread has gone on since an earlier export
            different.remove("writes")
        if different or missing is None:
            found = f"it with another {' and '.join(different)}" if different else "other writes of it"
            self.problems.append(f"{where}: the database has {found}; nothing was overwritten")
            return
        # The writes come first: a checkpoint in the database is one whose writes are there.
        self._put_writes(history, checkpoint_id, missing)
        if is_new:
            config = make_langgraph_config(*history, original.parent_id)
            self._target.put(config, original.checkpoint, original.metadata, original.checkpoint["channel_versions"])
            self.written += 1
        stored = self._database.read(history, checkpoint_id)
        for part in list_differences(self._saver.serde, stored, original):
            self.problems.append(f"{where}: its {part} differs")

    def _put_writes(self, history: HistoryKey, checkpoint_id: str, writes: Sequence[Write]) -> None:
        """Add writes to the database, with their bytes and indexes as they are.

        SqliteSaver.put_writes would encode the values, and number the writes, again.
        """
        rows = [(*history, checkpoint_id, *write) for write in writes]
        if rows:
            with self._target.cursor() as cursor:
                cursor.executemany(_INSERT_WRITE, rows)
