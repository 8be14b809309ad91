"""Examines a log of entries: which damage it has, and what a repair keeps. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._filesystem import layout
from savers._filesystem.salvaged_files import FileRange
from savers._log import log
from savers.langgraph._entries.file import EntryFile
from savers.langgraph._entries.rewrite import read_good_entries
from savers.langgraph._entries.table import EntryTable

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

STORE: Final = "langgraph-store"
"""The name of the directory of the store, and the kind of its log."""
CACHE: Final = "langgraph-cache"
"""The same of the cache."""
_MOST_ATTEMPTS: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class EntriesReport:
    """What verify found in the log of a store or a cache."""

    path: str
    """Relative to the directory of the store."""
    state: str = "ok"
    """ok; torn: the last write did not finish, and the next write moves its bytes away; damaged; newer:
    the log needs a newer graphkit; foreign: it is another log, or not a log."""
    offset: int = 0
    """Where the problem begins, if there is one."""
    reason: str = ""
    """What the problem is."""
    size: int = 0
    """Bytes; 0 also if there is no log yet."""
    entries: int = 0
    """Items or cached values that can be read. Of a damaged log, those that a repair keeps."""
    lost: int = 0
    """Bytes of a damaged log that a repair loses; it keeps a copy of the whole log."""

    @property
    def ok(self) -> bool:
        """Whether all of it can be read."""
        return self.state == "ok"


@final
@dataclass(frozen=True, kw_only=True)
class EntriesRepair:
    """What repair did to the log of a store or a cache, or would do."""

    before: EntriesReport
    set_aside: str = ""
    """The path of the file with a copy of the old bytes, relative to the directory of the store."""
    refused: str = ""
    """Why repair did nothing."""

    @property
    def kept(self) -> int:
        """How many items or cached values were kept."""
        return 0 if self.refused else self.before.entries


def examine(io: FileIO, path: str, kind: str) -> EntriesReport:
    """Read every byte of a log, and report what is wrong with it.

    Takes no lock. A log that a writer changes meanwhile is read again, up to three times.

    Args:
        io: the file system.
        path: the file.
        kind: the kind of the log.

    Raises:
        OSError: the file system refused.
    """
    attempt = 1
    while True:
        try:
            fd = io.open(path)
        except (FileNotFoundError, NotADirectoryError):
            return EntriesReport(path=layout.join(kind, layout.LOG))
        file = EntryFile(io, path, kind, fd)
        try:
            size = file.size()
            report = _examine(file, size)
            status = io.fstat(fd)
        finally:
            file.close()
        is_unchanged = status.st_nlink > 0 and status.st_size == size
        if report.ok or is_unchanged or attempt == _MOST_ATTEMPTS:
            return report
        attempt += 1


def _examine(file: EntryFile, size: int) -> EntriesReport:
    path = layout.join(file.kind, layout.LOG)
    try:
        table = file.read_all(size)
    except log.IncompleteLog:
        is_zero = FileRange(io=file.io, fd=file.fd, start=0, end=size).is_zero()
        reason = "" if is_zero else "its creation did not finish"
        return EntriesReport(path=path, state="ok" if is_zero else "torn", reason=reason, size=size)
    except CheckpointCorruptionError as error:
        good = read_good_entries(file)
        return EntriesReport(
            path=path,
            state="damaged",
            offset=error.offset,
            reason=error.reason,
            size=size,
            entries=_count(good.table),
            lost=good.lost,
        )
    except CheckpointFormatError as error:
        is_newer = "newer graphkit" in error.reason or "update it" in error.reason
        state = "newer" if is_newer else "foreign"
        return EntriesReport(path=path, state=state, offset=file.end, reason=error.reason, size=size)
    entries = _count(table)
    if FileRange(io=file.io, fd=file.fd, start=file.end, end=size).is_zero():
        return EntriesReport(path=path, size=size, entries=entries)
    reason = "the last write did not finish"
    return EntriesReport(path=path, state="torn", offset=file.end, reason=reason, size=size, entries=entries)


def _count(table: EntryTable) -> int:
    return len(table.oldest_first())
