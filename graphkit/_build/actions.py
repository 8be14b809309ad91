"""The functions of a graph as type checkers see them: the actions of nodes, and the conditions of edges.

The names are those of langgraph4j's interfaces. Each function may be synchronous or asynchronous. It
may take the config as its second argument.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from graphkit._records.config import RunnableConfig
from graphkit._records.output import Command
from graphkit._values.state import StateT

StateT_contra = TypeVar("StateT_contra", contravariant=True)
Update: TypeAlias = Mapping[str, Any] | StateT | Command | None
"""What a node returns: a mapping of updates, an object of the schema, a Command, or None for no update."""
ActionResult: TypeAlias = Update[StateT] | Awaitable[Update[StateT]] | Iterator[Any] | AsyncIterator[Any]
"""What the call of an action returns: an update, an awaitable of one, or chunks."""


class NodeAction(Protocol[StateT]):
    """A node that takes the state."""

    def __call__(self, state: StateT, /) -> ActionResult[StateT]:
        """Return the update."""


class NodeActionWithConfig(Protocol[StateT]):
    """A node that takes the state and the config of its run."""

    def __call__(self, state: StateT, config: RunnableConfig, /) -> ActionResult[StateT]:
        """Return the update."""


class EdgeAction(Protocol[StateT_contra]):
    """A condition that takes the state."""

    def __call__(self, state: StateT_contra, /) -> Any:
        """Return a key of the mappings, a Command, or an awaitable of either."""


class EdgeActionWithConfig(Protocol[StateT_contra]):
    """A condition that takes the state and the config of its run."""

    def __call__(self, state: StateT_contra, config: RunnableConfig, /) -> Any:
        """Return a key of the mappings, a Command, or an awaitable of either."""


AnyNodeAction: TypeAlias = NodeAction[StateT] | NodeActionWithConfig[StateT]
AnyEdgeAction: TypeAlias = EdgeAction[StateT] | EdgeActionWithConfig[StateT]
