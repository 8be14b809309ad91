"""The inputs and outputs of a run: GraphResume, Command, NodeOutput, StateSnapshot and others."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Self, final

from graphkit._public_names import JavaBuilder, JavaNames
from graphkit._records.checkpoint import Checkpoint, generate_id
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import ABSENT
from graphkit._values.frozen import freeze
from graphkit._values.state import AgentState, StateT

When = Literal["before", "after", "inside", "action"]
"""Where a run stopped: before or after a node, inside one (`interrupt()`), or because an
InterruptableAction asked."""


@final
class GraphResume:
    """As the input of a run: resume from the stored checkpoint, perhaps with a human's answer."""

    __slots__ = ("update", "value")

    def __init__(self, value: Any = ABSENT, *, update: Mapping[str, Any] | None = None) -> None:
        """Make the input of a resume.

        Args:
            value: the answer to the pending `interrupt()`, or a mapping of interrupt id to answer
                if several are pending; at a declared stop, a mapping that the run merges into the
                state. None is a valid answer; omit the argument to resume without one.
            update: merged into the state, whether or not an interrupt is pending.
        """
        self.value = value
        self.update = update

    @property
    def has_value(self) -> bool:
        """Whether this input has an answer."""
        return self.value is not ABSENT

    def __repr__(self) -> str:
        return f"GraphResume({self.value!r}, update={self.update!r})"


@final
class GraphInput(JavaNames):
    """The inputs of a run by name, as in langgraph4j 1.9."""

    @staticmethod
    def args(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the input that starts a run: the mapping itself."""
        return values

    @staticmethod
    def no_args() -> Mapping[str, Any]:
        """Return the input that starts a run without values."""
        return {}

    @staticmethod
    def resume(update: Mapping[str, Any] | None = None) -> GraphResume:
        """Return the input that resumes a run, with an update of its state.

        GraphResume itself can also answer an `interrupt()`.
        """
        return GraphResume(update=update)

    # Java names
    noArgs = no_args


@final
class Command(JavaNames):
    """What a node or an edge may return: the node that runs next, and an update of the state."""

    __slots__ = ("goto", "resume", "update")

    def __init__(
        self,
        goto: str | Sequence[str] | None = None,
        update: Mapping[str, Any] | None = None,
        *,
        resume: Any = ABSENT,
    ) -> None:
        """Make a command.

        Args:
            goto: the node that runs next; from an edge with mappings, one of their keys, or several.
                None: the edges of the graph decide.
            update: merged into the state before the checkpoint is stored.
            resume: as the input of a run, the same as GraphResume(resume, update=update).
        """
        self.goto = goto
        self.resume = resume
        self.update: Mapping[str, Any] = update or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Command) and (self.goto, self.update) == (other.goto, other.update)

    def __hash__(self) -> int:
        if isinstance(self.goto, str):
            return hash(self.goto)
        return 0  # a run refuses any other goto, with a message that shows it

    def __repr__(self) -> str:
        return f"Command(goto={self.goto!r}, update={self.update!r})"

    # Java names
    def gotoNode(self) -> str | Sequence[str] | None:
        return self.goto


class NodeOutput(JavaNames, Generic[StateT]):
    """One item of a stream: the state after a node has finished, or at START or END.

    Attributes:
        node: the node, START or END.
        state: the state after it; an AgentState, which reads like the schema of the graph.
        is_subgraph: whether a nested graph emitted this output.
    """

    __slots__ = ("is_subgraph", "node", "state", "update")

    state: StateT
    update: Mapping[str, Mapping[str, Any]] | None
    """Under StreamMode.UPDATES: what each node that ran in this step returned, by node id; None
    otherwise."""

    def __init__(self, node: str, state: StateT, *, is_subgraph: bool = False) -> None:
        self.node = node
        self.state = state
        self.is_subgraph = is_subgraph
        self.update = None

    @property
    def is_start(self) -> bool:
        """Whether this is the start of the run."""
        return self.node == START

    @property
    def is_end(self) -> bool:
        """Whether the run is over."""
        return self.node == END

    @property
    def interrupts(self) -> Sequence[WaitingInterrupt | InterruptionMetadata[StateT]]:
        """What the run waits for; empty unless it has stopped here."""
        return ()

    @property
    def is_interrupted(self) -> bool:
        """Whether the run has stopped here, for an answer or for a timer."""
        return bool(self.interrupts)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run ended here because it was cancelled; `reason()` says why."""
        return False

    @property
    def payload(self) -> Any:
        """The argument of the `interrupt()` that waits, the first one if there are several; else None."""
        if not self.interrupts:
            return None
        return self.interrupts[0].payload

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.node!r}, {self.state!r})"

    # Java names
    def isSTART(self) -> bool:
        return self.is_start

    def isEND(self) -> bool:
        return self.is_end

    def isSubGraph(self) -> bool:
        return self.is_subgraph


