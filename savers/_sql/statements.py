"""The statements of a SQL saver, made once for its database."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from savers._sql.database import Database


class Statements:
    """The statements of a SQL saver."""

    def __init__(self, database: Database) -> None:
        names = database.names
        histories = names.histories
        records = names.records
        terms = names.terms
        run_locks = names.run_locks
        owner = "h.thread = ? AND h.namespace = ? AND h.version = ?"
        keeps_keys = database.lock_rows(key_share="h")

        # Reading one history

        self.select_new = (
            f"SELECT h.history, h.status, r.position, r.frame FROM {histories} AS h"
            f" LEFT JOIN {records} AS r ON r.history = h.history"
            f" AND r.position >= CASE WHEN h.history = ? THEN ? ELSE h.keyframe END WHERE {owner}"
            f" UNION ALL SELECT h.history, h.status, r.position, r.frame FROM {histories} AS h"
            f" JOIN {records} AS r ON r.history = h.history AND r.position = 0"
            f" WHERE {owner} AND h.history <> ? AND h.keyframe > 0 ORDER BY 3"
        )
        """What is new behind a position of a known history; of another one, its first row and those
        from its last keyframe on. The parameters are the known history, the position, the owner twice
        and the known history again."""
        self.select_checkpoint = (
            f"SELECT position FROM {records} WHERE history = ? AND checkpoint = ? ORDER BY position DESC"
        )

        self.select_row = (
            f"SELECT h.history, r.position, r.frame FROM {histories} AS h JOIN {records} AS r ON r.history = h.history"
            f" WHERE {owner} AND r.position = ?"
        )

        # Appending to one history

        live = f" FROM {histories} AS h WHERE h.history = ? AND h.version = 0"
        self.insert_record = (
            f"INSERT INTO {records} (history, position, checkpoint, frame) SELECT h.history, ?, ?, ?{live}{keeps_keys}"
        )
        self.insert_record_of_holder = (
            f"INSERT INTO {records} (history, position, checkpoint, frame)"
            f" SELECT h.history, ?, ?, ? FROM {histories} AS h JOIN {run_locks} AS l ON l.thread = h.thread"
            f" WHERE h.history = ? AND h.version = 0 AND l.token = ?{database.lock_rows(share='l', key_share='h')}"
        )
        self.insert_records = f"INSERT INTO {records} (history, position, checkpoint, frame) VALUES (?, ?, ?, ?)"
        self.insert_terms = f"INSERT INTO {terms} (term, history, position) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        self.insert_history = (
            f"INSERT INTO {histories}"
            " (thread, namespace, version, keyframe, status, created, long_thread, long_namespace)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING history"
        )
        self.update_history = f"UPDATE {histories} SET keyframe = ?, status = ? WHERE history = ? AND version = 0"
        self.select_token = f"SELECT 1 FROM {run_locks} AS l WHERE l.thread = ? AND l.token = ?"
        self.lock_token = f"{self.select_token}{database.lock_rows(share='l')}"

        # Threads

        has_checkpoints = "status IS NOT NULL"
        self.select_namespaces = (
            f"SELECT namespace, long_namespace FROM {histories}"
            f" WHERE thread = ? AND version = 0 AND {has_checkpoints} ORDER BY namespace"
        )
        self.select_threads = (
            f"SELECT DISTINCT thread, long_thread FROM {histories}"
            f" WHERE version = 0 AND {has_checkpoints} ORDER BY thread"
        )
        self.select_all_threads = (
            f"SELECT DISTINCT thread, long_thread FROM {histories} WHERE {has_checkpoints} ORDER BY thread"
        )
        self.select_versions = (
            f"SELECT DISTINCT version FROM {histories} WHERE thread = ? AND version > 0 ORDER BY version"
        )
        self.select_waiting = (
            f"SELECT DISTINCT thread, long_thread FROM {histories}"
            " WHERE version = 0 AND status = 'interrupted' ORDER BY thread"
        )
        self.find_by_terms = (
            f"SELECT h.thread, h.long_thread, h.namespace, h.long_namespace, r.checkpoint FROM {terms} AS t"
            f" JOIN {histories} AS h ON h.history = t.history AND h.version = 0"
            f" JOIN {records} AS r ON r.history = t.history AND r.position = t.position"
            " WHERE t.term IN (?, ?) ORDER BY h.thread, h.namespace, t.position DESC"
        )
        locks = database.lock_rows(update="h")
        self.lock_thread = f"SELECT h.history FROM {histories} AS h WHERE h.thread = ? AND h.version = 0{locks}"
        self.lock_history = f"SELECT h.history FROM {histories} AS h WHERE {owner}{locks}"
        self.select_last_version = f"SELECT max(version) FROM {histories} WHERE thread = ?"
        self.release = f"UPDATE {histories} SET version = ?, released = ? WHERE thread = ? AND version = 0"
        self.delete_thread = f"DELETE FROM {histories} WHERE thread = ?"
        self.delete_history = f"DELETE FROM {histories} WHERE history = ? AND version = 0"
        self.measure = (
            f"SELECT coalesce(sum(length(r.frame)), 0) FROM {records} AS r"
            f" JOIN {histories} AS h ON h.history = r.history"
        )
        self.measure_thread = f"{self.measure} WHERE h.thread = ?"
        self.select_histories = (
            "SELECT history, thread, long_thread, namespace, long_namespace, version"
            f" FROM {histories} ORDER BY thread, namespace, version"
        )
