"""RunReporter: counts what a run executes, and reports it: in events to observers, in errors to callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Final, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._values.frozen import FrozenDict, freeze, private_copy
from graphkit._wording import describe_error, message_of
from graphkit.errors import GraphRunnerError, MaxIterationsError, NodeExecutionError

PostEvent = Callable[..., None]
"""Posts an event to the observers; see `graphkit._plan.events.Outbox.post`."""
_PATH_LENGTH: Final = 100
_NO_DATA: Final[Mapping[str, Any]] = {}


@final
class RunReporter:
    """The counts, the path, the events and the errors of one run, its branches included.

    Attributes:
        config: the config of the run; names no checkpoint.
        limit: how many nodes the run may execute.
        step: how many nodes it has executed.
        finished_nodes: the nodes that have finished, in this order.
        post: posts to the observers; None if there are none. Hot code checks it before it calls a
            method, so that a run without observers pays nothing.
        checkpoint_id: the id of the latest stored checkpoint on this run's line.
    """

    def __init__(self, config: RunnableConfig, limit: int, *, has_saver: bool) -> None:
        self.config = config
        self.limit = limit
        self.step = 0
        self.finished_nodes: list[str] = []
        self.post: PostEvent | None = None
        self.checkpoint_id: str | None = None
        self._thread_id = config.thread if has_saver else config.thread_id
        self._execution_counts: dict[str, int] = {}

    # The number of nodes

    def count_execution(self, node_id: str, data: FrozenDict) -> None:
        """Count one more executed node; `data` is the state that it receives.

        Raises:
            MaxIterationsError: the run has executed as many nodes as it may.
        """
        if self.step >= self.limit:
            self.check_limit(node_id, data)
        self.step += 1

    def check_limit(self, node_id: str, data: FrozenDict) -> None:
        """Check that one more node may be executed.

        Raises:
            MaxIterationsError: the run has executed as many nodes as it may.
        """
        if self.step < self.limit:
            return
        thread = self.config.thread
        error = self.make_error(
            MaxIterationsError,
            f"the run of thread {thread!r} has reached its max_iterations, {self.limit}, and would go on with "
            f"{node_id!r}: resume it with a higher limit, or send new input, which starts a new count",
            node_id,
            data,
        )
        error.thread_id = thread
        raise error

    # Errors

    def make_error(
        self, kind: type[GraphRunnerError], reason: str, node_id: str | None, data: FrozenDict
    ) -> GraphRunnerError:
        """Make an error that describes the run: its thread, path and state."""
        error = kind(reason)
        self.add_place(error, node_id, data)
        return error

    def add_place(self, error: GraphRunnerError, node_id: str | None, data: FrozenDict) -> None:
        """Write into an error where the run has failed."""
        error.node_id = node_id
        error.thread_id = self._thread_id
        state: Any = private_copy(data)  # the saver may hold the objects in it
        error.state = state
        error.path = tuple(self.finished_nodes[-_PATH_LENGTH:])
        error.config = self.config

    # Events

    def post_event(self, type: str, node_id: str | None, data: Mapping[str, Any] = _NO_DATA) -> None:
        """Post an event, if there are observers."""
        if self.post is not None:
            self.post(
                type,
                thread_id=self.config.thread,
                node_id=node_id,
                checkpoint_id=self.checkpoint_id,
                data=data,
            )

    def post_node_start(self, node_id: str, data: FrozenDict) -> None:
        """Post that a node starts, with the state that it receives."""
        count = self._execution_counts.get(node_id, 0) + 1
        self._execution_counts[node_id] = count
        if count > 1:
            self.post_event("cycle.detected", node_id, {"visit_count": count})
        self.post_event("node.start", node_id, {"step": self.step})
        self.post_event("node.state", node_id, {"input": data})

    def post_node_complete(self, node_id: str, data: FrozenDict) -> None:
        """Post that a node has finished, with the state after it."""
        self.post_event("node.state", node_id, {"output": data})
        self.post_event("node.complete", node_id, {"step": self.step, "error": False})

    def post_node_failed(self, node_id: str, error: BaseException) -> None:
        """Post that a node has failed."""
        data = {"step": self.step, "error": True, "reason": message_of(error)}
        self.post_event("node.complete", node_id, data)

    def post_load(self, base: Checkpoint) -> None:
        """Post that a checkpoint was loaded."""
        data = {"run_id": base.metadata.get("run_id"), "node": base.node_id, "id": base.id}
        self.post_event("checkpoint.load", base.node_id, data)

    def post_save(self, saved: Checkpoint, source: str) -> None:
        """Post that a checkpoint was stored."""
        data = {
            "id": saved.id,
            "run_id": saved.metadata.get("run_id"),
            "node": saved.node_id,
            "next": saved.next_node_id,
            "source": source,
        }
        self.post_event("checkpoint.save", saved.node_id, data)


# What is reported of a failed run: in the exception that leaves it, and in the failure that the store keeps

_MAX_MESSAGE: Final = 2000
_MAX_TRACEBACK: Final = 8000
"""Characters of a recorded traceback. Its end is kept: it has the line that raised."""
_BETWEEN: Final = frozenset({"graphkit", "concurrent", "threading", "asyncio"})
"""The packages that call a node's function: ours, and those of its thread or task."""


