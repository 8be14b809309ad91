"""Where the SQL of the two databases differs: the definition of the tables, and parts of statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What one database understands. The names of tables are in braces."""

    # Tables

    serial_key: str
    """A primary key that counts up and never returns."""
    text: str
    """Text that is ordered by code point."""
    bytes: str
    """Bytes."""
    terms: str = ""
    """The definition of the column of a record's terms; empty if a table has them."""
    extra_statements: tuple[str, ...] = ()
    """What the first step executes at its end."""

    # Statements

    combines_writes: bool
    """Whether one statement can change several tables, and a record has its terms in a column. Then
    a put is one round trip."""
    has_row_locks: bool
    """Whether a SELECT can keep rows from changing until the commit. Otherwise there is one writer at a time."""
    record_columns: str = "position, checkpoint, is_keyframe, frame, written"
    """The columns of a record, without the history;"""
    record_values: str = "?, ?, ?, ?, ?"
    """and their parameters."""
    history_values: str = "?, ?, ?, ?, ?, ?, ?, ?"
    """The parameters of the columns of a history."""
    insert_if: str
    """Inserts a record into {records} if {source}, the rest of a SELECT, finds its history `h`."""
    has_term: str
    """Whether a history `h` has one of three terms."""
    without_index: str = ""
    """Stands behind a table from which all rows are read, so that a damaged index hides none."""

    def lock_rows(self, update: str = "", share: str = "", key_share: str = "") -> str:
        """Return the clause at the end of a SELECT that keeps rows from changing until the commit.

        Args:
            update: the alias of a table whose selected rows the transaction will change.
            share: the alias of a table whose selected rows must not change at all.
            key_share: the alias of a table whose selected rows must keep their keys. The version of
                a history is part of a key.
        """
        locks = {"UPDATE": update, "SHARE": share, "KEY SHARE": key_share} if self.has_row_locks else {}
        return "".join(f" FOR {kind} OF {alias}" for kind, alias in locks.items() if alias)


SQLITE: Final = Dialect(
    serial_key="INTEGER PRIMARY KEY AUTOINCREMENT",
    text="TEXT",
    bytes="BLOB",
    extra_statements=(
        """CREATE TABLE {terms} (
            term BIGINT NOT NULL,
            history BIGINT NOT NULL REFERENCES {histories} ON DELETE CASCADE,
            PRIMARY KEY (term, history)
        ) WITHOUT ROWID""",
        "CREATE INDEX {terms_history} (history)",
    ),
    combines_writes=False,
    has_row_locks=False,
    # SQLite would put the rows of an INSERT that selects from its own table into a temporary table
    # first, which takes 1.5 us of 12. If no history is found, its column would be NULL: OR IGNORE
    # inserts nothing then, nor if the position is taken.
    insert_if="INSERT OR IGNORE INTO {records} ({columns}, history) VALUES ({values}, (SELECT h.history {source}))",
    has_term="h.history IN (SELECT t.history FROM {terms} AS t WHERE t.term IN (?, ?, ?))",
    without_index=" NOT INDEXED",
)
POSTGRES: Final = Dialect(
    serial_key="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    text='TEXT COLLATE "C"',
    bytes="BYTEA",
    terms="terms BIGINT[],",
    extra_statements=(
        # Its rows expire. Only few are there at a time.
        """CREATE TABLE {watchers} (
            watcher BIGINT PRIMARY KEY,
            thread TEXT COLLATE "C",
            expires TIMESTAMP WITH TIME ZONE NOT NULL
        )""",
        # The frames are compressed already.
        "ALTER TABLE {records} ALTER COLUMN frame SET STORAGE EXTERNAL",
        # A put inserts one row, in one statement; a table of terms would take three times the bytes.
        "CREATE INDEX {records_terms} USING gin (terms) WHERE terms IS NOT NULL",
        # Owned, so that it goes with its table.
        "CREATE SEQUENCE {run_locks_token} OWNED BY {run_locks}.token",
    ),
    combines_writes=True,
    has_row_locks=True,
    record_columns="position, checkpoint, is_keyframe, frame, written, terms",
    history_values="?::text, ?::text, ?::bigint, ?::bigint, ?::text, ?::bigint, ?::bytea, ?::bytea",
    record_values="?::bigint, ?::bytea, ?::boolean, ?::bytea, ?::bigint, ?::bigint[]",
    insert_if="INSERT INTO {records} ({columns}, history) SELECT {values}, h.history {source}",
    # PostgreSQL would ask the index for each history as long as it has no statistics of the tables:
    # 0.5 s for 1,000 histories. An array is made once, whatever it expects.
    has_term=("h.history = ANY(ARRAY(SELECT r.history FROM {records} AS r WHERE r.terms && ARRAY[?, ?, ?]::bigint[]))"),
)
