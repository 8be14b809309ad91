"""The methods of SqlSaver for operators: verify, compact, prune, delete_idle, size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from graphkit import CheckpointInfo, RunnableConfig
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    Retention,
    ThreadLike,
    resolve_thread_id,
    run_in_thread,
)
from graphkit.errors import CheckpointCorruptionError, CheckpointStorageError, ThreadBusyError
from savers._log.failed_threads import FailedThreads
from savers._log.listed_checkpoints import make_info
from savers._log.rewriter import Rewriter, has_unreachable_records, replay_states
from savers._sql.database import Database
from savers._sql.database_errors import DatabaseDamagedError
from savers._sql.encoded_text import decode_row, encode_text
from savers._sql.row_store import REWRITTEN, RowStore

if TYPE_CHECKING:
    from savers._log.reports import Progress, StoreReport
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Transaction
    from savers._sql.row_log import RowLog

_FATAL: Final = (CheckpointStorageError,)
"""If the database cannot be used, all threads would fail."""


class MaintenanceMethods(BaseCheckpointSaver):
    """What operators do with the histories in a database."""

    _database: Database
    _store: RowStore

    @abstractmethod
    def _exclude_runs(self, thread_id: str) -> AbstractContextManager[object]:
        """Hold the run lock of a thread, unless the caller holds it already."""

    # Removing checkpoints

    def prune(
        self,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """As in the contract. Rewrites the histories that lose a checkpoint, each in one transaction.

        Raises:
            ValueError: neither keep_last nor older_than is given, or keep_last is below one.
            CheckpointCorruptionError: a history is damaged; it was not changed. If it prunes all
                threads (None), it has pruned the others, and the error names those that it could not
                prune.
        """
        retention = Retention(
            keep_last=keep_last,
            older_than=older_than,
            keep_tags=frozenset(keep_tags),
            keep_interrupted=keep_interrupted,
        )
        if thread is not None:
            return self._prune_thread(resolve_thread_id(thread), retention)
        failed = FailedThreads("prune", fatal=_FATAL)
        removed = 0
        for thread_id in self.threads():
            with failed.catch(thread_id):
                removed += self._prune_thread(thread_id, retention)
        failed.raise_if_any()
        return removed

    def _prune_thread(self, thread_id: str, retention: Retention) -> int:
        config = RunnableConfig(thread_id)
        removed = 0
        for namespace in self.namespaces(thread_id):
            removed += self._prune(config.replace(checkpoint_ns=namespace), retention)
        return removed

    def _prune(self, config: RunnableConfig, retention: Retention) -> int:
        def choose(infos: Sequence[CheckpointInfo]) -> Collection[str]:
            return {info.id for info in retention.select_removable(infos)}

        return self._remove(config, choose)

    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove checkpoints of a history, with their pending writes and tags.

        The other checkpoints keep their whole states. The cost is a rewrite of these.

        Returns:
            How many of the checkpoints the history had.
        """

        def choose(infos: Sequence[CheckpointInfo]) -> Collection[str]:
            return {info.id for info in infos}.intersection(ids)

        return self._remove(RunnableConfig.of(config), choose) if ids else 0

    def _remove(
        self,
        config: RunnableConfig,
        choose: Callable[[Sequence[CheckpointInfo]], Collection[str]],
    ) -> int:
        """Remove the checkpoints of a history that a function chooses from the infos of all, newest first."""
        removed = 0

        def select(log: RowLog) -> Sequence[StoredCheckpoint] | None:
            nonlocal removed
            checkpoints = log.load_index().checkpoints
            ids = choose([make_info(log, stored) for stored in reversed(checkpoints)])
            removed = len(ids)
            return [stored for stored in checkpoints if stored.id not in ids] if ids else None

        self._rewrite_history(config, select)
        return removed

    def compact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        """Remove what no reader can reach from the live histories of one thread, or of all threads (None).

        That is what was replaced: checkpoints, pending writes, tags. It is not needed after `prune`.
        The database keeps the freed pages for later rows: VACUUM gives them back to the file system.

        Args:
            thread: the thread.
            progress: called after each thread with how many are done, how many there are, and its id.

        Returns:
            By how many bytes the records became fewer.

        Raises:
            CheckpointCorruptionError: a history is damaged; it was not changed. If it compacts all
                threads (None), it has compacted the others, and the error names those that it could
                not compact.
        """
        failed = FailedThreads("compact", fatal=_FATAL)
        thread_ids = self._select_threads(thread)
        freed = 0
        for done, thread_id in enumerate(thread_ids, 1):
            if thread is not None:
                freed += self._compact_thread(thread_id)
            else:
                with failed.catch(thread_id):
                    freed += self._compact_thread(thread_id)
            if progress is not None:
                progress(done, len(thread_ids), thread_id)
        failed.raise_if_any()
        return freed

    def _compact_thread(self, thread_id: str) -> int:
        freed = 0
        for namespace in self.namespaces(thread_id):
            config = RunnableConfig(thread_id, checkpoint_ns=namespace)
            freed += self._rewrite_history(config, _select_if_unreachable)
        return freed

    def _rewrite_history(
        self,
        config: RunnableConfig,
        select: Callable[[RowLog], Sequence[StoredCheckpoint] | None],
    ) -> int:
        """Rewrite a history with some of its checkpoints, in one transaction.

        Args:
            config: names the history.
            select: returns the checkpoints to keep; None changes nothing.

        Returns:
            By how many bytes its records became fewer.
        """
        log = self._store.shared_log(config.thread, config.checkpoint_ns)
        statements = self._store.statements
        with log.mutex:
            with self._explain_damage(log), self._database.transaction() as transaction:
                transaction.execute(statements.lock_history, log.key)
                kept = select(log) if log.refresh() else None
                if kept is None:
                    return 0
                self._lock_token(transaction, config.thread)
                early = log.load_early().select_recent(log.load_index().checkpoints)
                # Both are there until the end, because the reads may be in the same transaction.
                new = self._store.new_log(config.thread, config.checkpoint_ns, REWRITTEN)
                rewrite(transaction, log, new, kept, early)
                transaction.execute(statements.delete_history, (log.fd,))
                if new.fd >= 0:
                    transaction.execute(statements.rename_history, (new.fd,))
                transaction.notify(config.thread)
            freed = log.end - new.end
            log.close()
        return freed

    def _lock_token(self, transaction: Transaction, thread_id: str) -> None:
        """Keep the run lock of the caller from being taken until the end of a transaction.

        Raises:
            ThreadBusyError: another run has it.
        """
        token = self._database.token_of(thread_id)
        if token is None:
            return
        row = (encode_text(thread_id), token)
        if not transaction.execute(self._store.statements.lock_token, row):
            raise make_taken_error(thread_id)

    @contextmanager
    def _explain_damage(self, log: RowLog) -> Iterator[None]:
        """Raise damage with what to do about it, and close the log that has it."""
        try:
            yield
        except CheckpointCorruptionError as error:
            log.close()
            raise explain_damage(error) from error

    # Idle threads

    def delete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Delete whole threads that no process has written to since a moment.

        Deletes one thread, or all such threads (None), each as `delete` does, with its versions. Each
        row has the time at which it was inserted, by the clock of its writer: checkpoints, pending
        writes, tags, releases, copies and prunes count; reads do not. A thread that waits for a human
        is idle, too, if no process wrote to it. A thread with a run is skipped. The time is checked
        again while no process can write, so that a thread that is written to meanwhile stays. The cost
        is one row of each history.

        Args:
            thread: the thread.
            idle_since: threads that were written to at this time or later stay; aware.
            dry_run: change nothing, and only return the threads that are idle.
            progress: called after each idle thread with how many are done, how many there are, and
                its id.

        Returns:
            The threads that were deleted, sorted.

        Raises:
            ValueError: `idle_since` has no time zone.
            CheckpointStorageError: the database refused. The threads before that one are deleted.
        """
        if idle_since.tzinfo is None:
            raise ValueError(f"idle_since must have a time zone, such as UTC: {idle_since!r}")
        since = round(idle_since.timestamp() * 1_000_000)
        statements = self._store.statements
        if thread is None:
            rows = self._database.read(statements.select_idle, (since, since))
        else:
            encoded = encode_text(resolve_thread_id(thread))
            rows = self._database.read(statements.select_if_idle, (encoded, since, since))
        idle = sorted(decode_row(*row) for row in rows)
        deleted: list[str] = []
        for done, thread_id in enumerate(idle, 1):
            if dry_run or self._delete_if_idle(thread_id, since):
                deleted.append(thread_id)
            if progress is not None:
                progress(done, len(idle), thread_id)
        return deleted

    def _delete_if_idle(self, thread_id: str, since: int) -> bool:
        statements = self._store.statements
        encoded = encode_text(thread_id)
        try:
            with self._run_lock(RunnableConfig(thread_id), 0.0), self._database.transaction() as transaction:
                # An insert keeps the key of its history, and so has ended.
                transaction.execute(statements.lock_whole_thread, (encoded,))
                if not transaction.execute(statements.select_if_idle, (encoded, since, since)):
                    return False
                transaction.execute(statements.delete_thread, (encoded,))
                transaction.notify(thread_id)
        except ThreadBusyError:
            return False
        self._store.logs.close_thread(thread_id)
        return True

    # Measuring and checking

    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of the records of a thread, or of the whole store (None).

        The database needs more: a row and its indexes take 60 to 150 bytes.
        """
        statements = self._store.statements
        if thread is None:
            ((total,),) = self._database.read(statements.measure)
        else:
            ((total,),) = self._database.read(statements.measure_thread, (encode_text(resolve_thread_id(thread)),))
        return int(total)

    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> StoreReport:
        """Check every byte of one thread, or of all threads (None), and the columns beside them.

        Changes nothing, and makes no run wait. Does not raise because of damage. Reads each history
        once, a window at a time.

        A damaged history cannot be repaired in place: restore a backup, or delete the thread.

        Args:
            thread: the thread.
            progress: called after each history with the bytes done, all bytes, and the history.

        Raises:
            CheckpointFormatError: a newer graphkit has created the tables.
            CheckpointStorageError: the database cannot be read.
        """
        from savers._sql.verify import verify

        return verify(self._store, None if thread is None else resolve_thread_id(thread), progress)

    # Async

    async def averify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> StoreReport:
        """As `verify`."""
        return await run_in_thread(self.verify, thread, progress=progress)

    async def acompact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        """As `compact`."""
        return await run_in_thread(self.compact, thread, progress=progress)

    async def adelete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """As `delete_idle`."""
        return await run_in_thread(
            self.delete_idle,
            thread,
            idle_since=idle_since,
            dry_run=dry_run,
            progress=progress,
        )

    # Java names
    deleteIdle = delete_idle
    adeleteIdle = adelete_idle