class StreamingOutput(NodeOutput[StateT]):
    """A chunk that a node emitted while it was running."""

    __slots__ = ("chunk",)

    def __init__(self, chunk: Any, node: str, state: StateT, *, is_subgraph: bool = False) -> None:
        super().__init__(node, state, is_subgraph=is_subgraph)
        self.chunk = chunk


@final
class InterruptionMetadata(NodeOutput[StateT]):
    """The last item of a stream whose run stopped for a human or a timer, or was cancelled.

    The interrupt is stored, so that another process can find it. A run that was cancelled waits for
    no answer: `interrupts` is empty.

    Attributes:
        node_id: before: the node that is about to run; after: the node that has just run; inside
            and action: the node that asked.
        when: "before", "after", "inside" or "action".
        id: names this interrupt in an answer if several are pending.
        payload: the argument of `interrupt(payload)`.
        metadata: what an InterruptableAction returned; the reason of a pause or a cancel.
        interrupts: all pending interrupts, this one first.
        due: when the timer is due, if the run waits for a time and not for a human; else None.
        is_cancelled: whether the run was cancelled.
        waiting: the interrupt as a saver lists it; None for a timer, and until a run has stopped at it.
    """

    __slots__ = ("due", "id", "interrupts", "is_cancelled", "metadata", "payload", "waiting", "when")

    interrupts: Sequence[InterruptionMetadata[StateT]]
    payload: Any
    is_cancelled: bool

    def __init__(
        self,
        node_id: str,
        state: StateT,
        *,
        when: When = "action",
        id: str | None = None,
        payload: Any = None,
        metadata: Mapping[str, Any] | None = None,
        interrupts: Sequence[InterruptionMetadata[StateT]] | None = None,
    ) -> None:
        super().__init__(node_id, state)
        self.when: When = when
        self.id = id or generate_id()
        self.payload = payload
        self.metadata = freeze(dict(metadata or {}))
        self.interrupts = (self,) if interrupts is None else tuple(interrupts)
        self.due: datetime | None = None
        self.is_cancelled = False
        self.waiting: WaitingInterrupt | None = None

    @property
    def node_id(self) -> str:
        """The node; the same as `node`."""
        return self.node

    def reason(self) -> Any | None:
        """Return why the run stopped: the payload, or the "reason" of the metadata."""
        if self.payload is None:
            return self.metadata.get("reason")
        return self.payload

    @staticmethod
    def builder(node_id: str, state: AgentState) -> InterruptionMetadataBuilder:
        """Return a builder, as in Java."""
        fields = {"node_id": node_id, "state": state, "metadata": {}}
        return InterruptionMetadataBuilder(InterruptionMetadata, fields)

    def __repr__(self) -> str:
        if self.is_cancelled:
            return f"InterruptionMetadata({self.when} {self.node!r}, cancelled: {self.reason()!r})"
        if self.due is not None:
            return f"InterruptionMetadata({self.when} {self.node!r}, sleeps until {self.due.isoformat()})"
        return f"InterruptionMetadata({self.when} {self.node!r}, payload={self.payload!r}, id={self.id!r})"

    # Java names
    def nodeId(self) -> str:
        return self.node

    getNodeId = nodeId


@final
class InterruptionMetadataBuilder(JavaBuilder[InterruptionMetadata[AgentState]]):
    """Java's builder for InterruptionMetadata; Python callers pass keywords instead."""

    def addMetadata(self, key: str, value: Any) -> Self:
        return self._with(metadata={**self._keywords["metadata"], key: value})

    putMetadata = addMetadata

    def reason(self, reason: Any) -> Self:
        return self._with(payload=reason)


