"""CompileConfig: the options of a compiled graph. Program: a topology under its options.

A CompileConfig ports langgraph4j's class, builder included. Runs and updates are started from a Program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, cast, final

from graphkit._options import (
    check_choice,
    check_count,
    check_executor,
    check_function,
    check_list,
    check_seconds,
    check_text,
    show_options,
)
from graphkit._plan.checkpoint_when import adapt_predicate
from graphkit._plan.events import Observer, observers_of
from graphkit._plan.retry import RetryPolicy, check_retry
from graphkit._plan.topology import Topology
from graphkit._public_names import JavaBuilder
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import subgraph_namespace
from graphkit._wording import check_options, name_type
from graphkit.errors import CheckpointerConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """The options of a compiled graph. Immutable.

    Values are checked when the object is created; node names are checked by `compile`.
    """

    checkpoint_saver: BaseCheckpointSaver | None = None
    """Stores the state after every step. Without one a run can stop for a human, but not resume."""
    interrupt_before: Collection[str] = ()
    """Stop for a human before these nodes."""
    interrupt_after: Collection[str] = ()
    """Stop for a human after these nodes."""
    interrupt_before_edge: bool = False
    """With `interrupt_after`, stop before the edge is evaluated, so the answer can affect it."""
    release_thread: bool = False
    """When a run reaches END, release the history of the thread (`saver.release`)."""
    checkpoint_interval: int = 1
    """Store a checkpoint after every n-th node; 0: never.

    START, stops, failures and the end are always stored, unless it is 0.
    """
    max_iterations: int = 1000
    """How many nodes one run may execute."""
    graph_id: str | None = None
    """A name of the graph, for people."""
    checkpoint_when: Callable[..., bool] | None = None
    """Store a checkpoint after the nodes for which this returns True, instead of every n-th node.

    Called with (node_id, state) or (node_id, state, step); see `graphkit.when`. START, stops,
    failures and the end are always stored.
    """
    preserve: bool = True
    """Keep a thread after its run has ended successfully; False: delete it."""
    on_save_error: Literal["raise", "warn"] = "raise"
    """What a run does if its state cannot be stored: fail, or log a warning and continue."""
    durability: Literal["sync", "async", "exit"] = "sync"
    """When a step is stored.

    "sync": before the next step begins. "async": in the background, in order, and before the run
    emits its last output. "exit": only when the run stops or ends.
    """
    observers: Observer | str | Iterable[Observer | str | None] | None = ()
    """Receive the events of runs: callables that take an Event, or registered names."""
    executor: Executor | None = None
    """Where the branches of forks and the items of maps run; None: on threads."""
    retry: RetryPolicy | None = None
    """The policy of nodes without one of their own."""
    timeout: float | None = None
    """Seconds for one attempt, for nodes without a timeout of their own."""
    migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]] = ()
    """Functions that turn a state of schema version n into one of version n + 1, for each n from 0.

    The number of migrations is the current version. Append to the list; never remove a migration.
    """
    clock: Callable[[], datetime] | None = None
    """Returns the time, aware; None: the time of the system. See `graphkit.testing.ManualClock`."""

    def __post_init__(self) -> None:
        # The dataclass is frozen, so normalized values are set past its own __setattr__.
        for name in ("interrupt_before", "interrupt_after"):
            object.__setattr__(self, name, _parse_node_ids(name, getattr(self, name)))
        if self.graph_id is not None:
            check_text("graph_id", self.graph_id)

        check_choice("on_save_error", self.on_save_error, "raise", "warn")
        check_choice("durability", self.durability, "sync", "async", "exit")
        if self.release_thread and not self.preserve:
            raise ValueError("release_thread keeps the history that preserve=False deletes: choose one")

        check_retry("retry", self.retry)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.checkpoint_when is not None:
            check_function("checkpoint_when", self.checkpoint_when)

        check_executor("executor", self.executor, TypeError)
        if self.clock is not None:
            _check_clock(self.clock)

        check_list("migrations", "functions", self.migrations)
        object.__setattr__(self, "migrations", tuple(self.migrations))
        for migration in self.migrations:
            check_function("a migration", migration)
        object.__setattr__(self, "observers", observers_of(self.observers))

        check_count("max_iterations", self.max_iterations)
        check_count("checkpoint_interval", self.checkpoint_interval, least=0)

        saver: object = self.checkpoint_saver
        if saver is not None and not isinstance(saver, BaseCheckpointSaver):
            given = f"the class {saver.__name__}" if isinstance(saver, type) else name_type(saver)
            raise CheckpointerConfigurationError(
                f"checkpoint_saver must be an object of a BaseCheckpointSaver, such as those of the package savers, "
                f"not {given}"
            )

    def __repr__(self) -> str:
        return show_options(self, CompileConfig())

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The saver that runs use; None without one or if `checkpoint_interval` is 0."""
        if self.checkpoint_interval:
            return self.checkpoint_saver
        return None

    def replace(self, **changes: Any) -> CompileConfig:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @staticmethod
    def builder(config: CompileConfig | None = None) -> CompileConfigBuilder:
        """Return a builder, as in Java, optionally starting from another config."""
        return CompileConfigBuilder(CompileConfig, vars(config or CompileConfig()))

    # Java names
    def checkpointSaver(self) -> BaseCheckpointSaver | None:
        return self.checkpoint_saver

    def interruptsBefore(self) -> Collection[str]:
        return self.interrupt_before

    def interruptsAfter(self) -> Collection[str]:
        return self.interrupt_after

    def interruptBeforeEdge(self) -> bool:
        return self.interrupt_before_edge

    def releaseThread(self) -> bool:
        return self.release_thread

    def recursionLimit(self) -> int:
        return self.max_iterations

    def graphId(self) -> str | None:
        return self.graph_id


