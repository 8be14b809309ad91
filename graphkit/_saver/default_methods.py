"""Default implementations of a saver's methods, from the four that every saver has.

They are correct but slow: they read and write whole checkpoints.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.incomplete import (
    IncomingThread,
    StoredCheckpoint,
    fill_new_thread,
    is_thread_incomplete,
    refuse_incomplete,
)
from graphkit._saver.langgraph_writes import list_asking_tasks
from graphkit._saver.methods import SaverMethods, VersionMethods
from graphkit._saver.process_locks import lock_for_rewrite
from graphkit._saver.retention import Retention
from graphkit._saver.writes import (
    LatestCheckpoint,
    find_waiting_interrupts,
    is_fork,
    subgraph_interrupts,
    subgraph_namespace,
    unanswered_interrupts,
    well_formed_writes,
)
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError


def read_history(saver: SaverMethods, config: RunnableConfig) -> Iterator[StoredCheckpoint]:
    """Yield the checkpoints of a history with their pending writes and tags, oldest first."""
    for checkpoint in reversed(saver.list(config)):
        named = config.replace(checkpoint_id=checkpoint.id)
        plain = checkpoint.with_metadata(public_metadata(checkpoint.metadata))
        yield StoredCheckpoint(checkpoint=plain, writes=saver.get_writes(named), tags=saver.tags_of(named))


def find_namespaces(saver: SaverMethods, thread_id: str) -> list[str]:
    """Return the namespaces of a thread that can be found by following its histories from the root."""
    found: list[str] = []
    candidates = [""]
    for namespace in candidates:  # grows inside the loop: each namespace names the nested ones
        config = RunnableConfig(thread_id, checkpoint_ns=namespace)
        history = saver.list(config)
        if not history:
            continue
        found.append(namespace)
        writes = well_formed_writes(saver.get_writes(config), config.thread)
        nested = [*nested_namespaces(namespace, history), *subgraph_interrupts(writes).values()]
        for candidate in nested:
            if candidate not in candidates:
                candidates.append(candidate)
    return found


def nested_namespaces(namespace: str, history: Iterable[Checkpoint]) -> Sequence[str]:
    """Return the namespaces that graphs nested as nodes of a history may have.

    Args:
        namespace: that of the history.
        history: its checkpoints.
    """
    found: dict[str, None] = {}  # a set that keeps its order
    for checkpoint in history:
        for node_id in (checkpoint.node_id, checkpoint.next_node_id):
            if node_id is not None:
                found[subgraph_namespace(namespace, node_id)] = None
    return [*found]


def find_version_namespaces(saver: VersionMethods, thread_id: str, version: int | None) -> list[str]:
    """Return the namespaces of a released history that can be found by following its histories from the root."""
    found: list[str] = []
    candidates = [""]
    list_namespaces: Any = getattr(saver, "namespaces", None)
    if list_namespaces is not None:
        candidates = [*dict.fromkeys(("", *list_namespaces(thread_id)))]
    for namespace in candidates:  # grows inside the loop: each namespace names the nested ones
        released = saver.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints
        if not released:
            continue
        found.append(namespace)
        for nested in nested_namespaces(namespace, released):
            if nested not in candidates:
                candidates.append(nested)
    return found


def find_interrupts(saver: SaverMethods, thread_id: str) -> list[WaitingInterrupt]:
    """Return the pending interrupts at the latest checkpoints of a thread."""
    latest: dict[str, LatestCheckpoint] = {}
    for namespace in saver.namespaces(thread_id):
        config = RunnableConfig(thread_id, checkpoint_ns=namespace)
        checkpoint = saver.get(config)
        if checkpoint is not None:
            named = config.replace(checkpoint_id=checkpoint.id)
            writes = saver.get_writes(named)
            latest[namespace] = LatestCheckpoint(named, checkpoint.metadata, writes, checkpoint.created_at)
    return find_waiting_interrupts(latest)


def find_interrupt_ids(saver: SaverMethods, config: RunnableConfig) -> set[str]:
    """Return the ids of the pending interrupts at the latest checkpoint of a history.

    An interrupt of a nested graph is pending while the outer graph has it recorded. If the nested
    graph has a saver of its own, only the record of the outer graph counts. A task of LangGraph
    counts by its own id.
    """
    writes = well_formed_writes(saver.get_writes(config), config.thread)
    found = {*unanswered_interrupts(writes), *list_asking_tasks(writes)}
    for key, namespace in subgraph_interrupts(writes).items():
        nested = config.replace(checkpoint_ns=namespace)
        if saver.get(nested) is None or key in find_interrupt_ids(saver, nested):
            found.add(key)
    return found


def wait_for_answers(saver: SaverMethods, config: RunnableConfig, timeout: float | None, interval: float) -> bool:
    """Block until a history has none of the interrupts that are pending now; see `wait_for_resume`."""
    deadline = None if timeout is None else monotonic() + timeout
    with saver.watch(config, interval=interval) as changes:
        pending = find_interrupt_ids(saver, config)
        while not pending.isdisjoint(find_interrupt_ids(saver, config)):
            remaining = None if deadline is None else max(0.0, deadline - monotonic())
            if changes.get(remaining) is None:
                return False
    return True


def check_limit(limit: int, least: int = 0) -> int:
    """Return the most results that a caller wants; no sequence has more than `sys.maxsize`.

    Raises:
        ValueError: it is not a whole number, or below the least.
    """
    try:
        number = operator.index(limit)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"limit must be a whole number, at least {least}, not {limit!r}")
    return min(number, sys.maxsize)


def search_histories(
    saver: SaverMethods, threads: Iterable[str], metadata: Mapping[str, Any]
) -> Iterator[CheckpointInfo]:
    """Yield the checkpoints whose metadata has all these keys with these values."""
    for thread in threads:
        for namespace in saver.namespaces(thread):
            for info in saver.history(RunnableConfig(thread, checkpoint_ns=namespace)):
                if all(key in info.metadata and info.metadata[key] == value for key, value in metadata.items()):
                    yield info


def copy_thread(source: SaverMethods, thread: str, target: SaverMethods, new_thread: str) -> None:
    """Copy the active history of a thread between savers, checkpoint by checkpoint.

    Raises:
        CheckpointNotFoundError: the source is empty. Nothing was changed.
        CheckpointConflictError: the source is incomplete, or the target is not empty. Nothing was
            changed.
    """
    namespaces = source.namespaces(thread)
    if not namespaces:
        raise CheckpointNotFoundError(thread)
    refuse_incomplete(source, thread)
    first = source.list(RunnableConfig(thread, checkpoint_ns=min(namespaces)))[-1]
    with fill_new_thread(target, new_thread, thread, namespaces, first.state) as incoming:
        for namespace in namespaces:
            for stored in read_history(source, RunnableConfig(thread, checkpoint_ns=namespace)):
                incoming.put(namespace, stored)


def prune_history(saver: SaverMethods, config: RunnableConfig, retention: Retention) -> int:
    """Prune one history: release its thread and put back every checkpoint that stays.

    An incomplete thread is left alone.

    The run lock keeps a run from putting between `list` and `release`, and the other lock keeps
    writers from recording pending writes and tags. A crash between releasing and putting back loses
    the thread: it is incomplete.

    Returns:
        The number of checkpoints that were removed.

    Raises:
        CheckpointerConfigurationError: the saver may not know all namespaces that `release` would
            end. The thread was not changed.
        ThreadBusyError: a run holds the thread. The thread was not changed.
    """
    with saver.run_lock(config), lock_for_rewrite(saver.run_lock_key(config)):
        infos = saver.history(config)
        removable = {info.id for info in retention.select_removable(infos)}
        if not removable or is_thread_incomplete(saver, config.thread):
            return 0
        histories = _read_thread(saver, config.thread)
        saver.release(config)
        incoming = IncomingThread(saver, config.thread, config.thread, extends=True)
        # The `release` of this saver may end one namespace only.
        ended = [name for name in histories if saver.get(config.replace(checkpoint_ns=name)) is None]
        incoming.begin(ended, histories[min(ended)][0].checkpoint.state)
        for namespace in ended:
            is_pruned = namespace == config.checkpoint_ns
            for stored in histories[namespace]:
                if is_pruned and stored.checkpoint.id in removable:
                    continue
                incoming.put(namespace, stored)
        incoming.finish()
        return len(removable)


def _read_thread(saver: SaverMethods, thread_id: str) -> dict[str, Sequence[StoredCheckpoint]]:
    """Return all histories that `release` would end, by namespace, each oldest first.

    Raises:
        CheckpointerConfigurationError: the thread may have namespaces that the saver cannot find.
    """
    found: dict[str, Sequence[StoredCheckpoint]] = {}
    for namespace in saver.namespaces(thread_id):
        history = [*read_history(saver, RunnableConfig(thread_id, checkpoint_ns=namespace))]
        if not saver.lists_namespaces and is_fork(history[-1].checkpoint.next_node_id):
            raise CheckpointerConfigurationError(
                f"{type(saver).__name__} cannot prune a thread whose run stands before a fork: the branches may "
                f"have histories that namespaces() does not find. Let the run go past the fork, or override "
                f"namespaces() or prune()"
            )
        found[namespace] = history
    return found
