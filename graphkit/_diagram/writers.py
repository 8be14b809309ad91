"""Writes a diagram as a Mermaid flowchart or a PlantUML use case diagram, or as boxes of characters.

Mermaid and PlantUML have the layout of langgraph4j. Conditions have two forms, and the text contains
both: the one that is not asked for is commented out. The boxes are for a terminal, from top to bottom.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple, final

from graphkit._diagram.layout import PASSED_FILL, PASSED_LINE, Arrow, DiagramModel, Shape
from graphkit._records.config import END, START
from graphkit._wording import count_cells


def _iter_body(
    writer: MermaidWriter | PlantUmlWriter, model: DiagramModel, *, conditions: bool
) -> Generator[str, None, list[Arrow]]:
    """Yield the lines of the shapes, subgraphs and arrows of a graph; return the arrows that are shown, in this order.

    Args:
        writer: writes one of them in its syntax.
        model: the graph.
        conditions: whether conditions have shapes of their own.
    """
    hidden = writer.indent + writer.comment
    shown: list[Arrow] = []
    for shape in model.shapes:
        is_shown = conditions or shape.kind != "condition"
        yield (writer.indent if is_shown else hidden) + writer.write_shape(shape)

    for shape, subgraph in model.subgraphs:
        opening, closing = writer.write_subgraph(shape)
        yield opening
        shown += yield from _iter_body(writer, subgraph, conditions=conditions)
        yield closing

    for arrow in model.arrows:
        is_shown = arrow.is_shown(conditions=conditions)
        if is_shown:
            shown.append(arrow)
        yield (writer.indent if is_shown else hidden) + writer.write_arrow(arrow)
    return shown


_INNER_CLASSES: Final = {"start": "___START__", "stop": "___END__"}
"""The classes of START and END of a subgraph."""
_BRACKETS: Final = {"map": ("[[", "]]"), "condition": ("{", "}")}


@final
class MermaidWriter:
    """Writes Mermaid flowcharts."""

    indent = "\t"
    """Precedes each shape and arrow."""
    comment = "%%\t"
    """Turns the rest of a line into a comment."""

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
        links = yield from _iter_body(self, model, conditions=conditions)
        yield ""
        for name in _INNER_CLASSES.values():
            yield f"\tclassDef {name} fill:black,stroke-width:1px,font-size:xx-small;"

        # The styles of the nodes and edges that the run passed. An edge has no name: `linkStyle` counts
        # the arrows that the text shows, those of subgraphs included.
        names = ",".join(shape.name for shape in model.all_shapes if shape.is_passed)
        if names:
            yield f"\tclassDef passed fill:{PASSED_FILL},stroke:{PASSED_LINE},stroke-width:2px;"
            yield f"\tclass {names} passed;"
        numbers = ",".join(str(number) for number, arrow in enumerate(links) if arrow.steps)
        if numbers:
            yield f"\tlinkStyle {numbers} stroke:{PASSED_LINE},stroke-width:3px;"

    def write_subgraph(self, subgraph: Shape) -> tuple[str, str]:
        """Return the lines before and after the parts of a subgraph."""
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
class PlantUmlWriter:
    """Writes PlantUML use case diagrams; as MermaidWriter."""

    indent = ""
    comment = "'"

    def iter_lines(self, model: DiagramModel, title: str | None, *, conditions: bool) -> Iterator[str]:
        name = re.sub("[^A-Za-z0-9]", "_", title or "unnamed")
        yield f"@startuml {name}"
        if title is not None:
            yield f'title "{_escape_for_plantuml(title)}"'
        yield from _iter_body(self, model, conditions=conditions)
        yield "@enduml"

    def write_subgraph(self, subgraph: Shape) -> tuple[str, str]:
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


# Boxes of characters

_MAX_WIDTH: Final = 76
"""Branches that need more columns are listed, not drawn side by side."""
_GAP: Final = 2
"""Columns between two branches."""
_BOX_HEIGHT: Final = 3
_STEP_HEIGHT: Final = 1 + _BOX_HEIGHT
"""A box in a branch, with the arrow into it."""
_ANYWHERE: Final = "(decided at run time)"


def iter_text_lines(model: DiagramModel, title: str | None) -> Iterator[str]:
    """Yield boxes, one below the other, with the edges between neighbours as lines.

    Other edges are listed below their source, with the name of their target. The branches of a fork
    stand side by side if each is a chain of nodes. A subgraph is a box, and drawn on its own below.

    Args:
        model: the graph.
        title: None: no title.
    """
    if title is not None:
        yield _escape(title)
        yield ""
    drawing = _Drawing(model)
    yield from drawing.draw()
    for shape, subgraph in model.subgraphs:
        yield ""
        yield f"{_escape(shape.label)}:"
        for line in iter_text_lines(subgraph, None):
            yield f"  {line}".rstrip()
    if title is not None and any(box.is_marked for box in drawing.boxes.values()):
        yield ""
        yield "✓ has run  ▶ is next"


class _Border(NamedTuple):
    """The characters of a box: its corners with the line between them, its side, and its way out."""

    top: str
    side: str
    bottom: str
    way_out: str


_ROUND: Final = _Border(top="╭─╮", side="│", bottom="╰─╯", way_out="┬")
_PLAIN: Final = _Border(top="┌─┐", side="│", bottom="└─┘", way_out="┬")
_HEAVY: Final = _Border(top="┏━┓", side="┃", bottom="┗━┛", way_out="┯")
_SPLIT: Final = "╭┬╮"
_MERGE: Final = "╰┴╯"
"""Where a line meets the first branch, those between, and the last."""


_SUFFIXES: Final = {"map": " (map)", "graph": " (graph)"}
"""Kind of a shape -> what follows its label."""


@final
class _Box:
    """A shape as it is drawn."""

    def __init__(self, shape: Shape) -> None:
        self.label = _escape(shape.label + _SUFFIXES.get(shape.kind, ""))
        self.is_marked = shape.is_current or shape.is_passed
        text = self.label
        border = _ROUND if shape.kind in {"start", "stop"} else _PLAIN
        if shape.is_current:
            text = f"▶ {self.label}"
            border = _HEAVY
        elif shape.is_passed:
            text = f"✓ {self.label}"
        self.width = count_cells(text) + 4
        self.lines = [
            _fill(border.top, self.width),
            f"{border.side} {text} {border.side}",
            _fill(border.bottom, self.width),
        ]
        self.way_out = border.way_out
        """Stands in the last line, where an arrow leaves the box."""


class _Drawing:
    """The boxes of one graph, drawn on a grid whose column 0 is the centre of the boxes."""

    def __init__(self, model: DiagramModel) -> None:
        self.boxes: dict[str, _Box] = {}
        """By the name of the shape or the subgraph."""
        self._arrows: dict[str, list[Arrow]] = {}
        """The arrows between boxes, by source; one into the unknown for a condition that may return any node."""
        self._incoming = Counter[str]()
        """How many arrows lead to a box."""
        self._rows: list[dict[int, str]] = []
        """Column -> character."""
        for shape in model.all_shapes:
            if shape.kind != "condition":
                self.boxes[shape.name] = _Box(shape)
                self._arrows[shape.name] = []
        conditions = {shape.name for shape in model.shapes if shape.kind == "condition"}
        unknown = conditions.difference(arrow.source for arrow in model.arrows)
        for arrow in model.arrows:
            if arrow.target in unknown or arrow.is_shown(conditions=False):
                self._arrows[arrow.source].append(arrow)
                self._incoming[arrow.target] += 1
        for shape in model.shapes:
            if shape.kind == "stop" and not self._incoming[shape.name]:  # a run that has not ended
                del self.boxes[shape.name]

    def draw(self) -> list[str]:
        # Each box after those that lead to it, except by an edge that goes back. Boxes that cannot be reached from
        # START come last.
        found: set[str] = set()
        waiting: list[str] = []
        for root in self.boxes:  # START is the first
            waiting += reversed(self._visit(root, found))
        while waiting:
            name = waiting.pop(0)
            self._add_box(name, 0, self._new_rows(_BOX_HEIGHT))
            chains = self._find_chains(name, waiting)
            if chains:
                self._add_fork(name, chains)
                drawn = {node for chain in chains for node in chain}
                waiting = [node for node in waiting if node not in drawn]
            else:
                self._add_arrows(name, waiting)

        left = min(min(row, default=0) for row in self._rows)
        lines: list[str] = []
        for row in self._rows:
            cells = [row.get(column, " ") for column in range(left, max(row, default=left) + 1)]
            lines.append("".join(cells).rstrip())
        return lines

    def _visit(self, root: str, found: set[str]) -> list[str]:
        """Return the boxes that can be reached from one and are not found yet: the farthest first, itself last."""
        order: list[str] = []
        waiting = [(root, self._targets(root))] if root not in found else []
        found.add(root)
        while waiting:
            name, targets = waiting[-1]
            target = next((target for target in targets if target not in found), None)
            if target is None:
                order.append(name)
                waiting.pop()
            else:
                found.add(target)
                waiting.append((target, self._targets(target)))
        return order

    def _targets(self, name: str) -> Iterator[str]:
        # The last target first, so that the first one stands directly below the box.
        return (arrow.target for arrow in reversed(self._arrows[name]) if arrow.target in self.boxes)

    # Parts of the drawing

    def _new_rows(self, count: int) -> int:
        """Add empty rows; return the number of the first."""
        self._rows += [{} for _ in range(count)]
        return len(self._rows) - count

    def _write(self, row: int, column: int, text: str) -> None:
        for letter in text:
            width = count_cells(letter)
            if width == 0:  # an accent belongs to the letter before it
                self._rows[row][column - 1] += letter
                continue
            self._rows[row][column] = letter
            for covered in range(column + 1, column + width):
                self._rows[row][covered] = ""
            column += width

    def _add_box(self, name: str, centre: int, row: int) -> None:
        """Draw a box around a column, from a row downwards."""
        box = self.boxes[name]
        left = centre - box.width // 2
        for offset, line in enumerate(box.lines):
            self._write(row + offset, left, line)
        if self._arrows[name]:
            self._write(row + _BOX_HEIGHT - 1, centre, box.way_out)

    def _add_arrows(self, name: str, following: Sequence[str]) -> None:
        """Draw the edge to the box that follows, and list the others."""
        below = next(iter(following), None)
        direct = next((arrow for arrow in self._arrows[name] if arrow.target == below), None)
        arrows = [arrow for arrow in self._arrows[name] if arrow is not direct]
        for number, arrow in enumerate(arrows, 1):
            is_last = direct is None and number == len(arrows)
            dash = "┄" if arrow.is_dotted else "─"
            label = dash
            if arrow.text:
                label = f"{dash} {_escape(arrow.text)} {dash}"
            target = self.boxes[arrow.target].label if arrow.target in self.boxes else _ANYWHERE
            corner = "╰" if is_last else "├"
            self._write(self._new_rows(1), 0, f"{corner}{label}▶ {target}")
        if direct is not None:
            self._add_line(direct)
            self._write(self._new_rows(1), 0, "▼")
        elif following:
            self._new_rows(1)

    def _add_line(self, arrow: Arrow) -> None:
        """Draw a piece of an edge downwards, if there is something to write beside it."""
        if arrow.text:
            line = "┆" if arrow.is_dotted else "│"
            self._write(self._new_rows(1), 0, f"{line} {_escape(arrow.text)}")

    def _find_chains(self, name: str, following: Sequence[str]) -> list[list[str]]:
        """Return the branches that begin at a node: chains of nodes that meet in one node.

        None of them if they cannot be drawn side by side.
        """
        arrows = self._arrows[name]
        if len(arrows) <= 1 or any(arrow.is_dotted for arrow in arrows):
            return []
        chains: list[list[str]] = []
        for arrow in arrows:
            # The nodes from the head on that have one way in and one plain way out.
            chain: list[str] = []
            node = arrow.target
            while self._incoming[node] == 1 and len(self._arrows.get(node, ())) == 1:
                (way_out,) = self._arrows[node]
                if way_out.is_dotted:
                    break
                chain.append(node)
                node = way_out.target
            if not chain:
                return []
            chains.append(chain)
        drawn = {node for chain in chains for node in chain}
        below = next((node for node in following if node not in drawn), None)
        if any(self._arrows[chain[-1]][0].target != below for chain in chains):
            return []
        width = sum(map(self._width_of, chains)) + _GAP * (len(chains) - 1)
        return chains if width <= _MAX_WIDTH else []

    def _width_of(self, chain: Sequence[str]) -> int:
        return max(self.boxes[name].width for name in chain)

    def _add_fork(self, source: str, chains: Sequence[Sequence[str]]) -> None:
        widths = [self._width_of(chain) for chain in chains]
        left = -((sum(widths) + _GAP * (len(widths) - 1)) // 2)
        centres: list[int] = []
        for width in widths:
            centres.append(left + width // 2)
            left += width + _GAP

        # A step of the run takes all branches at once, so that the first arrow has the numbers of all.
        self._add_line(self._arrows[source][0])
        self._add_bus(centres, _SPLIT, "┴")
        height = _STEP_HEIGHT * max(map(len, chains))
        top = self._new_rows(height)
        for chain, centre in zip(chains, centres, strict=True):
            row = top
            for name in chain:
                self._write(row, centre, "▼")
                self._add_box(name, centre, row + 1)
                row += _STEP_HEIGHT
            for below in range(row, top + height):
                self._write(below, centre, "│")
        self._add_bus(centres, _MERGE, "┬")
        self._add_line(self._arrows[chains[0][-1]][0])
        self._write(self._new_rows(1), 0, "▼")

    def _add_bus(self, centres: Sequence[int], corners: str, middle: str) -> None:
        """Draw the line that joins the branches to the column in the middle."""
        first, between, last = list(corners)
        row = self._new_rows(1)
        start = centres[0]
        end = centres[-1]
        self._write(row, start, "─" * (end - start))
        self._write(row, 0, middle)
        for centre in centres[1:-1]:
            self._write(row, centre, "┼" if centre == 0 else between)
        self._write(row, start, first)
        self._write(row, end, last)


def _fill(corners: str, width: int) -> str:
    """Return a line of a box: a corner, the line, and a corner."""
    return corners[0] + corners[1] * (width - 2) + corners[2]


def _escape(label: str) -> str:
    """Return a label without characters that a terminal would interpret."""
    if label.isprintable():
        return label
    return label.encode("unicode_escape").decode("ascii")
