"""The methods of CheckpointSaver that remove or copy: whole threads, runs, old checkpoints.

With the option `ttl`, a background thread deletes LangGraph's threads that no process has written to
for longer than their time to live.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from logging import getLogger
from typing import Final

from graphkit import CheckpointInfo, RunnableConfig
from graphkit.saver_kit import LANGGRAPH, MADE_BY, FailedThreads, run_in_thread
from savers.langgraph.async_methods import AsyncMethods
from savers.langgraph.histories import Histories
from savers.langgraph.opening import PeriodicSweep

DELTA_CHANNELS: Final = "counters_since_delta_snapshot"
"""The metadata key that names the channels whose values depend on the writes of ancestors."""
_DELETE: Final = frozenset({"delete", "delete_all"})
"""LangGraph's word for the strategy that removes everything, and that of its Agent Server."""
_TASK_SEPARATOR: Final = ":"
"""What separates a node and the id of its task in the namespace of a subgraph call."""
_SWEEPS_PER_TTL: Final = 10
_MIN_INTERVAL: Final = timedelta(minutes=1)
_MAX_INTERVAL: Final = timedelta(hours=1)
_LOGGER: Final = getLogger("graphkit")


def start_sweeper(histories: Histories, ttl: timedelta) -> PeriodicSweep[Histories]:
    """Sweep a store in a background thread: at once, and then at an interval that follows from the ttl."""

    def sweep_now(histories: Histories, stop: threading.Event) -> None:
        deleted = sweep(histories, datetime.now(UTC) - ttl, stop)
        if deleted:
            _LOGGER.info("%s: deleted %d threads whose ttl was over", histories.describe(), deleted)

    sweeper = PeriodicSweep(histories, sweep_now, "graphkit-ttl")
    interval = min(max(ttl / _SWEEPS_PER_TTL, _MIN_INTERVAL), _MAX_INTERVAL)
    sweeper.start(interval.total_seconds(), begins_now=True)
    return sweeper


def sweep(histories: Histories, idle_since: datetime, stop: threading.Event) -> int:
    """Delete LangGraph's threads that no process has written to since a moment; return how many.

    Args:
        histories: the histories of the threads. Runs of graphkit's own stay.
        idle_since: threads that were written to at this time or later stay.
        stop: ends the sweep early.

    Raises:
        CheckpointerError: a thread could not be read or deleted. All others are done, and the error
            names those that failed.
    """
    failed = FailedThreads("delete")
    deleted = 0
    for thread_id in histories.saver.threads():
        if stop.is_set():
            break
        with failed.catch(thread_id):
            is_idle = histories.delete_idle(thread_id, idle_since=idle_since, dry_run=True)
            if is_idle and _is_of_langgraph(histories, thread_id):
                deleted += histories.delete_idle(thread_id, idle_since=idle_since)
    failed.raise_if_any()
    return deleted


def _is_of_langgraph(histories: Histories, thread_id: str) -> bool:
    """Return whether a thread holds no run of graphkit's own."""
    return all(
        info.metadata.get(MADE_BY) == LANGGRAPH
        for namespace in histories.list_namespaces(thread_id)
        for info in histories.saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1)
    )


