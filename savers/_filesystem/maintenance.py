"""The methods of FileSystemSaver for operators: verify, repair, compact, prune, delete_idle, ..."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING

from graphkit import CheckpointInfo, RunnableConfig
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    Retention,
    ThreadLike,
    resolve_thread_id,
    run_in_thread,
)
from graphkit.errors import CheckpointerConfigurationError, ThreadBusyError
from savers._filesystem import catalog, idle, live_logs, rewrite
from savers._filesystem.os_errors import wrap_os_errors
from savers._filesystem.reports import RotationReport
from savers._filesystem.store import Store
from savers._log.failed_threads import FailedThreads
from savers._log.listed_checkpoints import make_info

if TYPE_CHECKING:
    from savers._filesystem.reports import Progress, RepairReport, StoreReport


class MaintenanceMethods(BaseCheckpointSaver):
    """What operators do with a store."""

    _store: Store

    @abstractmethod
    def _exclude_runs(self, thread_id: str) -> AbstractContextManager[object]:
        """Hold the run lock of a thread, unless the caller holds it already."""

    @wrap_os_errors("prune")
    def prune(
        self,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """As in the contract. Of all threads (None), one that cannot be read does not stop it.

        Raises:
            ValueError: neither keep_last nor older_than is given, or keep_last is below one.
            CheckpointCorruptionError: a log is damaged. If it prunes all threads (None), it has
                pruned the others, and the error names those that it could not prune.
        """
        retention = Retention(
            keep_last=keep_last,
            older_than=older_than,
            keep_tags=frozenset(keep_tags),
            keep_interrupted=keep_interrupted,
        )
        if thread is not None:
            return self._prune_thread(resolve_thread_id(thread), retention)
        failed = FailedThreads("prune")
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

    @wrap_os_errors("prune")
    def _prune(self, config: RunnableConfig, retention: Retention) -> int:
        def choose(infos: Sequence[CheckpointInfo]) -> Collection[str]:
            return {info.id for info in retention.select_removable(infos)}

        return self._remove(config, choose)

    @wrap_os_errors("remove from")
    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove checkpoints of a history, with their pending writes and tags.

        The other checkpoints keep their whole states. The cost is a rewrite of these.

        Returns:
            How many of the checkpoints the history had.

        Raises:
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        if not ids:
            return 0

        def choose(infos: Sequence[CheckpointInfo]) -> Collection[str]:
            return {info.id for info in infos}.intersection(ids)

        return self._remove(RunnableConfig.of(config), choose)

    def _remove(
        self,
        config: RunnableConfig,
        choose: Callable[[Sequence[CheckpointInfo]], Collection[str]],
    ) -> int:
        """Remove the checkpoints of a history that a function chooses.

        It gets the infos of all checkpoints, the newest first, and returns the ids to remove.
        """
        writer = self._store.shared_writer(config.thread, config.checkpoint_ns)
        with writer.mutex, self._store.write_lock(writer.thread_id):
            live_logs.refresh_to_append(self._store, writer)
            if writer.fd < 0:
                return 0
            checkpoints = writer.load_index().checkpoints
            removed = choose([make_info(writer, stored) for stored in reversed(checkpoints)])
            if removed:
                kept = [stored for stored in checkpoints if stored.id not in removed]
                early = writer.load_early().select_recent(checkpoints)
                rewrite.keep(self._store, writer, kept, early=early)
        return len(removed)

    @wrap_os_errors("delete")
    def delete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Delete whole threads that no process has written to since a moment.

        Deletes one thread, or all such threads (None), each as `delete` does, with its versions and
        the files that repair set aside. The modification times of the files show when a process
        wrote last: checkpoints, pending writes, tags, releases and repairs count; reads do not. A
        thread that waits for a human is idle, too, if no process wrote to it. A thread with a run is
        skipped. The time is checked again under the locks, so that a thread that is written to
        meanwhile stays. The cost is a few system calls for each file of the store.

        Args:
            thread: the thread.
            idle_since: threads that were written to at this time or later stay; aware.
            dry_run: change nothing, and only return the threads that are idle.
            progress: called after each thread with how many are done, how many there are, and its
                id.

        Returns:
            The threads that were deleted, sorted.

        Raises:
            ValueError: `idle_since` has no time zone.
            CheckpointStorageError: the file system refused. Of all threads (None), it has deleted
                the others, and the error names those that it could not delete.
        """
        if idle_since.tzinfo is None:
            raise ValueError(f"idle_since must have a time zone, such as UTC: {idle_since!r}")
        since_ns = round(idle_since.timestamp() * 1_000_000_000)
        thread_ids = self.threads(released=True) if thread is None else [resolve_thread_id(thread)]
        failed = FailedThreads("delete")
        deleted: list[str] = []
        for done, thread_id in enumerate(thread_ids, 1):
            with failed.catch(thread_id):
                if self._delete_if_idle(thread_id, since_ns, dry_run=dry_run):
                    deleted.append(thread_id)
            if progress is not None:
                progress(done, len(thread_ids), thread_id)
        failed.raise_if_any()
        return deleted

    def _delete_if_idle(self, thread_id: str, since_ns: int, *, dry_run: bool) -> bool:
        # Nearly all threads are not idle, and these need no lock.
        if not idle.is_idle(self._store, thread_id, since_ns):
            return False
        if dry_run:
            return True
        try:
            with self._run_lock(RunnableConfig(thread_id), 0.0):
                return idle.delete_if_idle(self._store, thread_id, since_ns)
        except ThreadBusyError:
            return False

    @wrap_os_errors("read")
    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of all files of a thread, or of the whole store (None)."""
        return catalog.measure_size(
            self._store,
            None if thread is None else resolve_thread_id(thread),
        )

    @wrap_os_errors("read")
    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> StoreReport:
        """Check every byte of one thread, or of all threads (None).

        Changes nothing, and makes no run wait. Does not raise because of damage. Reads each log
        once, a window at a time.

        Args:
            thread: the thread.
            progress: called after each file with the bytes done, all bytes, and the file.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        from savers._filesystem.verify import verify

        return verify(self._store, None if thread is None else resolve_thread_id(thread), progress)

    @wrap_os_errors("repair")
    def repair(
        self,
        thread: ThreadLike = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """Make one thread, or all threads (None), readable.

        Keeps every checkpoint that can be rebuilt. Copies the whole of a damaged log to `damaged-*`
        before it rewrites the log, and the bytes of a write that did not finish to `torn-*`. Does
        not touch files without problems, so a second call changes nothing. If no file has the id
        of a thread, name the thread: the name of its directory proves the id. Holds the run lock
        of each thread in turn.

        Args:
            thread: the thread.
            dry_run: change nothing, and only report what would be kept, what would be lost, and
                where the copy would be. Takes no run lock, so a run that continues meanwhile may
                change the outcome.
            progress: as in `verify`.

        Raises:
            ThreadBusyError: a run holds a thread; all others are repaired.
            CheckpointStorageError: the file system refused. The files of that thread still have
                their old content, and all others are repaired.
        """
        from savers._filesystem.repair import Repairer

        def finish(thread_id: str) -> None:
            live_logs.finish_begun_in_thread(self._store, thread_id)

        repairer = Repairer(
            self._store,
            hold_run_lock=self._exclude_runs,
            finish=finish,
            dry_run=dry_run,
        )
        return repairer.repair(None if thread is None else resolve_thread_id(thread), progress)

    @wrap_os_errors("compact")
    def compact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        """Free what no reader can reach in the live logs of one thread, or of all threads (None).

        That is what was replaced: checkpoints, pending writes, tags. It is not needed after
        `prune`.

        Args:
            thread: the thread.
            progress: called after each thread with how many are done, how many there are, and its
                id.

        Returns:
            The bytes freed.

        Raises:
            CheckpointCorruptionError: a log is damaged. If it compacts all threads (None), it has
                compacted the others, and the error names those that it could not compact.
        """
        if thread is not None:
            thread_id = resolve_thread_id(thread)
            freed = self._compact_thread(thread_id)
            if progress is not None:
                progress(1, 1, thread_id)
            return freed
        failed = FailedThreads("compact")
        freed = 0
        thread_ids = self.threads()
        for done, thread_id in enumerate(thread_ids, 1):
            with failed.catch(thread_id):
                freed += self._compact_thread(thread_id)
            if progress is not None:
                progress(done, len(thread_ids), thread_id)
        failed.raise_if_any()
        return freed

    def _compact_thread(self, thread_id: str) -> int:
        freed = 0
        for namespace in catalog.list_namespaces(self._store, thread_id):
            writer = self._store.shared_writer(thread_id, namespace)
            with writer.mutex, self._store.write_lock(thread_id):
                live_logs.refresh_to_append(self._store, writer)
                size_before = writer.end
                if writer.fd < 0 or not rewrite.compact(self._store, writer):
                    continue
                if writer.refresh():
                    freed += max(0, size_before - writer.end)
        return freed

    @wrap_os_errors("rotate the keys of")
    def rotate(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> RotationReport:
        """Seal everything with the current key: one thread, or all threads (None).

        Rewrites each log that is plain or has a record of another key, the released versions too.
        Afterwards the other keys are only needed for the files in `set_aside` of the report, and
        for backups. If the process dies, a second call continues. The cost is one pass over each
        log, and a rewrite of those that need it.

        Args:
            thread: the thread.
            progress: called after each thread with how many are done, how many there are, and its
                id.

        Raises:
            CheckpointerConfigurationError: the saver has no `cipher`.
            CheckpointKeyError: an old key is missing.
            CheckpointCorruptionError: a log is damaged. If it rotates all threads (None), in both
                cases it has rotated the others, and the error names those that it could not rotate.
        """
        from savers._filesystem import rotation

        store = self._store
        key_ring = store.key_ring
        if key_ring is None:
            raise CheckpointerConfigurationError("rotate needs the keys: open the store with `cipher`")
        if thread is not None:
            thread_id = resolve_thread_id(thread)
            report = rotation.rotate_thread(store, key_ring, thread_id)
            if progress is not None:
                progress(1, 1, thread_id)
            return report
        store.leftovers.sweep()
        failed = FailedThreads("rotate")
        rewritten: list[str] = []
        set_aside: list[str] = []
        threads = rotation.list_threads(store, None)
        for done, files in enumerate(threads, 1):
            thread_id = files.directory_name
            with failed.catch(files.directory_name):
                thread_id = rotation.identify_thread(store, files)
                report = rotation.rotate_thread(store, key_ring, thread_id)
                rewritten += report.rewritten
                set_aside += report.set_aside
            if progress is not None:
                progress(done, len(threads), thread_id)
        failed.raise_if_any()
        return RotationReport(rewritten=tuple(rewritten), set_aside=tuple(set_aside))

    async def averify(
        self,
        thread: ThreadLike = None,
        *,
        progress: Progress | None = None,
    ) -> StoreReport:
        """As `verify`."""
        return await run_in_thread(self.verify, thread, progress=progress)

    async def arepair(
        self,
        thread: ThreadLike = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """As `repair`."""
        return await run_in_thread(self.repair, thread, dry_run=dry_run, progress=progress)

    async def arotate(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> RotationReport:
        """As `rotate`."""
        return await run_in_thread(self.rotate, thread, progress=progress)

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
