"""What is recorded beside a checkpoint: the keys it stands under, and what it comes to - who is waited for, and why.

Results of `once` have keys of the engine's own (`graphkit._engine.journal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from logging import getLogger
from typing import Any, Final, NamedTuple, get_args

from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt, When
from graphkit._saver.watch import Change
from graphkit.errors import CheckpointSerializationError

_LOGGER: Final = getLogger("graphkit")

INTERRUPT: Final = "interrupt:"
"""Prefix of a write that records a stop: `interrupt:<id>` -> {node_id, when, payload, created_at, metadata}, the last
of which may be left out."""
ANSWER: Final = "answer:"
"""Prefix of a write that records that a stop was answered or passed: `answer:<id>` -> the value."""
UPDATE: Final = "update:"
"""Prefix of a write that records a resume's `update=`: `update:<n>` -> the mapping."""
SUBGRAPH_INTERRUPT: Final = "inner:"
"""Prefix of a write that records a stop in an embedded graph: `inner:<id>` -> its namespace; None once it goes on."""
TASK: Final = "task:"
"""Prefix: `task:<key of the visit>` -> a finished node of a branch, or item of a map, with its updates."""
ITEMS: Final = "items:"
"""Prefix: `items:<key of the visit>` -> what a map goes over."""
OUTER_EXECUTION: Final = "within"
"""In the metadata of an embedded graph's checkpoints: the visit of the node that it is, in the graph around it."""
FAILURE: Final = "failure"
"""The write that records why a run ended here: {node_id, type, message, at}; None once it goes on."""


# What may stand under which key


def check_writes(writes: Mapping[str, Any]) -> None:
    """Check pending writes before they are stored; each saver's `put_writes` calls this.

    Raises:
        CheckpointSerializationError: they are not a mapping, a key is not a string, or a reader could not use the value
            under a key of this module; `path` names the key. Nothing was changed.
    """
    given: Any = writes
    if not isinstance(given, Mapping):
        raise CheckpointSerializationError("writes", type(given).__name__, "they are a mapping")
    for key, value in writes.items():
        if not isinstance(key, str):
            raise CheckpointSerializationError(f"writes[{key!r}]", type(key).__name__, "the keys are strings")
        problem = _problem_with(key, value)
        if problem is not None:
            raise CheckpointSerializationError(key, type(value).__name__, problem)


def check_tags(tags: Iterable[Any]) -> None:
    """Check tags before they are stored; each saver's `add_tags` and `remove_tags` call this.

    Raises:
        CheckpointSerializationError: a tag is not a string. Nothing was changed.
    """
    for tag in tags:
        if not isinstance(tag, str):
            raise CheckpointSerializationError("tags", type(tag).__name__, "a tag is a string")


def well_formed_writes(writes: Mapping[str, Any], thread_id: str) -> Mapping[str, Any]:
    """The pending writes that a reader can use; a warning names each of the others.

    Earlier versions stored any value under any key, so a store may hold values that `put_writes` refuses now.
    """
    problems = {key: problem for key, value in writes.items() if (problem := _problem_with(key, value)) is not None}
    if not problems:
        return writes
    for key, problem in problems.items():
        _warn_of(key, thread_id, problem)
    return {key: value for key, value in writes.items() if key not in problems}


def problem_with_interrupt(stop: Any) -> str | None:
    """What keeps a reader from using the record of a stop; None if nothing does."""
    if not isinstance(stop, Mapping):
        return _STOP_SHAPE
    for field in _STOP_FIELDS:
        if field not in stop:
            return f"{_STOP_SHAPE}; it has no {field!r}"
    if not isinstance(stop["node_id"], str):
        problem = "its 'node_id' must be a string"
    elif stop["when"] not in _WHENS:
        problem = f"its 'when' must be one of {', '.join(_WHENS)}"
    elif not isinstance(stop.get("metadata", {}), Mapping):
        problem = "its 'metadata' must be a mapping"
    else:
        return None
    return f"{_STOP_SHAPE}; {problem}"


def _problem_with_task(task: Any) -> str | None:
    if not isinstance(task, Mapping):
        return "a finished task is a mapping"
    if not isinstance(task.get("branches", 0), int):
        return "the 'branches' of a finished task are a number"
    return None


def _problem_with_inner(namespace: Any) -> str | None:
    if namespace is None or isinstance(namespace, str):
        return None
    return "an interrupt in a nested graph is recorded as its namespace, a string, or as None"


def _problem_with_update(update: Any) -> str | None:
    return None if isinstance(update, Mapping) else "an update is a mapping of keys to values"


def _problem_with_items(items: Any) -> str | None:
    return None if isinstance(items, (list, tuple)) else "the items of a map are a list"


_WHENS: Final = get_args(When)
_STOP_FIELDS: Final = ("node_id", "when", "payload", "created_at")
_STOP_SHAPE: Final = f"an interrupt is a mapping with {', '.join(_STOP_FIELDS)}"
_CHECKS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    INTERRUPT: problem_with_interrupt,
    SUBGRAPH_INTERRUPT: _problem_with_inner,
    UPDATE: _problem_with_update,
    TASK: _problem_with_task,
    ITEMS: _problem_with_items,
}
"""By prefix. What stands under other keys may be anything: answers and results of `once` are the user's values, and a
failure is only shown to people, so its readers take whatever is there."""


def _problem_with(key: str, value: Any) -> str | None:
    head, colon, _ = key.partition(":")
    check = _CHECKS.get(head + colon)
    return None if check is None else check(value)


def _warn_of(key: str, thread_id: str, problem: str) -> None:
    _LOGGER.warning("thread %.80r: skipped the pending write %.80r, which is malformed: %s", thread_id, key, problem)