@final
class StateSnapshot(NodeOutput[StateT]):
    """A stored checkpoint, as a graph sees it.

    Attributes:
        config: the address of this checkpoint.
        interrupts: the pending interrupts of this checkpoint, and those in nested graphs for which it
            waits.
    """

    __slots__ = ("_checkpoint", "_requested", "_state_factory", "_waiting", "config", "interrupts")

    config: RunnableConfig
    interrupts: Sequence[WaitingInterrupt]

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: RunnableConfig,
        state_factory: Callable[[Any], StateT],
        waiting: Callable[[RunnableConfig], Sequence[WaitingInterrupt]],
    ) -> None:
        self._checkpoint = checkpoint
        self._requested = config
        self._state_factory = state_factory
        self._waiting = waiting
        self.node = checkpoint.node_id
        self.is_subgraph = False
        self.update = None

    def __getattr__(self, name: str) -> Any:
        # Made on first use, so that a caller lists a history of thousands without decoding any state, and
        # without a config for each. Python asks here only while the slot is empty, so the second use costs nothing.
        if name == "config":
            self.config = self._requested.replace(checkpoint_id=self.checkpoint_id, next_node=self.next)
        elif name == "state":
            self.state = self._state_factory(self._checkpoint.state)
        elif name == "interrupts":
            self.interrupts = tuple(self._waiting(self.config))
        else:
            from graphkit._wording import explain_name  # an error may take its time

            raise AttributeError(f"a StateSnapshot has no {name!r}{explain_name(name)}")
        return getattr(self, name)

    @property
    def next(self) -> str | None:
        """The node that runs next; END when the run is over, None when an answer decides."""
        return self._checkpoint.next_node_id

    @property
    def values(self) -> dict[str, Any]:
        """The state as a plain dict."""
        state: Any = self.state
        return dict(state)

    @property
    def checkpoint_id(self) -> str:
        """The id of the checkpoint."""
        return self._checkpoint.id

    @property
    def parent_id(self) -> str | None:
        """The id of the parent; None for the first checkpoint."""
        return self._checkpoint.parent_id

    @property
    def created_at(self) -> datetime:
        """When the checkpoint was made, in UTC."""
        return self._checkpoint.created_at

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the checkpoint."""
        return self._checkpoint.metadata

    def __repr__(self) -> str:
        return f"StateSnapshot({self.node!r} -> {self.next!r}, id={self.checkpoint_id!r})"

    # Java names
    def nextNodeId(self) -> str | None:
        return self.next

    def checkpointId(self) -> str:
        return self.checkpoint_id

    getNextNodeId = nextNodeId
    getCheckpointId = checkpointId

    def getNodeId(self) -> str:
        return self.node

    def getState(self) -> StateT:
        return self.state


@final
class CheckpointInfo(NamedTuple):
    """A checkpoint without its state: what a saver knows without decoding it."""

    thread_id: str
    checkpoint_ns: str
    id: str
    parent_id: str | None
    node_id: str
    next_node_id: str | None
    created_at: datetime
    size: int
    """The number of bytes that it occupies in the store; 0 if the saver does not know."""
    status: str
    """The status of the thread, if this is its latest checkpoint; "" for an older one. docs/graphs.md
    has the words."""
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]
    stopped: str = ""
    """Why a run stopped at this checkpoint, also at an older one: "interrupted", "sleeping", "answered",
    "failed" or "cancelled"; "queued" if it is a run that was submitted; "incomplete" if it marks a copy that has not
    ended; "" if none of these."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class WaitingInterrupt:
    """A pending interrupt: where its run waits, since when, and for what."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    node_id: str
    when: When
    id: str
    payload: Any
    created_at: datetime
    deadline: datetime | None = None
    """When the question expires: it takes no answer from then on."""


@final
class HistorySummary(NamedTuple):
    """A history in short: its latest checkpoint, its length, and what it waits for."""

    latest: CheckpointInfo
    checkpoints: int
    """The number of checkpoints."""
    tags: tuple[str, ...]
    """The tags of all checkpoints, each once; those of the newest checkpoint first."""
    waiting: tuple[WaitingInterrupt, ...]
    """The pending interrupts, also those of the embedded graphs for which the run waits."""
    failure: Mapping[str, Any] | None
    """Why the run ended at the latest checkpoint: node_id, type, message, at. None if it did not
    fail."""
    cancellation: Mapping[str, Any] | None = None
    """Why the run was cancelled at the latest checkpoint: reason, at. None if it was not."""

    @property
    def status(self) -> str:
        """The status of the thread, which is that of the latest checkpoint."""
        return self.latest.status


@final
@dataclasses.dataclass(frozen=True, slots=True)
class MapProgress:
    """A finished item of a map, in the streams of mode "custom"."""

    node_id: str
    index: int
    """The number of the item, from 0."""
    done: int
    """How many items are finished, failed ones that are collected among them."""
    total: int
    """How many items there are."""
    label: str | None
    """What `add_map_node(label=...)` returned for the item."""


class InterruptableAction(abc.ABC):
    """An action that decides, each time before it runs, whether the run should stop for a human first."""

    @abc.abstractmethod
    def interrupt(
        self, node_id: str, state: Any, config: RunnableConfig
    ) -> InterruptionMetadata | Mapping[str, Any] | None:
        """Return metadata to stop the run here, or None to continue.

        A resume calls this again, so look for the answer in the state.
        """

    @abc.abstractmethod
    def __call__(self, state: Any, config: RunnableConfig) -> Any:
        """Run the action."""
