"""The records of a log of entries, and how a reader applies them to a table."""

from __future__ import annotations

from logging import getLogger
from typing import Any, Final, NamedTuple

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError
from savers._filesystem.log_bytes import FileLogBytes
from savers._log.frame import ANCILLARY, HEADER_SIZE, META, WRITE, digest_thread
from savers._log.frame_log import FrameLog, Identity
from savers._log.records import Records
from savers.langgraph._entries.records import unpack_changes
from savers.langgraph._entries.table import EntryTable

_META_KEY: Final = "entries"
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
    medium = frames.bytes
    for run in frames.records.scan_runs(frames.end, medium.size, frames.seq):
        medium.note_frames(run)
        for frame in run:
            if frame.type == WRITE:
                table.apply(unpack_changes(frames.path, frame.offset, frame.payload))
            elif frame.type != META and not frame.type & ANCILLARY:
                raise CheckpointFormatError(frames.path, f"the record at byte {frame.offset} needs a newer graphkit")
            frames.note_read(frame)
    medium.note_end(frames.end)


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
