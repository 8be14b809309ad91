"""Pending writes: their keys, their checks, and what follows from them.

A pending write is recorded with a checkpoint before the next one exists: an interrupt, an answer, an
update, the result of a branch, a failure. Results of `once` have keys of their own, see
`graphkit._engine.history`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt, When
from graphkit._saver import langgraph_writes
from graphkit._values.frozen import freeze
from graphkit.errors import CheckpointSerializationError

INTERRUPT: Final = "interrupt:"
"""Prefix of an interrupt: `interrupt:<id>` -> {node_id, when, payload, created_at, metadata, key, call,
deadline, default, reminders}; those after `created_at` may be missing."""
TIMER: Final = "timer:"
"""Prefix of an interrupt that waits for a time and not for a human: `timer:<id>` -> as an interrupt,
with `due`. A prefix of its own, because that a human is asked follows from the keys alone."""
ANSWER: Final = "answer:"
"""Prefix of an answer: `answer:<id of the interrupt>` -> the answer; None if the run moved past the
interrupt, or the timer was due."""
RESUMED: Final = "resumed:"
"""Prefix of what a resume records when it takes an answer: `resumed:<id of the interrupt>` -> True. If
the deadline of the interrupt has answered it: {by: "deadline", expired}, and expired is True if there
was no default."""
REMINDED: Final = "reminded:"
"""Prefix of how many reminders of an interrupt a worker has posted: `reminded:<id of the interrupt>` -> the number."""
UPDATE: Final = "update:"
"""Prefix of an update that a resume merges into the state: `update:<n>` -> the mapping."""
SUBGRAPH_INTERRUPT: Final = "inner:"
"""Prefix of an interrupt in a nested graph: `inner:<id>` -> the namespace of the nested graph; None
once that graph continues."""
SUBGRAPH_TIMER: Final = "inner-timer:"
"""Prefix of a timer in a nested graph, as SUBGRAPH_INTERRUPT."""
ASLEEP: Final = "asleep"
"""The key of a run that has stopped and waits for a timer: True; None once the run continues. A timer alone
does not say so: another branch may still be at work, or have been when the process died."""
OWN_STOPS: Final = (INTERRUPT, TIMER)
"""The prefixes of what makes a run stop and wait, here and not in a nested graph."""
STOP_PREFIXES: Final = (*OWN_STOPS, SUBGRAPH_INTERRUPT, SUBGRAPH_TIMER)
"""The prefixes of what makes a run stop and wait."""
TASK: Final = "task:"
"""Prefix of a finished node of a branch, or item of a map: `task:<key of the execution>` -> a mapping
with its updates."""
ITEMS: Final = "items:"
"""Prefix of the items of a map: `items:<key of the execution>` -> the list."""
OUTER_EXECUTION: Final = "within"
"""A metadata key in the checkpoints of a nested graph: the execution, in the outer graph, of the node
that the nested graph is."""
FAILURE: Final = "failure"
"""The key of a failure: why a run ended, {node_id, type, message, at}; None once the run continues."""
RETRIED: Final = "retried"
"""The key that says that an attempt of a node failed and was retried: True."""
CANCELLED: Final = "cancelled"
"""The key of a cancel that has taken effect: {reason, at}; None once the run continues."""
INCOMPLETE: Final = "graphkit:incomplete"
"""A key in the metadata of the latest checkpoint of a copy, fork or import that has not ended, or in its
pending writes if only its release is missing; see `graphkit._saver.incomplete`."""
DECLARED_STOPS: Final = frozenset({"before", "after"})
"""Values of `when` of the interrupts that the options declare, and of a pause: a plain resume passes them."""
_STOPS: Final = (INTERRUPT, SUBGRAPH_INTERRUPT, ASLEEP, FAILURE, CANCELLED, langgraph_writes.CONTROL_WRITE)
"""The keys from which it follows that a run has stopped, or their prefixes."""
_NONE: Final[Mapping[str, Any]] = {}


# Checks


def check_writes(writes: Mapping[str, Any]) -> None:
    """Check pending writes before they are stored. Every saver's `put_writes` calls this first.

    Raises:
        CheckpointSerializationError: the writes are not a mapping, a key is not a string, or no
            reader could use the value of a key that graphkit reads. `path` names the key.
    """
    given: Any = writes  # callers may pass anything
    if not isinstance(given, Mapping):
        raise CheckpointSerializationError("writes", type(given).__name__, "they are a mapping")
    for key, value in given.items():
        if not isinstance(key, str):
            raise CheckpointSerializationError(f"writes[{key!r}]", type(key).__name__, "the keys are strings")
        problem = _find_problem(key, value)
        if problem is not None:
            raise CheckpointSerializationError(key, type(value).__name__, problem)


def check_tags(tags: Iterable[Any]) -> None:
    """Check tags before they are stored. Every saver's `add_tags` and `remove_tags` call this first.

    Raises:
        CheckpointSerializationError: a tag is not a string.
    """
    for tag in tags:
        if not isinstance(tag, str):
            raise CheckpointSerializationError("tags", type(tag).__name__, "a tag is a string")


def problem_with_interrupt(interrupt: Any) -> str | None:
    """Return why a reader cannot use the record of an interrupt; None if it can."""
    if not isinstance(interrupt, Mapping):
        return _INTERRUPT_SHAPE
    missing = [field for field in _INTERRUPT_FIELDS if field not in interrupt]
    reminders = interrupt.get("reminders", ())
    if missing:
        problem = f"it has no {missing[0]!r}"
    elif not isinstance(interrupt["node_id"], str):
        problem = "its 'node_id' must be a string"
    elif interrupt["when"] not in _WHENS:
        problem = f"its 'when' must be one of {', '.join(_WHENS)}"
    elif not isinstance(interrupt.get("metadata", {}), Mapping):
        problem = "its 'metadata' must be a mapping"
    elif "deadline" in interrupt and time_or_none(interrupt["deadline"]) is None:
        problem = "its 'deadline' must be a datetime with a time zone"
    elif not isinstance(reminders, list | tuple) or any(time_or_none(time) is None for time in reminders):
        problem = "its 'reminders' must be a list of datetimes with a time zone"
    elif interrupt.get("call", 0) not in _CALLS:
        problem = "its 'call' must be the number of a call"
    else:
        return None
    return f"{_INTERRUPT_SHAPE}; {problem}"


_WHENS: Final = get_args(When)
_INTERRUPT_FIELDS: Final = ("node_id", "when", "payload", "created_at")
_INTERRUPT_SHAPE: Final = f"an interrupt is a mapping with {', '.join(_INTERRUPT_FIELDS)}"
_CALLS: Final = range(1_000_000)
"""The numbers of calls. No node makes more: a list of the answers must not exhaust the memory."""
_SHAPES: Final[Mapping[str, tuple[Any, str]]] = {
    SUBGRAPH_INTERRUPT: (
        (str, NoneType),
        "an interrupt in a nested graph is recorded as its namespace, a string, or as None",
    ),
    SUBGRAPH_TIMER: ((str, NoneType), "a timer in a nested graph is recorded as its namespace, a string, or as None"),
    UPDATE: (Mapping, "an update is a mapping of keys to values"),
    TASK: (Mapping, "a finished task is a mapping"),
    ITEMS: ((list, tuple), "the items of a map are a list"),
}
"""By prefix: the types of a value, and what is wrong with any other. Values under other keys may be
anything: answers and results of `once` belong to the user, and a failure is only shown to people, so
its readers accept every value."""


def _find_problem(key: str, value: Any) -> str | None:
    """Return why a reader cannot use a pending write; None if it can."""
    head, colon, _ = key.partition(":")
    prefix = head + colon
    if prefix in OWN_STOPS:
        problem = problem_with_interrupt(value)
        if problem is None and prefix == TIMER and time_or_none(value.get("due")) is None:
            problem = f"{_INTERRUPT_SHAPE}; the 'due' of a timer must be a datetime with a time zone"
        return problem
    if prefix not in _SHAPES:
        return None
    types, problem = _SHAPES[prefix]
    if not isinstance(value, types):
        return problem
    if prefix == TASK and not isinstance(value.get("branches", 0), int):
        return "the 'branches' of a finished task are a number"
    return None


# Nodes and namespaces


def is_fork(node_id: str | None) -> bool:
    """Return whether a node id, of a checkpoint or of its next node, names a fork."""
    return node_id is not None and node_id.startswith("__PARALLEL__(")


def subgraph_namespace(namespace: str, node_id: str) -> str:
    """Return the namespace in which the graph that is nested as a node keeps its history.

    A slash in the id of the node is written %2F, so two nested graphs never share a namespace.
    """
    name = node_id.replace("%", "%25").replace("/", "%2F")
    if namespace:
        return f"{namespace}/{name}"
    return name


def follow_namespaces(
    first: Iterable[str], read_history: Callable[[str], tuple[Sequence[Checkpoint], Mapping[str, Any]]]
) -> list[str]:
    """Return the namespaces that hold checkpoints, found by following histories from some of them on.

    Args:
        first: where to begin.
        read_history: returns the history of a namespace, newest first, and its pending writes.
    """
    found: list[str] = []
    latest: set[tuple[str, datetime]] = set()
    candidates = [*dict.fromkeys(first)]
    for namespace in candidates:  # grows inside the loop: each namespace names the nested ones
        history, writes = read_history(namespace)
        # A saver that keeps one history for each thread gives it for every namespace: following it would never end.
        # By the time, too: checkpoints made by hand may have the same id in each namespace.
        if not history or (history[0].id, history[0].created_at) in latest:
            continue
        latest.add((history[0].id, history[0].created_at))
        found.append(namespace)
        nodes = dict.fromkeys(name for each in history for name in (each.node_id, each.next_node_id))
        nested = [subgraph_namespace(namespace, node_id) for node_id in nodes if node_id is not None]
        nested += subgraph_stops(writes).values()
        candidates += [name for name in dict.fromkeys(nested) if name not in candidates]
    return found


# Interrupts, failures, stops


def stops_in(writes: Mapping[str, Any], prefix: str | tuple[str, ...] = OWN_STOPS) -> dict[str, Any]:
    """Return the interrupts and timers among pending writes, by id, in the order in which they were recorded.

    Args:
        writes: the pending writes.
        prefix: INTERRUPT or TIMER returns only these.
    """
    return _strip_prefix(prefix, writes)


def unanswered_stops(writes: Mapping[str, Any], prefix: str | tuple[str, ...] = OWN_STOPS) -> dict[str, Any]:
    """Return the interrupts without an answer, and the timers that no resume has found due; as `stops_in`."""
    return {key: stop for key, stop in _strip_prefix(prefix, writes).items() if ANSWER + key not in writes}


def _strip_prefix(prefix: str | tuple[str, ...], writes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pending writes whose key has a prefix, by the rest of the key."""
    return {key.partition(":")[2]: value for key, value in writes.items() if key.startswith(prefix)}


