"""Builds a Topology from a graph definition, or reports everything that is wrong with the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from functools import partial

from graphkit._build.flatten import FlattenedGraph
from graphkit._build.joins import find_chosen_fork, find_forks
from graphkit._build.reachability import find_reachability_problems
from graphkit._engine.calls import compose_call
from graphkit._plan.checkpoint_when import find_node_ids
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.definition import GraphDefinition
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import (
    Condition,
    Edge,
    Fork,
    Node,
    Targets,
    Topology,
    find_problems,
    fork_id,
)
from graphkit._records.config import END
from graphkit.errors import GraphStateError


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
    edges = _prepare_edges(graph.edges, forks)
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


def _prepare_edges(edges: Mapping[str, Targets], forks: Mapping[str, Fork]) -> dict[str, Edge]:
    """Return the edges that a run follows, one out of each node and fork."""
    prepared: dict[str, Edge] = {}
    for fork in forks.values():
        prepared[fork.id] = fork.join

    for source, edge in edges.items():
        if isinstance(edge, Condition):
            call = compose_call(edge.call, source, edge.wrap_hooks)
            prepared[source] = dataclasses.replace(edge, call=call)
        elif len(edge) > 1:
            prepared[source] = fork_id(source)
        else:
            prepared[source] = edge[0]
    return prepared


def _prepare_node(node: Node, config: CompileConfig) -> Node:
    """Return a node as it runs: with its hooks, retries and timeout, and the graph's defaults."""
    if node.action is None:
        return node
    retry = node.retry or config.retry
    timeout = config.timeout if node.timeout is None else node.timeout
    action = compose_call(node.action, node.id, node.wrap_hooks, retry, timeout)
    return dataclasses.replace(node, action=action)
