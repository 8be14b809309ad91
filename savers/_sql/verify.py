"""Verifies histories in rows: checks every byte and every column, and reports what is wrong.

It changes nothing and takes no lock.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, final

from graphkit.abc import VerifyReport
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from graphkit.saver_kit import FileReport, FileState, ThreadReport, derive_status
from savers._log.frame import CHECKPOINT, KEY, META, Frame, IncompleteLog
from savers._log.log_checker import FINDINGS, LogChecker
from savers._log.stored_checkpoint import outline_writes
from savers._sql.columns import encode_id
from savers._sql.database import ForeignDatabaseError
from savers._sql.row_store import HistoryRow, read_history_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphkit.saver_kit import Progress
    from savers._sql.row_store import RowLog, RowStore

_ROWS_AT_ONCE: Final = 1000


class _Columns(NamedTuple):
    """The columns of a history that its records determine, and where the last record begins and ends."""

    keyframe: int
    status: str | None
    last: int | None
    end: int | None


def verify(store: RowStore, thread_id: str | None, progress: Progress | None = None) -> VerifyReport:
    """Check one thread, or all threads (None)."""
    # What is wrong with the database itself, whichever history it belongs to.
    problems: dict[str, FileState] = {}
    if thread_id is None:
        with _reported(problems):
            for reason in store.database.integrity.check():
                problems[reason] = "damaged"
    histories: list[HistoryRow] = []
    with _reported(problems):
        for row in store.list_histories(thread_id):
            with _reported(problems):
                histories.append(read_history_row(row))
    total = done = 0
    if progress is not None and histories:
        with _reported(problems):
            total = store.measure(thread_id)
    threads: list[ThreadReport] = []
    for owner, group in groupby(histories, lambda history: history.thread_id):
        reports: list[FileReport] = []
        for history in group:
            report = _check(store, history)
            if report is None:
                continue
            reports.append(report)
            if progress is not None:
                done = min(total, done + report.size)
                progress(done, total, report.path)
        if reports:
            threads.append(ThreadReport(thread_id=owner, directory="", files=tuple(reports)))
    if thread_id is None:
        with _reported(problems):
            for number, size, records in store.database.read(store.statements.select_orphans):
                report = FileReport(
                    path=f"history {number}",
                    state="damaged",
                    reason="its row is missing, so that it belongs to no thread",
                    size=int(size),
                    records=int(records),
                )
                threads.append(ThreadReport(thread_id=None, directory="", files=(report,)))
    if problems:
        files = [FileReport(path="the database", state=state, reason=reason) for reason, state in problems.items()]
        threads.append(ThreadReport(thread_id=None, directory="", files=tuple(files)))
    return VerifyReport(
        threads=tuple(threads),
        size=sum(file.size for thread in threads for file in thread.files),
    )


@contextmanager
def _reported(problems: dict[str, FileState]) -> Iterator[None]:
    """Note that the database cannot be read, in place of the error."""
    try:
        yield
    except CheckpointCorruptionError as error:
        problems[error.reason] = "damaged"
    except ForeignDatabaseError as error:
        problems[error.reason] = "foreign"


def _check(store: RowStore, history: HistoryRow) -> FileReport | None:
    """Check a history; None if it was deleted, or rewritten under another number, meanwhile."""
    # A log of its own, so that nothing comes from a cache. It is opened to the end that the columns name and no
    # further: writers go on meanwhile, and what they add is checked the next time.
    owner = (history.thread_id, history.namespace)
    examined = store.make_log(store.new_medium(*owner, history.version, number=history.number), *owner)
    checker = _RowChecker(store, history.number, examined)
    state: FileState = "damaged"
    offset = size = 0
    reason = ""
    try:
        columns = _read_columns(store, history)
        if columns is None:
            return None
        size = columns.end or 0
        examined.frames.bytes.open_to(size)
        examined.frames.end = size
        checker.check_rows(columns)
        state = "ok"
    except IncompleteLog:
        reason = "the beginning of its first record is missing"
    except FINDINGS as error:
        state, offset, reason = checker.explain(error)
    if state != "ok":
        # What a rewrite deletes during the check looks like damage.
        with suppress(CheckpointCorruptionError):
            if _read_columns(store, history) is None:
                return None
    name = f"history {history.number}"
    if history.namespace:
        name += f", namespace {history.namespace}"
    if history.version:
        name += f", version {history.version}"
    return checker.make_report(name, size, state, offset, reason)


def _read_columns(store: RowStore, history: HistoryRow) -> _Columns | None:
    rows = store.database.read(store.statements.select_columns, (history.number,))
    return _Columns(*rows[0]) if rows else None


@final
class _RowChecker(LogChecker):
    """Checks the rows of one history in order."""

    def __init__(self, store: RowStore, number: int, checked_log: RowLog) -> None:
        super().__init__(checked_log)
        self._store = store
        self._number = number
        self._rows = self._read_rows()
        self._row_end = 0
        """Where the last row that was taken ends."""

    def check_rows(self, columns: _Columns) -> None:
        """Check all rows, and the columns of the history.

        Two readers go through the history side by side: LogChecker through the bytes, which the rows give when they
        are joined, and this one through the columns of the same rows. At each record both must be at the same place.

        Raises:
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it needs a newer graphkit, or belongs to another thread.
        """
        path = self._log.path
        if columns.last is None or columns.end is None:
            raise CheckpointCorruptionError(path, 0, "it has no records")
        if columns.end == columns.last:
            raise CheckpointCorruptionError(path, columns.last, "its row has no bytes")
        position, checkpoint, _ = self._take_row(0)
        if position != 0:
            raise CheckpointCorruptionError(path, 0, "the first record is missing")
        if checkpoint is not None:
            raise CheckpointCorruptionError(path, 0, "the first row has the id of a checkpoint")
        self.check(columns.end)
        if self.good_end != columns.end:
            raise CheckpointCorruptionError(path, self.good_end, "a record is missing")
        expected = self._replay.keyframe_offset
        if columns.keyframe != expected:
            reason = f"the last keyframe is there, but the row of the history says {columns.keyframe}"
            raise CheckpointCorruptionError(path, expected, reason)
        try:
            checkpoints = self._log.history.load_all(columns.end).checkpoints
        except CheckpointSerializationError:
            # A type of the application is not registered. The status may be right.
            return
        status: str | None = None
        if checkpoints:
            last = checkpoints[-1]
            status = derive_status(last.next, outline_writes(last.writes, last.cleared), last.metadata)
        if columns.status != status:
            reason = f"the row of the history has the status {columns.status!r} instead of {status!r}"
            raise CheckpointCorruptionError(path, expected, reason)

    def _read_rows(self) -> Iterator[tuple[int, bytes | None, bool | None, int]]:
        """Yield the position of each row, its columns about the record, and the length of the record."""
        last = -1
        while True:
            rows = self._store.database.read(self._store.statements.select_rows, (self._number, last, _ROWS_AT_ONCE))
            yield from rows
            if len(rows) < _ROWS_AT_ONCE:
                return
            last = rows[-1][0]

    def _take_row(self, offset: int) -> tuple[int, bytes | None, bool]:
        """Return the position of the next row, the encoded id of its checkpoint, and whether it is a keyframe."""
        row = next(self._rows, None)
        if row is None:
            raise CheckpointCorruptionError(self._log.path, offset, "a record is missing")
        position, checkpoint, is_keyframe, length = row
        self._row_end = position + length
        return position, checkpoint, bool(is_keyframe)

    def _check_record(self, frame: Frame) -> None:
        super()._check_record(frame)
        path = self._log.path
        if frame.type == META:
            # Its row has the header, too.
            return
        position, checkpoint, is_keyframe = self._take_row(frame.offset)
        if position != frame.offset or self._row_end != frame.end:
            raise CheckpointCorruptionError(path, frame.offset, "it does not have a row of its own")
        expected: bytes | None = None
        if frame.type == CHECKPOINT:
            assert self._replay.checkpoint is not None
            expected = encode_id(self._replay.checkpoint.id)
        if checkpoint != expected:
            reason = f"its row has the checkpoint {checkpoint!r} instead of {expected!r}"
            raise CheckpointCorruptionError(path, frame.offset, reason)
        if is_keyframe is not bool(frame.flags & KEY):
            reason = "its row calls it a keyframe" if is_keyframe else "its row does not call it a keyframe"
            raise CheckpointCorruptionError(path, frame.offset, reason)
