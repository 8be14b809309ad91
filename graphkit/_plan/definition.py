"""GraphDefinition: a graph as the user wrote it, before anything is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, final

from graphkit._plan.topology import Call, Condition, Node, Targets

HookKind = Literal["before", "after", "wrap"]


@final
class Hook(NamedTuple):
    """A hook as the user added it."""

    kind: HookKind
    node_id: str | None
    """The node, or the source of the conditional edge; None: all of them."""
    call: Call


@final
class GraphDefinition:
    """A graph as the user wrote it.

    Attributes:
        nodes: by id. A GraphDefinition among them is a subgraph to inline; it had no problems when
            it was added.
        edges: by source.
        node_hooks: in the order in which they were added.
        edge_hooks: the hooks of conditional edges, in the same order.
        metadata: of a subgraph to inline, the caller's notes on all its nodes.
    """

    __slots__ = ("edge_hooks", "edges", "metadata", "node_hooks", "nodes")

    def __init__(self) -> None:
        self.metadata: Mapping[str, Any] = {}
        self.nodes: dict[str, Node | GraphDefinition] = {}
        self.edges: dict[str, Targets] = {}
        self.node_hooks: list[Hook] = []
        self.edge_hooks: list[Hook] = []

    def copy(self, metadata: Mapping[str, Any]) -> GraphDefinition:
        """Return a copy of the graph, with notes on its nodes."""
        copy = GraphDefinition()
        copy.metadata = dict(metadata)
        copy.nodes = dict(self.nodes)
        for source, edge in self.edges.items():
            if isinstance(edge, Condition):
                copy.edges[source] = edge
            else:
                copy.edges[source] = [*edge]
        copy.node_hooks = [*self.node_hooks]
        copy.edge_hooks = [*self.edge_hooks]
        return copy
