"""The statements of a SQL saver, made once for its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from savers._log.log import FRAME_SIZE
from savers._sql.around_checkpoint import PROBED, find_around
from savers._sql.encoded_text import UUID_BYTES

if TYPE_CHECKING:
    from savers._sql.database import Database


class Statements:
    """The statements of a SQL saver."""

    def __init__(self, database: Database) -> None:  # noqa: PLR0915 - a line for each statement
        self._database = database
        self._make_follow_statements(database)
        names = database.names
        histories = names.histories
        records = names.records
        terms = names.terms
        run_locks = names.run_locks
        owner = "h.thread = ? AND h.namespace = ? AND h.version = ?"
        keeps_keys = database.lock_rows(key_share="h")

        # Reading one history

        columns = "h.history, h.status, r.position, r.frame"
        # One of these costs less than a statement of its own, which every first read would take.
        has_others = (
            f"EXISTS (SELECT 1 FROM {histories} AS o WHERE o.thread = ? AND o.version = 0 AND o.namespace <> ?)"
        )
        self.select_first = (
            f"SELECT {columns}, {has_others} FROM {histories} AS h LEFT JOIN {records} AS r"
            f" ON r.history = h.history AND r.position >= h.keyframe WHERE {owner}"
            f" UNION ALL SELECT {columns}, NULL FROM {histories} AS h"
            f" JOIN {records} AS r ON r.history = h.history AND r.position = 0"
            f" WHERE {owner} AND h.keyframe > 0 ORDER BY 3"
        )
        """The first row of a history and those from its last keyframe on. The last column says in the last
        row whether the thread has other namespaces. The parameters are the thread and the namespace, and
        the owner twice."""
        self.select_new = (
            f"SELECT {columns} FROM {histories} AS h LEFT JOIN {records} AS r ON r.history = h.history"
            f" AND r.position >= CASE WHEN h.history = ? THEN ? ELSE h.keyframe END WHERE {owner}"
            f" UNION ALL SELECT {columns} FROM {histories} AS h"
            f" JOIN {records} AS r ON r.history = h.history AND r.position = 0"
            f" WHERE {owner} AND h.history <> ? AND h.keyframe > 0 ORDER BY 3"
        )
        """What is new behind a position of a known history; of another one, its first row and those
        from its last keyframe on. The parameters are the known history, the position, the owner twice
        and the known history again."""
        self.select_new_and_past = (
            f"WITH {find_around(records, '?', PROBED)} SELECT {columns}, 0 FROM {histories} AS h"
            f" LEFT JOIN {records} AS r ON r.history = h.history AND r.position >= ?"
            " WHERE h.history = ? AND h.version = ?"
            " UNION ALL SELECT history, NULL, position, frame, found FROM around ORDER BY 5, 3"
        )
        """What is new behind a position of a known history, if it is live, each with 0; and the records
        around a checkpoint, each with the position of that one. The parameters are the history, the encoded
        id of the checkpoint, the position, the history and the version."""
        of_live = f"FROM live AS l JOIN {records} AS r ON r.history = l.history AND r.position ="
        self.select_past = (
            f"WITH live AS MATERIALIZED (SELECT h.history FROM {histories} AS h"
            " WHERE h.thread = ? AND h.namespace = ? AND h.version = 0),"
            f" {find_around(records, '(SELECT history FROM live)')}"
            f" SELECT r.history, r.position, r.frame, CASE WHEN {has_others} THEN -1 ELSE 0 END {of_live} 0"
            f" UNION ALL SELECT r.history, r.position, r.frame, 0 {of_live}"
            f" (SELECT z.position FROM {records} AS z WHERE z.history = l.history ORDER BY z.position DESC LIMIT 1)"
            " UNION ALL SELECT history, position, frame, found FROM around ORDER BY 4, 2"
        )
        """Of a live history, the first and the last row, each with 0, and the records around a checkpoint,
        each with the position of that one. If the thread has other namespaces, the first row has -1. The
        parameters are the owner, without the version, the encoded id of the checkpoint, and the owner again."""
        # The plus keeps SQLite from walking through the history by its primary key instead of
        # looking into the index of the checkpoints.
        self.select_checkpoint = (
            f"SELECT position FROM {records} WHERE history = ? AND checkpoint = ? ORDER BY +position DESC"
        )

        self.select_row = (
            f"SELECT h.history, r.position, r.frame FROM {histories} AS h JOIN {records} AS r ON r.history = h.history"
            f" WHERE {owner} AND r.position = ?"
        )

        # Reading many histories

        self._live = (
            "SELECT h.history, h.thread, h.long_thread, h.namespace, h.long_namespace, h.keyframe,"
            f" (SELECT max(r.position) FROM {records} AS r WHERE r.history = h.history) AS position"
        )
        # A row that replaces a checkpoint has its id again, and stands behind newer ones. The index of the
        # checkpoints tells it; the flags of the record would take reading all of it.
        same_id = f"SELECT count(*) FROM {records} AS q WHERE q.history = r.history AND q.checkpoint = r.checkpoint"
        self._newest = (
            f"(SELECT CASE ({same_id}) WHEN 1 THEN r.checkpoint END FROM {records} AS r"
            " WHERE r.history = h.history AND r.checkpoint IS NOT NULL ORDER BY r.position DESC LIMIT 1)"
        )
        """The checkpoint that was written last; NULL if it replaces another one, because that may not be the
        newest."""
        self.select_frames = f"SELECT frame FROM {records} WHERE history = ? ORDER BY position"
        self.select_by_terms = f"SELECT DISTINCT {self._histories_with_term()}"

        # Appending to one history

        notify = database.notify_clause()
        # The last row that the writer knows must be there, with the same checkpoint: after a server
        # has lost what it had acknowledged, a row behind a gap would damage the history.
        known = "p.history = h.history AND p.position = ? AND p.checkpoint IS NOT DISTINCT FROM ?"
        # NULL is equal to nothing: with it, the history may have any checkpoint.
        is_absent = f"NOT EXISTS (SELECT 1 FROM {records} AS q WHERE q.history = h.history AND q.checkpoint = ?)"
        columns = "history, position, checkpoint, is_keyframe, frame, written"
        values = "?, ?, ?, ?, ?"
        if database.combines_writes:
            columns += ", terms"
            values = "?, ?, ?::boolean, ?, ?, ?::bigint[]"
        self._into_records = f"INTO {records} ({columns})"
        self._insert_records = f"INSERT {self._into_records}"
        known_history = f"{histories} AS h JOIN {records} AS p ON {known}"
        is_live = f"h.history = ? AND h.version = 0 AND {is_absent}"
        self.insert_record = self._insert_if(values, f"FROM {known_history} WHERE {is_live}{keeps_keys}") + notify
        of_holder = (
            f"FROM {known_history} JOIN {run_locks} AS l ON l.thread = h.thread WHERE {is_live} AND l.token = ?"
            f"{database.lock_rows(share='l', key_share='h')}"
        )
        self.insert_record_of_holder = self._insert_if(values, of_holder) + notify
        self.insert_records = f"{self._insert_records} VALUES (?, {values})"
        self.insert_terms = f"INSERT INTO {terms} (term, history) VALUES (?, ?) ON CONFLICT DO NOTHING"
        self.insert_history = (
            f"INSERT INTO {histories}"
            " (thread, namespace, version, keyframe, status, created, long_thread, long_namespace)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING history"
        )
        self.update_history = (
            f"UPDATE {histories} SET keyframe = ?, status = ? WHERE history = ? AND version <= 0 AND EXISTS"
            f" (SELECT 1 FROM {records} AS p WHERE p.history = ? AND p.position = ?"
            " AND p.checkpoint IS NOT DISTINCT FROM ?)"
            f" AND NOT EXISTS (SELECT 1 FROM {records} AS q WHERE q.history = ? AND q.checkpoint = ?)"
        )
        self.update_history_and_notify = f"{self.update_history}{notify}"
        self.rename_history = f"UPDATE {histories} SET version = 0 WHERE history = ?"
        self.select_token = f"SELECT 1 FROM {run_locks} AS l WHERE l.thread = ? AND l.token = ?"
        self.lock_token = f"{self.select_token}{database.lock_rows(share='l')}"

        # Threads

        has_checkpoints = "status IS NOT NULL"
        self.select_namespaces = (
            f"SELECT namespace, long_namespace FROM {histories}"
            f" WHERE thread = ? AND version = 0 AND {has_checkpoints} ORDER BY namespace"
        )
        all_threads = f"SELECT DISTINCT thread, long_thread FROM {histories}{database.without_index} WHERE"
        self.select_threads = f"{all_threads} version = 0 AND {has_checkpoints} ORDER BY thread"
        self.select_all_threads = f"{all_threads} {has_checkpoints} ORDER BY thread"
        self.select_versions = (
            f"SELECT DISTINCT version FROM {histories} WHERE thread = ? AND version > 0 ORDER BY version"
        )
        self.select_waiting = f"{all_threads} version = 0 AND status = 'interrupted' ORDER BY thread"
        locks = database.lock_rows(update="h")
        self.lock_thread = f"SELECT h.history FROM {histories} AS h WHERE h.thread = ? AND h.version = 0{locks}"
        self.select_history = f"SELECT h.history FROM {histories} AS h WHERE {owner}"
        self.lock_history = f"{self.select_history}{locks}"
        self.select_last_version = f"SELECT max(version) FROM {histories} WHERE thread = ?"
        self.release = f"UPDATE {histories} SET version = ?, released = ? WHERE thread = ? AND version = 0"
        self.delete_thread = f"DELETE FROM {histories} WHERE thread = ?"
        self.delete_history = f"DELETE FROM {histories} WHERE history = ? AND version = 0"
        self.select_version_namespaces = (
            f"SELECT namespace, long_namespace FROM {histories}"
            f" WHERE thread = ? AND version = ? AND {has_checkpoints} ORDER BY namespace"
        )
        last_written = (
            f"(SELECT r.written FROM {records} AS r WHERE r.history = h.history ORDER BY r.position DESC LIMIT 1)"
        )
        written = f"max(coalesce({last_written}, h.created)) < ? AND coalesce(max(h.released), 0) < ?"
        self.select_idle = (
            f"SELECT h.thread, h.long_thread FROM {histories} AS h"
            f" GROUP BY h.thread, h.long_thread HAVING {written} ORDER BY h.thread"
        )
        self.select_if_idle = (
            f"SELECT h.thread, h.long_thread FROM {histories} AS h WHERE h.thread = ?"
            f" GROUP BY h.thread, h.long_thread HAVING {written}"
        )
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
        self.select_histories = f"{owners}{database.without_index} ORDER BY thread, namespace, version"
        self.select_histories_of = f"{owners} WHERE thread = ? ORDER BY namespace, version"
        last = f"FROM {records} AS r WHERE r.history = h.history ORDER BY r.position DESC LIMIT 1"
        self.select_columns = (
            f"SELECT h.keyframe, h.status, (SELECT r.position {last}) AS position,"
            f" (SELECT r.position + length(r.frame) {last}) AS position FROM {histories} AS h WHERE h.history = ?"
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

    def _make_follow_statements(self, database: Database) -> None:
        histories = database.names.histories
        records = database.names.records
        self.select_last_checkpoint = (
            f"SELECT max(position) AS position FROM {records}"
            " WHERE history = ? AND position < ? AND checkpoint IS NOT NULL"
        )
        of_history = f"FROM {records} AS r WHERE r.history = h.history"
        ends = (
            "SELECT h.history, h.thread, h.long_thread, h.namespace, h.long_namespace, h.version, h.released,"
            f" (SELECT r.position + length(r.frame) {of_history} ORDER BY r.position DESC LIMIT 1) AS position,"
            f" (SELECT r.checkpoint {of_history} AND r.checkpoint IS NOT NULL ORDER BY r.position DESC LIMIT 1)"
            " AS checkpoint"
            f" FROM {histories} AS h"
        )
        # Below 0 it is being rewritten.
        is_news = "h.version = 0 OR (h.version > 0 AND h.history > ?)"
        self.list_ends = f"{ends}{database.without_index} WHERE {is_news} ORDER BY h.thread, h.history"
        self.list_ends_of_thread = f"{ends} WHERE ({is_news}) AND h.thread = ? ORDER BY h.history"
        self.select_end = f"{ends} WHERE h.history = ?"
        self.select_newest_history = f"SELECT max(history) FROM {histories}"

    def select_live(self, pair_count: int) -> str:
        """Return the statement that selects the live histories that have a term of each of this many pairs.

        Each comes with the position of its last record and its newest checkpoint, NULL if that is not known.
        """
        histories = self._database.names.histories
        return (
            f"{self._live}, {self._newest} AS checkpoint FROM {histories} AS h{self._database.without_index}"
            f" WHERE {self._is_live(pair_count)} ORDER BY h.thread, h.namespace"
        )

    def select_newest(self, pair_count: int) -> str:
        """Return the statement that selects some live histories that have a term of each of this many pairs.

        Those whose newest id is no UUID or not known, and then those with the greatest ones. Namespaces between two
        names are left out; the last column says whether the thread has one. The parameters are the
        terms, the two names, how many histories, and the two names again.
        """
        histories = self._database.names.histories
        # Of 1,000 histories, this takes half the time of all columns of all of them, and Python has
        # none of their rows to decode.
        return (
            f"WITH live AS MATERIALIZED (SELECT h.history, {self._newest} AS newest FROM {histories} AS h"
            f"{self._database.without_index} WHERE {self._is_live(pair_count)}"
            " AND NOT (h.namespace >= ? AND h.namespace < ?)),"
            " newest AS (SELECT l.history, l.newest FROM live AS l"
            f" ORDER BY CASE WHEN length(l.newest) = {UUID_BYTES} THEN 1 ELSE 0 END, l.newest DESC LIMIT ?)"
            f" {self._live}, n.newest AS checkpoint, EXISTS (SELECT 1 FROM {histories} AS e"
            " WHERE e.thread = h.thread AND e.version = 0 AND e.namespace >= ? AND e.namespace < ?)"
            f" FROM newest AS n JOIN {histories} AS h ON h.history = n.history ORDER BY h.thread, h.namespace"
        )

    def _is_live(self, pair_count: int) -> str:
        condition = f" AND {self.has_terms(pair_count)}" if pair_count else ""
        return f"h.version = 0 AND h.status IS NOT NULL{condition}"

    def has_terms(self, pair_count: int) -> str:
        """Return the condition that a history `h` has a term of each of this many pairs."""
        has_term = f"h.history IN (SELECT {self._histories_with_term()})"
        if self._database.combines_writes:
            # PostgreSQL would ask the index for each history as long as it has no statistics of the
            # tables: 0.5 s for 1,000 histories. An array is made once, whatever it expects.
            has_term = f"h.history = ANY(ARRAY(SELECT {self._histories_with_term()}))"
        return " AND ".join([has_term] * pair_count)

    def _histories_with_term(self) -> str:
        """Return what selects the histories with one of two terms, some perhaps twice."""
        names = self._database.names
        if self._database.combines_writes:
            return f"r.history FROM {names.records} AS r WHERE r.terms && ARRAY[?, ?]::bigint[]"
        return f"t.history FROM {names.terms} AS t WHERE t.term IN (?, ?)"

    def write_records(self, row_count: int, *, is_new: bool, is_held: bool, notification: str) -> str:
        """Return the statement that inserts records, and inserts or updates the row of their history.

        It returns the number of the history, and nothing if the history is not live or the run lock
        was taken. The parameters are those of the run lock if it is held, of the history, of each
        record, and of the notification.

        Args:
            row_count: how many records.
            is_new: whether the history is inserted.
            is_held: whether the caller holds the run lock.
            notification: the expression that notifies; empty if there is nothing to notify.
        """
        names = self._database.names
        parts: list[str] = []
        condition = ""
        if is_held:
            parts.append(f"l AS MATERIALIZED ({self.lock_token})")
            condition = "EXISTS (SELECT 1 FROM l)"
        if is_new:
            where = f" WHERE {condition}" if condition else ""
            parts.append(
                f"h AS (INSERT INTO {names.histories}"
                " (thread, namespace, version, keyframe, status, created, long_thread, long_namespace)"
                " SELECT ?::text, ?::text, ?::bigint, ?::bigint, ?::text, ?::bigint, ?::bytea, ?::bytea"
                f"{where} RETURNING history)"
            )
        else:
            where = f" AND {condition}" if condition else ""
            parts.append(f"h AS ({self.update_history}{where} RETURNING history)")
        values = ", ".join(["(?::bigint, ?::bytea, ?::boolean, ?::bytea, ?::bigint, ?::bigint[])"] * row_count)
        parts.append(f"r AS ({self._insert_records} SELECT h.history, v.* FROM h, (VALUES {values}) AS v)")
        result = f", {notification}" if notification else ""
        return f"WITH {', '.join(parts)} SELECT history{result} FROM h"

    def _insert_if(self, values: str, source: str) -> str:
        """Return the statement that inserts a record if the history `h` is found; see `RowInserter`."""
        if self._database.combines_writes:
            return f"{self._insert_records} SELECT h.history, {values} {source}"
        # SQLite would put the rows of an INSERT that selects from its own table into a temporary table
        # first, which takes 1.5 us of 12. If no history is found, its column would be NULL: OR IGNORE
        # inserts nothing then, nor if the position is taken.
        return f"INSERT OR IGNORE {self._into_records} VALUES ((SELECT h.history {source}), {values})"

    def select_frames_of(self, count: int) -> str:
        """Return the statement that selects the bytes of the rows of so many histories."""
        return (
            f"SELECT history, frame FROM {self._database.names.records}"
            f" WHERE history IN ({_list_parameters(count)}) ORDER BY history, position"
        )

    def select_tails_of(self, count: int) -> str:
        """Return the statement that selects the first row, and those from the last keyframe on, of so many."""
        columns = "SELECT h.history, h.status, r.position, r.frame"
        return (
            f"WITH wanted AS (SELECT history, status, keyframe FROM {self._database.names.histories}"
            f" WHERE history IN ({_list_parameters(count)}))"
            f" {columns} FROM wanted AS h JOIN {self._database.names.records} AS r"
            " ON r.history = h.history AND r.position >= h.keyframe"
            f" UNION ALL {columns} FROM wanted AS h JOIN {self._database.names.records} AS r"
            " ON r.history = h.history AND r.position = 0 WHERE h.keyframe > 0 ORDER BY 1, 3"
        )


def _list_parameters(count: int) -> str:
    return ", ".join("?" * count)
