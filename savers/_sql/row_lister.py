"""Lists the checkpoints of histories in rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from graphkit.errors import CheckpointCorruptionError
from savers._log.listed_checkpoints import CheckpointLister
from savers._sql.maintenance import explain_damage
from savers._sql.row_log import RowLog

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._log.log_reader import LogReader
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.row_store import RowStore


@final
class RowLister(CheckpointLister):
    """Lists the checkpoints of histories in rows. A listed checkpoint loads its state on first use."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def _open_logs(self, thread_id: str, namespace: str) -> Iterator[LogReader]:
        yield self._store.shared_log(thread_id, namespace)
        for version in reversed(self._store.list_versions(thread_id)):
            yield self._store.shared_log(thread_id, namespace, version)

    def _load_from(self, reader: LogReader, fid: int, stored: StoredCheckpoint) -> FrozenDict | None:
        assert isinstance(reader, RowLog)
        while True:
            with reader.mutex:
                try:
                    return super()._load_from(reader, fid, stored)
                except CheckpointCorruptionError as error:
                    reader.close()
                    if not reader.is_gone():
                        raise explain_damage(error) from error
                    # Another process has deleted or rewritten it after the refresh.

    def _refresh(self, reader: LogReader) -> bool:
        return reader.refresh()

    def _account(self, reader: LogReader) -> None:
        self._store.logs.account(reader)
