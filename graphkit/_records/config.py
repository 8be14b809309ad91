"""RunnableConfig: which thread, which checkpoint, on whose behalf, and how to run.

Ports langgraph4j's RunnableConfig with its builder, and reads LangGraph's `{"configurable": {...}}`
mappings.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import StrEnum
from functools import wraps
from inspect import signature
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, ParamSpec, Self, TypeVar, final

from graphkit._options import check_count, check_executor, show_options
from graphkit._public_names import JavaBuilder, JavaNames, NameElsewhere
from graphkit._records.context import ABSENT, CURRENT_NODE_CONTEXT, NodeContext, require_node_context, setting
from graphkit._to_thread import finish_in_thread
from graphkit.errors import CheckpointerConfigurationError, GraphRunnerError

P = ParamSpec("P")
T = TypeVar("T")

START: Final = "__START__"
END: Final = "__END__"
THREAD_ID_DEFAULT: Final = "$default"


class StreamMode(StrEnum):
    """What a stream emits.

    For each step: VALUES, the output with its state; UPDATES, with its state and the updates that led
    to it; SNAPSHOTS, with its checkpoint. While a node runs: CUSTOM, what it dispatches, and the chunks
    that it yields.
    """

    VALUES = "values"
    UPDATES = "updates"
    SNAPSHOTS = "snapshots"
    CUSTOM = "custom"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        modes = ", ".join(repr(mode.value) for mode in cls)
        raise ValueError(
            f"there is no stream mode {value!r}, only {modes}; to stream the tokens of a model, pass each one to "
            f"config.dispatch in the node and use 'custom'"
        )


_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})

_USED_KEYS: Final = frozenset({"configurable", "metadata", "recursion_limit", "max_concurrency"})
_TRACING_KEYS: Final = frozenset({"tags", "callbacks", "run_name", "run_id"})
"""What LangGraph passes on to LangChain's tracers, which graphkit does not have: these keys have no
effect. docs/langgraph.md says what to use instead of each."""

_OWN_CONFIGURABLE: Final = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "principal"})


@final
@dataclasses.dataclass(frozen=True)
class RunnableConfig(JavaNames):
    """The address of a thread or checkpoint, and the options of one run. Immutable.

    Can also be read like LangGraph's mapping: `config["configurable"]["checkpoint_id"]`.
    """

    thread_id: str | None = None
    """The thread; None is the default thread."""
    checkpoint_id: str | None = None
    """One checkpoint of the thread; None is the latest."""
    checkpoint_ns: str = ""
    """The namespace within the thread; each embedded subgraph has its own."""
    next_node: str | None = None
    """The node that runs next at this checkpoint. Informative: runs never read it."""
    stream_mode: StreamMode | tuple[StreamMode, ...] = StreamMode.VALUES
    """What `stream` yields; with several modes, pairs of a mode and its item."""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _NO_METADATA)
    """The caller's own keys; nodes can read them, and they are stored with each checkpoint of the
    run, except for those that the engine uses itself: `source`, `step`, `visit` and others."""
    max_iterations: int | None = None
    """How many nodes one run may execute; overrides the limit of the graph."""
    executor: Executor | Mapping[str, Executor] | None = None
    """Where the branches of forks and the items of maps run, for one run: any
    `concurrent.futures.Executor`, or a mapping from the id of the node that forks or maps to its
    executor. None: the executor of the graph, or threads. Not stored."""
    max_concurrency: int | None = None
    """How many branches of a fork, or items of a map, run at the same time, at most. A map node may
    have a lower limit of its own. None: no limit."""
    principal: Any = dataclasses.field(default=ABSENT, compare=False, repr=False)
    """On whose behalf savers are used; see `with_principal`. Not stored."""

    def __post_init__(self) -> None:
        _require("thread_id", self.thread_id, (str, NoneType), "a str or None")
        _require("checkpoint_id", self.checkpoint_id, (str, NoneType), "a str or None")
        _require("checkpoint_ns", self.checkpoint_ns, str, "a str")
        if self.max_iterations is not None:
            check_count("max_iterations", self.max_iterations)
        if self.max_concurrency is not None:
            check_count("max_concurrency", self.max_concurrency)
        if self.executor is not None:
            executors = self.executor.values() if isinstance(self.executor, Mapping) else [self.executor]
            for executor in executors:
                check_executor("executor", executor, CheckpointerConfigurationError)
        if self.stream_mode.__class__ is not StreamMode:
            object.__setattr__(self, "stream_mode", _parse_stream_mode(self.stream_mode))
        if self.metadata.__class__ is not MappingProxyType:
            _require("metadata", self.metadata, Mapping, "a mapping")
            for key in self.metadata:
                _require("a key of metadata", key, str, "a str")
            metadata = MappingProxyType(dict(self.metadata))
            object.__setattr__(self, "metadata", metadata)

    def __repr__(self) -> str:
        return show_options(self, _DEFAULT)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy of the metadata: a mapping proxy does not pickle."""
        values = {**vars(self), "metadata": dict(self.metadata)}
        if self.principal is ABSENT:  # it has no public name, and a pickle names no private module
            del values["principal"]
        return RunnableConfig._unpickle, (values,)

    @classmethod
    def _unpickle(cls, values: dict[str, Any]) -> RunnableConfig:
        return cls(**values)

    @classmethod
    def of(cls, config: ConfigLike) -> RunnableConfig:
        """Convert what a caller passed: a RunnableConfig, a thread id, LangGraph's mapping, or None.

        Raises:
            CheckpointerConfigurationError: the mapping does not have LangGraph's form, or an id is
                not a string.
        """
        if isinstance(config, RunnableConfig):
            return config
        if config is None:
            return _DEFAULT
        if isinstance(config, Mapping):
            return _from_mapping(config)
        if isinstance(config, str):
            return cls(config)
        raise CheckpointerConfigurationError(
            f"a config must be a thread id, a RunnableConfig or {{'configurable': {{'thread_id': ...}}}}, "
            f"not {type(config).__name__}"
        )

    @property
    def thread(self) -> str:
        """The thread id; the default thread if it is None."""
        if self.thread_id is None:
            return THREAD_ID_DEFAULT
        return self.thread_id

    @property
    def stream_modes(self) -> tuple[StreamMode, ...]:
        """The stream mode, or each of several."""
        if isinstance(self.stream_mode, tuple):
            return self.stream_mode
        return (self.stream_mode,)

    def replace(self, **changes: Any) -> RunnableConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    # Inside a node

    @property
    def node_id(self) -> str | None:
        """The node that is executing the calling code; None outside a node."""
        context = CURRENT_NODE_CONTEXT.get()
        if context is None:
            return None
        return context.node_id or None

    @property
    def node_path(self) -> str | None:
        """The node that is executing the calling code, after those that contain it: `order/check`.

        None outside a node.
        """
        if self.node_id is None:
            return None
        return "/".join(filter(None, (self.checkpoint_ns, self.node_id)))

    @property
    def idempotency_key(self) -> str:
        """A string that identifies this execution of a node, of an item of a map, or of a tool call.

        It consists of thread, checkpoint and node. All attempts of the execution have the same key,
        in every process: those that `retry` makes, and those after a crash or an answered
        `interrupt()`. No other execution has it. Pass it to a service that recognises repeated
        requests.

        Raises:
            GraphRunnerError: called outside a node.
        """
        context = require_node_context("idempotency_key")
        return context.journal.idempotency_key(context)

    @property
    def attempt(self) -> int:
        """The number of the attempt that is running, from 1.

        It counts what `retry` makes. A resume, after a crash for example, begins with 1 again.

        Raises:
            GraphRunnerError: called outside a node.
        """
        return require_node_context("attempt").attempt

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was asked to end as cancelled, with `graphkit.operations.cancel`.

        A node that runs for long asks now and then, and returns early; the run ends after it. Cheap:
        it reads the store at most every 0.2 s, on the calling thread. Always False without a saver.

        Raises:
            CheckpointStorageError: the store cannot be read.
            GraphRunnerError: called outside a node.
        """
        return require_node_context("is_cancelled").journal.is_cancelled()

    def now(self) -> datetime:
        """Return the time of the run, aware: that of `compile(clock=)` or `Worker(clock=)`, else of the system.

        A node that is executed again, after a question or a crash, gets a later time. In a node that runs
        in another process, it is the time of the system there.

        Raises:
            GraphRunnerError: called outside a run.
        """
        context = CURRENT_NODE_CONTEXT.get()
        if context is None:
            raise GraphRunnerError("now() works inside a running graph only")
        return context.journal.now()

    def once(self, key: str, function: Callable[[], T]) -> T:
        """Call a function with a side effect once in this execution of the node.

        `once` records the result in the thread's log before it returns. When the node runs again
        after a crash, a retry or an answered `interrupt()`, it returns the recorded result instead
        of calling the function. A crash between the effect and the record repeats the effect;
        `idempotency_key` closes that gap if the other side recognises repeated requests.

        Cost: one record.

        Args:
            key: distinguishes the effects of one execution; a text that is the same in each of them.
            function: called without arguments; its result must be storable.

        Raises:
            GraphRunnerError: called outside a node.
            TypeError: the key is not a str. The function was not called.
            CheckpointSerializationError: the result cannot be stored. The effect has happened.
        """
        context = require_node_context("once")
        is_recorded, recorded = _find_recorded(context, key)
        if not is_recorded:
            value = function()
            # Asked only now: a run that has ended meanwhile has taken its journal away.
            recorded = context.journal.record_result(context, key, value)
        result: T = recorded
        return result

    async def aonce(self, key: str, function: Callable[[], Awaitable[T]]) -> T:
        """As `once`, for an asynchronous function. A thread writes the record."""
        context = require_node_context("aonce")
        is_recorded, recorded = _find_recorded(context, key)
        if not is_recorded:
            value = await function()
            recorded = await finish_in_thread(context.journal.record_result, context, key, value)
        result: T = recorded
        return result

    if not TYPE_CHECKING:  # type checkers are to report these names of LangGraph's Runtime
        context = NameElsewhere()
        store = NameElsewhere()
        stream_writer = NameElsewhere()

    def dispatch(self, output: Any) -> None:
        """Add an output to the stream of the run. It does not change the state.

        A stream with mode "custom" yields the value itself, while the node runs. Other streams yield
        it when the node is done, before the node's own output: a NodeOutput unchanged, any other value
        as the chunk of a StreamingOutput. Another process passes its outputs on when it is done.

        A node that runs again, after a failure for example, dispatches again.

        Raises:
            GraphRunnerError: called outside a node.
        """
        require_node_context("dispatch").dispatch(output)

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key of LangGraph's mapping that has an effect, such as "configurable"."""
        if key == "configurable":
            configurable = {
                **self.metadata,
                "thread_id": self.thread,
                "checkpoint_ns": self.checkpoint_ns,
                "checkpoint_id": self.checkpoint_id,
            }
            if self.principal is not ABSENT and self.principal is not None:
                configurable["principal"] = self.principal
            return configurable
        if key == "metadata":
            return dict(self.metadata)
        if key == "recursion_limit" and self.max_iterations is not None:
            return self.max_iterations
        if key == "max_concurrency" and self.max_concurrency is not None:
            return self.max_concurrency
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return `config[key]`, or the default if there is no such key."""
        try:
            return self[key]
        except KeyError:
            return default

    def with_stream_mode(self, mode: StreamMode | str | Sequence[StreamMode | str]) -> RunnableConfig:
        """Return this config with another stream mode, or several."""
        if mode == self.stream_mode:
            return self
        return self.replace(stream_mode=mode)

    def with_check_point_id(self, checkpoint_id: str | None) -> RunnableConfig:
        """Return the address of another checkpoint of the same thread; None is the latest."""
        if checkpoint_id == self.checkpoint_id:
            return self
        return self._copy_with("checkpoint_id", checkpoint_id)

    def with_principal(self, principal: Any) -> RunnableConfig:
        """Return this config on behalf of a principal, as a `savers.AccessControlledSaver` asks for it.

        It wins over `savers.acting_as`. It holds for the call, and for the whole run that begins with
        it, in all its threads and processes. It is never stored, and not part of the address: configs
        that differ in nothing else are equal.

        Args:
            principal: what the policy of the saver knows. None is nobody, also inside `acting_as`.
        """
        return self._copy_with("principal", principal)

    def _copy_with(self, name: str, value: Any) -> RunnableConfig:
        """Return a copy with another value of a field, which needs no check."""
        # A saver does this at every put; the generated __init__ would cost as much as the write.
        fields = self.__dict__.copy()
        fields[name] = value
        copy = object.__new__(RunnableConfig)
        object.__setattr__(copy, "__dict__", fields)
        return copy

    def get_metadata(self, key: str) -> Any | None:
        """Return one of the caller's own keys, or None."""
        return self.metadata.get(key)

    @staticmethod
    def builder(config: RunnableConfig | None = None) -> RunnableConfigBuilder:
        """Return a builder, as in Java; it starts from `config` if there is one."""
        config = config or _DEFAULT
        # Its metadata are a mapping proxy, which a copy or a pickle of the builder could not hold.
        return RunnableConfigBuilder(RunnableConfig, {**vars(config), "metadata": dict(config.metadata)})

    # Java names
    withStreamMode = with_stream_mode
    withCheckPointId = with_check_point_id
    withPrincipal = with_principal
    getMetadata = get_metadata

    def nodeId(self) -> str | None:
        return self.node_id

    def nodePath(self) -> str | None:
        return self.node_path

    @staticmethod
    def empty() -> RunnableConfig:
        """Return a config without any option, as in Java."""
        return _DEFAULT

    def customDispatcher(self) -> Callable[[Any], None]:
        require_node_context("customDispatcher()")
        return self.dispatch

    def threadId(self) -> str | None:
        return self.thread_id

    def checkPointId(self) -> str | None:
        return self.checkpoint_id

    def nextNode(self) -> str | None:
        return self.next_node

    def streamMode(self) -> StreamMode | tuple[StreamMode, ...]:
        return self.stream_mode


