"""Finds nodes where a run gets stuck, nodes that no run reaches, and graphs that cannot end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphkit._plan.topology import Condition, Fork, Node, Targets
from graphkit._records.config import END, START


def find_reachability_problems(
    nodes: Mapping[str, Node],
    edges: Mapping[str, Targets],
    forks: Iterable[Fork],
    written_names: Mapping[str, str] | None = None,
) -> list[str]:
    """Find the nodes without a way out or a way in, and whether END can be reached.

    A condition without mappings and an edge to an unknown node may lead anywhere. They are never
    the cause of a problem.

    Args:
        nodes: by id.
        edges: by source.
        forks: those that have a join. A branch may end with a node that has no outgoing edge.
        written_names: node id -> what the user calls the node, where that is another name: the id
            of an inlined subgraph.

    Returns:
        One sentence per problem, without repetitions.
    """
    names = written_names or {}
    problems: list[str] = []
    for node_id in _find_dead_ends(nodes, edges, forks):
        name = names.get(node_id, node_id)
        problems.append(
            f"{name!r} has no outgoing edge: add_edge({name!r}, ...), or destinations=[...] if it returns Commands",
        )

    reached = _find_reachable(nodes, edges)
    if reached is None:
        return list(dict.fromkeys(problems))
    for node_id in nodes:
        if node_id not in reached:
            name = names.get(node_id, node_id)
            problems.append(
                f"{name!r} cannot be reached from START: no edge leads to it, "
                f"and no destinations=[...] of a node name it",
            )
    if END not in reached:
        problems.append("END cannot be reached from START, so no run can end: add_edge(..., END)")
    return list(dict.fromkeys(problems))


def _find_targets(
    node_id: str,
    nodes: Mapping[str, Node],
    edges: Mapping[str, Targets],
) -> tuple[str, ...] | None:
    """Return where a run may go from a node; None if that is unknown."""
    node = nodes.get(node_id)
    destinations = () if node is None else node.destinations

    edge = edges.get(node_id, [])
    if not isinstance(edge, Condition):
        return (*edge, *destinations)
    if edge.mappings is None:
        return None
    return (*edge.mappings.values(), *destinations)


def _find_dead_ends(
    nodes: Mapping[str, Node],
    edges: Mapping[str, Targets],
    forks: Iterable[Fork],
) -> list[str]:
    """Return the nodes outside all branches that have neither an outgoing edge nor destinations."""
    in_branches: set[str] = set()
    for fork in forks:
        in_branches.update(*fork.branches.values())

    # A branch may just end, because the join is known from the other branches.
    dead_ends: list[str] = []
    for node_id, node in nodes.items():
        if node_id in edges or node.destinations:
            continue
        if node_id not in in_branches:
            dead_ends.append(node_id)
    return dead_ends


def _find_reachable(nodes: Mapping[str, Node], edges: Mapping[str, Targets]) -> set[str] | None:
    """Return all nodes that a run can reach, START and END included.

    Returns:
        None if that is unknown, because START has no edge or because a node may lead anywhere.
    """
    if START not in edges:
        return None
    reached = {START}
    waiting = [START]
    while waiting:
        targets = _find_targets(waiting.pop(), nodes, edges)
        if targets is None:
            return None
        for target in targets:
            if target != END and target not in nodes:
                return None  # a misspelt name, which find_problems reports
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached
