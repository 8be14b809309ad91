"""RunnableConfig: which thread, which checkpoint, and how to run.

Ports langgraph4j's RunnableConfig (builder included) and reads LangGraph's `{"configurable": {...}}` mappings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, final

from graphkit._java_names import JavaNames
from graphkit._records.context import CURRENT_NODE_CONTEXT, NodeContext, require_node_context
from graphkit.errors import CheckpointerConfigurationError

T = TypeVar("T")

START: Final = "__START__"
END: Final = "__END__"
THREAD_ID_DEFAULT: Final = "$default"


class StreamMode(StrEnum):
    """What a stream hands out: outputs with their state, or also with what changed it, or with their checkpoint."""

    VALUES = "values"
    UPDATES = "updates"
    SNAPSHOTS = "snapshots"


_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})

_LANGGRAPH_KEYS: Final = frozenset(
    {"configurable", "metadata", "recursion_limit", "tags", "callbacks", "run_name", "run_id", "max_concurrency"}
)
"""The keys of LangGraph's own RunnableConfig; those without a meaning here are left alone."""

_OWN_CONFIGURABLE: Final = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns"})


@final
@dataclasses.dataclass(frozen=True)
class RunnableConfig(JavaNames):
    """The address of a thread or checkpoint, and the options of one run. Immutable.

    Reads like LangGraph's mapping too: `config["configurable"]["checkpoint_id"]`.
    """

    thread_id: str | None = None
    """The thread; None is the default thread."""
    checkpoint_id: str | None = None
    """One checkpoint of the thread; None is the latest."""
    checkpoint_ns: str = ""
    """The namespace within the thread; embedded subgraphs have their own."""
    next_node: str | None = None
    """Informative: the node that comes next at this checkpoint. Runs never read it."""
    stream_mode: StreamMode = StreamMode.VALUES
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_METADATA)
    """The caller's own keys; nodes can read them, and they are stored with each checkpoint of the run."""
    max_iterations: int | None = None
    """Overrides the graph's limit for one run: how many nodes may be executed."""
    executor: Executor | Mapping[str, Executor] | None = None
    """Where the branches of forks and the items of maps run, for one run: any `concurrent.futures.Executor`, or one by
    the id of the node that forks or maps. None: the graph's own, or threads. Not stored."""

    def __post_init__(self) -> None:
        if self.thread_id is not None and not isinstance(self.thread_id, str):
            raise CheckpointerConfigurationError(
                f"thread_id must be a str or None, not {type(self.thread_id).__name__}"
            )
        if not isinstance(self.checkpoint_ns, str):
            raise CheckpointerConfigurationError(
                f"checkpoint_ns must be a str, not {type(self.checkpoint_ns).__name__}"
            )
        if self.checkpoint_id is not None and not isinstance(self.checkpoint_id, str):
            raise CheckpointerConfigurationError(
                f"checkpoint_id must be a str or None, not {type(self.checkpoint_id).__name__}"
            )
        if self.max_iterations is not None and self.max_iterations <= 0:
            raise ValueError(f"max_iterations must be at least 1, not {self.max_iterations}")
        if self.stream_mode.__class__ is not StreamMode:
            object.__setattr__(self, "stream_mode", StreamMode(self.stream_mode))
        if self.metadata.__class__ is not MappingProxyType:
            object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))

    def __reduce__(self) -> tuple[Any, ...]:
        """A proxied mapping does not pickle, its copy does."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _rebuild, ({**values, "metadata": dict(self.metadata)},)

    @classmethod
    def of(cls, config: RunnableConfig | Mapping[str, Any] | None) -> RunnableConfig:
        """Take what a caller gave: a RunnableConfig, LangGraph's mapping, or None.

        Raises:
            CheckpointerConfigurationError: the mapping is not of LangGraph's form, or an id is no string.
        """
        if config.__class__ is RunnableConfig:
            return config
        if config is None:
            return _DEFAULT
        if isinstance(config, Mapping):
            return _from_mapping(config)
        raise CheckpointerConfigurationError(
            f"a config is a RunnableConfig or {{'configurable': {{'thread_id': ...}}}}, not {type(config).__name__}"
        )

    @property
    def thread(self) -> str:
        """The thread id, with the default filled in."""
        return THREAD_ID_DEFAULT if self.thread_id is None else self.thread_id

    def replace(self, **changes: Any) -> RunnableConfig:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    # Inside a node

    @property
    def node_id(self) -> str | None:
        """The node that the calling code is part of; None outside a node."""
        visit = CURRENT_NODE_CONTEXT.get()
        return None if visit is None else visit.node_id or None

    @property
    def idempotency_key(self) -> str:
        """Names this attempt of this visit of the node: thread, checkpoint, node and attempt.

        The same when the visit is repeated after a crash, and no other's: give it to a service that can tell a
        repeated request from a new one.

        Raises:
            GraphRunnerError: called outside a node.
        """
        visit = require_node_context("idempotency_key")
        place = visit.node_id if visit.journal is None else visit.journal.idempotency_key(visit)
        return f"{place}/{visit.attempt}"

    def once(self, key: str, function: Callable[[], T]) -> T:
        """Call a function with a side effect, once in this visit of the node, however often the node is repeated.

        Its result is recorded in the thread's log before this returns, and found there when the node runs again: after
        a crash, a retry, or an `interrupt()` that was answered. A crash between the effect and the record repeats it;
        `idempotency_key` closes that gap where the other side can help. Cost: one record.

        Args:
            key: tells the effects of one visit apart.
            function: called without arguments; what it returns must be storable.

        Raises:
            GraphRunnerError: called outside a node.
            CheckpointSerializationError: the result cannot be stored. The effect has happened.
        """
        visit = require_node_context("once")
        found, result = _recorded(visit, key)
        done: T = result if found else _record(visit, key, function())
        return done

    async def aonce(self, key: str, function: Callable[[], Awaitable[T]]) -> T:
        """As `once`, for an asynchronous function; the record is made in a thread."""
        import asyncio

        visit = require_node_context("aonce")
        found, result = _recorded(visit, key)
        done: T = result if found else await asyncio.to_thread(_record, visit, key, await function())
        return done

    def dispatch(self, output: Any) -> None:
        """Hand something extra into the stream of the run: a NodeOutput as it is, else as the chunk of one.

        It comes out when the node is done, before its own output, and does not touch the state. For output while the
        node runs, make the node a generator.

        Raises:
            GraphRunnerError: called outside a node.
        """
        require_node_context("dispatch").outputs.append(output)

    def __getitem__(self, key: str) -> Any:
        """LangGraph's view: `config["configurable"]`, `config["metadata"]`, `config["recursion_limit"]`."""
        if key == "configurable":
            own = {"thread_id": self.thread, "checkpoint_ns": self.checkpoint_ns, "checkpoint_id": self.checkpoint_id}
            return {**self.metadata, **own}
        if key == "metadata":
            return dict(self.metadata)
        if key == "recursion_limit" and self.max_iterations is not None:
            return self.max_iterations
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As `config[key]`, or the default."""
        try:
            return self[key]
        except KeyError:
            return default

    def with_stream_mode(self, mode: StreamMode) -> RunnableConfig:
        """The same config with another stream mode."""
        return self if mode == self.stream_mode else self.replace(stream_mode=mode)

    def with_check_point_id(self, checkpoint_id: str | None) -> RunnableConfig:
        """The same thread at another checkpoint; None is the latest."""
        # A saver does this at every put; the generated __init__ would cost as much as the write.
        if checkpoint_id == self.checkpoint_id:
            return self
        copy = object.__new__(RunnableConfig)
        fields = copy.__dict__
        fields.update(self.__dict__)
        fields["checkpoint_id"] = checkpoint_id
        return copy

    def get_metadata(self, key: str) -> Any | None:
        """One of the caller's own keys, or None."""
        return self.metadata.get(key)

    @staticmethod
    def builder(config: RunnableConfig | None = None) -> RunnableConfigBuilder:
        """Java's way to make one, optionally starting from another."""
        return RunnableConfigBuilder(config)

    # Java names
    withStreamMode = with_stream_mode
    withCheckPointId = with_check_point_id
    getMetadata = get_metadata

    def nodeId(self) -> str | None:
        return self.node_id

    def customDispatcher(self) -> Callable[[Any], None]:
        require_node_context("customDispatcher()")
        return self.dispatch

    def threadId(self) -> str | None:
        return self.thread_id

    def checkPointId(self) -> str | None:
        return self.checkpoint_id

    def nextNode(self) -> str | None:
        return self.next_node

    def streamMode(self) -> StreamMode:
        return self.stream_mode


