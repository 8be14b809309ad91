"""Program: a topology with its options, from which runs and updates are started; nested programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

from graphkit._plan.checkpoint_when import takes_step
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.topology import Node, Topology
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import subgraph_namespace


@final
class Program:
    """What is fixed before a run begins.

    Attributes:
        topology: the graph.
        options: the options it runs under.
        before: the nodes and forks of the main line before which a run stops, each with the node
            that `interrupt_before` names for it.
        after: the same for `interrupt_after`.
        when: the option `checkpoint_when`, as a function of (node_id, state, step).
    """

    __slots__ = ("after", "before", "options", "topology", "when")

    def __init__(self, topology: Topology, options: CompileConfig) -> None:
        self.topology = topology
        self.options = options
        self.before = topology.stops_before(options.interrupt_before)
        self.after = topology.stops_after(options.interrupt_after)
        when = options.checkpoint_when
        self.when = when
        if when is not None and not takes_step(when):
            self.when = lambda node_id, state, _step: when(node_id, state)

    def find_stop(self, stops: Mapping[str, str], node_id: str | None) -> str | None:
        """Return the node that a declared stop at a node or a fork names; None if there is no such stop.

        Args:
            stops: `before` or `after`.
            node_id: the node or the fork.
        """
        if not stops or node_id is None:
            return None
        fork = self.topology.find_fork(node_id)
        if node_id in stops or fork is None:
            return stops.get(node_id)
        # A condition has chosen this fork, so `stops` does not have its id.
        inside = [name for branch in fork.branches.values() for name in branch if name in stops]
        return stops[inside[0]] if inside else None

    def with_options(self, options: CompileConfig) -> Program:
        """Return the same graph under other options."""
        return Program(self.topology, options)


def program_of(node: Node) -> Program:
    """Return the program of a node that is a graph."""
    graph: Any = node.graph  # a CompiledGraph, whose module is above this one
    program: Program = graph.program
    return program


def find_programs(program: Program, namespace: str) -> list[Program] | None:
    """Find the programs on the path to a namespace, the outermost first; or None."""
    programs = [program]
    for name in namespace.split("/") if namespace else ():
        nested = programs[-1].topology.nested
        found = [node for node in nested if subgraph_namespace("", node.id) == name]
        if not found:
            return None
        programs.append(program_of(found[0]))
    return programs


def iter_savers(topology: Topology, saver: BaseCheckpointSaver) -> Iterator[BaseCheckpointSaver]:
    """Yield the saver of a graph and those that its nested graphs have of their own, once each."""
    seen = [saver]
    yield saver
    for node in topology.nested:
        nested = program_of(node)
        own_saver = nested.options.checkpoint_saver or saver
        for nested_saver in iter_savers(nested.topology, own_saver):
            if not any(nested_saver is known for known in seen):
                seen.append(nested_saver)
                yield nested_saver
