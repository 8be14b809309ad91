"""FileSystemSaver: checkpoints in plain files."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, final

from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, Tag, WaitingInterrupt
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    HasVersions,
    LatestCheckpoint,
    Retention,
    StateSerializer,
    ThreadLike,
    check_tags,
    check_writes,
    derive_status,
    find_waiting_interrupts,
    get_held_run_locks,
    resolve_thread_id,
    run_in_thread,
)
from graphkit.codec import Codec
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)
from graphkit.values import FrozenDict, private_copy
from savers._compression import Compression, parse_compression
from savers._filesystem import catalog, lifecycle, log, log_copy, rewrite
from savers._filesystem.io import FileIO
from savers._filesystem.log_reader import LogReader
from savers._filesystem.log_writer import LogWriter, pack_writes
from savers._filesystem.store import WAS_REMOVED, Store
from savers._filesystem.stored_checkpoint import StoredCheckpoint
from savers._filesystem.sync import Flusher, Ticket, give_back, sync, take_ticket

if TYPE_CHECKING:
    from graphkit.abc import Watch
    from savers._filesystem.reports import Progress, RepairReport, StoreReport

P = ParamSpec("P")
T = TypeVar("T")

Fsync = Literal["always", "never"] | float

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER: Final = getLogger("graphkit")
_NAMED: Final = 20
"""An error names so many threads."""


def _at_the_edge(operation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Turn what the file system refuses into a CheckpointStorageError."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def at_the_edge(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except CheckpointerError:
                raise
            except OSError as error:
                path = error.filename or args[0]._store.root  # type: ignore[attr-defined]  # noqa: SLF001
                raise CheckpointStorageError(os.fsdecode(path), operation, error) from error

        return at_the_edge

    return decorate


@final
class FileSystemSaver(BaseCheckpointSaver, HasVersions):
    """Keeps each thread's history in an append-only log of its own, in a directory that any process can read.

    When `put` returns, the checkpoint survives power loss (`fsync="always"`), power loss but for the last seconds
    (`fsync=seconds`), or the death of the process (`fsync="never"`). A put writes what changed, in one append; it costs
    the same after 10 and after 100,000 checkpoints. Readers take no lock. May be used by any number of threads, saver
    objects and processes at once, on a local file system; after a fork the child opens its own files.

    docs/format.md specifies the bytes.
    """

    isolates_values = True
    waits_for_runs = True

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
        io: FileIO | None = None,
    ) -> None:
        """Open a store; the directory is made if it is missing.

        Args:
            base_directory: where the store is.
            state_serializer: turns whole states into bytes in place of graphkit's own codec; a store is opened with
                the one it was made with.
            fsync: when to wait for the disk: at each put, never, or every so many seconds.
            lock_timeout: how long a run waits for another one on the same thread, in seconds.
            types: application types that states may hold; see `register_types`.
            compression: how values of 100,000 bytes and more are stored; a Compression says from which length and at
                which level. Small ones, and those that do not become shorter, are stored as they are. None: all are.
            io: the file system; for tests.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option makes no sense.
            MissingDependencyError: `zstd` without the package of that extra.
            CheckpointFormatError: a newer graphkit made the store.
            CheckpointStorageError: the file system refused.
        """
        given: Any = base_directory
        if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
            raise CheckpointerConfigurationError(f"base_directory must be a path, not {base_directory!r}")
        serializer: Any = state_serializer
        if serializer is not None and not isinstance(serializer, StateSerializer):
            raise CheckpointerConfigurationError(
                f"state_serializer must be a StateSerializer, not {type(state_serializer).__name__}"
            )
        self._fsync = _checked_fsync(fsync)
        seconds: Any = lock_timeout
        if not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise CheckpointerConfigurationError(f"lock_timeout must be seconds, not {lock_timeout!r}")
        self._codec, self._serializer = Codec(types), state_serializer
        root = os.path.abspath(os.fspath(base_directory))
        self._store = Store(root, io or FileIO(), self._codec, state_serializer, lock_timeout)
        self._store.compression = parse_compression(compression)
        every = self._fsync if isinstance(self._fsync, float) else None
        self._flusher = Flusher(every, partial(self._sync, is_acknowledged=True))
        self._open()

    @_at_the_edge("open the checkpoint directory")
    def _open(self) -> None:
        self._store.check()

    @property
    def base_directory(self) -> str:
        """The directory, absolute."""
        return self._store.root

    # The four

    @_at_the_edge("read")
    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            listed = self._listed(history) if self._is_live(history) else []
            self._store.account(history)
            return listed

    @_at_the_edge("read")
    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            entry = history.find(config.checkpoint_id) if self._is_live(history) else None
            found = None if entry is None else history.make_checkpoint(entry, history.load_state(entry), None)
            self._store.account(history)
            return found

    @_at_the_edge("write to")
    def put(self, config: ConfigLike, checkpoint: Checkpoint, *, unique: bool = False) -> RunnableConfig:
        """As in the contract; with `unique`, a checkpoint of the same id is replaced, if the history has one."""
        config = RunnableConfig.of(config)
        target = config.checkpoint_id
        history = self._live(config)
        with history.mutex:
            with self._store.write_lock(history.thread_id):
                self._ready(history)
                start = history.end
                is_there = unique and history.fd >= 0 and history.find(checkpoint.id) is not None
                history.put(checkpoint, checkpoint.id if is_there else target)
            self._store.account(history)
            ticket = self._ticket(history, start)
        self._settle(ticket)
        return config if target is not None else config.with_check_point_id(checkpoint.id)

    @_at_the_edge("release")
    def release(self, config: ConfigLike = None) -> Tag:
        config = RunnableConfig.of(config)
        thread_id = config.thread
        history = self._store.shared_writer(thread_id, "")
        with self._exclusive(thread_id), history.mutex, self._store.write_lock(thread_id):
            finished = self._finish_what_was_begun(thread_id, history)
            live = history.refresh_to_write()
            checkpoints = self._listed(history) if live else []
            version = lifecycle.release(self._store, thread_id)
            history.close()
            if version is None:
                failed = self._store.begun_releases.pop(thread_id, None)
                finished = failed if finished is None else finished
                if finished in catalog.list_versions(self._store, thread_id):
                    # An earlier release died or failed before its caller was told of the version.
                    return self.tag(RunnableConfig(thread_id), finished)
        return Tag(thread_id, checkpoints, version)

    # Beside checkpoints

    @_at_the_edge("read")
    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        return [
            namespace
            for namespace in catalog.list_namespaces(self._store, thread_id)
            if self._latest(thread_id, namespace)
        ]

    def _latest(self, thread_id: str, namespace: str) -> StoredCheckpoint | None:
        history = self._store.shared_writer(thread_id, namespace)
        with history.mutex:
            return history.find_latest() if self._is_live(history) else None

    @_at_the_edge("read")
    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            if not self._is_live(history):
                return []
            entries = history.load_index().checkpoints
            self._store.account(history)
            return [_info(history, entry) for entry in reversed(entries)]

    @_at_the_edge("read")
    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        # From the end of the log, at a cost that follows the limit. Damage further back shows to `verify`, not here.
        history = self._live(config)
        with history.mutex:
            if not self._is_live(history):
                return []
            return [_info(history, entry) for entry in reversed(history.find_recent(limit))]

    @_at_the_edge("read")
    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """As in the contract. Checks every record and takes apart but the last: 10,000 checkpoints take about 20 ms.

        Of a history with tags all are taken apart.
        """
        config = RunnableConfig.of(config)
        if config.checkpoint_ns and catalog.find_unfinished_release(self._store, config.thread) is not None:
            return None
        with self._store.new_summary(config.thread, config.checkpoint_ns) as found:
            if found.read():
                info = _info(found, found.last)
                writes = found.read_writes(found.last) if info.status in {"interrupted", "failed"} else {}
                return self._make_summary(info, found.count, (), writes)
        return super().summary(config)

    @_at_the_edge("read")
    def info(self, config: ConfigLike = None) -> CheckpointInfo | None:
        """What is known of the checkpoint that the config names, or of the latest, without decoding its state."""
        history = self._live(RunnableConfig.of(config))
        with history.mutex:
            entry = history.find(RunnableConfig.of(config).checkpoint_id) if self._is_live(history) else None
            return None if entry is None else _info(history, entry)

    @_at_the_edge("write to")
    def put_writes(
        self,
        config: ConfigLike,
        writes: Mapping[str, Any],
        *,
        keep: Collection[str] = (),
        or_put: Checkpoint | None = None,
    ) -> None:
        """As in the contract; what is there already is looked at under the lock, across processes.

        Args:
            config: names the checkpoint.
            writes: the values.
            keep: of these keys, a value that is recorded already stays.
            or_put: a checkpoint with the id that the config names, to be put first if there is none.
        """
        check_writes(writes)
        # Before anything is appended: if a value is refused, `or_put` must not have been put.
        packed = pack_writes(self._codec, writes)

        def append(history: LogWriter, entry: StoredCheckpoint) -> None:
            new = {key: value for key, value in packed.items() if key not in keep or key not in entry.writes}
            if new:
                history.put_packed(entry, new)

        if packed:
            self._append_beside(config, append, or_put)

    @_at_the_edge("read")
    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            entry = history.find(config.checkpoint_id) if self._is_live(history) else None
            return {} if entry is None else history.read_writes(entry)

    @_at_the_edge("write to")
    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._append_beside(config, lambda history, entry: history.put_tags(entry, tags, ()))

    @_at_the_edge("write to")
    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        check_tags(tags)
        self._append_beside(config, lambda history, entry: history.put_tags(entry, (), tags))

    @_at_the_edge("read")
    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            entry = history.find(config.checkpoint_id) if self._is_live(history) else None
            return () if entry is None else entry.tags

    def _append_beside(
        self,
        config: ConfigLike,
        append: Callable[[LogWriter, StoredCheckpoint], None],
        or_put: Checkpoint | None = None,
    ) -> None:
        config = RunnableConfig.of(config)
        history = self._live(config)
        with history.mutex:
            with self._store.write_lock(history.thread_id):
                self._ready(history)
                start = history.end
                entry = history.find(config.checkpoint_id) if history.fd >= 0 else None
                if entry is None and or_put is not None:
                    history.put(or_put, None)
                    entry = history.find(config.checkpoint_id)
                if entry is None:
                    raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id or 'at all'}")
                append(history, entry)
            ticket = self._ticket(history, start)
        self._settle(ticket)

    @_at_the_edge("read")
    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As in the contract. Of all threads (None): one that cannot be read is told in a warning and passed over."""
        if thread_id is not None:
            return self._interrupts_of(resolve_thread_id(thread_id))
        found: list[WaitingInterrupt] = []
        for thread in self.threads():
            with self._passing_over(thread):
                found += self._interrupts_of(thread)
        return found

    def _interrupts_of(self, thread: str) -> Sequence[WaitingInterrupt]:
        latest: dict[str, LatestCheckpoint] = {}
        for namespace in catalog.list_namespaces(self._store, thread):
            with self._store.new_summary(thread, namespace) as history:
                entry = history.find_latest() if history.refresh() else None
                if not namespace and history.closed_by is not None:
                    return []  # The end of the root's log decides about the namespaces, too.
                if entry is not None:
                    at = RunnableConfig(thread, checkpoint_ns=namespace, checkpoint_id=entry.id)
                    latest[namespace] = LatestCheckpoint(at, entry.metadata, history.read_writes(entry))
        return find_waiting_interrupts(latest)

    @_at_the_edge("read")
    def search(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        """As in the contract. Of all threads (None): one that cannot be read is told in a warning and passed over."""
        if thread_id is not None:
            return super().search(metadata, thread_id=thread_id, limit=limit)
        found: list[CheckpointInfo] = []
        for thread in self.threads():
            left = None if limit is None else limit - len(found)
            with self._passing_over(thread):
                found += super().search(metadata, thread_id=thread, limit=left)
        return found

    @contextmanager
    def _passing_over(self, thread_id: str) -> Iterator[None]:
        """Let one thread that cannot be read cost the others nothing."""
        try:
            yield
        except (OSError, CheckpointerError) as error:
            if _is_exhausted(error):
                raise
            _LOGGER.warning("thread %.80r is passed over, for it cannot be read: %s", thread_id, error)

    # Threads

    @_at_the_edge("read")
    def threads(self, *, released: bool = False) -> Sequence[str]:
        return catalog.list_threads(self._store, released=released)

    @_at_the_edge("delete")
    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        if self._store.io.stat(self._store.directory(thread_id)) is None:
            return False
        with self._exclusive(thread_id) as keep_lock:
            with self._store.write_lock(thread_id):
                found = lifecycle.delete(self._store, thread_id, keep_lock=keep_lock)
            # Space is free when the last descriptor is closed.
            self._store.close_thread(thread_id)
            return found

    @_at_the_edge("copy")
    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        first, second = resolve_thread_id(source), resolve_thread_id(target)
        if not self.namespaces(first):
            raise CheckpointNotFoundError(first)
        with ExitStack() as stack:
            for thread_id in sorted({first, second}):
                stack.enter_context(self._exclusive(thread_id))
            if self.namespaces(second) and not log_copy.is_partial_copy(self._store, first, second):
                raise CheckpointConflictError(second, "not empty; release or delete it before copying into it")
            with self._store.write_lock(second):
                log_copy.copy_thread(self._store, first, second)

    @_at_the_edge("prune")
    def prune(
        self,
        thread: ThreadLike = None,
        *,
        keep_last: int | None = None,
        older_than: datetime | None = None,
        keep_tags: Sequence[str] = (),
        keep_interrupted: bool = True,
    ) -> int:
        """As in the contract. Of all threads (None): one that cannot be read costs the others nothing.

        Raises:
            ValueError: neither keep_last nor older_than is given, or keep_last is below one.
            CheckpointCorruptionError: a log is damaged. Of all threads (None): the others are pruned, and the error
                names those that are not.
        """
        retention = Retention(
            keep_last=keep_last,
            older_than=older_than,
            keep_tags=frozenset(keep_tags),
            keep_interrupted=keep_interrupted,
        )

        def prune_one(thread_id: str) -> int:
            at = RunnableConfig(thread_id)
            spaces = self.namespaces(thread_id)
            return sum(self._prune(at.replace(checkpoint_ns=namespace), retention) for namespace in spaces)

        if thread is not None:
            return prune_one(resolve_thread_id(thread))
        failures = _Failures("prune")
        going = 0
        for thread_id in self.threads():
            with failures.noted(thread_id):
                going += prune_one(thread_id)
        failures.check()
        return going

    @_at_the_edge("prune")
    def _prune(self, config: RunnableConfig, retention: Retention) -> int:
        return self._remove(config, lambda infos: {info.id for info in retention.select_removable(infos)})

    @_at_the_edge("remove from")
    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove these checkpoints of a history, with all that is beside them; returns how many there were.

        The others stay as they are, each with its whole state. Costs a rewrite of what stays.

        Raises:
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        if not ids:
            return 0
        return self._remove(RunnableConfig.of(config), lambda infos: {info.id for info in infos}.intersection(ids))

    def _remove(self, config: RunnableConfig, choose: Callable[[Sequence[CheckpointInfo]], Collection[str]]) -> int:
        history = self._live(config)
        with history.mutex, self._store.write_lock(history.thread_id):
            self._ready(history)
            if history.fd < 0:
                return 0
            entries = history.load_index().checkpoints
            going = choose([_info(history, entry) for entry in reversed(entries)])
            if going:
                rewrite.keep(self._store, history, [entry for entry in entries if entry.id not in going])
        return len(going)

    @_at_the_edge("read")
    def size(self, thread: ThreadLike = None) -> int:
        """The bytes of all files of a thread, or of the whole store (None)."""
        return catalog.measure_size(self._store, None if thread is None else resolve_thread_id(thread))

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    def opener(self) -> Callable[[], FileSystemSaver]:
        """Opens the same directory, with the same types."""
        # A worker process has no thread of ours that would sync every so many seconds.
        fsync: Fsync = "never" if self._fsync == "never" else "always"
        types, compression = tuple(self._codec.types.values()), self._store.compression
        root, serializer = self._store.root, self._serializer
        return partial(FileSystemSaver, root, serializer, fsync=fsync, types=types, compression=compression)

    # Care

    @_at_the_edge("read")
    def verify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> StoreReport:
        """Look at every byte of one thread, or of all (None), and report; nothing is changed, nobody waits.

        Never raises because of damage. Reads each log once, a window at a time.

        Args:
            thread: the thread.
            progress: called after each file with the bytes done, all bytes, and the file.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        from savers._filesystem.verify import verify

        return verify(self._store, None if thread is None else resolve_thread_id(thread), progress)

    @_at_the_edge("repair")
    def repair(
        self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> RepairReport:
        """Make one thread, or all (None), readable again, with every checkpoint that can still be rebuilt.

        The whole of a damaged log is copied to `damaged-*` before the log is written anew; a tail that was cut short
        goes to `torn-*`. What is well is not touched, so a second call changes nothing. A thread whose id no file tells
        any more is repaired when it is named: its directory's name proves the id. Runs under the run lock of each
        thread in turn.

        Args:
            thread: the thread.
            dry_run: change nothing and only report what would be kept, what would be lost and where the copy would
                be. Takes no run lock, so a run that goes on meanwhile may change the outcome.
            progress: as in `verify`.

        Raises:
            ThreadBusyError: a run holds a thread; all others are repaired.
            CheckpointStorageError: the file system refused. What was there still is, and all others are repaired.
        """
        from savers._filesystem.repair import Repairer

        thread_id = None if thread is None else resolve_thread_id(thread)
        repairer = Repairer(self._store, hold_run_lock=self._exclusive, finish=self._finish, dry_run=dry_run)
        return repairer.repair(thread_id, progress)

    def _finish(self, thread_id: str) -> None:
        """Finish a release or a delete that somebody began, under the locks."""
        for namespace in catalog.list_namespaces(self._store, thread_id):
            history = self._store.new_writer(thread_id, namespace)
            try:
                self._finish_what_was_begun(thread_id, history)
            finally:
                history.close()

    @_at_the_edge("compact")
    def compact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        """Free what nobody can reach any more in the live logs of one thread, or of all (None); returns the bytes.

        That is what was replaced: checkpoints, values beside them, tags. `prune` needs no compact after it.

        Args:
            thread: the thread.
            progress: called after each thread with how many are done, how many there are, and its id.

        Raises:
            CheckpointCorruptionError: a log is damaged. Of all threads (None): the others are compacted, and the error
                names those that are not.
        """
        if thread is not None:
            freed = self._compact(resolve_thread_id(thread))
            if progress is not None:
                progress(1, 1, resolve_thread_id(thread))
            return freed
        failures = _Failures("compact")
        freed, threads = 0, self.threads()
        for done, thread_id in enumerate(threads, 1):
            with failures.noted(thread_id):
                freed += self._compact(thread_id)
            if progress is not None:
                progress(done, len(threads), thread_id)
        failures.check()
        return freed

    def _compact(self, thread_id: str) -> int:
        freed = 0
        for namespace in catalog.list_namespaces(self._store, thread_id):
            history = self._store.shared_writer(thread_id, namespace)
            with history.mutex, self._store.write_lock(thread_id):
                self._ready(history)
                before = history.end
                if history.fd >= 0 and rewrite.compact(self._store, history) and history.refresh():
                    freed += max(0, before - history.end)
        return freed

    async def averify(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> StoreReport:
        """As `verify`."""
        return await run_in_thread(self.verify, thread, progress=progress)

    async def arepair(
        self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> RepairReport:
        """As `repair`."""
        return await run_in_thread(self.repair, thread, dry_run=dry_run, progress=progress)

    async def acompact(self, thread: ThreadLike = None, *, progress: Progress | None = None) -> int:
        """As `compact`."""
        return await run_in_thread(self.compact, thread, progress=progress)

    # Versions

    @_at_the_edge("read")
    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        return catalog.list_versions(self._store, resolve_thread_id(thread))

    @_at_the_edge("read")
    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        ending = catalog.find_unfinished_release(self._store, config.thread)
        versions = catalog.list_versions(self._store, config.thread)
        if version is None and versions:
            version = versions[-1]
        if version is None or version not in versions:
            raise CheckpointNotFoundError(config.thread, "version" + (f" {version}" if version is not None else ""))
        history = self._store.shared_version(config.thread, config.checkpoint_ns, version, is_ending=version == ending)
        with history.mutex:
            checkpoints = self._listed(history) if history.refresh() else []
        return Tag(config.thread, checkpoints, version)

    # Following

    @_at_the_edge("follow")
    def watch(self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0) -> Watch:
        """As the contract's, on file events: nothing is looked at until something has happened.

        On a network file system, and where the system has no events left to give, it looks every `interval` seconds,
        and says so in a warning of the logger "graphkit". What died without a word is told as idle at once on Linux,
        and elsewhere not at all.
        """
        from savers._filesystem.watch import FileWatch

        return FileWatch(self._store, self._resolve_watched(thread), _info, latest=latest, interval=interval)

    @property
    def is_durable(self) -> bool:
        return True

    # The run lock

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return "file", self._store.io.real_path(self._store.root), RunnableConfig.of(config).thread

    @contextmanager
    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> Iterator[None]:
        lock = self._store.run_lock(config.thread, timeout)
        try:
            lock.__enter__()
        except CheckpointerError:
            raise
        except OSError as error:
            raise CheckpointStorageError(error.filename or self._store.root, "lock", error) from error
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @contextmanager
    def _exclusive(self, thread_id: str) -> Iterator[bool]:
        """The run lock, unless the caller is a node of the run that holds it, or has taken it itself: then True."""
        config = RunnableConfig(thread_id)
        if self.run_lock_key(config) in get_held_run_locks() or self._store.run_lock(thread_id, None).is_mine:
            yield True
        else:
            with self._run_lock(config, None):
                yield False

    # Closing

    @_at_the_edge("sync")
    def flush(self) -> None:
        """Bring everything that was put to the disk; with `fsync="never"` that stays the system's business.

        Raises:
            CheckpointStorageError: the disk refused.
        """
        self._flusher.flush()

    def close(self) -> None:
        """Flush, and close every file. A later use opens them again."""
        self._flusher.stop()
        try:
            self.flush()
        finally:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the above is made of

    def _live(self, config: RunnableConfig) -> LogWriter:
        return self._store.shared_writer(config.thread, config.checkpoint_ns)

    def _is_live(self, history: LogWriter) -> bool:
        """Bring a log up to date for reading; whether its history is live. The caller holds its mutex."""
        if not history.refresh():
            return False
        # The end of the root's log decides about the namespaces, too.
        return not history.namespace or catalog.find_unfinished_release(self._store, history.thread_id) is None

    def _ready(self, history: LogWriter) -> None:
        """Bring a log up to date for an append; the caller holds its mutex and the short lock.

        Raises:
            CheckpointConflictError: the file of the open log was removed by something other than a delete.
            OSError: the log may only be read.
        """
        if history.read_only_error is not None:
            history.close()  # The file system may have become writable since.
        live = history.refresh_to_write()
        if history.was_removed:
            raise CheckpointConflictError(history.thread_id, WAS_REMOVED)
        if history.read_only_error is not None:
            raise history.read_only_error
        if live and (history.suspect or history.version < log.MAJOR):
            log_copy.renew(self._store, history, history.acknowledged_end)
            live = history.refresh_to_write()
        if history.suspect and history.fd < 0:
            # Nothing is left of the log but its file, of which no later sync can be believed.
            with suppress(FileNotFoundError):
                self._store.io.unlink(history.path)
            history.suspect = False
        if not live:
            self._finish_what_was_begun(history.thread_id, history)

    def _finish_what_was_begun(self, thread_id: str, history: LogWriter) -> int | None:
        """Finish the release or the delete that the end of a log tells of; the version, if it was a release."""
        version = None
        if not history.refresh_to_write() and history.closed_by is not None:
            if history.closed_by.type == log.RELEASE:
                version = history.read_closing_version()
                lifecycle.finish_release(self._store, thread_id, version)
            else:
                lifecycle.delete(self._store, thread_id, keep_lock=True)
            history.close()
        return version

    def _listed(self, history: LogReader) -> Sequence[Checkpoint]:
        return [
            history.make_checkpoint(entry, None, self._loader(history, entry))
            for entry in reversed(history.load_index().checkpoints)
        ]

    def _loader(self, history: LogReader, entry: StoredCheckpoint) -> Callable[[], FrozenDict]:
        thread_id, namespace, fid = history.thread_id, history.namespace, history.fid

        def load() -> FrozenDict:
            return self._load(thread_id, namespace, fid, entry)

        return load

    @_at_the_edge("read")
    def _load(self, thread_id: str, namespace: str, fid: int, entry: StoredCheckpoint) -> FrozenDict:
        """The state of a checkpoint that was listed some time ago: its log may have moved or changed since."""
        damage: CheckpointCorruptionError | None = None
        for history in self._logs_of(thread_id, namespace):
            try:
                state = self._state_in(history, fid, entry)
            except CheckpointCorruptionError as error:
                damage = damage or error  # It may be in another log, which is well.
            else:
                if state is not None:
                    return state
        if damage is not None:
            raise damage
        raise CheckpointNotFoundError(thread_id, f"checkpoint {entry.id}", "it was deleted after it was listed")

    def _logs_of(self, thread_id: str, namespace: str) -> Iterator[LogReader]:
        """The live history of a namespace, then its versions, the newest first."""
        yield self._store.shared_writer(thread_id, namespace)
        ending = catalog.find_unfinished_release(self._store, thread_id)
        for version in reversed(catalog.list_versions(self._store, thread_id)):
            yield self._store.shared_version(thread_id, namespace, version, is_ending=version == ending)

    def _state_in(self, history: LogReader, fid: int, entry: StoredCheckpoint) -> FrozenDict | None:
        """The state of a checkpoint if it is in a log: at the same place if it is the same file."""
        with history.mutex:
            if not (self._is_live(history) if isinstance(history, LogWriter) else history.refresh()):
                return None
            found = entry if history.fid == fid else history.find(entry.id)
            if found is None:
                return None
            state = history.load_state(found)
            self._store.account(history)
            return state

    # The disk

    def _ticket(self, history: LogWriter, start: int) -> Ticket | None:
        return None if self._fsync == "never" else take_ticket(history, start)

    def _settle(self, ticket: Ticket | None) -> None:
        if ticket is None:
            return
        if self._fsync == "always":
            self._sync(ticket)
        else:
            self._flusher.add(ticket)

    def _sync(self, ticket: Ticket, *, is_acknowledged: bool = False) -> None:
        try:
            sync(self._store, ticket)
        except OSError:
            self._start_anew(ticket, is_acknowledged=is_acknowledged)
            raise
        finally:
            give_back(ticket)

    def _start_anew(self, ticket: Ticket, *, is_acknowledged: bool) -> None:
        """After a failed sync: a new generation of the log, without what was not acknowledged if nothing follows it."""
        history = ticket.history
        with history.mutex, self._store.write_lock(history.thread_id):
            try:
                if history.suspect and history.refresh_to_write():
                    is_last = history.fd == ticket.fd and history.end == ticket.end
                    if is_last and not is_acknowledged:
                        history.unacknowledged = ticket.start, ticket.end
                    log_copy.renew(self._store, history, history.acknowledged_end)
            except (OSError, CheckpointerError):
                _LOGGER.exception("%s could not be rewritten; nothing is stored in it until it can be", history.path)
                history.cut_off_refused()


class _Failures:
    """The threads of a store that an operation could not handle; it goes on with the others."""

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._errors: dict[str, CheckpointerError | OSError] = {}

    @contextmanager
    def noted(self, thread_id: str) -> Iterator[None]:
        """Note what fails for a thread."""
        try:
            yield
        except (CheckpointerError, OSError) as error:
            if _is_exhausted(error):
                raise
            self._errors[thread_id] = error

    def check(self) -> None:
        """Raise one error that names all threads that failed, of the kind of the first."""
        if not self._errors:
            return
        error = next(iter(self._errors.values()))
        names = [f"{thread_id:.80}" for thread_id in list(self._errors)[:_NAMED]]
        more = len(self._errors) - len(names)
        others = f"{names}" + (f" and {more} more" if more else "")
        text = f"cannot {self._operation} these threads, all others are done: {others}"
        if isinstance(error, CheckpointCorruptionError):
            raise CheckpointCorruptionError(error.path, error.offset, f"{error.reason} ({text})") from error
        if isinstance(error, CheckpointFormatError):
            raise CheckpointFormatError(error.path, f"{error.reason} ({text})") from error
        if isinstance(error, OSError):
            reason = OSError(error.errno, f"{error.strerror or error} ({text})")
            path = getattr(error, "path", None) or error.filename or ""
            raise CheckpointStorageError(os.fsdecode(path), self._operation, reason) from error
        raise CheckpointerError(f"{text}; the first: {error}") from error


def _is_exhausted(error: Exception) -> bool:
    """Whether the process, and not a thread's files, is the reason of an error."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


def _info(history: LogReader, entry: StoredCheckpoint) -> CheckpointInfo:
    return CheckpointInfo(
        history.thread_id,
        history.namespace,
        entry.id,
        entry.parent,
        entry.node,
        entry.next,
        _EPOCH + timedelta(microseconds=entry.created),
        entry.size,
        derive_status(entry.next, entry.outline_writes()),
        entry.tags,
        private_copy(entry.metadata),
    )


def _checked_fsync(fsync: object) -> Fsync:
    if fsync in {"always", "never"}:
        return "always" if fsync == "always" else "never"
    if isinstance(fsync, (int, float)) and not isinstance(fsync, bool) and fsync > 0:
        return float(fsync)
    raise CheckpointerConfigurationError(f'fsync must be "always", "never" or seconds above zero, not {fsync!r}')
