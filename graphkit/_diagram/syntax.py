"""Writes a diagram as a Mermaid flowchart, or a PlantUML use case diagram, in the layout of langgraph4j.

Conditions have two forms, and the text contains both: the one that is not asked for is commented out.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Iterator
from typing import ClassVar, Final, final

from graphkit._diagram.layout import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape
from graphkit._records.config import END, START


class DiagramWriter(abc.ABC):
    """Writes diagrams in one syntax."""

    indent: ClassVar[str]
    """Precedes each shape and arrow."""
    comment: ClassVar[str]
    """Turns the rest of a line into a comment."""

    def __init__(self) -> None:
        self.links: list[Arrow] = []
        """The arrows that are shown, in order."""

    @abc.abstractmethod
    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        """Yield the lines of a diagram.

        Args:
            model: the graph.
            title: None: no title.
            conditions: whether conditions have shapes of their own.
        """

    @abc.abstractmethod
    def write_shape(self, shape: Shape) -> str:
        """Return the line of a shape."""

    @abc.abstractmethod
    def write_arrow(self, arrow: Arrow) -> str:
        """Return the line of an arrow."""

    @abc.abstractmethod
    def write_subgraph(self, subgraph: DiagramModel) -> tuple[str, str]:
        """Return the lines before and after the parts of a subgraph."""

    def iter_body(self, model: DiagramModel, *, conditions: bool) -> Iterator[str]:
        """Yield the lines of the shapes, subgraphs and arrows of a graph."""
        hidden = self.indent + self.comment
        for shape in model.shapes:
            is_shown = conditions or shape.kind != "condition"
            yield (self.indent if is_shown else hidden) + self.write_shape(shape)

        for subgraph in model.subgraphs:
            opening, closing = self.write_subgraph(subgraph)
            yield opening
            yield from self.iter_body(subgraph, conditions=conditions)
            yield closing

        for arrow in model.arrows:
            is_shown = arrow.is_shown(conditions=conditions)
            yield (self.indent if is_shown else hidden) + self.write_arrow(arrow)
            if is_shown:
                self.links.append(arrow)


_INNER_CLASSES: Final = {"start": "___START__", "stop": "___END__"}
"""The classes of START and END of a subgraph."""
_BRACKETS: Final = {"map": ("[[", "]]"), "condition": ("{", "}")}


@final
class MermaidWriter(DiagramWriter):
    """Writes Mermaid flowcharts."""

    indent = "\t"
    comment = "%%\t"

    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        if title is not None:
            is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", title)
            if not is_plain:
                title = json.dumps(title)
            yield "---"
            yield f"title: {title}"
            yield "---"
        yield "flowchart TD"
        yield from self.iter_body(model, conditions=conditions)
        yield ""
        for name in _INNER_CLASSES.values():
            yield f"\tclassDef {name} fill:black,stroke-width:1px,font-size:xx-small;"

        # The styles of the nodes and edges that the run passed. An edge has no name: `linkStyle` counts
        # the arrows that the text shows, subgraphs included.
        parts: list[Shape | DiagramModel] = [*model.shapes, *model.subgraphs]
        names = ",".join(part.name for part in parts if part.is_passed)
        if names:
            yield f"\tclassDef passed fill:{PASSED_FILL},stroke:{PASSED_LINE},stroke-width:2px;"
            yield f"\tclass {names} passed;"
        numbers = ",".join(str(number) for number, arrow in enumerate(self.links) if arrow.steps)
        if numbers:
            yield f"\tlinkStyle {numbers} stroke:{PASSED_LINE},stroke-width:3px;"

    def write_subgraph(self, subgraph: DiagramModel) -> tuple[str, str]:
        if subgraph.name == subgraph.label:
            return f"subgraph {subgraph.name}", "end"
        return f'subgraph {subgraph.name}["{_escape_for_mermaid(subgraph.label)}"]', "end"

    def write_shape(self, shape: Shape) -> str:
        if shape.kind in _INNER_CLASSES:
            text = f"{shape.name}(({shape.label}))"
            if shape.name not in (START, END):
                text += f":::{_INNER_CLASSES[shape.kind]}"
            return text
        opening, closing = _BRACKETS.get(shape.kind, ("(", ")"))
        return f'{shape.name}{opening}"{_escape_for_mermaid(shape.label)}"{closing}'

    def write_arrow(self, arrow: Arrow) -> str:
        label = ""
        if arrow.text:
            text = arrow.text
            is_plain = re.fullmatch(r"[A-Za-z0-9_ ]*", text)
            if not is_plain:
                text = f'"{_escape_for_mermaid(text)}"'
            label = f"|{text}|"
        line = "-.->" if arrow.is_dotted else "-->"
        return f"{arrow.source}:::{arrow.source} {line}{label} {arrow.target}:::{arrow.target}"


def _escape_for_mermaid(label: str) -> str:
    return re.sub(r"[^\w \-.,()/]", lambda match: f"#{ord(match[0])};", label)


_SHAPES: Final = {
    "start": ("circle", "<<input>>"),
    "stop": ("circle", ""),
    "node": ("usecase", "<<Node>>"),
    "map": ("usecase", "<<Map>>"),
    "condition": ("hexagon", "<<Condition>>"),
}
"""Kind of a shape -> its keyword and its stereotype."""


@final
class PlantUmlWriter(DiagramWriter):
    """Writes PlantUML use case diagrams."""

    indent = ""
    comment = "'"

    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        name = re.sub("[^A-Za-z0-9]", "_", title or "unnamed")
        yield f"@startuml {name}"
        if title is not None:
            yield f'title "{_escape_for_plantuml(title)}"'
        yield from self.iter_body(model, conditions=conditions)
        yield "@enduml"

    def write_subgraph(self, subgraph: DiagramModel) -> tuple[str, str]:
        colour = f"{PASSED_FILL} " if subgraph.is_passed else ""
        return f'package "{_escape_for_plantuml(subgraph.label)}" as {subgraph.name} {colour}{{', "}"

    def write_shape(self, shape: Shape) -> str:
        keyword, stereotype = _SHAPES[shape.kind]
        colour = f" {PASSED_FILL}" if shape.is_passed else ""
        return f'{keyword} "{_escape_for_plantuml(shape.label)}" as {shape.name}{stereotype}{colour}'

    def write_arrow(self, arrow: Arrow) -> str:
        line = "." if arrow.is_dotted else "-"
        colour = f"[{PASSED_LINE},bold]" if arrow.steps else ""
        label = f" : {_escape_for_plantuml(arrow.text)}" if arrow.text else ""
        return f"{arrow.source} {line}{colour}down{line}> {arrow.target}{label}"


def _escape_for_plantuml(label: str) -> str:
    return re.sub(r"[^\w \-.,()]", lambda match: f"<U+{ord(match[0]):04X}>", label)
