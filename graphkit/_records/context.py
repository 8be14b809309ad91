"""The node context: what `interrupt()`, `once` and `dispatch` find while a node executes."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, Protocol

from graphkit.errors import GraphRunnerError


class GraphInterrupt(BaseException):
    """Raised by `interrupt()`: the run stops here, and a resume runs the node again.

    It is a BaseException, so that a node's `except Exception` lets it pass. A node may raise it
    itself.
    """

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload
        super().__init__(payload)


class GraphInterruptException(GraphInterrupt):
    """langgraph4j's exception, which a node raises to stop the run; the reason is the payload."""

    def __init__(self, config: object, reason: str) -> None:
        self.config = config
        super().__init__(reason)


class Journal(Protocol):
    """Keeps what the node executions of a run must find again after a crash."""

    def idempotency_key(self, context: NodeContext) -> str:
        """Return the unique name of a node execution; it is the same after a crash."""
        ...

    def find_result(self, context: NodeContext, key: str) -> tuple[bool, Any]:
        """Return whether a result is recorded under a key, and the result."""
        ...

    def record_result(self, context: NodeContext, key: str, value: Any) -> Any:
        """Record a result at once, and return it as it will be read."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether the run was asked to end as cancelled."""
        ...

    def post_event(self, context: NodeContext, type: str, data: dict[str, Any]) -> None:
        """Post an event to the observers."""
        ...

    def dispatch(self, output: Any) -> bool:
        """Pass an output to the stream at once; False if the stream waits for the end of the node."""
        ...


class NodeContext:
    """What the engine knows about the node that is executing.

    Without a node id it stands for an edge, a hook or a release: these can neither interrupt the
    run nor record anything.

    Attributes:
        answers: the answers to interrupts of this node execution, in the order of the `interrupt()`
            calls.
        interrupt_calls: how many `interrupt()` calls this attempt has made.
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
        journal: Journal | None = None,
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

    def start_attempt(self, attempt: int) -> None:
        """Start another attempt: forget the interrupts and outputs of the previous one."""
        self.attempt = attempt
        self.interrupt_calls = 0
        self.outputs.clear()

    @property
    def has_open_interrupt(self) -> bool:
        """Whether this attempt made an `interrupt()` call that had no answer, and so raised."""
        return self.interrupt_calls > len(self.answers)

    def dispatch(self, output: Any) -> None:
        """Pass an output to the stream: at once, or when the node is done."""
        is_passed = self.journal is not None and self.journal.dispatch(output)
        if not is_passed:
            self.outputs.append(output)

    def post_event(self, type: str, data: dict[str, Any]) -> None:
        """Post an event to the observers of the run, if it has any."""
        if self.journal is not None:
            self.journal.post_event(self, type, data)


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


def interrupt(payload: Any = None) -> Any:
    """Stop the run here and ask a human; return the answer once the run is resumed with one.

    A resume runs the node again from its start, so the code before this call runs again too. Each
    call that was answered returns its answer at once; answers are matched to calls by their order.

    Args:
        payload: what the human should see; stored, so it must be storable.

    Raises:
        GraphInterrupt: caught by the engine.
        GraphRunnerError: called outside a node.
    """
    # Answers have no names in the code of a node, so its calls are counted. A node asks for a name, and then
    # whether that is right. The first resume has one answer: the first call returns it, the second raises.
    # The second resume has two. A node that asks in another order when it runs again gets wrong answers.
    context = require_node_context("interrupt()")
    index = context.interrupt_calls
    context.interrupt_calls += 1
    if index < len(context.answers):
        return context.answers[index]
    raise GraphInterrupt(payload)
