"""SqliteSaver and PostgresSaver, and SqlSaver: what they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, final

from graphkit import HistorySummary, RunnableConfig, Tag
from graphkit.abc import Watch
from graphkit.errors import CheckpointConflictError, CheckpointCorruptionError, CheckpointErasedError, ThreadBusyError
from graphkit.saver_kit import Codec, ConfigLike, ThreadLike, check_copy, get_held_run_locks
from savers._cipher import Cipher, check_cipher, parse_cipher
from savers._compression import Compression, parse_compression
from savers._log.frame import MARK
from savers._log.log import make_info
from savers._log.log_bytes import StaleLogError
from savers._log.log_saver import LogSaver, resolve_optional, select_all
from savers._log.rewriter import write_all
from savers._options import Fsync, parse_fsync, parse_lease, parse_lock_timeout
from savers._sql.columns import decode_row, encode_text
from savers._sql.database import DatabaseDamagedError
from savers._sql.row_log_bytes import RowLogBytes, describe_history
from savers._sql.row_store import REWRITTEN, RowLog, RowStore
from savers._threads import WouldWaitError, hold_if_free, refuse_waiting

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg_pool import ConnectionPool

    from graphkit import CheckpointInfo
    from graphkit.abc import RotationReport, VerifyReport
    from graphkit.saver_kit import Progress
    from savers._cipher import KeyRing
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Database, Parameters, Row, Transaction

_Result = TypeVar("_Result")
_PART_SIZE: Final = 1 << 20
"""A rewrite inserts its records when they have so many bytes."""


class RunLockKey(NamedTuple):
    """Identifies the run lock of a thread in this process."""

    kind: str
    """The name of the class of the saver."""
    database: str
    """The database, whichever user connects to it."""
    thread_id: str


class SqlSaver(LogSaver[RowLogBytes]):
    """Stores the history of each thread in rows of a database.

    The rows of a history are the records of docs/format.md: keyframes, and what changed since them.
    A put inserts one row as a rule.
    """

    refuses_unstorable_values = True

    def __init__(
        self,
        database: Database,
        *,
        types: Sequence[type],
        compression: Literal["zlib", "zstd"] | Compression | None,
        lock_timeout: float,
        cipher: Cipher | None,
    ) -> None:
        self.lock_timeout = lock_timeout
        codec = Codec(types)
        self._database = database
        self._store = RowStore(database, codec, parse_compression(compression), parse_cipher(cipher))
        super().__init__(self._store, codec)

    def _describe_place(self) -> str:
        return f"{self._database.path}, "

    def _count_threads(self) -> int:
        # To list the threads would create the tables.
        return len(self.threads()) if self.exists() else 0

    def _list_options(self) -> dict[str, Any]:
        """Return the options that all savers of this kind have, for `opener`."""
        key_ring = self._store.key_ring
        return {
            "lock_timeout": self.lock_timeout,
            "types": tuple(self._codec.types.values()),
            "compression": self._store.compression,
            "cipher": None if key_ring is None else key_ring.cipher,
        }

    def exists(self) -> bool:
        """Return whether the database has the tables of the saver. Creates nothing."""
        return self._database.has_tables()

    def describe(self) -> str:
        return self._database.path

    # The protocols of LogSaver

    def _explain_damage(self, error: CheckpointCorruptionError) -> CheckpointCorruptionError:
        advice = "restore a backup of the database, or delete the thread"
        if isinstance(error, DatabaseDamagedError):
            advice = error.advice  # Deleting one thread does not mend the others.
        return CheckpointCorruptionError(error.path, error.offset, error.reason, advice)

    def _check_may_retry(self, thread_id: str) -> None:
        """As in LogSaver. A run may retry, too, because its run lock holds across processes.

        Raises:
            ThreadBusyError: this process was paused for longer than the lease, and another run has taken the run lock.
        """
        self._check_token(thread_id, self._database.read, self._store.statements.select_token)

    def _lock_token(self, transaction: Transaction, thread_id: str) -> None:
        """Keep the run lock of the caller from being taken until the end of a transaction.

        Raises:
            ThreadBusyError: another run has it.
        """
        self._check_token(thread_id, transaction.execute, self._store.statements.lock_token)

    def _check_token(self, thread_id: str, execute: Callable[[str, Parameters], Sequence[Row]], sql: str) -> None:
        token = self._database.run_locks.token_of(thread_id)
        if token is not None and not execute(sql, (encode_text(thread_id), token)):
            raise ThreadBusyError(thread_id, "a run that took over while this process was paused", 0.0)

    def _rewrite_log(
        self, config: RunnableConfig, select: Callable[[RowLog], Sequence[StoredCheckpoint] | None]
    ) -> int:
        return self._rewrite_version(config.thread, config.checkpoint_ns, 0, select)

    def _rewrite_version(
        self,
        thread_id: str,
        namespace: str,
        version: int,
        select: Callable[[RowLog], Sequence[StoredCheckpoint] | None],
    ) -> int:
        """As `_rewrite_log`, of the live history (version 0) or of a released one."""
        log = self._store.shared_log(thread_id, namespace, version)
        self._store.mark_sealed()

        def rewrite(transaction: Transaction) -> int | None:
            # Writers insert where they believe the log to end, without a lock. The lock of the history's row makes them
            # wait: an insert needs the key of the row, and finds no history once this one is deleted. Then its writer
            # opens the new one. Readers that are in the middle find it gone, and begin again.
            statements = self._store.statements
            found = _lock_histories(transaction, statements.lock_history, log.frames.bytes.inserter.key)
            kept = select(log) if log.refresh() else None
            if kept is None:
                return None
            self._lock_token(transaction, thread_id)
            early = log.history.select_early()
            # Both are there until the end: what is kept is read from the old one while the new one grows, in the
            # same transaction. Until then the new one has a version that no reader asks for.
            new = self._store.new_log(thread_id, namespace, REWRITTEN)
            _rewrite(transaction, log, new, kept, early)
            transaction.execute(statements.delete_history, (log.frames.bytes.history, version))
            if new.is_open:
                number = new.frames.bytes.history
                if version:
                    ((_, released),) = found
                    transaction.execute(statements.replace_version, (version, released, number))
                else:
                    transaction.execute(statements.rename_history, (number,))
            transaction.notify(thread_id)
            return log.frames.end - new.frames.end

        with log.mutex, self._explained(log):
            freed = self._database.transact(rewrite)
            if freed is None:
                return 0
            log.close()
            return freed

    @contextmanager
    def _explained(self, log: RowLog) -> Iterator[None]:
        """Raise damage with what to do about it, and close the log that has it."""
        try:
            yield
        except CheckpointCorruptionError as error:
            log.close()
            raise self._explain_damage(error) from error

    def call_without_waiting(
        self, config: RunnableConfig, call: Callable[[], _Result], *, appends: bool
    ) -> tuple[_Result] | None:
        """As in LogSaver.

        That is so on SQLite, if the log is open and small or the history does not exist yet, no
        other process writes, and the saver does not wait for the disk.
        """
        database = self._database
        if appends and not database.writes_at_once:
            return None
        with suppress(WouldWaitError), refuse_waiting():
            # Now, because a put that finds the connection in use leaves the log closed.
            if not database.check_free():
                return None
            log = self._store.shared_log(config.thread, config.checkpoint_ns)
            with hold_if_free(log.mutex) as is_held:
                if is_held and self._is_short(log, config, appends=appends):
                    return (call(),)
        return None

    def _is_short(self, log: RowLog, config: RunnableConfig, *, appends: bool) -> bool:
        """Return whether a call that uses a history takes only some microseconds; the caller holds the mutex."""
        if not log.is_open:
            # To open a history takes as long as it has rows. One that is not there has none.
            if appends and log.is_known_absent:
                return True
            return not self._database.read(self._store.statements.select_history, log.frames.bytes.inserter.key)
        if not log.is_small() or log.frames.must_be_sealed:
            return False
        last = log.history.last
        return appends or (last is not None and config.checkpoint_id in {None, last.id})

    # Reading

    def _list_waiting_threads(self) -> Sequence[str]:
        return self._store.list_waiting_threads()

    def _find_histories(self, thread_id: str | None, metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if thread_id is not None:
            yield from super()._find_histories(thread_id, metadata)
            return
        for head in self._store.list_heads(metadata):
            yield head.thread_id, head.namespace

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """As in the contract. Decodes the last checkpoint, and counts the rows.

        If the history has tags, or a checkpoint was replaced, all records are read.
        """

        def read(log: RowLog) -> tuple[CheckpointInfo, int, tuple[str, ...], Mapping[str, Any]] | None:
            latest = log.history.find_latest()
            if latest is None or log.frames.is_scattered or log.history.index is not None:
                return None
            parameters = (bytes([MARK]), log.frames.bytes.history, log.frames.end)
            ((count, marks),) = self._database.read(self._store.statements.count, parameters)
            if marks:
                return None
            info = make_info(log, latest)
            writes: Mapping[str, Any] = {}
            if info.stopped:
                writes = log.read_writes(latest)
            return info, count, (), writes

        found = self.read_log(config, read, None)
        # The log is free again, for this looks into other histories.
        return super().summary(config) if found is None else self._make_summary(*found)

    # Threads

    def release(self, config: ConfigLike = None) -> Tag:
        thread_id = RunnableConfig.of(config).thread
        thread = encode_text(thread_id)
        statements = self._store.statements

        def release(transaction: Transaction) -> Tag:
            if not _lock_histories(transaction, statements.lock_thread, (thread,)):
                return Tag(thread_id, [], None)
            self._lock_token(transaction, thread_id)
            checkpoints = self.list(RunnableConfig(thread_id))
            ((last,),) = transaction.execute(statements.select_last_version, (thread,))
            version = int(last) + 1
            transaction.execute(statements.release, (version, time_ns() // 1000, thread))
            transaction.notify(thread_id)
            return Tag(thread_id, checkpoints, version)

        with self._exclude_runs(thread_id):
            root = self._store.shared_log(thread_id, "")
            with root.mutex:
                if not self.namespaces(thread_id):  # early writes may be there, and stay
                    return Tag(thread_id, [], None)
                tag = self._database.transact(release)
                root.close()
                return tag

    def _delete_thread(self, thread_id: str, idle_since: datetime | None, *, is_in_run: bool) -> bool:  # noqa: ARG002 - as in LogSaver
        statements = self._store.statements
        encoded = encode_text(thread_id)

        def delete(transaction: Transaction) -> bool:
            self._lock_token(transaction, thread_id)
            # An insert keeps the key of its history, and so has ended.
            _lock_histories(transaction, statements.lock_whole_thread, (encoded,))
            if idle_since is not None:
                since = _in_microseconds(idle_since)
                if not transaction.execute(statements.select_if_idle, (encoded, since, since)):
                    return False
            had_content = transaction.change(statements.delete_thread, (encoded,)) > 0
            if not had_content:
                self._database.integrity.check_absence(encoded)
            transaction.notify(thread_id)
            return had_content

        had_content = self._database.transact(delete)
        self._store.logs.close_thread(thread_id)
        return had_content

    def _copy_thread(self, source_id: str, target_id: str) -> None:
        namespaces = check_copy(self, source_id, target_id)
        self._store.mark_sealed()

        def copy(transaction: Transaction) -> None:
            self._lock_token(transaction, target_id)
            # Rewrites wait: what is copied is read little by little.
            _lock_histories(transaction, self._store.statements.lock_thread, (encode_text(source_id),))
            for namespace in namespaces:
                self._copy_history(transaction, source_id, target_id, namespace)
            transaction.notify(target_id)

        try:
            self._database.transact(copy)
        except StaleLogError:
            raise CheckpointConflictError(target_id, "another process has written to it; copy again") from None

    def _copy_history(self, transaction: Transaction, source_id: str, target_id: str, namespace: str) -> None:
        # No shared log: a put that has its mutex may be waiting for the end of this transaction.
        with closing(self._store.new_log(source_id, namespace)) as source, self._explained(source):
            if source.refresh():
                target = self._store.new_log(target_id, namespace)
                _rewrite(transaction, source, target, source.history.load_index().checkpoints, ())

    def _list_possibly_idle(self, thread_id: str | None, idle_since: datetime) -> Sequence[str]:
        since = _in_microseconds(idle_since)
        statements = self._store.statements
        if thread_id is None:
            rows = self._database.read(statements.select_idle, (since, since))
        else:
            rows = self._database.read(statements.select_if_idle, (encode_text(thread_id), since, since))
        return sorted(decode_row(*row) for row in rows)

    def _is_idle(self, thread_id: str, idle_since: datetime) -> bool:  # noqa: ARG002 - only idle ones were listed
        return True

    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:
        """Remove the bytes of deleted rows from the files of the database; see `graphkit.abc.SupportsErase`.

        SQLite: VACUUM, and the write-ahead log is emptied. Writers wait while the file is rewritten; it
        needs as much free space as the file has. PostgreSQL: VACUUM FULL, only with `full`, by the owner
        of the tables and of the database; all users of the tables wait meanwhile. The write-ahead log of
        the server and its backups are not touched.
        """
        return self._database.erase_deleted(full=full)

    # Measuring and checking

    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of the records of a thread, or of the whole store (None).

        The database needs more: a row and its indexes take 60 to 150 bytes.
        """
        return self._store.measure(resolve_optional(thread))

    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> VerifyReport:
        """Check every byte of one thread, or of all threads (None), and the columns beside them.

        Changes nothing, and makes no run wait. Does not raise because of damage. Reads each history
        once, a window at a time.

        A damaged history cannot be repaired in place: restore a backup, or delete the thread.

        Args:
            thread: the thread.
            progress: called after each history with the bytes done, all bytes, and the history.

        Raises:
            CheckpointStorageError: the database cannot be read.
        """
        from savers._sql.verify import verify

        return verify(self._store, resolve_optional(thread), progress)

    def rotate(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> RotationReport:
        """Seal everything with the current key: one thread, or all threads (None).

        Rewrites each history that is plain or has a record of another key, the released versions too;
        each in one transaction, so that a second call continues if the process dies. Waits for no run.
        Afterwards the other keys are only needed for backups.

        What was stored before may remain outside of the tables. SQLite overwrites what is replaced, and
        the write-ahead log is emptied at the end if no other connection reads; but not what was deleted
        earlier, without a `cipher`: execute VACUUM once. PostgreSQL keeps the old rows until VACUUM, and
        its write-ahead log for as long as it is configured to.

        Args:
            thread: the thread.
            progress: called after each thread with how many are done, how many there are, and its id.

        Raises:
            CheckpointerConfigurationError: the saver has no `cipher`.
            CheckpointKeyError: an old key is missing.
            CheckpointCorruptionError: a history is damaged. If it rotates all threads (None), in both
                cases it has rotated the others, and the error names those that it could not rotate.
        """
        from savers._log.rewriter import require_keys

        key_ring = require_keys(self._store.key_ring)
        thread_id = resolve_optional(thread)
        thread_ids = dict.fromkeys(owner for owner, _, _ in self._store.list_logs(thread_id))
        try:
            return self._rotate_threads(
                list(thread_ids),
                lambda owner: self._rotate_thread(owner, key_ring),
                progress,
                goes_on=thread is None,
            )
        finally:
            # Also if a key of some threads is missing: the others are done.
            self._database.empty_log()

    def _rotate_thread(self, thread_id: str, key_ring: KeyRing) -> RotationReport:
        from graphkit.abc import RotationReport
        from savers._log.rewriter import needs_rotation

        rewritten: list[str] = []
        erased: list[str] = []
        # The released ones are listed when the live ones are done: one of these may have become a version meanwhile.
        for is_released in (False, True):
            for _, namespace, version in self._store.list_logs(thread_id):
                if bool(version) is not is_released:
                    continue
                name = describe_history((thread_id, namespace), version)
                with closing(self._store.new_log(thread_id, namespace, version)) as log:
                    try:
                        # Not in a transaction, which would exclude other writers for as long as the log is read.
                        if self._use(log, lambda log: needs_rotation(log, key_ring), default=False):
                            self._rewrite_version(thread_id, namespace, version, select_all)
                            rewritten.append(name)
                    except CheckpointErasedError:
                        erased.append(name)
        return RotationReport(rewritten=tuple(rewritten), erased=tuple(erased))

    def _watch(self, config: RunnableConfig | None, *, latest: bool, interval: float) -> Watch:
        """Read only what is new.

        On SQLite, a change of any process is seen after 25 ms at most. On PostgreSQL, a watch of one
        thread is notified of every change. A watch of all threads is notified of interrupts, answers,
        failures, ends, releases and deletes, and reads checkpoints and progress between these every
        `interval` seconds: a commit that notifies excludes all others of the server for as long as
        it takes. A run whose process died is reported as idle within `interval` seconds.
        """
        from savers._log.log_watch import LogWatch
        from savers._sql.row_watch import RowSource

        source = RowSource(self._store, config, interval)
        return LogWatch(self, source, config, latest=latest, interval=interval)

    # The run lock

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return RunLockKey(type(self).__name__, self._database.identity, RunnableConfig.of(config).thread)

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        if timeout is None:
            timeout = self.lock_timeout
        return self._database.run_locks.hold(config.thread, timeout)

    def _holds_run_lock(self, thread_id: str) -> bool:
        return self._database.run_locks.is_mine(thread_id)

    def _is_run_locked(self, config: RunnableConfig) -> bool:
        return self._database.run_locks.is_held(config.thread)

    # Closing

    def flush(self) -> None:
        """Bring everything that was put to the disk, if `fsync` does not do so at each put."""
        self._database.flush()

    def close(self) -> None:
        """Flush, and close the connections. A later use opens them again."""
        self._store.logs.close()
        self._database.close()

    eraseDeleted = erase_deleted


@final
class SqliteSaver(SqlSaver):
    """Stores the history of each thread in rows of one SQLite file.

    When `put` returns, the checkpoint survives power loss (`fsync="always"`), power loss except for
    the last seconds (`fsync=seconds`), or the death of the process (`fsync="never"`; a power loss may
    then damage the file). A put inserts what changed: it costs the same after 10 and after 100,000
    checkpoints. Any number of threads, saver objects and processes may use a file at once, on a local
    file system. Ports the `sqlite` checkpointer of Petal.
    """

    def __init__(
        self,
        db_file: str | os.PathLike[str],
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use creates the file, its directories and its tables.

        Args:
            db_file: the path of the file. Tables of other programs in it are left alone.
            fsync: when to wait for the disk: "always" at each put, "never", or after this many
                seconds.
            lock_timeout: how long a run waits for another one on the same thread, and a writer for
                other writers, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: as for FileSystemSaver.
            cipher: as for FileSystemSaver. The ids of threads and checkpoints, the statuses of threads, times
                and sizes stay readable in columns. What the saver deletes or replaces is overwritten.

        Raises:
            CheckpointerConfigurationError: an argument is wrong, or SQLite is older than 3.40.
            MissingDependencyError: `zstd` or `cipher` without the package of that extra.
        """
        fsync = parse_fsync(fsync)
        lock_timeout = parse_lock_timeout(lock_timeout)
        self._fsync = fsync
        # Here, so that a process with another saver does not load sqlite3.
        from savers._sql.sqlite_database import SqliteDatabase

        super().__init__(
            SqliteDatabase(db_file, fsync=fsync, lock_timeout=lock_timeout, overwrites_deleted=cipher is not None),
            types=types,
            compression=compression,
            lock_timeout=lock_timeout,
            cipher=cipher,
        )

    @property
    def db_file(self) -> str:
        """The path of the file, absolute."""
        return self._database.path

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors. Nothing is opened or created."""
        check_cipher(options.pop("cipher", None))
        cls(*arguments, **options)

    checkOptions = check_options

    def opener(self) -> Callable[[], SqliteSaver]:
        """Return a function that opens the same file with the same types, in any process.

        It contains a `cipher` as that of FileSystemSaver does.
        """
        return partial(
            SqliteSaver,
            self._database.path,
            fsync=self._fsync,
            **self._list_options(),
        )


@final
class PostgresSaver(SqlSaver):
    """Stores the history of each thread in rows of a PostgreSQL database.

    When `put` returns, the checkpoint is committed: `synchronous_commit` of the server says what it
    survives. A put inserts what changed, in one round trip: it costs the same after 10 and after
    100,000 checkpoints. Any number of threads, saver objects, processes and machines may use a
    database at once. Ports the `postgres` checkpointer of Petal. Needs the extra `postgres`.
    """

    def __init__(
        self,
        connection_string: str | None = None,
        *,
        pool: ConnectionPool[Any] | Connection[Any] | None = None,
        schema: str = "graphkit",
        lease: float = 10.0,
        lock_timeout: float = 10.0,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        cipher: Cipher | None = None,
    ) -> None:
        """Name a database; the first use connects, and creates the schema and its tables.

        Args:
            connection_string: a URL or the keywords of libpq. The saver opens connections as they are
                needed, up to ten.
            pool: an open pool, or a single open connection, in place of the connection string. It is
                never closed. A single connection serves one call at a time, and is not replaced when it
                is lost.
            schema: the schema of the tables.
            lease: after how many seconds another run may take the thread of a process that was paused.
                The paused run gets a ThreadBusyError at its next put, and changes nothing.
            lock_timeout: how long a run waits for another one on the same thread, and a writer for
                other writers and for a server that restarts, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: as for FileSystemSaver.
            cipher: as for FileSystemSaver. The ids of threads and checkpoints, the statuses of threads, times
                and sizes stay readable in columns.

        Raises:
            CheckpointerConfigurationError: an argument is wrong; or both a connection string and a
                pool are given, or neither.
            MissingDependencyError: the extra `postgres`, or that of `zstd` or `cipher`, is not installed.
        """
        lease = parse_lease(lease)
        lock_timeout = parse_lock_timeout(lock_timeout)
        self.lease = lease
        self._connection_string = connection_string
        self._schema = schema
        # Here, because it needs psycopg: the class can be imported without it.
        from savers._sql.postgres_database import PostgresDatabase

        database = PostgresDatabase(connection_string, pool=pool, schema=schema, lease=lease, lock_timeout=lock_timeout)
        super().__init__(
            database,
            types=types,
            compression=compression,
            lock_timeout=lock_timeout,
            cipher=cipher,
        )

    @classmethod
    def check_options(cls, *arguments: Any, **options: Any) -> None:
        """Check arguments of the constructor; its errors. Nothing is opened or created."""
        check_cipher(options.pop("cipher", None))
        cls(*arguments, **options)

    checkOptions = check_options

    def opener(self) -> Callable[[], PostgresSaver] | None:
        """Return a function that opens the same schema with the same types, in any process.

        It contains the connection string, with its password, and the mapping of a `cipher`, and so does its
        pickle; a function that is a `cipher` is pickled by its name. None if the
        saver uses a pool, which no other process has.

        What the opened saver writes to a thread whose run lock the calling code holds is fenced with
        that lock: after the run has lost it or has ended, a put raises ThreadBusyError and changes
        nothing.
        """
        if self._connection_string is None:
            return None
        open_saver = partial(
            PostgresSaver,
            self._connection_string,
            schema=self._schema,
            lease=self.lease,
            **self._list_options(),
        )
        tokens: dict[str, int] = {}
        for key in get_held_run_locks():
            # Savers of other kinds have other keys, and nested runs have keys of their own.
            if isinstance(key, RunLockKey) and key.database == self._database.identity:
                token = self._database.run_locks.token_of(key.thread_id)
                if token is not None:
                    tokens[key.thread_id] = token
        return partial(_open_for_runs, open_saver, tokens) if tokens else open_saver


def _open_for_runs(open_saver: Callable[[], PostgresSaver], tokens: dict[str, int]) -> PostgresSaver:
    """Open a saver whose writes are fenced with the run locks of another process."""
    from savers._sql.postgres_database import PostgresDatabase

    saver = open_saver()
    database = saver._database  # noqa: SLF001 - a part of the same class
    assert isinstance(database, PostgresDatabase)
    database.run_locks.borrow(tokens)
    return saver


def _lock_histories(transaction: Transaction, statement: str, key: Parameters) -> list[Row]:
    """Lock the rows of histories until the end of a transaction; return what the statement selects of them.

    If it has to wait for a rewrite, it finds no row of that history: not the old one, which is deleted by then, and not
    the new one, which was not there when it began. So it is repeated until it finds nothing else.
    """
    known = transaction.execute(statement, key)
    while set(found := transaction.execute(statement, key)) != set(known):
        known = found
    return found


def _rewrite(
    transaction: Transaction,
    source: RowLog,
    target: RowLog,
    checkpoints: Sequence[StoredCheckpoint],
    early: Sequence[StoredCheckpoint],
) -> None:
    """Insert checkpoints of one history as another one."""
    target.frames.keep_key_of(source.frames)
    inserter = target.frames.bytes.inserter
    inserter.transaction = transaction
    for _ in write_all(source, target, checkpoints, early):
        if sum(len(row.frame) for row in inserter.pending) >= _PART_SIZE:
            target.commit()
    target.commit()


def _in_microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
