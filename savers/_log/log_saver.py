"""LogSaver: a saver whose histories are logs, whatever their bytes lie in.

Theory of operation. A reader brings the log up to date and reads it. A writer does the same, makes
its records relative to what it has seen, and appends them; the medium either excludes other writers
meanwhile (a lock), or refuses records that were made too late (`StaleLogError`): the writer then
begins again. `read_log` and `append_to_log` are these two protocols, and all methods use them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, Tag, WaitingInterrupt
from graphkit.abc import BaseCheckpointSaver, HasVersions
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    ThreadBusyError,
)
from graphkit.saver_kit import (
    ConfigLike,
    FailedThreads,
    Retention,
    RetentionOptions,
    ThreadLike,
    check_time,
    check_writes,
    concerns_all_threads,
    find_waiting_interrupts,
    get_held_run_locks,
    is_schedule,
    resolve_thread_id,
    with_status,
)
from savers._cipher import get_key_name
from savers._log.frame import RELEASE
from savers._log.frame_log import Medium
from savers._log.log import Log, make_info, read_forward
from savers._log.log_bytes import StaleLogError
from savers._log.rewriter import copy_to_memory, has_unreachable_records

if TYPE_CHECKING:
    from graphkit.abc import RotationReport
    from graphkit.saver_kit import Codec, FrozenDict, Progress
    from savers._log.catalogue import Head, LogCatalogue
    from savers._log.stored_checkpoint import StoredCheckpoint

_MAX_REFUSALS: Final = 3
"""How often records may be refused although no other writer has changed the log."""
_LOGGER: Final = getLogger("graphkit")
_Result = TypeVar("_Result")


class LogSaver(BaseCheckpointSaver, HasVersions, Generic[Medium]):
    """What the savers share whose histories are logs.

    Attributes:
        catalogue: opens the logs.
    """

    isolates_values = True
    waits_for_runs = True

    def __init__(self, catalogue: LogCatalogue[Medium], codec: Codec) -> None:
        self.catalogue = catalogue
        self._codec = codec
        self._running: set[str] = set()
        """The threads whose run lock of this process is held through this object."""

    @property
    def seals_records(self) -> bool:
        return self.catalogue.key_ring is not None

    # The two protocols

    def read_log(
        self,
        config: ConfigLike,
        read: Callable[[Log[Medium]], _Result],
        default: _Result,
        *,
        operation: str = "get",  # noqa: ARG002 - for wrappers that decide who may read
    ) -> _Result:
        """Call a function with the log of a history, brought up to date.

        Args:
            config: names the history.
            read: reads the log, and keeps nothing of it; may be called again.
            default: the result if there is no history.
            operation: the method of the contract that it stands for.

        Raises:
            CheckpointCorruptionError: the log is damaged.
        """
        config = RunnableConfig.of(config)
        return self._use(self.catalogue.shared_log(config.thread, config.checkpoint_ns), read, default)

    def _read_checkpoint(
        self, config: ConfigLike, read: Callable[[Log[Medium], StoredCheckpoint], _Result], default: _Result
    ) -> _Result:
        """As `read_log`, for a function of one checkpoint: the one that the config names, by default the latest."""
        config = RunnableConfig.of(config)

        def find(log: Log[Medium]) -> _Result:
            stored = log.history.find(config.checkpoint_id)
            return default if stored is None else read(log, stored)

        return self._use(self.catalogue.shared_log(config.thread, config.checkpoint_ns), find, default)

    def _read_once(
        self, thread_id: str, namespace: str, read: Callable[[Log[Medium]], _Result], default: _Result
    ) -> _Result:
        """As `read_log`, for a caller that visits many logs: one that is not open already is closed again."""
        log = self.catalogue.logs.find((thread_id, namespace, 0))
        if log is not None:
            return self._use(log, read, default)
        log = self.catalogue.new_log(thread_id, namespace)
        try:
            return self._use(log, read, default)
        finally:
            log.close()

    def _use(self, log: Log[Medium], read: Callable[[Log[Medium]], _Result], default: _Result) -> _Result:
        with log.mutex:
            is_fresh = not log.is_open
            while True:
                try:
                    if not self._refresh(log):
                        return default
                    result = read(log)
                except CheckpointCorruptionError as error:
                    log.close()
                    if is_fresh and not log.frames.bytes.is_gone():
                        raise self._explain_damage(error) from error
                    # The history has changed since the refresh, or what was known of it is of another one.
                    is_fresh = True
                else:
                    self.catalogue.logs.account(log)
                    return result

    def _refresh(self, log: Log[Medium]) -> bool:
        """Bring a log up to date; return whether it has a history. The caller holds its mutex."""
        return log.refresh()

    def _explain_damage(self, error: CheckpointCorruptionError) -> CheckpointCorruptionError:
        """Return the error for a damaged log, with what its user can do."""
        return error

    def append_to_log(
        self,
        config: RunnableConfig,
        append: Callable[[Log[Medium]], None],
        *,
        expects_put: bool = False,  # noqa: ARG002 - for savers that sync
    ) -> None:
        """Append records to a history.

        Args:
            config: names the history.
            append: appends the records, all relative to the log as it is then; called again if
                another writer was faster.
            expects_put: whether another call for this history will probably follow at once.

        Raises:
            Exception: what `append` raises. Nothing was changed.
            CheckpointStorageError: the medium refused. Nothing was changed.
        """
        log = self.catalogue.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex:
            # A log that was not there is begun: the medium refuses it if another writer was faster.
            # One that a reader found to end in RELEASE is released first.
            was_read = log.is_open or log.is_known_absent
            has_ended = log.history.scan.closed_by is not None
            is_refreshed = not was_read or has_ended or log.frames.in_doubt or log.frames.must_be_sealed
            if is_refreshed:
                self._refresh_to_append(log)
            refusals = 0
            while True:
                end = log.frames.fid, log.frames.end
                try:
                    append(log)
                    log.commit()
                    break
                except StaleLogError:
                    self._check_may_retry(config.thread)
                except (CheckpointNotFoundError, CheckpointConflictError):
                    # Another process may have put the checkpoint, or deleted the history.
                    if is_refreshed:
                        log.discard()
                        raise
                except CheckpointCorruptionError as error:
                    log.close()
                    if is_refreshed and not log.frames.bytes.is_gone():
                        raise self._explain_damage(error) from error
                except BaseException:
                    log.discard()
                    raise
                self._refresh_to_append(log)
                is_refreshed = True
                refusals = refusals + 1 if (log.frames.fid, log.frames.end) == end else 0
                if refusals >= _MAX_REFUSALS:
                    reason = "its end was refused again and again, and no other writer has changed it"
                    raise self._explain_damage(CheckpointCorruptionError(log.path, log.frames.end, reason))
            self.catalogue.logs.account_put(log)

    def _refresh_to_append(self, log: Log[Medium]) -> None:
        """Bring a log up to date for an append; rewrite a plain one if the saver has a cipher."""
        self._refresh_to_change(log)
        while log.frames.must_be_sealed:
            self._rewrite_log(RunnableConfig(log.thread_id, checkpoint_ns=log.namespace), select_all)
            self._refresh_to_change(log)

    def _refresh_to_change(self, log: Log[Medium]) -> None:
        """Bring a log up to date. If it ends in RELEASE, finish that: its process has died, or is slower."""
        while True:
            log.discard()
            try:
                log.refresh()
            except CheckpointCorruptionError as error:
                raise self._explain_damage(error) from error
            if not log.is_open or log.history.closed_by is None:
                return
            self._finish_release(log, log.history.scan.read_closing_version())

    def _check_may_retry(self, thread_id: str) -> None:
        """Check that records may be appended behind those of another writer, after they were refused.

        Raises:
            CheckpointConflictError: a run holds the thread through this object, but in this process only. What the run
                goes on with is no longer what the log says.
        """
        if thread_id in self._running:
            reason = "another process has written to it during this run; resume the run"
            raise CheckpointConflictError(thread_id, reason)

    # Reading

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self.read_log(config, self._list_checkpoints, [])

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        return self._read_checkpoint(config, lambda log, stored: stored.make_checkpoint(log.load_state(stored)), None)

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        return self.catalogue.list_namespaces(resolve_thread_id(thread))

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        return self._list_infos(config, select_all)

    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        # Reads from the end of the log, at a cost that depends on the limit. Damage further back is
        # found by `verify`, not here.
        return self._list_infos(config, lambda log: log.history.find_recent(limit))

    def _list_infos(
        self, config: ConfigLike, select: Callable[[Log[Medium]], Sequence[StoredCheckpoint]]
    ) -> Sequence[CheckpointInfo]:
        infos: list[CheckpointInfo] = []
        infos = self.read_log(config, lambda log: [make_info(log, stored) for stored in reversed(select(log))], infos)
        if infos:
            # The status is that of the thread now; the log is free again, for it looks into other histories.
            infos[0] = with_status(self, infos[0])
        return infos

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        config = RunnableConfig.of(config)

        def read(log: Log[Medium]) -> tuple[CheckpointInfo, int, tuple[str, ...], Mapping[str, Any]] | None:
            latest = log.history.find_latest()
            if latest is None:
                return None
            # An info is made of the latest only: it costs as much as reading the record of a checkpoint.
            checkpoints = log.history.load_index().checkpoints
            tags = {tag: None for stored in reversed(checkpoints) for tag in stored.tags}  # a set that keeps its order
            return make_info(log, latest), len(checkpoints), tuple(tags), log.read_writes(latest)

        found = self._read_once(config.thread, config.checkpoint_ns, read, None)
        return None if found is None else self._make_summary(*found)

    def info(self, config: ConfigLike = None) -> CheckpointInfo | None:
        """Return what is known of a checkpoint without decoding its state.

        The config names the checkpoint; by default it is the latest.
        """

        def read(log: Log[Medium], stored: StoredCheckpoint) -> tuple[CheckpointInfo, bool]:
            return make_info(log, stored), stored is log.history.find_latest()

        found = self._read_checkpoint(config, read, None)
        if found is None:
            return None
        info, is_latest = found
        # The status is that of the thread now; the log is free again, for it looks into other histories.
        return with_status(self, info) if is_latest else info

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        return self._read_checkpoint(config, Log.read_writes, {})

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        return self._read_checkpoint(config, lambda _, stored: stored.tags, ())

    def replay(self, config: ConfigLike = None, *, version: int | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints of a history, oldest first; see `graphkit.abc.SupportsReplay`.

        Raises:
            CheckpointNotFoundError: there is no such version; or the history was deleted or rewritten
                while it was read.
        """
        config = RunnableConfig.of(config)
        number = 0 if version is None else self._find_version(config.thread, version)
        log = self.catalogue.new_log(config.thread, config.checkpoint_ns, number)
        try:
            if self._refresh(log):
                yield from read_forward(log)
        except CheckpointCorruptionError as error:
            if not log.frames.bytes.is_gone():
                raise self._explain_damage(error) from error
            reason = "it was deleted or rewritten while it was read; read it again"
            raise CheckpointNotFoundError(config.thread, "history", reason) from error
        finally:
            log.close()

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As in the contract.

        Of all threads (None), it logs a warning about one that cannot be read, and omits it.
        """
        if thread_id is not None:
            return self._find_interrupts(resolve_thread_id(thread_id))
        found: list[WaitingInterrupt] = []
        for each_id in self._list_waiting_threads():
            with self._warn_if_unreadable(each_id, is_one_of_all=True):
                found += self._find_interrupts(each_id)
        return found

    def _list_waiting_threads(self) -> Sequence[str]:
        """Return the threads that may have interrupts: all, unless the medium knows better."""
        return self.threads()

    def _find_interrupts(self, thread_id: str) -> Sequence[WaitingInterrupt]:
        latest: dict[str, tuple[CheckpointInfo, Mapping[str, Any]]] = {}

        def read(log: Log[Medium]) -> None:
            stored = log.history.find_latest()
            if stored is not None:
                latest[log.namespace] = make_info(log, stored), log.read_writes(stored)

        for namespace in self.catalogue.list_namespaces(thread_id):
            self._read_once(thread_id, namespace, read, None)
        return find_waiting_interrupts(latest)

    def _search(
        self, metadata: Mapping[str, Any], thread_id: ThreadLike, limit: int | None
    ) -> Sequence[CheckpointInfo]:
        """As in the contract.

        Of all threads (None), it logs a warning about one that cannot be read, and omits it.
        """

        def read(log: Log[Medium]) -> tuple[list[CheckpointInfo], bool]:
            checkpoints = log.history.load_index().checkpoints
            # An info is made only of what matches.
            matching = [
                stored
                for stored in reversed(checkpoints)
                if all(key in stored.metadata and stored.metadata[key] == value for key, value in metadata.items())
            ]
            return [make_info(log, stored) for stored in matching], bool(matching) and matching[0] is checkpoints[-1]

        wanted = resolve_optional(thread_id)
        nothing: tuple[list[CheckpointInfo], bool] = ([], False)
        infos: list[CheckpointInfo] = []
        for owner, namespace in self._find_histories(wanted, metadata):
            if limit is not None and len(infos) >= limit:
                break
            with self._warn_if_unreadable(owner, is_one_of_all=wanted is None):
                found, has_latest = self._read_once(owner, namespace, read, nothing)
                if has_latest:
                    found[0] = with_status(self, found[0])
                infos += found
        return infos[:limit]

    def _find_histories(self, thread_id: str | None, metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:  # noqa: ARG002 - for media with an index
        """Yield the histories, by thread and namespace, that may have a checkpoint with such metadata."""
        for owner in self._select_threads(thread_id):
            with self._warn_if_unreadable(owner, is_one_of_all=thread_id is None):
                for namespace in self.catalogue.list_namespaces(owner):
                    yield owner, namespace

    @contextmanager
    def _warn_if_unreadable(self, thread_id: str, *, is_one_of_all: bool) -> Iterator[None]:
        """Log a warning instead of raising the error of one of all threads, so that the caller reads the others.

        What was erased is passed over without a word.
        """
        try:
            yield
        except CheckpointErasedError:
            if not is_one_of_all:
                raise
        except (OSError, CheckpointerError) as error:
            # A missing key concerns more than one thread.
            concerns_all = concerns_all_threads(error, self) or isinstance(error, CheckpointKeyError)
            if concerns_all or not is_one_of_all:
                raise
            _LOGGER.warning("thread %.80r is passed over, for it cannot be read: %s", thread_id, error)

    # Threads and versions

    def threads(self, *, released: bool = False) -> Sequence[str]:
        return self.catalogue.list_threads(released=released)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        return self.catalogue.list_versions(resolve_thread_id(thread))

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        number = self._find_version(config.thread, version)
        log = self.catalogue.shared_log(config.thread, config.checkpoint_ns, number)
        checkpoints: Sequence[Checkpoint] = self._use(log, lambda log: self._list_checkpoints(log, number), [])
        return Tag(config.thread, checkpoints, number)

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        number = self._find_version(thread_id, version)
        return [
            namespace
            for namespace in self.catalogue.list_version_namespaces(thread_id, number)
            if self._has_checkpoints(thread_id, namespace, number)
        ]

    def _has_checkpoints(self, thread_id: str, namespace: str, version: int = 0) -> bool:
        log = self.catalogue.shared_log(thread_id, namespace, version)
        try:
            return self._use(log, lambda log: log.history.find_latest() is not None, default=False)
        except CheckpointErasedError:
            # Nobody can tell any more, and the thread must not seem to be empty, nor its other namespaces be hidden.
            return True

    # Checkpoints that load their states on first use

    def _list_checkpoints(self, log: Log[Medium], version: int = 0) -> Sequence[Checkpoint]:
        """Return the checkpoints of a log, the live one (version 0) or a released one, the newest first."""
        return [
            stored.make_checkpoint(load=self._make_loader(log, version, stored))
            for stored in reversed(log.history.load_index().checkpoints)
        ]

    def _make_loader(self, log: Log[Medium], version: int, stored: StoredCheckpoint) -> Callable[[], FrozenDict]:
        thread_id = log.thread_id
        namespace = log.namespace
        fid = log.frames.fid

        def read_unchanged(log: Log[Medium]) -> FrozenDict | None:
            # In the log from which it was listed, it is still at the same offset.
            return log.load_state(stored) if log.frames.fid == fid else None

        def read_rewritten(log: Log[Medium]) -> FrozenDict | None:
            present = log.history.find(stored.id)
            if present is not None and not present.is_copy_of(stored):
                # That is the newest with the id. An older one may have it, too.
                present = next(filter(stored.is_copy_of, select_all(log)), None)
            return None if present is None else log.load_state(present)

        def load() -> FrozenDict:
            damage: CheckpointCorruptionError | None = None
            # The log itself first, wherever it is now: another one may have a later state of the checkpoint.
            attempts = (
                (read, number)
                for read in (read_unchanged, read_rewritten)
                for number in self._iter_versions(thread_id, version)
            )
            for read, number in attempts:
                try:
                    state = self._use(self.catalogue.shared_log(thread_id, namespace, number), read, None)
                except CheckpointCorruptionError as error:
                    # The checkpoint may be in another log, which is good.
                    damage = damage or error
                else:
                    if state is not None:
                        return state
            if damage is not None:
                raise damage
            reason = "it was deleted or replaced after it was listed"
            raise CheckpointNotFoundError(thread_id, f"checkpoint {stored.id}", reason)

        return load

    def _iter_versions(self, thread_id: str, version: int) -> Iterator[int]:
        """Yield the versions in which a checkpoint may be that was listed from one; 0 is the live history."""
        yield version
        if not version:
            # It may have been released since. A version stays what it is.
            yield from reversed(self.catalogue.list_versions(thread_id))

    # Appending

    def put(self, config: ConfigLike, checkpoint: Checkpoint, *, unique: bool = False) -> RunnableConfig:
        """As in the contract. With `unique`, replaces a checkpoint of the same id."""
        if config.__class__ is not RunnableConfig:
            config = RunnableConfig.of(config)
        target = config.checkpoint_id
        attempted: StoredCheckpoint | None = None
        fid = 0

        def is_stored(log: Log[Medium], attempted: StoredCheckpoint) -> bool:
            # A medium may have stored the record and refused it nevertheless, if the log was replaced right then. An
            # earlier checkpoint may have the id, too: that one stands before the record, or says something else.
            present = log.history.find(checkpoint.id)
            if present is None or not present.is_copy_of(attempted):
                return False
            if log.frames.fid == fid:
                # Another writer, too, may have put the id, and right there.
                return present.offset == attempted.offset
            return log.load_state(present) == checkpoint.state

        def append(log: Log[Medium]) -> None:
            nonlocal attempted, fid
            is_present = unique and not log.history.lacks(checkpoint.id)
            if attempted is not None and not is_present:
                is_present = is_stored(log, attempted)
            log.writer.put(checkpoint, checkpoint.id if is_present else target)
            attempted = log.history.scan.last
            fid = log.frames.fid

        self.append_to_log(config, append)
        return config if target is not None else config.with_check_point_id(checkpoint.id)

    def put_writes(
        self,
        config: ConfigLike,
        writes: Mapping[str, Any],
        *,
        keep: Collection[str] = (),
        early: bool = False,
    ) -> None:
        """As in the contract. Processes exclude each other while they compare and append.

        Args:
            config: names the checkpoint.
            writes: the values.
            keep: keys whose recorded values stay, if there are any.
            early: whether the checkpoint may still be to come: the writes then wait for it in the
                history. If it never comes, no reader sees them, and `compact` removes them later. A thread
                that holds nothing else is listed by `threads(released=True)`; of files, always.
        """
        check_writes(writes)
        packed = {key: self._codec.pack(value, key) for key, value in writes.items()}
        config = RunnableConfig.of(config)
        self.put_packed_writes(config, config.checkpoint_id, packed, keep, early=early)

    def put_packed_writes(
        self,
        config: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str] = (),
        *,
        early: bool = False,
        expects_put: bool = False,
        find_metadata: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Store pending writes that the codec of the saver has packed; see `put_writes`.

        Args:
            config: names the history.
            id: the id of the checkpoint; None for the latest.
            packed: the values, packed.
            keep: keys whose recorded values stay.
            early: whether the checkpoint may still be to come.
            expects_put: see `append_to_log`.
            find_metadata: returns what is known of the metadata of the checkpoint. Called if it is
                still to come, and the history begins with these writes.
        """
        if early and not packed:
            return

        def append(log: Log[Medium]) -> None:
            history = log.history
            writer = log.writer
            if early and id is not None and history.lacks(id):
                waiting = history.scan.load_early().find(id)
                new = packed if waiting is None else _choose_new(packed, keep, waiting.writes)
                if new:
                    if log.frames.header is None:
                        log.frames.begin_new(find_metadata())
                    writer.put_early(id, new)
                return
            stored = _require(log, id)
            new = _choose_new(packed, keep, stored.writes)
            if new:
                writer.put_writes(stored, new)

        self.append_to_log(config, append, expects_put=expects_put)

    def _change_tags(self, config: RunnableConfig, add: Sequence[str], remove: Sequence[str]) -> None:
        def append(log: Log[Medium]) -> None:
            log.writer.put_tags(_require(log, config.checkpoint_id), add, remove)

        self.append_to_log(config, append)

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        source_id = resolve_thread_id(source)
        target_id = resolve_thread_id(target)
        with ExitStack() as stack:
            # In one order in all processes, so that two copies cannot wait for each other.
            for thread_id in sorted({source_id, target_id}):
                stack.enter_context(self._exclude_runs(thread_id))
            self._copy_thread(source_id, target_id)

    def _copy_thread(self, source_id: str, target_id: str) -> None:
        """Copy a thread while no other run holds it or the target, checkpoint by checkpoint unless overridden."""
        super().copy(source_id, target_id)

    def register_types(self, *types: type) -> None:
        self._codec.register(*types)

    # Ending histories

    def release(self, config: ConfigLike = None) -> Tag:
        """As in the contract. A saver whose medium does not implement `LogBytes.replace` overrides it."""
        thread_id = RunnableConfig.of(config).thread
        root = self.catalogue.shared_log(thread_id, "")
        with self._exclude_runs(thread_id), root.mutex:
            while True:
                self._refresh_to_append(root)
                if not self.namespaces(thread_id):
                    return Tag(thread_id, [], None)
                checkpoints: Sequence[Checkpoint] = []
                if root.is_open:
                    checkpoints = self._list_checkpoints(root)
                version = max(self.catalogue.list_versions(thread_id), default=0) + 1
                try:
                    root.end(RELEASE, version)
                    root.commit()
                except StaleLogError:
                    continue
                self._finish_release(root, version)
                break
        # Those of nested graphs, too: a put that still knew one as open would be refused, and a run does not repeat it.
        self.catalogue.logs.close_thread(thread_id)
        return Tag(thread_id, checkpoints, version)

    def _finish_release(self, log: Log[Medium], version: int) -> None:
        """Make a log that ends in RELEASE a version, unless another process has just done that; the log is closed.

        From the RELEASE record in the log of the root on, all live logs of the thread are that version. If the
        process dies, the next writer of the root finds the record, so the root is the last one.
        """
        if not log.namespace:
            for _, namespace, released in self.catalogue.list_logs(log.thread_id):
                if namespace and not released:
                    self._release_nested(log, namespace, version)
        with suppress(StaleLogError):
            log.frames.bytes.replace(b"", version)
        log.close()

    def _release_nested(self, root: Log[Medium], namespace: str, version: int) -> None:
        """Make the log of a namespace a part of the version that RELEASE in the log of the root names."""
        log = self.catalogue.new_log(root.thread_id, namespace)
        while True:
            is_readable = True
            try:
                self._refresh_to_change(log)
            except (CheckpointCorruptionError, CheckpointFormatError):
                is_readable = False
                log.frames.bytes.open()
            # In this order: what was there while the version was not made belongs to it. Another process may have
            # made it meanwhile, and the log may have begun again.
            made = self.catalogue.new_medium(root.thread_id, namespace, version)
            if not log.is_open or made.open() or root.frames.bytes.is_gone():
                return
            with suppress(StaleLogError):
                # RELEASE keeps other writers out; no writer can append to what cannot be read.
                if is_readable:
                    log.end(RELEASE, version)
                    log.commit()
                self._finish_release(log, version)
                return

    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        with self._exclude_runs(thread_id) as is_in_run:
            return self._delete_thread(thread_id, None, is_in_run=is_in_run)

    def _delete_thread(self, thread_id: str, idle_since: datetime | None, *, is_in_run: bool) -> bool:  # noqa: ARG002 - for media that exclude writers, or have lock files
        """Delete a thread that no other run holds; return whether it had content, and was deleted.

        Args:
            thread_id: the thread.
            idle_since: a medium that excludes other writers checks again whether one has written since.
            is_in_run: whether a run that continues holds the run lock, or may hold it.
        """
        keys = sorted(self.catalogue.list_logs(thread_id), reverse=True)
        # The root last: without it, nothing names the namespaces of the thread as its.
        for key in keys:
            medium = self.catalogue.new_medium(*key)
            is_deleted = False
            while not is_deleted:
                medium.open()
                with suppress(StaleLogError):
                    medium.replace(b"")
                    is_deleted = True
        self.catalogue.logs.close_thread(thread_id)
        return bool(keys)

    # Removing what is not wanted any more

    def prune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        """As in the contract. Rewrites the histories that lose a checkpoint.

        Raises:
            ValueError: neither keep_last nor older_than is given, or an option has a value that it cannot have.
            CheckpointCorruptionError: a history is damaged; it was not changed. If it prunes all
                threads (None), it has pruned the others, and the error names those that it could not
                prune.
        """
        chosen = Retention(**retention)
        thread_ids = self._select_threads(thread)
        prune = partial(self._prune_thread, retention=chosen)
        return sum(self._change_threads("prune", thread_ids, prune, None, goes_on=thread is None))

    def _prune(
        self, config: RunnableConfig, select: Callable[[Sequence[CheckpointInfo]], Sequence[CheckpointInfo]]
    ) -> int:
        return self._remove(config, lambda infos: {info.id for info in select(infos)})

    def remove(self, config: ConfigLike, ids: Collection[str]) -> int:
        """Remove checkpoints of a history, with their pending writes and tags.

        The other checkpoints keep their whole states. The cost is a rewrite of these.

        Returns:
            How many of the checkpoints the history had.

        Raises:
            CheckpointStorageError: the medium refused. Nothing was changed.
        """
        if not ids:
            return 0
        return self._remove(RunnableConfig.of(config), lambda infos: {info.id for info in infos}.intersection(ids))

    def _remove(self, config: RunnableConfig, choose: Callable[[Sequence[CheckpointInfo]], Collection[str]]) -> int:
        """Remove the checkpoints of a history that a function chooses from the infos of all, newest first."""
        removed = 0

        def select(log: Log[Medium]) -> Sequence[StoredCheckpoint] | None:
            nonlocal removed
            checkpoints = log.history.load_index().checkpoints
            ids = choose([make_info(log, stored) for stored in reversed(checkpoints)])
            removed = len(ids)
            return [stored for stored in checkpoints if stored.id not in ids] if ids else None

        self._rewrite_log(config, select)
        return removed

    def compact(self, thread: ThreadLike = None, *, dry_run: bool = False, progress: Progress | None = None) -> int:
        """Remove what no reader can reach from the live histories of one thread, or of all threads (None).

        That is what was replaced: checkpoints, pending writes, tags. It is not needed after `prune`.
        A database keeps the freed pages for later rows: VACUUM gives them back to the file system.

        Args:
            thread: the thread.
            dry_run: change nothing, and only return what would be freed. The new logs are made in
                memory, one at a time.
            progress: called after each thread with how many are done, how many there are, and its id.

        Returns:
            By how many bytes the logs became, or would become, shorter.

        Raises:
            CheckpointCorruptionError: a history is damaged; it was not changed. If it compacts all
                threads (None), it has compacted the others, and the error names those that it could
                not compact.
        """

        def compact(thread_id: str) -> int:
            names = self.catalogue.list_namespaces(thread_id)
            configs = [RunnableConfig(thread_id, checkpoint_ns=name) for name in names]
            if dry_run:
                return sum(self.read_log(config, _measure_unreachable, 0) for config in configs)
            return sum(self._rewrite_log(config, _select_if_unreachable) for config in configs)

        thread_ids = self._select_threads(thread)
        return sum(self._change_threads("compact", thread_ids, compact, progress, goes_on=thread is None))

    def _rotate_threads(
        self,
        thread_ids: Sequence[str],
        rotate: Callable[[str], RotationReport],
        progress: Progress | None,
        *,
        goes_on: bool,
    ) -> RotationReport:
        """Rotate some threads one after another, and return one report; see `_change_threads`."""
        from graphkit.abc import RotationReport

        reports = self._change_threads("rotate", thread_ids, rotate, progress, goes_on=goes_on)
        return RotationReport(
            rewritten=tuple(name for report in reports for name in report.rewritten),
            set_aside=tuple(name for report in reports for name in report.set_aside),
            erased=tuple(name for report in reports for name in report.erased),
        )

    def _change_threads(
        self,
        verb: str,
        thread_ids: Sequence[str],
        change: Callable[[str], _Result],
        progress: Progress | None,
        *,
        goes_on: bool,
    ) -> Sequence[_Result]:
        """Change some threads one after another.

        Args:
            verb: what is done with each, for the error.
            thread_ids: the threads.
            change: changes one of them.
            progress: called after each thread with how many are done, how many there are, and its id.
            goes_on: whether to continue after an error, and to raise one at the end that names the threads.
                What was erased is then no error.

        Returns:
            What `change` returned, for each thread.
        """
        failed = FailedThreads(verb, fatal=(Exception,))
        if goes_on:
            failed = FailedThreads(verb, self, passes_over=(CheckpointErasedError,))
        return failed.change_each(thread_ids, change, progress)

    def _rewrite_log(
        self, config: RunnableConfig, select: Callable[[Log[Medium]], Sequence[StoredCheckpoint] | None]
    ) -> int:
        """Rewrite the log of a history with some of its checkpoints, and recent early writes, at once.

        Makes the new log in memory, and begins again if another writer was faster. A saver whose
        medium does not implement `LogBytes.replace` overrides it.

        Args:
            config: names the history.
            select: returns the checkpoints to keep, from the log as it is; None changes nothing.

        Returns:
            By how many bytes the log became shorter.
        """
        log = self.catalogue.shared_log(config.thread, config.checkpoint_ns)
        with log.mutex:
            while True:
                self._refresh_to_change(log)
                try:
                    kept = select(log) if log.is_open else None
                    if kept is None:
                        return 0
                    new = copy_to_memory(log, kept)
                    freed = log.frames.end - len(new)
                    log.frames.bytes.replace(new)
                    log.close()
                    return freed
                except StaleLogError:
                    log.close()
                except CheckpointCorruptionError as error:
                    log.close()
                    if not log.frames.bytes.is_gone():
                        raise self._explain_damage(error) from error

    def delete_idle(
        self,
        thread: ThreadLike = None,
        *,
        idle_since: datetime,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Sequence[str]:
        """Delete whole threads that no process has written to since a moment.

        Deletes one thread, or all such threads (None) but schedules, each as `delete` does, with its versions. What
        was written last decides: the modification times of files, or the times of rows, by the clock
        of their writer. Checkpoints, pending writes, tags, releases, copies, prunes and repairs count;
        reads do not. The status does not matter: a thread that is queued for later, sleeps or waits for
        a human is idle, too, if no process wrote to it. A thread whose run lock is held is skipped. The
        time is checked again while no process can write, so that a thread that is written to meanwhile
        stays. The cost is a few system calls for each file of the store,
        or one row of each history.

        Args:
            thread: the thread.
            idle_since: threads that were written to at this time or later stay; aware.
            dry_run: change nothing, and only return the threads that would be deleted.
            progress: called after each thread with how many are done, how many there are, and its id.

        Returns:
            The threads that were deleted, sorted.

        Raises:
            ValueError: `idle_since` is naive.
            CheckpointStorageError: the medium refused. Of all threads (None), those that it could
                delete are deleted.
        """
        check_time("idle_since", idle_since)
        thread_id = resolve_optional(thread)
        thread_ids = self._list_possibly_idle(thread_id, idle_since)
        if thread_id is None:
            thread_ids = [each for each in thread_ids if not is_schedule(each)]
        deleted: list[str] = []

        def delete(thread_id: str) -> None:
            if self._delete_if_idle(thread_id, idle_since, dry_run=dry_run):
                deleted.append(thread_id)

        self._change_threads("delete", thread_ids, delete, progress, goes_on=True)
        return deleted

    def _list_possibly_idle(self, thread_id: str | None, idle_since: datetime) -> Sequence[str]:  # noqa: ARG002 - for media that know
        """Return the threads, or the one with an id, that may be idle, sorted."""
        return self.threads(released=True) if thread_id is None else [thread_id]

    def _delete_if_idle(self, thread_id: str, idle_since: datetime, *, dry_run: bool) -> bool:
        """Delete a thread unless it has a run or was written to since; return whether it was, or would be, deleted."""
        if not self._is_idle(thread_id, idle_since):
            return False
        config = RunnableConfig(thread_id)
        if dry_run:
            return not self.is_run_locked(config)
        try:
            with self._run_lock(config, 0.0):
                return self._delete_thread(thread_id, idle_since, is_in_run=False)
        except ThreadBusyError:
            return False

    def _is_idle(self, thread_id: str, idle_since: datetime) -> bool:
        """Return whether no process has written since to a thread that `_list_possibly_idle` has listed."""
        raise NotImplementedError(f"{type(self).__name__} does not know when a thread was written to")

    # For LangGraph's checkpointer; see SupportsLogs

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        """Return the histories that may have a checkpoint with such metadata; see `LogCatalogue.list_heads`."""
        return self.catalogue.list_heads(metadata, with_newest=with_newest)

    def call_without_waiting(
        self,
        config: RunnableConfig,  # noqa: ARG002 - for media that take microseconds
        call: Callable[[], _Result],  # noqa: ARG002
        *,
        appends: bool,  # noqa: ARG002
    ) -> tuple[_Result] | None:
        """Call a function now if it takes only some microseconds, such as a small put.

        For callers in an event loop: a hop to a worker thread costs more than such a call.

        Args:
            config: names the checkpoint.
            call: uses no other history. It may be called in vain, and have changed nothing.
            appends: whether it appends to the history.

        Returns:
            A tuple with its result; None if it was not called, or in vain.
        """
        return None

    @abstractmethod
    def describe(self) -> str:
        """Return the name of the store, for messages."""

    def own_key(self, config: ConfigLike = None, *, version: int | None = None) -> str | None:
        """Return the id of the key that a history has of its own; None if it has none.

        Needs no key.

        Args:
            config: names the history.
            version: a released version; None: the live history.
        """
        config = RunnableConfig.of(config)
        log = self.catalogue.new_log(config.thread, config.checkpoint_ns, version or 0)
        while True:
            try:
                return get_key_name(log.frames.read_own_key()) or None
            except CheckpointCorruptionError as error:
                if not log.frames.bytes.is_gone():
                    raise self._explain_damage(error) from error
            finally:
                log.close()

    # Runs

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return type(self).__name__, self.describe(), RunnableConfig.of(config).thread

    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> AbstractContextManager[object]:
        """Hold the run lock within this process. A medium with locks of its own overrides it."""
        return self._note_run(config.thread, super()._run_lock(config, timeout))

    @contextmanager
    def _note_run(self, thread_id: str, lock: AbstractContextManager[object]) -> Iterator[None]:
        with lock:
            # Only what other processes write from now on is a conflict. A damaged log is opened again when it is used.
            for log in self.catalogue.logs.list_of_thread(thread_id):
                with log.mutex, suppress(CheckpointerError):
                    log.refresh()
            try:
                self._running.add(thread_id)
                yield
            finally:
                self._running.discard(thread_id)

    @contextmanager
    def _exclude_runs(self, thread_id: str) -> Iterator[bool]:
        """Hold the run lock of a thread, unless the caller holds it already.

        The caller holds it as a node of the run that took it, or because it took the lock itself.

        Yields:
            Whether the caller holds it already.
        """
        config = RunnableConfig(thread_id)
        is_held = self.run_lock_key(config) in get_held_run_locks()
        if is_held or self._holds_run_lock(thread_id):
            yield True
        else:
            # By `run_lock`, which lets the calling code enter it again.
            with self.run_lock(config):
                yield False

    def _holds_run_lock(self, thread_id: str) -> bool:  # noqa: ARG002 - for locks that know
        """Return whether the calling thread of execution has taken the run lock otherwise than by `run_lock`."""
        return False

    # Closing

    @property
    def is_durable(self) -> bool:
        return True

    # Java names
    readLog = read_log
    appendToLog = append_to_log
    listHeads = list_heads
    callWithoutWaiting = call_without_waiting
    putPackedWrites = put_packed_writes
    deleteIdle = delete_idle
    ownKey = own_key

    def close(self) -> None:
        """Bring everything that was put to the disk, and close what is open. A later use opens it again."""
        self.catalogue.logs.close()


def resolve_optional(thread: ThreadLike) -> str | None:
    """Return the id of a thread; None stands for all threads."""
    return None if thread is None else resolve_thread_id(thread)


def select_all(log: Log[Any]) -> Sequence[StoredCheckpoint]:
    """Return all checkpoints of a history, so that a rewrite keeps them."""
    return log.history.load_index().checkpoints


def _select_if_unreachable(log: Log[Any]) -> Sequence[StoredCheckpoint] | None:
    """Return all checkpoints of a history that has records which no reader can reach; otherwise None."""
    checkpoints = log.history.load_index().checkpoints
    reachable = [*checkpoints, *log.history.select_early()]
    return checkpoints if has_unreachable_records(log, reachable) else None


def _measure_unreachable(log: Log[Any]) -> int:
    """Return by how many bytes a rewrite would shorten a log."""
    kept = _select_if_unreachable(log)
    if kept is None:
        return 0
    return log.frames.end - len(copy_to_memory(log, kept))


def _choose_new(packed: Mapping[str, bytes], keep: Collection[str], recorded: Mapping[str, int]) -> Mapping[str, bytes]:
    """Return the pending writes without those whose recorded value stays."""
    if not recorded:
        return packed
    kept = set(keep).intersection(recorded)
    return {key: value for key, value in packed.items() if key not in kept}


def _require(log: Log[Any], id: str | None) -> StoredCheckpoint:
    """Return the checkpoint with an id, or the latest.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    stored = log.history.find(id)
    if stored is None:
        raise CheckpointNotFoundError(log.thread_id, f"checkpoint {id or 'at all'}")
    return stored
