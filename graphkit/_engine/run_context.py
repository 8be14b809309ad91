"""Keeper: what the strands of a run, its visits and the graphs embedded in it need of the run itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

from graphkit._engine.journal import RunJournal
from graphkit._engine.requests import Request
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import GraphResume, InterruptionMetadata, When
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._values.frozen import FrozenDict

Steps = Generator[Request, Any, None]


class RunContext(Protocol):
    """A run: it counts, records and tells for whatever belongs to it."""

    config: RunnableConfig
    saver: BaseCheckpointSaver | None
    base: Checkpoint | None
    is_saved: bool
    limit: int
    exits: bool
    control: Any
    metadata: FrozenDict
    held: frozenset[object]
    post: Callable[..., None] | None
    perform: Callable[[Steps], None]
    clock: Callable[[], float]
    journal: RunJournal
    writes: dict[str, Any]
    finished: list[str]
    inner: list[InterruptionMetadata]
    for_children: dict[str, GraphResume]

    @property
    def pausing(self) -> bool:
        """Whether somebody asked it to stop at the next node boundary."""
        ...

    def check_limit(self, node_id: str) -> None:
        """See that one more node may be executed."""
        ...

    def count(self, node_id: str) -> None:
        """One more node is executed."""
        ...

    def answers(self, key: str) -> tuple[Any, ...]:
        """The answers to the `interrupt()` calls of a visit."""
        ...

    def root(self) -> str:
        """Names where on the main line the visit that goes on here began."""
        ...

    def spoil(self) -> None:
        """Mark what is stored from here on as not clean."""
        ...

    def settle(self) -> Steps:
        """Make sure that values can be recorded beside where it stands."""
        ...

    def record(self, writes: Mapping[str, Any]) -> Steps:
        """Put values beside where it stands."""
        ...

    def note(self, writes: Mapping[str, Any]) -> Steps:
        """As `record`, but only when it stands still if nothing is to be stored before."""
        ...

    def record_stop(
        self, node_id: str, when: When, key: str, payload: Any = None, metadata: Mapping[str, Any] = ...
    ) -> Steps:
        """Store that it waits for a human."""
        ...

    def embedded(self, strand: Any, node: Any, key: str) -> Steps:
        """Visit a node that is a graph."""
        ...

    def tell(self, type: str, level: str, node_id: str | None, **data: Any) -> None:
        """Tell the observers, if there are any."""
        ...

    def tell_start(self, node_id: str, data: FrozenDict) -> None:
        """Tell that a node is about to run."""
        ...

    def tell_complete(self, node_id: str, data: FrozenDict) -> None:
        """Tell that a node has run."""
        ...

    def tell_failed(self, node_id: str, error: BaseException) -> None:
        """Tell that a node has failed."""
        ...
