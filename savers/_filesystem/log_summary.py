"""A log at a glance: its last checkpoint and how many there are, for those who list thousands of threads.

A `look` lets every record prove itself, but only those from the last keyframe on are taken apart, states not at all,
and nothing is kept open. What needs more than that - a log that is not born yet or has ended, tags, a last
checkpoint that took the place of another - is left to those who read the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, final

from savers._filesystem import log, payloads
from savers._filesystem.log_reader import LogReader

if TYPE_CHECKING:
    from savers._filesystem.payloads import StoredCheckpoint

_WHOLE: Final = frozenset({log.MARK, log.RELEASE, log.TOMBSTONE})
"""Records that a glance does not do with."""


@final
class LogSummary(LogReader):
    """A log that is read once and closed: forward by `look`, or from its end as any other."""

    count = 0
    """How many checkpoints it has."""
    last: StoredCheckpoint
    """The last of them."""

    def read(self) -> bool:
        """Read it; False if a glance does not do.

        Raises:
            CheckpointCorruptionError: it is damaged.
            CheckpointFormatError: it needs a newer graphkit.
        """
        try:
            self.fd = self.io.open(self.path)
            size = self.io.fstat(self.fd).st_size
            data = self.io.read_at(self.fd, 0, min(size, log.WINDOW))
            self.end = self._read_beginning(size, data)
        except (FileNotFoundError, NotADirectoryError, log.IncompleteLog):
            return False
        frames: list[log.Frame] = []
        for frame in self.scan(self.end, size, self.seq, data):
            self.end = frame.end
            if frame.type in _WHOLE:
                return False
            if frame.type == log.CHECKPOINT:
                self.count += not frame.flags & log.REPLACE
                if frame.flags & log.KEY:
                    frames.clear()
            frames.append(frame)
        return bool(self.count) and self._take_apart(frames)

    def _advance(self, decoded: payloads.DecodedRecord, depth: int, end: int) -> None:  # noqa: ARG002 - as in every log
        # Without the state, for nothing is appended.
        self.last_checkpoint = decoded.checkpoint

    def _take_apart(self, frames: list[log.Frame]) -> bool:
        """The records from the last keyframe on."""
        for frame in frames:
            if frame.type == log.CHECKPOINT:
                self.last_checkpoint = payloads.decode_checkpoint(
                    self.path, frame, self.last_checkpoint, self._codec.unpack
                ).checkpoint
            else:
                self._take_other(frame)
        assert self.last_checkpoint is not None
        self.last = self.last_checkpoint
        return not self.last_checkpoint.is_replacement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
