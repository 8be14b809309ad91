"""A released log, opened for reading."""

from __future__ import annotations

from graphkit.errors import CheckpointCorruptionError
from savers._filesystem.file_log_reader import FileLogReader


class ReleasedLog(FileLogReader):
    """A released log. It ends in RELEASE, or a part of it is missing."""

    expects_release = True
    final_path = ""
    """The path of the log when its release is finished."""
    live_path = ""
    """The path of the live log, where the version is while its release is unfinished."""
    is_ending = False
    """Whether the release is unfinished: the end of the root's log names this version, and decides
    for this log too."""

    def _open(self) -> bool:
        if self.is_ending:
            return self._open_while_ending()
        self.path = self.final_path
        is_found = super()._open()
        if is_found and self.closed_by is None:
            end = self.end
            self.close()
            raise CheckpointCorruptionError(
                self.path,
                end,
                "the end of the released history is missing",
            )
        if not is_found and self.io.stat(self.path) is not None:
            raise CheckpointCorruptionError(self.path, 0, "the released history is missing")
        return is_found

    def _open_while_ending(self) -> bool:
        # Another process may finish the release at this moment. If the live log is gone, the log
        # has its final path by then.
        for path in (self.final_path, self.live_path, self.final_path):
            self.path = path
            if super()._open():
                return True
        return False
