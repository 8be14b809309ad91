"""What is recorded beside a checkpoint: the keys it stands under, and what it comes to - who is waited for, and why.

Results of `once` have keys of the engine's own (`graphkit._engine.journal`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from graphkit._config import END, RunnableConfig
from graphkit._output import CheckpointInfo, WaitingInterrupt
from graphkit._watch import Change

INTERRUPT: Final = "interrupt:"
"""Prefix of a write that records a stop: `interrupt:<id>` -> {node_id, when, payload, metadata, created_at}."""
ANSWER: Final = "answer:"
"""Prefix of a write that records that a stop was answered or passed: `answer:<id>` -> the value."""
UPDATE: Final = "update:"
"""Prefix of a write that records a resume's `update=`: `update:<n>` -> the mapping."""
INNER: Final = "inner:"
"""Prefix of a write that records a stop in an embedded graph: `inner:<id>` -> its namespace; None once it goes on."""
TASK: Final = "task:"
"""Prefix: `task:<key of the visit>` -> a finished node of a branch, or item of a map, with its updates."""
ITEMS: Final = "items:"
"""Prefix: `items:<key of the visit>` -> what a map goes over."""
WITHIN: Final = "within"
"""In the metadata of an embedded graph's checkpoints: the visit of the node that it is, in the graph around it."""
FAILURE: Final = "failure"
"""The write that records why a run ended here: {node_id, type, message, at}; None once it goes on."""


def is_fork(node_id: str | None) -> bool:
    """Whether what a checkpoint names as its node, or as the next one, is a fork."""
    return node_id is not None and node_id.startswith("__PARALLEL__(")


def inner_namespace(namespace: str, node_id: str) -> str:
    """The namespace in which the graph embedded as a node keeps its history.

    A slash in a node's id is written %2F, so that two embedded graphs never share a namespace.
    """
    name = node_id.replace("%", "%25").replace("/", "%2F")
    return f"{namespace}/{name}" if namespace else name


def stops_of(writes: Mapping[str, Any]) -> dict[str, Any]:
    """The stops recorded beside a checkpoint, by id, in the order they were recorded."""
    return {key.removeprefix(INTERRUPT): stop for key, stop in writes.items() if key.startswith(INTERRUPT)}


def unanswered(writes: Mapping[str, Any]) -> dict[str, Any]:
    """The stops recorded beside a checkpoint that nobody has answered, by id, in the order they were recorded."""
    return {key: stop for key, stop in stops_of(writes).items() if ANSWER + key not in writes}


def next_update(writes: Mapping[str, Any]) -> str:
    """The key under which another `update=` is recorded beside a checkpoint."""
    return f"{UPDATE}{sum(key.startswith(UPDATE) for key in writes)}"


def waiting_interrupts(config: RunnableConfig, writes: Mapping[str, Any]) -> list[WaitingInterrupt]:
    """What waits for a human at the checkpoint that the config names."""
    return [
        WaitingInterrupt(
            thread_id=config.thread,
            checkpoint_ns=config.checkpoint_ns,
            checkpoint_id=config.checkpoint_id or "",
            node_id=stop["node_id"],
            when=stop["when"],
            id=key,
            payload=stop["payload"],
            created_at=stop["created_at"],
        )
        for key, stop in unanswered(writes).items()
    ]


def inner_stops(writes: Mapping[str, Any]) -> dict[str, str]:
    """The stops that wait in embedded graphs: id -> namespace."""
    stops = {key.removeprefix(INNER): place for key, place in writes.items() if key.startswith(INNER)}
    return {key: place for key, place in stops.items() if place is not None}


