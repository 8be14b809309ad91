"""Merging: how the graphs that stand in a graph as nodes become one with it.

Ports langgraph4j's merged subgraphs (StateGraphNodesAndEdges), bridge nodes included, at any depth. A node `n` of the
graph that was added as `S` becomes the node `S-n`; what led to `S` leads to its first node, and what led to its END
leads to where `S` leads. Where its START, or the way out of `S`, is not one plain edge, a bridge stands for it: a node
that does nothing, `S-__START__` or `S-__END__`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, final

from graphkit._plan.definition import GraphDefinition, Hook
from graphkit._plan.topology import Call, Condition, Node, Targets
from graphkit._records.config import END, START

Hooked = TypeVar("Hooked", Node, Condition)


@final
class FlattenedGraph:
    """A graph without graphs to be merged in it.

    Attributes:
        nodes: by id, with their hooks.
        edges: by source, with their hooks.
        aliases: the id of a merged graph -> the node that a run enters it by.
        exits: the id of a merged graph -> where its END leads.
        problems: what is wrong with the way it was put together.
    """

    __slots__ = ("_scopes", "aliases", "edges", "exits", "nodes", "problems")

    def __init__(self, sketch: GraphDefinition) -> None:
        self.nodes: dict[str, Node] = {}
        self.aliases: dict[str, str] = {}
        self.exits: dict[str, str] = {}
        self.problems: list[str] = []
        self._scopes: list[dict[str, str]] = []
        children = {
            node_id: FlattenedGraph(part) for node_id, part in sketch.nodes.items() if isinstance(part, GraphDefinition)
        }
        entries = {node_id: _entry(node_id, child) for node_id, child in children.items()}
        self.edges = {source: _led(edge, entries) for source, edge in sketch.edges.items()}
        for node_id, part in sketch.nodes.items():
            if isinstance(part, Node):
                self._add(dataclasses.replace(part, destinations=_renamed(part.destinations, entries)))
            else:
                self._merge(node_id, entries[node_id], children[node_id], part.metadata)
        self._take_hooks(sketch)

    def entered_by(self, names: Iterable[str]) -> tuple[str, ...]:
        """These nodes; the id of a merged graph stands for the node it is entered by."""
        return tuple(dict.fromkeys(self.aliases.get(name, name) for name in names))

    def written_names(self) -> dict[str, str]:
        """The nodes that a user did not write, or not under this id -> the outermost merged graph they come from."""
        outermost = [name for name in self.aliases if not any(name.startswith(f"{other}-") for other in self.aliases)]
        return {node_id: name for name in outermost for node_id in self.nodes if node_id.startswith(f"{name}-")}

    def cannot_stop_after(self, names: Iterable[str]) -> list[str]:
        """A problem for each of these that is a merged graph: it has no one node to stop after."""
        return [
            f"interrupt_after names {name!r}, a subgraph that is merged and has no one last node; {self._hint(name)}"
            for name in names
            if name in self.aliases
        ]

    def _hint(self, name: str) -> str:
        place = self.exits[name]
        if place == END:
            return "name its nodes that lead to END"
        return f"use interrupt_{'after' if place == _end(name) else 'before'} {place!r}"

    def _merge(self, graph_id: str, entry: str, child: FlattenedGraph, metadata: Mapping[str, Any]) -> None:
        outgoing = self.edges.pop(graph_id, [])
        names = {node_id: f"{graph_id}-{node_id}" for node_id in child.nodes}
        names[END] = outgoing[0] if _is_plain(outgoing) else _end(graph_id)  # type: ignore[index]
        names |= {alias: names[place] for alias, place in child.aliases.items()}
        self._adopt(graph_id, names, child)
        if entry == _start(graph_id):
            self._add(Node(id=entry, action=_NOTHING))
            self.edges[entry] = _led(child.edges[START], names)
        for node in child.nodes.values():
            self._add(
                dataclasses.replace(
                    node,
                    id=names[node.id],
                    local_names=node.local_names or names,
                    metadata={**metadata, **node.metadata},
                    destinations=_renamed(node.destinations, names),
                )
            )
        self.edges |= {names.get(s, s): _led(edge, names) for s, edge in child.edges.items() if s != START}
        if names[END] == _end(graph_id):
            self._add(Node(id=names[END], action=_NOTHING))
            if outgoing:
                self.edges[names[END]] = outgoing
        self._claim(graph_id)
        self.aliases[graph_id], self.exits[graph_id] = entry, names[END]

    def _adopt(self, graph_id: str, names: dict[str, str], child: FlattenedGraph) -> None:
        """Take over what a child knows of its own merged graphs, under this graph's names."""
        for scope in child._scopes:
            scope.update({name: names[place] for name, place in scope.items()})
        self._scopes += [names, *child._scopes]
        self.aliases |= {f"{graph_id}-{alias}": names[place] for alias, place in child.aliases.items()}
        self.exits |= {f"{graph_id}-{alias}": names[place] for alias, place in child.exits.items()}

    def _add(self, node: Node) -> None:
        self._claim(node.id)
        self.nodes[node.id] = node

    def _claim(self, name: str) -> None:
        if name in self.nodes or name in self.aliases:
            self.problems.append(f"{name!r} names two nodes, one of them of a merged subgraph; rename one")

    def _take_hooks(self, sketch: GraphDefinition) -> None:
        self.problems += [_misplaced(hook, self) for hook in sketch.node_hooks if not _has_node(self, hook)]
        self.nodes = {node_id: _hooked(node, node_id, sketch.node_hooks) for node_id, node in self.nodes.items()}
        hooks = [hook._replace(place=self._out_of(hook.place)) for hook in sketch.edge_hooks]
        conditions = {source: edge for source, edge in self.edges.items() if isinstance(edge, Condition)}
        self.problems += [
            f"a {hook.kind} hook is on the edge of {hook.place!r}, which has no conditional edge"
            for hook in sketch.edge_hooks
            if hook.place is not None and self._out_of(hook.place) not in conditions
        ]
        self.edges |= {source: _hooked(edge, source, hooks) for source, edge in conditions.items()}

    def _out_of(self, source: str | None) -> str | None:
        """Whose edge it is that leads out of a node, or out of a merged graph."""
        return _end(source) if source in self.aliases else source