class CompileOptions(TypedDict, total=False):
    """The keywords of `compile`: the fields of CompileConfig, where they are documented."""

    checkpoint_saver: BaseCheckpointSaver | None
    checkpointer: BaseCheckpointSaver | None
    interrupt_before: Collection[str]
    interrupt_after: Collection[str]
    interrupt_before_edge: bool
    release_thread: bool
    checkpoint_interval: int
    max_iterations: int
    graph_id: str | None
    checkpoint_when: Callable[..., bool] | None
    preserve: bool
    on_save_error: Literal["raise", "warn"]
    durability: Literal["sync", "async", "exit"]
    observers: Observer | str | Iterable[Observer | str | None] | None
    executor: Executor | None
    retry: RetryPolicy | None
    timeout: float | None
    migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]]
    clock: Callable[[], datetime] | None


def parse_options(config: CompileConfig | None, options: CompileOptions) -> CompileConfig:
    """Return the options of a graph from the arguments of `compile`.

    Raises:
        TypeError: there is no such option, one is given under both of its names, or the config is none.
    """
    changes = cast("dict[str, Any]", dict(options))
    check_options("compile()", changes, CompileOptions.__annotations__)
    if "checkpointer" in changes:
        if "checkpoint_saver" in changes:
            raise TypeError("checkpointer and checkpoint_saver are the same option: pass one of them")
        changes["checkpoint_saver"] = changes.pop("checkpointer")
    if config is None:
        return CompileConfig(**changes)
    if not isinstance(config, CompileConfig):
        raise TypeError(
            f"compile() takes its options by name, such as checkpoint_saver=...; its one argument without a name is "
            f"a CompileConfig, not {type(config).__name__}"
        )
    return config.replace(**changes)


def _check_clock(clock: object) -> None:
    """Check a clock, which is called once.

    Raises:
        TypeError: it is not a callable that returns an aware datetime.
    """
    time = clock() if callable(clock) else None
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise TypeError(f"clock must be a callable that returns an aware datetime, not {clock!r}")


def _parse_node_ids(option: str, names: str | Iterable[Any]) -> tuple[Any, ...]:
    """Return the node ids of an option without repetitions; members of a StrEnum become text, as in `add_node`."""
    if isinstance(names, str):
        names = (names,)
    check_list(option, "node ids", names)
    node_ids = [str.__str__(name) if isinstance(name, str) else name for name in names]
    return tuple(dict.fromkeys(node_ids))


