"""The histories in one database: opens their logs, and lists what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.errors import CheckpointKeyError
from savers._log.catalogue import Head, LogCatalogue, LogKey
from savers._log.log import Log
from savers._sql.columns import SEALED_TERM, decode_id, decode_row, decode_text, encode_text, is_cut, list_search_terms
from savers._sql.row_log_bytes import RowLogBytes
from savers._sql.statements import SEAL_MARK, Statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from graphkit.saver_kit import Codec
    from savers._cipher import KeyRing
    from savers._compression import Compression
    from savers._sql.database import Database, Row

RowLog = Log[RowLogBytes]
"""A log in rows."""
_MAX_PAIRS: Final = 8
"""A search has at most so many conditions on the index; the caller compares all."""
REWRITTEN: Final = -1
"""The version of a history in the transaction that rewrites it."""


class HistoryRow(NamedTuple):
    """A history as its row describes it."""

    number: int
    thread_id: str
    namespace: str
    version: int


def read_history_row(row: Row) -> HistoryRow:
    """Return a row of `RowStore.list_histories`, decoded.

    Raises:
        DatabaseDamagedError: it has something else in place of a name.
    """
    number, thread, long_thread, namespace, long_namespace, version = row
    return HistoryRow(number, decode_row(thread, long_thread), decode_row(namespace, long_namespace), version)


@final
class RowStore(LogCatalogue[RowLogBytes]):
    """The histories in one database. Several threads of execution and processes may use it at once.

    A sealed database has a mark: a row of the table `meta` whose name has the id of a key. A saver with keys sets
    it before it begins a history. From then on, a saver without keys begins none: the statement that inserts a
    history has that condition, so it costs no round trip.
    """

    def __init__(
        self, database: Database, codec: Codec, compression: Compression | None, key_ring: KeyRing | None
    ) -> None:
        super().__init__(codec, compression)
        self.key_ring = key_ring
        self.database = database
        self.statements = Statements(database)
        self._marked: int | None = None
        """The generation of the database that is known to have the mark."""

    # Logs

    def new_medium(self, thread_id: str, namespace: str, version: int = 0, *, number: int | None = None) -> RowLogBytes:
        """As in LogCatalogue. With a number, of the history that has it, whatever has become of that."""
        return RowLogBytes(self, (thread_id, namespace), version, number)

    def measure(self, thread_id: str | None) -> int:
        """Return the bytes of the records of one thread, or of all threads (None)."""
        sql = self.statements.measure
        parameters: tuple[str, ...] = ()
        if thread_id is not None:
            sql = self.statements.measure_thread
            parameters = (encode_text(thread_id),)
        ((total,),) = self.database.read(sql, parameters)
        return int(total)

    # The mark of a sealed database

    def mark_sealed(self) -> None:
        """Mark the database if the saver has keys, before it begins a history. Not during a transaction.

        Raises:
            CheckpointKeyError: the function that provides the keys failed.
            CheckpointerError: the database refused.
        """
        database = self.database
        if self.key_ring is None or self._marked == database.generation:
            return
        if self._find_mark() is None:
            key_id, _ = self.key_ring.get_current(database.path)
            database.write(self.statements.insert_mark, (f"{SEAL_MARK}{encode_text(key_id)}",))
        self._marked = database.generation

    def check_may_begin_plain(self) -> None:
        """Explain why no history was inserted.

        Raises:
            CheckpointKeyError: the database is sealed, and the saver has no keys.
        """
        key_id = self._find_mark() if self.key_ring is None else None
        if key_id is not None:
            raise CheckpointKeyError(self.database.path, key_id, "open the store with `cipher`", has_keys=False)

    def _find_mark(self) -> str | None:
        """Return the id of the key in the mark; None if there is no mark."""
        rows = self.database.read(self.statements.select_mark)
        if not rows:
            return None
        encoded: str = rows[0][0].removeprefix(SEAL_MARK)
        # Of an id that was cut, this is what people can recognise.
        return encoded if is_cut(encoded) else decode_text(encoded)

    # Listing

    def list_logs(self, thread_id: str | None) -> Iterator[LogKey]:
        for row in self.list_histories(thread_id):
            _, owner, namespace, version = read_history_row(row)
            yield owner, namespace, version

    def list_namespaces(self, thread_id: str) -> list[str]:
        return _decode_rows(self._read_of_thread(self.statements.select_namespaces, thread_id))

    def list_threads(self, *, released: bool) -> list[str]:
        sql = self.statements.select_all_threads if released else self.statements.select_threads
        return _decode_rows(self._read_of_all(sql))

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> list[Head]:
        # Numbers, texts and None are found by the index; for another value, all histories are returned. So are
        # sealed ones, whose metadata no index knows.
        pairs = list_search_terms(metadata)[:_MAX_PAIRS]
        sql = self.statements.select_heads(len(pairs), with_newest=with_newest)
        terms: list[int] = []
        for own_term, term_of_key in pairs:
            terms += (own_term, term_of_key, SEALED_TERM)
        heads: list[Head] = []
        for thread, long_thread, namespace, long_namespace, newest in self._read_of_all(sql, terms):
            newest_id = None
            if newest is not None:
                newest_id = decode_id(newest)
            heads.append(Head(decode_row(thread, long_thread), decode_row(namespace, long_namespace), newest_id))
        return heads

    def list_waiting_threads(self) -> list[str]:
        """Return the threads with a history whose latest checkpoint waits for an answer."""
        return _decode_rows(self._read_of_all(self.statements.select_waiting))

    def list_histories(self, thread_id: str | None) -> list[Row]:
        """Return the histories of one thread, or of all threads (None), also released ones.

        Returns:
            The number, the thread, its whole id, the namespace, its whole name and the version. In the
            order of the threads, namespaces and versions.
        """
        if thread_id is None:
            return self.database.read(self.statements.select_histories)
        return self._read_of_thread(self.statements.select_histories_of, thread_id)

    def _read_of_all(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        rows = self.database.read(sql, parameters)
        self.database.integrity.check_absence(None)
        return rows

    def _read_of_thread(self, sql: str, thread_id: str) -> list[Row]:
        thread = encode_text(thread_id)
        rows = self.database.read(sql, (thread,))
        if not rows:
            self.database.integrity.check_absence(thread)
        return rows


def _decode_rows(rows: Sequence[Row]) -> list[str]:
    return [decode_row(*row) for row in rows]
