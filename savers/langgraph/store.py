"""FileSystemStore: LangGraph's long-term memory in a file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import islice
from logging import getLogger
from time import time
from typing import Any, Final, Generic, NamedTuple, TypeVar

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

from graphkit.abc import run_in_thread
from graphkit.errors import CheckpointerError, CheckpointSerializationError
from savers._filesystem.io import FileIO
from savers.langgraph._entries.examine import STORE, EntriesReport
from savers.langgraph._entries.items import check_filter, make_test, pack_value, select_namespaces, unpack_value
from savers.langgraph._entries.log import EntryLog, Fsync
from savers.langgraph._entries.records import Delete, Entry, EntryChange, EntryTable, Namespace, Put, Touch
from savers.langgraph._entries.vectors import Embedder, Text, pack_vectors, score_vectors, unpack_vectors
from savers.langgraph.opening import ContextMethods, PeriodicSweep, SetupMethod

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE: Final = 60_000_000
_LOGGER: Final = getLogger("graphkit")

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")


class TickQueue(Generic[RequestT, ResultT]):
    """Collects requests until the event loop has run all tasks that are ready, and executes them in one thread.

    A hundred puts that wait together then need one append, one sync and one change of threads.
    """

    def __init__(self, execute_all: Callable[[list[RequestT]], Sequence[ResultT | Exception]]) -> None:
        """Make a queue.

        Args:
            execute_all: returns the result or the error of each request.
        """
        self._execute_all = execute_all
        self._waiting: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, list[tuple[RequestT, asyncio.Future[ResultT]]]
        ] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        """The loop itself keeps only weak references to its tasks."""

    async def execute(self, request: RequestT) -> ResultT:
        """Execute a request together with others; return its result or raise its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((request, future))
        if len(waiting) == 1:
            task = loop.create_task(self._execute_waiting(loop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _execute_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.pop(loop)
        outcomes: Sequence[ResultT | Exception]
        try:
            outcomes = await run_in_thread(self._execute_all, [request for request, _ in waiting])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            outcomes = [error] * len(waiting)
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            if future.done():
                continue  # Its caller was cancelled.
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class _Plan(NamedTuple):
    """The operations of a batch, checked."""

    operations: list[Op]
    puts: dict[tuple[Namespace, str], PutOp]
    """The last put of each item."""
    values: dict[tuple[Namespace, str], bytes]
    """The packed value of each item that is put."""
    texts: dict[tuple[Namespace, str], list[Text]]
    """The texts of each item that is put and embedded."""
    queries: list[str]
    """The queries that are embedded."""


class _Embedded(NamedTuple):
    """The vectors that a batch needs, by text."""

    texts: dict[str, Sequence[float]]
    queries: dict[str, Sequence[float]]


class _Request(NamedTuple):
    """A batch that is ready to be executed."""

    plan: _Plan
    embedded: _Embedded


class _Found(NamedTuple):
    """An item that a search has found."""

    entry: Entry
    value: dict[str, Any]
    score: float | None


_NOTHING_EMBEDDED: Final = _Embedded(texts={}, queries={})


class FileSystemStore(ContextMethods, SetupMethod, BaseStore):
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
        self._embedder = None if index is None else Embedder(index)
        self.embeddings = None if self._embedder is None else self._embedder.embeddings
        self._omits_expired = bool((ttl or {}).get("omit_expired"))
        self._log = EntryLog(base_directory, STORE, fsync=fsync, clock=clock, io=io)
        self._sweeper = PeriodicSweep(self, _sweep, "graphkit-ttl-sweeper")
        self._queue: TickQueue[_Request, list[Result]] = TickQueue(self._execute_all)

    # Opening and closing, as with LangGraph's own stores

    def close(self) -> None:
        """Stop the sweeper and close the files. A later use opens them again."""
        self._sweeper.stop()
        self._log.close_files()

    def _close(self) -> None:
        self.close()

    # Batches

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations: first all reads, then the last put of each item.

        Returns:
            The result of each operation, in their order; None for a put.

        Raises:
            InvalidNamespaceError: a label of a namespace is invalid. Nothing was changed.
            ValueError: an operation, or an operator of a filter, does not exist. Nothing was
                changed.
            CheckpointSerializationError: a value cannot be stored; the error names its path. Nothing
                was changed.
            CheckpointCorruptionError: the stored data are damaged; see `repair`.
            CheckpointStorageError: the file system refused.
        """
        plan = self._plan(ops)
        embedded = _NOTHING_EMBEDDED
        if self._embedder is not None:
            embedded = _Embedded(
                texts=self._embedder.embed(_texts_of(plan)),
                queries=self._embedder.embed_queries(plan.queries),
            )
        (outcome,) = self._execute_all([_Request(plan=plan, embedded=embedded)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`; the event loop never waits for a disk.

        Batches of the same tick of the event loop are stored together.
        """
        plan = self._plan(ops)
        embedded = _NOTHING_EMBEDDED
        if self._embedder is not None:
            embedded = _Embedded(
                texts=await self._embedder.aembed(_texts_of(plan)),
                queries=await self._embedder.aembed_queries(plan.queries),
            )
        return await self._queue.execute(_Request(plan=plan, embedded=embedded))

    def _plan(self, ops: Iterable[Op]) -> _Plan:
        """Check operations, and pack the values to store."""
        operations = list(ops)
        puts: dict[tuple[Namespace, str], PutOp] = {}
        queries: list[str] = []
        for op in operations:
            validate_op_namespace(op)
            if isinstance(op, (SearchOp, ListNamespacesOp)) and (op.limit < 0 or op.offset < 0):
                raise ValueError("limit and offset must not be negative")
            if isinstance(op, PutOp):
                _check_key(op.namespace, op.key)
                puts[tuple(op.namespace), op.key] = op
            elif isinstance(op, SearchOp):
                check_filter(op.filter)
                if op.query and self._embedder is not None:
                    queries.append(op.query)
            elif not isinstance(op, (GetOp, ListNamespacesOp)):
                raise ValueError(f"Unknown operation type: {type(op)}")  # noqa: TRY004 - as LangGraph's own stores
        values = {name: pack_value(op.value) for name, op in puts.items() if op.value is not None}
        texts: dict[tuple[Namespace, str], list[Text]] = {}
        if self._embedder is not None:
            texts = {name: self._embedder.find_texts(op) for name, op in puts.items()}
        return _Plan(operations=operations, puts=puts, values=values, texts=texts, queries=queries)

    def _execute_all(self, requests: list[_Request]) -> list[list[Result] | Exception]:
        """Execute batches: the reads of each, then the puts of all in one record.

        Returns:
            The results or the error of each batch.
        """
        outcomes = [self._read_all(request) for request in requests]
        puts = [number for number, request in enumerate(requests) if request.plan.puts]
        puts = [number for number in puts if not isinstance(outcomes[number], Exception)]
        if not puts:
            return outcomes
        error = self._put_all([requests[number] for number in puts])
        for number in puts:
            if isinstance(error, CheckpointSerializationError) and len(puts) > 1:
                # One batch must not make the others fail.
                outcomes[number] = self._put_all([requests[number]]) or outcomes[number]
            else:
                outcomes[number] = error or outcomes[number]
        return outcomes

    def _read_all(self, request: _Request) -> list[Result] | Exception:
        plan, embedded = request
        results: list[Result] = [None] * len(plan.operations)
        if len(plan.puts) == len(plan.operations):
            return results
        touched: dict[tuple[Namespace, str], None] = {}
        try:
            with self._log.reading() as table:
                for number, op in enumerate(plan.operations):
                    if not isinstance(op, PutOp):
                        results[number] = self._read(table, op, embedded, touched)
            if touched:
                self._log.append(lambda table: self._touch(table, touched), is_lasting=False)
        except (CheckpointerError, ValueError) as error:
            return error
        return results

    def _put_all(self, requests: list[_Request]) -> Exception | None:
        """Store the puts of batches in one record; return the error if that fails."""
        try:
            self._log.append(lambda table: (change for one in requests for change in self._put(table, *one)))
        except CheckpointerError as error:
            return error
        return None

    # Reading

    def _read(
        self,
        table: EntryTable,
        op: GetOp | SearchOp | ListNamespacesOp,
        embedded: _Embedded,
        touched: dict[tuple[Namespace, str], None],
    ) -> Result:
        if isinstance(op, GetOp):
            return self._get(table, op, touched)
        if isinstance(op, SearchOp):
            return self._search(table, op, embedded, touched)
        return self._list_namespaces(table, op)

    def _get(self, table: EntryTable, op: GetOp, touched: dict[tuple[Namespace, str], None]) -> Item | None:
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
        embedded: _Embedded,
        touched: dict[tuple[Namespace, str], None],
    ) -> list[SearchItem]:
        query = embedded.queries.get(op.query) if op.query else None
        candidates = self._find(table, op)
        if query is None:
            first, end = (min(number, sys.maxsize) for number in (op.offset, op.offset + op.limit))
            found = list(islice(candidates, first, end))
        else:
            found = self._rank(candidates, query)[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            touched.update({(one.entry.namespace, one.entry.key): None for one in found if one.entry.ttl is not None})
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
        vectors: list[bytes] = []
        owners: list[_Found] = []
        rest: list[_Found] = []
        for found in candidates:
            entry = found.entry
            if not entry.about:
                rest.append(found)
                continue
            data = self._log.read_content(entry)[entry.value_length :]
            for vector in unpack_vectors(entry.about, data):
                vectors.append(vector)
                owners.append(found)
        best: dict[int, _Found] = {}
        for number, found in zip(score_vectors(query, vectors), owners, strict=True):
            earlier = best.get(id(found.entry))
            if earlier is None or earlier.score is None or number > earlier.score:
                best[id(found.entry)] = found._replace(score=number)
        ranked = sorted(best.values(), key=lambda found: found.score or 0.0, reverse=True)
        return ranked + rest

    def _list_namespaces(self, table: EntryTable, op: ListNamespacesOp) -> list[Namespace]:
        namespaces = table.namespaces()
        if self._omits_expired:
            now = self._log.now()
            namespaces = [
                namespace
                for namespace in namespaces
                if not all(entry.has_expired(now) for entry in table.entries_in(namespace))
            ]
        return select_namespaces(namespaces, op)

    # Writing

    def _put(self, table: EntryTable, plan: _Plan, embedded: _Embedded) -> list[EntryChange]:
        """Return the changes that store the puts of a batch."""
        now = self._log.now()
        changes: list[EntryChange] = []
        for (namespace, key), op in plan.puts.items():
            earlier = table.get(namespace, key)
            if op.value is None:
                if earlier is not None:
                    changes.append(Delete(namespace=namespace, key=key))
                continue
            about, vector_data = None, b""
            if plan.texts:
                texts = plan.texts[namespace, key]
                about, vector_data = pack_vectors({text.path: embedded.texts[text.text] for text in texts})
            changes.append(
                Put(
                    namespace=namespace,
                    key=key,
                    created=now if earlier is None else earlier.created,
                    updated=now,
                    expires=None if op.ttl is None else now + int(op.ttl * _MINUTE),
                    ttl=None if op.ttl is None else float(op.ttl),
                    about=about,
                    value=plan.values[namespace, key],
                    vectors=vector_data,
                )
            )
        return changes

    def _touch(self, table: EntryTable, names: Iterable[tuple[Namespace, str]]) -> Iterator[EntryChange]:
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
                return 0
        swept = 0

        def delete_expired(table: EntryTable) -> Iterator[EntryChange]:
            nonlocal swept
            for entry in table.find_expired(self._log.now()):
                swept += 1
                yield Delete(namespace=entry.namespace, key=entry.key)

        self._log.append(delete_expired)
        return swept

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

    # Damage

    def verify(self) -> EntriesReport:
        """Read every byte and report damage. Changes nothing, and blocks no other process.

        Raises:
            CheckpointStorageError: the file system refused.
        """
        return self._log.verify()

    def repair(self) -> int:
        """Rewrite damaged data from what is readable; keep a copy of the damaged file beside it.

        An item whose last change is damaged has the value of the change before, or is gone.

        Returns:
            How many bytes could not be read; 0 if nothing is damaged and nothing was changed.

        Raises:
            CheckpointFormatError: the data need a newer graphkit.
            CheckpointStorageError: the file system refused. Nothing was changed.
        """
        return self._log.repair().before.lost


def _sweep(store: FileSystemStore, _stop: threading.Event) -> None:
    swept = store.sweep_ttl()
    if swept:
        _LOGGER.info("%d expired items were swept", swept)


def _check_key(namespace: Namespace, key: object) -> None:
    if not isinstance(key, str):
        where = f"the key {key!r} of {namespace!r}"
        raise CheckpointSerializationError(where, type(key).__name__, "a key must be a str")


def _texts_of(plan: _Plan) -> Iterator[str]:
    return (text.text for texts in plan.texts.values() for text in texts)


def _to_datetime(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
