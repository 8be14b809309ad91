"""The tables: their version, their creation and their migration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphkit.errors import CheckpointFormatError
from savers._sql.database import Dialect, ForeignDatabaseError, Parameters, TableNames

SCHEMA_VERSION: Final = 1


def select_version(names: TableNames) -> str:
    """Return the statement that reads the version of the schema; NULL if there is none."""
    return f"SELECT max(value) FROM {names.meta} WHERE name = 'schema'"


def is_current(version: object, path: str) -> bool:
    """Return whether the tables need neither creation nor migration.

    Args:
        version: the version in the database; None if there are no tables.
        path: the database, for the error.

    Raises:
        CheckpointFormatError: a newer graphkit has created or migrated the tables, or no graphkit has.
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
    return version == SCHEMA_VERSION


def migrate(
    execute: Callable[[str, Parameters], object],
    version: int | None,
    names: TableNames,
    dialect: Dialect,
) -> None:
    """Create the tables, or bring them to the current version; the caller excludes other processes.

    Args:
        execute: executes a statement in a transaction.
        version: the version in the database; None if there are no tables.
        names: the names of the tables.
        dialect: the SQL of the database.
    """
    for step in _STEPS[version or 0 :]:
        for statement in step(names, dialect):
            execute(statement, ())
    execute(
        f"INSERT INTO {names.meta} (name, value) VALUES ('schema', ?) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (SCHEMA_VERSION,),
    )


def name_token_sequence(names: TableNames) -> str:
    """Return the name of the sequence that numbers the run locks on PostgreSQL."""
    return f'{names.run_locks[:-1]}_token"'


def _create_tables(names: TableNames, dialect: Dialect) -> list[str]:
    return [
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
                run_locks_token=name_token_sequence(names),
                records_terms=_index(names.records, "terms"),
                terms_history=_index(names.terms, "history"),
            )
            for statement in dialect.extra_statements
        ),
    ]


_STEPS: Final[list[Callable[[TableNames, Dialect], list[str]]]] = [_create_tables]
"""Step n brings a schema of version n to version n + 1."""


def _index(table: str, column: str) -> str:
    """Return the name of an index, and the table that it is on.

    PostgreSQL creates an index in the schema of its table, so its name has no schema.
    """
    plain = table.rpartition('"."')[2].strip('"')
    return f'"{plain}_{column}" ON {table}'
