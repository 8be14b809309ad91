"""Lists the checkpoints of log files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from savers._filesystem import catalog
from savers._filesystem.file_log_reader import FileLogReader
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.live_logs import refresh_to_read
from savers._filesystem.os_errors import wrap_os_errors
from savers._log.listed_checkpoints import CheckpointLister

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._filesystem.store import Store
    from savers._log.log_reader import LogReader
    from savers._log.stored_checkpoint import StoredCheckpoint


@final
class FileCheckpointLister(CheckpointLister):
    """Lists the checkpoints of log files. A listed checkpoint loads its state on first use."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @wrap_os_errors("read")
    def _load(self, thread_id: str, namespace: str, fid: int, stored: StoredCheckpoint) -> FrozenDict:
        return super()._load(thread_id, namespace, fid, stored)

    def _open_logs(self, thread_id: str, namespace: str) -> Iterator[FileLogReader]:
        """Yield the live log of a namespace, then its versions, the newest first."""
        yield self._store.shared_writer(thread_id, namespace)
        releasing = catalog.find_unfinished_release(self._store, thread_id)
        for version in reversed(catalog.list_versions(self._store, thread_id)):
            yield self._store.shared_version(
                thread_id,
                namespace,
                version,
                is_ending=version == releasing,
            )

    def _refresh(self, reader: LogReader) -> bool:
        """Refresh a log; return whether it has a history."""
        if isinstance(reader, FileLogWriter):
            return refresh_to_read(self._store, reader)
        return reader.refresh()

    def _account(self, reader: LogReader) -> None:
        assert isinstance(reader, FileLogReader)
        self._store.logs.account(reader)
