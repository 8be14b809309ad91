"""What a failed run tells: in the exception that leaves it, and in the failure that the store keeps."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Final

from graphkit._records.config import RunnableConfig
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._wording import describe_error, message_of
from graphkit.errors import NodeExecutionError

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
        trace = _format_traceback(error, cause)
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


def _format_traceback(error: BaseException, cause: BaseException) -> str:
    """Return where user code raised the cause of an error; "" if the engine did, merging an update for example.

    The error has the frames of user code then. Those of another process are in a note of the cause.
    """
    from traceback import format_tb  # a failure may take its time

    frames = "".join(format_tb(find_user_traceback(error)))
    return frames or "\n".join(getattr(cause, "__notes__", ()))


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
