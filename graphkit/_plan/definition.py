"""GraphDefinition: a graph as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, final

from graphkit._plan.topology import Call, Condition, Node, Targets

HookKind = Literal["before", "after", "wrap"]


@final
class Hook(NamedTuple):
    """A hook as it was added: to the node, or the edge of the source, `place`; None: to all."""

    kind: HookKind
    place: str | None
    call: Call


@final
class GraphDefinition:
    """A graph as it was written.

    Attributes:
        nodes: by id; a Sketch is a graph that is to be merged, and was right when it was added.
        edges: by source.
        node_hooks: in the order they were added.
        edge_hooks: the same, of conditional edges.
        metadata: the caller's notes on all its nodes, where it is to be merged.
    """

    __slots__ = ("edge_hooks", "edges", "metadata", "node_hooks", "nodes")

    def __init__(self) -> None:
        self.metadata: Mapping[str, Any] = {}
        self.nodes: dict[str, Node | GraphDefinition] = {}
        self.edges: dict[str, Targets] = {}
        self.node_hooks: list[Hook] = []
        self.edge_hooks: list[Hook] = []

    def copy(self, metadata: Mapping[str, Any]) -> GraphDefinition:
        """The graph as it is now, with notes on its nodes."""
        copy = GraphDefinition()
        copy.metadata = dict(metadata)
        copy.nodes = dict(self.nodes)
        copy.edges = {source: edge if isinstance(edge, Condition) else [*edge] for source, edge in self.edges.items()}
        copy.node_hooks, copy.edge_hooks = [*self.node_hooks], [*self.edge_hooks]
        return copy
