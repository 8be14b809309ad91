"""Assembly: a graph as it was written becomes the checked picture that a run walks."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from graphkit._build.flatten import FlattenedGraph
from graphkit._build.joins import find_forks
from graphkit._build.reachability import find_reachability_problems
from graphkit._engine.attempts import compose_call
from graphkit._plan.checkpoint_when import find_node_ids
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.definition import GraphDefinition
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import Condition, Edge, Fork, Node, Targets, Topology, find_problems, fork_id
from graphkit._records.config import END
from graphkit.errors import GraphStateError


def build_topology(sketch: GraphDefinition, schema: StateSchema, config: CompileConfig) -> tuple[Topology, CompileConfig]:
    """A graph's picture, and its options with the ids of merged subgraphs rewritten.

    Raises:
        GraphStateError: everything that is wrong with the graph.
    """
    merged = FlattenedGraph(sketch)
    before = merged.entered_by(config.interrupt_before)
    forks = _checked(merged, before, config.interrupt_after, _named_by(config))
    nodes = {node.id: _ready(node, config) for node in merged.nodes.values()}
    topology = Topology(nodes, forks, _edges(merged.edges, forks), schema, merged.aliases)
    return topology, config.replace(interrupt_before=before)


def check_subgraph(node_id: str, child: GraphDefinition) -> GraphDefinition:
    """A graph that can be merged into another, under this id.

    Raises:
        GraphStateError: everything that is wrong with it.
    """
    try:
        _checked(FlattenedGraph(child))
    except GraphStateError as error:
        raise GraphStateError(*(f"subgraph {node_id!r}: {problem}" for problem in error.problems)) from error
    return child


def _named_by(config: CompileConfig) -> Collection[str]:
    """The nodes at which a checkpoint is to be stored; a preset with a slip in a name would never store one."""
    return () if config.checkpoint_when is None else find_node_ids(config.checkpoint_when) - {END}


def _checked(
    merged: FlattenedGraph, before: Collection[str] = (), after: Collection[str] = (), saved: Collection[str] = ()
) -> dict[str, Fork]:
    forks, unjoined = find_forks(merged.edges, merged.nodes)
    stops = [("interrupt_before", name) for name in before]
    stops += [("interrupt_after", name) for name in after if name not in merged.aliases]
    stops += [("checkpoint_when", name) for name in sorted(saved) if name not in forks]
    problems = merged.problems + find_problems(merged.nodes, merged.edges, stops) + unjoined
    problems += find_reachability_problems(merged.nodes, merged.edges, forks.values(), merged.written_names())
    problems += merged.cannot_stop_after(after)
    problems += [f"{name!r} is not a valid node id: the fork has it" for name in forks if name in merged.nodes]
    if problems:
        raise GraphStateError(*problems)
    return forks


def _edges(edges: Mapping[str, Targets], forks: Mapping[str, Fork]) -> dict[str, Edge]:
    """The edges that a run follows."""
    single: dict[str, Edge] = {fork.id: fork.join for fork in forks.values()}
    for source, edge in edges.items():
        if isinstance(edge, Condition):
            single[source] = dataclasses.replace(edge, call=compose_call(edge.call, source, edge.wrap_hooks))
        else:
            single[source] = fork_id(source) if len(edge) > 1 else edge[0]
    return single


def _ready(node: Node, config: CompileConfig) -> Node:
    """A node as it runs: with all that is around its action, and the graph's defaults for what it does not say."""
    if node.action is None:
        return node
    retry = node.retry or config.retry
    timeout = config.timeout if node.timeout is None else node.timeout
    return dataclasses.replace(node, action=compose_call(node.action, node.id, node.wrap_hooks, retry, timeout))
