"""FileSystemCache: LangGraph's cache of node results in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import time
from typing import Final

from langgraph.cache.base import BaseCache, FullKey, ValueT
from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit.saver_kit import run_in_thread
from savers._filesystem.io import FileIO
from savers.langgraph.encoding import serialize
from savers.langgraph.entry_log import CACHE, EntryLog, EntryLogMethods, Fsync
from savers.langgraph.entry_records import Clear, EntryChange, EntryTable, Namespace, Put, check_names
from savers.langgraph.serializer import Deserializer, TypedValue, make_serializer

_SECOND: Final = 1_000_000


class FileSystemCache(EntryLogMethods, BaseCache[ValueT]):
    """Stores LangGraph's cached node results in a directory, also that of a FileSystemCheckpointSaver.

    One object serves synchronous and asynchronous graphs, and any number of threads and processes.
    It needs no setup and need not be closed. Once `set` returns, the values survive power loss
    (`fsync="always"`); all values of a call are stored, or none. Values are encoded as in
    FileSystemCheckpointSaver. Values that have expired disappear from the file when it is rewritten,
    at the latest when they take half of it.
    """

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        fsync: Fsync = "always",
        types: Iterable[type] = (),
        clock: Callable[[], float] = time,
        io: FileIO | None = None,
    ) -> None:
        """Open a cache, and create its directory if it is missing.

        Args:
            base_directory: the directory.
            serde: a serializer of LangGraph, which then decides what can be stored and read. The
                default writes LangGraph's format and refuses what a fresh process could not read;
                see FileSystemCheckpointSaver.
            fsync: whether `set` waits for the disk.
            types: as for FileSystemCheckpointSaver.
            clock: returns seconds since 1970.
            io: the file system; for tests.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            CheckpointStorageError: the file system refused.
        """
        super().__init__(serde=make_serializer(serde, types))
        self._deserializer = Deserializer(self.serde, None)
        self._log = EntryLog(base_directory, CACHE, fsync=fsync, clock=clock, io=io)

    # Values

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """Return the values of those keys that have one which has not expired.

        Raises:
            CheckpointSerializationError: the serializer may not create a type of a value.
            CheckpointCorruptionError: the stored data are damaged; see `repair`.
            CheckpointStorageError: the file system refused.
        """
        if not keys:
            return {}
        found: dict[FullKey, TypedValue] = {}
        with self._log.reading() as table:
            now = self._log.now()
            for labels, key in keys:
                namespace = tuple(labels)
                entry = table.get(namespace, key)
                if entry is None or entry.has_expired(now):
                    continue
                name = namespace, key
                found[name] = (entry.about, self._log.read_content(entry), _describe(name))
        values = self._deserializer.deserialize_all(list(found.values()))
        return dict(zip(found, values, strict=True))

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, ValueT]:
        """As `get`, in a worker thread."""
        return await run_in_thread(self.get, keys)

    def set(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """Store values.

        Args:
            pairs: the value of each key, and after how many seconds it expires; None: never.

        Raises:
            CheckpointSerializationError: the serializer cannot encode a value. Nothing was changed.
            CheckpointCorruptionError: the stored data are damaged. Nothing was changed.
            CheckpointStorageError: the file system refused.
        """
        now = self._log.now()
        changes: list[EntryChange] = []
        for (labels, key), (value, ttl) in pairs.items():
            namespace = tuple(labels)
            check_names(namespace, key)
            type_name, data = serialize(self.serde, value, _describe((namespace, key)))
            put = Put(
                namespace=namespace,
                key=key,
                created=now,
                updated=now,
                expires=None if ttl is None else now + int(ttl * _SECOND),
                ttl=None,
                about=type_name,
                value=data,
            )
            changes.append(put)
        if changes:
            self._log.append(lambda _: changes)

    async def aset(self, pairs: Mapping[FullKey, tuple[ValueT, int | None]]) -> None:
        """As `set`, in a worker thread."""
        await run_in_thread(self.set, pairs)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete the values of these namespaces; None: all values.

        Raises:
            CheckpointCorruptionError: the stored data are damaged. Nothing was changed.
            CheckpointStorageError: the file system refused.
        """

        def decide(table: EntryTable) -> Iterator[EntryChange]:
            existing = table.namespaces()
            if namespaces is None:
                if existing:
                    yield Clear(namespace=None)
                return
            for namespace in dict.fromkeys(map(tuple, namespaces)):
                if namespace in existing:
                    yield Clear(namespace=namespace)

        self._log.append(decide)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """As `clear`, in a worker thread."""
        await run_in_thread(self.clear, namespaces)


def _describe(name: FullKey) -> str:
    namespace, key = name
    return f"cache{list(namespace)}[{key!r}]"
