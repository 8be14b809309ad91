"""FileCatalogue: the logs of a store, as the methods of a saver ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from savers._filesystem import catalog
from savers._filesystem.log_bytes import FileLogBytes
from savers._filesystem.os_errors import wrap_os_errors
from savers._log.catalogue import Head, LogCatalogue
from savers._log.history import read_newest_id
from savers._log.log_bytes import LogBytes, MemoryLogBytes

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store

_SHORT: Final = 1 << 14
"""Shorter logs are read as a whole, in one call."""


@final
class FileCatalogue(LogCatalogue[FileLogBytes]):
    """Opens the logs of a store, and lists what there is."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.logs = store.logs

    def shared_log(self, thread_id: str, namespace: str, version: int = 0) -> FileLog:
        if not version:
            return self._store.shared_log(thread_id, namespace)
        return self._store.shared_version(thread_id, namespace, version, is_ending=self._is_ending(thread_id, version))

    def new_log(self, thread_id: str, namespace: str, version: int = 0) -> FileLog:
        if not version:
            return self._store.new_log(thread_id, namespace)
        return self._store.new_version(thread_id, namespace, version, is_ending=self._is_ending(thread_id, version))

    def _is_ending(self, thread_id: str, version: int) -> bool:
        return version == catalog.find_unfinished_release(self._store, thread_id)

    @wrap_os_errors("read")
    def list_threads(self, *, released: bool) -> Sequence[str]:
        return catalog.list_threads(self._store, released=released)

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterator[Head]:  # noqa: ARG002 - files have no index
        for thread_id, namespace, path in catalog.iter_live_logs(self._store):
            yield Head(thread_id, namespace, self._read_newest_id(path) if with_newest else None)

    @wrap_os_errors("read")
    def _read_newest_id(self, path: str) -> str | None:
        # A listing reads thousands of these, nearly all of them short.
        data, status = self._store.io.read_file_unchecked(path, _SHORT)
        medium: LogBytes = MemoryLogBytes(path, bytearray(data))
        if status.st_size > _SHORT:
            medium = FileLogBytes(self._store.io, [path])
        try:
            return read_newest_id(medium) if medium.open() else None
        finally:
            medium.close()

    @wrap_os_errors("read")
    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        return catalog.list_namespaces(self._store, thread_id)

    @wrap_os_errors("read")
    def list_versions(self, thread_id: str) -> Sequence[int]:
        return catalog.list_versions(self._store, thread_id)

    @wrap_os_errors("read")
    def list_version_namespaces(self, thread_id: str, version: int) -> Sequence[str]:
        return catalog.list_version_namespaces(self._store, thread_id, version)
