"""Draws a graph as Mermaid or PlantUML, in the layout of langgraph4j, or as boxes of characters.

Optionally with the path of a run.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import final

from graphkit._options import check_choice
from graphkit._plan.topology import GraphDefinition, Topology


@final
@dataclasses.dataclass(frozen=True)
class GraphRepresentation:
    """A drawing of a graph: its syntax and its text. Ports langgraph4j's class."""

    class Type(enum.StrEnum):
        """The syntaxes in which a graph can be drawn."""

        MERMAID = "mermaid"
        PLANTUML = "plantuml"
        TEXT = "text"
        """Boxes of characters, for a terminal."""

    type: GraphRepresentation.Type
    """MERMAID, PLANTUML or TEXT."""
    content: str
    """The text."""

    def draw_mermaid(self) -> str:
        """Return the text, as LangGraph's method of this name does."""
        return self.content

    # Java names
    drawMermaid = draw_mermaid


def draw(
    graph: Topology | GraphDefinition,
    type: GraphRepresentation.Type | str,
    title: str | None = "Graph Diagram",
    print_conditional_edges: bool = True,
    *,
    path: Sequence[str] = (),
    current: str | None = None,
) -> GraphRepresentation:
    """Draw a graph.

    Args:
        graph: a graph definition, with inlined subgraphs as clusters; or a topology, with the nodes
            of inlined subgraphs. Nested graphs are clusters in both.
        type: the syntax.
        title: None: no title.
        print_conditional_edges: whether a condition is a shape of its own. The text contains the
            other form, too, as comments. Without effect on TEXT.
        path: the nodes and forks that a run passed, in order, START and END included. They are
            drawn in another colour, and the edges between them show the numbers of the steps that
            took them. Steps that follow no edge (of a Command) are drawn, too.
        current: the node or the fork at which the run continues. Only TEXT marks it.

    Raises:
        ValueError: the type is unknown.
    """
    # Few runs draw, and every import of graphkit would pay for these.
    from graphkit._diagram.layout import DiagramModel, NameAllocator
    from graphkit._diagram.writers import MermaidWriter, PlantUmlWriter, iter_text_lines

    check_choice("type", type, *(syntax.value for syntax in GraphRepresentation.Type))
    syntax = GraphRepresentation.Type(type)
    model = DiagramModel(graph, names=NameAllocator(), path=path, current=current)
    if syntax is GraphRepresentation.Type.TEXT:
        lines = iter_text_lines(model, title)
    else:
        writer = MermaidWriter() if syntax is GraphRepresentation.Type.MERMAID else PlantUmlWriter()
        lines = writer.iter_lines(model, title, conditions=print_conditional_edges)
    return GraphRepresentation(syntax, "\n".join(lines) + "\n")