def find_user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of user code on; None if there is none.

    Frames of graphkit further down stay, where a node calls `config.once` for example.
    """
    found = error.__traceback__
    while found is not None:
        package, _, _ = found.tb_frame.f_globals.get("__name__", "").partition(".")
        if package not in _BETWEEN:
            return found
        found = found.tb_next
    return None


def make_failure(error: Exception, node_id: str | None, at: datetime) -> FrozenDict:
    """Return a failure as it is recorded: node, type, message and time, and the cause with its traceback."""
    failure = {"node_id": node_id, **_describe(error), "at": at}
    cause = error.__cause__
    # Of a subclass, such as ModelError, the message says it all: it is free of secrets, which its
    # cause, an error of a client library, may not be.
    if type(error) is NodeExecutionError and cause is not None:
        from traceback import format_tb  # a failure may take its time

        # Where user code raised the cause: the error has the frames of user code then, and none if the
        # engine raised it, merging an update for example. Those of another process are in a note.
        frames = "".join(format_tb(find_user_traceback(error)))
        trace = frames or "\n".join(getattr(cause, "__notes__", ()))
        if trace:
            failure["cause"] = _describe(cause)
            failure["traceback"] = trace[-_MAX_TRACEBACK:]
    record: FrozenDict = freeze(failure)
    return record


def describe_cause(error: NodeExecutionError) -> str:
    """Return the type and message of what user code raised, or of a ModelError and its like themselves."""
    is_own = type(error) is NodeExecutionError and error.__cause__ is not None
    return describe_error(error.__cause__ if is_own else error)  # type: ignore[arg-type]


def _describe(error: BaseException) -> dict[str, object]:
    return {"type": type(error).__name__, "message": message_of(error)[:_MAX_MESSAGE]}


def note_place(error: Exception, config: RunnableConfig, node_id: str | None, step: int, *, is_stored: bool) -> None:
    """Note in an exception that leaves a run where it was, and how to go on.

    Args:
        error: the exception.
        config: of the run, or of the nested run that failed.
        node_id: the node, or None.
        step: how many nodes the run has begun.
        is_stored: whether a saver has the thread.
    """
    place = "/".join(filter(None, (config.checkpoint_ns, node_id)))
    thread = f"thread {config.thread!r}, " if is_stored else ""
    note = f"graphkit: {thread}node {place!r}, step {step}"
    if is_stored:
        note += f"; once the cause is gone, continue with resume({config.thread!r})"
    error.add_note(note)