def is_pause(interrupt: Mapping[str, Any]) -> bool:
    """Return whether the record of an interrupt is a pause, and no question or declared stop."""
    metadata: Mapping[str, Any] = interrupt.get("metadata", _NONE)
    return metadata.get("reason") == "pause"


def answers_of_time(writes: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return what a resume records for the timers that are due, and the questions whose deadline has passed."""
    timers = unanswered_stops(writes, TIMER)
    added: dict[str, Any] = {ANSWER + key: None for key, timer in timers.items() if timer["due"] <= now}
    for key, interrupt in unanswered_stops(writes, INTERRUPT).items():
        if has_expired(interrupt.get("deadline"), now):
            added[ANSWER + key] = interrupt.get("default")
            added[RESUMED + key] = {"by": "deadline", "expired": "default" not in interrupt}
    return added


def next_time_of(writes: Mapping[str, Any]) -> datetime | None:
    """Return when the first timer is due or the first deadline passes; None if there is neither."""
    dues = [timer["due"] for timer in unanswered_stops(writes, TIMER).values()]
    questions = unanswered_stops(writes, INTERRUPT).values()
    deadlines = [question["deadline"] for question in questions if "deadline" in question]
    return min(dues + deadlines, default=None)


def has_expired(deadline: datetime | None, now: datetime) -> bool:
    """Return whether a question takes no answer any more. An answer at the time of the deadline is too late."""
    return deadline is not None and deadline <= now


def is_expired(resumed: Any) -> bool:
    """Return whether a question has no answer because its deadline passed, given its RESUMED write."""
    return isinstance(resumed, Mapping) and resumed.get("expired") is True


# An earlier checkpoint from which a thread goes on: its next node is executed again. It asks again what it asked,
# and finds nothing else of what was recorded for the execution that is over: no answers, no updates, no finished
# branches, no results of `once`.


def asked_again(writes: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the interrupts and timers of an earlier checkpoint, without the deadlines that have passed."""
    asked_again: dict[str, Any] = {}
    for key, stop in writes.items():
        if not key.startswith(OWN_STOPS):
            continue
        passed: set[str] = set()
        if has_expired(stop.get("deadline"), now):
            passed |= {"deadline", "default"}
        if any(time <= now for time in stop.get("reminders", ())):
            passed.add("reminders")
        asked_again[key] = freeze({name: value for name, value in stop.items() if name not in passed})
    return asked_again


def first_open_interrupts(recorded: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the interrupts that wait again.

    A node that asked twice was answered the first time. Without that answer it asks its first
    question again, and its second question must not wait at the same time.

    Args:
        recorded: what an earlier checkpoint asks again.
        added: the pending writes that are added, answers among them.

    Returns:
        The interrupts, but of each node execution only those up to its first unanswered one.
    """
    kept: dict[str, Any] = {}
    waiting: set[tuple[str, str]] = set()
    for key, interrupt in recorded.items():
        _, _, stop_id = key.partition(":")
        is_answered = ANSWER + stop_id in added
        if interrupt["when"] == "inside" and not is_answered:
            execution = (interrupt["node_id"], interrupt.get("key", ""))
            if execution in waiting:
                continue
            waiting.add(execution)
        kept[key] = interrupt
    return kept


def writes_of_copy(writes: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return the pending writes of a copy of an earlier checkpoint, given those of the original."""
    asked = asked_again(writes, now)
    # A timer before a question was due when the question was asked: they may wait at the same time.
    copied = first_open_interrupts(asked, {ANSWER + timer_id: None for timer_id in unanswered_stops(asked, TIMER)})
    if any(key.startswith(TIMER) for key in copied):
        copied[ASLEEP] = True
    return copied


def can_answer(when: When, value: Any) -> bool:
    """Return whether a value can answer an interrupt.

    What `interrupt()` returns may be anything. The answer to a stop at a node's boundary is an update
    of the state, and so a mapping.

    Args:
        when: where the run stopped.
        value: the answer.
    """
    return when == "inside" or isinstance(value, Mapping)


def taken_answers(writes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a resume adds to pending writes that have answers which no run has taken yet.

    It distinguishes a thread that waits for a resume from one whose run has died after it.
    """
    return {RESUMED + key: True for key in stops_in(writes) if ANSWER + key in writes and RESUMED + key not in writes}


def subgraph_interrupts(writes: Mapping[str, Any]) -> dict[str, str]:
    """Return the pending interrupts in nested graphs: id -> namespace."""
    recorded = _strip_prefix(SUBGRAPH_INTERRUPT, writes)
    return {key: namespace for key, namespace in recorded.items() if namespace is not None}


def subgraph_stops(writes: Mapping[str, Any]) -> dict[str, str]:
    """Return the pending interrupts and timers in nested graphs: id -> namespace."""
    timers = _strip_prefix(SUBGRAPH_TIMER, writes)
    return subgraph_interrupts(writes) | {key: namespace for key, namespace in timers.items() if namespace is not None}


def next_update_key(writes: Mapping[str, Any]) -> str:
    """Return the key under which the next update is recorded."""
    return f"{UPDATE}{sum(key.startswith(UPDATE) for key in writes)}"


def waiting_interrupts(
    config: RunnableConfig, writes: Mapping[str, Any], created_at: datetime
) -> list[WaitingInterrupt]:
    """Return the pending interrupts of one checkpoint, LangGraph's among them.

    A run that was cancelled waits for no answer.

    Args:
        config: names the checkpoint.
        writes: its pending writes.
        created_at: when it was made.
    """
    if is_cancelled(writes):
        return []
    waiting = [*unanswered_stops(writes, INTERRUPT).items(), *langgraph_writes.find_questions(writes, created_at)]
    return [to_waiting_interrupt(config, key, interrupt) for key, interrupt in waiting]


def to_waiting_interrupt(config: RunnableConfig, interrupt_id: str, interrupt: Mapping[str, Any]) -> WaitingInterrupt:
    """Return a recorded interrupt as listings show it; the config names its checkpoint."""
    return WaitingInterrupt(
        thread_id=config.thread,
        checkpoint_ns=config.checkpoint_ns,
        checkpoint_id=config.checkpoint_id or "",
        node_id=interrupt["node_id"],
        when=interrupt["when"],
        id=interrupt_id,
        payload=interrupt["payload"],
        created_at=interrupt["created_at"],
        deadline=interrupt.get("deadline"),
    )


def find_waiting_interrupts(latest: Mapping[str, tuple[CheckpointInfo, Mapping[str, Any]]]) -> list[WaitingInterrupt]:
    """Return the pending interrupts of a thread.

    An interrupt in a nested graph is pending while every graph around it has it recorded: each of them
    may have moved past it since. LangGraph records the interrupts of nested graphs in the outer one,
    too.

    Args:
        latest: the latest checkpoint of each namespace of the thread, and its pending writes.
    """
    found: list[WaitingInterrupt] = []
    writes_by_namespace = {namespace: writes for namespace, (_, writes) in latest.items()}
    if is_cancelled(writes_by_namespace.get("", _NONE)):
        return found
    for namespace, (info, writes) in latest.items():
        if namespace and langgraph_writes.is_langgraph(info.metadata):
            continue
        config = RunnableConfig(info.thread_id, info.id, namespace)
        waiting = waiting_interrupts(config, writes, info.created_at)
        if OUTER_EXECUTION in info.metadata:
            outer_namespace = namespace
            while outer_namespace:
                outer_namespace, _, _ = outer_namespace.rpartition("/")
                if outer_namespace in latest:  # else a graph around it has a saver of its own
                    pending = subgraph_interrupts(writes_by_namespace[outer_namespace])
                    waiting = [interrupt for interrupt in waiting if interrupt.id in pending]
        found += waiting
    return found


def find_failure(writes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return why a run ended at a checkpoint, by its pending writes; None if it did not fail.

    A caller may record anything under the key, which then is no failure.
    """
    failure = writes.get(FAILURE)
    if failure is None:
        return langgraph_writes.find_failure(writes)
    return failure if isinstance(failure, Mapping) else None


def find_cancellation(writes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return why a run was cancelled at a checkpoint, {reason, at}; as `find_failure`."""
    cancellation = writes.get(CANCELLED)
    return cancellation if isinstance(cancellation, Mapping) else None


def is_incomplete(metadata: Mapping[str, Any], writes: Mapping[str, Any] = _NONE) -> bool:
    """Return whether a thread is a copy, fork or import that has not ended. No run may take it.

    Args:
        metadata: the metadata of the latest checkpoint of the root.
        writes: the pending writes of that checkpoint.
    """
    return INCOMPLETE in metadata or INCOMPLETE in writes


def is_cancelled(writes: Mapping[str, Any]) -> bool:
    """Return whether the run of a thread was cancelled, by the pending writes of its latest checkpoint."""
    return writes.get(CANCELLED) is not None


def has_status_mark(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata alone may decide why a run stopped, without any pending write."""
    return INCOMPLETE in metadata or SUBMIT in metadata


def derive_stop(next_node_id: str | None, writes: Mapping[str, Any], metadata: Mapping[str, Any] = _NONE) -> str:
    """Return why a run stopped at a checkpoint, as its own pending writes say.

    Args:
        next_node_id: the next node of the checkpoint.
        writes: the pending writes. Only the keys matter, and which values are None.
        metadata: the metadata of the checkpoint.

    Returns:
        "incomplete": the checkpoint marks a copy, fork or import that has not ended; "cancelled",
        whatever else it waited for; "interrupted": the run waits for a human, here or in a nested graph,
        which the history of that graph may deny; "failed"; "answered": all answers are there and no run
        has taken them; "sleeping": the run waits for timers only; "queued": the run was submitted and
        has not begun; otherwise "".
    """
    if is_incomplete(metadata, writes):
        return "incomplete"
    stop = ""
    # Hot path: runs on every put of pending writes, and most writes do not affect the status.
    if any(key.startswith(_STOPS) for key in writes):
        stop = _find_stop(next_node_id, writes)
    if not stop and is_queued(next_node_id, metadata):
        return "queued"
    return stop


def _find_stop(next_node_id: str | None, writes: Mapping[str, Any]) -> str:
    """Return why a run stopped; "" if its pending writes do not say."""
    if is_cancelled(writes):
        return "cancelled"
    if unanswered_stops(writes, INTERRUPT) or subgraph_interrupts(writes):
        return "interrupted"
    if writes.get(FAILURE) is not None:
        return "failed"
    answers = [writes[ANSWER + key] for key in stops_in(writes, INTERRUPT) if RESUMED + key not in writes]
    # After the last node, an answer that changes nothing leaves nothing to do.
    if any(answer is not None or next_node_id != END for answer in answers):
        return "answered"
    # Last, so that what was answered in another branch does not wait for the timer.
    if writes.get(ASLEEP) is not None:
        return "sleeping"
    return langgraph_writes.derive_stop(writes)


def derive_status(next_node_id: str | None, writes: Mapping[str, Any], metadata: Mapping[str, Any] = _NONE) -> str:
    """Return what a checkpoint says of its run: incomplete, running, cancelled, interrupted, failed or finished.

    Here a run that has neither ended nor stopped counts as running. `graphkit._saver.status` decides
    the status of the thread.

    Args:
        next_node_id: the next node of the checkpoint.
        writes: its pending writes, as for `derive_stop`.
        metadata: its metadata.
    """
    stop = derive_stop(next_node_id, writes, metadata)
    if stop in {"incomplete", "cancelled", "interrupted", "failed"}:
        return stop
    if next_node_id == END:
        return "finished"
    return "running"


def time_or_none(value: Any) -> datetime | None:
    """Return a value if it is a time with a time zone, which can be compared with others; otherwise None."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    return None


# Progress of forks and maps


class ForkProgress(NamedTuple):
    """How far a fork or a map is."""

    node_id: str | None
    """The node of the map; None for a fork, and for a map without a finished item."""
    done: int
    """The number of branches or items that have ended."""
    total: int
    """The number of branches or items."""


def progress_of(writes: Mapping[str, Any]) -> list[ForkProgress]:
    """Return how far the running forks and maps of a checkpoint are, the outermost first.

    A fork is known once one of its nodes has finished, a map once its items are known.

    Args:
        writes: the pending writes of the checkpoint.
    """
    maps = _strip_prefix(ITEMS, writes)
    found = {execution: ForkProgress(None, done=0, total=len(items)) for execution, items in maps.items()}
    for name, task in _strip_prefix(TASK, writes).items():
        # The key of an item is `<map>.<number>`, that of a node in a branch `<fork>.<branch>.<position>`.
        outer, _, number = name.rpartition(".")
        if outer in maps and number.isdigit():
            progress = found[outer]
            node_id = progress.node_id or task.get("node")
            found[outer] = progress._replace(node_id=node_id, done=progress.done + 1)
        fork = outer.rpartition(".")[0]
        if "branches" in task and fork not in maps:
            done = int(bool(task.get("ends")))
            if fork in found:
                done += found[fork].done
            found[fork] = ForkProgress(None, done=done, total=task["branches"])
    # The key of a nested execution has more parts than the keys around it.
    executions = sorted(found, key=lambda execution: execution.count("."))
    return [found[execution] for execution in executions]


# Submitted runs: one checkpoint at the end of their thread, before the first node, with the state of the thread, and in
# its metadata the input. Every saver stores that with a single put. The run that begins stores its own checkpoint after
# it, as one that starts from an input does.

SUBMIT: Final = "graphkit:submit"
"""The key of the submission in the metadata of its checkpoint: {input, at, key, is_new}."""
GRAPH_ID: Final = "graphkit:graph_id"
"""A metadata key: the id of the graph that the run was submitted to. Its later checkpoints have it,
too, because a worker may serve several graphs with the same nodes and edges."""

SCHEDULE_THREADS: Final = "graphkit:schedule:"
"""How the ids of the threads begin that are schedules: they hold no runs, and are no idle threads."""


def is_schedule(thread_id: str) -> bool:
    """Return whether a thread is a schedule, which listings for people and `delete_idle` leave out."""
    return thread_id.startswith(SCHEDULE_THREADS)


class Submission(NamedTuple):
    """A run that was submitted."""

    input: Mapping[str, Any]
    """The input, packed by `pack_if_marked`."""
    at: datetime | None
    """When the run may begin; None: at once."""
    key: str | None
    """Another submission with this key to this thread is the same one."""
    is_new: bool
    """Whether the thread had no checkpoint, so that the state begins with the defaults of the channels."""

    @classmethod
    def find(cls, next_node_id: str | None, metadata: Mapping[str, Any]) -> Submission | None:
        """Return the submission that a checkpoint is; None if it is another one."""
        if not is_queued(next_node_id, metadata):
            return None
        # A caller's metadata may have the key, with any value.
        stored = metadata[SUBMIT]
        if not isinstance(stored, Mapping) or not isinstance(stored.get("input"), Mapping):
            return None
        return cls(stored["input"], time_or_none(stored.get("at")), stored.get("key"), stored.get("is_new") is True)

    def is_due(self, now: datetime) -> bool:
        """Return whether the run may begin."""
        return self.at is None or self.at <= now


def is_queued(next_node_id: str | None, metadata: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is a submission: no other one leads to START."""
    return SUBMIT in metadata and next_node_id == START
