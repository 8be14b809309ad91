"""Histories in the logs of a FileSystemSaver, a SqliteSaver or a PostgresSaver.

Early writes wait in the log of their history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, final

from graphkit import RunnableConfig
from graphkit.saver_kit import EARLY_WRITES, FrozenDict
from savers._log.catalogue import Head
from savers._log.log import AnyLog
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.encoding import Successor, TaskWrites
from savers.langgraph.histories import FoundCheckpoint, GrowingHistory, Histories, Result, Seen, Take

_NOTHING: Final = (0, 0)
"""What was seen of a history that does not exist."""


@final
class LogHistories(Histories):
    """The histories in a saver whose histories are logs."""

    saver: Any
    """A BaseCheckpointSaver that is a SupportsLogs, a SupportsRemove and a SupportsDeleteIdle."""

    def put_next(self, history: RunnableConfig, put_next: Callable[[GrowingHistory], None]) -> None:
        self.saver.append_to_log(history, lambda log: put_next(_GrowingLog(log)))

    def put_writes(
        self,
        history: RunnableConfig,
        checkpoint_id: str | None,
        writes: TaskWrites,
        find_metadata: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        packed, keep = writes
        self.saver.put_packed_writes(
            history, checkpoint_id, packed, keep, early=True, expects_put=True, find_metadata=find_metadata
        )

    def call_without_waiting(
        self, target: RunnableConfig, call: Callable[[], Result], *, appends: bool
    ) -> tuple[Result] | None:
        return self.saver.call_without_waiting(target, call, appends=appends)  # type: ignore[no-any-return]

    def read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        def read(log: AnyLog) -> Result | None:
            return _take(log, log.history.find(config.checkpoint_id), take)

        return self.saver.read_log(config, read, None)  # type: ignore[no-any-return]

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        heads = self.saver.list_heads(metadata, with_newest=with_newest)
        # A copy of another store, or a saver around this one, may have left such namespaces.
        return (head for head in heads if not head.namespace.startswith(EARLY_WRITES))

    def select(
        self,
        history: RunnableConfig,
        choose: Callable[[Iterator[StoredCheckpoint]], Result],
        expected: int | None,
    ) -> tuple[Result, Seen]:
        def read(log: AnyLog) -> tuple[Result, Seen]:
            if expected is None:
                log.history.load_index()
            return choose(log.history.walk_back()), _see(log)

        found: tuple[Result, Seen] | None = self.saver.read_log(history, read, None, operation="list")
        if found is None:
            return choose(iter(())), _NOTHING
        return found

    def read_selected(
        self, history: RunnableConfig, stored: StoredCheckpoint, seen: Seen, take: Take[Result]
    ) -> Result | None:
        def read(log: AnyLog) -> Result | None:
            if _see(log) == seen:
                return _take(log, stored, take)
            # What was appended since may replace it, or add writes to it.
            return _take(log, log.history.find(stored.id), take)

        return self.saver.read_log(history, read, None, operation="list")  # type: ignore[no-any-return]

    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        self.saver.remove(history, ids)

    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        return bool(self.saver.delete_idle(thread_id, idle_since=idle_since, dry_run=dry_run))

    def describe(self) -> str:
        return self.saver.describe()  # type: ignore[no-any-return]


def _see(log: AnyLog) -> Seen:
    return log.frames.fid, log.frames.end


def _take(log: AnyLog, stored: StoredCheckpoint | None, take: Take[Result]) -> Result | None:
    if stored is None:
        return None
    writes = {}
    if stored.writes:
        writes = log.history.chains.read_writes(stored)
    return take(FoundCheckpoint(stored, log.packed.read(stored), writes, is_packed=True, path=log.path))


@final
class _GrowingLog:
    """A log to which a checkpoint is put; see GrowingHistory."""

    def __init__(self, log: AnyLog) -> None:
        self._log = log
        self.find = log.history.find
        self.load_state = log.load_state
        self.walk_back = log.history.walk_back
        self.pack = log.codec.pack

    def put(self, new: StoredCheckpoint, successor: Successor, base: FrozenDict) -> None:
        log = self._log
        writer = log.writer
        is_new = log.history.lacks(new.id)
        if is_new and successor.packed is not None and base is writer.state:
            writer.put_packed(new, successor.state, successor.packed)
            return
        # The constructor would freeze the state again, and would not know what changed.
        changes = successor.list_changes(base)
        checkpoint = new.make_checkpoint(successor.state, changes)
        target = None if is_new else new.id
        writer.put(checkpoint, target)
