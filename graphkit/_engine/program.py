"""Program: a topology with its options, from which runs and updates are started."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from graphkit._plan.checkpoint_when import takes_step
from graphkit._plan.compile_config import CompileConfig
from graphkit._plan.topology import Topology


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
        self.when = _accept_step(options.checkpoint_when)

    def with_options(self, options: CompileConfig) -> Program:
        """Return the same graph under other options."""
        return Program(self.topology, options)


def _accept_step(when: Callable[..., bool] | None) -> Callable[..., bool] | None:
    """Let a predicate of two parameters accept the step as well."""
    if when is None or takes_step(when):
        return when
    return lambda node_id, state, _step: when(node_id, state)