@final
class RunnableConfigBuilder(JavaBuilder[RunnableConfig]):
    """Java's builder for a RunnableConfig; Python callers pass keywords instead."""

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

    def maxConcurrency(self, max_concurrency: int | None) -> Self:
        return self._with(max_concurrency=max_concurrency)

    def principal(self, principal: Any) -> Self:
        return self._with(principal=principal)

    def executor(self, executor: Executor | Mapping[str, Executor] | None) -> Self:
        return self._with(executor=executor)

    def addParallelNodeExecutor(self, node_id: str, executor: Executor) -> Self:
        executors = self._keywords["executor"]
        others = executors if isinstance(executors, Mapping) else {}
        return self._with(executor={**others, node_id: executor})

    def metadata(self, metadata: Mapping[str, Any]) -> Self:
        return self._with(metadata=dict(metadata))

    def addMetadata(self, key: str, value: Any) -> Self:
        return self._with(metadata={**self._keywords["metadata"], key: value})

    putMetadata = addMetadata


def _find_recorded(context: NodeContext, key: str) -> tuple[bool, Any]:
    given: object = key
    if not isinstance(given, str):  # the text of many objects is another one in each process
        raise TypeError(f"the key of once must be a str, not {key!r}")
    return context.journal.find_result(context, key)