def _nothing(state: Any) -> None:
    """What a bridge does."""


_NOTHING: Final = Call(_nothing)


def _start(graph_id: str) -> str:
    return f"{graph_id}-{START}"


def _end(graph_id: str) -> str:
    return f"{graph_id}-{END}"


def _is_plain(edge: Targets) -> bool:
    return isinstance(edge, list) and len(edge) == 1


def _entry(graph_id: str, child: FlattenedGraph) -> str:
    edge = child.edges[START]
    if isinstance(edge, list) and _is_plain(edge) and edge[0] != END:
        return f"{graph_id}-{edge[0]}"
    return _start(graph_id)


def _renamed(targets: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(target, target) for target in targets)


def _led(edge: Targets, names: Mapping[str, str]) -> Targets:
    """An edge with its targets renamed.

    A fork's END stays: it is no branch, and the fork's other branches say where it leads. In a merged graph (only there
    END has another name) a condition without mappings returns that graph's own names, so these are its mappings.
    """
    if isinstance(edge, list):
        return [target if len(edge) > 1 and target == END else names.get(target, target) for target in edge]
    if edge.mappings is None:
        return dataclasses.replace(edge, mappings=dict(names)) if END in names else edge
    return dataclasses.replace(edge, mappings={key: names.get(to, to) for key, to in edge.mappings.items()})


def _hooked(part: Hooked, place: str, hooks: Iterable[Hook]) -> Hooked:
    """A node or a condition with a graph's hooks around those it has: first added outermost, those on all outside."""
    mine = [hook for hook in hooks if hook.place is None] + [hook for hook in hooks if hook.place == place]
    if not mine:
        return part
    calls = {kind: tuple(hook.call for hook in mine if hook.kind == kind) for kind in ("before", "wrap", "after")}
    is_graph = getattr(part, "graph", None) is not None
    return dataclasses.replace(
        part,
        before_hooks=calls["before"] + part.before_hooks,
        after_hooks=part.after_hooks + calls["after"][::-1],
        wrap_hooks=() if is_graph else calls["wrap"] + part.wrap_hooks,
    )


def _has_node(graph: FlattenedGraph, hook: Hook) -> bool:
    if hook.place is None:
        return True
    node = graph.nodes.get(hook.place)
    return node is not None and not (hook.kind == "wrap" and node.graph is not None)


def _misplaced(hook: Hook, graph: FlattenedGraph) -> str:
    if hook.place in graph.nodes:
        return f"a wrap hook is on {hook.place!r}, a compiled graph: put it on the nodes of that graph"
    if hook.place in graph.aliases:
        return f"a {hook.kind} hook is on {hook.place!r}, a subgraph that is merged: put it on '{hook.place}-<node>'"
    return f"a {hook.kind} hook is on {hook.place!r}, which is not a node of the graph"
