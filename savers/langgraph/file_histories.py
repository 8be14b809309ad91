"""Histories in the log files of a FileSystemSaver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, final

from savers._filesystem import FileSystemSaver
from savers._filesystem.history_views import FileAncestorReader
from savers.langgraph.histories import EARLY, Histories, PutNext, Result, make_early_config
from savers.langgraph.listing import KnownLogs, get_store, select_from_store, select_from_thread

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._log.history_view import AncestorReader, HistoryView
    from savers._log.past_checkpoint import PastCheckpoint
    from savers.langgraph.selection import Query, Selected
    from savers.langgraph.writes import TaskWrites

_MAX_DIRECTORIES: Final = 4096
"""How many paths of directories are remembered."""


@final
class FileHistories(Histories[FileSystemSaver]):
    """The histories in a FileSystemSaver. Early writes wait in the log of their history."""

    def __init__(self, saver: FileSystemSaver) -> None:
        super().__init__(saver)
        self._known_logs = KnownLogs()
        self._early_directories: dict[tuple[str, str], str] = {}
        """By thread and namespace: the directory in which an earlier version stored early writes."""

    def put_next(self, history: RunnableConfig, put_next: PutNext) -> None:
        self.saver._put_next(history, put_next)  # noqa: SLF001 - a part of the same package

    def put_writes(self, history: RunnableConfig, checkpoint_id: str | None, writes: TaskWrites) -> None:
        packed, keep = writes
        self.saver._put_langgraph_writes(history, checkpoint_id, packed, keep)  # noqa: SLF001 - a part of the same package

    def call_without_waiting(
        self, target: RunnableConfig, call: Callable[[], Result], *, appends: bool
    ) -> tuple[Result] | None:
        return self.saver._call_without_waiting(target, call, appends=appends)  # noqa: SLF001 - a part of the same package

    def read_past(self, config: RunnableConfig) -> PastCheckpoint | None:
        if self.has_early(config):
            return None
        return self.saver._read_packed(config)  # noqa: SLF001 - a part of the same package

    def has_early(self, history: RunnableConfig) -> bool:
        # An earlier version stored them there. Opening a log that does not exist costs 20 times as
        # much as this.
        key = (history.thread, history.checkpoint_ns)
        path = self._early_directories.get(key)
        if path is None:
            if len(self._early_directories) >= _MAX_DIRECTORIES:
                self._early_directories.clear()
            path = get_store(self.saver).directory(history.thread, EARLY + history.checkpoint_ns)
            self._early_directories[key] = path
        return os.path.lexists(path)

    def open_ancestors(self, history: RunnableConfig) -> AncestorReader:
        return FileAncestorReader(get_store(self.saver), history.thread, history.checkpoint_ns)

    def select(self, thread: str, namespace: str | None, query: Query) -> Iterable[Selected]:
        return select_from_thread(self.saver, thread, namespace, query)

    def select_from_all(self, query: Query) -> Iterable[Selected]:
        return select_from_store(self.saver, query, self._known_logs)

    def release(self, view: HistoryView) -> None:
        self._known_logs.release(view)

    def end_listing(self) -> None:
        self._known_logs.forget_bytes()

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        self.saver.remove(history, ids)
        self.saver.remove(make_early_config(history), ids)

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        return bool(self.saver.delete_idle(thread_id, idle_since=idle_since, dry_run=dry_run))

    def describe(self) -> str:
        return self.saver.base_directory
