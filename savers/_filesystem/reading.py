"""The methods of FileSystemSaver that only read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from graphkit import (
    Checkpoint,
    CheckpointInfo,
    HistorySummary,
    RunnableConfig,
    Tag,
    WaitingInterrupt,
)
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    HasVersions,
    LatestCheckpoint,
    ThreadLike,
    find_waiting_interrupts,
    resolve_thread_id,
    with_status,
)
from graphkit.errors import CheckpointerError, CheckpointKeyError, CheckpointNotFoundError
from savers._filesystem import catalog, live_logs
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.history_views import ThreadScan, scan_log
from savers._filesystem.listed_checkpoints import FileCheckpointLister
from savers._filesystem.os_errors import wrap_os_error, wrap_os_errors
from savers._filesystem.store import Store
from savers._log.failed_threads import is_out_of_resources
from savers._log.forward_reader import read_forward
from savers._log.listed_checkpoints import ListedInfos, make_info
from savers._log.past_checkpoint import locate, read_past

if TYPE_CHECKING:
    from savers._log.log_reader import LogReader
    from savers._log.past_checkpoint import PastCheckpoint
    from savers._log.stored_checkpoint import StoredCheckpoint

_LOGGER: Final = getLogger("graphkit")


class ReadingMethods(BaseCheckpointSaver, HasVersions):
    """What callers read from a store. Readers take no lock between processes."""

    _store: Store
    _lister: FileCheckpointLister

    # Checkpoints

    @wrap_os_errors("read")
    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        reader = self._shared_writer(RunnableConfig.of(config))
        with reader.mutex:
            checkpoints: Sequence[Checkpoint] = []
            if live_logs.refresh_to_read(self._store, reader):
                checkpoints = self._lister.list_checkpoints(reader)
            self._store.logs.account(reader)
            return checkpoints

    @wrap_os_errors("read")
    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)
        reader = self._shared_writer(config)
        with reader.mutex:
            checkpoint = None
            stored = self._find(reader, config)
            if stored is not None:
                checkpoint = stored.make_checkpoint(reader.load_state(stored))
            self._store.logs.account(reader)
            return checkpoint

    @wrap_os_errors("read")
    def _read_packed(self, config: RunnableConfig) -> PastCheckpoint | None:
        """Return the past checkpoint that a config names, packed; None if `get` must read it."""
        wanted = config.checkpoint_id
        reader = self._shared_writer(config)
        with reader.mutex:
            if wanted is None or not live_logs.refresh_to_read(self._store, reader):
                return None
            return read_past(reader, locate(reader, wanted), wanted)

    def replay(self, config: ConfigLike = None, *, version: int | None = None) -> Iterator[Checkpoint]:
        """Yield the checkpoints of a history, oldest first; see `graphkit.abc.SupportsReplay`."""
        try:
            reader = self._open_log(RunnableConfig.of(config), version)
            if reader is None:
                return
            try:
                yield from read_forward(reader)
            finally:
                reader.close()
        except CheckpointerError:
            raise
        except OSError as error:
            raise wrap_os_error(error, "read", self._store.root) from error

    def _open_log(self, config: RunnableConfig, version: int | None) -> LogReader | None:
        """Open a log for one caller, who closes it; None if it has no history.

        Raises:
            CheckpointNotFoundError: there is no such version.
        """
        thread_id = config.thread
        namespace = config.checkpoint_ns
        ending = catalog.find_begun_end(self._store, thread_id)
        reader: LogReader
        if version is None:
            if namespace and ending is not None:
                return None  # the end of the root's log decides for the namespaces
            reader = self._store.new_writer(thread_id, namespace)
        else:
            if version not in catalog.list_versions(self._store, thread_id):
                raise CheckpointNotFoundError(thread_id, f"version {version}")
            released = self._store.new_version(thread_id, namespace, version)
            released.is_ending = version == ending
            reader = released
        if reader.refresh():
            return reader
        reader.close()
        return None

    # Histories

    @wrap_os_errors("read")
    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        return [
            namespace
            for namespace in catalog.list_namespaces(self._store, thread_id)
            if self._has_checkpoints(thread_id, namespace)
        ]

    def _has_checkpoints(self, thread_id: str, namespace: str) -> bool:
        reader = self._store.shared_writer(thread_id, namespace)
        with reader.mutex:
            if not live_logs.refresh_to_read(self._store, reader):
                return False
            return reader.find_latest() is not None

    @wrap_os_errors("read")
    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        reader = self._shared_writer(RunnableConfig.of(config))
        with reader.mutex:
            if not live_logs.refresh_to_read(self._store, reader):
                return []
            checkpoints = reader.load_index().checkpoints
            self._store.logs.account(reader)
            infos = ListedInfos(reader, checkpoints)
        return infos.add_status(self)

    @wrap_os_errors("read")
    def _recent(self, config: RunnableConfig, limit: int) -> Sequence[CheckpointInfo]:
        # Reads from the end of the log, at a cost that depends on the limit. Damage further back is
        # found by `verify`, not here.
        reader = self._shared_writer(config)
        with reader.mutex:
            if not live_logs.refresh_to_read(self._store, reader):
                return []
            infos = ListedInfos(reader, reader.find_recent(limit))
        return infos.add_status(self)

    @wrap_os_errors("read")
    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        """As in the contract. Checks every record but decodes only the last.

        10,000 checkpoints take about 20 ms. If the history has tags, all records are decoded.
        """
        config = RunnableConfig.of(config)
        thread_id = config.thread
        namespace = config.checkpoint_ns
        if namespace and catalog.find_begun_end(self._store, thread_id) is not None:
            return None
        with self._store.new_summary(thread_id, namespace) as log_summary:
            if log_summary.read():
                latest = log_summary.last
                info = make_info(log_summary, latest)
                writes: Mapping[str, Any] = {}
                if info.stopped:
                    writes = log_summary.read_writes(latest)
                return self._make_summary(info, log_summary.count, (), writes)
        return super().summary(config)

    @wrap_os_errors("read")
    def info(self, config: ConfigLike = None) -> CheckpointInfo | None:
        """Return what is known of a checkpoint without decoding its state.

        The config names the checkpoint; by default it is the latest.
        """
        config = RunnableConfig.of(config)
        reader = self._shared_writer(config)
        with reader.mutex:
            stored = self._find(reader, config)
            if stored is None:
                return None
            info = make_info(reader, stored)
            is_latest = stored is reader.find_latest()
        return with_status(self, info) if is_latest else info

    # Pending writes and tags

    @wrap_os_errors("read")
    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        config = RunnableConfig.of(config)
        reader = self._shared_writer(config)
        with reader.mutex:
            stored = self._find(reader, config)
            return {} if stored is None else reader.read_writes(stored)

    @wrap_os_errors("read")
    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        config = RunnableConfig.of(config)
        reader = self._shared_writer(config)
        with reader.mutex:
            stored = self._find(reader, config)
            return () if stored is None else stored.tags

    @wrap_os_errors("read")
    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        """As in the contract.

        Of all threads (None), it logs a warning about one that cannot be read, and omits it.
        """
        if thread_id is not None:
            return self._find_interrupts(resolve_thread_id(thread_id))
        interrupts: list[WaitingInterrupt] = []
        for each_id in self.threads():
            with self._warn_if_unreadable(each_id):
                interrupts += self._find_interrupts(each_id)
        return interrupts

    def _find_interrupts(self, thread_id: str) -> Sequence[WaitingInterrupt]:
        latest: dict[str, LatestCheckpoint] = {}
        for namespace in catalog.list_namespaces(self._store, thread_id):
            with self._store.new_summary(thread_id, namespace) as reader:
                stored = reader.find_latest() if reader.refresh() else None
                if not namespace and reader.closed_by is not None:
                    # The end of the root's log decides for the namespaces.
                    return []
                if stored is not None:
                    config = RunnableConfig(
                        thread_id,
                        checkpoint_ns=namespace,
                        checkpoint_id=stored.id,
                    )
                    latest[namespace] = LatestCheckpoint(
                        config,
                        stored.metadata,
                        reader.read_writes(stored),
                        make_info(reader, stored).created_at,
                    )
        return find_waiting_interrupts(latest)

    # Threads and versions

    @wrap_os_errors("read")
    def threads(self, *, released: bool = False) -> Sequence[str]:
        return catalog.list_threads(self._store, released=released)

    @wrap_os_errors("read")
    def _search(
        self, metadata: Mapping[str, Any], thread_id: ThreadLike, limit: int | None
    ) -> Sequence[CheckpointInfo]:
        """As in the contract.

        Of all threads (None), it logs a warning about one that cannot be read, and omits it.
        """
        if thread_id is not None:
            return super()._search(metadata, thread_id, limit)
        infos: list[CheckpointInfo] = []
        scan = ThreadScan(self._store)
        names = {scan.find_thread(name): name for name in scan.names}
        for each_id in sorted(filter(None, names)):
            remaining = None if limit is None else limit - len(infos)
            if remaining is not None and remaining <= 0:
                break
            with self._warn_if_unreadable(each_id):
                open_log = self._store.logs.find((each_id, "", 0))
                found = None
                if open_log is None or open_log.index is None:
                    found = self._search_short(scan, names[each_id], metadata)
                if found is None:
                    found = super()._search(metadata, each_id, remaining)
                infos += found[:remaining]
        return infos

    def _search_short(
        self, scan: ThreadScan, name: str, metadata: Mapping[str, Any]
    ) -> Sequence[CheckpointInfo] | None:
        """Return what matches in the only log of a thread, read as a whole and not kept open.

        None if the thread has other logs, or its log must be read in another way.
        """
        only_log = scan.find_only_log(name)
        view = None if only_log is None else scan_log(self._store, only_log, is_checked=True)
        if view is None:
            return None
        # The infos of a whole history would take half of the time.
        found = [
            make_info(view, stored)
            for stored in reversed(view.checkpoints)
            if all(key in stored.metadata and stored.metadata[key] == value for key, value in metadata.items())
        ]
        if found and found[0].id == view.checkpoints[-1].id:
            found[0] = with_status(self, found[0])
        return found

    @contextmanager
    def _warn_if_unreadable(self, thread_id: str) -> Iterator[None]:
        """Log a warning instead of raising an error, so that the caller can continue."""
        try:
            yield
        except (OSError, CheckpointerError) as error:
            # A missing key concerns more than one thread.
            if is_out_of_resources(error) or isinstance(error, CheckpointKeyError):
                raise
            _LOGGER.warning(
                "thread %.80r is passed over, for it cannot be read: %s",
                thread_id,
                error,
            )

    @wrap_os_errors("read")
    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        return catalog.list_versions(self._store, resolve_thread_id(thread))

    @wrap_os_errors("read")
    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        config = RunnableConfig.of(config)
        thread_id = config.thread
        releasing = catalog.find_unfinished_release(self._store, thread_id)
        versions = catalog.list_versions(self._store, thread_id)
        if version is None:
            if not versions:
                raise CheckpointNotFoundError(thread_id, "version")
            version = versions[-1]
        elif version not in versions:
            raise CheckpointNotFoundError(thread_id, f"version {version}")
        reader = self._store.shared_version(
            thread_id,
            config.checkpoint_ns,
            version,
            is_ending=version == releasing,
        )
        with reader.mutex:
            checkpoints = self._lister.list_checkpoints(reader) if reader.refresh() else []
        return Tag(thread_id, checkpoints, version)

    @wrap_os_errors("read")
    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        thread_id = resolve_thread_id(thread)
        versions = catalog.list_versions(self._store, thread_id)
        if version is None and versions:
            version = versions[-1]
        if version not in versions:
            missing = "version" if version is None else f"version {version}"
            raise CheckpointNotFoundError(thread_id, missing)
        assert version is not None
        return [
            namespace
            for namespace in catalog.list_version_namespaces(self._store, thread_id, version)
            if self.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints
        ]

    def _shared_writer(self, config: RunnableConfig) -> FileLogWriter:
        return self._store.shared_writer(config.thread, config.checkpoint_ns)

    def _find(self, reader: FileLogWriter, config: RunnableConfig) -> StoredCheckpoint | None:
        """Refresh a log and return the checkpoint that the config names, or the latest.

        None if the history does not have it.
        """
        if not live_logs.refresh_to_read(self._store, reader):
            return None
        return reader.find(config.checkpoint_id)
