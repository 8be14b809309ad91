"""What a saver with deltas on another medium implements. Provisional: names may change between minor versions.

A history is a log of records, as docs/format.md specifies them. `LogBytes` is where its bytes lie,
`LogCatalogue` finds the logs, and `LogSaver` is the saver. docs/writing-a-saver.md has an example.
"""

from __future__ import annotations

from graphkit.saver_kit import set_public_module
from savers._log.catalogue import Head, LogCatalogue
from savers._log.frame import digest_thread
from savers._log.frame_log import ThreadIdentity, read_owner
from savers._log.log import Log
from savers._log.log_bytes import BufferedLogBytes, Change, LogBytes, MemoryLogBytes, StaleLogError
from savers._log.log_saver import LogSaver
from savers._log.rewriter import Rewriter, replay_states
from savers._log.stored_checkpoint import StoredCheckpoint

__all__ = [
    "BufferedLogBytes",
    "Change",
    "Head",
    "Log",
    "LogBytes",
    "LogCatalogue",
    "LogSaver",
    "MemoryLogBytes",
    "Rewriter",
    "StaleLogError",
    "StoredCheckpoint",
    "ThreadIdentity",
    "digest_thread",
    "read_owner",
    "replay_states",
]

set_public_module(globals(), __name__)
