"""FileSystemSaver: checkpoints in plain files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, final

from graphkit import Checkpoint, RunnableConfig, Tag
from graphkit.abc import StateSerializer
from graphkit.errors import CheckpointerConfigurationError, CheckpointFormatError
from graphkit.saver_kit import Codec, ConfigLike, FrozenDict, IncomingThread, ThreadLike, check_copy, resolve_thread_id
from savers._cipher import Cipher, check_cipher, parse_cipher
from savers._compression import Compression, parse_compression
from savers._filesystem import catalog, layout, lifecycle, rewrite
from savers._filesystem.io import FileIO
from savers._filesystem.lock import is_run_locked
from savers._filesystem.log_bytes import FileLogBytes
from savers._filesystem.store import StorageErrors, Store, wrap_os_errors
from savers._filesystem.sync import SyncNever, make_sync_mode
from savers._log.log_saver import LogSaver, resolve_optional
from savers._options import Fsync, parse_fsync, parse_lock_timeout, parse_path
from savers._threads import hold_if_free

if TYPE_CHECKING:
    from graphkit.abc import RepairReport, RotationReport, VerifyReport, Watch
    from graphkit.saver_kit import Progress
    from savers._filesystem.store import FileLog
    from savers._log.stored_checkpoint import StoredCheckpoint


_Result = TypeVar("_Result")


@final
class FileSystemSaver(LogSaver[FileLogBytes]):
    """Stores the history of each thread in an append-only log.

    The logs are in one directory, which any process can open.

    When `put` returns, the checkpoint survives power loss (`fsync="always"`), power loss except for
    the last seconds (`fsync=seconds`), or the death of the process (`fsync="never"`). A put writes
    what changed, in one append; it costs the same after 10 and after 100,000 checkpoints. Readers
    take no lock. Any number of threads, saver objects and processes may use a store at once, on a
    local file system. After a fork the child opens its own files.

    docs/format.md specifies the bytes.
    """

    def _describe_place(self) -> str:
        return f"{self._store.root!r}, "

    @property
    def refuses_unstorable_values(self) -> bool:
        return self._store.serializer is None

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        state_serializer: StateSerializer | None = None,
        *,
        fsync: Fsync = "always",
        lock_timeout: float = 10.0,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        cipher: Cipher | None = None,
        io: FileIO | None = None,
    ) -> None:
        """Open a store; create the directory if it is missing.

        Args:
            base_directory: the directory of the store.
            state_serializer: converts whole states to bytes in place of graphkit's own codec. A
                store must be opened with the serializer with which it was created.
            fsync: when to wait for the disk: "always" at each put, "never", or after this many
                seconds.
            lock_timeout: how long a run waits for another one on the same thread, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: how to store values of 100,000 bytes and more; a Compression sets the
                length and the level. Smaller values, and those that do not become shorter, are
                stored as they are. None compresses no values.
            cipher: the keys that seal states, pending writes, metadata and tags: 32 bytes by key
                id, the current key first; or a function from a key id to the key, which returns the
                id and the key of the current one for None; or the path of a key file, whose lines
                are `id base64`. A plain log is rewritten when it is next written to. None: a sealed
                log can be neither read nor written.
            io: the file system; for tests.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            MissingDependencyError: `zstd` or `cipher` without the package of that extra.
            CheckpointFormatError: another version of graphkit made the store.
            CheckpointStorageError: the file system refused.
        """
        _check_arguments(base_directory, state_serializer)
        fsync = parse_fsync(fsync)
        lock_timeout = parse_lock_timeout(lock_timeout)
        codec = Codec(types)
        root = os.path.abspath(os.fspath(base_directory))
        self._store = Store(
            root,
            io or FileIO(),
            codec,
            state_serializer,
            fsync=fsync,
            lock_timeout=lock_timeout,
            compression=parse_compression(compression),
            key_ring=parse_cipher(cipher),
        )
        self._sync_mode = make_sync_mode(fsync)
        self._append_errors = StorageErrors("write to", self._store.root)  # once: part of every put
        super().__init__(self._store, codec)
        with StorageErrors("open the checkpoint directory", root):
            self._store.check()

    @staticmethod
    def check_options(
        base_directory: Any,
        state_serializer: Any = None,
        *,
        fsync: Any = "always",
        lock_timeout: Any = 10.0,
        types: Any = (),
        compression: Any = "zlib",
        cipher: Any = None,
        io: Any = None,  # noqa: ARG004 - for tests, and not checked
    ) -> None:
        """Check arguments of the constructor; its errors. Nothing is opened or created.

        The directory and a key file may be missing.
        """
        _check_arguments(base_directory, state_serializer)
        parse_fsync(fsync)
        parse_lock_timeout(lock_timeout)
        Codec(types)
        parse_compression(compression)
        check_cipher(cipher)

    @property
    def base_directory(self) -> str:
        """The directory, absolute."""
        return self._store.root

    def thread_directory(self, thread: ThreadLike = None) -> str:
        """Return the directory of a thread, which has its logs, whether it exists or not."""
        return self._store.locate(resolve_thread_id(thread)).thread_path

    @staticmethod
    def is_store(base_directory: str | os.PathLike[str]) -> bool:
        """Return whether a directory is a store, also one that lost its marker. Creates nothing."""
        return any(
            name in {layout.MARKER, layout.LOCKS} or layout.is_thread(name) for name in os.listdir(base_directory)
        )

    def describe(self) -> str:
        return self._store.root

    # The protocols of LogSaver

    @wrap_os_errors("read")
    def _use(self, log: FileLog, read: Callable[[FileLog], _Result], default: _Result) -> _Result:
        return super()._use(log, read, default)

    def _refresh(self, log: FileLog) -> bool:
        return lifecycle.refresh_to_read(self._store, log)

    def append_to_log(
        self, config: RunnableConfig, append: Callable[[FileLog], None], *, expects_put: bool = False
    ) -> None:
        """As in LogSaver: the write lock excludes other writers, and the sync follows without it."""
        store = self._store
        sync_mode = self._sync_mode
        with self._append_errors:
            thread, namespace = config.thread, config.checkpoint_ns
            log = store.logs.find((thread, namespace, 0)) or store.shared_log(thread, namespace)
            write_lock = log.frames.bytes.write_lock
            assert write_lock is not None
            with log.mutex:
                try:
                    with write_lock:
                        lifecycle.make_ready(store, log)
                        start = log.frames.end
                        append(log)
                except BaseException:
                    # Ctrl-C may have come on the way into `__exit__`, before its first line.
                    write_lock.free()
                    raise
                store.logs.account_put(log)
                ticket = sync_mode.take_ticket(log, start, expects_put=expects_put)
            sync_mode.settle(ticket, expects_put=expects_put)

    @wrap_os_errors("rewrite")
    def _rewrite_log(
        self, config: RunnableConfig, select: Callable[[FileLog], Sequence[StoredCheckpoint] | None]
    ) -> int:
        store = self._store
        log = store.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex, store.write_lock(store.locate(log.thread_id)):
            lifecycle.make_ready(store, log)
            kept = select(log) if log.is_open else None
            if kept is None:
                return 0
            size = log.frames.end
            rewrite.keep(store, log, kept, early=log.history.select_early())
            if log.refresh():
                return size - log.frames.end
            return size

    def call_without_waiting(
        self, config: RunnableConfig, call: Callable[[], _Result], *, appends: bool
    ) -> tuple[_Result] | None:
        """As in LogSaver.

        The log must be open, small and not in use by another thread of execution; for an append, no
        other process may hold the write lock, and the saver must not wait for the disk.
        """
        if appends and not isinstance(self._sync_mode, SyncNever):
            return None
        log = self._store.logs.find((config.thread, config.checkpoint_ns, 0))
        if log is None:
            return None
        with hold_if_free(log.mutex) as is_held:
            if not is_held or not log.is_small() or log.frames.must_be_sealed:
                return None
            if not appends:
                last = log.history.last
                is_last = last is not None and config.checkpoint_id in {None, last.id}
                return (call(),) if is_last else None
            write_lock = log.frames.bytes.write_lock
            if log.history.index is None or write_lock is None or write_lock.is_mine:
                return None
            with write_lock.enter_if_free() as is_entered:
                return (call(),) if is_entered else None

    # Threads

    @wrap_os_errors("read")
    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        return [name for name in self.catalogue.list_namespaces(thread_id) if self._has_checkpoints(thread_id, name)]

    @wrap_os_errors("release")
    def release(self, config: ConfigLike = None) -> Tag:
        store = self._store
        thread_id = RunnableConfig.of(config).thread
        thread = store.locate(thread_id)
        log = store.shared_log(thread_id, "")
        with self._exclude_runs(thread_id):
            earlier: int | None = None
            with log.mutex, store.write_lock(thread):
                finished = lifecycle.finish_begun(store, log)
                checkpoints: Sequence[Checkpoint] = []
                if log.refresh_to_write():
                    checkpoints = self._list_checkpoints(log)
                version = lifecycle.release(store, thread)
                log.close()
                if version is None:
                    # There is no live history. An earlier release may have failed, or its process may
                    # have died, before the caller got the version.
                    failed = store.begun_releases.pop(thread_id, None)
                    earlier = failed if finished is None else finished
                    if earlier not in catalog.find_finished_versions(store, thread):
                        earlier = None
            if earlier is not None:
                # Not with the write lock: a reader takes the mutexes of logs, and who has one may wait for the lock.
                return self.tag(RunnableConfig(thread_id), earlier)
        return Tag(thread_id, checkpoints, version)

    @wrap_os_errors("delete")
    def delete(self, thread: ThreadLike = None) -> bool:
        # To take the run lock would create the directory.
        directory = self._store.locate(resolve_thread_id(thread))
        return self._store.io.stat(directory.path) is not None and super().delete(thread)

    @wrap_os_errors("delete")
    def _delete_thread(self, thread_id: str, idle_since: datetime | None, *, is_in_run: bool) -> bool:
        store = self._store
        directory = store.locate(thread_id)
        with store.write_lock(directory):
            # Writers append under the write lock, so none can write between this check and the deletion.
            if idle_since is not None and not self._is_idle(thread_id, idle_since):
                return False
            had_content = lifecycle.delete(store, directory, keep_lock=is_in_run)
        # The disk space is free when the last descriptor is closed.
        store.logs.close_thread(thread_id)
        return had_content or idle_since is not None

    @wrap_os_errors("erase what was deleted from")
    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing keeps others out
        """Remove what deletes that did not finish have left; see `graphkit.abc.SupportsErase`.

        A finished delete leaves nothing. The file system may keep the bytes of removed files: in its
        journal, in snapshots, in blocks of the drive, and while a process has them open.
        """
        return lifecycle.erase_deleted(self._store)

    @wrap_os_errors("copy")
    def _copy_thread(self, source_id: str, target_id: str) -> None:
        namespaces = check_copy(self, source_id, target_id)
        if len(namespaces) > 1:
            # A log takes its place at once, and several one after the other. The last one takes
            # the place of the mark.
            first = RunnableConfig(source_id, checkpoint_ns=min(namespaces))
            infos = self.history(first)
            metadata = infos[-1].metadata if infos else FrozenDict()
            incoming = IncomingThread(self, target_id, source_id)
            incoming.begin(namespaces, FrozenDict(), metadata, self.own_key(first))
        source_directory = self._store.locate(source_id)
        target_directory = self._store.locate(target_id)
        with self._store.write_lock(target_directory):
            rewrite.copy_thread(self._store, source_directory, target_directory, namespaces)

    def opener(self) -> Callable[[], FileSystemSaver]:
        """Return a function that opens the same directory with the same types, in any process.

        It contains the mapping of a `cipher`, and so does its pickle; a function that is a
        `cipher` is pickled by its name.
        """
        cipher = None
        if self._store.key_ring is not None:
            cipher = self._store.key_ring.cipher
        return partial(
            FileSystemSaver,
            self._store.root,
            self._store.serializer,
            # A worker process has no thread that flushes.
            fsync="never" if isinstance(self._sync_mode, SyncNever) else "always",
            types=tuple(self._codec.types.values()),
            compression=self._store.compression,
            cipher=cipher,
        )

    # Watching

    @wrap_os_errors("follow")
    def _watch(self, config: RunnableConfig | None, *, latest: bool, interval: float) -> Watch:
        """Read only after file events, instead of polling.

        On a network file system, and if the system has no more event watches to give, it polls
        every `interval` seconds, and says so in a warning of the logger "graphkit". A run whose
        process died is reported as idle at once on Linux; on other systems it is not reported.
        """
        from savers._filesystem.watch import FileSource
        from savers._log.log_watch import LogWatch

        source = FileSource(self._store, config, interval)
        return LogWatch(self, source, config, latest=latest, interval=interval)

    # For operators

    @wrap_os_errors("read")
    def own_key(self, config: ConfigLike = None, *, version: int | None = None) -> str | None:
        return super().own_key(config, version=version)

    @wrap_os_errors("delete")
    def _is_idle(self, thread_id: str, idle_since: datetime) -> bool:
        since_ns = round(idle_since.timestamp() * 1_000_000_000)
        return lifecycle.is_idle(self._store, self._store.locate(thread_id), since_ns)

    @wrap_os_errors("read")
    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of all files of a thread, or of the whole store (None)."""
        path = self._store.root
        if thread is not None:
            path = self._store.locate(resolve_thread_id(thread)).path
        return sum(status.st_size for _, status in catalog.iter_files(self._store, path))

    @wrap_os_errors("read")
    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> VerifyReport:
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

        return verify(self._store, resolve_optional(thread), progress)

    @wrap_os_errors("repair")
    def repair(
        self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None
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

        repairer = Repairer(self._store, hold_run_lock=self._exclude_runs, dry_run=dry_run)
        return repairer.repair(resolve_optional(thread), progress)

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
        from savers._filesystem.verify import list_files
        from savers._log.rewriter import require_keys

        store = self._store
        key_ring = require_keys(store.key_ring)
        thread_ids: list[str] = []
        unknown: dict[str, str] = {}
        """The directories whose thread id cannot be read, by name."""
        if thread is not None:
            thread_ids.append(resolve_thread_id(thread))
        else:
            store.leftovers.sweep()
            found = [files for files in list_files(store, None) if files.logs]
            for files in found:
                thread_id = catalog.find_id(store, files.path, files.logs, "thread")
                if thread_id is None:
                    thread_id = os.path.basename(files.path)
                    unknown[thread_id] = files.path
                thread_ids.append(thread_id)

        def rotate(thread_id: str) -> RotationReport:
            if thread_id in unknown:
                reason = "its thread id cannot be read: repair it, naming the thread"
                raise CheckpointFormatError(unknown[thread_id], reason)
            return lifecycle.rotate_thread(store, key_ring, thread_id)

        return self._rotate_threads(thread_ids, rotate, progress, goes_on=thread is None)

    # The run lock

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return "file", self._store.io.real_path(self._store.root), RunnableConfig.of(config).thread

    @contextmanager
    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> Iterator[None]:
        lock = self._store.run_lock(config.thread, timeout)
        with ExitStack() as stack:
            with StorageErrors("lock", self._store.root):
                stack.enter_context(lock.hold())
            yield

    def _holds_run_lock(self, thread_id: str) -> bool:
        return self._store.run_lock(thread_id, None).is_mine

    @wrap_os_errors("read")
    def _is_run_locked(self, config: RunnableConfig) -> bool:
        return is_run_locked(self._store.io, self._store.locate(config.thread).run_lock)

    # Closing

    @wrap_os_errors("sync")
    def flush(self) -> None:
        """Bring everything that was put to the disk. With `fsync="never"`, the system decides when.

        Raises:
            CheckpointStorageError: the disk refused.
        """
        self._sync_mode.flush()

    def close(self) -> None:
        """Flush, and close every file. A later use opens them again."""
        self._sync_mode.stop()
        try:
            self.flush()
        finally:
            self._store.close()

    checkOptions = check_options
    eraseDeleted = erase_deleted
    isStore = is_store
    threadDirectory = thread_directory


def _check_arguments(base_directory: Any, state_serializer: Any) -> None:
    parse_path("base_directory", base_directory)
    if state_serializer is not None and not isinstance(state_serializer, StateSerializer):
        raise CheckpointerConfigurationError(
            f"state_serializer must be a StateSerializer, not {type(state_serializer).__name__}"
        )
