"""Program: a topology with the options it runs under; what a run, an update and a subgraph are started from."""

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
        options: how it is run.
        before: where on the main line a run stops before something -> the node that was named.
        after: the same for stops after something.
        when: the options' checkpoint_when, as it is called: (node_id, state, step).
    """

    __slots__ = ("after", "before", "options", "topology", "when")

    def __init__(self, topology: Topology, options: CompileConfig) -> None:
        self.topology = topology
        self.options = options
        self.before = topology.stops_before(options.interrupt_before)
        self.after = topology.stops_after(options.interrupt_after)
        self.when = _with_step(options.checkpoint_when)

    def with_options(self, options: CompileConfig) -> Program:
        """The same graph under other options."""
        return Program(self.topology, options)


def _with_step(when: Callable[..., bool] | None) -> Callable[..., bool] | None:
    if when is None or takes_step(when):
        return when
    return lambda node_id, state, _step: when(node_id, state)