@final
class CompileConfigBuilder(JavaBuilder[CompileConfig]):
    """Java's builder for a CompileConfig; Python callers pass keywords."""

    def checkpointSaver(self, saver: BaseCheckpointSaver | None) -> Self:
        return self._with(checkpoint_saver=saver)

    def interruptBefore(self, *node_ids: str) -> Self:
        return self._with(interrupt_before=node_ids)

    def interruptsBefore(self, node_ids: Iterable[str]) -> Self:
        return self._with(interrupt_before=tuple(node_ids))

    def interruptAfter(self, *node_ids: str) -> Self:
        return self._with(interrupt_after=node_ids)

    def interruptsAfter(self, node_ids: Iterable[str]) -> Self:
        return self._with(interrupt_after=tuple(node_ids))

    def interruptBeforeEdge(self, stop: bool) -> Self:
        return self._with(interrupt_before_edge=stop)

    def releaseThread(self, release: bool) -> Self:
        return self._with(release_thread=release)

    def checkpointInterval(self, interval: int) -> Self:
        return self._with(checkpoint_interval=interval)

    def maxIterations(self, max_iterations: int) -> Self:
        return self._with(max_iterations=max_iterations)

    recursionLimit = maxIterations

    def graphId(self, graph_id: str | None) -> Self:
        return self._with(graph_id=graph_id)

    def checkpointWhen(self, predicate: Callable[..., bool] | None) -> Self:
        return self._with(checkpoint_when=predicate)

    def preserve(self, preserve: bool) -> Self:
        return self._with(preserve=preserve)

    def onSaveError(self, what: Literal["raise", "warn"]) -> Self:
        return self._with(on_save_error=what)

    def durability(self, durability: Literal["sync", "async", "exit"]) -> Self:
        return self._with(durability=durability)

    def observers(self, observers: Iterable[Observer | str | None]) -> Self:
        return self._with(observers=observers_of(observers))

    def executor(self, executor: Executor | None) -> Self:
        return self._with(executor=executor)

    def retry(self, policy: RetryPolicy | None) -> Self:
        return self._with(retry=policy)

    def timeout(self, seconds: float | None) -> Self:
        return self._with(timeout=seconds)

    def migrations(self, migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]]) -> Self:
        return self._with(migrations=tuple(migrations))

    def clock(self, clock: Callable[[], datetime] | None) -> Self:
        return self._with(clock=clock)


# A topology under its options; the programs of nested graphs


@final
class Program:
    """What is fixed before a run begins.

    Attributes:
        topology: the graph.
        options: the options it runs under.
        when: the option `checkpoint_when`, as a function of (node_id, state, step).
    """

    def __init__(self, topology: Topology, options: CompileConfig) -> None:
        self.topology = topology
        self.options = options
        self.when = None if options.checkpoint_when is None else adapt_predicate(options.checkpoint_when)

    def find_saver(self, outer: BaseCheckpointSaver | None) -> BaseCheckpointSaver | None:
        """Return the saver of a nested graph: its own, or that of the outer graph; None if it stores nothing."""
        if not self.options.checkpoint_interval:
            return None
        return self.options.checkpoint_saver or outer

    def find_stop(self, stops: Collection[str], node_id: str | None) -> str | None:
        """Return the node that a declared stop at a node or a fork names; None if there is no such stop.

        A node in a branch stops the run before, or after, its fork: a run does not stop within a fork.

        Args:
            stops: the nodes of the option `interrupt_before` or `interrupt_after`.
            node_id: the node or the fork.
        """
        if not stops or node_id is None:
            return None
        fork = self.topology.find_fork(node_id)
        if fork is None:
            return node_id if node_id in stops else None
        inside = frozenset().union(*fork.branches.values())
        return next((name for name in stops if name in inside), None)


def find_programs(program: Program, namespace: str) -> list[Program] | None:
    """Find the programs on the path to a namespace, the outermost first; or None."""
    programs = [program]
    for name in namespace.split("/") if namespace else ():
        nested = programs[-1].topology.nested
        found = [graph for node_id, graph in nested.items() if subgraph_namespace("", node_id) == name]
        if not found:
            return None
        programs.append(found[0].program)
    return programs


def find_nested(
    program: Program, saver: BaseCheckpointSaver | None, namespace: str = ""
) -> Iterator[tuple[str, BaseCheckpointSaver, BaseCheckpointSaver | None]]:
    """Yield (namespace, saver, saver of its outer graph) of each nested graph that stores its history, at any depth.

    Args:
        program: the outer graph.
        saver: that of the outer graph.
        namespace: that of the outer graph.
    """
    for node_id, graph in program.topology.nested.items():
        nested_namespace = subgraph_namespace(namespace, node_id)
        nested_saver = graph.program.find_saver(saver)
        if nested_saver is not None:
            yield nested_namespace, nested_saver, saver
        yield from find_nested(graph.program, nested_saver, nested_namespace)


def find_savers(program: Program, saver: BaseCheckpointSaver) -> list[BaseCheckpointSaver]:
    """Return the saver of a graph, and those that its nested graphs have of their own, once each."""
    savers = [saver, *(nested_saver for _, nested_saver, _ in find_nested(program, saver))]
    return [*{id(each): each for each in savers}.values()]
