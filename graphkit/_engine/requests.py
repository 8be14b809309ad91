"""What the loop may ask for. Plain data; a driver answers by sending the result back, or by throwing the error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, final

from graphkit._plan.topology import Call
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.context import NodeContext
from graphkit._records.output import NodeOutput
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.frozen import FrozenDict
from graphkit._values.state import Changes

if TYPE_CHECKING:
    from concurrent.futures import Executor


class Stop(BaseException):
    """Thrown in by a driver whose caller closed the stream: save what is unsaved and end."""


class Request:
    """Something the loop asks for."""

    __slots__ = ()


class Task(Request):
    """A call of the user's that may take long, and that may run beside others. May throw GraphInterrupt."""

    __slots__ = ("executor", "visit")

    visit: NodeContext
    executor: Executor | None
    """Where it runs; None: where the run is, or on a thread if it runs beside others."""


@final
class RunNode(Task):
    """Run a node's action. Answer: what it returned; a generator that has not begun, or Collected, if it is one."""

    __slots__ = ("argument", "call", "config")

    def __init__(
        self, call: Call, argument: Any, config: RunnableConfig, visit: NodeContext, executor: Executor | None
    ) -> None:
        self.call = call
        self.argument = argument
        """The state, or the item of a map."""
        self.config = config
        self.visit = visit
        self.executor = executor


@final
class Next(Task):
    """The next chunk of a node that is a generator. Answer: it, or Ended."""

    __slots__ = ("generator",)

    def __init__(self, generator: Any, visit: NodeContext) -> None:
        self.generator = generator
        self.visit = visit
        self.executor = None


@final
class Ended:
    """The answer to Next when there is no chunk left: what the generator returned."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@final
class Collected:
    """What a generator yielded and returned where it cannot be followed: in another process."""

    __slots__ = ("chunks", "value")

    def __init__(self, chunks: list[Any], value: Any) -> None:
        self.chunks = chunks
        self.value = value


@final
class Close(Request):
    """Close a generator that is not run to its end. Answer: None."""

    __slots__ = ("generator",)

    def __init__(self, generator: Any) -> None:
        self.generator = generator


@final
class Start(Request):
    """Begin a task without waiting for it. Answer: its ticket."""

    __slots__ = ("task",)

    def __init__(self, task: Task) -> None:
        self.task = task


@final
class Wait(Request):
    """Wait until at least one of some tickets is done. Answer: (ticket, result, error) of those that are."""

    __slots__ = ("tickets",)

    def __init__(self, tickets: Collection[int]) -> None:
        self.tickets = tickets


@final
class Withdraw(Request):
    """Take back those of some tasks that have not begun: they end with a Stop, and are waited for like any other.

    Answer: None.
    """

    __slots__ = ("tickets",)

    def __init__(self, tickets: Collection[int]) -> None:
        self.tickets = tickets


@final
class Ask(Request):
    """Evaluate the condition of an edge, a hook, or ask an InterruptableAction. Answer: what it returned."""

    __slots__ = ("arguments", "call")

    def __init__(self, call: Call, *arguments: Any) -> None:
        self.call = call
        self.arguments = arguments


@final
class Hold(Request):
    """Hold the run lock of another saver too, until the run stands still. Answer: None."""

    __slots__ = ("config", "saver")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config


@final
class Load(Request):
    """Read a checkpoint. Answer: it, or None."""

    __slots__ = ("config", "saver")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config


@final
class LoadWrites(Request):
    """Read what is recorded beside a checkpoint. Answer: the mapping."""

    __slots__ = ("config", "saver")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config


@final
class Save(Request):
    """Append a checkpoint. Answer: it, with its id; None if it was not stored and the run is to go on all the same."""

    __slots__ = ("changes", "config", "data", "metadata", "next_node_id", "node_id", "parent_id", "saver")

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        config: RunnableConfig,
        node_id: str,
        next_node_id: str | None,
        data: FrozenDict,
        *,
        parent: Checkpoint | None,
        metadata: FrozenDict,
        changes: Changes | None,
    ) -> None:
        self.saver = saver
        self.config = config
        self.node_id = node_id
        self.next_node_id = next_node_id
        self.data = data
        self.parent_id = None if parent is None else parent.id
        self.metadata = metadata
        self.changes = changes


@final
class Record(Request):
    """Record values beside a checkpoint. Answer: None."""

    __slots__ = ("config", "saver", "writes")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig, writes: Mapping[str, Any]) -> None:
        self.saver = saver
        self.config = config
        self.writes = writes


@final
class Release(Request):
    """End a thread's history in a saver. Answer: None."""

    __slots__ = ("config", "saver")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config


@final
class Discard(Request):
    """Delete a thread of which nothing is to be kept. Answer: None; a failure is told, and does not fail the run."""

    __slots__ = ("config", "saver")

    def __init__(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
        self.saver = saver
        self.config = config


@final
class Finish(Request):
    """The run stands still: everything is stored; let the run locks go. Answer: None."""

    __slots__ = ()


@final
class Emit(Request):
    """Hand an output to the caller. Answer: None."""

    __slots__ = ("output",)

    def __init__(self, output: NodeOutput) -> None:
        self.output = output
