"""Reads a log of entries: into a table, or to report its damage and what a repair keeps. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from logging import getLogger
from typing import Any, Final, NamedTuple, final

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._filesystem import layout
from savers._filesystem.io import FileIO
from savers._filesystem.log_bytes import FileLogBytes
from savers._log.frame import ANCILLARY, HEADER_SIZE, META, WRITE, IncompleteLog, digest_thread, is_newer
from savers._log.frame_log import FrameLog, Identity
from savers._log.log_bytes import Change
from savers._log.records import Records
from savers.langgraph._entries.records import EntryTable, unpack_changes

STORE: Final = "langgraph-store"
"""The name of the directory of the store, and the kind of its log."""
CACHE: Final = "langgraph-cache"
"""The same of the cache."""
_META_KEY: Final = "entries"
_MAX_ATTEMPTS: Final = 3
_LOGGER: Final = getLogger("graphkit")


class EntriesIdentity(Identity):
    """The identity of a log of entries: its kind, which is also the name of its directory."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.digest = digest_thread(kind)

    def make_meta(self) -> dict[str, Any]:
        return {_META_KEY: self.kind}

    def check_meta(self, path: str, meta: Any) -> None:
        if not isinstance(meta, dict) or meta.get(_META_KEY) != self.kind:
            raise CheckpointFormatError(path, f"it is not a log of {self.kind}; put the file back where it came from")


EntryFrames = FrameLog[FileLogBytes, EntriesIdentity]


def read_on(frames: EntryFrames, table: EntryTable) -> None:
    """Apply the records behind the known end of a log to a table.

    Raises:
        CheckpointCorruptionError: the log is damaged. The table has a part of the changes.
        CheckpointFormatError: it needs a newer graphkit. Likewise.
    """
    for frame in frames.read_on(frames.bytes.size):
        if frame.type == WRITE:
            changes = unpack_changes(frames.path, frame.offset, frame.payload)
            table.apply(changes)
        elif frame.type != META and not frame.type & ANCILLARY:
            reason = f"the record at byte {frame.offset} needs a newer graphkit"
            raise CheckpointFormatError(frames.path, reason)
    frames.bytes.note_end(frames.end)


class GoodEntries(NamedTuple):
    """What is good of a damaged log."""

    table: EntryTable
    lost: int
    """How many bytes do not belong to a good record."""


def read_good_entries(frames: EntryFrames) -> GoodEntries:
    """Read all records of an open log that prove themselves, whatever is between them."""
    table = EntryTable()
    size = frames.bytes.size
    lost = max(0, size - HEADER_SIZE)
    for frame in Records(frames.bytes, None).search(0, size):
        lost -= frame.end - frame.offset
        if frame.type != WRITE:
            continue
        try:
            table.apply(unpack_changes(frames.path, frame.offset, frame.payload))
        except CheckpointCorruptionError as error:
            _LOGGER.warning("%s; the record was left out", error)
    return GoodEntries(table, lost)


class EntriesState(StrEnum):
    """What is wrong with a log; see EntriesReport."""

    OK = "ok"
    TORN = "torn"
    DAMAGED = "damaged"
    NEWER = "newer"
    FOREIGN = "foreign"


@final
@dataclass(frozen=True, kw_only=True)
class EntriesReport:
    """What verify found in the log of a store or a cache."""

    path: str
    """Relative to the directory of the store."""
    state: EntriesState = EntriesState.OK
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
        return self.state is EntriesState.OK


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
    medium = FileLogBytes(io, path)
    frames = EntryFrames(medium, EntriesIdentity(kind))
    report = EntriesReport(path=layout.join(kind, layout.LOG))
    for _ in range(_MAX_ATTEMPTS):
        try:
            if not medium.open():
                break
            report = _examine(frames)
            is_unchanged = medium.refresh(report.size) is Change.NONE
        finally:
            frames.close()
        if report.ok or is_unchanged:
            break
    return report


def _examine(frames: EntryFrames) -> EntriesReport:
    size = frames.bytes.size
    report = EntriesReport(path=layout.join(frames.identity.kind, layout.LOG), size=size)
    table = EntryTable()
    try:
        frames.read_beginning(size)
        read_on(frames, table)
    except IncompleteLog:
        if frames.records.is_zero(0, size):
            return report
        return replace(report, state=EntriesState.TORN, reason="its creation did not finish")
    except CheckpointCorruptionError as error:
        good = read_good_entries(frames)
        report = replace(report, entries=len(good.table), lost=good.lost)
        return replace(report, state=EntriesState.DAMAGED, offset=error.offset, reason=error.reason)
    except CheckpointFormatError as error:
        # A record of unknown type is of a newer format, too.
        is_of_newer = frames.end > 0 or is_newer(frames.bytes.read_at(0, HEADER_SIZE))
        state = EntriesState.NEWER if is_of_newer else EntriesState.FOREIGN
        return replace(report, state=state, offset=frames.end, reason=error.reason)
    report = replace(report, entries=len(table))
    if frames.records.is_zero(frames.end, size):
        return report
    return replace(report, state=EntriesState.TORN, offset=frames.end, reason="the last write did not finish")
