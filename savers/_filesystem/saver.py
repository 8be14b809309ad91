"""FileSystemSaver: checkpoints in plain files."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, final

from graphkit import (
    Checkpoint,
    RunnableConfig,
    Tag,
)
from graphkit.abc import (
    ConfigLike,
    IncomingThread,
    StateSerializer,
    ThreadLike,
    check_copy,
    check_tags,
    check_writes,
    get_held_run_locks,
    resolve_thread_id,
)
from graphkit.codec import Codec
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)
from graphkit.values import FrozenDict
from savers._cipher import Cipher, parse_cipher
from savers._compression import Compression, parse_compression
from savers._filesystem import catalog, lifecycle, live_logs, log_copy
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.io import FileIO
from savers._filesystem.listed_checkpoints import FileCheckpointLister
from savers._filesystem.lock import WriteLockIfFree
from savers._filesystem.maintenance import MaintenanceMethods
from savers._filesystem.os_errors import wrap_os_error, wrap_os_errors
from savers._filesystem.reading import ReadingMethods
from savers._filesystem.store import Store
from savers._filesystem.sync import SyncNever, make_sync_mode
from savers._log.log_writer import check_fit, pack_writes
from savers._mutex import hold_if_free
from savers._options import Fsync, parse_fsync, parse_lock_timeout

if TYPE_CHECKING:
    from graphkit.abc import Watch
    from savers._log.stored_checkpoint import StoredCheckpoint


SMALL_STATE: Final = 64 << 10
"""A state of at most this many bytes is packed or decoded in about the time that a hop to a worker
thread takes."""
_ACCOUNTED: Final = 8
"""Of small checkpoints, each so many are accounted for once: they take less memory than is worth it."""
_Result = TypeVar("_Result")


@final
class FileSystemSaver(ReadingMethods, MaintenanceMethods):
    """Stores the history of each thread in an append-only log.

    The logs are in one directory, which any process can open.

    When `put` returns, the checkpoint survives power loss (`fsync="always"`), power loss except for
    the last seconds (`fsync=seconds`), or the death of the process (`fsync="never"`). A put writes
    what changed, in one append; it costs the same after 10 and after 100,000 checkpoints. Readers
    take no lock. Any number of threads, saver objects and processes may use a store at once, on a
    local file system. After a fork the child opens its own files.

    docs/format.md specifies the bytes.
    """

    isolates_values = True
    waits_for_runs = True

    @property
    def seals_records(self) -> bool:
        return self._store.key_ring is not None

    @property
    def refuses_unstorable_values(self) -> bool:
        return self._serializer is None

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
            CheckpointFormatError: a newer graphkit made the store.
            CheckpointStorageError: the file system refused.
        """
        _check_arguments(base_directory, state_serializer)
        fsync = parse_fsync(fsync)
        lock_timeout = parse_lock_timeout(lock_timeout)
        self._codec = Codec(types)
        self._serializer = state_serializer
        root = os.path.abspath(os.fspath(base_directory))
        self._store = Store(
            root,
            io or FileIO(),
            self._codec,
            state_serializer,
            lock_timeout,
            parse_cipher(cipher),
        )
        self._store.compression = parse_compression(compression)
        self._store.extends_logs = fsync != "never"
        self._store.syncs_puts = fsync == "always"
        self._sync_mode = make_sync_mode(fsync, self._store)
        self._lister = FileCheckpointLister(self._store)
        self._open()

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
        if not isinstance(cipher, str | os.PathLike):
            parse_cipher(cipher)

    @wrap_os_errors("open the checkpoint directory")
    def _open(self) -> None:
        self._store.check()

    @property
    def base_directory(self) -> str:
        """The directory, absolute."""
        return self._store.root

    # Checkpoints

    def put(
        self,
        config: ConfigLike,
        checkpoint: Checkpoint,
        *,
        unique: bool = False,
    ) -> RunnableConfig:
        """As in the contract. With `unique`, replaces a checkpoint of the same id."""
        if config.__class__ is not RunnableConfig:
            config = RunnableConfig.of(config)
        target = config.checkpoint_id
        store = self._store
        # Without the decorator of the other methods: a call less for each step of a run.
        try:
            writer = store.shared_writer(config.thread, config.checkpoint_ns)
            with writer.mutex:
                with writer.write_lock:
                    if not writer.is_ready():
                        live_logs.make_ready(store, writer)
                    start = writer.end
                    if unique and writer.fd >= 0 and writer.find(checkpoint.id) is not None:
                        is_usual = writer.put(checkpoint, checkpoint.id)
                    else:
                        is_usual = writer.put(checkpoint, target)
                if is_usual and not unique:
                    store.logs.account_usual_put(writer)
                else:
                    store.logs.account(writer)
                ticket = self._sync_mode.take_ticket(writer, start)
            # Before the sync: the disk has begun already.
            stored = config if target is not None else config.with_check_point_id(checkpoint.id)
            self._sync_mode.settle(ticket)
        except CheckpointerError:
            raise
        except OSError as error:
            raise wrap_os_error(error, "write to", store.root) from error
        return stored

    def _put_next(self, config: RunnableConfig, put_next: Callable[[FileLogWriter], Checkpoint | None]) -> None:
        """Put a checkpoint that is made from the history as it is at that moment.

        No other process can write to the thread between the call of `put_next` and the put, which
        replaces a checkpoint of the same id.

        Args:
            config: names the history.
            put_next: returns the checkpoint, from the log of the history, which it only reads; or None
                after it has appended a small checkpoint with a new id itself.

        Raises:
            Exception: what `put_next` raises, and as `put`. Nothing was changed.
        """
        store = self._store
        # Without the decorator of the other methods, as `put`.
        try:
            writer = store.shared_writer(config.thread, config.checkpoint_ns)
            with writer.mutex:
                with writer.write_lock:
                    live_logs.refresh_to_append(store, writer)
                    start = writer.end
                    checkpoint = put_next(writer)
                    if checkpoint is not None:
                        is_present = writer.fd >= 0 and writer.find(checkpoint.id) is not None
                        writer.put(checkpoint, checkpoint.id if is_present else None)
                if checkpoint is not None or not writer.depth % _ACCOUNTED:
                    store.logs.account(writer)
                ticket = self._sync_mode.take_ticket(writer, start)
            # Without a sync, no caller waits. After the sync, which the waiting callers would otherwise
            # begin in its place, at the cost of a change of threads.
            if ticket is not None:
                self._sync_mode.settle(ticket)
                writer.put_arrived.set()
        except CheckpointerError:
            raise
        except OSError as error:
            raise wrap_os_error(error, "write to", store.root) from error

    def _call_without_waiting(
        self,
        config: RunnableConfig,
        call: Callable[[], _Result],
        *,
        appends: bool,
    ) -> tuple[_Result] | None:
        """Call a function now if it takes only some microseconds, such as a small put.

        That is the case if the log is open, small and not in use by another thread of execution,
        and for an append, if no other process holds the write lock and the saver does not wait for
        the disk. For callers in an event loop: a hop to a worker thread costs more than the call.

        Args:
            config: names the checkpoint.
            call: uses no other log.
            appends: whether it appends to the log.

        Returns:
            A tuple with its result; None if it was not called.
        """
        if appends and not isinstance(self._sync_mode, SyncNever):
            return None
        writer = self._store.logs.find((config.thread, config.checkpoint_ns, 0))
        if not isinstance(writer, FileLogWriter):
            return None
        with hold_if_free(writer.mutex) as is_held:
            if not is_held or not writer.is_small(SMALL_STATE) or (appends and writer.index is None):
                return None
            if not appends:
                last = writer.last_checkpoint
                is_last = last is not None and config.checkpoint_id in {None, last.id}
                return (call(),) if is_last else None
            with WriteLockIfFree(writer.write_lock) as is_entered:
                return (call(),) if is_entered else None

    @wrap_os_errors("release")
    def release(self, config: ConfigLike = None) -> Tag:
        thread_id = RunnableConfig.of(config).thread
        writer = self._store.shared_writer(thread_id, "")
        with self._exclude_runs(thread_id), writer.mutex, self._store.write_lock(thread_id):
            finished = live_logs.finish_begun(self._store, writer)
            is_live = writer.refresh_to_write()
            checkpoints = self._lister.list_checkpoints(writer) if is_live else []
            version = lifecycle.release(self._store, thread_id)
            writer.close()
            if version is None:
                # There is no live history. An earlier release may have failed, or its process may
                # have died, before the caller got the version.
                failed = self._store.begun_releases.pop(thread_id, None)
                if finished is None:
                    finished = failed
                if finished in catalog.list_versions(self._store, thread_id):
                    return self.tag(RunnableConfig(thread_id), finished)
        return Tag(thread_id, checkpoints, version)

    # Pending writes and tags

    @wrap_os_errors("write to")
    def put_writes(
        self,
        config: ConfigLike,
        writes: Mapping[str, Any],
        *,
        keep: Collection[str] = (),
        early: bool = False,
        put_follows: bool = False,
    ) -> None:
        """As in the contract. Processes exclude each other while they compare and append.

        Args:
            config: names the checkpoint.
            writes: the values.
            keep: keys whose recorded values stay, if there are any.
            early: whether the checkpoint may still be to come: the writes then wait for it in the
                log. If it never comes, no reader sees them, and `compact` removes them later.
            put_follows: whether `_put_next` will probably be called at once. With `fsync="always"`,
                this method then waits up to 0.4 ms for it, so that one sync covers both.
        """
        check_writes(writes)
        packed = pack_writes(self._codec, writes)
        config = RunnableConfig.of(config)
        self._put_packed(config, config.checkpoint_id, packed, keep, early=early, put_follows=put_follows)

    def _put_packed(
        self,
        config: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str],
        *,
        early: bool,
        put_follows: bool,
    ) -> None:
        """Store pending writes that `pack_writes` packed, of the checkpoint with an id or the latest.

        The other arguments are those of `put_writes`.
        """
        if not packed:
            return
        # In one body with what `_append_to_checkpoint` does: this is part of each step of LangGraph,
        # and takes a fifth less time.
        store = self._store
        writer = store.shared_writer(config.thread, config.checkpoint_ns)
        with writer.mutex:
            with writer.write_lock:
                live_logs.refresh_to_append(store, writer)
                start = writer.end
                stored = writer.find(id) if writer.fd >= 0 else None
                if stored is not None:
                    new = _choose_new(packed, keep, stored.writes)
                    if new:
                        writer.put_packed(stored, new)
                elif early and id is not None:
                    waiting = writer.load_early().find(id)
                    new = packed if waiting is None else _choose_new(packed, keep, waiting.writes)
                    if new:
                        writer.put_early(id, new)
                else:
                    raise _make_missing_error(config, id)
            ticket = self._sync_mode.take_ticket(writer, start)
            if put_follows and ticket is not None:
                writer.put_arrived.clear()
        if ticket is not None:
            if put_follows:
                self._sync_mode.wait_for_put(ticket)
            self._sync_mode.settle(ticket)

    def _put_langgraph_writes(
        self,
        history: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str],
    ) -> None:
        """Store packed writes of LangGraph, which may come before their checkpoint; see `put_writes`.

        No config is made for the checkpoint, and no key is looked up among those that graphkit reads:
        both would be a tenth of the time.
        """
        check_fit(packed)
        # Without the decorator of the other methods, as `put`.
        try:
            self._put_packed(history, id, packed, keep, early=True, put_follows=True)
        except CheckpointerError:
            raise
        except OSError as error:
            raise wrap_os_error(error, "write to", self._store.root) from error

    @wrap_os_errors("write to")
    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        config = RunnableConfig.of(config)
        self._append_to_checkpoint(
            config, config.checkpoint_id, lambda writer, stored: writer.put_tags(stored, tags, ())
        )

    @wrap_os_errors("write to")
    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        config = RunnableConfig.of(config)
        self._append_to_checkpoint(
            config, config.checkpoint_id, lambda writer, stored: writer.put_tags(stored, (), tags)
        )

    def _append_to_checkpoint(
        self,
        config: RunnableConfig,
        id: str | None,
        append: Callable[[FileLogWriter, StoredCheckpoint], None],
    ) -> None:
        """Append records about a checkpoint.

        Args:
            config: names the history.
            id: the id of the checkpoint; None for the latest.
            append: appends the records.

        Raises:
            CheckpointNotFoundError: the history does not have the checkpoint.
        """
        writer = self._shared_writer(config)
        with writer.mutex:
            with writer.write_lock:
                live_logs.refresh_to_append(self._store, writer)
                start = writer.end
                stored = writer.find(id) if writer.fd >= 0 else None
                if stored is None:
                    raise _make_missing_error(config, id)
                append(writer, stored)
            ticket = self._sync_mode.take_ticket(writer, start)
        self._sync_mode.settle(ticket)

    # Threads

    @wrap_os_errors("delete")
    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        if self._store.io.stat(self._store.directory(thread_id)) is None:
            return False
        with self._exclude_runs(thread_id) as is_in_run:
            with self._store.write_lock(thread_id):
                had_content = lifecycle.delete(self._store, thread_id, keep_lock=is_in_run)
            # The disk space is free when the last descriptor is closed.
            self._store.logs.close_thread(thread_id)
            return had_content

    @wrap_os_errors("copy")
    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        source_id = resolve_thread_id(source)
        target_id = resolve_thread_id(target)
        with ExitStack() as stack:
            # In one order in all processes, so that two copies cannot wait for each other.
            for thread_id in sorted({source_id, target_id}):
                stack.enter_context(self._exclude_runs(thread_id))
            namespaces = check_copy(self, source_id, target_id)
            if len(namespaces) > 1:
                # A log takes its place at once, and several one after the other. The last one takes
                # the place of the mark.
                IncomingThread(self, target_id, source_id).begin(namespaces, FrozenDict())
            with self._store.write_lock(target_id):
                log_copy.copy_thread(self._store, source_id, target_id)

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    def opener(self) -> Callable[[], FileSystemSaver]:
        """Return a function that opens the same directory with the same types, in any process.

        It contains the mapping of a `cipher`, and so does its pickle; a function that is a
        `cipher` is pickled by its name.
        """
        return partial(
            FileSystemSaver,
            self._store.root,
            self._serializer,
            fsync=self._sync_mode.worker_fsync,
            types=tuple(self._codec.types.values()),
            compression=self._store.compression,
            cipher=None if self._store.key_ring is None else self._store.key_ring.cipher,
        )

    # Watching

    @wrap_os_errors("follow")
    def watch(
        self,
        thread: ThreadLike = None,
        *,
        latest: bool = False,
        interval: float = 1.0,
    ) -> Watch:
        """As in the contract, but reads only after file events instead of polling.

        On a network file system, and if the system has no more event watches to give, it polls
        every `interval` seconds, and says so in a warning of the logger "graphkit". A run whose
        process died is reported as idle at once on Linux; on other systems it is not reported.
        """
        from savers._filesystem.watch import FileWatch

        return FileWatch(
            self,
            self._store,
            self._resolve_watched(thread),
            latest=latest,
            interval=interval,
        )

    @property
    def is_durable(self) -> bool:
        return True

    # The run lock

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return "file", self._store.io.real_path(self._store.root), RunnableConfig.of(config).thread

    @contextmanager
    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> Iterator[None]:
        lock = self._store.run_lock(config.thread, timeout)
        with ExitStack() as stack:
            try:
                stack.enter_context(lock)
            except CheckpointerError:
                raise
            except OSError as error:
                raise CheckpointStorageError(
                    error.filename or self._store.root,
                    "lock",
                    error,
                ) from error
            yield

    @wrap_os_errors("read")
    def _is_run_locked(self, config: RunnableConfig) -> bool:
        return self._store.is_run_locked(config.thread)

    @contextmanager
    def _exclude_runs(self, thread_id: str) -> Iterator[bool]:
        """Hold the run lock of a thread, unless the caller holds it already.

        The caller holds it as a node of the run that took it, or because it took the lock itself.

        Yields:
            Whether the caller holds it already.
        """
        config = RunnableConfig(thread_id)
        is_held = self.run_lock_key(config) in get_held_run_locks()
        if is_held or self._store.run_lock(thread_id, None).is_mine:
            yield True
        else:
            with self._run_lock(config, None):
                yield False

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    checkOptions = check_options


def _choose_new(
    packed: Mapping[str, bytes],
    keep: Collection[str],
    recorded: Mapping[str, int],
) -> Mapping[str, bytes]:
    """Return the pending writes without those whose recorded value stays."""
    if not recorded:
        return packed
    kept = set(keep).intersection(recorded)
    return {key: value for key, value in packed.items() if key not in kept}


def _make_missing_error(config: RunnableConfig, id: str | None) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(config.thread, f"checkpoint {id or 'at all'}")


def _check_arguments(base_directory: Any, state_serializer: Any) -> None:
    if not isinstance(base_directory, (str, os.PathLike)) or not os.fspath(base_directory):
        raise CheckpointerConfigurationError(
            f"base_directory must be a path, not {base_directory!r}",
        )
    if "\0" in os.fsdecode(base_directory):
        raise CheckpointerConfigurationError(
            f"base_directory must be a path, which has no null character, not {base_directory!r}",
        )
    if state_serializer is not None and not isinstance(state_serializer, StateSerializer):
        raise CheckpointerConfigurationError(
            f"state_serializer must be a StateSerializer, not {type(state_serializer).__name__}",
        )
