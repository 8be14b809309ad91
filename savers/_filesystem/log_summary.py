"""Sums up a log without keeping it open, for callers that list thousands of threads.

A summary checks every record, but decodes only those from the last keyframe on, and no state. A log
that needs more (an incomplete or ended log, tags, a last checkpoint that replaces another) is left
to the caller, who reads it as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, final

from savers._filesystem.file_log_reader import FileLogReader
from savers._log import log, payloads

if TYPE_CHECKING:
    from savers._log.stored_checkpoint import StoredCheckpoint

_UNSUITABLE: Final = frozenset({log.MARK, log.RELEASE, log.TOMBSTONE})
"""Types of records that a summary does not handle."""


@final
class LogSummary(FileLogReader):
    """A log that is read once and closed: forward by `read`, or from its end as any other."""

    count = 0
    """How many checkpoints it has."""
    last: StoredCheckpoint
    """The last of them; set by `read`."""

    def read(self) -> bool:
        """Read the log.

        Returns:
            Whether `count` and `last` are known; False if the log must be read as a whole.

        Raises:
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it needs a newer graphkit.
        """
        try:
            self.fd = self.io.open(self.path)
            size = self.io.fstat(self.fd).st_size
            data = self.io.read_at(self.fd, 0, min(size, log.WINDOW))
            self.end = self.read_beginning(size, data)
        except (FileNotFoundError, NotADirectoryError, log.IncompleteLog):
            return False
        frames: list[log.Frame] = []
        # Only those that are decoded are opened.
        for frame in log.scan(self.file._replace(seal=None), self.end, size, self.seq, data):
            self.end = frame.end
            if frame.type in _UNSUITABLE:
                return False
            if frame.type == log.CHECKPOINT:
                if not frame.flags & log.REPLACE:
                    self.count += 1
                if frame.flags & log.KEY:
                    frames.clear()
            frames.append(frame)
        if not self.count:
            return False
        return self._decode_frames(frames)

    def _advance(self, decoded: payloads.DecodedRecord, depth: int, end: int) -> None:  # noqa: ARG002 - as in every log
        # Without the table: nothing is appended to a summary.
        self.last_checkpoint = decoded.checkpoint

    def _decode_frames(self, frames: list[log.Frame]) -> bool:
        """Decode the records from the last keyframe on.

        Returns:
            False if the last checkpoint replaces another.
        """
        for frame in map(self.open_frame, frames):
            if frame.type == log.CHECKPOINT:
                base = self.last_checkpoint
                decoded = payloads.decode_checkpoint(self.path, frame, base, self.codec.unpack)
                self.last_checkpoint = decoded.checkpoint
                self.take_early(decoded, self.early, frames[0].offset)
            else:
                self._take_other(frame)
        assert self.last_checkpoint is not None
        self.last = self.last_checkpoint
        return not self.last.is_replacement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
