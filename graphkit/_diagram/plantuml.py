"""Writes a diagram as a PlantUML use case diagram, in the layout of langgraph4j."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, final

from graphkit._diagram.model import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape

_SHAPES: Final = {
    "start": ("circle", "<<input>>"),
    "stop": ("circle", ""),
    "node": ("usecase", "<<Node>>"),
    "map": ("usecase", "<<Map>>"),
    "condition": ("hexagon", "<<Condition>>"),
}
"""Kind of a shape -> its keyword and its stereotype."""
_COMMENT: Final = "'"
"""Turns the rest of a line into a comment."""


@final
class PlantUmlWriter:
    """Writes PlantUML use case diagrams."""

    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        """Yield the lines of a diagram.

        Args:
            model: the graph.
            title: None: no title.
            conditions: whether conditions have shapes of their own.
        """
        name = re.sub("[^A-Za-z0-9]", "_", title or "unnamed")
        yield f"@startuml {name}"
        if title is not None:
            yield f'title "{_escape(title)}"'
        yield from self._iter_body(model, conditions=conditions)
        yield "@enduml"

    def _iter_body(self, model: DiagramModel, *, conditions: bool) -> Iterator[str]:
        for shape in model.shapes:
            line = self._write_shape(shape)
            if shape.kind == "condition" and not conditions:
                line = _COMMENT + line
            yield line

        for subgraph in model.subgraphs:
            colour = ""
            if subgraph.is_passed:
                colour = f"{PASSED_FILL} "
            yield f'package "{_escape(subgraph.label)}" as {subgraph.name} {colour}{{'
            yield from self._iter_body(subgraph, conditions=conditions)
            yield "}"

        for arrow in model.arrows:
            line = self._write_arrow(arrow)
            if not arrow.is_shown(conditions=conditions):
                line = _COMMENT + line
            yield line

    def _write_shape(self, shape: Shape) -> str:
        keyword, stereotype = _SHAPES[shape.kind]
        colour = ""
        if shape.is_passed:
            colour = f" {PASSED_FILL}"
        return f'{keyword} "{_escape(shape.label)}" as {shape.name}{stereotype}{colour}'

    def _write_arrow(self, arrow: Arrow) -> str:
        line = "-"
        colour = label = ""
        if arrow.is_dotted:
            line = "."
        if arrow.steps:
            colour = f"[{PASSED_LINE},bold]"
        if arrow.text:
            label = f" : {_escape(arrow.text)}"
        return f"{arrow.source} {line}{colour}down{line}> {arrow.target}{label}"


def _escape(label: str) -> str:
    return re.sub(r"[^\w \-.,()]", lambda match: f"<U+{ord(match[0]):04X}>", label)
