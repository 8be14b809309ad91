"""A run as other processes see it: what a listing shows, the status of a thread; and what they ask of it.

The status follows from the stop of its latest checkpoint (`writes.derive_stop`) and its run lock.

A status is true at the moment at which it is asked for. Nearly always, the latest checkpoint and its
pending writes decide. Only a run that has neither ended nor stopped is asked whether it is still
there: its run lock says so, and is probed for such threads alone.

| status | what the store and the run lock say |
|---|---|
| incomplete | a copy, fork or import to the thread has not ended; no run takes it |
| cancelled | the run was cancelled, whatever it waited for |
| queued | a run was submitted, and has not begun |
| interrupted | an interrupt waits for an answer, here or in a nested graph |
| failed | the run recorded why it ended |
| answered | all answers are there, and no run has taken them |
| sleeping | the run waits for a timer, and for no human; it may be due |
| finished | the next node is END |
| running | none of these, and a run holds the lock |
| stalled | none of these, and no run holds it: its process died, or its stream was closed |

LangGraph's runs hold no run lock, so that theirs is `running` until it has ended or stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from graphkit._records.checkpoint import Checkpoint, to_microseconds
from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.langgraph_writes import is_langgraph, list_asking_tasks
from graphkit._saver.writes import (
    CANCELLED,
    DECLARED_STOPS,
    FAILURE,
    INTERRUPT,
    derive_stop,
    is_cancelled,
    next_time_of,
    subgraph_interrupts,
    subgraph_stops,
    unanswered_stops,
    writes_of_copy,
)
from graphkit._values.frozen import FrozenDict
from graphkit.errors import CheckpointSerializationError

if TYPE_CHECKING:
    from graphkit._saver.base import BaseCheckpointSaver

STATUSES: Final = (
    "queued",
    "running",
    "stalled",
    "sleeping",
    "interrupted",
    "answered",
    "cancelled",
    "failed",
    "finished",
    "incomplete",
)
"""The words that a status may be."""
ENDED: Final = frozenset({"finished", "failed", "cancelled"})
"""The statuses of threads whose run is over: it goes on only if it is resumed deliberately."""
WRITES_KEY: Final = "graphkit:writes"
"""The metadata key under which the default methods store pending writes."""
TAGS_KEY: Final = "graphkit:tags"
"""The metadata key under which the default methods store tags."""


def make_checkpoint_info(
    config: RunnableConfig, checkpoint: Checkpoint, writes: Mapping[str, Any], tags: tuple[str, ...]
) -> CheckpointInfo:
    """Return what a listing shows of an older checkpoint. The size is 0, because only the store knows it.

    For the latest checkpoint of a history, `with_status` adds the status.

    Args:
        config: names the thread and the namespace.
        checkpoint: the checkpoint.
        writes: its pending writes, from which follows why a run stopped there.
        tags: its tags.
    """
    return CheckpointInfo(
        thread_id=config.thread,
        checkpoint_ns=config.checkpoint_ns,
        id=checkpoint.id,
        parent_id=checkpoint.parent_id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        created_at=checkpoint.created_at,
        size=0,
        status="",
        tags=tags,
        metadata=public_metadata(checkpoint.metadata),
        stopped=derive_stop(checkpoint.next_node_id, writes, checkpoint.metadata),
    )


def public_metadata(metadata: FrozenDict) -> FrozenDict:
    """Return metadata without the keys of the default methods."""
    if WRITES_KEY not in metadata and TAGS_KEY not in metadata:
        return metadata
    hidden = (WRITES_KEY, TAGS_KEY)
    return FrozenDict({key: value for key, value in metadata.items() if key not in hidden})


def with_status(
    saver: BaseCheckpointSaver, latest: CheckpointInfo, writes: Mapping[str, Any] | None = None
) -> CheckpointInfo:
    """Return the latest checkpoint of a history with the status of its thread.

    Args:
        saver: the saver of the thread.
        latest: the checkpoint, with any status.
        writes: its pending writes, if the caller has them.
    """
    config = RunnableConfig(latest.thread_id, latest.id, latest.checkpoint_ns)
    stopped = latest.stopped
    if stopped == "interrupted" and not is_langgraph(latest.metadata):
        stopped = _look_into_nested_graphs(saver, config, writes)
    status = stopped or _describe_progress(latest)
    if not status:
        status = "running" if saver.is_run_locked(config) else "stalled"
    return latest._replace(status=status)


def with_status_when_stored(info: CheckpointInfo) -> CheckpointInfo:
    """Return a checkpoint with the status that its thread had when it was the latest, for a watch.

    A run that has neither ended nor stopped at it was running then: it had just stored it.
    """
    return info._replace(status=info.stopped or _describe_progress(info) or "running")


def _describe_progress(latest: CheckpointInfo) -> str:
    """Return "finished", or "running" if no lock could tell; "" if that depends on the run lock."""
    if latest.next_node_id == END:
        return "finished"
    if is_langgraph(latest.metadata):
        return "running"
    return ""


def _look_into_nested_graphs(
    saver: BaseCheckpointSaver, config: RunnableConfig, writes: Mapping[str, Any] | None
) -> str:
    """Return why a run has stopped that is recorded as interrupted, perhaps only in a nested graph.

    An answer to a nested graph is recorded in the history of that graph.
    """
    try:
        if writes is None:
            writes = saver.get_writes(config)
        if unanswered_stops(writes, INTERRUPT) or find_interrupt_ids(saver, config.with_check_point_id(None)):
            return "interrupted"
    except CheckpointSerializationError:
        # A payload has a type that is not registered here. What the outer graph has recorded counts.
        return "interrupted"
    if writes.get(FAILURE) is not None:
        return "failed"
    return "answered"


def find_interrupt_ids(saver: BaseCheckpointSaver, config: RunnableConfig) -> set[str]:
    """Return the ids of the pending interrupts at the latest checkpoint of a history.

    An interrupt of a nested graph is pending while the outer graph has it recorded. If the nested
    graph has a saver of its own, only the record of the outer graph counts. A task of LangGraph
    counts by its own id.
    """
    writes = saver.get_writes(config)
    if is_cancelled(writes):
        return set()
    found = {*unanswered_stops(writes, INTERRUPT), *list_asking_tasks(writes)}
    for key, namespace in subgraph_interrupts(writes).items():
        nested = config.replace(checkpoint_ns=namespace)
        if saver.get(nested) is None or key in find_interrupt_ids(saver, nested):
            found.add(key)
    return found


def find_next_time(saver: BaseCheckpointSaver, config: RunnableConfig) -> datetime | None:
    """Return when a run that has stopped goes on by itself, for a timer or a deadline, here or in a nested graph.

    None if it waits for humans only, or was cancelled; or if a nested graph has answers that the outer one
    has not taken. At a pause or a declared stop, a history waits for a human, whatever its branches wait for.
    """
    writes = saver.get_writes(config)
    if is_cancelled(writes):
        return None
    stops = unanswered_stops(writes, INTERRUPT).values()
    if any(stop["when"] in DECLARED_STOPS for stop in stops):
        return None
    times = [next_time_of(writes)]
    for namespace in {*subgraph_stops(writes).values()}:
        nested = config.replace(checkpoint_ns=namespace, checkpoint_id=None)
        times.append(find_next_time(saver, nested))
    return min(filter(None, times), default=None)


# Requests to the run of a thread from other processes: to end as cancelled, or to pause.
#
# A request is a pending write. It is recorded without the run lock, which the run holds, at a checkpoint where the run
# will look: its mailbox. The latest checkpoint will not do, because the run may have stored the next one before the
# write arrives. So both sides agree on checkpoints that change seldom, and find them in the history itself:
#
# * the first checkpoint that a run stores after its start or resume;
# * the first checkpoint of each fifth of a second, by the time at which the checkpoint was made.
#
# A run reads all mailboxes that were current since it looked last, so it misses no request that was recorded while its
# mailbox was the newest. Before it has stored anything, its mailbox is the latest checkpoint; therefore a request is
# recorded there, too.

CANCEL_REQUEST: Final = "cancel_request"
"""The key of a request to end as cancelled: {reason, at}; None once it is withdrawn or granted."""
PAUSE_REQUEST: Final = "pause_request"
"""The key of a request to pause: {reason, at}; None once it is withdrawn."""
RESUMED_AT: Final = "resumed_at"
"""In the metadata of the first checkpoint after a resume: when the run resumed. Its node ran from
then on, and not since the parent was stored: in between the run waited, had failed, or was not
running at all."""
LOOK_INTERVAL: Final = 0.2
"""Seconds between two looks of a run, at least."""
SLOT_NANOSECONDS: Final = 200_000_000
"""The length of the slots of time whose first checkpoints are mailboxes."""
_PAGE: Final = 16
_RECENT_MAILBOXES: Final = 4
"""How many mailboxes a run may have passed since it looked last, and more."""


def find_mailboxes(saver: BaseCheckpointSaver, config: RunnableConfig, count: int = 1) -> list[str]:
    """Return the latest checkpoint of a history, and the newest mailboxes of its run.

    Args:
        saver: the store.
        config: names the history.
        count: how many mailboxes to return, at most.
    """
    limit = _PAGE
    while True:
        infos = [*saver.recent(config, limit=limit)]
        is_enough = len(infos) < limit  # these are all that there are
        found: list[str] = []
        for info, older in zip_longest(infos, infos[1:]):
            if older is None and not is_enough:
                break  # whether it is a mailbox, only an older one can tell
            # As in `RunHistory.save`.
            is_first = info.metadata.get("source") == "input" or RESUMED_AT in info.metadata
            if is_first or older is None or _number_slot(info) != _number_slot(older):
                found.append(info.id)
            if is_first or len(found) == count:
                is_enough = True
                break
        if is_enough:
            return [*dict.fromkeys([*(info.id for info in infos[:1]), *found])]
        limit *= _PAGE


def grant_cancel_request(saver: BaseCheckpointSaver, config: RunnableConfig) -> bool:
    """Cancel a stalled thread whose process died before it had read a request; return whether there was one.

    For workers; the caller holds the run lock.
    """
    left: Mapping[str, Any] = {}
    for latest in saver.recent(config, limit=1):
        if latest.stopped or latest.next_node_id == END:
            return False
        left = read_left_writes(saver, config.with_check_point_id(latest.id), latest)
    for checkpoint_id in find_mailboxes(saver, config, _RECENT_MAILBOXES):
        writes = saver.get_writes(config.with_check_point_id(checkpoint_id))
        request = writes.get(CANCEL_REQUEST)
        if isinstance(request, Mapping):
            saver.put_writes(config, {**left, CANCELLED: request})
            return True
        if CANCELLED in writes:  # a resume went on from here, in spite of all earlier requests
            return False
    return False


# An update of a state stores a checkpoint, and then the pending writes of its parent with it.

WRITES_TAKEN_FROM: Final = "keeps"
"""In the metadata of an update: the id of the checkpoint whose pending writes it takes over."""
CONTINUED_EXECUTION: Final = "visit"
"""In the metadata: the start of the node execution that continues after this checkpoint, if it
began before this checkpoint was stored. An update of an earlier checkpoint continues none."""
_REQUESTS: Final = frozenset({CANCEL_REQUEST, PAUSE_REQUEST})


def has_only_requests(writes: Mapping[str, Any]) -> bool:
    """Return whether pending writes say nothing about the run itself; requests are recorded without its lock."""
    return writes.keys() <= _REQUESTS


def taken_over(writes: Mapping[str, Any], update: Checkpoint | CheckpointInfo) -> Mapping[str, Any]:
    """Return which pending writes of another checkpoint an update takes over."""
    if CONTINUED_EXECUTION in update.metadata:
        return writes
    return writes_of_copy(writes, update.created_at)


def read_left_writes(
    saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint | CheckpointInfo
) -> Mapping[str, Any]:
    """Return the pending writes that a checkpoint lacks because the process died in the update; normally none.

    An operation that records others with the checkpoint must record these with them: a resume looks for
    them only while there are no others.

    Args:
        saver: the store.
        config: names the checkpoint.
        checkpoint: the checkpoint.
    """
    taken_from = checkpoint.metadata.get(WRITES_TAKEN_FROM)
    if taken_from is None or not has_only_requests(saver.get_writes(config)):
        return {}
    return taken_over(saver.get_writes(config.with_check_point_id(taken_from)), checkpoint)


def _number_slot(info: CheckpointInfo) -> int:
    return to_microseconds(info.created_at) * 1000 // SLOT_NANOSECONDS
