"""Reads the checkpoints of the log in one file."""

from __future__ import annotations

from savers._filesystem.file_log import FileLog
from savers._log.log_reader import LogReader


class FileLogReader(LogReader, FileLog):
    """An open log in a file whose checkpoints can be found and read; the caller holds `mutex`."""
