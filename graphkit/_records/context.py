"""One visit of a node: what `interrupt()` inside it finds, and which run locks the calling code holds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, Protocol

from graphkit.errors import GraphRunnerError


class GraphInterrupt(BaseException):
    """What `interrupt()` raises: the run stops here and is resumed by running the node again.

    A BaseException, so that a node's `except Exception` lets it pass. A node may raise it itself.
    """

    def __init__(self, payload: Any = None) -> None:
        self.payload = payload
        super().__init__(payload)


class Journal(Protocol):
    """Where the visits of a run keep what must outlive them; the engine's."""

    def idempotency_key(self, visit: NodeContext) -> str:
        """Names a visit: the same again when it is repeated after a crash, and no other's."""
        ...

    def find_result(self, visit: NodeContext, key: str) -> tuple[bool, Any]:
        """Whether something is recorded under a key of a visit, and what."""
        ...

    def record_result(self, visit: NodeContext, key: str, value: Any) -> Any:
        """Record a value at once; returns it as it will be read."""
        ...

    def post_event(self, visit: NodeContext, type: str, level: str, data: dict[str, Any]) -> None:
        """Tell the observers."""
        ...


class NodeContext:
    """A node is being run; or, with no node id, an edge or a hook is asked, which can neither wait nor record.

    Attributes:
        answers: the human's answers of earlier stops in this visit, in the order of the `interrupt()` calls.
        interrupt_calls: how many `interrupt()` calls this attempt has made.
        attempt: which attempt of this visit is running, from 1.
        outputs: what the node dispatched into the stream.
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
        self.node_id = node_id
        self.answers = answers
        self.interrupt_calls = 0
        self.attempt = 1
        self.held_locks = held_locks
        """The run locks that the run holds, and those of the runs around it; see `held_locks`."""
        self.key = key
        """Tells this visit from every other of the thread, and is the same when it is repeated after a crash."""
        self.journal = journal
        self.outputs: list[Any] = []

    def begin(self, attempt: int) -> None:
        """Start over: what the attempt before asked and dispatched is as if it had not been."""
        self.attempt = attempt
        self.interrupt_calls = 0
        self.outputs.clear()

    @property
    def has_open_interrupt(self) -> bool:
        """Whether this attempt has called `interrupt()` without an answer to return, so that it has raised."""
        return self.interrupt_calls > len(self.answers)

    def post_event(self, type: str, level: str, data: dict[str, Any]) -> None:
        """Tell the observers of the run, if it has any."""
        if self.journal is not None:
            self.journal.post_event(self, type, level, data)


CURRENT_NODE_CONTEXT: Final[ContextVar[NodeContext | None]] = ContextVar("graphkit_visit", default=None)
"""The visit that the running code belongs to. Copied into threads by asyncio.to_thread and by graphkit's executors."""


def require_node_context(what: str) -> NodeContext:
    """The visit that the calling code belongs to.

    Raises:
        GraphRunnerError: it belongs to none.
    """
    visit = CURRENT_NODE_CONTEXT.get()
    if visit is None or not visit.node_id:
        raise GraphRunnerError(f"{what} works inside a node of a running graph only")
    return visit


def interrupt(payload: Any = None) -> Any:
    """Stop the run here and ask a human; returns the answer once the run is resumed with one.

    The node is run again from its start, so what stands before this call runs again too; every call that was answered
    returns its answer at once, by the order of the calls.

    Args:
        payload: what the human should see; stored, so it must be storable.

    Raises:
        GraphInterrupt: caught by the engine.
        GraphRunnerError: called outside a node.
    """
    visit = require_node_context("interrupt()")
    index = visit.interrupt_calls
    visit.interrupt_calls += 1
    if index < len(visit.answers):
        return visit.answers[index]
    raise GraphInterrupt(payload)
