"""Removes the bytes of deleted rows from the files of a PostgreSQL database, and finds out what keeps some.

Theory of operation. VACUUM FULL writes a table again, without the rows that no transaction can see any more. So
all transactions have to end first that may still see the deleted rows. Those that began earlier have a lower
number than one that begins now, or read a snapshot that does not have it.

The planner's statistics have samples of the columns, short values and ids among them. They are taken again, and
their own table is rewritten, too. ANALYZE leaves the samples of a table without rows as they are, so each table
gets a row for as long as that takes, which no other transaction sees.

What a standby has is what the server had some time ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from savers._sql.postgres_server import BEGIN, PostgresServer
from savers._sql.postgres_session import PostgresError, PostgresSession, describe_error
from savers._threads import Backoff

if TYPE_CHECKING:
    from savers._sql.database import Parameters

_SELECT_RUNNING: Final = """
    SELECT 'process ' || pid FROM pg_catalog.pg_stat_activity
    WHERE pid <> pg_backend_pid() AND age(backend_xid) >= age(?::text::xid)
    UNION ALL
    SELECT 'prepared transaction ' || gid FROM pg_catalog.pg_prepared_xacts WHERE age(transaction) >= age(?::text::xid)
"""
_SELECT_READING: Final = """
    SELECT 'process ' || pid FROM pg_catalog.pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (datname IS NULL OR datname = current_database())
    AND age(backend_xmin) >= age(?::text::xid)
    UNION ALL
    SELECT 'replication slot ' || slot_name FROM pg_catalog.pg_replication_slots WHERE age(xmin) >= age(?::text::xid)
"""
_SELECT_STANDBYS: Final = """
    SELECT coalesce(application_name, 'unknown') FROM pg_catalog.pg_stat_replication
    WHERE replay_lsn IS NULL OR replay_lsn < ?::text::pg_lsn
"""
_SELECT_SAMPLED: Final = "SELECT 1 FROM pg_catalog.pg_stats WHERE schemaname = ?::text LIMIT 1"
_PLACEHOLDERS: Final = (
    """
    WITH h AS (
        INSERT INTO {histories} (thread, namespace, version, created) VALUES ('', '', -9, 0) RETURNING history
    )
    INSERT INTO {records} (history, position, frame) SELECT history, 0, '' FROM h
    """,
    "INSERT INTO {run_locks} (thread, token, renewed, expires, holder) VALUES ('', -9, 0, 0, '')",
    "INSERT INTO {watchers} (watcher, expires) VALUES (-9, now())",
    "ANALYZE {histories}, {records}, {run_locks}, {watchers}",
    "DELETE FROM {histories} WHERE version = -9",
    "DELETE FROM {run_locks} WHERE token = -9",
    "DELETE FROM {watchers} WHERE watcher = -9",
)
"""Take the samples again, also of tables that have no rows otherwise."""
_STATISTICS: Final = "pg_catalog.pg_statistic"


def rewrite_tables(session: PostgresSession, server: PostgresServer) -> list[str]:
    """Rewrite the tables that tell of threads without their deleted rows; return why bytes of these are left.

    Args:
        session: a connection that is used for nothing else.
        server: the tables; waits for transactions that began earlier, and for standbys, for its `lock_timeout`.
    """
    names = server.names
    timeout = server.lock_timeout
    # The tables may be large, and the role may have a limit for its other statements.
    session.run("SET statement_timeout = 0")
    reasons: list[str] = []
    ((number,),) = session.run("SELECT pg_current_xact_id()::xid::text")
    # In this order: while a transaction with a lower number is running, others may still take snapshots that do not
    # have what it and later ones have done. Once it has ended, there are only those that were taken before.
    old = _wait(session, _SELECT_RUNNING, (number, number), timeout)
    old = old or _wait(session, _SELECT_READING, (number, number), timeout)
    if old:
        found = ", ".join(old)
        reasons.append(f"transactions that began earlier may keep deleted rows: end them, and erase again ({found})")
    tables = [names.records, names.histories, names.run_locks, names.watchers]
    if session.run(_SELECT_SAMPLED, (server.schema,)):
        tables.append(_STATISTICS)
        session.run(BEGIN)
        try:
            for statement in _PLACEHOLDERS:
                session.run(statement.format(**names._asdict()))
            session.commit()
        except PostgresError as error:
            session.run("ROLLBACK")
            message = describe_error(error)
            reasons.append(f"{_STATISTICS} has samples of what was deleted, because ANALYZE failed: {message}")
    for table in tables:
        before = _find_file(session, table)
        try:
            session.run(f"VACUUM (FULL) {table}")
        except PostgresError as error:
            message = describe_error(error)
            reasons.append(f"{table} still has what was deleted, because VACUUM FULL failed: {message}")
            continue
        # To a role that may not do it, the server only sends a warning.
        if _find_file(session, table) == before:
            owner = "the database" if table == _STATISTICS else "the table"
            cause = f"this role does not own {owner}: erase as its owner"
            reasons.append(f"{table} still has what was deleted, because {cause}")
    ((end,),) = session.run("SELECT pg_current_wal_lsn()::text")
    behind = _wait(session, _SELECT_STANDBYS, (end,), timeout)
    if behind:
        found = ", ".join(behind)
        reasons.append(f"standbys have not done it yet, or this role may not see how far they are: {found}")
    return reasons


def _find_file(session: PostgresSession, table: str) -> int:
    ((file,),) = session.run("SELECT pg_relation_filenode(?::text::regclass)", (table,))
    return int(file)


def _wait(session: PostgresSession, select: str, parameters: Parameters, timeout: float) -> list[str]:
    """Repeat a statement until it finds no rows, or until the timeout; return the names that it has found last."""
    backoff = Backoff(timeout)
    while True:
        names = [name for (name,) in session.run(select, parameters)]
        if not names or backoff.is_over:
            return names
        backoff.wait()
