"""Lists the checkpoints of histories in rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from savers._log.listed_checkpoints import CheckpointLister

if TYPE_CHECKING:
    from savers._log.log_reader import LogReader
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

    def _refresh(self, reader: LogReader) -> bool:
        return reader.refresh()

    def _account(self, reader: LogReader) -> None:
        self._store.logs.account(reader)
