"""Diagrams: a graph as Mermaid or PlantUML text, perhaps with the way that a run took. The layout is langgraph4j's."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import final

from graphkit._plan.definition import GraphDefinition
from graphkit._plan.topology import Topology


@final
@dataclasses.dataclass(frozen=True)
class GraphRepresentation:
    """A drawing of a graph: the syntax it is in, and its text. Ports langgraph4j's class."""

    class Type(enum.StrEnum):
        """The syntaxes that a graph can be drawn in."""

        MERMAID = "mermaid"
        PLANTUML = "plantuml"

    type: GraphRepresentation.Type
    """MERMAID or PLANTUML."""
    content: str
    """The text."""


def draw(
    graph: Topology | GraphDefinition,
    type: GraphRepresentation.Type | str,
    title: str | None = "Graph Diagram",
    print_conditional_edges: bool = True,
    *,
    path: Sequence[str] = (),
) -> GraphRepresentation:
    """Draw a graph.

    Args:
        graph: what to draw: as it was written, merged subgraphs as clusters; or as it runs, with their nodes. Compiled
            graphs in it are clusters in both.
        type: the syntax.
        title: None for none.
        print_conditional_edges: whether a condition is a shape of its own. The other way of showing it is there too,
            as comments.
        path: the nodes and forks that a run passed, in this order, START and END included. They are drawn in a colour
            of their own, and the edges between them say at which step they were taken. Steps that follow no edge (a
            Command) are drawn too.

    Raises:
        ValueError: there is no such type.
    """
    # Few runs draw, and every import of graphkit would pay for these.
    from graphkit._diagram.mermaid import Mermaid
    from graphkit._diagram.model import DiagramModel, Names
    from graphkit._diagram.plantuml import PlantUml

    kind = GraphRepresentation.Type(type)
    writer = Mermaid() if kind is GraphRepresentation.Type.MERMAID else PlantUml()
    scene = DiagramModel(Names(), "", graph, path)
    text = "\n".join(writer.lines(scene, title, conditions=print_conditional_edges)) + "\n"
    return GraphRepresentation(kind, text)
