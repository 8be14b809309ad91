"""Sums up a log without keeping it open, for callers that list thousands of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from savers._log.frame import CHECKPOINT, KEY, MARK, RELEASE, REPLACE, TOMBSTONE
from savers._log.records import Records

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog
    from savers._log.stored_checkpoint import StoredCheckpoint

_UNSUITABLE: Final = frozenset({MARK, RELEASE, TOMBSTONE})
"""Types of records that need more than a summary."""


class LogSummary(NamedTuple):
    """What there is to say of a log in one line."""

    length: int
    """How many checkpoints it has."""
    last: StoredCheckpoint
    """The last of them."""


def sum_up(log: FileLog) -> LogSummary | None:
    """Read a log once, forward; check every record, but decode only those from the last keyframe on, and no state.

    None if the log must be read in another way: an incomplete or ended one, one with tags, one whose
    last checkpoint replaces another.

    Args:
        log: the log, not open; the caller closes it.

    Raises:
        CheckpointCorruptionError: it is damaged.
        CheckpointFormatError: another version of graphkit wrote it.
    """
    frames = log.frames
    if not frames.open():
        return None
    count = 0
    keyframe = 0
    # Only what is decoded is opened.
    for frame in Records(frames.bytes, frames.fid).scan(frames.end, frames.bytes.size, frames.seq):
        if frame.type in _UNSUITABLE:
            return None
        if frame.type == CHECKPOINT:
            count += not frame.flags & REPLACE
            if frame.flags & KEY:
                keyframe = frame.offset
        frames.note_read(frame)
    if not count:
        return None
    last = log.chains.read(keyframe, frames.end).scan.last
    assert last is not None
    return None if last.is_replacement else LogSummary(count, last)
