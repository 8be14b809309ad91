"""Finds what damage to a SQLite file hides.

Pages have no checksums. If one holds what belongs to another, what it had is missing without an error. So where a
statement finds nothing more, the index that it has used is compared with its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from savers._sql.database import Integrity
from savers._sql.sqlite_connection import make_index_error, quote_name

if TYPE_CHECKING:
    from savers._sql.database import Parameters, Row, TableNames
    from savers._sql.sqlite_connection import SqliteConnection

_MOST_PROBLEMS: Final = 20
"""The most problems that SQLite describes when it checks a file."""
_TYPES: Final = {"INTEGER": "integer", "BIGINT": "integer", "BOOLEAN": "integer", "TEXT": "text", "BLOB": "blob"}
"""What SQLite calls the values of a column, by the type that the table declares."""


class SqliteIntegrity(Integrity):
    """The checks of one file."""

    def __init__(
        self,
        path: str,
        names: TableNames,
        read: Callable[[str, Parameters], list[Row]],
        connect: Callable[[], SqliteConnection],
    ) -> None:
        self._path = path
        self._names = names
        self._read = read
        self._connect = connect
        self._select_neighbours = _make_neighbours_statement(names.histories)
        self._count_threads = (
            f"SELECT (SELECT count(*) FROM {names.histories} WHERE thread >= ''),"
            f" (SELECT count(*) FROM {names.histories} NOT INDEXED)"
        )
        """Counts the entries of the index, and the rows of the table."""
        records = names.records
        self._select_wrong_end = (
            f"SELECT 1 FROM (SELECT rowid AS number, history, position FROM {records}"
            " WHERE (history, position) > (?, ?) ORDER BY history, position LIMIT 1) AS e WHERE NOT EXISTS"
            f" (SELECT 1 FROM {records} AS t NOT INDEXED"
            " WHERE t.rowid = e.number AND t.history = e.history AND t.position = e.position)"
        )
        """Finds the entry of the index behind a row, if it is not that of a row. It takes 4 us."""

    def check_absence(self, thread: str | None) -> None:
        if thread is None:
            ((found, in_table),) = self._read(self._count_threads, ())
            is_right = found == in_table
        else:
            # Then the entries before and behind the thread are not those of the table, or no search finds them.
            ((found, in_table, in_index, has_rows),) = self._read(self._select_neighbours, (thread, thread))
            is_right = found == in_table == in_index and (found > 0 or not has_rows)
        if not is_right:
            raise make_index_error(self._path)

    def check_end(self, history: int, position: int) -> None:
        # A search for rows ends at the first entry of another history. A damaged entry may seem to be one.
        if self._read(self._select_wrong_end, (history, position)):
            raise make_index_error(self._path)

    def check(self) -> Sequence[str]:
        # A connection of its own, because this takes its time.
        with closing(self._connect()) as connection:
            rows = connection.run(f"PRAGMA integrity_check({_MOST_PROBLEMS})", (), "read")[0]
            found = [" ".join(text.split()) for (text,) in rows if text != "ok"]
            for table in self._names:
                found += _check_types(connection, table)
            # Swapped with its own index, the table has good pages. Records without a history are reported one by one.
            if connection.run(f"PRAGMA foreign_key_check({self._names.terms})", (), "read")[0]:
                found.append(f"rows of {self._names.terms} name histories that do not exist")
        return found


def _make_neighbours_statement(histories: str) -> str:
    """Return the statement that looks for the entries around a thread, which is given twice. It takes 7 us.

    It returns how many there are in the index, how many of them are in the table, and how many a search
    finds, and whether the table has rows.
    """
    return (
        "WITH near AS ("
        f"SELECT * FROM (SELECT thread, history FROM {histories} WHERE thread <= ? ORDER BY thread DESC LIMIT 1)"
        f" UNION ALL SELECT * FROM (SELECT thread, history FROM {histories} WHERE thread > ? ORDER BY thread LIMIT 1))"
        " SELECT count(*), count(*) FILTER (WHERE EXISTS"
        f" (SELECT 1 FROM {histories} AS t NOT INDEXED WHERE t.history = near.history AND t.thread = near.thread)),"
        f" count(*) FILTER (WHERE EXISTS (SELECT 1 FROM {histories} AS i WHERE i.thread = near.thread)),"
        f" EXISTS (SELECT 1 FROM {histories} NOT INDEXED) FROM near"
    )


def _check_types(connection: SqliteConnection, table: str) -> Iterator[str]:
    """Yield the columns of a table with values of a type that no writer puts there, which SQLite lets pass."""
    for _, column, declared, _, _, _ in connection.run(f"PRAGMA table_info({table})", (), "read")[0]:
        name = quote_name(column)
        sql = f"SELECT count(*) FROM {table} NOT INDEXED WHERE typeof({name}) NOT IN (?, 'null')"
        ((count,),) = connection.run(sql, (_TYPES.get(declared, ""),), "read")[0]
        if count:
            yield f"{count} values of the column {column} of {table} are no {declared}"