def _require(name: str, value: object, kind: type | tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kind):
        raise CheckpointerConfigurationError(f"{name} must be {expected}, not {type(value).__name__}")


def _parse_stream_mode(mode: Any) -> StreamMode | tuple[StreamMode, ...]:
    """Return the stream mode that a text names, or a tuple of those that a list names.

    Raises:
        ValueError: there is no such mode, or the list is empty.
    """
    if isinstance(mode, str) or not isinstance(mode, Iterable):
        return StreamMode(mode)
    modes = tuple(dict.fromkeys(map(StreamMode, mode)))
    if not modes:
        raise ValueError("a list of stream modes needs at least one")
    return modes


def _from_mapping(config: Mapping[str, Any]) -> RunnableConfig:
    unknown = [key for key in config if key not in _USED_KEYS and key not in _TRACING_KEYS]
    if unknown:
        raise CheckpointerConfigurationError(
            f"unknown config key {unknown[0]!r}; a config is the thread id as text, "
            f"{{'configurable': {{'thread_id': ...}}}} or a RunnableConfig"
        )
    configurable = config.get("configurable") or {}
    _require("config['configurable']", configurable, Mapping, "a mapping")
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        # Other keys are metadata: with the id under a key of another spelling, the run would share the default
        # thread with all runs that name none.
        for key in configurable:
            if str(key).replace("_", "").replace("-", "").lower() == "threadid" and key != "thread_id":
                raise CheckpointerConfigurationError(
                    f"unknown key {key!r} in config['configurable']; write 'thread_id'"
                )
    if isinstance(thread_id, int):
        thread_id = str(thread_id)  # as LangGraph does, and its users rely on it
    metadata = {key: value for key, value in configurable.items() if key not in _OWN_CONFIGURABLE}
    own_metadata = config.get("metadata") or {}
    _require("config['metadata']", own_metadata, Mapping, "a mapping")
    metadata.update(own_metadata)
    return RunnableConfig(
        thread_id=thread_id,
        checkpoint_id=configurable.get("checkpoint_id"),
        checkpoint_ns=configurable.get("checkpoint_ns") or "",
        metadata=metadata,
        max_iterations=config.get("recursion_limit"),
        max_concurrency=config.get("max_concurrency") or None,  # LangGraph takes 0 as no limit
        principal=configurable.get("principal", ABSENT),
    )


