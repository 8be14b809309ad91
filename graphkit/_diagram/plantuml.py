"""Writes a diagram as a PlantUML use case diagram, in langgraph4j's layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import final

from graphkit._diagram.model import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape


@final
class PlantUml:
    """Writes PlantUML use case diagrams."""

    def lines(self, scene: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        yield f"@startuml {re.sub('[^A-Za-z0-9]', '_', title or 'unnamed')}"
        if title is not None:
            yield f'title "{_escape(title)}"'
        yield from self._body(scene, conditions=conditions)
        yield "@enduml"

    def _body(self, scene: DiagramModel, *, conditions: bool) -> Iterator[str]:
        for shape in scene.shapes:
            yield ("'" if shape.kind == "condition" and not conditions else "") + self._shape(shape)
        for inner in scene.scenes:
            yield f'package "{_escape(inner.label)}" as {inner.name} {PASSED_FILL + " " if inner.passed else ""}{{'
            yield from self._body(inner, conditions=conditions)
            yield "}"
        for arrow in scene.arrows:
            hidden = arrow.when is not None and arrow.when != conditions
            yield ("'" if hidden else "") + self._arrow(arrow)

    def _shape(self, shape: Shape) -> str:
        word, note = {
            "start": ("circle", "<<input>>"),
            "stop": ("circle", ""),
            "condition": ("hexagon", "<<Condition>>"),
            "map": ("usecase", "<<Map>>"),
        }.get(shape.kind, ("usecase", "<<Node>>"))
        return f'{word} "{_escape(shape.label)}" as {shape.name}{note}{" " + PASSED_FILL if shape.passed else ""}'

    def _arrow(self, arrow: Arrow) -> str:
        line = "." if arrow.dotted else "-"
        colour = f"[{PASSED_LINE},bold]" if arrow.steps else ""
        label = f" : {_escape(arrow.text)}" if arrow.text else ""
        return f"{arrow.source} {line}{colour}down{line}> {arrow.target}{label}"


def _escape(label: str) -> str:
    return re.sub(r"[^\w \-.,()]", lambda found: f"<U+{ord(found[0]):04X}>", label)
