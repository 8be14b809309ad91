"""FileSystemStore: LangGraph's long-term memory in a file."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from logging import getLogger
from operator import attrgetter
from time import time
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from graphkit.errors import CheckpointerError
from graphkit.saver_kit import run_in_thread
from savers._filesystem.io import FileIO
from savers.langgraph.entry_log import STORE, EntryLog, EntryLogMethods, Fsync
from savers.langgraph.entry_records import Delete, Entry, EntryChange, EntryTable, Namespace, Put, Touch, check_names
from savers.langgraph.items import (
    Embedder,
    Vectors,
    check_filter,
    make_test,
    pack_value,
    pack_vectors,
    score_vectors,
    select_namespaces,
    unpack_value,
    unpack_vectors,
)
from savers.langgraph.opening import PeriodicSweep, SetupMethod

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = 60_000_000
_MAX_TTL: Final = 1e11
"""In minutes: times are stored as microseconds in 64 bits."""
_LOGGER: Final = getLogger("graphkit")

_Name = tuple[Namespace, str]
"""The namespace and the key of an item."""


@dataclass(kw_only=True)
class _Batch:
    """Operations that are executed together, checked."""

    operations: list[Op]
    puts: dict[_Name, PutOp]
    """The last put of each item."""
    values: dict[_Name, bytes]
    """The packed value of each item that is put."""
    texts: dict[_Name, dict[str, str]]
    """The texts of each item that is put and embedded, by their paths."""
    queries: list[str]
    """The queries that are embedded, each of them once."""
    text_vectors: Vectors = field(default_factory=dict)
    query_vectors: Vectors = field(default_factory=dict)

    def list_texts(self) -> list[str]:
        """Return the texts that are embedded, each of them once."""
        texts = (text for by_path in self.texts.values() for text in by_path.values())
        return list(dict.fromkeys(texts))


_Outcome = list[Result] | Exception
"""The results of a batch, one for each operation, or its error."""


class _TickQueue:
    """Collects batches until the event loop has run all tasks that are ready, and executes them in one thread.

    A hundred puts that wait together then need one append, one sync and one change of threads.
    """

    def __init__(self, execute_all: Callable[[list[_Batch]], Sequence[_Outcome]]) -> None:
        self._execute_all = execute_all
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[_Batch, asyncio.Future[list[Result]]]]]
        self._waiting = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        """The loop itself keeps only weak references to its tasks."""

    async def execute(self, batch: _Batch) -> list[Result]:
        """Execute a batch together with others; return its results or raise its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Result]] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((batch, future))
        if len(waiting) == 1:
            task = loop.create_task(self._execute_waiting(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _execute_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.pop(loop)
        batches = [batch for batch, _ in waiting]
        outcomes: Sequence[_Outcome]
        try:
            outcomes = await run_in_thread(self._execute_all, batches)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            outcomes = [error] * len(waiting)
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            if future.done():
                continue  # Its caller was cancelled.
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class _Found(NamedTuple):
    """An item that a search has found."""

    entry: Entry
    value: dict[str, Any]
    score: float | None


class FileSystemStore(EntryLogMethods, SetupMethod, BaseStore):
    """Stores LangGraph's items in a directory, also that of a FileSystemCheckpointSaver.

    One object serves synchronous and asynchronous callers, and any number of threads and processes.
    It needs no setup and need not be closed; `with`, `async with` and `setup()` work as with
    LangGraph's own stores. Once `put` returns, the item survives power loss (`fsync="always"`). All
    puts of a batch are stored, or none.

    All methods of LangGraph's BaseStore have LangGraph's meaning. A search without a query returns
    the items that were put last first. The times of an item are those of its first and last put.

    The process keeps all keys and all values of up to 4 KiB in memory. The first use reads the whole
    file, 3 to 7 us for each item. `get` takes a few microseconds; `search` reads the items of
    the namespaces that it searches until it has found enough.
    """

    supports_ttl = True

    def __init__(
        self,
        base_directory: str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        fsync: Fsync = "always",
        clock: Callable[[], float] = time,
        io: FileIO | None = None,
    ) -> None:
        """Open a store, and create its directory if it is missing.

        Args:
            base_directory: the directory.
            index: how to embed items for searches with a query, as for InMemoryStore. The vectors
                are stored with the items. None embeds nothing and ignores queries.
            ttl: LangGraph's options of items that expire. An expired item is returned until it is
                swept, unless `omit_expired` is set.
            fsync: whether a put waits for the disk.
            clock: returns seconds since 1970.
            io: the file system; for tests.

        Raises:
            CheckpointerConfigurationError: the path is a file, or an option is invalid.
            CheckpointStorageError: the file system refused.
        """
        super().__init__()
        self.ttl_config = ttl
        self.index_config = index
        self._embedder = None
        self.embeddings = None
        if index is not None:
            self._embedder = Embedder(index)
            self.embeddings = self._embedder.embeddings
        self._omits_expired = bool((ttl or {}).get("omit_expired"))
        self._log = EntryLog(base_directory, STORE, fsync=fsync, clock=clock, io=io)
        self._sweeper = PeriodicSweep(self, _sweep, "graphkit-ttl-sweeper")
        self._queue = _TickQueue(self._execute_all)

    def close(self) -> None:
        """Stop the sweeper and close the files. A later use opens them again."""
        self._sweeper.stop()
        super().close()

    # Batches

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations: first all reads, then the last put of each item.

        Returns:
            The result of each operation, in their order; None for a put.

        Raises:
            InvalidNamespaceError: a label of a namespace is invalid. Nothing was changed.
            ValueError: an operation, or an operator of a filter, does not exist, or a ttl is out of range.
                Nothing was changed.
            CheckpointSerializationError: a value cannot be stored; the error names its path. Nothing
                was changed.
            CheckpointCorruptionError: the stored data are damaged; see `repair`.
            CheckpointStorageError: the file system refused.
        """
        batch = self._check(ops)
        if self._embedder is not None:
            batch.text_vectors, batch.query_vectors = self._embedder.embed(batch.list_texts(), batch.queries)
        (outcome,) = self._execute_all([batch])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`; the event loop never waits for a disk.

        Batches of the same tick of the event loop are stored together.
        """
        batch = self._check(ops)
        if self._embedder is not None:
            batch.text_vectors, batch.query_vectors = await self._embedder.aembed(batch.list_texts(), batch.queries)
        return await self._queue.execute(batch)

    def _check(self, ops: Iterable[Op]) -> _Batch:
        """Check operations, and pack the values to store."""
        operations = list(ops)
        puts: dict[_Name, PutOp] = {}
        queries: dict[str, None] = {}  # a set that keeps its order
        for op in operations:
            validate_op_namespace(op)
            match op:
                case PutOp():
                    namespace = tuple(op.namespace)
                    check_names(namespace, op.key)
                    if op.ttl is not None and not -_MAX_TTL <= op.ttl <= _MAX_TTL:
                        raise ValueError(f"the ttl {op.ttl!r} is not within {_MAX_TTL:.0e} minutes of now")
                    puts[namespace, op.key] = op
                case SearchOp() | ListNamespacesOp() if min(op.limit, op.offset) < 0:
                    raise ValueError("limit and offset must not be negative")
                case SearchOp():
                    check_filter(op.filter or {})
                    if op.query:
                        queries[op.query] = None
                case GetOp() | ListNamespacesOp():
                    pass
                case _:
                    raise ValueError(f"Unknown operation type: {type(op)}")
        values: dict[_Name, bytes] = {}
        texts: dict[_Name, dict[str, str]] = {}
        for name, put in puts.items():
            if put.value is not None:
                values[name] = pack_value(put.value)
                if self._embedder is not None:
                    texts[name] = self._embedder.find_texts(put)
        return _Batch(operations=operations, puts=puts, values=values, texts=texts, queries=list(queries))

    def _execute_all(self, batches: list[_Batch]) -> list[_Outcome]:
        """Execute batches: the reads of each, then the puts of all in one record.

        Returns:
            The results or the error of each batch.
        """
        outcomes = [self._read_all(batch) for batch in batches]
        to_put = [
            number for number, batch in enumerate(batches) if batch.puts and not isinstance(outcomes[number], Exception)
        ]

        def put_all(table: EntryTable) -> Iterator[EntryChange]:
            for number in to_put:
                yield from self._put(table, batches[number])

        if to_put:
            try:
                self._log.append(put_all)
            except CheckpointerError as error:
                for number in to_put:
                    outcomes[number] = error
        return outcomes

    def _read_all(self, batch: _Batch) -> _Outcome:
        results: list[Result] = [None] * len(batch.operations)
        if len(batch.puts) == len(batch.operations):
            return results
        touched: dict[_Name, None] = {}
        try:
            with self._log.reading() as table:
                for number, op in enumerate(batch.operations):
                    if isinstance(op, GetOp):
                        results[number] = self._get(table, op, touched)
                    elif isinstance(op, SearchOp):
                        results[number] = self._search(table, op, batch.query_vectors, touched)
                    elif isinstance(op, ListNamespacesOp):
                        results[number] = self._list_namespaces(table, op)
            if touched:
                self._log.append(lambda table: self._touch(table, touched), is_lasting=False)
        except (CheckpointerError, ValueError) as error:
            return error
        return results

    # Reading

    def _get(self, table: EntryTable, op: GetOp, touched: dict[_Name, None]) -> Item | None:
        entry = table.get(tuple(op.namespace), op.key)
        if entry is None or self._is_omitted(entry, self._log.now()):
            return None
        if op.refresh_ttl and entry.ttl is not None:
            touched[entry.namespace, entry.key] = None
        return Item(
            value=unpack_value(self._log.read_content(entry)[: entry.value_length]),
            key=entry.key,
            namespace=entry.namespace,
            created_at=_to_datetime(entry.created),
            updated_at=_to_datetime(entry.updated),
        )

    def _is_omitted(self, entry: Entry, now: int) -> bool:
        return self._omits_expired and entry.has_expired(now)

    def _search(
        self,
        table: EntryTable,
        op: SearchOp,
        query_vectors: Mapping[str, Sequence[float]],
        touched: dict[_Name, None],
    ) -> list[SearchItem]:
        candidates = self._find(table, op)
        query = query_vectors.get(op.query or "")
        if query is not None:
            candidates = iter(self._rank(candidates, query))
        first = min(op.offset, sys.maxsize)
        end = min(op.offset + op.limit, sys.maxsize)
        found = list(islice(candidates, first, end))
        if op.refresh_ttl:
            for entry, _, _ in found:
                if entry.ttl is not None:
                    touched[entry.namespace, entry.key] = None
        return [
            SearchItem(
                namespace=entry.namespace,
                key=entry.key,
                value=value,
                created_at=_to_datetime(entry.created),
                updated_at=_to_datetime(entry.updated),
                score=score,
            )
            for entry, value, score in found
        ]

    def _find(self, table: EntryTable, op: SearchOp) -> Iterator[_Found]:
        """Yield the items in the namespaces that the filter accepts, newest first."""
        now = self._log.now()
        accepts = make_test(op.filter) if op.filter else None
        # A filter may need all entries. Sorting them takes less time than merging them one by one.
        entries = table.newest_first(tuple(op.namespace_prefix), expects_all=accepts is not None)
        for entry in entries:
            if self._is_omitted(entry, now):
                continue
            # The common case of `read_content`, without a call: this body runs for each entry.
            content = entry.content or self._log.read_content(entry)
            value = unpack_value(content[: entry.value_length] if entry.about else content)
            if accepts is None or accepts(value):
                yield _Found(entry=entry, value=value, score=None)

    def _rank(self, candidates: Iterable[_Found], query: Sequence[float]) -> list[_Found]:
        """Return items by their best vector, the best first; items without a vector come last."""
        embedded: list[_Found] = []
        rest: list[_Found] = []
        vectors: list[bytes] = []
        owners: list[int] = []
        """Of each vector, the position of its item."""
        for found in candidates:
            entry = found.entry
            if not entry.about:
                rest.append(found)
                continue
            data = self._log.read_content(entry)[entry.value_length :]
            for vector in unpack_vectors(entry.about, data):
                vectors.append(vector)
                owners.append(len(embedded))
            embedded.append(found)
        best = [-math.inf] * len(embedded)
        for score, position in zip(score_vectors(query, vectors), owners, strict=True):
            best[position] = max(best[position], score)
        scored = [found._replace(score=score) for found, score in zip(embedded, best, strict=True)]
        return sorted(scored, key=attrgetter("score"), reverse=True) + rest

    def _list_namespaces(self, table: EntryTable, op: ListNamespacesOp) -> list[Namespace]:
        now = self._log.now()
        namespaces = [
            namespace
            for namespace in table.namespaces()
            if not all(self._is_omitted(entry, now) for entry in table.entries_in(namespace))
        ]
        return select_namespaces(namespaces, op)

    # Writing

    def _put(self, table: EntryTable, batch: _Batch) -> Iterator[EntryChange]:
        """Yield the changes that store the puts of a batch."""
        now = self._log.now()
        for name, op in batch.puts.items():
            namespace, key = name
            earlier = table.get(namespace, key)
            if op.value is None:
                if earlier is not None:
                    yield Delete(namespace=namespace, key=key)
                continue
            created = now
            ttl = expires = None
            if earlier is not None:
                created = earlier.created
            if op.ttl is not None:
                ttl = float(op.ttl)
                expires = now + int(op.ttl * _MINUTE)
            texts = batch.texts.get(name, {})
            about, vector_data = pack_vectors({path: batch.text_vectors[text] for path, text in texts.items()})
            yield Put(
                namespace=namespace,
                key=key,
                created=created,
                updated=now,
                expires=expires,
                ttl=ttl,
                about=about,
                value=batch.values[name],
                vectors=vector_data,
            )

    def _touch(self, table: EntryTable, names: Iterable[_Name]) -> Iterator[EntryChange]:
        """Yield the changes that postpone the expiry of items that were read."""
        now = self._log.now()
        for namespace, key in names:
            entry = table.get(namespace, key)
            if entry is not None and entry.ttl is not None:
                yield Touch(namespace=namespace, key=key, expires=now + int(entry.ttl * _MINUTE))

    # Items that expire

    def sweep_ttl(self) -> int:
        """Delete the items that have expired; return how many there were."""
        with self._log.reading() as table:
            if not table.find_expired(self._log.now()):
                return 0  # without the lock of the writers
        changes: list[EntryChange] = []

        def delete_expired(table: EntryTable) -> list[EntryChange]:
            changes.extend(Delete(entry.namespace, entry.key) for entry in table.find_expired(self._log.now()))
            return changes

        self._log.append(delete_expired)
        return len(changes)

    async def asweep_ttl(self) -> int:
        """As `sweep_ttl`, in a worker thread."""
        return await run_in_thread(self.sweep_ttl)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Sweep every few minutes in a daemon thread.

        Args:
            sweep_interval_minutes: None: the `sweep_interval_minutes` of the option `ttl`, or 5.

        Returns:
            A future that is done when the sweeper has stopped. Cancel it to stop the sweeper.
        """
        interval = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes") or 5
        return self._sweeper.start(60 * float(interval))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; return whether it has stopped within `timeout` seconds."""
        return self._sweeper.stop(timeout)


def _sweep(store: FileSystemStore, _stop: threading.Event) -> None:
    swept = store.sweep_ttl()
    if swept:
        _LOGGER.info("%d expired items were swept", swept)


def _to_datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
