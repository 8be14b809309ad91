"""CompileConfig: the options of a compiled graph. Ports langgraph4j's class, builder included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, final

from graphkit._plan.events import Observer
from graphkit._plan.retry import RetryPolicy
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError

if TYPE_CHECKING:
    from concurrent.futures import Executor


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """How a graph is run. Immutable; checked when it is made, node names when a graph is compiled with it."""

    checkpoint_saver: BaseCheckpointSaver | None = None
    """Where the state goes after every step; without one a run can stop for a human, but not be resumed."""
    interrupt_before: Collection[str] = ()
    """Stop for a human before these nodes."""
    interrupt_after: Collection[str] = ()
    """Stop for a human after these nodes."""
    interrupt_before_edge: bool = False
    """Under `interrupt_after`, stop before the outgoing edge is evaluated, so that the answer can steer it."""
    release_thread: bool = False
    """When a run reaches END, end the thread's history too (`saver.release`)."""
    checkpoint_interval: int = 1
    """Save after every n-th node; START, stops, failures and the end are always saved. 0: no checkpoints."""
    max_iterations: int = 1000
    """How many nodes one run may execute."""
    graph_id: str | None = None
    """A name for the graph, for people."""
    checkpoint_when: Callable[..., bool] | None = None
    """Save after the nodes for which this says so, instead of after every n-th: called with (node_id, state), or
    (node_id, state, step); see `graphkit.when`. START, stops, failures and the end are always saved."""
    preserve: bool = True
    """Keep a thread after its run has ended well; False deletes it then."""
    on_save_error: Literal["raise", "warn"] = "raise"
    """What becomes of a run whose state cannot be stored: it fails, or goes on and a warning is logged."""
    durability: Literal["sync", "async", "exit"] = "sync"
    """When a step is stored: before the next begins; in the background, in order, before the run's last item is handed
    out; or only when the run stands still."""
    observers: Observer | str | Iterable[Observer | str | None] | None = ()
    """Who is told what a run does: callables that take an Event, or names of registered ones."""
    executor: Executor | None = None
    """Where the branches of forks and the items of maps run; None: on threads."""
    retry: RetryPolicy | None = None
    """For nodes without a policy of their own."""
    timeout: float | None = None
    """Seconds an attempt of a node may take, for nodes without a timeout of their own."""
    migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]] = ()
    """What turns a state of schema version n into one of n + 1, for each n from 0; states that are stored are of the
    version after the last. Append to it, and never take one out."""

    def __post_init__(self) -> None:
        for name in ("interrupt_before", "interrupt_after"):
            value = getattr(self, name)
            object.__setattr__(self, name, _ids((value,) if isinstance(value, str) else value))
        for name, values in (("on_save_error", ("raise", "warn")), ("durability", ("sync", "async", "exit"))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, values))}, not {getattr(self, name)!r}")
        if self.release_thread and not self.preserve:
            raise ValueError("release_thread keeps the history that preserve=False deletes: choose one")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, not {self.timeout}")
        if self.checkpoint_when is not None and not callable(self.checkpoint_when):
            raise TypeError(f"checkpoint_when must be callable, not {self.checkpoint_when!r}; see graphkit.when")
        object.__setattr__(self, "migrations", tuple(self.migrations))
        object.__setattr__(self, "observers", _observers(self.observers))
        if self.max_iterations <= 0:
            raise ValueError(f"max_iterations must be at least 1, not {self.max_iterations}")
        if self.checkpoint_interval < 0:
            raise ValueError(f"checkpoint_interval must be 0 (off) or more, not {self.checkpoint_interval}")
        if self.checkpoint_saver is not None and not isinstance(self.checkpoint_saver, BaseCheckpointSaver):
            raise CheckpointerConfigurationError(
                f"checkpoint_saver must be a BaseCheckpointSaver, not {type(self.checkpoint_saver).__name__}"
            )

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        """The saver that runs use: None too when checkpointing is off."""
        return self.checkpoint_saver if self.checkpoint_interval else None

    def replace(self, **changes: Any) -> CompileConfig:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @staticmethod
    def builder(config: CompileConfig | None = None) -> CompileConfigBuilder:
        """Java's way to make one, optionally starting from another."""
        return CompileConfigBuilder(config)

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


def _ids(names: Iterable[Any]) -> tuple[Any, ...]:
    # A member of a StrEnum becomes its text, as it does where nodes are added.
    return tuple(dict.fromkeys(str.__str__(name) if isinstance(name, str) else name for name in names))


def _observers(given: Any) -> tuple[Observer, ...]:
    if isinstance(given, tuple) and not given:
        return ()
    from graphkit._plan.observers import observers_of  # which imports logging, and few graphs have observers

    return observers_of(given)


@final
class CompileConfigBuilder:
    """Java's builder for a CompileConfig; Python callers pass keywords instead."""

    def __init__(self, config: CompileConfig | None = None) -> None:
        self._config = config or CompileConfig()

    def _with(self, **changes: Any) -> Self:
        self._config = self._config.replace(**changes)
        return self

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
        return self._with(observers=observers)

    def executor(self, executor: Executor | None) -> Self:
        return self._with(executor=executor)

    def retry(self, policy: RetryPolicy | None) -> Self:
        return self._with(retry=policy)

    def timeout(self, seconds: float | None) -> Self:
        return self._with(timeout=seconds)

    def migrations(self, migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]]) -> Self:
        return self._with(migrations=migrations)

    def build(self) -> CompileConfig:
        return self._config
