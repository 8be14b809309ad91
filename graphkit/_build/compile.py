"""Builds a Topology from a graph definition, or reports everything that is wrong with the graph.

First the subgraphs are inlined, at any depth. Among the problems are nodes where a run gets stuck,
nodes that no run reaches, and graphs that cannot end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeGuard, TypeVar, final

from graphkit._build.joins import find_chosen_fork, find_forks, find_reachable, find_successors
from graphkit._plan.calls import compose_call
from graphkit._plan.checkpoint_when import find_node_ids
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.schema import StateSchema
from graphkit._plan.topology import (
    Call,
    Condition,
    Edge,
    Fork,
    GraphDefinition,
    Hook,
    Node,
    Targets,
    Topology,
    describe_unknown_node,
    find_problems,
    fork_id,
)
from graphkit._records.config import END, START
from graphkit.errors import GraphStateError

# Subgraphs that are inlined
#
# Ports langgraph4j's merged subgraphs (StateGraphNodesAndEdges), bridge nodes included. A node `n`
# of the graph that was added as `S` becomes the node `S-n`. Edges to `S` lead to the first node of
# `S`. Edges to END within `S` lead to the target of the edge out of `S`. If the edge from START
# within `S`, or the edge out of `S`, is not one plain edge, a bridge node takes its place:
# `S-__START__` or `S-__END__`, which does nothing.

Hooked = TypeVar("Hooked", Node, Condition)


@final
class FlattenedGraph:
    """A graph without subgraphs to inline.

    Attributes:
        metadata: the caller's notes on all its nodes.
        nodes: by id, with their hooks.
        edges: by source, with their hooks.
        aliases: the id of an inlined subgraph -> the node at which a run enters it.
        scopes: the id of an inlined subgraph -> its names, END included -> what they are in this graph. The
            nodes of the subgraph share the mapping.
        problems: what is wrong with the names and the hooks.
    """

    def __init__(self, definition: GraphDefinition) -> None:
        self.metadata = definition.metadata
        self.nodes: dict[str, Node] = {}
        self.edges: dict[str, Targets] = {}
        self.aliases: dict[str, str] = {}
        self.scopes: dict[str, dict[str, str]] = {}
        self.problems: list[str] = []

        children: dict[str, FlattenedGraph] = {}
        entries: dict[str, str] = {}
        for node_id, part in definition.nodes.items():
            if isinstance(part, GraphDefinition):
                child = FlattenedGraph(part)
                children[node_id] = child
                # A run enters the subgraph at its first node, or at a bridge.
                entries[node_id] = _start_bridge(node_id)
                first = child.edges[START]
                if _is_plain(first) and first[0] != END:
                    entries[node_id] = f"{node_id}-{first[0]}"

        # An edge to a subgraph leads to its entry.
        for source, edge in definition.edges.items():
            self.edges[source] = _rename_edge(edge, entries)

        for node_id, part in definition.nodes.items():
            if isinstance(part, Node):
                destinations = _rename_targets(part.destinations, entries)
                self._add(dataclasses.replace(part, destinations=destinations))
            else:
                self._inline(node_id, entries[node_id], children[node_id])

        hook_problems = map(self._find_hook_problem, definition.node_hooks)
        self.problems += [problem for problem in hook_problems if problem is not None]
        for node_id, node in self.nodes.items():
            self.nodes[node_id] = _with_hooks(node, node_id, definition.node_hooks)
        self._apply_edge_hooks(definition.edge_hooks)

    def find_outermost_subgraphs(self) -> dict[str, str]:
        """Return id -> outermost subgraph, for the nodes that were inlined and for bridges."""
        found: dict[str, str] = {}
        for name in self.aliases:  # a subgraph comes after those inside it, and wins
            found |= {node_id: name for node_id in self.nodes if node_id.startswith(f"{name}-")}
        return found

    def find_stop_problems(self, names: Iterable[str]) -> list[str]:
        """Return a problem for each name in `interrupt_after` that is an inlined subgraph.

        An inlined subgraph may have several last nodes, so a run cannot stop after it.
        """
        problems: list[str] = []
        for name in names:
            if name not in self.aliases:
                continue
            target = self.scopes[name][END]
            advice = f"use interrupt_before {target!r}"
            if target == END:
                advice = "name its nodes that lead to END"
            elif target == _end_bridge(name):
                advice = f"use interrupt_after {target!r}"
            problems.append(f"interrupt_after names {name!r}, a subgraph, which may end at several nodes; {advice}")
        return problems

    def _inline(self, graph_id: str, entry: str, child: FlattenedGraph) -> None:
        """Make the nodes and edges of a subgraph part of this graph."""
        # Let S have START -> a and a -> END, and the graph p -> S and S -> q. Then renaming is enough:
        # p -> S-a and S-a -> q. A name stands for S only where one edge has one target:
        #
        # - START -> (a, b) in S: p -> S has no single target. p -> S-__START__ -> (S-a, S-b).
        # - S -> (q, r), a condition, or nothing yet: END in S has none. S-a -> S-__END__ -> (q, r).
        #
        # The caller has renamed the edges to S. Here the edge out of S moves to S-__END__, or its target
        # becomes the name of END in S.
        outgoing = self.edges.pop(graph_id, [])
        exit_target = outgoing[0] if _is_plain(outgoing) else _end_bridge(graph_id)

        # Every name that an edge or a Command within the subgraph may use -> its name here.
        names = {node_id: f"{graph_id}-{node_id}" for node_id in child.nodes}
        names[END] = exit_target
        names |= {alias: names[target] for alias, target in child.aliases.items()}

        # The subgraphs that are inlined in the child, with the ids of this graph. Their nodes refer to the
        # child's scopes, so the scopes are changed in place.
        for alias, scope in child.scopes.items():
            for name, target in scope.items():
                scope[name] = names[target]
            self.scopes[f"{graph_id}-{alias}"] = scope
        self.scopes[graph_id] = names

        if entry == _start_bridge(graph_id):
            self._add(Node(id=entry, action=_NO_ACTION, local_names=names))
            self.edges[entry] = _rename_edge(child.edges[START], names)

        for node in child.nodes.values():
            renamed = dataclasses.replace(
                node,
                id=names[node.id],
                local_names=node.local_names or names,
                metadata={**child.metadata, **node.metadata},
                destinations=_rename_targets(node.destinations, names),
            )
            self._add(renamed)

        for source, edge in child.edges.items():
            if source == START:
                continue
            new_source = names.get(source, source)
            self.edges[new_source] = _rename_edge(edge, names)

        if exit_target == _end_bridge(graph_id):
            self._add(Node(id=exit_target, action=_NO_ACTION))
            if outgoing:
                self.edges[exit_target] = outgoing

        aliases = {f"{graph_id}-{alias}": names[target] for alias, target in child.aliases.items()}
        aliases[graph_id] = entry
        for alias in aliases:
            self._claim(alias)
        self.aliases |= aliases

    def _add(self, node: Node) -> None:
        self._claim(node.id)
        self.nodes[node.id] = node

    def _claim(self, name: str) -> None:
        if name in self.nodes or name in self.aliases:
            self.problems.append(f"{name!r} names two nodes, one of them in an inlined subgraph; rename one")

    def _apply_edge_hooks(self, hooks: list[Hook]) -> None:
        conditions = {source: edge for source, edge in self.edges.items() if isinstance(edge, Condition)}

        moved: list[Hook] = []
        for hook in hooks:
            hook_source = hook.node_id
            if hook_source in self.aliases:
                hook_source = _end_bridge(hook_source)  # the edge out of an inlined subgraph
            moved.append(hook._replace(node_id=hook_source))
            if hook_source is not None and hook_source not in conditions:
                self.problems.append(
                    f"a {hook.kind} hook is on the edge of {hook.node_id!r}, which has no conditional edge",
                )

        for source, edge in conditions.items():
            self.edges[source] = _with_hooks(edge, source, moved)

    def _find_hook_problem(self, hook: Hook) -> str | None:
        node_id = hook.node_id
        if node_id is None:
            return None
        subject = f"a {hook.kind} hook is on {node_id!r}"
        node = self.nodes.get(node_id)
        if node is None and node_id in self.aliases:
            return f"{subject}, an inlined subgraph: put it on '{node_id}-<node>'"
        if node is None:
            return f"a {hook.kind} hook is on {describe_unknown_node(node_id, self.nodes)}"
        if hook.kind == "wrap" and node.graph is not None:
            return f"{subject}, a compiled graph: put it on the nodes of that graph"
        return None


def _do_nothing(state: Any) -> None:
    """Return no update; the action of a bridge node."""


_NO_ACTION: Final = Call(_do_nothing)


def _start_bridge(graph_id: str) -> str:
    return f"{graph_id}-{START}"


def _end_bridge(graph_id: str) -> str:
    return f"{graph_id}-{END}"


def _is_plain(edge: Targets) -> TypeGuard[list[str]]:
    return isinstance(edge, list) and len(edge) == 1


def _rename_targets(targets: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(target, target) for target in targets)


def _rename_edge(edge: Targets, names: Mapping[str, str]) -> Targets:
    """Return an edge with its targets renamed.

    END among the targets of a fork is not renamed: it is not a branch, and the other branches
    determine where the fork leads.

    A condition without mappings returns the names of its own graph. In an inlined subgraph, where
    END has another name, `names` therefore becomes its mappings.
    """
    if isinstance(edge, list):
        kept = END if len(edge) > 1 else None
        return [target if target == kept else names.get(target, target) for target in edge]
    if edge.mappings is not None:
        mappings = {key: names.get(target, target) for key, target in edge.mappings.items()}
        return dataclasses.replace(edge, mappings=mappings)
    if END in names:
        return dataclasses.replace(edge, mappings=dict(names))
    return edge


def _with_hooks(part: Hooked, node_id: str, hooks: Iterable[Hook]) -> Hooked:
    """Return a node or a condition with hooks of a graph added to those that it has.

    The hook that was added first is outermost. Hooks on all nodes are outside those on one node.
    """
    # Hooks on all nodes come first, because they are outside those on one node.
    on_all = [hook for hook in hooks if hook.node_id is None]
    on_this = [hook for hook in hooks if hook.node_id == node_id]
    applicable = on_all + on_this

    # After hooks run in the opposite order, so that the outermost one runs last.
    before = tuple(hook.call for hook in applicable if hook.kind == "before")
    after = tuple(hook.call for hook in applicable if hook.kind == "after")
    wrap = tuple(hook.call for hook in applicable if hook.kind == "wrap")
    if getattr(part, "graph", None) is not None:
        wrap = ()  # a wrap hook on all nodes leaves out nested graphs

    return dataclasses.replace(
        part,
        before_hooks=before + part.before_hooks,
        after_hooks=part.after_hooks + after[::-1],
        wrap_hooks=wrap + part.wrap_hooks,
    )


# Dead ends, and nodes that no run reaches


def _find_reachability_problems(graph: FlattenedGraph, forks: Iterable[Fork]) -> list[str]:
    """Find the nodes without a way out or a way in, and whether END can be reached.

    A condition without mappings and an edge to an unknown node may lead anywhere. They are never
    the cause of a problem.

    Args:
        graph: the graph.
        forks: those that have a join. A branch may end with a node that has no outgoing edge.

    Returns:
        One sentence per problem, without repetitions. The nodes of an inlined subgraph have its id.
    """
    problems: list[str] = []
    names = graph.find_outermost_subgraphs()
    # A branch may just end, because the join is known from the other branches.
    in_branches: set[str] = set()
    for fork in forks:
        in_branches.update(*fork.branches.values())
    for node_id, node in graph.nodes.items():
        if node_id not in graph.edges and not node.destinations and node_id not in in_branches:
            name = names.get(node_id, node_id)
            problems.append(
                f"{name!r} has no outgoing edge: add_edge({name!r}, ...), or destinations=[...] if it returns Commands",
            )

    successors = find_successors(graph.edges, graph.nodes)
    reached = find_reachable(START, lambda node_id: successors.get(node_id, ()))
    targets = {target for node_id in reached for target in successors.get(node_id, ())}
    # Where a condition without mappings leads is not known; `find_problems` reports a name that is not a node.
    if START not in graph.edges or not targets.issubset({*graph.nodes, END}):
        return list(dict.fromkeys(problems))
    for node_id in graph.nodes:
        if node_id not in targets:
            name = names.get(node_id, node_id)
            problems.append(
                f"{name!r} cannot be reached from START: no edge leads to it, "
                f"and no destinations=[...] of a node name it",
            )
    if END not in targets:
        problems.append("END cannot be reached from START, so no run can end: add_edge(..., END)")
    return list(dict.fromkeys(problems))


# From a definition to a Topology


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
    config = config.replace(interrupt_before=[graph.aliases.get(name, name) for name in config.interrupt_before])
    forks = _check(graph, config)

    # The nodes as they run: with their hooks, retries and timeouts, and the graph's defaults.
    nodes = dict(graph.nodes)
    for node in graph.nodes.values():
        if node.action is not None:
            retry = node.retry or config.retry
            timeout = config.timeout if node.timeout is None else node.timeout
            action = compose_call(node.action, node.id, node.wrap_hooks, retry, timeout)
            nodes[node.id] = dataclasses.replace(node, action=action)
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
    return topology, config


def check_subgraph(node_id: str, child: GraphDefinition) -> GraphDefinition:
    """Return a graph that can be inlined into another graph under this id.

    Raises:
        GraphStateError: everything that is wrong with it.
    """
    try:
        _check(FlattenedGraph(child), CompileConfig())
    except GraphStateError as error:
        problems = [f"subgraph {node_id!r}: {problem}" for problem in error.problems]
        raise GraphStateError(*problems) from error
    return child


def _check(graph: FlattenedGraph, config: CompileConfig) -> dict[str, Fork]:
    """Return the forks of a graph by id.

    Raises:
        GraphStateError: everything that is wrong with the graph, and with the names in its options.
    """
    forks, fork_problems = find_forks(graph.edges, graph.nodes)
    stops = [("interrupt_before", name) for name in config.interrupt_before]
    stops += [("interrupt_after", name) for name in config.interrupt_after if name not in graph.aliases]
    # A preset with a misspelt name would never store a checkpoint.
    named = find_node_ids(config.checkpoint_when)
    stops += [("checkpoint_when", name) for name in sorted(named - {END}) if name not in forks]

    problems = [*graph.problems]
    problems += find_problems(graph.nodes, graph.edges, stops)
    problems += fork_problems
    problems += _find_reachability_problems(graph, forks.values())
    problems += graph.find_stop_problems(config.interrupt_after)

    for name in forks:
        if name in graph.nodes:
            problems.append(f"{name!r} is not a valid node id: the fork has it")

    if problems:
        raise GraphStateError(*problems)
    return forks
