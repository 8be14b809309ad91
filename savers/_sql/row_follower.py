"""Follows one history in rows, for a watch."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, final

from graphkit.errors import CheckpointCorruptionError
from savers._log import log
from savers._log.change_reader import ChangeReader
from savers._log.frame import digest_thread

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from savers._sql.database import Database
    from savers._sql.row_source import RowSource
    from savers._sql.statements import Statements


@final
class RowFollower(ChangeReader):
    """An open log in rows that is read again and again; it decodes no states and keeps no index."""

    def __init__(
        self,
        database: Database,
        source: RowSource,
        statements: Statements,
        owner: tuple[str, str],
        codec: Codec,
    ) -> None:
        self._database = database
        self._statements = statements
        super().__init__(source, database.path, owner, digest_thread(owner[0]), codec, None)

    def _reset(self) -> None:
        super()._reset()
        self.fd = -1

    def close(self) -> None:
        self._reset()

    def refresh(self) -> bool:
        # The watch knows where the log ends.
        return self.fd >= 0

    def open_at(self, history: int, end: int, size: int) -> None:
        """Read a history as it was when it ended at an offset.

        Args:
            history: the number of the history.
            end: the offset; 0 is before all records.
            size: where the log ends now.
        """
        self.fd = history
        try:
            self.read_beginning(size)
        except log.IncompleteLog:
            raise CheckpointCorruptionError(self.path, 0, "the first record is cut short") from None
        if end > self.end:
            self._read_end(end)
        self.table = None
        self.index = None

    def _read_end(self, end: int) -> None:
        ((position,),) = self._database.read(self._statements.select_last_checkpoint, (self.fd, end))
        if position is None:
            self._read_all(end)
            return
        last = log.read_frame(self.file, position, end)
        self._load_last_checkpoint(last)
        self.seq = last.seq + 1
        self.end = last.end
        self.is_scattered = last.is_scattered
        self._read_on(end)

    def _read_write_time(self) -> datetime | None:
        return None