def told_beside(
    place: tuple[str, str],
    info: CheckpointInfo | None,
    writes: Mapping[str, Any],
    written_at: datetime | None = None,
) -> Iterator[Change]:
    """Report the pending writes of a checkpoint to a follower of the store.

    Args:
        place: the thread and the namespace.
        info: the checkpoint, if it is the latest.
        writes: the pending writes.
        written_at: when they were stored, for those that do not say so themselves.
    """
    about = *place, info
    for key, value in writes.items():
        if key.startswith(INTERRUPT):
            yield Change("interrupt", *about, key.removeprefix(INTERRUPT), value, _time_in(value, "created_at"))
        elif key.startswith(ANSWER):
            yield Change("answer", *about, key.removeprefix(ANSWER), value, written_at)
        elif key.startswith(INNER) and value is None:
            yield Change("answer", *about, key.removeprefix(INNER), None, written_at)
        elif key == FAILURE and value is not None:
            yield Change("failure", *about, None, value, _time_in(value, "at"))
    tasks = [value for key, value in writes.items() if key.startswith(TASK)]
    if tasks:  # once for all that was recorded together: a map may have thousands of items
        node_id = tasks[-1].get("node") if isinstance(tasks[-1], Mapping) else None
        yield Change("progress", *about, None, {"node_id": node_id}, written_at)


def _time_in(record: Any, key: str) -> datetime | None:
    """The time that a pending write carries; None if it was written by hand without one."""
    found = record.get(key) if isinstance(record, Mapping) else None
    return found if isinstance(found, datetime) and found.tzinfo is not None else None


class Progress(NamedTuple):
    """How far a fork or a map is."""

    node_id: str | None
    """The map's node; None for a fork, and for a map without a finished item."""
    done: int
    """How many branches or items have ended."""
    total: int


def progress_of(writes: Mapping[str, Any]) -> list[Progress]:
    """How far the forks and maps are that run at a checkpoint, the outermost first; from what is recorded beside it.

    A fork is seen once one of its nodes has finished, a map once its items are known.
    """
    tasks = {
        key.removeprefix(TASK): task
        for key, task in writes.items()
        if key.startswith(TASK) and isinstance(task, Mapping)
    }
    found: dict[str, Progress] = {}
    for key, items in writes.items():
        if key.startswith(ITEMS):
            place = key.removeprefix(ITEMS)
            mine = [task for name, task in tasks.items() if _is_item_of(name, place)]
            found[place] = Progress(mine[0].get("node") if mine else None, len(mine), len(items))
    forks: dict[str, tuple[int, int]] = {}
    for name, task in tasks.items():
        if "branches" in task:
            place = name.rpartition(".")[0].rpartition(".")[0]
            ended = forks.get(place, (0, 0))[0] + bool(task.get("ends"))
            forks[place] = ended, task["branches"]
    for place, (ended, total) in forks.items():
        found.setdefault(place, Progress(None, ended, total))
    return [found[place] for place in sorted(found, key=lambda place: place.count("."))]


def _is_item_of(task: str, place: str) -> bool:
    head, _, number = task.rpartition(".")
    return head == place and number.isdigit()


Latest = tuple[RunnableConfig, Mapping[str, Any], Mapping[str, Any]]
"""The latest checkpoint of a namespace: where it is, its metadata, and what is recorded beside it."""


def still_waiting(latest: Mapping[str, Latest]) -> list[WaitingInterrupt]:
    """What waits for a human in a thread, by namespace.

    A stop in an embedded graph waits as long as the graph around it says so: that may have gone past it since.
    """
    found: list[WaitingInterrupt] = []
    for namespace, (at, metadata, writes) in latest.items():
        waiting = waiting_interrupts(at, writes)
        around = namespace.rpartition("/")[0]
        if WITHIN in metadata and namespace and around in latest:
            known = inner_stops(latest[around][2])
            waiting = [stop for stop in waiting if stop.id in known]
        found += waiting
    return found


def status_of(next_node_id: str | None, writes: Mapping[str, Any]) -> str:
    """The status of a run whose latest checkpoint this is: running, interrupted, failed or finished."""
    if writes and (unanswered(writes) or inner_stops(writes)):
        return "interrupted"
    if writes and writes.get(FAILURE) is not None:
        return "failed"
    return "finished" if next_node_id == END else "running"
