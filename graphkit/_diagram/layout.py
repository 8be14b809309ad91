"""DiagramModel: the shapes and arrows of a diagram, in no particular syntax; RunPath: the path of a run in it.

Every shape has a name that all syntaxes accept; the id of the node is its label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, final

from graphkit._plan.topology import Condition, Fork, GraphDefinition, Node, Targets, Topology
from graphkit._records.config import END, START


@final
class RunPath:
    """The path of a run.

    Attributes:
        nodes: the nodes that the run passed. Within a fork: those that every run passes, and those
            that the caller named.
        steps: by edge, the numbers of the steps that took it.
    """

    def __init__(self, edges: Mapping[str, Targets], forks: Mapping[str, Fork], path: Sequence[str]) -> None:
        """Follow a run.

        Args:
            edges: by source, as the user wrote them.
            forks: by id.
            path: the nodes and forks that the run passed, in order.
        """
        self.nodes = set(path)
        self.steps: dict[tuple[str, str], list[int]] = {}
        self._edges = edges
        self._in_branches: set[str] = set()
        for fork in forks.values():
            self._in_branches.update(*fork.branches.values())

        number = 0
        for source, target in pairwise(path):
            # A history contains a node twice after an update of its state, and START before each input:
            # the run did not go from one to the other.
            if target == START or (source == target and not self.has_edge(source, target)):
                continue

            number += 1
            if target in forks:
                self._enter_fork(forks[target], number)
            elif source in forks:
                for branch in forks[source].branches.values():
                    for node_id in sorted(branch & self.nodes):
                        if self.has_edge(node_id, target):
                            self._record(number, node_id, target)
            else:
                self._record(number, source, target)

    def find_jumps(self, known: Iterable[str]) -> list[tuple[str, str]]:
        """Return the steps between known nodes outside forks that follow no edge."""
        outside = set(known) - self._in_branches
        return [step for step in self.steps if outside.issuperset(step) and not self.has_edge(*step)]

    def has_edge(self, source: str, target: str) -> bool:
        edge = self._edges.get(source, [])
        if isinstance(edge, Condition):
            return edge.mappings is not None and target in edge.mappings.values()
        return target in edge

    def _enter_fork(self, fork: Fork, number: int) -> None:
        """Record the plain edges from the source of a fork through its branches."""
        # A history has one checkpoint for the whole fork: which nodes ran in the branches is known only
        # where an edge leaves no choice. Nodes after a condition are passed only if the caller named them.
        for head in fork.heads:
            self._record(number, fork.source, head)

        passed = {fork.join, *fork.heads}
        waiting = list(fork.heads)
        while waiting:
            node_id = waiting.pop()
            edge = self._edges.get(node_id)
            if not isinstance(edge, list):
                continue
            for target in edge:
                if target not in passed:
                    self._record(number, node_id, target)
                    passed.add(target)
                    waiting.append(target)

        self.nodes |= passed - {fork.join}

    def _record(self, number: int, source: str, target: str) -> None:
        self.steps.setdefault((source, target), []).append(number)


PASSED_FILL: Final = "#C8E6C9"
PASSED_LINE: Final = "#2E7D32"
"""The colours of the nodes and edges that a run passed."""

ShapeKind = Literal["start", "stop", "node", "map", "graph", "condition"]


@final
class Shape(NamedTuple):
    """A node, START, END, a subgraph or a condition."""

    name: str
    label: str
    kind: ShapeKind
    is_passed: bool
    """Whether the run passed it."""
    is_current: bool = False
    """Whether the run continues there."""


@final
class Arrow(NamedTuple):
    """An edge, or one of several arrows that stand for an edge."""

    source: str
    target: str
    steps: Sequence[int]
    """The numbers of the steps that took it."""
    label: str = ""
    is_dotted: bool = False
    with_conditions: bool | None = None
    """True: shown only if conditions have shapes of their own. False: only if not. None: always."""

    @property
    def text(self) -> str:
        """The label and the steps."""
        steps = ", ".join(map(str, self.steps))
        if self.label and steps:
            return f"{self.label} ({steps})"
        return self.label or steps

    def is_shown(self, *, conditions: bool) -> bool:
        """Return whether the arrow is shown, given whether conditions have shapes of their own."""
        return self.with_conditions is None or self.with_conditions == conditions


@final
class DiagramModel:
    """The shapes and arrows of one graph.

    Attributes:
        shapes: the nodes and conditions.
        subgraphs: the graphs that are nodes of this graph, each with its shape.
        arrows: between shapes and subgraphs.
    """

    def __init__(
        self,
        graph: Topology | GraphDefinition,
        *,
        names: NameAllocator,
        path: Sequence[str] = (),
        current: str | None = None,
        prefix: str = "",
    ) -> None:
        """Lay out a graph.

        Args:
            graph: the graph.
            names: allocates the names of the whole diagram.
            path: the nodes and forks that a run passed, in order.
            current: the node or the fork at which it continues.
            prefix: begins the names in this graph; one underscore for each level of subgraphs.
        """
        forks: Mapping[str, Fork] = {} if isinstance(graph, GraphDefinition) else graph.forks
        edges = _read_edges(graph)
        self._names = names
        self._prefix = prefix
        self._path = RunPath(edges, forks, path)
        self._current = {current}
        if current is not None and current in forks:
            self._current.update(forks[current].heads)
        self._names_of: dict[str, str] = {}
        """Node id -> name in the diagram."""

        self.shapes = [self._make_shape(START, "start", "start"), self._make_shape(END, "stop", "stop")]
        self.subgraphs: list[tuple[Shape, DiagramModel]] = []
        self.arrows: list[Arrow] = []

        for node_id, part in graph.nodes.items():
            if isinstance(part, GraphDefinition):
                self._add_subgraph(node_id, part)
            elif part.graph is not None:
                self._add_subgraph(node_id, part.graph.topology)
            else:
                self.shapes.append(self._make_shape(node_id, "map" if part.items else "node"))

        for source, targets in edges.items():
            if isinstance(targets, Condition):
                self._add_condition(source, targets)
            else:
                for target in targets:
                    self.arrows.append(self._make_arrow(source, target))

        # The destinations that Commands may choose, and the steps that follow no edge, of a Command or an update.
        chosen = self._path.find_jumps(self._names_of)
        for node_id, part in graph.nodes.items():
            destinations = part.destinations if isinstance(part, Node) else ()
            chosen += [(node_id, target) for target in destinations if not self._path.has_edge(node_id, target)]
        for source, target in dict.fromkeys(chosen):
            self.arrows.append(self._make_arrow(source, target)._replace(is_dotted=True))

    @property
    def all_shapes(self) -> list[Shape]:
        """The shapes, and those of the subgraphs."""
        return [*self.shapes, *(shape for shape, _ in self.subgraphs)]

    def _make_shape(self, node_id: str, kind: ShapeKind, label: str | None = None) -> Shape:
        name = self._names.allocate(self._prefix + node_id)
        self._names_of[node_id] = name
        is_passed = node_id in self._path.nodes
        is_current = node_id in self._current
        return Shape(name=name, label=label or node_id, kind=kind, is_passed=is_passed, is_current=is_current)

    def _add_subgraph(self, node_id: str, graph: Topology | GraphDefinition) -> None:
        shape = self._make_shape(node_id, "graph")
        model = DiagramModel(graph, names=self._names, prefix=self._prefix + "_")
        self.subgraphs.append((shape, model))

    def _add_condition(self, source: str, edge: Condition) -> None:
        """Add a condition in both forms: as a shape of its own, and as arrows from its source."""
        # With {"yes": "b", "no": "c"} out of `a`, the first form has the arrows a -> condition1,
        # condition1 -yes-> b and condition1 -no-> c, the second a -yes-> b and a -no-> c. A writer shows
        # one form, and the other as comments.
        mappings = edge.mappings or {}
        steps: set[int] = set()
        for target in mappings.values():
            steps.update(self._path.steps.get((source, target), ()))

        number = 1 + sum(shape.kind == "condition" for shape in self.shapes)
        wanted = "startcondition" if source == START else f"condition{number}"
        name = self._names.allocate(self._prefix + wanted)
        self.shapes.append(
            Shape(name=name, label="check state", kind="condition", is_passed=bool(steps)),
        )
        source_name = self._find_name(source)
        self.arrows.append(Arrow(source_name, name, sorted(steps), is_dotted=True, with_conditions=True))

        for key, target in mappings.items():
            arrow = self._make_arrow(source, target)._replace(is_dotted=True)
            if key != target:
                arrow = arrow._replace(label=str(key))
            self.arrows.append(arrow._replace(source=name, with_conditions=True))
            self.arrows.append(arrow._replace(with_conditions=False))

    def _make_arrow(self, source: str, target: str) -> Arrow:
        steps = self._path.steps.get((source, target), ())
        return Arrow(self._find_name(source), self._find_name(target), steps)

    def _find_name(self, node_id: str) -> str:
        if node_id not in self._names_of:
            # The edges of an unfinished graph may lead to nodes that are not added yet.
            self.shapes.append(self._make_shape(node_id, "node"))
        return self._names_of[node_id]


def _read_edges(graph: Topology | GraphDefinition) -> Mapping[str, Targets]:
    """Return the edges as the user wrote them."""
    if isinstance(graph, GraphDefinition):
        return graph.edges
    edges: dict[str, Targets] = {}
    for source, edge in graph.edges.items():
        if isinstance(edge, Condition):
            edges[source] = edge
        elif source in graph.forks:
            continue  # the last nodes of the branches have edges to the join
        elif edge in graph.forks:
            edges[source] = list(graph.forks[edge].heads)
        else:
            edges[source] = [edge]
    # A node that ends a branch without an edge leads to the join of the innermost fork around it.
    forks = sorted(graph.forks.values(), key=lambda fork: sum(map(len, fork.branches.values())))
    for fork in forks:
        for node_id in sorted(frozenset().union(*fork.branches.values())):
            if node_id not in edges and not graph.nodes[node_id].destinations:
                edges[node_id] = [fork.join]
    return edges


_SAFE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = re.compile(
    r"call|class|click|default|direction|end|flowchart|graph|href|interpolate|linkstyle|style|subgraph|"
    r"_blank|_parent|_self|_top",
    re.IGNORECASE,
)
"""A name cannot begin with these: Mermaid would read it as a keyword."""


@final
class NameAllocator:
    """Allocates names that are unique and that Mermaid and PlantUML accept."""

    def __init__(self) -> None:
        self._taken = {""}  # no name is empty, and numbers begin with 1

    def allocate(self, wanted: str) -> str:
        """Return the name itself if it is safe and free; otherwise a similar or a numbered one."""
        # "my node" becomes n3, say: a label shows the id. The number makes it unique without a search for
        # the next free one, and a second `a`, in another subgraph, becomes a_7.
        base = wanted
        if not _SAFE.fullmatch(wanted) or _RESERVED.match(wanted):
            base = f"n{len(self._taken)}"

        name = base
        while name in self._taken:
            name = f"{base}_{len(self._taken)}"

        self._taken.add(name)
        return name