@final
class RunnableConfigBuilder:
    """Java's builder for a RunnableConfig; Python callers pass keywords instead."""

    def __init__(self, config: RunnableConfig | None = None) -> None:
        self._config = config or _DEFAULT

    def _with(self, **changes: Any) -> Self:
        self._config = self._config.replace(**changes)
        return self

    def threadId(self, thread_id: str | None) -> Self:
        return self._with(thread_id=thread_id)

    def checkPointId(self, checkpoint_id: str | None) -> Self:
        return self._with(checkpoint_id=checkpoint_id)

    def checkPointNs(self, checkpoint_ns: str) -> Self:
        return self._with(checkpoint_ns=checkpoint_ns)

    def nextNode(self, next_node: str | None) -> Self:
        return self._with(next_node=next_node)

    def streamMode(self, stream_mode: StreamMode) -> Self:
        return self._with(stream_mode=stream_mode)

    def maxIterations(self, max_iterations: int | None) -> Self:
        return self._with(max_iterations=max_iterations)

    recursionLimit = maxIterations

    def executor(self, executor: Executor | Mapping[str, Executor] | None) -> Self:
        return self._with(executor=executor)

    def addParallelNodeExecutor(self, node_id: str, executor: Executor) -> Self:
        others = self._config.executor
        return self._with(executor={**(others if isinstance(others, Mapping) else {}), node_id: executor})

    def metadata(self, metadata: Mapping[str, Any]) -> Self:
        return self._with(metadata=metadata)

    def addMetadata(self, key: str, value: Any) -> Self:
        return self._with(metadata={**self._config.metadata, key: value})

    putMetadata = addMetadata

    def build(self) -> RunnableConfig:
        return self._config