_DEFAULT: Final = RunnableConfig()

ConfigLike = RunnableConfig | Mapping[str, Any] | str | None
"""What every method that takes a config accepts; a text is a thread id."""


ThreadLike = str | RunnableConfig | Mapping[str, Any] | None
"""A thread: its id, or a config that names it; None is the default thread."""


def resolve_thread_id(thread: ThreadLike) -> str:
    """Return the thread id of an id or a config; that of the default thread for None."""
    if isinstance(thread, str):
        return thread
    return RunnableConfig.of(thread).thread


def check_limit(limit: int, least: int = 0) -> int:
    """Return the most results that a caller wants; no sequence has more than `sys.maxsize`.

    Raises:
        ValueError: it is not a whole number, or below the least.
    """
    try:
        number = operator.index(limit)
    except TypeError:
        number = least - 1
    if number < least:
        raise ValueError(f"limit must be a whole number, at least {least}, not {limit!r}")
    return min(number, sys.maxsize)


# The principal: on whose behalf the calling code uses a saver; see `savers.AccessControlledSaver`. It is named by a
# config, by `acting_as`, or by the run whose node is executing; in this order, except that of the last two the inner
# one counts. It is never stored with a checkpoint, and graphkit does not check who somebody is: the application does
# that before it names a principal.