def explain_damage(error: CheckpointCorruptionError) -> CheckpointCorruptionError:
    """Return the error for a damaged history, with what its user can do."""
    advice = "restore a backup of the database, or delete the thread"
    if isinstance(error, DatabaseDamagedError):
        advice = error.advice  # Deleting one thread does not mend the others.
    return CheckpointCorruptionError(error.path, error.offset, error.reason, advice)


def _select_if_unreachable(log: RowLog) -> Sequence[StoredCheckpoint] | None:
    """Return all checkpoints of a history that has records which no reader can reach; otherwise None."""
    checkpoints = log.load_index().checkpoints
    early = log.load_early().select_recent(checkpoints)
    return checkpoints if has_unreachable_records(log, [*checkpoints, *early]) else None


def rewrite(
    transaction: Transaction,
    source: RowLog,
    target: RowLog,
    checkpoints: Sequence[StoredCheckpoint],
    early: Sequence[StoredCheckpoint],
) -> None:
    """Insert checkpoints of one history as another one."""
    rewriter = Rewriter(source, target)
    for stored, table in replay_states(source, checkpoints, None):
        rewriter.write(stored, table)
        target.commit_part(transaction)
    for waiting in early:
        target.put_early(waiting.id, source.read_packed_writes(waiting))
    target.commit_in(transaction)


def make_taken_error(thread_id: str) -> ThreadBusyError:
    """Return the error of a run whose lock another one has taken."""
    return ThreadBusyError(thread_id, "a run that took over while this process was paused", 0.0)
