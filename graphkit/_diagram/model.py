"""Scenes: what is to be seen of a graph, and the way a run took through it; knows no syntax of drawings.

Whatever a node is called, what stands in the drawing is a name that all syntaxes take, and its id is the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, final

from graphkit._plan.definition import GraphDefinition
from graphkit._plan.topology import Condition, Fork, Node, Targets, Topology
from graphkit._records.config import END, START

PASSED_FILL: Final = "#C8E6C9"
PASSED_LINE: Final = "#2E7D32"
"""The colours of what a run passed."""
_RESERVED: Final = re.compile(
    r"call|class|click|default|direction|end|flowchart|graph|href|interpolate|linkstyle|style|subgraph|"
    r"_blank|_parent|_self|_top",
    re.IGNORECASE,
)
"""What a name cannot begin with: Mermaid would read it as a word of its own."""


class Shape(NamedTuple):
    """A node, or what stands for one."""

    name: str
    label: str
    kind: Literal["start", "stop", "node", "map", "condition"]
    passed: bool


class Arrow(NamedTuple):
    """An edge, or a part of one.

    Attributes:
        when: whether it is shown only with conditions as shapes of their own, or only without.
        steps: when a run took it.
    """

    source: str
    target: str
    label: str
    dotted: bool
    when: bool | None
    steps: Sequence[int]

    @property
    def text(self) -> str:
        """The label and the steps."""
        steps = ", ".join(map(str, self.steps))
        return f"{self.label} ({steps})" if self.label and steps else self.label or steps


@final
class Names:
    """Hands out names that are free and that both syntaxes take."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def new(self, wanted: str) -> str:
        is_safe = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", wanted) and not _RESERVED.match(wanted)
        name = base = wanted if is_safe else f"n{len(self.taken)}"
        while name in self.taken:
            name = f"{base}_{len(self.taken)}"
        self.taken.add(name)
        return name


@final
class DiagramModel:
    """What is to be seen of one graph.

    Attributes:
        name: in the drawing; the label is the id.
        shapes: the nodes and conditions.
        scenes: the graphs that stand in it as nodes.
        arrows: between any of them.
    """

    def __init__(
        self, names: Names, node_id: str, graph: Topology | GraphDefinition, path: Sequence[str] = (), prefix: str = ""
    ) -> None:
        self._prefix = prefix
        self._names = names
        self._nodes, self._edges, forks = _parts(graph)
        self._way = _Way(self._edges, forks, path)
        self.name = names.new(prefix[:-1] + node_id)
        self.label = node_id
        self.passed = False
        self.shapes: list[Shape] = []
        self.scenes: list[DiagramModel] = []
        self.arrows: list[Arrow] = []
        self._places: dict[str, str] = {}
        self._place_all()
        for source, edge in self._edges.items():
            if isinstance(edge, Condition):
                self._condition(source, edge)
            else:
                self.arrows += [self._arrow(source, target) for target in edge]
        self.arrows += [self._arrow(*step, dotted=True) for step in self._way.jumps(self._places)]

    def _place_all(self) -> None:
        self._shape(START, "start", "start")
        self._shape(END, "stop", "stop")
        for node_id, part in self._nodes.items():
            graph = _inner(part)
            if graph is None:
                self._shape(node_id, node_id, "map" if isinstance(part, Node) and part.items else "node")
            else:
                scene = DiagramModel(self._names, node_id, graph, prefix=self._prefix + "_")
                scene.passed = node_id in self._way.places
                self._places[node_id] = scene.name
                self.scenes.append(scene)

    def _shape(self, place: str, label: str, kind: Literal["start", "stop", "node", "map"]) -> None:
        self._places[place] = self._names.new(self._prefix + place)
        self.shapes.append(Shape(self._places[place], label, kind, place in self._way.places))

    def _condition(self, source: str, edge: Condition) -> None:
        number = sum(shape.kind == "condition" for shape in self.shapes) + 1
        name = self._names.new(self._prefix + ("startcondition" if source == START else f"condition{number}"))
        taken = {step for to in (edge.mappings or {}).values() for step in self._way.steps.get((source, to), ())}
        self.shapes.append(Shape(name, "check state", "condition", bool(taken)))
        self.arrows.append(Arrow(self._place(source), name, "", True, True, sorted(taken)))
        for key, target in (edge.mappings or {}).items():
            label = "" if key == target else str(key)
            direct = self._arrow(source, target, label, dotted=True, when=False)
            self.arrows += [direct._replace(source=name, when=True), direct]

    def _arrow(
        self, source: str, target: str, label: str = "", *, dotted: bool = False, when: bool | None = None
    ) -> Arrow:
        steps = self._way.steps.get((source, target), ())
        return Arrow(self._place(source), self._place(target), label, dotted, when, steps)

    def _place(self, node_id: str) -> str:
        if node_id not in self._places:  # a graph that is being written may lead to what is not there yet
            self._shape(node_id, node_id, "node")
        return self._places[node_id]


