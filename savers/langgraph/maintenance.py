"""Verifies and repairs the logs of the store and the cache in a directory, for graphkit's commands.

LangGraph need not be installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Final, Literal

from savers._filesystem import layout
from savers.langgraph._entries.examine import CACHE, STORE, EntriesRepair, EntriesReport, EntriesState
from savers.langgraph._entries.log import EntryLog

Noun = Literal["item", "cached value"]
_NOUNS: Final[dict[str, Noun]] = {STORE: "item", CACHE: "cached value"}


def verify_entries(directory: str | os.PathLike[str]) -> dict[Noun, EntriesReport]:
    """Read every byte of the logs of a FileSystemStore and a FileSystemCache, and report damage.

    Returns:
        The report of each log that the directory has, by what its entries are called.

    Raises:
        CheckpointStorageError: the file system refused.
    """
    return {noun: entry_log.verify() for noun, entry_log in _open_logs(directory)}


def repair_entries(directory: str | os.PathLike[str], *, dry_run: bool = False) -> dict[Noun, EntriesRepair]:
    """Repair these logs, as `repair` of the store and of the cache does.

    Args:
        directory: the directory.
        dry_run: change nothing, and report what a repair would do.

    Returns:
        What was done to each log that has a problem, by what its entries are called.

    Raises:
        CheckpointStorageError: the file system refused. What was repaired before stays repaired.
    """
    repairs: dict[Noun, EntriesRepair] = {}
    for noun, entry_log in _open_logs(directory):
        before = entry_log.verify()
        if before.ok:
            continue
        if before.state in {EntriesState.NEWER, EntriesState.FOREIGN}:
            repairs[noun] = EntriesRepair(before=before, refused=before.reason)
        elif dry_run:
            repairs[noun] = EntriesRepair(before=before)
        else:
            repairs[noun] = entry_log.repair()
    return repairs


def _open_logs(directory: str | os.PathLike[str]) -> Iterator[tuple[Noun, EntryLog]]:
    for kind, noun in _NOUNS.items():
        if Path(directory, kind, layout.LOG).exists():
            entry_log = EntryLog(directory, kind, fsync="always", clock=time, io=None)
            try:
                yield noun, entry_log
            finally:
                entry_log.close_files()
