"""The SQL of a saver: its tables and how they are created, and its statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from graphkit.errors import CheckpointFormatError
from savers._delta import MAX_DEPTH
from savers._log.frame import FRAME_SIZE
from savers._sql.database import Dialect, ForeignDatabaseError, Parameters, TableNames

if TYPE_CHECKING:
    from savers._sql.database import Database

SCHEMA_VERSION: Final = 1
"""The version of the tables, for later versions that change them."""
_LONGEST_KEYFRAME: Final = 1 << 15
"""Longer ones are not read before they are wanted. That lists all pieces of a value: 11 KB for a list of
1,000 messages."""
_LAST_POSITION: Final = (1 << 63) - 1
SEAL_MARK: Final = "sealed:"
"""The beginning of the name of the row which says that a store is sealed."""
_IS_MARK: Final = "name >= 'sealed:' AND name < 'sealed;'"


# The tables


def select_version(names: TableNames) -> str:
    """Return the statement that reads the version of the schema; NULL if there is none."""
    return f"SELECT max(value) FROM {names.meta} WHERE name = 'schema'"


def is_current(version: object, path: str) -> bool:
    """Return whether there are tables, which need not be created.

    Args:
        version: the version in the database; None if there are no tables.
        path: the database, for the error.

    Raises:
        CheckpointFormatError: a newer graphkit has created the tables, or no graphkit has.
    """
    if version is None:
        return False
    # A column of SQLite takes values of any type.
    if not isinstance(version, int) or version < 1:
        raise ForeignDatabaseError(path, f"its tables have the version {version!r}, which is none; restore a backup")
    if version > SCHEMA_VERSION:
        raise CheckpointFormatError(
            path,
            f"its tables have version {version} and this graphkit reads up to version {SCHEMA_VERSION}; "
            f"upgrade graphkit",
        )
    return True


def create_tables(execute: Callable[[str, Parameters], object], names: TableNames, dialect: Dialect) -> None:
    """Create the tables; the caller excludes other processes.

    Args:
        execute: executes a statement in a transaction.
        names: the names of the tables.
        dialect: the SQL of the database.
    """
    statements = [
        f"CREATE TABLE {names.meta} (name {dialect.text} PRIMARY KEY, value BIGINT NOT NULL)",
        # version: 0 is live, above 0 released, below 0 being rewritten. Times are microseconds
        # since 1970. The long names are NULL unless the encoded text is cut.
        f"""CREATE TABLE {names.histories} (
            history {dialect.serial_key},
            thread {dialect.text} NOT NULL,
            namespace {dialect.text} NOT NULL,
            version BIGINT NOT NULL,
            keyframe BIGINT NOT NULL DEFAULT 0,
            status {dialect.text},
            created BIGINT NOT NULL,
            released BIGINT,
            long_thread {dialect.bytes},
            long_namespace {dialect.bytes},
            UNIQUE (thread, namespace, version)
        )""",
        # checkpoint: the id, if the record is one. is_keyframe: NULL for others, which
        # takes no byte. terms: those that no earlier record of
        # the history has, as far as its writer knew.
        # On SQLite a table with row ids: WITHOUT ROWID takes 1.1 to 2 times as long for a put of
        # 150 bytes to 64 KiB, and three times the bytes at 1 KB.
        f"""CREATE TABLE {names.records} (
            history BIGINT NOT NULL REFERENCES {names.histories} ON DELETE CASCADE,
            position BIGINT NOT NULL,
            checkpoint {dialect.bytes},
            is_keyframe BOOLEAN,
            frame {dialect.bytes} NOT NULL,
            written BIGINT NOT NULL DEFAULT 0,
            {dialect.terms}
            PRIMARY KEY (history, position)
        )""",
        f"CREATE INDEX {_index(names.records, 'checkpoint')} (history, checkpoint) WHERE checkpoint IS NOT NULL",
        f"CREATE INDEX {_index(names.records, 'keyframe')} (history, position) WHERE is_keyframe",
        f"""CREATE TABLE {names.run_locks} (
            thread {dialect.text} PRIMARY KEY,
            token BIGINT NOT NULL,
            renewed BIGINT NOT NULL,
            expires BIGINT NOT NULL,
            holder {dialect.text} NOT NULL
        )""",
        *(
            statement.format(
                **names._asdict(),
                records_terms=_index(names.records, "terms"),
                terms_history=_index(names.terms, "history"),
            )
            for statement in dialect.extra_statements
        ),
    ]
    for statement in statements:
        execute(statement, ())
    execute(f"INSERT INTO {names.meta} (name, value) VALUES ('schema', ?)", (SCHEMA_VERSION,))


def _index(table: str, column: str) -> str:
    """Return the name of an index, and the table that it is on.

    PostgreSQL creates an index in the schema of its table, so its name has no schema.
    """
    plain = table.rpartition('"."')[2].strip('"')
    return f'"{plain}_{column}" ON {table}'


# The statements


class Statements:
    """The statements of a SQL saver."""

    def __init__(self, database: Database) -> None:  # noqa: PLR0915 - a line for each statement
        self._database = database
        dialect = database.dialect
        names = database.names
        histories = names.histories
        records = names.records
        terms = names.terms
        run_locks = names.run_locks
        owner = "h.thread = ? AND h.namespace = ? AND h.version = ?"
        keeps_keys = dialect.lock_rows("KEY SHARE OF h")

        # Reading one history

        columns = "h.history, h.status, h.keyframe, r.position, r.frame"

        def select_first(condition: str) -> str:
            return (
                f"SELECT {columns} FROM {histories} AS h LEFT JOIN {records} AS r"
                f" ON r.history = h.history AND r.position >= h.keyframe WHERE {condition}"
                f" UNION ALL SELECT {columns} FROM {histories} AS h"
                f" JOIN {records} AS r ON r.history = h.history AND r.position = 0"
                f" WHERE {condition} AND h.keyframe > 0 ORDER BY 4"
            )

        self.select_first = select_first(owner)
        """The first row of a history and those from its last keyframe on. The parameters are the owner, twice."""
        self.select_first_of = select_first("h.history = ?")
        """The same of a history with a number, which is given twice."""
        self.select_new = (
            f"SELECT {columns} FROM {histories} AS h LEFT JOIN {records} AS r ON r.history = h.history"
            " AND r.position >= ? WHERE h.history = ? AND h.version = coalesce(?, h.version) ORDER BY 4"
        )
        """What is new behind a position of a known history; without a row if it is gone or has another version. The
        parameters are the position, the history and its version, NULL for any."""
        # The pluses keep SQLite from walking through the history by its primary key instead of looking
        # into the index of the checkpoints. With max() and min(), PostgreSQL plans for longer.
        self.select_around = (
            "WITH wanted AS MATERIALIZED (SELECT c.history, c.position"
            f" FROM {records} AS c WHERE c.history = ? AND c.checkpoint = ? AND +c.position < ?"
            " ORDER BY +c.position DESC LIMIT 1)"
            f" SELECT r.position, r.frame, w.position FROM wanted AS w JOIN {records} AS r ON r.history = w.history"
            f" AND r.position >= coalesce((SELECT k.position FROM {records} AS k WHERE k.history = w.history"
            " AND k.is_keyframe AND k.position <= w.position ORDER BY k.position DESC LIMIT 1), w.position)"
            f" AND r.position <= coalesce((SELECT n.position FROM {records} AS n"
            " WHERE n.history = w.history AND n.position > w.position AND n.checkpoint IS NOT NULL"
            f" ORDER BY n.position LIMIT 1), {_LAST_POSITION}) ORDER BY 1"
        )
        """The records from the keyframe of a checkpoint to the next checkpoint: what was recorded with it stands
        there. Each comes with the position of the checkpoint. The parameters are the history, the encoded id and
        where the known records end."""

        self.select_keyframes = (
            f"SELECT k.position, k.frame FROM {records} AS k WHERE k.history = ? AND k.is_keyframe"
            f" AND k.position <= ? AND (k.position = ? OR length(k.frame) <= {_LONGEST_KEYFRAME})"
            f" ORDER BY k.position DESC LIMIT {MAX_DEPTH}"
        )
        """A keyframe and those before it: it may name each by the next one. The parameters are the history and the
        position, twice."""

        self.select_row = (
            f"SELECT h.history, r.position, r.frame FROM {histories} AS h JOIN {records} AS r ON r.history = h.history"
            f" WHERE {owner} AND r.position = ?"
        )

        # Reading many histories

        last_row = f"FROM {records} AS r WHERE r.history = h.history ORDER BY r.position DESC LIMIT 1"
        # A row that replaces a checkpoint has its id again, and stands behind newer ones. The index of the
        # checkpoints tells it; the flags of the record would take reading all of it.
        same_id = f"SELECT count(*) FROM {records} AS q WHERE q.history = r.history AND q.checkpoint = r.checkpoint"
        self._newest = (
            f"(SELECT CASE ({same_id}) WHEN 1 THEN r.checkpoint END FROM {records} AS r"
            " WHERE r.history = h.history AND r.checkpoint IS NOT NULL ORDER BY r.position DESC LIMIT 1)"
        )
        """The checkpoint that was written last; NULL if it replaces another one, because that may not be the
        newest."""

        # Appending to one history

        # The last row that the writer knows must be there, with the same checkpoint: after a server
        # has lost what it had acknowledged, a row behind a gap would damage the history.
        known = "p.history = h.history AND p.position = ? AND p.checkpoint IS NOT DISTINCT FROM ?"
        # NULL is equal to nothing: with it, the history may have any checkpoint.
        is_absent = f"NOT EXISTS (SELECT 1 FROM {records} AS q WHERE q.history = h.history AND q.checkpoint = ?)"
        columns = dialect.record_columns
        values = dialect.record_values

        def insert_if(source: str) -> str:
            sql = dialect.insert_if.format(records=records, columns=columns, values=values, source=source)
            return f"{sql}{database.changes.notify_clause}"

        known_history = f"{histories} AS h JOIN {records} AS p ON {known}"
        is_live = f"h.history = ? AND h.version = 0 AND {is_absent}"
        self.insert_record = insert_if(f"FROM {known_history} WHERE {is_live}{keeps_keys}")
        of_holder = (
            f"FROM {known_history} JOIN {run_locks} AS l ON l.thread = h.thread WHERE {is_live} AND l.token = ?"
            f"{dialect.lock_rows('SHARE OF l', 'KEY SHARE OF h')}"
        )
        self.insert_record_of_holder = insert_if(of_holder)
        self._insert_records = f"INSERT INTO {records} ({columns}, history)"
        self.insert_records = f"{self._insert_records} VALUES ({values}, ?)"
        self.insert_terms = f"INSERT INTO {terms} (term, history) VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._insert_history = (
            f"INSERT INTO {histories}"
            " (thread, namespace, version, keyframe, status, created, long_thread, long_namespace)"
            f" SELECT {dialect.history_values}"
        )
        self.insert_history = f"{self._insert_history} RETURNING history"
        marks = f"FROM {names.meta} WHERE {_IS_MARK}"
        self._is_unmarked = f"NOT EXISTS (SELECT 1 {marks})"
        self.select_mark = f"SELECT name {marks} ORDER BY name LIMIT 1"
        self.insert_mark = f"INSERT INTO {names.meta} (name, value) VALUES (?, 1) ON CONFLICT (name) DO NOTHING"
        self.begin_plain_history = f"{self._insert_history} WHERE {self._is_unmarked} RETURNING history"
        """Inserts the row of a plain history, unless the store is sealed."""
        self.update_history = (
            f"UPDATE {histories} SET keyframe = ?, status = ? WHERE history = ? AND version <= 0 AND EXISTS"
            f" (SELECT 1 FROM {records} AS p WHERE p.history = ? AND p.position = ?"
            " AND p.checkpoint IS NOT DISTINCT FROM ?)"
            f" AND NOT EXISTS (SELECT 1 FROM {records} AS q WHERE q.history = ? AND q.checkpoint = ?)"
        )
        self.replace_version = f"UPDATE {histories} SET version = ?, released = ?, created = 0 WHERE history = ?"
        """Puts a rewritten history in the place of a released one. `created` shows a watch that it is no release."""
        self.rename_history = f"UPDATE {histories} SET version = 0 WHERE history = ?"
        self.select_token = f"SELECT 1 FROM {run_locks} AS l WHERE l.thread = ? AND l.token = ?"
        self.lock_token = f"{self.select_token}{dialect.lock_rows('SHARE OF l')}"

        # Threads

        has_checkpoints = "status IS NOT NULL"
        self.select_namespaces = (
            f"SELECT namespace, long_namespace FROM {histories}"
            f" WHERE thread = ? AND version = 0 AND {has_checkpoints} ORDER BY namespace"
        )
        all_threads = f"SELECT DISTINCT thread, long_thread FROM {histories}{dialect.without_index} WHERE"
        self.select_threads = f"{all_threads} version = 0 AND {has_checkpoints} ORDER BY thread"
        self.select_all_threads = f"{all_threads} version >= 0 ORDER BY thread"
        self.select_waiting = f"{all_threads} version = 0 AND status = 'interrupted' ORDER BY thread"
        locks = dialect.lock_rows("UPDATE OF h")
        self.lock_thread = f"SELECT h.history FROM {histories} AS h WHERE h.thread = ? AND h.version = 0{locks}"
        self.select_history = f"SELECT h.history FROM {histories} AS h WHERE {owner}"
        self.lock_history = f"SELECT h.history, h.released FROM {histories} AS h WHERE {owner}{locks}"
        self.select_last_version = f"SELECT max(version) FROM {histories} WHERE thread = ?"
        self.release = f"UPDATE {histories} SET version = ?, released = ? WHERE thread = ? AND version = 0"
        self.delete_thread = f"DELETE FROM {histories} WHERE thread = ?"
        self.delete_history = f"DELETE FROM {histories} WHERE history = ? AND version = ?"
        last_written = f"coalesce((SELECT r.written {last_row}), h.created)"
        written = f"max({last_written}) < ? AND coalesce(max(h.released), 0) < ?"
        threads = f"SELECT h.thread, h.long_thread FROM {histories} AS h"
        are_idle = f"GROUP BY h.thread, h.long_thread HAVING {written}"
        self.select_idle = f"{threads} {are_idle} ORDER BY h.thread"
        self.select_if_idle = f"{threads} WHERE h.thread = ? {are_idle}"
        """Both: the threads with no row, and no release, from a time on, which is given twice."""
        self.lock_whole_thread = f"SELECT h.history FROM {histories} AS h WHERE h.thread = ?{locks}"
        self.count = (
            f"SELECT count(r.checkpoint), count(CASE WHEN substr(r.frame, {FRAME_SIZE}, 1) = ? THEN 1 END)"
            f" FROM {records} AS r WHERE r.history = ? AND r.position < ?"
        )
        """How many rows before a position have a checkpoint, and how many a record of a type. The
        parameters are the type, as a byte, the history and the position."""
        self.measure = (
            f"SELECT coalesce(sum(length(r.frame)), 0) FROM {records} AS r"
            f" JOIN {histories} AS h ON h.history = r.history"
        )
        self.measure_thread = f"{self.measure} WHERE h.thread = ?"

        # Verifying

        owners = f"SELECT history, thread, long_thread, namespace, long_namespace, version FROM {histories}"
        self.select_histories = f"{owners}{dialect.without_index} ORDER BY thread, namespace, version"
        self.select_histories_of = f"{owners} WHERE thread = ? ORDER BY namespace, version"
        self.select_columns = (
            f"SELECT h.keyframe, h.status, (SELECT r.position {last_row}) AS position,"
            f" (SELECT r.position + length(r.frame) {last_row}) AS position FROM {histories} AS h WHERE h.history = ?"
        )
        self.select_status = f"SELECT status FROM {histories} WHERE history = ?"
        self.select_rows = (
            f"SELECT position, checkpoint, is_keyframe, length(frame) AS length FROM {records}"
            " WHERE history = ? AND position > ? ORDER BY position LIMIT ?"
        )
        self.select_orphans = (
            f"SELECT r.history, sum(length(r.frame)), count(*) FROM {records} AS r"
            f" LEFT JOIN {histories} AS h ON h.history = r.history WHERE h.history IS NULL"
            " GROUP BY r.history ORDER BY r.history"
        )

        # Watching

        ends = (
            "SELECT h.history, h.thread, h.long_thread, h.namespace, h.long_namespace, h.version, h.released,"
            f" (SELECT r.position + length(r.frame) {last_row}) AS position,"
            f" (SELECT r.checkpoint FROM {records} AS r WHERE r.history = h.history AND r.checkpoint IS NOT NULL"
            f" ORDER BY r.position DESC LIMIT 1) AS checkpoint, h.status FROM {histories} AS h"
        )
        # Below 0 it is being rewritten. A release that was rewritten has a new number, and is no news.
        is_news = "h.version = 0 OR (h.version > 0 AND h.history > ? AND h.created > 0)"
        self.list_ends = f"{ends}{dialect.without_index} WHERE {is_news} ORDER BY h.thread, h.history"
        self.list_ends_of_thread = f"{ends} WHERE ({is_news}) AND h.thread = ? ORDER BY h.history"
        """Both: where histories end, the live ones and those that were released behind a number, which is the first
        parameter; of all threads, or of one."""
        self.select_end = f"{ends} WHERE h.history = ?"
        self.select_newest_history = f"SELECT max(history) FROM {histories}"

    def select_heads(self, pair_count: int, *, with_newest: bool) -> str:
        """Return the statement that selects the live histories that have a term of each of this many pairs.

        The thread, its whole id, the namespace, its whole name and the newest checkpoint, NULL if that
        is not known or not wanted; in the order of threads and namespaces.
        """
        newest = self._newest if with_newest else "NULL"
        dialect = self._database.dialect
        has_terms = f" AND {dialect.has_term.format(**self._database.names._asdict())}" * pair_count
        return (
            f"SELECT h.thread, h.long_thread, h.namespace, h.long_namespace, {newest} AS checkpoint"
            f" FROM {self._database.names.histories} AS h{dialect.without_index}"
            f" WHERE h.version = 0 AND h.status IS NOT NULL{has_terms} ORDER BY h.thread, h.namespace"
        )

    def write_records(self, row_count: int, *, is_new: bool, is_plain: bool, is_held: bool, notification: str) -> str:
        """Return the statement that inserts records, and inserts or updates the row of their history.

        It returns the number of the history, and nothing if the history is not live or the run lock
        was taken. The parameters are those of the run lock if it is held, of the history, of each
        record, and of the notification.

        Args:
            row_count: how many records.
            is_new: whether the history is inserted.
            is_plain: whether it is not inserted if the store is sealed.
            is_held: whether the caller holds the run lock.
            notification: the expression that notifies.
        """
        parts: list[str] = []
        conditions = ["true"]
        if is_held:
            parts.append(f"l AS MATERIALIZED ({self.lock_token})")
            conditions.append("EXISTS (SELECT 1 FROM l)")
        if is_new and is_plain:
            conditions.append(self._is_unmarked)
        write_history = f"{self.update_history} AND"
        if is_new:
            write_history = f"{self._insert_history} WHERE"
        parts.append(f"h AS ({write_history} {' AND '.join(conditions)} RETURNING history)")
        values = ", ".join([f"({self._database.dialect.record_values})"] * row_count)
        parts.append(f"r AS ({self._insert_records} SELECT v.*, h.history FROM h, (VALUES {values}) AS v)")
        return f"WITH {', '.join(parts)} SELECT history, {notification} FROM h"

    def select_ranges(self, count: int) -> str:
        """Return the statement that selects the rows of so many ranges, in any order.

        The parameters are for each the history, twice, and the offsets between which its bytes are.
        """
        records = self._database.names.records
        # The record in which a range begins, and those that begin before it ends.
        select = (
            f"SELECT r.position, r.frame FROM {records} AS r WHERE r.history = ? AND r.position >= "
            f"(SELECT max(b.position) FROM {records} AS b WHERE b.history = ? AND b.position <= ?)"
            " AND r.position < ?"
        )
        return " UNION ALL ".join([select] * count)
