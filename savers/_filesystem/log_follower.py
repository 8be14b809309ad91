"""Follows one log: reads what other processes append to it, as changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, final

from savers._filesystem.file_log_reader import FileLogReader
from savers._log import log
from savers._log.change_reader import ChangeReader

if TYPE_CHECKING:
    from graphkit.abc import Change


class Bookmark(NamedTuple):
    """Where in which file a follower stopped reading."""

    inode: int
    """The file; 0: it was replaced, or cut, since."""
    end: int
    last: str | None = None
    """The id of the last checkpoint that was reported."""
    is_over: bool = False
    """Whether the end of this history was reported."""


@final
class LogFollower(ChangeReader, FileLogReader):
    """An open log that is read again and again; it decodes no states and keeps no index."""

    def open_at(self, end: int | None) -> bool:
        """Open the file and read it as it was when it ended at an offset.

        Args:
            end: the offset; None: the present end.
        """
        try:
            self.fd = self.io.open(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            status = self.io.fstat(self.fd)
            self.inode = status.st_ino
            start = self.read_beginning(status.st_size)
            limit = status.st_size if end is None else min(end, status.st_size)
            if limit > start and not self._read_end(limit, start):
                self._read_all(limit)
        except log.IncompleteLog:
            self.close()
            return False
        except BaseException:
            self.close()
            raise
        self.table = None
        self.index = None
        return True

    def bookmark(self) -> Bookmark:
        """Return a bookmark for the position to which the log was read."""
        return Bookmark(
            inode=self.inode,
            end=self.end,
            last=self.last_reported,
            is_over=self.closed_by is not None,
        )

    # Changes

    def read_changes(self) -> Iterator[Change]:
        """Yield the changes that were appended since the last call."""
        yield from self.read_changes_to(self.io.fstat(self.fd).st_size)

    def _read_write_time(self) -> datetime:
        """Return when the log was last written to."""
        return datetime.fromtimestamp(self.io.fstat(self.fd).st_mtime, UTC)
