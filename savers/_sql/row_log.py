"""The log of one history in the rows of a table, a record in each.

Theory of operation. The rows of a history, in the order of their positions, are the bytes that
docs/format.md specifies: the first row has the header and the META records, each other row one
record. A position is the offset of its record in these bytes.

A writer need not ask whether others have written. It inserts a record at the position where the log
ends as far as it knows. If another writer was faster, the position is taken, and the unique key
refuses the row. If the history was released or deleted, the statement inserts nothing. In both
cases the writer reads what is new and makes its record again.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from graphkit.abc import derive_status
from graphkit.errors import CheckpointStorageError
from savers._log import log
from savers._log.beginning import META_RECORDS, new_header, pack_meta_frames
from savers._log.log_writer import LogWriter, NewCheckpoint, longest_data
from savers._log.stored_checkpoint import outline_writes
from savers._sql.database_errors import HistoryGoneError, OutcomeUnknownError, PositionTakenError
from savers._sql.encoded_text import encode_id
from savers._sql.row_inserts import NEW, Commit, NewRow, RowInserter, StaleLogError
from savers._sql.row_log_reader import RowLogReader
from savers._sql.terms import KnownTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphkit import Checkpoint
    from savers._sql.database import Transaction

_PART_SIZE: Final = 1 << 20
"""A rewrite inserts its records when they have so many bytes."""
_LONG_ROW: Final = 4 << 20
"""Values of more bytes are in rows of their own, of this length each. The client library of PostgreSQL
moves what it has not sent yet with each part that it sends: 100 MB take 2 s in such rows, and 25 in one."""
MAX_PAYLOAD: Final = 800 << 20
"""The most bytes of a payload in a row: SQLite refuses rows of 1,000,000,000 bytes, and PostgreSQL
messages of 1 GiB. Longer values take several records."""


class RowLog(RowLogReader, LogWriter):
    """An open log in rows to which records are appended.

    Records that are appended wait in memory until `commit` inserts them, all or none.
    """

    _doubted: str | None = None
    """An id that was taken to be absent when rows were refused last."""

    @cached_property
    def _inserter(self) -> RowInserter:
        version = self.key[2]
        return RowInserter(self._database, self._statements, self.thread_id, self.namespace, version)

    def _reset(self) -> None:
        super()._reset()
        self._new_rows: list[NewRow] = []
        self._terms = KnownTerms()
        """Terms that the history has, those of records that are not inserted yet included."""
        self._absent: str | None = None
        """An id that the history must not have at the next commit."""

    # Reading what waits

    def read_keyframe(self, position: int) -> log.Frame:
        # A rewrite appends several keyframes before it inserts them, and each names the one before it.
        rows = self._new_rows
        number = bisect_left(rows, position, key=attrgetter("position"))
        if number < len(rows) and rows[number].position == position:
            return self._parse_keyframe(rows[number].frame, position)
        return super().read_keyframe(position)

    # Appending

    def lacks(self, id: str) -> bool:
        """As in LogWriter, without asking the database: if it is not so, the next commit inserts nothing.

        After that, and a refresh, the database is asked.
        """
        if self.fd < 0:
            return True
        last = self.last_checkpoint
        if last is not None and last.id == id:
            return False
        if self.index is not None or id in self.found or id == self._doubted:
            return super().lacks(id)
        self._absent = id
        return True

    @property
    def _most_bytes(self) -> int:
        return MAX_PAYLOAD

    @property
    def _most_keyframe_data(self) -> int:
        return min(longest_data(MAX_PAYLOAD), _LONG_ROW)

    def _append_record(
        self,
        type: int,
        payload: bytes,
        flags: int = 0,
        back: int = 0,
        key: int = 0,
    ) -> int:
        if len(payload) > MAX_PAYLOAD:
            self._check_length(payload)
        self.in_doubt = True
        if self.fd < 0:
            self._begin()
        self._located = None
        if self.is_scattered or flags & (log.SCATTERED | log.REPLACE):
            self.is_scattered = True
            flags |= log.SCATTERED
        offset = self.end
        frame = log.pack_frame(offset, self.fid, self.seq, type, payload, flags, back, key)
        self._new_rows.append(NewRow(offset, frame, bool(flags & log.KEY) or None))
        self.end += len(frame)
        self.seq += 1
        return offset

    def put(self, checkpoint: Checkpoint, target: str | None) -> bool:
        is_usual = super().put(checkpoint, target)
        self._note_checkpoint()
        return is_usual

    def store(self, new: NewCheckpoint) -> None:
        super().store(new)
        self._note_checkpoint()

    def _note_checkpoint(self) -> None:
        """Note whose record the last row has."""
        assert self.last_checkpoint is not None
        row = self._new_rows[-1]
        if row.checkpoint is not None:
            # `store` has noted it, which takes 6 us with metadata.
            return
        stored = self.last_checkpoint
        terms: Sequence[int] = ()
        if stored.metadata:
            terms = self._terms.take_new(stored.metadata)
        self._new_rows[-1] = NewRow(row.position, row.frame, row.is_keyframe, encode_id(stored.id), terms)

    def _begin(self) -> None:
        """Begin a history that does not exist yet."""
        self.fd = NEW
        self.header = new_header(self._digest, 1)
        self.fid = self.header.fid
        self.seq = META_RECORDS
        meta: dict[str, object] = {"thread": self.thread_id, "ns": self.namespace, "opaque": False}
        beginning = self.header.pack() + pack_meta_frames(self.fid, meta, 0)
        self._new_rows.append(NewRow(0, beginning))
        self.end = len(beginning)

    def _undo_records(self, start: int) -> None:  # noqa: ARG002 - all records of a put are one commit
        """Forget what was appended; nothing of it was inserted."""
        if self._new_rows:
            self.close()

    def discard(self) -> None:
        """Forget the records that were appended and not committed."""
        self._absent = None
        if self._new_rows or self.in_doubt:
            self.close()

    # Committing

    def commit(self, token: int | None) -> None:
        """Insert the records that were appended, all or none.

        Args:
            token: the token of the run lock, if the caller holds it: if another holder has taken the
                lock since, nothing is inserted.

        Raises:
            StaleLogError: another writer has changed the history, or the lock was taken. The log is
                closed.
            CheckpointStorageError: the database refused. The log is closed. Nothing was changed.
        """
        rows = self._new_rows
        if not rows:
            self._absent = None
            return
        self._note_last_row()
        try:
            if not self._insert_usual(rows[0], token):
                self._insert(self._make_commit(rows, token))
        except (PositionTakenError, HistoryGoneError, StaleLogError):
            # Perhaps because the id is there.
            self._doubted = self._absent
            self.close()
            raise StaleLogError from None
        except BaseException:
            self.close()
            raise

    def _note_last_row(self) -> None:
        """Note whose record the last row has, if `append_packed` wrote it."""
        last = self.last_checkpoint
        row = self._new_rows[-1]
        if last is not None and row.checkpoint is None and row.position == last.offset:
            self._note_checkpoint()

    def _insert_usual(self, row: NewRow, token: int | None) -> bool:
        """Insert the only new row if that of the history stays as it is; return False, with nothing changed, if not.

        `_insert` does the same with the same statement. This is nearly every commit, and takes half the steps.
        """
        last = self.last_checkpoint
        if len(self._new_rows) > 1 or self.fd == NEW or last is None or last.keyframe_offset != self._keyframe:
            return False
        if row.terms and not self._database.combines_writes:
            return False
        if self._derive_status() != self._status:
            return False
        try:
            self._inserter.insert_one(row, self.fd, self._last_row, self._encode_absent(row), token)
        except OutcomeUnknownError as error:
            self._settle(self._make_commit(self._new_rows, token), error)
        self._note_inserted(row)
        return True

    def _insert(self, commit: Commit) -> None:
        try:
            history = self._inserter.insert(commit)
        except OutcomeUnknownError as error:
            history = self._settle(commit, error)
        self._note_committed(commit, history)

    def _make_commit(self, rows: Sequence[NewRow], token: int | None) -> Commit:
        last = self.last_checkpoint
        keyframe = 0 if last is None else last.keyframe_offset
        status = self._derive_status()
        return Commit(
            history=self.fd,
            rows=rows,
            keyframe=keyframe,
            status=status,
            has_new_keyframe=keyframe != self._keyframe,
            has_new_status=status != self._status,
            last_row=self._last_row,
            absent=self._encode_absent(rows[-1]),
            token=token,
        )

    def _encode_absent(self, row: NewRow) -> bytes | None:
        """Return the id that the history must not have, encoded; usually that of the checkpoint in the last row."""
        absent = self._absent
        if absent is None:
            return None
        last = self.last_checkpoint
        if row.checkpoint is not None and last is not None and last.id == absent:
            return row.checkpoint
        return encode_id(absent)

    def _note_committed(self, commit: Commit, history: int) -> None:
        for row in commit.rows:
            self._note_inserted(row)
        self.fd = self._last_history = history
        self._keyframe = commit.keyframe
        self._status = commit.status

    def _note_inserted(self, row: NewRow) -> None:
        self._source.add(row.position, row.frame, is_keyframe=bool(row.is_keyframe))
        self._last_row = row.position, row.checkpoint
        self._new_rows = []
        self._absent = self._doubted = None

    def _settle(self, commit: Commit, unknown: OutcomeUnknownError) -> int:
        """Find out whether rows were inserted by a commit whose outcome is unknown; if not, insert them.

        They are inserted once: they have the same positions, and the database refuses a position
        that is taken.

        Returns:
            The number of the history.

        Raises:
            OutcomeUnknownError: the database cannot be asked, or the second commit has no outcome either.
            StaleLogError, PositionTakenError: another writer was faster. Nothing was changed.
        """
        history = self._ask_for_inserted(commit, unknown)
        if history is not None:
            return history
        try:
            return self._inserter.insert(commit)
        except (PositionTakenError, StaleLogError):
            # Perhaps the server has executed the first one only now.
            history = self._ask_for_inserted(commit, unknown)
            if history is None:
                raise
            return history

    def _ask_for_inserted(self, commit: Commit, unknown: OutcomeUnknownError) -> int | None:
        try:
            return self._inserter.find_inserted(commit.rows)
        except CheckpointStorageError as error:
            raise unknown from error

    def commit_part(self, transaction: Transaction) -> None:
        """Insert the records that were appended, as part of a transaction, if they take much memory."""
        if sum(len(row.frame) for row in self._new_rows) >= _PART_SIZE:
            self.commit_in(transaction)

    def commit_in(self, transaction: Transaction) -> None:
        """Insert the records that were appended, as part of a transaction."""
        rows = self._new_rows
        if not rows:
            return
        self._note_last_row()
        commit = self._make_commit(rows, None)
        self._note_committed(commit, self._inserter.insert_in(transaction, commit))

    def _derive_status(self) -> str | None:
        """Return the status of the latest checkpoint; None if there is none."""
        last = self.last_checkpoint
        if last is not None and last.is_replacement:
            if self.index is None:
                return self._status  # The record is not about the latest checkpoint.
            last = self.find_latest()
        if last is None:
            return None
        return derive_status(last.next, outline_writes(last.writes, last.cleared), last.metadata)
