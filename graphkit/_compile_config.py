"""CompileConfig: the options of a compiled graph. Ports langgraph4j's class, builder included."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Any, Self, final

from graphkit._abc import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError


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

    def __post_init__(self) -> None:
        for name in ("interrupt_before", "interrupt_after"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(dict.fromkeys(value)))
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

    def build(self) -> CompileConfig:
        return self._config
