"""The requests that the loop yields.

They are plain data. The loop passes their fields by position: keywords would add 1,500 instructions to each
step, 2 % of its cost. A driver answers a request by sending the result into the loop, or by throwing the error.

Their repr shows nothing: an executor or a tool that logs its arguments, or the locals of a frame, must not log states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

from graphkit._plan.topology import Call
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import NodeContext
from graphkit._records.output import NodeOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.frozen import FrozenDict, FrozenList
from graphkit._values.state import Changes

if TYPE_CHECKING:
    from concurrent.futures import Executor


class Stop(BaseException):
    """Thrown into the loop when the caller has closed the stream: save what is unsaved and end."""


class Clock(NamedTuple):
    """What the loop knows of time, and its source of ids: it asks neither the system nor chance itself."""

    now: Callable[[], int]
    """Returns nanoseconds since 1970, UTC."""
    measure: Callable[[], float]
    """Returns seconds from any start; never goes back."""
    new_id: Callable[[int], str]
    """Returns an id that begins with a time in milliseconds since 1970."""


class Request:
    """One request of the loop."""

    __slots__ = ()


@dataclass(slots=True, eq=False, repr=False)
class Task(Request):
    """A call of user code that may take long and may run concurrently; may raise GraphInterrupt."""

    context: NodeContext
    executor: Executor | None
    """Runs the call; None: the run's own thread, or a pool thread if the task was started."""


@final
@dataclass(slots=True, eq=False, repr=False)
class RunNode(Task):
    """Run a node's action.

    Answer: what the action returned. If the action is a generator, that is a generator that has not
    started yet, or a Collected.
    """

    call: Call
    argument: Any
    """The state, or the item of a map."""
    config: RunnableConfig


@final
@dataclass(slots=True, eq=False, repr=False)
class Next(Task):
    """Get the next chunk of a generator node, which no executor can do. Answer: the chunk, or Ended."""

    generator: Any


@final
@dataclass(slots=True, eq=False, repr=False)
class Collected:
    """Everything that a generator yielded in another process; the last item is Ended."""

    chunks: list[Any]


@final
@dataclass(slots=True, eq=False, repr=False)
class Close(Request):
    """Close a generator before its end. Answer: None."""

    generator: Any


@final
@dataclass(slots=True, eq=False, repr=False)
class Start(Request):
    """Start a task without waiting for it. Answer: its ticket."""

    task: Task


@final
@dataclass(slots=True, eq=False, repr=False)
class Wait(Request):
    """Wait until at least one of several tasks is done.

    Answer: the outcome of each task that is done, by its ticket.
    """

    tickets: Collection[int]


@final
@dataclass(slots=True, eq=False, repr=False)
class Withdraw(Request):
    """Cancel those of several tasks that have not started.

    A cancelled task ends with a Stop, and the loop waits for it as for any other. Answer: None.
    """

    tickets: Collection[int]


@final
@dataclass(slots=True, eq=False, repr=False)
class Ask(Request):
    """Call the condition of an edge, a hook or an InterruptableAction. Answer: what it returned."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(slots=True, eq=False, repr=False)
class SaverRequest(Request):
    """A request about a thread in a saver."""

    saver: BaseCheckpointSaver
    config: RunnableConfig


@final
class Hold(SaverRequest):
    """Hold the run lock of another saver too, until the run stops. Answer: None."""


@final
class Load(SaverRequest):
    """Read a checkpoint. Answer: the checkpoint, or None."""


@final
class LoadWrites(SaverRequest):
    """Read the pending writes of a checkpoint. Answer: a mapping."""


@final
class Position:
    """Where a run stands between two steps; within a step its state is ahead of it.

    `RunHistory.mark` fills a new position and then publishes it, so that a thread that saves never
    sees half of one.
    """

    # No __init__: a step would cost 1,200 instructions (1.6 %) more; as a NamedTuple, 2,200 more.
    __slots__ = ("changes", "data", "next_node_id", "node_id", "step", "stored", "subgraph_entries")

    node_id: str
    """The node that has just finished."""
    next_node_id: str | None
    data: FrozenDict
    changes: Changes | None
    """What changed since the latest stored checkpoint; a save resets it."""
    step: int
    stored: Checkpoint | None
    """The checkpoint that this run has stored of it while nodes ran concurrently, if it has."""
    subgraph_entries: FrozenList | None
    """Of a nested graph: its updates for the outer graph; else None."""


@final
@dataclass(slots=True, eq=False, repr=False)
class Save(SaverRequest):
    """Append a checkpoint.

    Answer: the checkpoint, or the one that another thread has stored in its place; None if storing
    failed and the run goes on without it.
    """

    checkpoint: Checkpoint
    position: Position


@final
@dataclass(slots=True, eq=False, repr=False)
class Record(SaverRequest):
    """Record pending writes of a checkpoint. Answer: None."""

    writes: Mapping[str, Any]


@final
class Release(SaverRequest):
    """Release a thread in a saver. Answer: None."""


@final
class Discard(SaverRequest):
    """Delete a thread that the options do not preserve.

    Answer: None. A failure is posted as an event and logged; it does not fail the run.
    """


@final
class Finish(Request):
    """Flush, and release the run locks: the run has stopped. Answer: None."""


@final
@dataclass(slots=True, eq=False, repr=False)
class Emit(Request):
    """Hand an output to the caller. Answer: None."""

    output: NodeOutput


Steps = Generator[Request, Any, None]
"""A part of a run: yields its requests, and returns nothing."""
