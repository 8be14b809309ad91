"""Writes a diagram as a Mermaid flowchart, in langgraph4j's layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, final

from graphkit._diagram.model import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape
from graphkit._records.config import END, START

_INNER: Final = {"start": ":::___START__", "stop": ":::___END__"}
"""What START and END of a graph within the graph look like in Mermaid."""
_HIDDEN: Final = "%%\t"
"""What makes the rest of a line of Mermaid a comment."""


@final
class Mermaid:
    """Writes Mermaid flowcharts."""

    def __init__(self) -> None:
        self._links: list[Arrow] = []
        """The arrows that are shown, in their order: a link is styled by its number."""

    def lines(self, scene: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        if title is not None:
            is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", title)
            yield from ("---", f"title: {title if is_plain else json.dumps(title)}", "---")
        yield "flowchart TD"
        yield from self._body(scene, conditions=conditions)
        yield ""
        for look in _INNER.values():
            yield f"\tclassDef {look[3:]} fill:black,stroke-width:1px,font-size:xx-small;"
        yield from self._passed(scene)

    def _body(self, scene: DiagramModel, *, conditions: bool) -> Iterator[str]:
        for shape in scene.shapes:
            hidden = shape.kind == "condition" and not conditions
            yield f"\t{_HIDDEN if hidden else ''}{self._shape(shape)}"
        for inner in scene.scenes:
            yield f"subgraph {inner.name}" + ("" if inner.name == inner.label else f'["{_escape(inner.label)}"]')
            yield from self._body(inner, conditions=conditions)
            yield "end"
        for arrow in scene.arrows:
            hidden = arrow.when is not None and arrow.when != conditions
            yield f"\t{_HIDDEN if hidden else ''}{self._arrow(arrow)}"
            if not hidden:
                self._links.append(arrow)

    def _shape(self, shape: Shape) -> str:
        if shape.kind in _INNER:
            return f"{shape.name}(({shape.label}))" + ("" if shape.name in (START, END) else _INNER[shape.kind])
        opening, closing = {"map": ("[[", "]]"), "condition": ("{", "}")}.get(shape.kind, ("(", ")"))
        return f'{shape.name}{opening}"{_escape(shape.label)}"{closing}'

    def _arrow(self, arrow: Arrow) -> str:
        text = arrow.text if re.fullmatch(r"[A-Za-z0-9_ ]*", arrow.text) else f'"{_escape(arrow.text)}"'
        label = f"|{text}|" if text else ""
        line = "-.->" if arrow.dotted else "-->"
        return f"{arrow.source}:::{arrow.source} {line}{label} {arrow.target}:::{arrow.target}"

    def _passed(self, scene: DiagramModel) -> Iterator[str]:
        names = [shape.name for shape in scene.shapes if shape.passed]
        names += [inner.name for inner in scene.scenes if inner.passed]
        if names:
            yield f"\tclassDef passed fill:{PASSED_FILL},stroke:{PASSED_LINE},stroke-width:2px;"
            yield f"\tclass {','.join(names)} passed;"
        taken = [str(number) for number, arrow in enumerate(self._links) if arrow.steps]
        if taken:
            yield f"\tlinkStyle {','.join(taken)} stroke:{PASSED_LINE},stroke-width:3px;"


def _escape(label: str) -> str:
    return re.sub(r"[^\w \-.,()/]", lambda found: f"#{ord(found[0])};", label)