@final
class _Way:
    """The way a run took.

    Attributes:
        places: the nodes it passed. In a fork: those that every run passes, and those that the path names.
        steps: by edge, the numbers of the steps that took it.
    """

    def __init__(self, edges: Mapping[str, Targets], forks: Mapping[str, Fork], path: Sequence[str]) -> None:
        self._edges = edges
        self._inside = {place for fork in forks.values() for branch in fork.branches.values() for place in branch}
        self.places = set(path)
        self.steps: dict[tuple[str, str], list[int]] = {}
        # A history has a node twice where its state was updated, and START where another input came.
        steps = [step for step in pairwise(path) if step[1] != START and (step[0] != step[1] or self._follows(*step))]
        for number, (source, target) in enumerate(steps, 1):
            if target in forks:
                self._fork(forks[target], number)
            elif source in forks:
                ends = [place for place in self._inside_of(forks[source]) if self._follows(place, target)]
                self._take(number, [(place, target) for place in ends])
            else:
                self._take(number, [(source, target)])

    def jumps(self, known: Iterable[str]) -> list[tuple[str, str]]:
        """The steps that follow no edge."""
        outside = set(known) - self._inside
        return [step for step in self.steps if not self._follows(*step) and outside.issuperset(step)]

    def _follows(self, source: str, target: str) -> bool:
        return target in self._leads(source)

    def _leads(self, place: str) -> Iterable[str]:
        edge = self._edges.get(place, [])
        return (edge.mappings or {}).values() if isinstance(edge, Condition) else edge

    def _fork(self, fork: Fork, number: int) -> None:
        self._take(number, [(fork.source, head) for head in fork.heads])
        waiting = list(fork.heads)
        passed = {fork.join, *waiting}
        while waiting:
            place = waiting.pop()
            edge = self._edges.get(place)
            if isinstance(edge, list):
                within = [target for target in edge if target not in passed]
                self._take(number, [(place, target) for target in within])
                passed.update(within)
                waiting += within
        self.places |= passed - {fork.join}

    def _inside_of(self, fork: Fork) -> Iterator[str]:
        return (place for branch in fork.branches.values() for place in sorted(branch) if place in self.places)

    def _take(self, number: int, edges: Iterable[tuple[str, str]]) -> None:
        for edge in edges:
            self.steps.setdefault(edge, []).append(number)


def _inner(part: Node | GraphDefinition) -> Topology | GraphDefinition | None:
    if isinstance(part, GraphDefinition):
        return part
    return None if part.graph is None else part.graph.topology


def _parts(
    graph: Topology | GraphDefinition,
) -> tuple[Mapping[str, Node | GraphDefinition], Mapping[str, Targets], Mapping[str, Fork]]:
    """The nodes, the edges as they were written, and the forks."""
    if isinstance(graph, GraphDefinition):
        return graph.nodes, graph.edges, {}
    forks = graph.forks
    edges: dict[str, Targets] = {}
    for source, edge in graph.edges.items():
        if isinstance(edge, Condition):
            edges[source] = edge
        elif source not in forks:
            edges[source] = list(forks[edge].heads) if edge in forks else [edge]
    return graph.nodes, edges, forks
