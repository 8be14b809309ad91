"""The histories in one database: opens their logs, and lists what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from savers._log.open_logs import OpenLogs
from savers._sql.encoded_text import decode_row, encode_text
from savers._sql.past_rows import PastRows
from savers._sql.row_follower import RowFollower
from savers._sql.row_log import RowLog
from savers._sql.row_source import RowSource
from savers._sql.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkit.codec import Codec
    from savers._compression import Compression
    from savers._sql.database import Database, Row


REWRITTEN: Final = -1
"""The version of a history in the transaction that rewrites it."""


class RowStore:
    """The histories in one database. Several threads of execution and processes may use it at once."""

    def __init__(self, database: Database, codec: Codec, compression: Compression | None) -> None:
        self.database = database
        self.codec = codec
        self.compression = compression
        self.statements = Statements(database)
        self.logs = OpenLogs()
        self.source = RowSource(database)

    # Logs

    def shared_log(self, thread_id: str, namespace: str, version: int = 0) -> RowLog:
        """Return the log of a history, whether it exists or not.

        Other callers may use it too: hold its mutex.

        Args:
            thread_id: the thread.
            namespace: the namespace.
            version: 0 for the live history; otherwise a released version.
        """
        key = (thread_id, namespace, version)
        found = self.logs.find(key)
        if found is None:
            found = self.logs.add(key, self.new_log(thread_id, namespace, version))
        assert isinstance(found, RowLog)
        return found

    def new_log(
        self,
        thread_id: str,
        namespace: str,
        version: int = 0,
        source: RowSource | None = None,
    ) -> RowLog:
        """Return the log of a history for one caller.

        Args:
            thread_id: the thread.
            namespace: the namespace.
            version: as in `shared_log`.
            source: what reads its bytes, by default the source of all logs, which remembers the last read.
        """
        owner = (thread_id, namespace)
        new = RowLog(self.database, source or self.source, self.statements, owner, self.codec, version)
        new.compression = self.compression
        return new

    def new_past(self, thread_id: str, namespace: str) -> PastRows:
        """Return what reads past checkpoints of a live history without opening its log."""
        return PastRows(self.database, self.source, self.statements, (thread_id, namespace), self.codec)

    # For watches

    def new_follower(self, thread_id: str, namespace: str) -> RowFollower:
        """Return a log that reports changes; it reads through a source of its own."""
        source = RowSource(self.database)
        return RowFollower(self.database, source, self.statements, (thread_id, namespace), self.codec)

    def find_newest_history(self) -> int:
        """Return the highest number of a history; 0 if there is none."""
        ((number,),) = self._read(self.statements.select_newest_history)
        return number or 0

    def list_ends(self, thread: str | None, newest: int) -> list[Row]:
        """Return where histories end: the live ones, and released ones behind a number.

        Args:
            thread: the encoded id of the thread; None: all threads.
            newest: the number.

        Returns:
            The number, the thread, its whole id, the namespace, its whole name, the version, the time of
            the release, the end of the log and the encoded id of the last checkpoint. In the order of
            the threads and numbers.
        """
        if thread is None:
            return self._read(self.statements.list_ends, (newest,))
        return self._read(self.statements.list_ends_of_thread, (newest, thread))

    def find_end(self, history: int) -> list[Row]:
        """Return the same of one history; nothing if it is gone."""
        return self._read(self.statements.select_end, (history,))

    # Listing

    def list_namespaces(self, thread_id: str) -> list[str]:
        """Return the namespaces of a thread that have checkpoints, sorted."""
        return _decode_rows(self._read_of_thread(self.statements.select_namespaces, thread_id))

    def list_threads(self, *, released: bool) -> list[str]:
        """Return the threads that have checkpoints; with `released`, also those with only versions."""
        sql = self.statements.select_all_threads if released else self.statements.select_threads
        return _decode_rows(self._read_of_all(sql))

    def list_waiting_threads(self) -> list[str]:
        """Return the threads with a history whose latest checkpoint waits for an answer."""
        return _decode_rows(self._read_of_all(self.statements.select_waiting))

    def list_versions(self, thread_id: str) -> list[int]:
        """Return the released versions of a thread, in order."""
        return [version for (version,) in self._read_of_thread(self.statements.select_versions, thread_id)]

    def list_version_namespaces(self, thread_id: str, version: int) -> list[str]:
        """Return the namespaces of a released version that have checkpoints, sorted."""
        return _decode_rows(self._read_of_thread(self.statements.select_version_namespaces, thread_id, version))

    def list_histories(self, thread_id: str | None) -> list[Row]:
        """Return the histories of one thread, or of all threads (None), also released ones.

        Returns:
            The number, the thread, its whole id, the namespace, its whole name and the version. In the
            order of the threads, namespaces and versions.
        """
        if thread_id is None:
            return self._read(self.statements.select_histories)
        return self._read_of_thread(self.statements.select_histories_of, thread_id)

    def _read_of_all(self, sql: str) -> list[Row]:
        rows = self._read(sql)
        self.database.check_absence(None)
        return rows

    def _read_of_thread(self, sql: str, thread_id: str, *parameters: object) -> list[Row]:
        thread = encode_text(thread_id)
        rows = self._read(sql, (thread, *parameters))
        if not rows:
            self.database.check_absence(thread)
        return rows

    def _read(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        return self.database.read(sql, parameters)


def _decode_rows(rows: Sequence[Row]) -> list[str]:
    return [decode_row(*row) for row in rows]