# What it comes to


def is_fork(node_id: str | None) -> bool:
    """Whether what a checkpoint names as its node, or as the next one, is a fork."""
    return node_id is not None and node_id.startswith("__PARALLEL__(")


def subgraph_namespace(namespace: str, node_id: str) -> str:
    """The namespace in which the graph embedded as a node keeps its history.

    A slash in a node's id is written %2F, so that two embedded graphs never share a namespace.
    """
    name = node_id.replace("%", "%25").replace("/", "%2F")
    return f"{namespace}/{name}" if namespace else name


def interrupts_in(writes: Mapping[str, Any]) -> dict[str, Any]:
    """The stops recorded beside a checkpoint, by id, in the order they were recorded."""
    return {key.removeprefix(INTERRUPT): stop for key, stop in writes.items() if key.startswith(INTERRUPT)}


def unanswered_interrupts(writes: Mapping[str, Any]) -> dict[str, Any]:
    """The stops recorded beside a checkpoint that nobody has answered, by id, in the order they were recorded."""
    return {key: stop for key, stop in interrupts_in(writes).items() if ANSWER + key not in writes}


def next_update_key(writes: Mapping[str, Any]) -> str:
    """The key under which another `update=` is recorded beside a checkpoint."""
    return f"{UPDATE}{sum(key.startswith(UPDATE) for key in writes)}"


def waiting_interrupts(config: RunnableConfig, writes: Mapping[str, Any]) -> list[WaitingInterrupt]:
    """What waits for a human at the checkpoint that the config names; a warning names what is malformed."""
    found: list[WaitingInterrupt] = []
    for key, stop in unanswered_interrupts(writes).items():
        problem = problem_with_interrupt(stop)
        if problem is not None:
            _warn_of(INTERRUPT + key, config.thread, problem)
            continue
        found.append(
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
        )
    return found


def find_failure(config: RunnableConfig, writes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Why a run ended at the checkpoint that the config names; None if it did not fail, or if that is malformed."""
    failure = writes.get(FAILURE)
    if failure is None or isinstance(failure, Mapping):
        return failure
    _warn_of(FAILURE, config.thread, "a failure is a mapping with node_id, type, message and at")
    return None


def subgraph_interrupts(writes: Mapping[str, Any]) -> dict[str, str]:
    """The stops that wait in embedded graphs: id -> namespace."""
    stops = {
        key.removeprefix(SUBGRAPH_INTERRUPT): place
        for key, place in writes.items()
        if key.startswith(SUBGRAPH_INTERRUPT)
    }
    return {key: place for key, place in stops.items() if place is not None}


def iter_changes(
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
        elif key.startswith(SUBGRAPH_INTERRUPT) and value is None:
            yield Change("answer", *about, key.removeprefix(SUBGRAPH_INTERRUPT), None, written_at)
        elif key == FAILURE and value is not None:
            yield Change("failure", *about, None, value, _time_in(value, "at"))
    tasks = [value for key, value in writes.items() if key.startswith(TASK)]
    if tasks:  # once for all that was recorded together: a map may have thousands of items
        node_id = tasks[-1].get("node") if isinstance(tasks[-1], Mapping) else None
        yield Change("progress", *about, None, {"node_id": node_id}, written_at)


def _time_in(record: Any, key: str) -> datetime | None:
    """The time that a pending write carries; None if it was written by hand without one."""
    return time_or_none(record.get(key)) if isinstance(record, Mapping) else None


def time_or_none(value: Any) -> datetime | None:
    """A time that can be compared with others; None of whatever else was written by hand in its place."""
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


class Progress(NamedTuple):
    """How far a fork or a map is."""

    node_id: str | None
    """The map's node; None for a fork, and for a map without a finished item."""
    done: int
    """How many branches or items have ended."""
    total: int


def progress_of(writes: Mapping[str, Any]) -> list[Progress]:
    """How far the forks and maps are that run at a checkpoint, the outermost first; from what is recorded beside it.

    A fork is seen once one of its nodes has finished, a map once its items are known. What is malformed counts nothing.
    """
    writes = {key: value for key, value in writes.items() if _problem_with(key, value) is None}
    tasks = {key.removeprefix(TASK): task for key, task in writes.items() if key.startswith(TASK)}
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


class LatestCheckpoint(NamedTuple):
    """The latest checkpoint of a namespace, as `find_waiting_interrupts` needs it."""

    config: RunnableConfig
    """Names the checkpoint."""
    metadata: Mapping[str, Any]
    """The checkpoint's metadata."""
    writes: Mapping[str, Any]
    """The checkpoint's pending writes."""


def find_waiting_interrupts(latest: Mapping[str, LatestCheckpoint]) -> list[WaitingInterrupt]:
    """What waits for a human in a thread, by namespace.

    A stop in an embedded graph waits as long as the graph around it says so: that may have gone past it since.
    """
    found: list[WaitingInterrupt] = []
    for namespace, checkpoint in latest.items():
        waiting = waiting_interrupts(checkpoint.config, checkpoint.writes)
        outer = namespace.rpartition("/")[0]
        if OUTER_EXECUTION in checkpoint.metadata and namespace and outer in latest:
            known = subgraph_interrupts(latest[outer].writes)
            waiting = [stop for stop in waiting if stop.id in known]
        found += waiting
    return found


def derive_status(next_node_id: str | None, writes: Mapping[str, Any]) -> str:
    """The status of a run whose latest checkpoint this is: running, interrupted, failed or finished."""
    if writes and (unanswered_interrupts(writes) or subgraph_interrupts(writes)):
        return "interrupted"
    if writes and writes.get(FAILURE) is not None:
        return "failed"
    return "finished" if next_node_id == END else "running"
