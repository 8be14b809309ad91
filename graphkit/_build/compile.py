"""Builds a Topology from a graph definition, or reports everything that is wrong with the graph.

Among that are nodes where a run gets stuck, nodes that no run reaches, and graphs that cannot end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from graphkit._build.flatten import FlattenedGraph
from graphkit._build.joins import find_chosen_fork, find_forks
from graphkit._engine.calls import compose_call
from graphkit._plan.checkpoint_when import find_node_ids
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import (
    Condition,
    Edge,
    Fork,
    GraphDefinition,
    Node,
    Targets,
    Topology,
    find_problems,
    fork_id,
)
from graphkit._records.config import END, START
from graphkit.errors import GraphStateError


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


def build_topology(
    definition: GraphDefinition, schema: StateSchema, config: CompileConfig
) -> tuple[Topology, CompileConfig]:
    """Check a graph and build its topology.

    Returns:
        The topology; and the options, with the ids of inlined subgraphs replaced by their entries.

    Raises:
        GraphStateError: everything that is wrong with the graph.
    """
    graph = FlattenedGraph(definition)
    interrupt_before = graph.resolve_aliases(config.interrupt_before)
    # A preset with a misspelt name would never store a checkpoint.
    named = frozenset() if config.checkpoint_when is None else find_node_ids(config.checkpoint_when)
    forks = _check(
        graph,
        interrupt_before=interrupt_before,
        interrupt_after=config.interrupt_after,
        checkpoint_when=named - {END},
    )

    nodes = {node.id: _prepare_node(node, config) for node in graph.nodes.values()}
    # The edges that a run follows: one out of each node and fork.
    edges: dict[str, Edge] = {fork.id: fork.join for fork in forks.values()}
    for source, edge in graph.edges.items():
        if isinstance(edge, Condition):
            call = compose_call(edge.call, source, edge.wrap_hooks)
            edges[source] = dataclasses.replace(edge, call=call)
        elif len(edge) > 1:
            edges[source] = fork_id(source)
        else:
            edges[source] = edge[0]
    choose = partial(find_chosen_fork, graph.edges, graph.nodes)
    topology = Topology(nodes, forks, edges, schema, graph.aliases, choose=choose)
    return topology, config.replace(interrupt_before=interrupt_before)


def check_subgraph(node_id: str, child: GraphDefinition) -> GraphDefinition:
    """Return a graph that can be inlined into another graph under this id.

    Raises:
        GraphStateError: everything that is wrong with it.
    """
    try:
        _check(FlattenedGraph(child))
    except GraphStateError as error:
        problems = [f"subgraph {node_id!r}: {problem}" for problem in error.problems]
        raise GraphStateError(*problems) from error
    return child


def _check(
    graph: FlattenedGraph,
    *,
    interrupt_before: Collection[str] = (),
    interrupt_after: Collection[str] = (),
    checkpoint_when: Collection[str] = (),
) -> dict[str, Fork]:
    """Return the forks of a graph by id.

    Args:
        graph: the graph.
        interrupt_before: the nodes that this option names.
        interrupt_after: the same.
        checkpoint_when: the same.

    Raises:
        GraphStateError: everything that is wrong with the graph and the options.
    """
    forks, fork_problems = find_forks(graph.edges, graph.nodes)
    stops = [("interrupt_before", name) for name in interrupt_before]
    stops += [("interrupt_after", name) for name in interrupt_after if name not in graph.aliases]
    stops += [("checkpoint_when", name) for name in sorted(checkpoint_when) if name not in forks]

    problems = [*graph.problems]
    problems += find_problems(graph.nodes, graph.edges, stops)
    problems += fork_problems
    problems += find_reachability_problems(
        graph.nodes,
        graph.edges,
        forks.values(),
        graph.find_outermost_subgraphs(),
    )
    problems += graph.find_stop_problems(interrupt_after)

    for name in forks:
        if name in graph.nodes:
            problems.append(f"{name!r} is not a valid node id: the fork has it")

    if problems:
        raise GraphStateError(*problems)
    return forks


def _prepare_node(node: Node, config: CompileConfig) -> Node:
    """Return a node as it runs: with its hooks, retries and timeout, and the graph's defaults."""
    if node.action is None:
        return node
    retry = node.retry or config.retry
    timeout = config.timeout if node.timeout is None else node.timeout
    action = compose_call(node.action, node.id, node.wrap_hooks, retry, timeout)
    return dataclasses.replace(node, action=action)
