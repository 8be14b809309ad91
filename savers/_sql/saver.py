"""SqlSaver: what the savers on databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, Tag, WaitingInterrupt
from graphkit.abc import (
    ConfigLike,
    HasVersions,
    ThreadLike,
    Watch,
    check_copy,
    get_held_run_locks,
    resolve_thread_id,
    with_status,
)
from graphkit.codec import Codec
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointNotFoundError,
)
from savers._log.forward_reader import read_forward
from savers._log.listed_checkpoints import ListedInfos, make_info
from savers._log.log import MARK
from savers._mutex import hold_if_free
from savers._sql.appending import AppendingMethods
from savers._sql.database_errors import PositionTakenError
from savers._sql.encoded_text import encode_text
from savers._sql.maintenance import MaintenanceMethods, explain_damage, rewrite
from savers._sql.row_lister import RowLister
from savers._sql.row_log import RowLog
from savers._sql.row_search import search_rows
from savers._sql.row_source import RowSource
from savers._sql.row_store import RowStore
from savers._sql.terms import list_search_terms
from savers._sql.waiting import InUseError, WouldWaitError, refuse_waiting

if TYPE_CHECKING:
    from savers._compression import Compression
    from savers._sql.database import Database, Transaction

_Result = TypeVar("_Result")
_SMALL_STATE: Final = 64 << 10
"""A state of at most this many bytes is packed or decoded in about the time that a hop to a worker
thread takes."""


class RunLockKey(NamedTuple):
    """Identifies the run lock of a thread in this process."""

    kind: str
    """The name of the class of the saver."""
    database: str
    """The database, whichever user connects to it."""
    thread_id: str


class SqlSaver(AppendingMethods, MaintenanceMethods, HasVersions):
    """Stores the history of each thread in rows of a database.

    The rows of a history are the records of docs/format.md: keyframes, and what changed since them.
    A put inserts one row as a rule.
    """

    isolates_values = True
    waits_for_runs = True
    refuses_unstorable_values = True

    def __init__(
        self,
        database: Database,
        *,
        types: Sequence[type],
        compression: Compression | None,
        lock_timeout: float,
    ) -> None:
        self.lock_timeout = lock_timeout
        self._codec = Codec(types)
        self._database = database
        self._store = RowStore(database, self._codec, compression)
        self._lister = RowLister(self._store)

    @property
    def is_durable(self) -> bool:
        return True

    def exists(self) -> bool:
        """Return whether the database has the tables of the saver. Creates nothing."""
        return self._database.has_tables()

    # Reading

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self._read(config, self._lister.list_checkpoints, [])

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)

        def read(log: RowLog) -> Checkpoint | None:
            stored = log.find(config.checkpoint_id)
            return None if stored is None else stored.make_checkpoint(log.load_state(stored))

        return self._read(config, read, None)

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        return self._store.list_namespaces(resolve_thread_id(thread))

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        infos = self._read(config, lambda log: ListedInfos(log, log.load_index().checkpoints), None)
        return [] if infos is None else infos.add_status(self)

    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        infos = self._read(config, lambda log: ListedInfos(log, log.find_recent(limit)), None)
        return [] if infos is None else infos.add_status(self)

    def info(self, config: ConfigLike = None) -> CheckpointInfo | None:
        """Return what is known of a checkpoint without decoding its state.

        The config names the checkpoint; by default it is the latest.
        """
        config = RunnableConfig.of(config)

        def read(log: RowLog) -> tuple[CheckpointInfo, bool] | None:
            stored = log.find(config.checkpoint_id)
            return None if stored is None else (make_info(log, stored), stored is log.find_latest())

        found = self._read(config, read, None)
        if found is None:
            return None
        info, is_latest = found
        return with_status(self, info) if is_latest else info

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        config = RunnableConfig.of(config)

        def read(log: RowLog) -> Mapping[str, Any]:
            stored = log.find(config.checkpoint_id)
            return {} if stored is None else log.read_writes(stored)

        return self._read(config, read, {})

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        config = RunnableConfig.of(config)

        def read(log: RowLog) -> tuple[str, ...]:
            stored = log.find(config.checkpoint_id)
            return () if stored is None else stored.tags

        return self._read(config, read, ())

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As in the contract. Of all threads (None), an index finds those that wait."""
        if thread_id is not None:
            return super().interrupts(thread_id)
        waiting = self._store.list_waiting_threads()
        return [found for thread in waiting for found in super(SqlSaver, self).interrupts(thread)]

    def threads(self, *, released: bool = False) -> Sequence[str]:
        return self._store.list_threads(released=released)

    def _search(
        self, metadata: Mapping[str, Any], thread_id: ThreadLike, limit: int | None
    ) -> Sequence[CheckpointInfo]:
        """As in the contract. Of all threads (None), an index finds the checkpoints.

        Numbers, texts and None are found by the index; for another value, every history is read.
        """
        pairs = list_search_terms(metadata) if thread_id is None else ()
        if not pairs:
            return super()._search(metadata, thread_id, limit)
        found = search_rows(self, self._store, metadata, pairs, limit)
        return [*islice(found, limit)]

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        return self._store.list_versions(resolve_thread_id(thread))

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        version = self._find_version(config.thread, version)
        log = self._store.shared_log(config.thread, config.checkpoint_ns, version)
        with log.mutex, self._explain_damage(log):
            checkpoints = self._lister.list_checkpoints(log) if log.refresh() else []
        return Tag(config.thread, checkpoints, version)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        return self._store.list_version_namespaces(thread_id, self._find_version(thread_id, version))

    def _find_version(self, thread_id: str, version: int | None) -> int:
        """Return a version of a thread, by default the newest.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        versions = self._store.list_versions(thread_id)
        if version is None and versions:
            return versions[-1]
        if version is None or version not in versions:
            missing = "version" if version is None else f"version {version}"
            raise CheckpointNotFoundError(thread_id, missing)
        return version

    def replay(self, config: ConfigLike = None, *, version: int | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints of a history, oldest first; see `graphkit.abc.SupportsReplay`.

        Raises:
            CheckpointNotFoundError: there is no such version; or the history was deleted, or
                rewritten by `prune` or `compact`, while it was read.
        """
        config = RunnableConfig.of(config)
        number = 0 if version is None else self._find_version(config.thread, version)
        # A source of its own, because the reads go forward through the whole history.
        log = self._store.new_log(config.thread, config.checkpoint_ns, number, RowSource(self._database))
        try:
            if log.refresh():
                yield from read_forward(log)
        except CheckpointCorruptionError as error:
            if not log.is_gone():
                raise explain_damage(error) from error
            reason = "it was deleted or rewritten while it was read; read it again"
            raise CheckpointNotFoundError(config.thread, "history", reason) from error

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """As in the contract. Decodes the last checkpoint, and counts the rows.

        If the history has tags, or a checkpoint was replaced, all records are read.
        """
        config = RunnableConfig.of(config)

        def read(log: RowLog) -> HistorySummary | None:
            latest = log.find_latest()
            if latest is None or log.is_scattered or log.index is not None:
                return None
            parameters = (bytes([MARK]), log.fd, log.end)
            ((count, marks),) = self._database.read(self._store.statements.count, parameters)
            if marks:
                return None
            info = make_info(log, latest)
            writes: Mapping[str, Any] = {}
            if info.stopped:
                writes = log.read_writes(latest)
            return self._make_summary(info, count, (), writes)

        return self._read(config, read, None) or super().summary(config)

    def _read(self, config: ConfigLike, read: Callable[[RowLog], _Result], default: _Result) -> _Result:
        """Call a function with the log of a history, brought up to date; return `default` if there is none."""
        config = RunnableConfig.of(config)
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex:
            is_fresh = log.fd < 0
            while True:
                try:
                    wanted = config.checkpoint_id
                    is_live = log.refresh() if wanted is None else log.refresh_for(wanted)
                    if not is_live or log.find_latest() is None:
                        return default
                    result = read(log)
                except CheckpointCorruptionError as error:
                    log.close()
                    if is_fresh and not log.is_gone():
                        raise explain_damage(error) from error
                    # The history has changed after the refresh, or what was known of it is of another one.
                    is_fresh = True
                else:
                    self._store.logs.account(log)
                    return result

    def _call_without_waiting(
        self,
        config: RunnableConfig,
        call: Callable[[], _Result],
        *,
        appends: bool,
    ) -> tuple[_Result] | None:
        """Call a function now if it takes only some microseconds; see FileSystemSaver.

        That is so on SQLite, if the log is open and small or the history does not exist yet, no
        other process writes, and the saver does not wait for the disk.

        Args:
            config: names the checkpoint.
            call: uses no other history. It may be called in vain, and have changed nothing.
            appends: whether it appends to the history.

        Returns:
            A tuple with its result; None if it was not called, or in vain.

        Raises:
            InUseError: another thread of execution uses the log or the connection. The function was
                not called. It may be called without waiting as soon as that one is ready.
        """
        database = self._database
        if not (database.writes_at_once if appends else database.reads_at_once):
            return None
        try:
            # Now, because a put that finds the connection in use leaves the log closed.
            if not database.check_free():
                return None
            log = self._store.shared_log(config.thread, config.checkpoint_ns)
            with hold_if_free(log.mutex) as is_held:
                if not is_held:
                    raise InUseError  # noqa: TRY301 - as from `check_free`
                with suppress(WouldWaitError), refuse_waiting():
                    if self._is_short(log, config, appends=appends):
                        return (call(),)
        except InUseError:
            if database.writes_at_once:
                raise
            # The other one may wait for the disk. A worker thread reads with another connection.
        return None

    def _is_short(self, log: RowLog, config: RunnableConfig, *, appends: bool) -> bool:
        """Return whether a call that uses a history takes only some microseconds; the caller holds the mutex."""
        if log.fd < 0:
            # To open a history takes as long as it has rows. One that is not there has none.
            is_known = appends and log.is_known_absent
            return is_known or not self._database.read(self._store.statements.select_history, log.key)
        if not log.is_small(_SMALL_STATE):
            return False
        last = log.last_checkpoint
        return appends or (last is not None and config.checkpoint_id in {None, last.id})

    # Threads

    def release(self, config: ConfigLike = None) -> Tag:
        thread_id = RunnableConfig.of(config).thread
        with self._exclude_runs(thread_id):
            root = self._store.shared_log(thread_id, "")
            with root.mutex, self._explain_damage(root):
                checkpoints = self._lister.list_checkpoints(root) if root.refresh() else []
                version = self._release(thread_id)
                root.close()
        return Tag(thread_id, checkpoints, version)

    def _release(self, thread_id: str) -> int | None:
        """Make the live histories of a thread a version; return its number, None if there are none."""
        statements = self._store.statements
        thread = encode_text(thread_id)
        with self._database.transaction() as transaction:
            if not transaction.execute(statements.lock_thread, (thread,)):
                return None
            self._lock_token(transaction, thread_id)
            ((last,),) = transaction.execute(statements.select_last_version, (thread,))
            version = int(last) + 1
            transaction.execute(statements.release, (version, time_ns() // 1000, thread))
            transaction.notify(thread_id)
        return version

    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        with self._exclude_runs(thread_id):
            with self._database.transaction() as transaction:
                self._lock_token(transaction, thread_id)
                transaction.execute(self._store.statements.delete_thread, (encode_text(thread_id),))
                had_content = transaction.row_count > 0
                if not had_content:
                    self._database.check_absence(encode_text(thread_id))
                transaction.notify(thread_id)
            self._store.logs.close_thread(thread_id)
            return had_content

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        source_id = resolve_thread_id(source)
        target_id = resolve_thread_id(target)
        with ExitStack() as stack:
            # In one order in all processes, so that two copies cannot wait for each other.
            for thread_id in sorted({source_id, target_id}):
                stack.enter_context(self._exclude_runs(thread_id))
            namespaces = check_copy(self, source_id, target_id)
            try:
                with self._database.transaction() as transaction:
                    self._lock_token(transaction, target_id)
                    for namespace in namespaces:
                        self._copy_history(transaction, source_id, target_id, namespace)
                    transaction.notify(target_id)
            except PositionTakenError:
                raise CheckpointConflictError(target_id, "another process has written to it; copy again") from None

    def _copy_history(self, transaction: Transaction, source_id: str, target_id: str, namespace: str) -> None:
        source = self._store.shared_log(source_id, namespace)
        with source.mutex, self._explain_damage(source):
            if source.refresh():
                target = self._store.new_log(target_id, namespace)
                rewrite(transaction, source, target, source.load_index().checkpoints, ())

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    # Watching

    def watch(self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0) -> Watch:
        """As in the contract, but reads only what is new.

        On SQLite, a change of any process is seen after 25 ms at most. On PostgreSQL, a watch of one
        thread is notified of every change. A watch of all threads is notified of interrupts, answers,
        failures, ends, releases and deletes, and reads checkpoints and progress between these every
        `interval` seconds: a commit that notifies excludes all others of the server for as long as
        it takes. A run whose process died is reported as idle within `interval` seconds.
        """
        from savers._sql.row_watch import RowWatch

        return RowWatch(self, self._store, self._resolve_watched(thread), latest=latest, interval=interval)

    # The run lock

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return RunLockKey(type(self).__name__, self._database.identity, RunnableConfig.of(config).thread)

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        return self._database.run_lock(config.thread, self.lock_timeout if timeout is None else timeout)

    def _is_run_locked(self, config: RunnableConfig) -> bool:
        return self._database.is_held(config.thread)

    @contextmanager
    def _exclude_runs(self, thread_id: str) -> Iterator[None]:
        """Hold the run lock of a thread, unless the caller holds it already."""
        config = RunnableConfig(thread_id)
        is_held = self.run_lock_key(config) in get_held_run_locks()
        if is_held or self._database.run_locks.is_mine(thread_id):
            yield
            return
        with self._run_lock(config, None):
            yield

    # Closing

    def flush(self) -> None:
        """Bring everything that was put to the disk, if `fsync` does not do so at each put."""
        self._database.flush()

    def close(self) -> None:
        """Flush, and close the connections. A later use opens them again."""
        self._store.logs.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
