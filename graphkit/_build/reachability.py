"""Reachability: the nodes where a run would get stuck, the nodes it never gets to, and graphs that cannot end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphkit._plan.topology import Condition, Fork, Node, Targets
from graphkit._records.config import END, START


def find_reachability_problems(
    nodes: Mapping[str, Node],
    edges: Mapping[str, Targets],
    forks: Iterable[Fork],
    written: Mapping[str, str] | None = None,
) -> list[str]:
    """Find the nodes that lead nowhere or that nothing leads to, and whether END can be reached.

    What may lead anywhere (a condition without mappings, an edge to an unknown node) never causes a report.

    Args:
        nodes: by id.
        edges: by source.
        forks: those whose branches meet. A branch may end with a node that has no outgoing edge.
        written: the id of a node -> what the user calls it, where that differs: a merged subgraph.

    Returns:
        One sentence per problem, without repetitions.
    """
    names = written or {}
    problems = [_stuck(names.get(node_id, node_id)) for node_id in _dead_ends(nodes, edges, forks)]
    reached = _reached_from_start(nodes, edges)
    if reached is not None:
        problems += [_unreachable(names.get(node_id, node_id)) for node_id in nodes if node_id not in reached]
        if END not in reached:
            problems.append("END cannot be reached from START, so no run can end: add_edge(..., END)")
    return list(dict.fromkeys(problems))


def possible_targets(node_id: str, nodes: Mapping[str, Node], edges: Mapping[str, Targets]) -> tuple[str, ...] | None:
    """The places that a run may go to from a node; None if that is unknown."""
    edge = edges.get(node_id, [])
    node = nodes.get(node_id)
    declared = () if node is None else node.destinations
    if not isinstance(edge, Condition):
        return (*edge, *declared)
    if edge.mappings is None:
        return None
    return (*edge.mappings.values(), *declared)


def _dead_ends(nodes: Mapping[str, Node], edges: Mapping[str, Targets], forks: Iterable[Fork]) -> list[str]:
    in_branches = {place for fork in forks for branch in fork.branches.values() for place in branch}
    return [
        node_id
        for node_id, node in nodes.items()
        if node_id not in edges and not node.destinations and node_id not in in_branches
    ]


def _reached_from_start(nodes: Mapping[str, Node], edges: Mapping[str, Targets]) -> set[str] | None:
    """The places that a run can get to; None if it may get anywhere, or nowhere because START has no edge."""
    if START not in edges:
        return None
    reached = {START}
    waiting = [START]
    while waiting:
        following = possible_targets(waiting.pop(), nodes, edges)
        if following is None:
            return None
        for place in following:
            if place != END and place not in nodes:
                return None  # a slip in a name, which is a problem of its own
            if place not in reached:
                reached.add(place)
                waiting.append(place)
    return reached


def _stuck(name: str) -> str:
    return f"{name!r} has no outgoing edge: add_edge({name!r}, ...), or destinations=[...] if it returns Commands"


def _unreachable(name: str) -> str:
    return f"{name!r} cannot be reached from START: no edge leads to it, and no destinations=[...] of a node name it"