class _Acting(NamedTuple):
    """What one `acting_as` says."""

    principal: Any
    run: RunnableConfig | None
    """The config of the run inside which it was entered: the very object, which each run has one of."""


_ACTING: Final[ContextVar[_Acting | None]] = ContextVar("graphkit_acting_as", default=None)


@contextmanager
def acting_as(principal: Any) -> Iterator[None]:
    """Use savers on behalf of a principal inside the `with` block.

    It holds for the calling thread or asyncio task, for the tasks and `asyncio.to_thread` calls that
    these start, and for all threads, executors and processes of runs that begin inside the block. The
    config of a call that names a principal wins; see `RunnableConfig.with_principal`. Do not `yield`
    inside the block: a generator shares the context of the code that iterates over it.

    Args:
        principal: what the policies of the application know: a name, or an object. None is nobody.
    """
    with setting(_ACTING, _Acting(principal, find_run())):
        yield


def get_principal(config: RunnableConfig | None = None) -> Any:
    """Return the principal of a call with this config; None is nobody."""
    if config is not None and config.principal is not ABSENT:
        return config.principal
    acting = _ACTING.get()
    run = find_run()
    # Code of a node acts as its run does, whoever reads the stream of that run meanwhile, unless the
    # node itself has said otherwise.
    if run is not None and (acting is None or acting.run is not run):
        return None if run.principal is ABSENT else run.principal
    return None if acting is None else acting.principal


def find_run() -> RunnableConfig | None:
    """Return the config of the run whose node, edge or hook is executing."""
    context = CURRENT_NODE_CONTEXT.get()
    return None if context is None else context.journal.config


def with_current_principal(config: ConfigLike) -> RunnableConfig:
    """Return a copy of a config that names the principal of a call with it, for use outside the caller's context.

    If there is none, it names nobody: the code that reads a stream lends nothing to the run. Always a
    copy: `acting_as` tells runs apart by their configs.
    """
    config = RunnableConfig.of(config)
    return config.with_principal(get_principal(config))


def acts_for(parameter: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: a function acts as the principal that the config in one of its arguments names."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        place = list(signature(function).parameters).index(parameter)

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            config: Any = arguments[place] if len(arguments) > place else options.get(parameter)
            principal = RunnableConfig.of(config).principal
            if principal is ABSENT:
                return function(*arguments, **options)
            with acting_as(principal):
                return function(*arguments, **options)

        return call

    return decorate
