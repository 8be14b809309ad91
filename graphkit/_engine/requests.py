"""What the loop may ask for. Plain data; a driver answers by sending the result back, or by throwing the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from graphkit._checkpoint import Checkpoint
from graphkit._config import RunnableConfig
from graphkit._frozen import FrozenDict
from graphkit._output import NodeOutput
from graphkit._state import AgentState, Changes
from graphkit._topology import Call, Node


class Request:
    """Something the loop asks for."""

    __slots__ = ()


@final
class RunNode(Request):
    """Run a node's action. Answer: what it returned. May throw GraphInterrupt."""

    __slots__ = ("answers", "node", "state")

    def __init__(self, node: Node, state: AgentState, answers: tuple[Any, ...]) -> None:
        self.node = node
        self.state = state
        self.answers = answers


@final
class Ask(Request):
    """Evaluate the condition of an edge, or ask an InterruptableAction. Answer: what it returned."""

    __slots__ = ("arguments", "call")

    def __init__(self, call: Call, *arguments: Any) -> None:
        self.call = call
        self.arguments = arguments


@final
class Load(Request):
    """Read a checkpoint. Answer: it, or None."""

    __slots__ = ("config",)

    def __init__(self, config: RunnableConfig) -> None:
        self.config = config


@final
class LoadWrites(Request):
    """Read what is recorded beside a checkpoint. Answer: the mapping."""

    __slots__ = ("config",)

    def __init__(self, config: RunnableConfig) -> None:
        self.config = config


@final
class Save(Request):
    """Append a checkpoint. Answer: it, with its id."""

    __slots__ = ("changes", "data", "metadata", "next_node_id", "node_id", "parent_id")

    def __init__(
        self,
        node_id: str,
        next_node_id: str | None,
        data: FrozenDict,
        *,
        parent: Checkpoint | None,
        metadata: FrozenDict,
        changes: Changes | None,
    ) -> None:
        self.node_id = node_id
        self.next_node_id = next_node_id
        self.data = data
        self.parent_id = None if parent is None else parent.id
        self.metadata = metadata
        self.changes = changes


@final
class Record(Request):
    """Record values beside a checkpoint. Answer: None."""

    __slots__ = ("config", "writes")

    def __init__(self, config: RunnableConfig, writes: Mapping[str, Any]) -> None:
        self.config = config
        self.writes = writes


@final
class Finish(Request):
    """The run stands still: let the run lock go, after releasing the thread if asked. Answer: None."""

    __slots__ = ("release",)

    def __init__(self, *, release: bool) -> None:
        self.release = release


@final
class Emit(Request):
    """Hand an output to the caller. Answer: None."""

    __slots__ = ("output",)

    def __init__(self, output: NodeOutput) -> None:
        self.output = output
