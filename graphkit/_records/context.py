"""The node context: what `interrupt()`, `sleep`, `once` and `dispatch` find while a node executes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from graphkit._options import check_list
from graphkit.errors import GraphRunnerError, InterruptExpiredError

if TYPE_CHECKING:
    from graphkit._records.config import RunnableConfig


_T = TypeVar("_T")


@contextmanager
def setting(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Set a context variable for a block of code."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Means that there is no answer, or that a config names no principal; None is an answer, and is nobody."""


class Expired(NamedTuple):
    """Among the answers of a node execution: the deadline passed, and there was no default."""

    deadline: datetime


class StopTerms(NamedTuple):
    """What a call that stops the node has asked for. A timedelta counts from when the run records the stop."""

    call: int
    """The number of the call in its node execution, from 0."""
    due: timedelta | datetime | None = None
    """When a timer is due; None for a question to a human."""
    deadline: timedelta | datetime | None = None
    default: Any = ABSENT
    reminders: tuple[timedelta | datetime, ...] = ()


class GraphInterrupt(BaseException):
    """Raised by `interrupt()`: the run stops here, and a resume runs the node again.

    It is a BaseException, so that a node's `except Exception` lets it pass. A node may raise it
    itself.
    """

    terms: StopTerms | None = None

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload
        super().__init__(payload)


class GraphInterruptException(GraphInterrupt):
    """langgraph4j's exception, which a node raises to stop the run; the reason is the payload."""

    def __init__(self, config: object, reason: str) -> None:
        self.config = config
        super().__init__(reason)


class Journal:
    """Keeps what the node executions of a run must find again after a crash.

    The base class is the journal of code that has no run, or none any more: it keeps nothing.
    """

    config: RunnableConfig | None = None
    """The config of the run; one object for all executions that have the same journal."""

    def idempotency_key(self, context: NodeContext) -> str:
        """Return the unique name of a node execution; it is the same after a crash."""
        return context.node_id

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:  # noqa: ARG002 - nothing is kept
        """Return whether a result is recorded under a key, and the result."""
        return False, None

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:  # noqa: ARG002
        """Record a result at once, and return it as it will be read."""
        return value

    def now(self) -> datetime:
        """Return the time of the run."""
        return datetime.now(UTC)

    def is_cancelled(self) -> bool:
        """Return whether the run was asked to end as cancelled."""
        return False

    def post_event(self, context: NodeContext, type: str, data: dict[str, Any]) -> None:
        """Post an event to the observers."""

    def dispatch(self, output: Any) -> bool:  # noqa: ARG002
        """Pass an output to the stream at once; False if the stream waits for the end of the node."""
        return False


NO_JOURNAL: Final = Journal()
"""For code outside of a run."""


class NodeContext:
    """What the engine knows about the node that is executing.

    Without a node id it stands for an edge, a hook or a release: these can neither interrupt the
    run nor record anything.

    Attributes:
        answers: the answers to the calls of this node execution that can stop it, in their order: what
            `interrupt()` returns, or an Expired; None for a timer that was due. ABSENT for a call that
            did not stop it, because its time had passed.
        interrupt_calls: how many such calls this attempt has made.
        attempt: the number of the attempt that is running, from 1.
        outputs: what the node has dispatched, and the stream has not seen yet.
    """

    __slots__ = ("answers", "attempt", "held_locks", "interrupt_calls", "journal", "key", "node_id", "outputs")

    def __init__(
        self,
        node_id: str,
        answers: tuple[Any, ...],
        held_locks: frozenset[object],
        key: str = "",
        journal: Journal = NO_JOURNAL,
    ) -> None:
        # The engine passes all five by position: keywords would add 2 % to the cost of a step.
        self.node_id = node_id
        self.answers = answers
        self.interrupt_calls = 0
        self.attempt = 1
        self.held_locks = held_locks
        """The keys of the run locks that the run and its outer runs hold; see
        `get_held_run_locks`."""
        self.key = key
        """Identifies this node execution within the thread; a repetition after a crash has the same
        key."""
        self.journal = journal
        self.outputs: list[Any] = []

    @property
    def has_open_interrupt(self) -> bool:
        """Whether this attempt made a call that had no answer, and so raised GraphInterrupt."""
        return self.interrupt_calls > len(self.answers)

    def dispatch(self, output: Any) -> None:
        """Pass an output to the stream: at once, or when the node is done."""
        if not self.journal.dispatch(output):
            self.outputs.append(output)

    def adopt(self, copy: NodeContext) -> None:
        """Take over what an attempt did that had a copy of this context."""
        self.attempt = copy.attempt
        self.interrupt_calls = copy.interrupt_calls
        self.answers = copy.answers
        for output in copy.outputs:
            self.dispatch(output)
        copy.outputs.clear()


CURRENT_NODE_CONTEXT: Final[ContextVar[NodeContext | None]] = ContextVar("graphkit_node_context", default=None)
"""The node context of the calling code. asyncio.to_thread and graphkit's own executors copy it into
their threads."""


def require_node_context(what: str) -> NodeContext:
    """Return the node context of the calling code; `what` names the caller's function in the error.

    Raises:
        GraphRunnerError: the calling code is not part of a node.
    """
    context = CURRENT_NODE_CONTEXT.get()
    if context is None or not context.node_id:
        raise GraphRunnerError(f"{what} works inside a node of a running graph only")
    return context