def _recorded(visit: NodeContext, key: str) -> tuple[bool, Any]:
    return (False, None) if visit.journal is None else visit.journal.find_result(visit, key)


def _record(visit: NodeContext, key: str, result: Any) -> Any:
    return result if visit.journal is None else visit.journal.record_result(visit, key, result)


def _rebuild(values: dict[str, Any]) -> RunnableConfig:
    return RunnableConfig(**values)


def _from_mapping(config: Mapping[str, Any]) -> RunnableConfig:
    unknown = [key for key in config if key not in _LANGGRAPH_KEYS]
    if unknown:
        raise CheckpointerConfigurationError(
            f"unknown config key {unknown[0]!r}; write {{'configurable': {{'thread_id': ...}}}} or a RunnableConfig"
        )
    inner = config.get("configurable") or {}
    if not isinstance(inner, Mapping):
        raise CheckpointerConfigurationError(f"config['configurable'] is a mapping, not {type(inner).__name__}")
    thread_id = inner.get("thread_id")
    metadata = {key: value for key, value in inner.items() if key not in _OWN_CONFIGURABLE}
    return RunnableConfig(
        # LangGraph turns an int into its text, and its users rely on it.
        thread_id=str(thread_id) if isinstance(thread_id, int) else thread_id,
        checkpoint_id=inner.get("checkpoint_id"),
        checkpoint_ns=inner.get("checkpoint_ns") or "",
        metadata={**metadata, **(config.get("metadata") or {})},
        max_iterations=config.get("recursion_limit"),
    )


_DEFAULT: Final = RunnableConfig()

ConfigLike = RunnableConfig | Mapping[str, Any] | None
"""What every method that takes a config accepts."""