class PruningMethods(AsyncMethods):
    """What removes or copies threads and checkpoints."""

    _ttl: timedelta | None

    @abstractmethod
    def _find_needed(self, history: RunnableConfig) -> set[str]:
        """Return the id of the latest checkpoint of a history and those of the ancestors that it needs."""

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with its namespaces and writes; an unknown thread is not an error."""
        self.store.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in every thread.

        Reads all metadata of the store, except on a database, which has an index. The other
        checkpoints keep their values. A DeltaChannel of LangGraph that needs the writes of a removed
        ancestor loses them, as with every saver.

        Raises:
            TypeError: `run_ids` is one id. Nothing was changed.
        """
        _check_ids("run_ids", run_ids)
        runs = set(run_ids)
        if not runs:
            return
        threads: dict[str, None] = {}  # a set that keeps its order
        metadata = {}
        if len(runs) == 1:
            # An index finds the histories of one run.
            metadata["run_id"] = run_ids[0]
        for head in self._histories.list_heads(metadata):
            history = RunnableConfig(head.thread_id, checkpoint_ns=head.namespace)
            threads[history.thread] = None
            infos = self._list_history(history)
            removable = [info.id for info in infos if info.metadata.get("run_id") in runs]
            self._histories.remove(history, removable)
        for thread in threads:
            if not self._histories.list_namespaces(thread):
                self.store.delete(thread)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its ids, parents and writes to an empty thread.

        An unknown source is not an error; the target stays empty.

        Raises:
            CheckpointConflictError: the target is not empty. Nothing was changed.
        """
        source = str(source_thread_id)
        if self.store.namespaces(source):
            self.store.copy(source, str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of threads except the latest of each namespace, or all (`delete`).

        The namespace of a subgraph call goes with the checkpoint of the root graph from which the
        call started; that of a subgraph with a memory of its own (`checkpointer=True`) stays. If the
        latest checkpoint needs ancestors for a DeltaChannel, these stay, back to the one that stores
        its value.

        Raises:
            TypeError: `thread_ids` is one id. Nothing was changed.
            ValueError: the strategy is unknown. Nothing was changed.
        """
        _check_ids("thread_ids", thread_ids)
        if strategy not in {"keep_latest", *_DELETE}:
            raise ValueError(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}")
        for thread in map(str, thread_ids):
            if strategy in _DELETE:
                self.delete_thread(thread)
            else:
                self._keep_latest(thread)

    def sweep_ttl(self) -> int:
        """Delete the threads whose `ttl` is over now, instead of waiting for the background thread.

        Returns:
            How many; 0 without a `ttl`.

        Raises:
            CheckpointerError: a thread could not be read or deleted. All others are done, and the
                error names those that failed.
        """
        if self._ttl is None:
            return 0
        return sweep(self._histories, datetime.now(UTC) - self._ttl, threading.Event())

    async def asweep_ttl(self) -> int:
        """As `sweep_ttl`, in a worker thread."""
        return await run_in_thread(self.sweep_ttl)

    def _keep_latest(self, thread: str) -> None:
        root = RunnableConfig(thread)
        removable = self._list_removable(root)
        removed_roots = frozenset(removable)
        for namespace in self._histories.list_namespaces(thread):
            if not namespace:
                continue
            history = RunnableConfig(thread, checkpoint_ns=namespace)
            infos = self._list_history(history)
            is_call = _TASK_SEPARATOR in namespace
            if is_call and _get_root_id(infos) in removed_roots:
                self._histories.remove(history, [info.id for info in infos])
            else:
                self._histories.remove(history, self._list_removable(history))
        # Last: after a crash, the next prune finds the calls of the checkpoints that still exist.
        self._histories.remove(root, removable)

    def _list_removable(self, history: RunnableConfig) -> Sequence[str]:
        """Return the ids of a history that are not needed for its latest checkpoint."""
        # Listed before the latest is determined: what a run puts meanwhile is in neither.
        ids = [info.id for info in self._list_history(history)]
        needed = self._find_needed(history)
        return [id_ for id_ in ids if id_ not in needed]

    def _list_history(self, history: RunnableConfig) -> Sequence[CheckpointInfo]:
        """Return the infos of LangGraph's checkpoints of a history, newest first."""
        return [info for info in self.store.history(history) if info.metadata.get(MADE_BY) == LANGGRAPH]


def _check_ids(name: str, ids: object) -> None:
    """Raise a TypeError for one id, whose characters would otherwise be taken as ids."""
    if isinstance(ids, (str, bytes)):
        raise TypeError(f"{name} must be a list of ids, not one id; pass [{ids!r}]")


def _get_root_id(infos: Sequence[CheckpointInfo]) -> str | None:
    """Return the checkpoint of the root graph from which a subgraph was called last."""
    if not infos:
        return None
    parents = infos[0].metadata.get("parents")
    return parents.get("") if isinstance(parents, dict) else None