def post_event(type: str, data: dict[str, Any]) -> None:
    """Post an event to the observers of the run that the calling code is part of; without a run, do nothing."""
    context = CURRENT_NODE_CONTEXT.get()
    if context is not None:
        context.journal.post_event(context, type, data)


def interrupt(
    payload: Any = None,
    *,
    deadline: float | timedelta | datetime | None = None,
    default: Any = ABSENT,
    reminders: Iterable[float | timedelta | datetime] = (),
) -> Any:
    """Stop the run here and ask a human; return the answer once the run is resumed with one.

    A resume runs the node again from its start, so the code before this call runs again too. Each
    call that was answered returns its answer at once; answers are matched to calls by their order.

    Args:
        payload: what the human should see; stored, so it must be storable.
        deadline: when the question expires: an aware datetime, or a timedelta or seconds from when it
            was first asked. A later answer is refused. A worker goes on with the run then.
        default: the answer once the deadline has passed; storable.
        reminders: when to remind of the question as long as it has no answer: times as for `deadline`. A
            worker posts `interrupt.reminder` to the observers of the graph then.

    Raises:
        GraphInterrupt: caught by the engine.
        InterruptExpiredError: the deadline has passed without an answer, and there is no default.
        GraphRunnerError: called outside a node.
        TypeError: `reminders` is one time instead of a list.
        ValueError: a time has no time zone, is negative or not finite; or there is a default without a
            deadline.
    """
    # Answers have no names in the code of a node, so its calls are counted. A node asks for a name, and then
    # whether that is right. The first resume has one answer: the first call returns it, the second raises.
    # The second resume has two. A node that asks in another order when it runs again gets wrong answers.
    context = require_node_context("interrupt()")
    moment = None if deadline is None else _parse_moment("the deadline", deadline)
    if moment is None and default is not ABSENT:
        raise ValueError("a default is the answer after a deadline: give interrupt() a deadline, too")
    check_list("reminders", "times", reminders)
    times = tuple(_parse_moment("a reminder", reminder) for reminder in reminders)
    call, answer = _count_call(context)
    if isinstance(answer, Expired):
        raise InterruptExpiredError(context.node_id, answer.deadline)
    if answer is not ABSENT:
        return answer
    raise _make_stop(payload, StopTerms(call, deadline=moment, default=default, reminders=times))


def sleep(seconds: float | timedelta) -> None:
    """Stop the run for some time; a worker goes on with it then.

    The time counts from the first execution of this call, whatever it is given when the node runs
    again: as with `interrupt()`, the code before this call runs again. No time at all stops nothing.

    Args:
        seconds: how long; a timedelta or a number of seconds.

    Raises:
        GraphInterrupt: caught by the engine.
        GraphRunnerError: called outside a node.
        ValueError: the time is negative or not finite.
    """
    context = require_node_context("sleep()")
    duration = _parse_duration("sleep()", seconds)
    _wait(context, duration, is_over=not duration)


def wait_until(time: datetime) -> None:
    """Stop the run until a time, as `sleep` does; a time that has passed stops nothing.

    Raises:
        GraphInterrupt: caught by the engine.
        GraphRunnerError: called outside a node.
        ValueError: the time has no time zone.
    """
    context = require_node_context("wait_until()")
    time = _to_utc("wait_until()", time)
    _wait(context, time, is_over=time <= context.journal.now())


def _wait(context: NodeContext, due: timedelta | datetime, *, is_over: bool) -> None:
    call, _ = _count_call(context)
    if call < len(context.answers):  # the timer was due, or was over when the node ran before
        return
    if not is_over:
        raise _make_stop(None, StopTerms(call, due=due))
    # Nothing is recorded of this call. The next record of this node execution has the number of its own
    # call, and so says that this one has passed.
    context.answers += (ABSENT,)


def _count_call(context: NodeContext) -> tuple[int, Any]:
    """Count a call that can stop the node; return its number and its answer, or ABSENT."""
    call = context.interrupt_calls
    context.interrupt_calls += 1
    if call < len(context.answers):
        return call, context.answers[call]
    return call, ABSENT


def _make_stop(payload: Any, terms: StopTerms) -> GraphInterrupt:
    stop = GraphInterrupt(payload)
    stop.terms = terms
    return stop


def _parse_moment(what: str, value: float | timedelta | datetime) -> timedelta | datetime:
    if isinstance(value, datetime):
        return _to_utc(what, value)
    return _parse_duration(what, value)


def _parse_duration(what: str, value: object) -> timedelta:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < math.inf:  # type: ignore[operator]
        raise ValueError(f"{what} takes a timedelta or a number of seconds, finite and not negative, not {value!r}")
    try:
        duration = timedelta(seconds=seconds)  # type: ignore[arg-type]
        datetime.now(UTC) + duration  # is there such a time?
    except OverflowError:
        raise ValueError(f"{what} ends after the year 9999: {value!r}") from None
    return duration


def _to_utc(what: str, time: object) -> datetime:
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise ValueError(f"{what} takes a datetime with a time zone, such as UTC, not {time!r}")
    return time.astimezone(UTC)
