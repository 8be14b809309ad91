"""Reads one checkpoint of a history in rows, and nothing else of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointerError
from savers._log import log
from savers._log.frame import IncompleteLog, digest_thread
from savers._log.log_reader import LogReader
from savers._log.past_checkpoint import Place, read_past
from savers._sql.encoded_text import encode_id, encode_text

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from savers._log.past_checkpoint import PastCheckpoint
    from savers._sql.database import Database, Row
    from savers._sql.row_source import RowSource
    from savers._sql.statements import Statements

_FEWEST_ROWS: Final = 2
"""The first row of a history and the last one."""


@final
class PastRows(LogReader):
    """A log in rows that was not opened: of its end, only the last record is known.

    Opening takes the records since the last keyframe, which a caller that wants another checkpoint
    does not need.
    """

    def __init__(
        self, database: Database, source: RowSource, statements: Statements, owner: tuple[str, str], codec: Codec
    ) -> None:
        self._database = database
        self._rows = source
        self._statements = statements
        self.is_alone = False
        """Whether the history was the only live one of its thread, as far as the last read has shown."""
        super().__init__(source, database.path, owner, digest_thread(owner[0]), codec, None)

    def close(self) -> None:
        self._reset()
        self.fd = -1

    def refresh(self) -> bool:
        # Each read begins anew.
        return self.fd >= 0

    def read(self, id: str) -> PastCheckpoint | None:
        """Return a checkpoint with its packed state and writes, with one statement.

        None if an open log must read it, which also finds out what is wrong with it.
        """
        owner = (encode_text(self.thread_id), encode_text(self.namespace))
        rows = self._database.read(self._statements.select_past, (*owner, encode_id(id), *owner))
        first = next((number for number, row in enumerate(rows) if row[3] > 0), len(rows))
        self.is_alone = bool(rows) and not rows[0][3]
        if first < _FEWEST_ROWS or first == len(rows):
            return None
        try:
            if not self._begin(rows[0], rows[first - 1]):
                return None
        except (CheckpointerError, IncompleteLog):
            return None
        found = self._rows.keep_around(self.fd, [row[1:] for row in rows[first:]])
        return None if found is None else read_past(self, Place(*found), id)

    def _begin(self, first: Row, last: Row) -> bool:
        """Take in the first and the last row; return whether a checkpoint can be read in this way."""
        history, position, beginning, _ = first
        if position != 0:
            return False
        self.fd = history
        self.read_beginning(len(beginning), beginning)
        _, position, data, _ = last
        frame = log.parse_frame(data, 0, position, self.fid)
        if isinstance(frame, str):
            return False
        self.end = frame.end
        self.is_scattered = frame.is_scattered
        return not self.is_scattered
