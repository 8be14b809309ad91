"""Writes a diagram as a Mermaid flowchart, in the layout of langgraph4j."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, final

from graphkit._diagram.model import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape
from graphkit._records.config import END, START

_INNER_CLASSES: Final = {"start": "___START__", "stop": "___END__"}
"""The classes of START and END of a subgraph."""
_BRACKETS: Final = {"map": ("[[", "]]"), "condition": ("{", "}")}
_COMMENT: Final = "%%\t"
"""Turns the rest of a line into a comment."""


@final
class MermaidWriter:
    """Writes Mermaid flowcharts."""

    def __init__(self) -> None:
        self._links: list[Arrow] = []
        """The arrows that are shown, in order: a link is styled by its number."""

    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        """Yield the lines of a diagram.

        Args:
            model: the graph.
            title: None: no title.
            conditions: whether conditions have shapes of their own.
        """
        if title is not None:
            is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", title)
            if not is_plain:
                title = json.dumps(title)
            yield "---"
            yield f"title: {title}"
            yield "---"
        yield "flowchart TD"
        yield from self._iter_body(model, conditions=conditions)
        yield ""
        for name in _INNER_CLASSES.values():
            yield f"\tclassDef {name} fill:black,stroke-width:1px,font-size:xx-small;"
        yield from self._iter_passed(model)

    def _iter_body(self, model: DiagramModel, *, conditions: bool) -> Iterator[str]:
        for shape in model.shapes:
            is_hidden = shape.kind == "condition" and not conditions
            yield _indent(self._write_shape(shape), is_hidden=is_hidden)

        for subgraph in model.subgraphs:
            if subgraph.name == subgraph.label:
                yield f"subgraph {subgraph.name}"
            else:
                yield f'subgraph {subgraph.name}["{_escape(subgraph.label)}"]'
            yield from self._iter_body(subgraph, conditions=conditions)
            yield "end"

        for arrow in model.arrows:
            is_shown = arrow.is_shown(conditions=conditions)
            yield _indent(self._write_arrow(arrow), is_hidden=not is_shown)
            if is_shown:
                self._links.append(arrow)

    def _write_shape(self, shape: Shape) -> str:
        if shape.kind in _INNER_CLASSES:
            text = f"{shape.name}(({shape.label}))"
            if shape.name not in (START, END):
                text += f":::{_INNER_CLASSES[shape.kind]}"
            return text
        opening, closing = _BRACKETS.get(shape.kind, ("(", ")"))
        return f'{shape.name}{opening}"{_escape(shape.label)}"{closing}'

    def _write_arrow(self, arrow: Arrow) -> str:
        label = ""
        if arrow.text:
            text = arrow.text
            is_plain = re.fullmatch(r"[A-Za-z0-9_ ]*", text)
            if not is_plain:
                text = f'"{_escape(text)}"'
            label = f"|{text}|"
        line = "-->"
        if arrow.is_dotted:
            line = "-.->"
        return f"{arrow.source}:::{arrow.source} {line}{label} {arrow.target}:::{arrow.target}"

    def _iter_passed(self, model: DiagramModel) -> Iterator[str]:
        """Yield the styles of the nodes and edges that the run passed."""
        parts: list[Shape | DiagramModel] = [*model.shapes, *model.subgraphs]
        names = [part.name for part in parts if part.is_passed]
        if names:
            joined = ",".join(names)
            yield f"\tclassDef passed fill:{PASSED_FILL},stroke:{PASSED_LINE},stroke-width:2px;"
            yield f"\tclass {joined} passed;"

        numbers = [str(number) for number, arrow in enumerate(self._links) if arrow.steps]
        if numbers:
            joined = ",".join(numbers)
            yield f"\tlinkStyle {joined} stroke:{PASSED_LINE},stroke-width:3px;"


def _indent(line: str, *, is_hidden: bool) -> str:
    if is_hidden:
        return f"\t{_COMMENT}{line}"
    return f"\t{line}"


def _escape(label: str) -> str:
    return re.sub(r"[^\w \-.,()/]", lambda match: f"#{ord(match[0])};", label)
