"""Inserts the records of one history, and changes its row: in one statement if possible.

Every statement has the conditions under which the records belong there: the history is live, the
last record that the writer knows is there, no other checkpoint has the id that must be new, and the
run lock is still that of the writer. If one does not hold, nothing is inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from graphkit.errors import CheckpointStorageError
from graphkit.saver_kit import derive_status
from savers._log.frame import KEY
from savers._log.log_bytes import StaleLogError
from savers._log.stored_checkpoint import outline_writes
from savers._sql.columns import SEALED_TERM, KnownTerms, encode_id, encode_long, encode_text
from savers._sql.database import OutcomeUnknownError

if TYPE_CHECKING:
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers._sql.database import Row, Transaction
    from savers._sql.row_store import RowStore

NEW: Final = 0
"""Stands for the number of a history that is not inserted yet; numbers begin with 1."""
_MOST_COMBINED: Final = 8
"""One statement inserts at most so many records."""
_MOST_COMBINED_SIZE: Final = 16 << 20
"""Several records that are sent together have fewer bytes than this. PostgreSQL ends the connection at
1 GB, and what the client library sends slows down long before."""


class NewRow(NamedTuple):
    """A record that was appended and is not inserted yet."""

    position: int
    frame: bytes
    is_keyframe: bool | None = None
    """None instead of False, as in the column."""
    checkpoint: bytes | None = None
    """The encoded id of the checkpoint, if the record is one."""
    terms: Sequence[int] = ()
    """The terms of its metadata that the history did not have before, as far as is known."""


class RowHead(NamedTuple):
    """What the row of a history says, as far as is known."""

    status: str | None = None
    keyframe: int = 0
    """The position of the last keyframe."""
    last_position: int = 0
    """The position of the last row;"""
    last_id: bytes | None = None
    """and the encoded id of its checkpoint, if it has one."""


@dataclass(slots=True, kw_only=True)
class Commit:
    """Records that are inserted together, and what must hold for it."""

    history: int
    """The number of the history; NEW if it is inserted, too."""
    rows: Sequence[NewRow]
    """The records; at least one."""
    before: RowHead
    """The row of the history before them: its last record must be the last one;"""
    after: RowHead
    """and with them."""
    absent: bytes | None
    """The encoded id of a checkpoint that the history must not have; None if any may be there."""
    token: int | None
    """The token of the run lock, if the writer holds it."""

    @property
    def is_usual(self) -> bool:
        """Whether it is one record, and the row of the history stays as it is."""
        is_same = self.after.keyframe == self.before.keyframe and self.after.status == self.before.status
        return is_same and len(self.rows) == 1 and self.history != NEW

    @property
    def last_row(self) -> tuple[int, bytes | None]:
        """The position of the last record that the writer knows, and its encoded id if it is a checkpoint."""
        return self.before.last_position, self.before.last_id

    @property
    def size(self) -> int:
        """The bytes of all records."""
        return sum(len(row.frame) for row in self.rows)

    @property
    def is_short(self) -> bool:
        """Whether one statement can insert all records."""
        return len(self.rows) <= _MOST_COMBINED and self.size < _MOST_COMBINED_SIZE


@final
class RowInserter:
    """The records of one history that wait for a commit, and the commit.

    Attributes:
        key: the thread, the namespace and the version in the row of the history.
        head: what that row says, as far as is known.
        pending: the records.
        transaction: what `commit` inserts in, instead of a transaction of its own.
    """

    def __init__(self, store: RowStore, owner: tuple[str, str], version: int) -> None:
        self._store = store
        self._database = store.database
        self._statements = store.statements
        self._owner = owner
        self.key: Final = (encode_text(owner[0]), encode_text(owner[1]), version)
        self._notified = self.key[:1] if store.database.changes.notify_clause else ()
        """The parameter with which a put's statement notifies the watches of the thread."""
        self._begins_plain = store.key_ring is None and version == 0
        """Whether a sealed store refuses a new history: a plain one that does not take the place of another one."""
        self.transaction: Transaction | None = None
        self._doubted: str | None = None
        """An id that was taken to be absent when rows were refused last."""
        self.forget()

    def forget(self) -> None:
        """Forget the records that wait, and what is known of the history."""
        self.pending: list[NewRow] = []
        self.head = RowHead()
        self._terms = KnownTerms()
        """Terms that the history has, those of pending records included."""
        self._absent: str | None = None
        """An id that the history must not have at the next commit."""

    def expect_absent(self, id: str) -> bool:
        """As in LogBytes, for one id at a commit. If that was refused, the next call makes the caller look for it."""
        if id == self._doubted or self._absent not in {None, id}:
            return False
        self._absent = id
        return True

    def begin(self, beginning: bytes) -> None:
        """Let the first record wait."""
        terms: Sequence[int] = ()
        if self._store.key_ring is not None:
            terms = (SEALED_TERM,)
        self.pending.append(NewRow(0, beginning, terms=terms))

    def add(self, position: int, frame: bytes, flags: int, checkpoint: StoredCheckpoint | None) -> None:
        """Let a record wait; see `LogBytes.append`."""
        encoded = None
        terms: Sequence[int] = ()
        if checkpoint is not None:
            encoded = encode_id(checkpoint.id)
            if checkpoint.metadata and self._store.key_ring is None:
                terms = self._terms.take_new(checkpoint.metadata)
        is_keyframe = bool(flags & KEY)
        self.pending.append(NewRow(position, frame, is_keyframe or None, encoded, terms))

    def commit(self, history: int, latest: StoredCheckpoint | None) -> int:
        """Insert the records that wait, all or none; return the number of the history.

        Args:
            history: the number of the history, or NEW.
            latest: the latest checkpoint, with these records.

        Raises:
            StaleLogError: another writer has changed the history, or the run lock was taken. Nothing was changed.
            CheckpointerError: as `_insert_surely`.
        """
        rows = self.pending
        if not rows:
            self._absent = None
            return history
        keyframe = self.head.keyframe
        for row in rows:
            if row.is_keyframe:
                keyframe = row.position
        status = None
        if latest is not None:
            status = derive_status(latest.next, outline_writes(latest.writes, latest.cleared), latest.metadata)
        absent = None
        if self._absent is not None:
            absent = encode_id(self._absent)
        # A transaction has locked the run lock already.
        token = None
        if self.transaction is None:
            token = self._database.run_locks.token_of(self._owner[0])
        after = RowHead(status, keyframe, rows[-1].position, rows[-1].checkpoint)
        commit = Commit(history=history, rows=rows, before=self.head, after=after, absent=absent, token=token)
        try:
            if self.transaction is None:
                history = self._insert_surely(commit)
            else:
                history = self._insert_in(self.transaction, commit)
        except StaleLogError:
            # One statement has all conditions, so it does not say which one failed. Perhaps the id is there: the
            # caller, who reads what is new and tries again, looks for it this time.
            self._doubted = self._absent
            raise StaleLogError from None
        self.head = after
        self.pending = []
        self._absent = self._doubted = None
        return history

    def _insert_surely(self, commit: Commit) -> int:
        """Insert records in a transaction of their own; return the number of the history.

        If the outcome of the commit is unknown, the database is asked for it. The records are inserted
        once: they have the same positions, and the database refuses a position that is taken.

        Raises:
            StaleLogError: another writer has changed the history, or the run lock was taken. Nothing was changed.
            OutcomeUnknownError: the connection was lost meanwhile, and the database cannot be asked.
            CheckpointKeyError: the store is sealed, and the saver has no keys. Nothing was changed.
            CheckpointerError: the database refused. Nothing was changed.
        """
        if commit.history == NEW:
            self._store.mark_sealed()
        try:
            return self._insert(commit)
        except OutcomeUnknownError as unknown:
            # The statement was sent and no answer came. Either the server has committed it, which its rows show, or it
            # never will, or it has not executed it yet: it may still work for a client that is gone. So trying again
            # is safe, because only one of the two can take the position, and losing against oneself is success.
            history = self._find_inserted(commit, unknown)
            if history is not None:
                return history
            try:
                return self._insert(commit)
            except StaleLogError:
                history = self._find_inserted(commit, unknown)
                if history is None:
                    raise
                return history

    def _find_inserted(self, commit: Commit, unknown: OutcomeUnknownError) -> int | None:
        """Return the history in which the records are, after a commit whose outcome is unknown; None if in none.

        The last one tells it for all: a commit inserts all or none.
        """
        last = commit.rows[-1]
        try:
            found = self._database.read(self._statements.select_row, (*self.key, last.position))
        except CheckpointStorageError as error:
            raise unknown from error
        for history, position, frame in found:
            if position == last.position and frame == last.frame:
                return int(history)
        return None

    def _insert(self, commit: Commit) -> int:
        combines_writes = self._database.dialect.combines_writes
        if commit.is_usual and (combines_writes or not commit.rows[0].terms):
            self._insert_usual(commit)
            return commit.history
        if combines_writes and commit.is_short:
            return self._insert_combined(commit)
        return self._database.transact(lambda transaction: self._insert_in(transaction, commit))

    def _insert_usual(self, commit: Commit) -> None:
        """Insert one record behind the last one, as nearly every put does; the row of its history stays as it is."""
        # The statement has all conditions.
        sql = self._statements.insert_record
        parameters = (*self._list_values(commit.rows[0]), *commit.last_row, commit.history, commit.absent)
        if commit.token is not None:
            sql = self._statements.insert_record_of_holder
            parameters += (commit.token,)
        if not self._database.write(sql, (*parameters, *self._notified)):
            raise StaleLogError

    def _list_values(self, row: NewRow) -> tuple[Any, ...]:
        """Return the values of the columns of a record, without the history."""
        values = (row.position, row.checkpoint, row.is_keyframe, row.frame, time_ns() // 1000)
        if self._database.dialect.combines_writes:
            return (*values, list(row.terms) or None)
        return values

    def _insert_combined(self, commit: Commit) -> int:
        """Insert records and change the row of their history in one statement, in one round trip."""
        parameters: list[Any] = []
        if commit.token is not None:
            parameters += (self.key[0], commit.token)
        if commit.history == NEW:
            parameters += self._list_history_values(commit)
        else:
            parameters += self._list_changes(commit)
        for row in commit.rows:
            parameters += self._list_values(row)
        notification, values = self._database.changes.make_notification(self._owner[0])
        parameters += values
        sql = self._statements.write_records(
            len(commit.rows),
            is_new=commit.history == NEW,
            is_plain=self._begins_plain,
            is_held=commit.token is not None,
            notification=notification,
        )
        return self._find_written(commit, self._database.write_returning(sql, parameters))

    def _find_written(self, commit: Commit, found: Sequence[Row]) -> int:
        """Return the number of the history that a statement has inserted or changed.

        Raises:
            StaleLogError, CheckpointKeyError: it has found that it may not.
        """
        if found:
            return int(found[0][0])
        if commit.history == NEW:
            self._store.check_may_begin_plain()
        raise StaleLogError

    def _list_history_values(self, commit: Commit) -> tuple[Any, ...]:
        """Return the values of the columns of a history that is inserted."""
        head = commit.after
        return *self.key, head.keyframe, head.status, time_ns() // 1000, *map(encode_long, self._owner)

    def _list_changes(self, commit: Commit) -> tuple[Any, ...]:
        """Return the parameters of the statement that changes the row of a history."""
        history = commit.history
        return (commit.after.keyframe, commit.after.status, history, history, *commit.last_row, history, commit.absent)

    def _insert_in(self, transaction: Transaction, commit: Commit) -> int:
        """Insert records as part of a transaction; return the number of the history."""
        statements = self._statements
        if commit.token is not None and not transaction.execute(statements.lock_token, (self.key[0], commit.token)):
            raise StaleLogError
        history = commit.history
        if history == NEW:
            sql = statements.begin_plain_history if self._begins_plain else statements.insert_history
            history = self._find_written(commit, transaction.execute(sql, self._list_history_values(commit)))
        elif not transaction.change(statements.update_history, self._list_changes(commit)):
            raise StaleLogError
        rows = [(*self._list_values(row), history) for row in commit.rows]
        if commit.size < _MOST_COMBINED_SIZE:
            transaction.execute_many(statements.insert_records, rows)
        else:
            # One at a time: the client would keep all of them in memory until the last one is sent.
            for values in rows:
                transaction.execute(statements.insert_records, values)
        if not self._database.dialect.combines_writes:  # otherwise the record has its terms
            terms = [(term, history) for row in commit.rows for term in row.terms]
            if terms:
                transaction.execute_many(statements.insert_terms, terms)
        transaction.notify_status(self._owner[0])
        return history
